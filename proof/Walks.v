(** Walks through gates, without any gate: which gate a walk may pass is decided by the walks before it.

    A state is the list of the walks of unfinished claims in order of place. A walk is its claim and one number, how
    many gates it has passed. One invariant, [ordered], says all that is needed: of two walks that meet at a gate,
    the later has passed it only if the earlier has, in modes that fit. Placing, passing a gate and leaving keep it.
    *)

From Coq Require Import List Arith Lia Bool.
Import ListNotations.
Require Import Claims.

(* --- walks -------------------------------------------------------------------------------------------------------- *)

(** A claim on its way: [pos] gates are passed; it stands before gate [pos], or is granted when all are passed. *)
Record walk := Walk { of : claim; pos : nat }.

(** All gates are passed, that of its own node too. *)
Definition granted (w : walk) : Prop := pos w = S (depth (of w)).
(** The walk passes one gate. *)
Definition pass_gate (w : walk) : walk := Walk (of w) (S (pos w)).

(** [u] keeps [w] from passing its gate: it stands there too, or has passed it in a mode that does not fit. *)
Definition in_the_way (u w : walk) : Prop :=
  meet (of u) (of w) (pos w) /\
  (pos u = pos w \/ (pos w < pos u /\ fits (wants (of u) (pos w)) (wants (of w) (pos w)) = false)).

(** A walk before it is in the way. *)
Definition blocked (before : list walk) (w : walk) : Prop := exists u, In u before /\ in_the_way u w.

(** One walk that is not blocked passes one gate. *)
Inductive step : list walk -> list walk -> Prop :=
| Step l1 w l2 : pos w <= depth (of w) -> ~ blocked l1 w -> step (l1 ++ w :: l2) (l1 ++ pass_gate w :: l2).

(** No walk can move: no line waits to be advanced. *)
Definition stable (s : list walk) : Prop :=
  forall l1 w l2, s = l1 ++ w :: l2 -> granted w \/ blocked l1 w.

(* --- the one invariant -------------------------------------------------------------------------------------------- *)

(** Where two walks meet, the later has passed only what the earlier has passed, in modes that fit. *)
Definition keeps_behind (u w : walk) : Prop :=
  forall i, meet (of u) (of w) i -> i < pos w -> i < pos u /\ fits (wants (of u) i) (wants (of w) i) = true.

(** The invariant: each walk keeps behind those before it. *)
Fixpoint ordered (s : list walk) : Prop :=
  match s with
  | [] => True
  | u :: t => pos u <= S (depth (of u)) /\ (forall w, In w t -> keeps_behind u w) /\ ordered t
  end.

(** A list is in order when both parts are and each walk of the first part precedes each of the second in order. *)
Lemma ordered_app s t :
  ordered (s ++ t) <-> ordered s /\ ordered t /\ (forall u w, In u s -> In w t -> keeps_behind u w).
Proof.
  induction s as [|x s IH]; simpl.
  - split; [intros H; repeat split; auto; contradiction | tauto].
  - rewrite IH. split.
    + intros (P & A & B & C & D). repeat apply conj; auto using in_or_app.
      intros u w [<-|I] J; auto using in_or_app.
    + intros ((P & A & B) & C & D). repeat apply conj; auto.
      intros w [I|I]%in_app_or; auto.
Qed.

(** Placing a claim keeps the order: a new walk has passed nothing. *)
Lemma ordered_place s c : ordered s -> ordered (s ++ [Walk c 0]).
Proof.
  intros O. apply ordered_app. simpl. repeat apply conj; auto; try lia; try contradiction.
  intros u w I [<-|[]] i M L. simpl in L. lia.
Qed.

(** Leaving keeps the order: fewer pairs are left to look at. *)
Lemma ordered_leave l1 w l2 : ordered (l1 ++ w :: l2) -> ordered (l1 ++ l2).
Proof.
  rewrite !ordered_app. simpl. intros (A & (P & B & C) & D).
  repeat apply conj; auto.
Qed.

(** An earlier walk has come at least as far on the common way: else the later one would have passed a gate before
    it. *)
Lemma earlier_is_not_behind u w : keeps_behind u w -> meet (of u) (of w) (pos w) -> pos w <= pos u.
Proof.
  intros O M. destruct (le_lt_dec (pos w) (pos u)) as [|L]; auto.
  enough (pos u < pos u) by lia. apply O; auto. eapply meet_down; [|eauto]. lia.
Qed.

(** A walk may pass a gate unless an earlier one is in its way: the earlier one has passed that gate, in a mode that
    fits. *)
Lemma keeps_behind_pass u w : keeps_behind u w -> ~ in_the_way u w -> keeps_behind u (pass_gate w).
Proof.
  intros O N i M L. simpl in *. destruct (Nat.eq_dec i (pos w)) as [->|]; [|apply O; auto; lia].
  pose proof (earlier_is_not_behind _ _ O M). unfold in_the_way in N.
  destruct (Nat.eq_dec (pos u) (pos w)); [tauto|].
  split; [lia|]. destruct fits eqn:F; auto. exfalso. apply N. split; auto. right. split; auto. lia.
Qed.

(** The earlier walk may pass a gate: it has then passed more. *)
Lemma keeps_behind_earlier_pass u w : keeps_behind u w -> keeps_behind (pass_gate u) w.
Proof. intros O i M L. apply (O i M) in L as []. simpl. auto. Qed.

(** Each step keeps the order: by the two lemmas above for the walks before and after the one that moves. *)
Lemma ordered_step s t : step s t -> ordered s -> ordered t.
Proof.
  intros [l1 w l2 P NB]. rewrite !ordered_app. simpl. intros (A & (_ & B & C) & D).
  split; [|split]; auto.
  - split; [lia|]. split; auto. intros v I. apply keeps_behind_earlier_pass, B, I.
  - intros u v I [<-|J]; auto. apply keeps_behind_pass; auto. intros W. apply NB. exists u; auto.
Qed.

(** No later walk has passed the gate a walk stands at: it would have overtaken. So what is placed later never
    matters. *)
Lemma later_has_not_passed l1 w l2 v :
  ordered (l1 ++ w :: l2) -> In v l2 -> meet (of w) (of v) (pos w) -> pos v <= pos w.
Proof.
  rewrite ordered_app. intros (_ & (_ & O & _) & _) I M.
  destruct (le_lt_dec (pos v) (pos w)) as [|L]; auto. apply (O v I) in L; auto. lia.
Qed.

(* --- safety and order --------------------------------------------------------------------------------------------- *)

(** A granted walk has none before it in conflict, at every cut and in all modes: a conflict is a clash at some gate
    (conflict_clash), and it has passed all its gates in modes that fit. *)
Theorem granted_is_free l1 w l2 :
  ordered (l1 ++ w :: l2) -> granted w -> free (map of l1) (of w).
Proof.
  rewrite ordered_app. intros (_ & _ & O) G d (u & <- & I)%in_map_iff.
  destruct (conflict (of u) (of w)) eqn:C; auto.
  apply conflict_clash in C as (i & M & F). exfalso.
  assert (L : i < pos w) by (destruct M as (_ & L & _); unfold granted in G; lia).
  destruct (O u w I (or_introl eq_refl) i M L). congruence.
Qed.

(** Two granted walks never conflict: one is before the other. *)
Theorem granted_walks_never_conflict s u w :
  ordered s -> In u s -> In w s -> granted u -> granted w -> u = w \/ conflict (of u) (of w) = false.
Proof.
  intros O Iu Iw Gu Gw. apply in_split in Iw as (l1 & l2 & ->).
  apply in_app_iff in Iu as [I|[->|I]]; auto; right.
  - apply (granted_is_free _ _ _ O Gw). now apply in_map.
  - apply in_split in I as (l3 & l4 & ->).
    rewrite conflict_sym. apply (granted_is_free (l1 ++ w :: l3) u l4); auto.
    + rewrite <- app_assoc. exact O.
    + apply in_map, in_elt.
Qed.

(** In a stable state a walk that is not granted has an earlier one in its way: that is what stable means. *)
Theorem waiting_is_blocked l1 w l2 :
  stable (l1 ++ w :: l2) -> ~ granted w -> exists u, In u l1 /\ in_the_way u w.
Proof. intros Q G. destruct (Q l1 w l2 eq_refl) as [|B]; [contradiction | exact B]. Qed.

(** The first walks of a stable state are stable: only earlier walks block. *)
Lemma stable_prefix s t : stable (s ++ t) -> stable s.
Proof. intros Q l1 w l2 ->. apply (Q l1 w (l2 ++ t)). now rewrite <- app_assoc. Qed.

(** Two intentions fit, so a clash is at the node of one of the claims. *)
Lemma clash_is_at_a_node_of_one c d i :
  meet c d i -> fits (wants c i) (wants d i) = false -> depth c = i \/ depth d = i.
Proof.
  unfold wants. intros M. destruct (Nat.eqb_spec i (depth c)), (Nat.eqb_spec i (depth d)); auto.
  destruct (shared c), (shared d); discriminate.
Qed.

(** Claims that meet at the node of one of them conflict unless both are shared: one path is a prefix of the other.
    *)
Lemma meeting_at_own_node_conflicts c d i :
  meet c d i -> depth c = i \/ depth d = i -> shared c && shared d = false -> conflict c d = true.
Proof.
  intros (_ & _ & E) D S. unfold conflict, depth in *. rewrite S, andb_true_r. apply orb_true_iff.
  destruct D as [<-|<-]; [left | right]; apply prefix_spec; [rewrite <- E | rewrite E]; apply firstn_all.
Qed.

(** In a stable state a walk that waits has an earlier one whose path is above or below its own, as far as the gate
    it stands at: the head of its line, or the holder that stops the head; by induction on the walks before it. *)
Lemma waits_for_ancestor_or_descendant l1 : forall w l2,
  stable (l1 ++ w :: l2) -> ~ granted w ->
  exists u, In u l1 /\ meet (of u) (of w) (pos w) /\ (depth (of u) = pos w \/ depth (of w) = pos w).
Proof.
  induction l1 as [l1 IH] using (induction_ltof1 _ (@length walk)). unfold ltof in IH.
  intros w l2 Q G. destruct (waiting_is_blocked _ _ _ Q G) as (u & I & M & [E|[L F]]).
  - (* u stands in line before w, at the same gate *)
    apply in_split in I as (l3 & l4 & ->).
    assert (Gu : ~ granted u) by (unfold granted; destruct M; lia).
    destruct (IH l3 ltac:(rewrite app_length; simpl; lia) u (l4 ++ w :: l2)) as (v & Iv & Mv & D); auto.
    + now rewrite <- app_assoc in Q.
    + rewrite E in *. destruct D as [D|D].
      * exists v. split; [|split]; auto using in_or_app. eapply meet_trans; eauto.
      * exists u. split; [|split]; auto using in_elt.
  - exists u. split; [|split]; auto. eapply clash_is_at_a_node_of_one; eauto.
Qed.

(** In a stable state granted is exactly what the plain rule says, for an exclusive claim whatever the others claim,
    and for a shared one if all before it are exclusive: the walk found above then conflicts. *)
Theorem granted_iff_free l1 w l2 :
  ordered (l1 ++ w :: l2) -> stable (l1 ++ w :: l2) ->
  shared (of w) = false \/ (forall u, In u l1 -> shared (of u) = false) ->
  granted w <-> free (map of l1) (of w).
Proof.
  intros O Q X. split; [now apply granted_is_free with (l2 := l2)|].
  intros F. destruct (Nat.eq_dec (pos w) (S (depth (of w)))) as [|G]; auto. exfalso.
  destruct (waits_for_ancestor_or_descendant l1 w l2 Q G) as (u & I & M & D).
  enough (conflict (of u) (of w) = true) by (rewrite (F (of u)) in H; [discriminate | now apply in_map]).
  eapply meeting_at_own_node_conflicts; eauto. destruct X as [->|X]; [apply andb_false_r | now rewrite (X u I)].
Qed.

(* --- progress ----------------------------------------------------------------------------------------------------- *)

(** In a stable state the first walk is granted: none is before it to block it. So no wait goes round in a cycle. *)
Theorem first_is_granted w s : stable (w :: s) -> granted w.
Proof. intros Q. destruct (Q [] w s eq_refl) as [|(u & [] & _)]; auto. Qed.

(** How many gates are left to pass, and one for each walk to leave. *)
Fixpoint remaining (s : list walk) : nat :=
  match s with [] => 0 | w :: t => S (S (depth (of w))) - pos w + remaining t end.

(** What remains is a sum over the walks. *)
Lemma remaining_app s t : remaining (s ++ t) = remaining s + remaining t.
Proof. induction s; simpl; lia. Qed.

(** A step leaves one gate less to pass. *)
Theorem step_decreases_remaining s t : step s t -> remaining t < remaining s.
Proof. intros [l1 w l2 P _]. rewrite !remaining_app. cbn [remaining pass_gate of pos]. lia. Qed.

(** A walk that leaves has one gate at least in the sum, the one below its node. *)
Theorem leave_decreases_remaining l1 w l2 : ordered (l1 ++ w :: l2) -> remaining (l1 ++ l2) < remaining (l1 ++ w :: l2).
Proof. rewrite ordered_app. intros (_ & (P & _) & _). rewrite !remaining_app. cbn [remaining]. lia. Qed.
