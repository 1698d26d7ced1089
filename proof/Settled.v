(** When no walk can move, the state is what placing the unfinished claims anew gives: it has no memory. *)

From Coq Require Import List Arith Lia Bool.
Import ListNotations.
Require Import Claims Walks.

(* --- the state when nothing can move is what placing anew gives --------------------------------------------------- *)

Definition eqb_path (p q : Path) : bool := if list_eq_dec Nat.eq_dec p q then true else false.

(** [eqb_path] decides equality, as [list_eq_dec] does. *)
Lemma eqb_path_spec p q : eqb_path p q = true <-> p = q.
Proof. unfold eqb_path. destruct list_eq_dec; split; congruence. Qed.

(** [in_the_way] as a test. *)
Definition in_the_wayb (u w : walk) : bool :=
  (pos w <=? depth (of u)) && (pos w <=? depth (of w)) &&
  eqb_path (firstn (pos w) (path (of u))) (firstn (pos w) (path (of w))) &&
  ((pos u =? pos w) || (pos w <? pos u) && negb (fits (wants (of u) (pos w)) (wants (of w) (pos w)))).

(** The test is the definition, read as a program. *)
Lemma in_the_wayb_spec u w : in_the_wayb u w = true <-> in_the_way u w.
Proof.
  unfold in_the_wayb, in_the_way, meet.
  rewrite !andb_true_iff, orb_true_iff, andb_true_iff, negb_true_iff, eqb_path_spec.
  rewrite !Nat.leb_le, Nat.eqb_eq, Nat.ltb_lt. tauto.
Qed.

(** [blocked] as a test. *)
Definition blockedb (before : list walk) (w : walk) : bool := existsb (fun u => in_the_wayb u w) before.

(** The test looks at each walk before. *)
Lemma blockedb_spec l w : blockedb l w = true <-> blocked l w.
Proof.
  unfold blockedb, blocked. rewrite existsb_exists. split; intros (u & I & B); exists u; split; auto;
    now apply in_the_wayb_spec.
Qed.

(** Walk on from gate [i], at most [n] gates; return the gates passed. *)
Fixpoint walk_down (before : list walk) (c : claim) (i n : nat) : nat :=
  match n with
  | 0 => i
  | S n' => if blockedb before (Walk c i) then i else walk_down before c (S i) n'
  end.

(** Place claims in order in an empty trie. *)
Definition settled (cs : list claim) : list walk :=
  fold_left (fun s c => s ++ [Walk c (walk_down s c 0 (S (depth c)))]) cs [].

(** The last claim is placed last. *)
Lemma settled_snoc cs c : settled (cs ++ [c]) = settled cs ++ [Walk c (walk_down (settled cs) c 0 (S (depth c)))].
Proof. unfold settled. now rewrite fold_left_app. Qed.

(** A walk goes down to the first gate at which it is blocked: by induction on the gates left. *)
Lemma walk_down_stops before c p : forall n i,
  i <= p -> p <= i + n -> (forall j, i <= j < p -> blockedb before (Walk c j) = false) ->
  (p = i + n \/ blockedb before (Walk c p) = true) -> walk_down before c i n = p.
Proof.
  induction n as [|n IH]; simpl; intros i L U F B; [lia|].
  destruct (Nat.eq_dec i p) as [->|N].
  - destruct B as [B|B]; [lia | now rewrite B].
  - rewrite F by lia. apply IH; try lia; [intros j J; apply F; lia | destruct B; [left; lia | now right]].
Qed.

(** In a stable state the walks are a function of the unfinished claims in order: the invariant says that each has
    passed no gate at which it is blocked, stable says that it is blocked where it stands; so each position follows
    from those before. Earlier jobs, cuts and the order of advances leave no trace. *)
Theorem stable_is_settled s : ordered s -> stable s -> s = settled (map of s).
Proof.
  induction s as [|w s IH] using rev_ind; intros O Q; [reflexivity|].
  rewrite map_app. simpl map. rewrite settled_snoc.
  rewrite <- IH; [|now apply ordered_app in O | eapply stable_prefix; eauto].
  apply ordered_app in O as (_ & (P & _) & O). f_equal. f_equal.
  destruct w as [c p]. cbn [of pos] in *. f_equal. symmetry. apply walk_down_stops; try lia.
  - intros j J. apply not_true_is_false. rewrite blockedb_spec. intros (u & I & M & B). cbn [of pos] in *.
    destruct (O u _ I (or_introl eq_refl) j M) as [L F]; simpl in *; [lia|].
    destruct B as [B|[_ B]]; [lia | congruence].
  - destruct (Q s (Walk c p) [] eq_refl) as [G|B]; [left; unfold granted in G; simpl in G; lia|].
    right. now apply blockedb_spec.
Qed.

(** Two stable states of the same claims are equal: both are [settled] of them. *)
Corollary same_claims_same_state s t : ordered s -> ordered t -> stable s -> stable t -> map of s = map of t -> s = t.
Proof. intros. rewrite (stable_is_settled s), (stable_is_settled t) by auto. congruence. Qed.

(** Claims placed later change nothing for those before: each is placed after them. *)
Corollary later_never_matters cs ds : exists t, settled (cs ++ ds) = settled cs ++ t.
Proof.
  induction ds as [|d ds [t IH]] using rev_ind; [exists []; now rewrite !app_nil_r|].
  rewrite app_assoc, settled_snoc, IH, <- app_assoc. eauto.
Qed.
