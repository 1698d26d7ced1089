(** Which jobs can be named for an exclusive claim that waits: once nothing is left over, a holder whose mode does
    not fit, or the head of the line, conflicts with it. *)

From Coq Require Import List Arith Lia Bool.
Import ListNotations.
Require Import Claims Walks Settled Trie Agreement Operations Promises.

(** A list has a first element that passes a test, or none. *)
Lemma first_with {A} (f : A -> bool) l :
  (forall x, In x l -> f x = false) \/
  exists l1 x l2, l = l1 ++ x :: l2 /\ f x = true /\ forall y, In y l1 -> f y = false.
Proof.
  induction l as [|a l IH]; [left; contradiction|]. destruct (f a) eqn:F.
  - right. exists [], a, l. repeat split; auto. contradiction.
  - destruct IH as [N|(l1 & x & l2 & -> & Fx & N)].
    + left. intros x [<-|I]; auto.
    + right. exists (a :: l1), x, l2. repeat split; auto. intros y [<-|I]; auto.
Qed.

(** If nothing is left over, an exclusive claim that waits conflicts with a holder whose mode does not fit, or with
    the head of the line: the head is stopped by a holder, and one of the two is at the gate's own node. *)
Theorem a_conflict_is_named h l1 w l2 :
  nothing_left_over (run h) -> walks (run h) = l1 ++ w :: l2 -> ~ granted w -> shared (of w) = false ->
  let q := gate_of (of w) (pos w) in
  (exists u, In u l1 /\ meet (of u) (of w) (pos w) /\ pos w < pos u /\
     fits (wants (of u) (pos w)) (wants (of w) (pos w)) = false /\ conflict (of u) (of w) = true) \/
  (exists c rest, line (find (at_gates (run h)) q) = c :: rest /\ conflict c (of w) = true).
Proof.
  intros L E G X q. pose proof (run_invariant h) as Good. pose proof (nothing_left_over_stable _ Good L) as Q.
  assert (Lp : pos w <= depth (of w)).
  { pose proof (in_order _ Good) as O. rewrite E in O. apply ordered_app in O as (_ & (B & _) & _).
    unfold granted in G. lia. }
  destruct (first_with (stands q) l1) as [N|(l3 & x & l4 & El & Sx & N)].
  - (* it is the head itself *)
    left. destruct (Q l1 w l2 E) as [|(u & I & M & [S|[Lt F]])]; [contradiction| |].
    + exfalso. specialize (N u I). unfold stands, q in N. rewrite gate_of_length in N by auto.
      apply meet_sym, meet_gate in M as [_ M]. rewrite M, S, Nat.eqb_refl in N. discriminate.
    + exists u. repeat split; auto; try apply M. eapply clash_conflict; eauto.
  - assert (Hl : exists rest, line (find (at_gates (run h)) q) = of x :: rest).
    { destruct (agreed _ Good q) as [_ Ls]. rewrite Ls, E, El. unfold standing.
      rewrite <- app_assoc, filter_app. simpl. rewrite Sx.
      replace (filter (stands q) l3) with (@nil walk); [simpl; eauto|]. clear - N.
      induction l3 as [|y l IH]; simpl; auto. rewrite N by (now left). apply IH. intros; apply N; now right. }
    destruct Hl as [rest Hl].
    assert (Mx : meet (of x) (of w) (pos w) /\ pos x = pos w).
    { unfold stands, q in Sx. rewrite gate_of_length in Sx by auto. apply andb_true_iff in Sx as [Sx Px].
      apply Nat.eqb_eq in Sx. split; auto. apply meet_sym, meet_gate. auto. }
    destruct Mx as [Mx Px].
    assert (Ex : walks (run h) = l3 ++ x :: (l4 ++ w :: l2)) by (rewrite E, El, <- app_assoc; reflexivity).
    destruct (Q l3 x _ Ex) as [Gx|(u & I & M & [S|[Lt F]])].
    + unfold granted in Gx. destruct Mx. lia.
    + exfalso. specialize (N u I). unfold stands, q in N. rewrite gate_of_length in N by auto. rewrite Px in *.
      assert (M' : meet (of u) (of w) (pos w)) by (eapply meet_trans; eauto).
      apply meet_sym, meet_gate in M' as [_ M']. rewrite M', S, Nat.eqb_refl in N. discriminate.
    + rewrite Px in *. assert (M' : meet (of u) (of w) (pos w)) by (eapply meet_trans; eauto).
      destruct (clash_is_at_a_node_of_one _ _ _ M F) as [D|D].
      * left. exists u. split; [rewrite El; apply in_or_app; now left|]. split; auto. split; auto.
        assert (C : conflict (of u) (of w) = true) by (eapply meeting_at_own_node_conflicts; eauto; rewrite X;
          apply andb_false_r).
        split; auto. unfold wants. rewrite D, Nat.eqb_refl, X.
        destruct (shared (of u)), (pos w =? depth (of w)); reflexivity.
      * right. exists (of x), rest. split; auto. eapply meeting_at_own_node_conflicts; eauto. rewrite X.
        apply andb_false_r.
Qed.
