"""
Pauses: which ready jobs may not start until somebody resumes them, or until the pause ends by itself.

A pause acts on ready jobs only, when they are claimed: a claim takes a job from the ready queue and parks it at the
first pause that holds it. So a paused job keeps its place, and those behind it wait for it as for any other. When a
pause ends, its parked jobs are offered again in bounded steps, and the next claim parks those that another one holds.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from queuehint.core.structures.heap import LazyHeap
from queuehint.core.structures.leftovers import UnparkSweep
from queuehint.core.structures.timers import TimerKind
from queuehint.errors import InvalidJobError
from queuehint.values.record_filter import RecordFilter
from queuehint.values.report import PAUSES_MAX, TOO_MANY_PAUSES, PauseState

if TYPE_CHECKING:
    from queuehint.core.structures.heap import Entry
    from queuehint.core.structures.job import Job
    from queuehint.core.structures.timers import Timers
    from queuehint.values.hint import Path


class Pause:
    """
    One pause, of a path.

    ``number`` counts pauses in the order in which they began; ``until_ms`` is when it ends by itself, None if it does
    not; ``parked`` are the ready jobs put aside by it, in order of number.
    """

    __slots__ = ("number", "parked", "path", "timer", "until_ms")

    def __init__(self, path: Path, number: int) -> None:
        self.path = path
        self.number = number
        self.until_ms: int | None = None
        self.parked: LazyHeap[Job] = LazyHeap()
        self.timer: Entry | None = None


class Pauses:
    """All pauses of a namespace: ``by_path``, in the order in which they began."""

    __slots__ = ("_last_number", "_leftovers", "_timers", "by_path")

    def __init__(self, timers: Timers, leftovers: deque[Any]) -> None:
        self.by_path: dict[Path, Pause] = {}
        self._timers = timers
        self._leftovers = leftovers
        self._last_number = 0

    def __bool__(self) -> bool:
        return bool(self.by_path)

    # --- what operators do -----------------------------------------------------------------------------------------

    def begin(self, path: Path, until_ms: int | None) -> bool:
        """
        Pause a path until a time, None for no end by itself; return False if it was so already.

        Raises:
            InvalidJobError: there are as many pauses as there may be.
        """
        pause = self.by_path.get(path)
        if pause is None:
            if len(self.by_path) >= PAUSES_MAX:
                raise InvalidJobError(TOO_MANY_PAUSES)
            self._last_number += 1
            pause = self.by_path[path] = Pause(path, self._last_number)
        elif pause.until_ms == until_ms:
            return False
        self._drop_timer(pause)
        pause.until_ms = until_ms
        if until_ms is not None:
            pause.timer = self._timers.add(TimerKind.RESUME, until_ms, pause)
        return True

    def resume(self, path: Path) -> bool:
        """End the pause of this very path; return False if there is none."""
        pause = self.by_path.get(path)
        if pause is None:
            return False
        self._drop_timer(pause)
        self.end(pause)
        return True

    def end(self, pause: Pause) -> None:
        """End a pause whose timer is dropped or has fired: its parked jobs are offered again."""
        del self.by_path[pause.path]
        self._leftovers.append(UnparkSweep(deque((pause.parked,))))

    def _drop_timer(self, pause: Pause) -> None:
        if pause.timer is not None:
            self._timers.drop(pause.timer)
            pause.timer = None

    # --- what jobs do ----------------------------------------------------------------------------------------------

    def holding(self, job: Job) -> Pause | None:
        """Return the pause that holds a job: of the highest path at or above one of its claims."""
        for claim in job.spec.claims:
            path = claim.path
            for depth in range(len(path) + 1):
                pause = self.by_path.get(path[:depth])
                if pause is not None:
                    return pause
        return None

    # --- questions -------------------------------------------------------------------------------------------------

    def states(self) -> tuple[PauseState, ...]:
        """Return all pauses in the order in which they began."""
        return tuple(
            [
                PauseState(filter=RecordFilter(path=pause.path), until_ms=pause.until_ms, parked=len(pause.parked))
                for pause in self.by_path.values()
            ]
        )

    def count_parked(self, *, endless: bool) -> int:
        """Return how many jobs are parked by pauses that do not end by themselves, or by those that do."""
        return sum([len(pause.parked) for pause in self.by_path.values() if (pause.until_ms is None) == endless])

    def check(self) -> None:
        """Assert that parked jobs and timers agree; for tests, O(all)."""
        for path, pause in self.by_path.items():
            assert pause.path == path
            assert all(job.parked is pause.parked for job in pause.parked.items())
            assert (pause.timer is None) == (pause.until_ms is None)
        numbers = [pause.number for pause in self.by_path.values()]
        assert numbers == sorted(set(numbers))
        timed = [pause.number for pause in self.by_path.values() if pause.timer is not None]
        assert timed == sorted(pause.number for pause in self._timers.of(TimerKind.RESUME))
