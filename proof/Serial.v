(** Serial equivalence: if what jobs do commutes unless they conflict, every run ends as if the jobs had run one after
    another in order of number.

    A job does any number of things while it runs, in between those of others. Each is a function on a state of which
    nothing is known. *)

From Coq Require Import List Arith Lia Bool Sorted.
Import ListNotations.
Require Import Claims Walks Settled Normalise Trie Agreement Operations Promises Progress Fairness Running.

Section Serial.

Variable data : Type.

(** One thing that a running job does: the number of the job, its claims, and a change of the data. *)
Record act := Act { actor : nat; holding : list claim; does : data -> data }.

(** What happens: an event of the trie or a start, or job [j] does something. *)
Inductive deed := Happens (e : event) | Does (j : nat) (f : data -> data).

(** The claims that a job holds. *)
Definition held_claims (st : state) (j : nat) : list claim := map of (filter (fun w => job (of w) =? j) (walks st)).

(** What is done by jobs that run; a job that does not run does nothing. *)
Fixpoint trace (x : world) (ds : list deed) : list act :=
  match ds with
  | [] => []
  | Happens e :: t => trace (next x e) t
  | Does j f :: t =>
      if existsb (Nat.eqb j) (snd x) then Act j (held_claims (fst x) j) f :: trace x t else trace x t
  end.

(** The data after some acts. *)
Definition outcome (t : list act) (s : data) : data := fold_left (fun s a => does a s) t s.

(** No claims of two acts conflict. *)
Definition apart (a b : act) : Prop := forall c d, In c (holding a) -> In d (holding b) -> conflict c d = false.

(** The order of the two does not matter. *)
Definition commute (a b : act) : Prop := forall s, does a (does b s) = does b (does a s).

(* --- an event changes no claims of jobs that are there ------------------------------------------------------------ *)

(** What holds of a world in which jobs run. *)
Definition running_well (x : world) : Prop :=
  invariant (fst x) /\ forall j, In j (snd x) -> j <= last_job (fst x) /\ ready (fst x) j.

(** Claims of jobs that were there already were held already: an operation adds claims of a new job only. *)
Lemma perform_adds_new_jobs st o c : invariant st -> In c (map of (walks (perform st o))) -> job c <= last_job st ->
  In c (map of (walks st)).
Proof.
  intros G I L. destruct o as [cs|q b|k]; cbn [perform] in I.
  - destruct (enqueue_walks st cs) as (_ & new & W & J). rewrite W, map_app in I.
    apply in_app_iff in I as [I|I]; auto. apply in_map_iff in I as (w & <- & I). apply J in I. lia.
  - pose proof (advance_invariant st q b G) as A. destruct (advance st q b) as [st' r].
    destruct A as (_ & _ & M & _). cbn [fst] in I. now rewrite M in I.
  - destruct (vacate_invariant st k G) as (_ & _ & _ & W). rewrite W in I. apply in_map_iff in I as (w & <- & I).
    apply filter_In in I as [I _]. now apply in_map.
Qed.

(** Each event keeps running jobs ready. *)
Lemma next_runs_well x e : running_well x -> running_well (next x e).
Proof.
  destruct x as [st running]. intros [G R]. cbn [fst snd] in *. destruct e as [o|j]; cbn [next].
  - destruct (perform_invariant st o G) as [G' _]. pose proof (perform_last_job st o G) as L.
    assert (K : forall j, In j running -> o <> Vacate j -> j <= last_job (perform st o) /\ ready (perform st o) j).
    { intros j I N. destruct (R j I). split; [lia | now apply ready_stays]. }
    destruct o as [cs|q b|k]; split; auto; cbn [fst snd]; intros j I.
    1, 2: apply K; auto; discriminate.
    apply filter_In in I as [I N]. apply K; auto. intros [= ->]. rewrite Nat.eqb_refl in N. discriminate.
  - destruct (may_start st j) eqn:M; split; auto. cbn [fst snd].
    apply may_start_spec in M as [(w & I & E) Rj]. intros i [<-|Ii]; auto. split; auto.
    rewrite <- E. apply (jobs_numbered _ G w I).
Qed.

(** An event adds claims of a new job only, and job numbers only grow. *)
Lemma next_adds_new_jobs x e c : running_well x -> In c (map of (walks (fst (next x e)))) ->
  job c <= last_job (fst x) -> In c (map of (walks (fst x))).
Proof.
  destruct x as [st running]. intros [G _]. cbn [fst] in *. destruct e as [o|j]; cbn [next].
  - intros I. apply perform_adds_new_jobs with (o := o); auto. now destruct o.
  - now destruct (may_start st j).
Qed.

(** Job numbers only grow. *)
Lemma next_last_job x e : running_well x -> last_job (fst x) <= last_job (fst (next x e)).
Proof.
  destruct x as [st running]. intros [G _]. cbn [fst] in *. destruct e as [o|j]; cbn [next].
  - pose proof (perform_last_job st o G). now destruct o.
  - now destruct (may_start st j).
Qed.

(** All that a job holds when it acts it held before, if its number was given out then. *)
Lemma trace_holds_old_claims ds : forall x a c, running_well x -> In a (trace x ds) -> In c (holding a) ->
  job c = actor a /\ (actor a <= last_job (fst x) -> In c (map of (walks (fst x)))).
Proof.
  induction ds as [|[e|j f] ds IH]; intros x a c W I C; cbn [trace] in I; [contradiction| |].
  - destruct (IH _ a c (next_runs_well x e W) I C) as [E K]. split; auto. intros L.
    apply next_adds_new_jobs with (e := e); auto; [|lia]. apply K. pose proof (next_last_job x e W). lia.
  - destruct (existsb _ _); [|now apply IH]. destruct I as [<-|I]; [|now apply IH].
    cbn [holding actor] in *. apply in_map_iff in C as (w & <- & C). apply filter_In in C as [C E].
    apply Nat.eqb_eq in E. split; auto. intros _. now apply in_map.
Qed.

(* --- conflicting acts are in order of number ---------------------------------------------------------------------- *)

(** Whatever is done later actor a job with a smaller number does not conflict. *)
Fixpoint in_conflict_order (t : list act) : Prop :=
  match t with
  | [] => True
  | a :: t' => (forall b, In b t' -> actor b < actor a -> apart a b) /\ in_conflict_order t'
  end.

(** Conflicting acts come in order of number: a running job conflicts with none before it that is unfinished, and a job
    that acts later is unfinished. *)
Lemma trace_in_conflict_order ds : forall x, running_well x -> in_conflict_order (trace x ds).
Proof.
  induction ds as [|[e|j f] ds IH]; intros x W; cbn [trace]; [exact I | apply IH, next_runs_well, W|].
  destruct (existsb (Nat.eqb j) (snd x)) eqn:R; [|now apply IH]. split; [|now apply IH].
  apply existsb_exists in R as (i & Ij & Ei). apply Nat.eqb_eq in Ei as <-.
  destruct W as [G Run]. destruct (Run j Ij) as [Lj Rj]. intros b Ib Lb c d Ic Id. cbn [actor holding] in *.
  destruct (trace_holds_old_claims ds x b d (conj G Run) Ib Id) as [Ed K]. specialize (K ltac:(lia)).
  apply in_map_iff in Ic as (w & <- & Iw). apply filter_In in Iw as [Iw Ew]. apply Nat.eqb_eq in Ew.
  apply in_map_iff in K as (u & Eu & Iu). rewrite <- Eu, conflict_sym in *.
  apply in_split in Iw as (l1 & l2 & E). pose proof (in_order _ G) as O. rewrite E in O.
  apply (granted_is_free l1 w l2 O); [apply Rj; auto; rewrite E; apply in_elt|]. apply in_map.
  rewrite E in Iu. apply in_app_iff in Iu as [Iu|[<-|Iu]]; auto; [lia|]. exfalso.
  pose proof (jobs_in_order _ G) as J. rewrite E in J. apply by_job_app in J as (_ & [J _] & _).
  apply J in Iu as [?|[? _]]; lia.
Qed.

(* --- sorting by number changes nothing ---------------------------------------------------------------------------- *)

(** Insert an act before the first of its own job or of one with a greater number. *)
Fixpoint insert_act (a : act) (t : list act) : list act :=
  match t with [] => [a] | b :: t' => if actor b <? actor a then b :: insert_act a t' else a :: t end.

(** One job after the other, in order of number; each does what it did, in its own order. *)
Definition one_after_another (t : list act) : list act := fold_right insert_act [] t.

(** Inserting adds one act and loses none. *)
Lemma insert_act_in a b t : In b (insert_act a t) <-> b = a \/ In b t.
Proof.
  induction t as [|c t IH]; simpl; [intuition congruence|].
  destruct (actor c <? actor a); simpl; rewrite ?IH; intuition congruence.
Qed.

(** Sorting adds and loses no act. *)
Lemma one_after_another_in b t : In b (one_after_another t) <-> In b t.
Proof. induction t as [|a t IH]; simpl; [tauto|]. rewrite insert_act_in, IH. intuition congruence. Qed.

(** The jobs come in order of number. *)
Theorem one_after_another_sorted t : StronglySorted (fun a b => actor a <= actor b) (one_after_another t).
Proof.
  induction t as [|a t IH]; simpl; [constructor|]. induction IH as [|b u S IH F]; simpl; [repeat constructor|].
  destruct (Nat.ltb_spec (actor b) (actor a)) as [L|L].
  - constructor; auto. rewrite Forall_forall in *. intros c [->|I]%insert_act_in; [lia | auto].
  - constructor; [constructor; auto|]. constructor; auto. rewrite Forall_forall in *. intros c I.
    specialize (F c I). lia.
Qed.

(** Each job does what it did, in the order in which it did it: an act is inserted before the later ones of its job. *)
Theorem one_after_another_keeps_each_job j t :
  filter (fun a => actor a =? j) (one_after_another t) = filter (fun a => actor a =? j) t.
Proof.
  induction t as [|a t IH]; simpl; auto. rewrite <- IH. generalize (one_after_another t) as u. clear.
  induction u as [|b u IH]; simpl; [now destruct (actor a =? j)|].
  destruct (Nat.ltb_spec (actor b) (actor a)) as [L|L]; simpl; [|now destruct (actor a =? j)].
  rewrite IH. destruct (Nat.eqb_spec (actor b) j), (Nat.eqb_spec (actor a) j); auto. lia.
Qed.

(** An act may be moved behind acts with which it commutes. *)
Lemma outcome_insert a t : (forall b, In b t -> actor b < actor a -> commute a b) -> forall s,
  outcome (insert_act a t) s = outcome t (does a s).
Proof.
  induction t as [|b t IH]; intros C s; simpl; auto. destruct (Nat.ltb_spec (actor b) (actor a)) as [L|L]; auto.
  cbn [outcome fold_left]. fold (outcome (insert_act a t) (does b s)). rewrite IH by (intros; apply C; auto; now right).
  fold (outcome t (does b (does a s))). now rewrite (C b (or_introl eq_refl) L).
Qed.

(** Acts that conflict in order of number, and commute otherwise, may be done one job after the other. *)
Lemma outcome_one_after_another t : in_conflict_order t ->
  (forall a b, In a t -> In b t -> actor a <> actor b -> apart a b -> commute a b) ->
  forall s, outcome (one_after_another t) s = outcome t s.
Proof.
  induction t as [|a t IH]; simpl; auto. intros [O Os] C s.
  rewrite outcome_insert.
  - cbn [outcome fold_left]. apply IH; auto.
  - intros b I L. pose proof (proj1 (one_after_another_in b t) I). apply C; [now left | now right | lia | now apply O].
Qed.

(** Serial equivalence: if acts of two jobs commute unless claims of theirs conflict, then after any run, with any
    number of jobs at once, lines advanced at any time and jobs canceled at any time, the data are as if the jobs had
    run one after another in order of number. *)
Theorem serial_equivalence ds s :
  let t := trace (start, []) ds in
  (forall a b, In a t -> In b t -> actor a <> actor b -> apart a b -> commute a b) ->
  outcome t s = outcome (one_after_another t) s.
Proof.
  intros t C. symmetry. apply outcome_one_after_another; auto. apply trace_in_conflict_order.
  split; [apply start_invariant | contradiction].
Qed.

End Serial.
