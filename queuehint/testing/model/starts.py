"""
Rules of starts: pauses and limits, computed from the operations that set them and from the starts alone.

The plainest form of each rule: every start looks at all pauses and counts all running jobs. Where a rule leaves room,
as for the tokens left in a bucket of a changed limit, the lenient reading is checked.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from queuehint import operations as op
from queuehint.testing.model.places import is_at_or_below
from queuehint.values.record_filter import RecordFilter

if TYPE_CHECKING:
    from collections.abc import Iterable

    from queuehint.values.hint import Path
    from queuehint.values.limit import Key, Limit
    from queuehint.values.spec import JobSpec


class StartRules:
    """Pauses in force by filter, each with its end or None, and limits by key."""

    def __init__(self) -> None:
        self.pauses: dict[RecordFilter, int | None] = {}
        self.limits: dict[Key, Limit] = {}
        self._spent: dict[tuple[Key, Path], tuple[int, int]] = {}
        """Spent units of each bucket, and when; a token has as many units as its period has ms."""
        self._started: dict[tuple[Key, Path], list[int]] = {}
        """When jobs were started under a rate without a burst."""

    def see(self, operation: op.Operation[Any], now_ms: int) -> None:
        """Record an accepted operation, before the check of its starts."""
        match operation:
            case op.Pause(wanted, for_ms):
                self.pauses[wanted] = None if for_ms is None else now_ms + for_ms
            case op.Resume(wanted):
                self.pauses.pop(wanted, None)
            case op.SetLimit(limit):
                self._set(limit)
            case _:
                pass

    def check_pauses(self, in_force: Iterable[RecordFilter], now_ms: int) -> None:
        """Assert that the pauses in force are the active ones, none of them past its end."""
        wanted = {what for what, until_ms in self.pauses.items() if until_ms is None or until_ms > now_ms}
        found = set(in_force)
        assert found <= wanted, f"the pauses of {found - wanted} have ended, and the store still holds jobs back"
        assert wanted <= found, f"the pauses of {wanted - found} are in force, and the store knows none"

    def _set(self, limit: Limit) -> None:
        old = self.limits.pop(limit.key, None)
        if limit.holds_back or limit.max_pending is not None:
            self.limits[limit.key] = limit
        if old is None or (limit.rate, limit.burst, limit.most) != (old.rate, old.burst, old.most):
            self._spent = {bucket: spent for bucket, spent in self._spent.items() if bucket[0] != limit.key}
            self._started = {place: times for place, times in self._started.items() if place[0] != limit.key}

    def check_start(self, spec: JobSpec, running: Iterable[JobSpec], now_ms: int) -> None:
        """
        Assert that a job may start, and count its start.

        Args:
            running: the specs of all STARTED jobs, without this one.
        """
        for what, until_ms in self.pauses.items():
            assert (until_ms is not None and until_ms <= now_ms) or not is_selected(spec, what), (
                f"job {spec.id} was started while {what} is paused"
            )
        others = list(running) if self.limits else []
        for key, limit in self.limits.items():
            places = counted_at(spec, limit)
            if limit.most is not None and places:
                counts: Counter[Path] = Counter()
                for other in others:
                    counts.update(dict.fromkeys(counted_at(other, limit), other.policy.cost))
                for place in places:
                    assert counts[place] + spec.policy.cost <= limit.most, (
                        f"job {spec.id} was started, and {counts[place]} jobs run at {place}, which may be {limit.most}"
                    )
            for place in places if limit.rate is not None else ():
                assert self._take((key, place), limit, spec.policy.cost, now_ms), (
                    f"job {spec.id} was started, and the rate of {key} has no room at {place}"
                )

    def _take(self, place: tuple[Key, Path], limit: Limit, cost: int, now_ms: int) -> bool:
        """Count a start under a rate. Return whether the rate had room."""
        assert limit.rate is not None
        tokens, per_ms = limit.rate
        if limit.burst is None:
            times = self._started.setdefault(place, [])
            times += [now_ms] * cost
            return sum(now_ms - at_ms <= per_ms for at_ms in times) <= tokens
        spent, at_ms = self._spent.get(place, (0, now_ms))
        spent = max(0, spent - (now_ms - at_ms) * tokens)
        self._spent[place] = spent + cost * per_ms, now_ms
        return spent <= (limit.burst - cost) * per_ms

    def check_room(self, operation: op.Enqueue, created: Iterable[JobSpec], unfinished: Iterable[JobSpec]) -> None:
        """Assert that the unfinished jobs stay within their limits after an accepted submission."""
        if operation.staged is not None:
            return
        bounds = [limit for limit in self.limits.values() if limit.max_pending is not None]
        if not bounds:
            return
        new, all_of_them = list(created), list(unfinished)
        for limit in bounds:
            assert limit.max_pending is not None
            counts = Counter([place for spec in all_of_them for place in pending_at(spec, limit)])
            for place in {place for spec in new for place in pending_at(spec, limit)}:
                assert counts[place] <= limit.max_pending, (
                    f"{counts[place]} jobs are unfinished at {place} after an enqueue, and {limit} allows fewer"
                )


def is_selected(spec: JobSpec, wanted: RecordFilter) -> bool:
    """Return whether a pause by a filter is of a job."""
    path = wanted.path
    return (
        wanted.task in {None, spec.task}
        and wanted.pool in {None, spec.pool}
        and wanted.user in {None, spec.user}
        and wanted.service in {None, spec.service}
        and (wanted.tag is None or wanted.tag in spec.tags)
        and (path is None or any(is_at_or_below(claim.path, path) for claim in spec.claims))
    )


def counted_at(spec: JobSpec, limit: Limit) -> set[Path]:
    """Return the places at which a job counts towards a limit on starts, the root for a task or a pool."""
    return set(pending_at(spec, limit)) if limit.path is not None or limit.selection is not None else set()


def pending_at(spec: JobSpec, limit: Limit) -> list[Path]:
    """Return at which places a job counts towards a limit on unfinished jobs, once a claim."""
    if limit.selection is not None:
        return [()] * is_selected(spec, limit.selection)
    if limit.path is None:
        return [()]
    length = len(limit.path) + limit.each
    paths = [claim.path for claim in spec.claims if is_at_or_below(claim.path, limit.path)]
    return [path[:length] for path in paths if len(path) >= length]
