(** Leftovers as the engine keeps them: a queue, first in, first out, with one budget over several items. What it says
    when nothing is left is true, and all that it does is a history of the trie, so that all promises hold of it. *)

From Coq Require Import List Arith Lia Bool.
Import ListNotations.
Require Import Claims Walks Settled Normalise Trie Agreement Operations Promises.

(** A trie, and the lines that are left over to be advanced, the first first. A line is known by its path: one may be
    there twice, or wait no more. *)
Record engine := Engine { trie : state; left_over : list Path }.

(** The lines that wait to be advanced now and did not before. *)
Definition newly (st st' : state) : list Path :=
  filter (fun q => to_advance (find (at_gates st') q) && negb (to_advance (find (at_gates st) q)))
    (map fst (at_gates st')).

(** Advance lines in order until the budget is used up. A line that may still move goes to the end; [n] is how many
    are looked at. *)
Fixpoint follow (n budget : nat) (e : engine) : engine :=
  match n, left_over e with
  | 0, _ | _, [] => e
  | S n', q :: rest =>
    if budget =? 0 then e
    else if to_advance (find (at_gates (trie e)) q) then
      match advance (trie e) q budget with
      | (st, (used, more, _)) => follow n' (budget - used) (Engine st (if more then rest ++ [q] else rest))
      end
    else follow n' budget (Engine (trie e) rest)
  end.

(** What is asked of an engine: jobs come and go, and what is left over is followed up. *)
Inductive request := Come (cs : list ask) | Go (j : nat) | Tick (budget : nat).

(** The engine after a request: lines that wait newly are put at the end. *)
Definition answer (e : engine) (r : request) : engine :=
  match r with
  | Come cs => let st := enqueue (trie e) cs in Engine st (left_over e ++ newly (trie e) st)
  | Go j => let st := vacate (trie e) j in Engine st (left_over e ++ newly (trie e) st)
  | Tick budget => follow (length (left_over e)) budget e
  end.

(** A history of requests, from an empty engine on. *)
Definition serve (rs : list request) : engine := fold_left answer rs (Engine start []).

(** What a history of requests asks of the trie, without the advances. *)
Definition asked (r : request) : list op :=
  match r with Come cs => [Enqueue cs] | Go j => [Vacate j] | Tick _ => [] end.

(* --- what the engine does is a history of the trie ---------------------------------------------------------------- *)

(** Following up is some advances: by induction on how many lines are looked at. *)
Lemma follow_is_advances n : forall budget e, exists h,
  trie (follow n budget e) = fold_left perform h (trie e) /\ filter (fun o => negb (is_advance o)) h = [].
Proof.
  induction n as [|n IH]; intros budget e; cbn [follow]; [now exists []|].
  destruct (left_over e) as [|q rest]; [now exists []|].
  destruct (budget =? 0); [now exists []|].
  destruct (to_advance _); [|exact (IH budget (Engine (trie e) rest))].
  destruct (advance (trie e) q budget) as [st [[used more] arrived]] eqn:A.
  destruct (IH (budget - used) (Engine st (if more then rest ++ [q] else rest))) as (h & E & F).
  exists (Advance q budget :: h). cbn [fold_left perform filter is_advance negb]. rewrite A. now split.
Qed.

(** Each history of requests is one of the trie, with the same jobs coming and going: so all that is proved of every
    history holds of the engine. *)
Theorem engine_is_history rs : exists h,
  trie (serve rs) = run h /\ filter (fun o => negb (is_advance o)) h = flat_map asked rs.
Proof.
  assert (G : forall e, exists h, trie (fold_left answer rs e) = fold_left perform h (trie e) /\
    filter (fun o => negb (is_advance o)) h = flat_map asked rs).
  { induction rs as [|r rs IH]; intros e; [now exists []|]. cbn [fold_left flat_map].
    destruct (IH (answer e r)) as (h & E & F). destruct r as [cs|j|budget]; cbn [asked app].
    - exists (Enqueue cs :: h). rewrite E. cbn. now rewrite F.
    - exists (Vacate j :: h). rewrite E. cbn. now rewrite F.
    - destruct (follow_is_advances (length (left_over e)) budget e) as (k & K & N). exists (k ++ h).
      rewrite E, fold_left_app, filter_app, N, F. cbn [answer]. now rewrite K. }
  apply (G (Engine start [])).
Qed.

(* --- nothing is forgotten ----------------------------------------------------------------------------------------- *)

(** Only a gate that is there waits: by induction on the gates. *)
Lemma waiting_is_there g q : to_advance (find g q) = true -> In q (map fst g).
Proof.
  induction g as [|[p x] g IH]; cbn; [discriminate|]. destruct (eqb_path q p) eqn:E; auto.
  apply eqb_path_spec in E. auto.
Qed.

(** Every line that waits is left over. *)
Definition none_lost (e : engine) : Prop :=
  forall q, to_advance (find (at_gates (trie e)) q) = true -> In q (left_over e).

(** What waits after a step waited before, or is put at the end. *)
Lemma newly_keeps e st : none_lost e -> none_lost (Engine st (left_over e ++ newly (trie e) st)).
Proof.
  intros N q T. cbn in *. apply in_app_iff. destruct (to_advance (find (at_gates (trie e)) q)) eqn:B; [left; auto|].
  right. apply filter_In. split; [now apply waiting_is_there|]. now rewrite T, B.
Qed.

(** Walking on marks no line: by induction on the gates. *)
Lemma walk_on_marks_none n : forall g c i r,
  to_advance (find (fst (walk_on n g c i)) r) = true -> to_advance (find g r) = true.
Proof.
  induction n as [|n IH]; intros g c i r; cbn [walk_on]; auto. destruct (stops _ _); cbn [fst]; intros H.
  - rewrite to_advance_put in H. destruct (eqb_path r _) eqn:E; auto. apply eqb_path_spec in E as ->.
    now apply andb_true_iff in H as [H _].
  - apply IH in H. rewrite to_advance_put in H. destruct (eqb_path r _) eqn:E; auto. apply eqb_path_spec in E as ->.
    now apply andb_true_iff in H as [H _].
Qed.

(** Clearing a mark clears it, and no other. *)
Lemma clear_clears g q r :
  to_advance (find (clear_to_advance g q) r) = if eqb_path r q then false else to_advance (find g r).
Proof. unfold clear_to_advance. rewrite to_advance_put. now destruct (eqb_path r q). Qed.

(** Advancing marks no line, and a line that may not move on waits no more: by induction on the line. *)
Lemma advance_marks_none q b n : forall used arrived st,
  let (st', r) := advance_loop n q b used arrived st in
  (forall p, to_advance (find (at_gates st') p) = true -> to_advance (find (at_gates st) p) = true) /\
  (snd (fst r) = false -> to_advance (find (at_gates st') q) = false).
Proof.
  assert (O : forall g, (forall p, to_advance (find (clear_to_advance g q) p) = true -> to_advance (find g p) = true)
    /\ to_advance (find (clear_to_advance g q) q) = false).
  { intros g. split; [intros p|]; rewrite clear_clears; [destruct (eqb_path p q); [discriminate|auto]|].
    now rewrite eqb_path_refl. }
  induction n as [|n IH]; intros used arrived st; cbn [advance_loop].
  { cbn. split; [apply O | intros _; apply O]. }
  destruct (line _) as [|c rest] eqn:L; [cbn; split; [apply O | intros _; apply O]|].
  destruct (clashes _ _); [cbn; split; [apply O | intros _; apply O]|].
  destruct (b <=? used); [cbn; split; [auto | discriminate]|].
  destruct (walk_on _ _ _ _) as [g p] eqn:W.
  match goal with |- context [advance_loop n q b ?u ?a ?s] => specialize (IH u a s);
    destruct (advance_loop n q b u a s) as [st' r] end.
  destruct IH as [A B]. split; auto. intros x T. apply A in T. cbn in T.
  assert (T' : to_advance (find (fst (g, p)) x) = true) by exact T. rewrite <- W in T'.
  apply walk_on_marks_none in T'. rewrite to_advance_put in T'. destruct (eqb_path x q) eqn:E; auto.
  apply eqb_path_spec in E as ->. now apply andb_true_iff in T' as [T' _].
Qed.

(** Following up forgets no line: by induction on how many are looked at. *)
Lemma follow_none_lost n : forall budget e, none_lost e -> none_lost (follow n budget e).
Proof.
  induction n as [|n IH]; intros budget e N; cbn [follow]; auto.
  destruct (left_over e) as [|q rest] eqn:L; auto. destruct (budget =? 0); auto.
  destruct (to_advance (find (at_gates (trie e)) q)) eqn:T.
  - pose proof (advance_marks_none q budget (length (line (find (at_gates (trie e)) q))) 0 [] (trie e)) as A.
    fold (advance (trie e) q budget) in A.
    destruct (advance (trie e) q budget) as [st [[used more] arrived]]. destruct A as [A B]. apply IH.
    intros p P. cbn in *. pose proof (N p (A p P)) as I. rewrite L in I. destruct more.
    + apply in_app_iff. destruct I as [<-|I]; [right; now left | now left].
    + destruct I as [<-|I]; auto. rewrite B in P by auto. discriminate.
  - apply IH. intros p P. cbn in *. pose proof (N p P) as I. rewrite L in I. destruct I as [<-|I]; auto. congruence.
Qed.

(** No line that waits to be advanced is forgotten, in any history. *)
Theorem no_line_is_forgotten rs : none_lost (serve rs).
Proof.
  assert (G : forall e, none_lost e -> none_lost (fold_left answer rs e)).
  { induction rs as [|r rs IH]; intros e N; cbn; auto. apply IH.
    destruct r as [cs|j|budget]; cbn [answer]; auto using newly_keeps, follow_none_lost. }
  apply G. intros q. cbn. destruct (eqb_path q []); discriminate.
Qed.

(** When the engine says that nothing is left over, that is so: all that holds with nothing left over holds. *)
Corollary nothing_more_is_nothing_left_over rs : left_over (serve rs) = [] -> nothing_left_over (trie (serve rs)).
Proof.
  intros E q. destruct (to_advance _) eqn:T; auto. apply no_line_is_forgotten in T. rewrite E in T. contradiction.
Qed.
