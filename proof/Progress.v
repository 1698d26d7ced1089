(** Progress: without new jobs all moves come to an end, and nothing is left behind. *)

From Coq Require Import List Arith Lia Bool.
Import ListNotations.
Require Import Claims Walks Settled Normalise Trie Agreement Operations Promises.

(* --- without new jobs every run ends, and no walk is left --------------------------------------------------------- *)

(** A line that waits is advanced, by however little, or a ready job leaves. *)
Inductive move (st : state) : state -> Prop :=
| Advances q b : to_advance (find (at_gates st) q) = true -> 0 < b -> move st (fst (advance st q b))
| Leaves w : In w (walks st) -> ready st (job (of w)) -> move st (vacate st (job (of w))).

(** How many lines wait to be advanced. *)
Definition to_advance_count (g : gates) : nat := length (filter (fun e => to_advance (snd e)) g).

(** Clearing a line makes one less wait to be advanced. *)
Lemma to_advance_count_cleared g q : to_advance (find g q) = true ->
  to_advance_count (clear_to_advance g q) < to_advance_count g.
Proof.
  intros M. assert (D : to_advance_count (drop g q) < to_advance_count g).
  { unfold to_advance_count. induction g as [|[p x] g IH]; simpl in *; [discriminate|].
    destruct (eqb_path q p) eqn:E; simpl.
    - rewrite M. simpl. clear. induction g as [|[p' x'] g IH]; simpl; auto.
      destruct (eqb_path q p'); simpl; destruct (to_advance x'); simpl; lia.
    - specialize (IH M). destruct (to_advance x); simpl; lia. }
  unfold clear_to_advance, put. destruct (_ && _); unfold to_advance_count in *; simpl; lia.
Qed.

(** Steps never add to what remains. *)
Lemma steps_remaining s t : steps s t -> remaining t <= remaining s.
Proof. induction 1 as [|s t u P _ IH]; auto. apply step_decreases_remaining in P. lia. Qed.

(** No walk has passed more gates than it has. *)
Lemma ordered_bound s w : ordered s -> In w s -> pos w <= S (depth (of w)).
Proof. induction s as [|x s IH]; simpl; [tauto|]. intros (B & _ & O) [<-|I]; auto. Qed.

(** Leaving out walks leaves less to do, for each has something in the sum. *)
Lemma remaining_filter f s :
  (forall w, In w s -> pos w <= S (depth (of w))) ->
  remaining (filter f s) <= remaining s /\ ((exists w, In w s /\ f w = false) -> remaining (filter f s) < remaining s).
Proof.
  induction s as [|w s IH]; intros B; cbn [filter remaining].
  - split; auto. now intros (w & [] & _).
  - destruct IH as [L S]; [intros v I; apply B; now right|]. specialize (B w (or_introl eq_refl)).
    destruct (f w) eqn:E; cbn [remaining].
    + split; [lia|]. intros (v & [<-|I] & F); [congruence|]. enough (remaining (filter f s) < remaining s) by lia.
      eauto.
    + split; [lia|]. intros _. lia.
Qed.

(** Each move leaves fewer gates to pass, or as many and one line less that waits to be advanced. *)
Lemma move_decreases st t :
  invariant st -> move st t ->
  invariant t /\ (remaining (walks t) < remaining (walks st) \/
             remaining (walks t) = remaining (walks st) /\
               to_advance_count (at_gates t) < to_advance_count (at_gates st)).
Proof.
  intros G [q b M B|w I R].
  - pose proof (advance_invariant st q b G) as A. destruct (advance st q b) as [st' r]. simpl.
    destruct A as (G' & _ & _ & _ & _ & [(v & f & t' & _ & _ & P & Ps)|[E U]]); split; auto.
    + left. apply step_decreases_remaining in P. apply steps_remaining in Ps. lia.
    + right. rewrite U, E by auto. auto using to_advance_count_cleared.
  - destruct (vacate_invariant st (job (of w)) G) as (G' & _ & _ & E). split; auto. left. rewrite E.
    apply remaining_filter; [intros v; apply ordered_bound, in_order, G|].
    exists w. split; auto. now rewrite Nat.eqb_refl.
Qed.

(** No run of moves goes on for ever, however lines are chosen and cut: the pair of these two numbers decreases. *)
Theorem moves_end st : invariant st -> Acc (fun t s => move s t) st.
Proof.
  remember (remaining (walks st)) as n eqn:En. revert st En.
  induction n as [n IHn] using lt_wf_ind. intros st.
  remember (to_advance_count (at_gates st)) as m eqn:Em. revert st Em.
  induction m as [m IHm] using lt_wf_ind. intros st Em En G. constructor. intros t M.
  destruct (move_decreases st t G M) as (Gt & [L|[E L]]).
  - apply (IHn (remaining (walks t))); auto. lia.
  - apply (IHm (to_advance_count (at_gates t))); auto; lia.
Qed.

(** If nothing is left over, the first job is ready: a wait would point to a smaller one. *)
Lemma first_job_is_ready st w s :
  invariant st -> stable (walks st) -> walks st = w :: s -> ready st (job (of w)).
Proof.
  intros G Q E v I Ev. destruct (Nat.eq_dec (pos v) (S (depth (of v)))) as [|N]; auto. exfalso.
  apply in_split in I as (l1 & l2 & Es). rewrite Es in Q. pose proof (jobs_in_order _ G) as J. rewrite Es in J.
  destruct (walk_waits_for_smaller_job l1 v l2 J Q N) as (u & I & L & _).
  pose proof (jobs_in_order _ G) as K. rewrite E in K. destruct K as [K _].
  assert (Iu : In u (w :: s)) by (rewrite <- E, Es; auto using in_or_app).
  destruct Iu as [<-|Iu]; [lia|]. apply K in Iu as [?|[? _]]; lia.
Qed.

(** Where no move is possible no walk is left: nothing is left over, so the first job would be ready and could
    leave. *)
Theorem without_moves_no_walk_is_left st : invariant st -> (forall t, ~ move st t) -> walks st = [].
Proof.
  intros G N. assert (L : nothing_left_over st).
  { intros q. apply not_true_is_false. intros M. apply (N _ (Advances st q 1 M (le_n 1))). }
  destruct (walks st) as [|w s] eqn:E; auto. exfalso.
  apply (N (vacate st (job (of w)))). constructor.
  - rewrite E. now left.
  - eapply first_job_is_ready; eauto. now apply nothing_left_over_stable.
Qed.

(* --- what is left over can always be done ------------------------------------------------------------------------- *)

(** Advancing with enough budget is not cut: the line is finite. *)
Lemma advance_uncut q : forall n used arrived st, exists enough, forall b, enough <= b ->
  snd (fst (snd (advance_loop n q b used arrived st))) = false.
Proof.
  induction n as [|n IH]; intros used arrived st; cbn [advance_loop]; [exists 0; auto|].
  destruct (line _) as [|c rest]; [exists 0; auto|]. destruct (clashes _ _); [exists 0; auto|].
  destruct (walk_on _ _ _ _) as [g p].
  match goal with |- context [advance_loop n q _ ?u ?a ?s] => destruct (IH u a s) as [e H] end.
  exists (S (used + e)). intros b L. destruct (Nat.leb_spec b used); [lia|]. apply H. lia.
Qed.

(** From every state some advances leave nothing over: one uncut advance of each line that waits, for advancing puts
    no other line among the leftovers. *)
Theorem leftovers_can_be_finished st : invariant st ->
  exists h, forallb is_advance h = true /\ nothing_left_over (fold_left perform h st).
Proof.
  intros G. assert (K : exists l, forall q, to_advance (find (at_gates st) q) = true -> In q l).
  { exists (map fst (at_gates st)). intros q. induction (at_gates st) as [|[p x] g IH]; simpl; [discriminate|].
    destruct (eqb_path q p) eqn:E; [apply eqb_path_spec in E; auto | auto]. }
  destruct K as [l K]. revert st G K. induction l as [|q l IH]; intros st G K.
  - exists []. split; auto. intros q. simpl. apply not_true_is_false. intros M. apply (K q M).
  - destruct (advance_uncut q (length (line (find (at_gates st) q))) 0 [] st) as [b U].
    specialize (U b (le_n b)). fold (advance st q b) in U. pose proof (advance_invariant st q b G) as A.
    destruct (IH (fst (advance st q b))) as (h & H & N).
    + destruct (advance st q b). apply A.
    + intros p M. destruct (advance st q b) as [st' r]. destruct A as (_ & _ & _ & A & B & _). simpl in *.
      destruct (K p (A p M)) as [<-|]; auto. rewrite (B U) in M. discriminate.
    + exists (Advance q b :: h). auto.
Qed.

(* --- no residue --------------------------------------------------------------------------------------------------- *)

(** Paths are listed once, the root is there, and no other gate is empty. *)
Definition tidy (g : gates) : Prop :=
  NoDup (map fst g) /\ In [] (map fst g) /\ forall q x, In (q, x) g -> q <> [] -> is_empty x = false.

(** Dropping a gate leaves the others. *)
Lemma in_drop g q e : In e (drop g q) <-> In e g /\ fst e <> q.
Proof.
  unfold drop. rewrite filter_In, negb_true_iff. split; intros [I E]; split; auto.
  - intros <-. rewrite eqb_path_refl in E. discriminate.
  - apply not_true_is_false. rewrite eqb_path_spec. auto.
Qed.

(** Writing keeps the gates tidy: an empty gate is deleted as it is written. *)
Lemma put_tidy g q x : tidy g -> tidy (put g q x).
Proof.
  intros (N & R & E). assert (D : NoDup (map fst (drop g q))).
  { clear - N. induction g as [|[p y] g IH]; simpl in *; auto. apply NoDup_cons_iff in N as [N Ng].
    destruct (eqb_path q p); simpl; auto. constructor; auto. intros I. apply N.
    apply in_map_iff in I as (e & F & I). apply in_drop in I as [I _]. rewrite <- F. now apply in_map. }
  assert (R' : q <> [] -> In [] (map fst (drop g q))).
  { intros Nq. apply in_map_iff in R as (e & F & I). apply in_map_iff. exists e. split; auto.
    apply in_drop. split; auto. congruence. }
  assert (E' : forall p y, In (p, y) (drop g q) -> p <> [] -> is_empty y = false).
  { intros p y I. apply in_drop in I as [I _]. eauto. }
  unfold put. destruct (is_empty x) eqn:Ex; simpl.
  - destruct (eqb_path q []) eqn:Eq; simpl.
    + apply eqb_path_spec in Eq as ->. split; [|split]; simpl; auto.
      * constructor; auto. intros I. apply in_map_iff in I as (e & F & I). apply in_drop in I as [_ I]. auto.
      * intros p y [[= <- <-]|I] Np; [contradiction | eauto].
    + split; [|split]; auto. apply R'. intros ->. rewrite eqb_path_refl in Eq. discriminate.
  - split; [|split]; simpl.
    + constructor; auto. intros I. apply in_map_iff in I as (e & F & I). apply in_drop in I as [_ I]. auto.
    + destruct (list_eq_dec Nat.eq_dec q []); auto.
    + intros p y [[= <- <-]|I] Np; eauto.
Qed.

(** Walking on only writes gates. *)
Lemma walk_on_tidy n : forall g c i, tidy g -> tidy (fst (walk_on n g c i)).
Proof. induction n as [|n IH]; simpl; intros; auto. destruct stops; simpl; auto using put_tidy. Qed.

(** Leaving only writes gates. *)
Lemma leave_up_tidy c p i : forall g, tidy g -> tidy (leave_up i g c p).
Proof. induction i as [|i IH]; simpl; intros; auto using put_tidy. Qed.

(** Advancing only writes gates. *)
Lemma advance_tidy q b : forall n used arrived st,
  tidy (at_gates st) -> tidy (at_gates (fst (advance_loop n q b used arrived st))).
Proof.
  induction n as [|n IH]; intros used arrived st T; cbn [advance_loop]; [apply put_tidy, T|].
  destruct (line _); [apply put_tidy, T|]. destruct clashes; [apply put_tidy, T|]. destruct (b <=? used); auto.
  match goal with |- context [walk_on ?m ?g ?c ?i] => pose proof (walk_on_tidy m g c i) as W;
    destruct (walk_on m g c i) end.
  apply IH. simpl in *. auto using put_tidy.
Qed.

(** Each operation only writes gates. *)
Lemma perform_tidy st o : tidy (at_gates st) -> tidy (at_gates (perform st o)).
Proof.
  intros T. destruct o as [cs|q b|j]; cbn [perform].
  - unfold enqueue. set (st0 := State _ _ _ _).
    assert (T0 : tidy (at_gates st0)) by exact T. clearbody st0. generalize (S (last_job st)) as j. intros j.
    generalize (normalise cs). clear cs. intros cs.
    revert st0 T0. induction cs as [|[p sh] cs IH]; simpl; auto. intros st0 T0. apply IH. unfold place.
    match goal with |- context [walk_on ?m ?g ?c ?i] => pose proof (walk_on_tidy m g c i) as W;
      destruct (walk_on m g c i) end.
    simpl in *. auto.
  - now apply advance_tidy.
  - unfold vacate. generalize (filter (fun w => job (of w) =? j) (walks st)) as ws. intros ws. revert st T.
    induction ws as [|w ws IH]; simpl; auto. intros st T. apply IH. simpl. auto using leave_up_tidy.
Qed.

(** The gates are tidy after every history. *)
Lemma run_tidy h : tidy (at_gates (run h)).
Proof.
  unfold run. assert (T : tidy (at_gates start)).
  { split; [|split]; simpl; auto.
    - constructor; auto. constructor.
    - intros q x [[= <- <-]|[]] N. contradiction. }
  revert T. generalize start. induction h as [|o h IH]; simpl; auto using perform_tidy.
Qed.

(** A gate in the list is the one that is read: paths are listed once. *)
Lemma find_in g q x : NoDup (map fst g) -> In (q, x) g -> find g q = x.
Proof.
  induction g as [|[p y] g IH]; simpl; [tauto|]. intros N%NoDup_cons_iff [[= -> ->]|I].
  - now rewrite eqb_path_refl.
  - destruct N as [Np N]. destruct (eqb_path q p) eqn:E; auto. apply eqb_path_spec in E as ->.
    exfalso. apply Np. now apply (in_map fst) in I.
Qed.

(** When no walk is left, only the root is left, with nothing held and no line: a tidy gate is not empty, and counts
    and lines are those of no walks. (The root may still wait to be advanced.) *)
Theorem no_residue h : walks (run h) = [] -> exists b, at_gates (run h) = [([], Gate zero [] b)].
Proof.
  intros W. destruct (run_tidy h) as (N & R & E). pose proof (agreed _ (run_invariant h)) as A. rewrite W in A.
  assert (K : forall q x, In (q, x) (at_gates (run h)) -> q = [] /\ is_empty x = true).
  { intros q x I. assert (Ex : is_empty x = true).
    { apply (find_in _ _ _ N) in I as F. destruct (A q) as [H L]. rewrite F in *. destruct x as [[a b c d] l m].
      unfold standing, held_by in *. simpl in *.
      pose proof (H IS); pose proof (H IX); pose proof (H Sh); pose proof (H Ex). simpl in *. now subst. }
    split; auto. destruct q as [|s q]; auto. apply E in I; [congruence | discriminate]. }
  destruct (at_gates (run h)) as [|[q x] g]; [contradiction|].
  destruct (K q x (or_introl eq_refl)) as [-> X].
  destruct g as [|[p y] g].
  - destruct x as [[[] [] [] []] [] b]; try discriminate. exists b. reflexivity.
  - destruct (K p y (or_intror (or_introl eq_refl))) as [-> _]. simpl in N.
    apply NoDup_cons_iff in N as [N _]. exfalso. apply N. now left.
Qed.
