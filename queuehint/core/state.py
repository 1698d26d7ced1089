"""The state of an engine, and the table of functions that answer operations."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, TypeVar

import attrs

from queuehint.core.jobs.lifecycle import Lifecycle
from queuehint.core.jobs.table import JobTable
from queuehint.core.schedules import Timetable
from queuehint.core.structures.ready_queue import releases_of
from queuehint.core.xcom import SharedStore
from queuehint.operations import ANYONE, BUDGET, WORKER_SEEN_MS
from queuehint.values.policy import Retention
from queuehint.values.record import JobState

if TYPE_CHECKING:
    from collections.abc import Callable

    from queuehint.core.structures.job import Job
    from queuehint.core.structures.trie import Walk
    from queuehint.operations import Operation
    from queuehint.values.report import WorkerInfo

Reply = TypeVar("Reply")

POOL_SEEN_MS = 60_000
"""A pool is served for so long after a worker has asked for it."""


@attrs.frozen(kw_only=True)
class EngineOptions:
    """
    Options of an engine.

    Args:
        epoch_s: seconds since 2020 at which this history began; the upper half of every token.
        budget: units of following work an operation may do.
        retention: how long records are kept; None for the default.
    """

    epoch_s: int = 0
    budget: int = BUDGET
    retention: Retention | None = None


class State:
    """
    The jobs of one namespace, and its state outside any job.

    ``seen`` is when a worker last asked for a pool, or for a user's jobs in it: ms, the newest last. ``token`` is the
    newest token there is. ``workers`` are those that have announced themselves, by name; some may be silent by now.
    ``units`` are those left of the present operation's budget, ``cut`` says that its own work was cut when they were
    used up. ``arrived`` is room for the walks that a line let through. ``aside`` are the jobs that the newest exchange
    took and parked: before which of its grants, and their numbers.
    """

    def __init__(self, options: EngineOptions) -> None:
        self.options = options
        self.table = JobTable(options.retention or Retention())
        self.seen: dict[tuple[str, str | None] | str, int] = {}
        self.workers: dict[str, WorkerInfo] = {}
        self.lifecycle = Lifecycle(self.table)
        self.shared = SharedStore()
        self.timetable = Timetable()
        self.enqueued = self.started = self.settled = 0
        self.now_ms = 0
        self.drawn = 0
        self.token = options.epoch_s << 32
        self.units = 0
        self.cut = False
        self.arrived: list[Walk] = []
        self.aside: list[tuple[int, int]] = []

    def see_time(self, now_ms: int) -> None:
        """Set the time, which never goes back."""
        if now_ms > self.now_ms:
            self.now_ms = self.lifecycle.now_ms = self.table.limits.now_ms = now_ms
            self.table.journal.see_time(now_ms)

    def next_token(self) -> int:
        """Return a token greater than every earlier one."""
        self.token += 1
        return self.token

    def find(self, job_id: str) -> Job | None:
        """Return a job known to users. None for an expired record or an uncommitted job."""
        job = self.table.jobs.get(job_id)
        return None if job is None or job.gone or job.is_hidden else job

    def held(self, job_id: str, token: int) -> Job | None:
        """Return the STARTED job of a token."""
        job = self.table.jobs.get(job_id)
        return job if job is not None and job.state is JobState.STARTED and proves(token, job.token) else None

    def next_timer_ms(self) -> int | None:
        """Return when a job's timer fires, or a limit is looked at again."""
        table = self.table
        next_ms = table.timers.next_ms()
        look_ms = table.limits.next_ms() if table.limits.limiters else None
        return next_ms if look_ms is None or (next_ms is not None and next_ms < look_ms) else look_ms

    def next_ms(self) -> int | None:
        """Return the time of the next due work; now, while leftovers remain."""
        if self.table.leftovers:
            return self.now_ms
        next_ms = self.next_timer_ms()
        if not self.timetable.dues:
            return next_ms
        return min((at for at in (next_ms, self.timetable.next_ms(self.now_ms)) if at is not None), default=None)

    def live_workers(self) -> list[WorkerInfo]:
        """Return the recently seen workers, by name."""
        since_ms = self.now_ms - WORKER_SEEN_MS
        return sorted([each for each in self.workers.values() if each.seen_ms >= since_ms], key=attrgetter("name"))

    def is_served(self, pool: str, user: str | None) -> bool:
        """Return whether a worker has recently claimed a user's jobs in a pool."""
        since_ms = self.now_ms - POOL_SEEN_MS
        return any(ms is not None and ms >= since_ms for ms in (self.seen.get(pool), self.seen.get((pool, user))))

    def count_unserved(self) -> int:
        """
        Return how many ready jobs no worker has recently claimed, apart from jobs refused by releases.

        Complexity: O(pools and users asked for).
        """
        ready, since_ms = self.table.ready, self.now_ms - POOL_SEEN_MS
        served = {asked for asked, ms in self.seen.items() if ms >= since_ms}
        unserved = sum([ready.size(pool) for pool in ready.sizes() if pool not in served])
        some = [asked for asked in served if isinstance(asked, tuple) and asked[0] not in served]
        return unserved - sum([ready.size(pool, (user,)) for pool, user in some])

    def untried(self, queue: str, pool: str) -> tuple[set[str | None], bool]:
        """
        Return the users whose jobs in a queue other releases serve, and whether they serve every user.

        Only announced workers count.
        """
        refused_by = releases_of(queue)
        workers = [each for each in self.live_workers() if pool in each.pools and each.release not in refused_by]
        users: set[str | None] = set()
        for each in workers:
            if each.users is None or each.steal == ANYONE:
                return set(), True
            users.update((*each.users, *each.steal))
        return users, False

    def count_refused(self) -> int:
        """
        Return how many ready jobs the releases of all their workers have refused.

        Complexity: O(queues of refused jobs times workers).
        """
        ready, count = self.table.ready, 0
        for pool, queues in ready.refused.items():
            for queue in queues:
                users, is_everyone = self.untried(queue, pool)
                count += 0 if is_everyone else ready.size(queue) - ready.size(queue, users)
        return count


def proves(token: object, newest: int | None) -> bool:
    """Return whether a token is that of a job's newest grant. An equal float is refused."""
    return token == newest and type(token) is int


HANDLERS: Final[dict[type[Any], Callable[[State, Any], Any]]] = {}
"""The function that answers each class of operation."""

_Handler = TypeVar("_Handler", bound="Callable[[State, Any], Any]")


def handles(operation: type[Operation[Any]]) -> Callable[[_Handler], _Handler]:
    """Return a decorator that registers a function as the handler of an operation."""

    def enter(handler: _Handler) -> _Handler:
        assert operation not in HANDLERS
        HANDLERS[operation] = handler
        return handler

    return enter
