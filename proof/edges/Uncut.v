(** Without a check a revival is safe as long as nothing is left to resolve: only cut steps need the check. *)

From Coq Require Import List Arith Bool Lia.
Import ListNotations.
Require Import Claims Walks Settled Jobs Safety NoDeadlock WithGates.

(** No open edge leads to a job that is over, unless it waits for a dead one. *)
Definition nothing_to_resolve (w : world) : Prop :=
  forall j e, In e (open (jobs w j)) -> effect_of e (state (jobs w (to e))) = Wait.

(** Histories in which every revival comes with nothing left to resolve. *)
Inductive reachable_uncut (r : rules) : world -> Prop :=
| Begin_uncut : reachable_uncut r empty
| Then_uncut w e w' : reachable_uncut r w -> (forall j n, e = At j (Revive n) -> nothing_to_resolve w) ->
    act r w e = Some w' -> reachable_uncut r w'.

(** The same rules with another check. *)
Definition with_revival (v : revival) (r : rules) : rules := Rules (ready r) (admissible r) (places_at_enqueue r)
  (children_checked r) v.

(** If nothing is left to resolve, no job waits for a canceled one: each kind of edge to it is resolved. *)
Lemma none_waits_for_canceled w j : nothing_to_resolve w -> state (jobs w j) = Canceled -> waited_for w j = false.
Proof.
  intros S C. destruct (waited_for w j) eqn:W; auto. exfalso. unfold waited_for in W.
  apply existsb_exists in W as (k & _ & W). apply existsb_exists in W as (e & I & E). apply Nat.eqb_eq in E.
  specialize (S k e I). rewrite E, C in S. unfold effect_of, drop in S. now destruct (if_canceled e).
Qed.

(** Revival is the only transition that looks at the check. *)
Lemma only_revival_differs r v w j d : (forall n, d <> Revive n) ->
  becomes (with_revival v r) w j d = becomes r w j d.
Proof. intros N. unfold becomes. destruct (state (jobs w j)), d; try reflexivity; now elim (N n). Qed.

(** If every revival comes with nothing left to resolve, the check never refuses. *)
Theorem uncut_revival_is_safe r w : reachable_uncut (with_revival Always r) w ->
  reachable (with_revival When_none_waits r) w.
Proof.
  intros R. induction R as [|w e w' R IH S A]; [constructor|]. apply (Then _ w e); auto. rewrite <- A.
  destruct e as [cs later es n | j d]; [reflexivity|]. cbn [act].
  assert (D : (exists n, d = Revive n) \/ (forall n, d <> Revive n)).
  { destruct d; ((left; eexists; reflexivity) || (right; intros m; discriminate)). }
  destruct D as [[n ->]|N].
  - unfold becomes, may_revive. destruct (state (jobs w j)) eqn:E; auto. cbn [revives with_revival].
    rewrite (none_waits_for_canceled w j); auto. apply (S j n eq_refl).
  - now rewrite !only_revival_differs by auto.
Qed.

(** So without a check there is no deadlock as long as no step is cut, with the gates as the rule. *)
Corollary uncut_never_deadlocks w j : reachable_uncut (gates Always) w -> unfinished (state (jobs w j)) = true ->
  exists e w', In e (moves w) /\ act (gates Always) w e = Some w'.
Proof.
  intros R U. apply (uncut_revival_is_safe (gates Always)) in R.
  destruct (gates_never_deadlock When_none_waits w j) as (e & w' & I & A); auto; [discriminate|].
  exists e, w'. split; auto. rewrite <- A. unfold moves in I. apply in_flat_map in I as (k & _ & I).
  apply in_map_iff in I as (d & <- & I). cbn [act].
  assert (N : forall n, d <> Revive n).
  { intros n ->. apply in_app_iff in I as [I|I]; unfold by_itself, ends_of_dead_jobs in I; simpl in I;
      repeat destruct I as [I|I]; try discriminate; auto. apply in_map_iff in I as (i & X & _). discriminate. }
  rewrite <- (only_revival_differs (gates Always) When_none_waits w k d N). reflexivity.
Qed.
