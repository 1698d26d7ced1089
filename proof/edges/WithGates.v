(** The machine with the gates as its rule, shared claims too: a job is ready when it has passed all its gates in
    the settled trie. *)

From Coq Require Import List Arith Bool Lia.
Import ListNotations.
Require Import Claims Walks Settled Jobs Safety NoDeadlock.

Definition is_granted (w : walk) : bool := pos w =? S (depth (of w)).

(** No two claims of one job conflict: normalise makes them so. *)
Fixpoint compatible (cs : list claim) : bool :=
  match cs with [] => true | c :: t => forallb (fun d => negb (conflict c d)) t && compatible t end.

(** All gates are passed, once the claims of those before and its own are placed in an empty trie. *)
Definition gates_ready (bs : list (list claim)) (cs : list claim) : bool :=
  forallb is_granted (skipn (length (concat bs)) (settled (concat bs ++ cs))).

(** Placing keeps the claims and their order. *)
Lemma of_settled cs : map of (settled cs) = cs.
Proof. induction cs as [|c cs IH] using rev_ind; auto. rewrite settled_snoc, map_app, IH. reflexivity. Qed.

(** A walk passes only gates at which it is not blocked. *)
Lemma walk_down_keeps_behind s c : forall n i, (forall u, In u s -> keeps_behind u (Walk c i)) ->
  forall u, In u s -> keeps_behind u (Walk c (walk_down s c i n)).
Proof.
  induction n as [|n IH]; simpl; auto. intros i O. destruct (blockedb s (Walk c i)) eqn:B; auto.
  apply IH. intros u I. apply (keeps_behind_pass u (Walk c i)); auto. intros W.
  enough (blockedb s (Walk c i) = true) by congruence. apply blockedb_spec. now exists u.
Qed.

(** A walk passes at most the gates that it has. *)
Lemma walk_down_at_most s c : forall n i, walk_down s c i n <= i + n.
Proof. induction n as [|n IH]; simpl; intros i; [lia|]. destruct blockedb; [lia|]. specialize (IH (S i)). lia. Qed.

(** A settled trie is in order: each walk is behind those before it. *)
Lemma settled_ordered cs : ordered (settled cs).
Proof.
  induction cs as [|c cs IH] using rev_ind; [exact I|]. rewrite settled_snoc. apply ordered_app. split; [exact IH|].
    split.
  - simpl. repeat split; try contradiction. pose proof (walk_down_at_most (settled cs) c (S (depth c)) 0) as M.
    simpl in *. lia.
  - intros u w Iu [<-|[]]. apply walk_down_keeps_behind; auto. intros v _ i _ L. simpl in L. lia.
Qed.

(** Claims placed later change nothing before them. *)
Lemma settled_app cs ds : exists t, settled (cs ++ ds) = settled cs ++ t /\ map of t = ds.
Proof.
  destruct (later_never_matters cs ds) as [t E]. exists t. split; auto.
  pose proof (of_settled (cs ++ ds)) as M. rewrite E, map_app, of_settled in M. now apply app_inv_head in M.
Qed.

(** If all gates are passed, no claim before conflicts (granted_is_free). *)
Lemma gates_ready_is_free bs cs b : gates_ready bs cs = true -> In b bs -> clash b cs = false.
Proof.
  unfold gates_ready. destruct (settled_app (concat bs) cs) as (t & E & M). rewrite E.
  assert (L : length (concat bs) = length (settled (concat bs))) by (rewrite <- (map_length of), of_settled;
    reflexivity).
  rewrite L, skipn_app, skipn_all, Nat.sub_diag. simpl. rewrite forallb_forall. intros F I.
  destruct (clash b cs) eqn:C; auto. exfalso. unfold clash in C. apply existsb_exists in C as (c & Ic & C).
  apply existsb_exists in C as (d & Id & C). rewrite <- M in Id. apply in_map_iff in Id as (w & <- & Iw).
  pose proof (F w Iw) as G. apply Nat.eqb_eq in G. apply in_split in Iw as (t1 & t2 & ->).
  assert (O : ordered ((settled (concat bs) ++ t1) ++ w :: t2)).
  { rewrite <- app_assoc, <- E. apply settled_ordered. }
  enough (conflict c (of w) = false) by congruence. apply (granted_is_free _ _ _ O G).
  rewrite map_app, of_settled. apply in_app_iff. left. apply in_concat. eauto.
Qed.

(** A walk that is nowhere blocked passes all gates. *)
Lemma walk_down_all s c : forall n i, (forall k, blockedb s (Walk c k) = false) -> walk_down s c i n = i + n.
Proof. induction n as [|n IH]; simpl; intros i F; [lia|]. rewrite F, IH; auto. lia. Qed.

(** Claims that are compatible are so in both parts and across them. *)
Lemma compatible_app cs ds : compatible (cs ++ ds) = true -> compatible cs = true /\ forall c d, In c cs -> In d ds ->
  conflict c d = false.
Proof.
  induction cs as [|x cs IH]; simpl; [split; auto; contradiction|]. rewrite !andb_true_iff, forallb_app, andb_true_iff.
  intros [[A B] C]. destruct (IH C) as [D E]. split; auto. intros c d [<-|I] J; auto.
  rewrite forallb_forall in B. now apply negb_true_iff, B.
Qed.

(** Compatible claims alone are all granted: none blocks another. *)
Lemma alone_all_granted cs : compatible cs = true -> forallb is_granted (settled cs) = true.
Proof.
  induction cs as [|c cs IH] using rev_ind; auto. intros A. apply compatible_app in A as [A N]. specialize (IH A).
  rewrite settled_snoc, forallb_app, IH. rewrite walk_down_all; [unfold is_granted; simpl; now rewrite Nat.eqb_refl|].
  intros k. apply not_true_is_false. rewrite blockedb_spec. intros (u & I & M & B). cbn [of pos] in *.
  rewrite forallb_forall in IH. pose proof (IH u I) as G. apply Nat.eqb_eq in G.
  destruct B as [B|[_ B]]; [destruct M; lia|]. apply clash_conflict in B; auto.
  rewrite N in B; [discriminate | | simpl; auto]. rewrite <- (of_settled cs). now apply in_map.
Qed.

(** The gates as a rule. *)
Definition gates (v : revival) : rules := Rules gates_ready compatible false true v.

(** The gates are a sound rule, with shared claims too, unless revivals go unchecked. *)
Theorem gates_sound v : v <> Always -> sound (gates v).
Proof.
  intros V. split; try reflexivity; auto; [exact gates_ready_is_free|]. intros cs A. unfold gates_ready. simpl.
  now apply alone_all_granted.
Qed.

(** No deadlock, with the gates as the rule and shared claims. *)
Corollary gates_never_deadlock v w j : v <> Always -> reachable (gates v) w -> unfinished (state (jobs w j)) = true ->
  exists e w', In e (moves w) /\ act (gates v) w e = Some w'.
Proof. intros V. apply no_deadlock. now apply gates_sound. Qed.
