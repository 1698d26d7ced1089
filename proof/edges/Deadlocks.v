(** What does deadlock: the same machine with one rule left out each, and a handler that waits for a job. *)

From Coq Require Import List Arith Bool Lia.
Import ListNotations.
Require Import Claims Walks Settled Jobs Safety NoDeadlock.

(** A job is unfinished and no transition is possible any more but a cancellation. *)
Definition deadlocked (r : rules) (w : world) : Prop :=
  (exists j, unfinished (state (jobs w j)) = true) /\
  forall j d, d <> Cancel -> act r w (At j d) = None.

(** One exclusive claim. *)
Definition at_path (p : Path) : list claim := [Claim 0 0 p false].
Definition submit (cs : list claim) (es : list edge) : event := Submit cs false es 0.
Definition start (j : nat) : list event := [At j Place; At j Start].
Definition needed (k : nat) : edge := Edge k true Cancels false.      (* on_dependency_failure="cancel" *)
Definition waited (k : nat) : edge := Edge k true Wait true.         (* "wait" *)
Definition child (k : nat) : edge := Edge k true Drop true.

(** The world in which a play ends; an impossible one ends in the empty world. *)
Definition after (r : rules) (es : list event) : world := match play r empty es with Some w => w | None => empty end.

(** Where a play ends is reachable. *)
Lemma after_reachable r es : reachable r (after r es).
Proof.
  unfold after. destruct (play r empty es) eqn:P; [|constructor]. eapply play_reachable; [constructor | exact P].
Qed.

Ltac none_of d := try reflexivity; try (destruct d as [| | [|[|[|?]]] | | | | | | | | | | | | | | |]; try reflexivity;
  congruence).

(** 1. Places taken at enqueue: the first job waits for its time, the second for the first, and holds the place it
    needs. *)
Definition placed_at_enqueue : rules := Rules plain_ready (fun _ => true) true true When_no_cycle.
Definition play_1 : list event :=
  [Submit (at_path [1]) true [] 0; submit (at_path [1]) [waited 0]; At 0 Due; At 0 Place].

(** If a place is taken at enqueue, the second job holds the place that the first needs, and waits for the first. *)
Example places_at_enqueue_deadlock : deadlocked placed_at_enqueue (after placed_at_enqueue play_1).
Proof.
  split; [exists 0; reflexivity|]. intros [|[|j]] d N; none_of d.
Qed.

(** With the rules as they are the same jobs end. *)
Example the_same_ends : exists es, map (fun j => state (jobs (after plain (play_1 ++ es)) j)) [0; 1] = [Finished;
  Finished].
Proof. exists [At 0 Start; At 0 Finish; At 1 (Resolve 0); At 1 Place; At 1 Start; At 1 Finish]. reflexivity. Qed.

(** 2. Children without a search: a parent may wait for a job that waits for it. *)
Definition children_unchecked : rules := Rules plain_ready (fun _ => true) false false When_no_cycle.
Definition play_2 : list event :=
  [submit (at_path [1]) []] ++ start 0 ++ [submit [] [waited 0]; At 0 (Await [child 1])].

(** If children are not searched, a parent waits for a job that waits for it. *)
Example unchecked_children_deadlock : deadlocked children_unchecked (after children_unchecked play_2).
Proof. split; [exists 0; reflexivity|]. intros [|[|j]] d N; none_of d. Qed.

(** 3. Revivals without a check: a job is revived before its end has been told to its dependents. Job 0 runs, 1
    dies, 2 depended on both and is canceled, 3 depends on 2 and has not been told. Job 0 waits for 3, as its child:
    the search for cycles ends at 2, which is over. 1 is redriven, 2 is revived and waits for 0; 3 is never told of
    2's end. *)
Definition revived_always : rules := Rules plain_ready (fun _ => true) false true Always.
Definition before_revival : list event :=
  [submit [] []; submit [] []; submit [] [needed 1; needed 0]; submit [] [needed 2]] ++ start 0 ++ start 1 ++
  [At 1 (Fail false); At 2 (Resolve 0); At 0 (Await [child 3]); At 1 (Redrive 0)].
Definition play_3 : list event :=
  before_revival ++ [At 2 (Revive 0); At 1 Start; At 1 Finish; At 2 (Resolve 0); At 1 Prune].

(** If a job is revived at once, 3 waits for 2, 2 for 0 and 0 for 3. *)
Example unchecked_revival_deadlocks : deadlocked revived_always (after revived_always play_3).
Proof. split; [exists 0; reflexivity|]. intros [|[|[|[|j]]]] d N; none_of d. Qed.

(** The rule of the library: a job is revived only once no unfinished job waits for it. *)
Definition revived_in_turn : rules := Rules plain_ready (fun _ => true) false true When_none_waits.

(** Either check refuses this revival. *)
Example both_checks_refuse_it :
  act plain (after plain before_revival) (At 2 (Revive 0)) = None /\
  act revived_in_turn (after revived_in_turn before_revival) (At 2 (Revive 0)) = None.
Proof. split; reflexivity. Qed.

(** Once 3 has been told, 2 may be revived. *)
Example told_first_it_goes_on :
  map (fun j => state (jobs (after revived_in_turn (before_revival ++ [At 3 (Resolve 0); At 2 (Revive 0)])) j)) [0; 1;
    2; 3]
  = [Parent; Queued; Deferred; Canceled].
Proof. reflexivity. Qed.

(** 4. A handler that waits for jobs: while one of them is unfinished, the handler does not end. *)
Definition ends_a_handler (d : transition) : bool :=
  match d with Finish | Fail _ | Stop | Again _ | Await _ | Leave _ => true | _ => false end.

(** The machine with such handlers: job [j] waits for [calls j]. *)
Definition act_calling (calls : nat -> list nat) (r : rules) (w : world) (e : event) : option world :=
  match e with
  | At j d =>
      if ends_a_handler d && existsb (fun k => unfinished (state (jobs w k))) (calls j) then None else act r w e
  | _ => act r w e
  end.

Definition deadlocked_calling (calls : nat -> list nat) (r : rules) (w : world) : Prop :=
  (exists j, unfinished (state (jobs w j)) = true) /\
  forall j d, d <> Cancel -> act_calling calls r w (At j d) = None.

Ltac none_calling d :=
  try reflexivity; try (destruct d as [| | [|?] | | | | | | | | | | | | | | |]; try reflexivity; congruence).

(** A handler waits for a job that stands behind its own. *)
Example handler_waiting_for_a_job_behind_it_deadlocks :
  deadlocked_calling (fun j => if j =? 0 then [1] else []) plain
    (after plain ([submit (at_path [1]) []; submit (at_path [1; 2]) []] ++ start 0 ++ [At 1 Place])).
Proof. split; [exists 0; reflexivity|]. intros [|[|j]] d N; none_calling d. Qed.

(** It waits for a job with which its own does not conflict, through a third: to look at conflicts alone is not
    enough. *)
Example handler_waiting_through_a_third_deadlocks :
  deadlocked_calling (fun j => if j =? 0 then [2] else []) plain
    (after plain ([submit (at_path [1]) []; submit (at_path [1] ++ at_path [2]) [];
      submit (at_path [2]) []] ++ start 0 ++
                  [At 1 Place; At 2 Place])) /\
  conflict (Claim 0 0 [1] false) (Claim 0 0 [2] false) = false.
Proof. split; [|reflexivity]. split; [exists 0; reflexivity|]. intros [|[|[|j]]] d N; none_calling d. Qed.

(** The plain rule looks at each job before. *)
Lemma plain_ready_sound bs cs b : plain_ready bs cs = true -> In b bs -> clash b cs = false.
Proof. unfold plain_ready. rewrite forallb_forall. intros F I. specialize (F b I). now apply negb_true_iff. Qed.

(** The plain rule with a search at revival is sound. *)
Theorem plain_sound : sound plain.
Proof. split; try reflexivity; try discriminate. exact plain_ready_sound. Qed.

(** The plain rule with revivals in turn, as the library does them, is sound. *)
Theorem revived_in_turn_sound : sound revived_in_turn.
Proof. split; try reflexivity; try discriminate. exact plain_ready_sound. Qed.
