(** No deadlock: edges, places, retries, losses, dead jobs on hold, children and revived jobs together never wait
    for one another for ever. *)

From Coq Require Import List Arith Bool Lia Wellfounded Relation_Operators.
Import ListNotations.
Require Import Claims Walks Settled Jobs Safety.

(** What happens without a decision: a time comes, an edge is resolved, a place is taken, a worker starts a ready
    job, a handler ends. *)
Definition by_itself (w : world) (j : nat) : list transition :=
  [Due; Place; Start; Finish; Close true] ++ map Resolve (seq 0 (length (open (jobs w j)))).

(** How a dead job ends: a person discards it, its place is freed, its record expires. *)
Definition ends_of_dead_jobs : list transition := [Discard; Free; Prune].

Definition possible (r : rules) (w : world) (e : event) : bool := if act r w e then true else false.

(** It has a place, or an unfinished job waits for it until it is redriven. *)
Definition waits_for_dead (w : world) (k : nat) : Prop :=
  In k (line w) \/ exists j e, In e (open (jobs w j)) /\ to e = k /\ if_failed e = Wait.

(** What is not possible has no outcome. *)
Lemma not_possible r w j d : possible r w (At j d) = false -> becomes r w j d = None.
Proof. unfold possible. cbn [act]. destruct (becomes r w j d) as [[[[c es] n] p]|]; auto; discriminate. Qed.

(** A job that is not gone has a number that was given out. *)
Lemma is_known r w j : invariant r w -> state (jobs w j) <> Gone -> j < count w.
Proof. intros G N. destruct (le_lt_dec (count w) j); auto. exfalso. apply N. now rewrite (no_job_yet _ _ G). Qed.

(** If nothing happens by itself, each unfinished job waits for a dead one, on its place or along a "wait" edge: the
    first in line would start unless it is dead, and edges have no cycle; by induction along the edges. *)
Theorem only_dead_jobs_block r w j : sound r -> reachable r w ->
  (forall k d, In d (by_itself w k) -> possible r w (At k d) = false) ->
  unfinished (state (jobs w j)) = true ->
  exists k, state (jobs w k) = Failed /\ waits_for_dead w k.
Proof.
  intros So R Rest. pose proof (reachable_invariant _ _ So R) as G.
  assert (Still : forall k d, In d (by_itself w k) -> becomes r w k d = None) by (intros; apply not_possible, Rest;
    auto).
  clear Rest.
  assert (NotDue : forall k, state (jobs w k) <> Scheduled /\ state (jobs w k) <> Backing).
  { intros k. pose proof (Still k Due ltac:(simpl; tauto)) as B. unfold becomes in B. split; intros E; rewrite E in B;
    discriminate. }
  assert (NotRunning : forall k, state (jobs w k) <> Started).
  { intros k E. pose proof (Still k Finish ltac:(simpl; tauto)) as B. unfold becomes in B. rewrite E in B.
    discriminate. }
  assert (First : forall h l, line w = h :: l -> state (jobs w h) = Failed).
  { intros h l E. assert (I : In h (line w)) by (rewrite E; now left).
    destruct (in_line _ _ G h I) as [P|]; auto. exfalso.
    destruct (NotDue h), (state (jobs w h)) eqn:S; try discriminate; try congruence; try (elim (NotRunning h S)).
    pose proof (Still h Start ltac:(simpl; tauto)) as B. unfold becomes in B. rewrite S in B.
    assert (L : h < count w) by (eapply is_known; eauto; congruence).
    unfold claims_before in B. rewrite E in B. cbn [before] in B. rewrite Nat.eqb_refl in B. cbn [map] in B.
    rewrite (first_is_ready _ So) in B; [discriminate|]. now apply (claims_admissible _ _ G). }
  induction (no_cycle _ _ G j) as [j _ IH]. intros U.
  assert (Behind : In j (line w) -> exists k, state (jobs w k) = Failed /\ waits_for_dead w k).
  { intros I. destruct (line w) as [|h l] eqn:E; [contradiction|]. exists h. split; [now apply (First h l)|].
    left. rewrite E. now left. }
  assert (Open : open (jobs w j) <> [] -> may_wait (state (jobs w j)) = true ->
    exists k, state (jobs w k) = Failed /\ waits_for_dead w k).
  { intros O M. destruct (open (jobs w j)) as [|e es] eqn:E; [contradiction|].
    assert (I : In e (open (jobs w j))) by (rewrite E; now left).
    destruct (unfinished (state (jobs w (to e)))) eqn:Un; [apply (IH (to e)); auto; now exists e|].
    assert (B : becomes r w j (Resolve 0) = None).
    { apply Still. unfold by_itself. apply in_app_iff. right. rewrite E. now left. }
    unfold becomes in B. rewrite E in B. cbn [nth_error] in B.
    destruct (effect_of e (state (jobs w (to e)))) eqn:F;
      [|destruct (state (jobs w j)); discriminate | destruct (state (jobs w j)); discriminate].
    unfold effect_of, drop in F. exists (to e).
    destruct (state (jobs w (to e))); try discriminate;
      repeat match type of F with context [if ?b then _ else _] => destruct b | context [match ?x with
        _ => _ end] => destruct x eqn:? end;
      try discriminate. split; auto. right. eauto. }
  destruct (NotDue j), (state (jobs w j)) eqn:S; try discriminate; try congruence; try (elim (NotRunning j S)).
  - destruct (open (jobs w j)) eqn:O; [|apply Open; auto; congruence].
    pose proof (Still j Place ltac:(simpl; tauto)) as B. unfold becomes in B. rewrite S, O in B. discriminate.
  - destruct (open (jobs w j)) eqn:O; [|apply Open; auto; congruence].
    pose proof (Still j (Close true) ltac:(simpl; tauto)) as B. unfold becomes in B. rewrite S, O in B. discriminate.
  - apply Behind, (has_its_place _ _ G). now rewrite S.
Qed.

(** All that may happen by itself or to a dead job. *)
Definition moves (w : world) : list event :=
  flat_map (fun j => map (At j) (by_itself w j ++ ends_of_dead_jobs)) (seq 0 (count w)).

(** The list of moves has those of each known job. *)
Lemma in_moves w j d : j < count w -> In d (by_itself w j) \/ In d ends_of_dead_jobs -> In (At j d) (moves w).
Proof.
  intros L I. unfold moves. apply in_flat_map. exists j. split; [apply in_seq; lia|].
  apply in_map, in_app_iff, I.
Qed.

(** If no move in the list is possible, none of any job is: unknown ones have none. *)
Lemma nothing_possible r w : invariant r w -> (forall e, In e (moves w) -> possible r w e = false) ->
  forall j d, In d (by_itself w j) \/ In d ends_of_dead_jobs -> possible r w (At j d) = false.
Proof.
  intros G N j d I. destruct (le_lt_dec (count w) j) as [L|L]; [|now apply N, in_moves].
  unfold possible. cbn [act]. unfold becomes. now rewrite (no_job_yet _ _ G j L).
Qed.

(** While a job is unfinished, something can happen by itself or to a dead job: a dead one can always expire. *)
Theorem no_deadlock r w j : sound r -> reachable r w -> unfinished (state (jobs w j)) = true ->
  exists e w', In e (moves w) /\ act r w e = Some w'.
Proof.
  intros So R U. pose proof (reachable_invariant _ _ So R) as G. destruct (find (possible r w) (moves w)) as [e|] eqn:F.
  - apply find_some in F as [I P]. unfold possible in P. destruct (act r w e) as [w'|] eqn:A; [|discriminate]. eauto.
  - exfalso. pose proof (nothing_possible _ _ G (find_none _ _ F)) as Rest.
    destruct (only_dead_jobs_block r w j So R) as (k & S & _); auto.
    assert (P : possible r w (At k Prune) = false) by (apply Rest; simpl; tauto).
    apply not_possible in P. unfold becomes in P. rewrite S in P. discriminate.
Qed.

(** If none of this can happen, nothing is left: no job, no place, no open edge. *)
Theorem nothing_possible_nothing_left r w : sound r -> reachable r w -> (forall e, In e (moves w) ->
  act r w e = None) ->
  line w = [] /\ forall j, state (jobs w j) = Gone /\ open (jobs w j) = [].
Proof.
  intros So R N. pose proof (reachable_invariant _ _ So R) as G.
  assert (Over : forall j, unfinished (state (jobs w j)) = false).
  { intros j. destruct (unfinished (state (jobs w j))) eqn:U; auto. exfalso.
    destruct (no_deadlock r w j So R U) as (e & w' & I & A). rewrite (N e I) in A. discriminate. }
  assert (Rest : forall e, In e (moves w) -> possible r w e = false) by (intros e I; unfold possible; now rewrite N).
  pose proof (nothing_possible _ _ G Rest) as Still. clear Rest N.
  assert (Closed : forall j, open (jobs w j) = []).
  { intros j. destruct (open (jobs w j)) eqn:O; auto. exfalso.
    assert (M : may_wait (state (jobs w j)) = true) by (apply (waits_without_place _ _ G); now rewrite O).
    specialize (Over j). destruct (state (jobs w j)); discriminate. }
  assert (All : forall j, state (jobs w j) = Gone).
  { intros j. assert (P : possible r w (At j Prune) = false) by (apply Still; simpl; tauto).
    apply not_possible in P. unfold becomes in P. specialize (Over j).
    assert (W : waited_for w j = false).
    { destruct (waited_for w j) eqn:W; auto. unfold waited_for in W. apply existsb_exists in W as (k & _ & W).
      rewrite Closed in W. discriminate. }
    rewrite W in P. destruct (state (jobs w j)); try discriminate. reflexivity. }
  split; auto. destruct (line w) as [|h l] eqn:E; auto. exfalso.
  assert (I : In h (line w)) by (rewrite E; now left). apply (in_line _ _ G) in I. rewrite All in I. destruct I;
    discriminate.
Qed.

(* --- it ends ------------------------------------------------------------------------------------------------------ *)

(** All transitions but redrives and revivals, which a person asks for. *)
Definition from_inside (d : transition) : bool := match d with Redrive _ | Revive _ => false | _ => true end.

(** What is ahead of a job, by its state. *)
Definition rank (c : job_state) : nat :=
  match c with
  | Gone => 0 | Finished | Canceled => 1 | Failed => 2 | Parent => 3 | Started => 4 | Queued => 5 | Deferred => 6
  | Scheduled => 7 | Backing => 8
  end.

Definition weight (x : job) : nat := 8 * tries x + rank (state x).

(** A sum over the jobs. *)
Fixpoint total (f : nat -> nat) (n : nat) : nat := match n with 0 => 0 | S m => f m + total f m end.

Definition total_weight (w : world) : nat := total (fun k => weight (jobs w k)) (count w).
Definition total_open (w : world) : nat := total (fun k => length (open (jobs w k))) (count w) + length (line w).

(** A sum changes as the one summand that changes. *)
Lemma total_change f g k n : k < n -> (forall i, i <> k -> f i = g i) -> total f n + g k = total g n + f k.
Proof.
  intros L E. induction n as [|n IH]; [lia|]. simpl. destruct (Nat.eq_dec k n) as [->|N].
  - assert (H : forall m, m <= n -> total f m = total g m).
    { induction m as [|m IHm]; auto. intros M. simpl. rewrite IHm, (E m) by lia. reflexivity. }
    rewrite (H n) by lia. lia.
  - specialize (IH ltac:(lia)). rewrite (E n) by lia.
    lia.
Qed.

(** Taking one out makes no list longer. *)
Lemma without_shorter j l : length (without j l) <= length l.
Proof. induction l as [|k l IH]; simpl; auto. destruct (negb (k =? j)); simpl; lia. Qed.

(** Taking out one that is there makes the list shorter. *)
Lemma without_in_shorter j l : In j l -> length (without j l) < length l.
Proof.
  induction l as [|k l IH]; [contradiction|]. simpl. pose proof (without_shorter j l).
  destruct (Nat.eqb_spec k j) as [->|N]; simpl; [intros _; lia|].
  intros [E|I]; [contradiction|]. apply IH in I. lia.
Qed.

(** Removing an edge leaves one less. *)
Lemma remove_edge_shorter i es e : nth_error es i = Some e -> S (length (remove_edge i es)) = length es.
Proof.
  unfold remove_edge. revert es. induction i as [|i IH]; intros [|a es]; simpl; try discriminate; auto.
  intros H. apply IH in H. simpl in H. lia.
Qed.

(** Each transition but a redrive and a revival makes the weight of its job smaller, or keeps it and takes an edge
    or a place away: by cases. *)
Lemma becomes_decreases r w j d c es n p : becomes r w j d = Some (c, es, n, p) -> from_inside d = true ->
  8 * n + rank c < weight (jobs w j) \/
  8 * n + rank c = weight (jobs w j) /\
  length es + length (line_after (line w) j p) < length (open (jobs w j)) + length (line w).
Proof.
  intros B GO. unfold weight. unfold becomes in B.
  destruct (state (jobs w j)) eqn:E; destruct d; try discriminate;
    repeat match type of B with
    | context [match ?x with _ => _ end] => destruct x eqn:?; try discriminate
    end; inversion B; subst; cbn [rank line_after length] in *; try (left; lia);
    try (right; split; [reflexivity|]; match goal with
      H : nth_error _ _ = Some _ |- _ => apply remove_edge_shorter in H; lia end).
  right. split; auto. match goal with H : placed _ _ = true |- _ => apply placed_spec, without_in_shorter in H; lia end.
Qed.

Definition lexicographically_before : nat * nat -> nat * nat -> Prop := slexprod nat nat lt lt.

(** So the sum over all jobs becomes smaller, in lexicographic order. *)
Lemma from_inside_decreases r w j d w' : invariant r w -> from_inside d = true -> act r w (At j d) = Some w' ->
  lexicographically_before (total_weight w', total_open w') (total_weight w, total_open w).
Proof.
  intros G GO A. cbn [act] in A. destruct (becomes r w j d) as [[[[c es] n] p]|] eqn:B; [|discriminate].
  inversion A; subst w'; clear A.
  assert (L : j < count w).
  { eapply is_known; eauto. intros S. unfold becomes in B. rewrite S in B. discriminate. }
  assert (Others : forall i, i <> j -> jobs (changed w j c es n p) i = jobs w i).
  { intros i N. unfold changed. cbn. now destruct (Nat.eqb_spec i j). }
  assert (Mine : weight (jobs (changed w j c es n p) j) = 8 * n + rank c /\ open (jobs (changed w j c es n p) j) = es).
  { unfold changed. cbn [jobs]. rewrite Nat.eqb_refl. split; reflexivity. }
  destruct Mine as [Mw Mo].
  pose proof (total_change (fun k => weight (jobs (changed w j c es n p) k)) (fun k => weight (jobs w k)) j (count w) L
                ltac:(intros i N; cbv beta; now rewrite Others)) as T1.
  pose proof (total_change (fun k => length (open (jobs (changed w j c es n p) k))) (fun k => length (open (jobs w
    k))) j
                (count w) L ltac:(intros i N; cbv beta; now rewrite Others)) as T2.
  cbv beta in T1, T2. rewrite Mw in T1. rewrite Mo in T2.
  destruct (becomes_decreases _ _ _ _ _ _ _ _ B GO) as [Less|[Same Less]].
  - apply left_slex. unfold total_weight. cbn [count changed] in *. lia.
  - assert (E : total_weight (changed w j c es n p) = total_weight w) by (unfold total_weight;
    cbn [count changed] in *; lia).
    rewrite E. apply right_slex. unfold total_open. cbn [count line changed] in *. lia.
Qed.

(** Without new jobs, redrives and revivals everything that can happen comes to an end: the measure is well-founded.
    *)
Theorem moves_end r w : sound r -> reachable r w ->
  Acc (fun w' v => exists j d, from_inside d = true /\ act r v (At j d) = Some w') w.
Proof.
  intros So. assert (A : Acc lexicographically_before (total_weight w, total_open w)) by (apply wf_slexprod;
    apply lt_wf).
  remember (total_weight w, total_open w) as m eqn:E. revert w E. induction A as [m _ IH]. intros w -> R.
  constructor. intros w' (j & d & GO & A). eapply IH; [|reflexivity|].
  - eapply from_inside_decreases; eauto. now apply reachable_invariant.
  - econstructor; eauto.
Qed.

(** From every reachable world the end is reached, whichever moves are taken: no_deadlock names a move as long as a
    job is left, and moves end. *)
Theorem everything_ends r w : sound r -> reachable r w -> exists es w', play r w es = Some w' /\
  line w' = [] /\ forall j, state (jobs w' j) = Gone.
Proof.
  intros So R. induction (moves_end r w So R) as [w _ IH].
  destruct (find (possible r w) (moves w)) as [e|] eqn:F.
  - apply find_some in F as [I P]. unfold possible in P. destruct (act r w e) as [v|] eqn:A; [|discriminate].
    destruct (IH v) as (es & w' & H & Rest).
    + unfold moves in I. apply in_flat_map in I as (j & _ & I). apply in_map_iff in I as (d & <- & I).
      exists j, d. split; auto. apply in_app_iff in I as [I|I]; unfold by_itself, ends_of_dead_jobs in I; simpl in I.
      * repeat (destruct I as [<-|I]; [reflexivity|]). now apply in_map_iff in I as (i & <- & _).
      * now repeat (destruct I as [<-|I]; [reflexivity|]).
    + econstructor; eauto.
    + exists (e :: es), w'. split; auto. simpl. now rewrite A.
  - exists [], w. split; auto. destruct (nothing_possible_nothing_left r w So R) as [Line All].
    + intros e I. pose proof (find_none _ _ F e I) as P. unfold possible in P. now destruct (act r w e).
    + split; auto. intros j. apply All.
Qed.
