(** The twin of queuehint/core/structures/trie.py: gates with four counts, a line, and whether it waits to be
    advanced.

    An operation gives a job its places, advances one line with a budget, or takes a job out. Any line may be
    advanced at any time: so every cut and every order of the leftovers is in a list of operations. Nodes are a list
    from path to gate in place of linked objects. *)

From Coq Require Import List Arith Lia Bool.
Import ListNotations.
Require Import Claims Walks Settled Normalise.

(* --- what is held at a gate --------------------------------------------------------------------------------------- *)

(** The counts of a gate by mode; packed into one int in the code (PackedCounts.v). *)
Record counts := Counts { nIS : nat; nIX : nat; nS : nat; nX : nat }.

Definition zero := Counts 0 0 0 0.

Definition count (h : counts) (m : mode) : nat :=
  match m with IS => nIS h | IX => nIX h | Sh => nS h | Ex => nX h end.

Definition add (h : counts) (m : mode) : counts :=
  let (a, b, c, d) := h in
  match m with IS => Counts (S a) b c d | IX => Counts a (S b) c d | Sh => Counts a b (S c) d | Ex => Counts a b c (S
    d) end.

Definition sub (h : counts) (m : mode) : counts :=
  let (a, b, c, d) := h in
  match m with
  | IS => Counts (pred a) b c d | IX => Counts a (pred b) c d | Sh => Counts a b (pred c) d | Ex => Counts a b c (pred
    d)
  end.

(** Twin of [held & CLASHES[m]]: a count is above zero of a mode that [m] does not fit. *)
Definition clashes (h : counts) (m : mode) : bool :=
  match m with
  | IS => 0 <? nX h
  | IX => (0 <? nS h) || (0 <? nX h)
  | Sh => (0 <? nIX h) || (0 <? nX h)
  | Ex => (0 <? nIS h) || (0 <? nIX h) || (0 <? nS h) || (0 <? nX h)
  end.

Definition eqb_mode (m n : mode) : bool :=
  match m, n with IS, IS | IX, IX | Sh, Sh | Ex, Ex => true | _, _ => false end.

(** The test finds a count above zero of a mode that does not fit: by cases. *)
Lemma clashes_spec h m : clashes h m = true <-> exists n, 0 < count h n /\ fits n m = false.
Proof.
  split.
  - destruct m; simpl; rewrite ?orb_true_iff, ?Nat.ltb_lt; intros H;
      repeat match goal with H : _ \/ _ |- _ => destruct H as [H|H] end;
      first [exists IS; split; [assumption|reflexivity] | exists IX; split; [assumption|reflexivity]
            | exists Sh; split; [assumption|reflexivity] | exists Ex; split; [assumption|reflexivity]].
  - intros (n & P & F). destruct m, n; simpl in *; try discriminate; rewrite ?orb_true_iff, ?Nat.ltb_lt; tauto.
Qed.

(** Adding changes the count of one mode by one. *)
Lemma count_add h m n : count (add h m) n = count h n + if eqb_mode m n then 1 else 0.
Proof. destruct h, m, n; simpl; lia. Qed.

(** Subtracting changes the count of one mode by one, down to zero. *)
Lemma count_sub h m n : count (sub h m) n = count h n - if eqb_mode m n then 1 else 0.
Proof. destruct h, m, n; simpl; lia. Qed.

(** A mode equals itself: by cases. *)
Lemma eqb_mode_refl m : eqb_mode m m = true.
Proof. now destruct m. Qed.

(** [eqb_mode] decides equality: by cases. *)
Lemma eqb_mode_spec m n : eqb_mode m n = true <-> m = n.
Proof. destruct m, n; simpl; split; congruence. Qed.

(* --- gates, by path ----------------------------------------------------------------------------------------------- *)

(** Twin of [Node]: counts, line, and whether the line waits to be advanced. *)
Record gate := Gate { held : counts; line : list claim; to_advance : bool }.

Definition nothing := Gate zero [] false.

(** The nodes: a list from path to gate. *)
Definition gates := list (Path * gate).

(** Twin of [PathTrie.find]; what is not there is an empty gate. *)
Fixpoint find (g : gates) (q : Path) : gate :=
  match g with [] => nothing | (p, x) :: t => if eqb_path q p then x else find t q end.

Definition is_empty (x : gate) : bool :=
  match x with Gate (Counts 0 0 0 0) [] _ => true | _ => false end.

Definition drop (g : gates) (q : Path) : gates := filter (fun e => negb (eqb_path q (fst e))) g.

(** Write a gate. An empty one is deleted, and with it whether it waited to be advanced; the root stays. *)
Definition put (g : gates) (q : Path) (x : gate) : gates :=
  if is_empty x && negb (eqb_path q []) then drop g q else (q, x) :: drop g q.

(** A path equals itself. *)
Lemma eqb_path_refl p : eqb_path p p = true.
Proof. now apply eqb_path_spec. Qed.

(** A dropped gate reads as an empty one, the others are as before: by induction on the gates. *)
Lemma find_drop g q r : find (drop g q) r = if eqb_path r q then nothing else find g r.
Proof.
  induction g as [|[p x] g IH]; simpl; [now destruct (eqb_path r q)|].
  destruct (eqb_path q p) eqn:E; simpl; rewrite IH; destruct (eqb_path r q) eqn:F; auto.
  - apply eqb_path_spec in E as <-. now rewrite F.
  - apply eqb_path_spec in F as ->. now rewrite E.
Qed.

(** Reading after writing gives what was written, or an empty gate if that was deleted. *)
Lemma find_put g q x r :
  find (put g q x) r = if eqb_path r q then (if is_empty x && negb (eqb_path q []) then nothing else x) else find g r.
Proof.
  unfold put. destruct (is_empty x && negb (eqb_path q [])); simpl; rewrite find_drop; destruct (eqb_path r q); auto.
Qed.

(** Writing sets the counts even if the gate is deleted: then they are zero. *)
Lemma held_put g q x r : held (find (put g q x) r) = if eqb_path r q then held x else held (find g r).
Proof.
  rewrite find_put. destruct (eqb_path r q); auto. destruct x as [[[] [] [] []] [] ?]; simpl; auto.
  now destruct (eqb_path q []).
Qed.

(** Writing sets the line even if the gate is deleted: then it is empty. *)
Lemma line_put g q x r : line (find (put g q x) r) = if eqb_path r q then line x else line (find g r).
Proof.
  rewrite find_put. destruct (eqb_path r q); auto. destruct x as [[[] [] [] []] [] ?]; simpl; auto.
  now destruct (eqb_path q []).
Qed.

(** Writing sets whether the line waits to be advanced, unless the gate is deleted. *)
Lemma to_advance_put g q x r :
  to_advance (find (put g q x) r) =
  if eqb_path r q then to_advance x && negb (is_empty x && negb (eqb_path q [])) else to_advance (find g r).
Proof.
  rewrite find_put. destruct (eqb_path r q); auto.
  destruct (is_empty x && negb (eqb_path q [])); simpl; now rewrite ?andb_false_r, ?andb_true_r.
Qed.

(* --- the algorithm ------------------------------------------------------------------------------------------------ *)

(** Gate [i] of a claim. *)
Definition gate_of (c : claim) (i : nat) : Path := firstn i (path c).

(** A walk joins the line if one stands there or its mode does not fit. *)
Definition stops (x : gate) (m : mode) : bool :=
  match line x with [] => clashes (held x) m | _ :: _ => true end.

(** Twin of [PathTrie._walk_on], from gate [i], which has yet to be passed, on; [n] gates are left from there. *)
Fixpoint walk_on (n : nat) (g : gates) (c : claim) (i : nat) : gates * nat :=
  match n with
  | 0 => (g, i)
  | S n' =>
    let q := gate_of c i in
    let x := find g q in
    if stops x (wants c i)
    then (put g q (Gate (held x) (line x ++ [c]) (to_advance x)), i)
    else walk_on n' (put g q (Gate (add (held x) (wants c i)) (line x) (to_advance x))) c (S i)
  end.

(** A trie, the walks of unfinished claims in order of place, and the last numbers given. *)
Record state := State { at_gates : gates; walks : list walk; last_num : nat; last_job : nat }.

Definition start := State [([], nothing)] [] 0 0.

(** Set the position of the walk with number [n]. *)
Definition set_pos (n p : nat) (s : list walk) : list walk :=
  map (fun w => if num (of w) =? n then Walk (of w) p else w) s.

(** Twin of [PathTrie.place], for one claim of job [j]. *)
Definition place (st : state) (j : nat) (p : Path) (sh : bool) : state :=
  let c := Claim (S (last_num st)) j p sh in
  let (g, i) := walk_on (S (depth c)) (at_gates st) c 0 in
  State g (walks st ++ [Walk c i]) (S (last_num st)) (last_job st).

(** The line of a gate waits no more. *)
Definition clear_to_advance (g : gates) (q : Path) : gates :=
  let x := find g q in put g q (Gate (held x) (line x) false).

(** The loop of [PathTrie.advance]: returns the gates visited, whether the line may still move, and the numbers of
    the claims that were granted, in order. *)
Fixpoint advance_loop (n : nat) (q : Path) (budget used : nat) (arrived : list nat) (st : state)
  : state * (nat * bool * list nat) :=
  let x := find (at_gates st) q in
  let over := (State (clear_to_advance (at_gates st) q) (walks st) (last_num st) (last_job st), (used, false,
    arrived)) in
  match n, line x with
  | 0, _ | _, [] => over
  | S n', c :: rest =>
    let m := wants c (length q) in
    if clashes (held x) m then over
    else if budget <=? used then (st, (used, true, arrived))
    else
      let g1 := put (at_gates st) q (Gate (add (held x) m) rest (to_advance x)) in
      let (g2, p) := walk_on (depth c - length q) g1 c (S (length q)) in
      let st' := State g2 (set_pos (num c) p (walks st)) (last_num st) (last_job st) in
      let used' := used + S (min p (depth c) - length q) in
      advance_loop n' q budget used' (if p =? S (depth c) then arrived ++ [num c] else arrived) st'
  end.

(** Twin of [PathTrie.advance]. *)
Definition advance (st : state) (q : Path) (budget : nat) : state * (nat * bool * list nat) :=
  advance_loop (length (line (find (at_gates st) q))) q budget 0 [] st.

(** Put a line whose head fits now among the leftovers. *)
Definition recheck (i : nat) (x : gate) : gate :=
  match line x with
  | h :: _ => if clashes (held x) (wants h i) then x else Gate (held x) (line x) true
  | [] => x
  end.

(** Take a claim out of a line. *)
Definition without (n : nat) (l : list claim) : list claim := filter (fun c => negb (num c =? n)) l.

(** What a walk that has passed [p] gates leaves at its gate [i]: its count, or its place in the line. *)
Definition left_at (c : claim) (p i : nat) (x : gate) : gate :=
  if i <? p then Gate (sub (held x) (wants c i)) (line x) (to_advance x)
  else Gate (held x) (without (num c) (line x)) (to_advance x).

(** The loop of [PathTrie.leave], from gate [i] up to the root. *)
Fixpoint leave_up (i : nat) (g : gates) (c : claim) (p : nat) : gates :=
  let q := gate_of c i in
  let g' := put g q (recheck i (left_at c p i (find g q))) in
  match i with 0 => g' | S i' => leave_up i' g' c p end.

(** Twin of [PathTrie.leave]. *)
Definition leave (st : state) (w : walk) : state :=
  State (leave_up (min (pos w) (depth (of w))) (at_gates st) (of w) (pos w))
        (filter (fun v => negb (num (of v) =? num (of w))) (walks st)) (last_num st) (last_job st).

(** What may happen to a trie. *)
Inductive op :=
| Enqueue (cs : list ask)
| Advance (q : Path) (budget : nat)
| Vacate (j : nat).

(** A job takes its places in one step: its claims, normalised, one after the other. *)
Definition enqueue (st : state) (cs : list ask) : state :=
  let j := S (last_job st) in
  fold_left (fun st e => place st j (fst e) (snd e)) (normalise cs)
    (State (at_gates st) (walks st) (last_num st) j).

(** A job gives up its places: all its walks leave. *)
Definition vacate (st : state) (j : nat) : state :=
  fold_left leave (filter (fun w => job (of w) =? j) (walks st)) st.

Definition perform (st : state) (o : op) : state :=
  match o with
  | Enqueue cs => enqueue st cs
  | Advance q b => fst (advance st q b)
  | Vacate j => vacate st j
  end.

(** A history, from the empty trie on. *)
Definition run (h : list op) : state := fold_left perform h start.
