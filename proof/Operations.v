(** Each operation keeps the invariant, whatever the budget: placing, advancing a line, leaving. *)

From Coq Require Import List Arith Lia Bool.
Import ListNotations.
Require Import Claims Walks Settled Normalise Trie Agreement.

(* --- what holds between operations -------------------------------------------------------------------------------- *)

Definition id_of (w : walk) : nat := num (of w).

(** The first walk is of an earlier job, or of the same one without a conflict. *)
Definition job_before (u w : walk) : Prop :=
  job (of u) < job (of w) \/ job (of u) = job (of w) /\ conflict (of u) (of w) = false.

(** Walks are in order of their jobs. *)
Fixpoint by_job (s : list walk) : Prop :=
  match s with [] => True | u :: t => (forall w, In w t -> job_before u w) /\ by_job t end.

(** Jobs are in order in a list when they are in both parts and across them. *)
Lemma by_job_app s t :
  by_job (s ++ t) <-> by_job s /\ by_job t /\ (forall u w, In u s -> In w t -> job_before u w).
Proof.
  induction s as [|x s IH]; simpl.
  - split; [intros H; repeat split; auto; contradiction | tauto].
  - rewrite IH. split.
    + intros (A & B & C & D). repeat apply conj; auto using in_or_app.
      intros u w [<-|I] J; auto using in_or_app.
    + intros ((A & B) & C & D). repeat apply conj; auto. intros w [I|I]%in_app_or; auto.
Qed.

(** What holds between operations. *)
Record invariant (st : state) : Prop := {
  agreed : agree (at_gates st) (walks st) (walks st);
  in_order : ordered (walks st);
  none_forgotten : forall q, sound (at_gates st) q;
  distinct : NoDup (map id_of (walks st));
  numbered : forall w, In w (walks st) -> id_of w <= last_num st;
  jobs_in_order : by_job (walks st);
  jobs_numbered : forall w, In w (walks st) -> job (of w) <= last_job st }.

(** A new number at the end leaves all different. *)
Lemma NoDup_app_snoc (l : list nat) x : NoDup l -> ~ In x l -> NoDup (l ++ [x]).
Proof.
  intros N I. apply NoDup_rev in N. rewrite <- (rev_involutive (l ++ [x])). apply NoDup_rev.
  rewrite rev_app_distr. simpl. constructor; auto. now rewrite <- in_rev.
Qed.

(** The empty trie has no walk. *)
Lemma start_invariant : invariant start.
Proof.
  split; simpl; auto using NoDup_nil; try contradiction.
  - intros q. simpl. destruct (eqb_path q []); split; auto; now destruct m.
  - intros q c rest. simpl. destruct (eqb_path q []); discriminate.
Qed.

(** Numbers differ, so the number of a walk names it. *)
Lemma number_is_unique l1 (w : walk) l2 :
  NoDup (map id_of (l1 ++ w :: l2)) -> forall v, In v (l1 ++ l2) -> id_of v <> id_of w.
Proof.
  rewrite map_app. simpl. intros N%NoDup_remove_2 v I E. apply N.
  rewrite <- E, <- map_app. now apply in_map.
Qed.

(** Placing a claim keeps the invariant: its walk is new, has the greatest number, and [walk_on] does the rest. *)
Lemma place_invariant st p sh :
  invariant st ->
  (forall u, In u (walks st) -> job (of u) < last_job st \/
     job (of u) = last_job st /\ conflict (of u) (Claim 0 0 p sh) = false) ->
  let st' := place st (last_job st) p sh in
  invariant st' /\ last_job st' = last_job st /\
  map of (walks st') = map of (walks st) ++ [Claim (S (last_num st)) (last_job st) p sh] /\
  steps (walks st ++ [Walk (Claim (S (last_num st)) (last_job st) p sh) 0]) (walks st').
Proof.
  intros [A O So D N J JN] C. unfold place. set (c := Claim (S (last_num st)) (last_job st) p sh).
  assert (A0 : agree (at_gates st) (walks st ++ Walk c 0 :: []) (walks st ++ [])).
  { intros q. destruct (A q) as [H L]. rewrite app_nil_r. split; auto. intros m.
    rewrite held_by_app, held_by_cons, H. unfold held_by at 3, holds at 2. simpl. lia. }
  pose proof (walk_on_invariant (walks st) [] c (S (depth c)) (at_gates st) 0 ltac:(lia) ltac:(lia)
    (ordered_place _ _ O) A0 ltac:(contradiction)) as W.
  destruct (walk_on (S (depth c)) (at_gates st) c 0) as [g i]. destruct W as (B & Sp & Lp & Sd & _ & _).
  cbn [walks at_gates last_num last_job]. repeat apply conj; auto.
  - split; simpl; auto.
    + eapply steps_ordered; eauto. now apply ordered_place.
    + rewrite map_app. simpl. apply NoDup_app_snoc; auto. intros (w & E & I)%in_map_iff.
      apply N in I. unfold id_of in *. simpl in *. lia.
    + intros w [I|[<-|[]]]%in_app_iff; [|unfold id_of; simpl; lia]. apply N in I. lia.
    + apply by_job_app. simpl. repeat apply conj; auto; try contradiction.
      intros u w I [<-|[]]. apply (C u I).
    + intros w [I|[<-|[]]]%in_app_iff; simpl; auto.
  - rewrite map_app. reflexivity.
Qed.

(** Placing a job keeps the invariant: its normalised claims do not conflict and are placed one after the other. *)
Lemma enqueue_invariant st cs : invariant st -> invariant (enqueue st cs).
Proof.
  intros G. unfold enqueue. set (j := S (last_job st)).
  set (st0 := State (at_gates st) (walks st) (last_num st) j).
  assert (G0 : invariant st0).
  { destruct G as [? ? ? ? ? ? JN]. split; simpl; auto. intros w I. apply JN in I. unfold j. lia. }
  pose proof (normalise_compatible cs) as C. revert C. generalize (normalise cs). clear cs. intros cs C.
  assert (F : forall u, In u (walks st0) -> job (of u) < j \/
    job (of u) = j /\ forall e, In e cs -> conflict (of u) (Claim 0 0 (fst e) (snd e)) = false).
  { intros u I. left. apply (jobs_numbered _ G) in I. unfold j. lia. }
  assert (E : last_job st0 = j) by reflexivity.
  clearbody st0 j. clear G st. revert st0 G0 E F. induction cs as [|[p sh] cs IH]; simpl; auto.
  intros st G E F. apply andb_true_iff in C as [C Cs].
  destruct (place_invariant st p sh G) as (G' & E' & M & _).
  { intros u I. rewrite E. destruct (F u I) as [L|[Ej K]]; auto. right. split; auto. apply (K (p, sh)). auto. }
  rewrite E in *. apply IH; auto. intros u I.
  assert (In (of u) (map of (walks st) ++ [Claim (S (last_num st)) j p sh])) as J by (rewrite <- M; now apply in_map).
  apply in_app_iff in J as [(v & Ev & Iv)%in_map_iff|[Ec|[]]].
  - rewrite <- Ev. destruct (F v Iv) as [L|[Ej K]]; auto.
  - rewrite <- Ec. right. split; auto. intros e Ie. rewrite forallb_forall in C.
    apply C, negb_true_iff in Ie. exact Ie.
Qed.

(** Setting a position changes the walk of that number only. *)
Lemma set_pos_one l1 w l2 p :
  NoDup (map id_of (l1 ++ w :: l2)) -> set_pos (num (of w)) p (l1 ++ w :: l2) = l1 ++ Walk (of w) p :: l2.
Proof.
  intros N. unfold set_pos. rewrite map_app. simpl. rewrite Nat.eqb_refl.
  assert (forall l, (forall v, In v l -> id_of v <> id_of w) ->
    map (fun v => if num (of v) =? num (of w) then Walk (of v) p else v) l = l) as E.
  { induction l as [|v l IH]; simpl; intros D; auto. rewrite IH by auto.
    destruct (Nat.eqb_spec (num (of v)) (num (of w))) as [F|]; auto. exfalso. apply (D v (or_introl eq_refl) F). }
  pose proof (number_is_unique _ _ _ N) as O. rewrite !E; auto using in_or_app.
Qed.

(** If gates agree with the walks after some steps of the same claims, the invariant holds: the claims and their
    order have not changed. *)
Lemma same_claims_invariant st g s :
  invariant st -> agree g s s -> (forall q, sound g q) -> steps (walks st) s -> map of s = map of (walks st) ->
  invariant (State g s (last_num st) (last_job st)).
Proof.
  intros [A O So D N J JN] B Sd Sp E. assert (Ei : map id_of s = map id_of (walks st)).
  { unfold id_of. rewrite <- !(map_map of num). now f_equal. }
  assert (I : forall w, In w s -> exists v, In v (walks st) /\ of v = of w).
  { intros w K. apply (in_map of) in K. rewrite E in K. apply in_map_iff in K as (v & F & K). eauto. }
  split; simpl; auto.
  - eapply steps_ordered; eauto.
  - now rewrite Ei.
  - intros w (v & K & F)%I. apply N in K. unfold id_of in *. now rewrite <- F.
  - clear - J E. revert s E. induction (walks st) as [|v t IH]; intros [|w s]; simpl; try discriminate; auto.
    intros [= E Es]. destruct J as [J Jt]. split; auto. intros x K. apply (in_map of) in K. rewrite Es in K.
    apply in_map_iff in K as (y & F & K). unfold job_before. rewrite E, <- F. now apply J.
  - intros w (v & K & F)%I. rewrite <- F. auto.
Qed.

(** The first element that passes a test splits the list. *)
Lemma filter_head {A} (f : A -> bool) s x r :
  filter f s = x :: r -> exists l1 l2, s = l1 ++ x :: l2 /\ filter f l1 = [] /\ filter f l2 = r /\ f x = true.
Proof.
  induction s as [|y s IH]; simpl; [discriminate|]. destruct (f y) eqn:F.
  - intros [= -> <-]. exists [], s. auto.
  - intros (l1 & l2 & -> & E & E' & Fx)%IH. exists (y :: l1), l2. simpl. rewrite F. auto.
Qed.

(** Steps after steps are steps. *)
Lemma steps_trans s t u : steps s t -> steps t u -> steps s u.
Proof. induction 1; auto. intros. econstructor; eauto. Qed.

(** A line may stop waiting to be advanced when its head does not fit: then it is not forgotten. *)
Lemma clear_to_advance_invariant st q :
  invariant st ->
  (forall c rest, line (find (at_gates st) q) = c :: rest ->
    clashes (held (find (at_gates st) q)) (wants c (length q)) = true) ->
  let st' := State (clear_to_advance (at_gates st) q) (walks st) (last_num st) (last_job st) in
  invariant st' /\ to_advance (find (at_gates st') q) = false /\
  (forall r, to_advance (find (at_gates st') r) = true -> to_advance (find (at_gates st) r) = true).
Proof.
  intros G H. simpl. unfold clear_to_advance. repeat apply conj.
  - apply same_claims_invariant; auto using Stay.
    + intros r. rewrite held_put, line_put. destruct (agreed _ G r) as [A L]. simpl.
      destruct (eqb_path r q) eqn:E; auto. apply eqb_path_spec in E as ->. auto.
    + intros r c rest. rewrite held_put, line_put, to_advance_put. simpl.
      destruct (eqb_path r q) eqn:E; [|apply (none_forgotten _ G)]. apply eqb_path_spec in E as ->. eauto.
  - rewrite to_advance_put, eqb_path_refl. reflexivity.
  - intros r. rewrite to_advance_put. destruct (eqb_path r q); auto. discriminate.
Qed.

(** The head of the line has passed its gate at least. *)
Definition head_moved (q : Path) (st st' : state) : Prop :=
  exists w f t, filter (stands q) (walks st) = w :: f /\
  (exists l1 l2, walks st = l1 ++ w :: l2 /\ t = l1 ++ pass_gate w :: l2) /\ step (walks st) t /\ steps t (walks st').

(** Advancing keeps the invariant, moves walks by steps only, and puts no other line among the leftovers; by
    induction on the line: its head is the first walk that stands there and fits what is held, so none before blocks
    it. *)
Lemma advance_loop_invariant q b : forall n used arrived st,
  invariant st -> n = length (line (find (at_gates st) q)) ->
  let (st', r) := advance_loop n q b used arrived st in
  invariant st' /\ steps (walks st) (walks st') /\ map of (walks st') = map of (walks st) /\
  (forall r, to_advance (find (at_gates st') r) = true -> to_advance (find (at_gates st) r) = true) /\
  (snd (fst r) = false -> to_advance (find (at_gates st') q) = false) /\
  (head_moved q st st' \/ walks st' = walks st /\ (used < b -> at_gates st' = clear_to_advance (at_gates st) q)).
Proof.
  induction n as [|n IH]; intros used arrived st G En; cbn [advance_loop].
  - destruct (clear_to_advance_invariant st q G) as (G' & M & M').
    + intros c rest E. rewrite E in En. discriminate.
    + repeat apply conj; auto using Stay.
  - set (x := find (at_gates st) q) in *. destruct (line x) as [|c rest] eqn:Lx; [discriminate|].
    destruct (clashes (held x) (wants c (length q))) eqn:Cx.
    + destruct (clear_to_advance_invariant st q G) as (G' & M & M').
      * intros d r E. fold x in E. rewrite Lx in E. injection E as <- <-. exact Cx.
      * repeat apply conj; auto using Stay.
    + destruct (Nat.leb_spec b used) as [Lb|Lb].
      { repeat apply conj; auto using Stay; [discriminate|]. right. split; auto. lia. }
      (* the head of the line is the first walk that stands here *)
      destruct (agreed _ G q) as [_ Ls]. fold x in Ls. rewrite Lx in Ls. unfold standing in Ls.
      destruct (filter (stands q) (walks st)) as [|w f] eqn:Ef; [discriminate|].
      injection Ls as Ec Er. destruct (filter_head _ _ _ _ Ef) as (l1 & l2 & Es & F1 & F2 & Sw).
      apply stands_spec in Sw as [Lp Eq]. assert (El : length q = pos w) by (rewrite Eq; now apply gate_of_length).
      subst c. set (m := wants (of w) (length q)) in *.
      set (g1 := put (at_gates st) q (Gate (add (held x) m) rest (to_advance x))).
      assert (Mx : to_advance x = true).
      { destruct (none_forgotten _ G q _ _ Lx) as [K|K]; auto. fold x m in K. congruence. }
      assert (P : step (walks st) (l1 ++ pass_gate w :: l2)).
      { rewrite Es. constructor; auto. intros (u & I & M & [E|[Lt F]]).
        - apply (standing_none l1 (of w) (pos w) Lp) with (u := u); auto.
          unfold standing. rewrite <- Eq, F1. reflexivity.
        - enough (clashes (held x) m = true) by congruence. unfold x, m. rewrite El, Eq.
          apply (clashes_held _ _ _ _ _ (agreed _ G) Lp). exists u. repeat split; auto; try apply M.
          rewrite Es. auto using in_or_app. }
      assert (A1 : agree g1 (l1 ++ Walk (of w) (S (length q)) :: l2) (l1 ++ l2)).
      { intros r. unfold g1. rewrite held_put, line_put. destruct (agreed _ G r) as [H L]. rewrite Es in *. simpl.
        split.
        - intros k. specialize (H k). rewrite held_by_app, held_by_cons in *. rewrite El.
          change (Walk (of w) (S (pos w))) with (pass_gate w). rewrite holds_pass, stands_eqb by auto. rewrite <- Eq.
          destruct (eqb_path r q) eqn:E; [|simpl; lia]. apply eqb_path_spec in E as ->.
          rewrite count_add. fold x in H. unfold m. simpl. lia.
        - rewrite standing_app, standing_cons, stands_eqb, <- Eq in L by auto. rewrite standing_app.
          destruct (eqb_path r q) eqn:E; auto. apply eqb_path_spec in E as ->.
          unfold standing. now rewrite F1, F2. }
      assert (O1 : ordered (l1 ++ Walk (of w) (S (length q)) :: l2)).
      { rewrite El. apply (ordered_step _ _ P), in_order, G. }
      assert (H1 : forall v, In v l2 -> meet (of w) (of v) (S (length q)) -> pos v < S (length q)).
      { intros v I M. pose proof (in_order _ G) as O. rewrite Es in O.
        apply (meet_down _ _ (pos w)) in M; [|lia]. pose proof (later_has_not_passed _ _ _ _ O I M). lia. }
      pose proof (walk_on_invariant l1 l2 (of w) (depth (of w) - length q) g1 (S (length q)) ltac:(lia) ltac:(lia) O1
        A1 H1) as W.
      destruct (walk_on (depth (of w) - length q) g1 (of w) (S (length q))) as [g2 p].
      destruct W as (B & Sp & Lp2 & Sd & Mk & Mk').
      assert (Ep : set_pos (num (of w)) p (walks st) = l1 ++ Walk (of w) p :: l2).
      { rewrite Es. apply set_pos_one. rewrite <- Es. apply distinct, G. }
      rewrite Ep.
      assert (Sp' : steps (walks st) (l1 ++ Walk (of w) p :: l2)).
      { econstructor; eauto. rewrite El in Sp. exact Sp. }
      assert (Em : map of (l1 ++ Walk (of w) p :: l2) = map of (walks st)).
      { rewrite Es, !map_app. reflexivity. }
      assert (Sg : forall r, sound g2 r).
      { intros r. apply Sd. intros d t. unfold g1. rewrite held_put, line_put, to_advance_put. simpl.
        destruct (eqb_path r q); [|apply (none_forgotten _ G)]. intros _. right. rewrite Mx.
        unfold m. destruct (held x) as [[] [] [] []], (wants (of w) (length q)); reflexivity. }
      set (st' := State g2 (l1 ++ Walk (of w) p :: l2) (last_num st) (last_job st)).
      assert (G' : invariant st') by (apply same_claims_invariant; auto).
      assert (En' : n = length (line (find (at_gates st') q))).
      { destruct (agreed _ G' q) as [_ L]. rewrite L. simpl. rewrite standing_app, standing_cons.
        unfold standing. rewrite F1, F2. unfold stands. cbn [pos of].
        replace (length q =? p) with false by (symmetry; apply Nat.eqb_neq; lia).
        simpl. rewrite <- Er. simpl in En. lia. }
      specialize (IH (used + S (min p (depth (of w)) - length q))
        (if p =? S (depth (of w)) then arrived ++ [num (of w)] else arrived) st' G' En').
      destruct (advance_loop n q b _ _ st') as [st2 r]. destruct IH as (G2 & S2 & M2 & K2 & R2 & _).
      repeat apply conj; auto.
      * eapply steps_trans; eauto.
      * rewrite M2. exact Em.
      * intros k W. apply K2 in W. apply Mk in W. unfold g1 in W. rewrite to_advance_put in W.
        destruct (eqb_path k q) eqn:E; auto. apply eqb_path_spec in E as ->. exact Mx.
      * left. exists w, f, (l1 ++ pass_gate w :: l2). repeat apply conj; eauto.
        rewrite El in Sp. eapply steps_trans; eauto.
Qed.

(** The same for the whole line, whatever the budget. *)
Lemma advance_invariant st q b :
  invariant st ->
  let (st', r) := advance st q b in
  invariant st' /\ steps (walks st) (walks st') /\ map of (walks st') = map of (walks st) /\
  (forall r, to_advance (find (at_gates st') r) = true -> to_advance (find (at_gates st) r) = true) /\
  (snd (fst r) = false -> to_advance (find (at_gates st') q) = false) /\
  (head_moved q st st' \/ walks st' = walks st /\ (0 < b -> at_gates st' = clear_to_advance (at_gates st) q)).
Proof. intros G. apply advance_loop_invariant; auto. Qed.

(** Looking whether the head fits changes no count. *)
Lemma held_recheck i x : held (recheck i x) = held x.
Proof. unfold recheck. destruct (line x); auto. destruct clashes; auto. Qed.

(** Looking whether the head fits changes no line. *)
Lemma line_recheck i x : line (recheck i x) = line x.
Proof. unfold recheck. destruct (line x) eqn:E; auto. destruct clashes; auto. Qed.

(** Leaving changes each gate of the walk once, and no other: by induction on the gates above. *)
Lemma leave_up_find c p q : forall i g,
  i <= depth c ->
  if (length q <=? i) && prefix q (path c)
  then let y := recheck (length q) (left_at c p (length q) (find g q)) in
    find (leave_up i g c p) q = if is_empty y && negb (eqb_path q []) then nothing else y
  else find (leave_up i g c p) q = find g q.
Proof.
  induction i as [|i IH]; intros g L; cbn [leave_up].
  - rewrite find_put. destruct q as [|a q]; simpl; [reflexivity|].
    unfold gate_of. simpl. reflexivity.
  - set (g1 := put g _ _). specialize (IH g1 ltac:(lia)).
    destruct (eqb_path q (gate_of c (S i))) eqn:E.
    + apply eqb_path_spec in E as ->. rewrite gate_of_length in * by auto.
      rewrite prefix_gate by auto. rewrite Nat.leb_refl. simpl andb.
      replace (S i <=? i) with false in IH by (symmetry; apply Nat.leb_gt; lia). simpl andb in IH.
      cbv iota in *. rewrite IH. unfold g1. rewrite find_put, eqb_path_refl. reflexivity.
    + assert (F : find g1 q = find g q) by (unfold g1; rewrite find_put, E; reflexivity). rewrite F in IH.
      destruct (prefix q (path c)) eqn:P; [|now rewrite andb_false_r in *].
      rewrite andb_true_r in *. destruct (Nat.leb_spec (length q) i) as [Li|Li].
      * replace (length q <=? S i) with true by (symmetry; apply Nat.leb_le; lia). exact IH.
      * replace (length q <=? S i) with false; auto. symmetry. apply Nat.leb_gt.
        destruct (Nat.eq_dec (length q) (S i)) as [Eq|]; [|lia]. exfalso.
        apply prefix_gate_of in P as [_ P]. rewrite Eq in P. rewrite P, eqb_path_refl in E. discriminate.
Qed.

(** Taking out a number that is not in the line changes nothing. *)
Lemma without_others n s q : (forall v, In v s -> id_of v <> n) -> without n (standing s q) = standing s q.
Proof.
  intros D. unfold without, standing. induction s as [|v s IH]; simpl; auto.
  destruct (stands q v); simpl; rewrite IH by (intros; apply D; simpl; auto); auto.
  destruct (Nat.eqb_spec (num (of v)) n) as [E|]; auto. exfalso. apply (D v (or_introl eq_refl) E).
Qed.

(** Leaving keeps the invariant: the counts and lines lose this walk only, and where a head fits now the line is put
    among the leftovers. *)
Lemma leave_invariant st w :
  invariant st -> In w (walks st) ->
  exists l1 l2, walks st = l1 ++ w :: l2 /\ walks (leave st w) = l1 ++ l2 /\ invariant (leave st w) /\
  last_job (leave st w) = last_job st.
Proof.
  intros G I. apply in_split in I as (l1 & l2 & Es). exists l1, l2. split; auto.
  pose proof G as [A O So D N J JN]. rewrite Es in *.
  pose proof (number_is_unique _ _ _ D) as Once.
  assert (Ew : walks (leave st w) = l1 ++ l2).
  { simpl. rewrite Es, filter_app. simpl. rewrite Nat.eqb_refl. simpl.
    assert (forall l, (forall v, In v l -> id_of v <> id_of w) ->
      filter (fun v => negb (num (of v) =? num (of w))) l = l) as E.
    { induction l as [|v l IH]; simpl; intros K; auto. rewrite IH by auto.
      destruct (Nat.eqb_spec (num (of v)) (num (of w))) as [F|]; auto. exfalso. apply (K v (or_introl eq_refl) F). }
    rewrite !E; auto using in_or_app. }
  split; auto. split; auto. set (c := of w). set (p := pos w). set (i := min p (depth c)).
  assert (Li : i <= depth c) by (unfold i; lia).
  assert (Bound : p <= S (depth c)).
  { apply ordered_app in O as (_ & O & _). simpl in O. apply O. }
  split; rewrite ?Ew; auto.
  - (* the counts and lines are those of the walks that are left *)
    intros q. unfold leave. cbn [at_gates]. fold c p i. pose proof (leave_up_find c p q i (at_gates st) Li) as F.
    destruct (A q) as [H L]. rewrite standing_app, standing_cons in L. unfold stands in L. fold c p in L.
    assert (Hw : forall m, held_by (l1 ++ w :: l2) q m = (if holds q m w then 1 else 0) + held_by (l1 ++ l2) q m).
    { intros m. rewrite !held_by_app, held_by_cons. lia. }
    set (f := find (leave_up i (at_gates st) c p) q) in *.
    destruct ((length q <=? i) && prefix q (path c)) eqn:Hit.
    + apply andb_true_iff in Hit as [Lq Pq]. apply Nat.leb_le in Lq. rewrite Pq in L.
      set (y := recheck (length q) (left_at c p (length q) (find (at_gates st) q))) in *. simpl in F.
      assert (Hf : held f = held y /\ line f = line y).
      { rewrite F. destruct y as [[[] [] [] []] [] ?]; simpl; auto. destruct (eqb_path q []); auto. }
      destruct Hf as [-> ->]. unfold y. rewrite held_recheck, line_recheck. unfold left_at.
      destruct (Nat.ltb_spec (length q) p) as [Lt|Ge]; simpl.
      * split.
        -- intros m. rewrite count_sub, H, Hw. unfold holds. fold c p. rewrite Pq.
           replace (length q <? p) with true by (symmetry; now apply Nat.ltb_lt). simpl. destruct eqb_mode; lia.
        -- rewrite L. replace (length q =? p) with false by (symmetry; apply Nat.eqb_neq; lia).
           simpl. now rewrite standing_app.
      * split.
        -- intros m. rewrite H, Hw. unfold holds. fold c p.
           replace (length q <? p) with false by (symmetry; now apply Nat.ltb_ge). reflexivity.
        -- rewrite L. replace (length q =? p) with true by (symmetry; apply Nat.eqb_eq; unfold i in *; lia). simpl.
           unfold without. rewrite filter_app. simpl. rewrite Nat.eqb_refl. simpl.
           change (without (num c) (standing l1 q) ++ without (num c) (standing l2 q) = standing (l1 ++ l2) q).
           rewrite !without_others, standing_app by (intros; apply Once; auto using in_or_app). reflexivity.
    + rewrite F. assert (Nh : (length q <=? p) && prefix q (path c) = false).
      { destruct (prefix q (path c)) eqn:Pq; [|apply andb_false_r]. rewrite andb_true_r in *.
        apply Nat.leb_gt in Hit. apply Nat.leb_gt. apply prefix_length in Pq. fold (depth c) in Pq. unfold i in *.
          lia. }
      split.
      * intros m. rewrite H, Hw. unfold holds. fold c p. destruct (prefix q (path c)); simpl in *.
        -- rewrite andb_true_r in *. apply Nat.leb_gt in Nh.
           replace (length q <? p) with false by (symmetry; apply Nat.ltb_ge; lia). reflexivity.
        -- now rewrite andb_false_r.
      * rewrite L, standing_app. destruct (prefix q (path c)); simpl in *.
        -- rewrite andb_true_r in *. apply Nat.leb_gt in Nh.
           replace (length q =? p) with false by (symmetry; apply Nat.eqb_neq; lia). reflexivity.
        -- now rewrite andb_false_r.
  - eapply ordered_leave; eauto.
  - (* no line is forgotten *)
    intros q d rest. unfold leave. cbn [at_gates]. fold c p i.
    pose proof (leave_up_find c p q i (at_gates st) Li) as F.
    destruct ((length q <=? i) && prefix q (path c)).
    + cbv zeta in F. rewrite F. set (z := left_at c p (length q) (find (at_gates st) q)).
      destruct (is_empty (recheck (length q) z) && negb (eqb_path q [])); [discriminate|].
      rewrite line_recheck, held_recheck. unfold recheck. intros ->.
      destruct (clashes (held z) (wants d (length q))); auto.
    + rewrite F. apply So.
  - rewrite map_app in *. apply NoDup_remove_1 in D. exact D.
  - intros v K. apply N. apply in_app_iff in K. apply in_app_iff. simpl. tauto.
  - apply by_job_app in J as (J1 & [J2 J3] & J4). apply by_job_app. repeat apply conj; auto.
    intros u v Iu Iv. apply J4; simpl; auto.
  - intros v K. apply JN. apply in_app_iff in K. apply in_app_iff. simpl. tauto.
Qed.
