"""
The dead jobs that hold up a flow.

A job is *held* if it waits for a dead one: because it depends on it and keeps waiting for a redrive, because the dead
one holds the place that it needs, or because it waits for a job that is held, of the flow or of elsewhere. A flow is
stuck if each of its jobs that is not over is held.

The counts of the flow rule that out, as a rule. Otherwise its first jobs of each state are looked at, up to a bound.
Those that depend on failed ones, or on held ones, are told by their records alone. Of another one `Why` returns a chain
of reasons, up to `CHAIN_MAX` jobs long: it ends at a dead job, or at a wait of another kind. Beside that the search
goes on with the other jobs that the reasons name. A job whose search finds no dead one can go on, and ends the look.

A parent that is dead because of its children is named by those that are dead still: a redrive of it finds them as they
are, and fails again. Once they are over otherwise it is named itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs

from queuehint.client.record_reads import records_of
from queuehint.client.stuck import WAITS_FOR_JOBS, ask_why, read_records
from queuehint.operations import CHAIN_MAX
from queuehint.values.record import JobState
from queuehint.values.report import JOBS_NAMED_MAX, ReasonKind
from queuehint.values.spec import CHILDREN_TASK

if TYPE_CHECKING:
    from collections.abc import Mapping

    from queuehint.backends.steps import Steps
    from queuehint.values.record import JobRecord
    from queuehint.values.record_filter import RecordFilter
    from queuehint.values.report import Reason

    _Waiting = tuple[str, set[str], set[str]]
    """A job, those for whose redrive it waits when they fail, and all that it depends on."""

CHILD_FAILED: Final = "child_failed"
"""The cause of the end of a parent whose child has failed."""
DEFERRED, QUEUED, FAILED = JobState.DEFERRED, JobState.QUEUED, JobState.FAILED
LOOKED_AT_MAX: Final = 1000
"""How many jobs of a flow are looked at that have failed, and how many that wait for others: pages of 200."""
QUEUED_MAX: Final = 100
"""How many are looked at that have a place."""
ASKED_MAX: Final = 200
"""How many questions of one look follow what its jobs wait for."""
_WAITS_FOR_DEAD: Final = frozenset({ReasonKind.DEAD_HOLD, ReasonKind.DEAD_DEPENDENCY})


def find_dead(states: Mapping[JobState, int], wanted: RecordFilter) -> Steps[tuple[str, ...]]:
    """
    Return the ids of up to ten dead jobs that hold up the rest of a flow. Empty if any job can go on.

    Args:
        states: its jobs by state.
        wanted: the filter that the jobs of the flow pass.
    """
    if states.get(JobState.SCHEDULED) or states.get(JobState.STARTED):
        return ()
    look = _Look(wanted)
    if states.get(QUEUED) and not (yield from look.at_queued()):
        return ()
    if states.get(DEFERRED) and not (yield from look.at_deferred()):
        return ()
    return (yield from look.causes()) if look.dead else ()


class _Look:
    """One look at the jobs of a flow. Each part returns False at the first job that can go on."""

    def __init__(self, wanted: RecordFilter) -> None:
        self._wanted = wanted
        self._reasons: dict[str, Reason] = {}
        """Why jobs wait, as far as it was asked."""
        self._held: set[str] = set()
        """The ids of jobs that are held."""
        self._free: set[str] = set()
        """The ids of jobs that a search went through and found no dead one behind."""
        self._left = ASKED_MAX
        self.dead: dict[str, None] = {}
        """The ids of the dead jobs that hold up others, in the order they were found."""

    def _records(self, state: JobState, most: int) -> Steps[list[JobRecord]]:
        return records_of(attrs.evolve(self._wanted, states=(state,)), most)

    def at_queued(self) -> Steps[bool]:
        """Look at the jobs that have a place."""
        for record in (yield from self._records(QUEUED, QUEUED_MAX)):
            if self._left > 0 and not (yield from self._is_held(record.id)):
                return False
        return True

    def causes(self) -> Steps[tuple[str, ...]]:
        """Return the first dead jobs found. A parent that failed by its children is replaced by its dead children."""
        dead = tuple(self.dead)[:JOBS_NAMED_MAX]
        found, seen = dict.fromkeys(dead), set(dead)
        todo = [each.id for each in (yield from read_records(dead)) if each.cause == CHILD_FAILED]
        for job_id in todo:
            if self._left <= 0:
                break
            self._left -= 1
            children = attrs.evolve(self._wanted, flow=None, parent=job_id, states=(FAILED,))
            some = yield from records_of(children, JOBS_NAMED_MAX)
            below = [each for each in some if each.spec.task != CHILDREN_TASK]
            if not below:
                continue
            del found[job_id]
            new = [each for each in below if each.id not in seen]
            seen.update([each.id for each in new])
            found.update(dict.fromkeys([each.id for each in new]))
            todo += [each.id for each in new if each.cause == CHILD_FAILED]
        return tuple(found)[:JOBS_NAMED_MAX]

    def at_deferred(self) -> Steps[bool]:
        """Look at the jobs that wait for others."""
        failed = {record.id for record in (yield from self._records(FAILED, LOOKED_AT_MAX))}
        records = yield from self._records(DEFERRED, LOOKED_AT_MAX)
        left = [(each.id, _awaited(each), {edge.id for edge in each.spec.depends_on}) for each in records]
        left = self._hold(left, failed)
        while left and self._left > 0:
            # What holds it is not of the flow, or not among those looked at.
            if not (yield from self._is_held(left[0][0])):
                return False
            left = self._hold(left[1:], set(self.dead))
        return True

    def _hold(self, left: list[_Waiting], dead: set[str]) -> list[_Waiting]:
        """Record the jobs that wait for a dead job, directly or not. Return the other jobs."""
        while True:
            others = []
            for each in left:
                job_id, awaited, waits = each
                if found := awaited & dead:
                    self.dead |= dict.fromkeys(sorted(found))
                elif waits.isdisjoint(self._held):
                    others.append(each)
                    continue
                self._held.add(job_id)
            if len(others) == len(left):
                return others
            left = others

    def _is_held(self, job_id: str) -> Steps[bool]:
        """Search the dependencies of a job, depth first, until a dead job is found."""
        todo, before = [job_id], {job_id: job_id}
        while todo:
            at = todo.pop()
            if at in self._held:
                self._hold_way(at, before)
                return True
            reason = None if at in self._free else (yield from self._reason_of(at))
            if reason is None:
                continue
            if dead := (yield from self._dead_of(reason)):
                self.dead |= dict.fromkeys(dead)
                self._hold_way(at, before)
                return True
            for other in reversed(reason.jobs) if reason.kind in WAITS_FOR_JOBS else ():
                if other not in before:
                    before[other] = at
                    todo.append(other)
        self._free |= before.keys()
        return False

    def _hold_way(self, at: str, before: Mapping[str, str]) -> None:
        """Record that a job is held up, and all jobs on the way of a search to this job."""
        self._held.add(at)
        while before[at] != at:
            at = before[at]
            self._held.add(at)

    def _reason_of(self, job_id: str) -> Steps[Reason | None]:
        """Return why a job waits; None if it is unknown, or if nothing behind it is stuck."""
        if job_id not in self._reasons:
            if self._left <= 0:
                return None
            self._left -= 1
            chain = yield from ask_why(job_id)
            if not chain or (not chain[-1].stuck and len(chain) < CHAIN_MAX):
                return None
            for reason in chain:
                self._reasons.setdefault(reason.job_id, reason)
        return self._reasons[job_id]

    def _dead_of(self, reason: Reason) -> Steps[list[str]]:
        """Return the dead jobs that a job waits for until they are redriven or discarded, by its reason."""
        if reason.kind not in _WAITS_FOR_DEAD:
            return []
        self._left -= 1
        records = yield from read_records((reason.job_id, *reason.jobs))
        dead = [record.id for record in records if record.state is FAILED]
        if reason.kind is ReasonKind.DEAD_HOLD:
            return dead
        # One whose edge ends it, or lets it go, is about to.
        awaited = _awaited(records[0]) if records else ()
        return [each for each in dead if each in awaited]


def _awaited(record: JobRecord) -> set[str]:
    """Return the ids of the jobs for whose redrive a job waits when they fail."""
    spec = record.spec
    if spec.policy.on_dependency_failure != "wait":
        return set()
    return {edge.id for edge in spec.depends_on if edge.when == "success"}
