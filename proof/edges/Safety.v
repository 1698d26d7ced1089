(** What always holds: places, running jobs, and that waiting along edges has no cycle. *)

From Coq Require Import List Arith Bool Lia Wellfounded Relation_Operators.
Import ListNotations.
Require Import Claims Walks Settled Jobs.

(** Job [j] has an open edge to [d]. *)
Definition waits_for (w : world) (j d : nat) : Prop := exists e, In e (open (jobs w j)) /\ to e = d.

(** The states with a place; a dead job may have one or not. *)
Definition has_place (c : job_state) : bool := match c with Queued | Backing | Started => true | _ => false end.
(** The states with open edges. *)
Definition may_wait (c : job_state) : bool := match c with Scheduled | Deferred | Parent => true | _ => false end.

(** What holds in every reachable world. *)
Record invariant (r : rules) (w : world) : Prop := Invariant {
  once : NoDup (line w);
  in_line : forall j, In j (line w) -> has_place (state (jobs w j)) = true \/ state (jobs w j) = Failed;
  has_its_place : forall j, has_place (state (jobs w j)) = true -> In j (line w);
  waits_without_place : forall j, open (jobs w j) <> [] -> may_wait (state (jobs w j)) = true;
  no_job_yet : forall j, count w <= j -> jobs w j = no_job;
  claims_admissible : forall j, j < count w -> admissible r (claims (jobs w j)) = true;
  running_conflict_with_none : forall k j, state (jobs w k) = Started -> In j (before k (line w)) ->
    clash (claims (jobs w j)) (claims (jobs w k)) = false;
  open_to_known : forall j e, In e (open (jobs w j)) -> to e < count w;
  needs_older : forall j e, In e (needs (jobs w j)) -> to e < j /\ j < count w;
  no_cycle : well_founded (fun d j => waits_for w j d) }.

(* --- lines -------------------------------------------------------------------------------------------------------- *)

(** Taking one out leaves the others. *)
Lemma in_without i j l : In i (without j l) <-> In i l /\ i <> j.
Proof. unfold without. rewrite filter_In, negb_true_iff, Nat.eqb_neq. tauto. Qed.

(** What is before a job in the line is in the line. *)
Lemma before_in i j l : In i (before j l) -> In i l.
Proof. induction l as [|k l IH]; simpl; auto. destruct (k =? j); simpl; tauto. Qed.

(** What joins at the end is behind all that are there. *)
Lemma before_app j l m : In j l -> before j (l ++ m) = before j l.
Proof.
  induction l as [|k l IH]; [contradiction|]. simpl. destruct (Nat.eqb_spec k j) as [|N]; auto.
  intros [E|I]; [contradiction|]. now rewrite IH.
Qed.

(** Taking one out puts none before another. *)
Lemma before_without_in i j k l : j <> k -> In i (before k (without j l)) -> In i (before k l).
Proof.
  intros N. induction l as [|h l IH]; [contradiction|]. simpl. destruct (Nat.eqb_spec h j) as [->|M]; simpl.
  - intros I. destruct (Nat.eqb_spec j k); [contradiction|]. right. auto.
  - destruct (h =? k); auto. intros [->|I]; [now left | right; auto].
Qed.

(** Of two jobs in line one is before the other. *)
Lemma before_total i j l : In i l -> In j l -> i <> j -> In i (before j l) \/ In j (before i l).
Proof.
  induction l as [|k l IH]; [contradiction|]. intros I J N. simpl.
  destruct (Nat.eqb_spec k j) as [Ej|Nj], (Nat.eqb_spec k i) as [Ei|Ni].
  - congruence.
  - right. now left.
  - left. now left.
  - destruct I as [I|I]; [contradiction|]. destruct J as [J|J]; [contradiction|].
    destruct (IH I J N); [left | right]; now right.
Qed.

(** A new one at the end leaves all different. *)
Lemma nodup_join (l : list nat) j : NoDup l -> ~ In j l -> NoDup (l ++ [j]).
Proof.
  intros N I. induction N as [|k l K N IH]; simpl; [repeat constructor; auto|].
  constructor; [|apply IH; simpl in I; tauto].
  intros [X|[->|[]]]%in_app_iff; [auto | apply I; now left].
Qed.

(** The test looks at each in the line. *)
Lemma placed_spec w j : placed w j = true <-> In j (line w).
Proof.
  unfold placed. rewrite existsb_exists. split.
  - intros (i & I & E). apply Nat.eqb_eq in E. now subst.
  - intros I. exists j. now rewrite Nat.eqb_refl.
Qed.

(* --- cycles ------------------------------------------------------------------------------------------------------- *)

(** [d] waits for [j], through others perhaps. *)
Definition leads_to (w : world) : nat -> nat -> Prop := clos_refl_trans_1n nat (waits_for w).

(** If the search finds no way, there is none: a way is followed edge by edge. *)
Lemma unreached_spec w j n : forall d, unreached w j n d = true -> ~ leads_to w d j.
Proof.
  induction n as [|n IH]; simpl; intros d C L; [discriminate|].
  apply andb_true_iff in C as [D C]. rewrite negb_true_iff, Nat.eqb_neq in D. rewrite forallb_forall in C.
  inversion L as [|k z (e & I & <-) L']; subst; [auto | eapply IH; [apply C, I | exact L']].
Qed.

(** With fewer waits there are no more cycles. *)
Lemma fewer_waits (W W' : nat -> nat -> Prop) :
  (forall j d, W' j d -> W j d) -> well_founded (fun d j => W j d) -> well_founded (fun d j => W' j d).
Proof. intros S. apply wf_incl. intros d j. apply S. Qed.

(** A job may begin to wait for jobs from which no way leads back to it: a cycle would have to go through it. *)
Lemma more_waits (W W' : nat -> nat -> Prop) j :
  (forall i d, i <> j -> W' i d -> W i d) -> (forall d, W' j d -> ~ clos_refl_trans_1n nat W d j) ->
  well_founded (fun d i => W i d) -> well_founded (fun d i => W' i d).
Proof.
  intros Old New A.
  assert (Away : forall x, ~ clos_refl_trans_1n nat W x j -> Acc (fun d i => W' i d) x).
  { intros x. induction (A x) as [x _ IH]. intros N. constructor. intros d D.
    assert (x <> j) by (intros ->; apply N; constructor).
    apply Old in D; auto. apply IH; auto. intros L. apply N. econstructor; eauto. }
  assert (Acc (fun d i => W' i d) j) by (constructor; intros d D; apply Away, New, D).
  intros x. induction (A x) as [x _ IH]. constructor. intros d D.
  destruct (Nat.eq_dec x j) as [->|N]; [apply Away, New, D | apply IH, Old; auto].
Qed.

(* --- each step keeps it ------------------------------------------------------------------------------------------- *)

(** Removing an edge adds none. *)
Lemma in_remove_edge i es e : In e (remove_edge i es) -> In e es.
Proof.
  unfold remove_edge. revert i. induction es as [|a l IH]; intros [|i]; try (simpl; tauto).
  cbn [firstn skipn app]. intros [->|I]; [now left | right; now apply (IH i)].
Qed.

(** The test looks at each edge. *)
Lemma known_spec w : forall es, known w es = true -> forall e, In e es -> to e < count w.
Proof.
  intros es K e I. unfold known in K. rewrite forallb_forall in K. now apply Nat.ltb_lt, K.
Qed.

(** If no unfinished job waits for a job, no way leads to it, so it may wait for all that it was told to depend on.
    *)
Lemma none_waits r w j : invariant r w -> waited_for w j = false -> forall e, In e (needs (jobs w j)) ->
  ~ leads_to w (to e) j.
Proof.
  intros G W e I L. apply (needs_older _ _ G) in I as [I _].
  enough (to e = j \/ waited_for w j = true) as [E|E] by (lia || congruence). clear I W.
  induction L as [|d i k (f & J & <-) L IH]; auto. right. destruct IH as [<-|]; auto.
  unfold waited_for. apply existsb_exists. exists d. split.
  - apply in_seq. destruct (le_lt_dec (count w) d) as [M|M]; [now rewrite (no_job_yet _ _ G d M) in J | lia].
  - apply existsb_exists. exists f. split; auto. now apply Nat.eqb_eq.
Qed.

(** What a transition does to its own job, as far as the invariant looks at it: by cases of state and transition. *)
Lemma becomes_legal r w j d c es n p : sound r -> invariant r w -> becomes r w j d = Some (c, es, n, p) ->
  state (jobs w j) <> Gone /\
  (In j (line_after (line w) j p) -> has_place c = true \/ c = Failed) /\
  (has_place c = true -> In j (line_after (line w) j p)) /\
  (p = Joins -> ~ In j (line w)) /\
  (es <> [] -> may_wait c = true) /\
  (c = Started -> p = Keeps /\ ready r (claims_before w j) (claims (jobs w j)) = true) /\
  ((forall e, In e es -> In e (open (jobs w j))) \/ (forall e, In e es -> ~ leads_to w (to e) j)) /\
  (forall e, In e es -> to e < count w).
Proof.
  intros So G B. pose proof (in_line _ _ G j) as IL. pose proof (has_its_place _ _ G j) as HP.
  pose proof (waits_without_place _ _ G j) as WE.
  pose proof (not_at_enqueue _ So) as NE. pose proof (children_are_checked _ So) as CC.
  pose proof (revival_is_checked _ So) as RC. unfold becomes in B. rewrite NE, CC in B.
  assert (Safe : forall es, closes_no_cycle w j es = true -> forall e, In e es -> ~ leads_to w (to e) j).
  { intros fs F e I. unfold closes_no_cycle in F. rewrite forallb_forall in F. eapply unreached_spec, F, I. }
  pose proof (known_spec w) as K. pose proof (open_to_known _ _ G j) as OK. pose proof (needs_older _ _ G j) as NO.
  assert (NK : forall e, In e (needs (jobs w j)) -> to e < count w) by (intros e I; apply NO in I; lia).
  assert (Revived : may_revive r w j = true -> forall e, In e (needs (jobs w j)) -> ~ leads_to w (to e) j).
  { unfold may_revive. destruct (revives r); [congruence | | now apply Safe].
    intros W. apply negb_true_iff in W. now apply (none_waits r). }
  assert (Out : In j (without j (line w)) -> False) by (intros I; apply in_without in I; tauto).
  assert (Placed : placed w j = true -> In j (line w)) by apply placed_spec.
  assert (Not : placed w j = false -> ~ In j (line w)).
  { intros P I. apply placed_spec in I. congruence. }
  assert (Last : In j (line w ++ [j])) by (apply in_app_iff; simpl; auto).
  destruct (state (jobs w j)) eqn:E; destruct d; try discriminate; cbn [negb orb] in B;
    repeat match type of B with
    | context [match ?x with _ => _ end] => destruct x eqn:?; try discriminate
    end; inversion B; subst; clear B; cbn [has_place may_wait line_after] in *;
    repeat match goal with H : _ && _ = true |- _ => apply andb_true_iff in H as [? ?] end;
    repeat apply conj; try congruence; auto; try tauto;
    try (intros _; intros I; destruct (IL I); discriminate);
    try (intros I; destruct (IL I); discriminate);
    try (left; intros f; now apply in_remove_edge); try (left; intros f I; contradiction);
    try (right; intros f I; eapply Safe; eassumption); try (right; now apply Revived); try (intros f I; contradiction);
    try (intros f I; eapply K; eassumption); try (intros f I; apply in_remove_edge in I; auto; fail).
Qed.

(** A transition keeps claims and needs. *)
Lemma changed_jobs w j c es n p i :
  claims (jobs (changed w j c es n p) i) = claims (jobs w i) /\
  needs (jobs (changed w j c es n p) i) = needs (jobs w i).
Proof. unfold changed. cbn. destruct (Nat.eqb_spec i j) as [->|]; auto. Qed.

(** A transition moves no other job in the line. *)
Lemma other_in_line w j p i : i <> j -> In i (line_after (line w) j p) <-> In i (line w).
Proof.
  intros N. destruct p; cbn [line_after]; [tauto | rewrite in_without; tauto|].
  rewrite in_app_iff. simpl. split; [intros [?|[->|[]]]; tauto | auto].
Qed.

(** Each transition keeps the invariant: its own job by becomes_legal, the others are as before. *)
Lemma changed_invariant r w j d c es n p : sound r -> invariant r w -> becomes r w j d = Some (c, es, n, p) ->
  invariant r (changed w j c es n p).
Proof.
  intros So G B. destruct (becomes_legal _ _ _ _ _ _ _ _ So G B) as (NG & IL & HP & NJ & WE & ST & NC & OK).
  assert (Claims : forall i, claims (jobs (changed w j c es n p) i) = claims (jobs w i)) by (intros;
    apply changed_jobs).
  assert (Needs : forall i, needs (jobs (changed w j c es n p) i) = needs (jobs w i)) by (intros; apply changed_jobs).
  assert (Mine : state (jobs (changed w j c es n p) j) = c /\ open (jobs (changed w j c es n p) j) = es).
  { unfold changed. cbn. rewrite Nat.eqb_refl. auto. }
  assert (Others : forall i, i <> j -> jobs (changed w j c es n p) i = jobs w i).
  { intros i N. unfold changed. cbn. now destruct (Nat.eqb_spec i j). }
  destruct Mine as [Mc Me]. split.
  - pose proof (once _ _ G). destruct p; cbn; auto; [now apply NoDup_filter | apply nodup_join; auto].
  - intros i I. destruct (Nat.eq_dec i j) as [->|N]; [rewrite Mc; auto|].
    rewrite Others by auto. apply (in_line _ _ G). now apply (other_in_line w j p i N).
  - intros i H. destruct (Nat.eq_dec i j) as [->|N]; [rewrite Mc in H; apply HP, H|].
    rewrite Others in H by auto. apply other_in_line; auto. apply (has_its_place _ _ G), H.
  - intros i H. destruct (Nat.eq_dec i j) as [->|N]; [rewrite Mc; rewrite Me in H; auto|].
    rewrite Others in * by auto. now apply (waits_without_place _ _ G).
  - intros i L. cbn [count changed] in L. destruct (Nat.eq_dec i j) as [->|N].
    + rewrite (no_job_yet _ _ G j L) in NG. now elim NG.
    + rewrite Others by auto. apply (no_job_yet _ _ G), L.
  - intros i L. rewrite Claims. apply (claims_admissible _ _ G), L.
  - intros k i S I. rewrite !Claims. cbn [line changed] in I. destruct (Nat.eq_dec k j) as [->|N].
    + rewrite Mc in S. destruct (ST S) as [-> R]. eapply (ready_is_free _ So); [exact R|].
      unfold claims_before. apply in_map_iff. eauto.
    + rewrite Others in S by auto. apply (running_conflict_with_none _ _ G); auto.
      assert (L : In k (line w)) by (apply (has_its_place _ _ G); now rewrite S).
      destruct p; cbn [line_after] in I; auto; [eapply before_without_in; eauto | now rewrite before_app in I].
  - intros i e I. destruct (Nat.eq_dec i j) as [->|N]; [rewrite Me in I; now apply OK|].
    rewrite Others in I by auto. eapply (open_to_known _ _ G), I.
  - intros i e I. rewrite Needs in I. apply (needs_older _ _ G), I.
  - pose proof (no_cycle _ _ G) as A. destruct NC as [Sub|New].
    + eapply fewer_waits; [|exact A]. intros i x (e & I & E). exists e. split; auto.
      destruct (Nat.eq_dec i j) as [->|N]; [rewrite Me in I; auto | now rewrite Others in I by auto].
    + eapply more_waits with (j := j); [| |exact A].
      * intros i x N (e & I & E). exists e. rewrite Others in I by auto. auto.
      * intros x (e & I & <-). rewrite Me in I. now apply New.
Qed.

(** Ways lead to known jobs only. *)
Lemma leads_to_known r w d k : invariant r w -> d < count w -> leads_to w d k -> k < count w.
Proof.
  intros G D L. induction L as [|d e k (f & I & <-) L IH]; auto. apply IH. eapply (open_to_known _ _ G), I.
Qed.

(** A new job keeps the invariant: none waits for it yet. *)
Lemma submit_invariant r w cs later es n w' : sound r -> invariant r w -> act r w (Submit cs later es n) = Some w' ->
  invariant r w'.
Proof.
  intros So G A. cbn [act] in A. destruct (admissible r cs && known w es) eqn:F; [|discriminate].
  apply andb_true_iff in F as [F K]. rewrite (not_at_enqueue _ So) in A. cbn [andb] in A. inversion A; subst w';
    clear A.
  pose proof (known_spec _ _ K) as KS. set (j := count w) in *.
  assert (Out : ~ In j (line w)).
  { intros I. apply (in_line _ _ G) in I. rewrite (no_job_yet _ _ G j (le_n _)) in I. destruct I; discriminate. }
  assert (Old : forall i, In i (line w) -> (i =? j) = false).
  { intros i I. apply Nat.eqb_neq. now intros ->. }
  split; cbn [jobs line count].
  - apply (once _ _ G).
  - intros i I. rewrite (Old i I). now apply (in_line _ _ G).
  - intros i. destruct (Nat.eqb_spec i j); [destruct later; discriminate | apply (has_its_place _ _ G)].
  - intros i. destruct (Nat.eqb_spec i j); [destruct later; reflexivity | apply (waits_without_place _ _ G)].
  - intros i L. destruct (Nat.eqb_spec i j); [lia | apply (no_job_yet _ _ G); unfold j in *; lia].
  - intros i L. destruct (Nat.eqb_spec i j); [exact F | apply (claims_admissible _ _ G); unfold j in *; lia].
  - intros k i S I. pose proof (before_in _ _ _ I) as L. rewrite (Old i L).
    destruct (Nat.eqb_spec k j) as [->|N]; [destruct later; discriminate|].
      now apply (running_conflict_with_none _ _ G).
  - intros i e. destruct (Nat.eqb_spec i j); intros I.
    + apply KS in I. lia.
    + apply (open_to_known _ _ G) in I. unfold j. lia.
  - intros i e. destruct (Nat.eqb_spec i j); intros I.
    + apply KS in I. lia.
    + apply (needs_older _ _ G) in I. unfold j. lia.
  - eapply more_waits with (j := j) (W := waits_for w); [| |apply (no_cycle _ _ G)].
    + intros i d N (e & I & E). exists e. cbn [jobs] in I. destruct (Nat.eqb_spec i j); [contradiction | auto].
    + intros d (e & I & <-) L. cbn [jobs] in I. rewrite Nat.eqb_refl in I. cbn in I.
      apply (leads_to_known r w) in L; auto. unfold j in L. lia.
Qed.

(** The invariant holds in every reachable world: by induction on the events. *)
Theorem reachable_invariant r w : sound r -> reachable r w -> invariant r w.
Proof.
  intros So R. induction R as [|w e w' R IH A].
  - split; cbn; try constructor; try contradiction; try discriminate; try congruence; try lia.
    intros d (e & [] & _).
  - destruct e as [cs later es n | j d]; [eapply submit_invariant; eauto|]. cbn [act] in A.
    destruct (becomes r w j d) as [[[[c es] n] p]|] eqn:B; [|discriminate]. inversion A. eapply changed_invariant;
      eauto.
Qed.

(* --- safety and order --------------------------------------------------------------------------------------------- *)

(** Jobs that do not conflict have no claims that do. *)
Lemma clash_false cs ds c d : clash cs ds = false -> In c cs -> In d ds -> conflict c d = false.
Proof.
  intros F I J. destruct (conflict c d) eqn:C; auto. exfalso. enough (clash cs ds = true) by congruence.
  unfold clash. apply existsb_exists. exists c. split; auto. apply existsb_exists. eauto.
Qed.

(** Two running jobs never conflict: the later one in the line was free of the earlier one when it started, and the
    earlier one has not changed its claims. *)
Theorem running_jobs_never_conflict r w j k c d : sound r -> reachable r w ->
  state (jobs w j) = Started -> state (jobs w k) = Started -> j <> k ->
  In c (claims (jobs w j)) -> In d (claims (jobs w k)) -> conflict c d = false.
Proof.
  intros So R Sj Sk N Ic Id. pose proof (reachable_invariant _ _ So R) as G.
  destruct (before_total j k (line w)) as [B|B]; auto; try (apply (has_its_place _ _ G); now rewrite ?Sj, ?Sk).
  - eapply clash_false; [apply (running_conflict_with_none _ _ G k j); auto | |]; auto.
  - rewrite conflict_sym. eapply clash_false; [apply (running_conflict_with_none _ _ G j k); auto | |]; auto.
Qed.

(** While a job runs, none placed before it that still has its place conflicts with it. *)
Theorem running_jobs_conflict_with_none_before r w j k c d : sound r -> reachable r w ->
  state (jobs w k) = Started -> In j (before k (line w)) ->
  In c (claims (jobs w j)) -> In d (claims (jobs w k)) -> conflict c d = false.
Proof.
  intros So R S B Ic Id. eapply clash_false; [|exact Ic|exact Id].
  apply (running_conflict_with_none _ _ (reachable_invariant _ _ So R)); auto.
Qed.

(** A job starts only if none placed before it that still has its place conflicts with it: the rule looks at exactly
    these. *)
Theorem start_conflicts_with_none_before r w k w' j c d : sound r -> reachable r w ->
  act r w (At k Start) = Some w' -> In j (before k (line w)) ->
  In c (claims (jobs w j)) -> In d (claims (jobs w k)) -> conflict c d = false.
Proof.
  intros So R A B. cbn [act] in A. unfold becomes in A. destruct (state (jobs w k)); try discriminate.
  destruct (ready r (claims_before w k) (claims (jobs w k))) eqn:F; [|discriminate].
  intros Ic Id. eapply clash_false; [|exact Ic|exact Id]. eapply (ready_is_free _ So); [exact F|].
  unfold claims_before. apply in_map_iff. eauto.
Qed.

(** Places are held by the jobs that are QUEUED or STARTED, and by dead ones on hold; a job with a place has no open
    edge. *)
Theorem placed_jobs_wait_for_nothing_else r w j : sound r -> reachable r w ->
  (has_place (state (jobs w j)) = true -> In j (line w)) /\
  (In j (line w) -> (has_place (state (jobs w j)) = true \/ state (jobs w j) = Failed) /\ open (jobs w j) = []).
Proof.
  intros So R. pose proof (reachable_invariant _ _ So R) as G. split; [apply (has_its_place _ _ G)|].
  intros I. pose proof (in_line _ _ G j I) as L. split; auto.
  destruct (open (jobs w j)) eqn:O; auto. exfalso.
  assert (M : may_wait (state (jobs w j)) = true) by (apply (waits_without_place _ _ G); now rewrite O).
  destruct L as [L|L]; [destruct (state (jobs w j)); discriminate | now rewrite L in M].
Qed.
