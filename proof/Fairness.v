(** No starvation: if lines that wait to be advanced are advanced eventually, and ready jobs leave eventually, then
    each job becomes ready, whatever is placed meanwhile. *)

From Coq Require Import List Arith Lia Bool.
Import ListNotations.
Require Import Claims Walks Settled Normalise Trie Agreement Operations Promises Progress.

(** The walks of jobs up to a number. *)
Definition up_to (j : nat) (s : list walk) : list walk := filter (fun w => job (of w) <=? j) s.

(** The walks of the jobs up to a number come first: jobs are in order. *)
Lemma up_to_is_a_prefix j s : by_job s -> exists t, s = up_to j s ++ t.
Proof.
  induction s as [|w s IH]; intros J; [now exists []|]. simpl in *. destruct J as [J Js].
  destruct (Nat.leb_spec (job (of w)) j) as [L|L].
  - destruct (IH Js) as [t E]. exists t. simpl. congruence.
  - exists (w :: s). replace (up_to j s) with (@nil walk); auto. symmetry. unfold up_to.
    destruct (filter _ s) as [|v f] eqn:E; auto. exfalso.
    assert (I : In v (filter (fun w => job (of w) <=? j) s)) by (rewrite E; now left).
    apply filter_In in I as [I K]. apply Nat.leb_le in K. destruct (J v I) as [?|[? _]]; lia.
Qed.

(** The walks up to a number are those of both parts. *)
Lemma up_to_app j s t : up_to j (s ++ t) = up_to j s ++ up_to j t.
Proof. apply filter_app. Qed.

(** The jobs up to [j] have less to do, or nothing has happened to them. *)
Definition not_more_remaining (j : nat) (s t : list walk) : Prop := up_to j t = up_to j s \/ remaining (up_to j t) <
  remaining (up_to j s).

(** The relation is transitive. *)
Lemma not_more_remaining_trans j s t u : not_more_remaining j s t -> not_more_remaining j t u ->
  not_more_remaining j s u.
Proof. intros [E|L] [F|M]; unfold not_more_remaining in *; rewrite ?F, ?E in *; auto; right; lia. Qed.

(** A step leaves the jobs up to [j] alone or moves one of them. *)
Lemma step_not_more_remaining j s t : step s t -> not_more_remaining j s t.
Proof.
  intros [l1 w l2 P _]. unfold not_more_remaining. rewrite !up_to_app. simpl. destruct (job (of w) <=? j); auto.
  right. rewrite !remaining_app. cbn [remaining pass_gate of pos]. lia.
Qed.

(** So do many steps. *)
Lemma steps_not_more_remaining j s t : steps s t -> not_more_remaining j s t.
Proof. induction 1; [now left|]. eauto using not_more_remaining_trans, step_not_more_remaining. Qed.

(** If all numbers are small enough, all are up to [j]. *)
Lemma up_to_all j s : (forall w, In w s -> job (of w) <= j) -> up_to j s = s.
Proof.
  unfold up_to. induction s as [|w s IH]; simpl; intros A; auto.
  replace (job (of w) <=? j) with true by (symmetry; apply Nat.leb_le; auto). f_equal. auto.
Qed.

(** Two filters commute. *)
Lemma up_to_filter j f s : up_to j (filter f s) = filter f (up_to j s).
Proof.
  unfold up_to. induction s as [|w s IH]; simpl; auto.
  destruct (f w) eqn:F, (job (of w) <=? j) eqn:K; simpl; rewrite ?F, ?K; congruence.
Qed.

(** Leaving takes walks up to [j] away or leaves them alone. *)
Lemma filter_not_more_remaining j f s :
  (forall w, In w s -> pos w <= S (depth (of w))) -> not_more_remaining j s (filter f s).
Proof.
  intros B. unfold not_more_remaining. rewrite up_to_filter. assert (D : filter f (up_to j s) = up_to j s \/ exists w,
    In w (up_to j s) /\ f w = false).
  { generalize (up_to j s). intros l. induction l as [|w l [IH|(v & I & F)]]; simpl; auto.
    - destruct (f w) eqn:F; [left; congruence | right; eauto].
    - right. eauto. }
  destruct D as [->|D]; auto. right. apply remaining_filter; auto.
  intros w I. apply filter_In in I as [I _]. auto.
Qed.

(** A new job adds walks at the end only, with its number, which is new. *)
Lemma enqueue_walks st cs :
  last_job (enqueue st cs) = S (last_job st) /\
  exists new, walks (enqueue st cs) = walks st ++ new /\ forall w, In w new -> job (of w) = S (last_job st).
Proof.
  unfold enqueue. set (j := S (last_job st)). set (st0 := State _ _ _ _).
  assert (E : last_job st0 = j /\ exists new, walks st0 = walks st ++ new /\ forall w, In w new -> job (of w) = j).
  { split; auto. exists []. rewrite app_nil_r. split; auto. contradiction. }
  generalize (normalise cs). clear cs. intros cs. clearbody st0. revert st0 E.
  induction cs as [|[p sh] cs IH]; simpl; auto. intros st0 (E & new & W & N). apply IH.
  unfold place. destruct (walk_on _ _ _ _) as [g i]. simpl. split; auto.
  eexists (new ++ [_]). rewrite W, app_assoc. split; [reflexivity|].
  intros w [I|[<-|[]]]%in_app_iff; auto.
Qed.

(** No operation gives the jobs up to [j] more to do: new jobs have greater numbers. *)
Lemma perform_not_more_remaining j st o :
  invariant st -> j <= last_job st -> not_more_remaining j (walks st) (walks (perform st o)) /\
    j <= last_job (perform st o).
Proof.
  intros G L. destruct o as [cs|q b|k]; cbn [perform].
  - destruct (enqueue_walks st cs) as (J & new & W & N). split; [|lia]. left. rewrite W, up_to_app.
    replace (up_to j new) with (@nil walk); [apply app_nil_r|]. symmetry. unfold up_to.
    destruct (filter _ new) as [|v f] eqn:E; auto. exfalso.
    assert (I : In v (filter (fun w => job (of w) <=? j) new)) by (rewrite E; now left).
    apply filter_In in I as [I K]. apply Nat.leb_le in K. apply N in I. lia.
  - pose proof (advance_numbers q b (length (line (find (at_gates st) q))) 0 [] st) as [_ J].
    fold (advance st q b) in J. rewrite J. split; auto.
    pose proof (advance_invariant st q b G) as A. destruct (advance st q b). apply steps_not_more_remaining, A.
  - destruct (vacate_invariant st k G) as (_ & _ & J & W). rewrite J, W. split; auto.
    apply filter_not_more_remaining. intros w. apply ordered_bound, in_order, G.
Qed.

(** A walk that no earlier one blocks is the head of its line, and the line waits to be advanced: no line is
    forgotten. *)
Lemma unblocked_is_to_advance st l1 w l2 :
  invariant st -> walks st = l1 ++ w :: l2 -> pos w <= depth (of w) -> ~ blocked l1 w ->
  let q := gate_of (of w) (pos w) in
  to_advance (find (at_gates st) q) = true /\ exists f, filter (stands q) (walks st) = w :: f.
Proof.
  intros G E L B q. assert (S1 : standing l1 q = []).
  { apply standing_none; auto. intros u I M F. apply B. exists u. split; auto. split; auto. }
  assert (Lq : length q = pos w) by (now apply gate_of_length).
  assert (S2 : filter (stands q) l1 = []) by (unfold standing in S1; now apply map_eq_nil in S1).
  assert (Sw : stands q w = true) by (apply stands_spec; auto).
  destruct (agreed _ G q) as [_ Ls]. rewrite E, standing_app, standing_cons, S1, Sw in Ls. simpl in Ls.
  split.
  - destruct (none_forgotten _ G q _ _ Ls) as [C|]; auto. exfalso.
    rewrite Lq in C. unfold q in C. apply (clashes_held _ _ _ _ _ (agreed _ G) L) in C as (u & I & M & Lt & F).
    rewrite E in I. apply in_app_iff in I as [I|[<-|I]]; [|lia|].
    + apply B. exists u. split; auto. split; auto.
    + pose proof (in_order _ G) as O. rewrite E in O.
      pose proof (later_has_not_passed _ _ _ _ O I (meet_sym _ _ _ M)). lia.
  - rewrite E, filter_app, S2. simpl. rewrite Sw. eauto.
Qed.

Section Run.

Variable f : nat -> op.

(** The state after the first [n] operations of an infinite history. *)
Fixpoint at_time (n : nat) : state := match n with 0 => start | S m => perform (at_time m) (f m) end.

(** The job has unfinished walks at a time. *)
Definition is_placed (n j : nat) : Prop := exists w, In w (walks (at_time n)) /\ job (of w) = j.

(** A line that waits to be advanced is advanced eventually, unless it stops waiting. *)
Hypothesis lines_advance : forall n q, to_advance (find (at_gates (at_time n)) q) = true ->
  exists m, n <= m /\ ((exists b, 0 < b /\ f m = Advance q b) \/ to_advance (find (at_gates (at_time m)) q) = false).

(** A ready job leaves eventually. *)
Hypothesis jobs_leave : forall n j, is_placed n j -> ready (at_time n) j -> exists m, n <= m /\ f m = Vacate j.

(** The invariant holds at each time. *)
Lemma always_invariant n : invariant (at_time n).
Proof. induction n as [|n IH]; simpl; [apply start_invariant | now apply perform_invariant]. Qed.

(** Time gives the jobs up to [j] no more to do. *)
Lemma time_not_more_remaining j n m : n <= m -> j <= last_job (at_time n) ->
  not_more_remaining j (walks (at_time n)) (walks (at_time m)) /\ j <= last_job (at_time m).
Proof.
  induction 1 as [|m _ IH]; intros L; [split; auto; now left|]. destruct (IH L) as [A B].
  destruct (perform_not_more_remaining j (at_time m) (f m) (always_invariant m) B) as [C D]. simpl.
    eauto using not_more_remaining_trans.
Qed.

(** The first unfinished job is ready, or one of its walks can move: only walks of its own job are before that walk
    and unfinished, and they do not conflict with it. *)
Lemma first_job_is_ready_or_moves st w s :
  invariant st -> walks st = w :: s ->
  ready st (job (of w)) \/
  exists l1 v l2, walks st = l1 ++ v :: l2 /\ job (of v) = job (of w) /\ pos v <= depth (of v) /\ ~ blocked l1 v.
Proof.
  intros G E. pose proof (jobs_in_order _ G) as J. pose proof (in_order _ G) as O.
  assert (Low : forall u, In u (walks st) -> job (of w) <= job (of u)).
  { intros u I. rewrite E in *. destruct I as [<-|I]; auto. destruct J as [J _]. destruct (J u I) as [?|[? _]]; lia. }
  assert (D : forall l, (forall v, In v l -> job (of v) = job (of w) -> granted v) \/
    exists l1 v l2, l = l1 ++ v :: l2 /\ job (of v) = job (of w) /\ ~ granted v /\
      forall u, In u l1 -> job (of u) = job (of w) -> granted u).
  { induction l as [|v l [IH|(l1 & u & l2 & El & Ju & Nu & Fu)]].
    - left. contradiction.
    - destruct (Nat.eq_dec (job (of v)) (job (of w))) as [Jv|Jv], (Nat.eq_dec (pos v) (S (depth (of v)))) as [P|P].
      1, 3, 4: left; intros x [<-|I]; auto; intros; contradiction.
      right. exists [], v, l. repeat apply conj; auto. contradiction.
    - destruct (Nat.eq_dec (job (of v)) (job (of w))) as [Jv|Jv], (Nat.eq_dec (pos v) (S (depth (of v)))) as [P|P].
      1, 3, 4: right; exists (v :: l1), u, l2; rewrite El; repeat apply conj; auto;
        intros x [<-|I]; auto; intros; contradiction.
      right. exists [], v, l. repeat apply conj; auto. contradiction. }
  destruct (D (walks st)) as [R|(l1 & v & l2 & Es & Jv & Nv & Fv)]; [left; intros v I K; auto|].
  right. exists l1, v, l2. rewrite Es in J, O. repeat apply conj; auto.
  - apply ordered_app in O as (_ & (P & _) & _). unfold granted in Nv. lia.
  - intros (u & I & M & W). apply by_job_app in J as (_ & _ & J).
    assert (Lu : job (of w) <= job (of u)) by (apply Low; rewrite Es; auto using in_or_app).
    destruct (J u v I (or_introl eq_refl)) as [Lt|[Eu C]]; [lia|].
    destruct W as [W|[_ W]]; [|apply (clash_conflict _ _ _ M) in W; congruence].
    specialize (Fv u I ltac:(lia)). unfold granted in Fv. destruct M. lia.
Qed.

(** As long as one of them is unfinished, the jobs up to [j] have less to do at some later time: the first of them
    leaves, or its line is advanced. *)
Lemma less_remains_eventually j n : j <= last_job (at_time n) -> up_to j (walks (at_time n)) <> [] ->
  exists m, n <= m /\ remaining (up_to j (walks (at_time m))) < remaining (up_to j (walks (at_time n))).
Proof.
  intros L N. pose proof (always_invariant n) as G. pose proof (jobs_in_order _ G) as J.
  destruct (up_to_is_a_prefix j _ J) as [t Et].
  destruct (up_to j (walks (at_time n))) as [|w lo] eqn:El; [contradiction|]. clear N.
  assert (Lw : job (of w) <= j).
  { assert (I : In w (up_to j (walks (at_time n)))) by (rewrite El; now left).
    apply filter_In in I as [_ I]. now apply Nat.leb_le. }
  destruct (first_job_is_ready_or_moves _ w (lo ++ t) G Et) as [R|(l1 & v & l2 & Es & Jv & Lv & B)].
  - (* it leaves *)
    destruct (jobs_leave n (job (of w))) as (m & Lm & F); auto.
    { exists w. split; auto. rewrite Et. now left. }
    destruct (time_not_more_remaining j n m Lm L) as [[Eq|Ls] Lj]; [|rewrite El in Ls; eauto].
    exists (S m). split; [lia|]. rewrite El in Eq. cbn [at_time]. rewrite F. cbn [perform].
    destruct (vacate_invariant (at_time m) (job (of w)) (always_invariant m)) as (_ & _ & _ & W).
    rewrite <- Eq, W. set (g := fun v => negb (job (of v) =? job (of w))).
    rewrite up_to_filter. apply remaining_filter.
    + intros x I. apply filter_In in I as [I _]. eapply ordered_bound; eauto. apply in_order, always_invariant.
    + exists w. rewrite Eq. split; [now left|]. unfold g. now rewrite Nat.eqb_refl.
  - (* one of its walks heads a line that waits to be advanced *)
    destruct (unblocked_is_to_advance _ _ _ _ G Es Lv B) as [M _].
    destruct (lines_advance n _ M) as (m & Lm & F).
    destruct (time_not_more_remaining j n m Lm L) as [[Eq|Ls] Lj]; [|rewrite El in Ls; eauto].
    (* if nothing happened to the jobs up to [j], it is still there *)
    pose proof (always_invariant m) as Gm.
    destruct (up_to_is_a_prefix j _ (jobs_in_order _ Gm)) as [tm Em]. rewrite Eq, El in Em.
    assert (P : exists l2', w :: lo = l1 ++ v :: l2').
    { assert (Ll : up_to j (l1 ++ [v]) = l1 ++ [v]).
      { apply up_to_all. intros x I.
        rewrite Es in J. apply by_job_app in J as (_ & _ & J).
        apply in_app_iff in I as [I|[<-|[]]]; [|lia]. destruct (J x v I (or_introl eq_refl)) as [?|[? _]]; lia. }
      exists (up_to j l2). rewrite <- El, Es. change (v :: l2) with ([v] ++ l2). rewrite app_assoc, up_to_app, Ll.
      now rewrite <- app_assoc. }
    destruct P as [l2' P]. rewrite P in Em. rewrite <- app_assoc in Em. simpl in Em.
    destruct (unblocked_is_to_advance _ _ _ _ Gm Em Lv B) as [Mm (fm & Fm)].
    destruct F as [(b & Pb & F)|F]; [|congruence].
    exists (S m). split; [lia|]. cbn [at_time]. rewrite F. cbn [perform]. rewrite <- El, <- Eq.
    pose proof (advance_invariant (at_time m) (gate_of (of v) (pos v)) b Gm) as A.
    destruct (advance (at_time m) (gate_of (of v) (pos v)) b) as [st' r]. cbn [fst].
    destruct A as (G' & _ & _ & _ & _ & [(x & fx & t' & Fx & (k1 & k2 & Ek & Et') & Sx & Sxs)|[Ew U]]).
    + rewrite Fm in Fx. injection Fx as <- <-.
      assert (Lt : remaining (up_to j t') < remaining (up_to j (walks (at_time m)))).
      { rewrite Et', Ek, !up_to_app. simpl. replace (job (of v) <=? j) with true by (symmetry; apply Nat.leb_le; lia).
        rewrite !remaining_app. cbn [remaining pass_gate of pos]. lia. }
      destruct (steps_not_more_remaining j _ _ Sxs) as [E|K]; [now rewrite E | lia].
    + (* it would have been unmarked without moving: but its head fits *)
      exfalso. specialize (U Pb). rewrite Em in Ew.
      destruct (unblocked_is_to_advance st' _ _ _ G' Ew Lv B) as [Z _]. rewrite U in Z.
      unfold clear_to_advance in Z. rewrite to_advance_put, eqb_path_refl in Z. discriminate.
Qed.

(** At some time all jobs up to [j] have left: what they have to do is a number that decreases. *)
Theorem all_jobs_leave_eventually j n : j <= last_job (at_time n) ->
  exists m, n <= m /\ up_to j (walks (at_time m)) = [].
Proof.
  remember (remaining (up_to j (walks (at_time n)))) as k eqn:E. revert n E.
  induction k as [k IH] using lt_wf_ind. intros n -> L.
  destruct (up_to j (walks (at_time n))) as [|w lo] eqn:El; [exists n; auto|].
  destruct (less_remains_eventually j n L) as (m & Lm & K); [rewrite El; discriminate|]. rewrite El in K.
  destruct (IH _ K m eq_refl) as (m' & Lm' & R).
  - now apply (time_not_more_remaining j n m).
  - exists m'. split; auto. lia.
Qed.

(** No starvation: if jobs leave only when they are ready, each job becomes ready, whatever is placed meanwhile: it
    has left at some time, and was ready when it left. *)
Theorem no_starvation : (forall n j, f n = Vacate j -> ready (at_time n) j) ->
  forall n j, is_placed n j -> exists m, n <= m /\ is_placed m j /\ ready (at_time m) j.
Proof.
  intros Only n j T. assert (L : j <= last_job (at_time n)).
  { destruct T as (w & I & <-). apply (jobs_numbered _ (always_invariant n) w I). }
  destruct (all_jobs_leave_eventually j n L) as (e & Le & El).
  assert (D : forall d, n + d <= e -> is_placed (n + d) j \/ exists m, n <= m /\ is_placed m j /\ ready (at_time m) j).
  { induction d as [|d IH]; intros Ld; [left; now rewrite Nat.add_0_r|].
    destruct (IH ltac:(lia)) as [(w & I & E)|R]; auto.
    assert (K : f (n + d) = Vacate j \/ is_placed (n + S d) j).
    { rewrite Nat.add_succ_r. unfold is_placed. simpl.
      assert (C : In (of w) (map of (walks (at_time (n + d))))) by now apply in_map.
      assert (B : forall c, In c (unfinished (plain_perform (plain_of (at_time (n + d))) (f (n + d)))) -> job c = j ->
        exists w, In w (walks (perform (at_time (n + d)) (f (n + d)))) /\ job (of w) = j).
      { intros c Ic Ec. rewrite <- (proj2 (perform_invariant _ _ (always_invariant (n + d)))) in Ic.
        apply in_map_iff in Ic as (v & <- & Iv). eauto. }
      destruct (f (n + d)) as [cs|q b|k] eqn:F.
      - right. destruct (enqueue_walks (at_time (n + d)) cs) as (_ & new & W & _). exists w. cbn [perform].
        rewrite W. auto using in_or_app.
      - right. apply (B (of w)); auto.
      - destruct (Nat.eq_dec k j) as [->|Nk]; auto. right. apply (B (of w)); auto. simpl. apply filter_In. split; auto.
        apply negb_true_iff, Nat.eqb_neq. lia. }
    destruct K as [K|K]; auto. right. exists (n + d). split; [lia|]. split; [|now apply Only]. exists w. auto. }
  destruct (D (e - n)) as [(w & I & E)|R]; auto; [lia|]. exfalso.
  replace (n + (e - n)) with e in I by lia.
  assert (X : In w (up_to j (walks (at_time e)))) by (apply filter_In; split; auto; apply Nat.leb_le; lia).
  rewrite El in X. contradiction.
Qed.

End Run.
