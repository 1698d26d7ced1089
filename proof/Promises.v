(** The promises, for every history: placements, advances cut anywhere and in any order, jobs that leave at any
    time. *)

From Coq Require Import List Arith Lia Bool Wellfounded Relation_Operators.
Import ListNotations.
Require Import Claims Walks Settled Normalise Trie Agreement Operations.

(* --- the plain rule as a machine: unfinished claims in order of place --------------------------------------------- *)

(** The plain rule as a machine of its own: unfinished claims in order of place, and nothing else. *)
Record plain_rule := PlainRule { unfinished : list claim; claims_made : nat; jobs_made : nat }.

(** What an operation does to the unfinished claims. *)
Definition plain_perform (b : plain_rule) (o : op) : plain_rule :=
  match o with
  | Enqueue cs =>
    let j := S (jobs_made b) in
    fold_left (fun b e => PlainRule (unfinished b ++ [Claim (S (claims_made b)) j (fst e) (snd e)]) (S (claims_made
      b)) j)
      (normalise cs) (PlainRule (unfinished b) (claims_made b) j)
  | Advance _ _ => b
  | Vacate j => PlainRule (filter (fun c => negb (job c =? j)) (unfinished b)) (claims_made b) (jobs_made b)
  end.

Definition plain_run (h : list op) : plain_rule := fold_left plain_perform h (PlainRule [] 0 0).

(** What the plain rule sees of a trie. *)
Definition plain_of (st : state) : plain_rule := PlainRule (map of (walks st)) (last_num st) (last_job st).

(* --- every history keeps the invariant ---------------------------------------------------------------------------- *)

(** Several walks leave as one after the other does: by induction on them. *)
Lemma leave_all_invariant ws : forall st,
  invariant st -> NoDup (map id_of ws) -> incl ws (walks st) ->
  invariant (fold_left leave ws st) /\
  last_num (fold_left leave ws st) = last_num st /\ last_job (fold_left leave ws st) = last_job st /\
  walks (fold_left leave ws st) = filter (fun v => forallb (fun w => negb (id_of v =? id_of w)) ws) (walks st).
Proof.
  induction ws as [|w ws IH]; intros st G D I; simpl.
  - repeat apply conj; auto. clear. induction (walks st) as [|v t IHt]; simpl; congruence.
  - simpl in D. apply NoDup_cons_iff in D as [D Ds].
    destruct (leave_invariant st w G (I w (or_introl eq_refl))) as (l1 & l2 & E & E' & G' & EJ).
    destruct (IH (leave st w) G' Ds) as (G2 & N2 & J2 & W2).
    { intros v Iv. rewrite E'. assert (Iw : In v (walks st)) by (apply I; right; exact Iv). rewrite E in Iw.
      apply in_app_iff in Iw as [K|[K|K]]; auto using in_or_app. exfalso. apply D. rewrite K. now apply in_map. }
    repeat apply conj; auto. rewrite W2. cbn [leave walks]. clear.
    induction (walks st) as [|v t IHt]; simpl; auto. unfold id_of in *.
    destruct (num (of v) =? num (of w)) eqn:E; simpl; rewrite IHt; auto.
Qed.

(** When a job leaves, exactly its walks are gone and the invariant holds. *)
Lemma vacate_invariant st j :
  invariant st ->
  invariant (vacate st j) /\ last_num (vacate st j) = last_num st /\ last_job (vacate st j) = last_job st /\
  walks (vacate st j) = filter (fun w => negb (job (of w) =? j)) (walks st).
Proof.
  intros G. unfold vacate. set (ws := filter (fun w => job (of w) =? j) (walks st)).
  assert (D : NoDup (map id_of ws)).
  { unfold ws. pose proof (distinct _ G) as D. induction (walks st) as [|w t IH]; simpl in *; auto.
    apply NoDup_cons_iff in D as [D Dt]. destruct (job (of w) =? j); auto. simpl. constructor; auto.
    intros (v & E & I)%in_map_iff. apply filter_In in I as [I _]. apply D. rewrite <- E. now apply in_map. }
  destruct (leave_all_invariant ws st G D) as (G' & N & J & W).
  { intros w I. now apply filter_In in I as [I _]. }
  repeat apply conj; auto. rewrite W. apply filter_ext_in. intros v I.
  destruct (job (of v) =? j) eqn:E; simpl.
  - apply not_true_iff_false. rewrite forallb_forall. intros F.
    specialize (F v ltac:(apply filter_In; auto)). rewrite Nat.eqb_refl in F. discriminate.
  - apply forallb_forall. intros w Iw. apply filter_In in Iw as [Iw Ew]. apply negb_true_iff, Nat.eqb_neq.
    intros K. enough (v = w) by congruence. pose proof (distinct _ G) as Dd. clear - I Iw K Dd.
    induction (walks st) as [|x t IH]; [contradiction|]. simpl in Dd. apply NoDup_cons_iff in Dd as [Dx Dt].
    destruct I as [->|I], Iw as [->|Iw]; auto; exfalso; apply Dx.
    + rewrite K. now apply in_map.
    + rewrite <- K. now apply in_map.
Qed.

(** Placing a job adds the same claims to the walks and to the plain rule: by induction on its claims. *)
Lemma enqueue_claims st cs : invariant st -> plain_of (enqueue st cs) = plain_perform (plain_of st) (Enqueue cs).
Proof.
  intros G. unfold enqueue. cbn [plain_perform]. simpl jobs_made. generalize (normalise cs). clear cs. intros cs.
  set (j := S (last_job st)).
  set (st0 := State (at_gates st) (walks st) (last_num st) j).
  change (PlainRule (unfinished (plain_of st)) (claims_made (plain_of st)) j) with (plain_of st0).
  assert (E : last_job st0 = j) by reflexivity. clearbody st0 j. clear G st.
  revert st0 E. induction cs as [|[p sh] cs IH]; simpl; intros st E; auto.
  assert (B : plain_of (place st j p sh) =
    PlainRule (map of (walks st) ++ [Claim (S (last_num st)) j p sh]) (S (last_num st)) j).
  { unfold place. destruct (walk_on _ _ _ _) as [g i]. unfold plain_of. simpl. now rewrite map_app, E. }
  rewrite IH, B; [reflexivity|]. apply (f_equal jobs_made) in B. exact B.
Qed.

(** Advancing gives out no numbers: by induction on the line. *)
Lemma advance_numbers q b : forall n used arrived st,
  last_num (fst (advance_loop n q b used arrived st)) = last_num st /\
  last_job (fst (advance_loop n q b used arrived st)) = last_job st.
Proof.
  induction n as [|n IH]; intros used arrived st; cbn [advance_loop]; auto.
  destruct (line _); auto. destruct (clashes _ _); auto. destruct (b <=? used); auto.
  destruct (walk_on _ _ _ _) as [g p].
  match goal with |- context [advance_loop n q b ?u ?a ?s] => destruct (IH u a s); auto end.
Qed.

(** Each operation keeps the invariant and does to the claims what the plain rule does. *)
Lemma perform_invariant st o : invariant st -> invariant (perform st o) /\
  plain_of (perform st o) = plain_perform (plain_of st) o.
Proof.
  intros G. destruct o as [cs|q b|j]; cbn [perform].
  - split; [now apply enqueue_invariant | now apply enqueue_claims].
  - pose proof (advance_numbers q b (length (line (find (at_gates st) q))) 0 [] st) as L. fold (advance st q b) in L.
    pose proof (advance_invariant st q b G) as A. destruct (advance st q b) as [st' r].
    destruct A as (G' & _ & M & _). split; auto. unfold plain_of. cbn [fst plain_perform] in *. destruct L as [-> ->].
      now rewrite M.
  - destruct (vacate_invariant st j G) as (G' & N & J & W). split; auto. unfold plain_of. rewrite W, N, J.
    cbn [plain_perform].
    f_equal. clear. simpl. induction (walks st) as [|w t IH]; simpl; auto. destruct (job (of w) =? j); simpl;
      now rewrite IH.
Qed.

(** So does every history: by induction on it. *)
Lemma run_from_invariant h : forall st, invariant st -> invariant (fold_left perform h st) /\
  plain_of (fold_left perform h st) = fold_left plain_perform h (plain_of st).
Proof.
  induction h as [|o h IH]; intros st G; simpl; auto.
  destruct (perform_invariant st o G) as [G' B]. destruct (IH _ G') as [G2 B2]. split; auto. now rewrite B2, B.
Qed.

(** The invariant holds after every history. *)
Theorem run_invariant h : invariant (run h).
Proof. apply run_from_invariant, start_invariant. Qed.

(** The walks at the gates are those of the unfinished claims of the plain rule, in the same order. *)
Theorem run_is_plain_run h : map of (walks (run h)) = unfinished (plain_run h).
Proof. change (unfinished (plain_of (run h)) = unfinished (plain_run h)). f_equal. apply run_from_invariant,
  start_invariant. Qed.

(* --- nothing left over: nothing can move -------------------------------------------------------------------------- *)

Definition nothing_left_over (st : state) : Prop := forall q, to_advance (find (at_gates st) q) = false.

(** If no line waits to be advanced, no walk can move: the head of its line does not fit what is held, and what is
    held before it was passed by earlier walks (later_has_not_passed). *)
Lemma nothing_left_over_stable st : invariant st -> nothing_left_over st -> stable (walks st).
Proof.
  intros G L l1 w l2 E. destruct (le_lt_dec (pos w) (depth (of w))) as [Lp|Lp].
  2: { left. pose proof (in_order _ G) as O. rewrite E in O. apply ordered_app in O as (_ & O & _).
       simpl in O. unfold granted. lia. }
  right. set (q := gate_of (of w) (pos w)).
  destruct (agreed _ G q) as [_ Ls]. rewrite E, standing_app, standing_cons, stands_eqb in Ls by auto.
  fold q in Ls. rewrite eqb_path_refl in Ls.
  destruct (standing l1 q) as [|d f] eqn:S1.
  - (* it is the head *)
    simpl in Ls. pose proof (none_forgotten _ G q _ _ Ls) as [C|C]; [|rewrite L in C; discriminate].
    unfold q in C. rewrite gate_of_length in C by auto. apply (clashes_held _ _ _ _ _ (agreed _ G) Lp) in C.
    destruct C as (u & I & M & Lt & F). rewrite E in I. exists u.
    apply in_app_iff in I as [I|[<-|I]]; [|lia|].
    + split; auto. split; auto.
    + exfalso. pose proof (in_order _ G) as O. rewrite E in O.
      pose proof (later_has_not_passed _ _ _ _ O I (meet_sym _ _ _ M)). lia.
  - assert (I : In d (standing l1 q)) by (rewrite S1; now left).
    unfold standing in I. apply in_map_iff in I as (u & <- & I). apply filter_In in I as [I Su].
    exists u. split; auto. unfold stands in Su. rewrite andb_true_iff, Nat.eqb_eq in Su.
    unfold q in Su. rewrite gate_of_length in Su by auto. destruct Su as [Ep P].
    split; [apply meet_sym, meet_gate; auto | auto].
Qed.

(* --- safety, at every cut ----------------------------------------------------------------------------------------- *)

(** Two granted claims never conflict; at every cut and in all modes. *)
Theorem granted_never_conflict h u w :
  In u (walks (run h)) -> In w (walks (run h)) -> granted u -> granted w ->
  u = w \/ conflict (of u) (of w) = false.
Proof. apply granted_walks_never_conflict, run_invariant. Qed.

(** A granted claim has none in conflict placed before it; at every cut and in all modes. *)
Theorem granted_conflicts_with_none_before h l1 w l2 :
  walks (run h) = l1 ++ w :: l2 -> granted w -> free (map of l1) (of w).
Proof. intros E. eapply granted_is_free. rewrite <- E. apply in_order, run_invariant. Qed.

(** If nothing is left over, a claim that waits has an earlier one in its way: in line at the same gate, or past it
    in a mode that does not fit. *)
Theorem waiting_is_blocked_by_an_earlier_walk h l1 w l2 :
  nothing_left_over (run h) -> walks (run h) = l1 ++ w :: l2 -> ~ granted w -> exists u, In u l1 /\ in_the_way u w.
Proof. intros L E. apply (waiting_is_blocked l1 w l2). rewrite <- E. apply nothing_left_over_stable; auto.
  apply run_invariant. Qed.

(* --- exactness ---------------------------------------------------------------------------------------------------- *)

(** If nothing is left over, an exclusive claim is granted exactly if no unfinished claim before it conflicts,
    whatever modes the others have; so is a shared one if all before it are exclusive. *)
Theorem granted_exactly_when_free h l1 w l2 :
  nothing_left_over (run h) -> walks (run h) = l1 ++ w :: l2 ->
  shared (of w) = false \/ (forall u, In u l1 -> shared (of u) = false) ->
  granted w <-> free (map of l1) (of w).
Proof.
  intros L E. apply (granted_iff_free l1 w l2); rewrite <- E; [apply in_order,
    run_invariant | apply nothing_left_over_stable; auto; apply run_invariant].
Qed.

(* --- cuts do not show --------------------------------------------------------------------------------------------- *)

(** If nothing is left over, the walks are what placing the unfinished claims anew, in order, in an empty trie
    gives. *)
Theorem settled_state h : nothing_left_over (run h) -> walks (run h) = settled (unfinished (plain_run h)).
Proof.
  intros L. rewrite <- run_is_plain_run. apply stable_is_settled; [apply in_order, run_invariant | ].
  apply nothing_left_over_stable; auto. apply run_invariant.
Qed.

(** Two histories that leave the same claims unfinished end in the same positions, counts and lines, however they
    were cut and in whatever order lines were advanced: both are the settled state, and counts and lines follow from
    positions. *)
Theorem cuts_do_not_show h k :
  unfinished (plain_run h) = unfinished (plain_run k) -> nothing_left_over (run h) -> nothing_left_over (run k) ->
  walks (run h) = walks (run k) /\
  forall q, (forall m, count (held (find (at_gates (run h)) q)) m = count (held (find (at_gates (run k)) q)) m) /\
            line (find (at_gates (run h)) q) = line (find (at_gates (run k)) q).
Proof.
  intros E Lh Lk. assert (W : walks (run h) = walks (run k)) by (rewrite !settled_state by auto; congruence).
  split; auto. intros q.
  destruct (agreed _ (run_invariant h) q) as [Ch Nh], (agreed _ (run_invariant k) q) as [Ck Nk].
  rewrite W in Ch, Nh. split; [intros m; rewrite Ch, Ck | rewrite Nh, Nk]; reflexivity.
Qed.

Definition is_advance (o : op) : bool := match o with Advance _ _ => true | _ => false end.

(** Advances may be left out, moved or cut: the plain rule ignores them. *)
Corollary advances_do_not_show h k :
  filter (fun o => negb (is_advance o)) h = filter (fun o => negb (is_advance o)) k ->
  nothing_left_over (run h) -> nothing_left_over (run k) -> walks (run h) = walks (run k).
Proof.
  intros E Lh Lk. apply cuts_do_not_show; auto. unfold plain_run.
  assert (F : forall l b, fold_left plain_perform l b = fold_left plain_perform (filter (fun o => negb (is_advance o))
    l) b).
  { induction l as [|[cs|q n|j] l IH]; simpl; intros; auto. }
  now rewrite (F h), (F k), E.
Qed.

(* --- jobs of several claims --------------------------------------------------------------------------------------- *)

(** A walk that waits stands at a gate that a walk of a job with a smaller number has reached: claims of one job do
    not clash, so another claim of the same job in line waits for a smaller one itself; by induction. *)
Lemma walk_waits_for_smaller_job l1 : forall w l2,
  by_job (l1 ++ w :: l2) -> stable (l1 ++ w :: l2) -> ~ granted w ->
  exists u, In u l1 /\ job (of u) < job (of w) /\ meet (of u) (of w) (pos w) /\ pos w <= pos u.
Proof.
  induction l1 as [l1 IH] using (induction_ltof1 _ (@length walk)). unfold ltof in IH.
  intros w l2 J Q G. destruct (waiting_is_blocked _ _ _ Q G) as (u & I & M & B).
  assert (JB : job_before u w) by (apply by_job_app in J as (_ & _ & J); simpl in J; auto).
  destruct JB as [Lt|[Ej C]].
  { exists u. repeat split; auto; try apply M. destruct B as [->|[B _]]; lia. }
  destruct B as [E|[_ F]]; [|apply (clash_conflict _ _ _ M) in F; congruence].
  (* another claim of its job stands before it in the same line *)
  apply in_split in I as (l3 & l4 & ->).
  assert (Gu : ~ granted u) by (unfold granted; destruct M; lia).
  destruct (IH l3 ltac:(rewrite app_length; simpl; lia) u (l4 ++ w :: l2)) as (v & Iv & Lv & Mv & Pv); auto.
  - now rewrite <- app_assoc in J.
  - now rewrite <- app_assoc in Q.
  - rewrite E in *. exists v. split; [|split; [|split]]; auto using in_or_app; try lia. eapply meet_trans; eauto.
Qed.

(** If nothing is left over, each wait points to a job with a smaller number; so jobs of several claims cannot
    deadlock. *)
Theorem waits_point_to_smaller_jobs h w :
  nothing_left_over (run h) -> In w (walks (run h)) -> ~ granted w ->
  exists u, In u (walks (run h)) /\ job (of u) < job (of w) /\ meet (of u) (of w) (pos w) /\ pos w <= pos u.
Proof.
  intros L I Gw. pose proof (run_invariant h) as G. apply in_split in I as (l1 & l2 & E).
  destruct (walk_waits_for_smaller_job l1 w l2) as (u & I & R); auto.
  - rewrite <- E. apply jobs_in_order, G.
  - rewrite <- E. apply nothing_left_over_stable; auto.
  - exists u. split; auto. rewrite E. auto using in_or_app.
Qed.

(** All claims of the job are granted. *)
Definition ready (st : state) (j : nat) : Prop := forall w, In w (walks st) -> job (of w) = j -> granted w.

(** If nothing is left over, a job of exclusive claims is ready exactly if no unfinished job of a smaller number
    conflicts with it, whatever modes the others have. *)
Theorem ready_exactly_when_free h j :
  nothing_left_over (run h) ->
  (forall w, In w (walks (run h)) -> job (of w) = j -> shared (of w) = false) ->
  ready (run h) j <->
  forall u w, In u (walks (run h)) -> In w (walks (run h)) -> job (of u) < j -> job (of w) = j ->
    conflict (of u) (of w) = false.
Proof.
  intros L X. pose proof (run_invariant h) as G. split.
  - intros R u w Iu Iw Lu Ew. apply in_split in Iw as (l1 & l2 & E).
    assert (Iw : In w (walks (run h))) by (rewrite E; apply in_elt).
    apply (granted_conflicts_with_none_before h l1 w l2 E (R w Iw Ew)). apply in_map.
    rewrite E in Iu. apply in_app_iff in Iu as [Iu|[->|Iu]]; auto; [lia|]. exfalso.
    pose proof (jobs_in_order _ G) as J. rewrite E in J. apply by_job_app in J as (_ & [J _] & _).
    apply J in Iu as [?|[? _]]; lia.
  - intros F w Iw Ew. apply in_split in Iw as (l1 & l2 & E).
    apply (granted_exactly_when_free h l1 w l2 L E); [left; apply X; auto; rewrite E; apply in_elt|].
    intros d (u & <- & I)%in_map_iff.
    pose proof (jobs_in_order _ G) as J. rewrite E in J. apply by_job_app in J as (_ & _ & J).
    destruct (J u w I (or_introl eq_refl)) as [Lt|[_ C]]; auto.
    apply F; auto; try (rewrite E; auto using in_or_app, in_elt). lia.
Qed.

(** A ready job conflicts with no unfinished job of a smaller number; at every cut and in all modes. *)
Theorem ready_conflicts_with_none_before h j u w :
  ready (run h) j -> In u (walks (run h)) -> In w (walks (run h)) -> job (of u) < j -> job (of w) = j ->
  conflict (of u) (of w) = false.
Proof.
  intros R Iu Iw Lu Ew. pose proof (run_invariant h) as G. pose proof Iw as Iw'. apply in_split in Iw' as (l1 & l2 & E).
  apply (granted_conflicts_with_none_before h l1 w l2 E (R w Iw Ew)). apply in_map.
  rewrite E in Iu. apply in_app_iff in Iu as [Iu|[->|Iu]]; auto; [lia|]. exfalso.
  pose proof (jobs_in_order _ G) as J. rewrite E in J. apply by_job_app in J as (_ & [J _] & _).
  apply J in Iu as [?|[? _]]; lia.
Qed.
