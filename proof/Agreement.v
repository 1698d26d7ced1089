(** What the gates hold is what the walks say: counts, lines, and that no line is forgotten. *)

From Coq Require Import List Arith Lia Bool.
Import ListNotations.
Require Import Claims Walks Settled Normalise Trie.

(* --- what the gates hold is what the walks say -------------------------------------------------------------------- *)

(** The walk stands in the line of gate [q]. *)
Definition stands (q : Path) (w : walk) : bool := (length q =? pos w) && prefix q (path (of w)).
(** The walk has passed gate [q] and is counted there in mode [m]. *)
Definition holds (q : Path) (m : mode) (w : walk) : bool :=
  (length q <? pos w) && prefix q (path (of w)) && eqb_mode (wants (of w) (length q)) m.

(** The claims that stand in the line of a gate, in order. *)
Definition standing (s : list walk) (q : Path) : list claim := map of (filter (stands q) s).
(** How many walks hold a gate in a mode. *)
Definition held_by (s : list walk) (q : Path) (m : mode) : nat := length (filter (holds q m) s).

(** Counts are those of the walks [s], lines those of the walks [t]; a walk on its way holds gates and stands in no
    line. *)
Definition agree (g : gates) (s t : list walk) : Prop :=
  forall q, (forall m, count (held (find g q)) m = held_by s q m) /\ line (find g q) = standing t q.

(** The head of a line does not fit, or the line waits to be advanced. *)
Definition sound (g : gates) (q : Path) : Prop :=
  forall c rest, line (find g q) = c :: rest ->
  clashes (held (find g q)) (wants c (length q)) = true \/ to_advance (find g q) = true.

(** The walks that stand at a gate are listed in order. *)
Lemma standing_app s t q : standing (s ++ t) q = standing s q ++ standing t q.
Proof. unfold standing. now rewrite filter_app, map_app. Qed.

(** The walks that hold a gate are counted one by one. *)
Lemma held_by_app s t q m : held_by (s ++ t) q m = held_by s q m + held_by t q m.
Proof. unfold held_by. now rewrite filter_app, app_length. Qed.

(** One walk more stands there or does not. *)
Lemma standing_cons w s q : standing (w :: s) q = (if stands q w then [of w] else []) ++ standing s q.
Proof. unfold standing. simpl. now destruct (stands q w). Qed.

(** One walk more is counted there or is not. *)
Lemma held_by_cons w s q m : held_by (w :: s) q m = (if holds q m w then 1 else 0) + held_by s q m.
Proof. unfold held_by. simpl. now destruct (holds q m w). Qed.

(** Gate [i] of a claim lies [i] segments below the root. *)
Lemma gate_of_length c i : i <= depth c -> length (gate_of c i) = i.
Proof. intros. unfold gate_of, depth in *. rewrite firstn_length. lia. Qed.

(** A gate of a claim is a prefix of its path. *)
Lemma prefix_gate c i : i <= depth c -> prefix (gate_of c i) (path c) = true.
Proof. intros L. apply prefix_spec. rewrite gate_of_length by auto. reflexivity. Qed.

(** A prefix of the path of a claim is its gate of that depth. *)
Lemma prefix_gate_of q c : prefix q (path c) = true <-> length q <= depth c /\ q = gate_of c (length q).
Proof.
  split.
  - intros P. split; [now apply prefix_length | symmetry; now apply prefix_spec].
  - intros [L E]. apply prefix_spec. now symmetry.
Qed.

(** A walk that is not granted stands at its next gate, and nowhere else. *)
Lemma stands_spec q w : stands q w = true <-> pos w <= depth (of w) /\ q = gate_of (of w) (pos w).
Proof.
  unfold stands. rewrite andb_true_iff, Nat.eqb_eq, prefix_gate_of. split.
  - intros (E & L & G). rewrite <- E. auto.
  - intros (L & ->). rewrite gate_of_length by auto. auto.
Qed.

(** Claims meet at a gate of the one that is a prefix of the other. *)
Lemma meet_gate c d i : meet c d i <-> i <= depth c /\ prefix (gate_of c i) (path d) = true.
Proof.
  unfold meet. rewrite prefix_spec. split.
  - intros (A & B & E). split; auto. rewrite gate_of_length by auto. now symmetry.
  - intros (A & E). rewrite gate_of_length in E by auto. repeat split; auto.
    apply (f_equal (@length nat)) in E. unfold gate_of, depth in *. rewrite !firstn_length in E. lia.
Qed.

(** Passing a gate adds the walk to the count of its mode there, and nothing elsewhere. *)
Lemma holds_pass q m w :
  (if holds q m (pass_gate w) then 1 else 0) =
  (if holds q m w then 1 else 0) + (if stands q w && eqb_mode (wants (of w) (length q)) m then 1 else 0).
Proof.
  unfold holds, stands. cbn [pass_gate of pos].
  destruct (prefix q (path (of w))), (eqb_mode (wants (of w) (length q)) m);
    rewrite ?andb_false_r, ?andb_true_r; auto.
  destruct (Nat.ltb_spec (length q) (pos w)), (Nat.ltb_spec (length q) (S (pos w))),
    (Nat.eqb_spec (length q) (pos w)); simpl; lia.
Qed.

(** The test for standing compares two paths. *)
Lemma stands_eqb w q : pos w <= depth (of w) -> stands q w = eqb_path q (gate_of (of w) (pos w)).
Proof. intros L. apply eq_true_iff_eq. rewrite stands_spec, eqb_path_spec. tauto. Qed.

(** A gate clashes with a mode exactly if a walk has passed it in a mode that does not fit: the counts are those of
    the walks. *)
Lemma clashes_held g s t c i :
  agree g s t -> i <= depth c ->
  clashes (held (find g (gate_of c i))) (wants c i) = true <->
  exists u, In u s /\ meet (of u) c i /\ i < pos u /\ fits (wants (of u) i) (wants c i) = false.
Proof.
  intros A L. rewrite clashes_spec. destruct (A (gate_of c i)) as [H _]. split.
  - intros (n & P & F). rewrite H in P. unfold held_by in P.
    destruct (filter _ s) as [|u f] eqn:E; [simpl in P; lia|].
    assert (I : In u (filter (holds (gate_of c i) n) s)) by (rewrite E; now left).
    apply filter_In in I as [I J]. exists u. unfold holds in J. rewrite !andb_true_iff, Nat.ltb_lt in J.
    rewrite eqb_mode_spec, gate_of_length in J by auto. destruct J as [[Lt Pr] <-].
    split; auto. split; auto. apply meet_sym, meet_gate. auto.
  - intros (u & I & M & Lt & F). exists (wants (of u) i). split; auto. rewrite H. unfold held_by.
    assert (J : In u (filter (holds (gate_of c i) (wants (of u) i)) s)).
    { apply filter_In. split; auto. unfold holds. rewrite gate_of_length by auto.
      rewrite !andb_true_iff, Nat.ltb_lt, eqb_mode_spec. repeat split; auto.
      apply meet_sym, meet_gate in M. apply M. }
    destruct (filter _ s); [contradiction | simpl; lia].
Qed.

(** No claim stands in the line of a gate exactly if no walk has stopped there. *)
Lemma standing_none s c i : i <= depth c ->
  standing s (gate_of c i) = [] <-> forall u, In u s -> meet (of u) c i -> pos u <> i.
Proof.
  intros L. unfold standing. split.
  - intros E u I M <-. apply map_eq_nil in E.
    assert (J : In u (filter (stands (gate_of c (pos u))) s)).
    { apply filter_In. split; auto. unfold stands. rewrite gate_of_length, Nat.eqb_refl by auto.
      apply meet_sym, meet_gate in M. apply M. }
    rewrite E in J. contradiction.
  - intros N. destruct (filter _ s) as [|u f] eqn:E; [reflexivity|]. exfalso.
    assert (J : In u (filter (stands (gate_of c i)) s)) by (rewrite E; now left).
    apply filter_In in J as [I J]. unfold stands in J. rewrite andb_true_iff, Nat.eqb_eq, gate_of_length in J by auto.
    destruct J as [E' P]. apply (N u I); auto. apply meet_sym, meet_gate. auto.
Qed.

(* --- walking on --------------------------------------------------------------------------------------------------- *)

(** Walks pass any number of gates. *)
Inductive steps : list walk -> list walk -> Prop :=
| Stay s : steps s s
| Go s t u : step s t -> steps t u -> steps s u.

(** Many steps keep the order: each does. *)
Lemma steps_ordered s t : steps s t -> ordered s -> ordered t.
Proof. induction 1; eauto using ordered_step. Qed.

(** [walk_on] counts and queues the walk where it should, is a series of steps, and leaves no line forgotten: by
    induction on the gates; where it joins a line the walks before it block it, where it passes none does. *)
Lemma walk_on_invariant l1 l2 c : forall n g i,
  n = S (depth c) - i -> i <= S (depth c) ->
  ordered (l1 ++ Walk c i :: l2) ->
  agree g (l1 ++ Walk c i :: l2) (l1 ++ l2) ->
  (forall v, In v l2 -> meet c (of v) i -> pos v < i) ->
  let (g', p) := walk_on n g c i in
  agree g' (l1 ++ Walk c p :: l2) (l1 ++ Walk c p :: l2) /\
  steps (l1 ++ Walk c i :: l2) (l1 ++ Walk c p :: l2) /\
  (i <= p <= S (depth c)) /\
  (forall q, sound g q -> sound g' q) /\
  (forall q, to_advance (find g' q) = true -> to_advance (find g q) = true) /\
  (forall q, to_advance (find g q) = true -> line (find g q) <> [] -> to_advance (find g' q) = true).
Proof.
  induction n as [|n IH]; intros g i En Li O A H.
  { cbn [walk_on]. repeat apply conj; auto; try lia; [|constructor].
    intros q. destruct (A q) as [C L]. split; [exact C|]. rewrite L, !standing_app, standing_cons.
    replace (stands q (Walk c i)) with false; auto. symmetry. apply not_true_is_false.
    rewrite stands_spec. simpl. lia. }
  assert (Ld : i <= depth c) by lia. cbn [walk_on]. set (q := gate_of c i) in *. set (x := find g q).
  destruct (stops x (wants c i)) eqn:St.
  - (* it joins the line, at its end *)
    assert (T : standing l2 q = []).
    { apply standing_none; auto. intros v I M E. apply meet_sym, (H v I) in M. lia. }
    assert (Q : forall r, stands r (Walk c i) = eqb_path r q) by (intros r; now rewrite stands_eqb).
    repeat apply conj; auto; try lia; [|constructor| | |].
    + intros r. rewrite held_put, line_put. destruct (A r) as [C L]. simpl. split.
      * intros m. rewrite <- C. destruct (eqb_path r q) eqn:E; auto.
        apply eqb_path_spec in E as ->. reflexivity.
      * rewrite standing_app, standing_cons, Q. rewrite standing_app in L.
        destruct (eqb_path r q) eqn:E; auto. apply eqb_path_spec in E as ->.
        unfold x. rewrite L, T, app_nil_r. reflexivity.
    + intros r Sr d rest. rewrite held_put, line_put, to_advance_put. simpl.
      destruct (eqb_path r q) eqn:E; [|apply Sr]. apply eqb_path_spec in E as ->. fold x.
      unfold stops in St. destruct (line x) as [|e f] eqn:Lx; simpl.
      * intros [= <- <-]. left. unfold q. rewrite gate_of_length by auto. exact St.
      * intros [= <- <-]. destruct (Sr e f Lx) as [W|W]; fold x in W; auto. right. rewrite W.
        destruct (held x) as [[] [] [] []]; reflexivity.
    + intros r. rewrite to_advance_put. destruct (eqb_path r q) eqn:E; auto. apply eqb_path_spec in E as ->.
      simpl. now intros [W _]%andb_true_iff.
    + intros r W N. rewrite to_advance_put. destruct (eqb_path r q) eqn:E; auto. apply eqb_path_spec in E as ->.
      fold x in W, N. rewrite W. simpl. destruct (held x) as [[] [] [] []], (line x); auto; contradiction.
  - (* it passes *)
    assert (Lx : line x = [] /\ clashes (held x) (wants c i) = false).
    { unfold stops in St. now destruct (line x). }
    destruct Lx as [Lx Cx].
    set (g1 := put g q (Gate (add (held x) (wants c i)) (line x) (to_advance x))).
    assert (P : step (l1 ++ Walk c i :: l2) (l1 ++ Walk c (S i) :: l2)).
    { apply (Step l1 (Walk c i) l2); auto. intros (u & I & M & [E|[Lt F]]); simpl in *.
      - unfold x in Lx. destruct (A q) as [_ Lq]. rewrite Lq, standing_app in Lx.
        apply app_eq_nil in Lx as [Lx _]. apply (proj1 (standing_none l1 c i Ld) Lx u I M E).
      - enough (clashes (held x) (wants c i) = true) by congruence.
        apply (clashes_held _ _ _ _ _ A Ld). exists u. repeat split; auto using in_or_app; apply M. }
    assert (A1 : agree g1 (l1 ++ Walk c (S i) :: l2) (l1 ++ l2)).
    { intros r. unfold g1. rewrite held_put, line_put. destruct (A r) as [C L]. simpl. split.
      - intros m. specialize (C m). rewrite held_by_app, held_by_cons in *.
        change (Walk c (S i)) with (pass_gate (Walk c i)). rewrite holds_pass, stands_eqb by auto. simpl of;
          simpl pos. fold q.
        destruct (eqb_path r q) eqn:E; [|simpl in *; lia]. apply eqb_path_spec in E as ->.
        rewrite count_add. fold x in C. replace (length q) with i by (unfold q; now rewrite gate_of_length).
        simpl. lia.
      - rewrite <- L. destruct (eqb_path r q) eqn:E; auto. apply eqb_path_spec in E as ->. reflexivity. }
    assert (H1 : forall v, In v l2 -> meet c (of v) (S i) -> pos v < S i).
    { intros v I M. apply (meet_down _ _ i) in M; [|lia]. apply (H v I) in M. lia. }
    specialize (IH g1 (S i) ltac:(lia) ltac:(lia) (ordered_step _ _ P O) A1 H1).
    fold q x g1. destruct (walk_on n g1 c (S i)) as [g' p].
    destruct IH as (B & Sp & Lp & So & Mk & Mk'). repeat apply conj; auto; try lia.
    + econstructor; eauto.
    + intros r Sr. apply So. intros d rest. unfold g1. rewrite held_put, line_put, to_advance_put.
      destruct (eqb_path r q) eqn:E; [|apply Sr]. simpl. rewrite Lx. discriminate.
    + intros r W. apply Mk in W. unfold g1 in W. rewrite to_advance_put in W.
      destruct (eqb_path r q) eqn:E; auto. apply eqb_path_spec in E as ->.
      simpl in W. now apply andb_true_iff in W as [W _].
    + intros r W N. apply Mk'; unfold g1.
      * rewrite to_advance_put. destruct (eqb_path r q) eqn:E; auto. apply eqb_path_spec in E as ->. contradiction.
      * rewrite line_put. destruct (eqb_path r q) eqn:E; auto. apply eqb_path_spec in E as ->. contradiction.
Qed.
