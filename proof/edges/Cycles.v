(** The two searches for cycles: among the jobs of a submission, and for a job that begins to wait. Both are exact.
    *)

From Coq Require Import List Arith Bool Lia Wellfounded Relation_Operators ListDec Permutation.
Import ListNotations.
Require Import Claims Walks Settled Jobs Safety.

(** There is a way from a job back to itself. *)
Definition on_a_cycle (W : nat -> nat -> Prop) (x : nat) : Prop := clos_trans_1n nat W x x.

(** Each of the list is waited for by the one before it. *)
Fixpoint chain (W : nat -> nat -> Prop) (d : nat) (l : list nat) : Prop :=
  match l with [] => True | e :: t => W d e /\ chain W e t end.

(** A chain is a way to each of its jobs. *)
Lemma chain_leads W l : forall d x, chain W d l -> In x l -> clos_trans_1n nat W d x.
Proof.
  induction l as [|e l IH]; simpl; intros d x C I; [contradiction|]. destruct C as [D C].
  destruct I as [->|I]; [now constructor|]. eapply t1n_trans; eauto.
Qed.

(** A job that is twice on a chain is on a cycle: the part between is a way back. *)
Lemma twice_on_a_chain W l : forall d, chain W d l -> ~ NoDup (d :: l) -> exists x, In x (d :: l) /\ on_a_cycle W x.
Proof.
  induction l as [|e l IH]; intros d C N; [elim N; repeat constructor; auto|].
  destruct (in_dec Nat.eq_dec d (e :: l)) as [I|I]; [exists d; split; [now left | eapply chain_leads; eauto]|].
  destruct C as [D C]. destruct (IH e C) as (x & J & X); [|exists x; split; auto; now right].
  intros H. apply N. now constructor.
Qed.

(** A chain of more jobs than there are has one twice. *)
Lemma long_chain W l d T : chain W d l -> incl (d :: l) T -> length T <= length l -> exists x, In x T /\ on_a_cycle W x.
Proof.
  intros C I L. destruct (NoDup_dec Nat.eq_dec (d :: l)) as [N|N].
  - apply (NoDup_incl_length N) in I. simpl in I. lia.
  - destruct (twice_on_a_chain W l d C N) as (x & J & X). exists x. auto.
Qed.

(** If waiting is well-founded no job waits for itself: the way round could be repeated for ever. *)
Lemma well_founded_has_no_cycle W x : well_founded (fun d j => W j d) -> ~ on_a_cycle W x.
Proof.
  intros A. assert (T : Acc (fun d j => clos_trans_1n nat W j d) x).
  { induction (A x) as [x _ IH]. constructor. intros d D. destruct D as [d D|d e D L]; [now apply IH|].
    apply (IH d D). exact L. }
  induction T as [x _ IH]. intros C. now apply (IH x).
Qed.

(* --- for a job that begins to wait -------------------------------------------------------------------------------- *)

(** If the search refuses, it has found a way, or one as long as it looks: by induction on the length. *)
Lemma reached_or_long_chain w j n : forall d, unreached w j n d = false ->
  leads_to w d j \/ exists l, length l = n /\ chain (waits_for w) d l.
Proof.
  induction n as [|n IH]; intros d C; [right; now exists []|].
  cbn [unreached] in C. apply andb_false_iff in C as [C|C].
  - rewrite negb_false_iff, Nat.eqb_eq in C. subst. left. constructor.
  - assert (E : exists e, In e (open (jobs w d)) /\ unreached w j n (to e) = false).
    { clear IH. induction (open (jobs w d)) as [|e es I]; [discriminate|]. cbn [forallb] in C.
      apply andb_false_iff in C as [C|C]; [exists e; split; auto; now left|].
      destruct (I C) as (f & F & G). exists f. split; auto. now right. }
    destruct E as (e & I & F). assert (W : waits_for w d (to e)) by now exists e.
    destruct (IH _ F) as [L|(l & L & H)]; [left; econstructor; eauto|].
    right. exists (to e :: l). simpl. auto.
Qed.

(** A chain of waits leads through known jobs only. *)
Lemma chain_known r w l : invariant r w -> forall d, d < count w -> chain (waits_for w) d l ->
  incl (d :: l) (seq 0 (count w)).
Proof.
  intros G. induction l as [|e l IH]; intros d L C x [<-|I]; try (apply in_seq; lia); [contradiction|].
  destruct C as [(f & F & <-) C]. apply (IH (to f)); auto. eapply (open_to_known _ _ G), F.
Qed.

(** The search finds a way exactly if there is one: it looks at ways longer than there are jobs, and those have a
    cycle, which there is none. *)
Theorem search_is_exact r w j d : invariant r w -> d < count w ->
  unreached w j (S (count w)) d = true <-> ~ leads_to w d j.
Proof.
  intros G D. split; [apply unreached_spec|]. intros N. destruct (unreached w j (S (count w)) d) eqn:C; auto. exfalso.
  destruct (reached_or_long_chain _ _ _ _ C) as [L|(l & L & H)]; [contradiction|].
  destruct (long_chain (waits_for w) l d (seq 0 (count w)) H) as (x & _ & X).
  - eapply chain_known; eauto.
  - rewrite seq_length. lia.
  - now apply well_founded_has_no_cycle in X; [|apply (no_cycle _ _ G)].
Qed.

(* --- among the jobs of a submission ------------------------------------------------------------------------------- *)

(** Membership as a test. *)
Definition is_in (l : list nat) (k : nat) : bool := existsb (Nat.eqb k) l.

(** One round after the other takes the first job whose dependencies are all done; [deps] are the dependencies of a
    key among the keys. *)
Fixpoint sort (deps : nat -> list nat) (n : nat) (todo done : list nat) : list nat * list nat :=
  match n with
  | 0 => (todo, done)
  | S n' =>
      match find (fun k => forallb (is_in done) (deps k)) todo with
      | None => (todo, done)
      | Some k => sort deps n' (without k todo) (done ++ [k])
      end
  end.

(** Twin of [topological] in queuehint/operations/bounds.py: sort, and refuse if something is left. *)
Definition in_order (deps : nat -> list nat) (keys : list nat) : option (list nat) :=
  match sort deps (length keys) keys [] with ([], done) => Some done | _ => None end.

(** The test looks at each. *)
Lemma is_in_spec l k : is_in l k = true <-> In k l.
Proof.
  unfold is_in. rewrite existsb_exists. split; [intros (x & I & E); apply Nat.eqb_eq in E; now subst|].
  intros I. exists k. now rewrite Nat.eqb_refl.
Qed.

(** Each comes after those it depends on. *)
Fixpoint sorted_after (deps : nat -> list nat) (done l : list nat) : Prop :=
  match l with [] => True | k :: t => incl (deps k) done /\ sorted_after deps (done ++ [k]) t end.

(** Taking one out and putting it first is a permutation. *)
Lemma without_permutation k l : NoDup l -> In k l -> Permutation l (k :: without k l).
Proof.
  intros N. induction N as [|x l X N IH]; [contradiction|]. intros [->|I]; simpl.
  - rewrite Nat.eqb_refl. simpl. assert (E : without k l = l); [|now rewrite E].
    clear IH N. induction l as [|y l IH]; auto. simpl. destruct (Nat.eqb_spec y k) as [->|]; [elim X; now left|].
    simpl. f_equal. apply IH. intros I. apply X. now right.
  - destruct (Nat.eqb_spec x k) as [->|]; [contradiction|]. simpl. rewrite (IH I) at 1. apply perm_swap.
Qed.

(** What is done is sorted, nothing is lost, and each of the rest needs one that is not done: by induction on the
    rounds. *)
Lemma sort_spec deps n : forall todo done todo' done', NoDup todo -> length todo <= n ->
  sort deps n todo done = (todo', done') ->
  (exists l, done' = done ++ l /\ sorted_after deps done l /\ Permutation todo (l ++ todo')) /\
  (forall k, In k todo' -> exists d, In d (deps k) /\ ~ In d done').
Proof.
  induction n as [|n IH]; intros todo done todo' done' N L S; simpl in S.
  - inversion S; subst. destruct todo'; [|simpl in L; lia]. split; [|contradiction].
    exists []. rewrite app_nil_r. simpl. auto.
  - destruct (find _ todo) as [k|] eqn:F.
    + apply find_some in F as [I F]. pose proof (without_permutation k todo N I) as P.
      assert (L' : length (without k todo) <= n) by (apply Permutation_length in P; simpl in P; lia).
      destruct (IH _ _ _ _ (NoDup_filter _ N) L' S) as [(l & E & A & Q) R]. split; auto.
      exists (k :: l). rewrite E, <- app_assoc. split; auto. split.
      * split; auto. rewrite forallb_forall in F. intros d D. now apply is_in_spec, F.
      * rewrite P. simpl. now constructor.
    + inversion S; subst. split.
      * exists []. rewrite app_nil_r. simpl. auto.
      * intros k I. pose proof (find_none _ _ F k I) as B. simpl in B.
        clear -B. induction (deps k) as [|d ds IH]; [discriminate|]. simpl in B. apply andb_false_iff in B as [B|B].
        -- exists d. split; [now left|]. intros J. apply is_in_spec in J. congruence.
        -- destruct (IH B) as (e & J & M). exists e. split; auto. now right.
Qed.

(** If each of a set waits for one in it, chains in it are as long as one likes. *)
Lemma endless_chain W T : (forall k, In k T -> exists d, In d T /\ W k d) ->
  forall n k, In k T -> exists l, length l = n /\ chain W k l /\ incl (k :: l) T.
Proof.
  intros E. induction n as [|n IH]; intros k I; [exists []; repeat split; auto; now intros x [<-|[]]|].
  destruct (E k I) as (d & J & D). destruct (IH d J) as (l & L & C & S).
  exists (d :: l). simpl. repeat split; auto. intros x [<-|X]; auto.
Qed.

(** A sorted list has no cycle: each needs only earlier ones. *)
Lemma sorted_has_no_cycle deps l : forall done, sorted_after deps done l ->
  (forall k, In k done -> ~ on_a_cycle (fun k d => In d (deps k)) k) ->
  (forall k, In k done -> incl (deps k) done) ->
  forall k, In k l -> ~ on_a_cycle (fun k d => In d (deps k)) k.
Proof.
  set (W := fun k d => In d (deps k)).
  assert (Stay : forall done x y, (forall k, In k done -> incl (deps k) done) -> In x done ->
    clos_trans_1n nat W x y -> In y done).
  { intros done x y C I T. induction T as [x y D|x y z D T IH]; [eapply C; eauto | apply IH; eapply C; eauto]. }
  induction l as [|k l IH]; intros done S N C x I; [contradiction|]. destruct S as [D S].
  assert (Back : forall y, clos_trans_1n nat W k y -> In y done).
  { intros y T. destruct T as [y E|y z E T]; [now apply D | eapply Stay; [exact C | apply D, E | exact T]]. }
  assert (Nk : ~ on_a_cycle W k).
  { intros X. pose proof (Back k X) as J. now apply (N k). }
  destruct I as [<-|I]; auto. apply (IH (done ++ [k])); auto.
  - intros y [J|[<-|[]]]%in_app_iff; auto.
  - intros y [J|[<-|[]]]%in_app_iff z Z; apply in_app_iff; left; [eapply C; eauto | now apply D].
Qed.

(** What is accepted is returned in an order in which each comes after those it depends on, and nothing is lost. *)
Theorem accepted_is_sorted deps keys l : NoDup keys -> in_order deps keys = Some l ->
  Permutation keys l /\ sorted_after deps [] l.
Proof.
  intros N A. unfold in_order in A. destruct (sort deps (length keys) keys []) as [todo done] eqn:S.
  destruct todo; [|discriminate]. inversion A; subst. apply sort_spec in S as [(m & E & H & P) _]; auto.
  simpl in E. subst. rewrite app_nil_r in P. auto.
Qed.

(** A submission is accepted exactly if no key waits for itself, through others or not: the rest of a refused one
    would be an endless chain, which has a cycle. *)
Theorem accepts_exactly_what_has_no_cycle deps keys : NoDup keys -> (forall k, In k keys -> incl (deps k) keys) ->
  (exists l, in_order deps keys = Some l) <-> (forall k, In k keys -> ~ on_a_cycle (fun k d => In d (deps k)) k).
Proof.
  intros N C. split.
  - intros [l A] k I. destruct (accepted_is_sorted _ _ _ N A) as [P S].
    apply (sorted_has_no_cycle deps l [] S); try contradiction. now apply (Permutation_in _ P).
  - intros A. unfold in_order. destruct (sort deps (length keys) keys []) as [todo done] eqn:S.
    destruct todo as [|t todo]; [eauto|]. exfalso. set (T := t :: todo) in *.
    apply sort_spec in S as [(l & E & _ & P) R]; auto. simpl in E. subst.
    assert (In_keys : forall k, In k T -> In k keys).
    { intros k I. apply (Permutation_in _ (Permutation_sym P)), in_app_iff. auto. }
    destruct (endless_chain (fun k d => In d (deps k)) T) with (n := length T) (k := t) as (m & L & H & I).
    + intros k I. destruct (R k I) as (d & D & M). exists d. split; auto.
      pose proof (C k (In_keys k I) d D) as J. apply (Permutation_in _ P), in_app_iff in J as [J|J];
        [contradiction | auto].
    + now left.
    + destruct (long_chain _ m t T H I) as (x & J & X); [lia|]. apply (A x); auto.
Qed.
