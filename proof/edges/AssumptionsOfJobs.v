(** What each promise about edges rests on: nothing. The list is that of docs/explanation/proof.md. *)

Require Import Jobs Safety NoDeadlock Deadlocks WithGates Uncut Cycles.

Print Assumptions running_jobs_never_conflict.
Print Assumptions running_jobs_conflict_with_none_before.
Print Assumptions start_conflicts_with_none_before.
Print Assumptions placed_jobs_wait_for_nothing_else.
Print Assumptions only_dead_jobs_block.
Print Assumptions no_deadlock.
Print Assumptions nothing_possible_nothing_left.
Print Assumptions moves_end.
Print Assumptions everything_ends.
Print Assumptions places_at_enqueue_deadlock.
Print Assumptions unchecked_children_deadlock.
Print Assumptions unchecked_revival_deadlocks.
Print Assumptions both_checks_refuse_it.
Print Assumptions handler_waiting_for_a_job_behind_it_deadlocks.
Print Assumptions handler_waiting_through_a_third_deadlocks.
Print Assumptions plain_sound.
Print Assumptions revived_in_turn_sound.
Print Assumptions gates_sound.
Print Assumptions gates_never_deadlock.
Print Assumptions uncut_revival_is_safe.
Print Assumptions uncut_never_deadlocks.
Print Assumptions search_is_exact.
Print Assumptions accepted_is_sorted.
Print Assumptions accepts_exactly_what_has_no_cycle.
