(** Claims, when they conflict, and the modes in which gates are passed.

    Gate [i] of a claim is the node [i] segments below the root on its path, from 0, the root, to the claim's own
    node. The prefix rule and the four modes say the same: two claims conflict exactly if they meet at a gate in
    modes that do not fit ([clash_conflict], [conflict_clash]). *)

From Coq Require Import List Arith Lia Bool.
Import ListNotations.

(* --- claims ------------------------------------------------------------------------------------------------------- *)

(** Segments are only ever compared; here they are numbers. *)
Definition Path := list nat.

(** [num] is the place of the claim in the order of all claims, [job] the number of its job (in the code, seq). *)
Record claim := Claim { num : nat; job : nat; path : Path; shared : bool }.

(** How many segments the path has; the code's walk.depth is the gate a walk stands at. *)
Definition depth (c : claim) : nat := length (path c).

(** Twin of [is_prefix]. *)
Fixpoint prefix (p q : Path) : bool :=
  match p, q with
  | [], _ => true
  | a :: p', b :: q' => (a =? b) && prefix p' q'
  | _ :: _, [] => false
  end.

(** Two claims conflict when one path is a prefix of the other, unless both are shared. *)
Definition conflict (c d : claim) : bool :=
  (prefix (path c) (path d) || prefix (path d) (path c)) && negb (shared c && shared d).

(** The plain rule: no unfinished claim placed before it conflicts. *)
Definition free (before : list claim) (c : claim) : Prop :=
  forall d, In d before -> conflict d c = false.

(* --- modes -------------------------------------------------------------------------------------------------------- *)

(** The four modes; [Sh] and [Ex] are S and X in the code. *)
Inductive mode := IS | IX | Sh | Ex.

(** Which modes two walks may hold at one gate. *)
Definition fits (m n : mode) : bool :=
  match m, n with
  | Ex, _ | _, Ex | IX, Sh | Sh, IX => false
  | _, _ => true
  end.

(** What a claim asks for at its gate [i]: an intention above its own node, its own mode there. *)
Definition wants (c : claim) (i : nat) : mode :=
  if i =? depth c then (if shared c then Sh else Ex) else (if shared c then IS else IX).

(** Gate [i] of both claims is the same node. *)
Definition meet (c d : claim) (i : nat) : Prop :=
  i <= depth c /\ i <= depth d /\ firstn i (path c) = firstn i (path d).

(** Fitting is symmetric: by cases. *)
Lemma fits_sym m n : fits m n = fits n m.
Proof. destruct m, n; reflexivity. Qed.

(** [prefix] compares the first segments: by induction on the shorter path. *)
Lemma prefix_spec p q : prefix p q = true <-> firstn (length p) q = p.
Proof.
  revert q; induction p as [|a p IH]; intros [|b q]; simpl; try (split; [reflexivity|reflexivity]).
  - split; discriminate.
  - rewrite andb_true_iff, Nat.eqb_eq, IH; split.
    + intros [-> E]; now rewrite E.
    + intros E; inversion E as [[Eb Et]]; split; [reflexivity | now rewrite !Et].
Qed.

(** A prefix is not longer than the path: it is a [firstn] of it. *)
Lemma prefix_length p q : prefix p q = true -> length p <= length q.
Proof. intros H%prefix_spec; rewrite <- H, firstn_length; lia. Qed.

(** Paths that agree on [j] segments agree on fewer: [firstn i] of [firstn j] is [firstn i]. *)
Lemma firstn_down {A} (p q : list A) i j : i <= j -> firstn j p = firstn j q -> firstn i p = firstn i q.
Proof.
  intros L E. replace i with (min i j) by lia. now rewrite <- (firstn_firstn p), <- (firstn_firstn q), E.
Qed.

(** Meeting is an equation between the two claims. *)
Lemma meet_sym c d i : meet c d i -> meet d c i.
Proof. intros (A & B & E); repeat split; auto. Qed.

(** Meeting at gate [i] is an equality of the same [i] segments. *)
Lemma meet_trans c d e i : meet c d i -> meet d e i -> meet c e i.
Proof. intros (A & B & E) (A' & B' & E'); repeat split; auto; congruence. Qed.

(** Claims that meet at a gate meet at every gate above it. *)
Lemma meet_down c d i j : i <= j -> meet c d j -> meet c d i.
Proof. intros L (A & B & E); repeat split; try lia; eauto using firstn_down. Qed.

(** Claims that meet at a gate in modes that do not fit conflict: one of the modes is no intention, so the gate is
    the node of one claim and its path a prefix of the other. *)
Lemma clash_conflict c d i : meet c d i -> fits (wants c i) (wants d i) = false -> conflict c d = true.
Proof.
  intros (A & B & E) F. unfold conflict, wants, depth in *.
  destruct (Nat.eqb_spec i (length (path c))) as [->|N].
  - assert (P : prefix (path c) (path d) = true).
    { apply prefix_spec. rewrite <- E. apply firstn_all. }
    rewrite P; simpl. destruct (shared c), (shared d), (length (path c) =? length (path d));
      simpl in *; congruence.
  - destruct (Nat.eqb_spec i (length (path d))) as [->|N'].
    + assert (P : prefix (path d) (path c) = true).
      { apply prefix_spec. rewrite E. apply firstn_all. }
      rewrite P, orb_true_r. destruct (shared c), (shared d); simpl in *; congruence.
    + destruct (shared c), (shared d); discriminate.
Qed.

(** Claims that conflict meet in modes that do not fit: at the node of the shorter path, where that claim has its
    own mode. *)
Lemma conflict_clash c d :
  conflict c d = true -> exists i, meet c d i /\ fits (wants c i) (wants d i) = false.
Proof.
  unfold conflict. rewrite andb_true_iff, orb_true_iff. intros [[P|P] F].
  - pose proof (prefix_length _ _ P). exists (depth c). apply prefix_spec in P. split.
    + unfold meet, depth in *; repeat split; auto. now rewrite P, firstn_all.
    + unfold wants. rewrite Nat.eqb_refl.
      destruct (shared c), (shared d), (depth c =? depth d); simpl in *; congruence.
  - pose proof (prefix_length _ _ P). exists (depth d). apply prefix_spec in P. split.
    + unfold meet, depth in *; repeat split; auto. now rewrite P, firstn_all.
    + unfold wants. rewrite Nat.eqb_refl.
      destruct (shared c), (shared d), (depth d =? depth c); simpl in *; congruence.
Qed.

(** Conflict is symmetric: both halves of its definition are. *)
Lemma conflict_sym c d : conflict c d = conflict d c.
Proof. unfold conflict. now rewrite orb_comm, (andb_comm (shared c)). Qed.
