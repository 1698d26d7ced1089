(** Leases: each grant of a job is an attempt with a token of its own. Whatever workers do, at most one settlement of an
    attempt counts, and none once the lease was lost. *)

From Coq Require Import List Arith Lia Bool Sorted.
Import ListNotations.

(** [last] is the last token given; [lease j] the token by which job [j] is leased now. *)
Record store := Store { last : nat; lease : nat -> option nat }.

(** What may happen. Settlements and renewals are requests of any worker, with any token, at any time, any number of
    times: so workers may die, freeze, wake late and repeat. A lease is reaped when it has expired or was taken away; a
    restart leaves out tokens. *)
Inductive event := Grant (j : nat) | Settle (j t : nat) | Renew (j t : nat) | Reap (j : nat) | Restart (n : nat).

(** A store without jobs. *)
Definition empty : store := Store 0 (fun _ => None).

(** The lease of one job is set. *)
Definition set (j : nat) (x : option nat) (st : store) : store :=
  Store (last st) (fun k => if k =? j then x else lease st k).

(** The token is that of the job's lease. *)
Definition is_valid (st : store) (j t : nat) : bool := match lease st j with Some u => u =? t | None => false end.

(** The store after an event: a job without a lease may be granted, with a new token; a valid settlement ends the
    lease. *)
Definition step (st : store) (e : event) : store :=
  match e with
  | Grant j =>
      match lease st j with
      | None => Store (S (last st)) (lease (set j (Some (S (last st))) st))
      | Some _ => st
      end
  | Settle j t => if is_valid st j t then set j None st else st
  | Renew j t => st
  | Reap j => set j None st
  | Restart n => Store (last st + n) (lease st)
  end.

(** The settlements that count: each a job and a token. *)
Fixpoint counted (st : store) (es : list event) : list (nat * nat) :=
  match es with
  | [] => []
  | e :: t =>
      match e with
      | Settle j u => if is_valid st j u then (j, u) :: counted (step st e) t else counted (step st e) t
      | _ => counted (step st e) t
      end
  end.

(** The tokens of the grants, in order. *)
Fixpoint granted (st : store) (es : list event) : list nat :=
  match es with
  | [] => []
  | e :: t =>
      match e with
      | Grant j =>
          match lease st j with
          | None => S (last st) :: granted (step st e) t
          | Some _ => granted (step st e) t
          end
      | _ => granted (step st e) t
      end
  end.

(** Tokens of leases were given, and no two jobs are leased by one. *)
Definition sound (st : store) : Prop :=
  (forall j t, lease st j = Some t -> t <= last st) /\
  (forall j k t, lease st j = Some t -> lease st k = Some t -> j = k).

(** A valid token is that of the lease. *)
Lemma is_valid_spec st j t : is_valid st j t = true <-> lease st j = Some t.
Proof.
  unfold is_valid. destruct (lease st j) as [u|]; [rewrite Nat.eqb_eq|]; split; intros H; try congruence; discriminate.
Qed.

(** Ending a lease keeps the store sound: fewer jobs are leased. *)
Lemma set_none_sound st j : sound st -> sound (set j None st).
Proof.
  intros [A B]. split; cbn.
  - intros k t. destruct (k =? j); [discriminate | apply A].
  - intros k l t. destruct (k =? j), (l =? j); try discriminate. apply B.
Qed.

(** Each event keeps the store sound: a new token is greater than all that were given. *)
Lemma step_sound st e : sound st -> sound (step st e).
Proof.
  intros S. pose proof S as [A B]. destruct e as [j|j t|j t|j|n]; cbn [step]; auto using set_none_sound.
  - destruct (lease st j) eqn:E; auto. split; cbn.
    + intros k t. destruct (k =? j); [intros [= <-]; lia|]. intros H. apply A in H. lia.
    + intros k l t. destruct (Nat.eqb_spec k j), (Nat.eqb_spec l j); intros H K; subst; auto.
      * injection H as <-. apply A in K. lia.
      * injection K as <-. apply A in H. lia.
      * eapply B; eauto.
  - destruct (is_valid st j t); auto using set_none_sound.
  - split; cbn; [intros j t H; apply A in H; lia | apply B].
Qed.

(** A settlement that will count has the token of the present lease, or one that is still to be given. *)
Lemma counted_is_leased_or_new es : forall st j t, sound st -> In (j, t) (counted st es) ->
  lease st j = Some t \/ last st < t.
Proof.
  induction es as [|e es IH]; intros st j t S I; [contradiction|].
  assert (K : In (j, t) (counted (step st e) es) -> lease st j = Some t \/ last st < t).
  { intros J. destruct (IH (step st e) j t (step_sound _ _ S) J) as [L|L].
    - destruct e as [k|k u|k u|k|n]; cbn in L; auto.
      + destruct (lease st k) eqn:E; auto. cbn in L. destruct (j =? k); auto. injection L as <-. right. lia.
      + destruct (is_valid st k u); auto. cbn in L. destruct (j =? k); [discriminate | auto].
      + destruct (j =? k); [discriminate | auto].
    - right. destruct e as [k|k u|k u|k|n]; cbn in L; try lia.
      + destruct (lease st k); cbn in L; lia.
      + destruct (is_valid st k u); cbn in L; lia. }
  cbn [counted] in I. destruct e as [k|k u|k u|k|n]; auto.
  destruct (is_valid st k u) eqn:V; auto. destruct I as [[= -> ->]|I]; auto. left. now apply is_valid_spec.
Qed.

(** A lease that was lost never counts again, however late it is sent: its token is not that of a lease, and is
    not given again. *)
Theorem lost_lease_never_counts st es j t : sound st -> t <= last st -> lease st j <> Some t ->
  ~ In (j, t) (counted st es).
Proof. intros S L N I. destruct (counted_is_leased_or_new es st j t S I); [contradiction | lia]. Qed.

(** At most one settlement of each attempt counts: after it the lease is over, and no other job has its token. *)
Theorem at_most_one_settlement_counts es : NoDup (map snd (counted empty es)).
Proof.
  assert (G : forall es st, sound st -> NoDup (map snd (counted st es))).
  { clear. induction es as [|e es IH]; intros st S; [constructor|]. pose proof (IH _ (step_sound st e S)) as N.
    cbn [counted]. destruct e as [k|k u|k u|k|n]; auto. destruct (is_valid st k u) eqn:V; auto.
    pose proof (step_sound st (Settle k u) S) as S'. cbn [map snd]. constructor; auto.
    intros ((j & t) & E & I)%in_map_iff. cbn in E. subst t.
    apply is_valid_spec in V. pose proof S as [A B].
    cbn [step] in I, S'. rewrite (proj2 (is_valid_spec st k u) V) in I, S'.
    destruct (counted_is_leased_or_new es _ j u S' I) as [L|L]; cbn in L.
    - destruct (Nat.eqb_spec j k) as [|D]; [discriminate|]. apply D. eapply B; eauto.
    - apply A in V. lia. }
  apply G. split; cbn; discriminate.
Qed.

(** A settlement that does not count changes nothing. *)
Theorem late_settlement_changes_nothing st j t : lease st j <> Some t -> step st (Settle j t) = st.
Proof.
  intros N. cbn. destruct (is_valid st j t) eqn:V; auto. apply is_valid_spec in V. contradiction.
Qed.

(** Tokens grow: each grant has a greater one than all before, of whatever job and across restarts. *)
Theorem tokens_grow es : StronglySorted lt (granted empty es).
Proof.
  assert (G : forall es st, StronglySorted lt (granted st es) /\ Forall (fun t => last st < t) (granted st es)).
  { clear. induction es as [|e es IH]; intros st; [split; constructor|]. destruct (IH (step st e)) as [Sorted_rest F].
    rewrite Forall_forall in *. assert (M : last st <= last (step st e)).
    { destruct e as [k|k u|k u|k|n]; cbn; try lia; [destruct (lease st k) | destruct (is_valid st k u)]; cbn; lia. }
    assert (W : forall t, In t (granted (step st e) es) -> last st < t) by (intros t I; apply F in I; lia).
    cbn [granted]. destruct e as [k|k u|k u|k|n]; auto. destruct (lease st k) eqn:E; auto.
    assert (L : last (step st (Grant k)) = S (last st)) by (cbn; now rewrite E). rewrite L in F.
    split; [|intros t [<-|I]; auto; lia]. constructor; auto. rewrite Forall_forall. auto. }
  apply (G es empty).
Qed.
