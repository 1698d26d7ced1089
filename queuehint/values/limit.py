"""
Limits on a place: how many jobs may run there at once, how many may start in a time, how many may be unfinished.

Beside those on places there are limits on all jobs of a task or of a pool, with a place or not.

>>> check_limit(["tenants"], 10, each=True).each
True
>>> check_limit(most=5, task="mail").key
('task', 'mail')
"""

from __future__ import annotations

from typing import Annotated, Any, Final

import attrs

from queuehint.errors import InvalidJobError, InvalidJobTypeError, shown
from queuehint.schema.checks import check_bool, check_duration, check_int
from queuehint.schema.compiled import taker
from queuehint.schema.kinds import Count, Duration, NameText
from queuehint.values.hint import Path, parse_path, queue_key
from queuehint.values.record_filter import RecordFilter

MOST_MAX = 1_000_000
RATE_PER_MAX_MS = 24 * 3600 * 1000
PENDING_MAX = 1_000_000_000
LIMITS_MAX = 1000
"""How many limits a namespace may have."""
Key = tuple[Path | None, bool] | tuple[str, str]
"""The scope of a limit: a path (None: the namespace), and whether of each child; or "task" or "pool", and a name."""
TOO_MANY_LIMITS = f"a namespace has at most {LIMITS_MAX} limits"


@attrs.frozen(kw_only=True)
class Limit:
    """
    Limits of one place, task or pool. An empty limit stands for none.

    For `most` and `rate` a job counts as many times as its cost says.

    Args:
        path: the place; None for the whole namespace, jobs without a place included, which takes `max_pending` alone;
            None too with `task` or `pool`.
        each: for each child of the path by itself. Besides it the path may have a limit without.
        most: how many jobs with a claim at or below the path are STARTED at once.
        rate: how many starts at most in any window of so many ms; with ``each`` every child counts its own.
        burst: of the rate, a bucket of so many tokens instead, refilled evenly by the rate; a start takes one.
        max_pending: how many jobs may be unfinished at or below the path, or with ``each`` at or below a child of it; a
            job is counted once a claim.
        task: in place of a path: jobs of this task, with a place or without, each counted once.
        pool: the same for jobs of this pool.

    Raises:
        InvalidJobError, InvalidJobTypeError, InvalidHintError: naming the parameter, the value and the limit.
    """

    path: Path | None = None
    each: bool = False
    most: Annotated[int, Count(1, MOST_MAX)] | None = None
    rate: tuple[Annotated[int, Count(1, MOST_MAX)], Annotated[int, Duration(1, RATE_PER_MAX_MS)]] | None = None
    burst: Annotated[int, Count(1, MOST_MAX)] | None = None
    max_pending: Annotated[int, Count(1, PENDING_MAX)] | None = None
    task: NameText | None = None
    pool: NameText | None = None

    def __attrs_post_init__(self) -> None:
        _take_limit(self)
        if self.path is not None:
            parse_path(self.path)
            if type(self.path) is not tuple or any(type(segment) is not str for segment in self.path):
                raise InvalidJobTypeError(f"path must be a tuple of str, got {shown(self.path)}")
        if self.rate is not None:
            if type(self.rate) is not tuple or len(self.rate) != 2:
                raise InvalidJobTypeError(f"rate must be a tuple of a number and ms, got {shown(self.rate)}")
            check_int(self.rate[0], parameter="rate", least=1, most=MOST_MAX)
            check_int(self.rate[1], parameter="rate: the time in ms", least=1, most=RATE_PER_MAX_MS)

    @property
    def lifted(self) -> Limit:
        """The empty limit of the same scope, which removes this one."""
        return attrs.evolve(self, most=None, rate=None, burst=None, max_pending=None)

    @property
    def key(self) -> Key:
        """The scope of the limit. A namespace has one limit of each key."""
        if self.task is not None:
            return "task", self.task
        return (self.path, self.each) if self.pool is None else ("pool", self.pool)

    @property
    def selection(self) -> RecordFilter | None:
        """The filter of the jobs of its task or pool; None for a limit of a place, or of the namespace."""
        return None if self.task is None and self.pool is None else RecordFilter(task=self.task, pool=self.pool)

    @property
    def holds_back(self) -> bool:
        """Whether the limit can hold back starts."""
        return self.most is not None or self.rate is not None

    @property
    def costs_max(self) -> int:
        """The highest cost of a job that can ever start under the limit."""
        starts = self.rate and (self.burst or self.rate[0])
        return min(self.most or MOST_MAX, starts or MOST_MAX)

    @property
    def path_key(self) -> str | None:
        """The queue key of the path, None for the whole namespace."""
        return None if self.path is None else queue_key(self.path)

    def check_rules(self) -> None:
        """
        Check that the fields are consistent.

        Raises:
            InvalidJobError: naming what does not.
        """
        if self.burst is not None and self.rate is None:
            raise InvalidJobError(f"burst requires rate, got {self.burst} alone")
        if self.task is not None or self.pool is not None:
            self._check_selection()
        elif self.path is None and (self.holds_back or self.each):
            raise InvalidJobError("path None supports only max_pending; [] is the root")

    def _check_selection(self) -> None:
        given = {"path": self.path, "task": self.task, "pool": self.pool}
        named = [f"{name} {shown(value)}" for name, value in given.items() if value is not None]
        if len(named) > 1:
            raise InvalidJobError(f"a limit requires exactly one of path, task and pool; got {' and '.join(named)}")
        if self.each:
            raise InvalidJobError(f"each=True requires path; got {named[0]}")


_take_limit: Final = taker(lambda: Limit)


@attrs.frozen(kw_only=True)
class LimitState:
    """
    A limit and its present counts.

    Args:
        started: jobs that run and count, with ``each`` once a child; None if it does not limit starts.
        pending: the number of unfinished jobs, with ``each`` of all children; None if it does not limit that.
    """

    limit: Limit
    started: int | None
    pending: int | None


def order_of(limit: Limit) -> tuple[int, Path, bool, str]:
    """Return the sort key of a limit: the namespace, by path, the one for each child last, tasks, pools; by name."""
    rank = 3 if limit.pool is not None else 2 if limit.task is not None else 0 if limit.path is None else 1
    return rank, limit.path or (), limit.each, limit.task or limit.pool or ""


def check_limit(
    path: Any = None,
    most: Any = None,
    *,
    each: Any = False,
    rate: Any = None,
    burst: Any = None,
    max_pending: Any = None,
    task: Any = None,
    pool: Any = None,
) -> Limit:
    """
    Check a user's limit.

    Raises:
        InvalidHintError, InvalidHintTypeError: the path is none.
        InvalidJobError, InvalidJobTypeError: naming the parameter, the value and the limit.
    """
    limit = Limit(
        path=None if path is None else parse_path(path),
        each=check_bool(each, parameter="each"),
        most=most,
        rate=None if rate is None else _rate(rate),
        burst=burst,
        max_pending=max_pending,
        task=task,
        pool=pool,
    )
    limit.check_rules()
    return limit


def _rate(rate: Any) -> tuple[int, int]:
    if not isinstance(rate, tuple) or len(rate) != 2:
        raise InvalidJobTypeError(
            f"rate must be a tuple of a number and a time, such as (100, timedelta(seconds=1)), got {shown(rate)}"
        )
    per_ms = check_duration(rate[1], parameter="rate: the time", least_ms=1, most_ms=RATE_PER_MAX_MS)
    return rate[0], per_ms
