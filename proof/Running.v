(** Running jobs: a job may start once it is ready, and runs until it leaves. *)

From Coq Require Import List Arith Lia Bool.
Import ListNotations.
Require Import Claims Walks Settled Normalise Trie Agreement Operations Promises Fairness.

Inductive event := Operation (o : op) | Start (j : nat).

(** A trie, and the numbers of the running jobs. *)
Definition world := (state * list nat)%type.

Definition is_granted (w : walk) : bool := pos w =? S (depth (of w)).

(** The job is there and all its claims are granted. *)
Definition may_start (st : state) (j : nat) : bool :=
  existsb (fun w => job (of w) =? j) (walks st) &&
  forallb (fun w => negb (job (of w) =? j) || is_granted w) (walks st).

(** Operations, and starts of jobs that may start; what leaves runs no more. *)
Definition next (x : world) (e : event) : world :=
  let (st, running) := x in
  match e with
  | Operation (Vacate j) => (perform st (Vacate j), filter (fun i => negb (i =? j)) running)
  | Operation o => (perform st o, running)
  | Start j => if may_start st j then (st, j :: running) else x
  end.

Definition play (es : list event) : world := fold_left next es (start, []).

(** The test for starting is: the job is there, and ready. *)
Lemma may_start_spec st j :
  may_start st j = true -> (exists w, In w (walks st) /\ job (of w) = j) /\ ready st j.
Proof.
  unfold may_start. rewrite andb_true_iff, existsb_exists, forallb_forall. intros [(w & I & E) F]. split.
  - exists w. split; auto. now apply Nat.eqb_eq.
  - intros v Iv Ev. specialize (F v Iv). rewrite Ev, Nat.eqb_refl in F. simpl in F. now apply Nat.eqb_eq.
Qed.

(** A ready job stays ready until it leaves: steps take no gate back. *)
Lemma ready_stays st o j : invariant st -> j <= last_job st -> ready st j -> o <> Vacate j -> ready (perform st o) j.
Proof.
  intros G L R N. destruct o as [cs|q b|k]; cbn [perform].
  - destruct (enqueue_walks st cs) as (_ & new & W & J). intros w I E. rewrite W in I.
    apply in_app_iff in I as [I|I]; auto. apply J in I. lia.
  - pose proof (advance_invariant st q b G) as A. destruct (advance st q b) as [st' r]. destruct A as (_ & S & _).
    simpl. unfold ready in *. induction S as [|s t u P _ IH]; auto. apply IH. clear IH.
    destruct P as [l1 w l2 P _]. intros v I E. apply in_app_iff in I as [I|[<-|I]].
    + apply R; auto. apply in_app_iff. auto.
    + exfalso. specialize (R w (in_elt _ _ _) E). unfold granted in R. lia.
    + apply R; auto. apply in_app_iff. simpl. auto.
  - destruct (vacate_invariant st k G) as (_ & _ & _ & W). intros w I E. rewrite W in I.
    apply filter_In in I as [I _]. auto.
Qed.

(** Job numbers only grow. *)
Lemma perform_last_job st o : invariant st -> last_job st <= last_job (perform st o).
Proof. intros G. apply (perform_not_more_remaining (last_job st) st o G). auto. Qed.

(** Running jobs are ready: they were when they started, and stay so. *)
Lemma play_invariant es : let (st, running) := play es in
  invariant st /\ forall j, In j running -> j <= last_job st /\ ready st j.
Proof.
  unfold play. assert (K : invariant start /\ forall j, In j [] -> j <= last_job start /\ ready start j).
  { split; [apply start_invariant | contradiction]. }
  revert K. generalize start as st, (@nil nat) as running.
  induction es as [|e es IH]; intros st running [G R]; cbn [fold_left]; auto.
  destruct e as [o|j]; cbn [next].
  - destruct (perform_invariant st o G) as [G' _]. pose proof (perform_last_job st o G) as L.
    assert (K : forall j, In j running -> o <> Vacate j -> j <= last_job (perform st o) /\ ready (perform st o) j).
    { intros j I N. destruct (R j I). split; [lia | now apply ready_stays]. }
    destruct o as [cs|q b|k]; apply IH; split; auto; intros j I.
    1, 2: apply K; auto; discriminate.
    apply filter_In in I as [I N]. apply K; auto. intros [= ->]. rewrite Nat.eqb_refl in N. discriminate.
  - destruct (may_start st j) eqn:M; apply IH; split; auto.
    apply may_start_spec in M as [(w & I & E) Rj]. intros i [<-|Ii]; auto. split; auto.
    rewrite <- E. apply (jobs_numbered _ G w I).
Qed.

(** Two running jobs never conflict: both are ready, so their claims are granted. *)
Theorem running_jobs_never_conflict es u w : let (st, running) := play es in
  In u (walks st) -> In w (walks st) -> In (job (of u)) running -> In (job (of w)) running ->
  job (of u) <> job (of w) -> conflict (of u) (of w) = false.
Proof.
  pose proof (play_invariant es) as K. destruct (play es) as [st running]. destruct K as [G R].
  intros Iu Iw Ru Rw N. destruct (R _ Ru) as [_ Gu], (R _ Rw) as [_ Gw].
  destruct (granted_walks_never_conflict (walks st) u w) as [->|C]; auto; [apply in_order, G | congruence].
Qed.

(** While a job runs, no unfinished job placed before it conflicts with it: it is ready as long. *)
Theorem running_jobs_conflict_with_none_before es u w : let (st, running) := play es in
  In u (walks st) -> In w (walks st) -> In (job (of w)) running -> job (of u) < job (of w) ->
  conflict (of u) (of w) = false.
Proof.
  pose proof (play_invariant es) as K. destruct (play es) as [st running]. destruct K as [G R].
  intros Iu Iw Rw L. destruct (R _ Rw) as [_ Gw]. apply in_split in Iw as (l1 & l2 & E).
  pose proof (in_order _ G) as O. rewrite E in O. apply (granted_is_free l1 w l2 O).
  - apply Gw; auto. rewrite E. apply in_elt.
  - apply in_map. rewrite E in Iu. apply in_app_iff in Iu as [Iu|[->|Iu]]; auto; [lia|]. exfalso.
    pose proof (jobs_in_order _ G) as J. rewrite E in J. apply by_job_app in J as (_ & [J _] & _).
    apply J in Iu as [?|[? _]]; lia.
Qed.
