(** What each promise rests on: nothing. The list is that of docs/explanation/proof.md. *)

Require Import Settled Normalise Promises Progress Fairness Running Serial Blockers PackedCounts Leases Leftovers.

Print Assumptions granted_never_conflict.
Print Assumptions granted_conflicts_with_none_before.
Print Assumptions granted_exactly_when_free.
Print Assumptions waiting_is_blocked_by_an_earlier_walk.
Print Assumptions settled_state.
Print Assumptions cuts_do_not_show.
Print Assumptions advances_do_not_show.
Print Assumptions waits_point_to_smaller_jobs.
Print Assumptions ready_exactly_when_free.
Print Assumptions ready_conflicts_with_none_before.
Print Assumptions moves_end.
Print Assumptions first_job_is_ready.
Print Assumptions without_moves_no_walk_is_left.
Print Assumptions leftovers_can_be_finished.
Print Assumptions no_residue.
Print Assumptions no_starvation.
Print Assumptions a_conflict_is_named.
Print Assumptions normalise_compatible.
Print Assumptions normalise_keeps_conflicts.
Print Assumptions normalise_asks_for_no_more.
Print Assumptions packed_clash.
Print Assumptions packed_add.
Print Assumptions packed_sub.
Print Assumptions running_jobs_never_conflict.
Print Assumptions running_jobs_conflict_with_none_before.
Print Assumptions run_is_plain_run.
Print Assumptions serial_equivalence.
Print Assumptions one_after_another_sorted.
Print Assumptions one_after_another_keeps_each_job.
Print Assumptions at_most_one_settlement_counts.
Print Assumptions lost_lease_never_counts.
Print Assumptions late_settlement_changes_nothing.
Print Assumptions tokens_grow.
Print Assumptions engine_is_history.
Print Assumptions no_line_is_forgotten.
Print Assumptions nothing_more_is_nothing_left_over.
