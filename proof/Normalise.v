(** The twin of [queuehint.values.hint.normalise]: claims of one job that ask for the same and never block one
    another. *)

From Coq Require Import List Arith Lia Bool Sorted.
Import ListNotations.
Require Import Claims Walks Settled.

(** A claim as it is given: its path, and whether it is shared. *)
Definition ask := (Path * bool)%type.

(** Paths in the order of tuples. *)
Fixpoint leb_path (p q : Path) : bool :=
  match p, q with
  | [], _ => true
  | _ :: _, [] => false
  | a :: p', b :: q' => (a <? b) || (a =? b) && leb_path p' q'
  end.

(** Insert a claim where it belongs. *)
Fixpoint insert (c : ask) (l : list ask) : list ask :=
  match l with
  | [] => [c]
  | d :: t => if leb_path (fst c) (fst d) then c :: l else d :: insert c t
  end.

Definition sort (l : list ask) : list ask := fold_right insert [] l.

(** Merge sorted claims; [k] is the last that was kept. *)
Fixpoint merge (k : ask) (l : list ask) : list ask :=
  match l with
  | [] => [k]
  | c :: t => if prefix (fst k) (fst c) then merge (fst k, snd k && snd c) t else k :: merge c t
  end.

(** Sort by path, then merge. *)
Definition normalise (l : list ask) : list ask := match sort l with [] => [] | k :: t => merge k t end.

(** Two claims of one job do not conflict. *)
Definition compatible_with (c d : ask) : bool :=
  negb (conflict (Claim 0 0 (fst c) (snd c)) (Claim 0 0 (fst d) (snd d))).

(** No two of these claims conflict. *)
Fixpoint compatible (cs : list ask) : bool :=
  match cs with [] => true | c :: t => forallb (compatible_with c) t && compatible t end.

(* --- the order of paths ------------------------------------------------------------------------------------------- *)

Ltac paths := repeat match goal with
  | |- context [?a <? ?b] => destruct (Nat.ltb_spec a b); simpl
  | |- context [?a =? ?b] => destruct (Nat.eqb_spec a b); simpl
  end; try lia; try congruence; auto.

(** Of two paths one is not greater: by induction on both. *)
Lemma leb_path_total p : forall q, leb_path p q = false -> leb_path q p = true.
Proof. induction p as [|a p IH]; intros [|b q]; simpl; try congruence. specialize (IH q). paths. Qed.

(** The order of paths is transitive: by induction on all three. *)
Lemma leb_path_trans p : forall q r, leb_path p q = true -> leb_path q r = true -> leb_path p r = true.
Proof.
  induction p as [|a p IH]; intros [|b q] [|c r]; simpl; try congruence. specialize (IH q r). paths.
Qed.

(** Paths that are not greater than one another are equal: by induction on both. *)
Lemma leb_path_antisym p : forall q, leb_path p q = true -> leb_path q p = true -> p = q.
Proof.
  induction p as [|a p IH]; intros [|b q]; simpl; try congruence. specialize (IH q). paths.
  intros A B. rewrite (IH A B). congruence.
Qed.

(** A prefix sorts first: it ends first. *)
Lemma prefix_leb p : forall q, prefix p q = true -> leb_path p q = true.
Proof. induction p as [|a p IH]; intros [|b q]; simpl; try congruence. specialize (IH q). paths. Qed.

(** A path is a prefix of itself. *)
Lemma prefix_refl p : prefix p p = true.
Proof. apply prefix_spec, firstn_all. Qed.

(** A prefix of a prefix is a prefix: by induction. *)
Lemma prefix_trans p : forall q r, prefix p q = true -> prefix q r = true -> prefix p r = true.
Proof. induction p as [|a p IH]; intros [|b q] [|c r]; simpl; try congruence. specialize (IH q r). paths. Qed.

(** Of two prefixes of one path one is a prefix of the other: by induction. *)
Lemma prefixes_meet p : forall q r, prefix p r = true -> prefix q r = true -> prefix p q = true \/ prefix q p = true.
Proof.
  induction p as [|a p IH]; intros [|b q] [|c r]; simpl; auto; try congruence. specialize (IH q r). paths.
Qed.

(** The descendants of a path are contiguous: a path between [p] and a descendant of [p] begins as both do. *)
Lemma between p : forall q r, leb_path p q = true -> leb_path q r = true -> prefix p r = true -> prefix p q = true.
Proof.
  induction p as [|a p IH]; intros [|b q] [|c r]; simpl; try congruence. specialize (IH q r). paths.
Qed.

(* --- sorting ------------------------------------------------------------------------------------------------------ *)

Definition le (c d : ask) : Prop := leb_path (fst c) (fst d) = true.

(** Inserting adds the claim and loses none. *)
Lemma insert_in c d l : In d (insert c l) <-> d = c \/ In d l.
Proof.
  induction l as [|e l IH]; simpl; [intuition congruence|].
  destruct (leb_path (fst c) (fst e)); simpl; rewrite ?IH; intuition congruence.
Qed.

(** Sorting adds and loses no claim: by induction, from the lemma above. *)
Lemma sort_in c l : In c (sort l) <-> In c l.
Proof. induction l as [|d l IH]; simpl; [tauto|]. rewrite insert_in, IH. intuition congruence. Qed.

(** Inserting keeps the order: the claim goes before the first that is not less. *)
Lemma insert_sorted c l : StronglySorted le l -> StronglySorted le (insert c l).
Proof.
  induction 1 as [|d l S IH F]; simpl; [repeat constructor|].
  destruct (leb_path (fst c) (fst d)) eqn:E.
  - constructor; [constructor; auto|]. constructor; auto.
    rewrite Forall_forall in *. intros e I. eapply leb_path_trans; eauto. apply (F e I).
  - constructor; auto. rewrite Forall_forall in *. intros e [->|I]%insert_in; auto. now apply leb_path_total.
Qed.

(** [sort] sorts: by induction, from the lemma above. *)
Lemma sort_sorted l : StronglySorted le (sort l).
Proof. induction l; simpl; [constructor | now apply insert_sorted]. Qed.

(* --- what is kept ------------------------------------------------------------------------------------------------- *)

(** What is kept has the path of a claim that was given: merging changes only modes. *)
Lemma merge_places l : forall k e, In e (merge k l) -> exists c, In c (k :: l) /\ fst c = fst e.
Proof.
  induction l as [|c l IH]; simpl; intros k e I.
  - destruct I as [->|[]]. eauto.
  - destruct (prefix (fst k) (fst c)).
    + apply IH in I as (d & [<-|I] & E); [exists k | exists d]; auto.
    + destruct I as [->|I]; [eauto|]. apply IH in I as (d & I & E). exists d. auto.
Qed.

(** No two claims that are kept have paths one of which is a prefix of the other: descendants follow their ancestor
    directly (between), so they are merged into it. *)
Lemma merge_compatible l : forall k, StronglySorted le (k :: l) -> compatible (merge k l) = true.
Proof.
  induction l as [|c l IH]; intros k S; simpl; [reflexivity|].
  apply StronglySorted_inv in S as [S F]. pose proof S as S'. apply StronglySorted_inv in S' as [Sl Fc].
  inversion F as [|x y Lkc Fk]; subst. rewrite Forall_forall in *.
  destruct (prefix (fst k) (fst c)) eqn:P.
  - apply IH. constructor; auto. rewrite Forall_forall. intros e I. apply (Fk e I).
  - simpl. rewrite (IH c S), andb_true_r. apply forallb_forall. intros e I.
    apply merge_places in I as (d & I & E). unfold compatible_with, conflict. cbn [path].
    assert (Lcd : leb_path (fst c) (fst e) = true).
    { rewrite <- E. destruct I as [->|I]; [apply prefix_leb, prefix_refl | apply (Fc d I)]. }
    replace (prefix (fst k) (fst e)) with false.
    2: { symmetry. apply not_true_is_false. intros Q. rewrite (between _ _ _ Lkc Lcd Q) in P. discriminate. }
    replace (prefix (fst e) (fst k)) with false; [reflexivity|].
    symmetry. apply not_true_is_false. intros Q. pose proof (prefix_leb _ _ Q) as L.
    assert (fst c = fst k) as K by (apply leb_path_antisym; auto; eapply leb_path_trans; eauto).
    rewrite K, prefix_refl in P. discriminate.
Qed.

(** The claims of a normalised job never conflict with one another. *)
Theorem normalise_compatible l : compatible (normalise l) = true.
Proof.
  unfold normalise. pose proof (sort_sorted l) as S. destruct (sort l); [reflexivity | now apply merge_compatible].
Qed.

(** [e] asks for all that [c] asks for. *)
Definition covers (e c : ask) : Prop := prefix (fst e) (fst c) = true /\ (snd e = true -> snd c = true).

(** Covering is transitive: prefixes and implications are. *)
Lemma covers_trans c d e : covers c d -> covers d e -> covers c e.
Proof. intros [P S] [Q T]. split; eauto using prefix_trans. Qed.

(** What was given is covered by what is kept: a claim is dropped only into an ancestor, which then is exclusive if
    one of the two was. *)
Lemma merge_covers l : forall k c, In c (k :: l) -> exists e, In e (merge k l) /\ covers e c.
Proof.
  induction l as [|d l IH]; intros k c I; simpl in I |- *.
  - destruct I as [->|[]]. exists c. repeat split; auto using prefix_refl.
  - destruct (prefix (fst k) (fst d)) eqn:P.
    + set (k' := (fst k, snd k && snd d)). assert (K : forall x, x = k \/ x = d -> covers k' x).
      { intros x [->| ->]; split; cbn; auto using prefix_refl; intros [A B]%andb_true_iff; auto. }
      destruct I as [<-|[<-|I]].
      1, 2: destruct (IH k' k' (or_introl eq_refl)) as (e & Ie & C); exists e; split; auto; eapply covers_trans; eauto.
      apply IH. now right.
    + destruct I as [<-|I].
      * exists k. repeat split; auto using prefix_refl. now left.
      * destruct (IH d c I) as (e & Ie & C). exists e. split; auto. now right.
Qed.

(** Normalising asks for all that was asked for. *)
Theorem normalise_covers l c : In c l -> exists e, In e (normalise l) /\ covers e c.
Proof.
  intros I. apply sort_in in I. unfold normalise. destruct (sort l); [contradiction | now apply merge_covers].
Qed.

(** A claim that conflicts with one of the given conflicts with one of the kept: the one that covers it is above it
    and not weaker. *)
Theorem normalise_keeps_conflicts l c d : In c l ->
  conflict (Claim 0 0 (fst c) (snd c)) d = true -> exists e, In e (normalise l) /\
    conflict (Claim 0 0 (fst e) (snd e)) d = true.
Proof.
  intros I C. destruct (normalise_covers l c I) as (e & Ie & P & S). exists e. split; auto.
  unfold conflict in *. cbn [path shared] in *. apply andb_true_iff in C as [C N]. apply andb_true_iff. split.
  - apply orb_true_iff in C as [C|C]; apply orb_true_iff.
    + left. eauto using prefix_trans.
    + destruct (prefixes_meet _ _ _ P C); auto.
  - destruct (snd e); auto. now rewrite S in N by auto.
Qed.

(** What is kept has a path that was given, and is exclusive only if a given claim at or below it was: by induction
    on the claims merged. *)
Lemma merge_asks l : forall k e, In e (merge k l) ->
  (exists c, In c (k :: l) /\ fst c = fst e) /\
  (snd e = false -> exists c, In c (k :: l) /\ snd c = false /\ prefix (fst e) (fst c) = true).
Proof.
  intros k e I. split; [now apply merge_places|]. revert k I.
  induction l as [|c l IH]; simpl; intros k I S.
  - destruct I as [->|[]]. exists e. auto using prefix_refl.
  - destruct (prefix (fst k) (fst c)) eqn:P.
    + destruct (IH _ I S) as (d & [<-|J] & Sd & Pd); [|exists d; auto].
      cbn in Sd, Pd. apply andb_false_iff in Sd as [Sd|Sd]; [exists k; auto|].
      exists c. repeat split; auto. eapply prefix_trans; eauto.
    + destruct I as [->|I]; [exists e; auto using prefix_refl|].
      destruct (IH _ I S) as (d & J & R). exists d. auto.
Qed.

(** Normalising asks for no place that was not given, and exclusively only where an exclusive claim was given at or
    below. *)
Theorem normalise_asks_for_no_more l e : In e (normalise l) ->
  (exists c, In c l /\ fst c = fst e) /\
  (snd e = false -> exists c, In c l /\ snd c = false /\ prefix (fst e) (fst c) = true).
Proof.
  unfold normalise. pose proof (fun c => sort_in c l) as S. destruct (sort l) as [|k t]; [contradiction|].
  intros I. destruct (merge_asks t k e I) as [(c & Ic & E) X]. split.
  - exists c. split; auto. now apply S.
  - intros F. destruct (X F) as (d & Id & Rd). exists d. split; auto. now apply S.
Qed.
