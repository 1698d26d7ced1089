(** Examples that compute: the rule at work, and that the conditions of the promises are needed. *)

From Coq Require Import List Arith Bool.
Import ListNotations.
Require Import Claims Walks Settled Trie Agreement Operations Promises.

(** The numbers of the granted claims. *)
Definition granted_numbers (st : state) : list nat :=
  map (fun w => num (of w)) (filter (fun w => pos w =? S (depth (of w))) (walks st)).

(** No line waits to be advanced. *)
Definition over (st : state) : bool := forallb (fun e => negb (to_advance (snd e))) (at_gates st).

Definition exclusive (p : Path) := (p, false).
Definition shared_claim (p : Path) := (p, true).

(** Two sections; their document; a section placed after it; another document. *)
Definition sections_and_document := [Enqueue [exclusive [1; 1]]; Enqueue [exclusive [1; 2]]; Enqueue [exclusive [1]];
  Enqueue [exclusive [1; 3]]; Enqueue [exclusive [2]]].

(** Two sections and another document run together. *)
Example siblings_run_together : granted_numbers (run sections_and_document) = [1; 2; 5].
Proof. reflexivity. Qed.

(** The document waits as long as one of its sections runs. *)
Example the_parent_waits_for_both : granted_numbers (run (sections_and_document ++ [Vacate 1; Advance [1] 9])) = [2; 5].
Proof. reflexivity. Qed.

(** The document runs next, and the section placed later waits for it. *)
Example the_parent_is_a_barrier : granted_numbers (run (sections_and_document ++ [Vacate 1; Vacate 2;
  Advance [1] 9])) = [3; 5].
Proof. reflexivity. Qed.

(** While something is left over, a claim that is free may still wait: exactness needs [nothing_left_over]. *)
Example free_but_not_yet_advanced :
  let st := run [Enqueue [exclusive [1]]; Enqueue [exclusive [1; 1]]; Vacate 1] in
  over st = false /\ map (fun w => num (of w)) (walks st) = [2] /\ granted_numbers st = [].
Proof. repeat split. Qed.

(** A shared claim may wait though none before it conflicts: the second, exclusive, waits for the first, and the
    third, shared, stands behind the second. *)
Example shared_is_free_but_waits :
  let st := run [Enqueue [shared_claim [1]]; Enqueue [exclusive [1; 1]]; Enqueue [shared_claim [1; 2]]] in
  over st = true /\ granted_numbers st = [1] /\
  forallb (fun c => negb (conflict c (Claim 3 3 [1; 2] true))) (firstn 2 (map of (walks st))) = true.
Proof. repeat split. Qed.

(** The other way round: the second, shared, waits for the first, and the third, shared too, stands behind it. *)
Example shared_is_free_but_waits_for_shared :
  let st := run [Enqueue [exclusive [1; 1]]; Enqueue [shared_claim [1]]; Enqueue [shared_claim [1; 2]]] in
  over st = true /\ granted_numbers st = [1] /\
  forallb (fun c => negb (conflict c (Claim 3 3 [1; 2] true))) (firstn 2 (map of (walks st))) = true.
Proof. repeat split. Qed.

(** While something is left over, no conflict may be named: the head of the line does not conflict, and none holds
    the gate. *)
Example at_a_cut_no_conflict_is_named :
  let st := run [Enqueue [exclusive [1]]; Enqueue [exclusive [1; 1]]; Enqueue [exclusive [1; 2]]; Vacate 1] in
  line (find (at_gates st) [1]) = [Claim 2 2 [1; 1] false; Claim 3 3 [1; 2] false] /\
  clashes (held (find (at_gates st) [1])) IX = false.
Proof. repeat split. Qed.
