"""
Pauses: ready jobs may not start until an operator resumes them, or until the pause ends by itself.

A pause acts on ready jobs only, when they are claimed: a claim takes a job from the ready queue and parks it at the
first pause that holds it. So a paused job keeps its place, and those behind it wait for it as for any other. When a
pause ends, its parked jobs are offered again in bounded steps, and the next claim parks those that another one holds.
"""

from __future__ import annotations

from collections import deque
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from queuehint.core.structures.heap import LazyHeap
from queuehint.core.structures.leftovers import UnparkSweep
from queuehint.core.structures.record_index import passes
from queuehint.core.structures.timers import TimerKind
from queuehint.errors import InvalidJobError
from queuehint.values.hint import is_prefix
from queuehint.values.report import FILTERED_PAUSES_MAX, PAUSES_MAX, TOO_MANY_PAUSES, PauseState

if TYPE_CHECKING:
    from queuehint.core.structures.heap import Entry
    from queuehint.core.structures.job import Job
    from queuehint.core.structures.timers import Timers
    from queuehint.values.hint import Path
    from queuehint.values.record_filter import RecordFilter


class Pause:
    """
    One pause of the jobs that a filter selects.

    ``number`` counts pauses in the order in which they began; ``until_ms`` is when it ends by itself, None if it does
    not; ``parked`` are the ready jobs parked by it, in order of number.
    """

    __slots__ = ("filter", "number", "parked", "timer", "until_ms")

    def __init__(self, wanted: RecordFilter, number: int) -> None:
        self.filter = wanted
        self.number = number
        self.until_ms: int | None = None
        self.parked: LazyHeap[Job] = LazyHeap()
        self.timer: Entry | None = None


def selects(wanted: RecordFilter, job: Job) -> bool:
    """Return whether the filter of a pause selects a ready job."""
    path = wanted.path
    return (path is None or any(is_prefix(path, claim.path) for claim in job.spec.claims)) and passes(wanted, job)


class Pauses:
    """All pauses of a namespace, by path alone and by further conditions, each group in order of its beginnings."""

    __slots__ = ("_last_number", "_leftovers", "_timers", "by_filter", "by_path")

    def __init__(self, timers: Timers, leftovers: deque[Any]) -> None:
        self.by_path: dict[Path, Pause] = {}
        self.by_filter: dict[RecordFilter, Pause] = {}
        self._timers = timers
        self._leftovers = leftovers
        self._last_number = 0

    def __bool__(self) -> bool:
        return bool(self.by_path or self.by_filter)

    def all(self) -> list[Pause]:
        """Return all pauses in the order in which they began."""
        return sorted([*self.by_path.values(), *self.by_filter.values()], key=attrgetter("number"))

    def _like(self, wanted: RecordFilter) -> tuple[dict[Any, Pause], Path | RecordFilter]:
        """Return the pauses of the kind of a filter, and the filter's key among them."""
        path = wanted.path_alone
        return (self.by_filter, wanted) if path is None else (self.by_path, path)

    # --- what operators do -----------------------------------------------------------------------------------------

    def begin(self, wanted: RecordFilter, until_ms: int | None) -> bool:
        """
        Pause the jobs of a filter until a time, None for no end. Return False for an identical pause.

        Raises:
            InvalidJobError: there are as many pauses as there may be.
        """
        pauses, key = self._like(wanted)
        pause = pauses.get(key)
        if pause is None:
            is_full = pauses is self.by_filter and len(pauses) >= FILTERED_PAUSES_MAX
            if is_full or len(self.by_path) + len(self.by_filter) >= PAUSES_MAX:
                raise InvalidJobError(TOO_MANY_PAUSES)
            self._last_number += 1
            pause = pauses[key] = Pause(wanted, self._last_number)
        elif pause.until_ms == until_ms:
            return False
        self._drop_timer(pause)
        pause.until_ms = until_ms
        if until_ms is not None:
            pause.timer = self._timers.add(TimerKind.RESUME, until_ms, pause)
        return True

    def resume(self, wanted: RecordFilter) -> bool:
        """End the pause of this very filter. Return False if there is none."""
        pauses, key = self._like(wanted)
        pause = pauses.get(key)
        if pause is None:
            return False
        self._drop_timer(pause)
        self.end(pause)
        return True

    def end(self, pause: Pause) -> None:
        """End a pause whose timer is dropped or has fired. Its parked jobs are offered again."""
        pauses, key = self._like(pause.filter)
        del pauses[key]
        self._leftovers.append(UnparkSweep(deque((pause.parked,))))

    def _drop_timer(self, pause: Pause) -> None:
        if pause.timer is not None:
            self._timers.drop(pause.timer)
            pause.timer = None

    # --- what jobs do ----------------------------------------------------------------------------------------------

    def holding(self, job: Job) -> Pause | None:
        """Return the pause that holds a job: at the highest path at or above a claim, else by filter."""
        for claim in job.spec.claims if self.by_path else ():
            path = claim.path
            for depth in range(len(path) + 1):
                pause = self.by_path.get(path[:depth])
                if pause is not None:
                    return pause
        for wanted, pause in self.by_filter.items():
            if selects(wanted, job):
                return pause
        return None

    # --- questions -------------------------------------------------------------------------------------------------

    def states(self) -> tuple[PauseState, ...]:
        """Return all pauses in the order in which they began."""
        return tuple(
            [PauseState(filter=pause.filter, until_ms=pause.until_ms, parked=len(pause.parked)) for pause in self.all()]
        )

    def count_parked(self, *, endless: bool) -> int:
        """Return how many jobs are parked by pauses without an end, or by pauses with one."""
        return sum([len(pause.parked) for pause in self.all() if (pause.until_ms is None) == endless])

    def check(self) -> None:
        """Assert that parked jobs and timers agree; for tests, O(all)."""
        for pauses in (self.by_path, self.by_filter):
            assert all(self._like(pause.filter) == (pauses, key) for key, pause in pauses.items())
            numbers = [pause.number for pause in pauses.values()]
            assert numbers == sorted(set(numbers))
        for pause in self.all():
            assert all(job.parked is pause.parked for job in pause.parked.items())
            assert (pause.timer is None) == (pause.until_ms is None)
        timed = [pause.number for pause in self.all() if pause.timer is not None]
        assert timed == sorted(pause.number for pause in self._timers.of(TimerKind.RESUME))
