"""Restraints on ready jobs: pauses, limits, weights of users."""

from __future__ import annotations

from types import EllipsisType
from typing import TYPE_CHECKING, Any, Final, TypedDict, Unpack

import attrs

from queuehint.backends.steps import Steps, run_steps, run_steps_sync, tick_until_done
from queuehint.errors import InvalidJobTypeError, shown
from queuehint.operations import (
    WEIGHT_MAX,
    ListLimits,
    ListPauses,
    ListWeights,
    Pause,
    Resume,
    SetLimit,
    Weigh,
)
from queuehint.scheduler.base import SchedulerBase
from queuehint.schema.checks import check_int, check_name, check_optional_duration
from queuehint.values.limit import LimitState, check_limit
from queuehint.values.record_filter import RecordFilter
from queuehint.values.report import PauseState

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import timedelta


class Selection(TypedDict, total=False):
    """The conditions by which a pause selects jobs, beside a path. A job has to meet all given conditions."""

    task: str | None
    user: str | None
    service: str | None
    pool: str | None
    tag: str | None


SELECTED_BY: Final = ("task", "user", "service", "pool", "tag")


class Restraints(SchedulerBase):
    """The part of `Scheduler` that restrains ready jobs. No restraint changes the order of conflicting jobs."""

    async def pause(
        self, path: Sequence[str] | None = None, *, for_: float | timedelta | None = None, **selected: Unpack[Selection]
    ) -> bool:
        """
        Stop starts of jobs at or below *path*, or of selected jobs. They keep their places, and running jobs go on.

        Args:
            path: with nothing else selected, only jobs that have a place there are paused.
            for_: resume them by itself after so long, seconds or a timedelta of up to 10 years. Of a pause that is
                there already, this end replaces the one it had, and with None it has none any more.
            selected: `task`, `user`, `service`, `pool`, `tag`, as of `records.list`: jobs that have all of these, at or
                below *path* if that is given, without a place too if it is not.

        Returns:
            False if they were paused so already, by this very path and these very words.

        Raises:
            InvalidHintError, InvalidJobError: naming the parameter, the value and the limit; there are 10 000 pauses,
                100 of them by words.
        """
        return (await self.backend.call(_pause(path, for_, selected))).changed

    def pause_sync(
        self, path: Sequence[str] | None = None, *, for_: float | timedelta | None = None, **selected: Unpack[Selection]
    ) -> bool:
        """Like `pause`, for code without a loop."""
        return self.backend.call_sync(_pause(path, for_, selected)).changed

    async def resume(self, path: Sequence[str] | None = None, **selected: Unpack[Selection]) -> bool:
        """Undo `pause` of this very path and these very words. False if there is no such pause."""
        return (await self.backend.call(_resume(path, selected))).changed

    def resume_sync(self, path: Sequence[str] | None = None, **selected: Unpack[Selection]) -> bool:
        """Like `resume`, for code without a loop."""
        return self.backend.call_sync(_resume(path, selected)).changed

    async def pauses(self) -> Sequence[PauseState]:
        """Return the pauses in the order in which they began, each with its end, if it has one."""
        return (await self.backend.call(ListPauses())).pauses

    def pauses_sync(self) -> Sequence[PauseState]:
        """Like `pauses`, for code without a loop."""
        return self.backend.call_sync(ListPauses()).pauses

    async def set_weight(self, user: str | None, weight: int) -> bool:
        """
        Give a user up to *weight* starts a turn, in every pool, until the next change. Return False without a change.

        Args:
            user: None for jobs without a user.
            weight: 1–100; the default is 1. Up to 1 000 users may have another.
        """
        return (await self.backend.call(_weigh(user, weight))).changed

    def set_weight_sync(self, user: str | None, weight: int) -> bool:
        """Like `set_weight`, for code without a loop."""
        return self.backend.call_sync(_weigh(user, weight)).changed

    async def weights(self) -> dict[str | None, int]:
        """Return the weights other than 1, by user. None stands for jobs without a user."""
        return dict((await self.backend.call(ListWeights())).users)

    def weights_sync(self) -> dict[str | None, int]:
        """Like `weights`, for code without a loop."""
        return dict(self.backend.call_sync(ListWeights()).users)

    async def limit(
        self,
        path: Sequence[str] | EllipsisType | None = ...,
        most: int | None = None,
        *,
        each: bool = False,
        rate: tuple[int, float | timedelta] | None = None,
        burst: int | None = None,
        max_pending: int | None = None,
        task: str | None = None,
        pool: str | None = None,
    ) -> bool:
        """
        Limit the running, starting or waiting jobs of a place, task or pool, replacing its limit. None is unlimited.

        A limit never changes the order of jobs that conflict: it acts on jobs that are ready. What runs goes on: where
        more runs than may, nothing starts until enough has ended. For *most* and *rate* a job counts as many times as
        its `cost` says.

        Args:
            path: jobs with a claim at or below it; ``[]`` is every job that has a place, ``None`` the whole namespace,
                jobs without a place included, which takes `max_pending` alone.
            most: how many of them run at once, 1–1 000 000.
            each: the same for each child of the path by itself; a job of the path itself counts under no child. It
                stands besides a limit of the path as a whole.
            rate: how many start in a time of up to 24 h, such as ``(100, timedelta(seconds=1))``: at most 100 in any
                window of a second; with *each* every child counts its own.
            burst: how many of these come at once after a quiet while, 1–1 000 000: the rate is then a bucket of so many
                tokens, refilled evenly, one a start. With ``burst=1`` starts are spread evenly.
            max_pending: how many may be unfinished, 1–1 000 000 000: a submission that would leave more is refused
                with `QueueFullError`. A job counts once a claim, for a task or a pool once.
            task, pool: in place of a path, one of them: all jobs of this task or this pool, with a place or without.
                One of *path*, *task* and *pool* has to be given.

        Returns:
            False if the limit was set so already.

        Raises:
            InvalidHintError, InvalidJobError: naming the parameter, the value and the limit; there are 1 000 limits.
        """
        limit = _limit(path, task, pool, most=most, each=each, rate=rate, burst=burst, max_pending=max_pending)
        return await run_steps(self.backend, _mark(limit))

    def limit_sync(
        self,
        path: Sequence[str] | EllipsisType | None = ...,
        most: int | None = None,
        *,
        each: bool = False,
        rate: tuple[int, float | timedelta] | None = None,
        burst: int | None = None,
        max_pending: int | None = None,
        task: str | None = None,
        pool: str | None = None,
    ) -> bool:
        """Like `limit`, for code without a loop."""
        limit = _limit(path, task, pool, most=most, each=each, rate=rate, burst=burst, max_pending=max_pending)
        return run_steps_sync(self.backend, _mark(limit))

    async def unlimit(
        self, path: Sequence[str] | EllipsisType | None = ..., *, task: str | None = None, pool: str | None = None
    ) -> bool:
        """
        Remove all limits of this very path, task or pool, or with None of the namespace.

        Returns:
            False if there was none.

        Raises:
            InvalidHintError, InvalidJobError, InvalidJobTypeError: not exactly one of them is given, or it is wrong.
        """
        return await run_steps(self.backend, _unlimit(path, task, pool))

    def unlimit_sync(
        self, path: Sequence[str] | EllipsisType | None = ..., *, task: str | None = None, pool: str | None = None
    ) -> bool:
        """Like `unlimit`, for code without a loop."""
        return run_steps_sync(self.backend, _unlimit(path, task, pool))

    async def limits(self) -> Sequence[LimitState]:
        """Return all limits with their present counts: the namespace, by path, by task, by pool."""
        return (await self.backend.call(ListLimits())).limits

    def limits_sync(self) -> Sequence[LimitState]:
        """Like `limits`, for code without a loop."""
        return self.backend.call_sync(ListLimits()).limits


def _pause(path: Any, for_: Any, selected: Mapping[str, Any]) -> Pause:
    wanted = _selection(path, selected, "pause")
    return Pause(wanted, check_optional_duration(for_, parameter="for_", least_ms=1))


def _resume(path: Any, selected: Mapping[str, Any]) -> Resume:
    return Resume(_selection(path, selected, "resume"))


def _selection(path: Any, selected: Mapping[str, Any], call: str) -> RecordFilter:
    """Return the filter of the path and the words of a *call*, pause or resume."""
    words = {name: value for name, value in selected.items() if value is not None}
    for name in words:
        if name not in SELECTED_BY:
            raise InvalidJobTypeError(f"{call} selects by path, {', '.join(SELECTED_BY)}, not by {shown(name)}")
    if not words and path is None:
        raise InvalidJobTypeError(f"{call} requires a path, or one of {', '.join(SELECTED_BY)}")
    return RecordFilter(path=path, **words).check()


def _weigh(user: Any, weight: Any) -> Weigh:
    checked = None if user is None else check_name(user, parameter="user")
    return Weigh(checked, check_int(weight, parameter="weight", least=1, most=WEIGHT_MAX))


def _path_of(path: Any, task: Any, pool: Any) -> Any:
    """Return the path of a limit. None, the namespace, requires its name, so that no forgotten argument means it."""
    if path is not ...:
        return path
    if task is None and pool is None:
        raise InvalidJobTypeError("a limit requires a path, a task or a pool; path=None limits the whole namespace")
    return None


def _limit(path: Any, task: Any, pool: Any, **limit: Any) -> SetLimit:
    return SetLimit(check_limit(_path_of(path, task, pool), task=task, pool=pool, **limit))


def _unlimit(path: Any, task: Any, pool: Any) -> Steps[bool]:
    limit = check_limit(_path_of(path, task, pool), task=task, pool=pool)
    changed = yield from _mark(SetLimit(limit))
    if limit.path is not None:
        changed |= yield from _mark(SetLimit(attrs.evolve(limit, each=True)))
    return changed


def _mark(operation: SetLimit) -> Steps[bool]:
    reply = yield operation
    yield from tick_until_done(more=reply.more)
    return reply.changed  # type: ignore[no-any-return]
