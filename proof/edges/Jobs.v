(** Jobs with places and dependency edges, as one machine.

    A job is named by its number. A submission is a series of [Submit]s in sorted order (Cycles.v has the sorting).
    Any edge to a job that is over may be resolved at any later time: so every cut and every order of the leftovers
    is in a list of events. *)

From Coq Require Import List Arith Bool Lia.
Import ListNotations.
Require Import Claims Walks Settled.

(* --- edges -------------------------------------------------------------------------------------------------------- *)

(** What an edge does to the dependent when the dependency is over. *)
Inductive effect := Wait | Drop | Cancels.

(** The policy of an edge, as in queuehint/core/structures/edges.py; only a dead dependency can still be waited for,
    since it may be redriven. *)
Record edge := Edge { to : nat; if_finished : bool; if_failed : effect; if_canceled : bool }.

Inductive job_state :=
| Scheduled | Deferred | Parent | Queued | Backing | Started | Finished | Failed | Canceled | Gone.
(** [Parent]: DEFERRED after it has run, until its children are over. [Backing]: QUEUED, and waits on its place for its
    next attempt. [Gone]: its record is dropped. *)

Definition drop (b : bool) : effect := if b then Drop else Cancels.

(** Twin of [edge_action]; a record that has expired counts as failed, and is not waited for. *)
Definition effect_of (e : edge) (c : job_state) : effect :=
  match c with
  | Finished => drop (if_finished e)
  | Failed => if_failed e
  | Canceled => drop (if_canceled e)
  | Gone => match if_failed e with Drop => Drop | _ => Cancels end
  | _ => Wait
  end.

(* --- the world ---------------------------------------------------------------------------------------------------- *)

(** [open] are the edges it still waits for, [needs] those it was given, [tries] how often it may still be put back
    by a retry, a snooze, a release or a loss. *)
Record job := Job { state : job_state; claims : list claim; needs : list edge; open : list edge; tries : nat }.

(** [line] are the jobs that have a place, in order. *)
Record world := World { jobs : nat -> job; count : nat; line : list nat }.

(** A number that was not given out, or whose record is gone. *)
Definition no_job : job := Job Gone [] [] [] 0.
Definition empty : world := World (fun _ => no_job) 0 [].

Definition unfinished (c : job_state) : bool :=
  match c with Finished | Failed | Canceled | Gone => false | _ => true end.

(** The jobs before [j] in the line. *)
Fixpoint before (j : nat) (l : list nat) : list nat :=
  match l with [] => [] | k :: t => if k =? j then [] else k :: before j t end.

Definition without (j : nat) (l : list nat) : list nat := filter (fun k => negb (k =? j)) l.

Definition placed (w : world) (j : nat) : bool := existsb (Nat.eqb j) (line w).

(** Their claims. *)
Definition claims_before (w : world) (j : nat) : list (list claim) :=
  map (fun k => claims (jobs w k)) (before j (line w)).

(** Two jobs conflict. *)
Definition clash (cs ds : list claim) : bool := existsb (fun c => existsb (conflict c) ds) cs.

(** No way of at most [n] open edges leads from [d] to [j]. *)
Fixpoint unreached (w : world) (j n d : nat) : bool :=
  match n with
  | 0 => false
  | S n' => negb (d =? j) && forallb (fun e => unreached w j n' (to e)) (open (jobs w d))
  end.

(** Job [j] may wait along these edges. *)
Definition closes_no_cycle (w : world) (j : nat) (es : list edge) : bool :=
  forallb (fun e => unreached w j (S (count w)) (to e)) es.

(* --- rules -------------------------------------------------------------------------------------------------------- *)

(** When a canceled job may be revived. *)
Inductive revival := Always | When_none_waits | When_no_cycle.

(** Which job may start, given the claims of those before it; which claims a job may have. The other fields are
    rules that a sound machine needs: no place at enqueue for a job that waits, children searched for cycles,
    revivals checked. *)
Record rules := Rules {
  ready : list (list claim) -> list claim -> bool;
  admissible : list claim -> bool;
  places_at_enqueue : bool;
  children_checked : bool;
  revives : revival }.

(** A ready job conflicts with none before it, the first in line is ready, and the other rules hold. *)
Record sound (r : rules) : Prop := Sound {
  ready_is_free : forall bs cs b, ready r bs cs = true -> In b bs -> clash b cs = false;
  first_is_ready : forall cs, admissible r cs = true -> ready r [] cs = true;
  not_at_enqueue : places_at_enqueue r = false;
  children_are_checked : children_checked r = true;
  revival_is_checked : revives r <> Always }.

(** The plain rule: no job before it conflicts. *)
Definition plain_ready (bs : list (list claim)) (cs : list claim) : bool := forallb (fun b => negb (clash b cs)) bs.
Definition plain : rules := Rules plain_ready (fun _ => true) false true When_no_cycle.

(* --- what may happen ---------------------------------------------------------------------------------------------- *)

(** How a job is put back: at once, after a back-off on its place, or off its place. *)
Inductive back := At_once | On_its_place | Off_its_place.

(** What may happen to a job. *)
Inductive transition :=
| Due                        (* its time has come *)
| Put_off                    (* it has held its place too long *)
| Resolve (i : nat)          (* do with its edge number [i] what the end of the dependency says *)
| Place                      (* its last edge is resolved: it takes its place *)
| Start
| Finish
| Fail (keep : bool)         (* dead, on hold or not *)
| Stop                       (* canceled while it ran, or discarded by its handler *)
| Again (b : back)           (* retry, snooze, release, loss *)
| Await (es : list edge)     (* it has run, and is over when its children are *)
| Leave (es : list edge)     (* it gives up its place, and is run again when others are over *)
| Close (well : bool)        (* its last child is over *)
| Cancel
| Redrive (n : nat)
| Revive (n : nat)           (* of one that was canceled because of another: redrive downstream *)
| Discard
| Free                       (* a dead one gives up the place it held *)
| Prune.                     (* its record is dropped; of a dead one: it has expired *)

(** A new job, [later] if it has a time, or a transition of one. *)
Inductive event := Submit (cs : list claim) (later : bool) (es : list edge) (n : nat) | At (j : nat) (d : transition).

Inductive place_change := Keeps | Leaves | Joins.

(** The edges but number [i]. *)
Definition remove_edge (i : nat) (es : list edge) : list edge := firstn i es ++ skipn (S i) es.

(** An unfinished job waits for it. *)
Definition waited_for (w : world) (j : nat) : bool :=
  existsb (fun k => existsb (fun e => to e =? j) (open (jobs w k))) (seq 0 (count w)).

(** Edges lead to numbers that were given out; the record may have expired since. *)
Definition known (w : world) (es : list edge) : bool := forallb (fun e => to e <? count w) es.

Definition may_revive (r : rules) (w : world) (j : nat) : bool :=
  match revives r with
  | Always => true
  | When_none_waits => negb (waited_for w j)
  | When_no_cycle => closes_no_cycle w j (needs (jobs w j))
  end.

(** The outcome of a transition, if it is possible: state, open edges, tries, and what becomes of the place. *)
Definition becomes (r : rules) (w : world) (j : nat) (d : transition) : option (job_state * list edge * nat *
  place_change) :=
  let x := jobs w j in
  match state x, d with
  | Scheduled, Due => Some (Deferred, open x, tries x, Keeps)
  | Backing, Due => Some (Queued, [], tries x, Keeps)
  | Backing, Put_off => Some (Scheduled, [], tries x, Leaves)
  | (Scheduled | Deferred | Parent), Resolve i =>
      match nth_error (open x) i with
      | None => None
      | Some e =>
          match effect_of e (state (jobs w (to e))) with
          | Wait => None
          | Drop => Some (state x, remove_edge i (open x), tries x, Keeps)
          | Cancels => Some (Canceled, [], tries x, Leaves)
          end
      end
  | Deferred, Place => match open x with [] => Some (Queued, [], tries x,
    if placed w j then Keeps else Joins) | _ => None end
  | Queued, Start => if ready r (claims_before w j) (claims x) then Some (Started, [], tries x, Keeps) else None
  | Started, Finish => Some (Finished, [], tries x, Leaves)
  | Started, Fail keep => Some (Failed, [], tries x, if keep then Keeps else Leaves)
  | Started, Stop => Some (Canceled, [], tries x, Leaves)
  | Started, Again b =>
      match tries x, b with
      | 0, _ => None
      | S n, At_once => Some (Queued, [], n, Keeps)
      | S n, On_its_place => Some (Backing, [], n, Keeps)
      | S n, Off_its_place => Some (Scheduled, [], n, Leaves)
      end
  | Started, Await es =>
      if known w es && (negb (children_checked r) || closes_no_cycle w j es)
      then Some (Parent, es, tries x, Leaves) else None
  | Started, Leave es =>
      match tries x with
      | 0 => None
      | S n => if known w es && (negb (children_checked r) || closes_no_cycle w j es)
               then Some (Deferred, es, n, Leaves) else None
      end
  | Parent, Close well =>
      match open x with [] => Some (if well then Finished else Failed, [], tries x, Keeps) | _ => None end
  | (Scheduled | Deferred | Parent | Queued | Backing), Cancel => Some (Canceled, [], tries x, Leaves)
  | Failed, Redrive n => Some (Queued, [], n, if placed w j then Keeps else Joins)
  | Canceled, Revive n =>
      if may_revive r w j then Some (Deferred, needs x, n, if places_at_enqueue r then Joins else Keeps) else None
  | Failed, Discard => Some (Canceled, [], tries x, Leaves)
  | Failed, Free => if placed w j then Some (Failed, [], tries x, Leaves) else None
  | Failed, Prune => Some (Gone, [], tries x, Leaves)
  | (Finished | Canceled), Prune => if waited_for w j then None else Some (Gone, [], tries x, Leaves)
  | _, _ => None
  end.

Definition line_after (l : list nat) (j : nat) (p : place_change) : list nat :=
  match p with Keeps => l | Leaves => without j l | Joins => l ++ [j] end.

Definition changed (w : world) (j : nat) (c : job_state) (es : list edge) (n : nat) (p : place_change) : world :=
  let x := jobs w j in
  World (fun k => if k =? j then Job c (claims x) (needs x) es n else jobs w k) (count w) (line_after (line w) j p).

(** The machine: one event, if it is possible. *)
Definition act (r : rules) (w : world) (e : event) : option world :=
  match e with
  | Submit cs later es n =>
      if admissible r cs && known w es then
        let j := count w in
        Some (World (fun k => if k =? j then Job (if later then Scheduled else Deferred) cs es es n else jobs w k)
                    (S j) (if places_at_enqueue r && negb later then line w ++ [j] else line w))
      else None
  | At j d =>
      match becomes r w j d with Some (c, es, n, p) => Some (changed w j c es n p) | None => None end
  end.

(** What some events lead to from the empty world. *)
Inductive reachable (r : rules) : world -> Prop :=
| Begin : reachable r empty
| Then w e w' : reachable r w -> act r w e = Some w' -> reachable r w'.

(** A list of events, all of which have to be possible. *)
Fixpoint play (r : rules) (w : world) (es : list event) : option world :=
  match es with
  | [] => Some w
  | e :: t => match act r w e with Some w' => play r w' t | None => None end
  end.

(** What events lead to is reachable. *)
Lemma play_reachable r es : forall w w', reachable r w -> play r w es = Some w' -> reachable r w'.
Proof.
  induction es as [|e es IH]; simpl; intros w w' R P; [now inversion P; subst|].
  destruct (act r w e) as [v|] eqn:A; [|discriminate]. eapply IH; [|exact P]. econstructor; eauto.
Qed.
