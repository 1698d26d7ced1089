"""Limits: concurrency and backlog of a path, and rates of starts."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from math import ceil
from typing import TYPE_CHECKING

from queuehint.testing.model.jobs import STARTED, Actor, Jobs
from queuehint.testing.model.places import is_at_or_below, shape

if TYPE_CHECKING:
    from collections.abc import Container

    from queuehint.values.hint import Path
    from queuehint.values.limit import Key, Limit
    from queuehint.values.spec import JobSpec


class Limits(Jobs):
    """Rate and concurrency limits of ready jobs, and limits of submissions."""

    def places(self, job: Actor, limit: Limit) -> set[Path]:
        """Return the places at which a job counts towards a limit on starts, the root for a task or a pool."""
        return self.places_of(job.spec, limit)

    def places_of(self, spec: JobSpec, limit: Limit) -> set[Path]:
        """Return at which places a job would count."""
        if limit.path is None:
            return {()} if spec.task == limit.task or spec.pool == limit.pool else set()
        length = len(limit.path) + limit.each
        return {
            claim.path[:length]
            for claim in shape(spec.claims)
            if is_at_or_below(claim.path, limit.path) and len(claim.path) >= length
        }

    def is_limited(self, job: Actor) -> bool:
        """Some limit may keep a job from being started."""
        return any(limit.holds_back and self.places(job, limit) for limit in self.limits.values())

    def count_started(self, limit: Limit) -> Counter[Path]:
        """Return the costs of the STARTED jobs under a limit, by place."""
        cost: Counter[Path] = Counter()
        for job in self.placed:
            if job.state is STARTED:
                cost.update(dict.fromkeys(self.places(job, limit), job.spec.policy.cost))
        return cost

    def costs_max(self, spec: JobSpec) -> int:
        """Return the maximum cost of a job that can start under its limits."""
        limits = [limit for limit in self.limits.values() if limit.holds_back and self.places_of(spec, limit)]
        return min([limit.costs_max for limit in limits], default=spec.policy.cost)

    def unfinished(self, taken: Container[str] = ()) -> list[Actor]:
        """Return the unfinished jobs, without the hidden ones of these ids, which another submission takes."""
        hidden = [job for job in self.hidden.values() if job.id not in taken]
        return [job for job in (*self.jobs.values(), *hidden) if not job.is_over]

    def count_unfinished(self, path: Path | None, taken: Container[str] = ()) -> int:
        """Return the number of unfinished jobs below a path, once a claim, or of all jobs without a path."""
        jobs = self.unfinished(taken)
        if path is None:
            return len(jobs)
        return sum(is_at_or_below(claim.path, path) for job in jobs for claim in job.claims)

    def count_towards(self, limit: Limit, taken: Container[str] = ()) -> int:
        """Return how many unfinished jobs count towards a limit, with ``each`` at some child."""
        if limit.selection is not None:
            since = self.pending_since[limit.key]
            jobs = [job for job in self.unfinished(taken) if job.id not in self.hidden or job.number > since]
            return sum(limit.task == job.spec.task or limit.pool == job.spec.pool for job in jobs)
        if limit.path is None or not limit.each:
            return self.count_unfinished(limit.path)
        paths = [claim.path for job in self.unfinished() for claim in job.claims if claim.path != limit.path]
        return sum(is_at_or_below(path, limit.path) for path in paths)

    def tokens_of(self, bucket: tuple[Key, Path], limit: Limit) -> Fraction:
        """Return the tokens in a bucket, by its burst and its rate."""
        rate, burst = limit.rate, Fraction(limit.burst or 0)
        assert rate is not None
        left, as_of = self.tokens_left.get(bucket, (burst, self.now_ms))
        return min(burst, left + Fraction((self.now_ms - as_of) * rate[0], rate[1]))

    def starts_of(self, place: tuple[Key, Path], limit: Limit) -> list[tuple[int, int]]:
        """Return the starts counted by a rate without a burst, those within its period, in ms."""
        assert limit.rate is not None
        return [(at, cost) for at, cost in self.metered.get(place, []) if self.now_ms - at <= limit.rate[1]]

    def has_room(self, place: tuple[Key, Path], limit: Limit, cost: int) -> bool:
        """Return whether a rate lets a job start: no window exceeds its tokens, or its bucket has enough."""
        assert limit.rate is not None
        if limit.burst is not None:
            return self.tokens_of(place, limit) >= cost
        return sum(spent for _, spent in self.starts_of(place, limit)) + cost <= limit.rate[0]

    def set_limit(self, limit: Limit) -> bool:
        """Replace a limit. The spent part of a rate stays spent, in whole tokens."""
        key = limit.key
        old = self.limits.pop(key, limit.lifted)
        if limit.holds_back or limit.max_pending is not None:
            self.limits[key] = limit
        if old.max_pending is None:
            # Hidden jobs that are older count towards the limit of a task or a pool once they are committed.
            self.pending_since[key] = self.numbers
        if (limit.most, limit.rate, limit.burst) != (old.most, old.rate, old.burst):
            for place in [place for place in {*self.tokens_left, *self.metered} if place[0] == key]:
                self.carry_over(place, limit, old)
        return limit != old

    def carry_over(self, place: tuple[Key, Path], limit: Limit, old: Limit) -> None:
        """Carry over the spent part of another rate: starts with their times, whole tokens of a bucket as of now."""
        assert old.rate is not None
        starts = self.starts_of(place, old)
        if old.burst is not None:
            spent = ceil(old.burst - self.tokens_of(place, old))
            starts = [(self.now_ms, spent if limit.rate is None else min(spent, limit.rate[0]))]
        self.tokens_left.pop(place, None)
        self.metered.pop(place, None)
        if limit.rate is not None and limit.burst is None:
            self.metered[place] = starts
        elif limit.burst is not None:
            spent = sum(cost for _, cost in starts)
            self.tokens_left[place] = Fraction(max(0, limit.burst - spent)), self.now_ms

    def broken_by(self, job: Actor) -> Limit | None:
        """Return a limit that a job which has just been started breaks."""
        for limit in self.limits.values():
            if not limit.holds_back or not (places := self.places(job, limit)):
                continue
            started = self.count_started(limit)
            if limit.most is not None and any(started[place] > limit.most for place in places):
                return limit
            if limit.rate is not None:
                if not all(self.has_room((limit.key, place), limit, job.spec.policy.cost) for place in places):
                    return limit
        return None

    def spend(self, job: Actor) -> None:
        """Count a job that has just been started."""
        for limit in self.limits.values():
            for place in self.places(job, limit) if limit.rate is not None else ():
                key = limit.key, place
                if limit.burst is not None:
                    self.tokens_left[key] = self.tokens_of(key, limit) - job.spec.policy.cost, self.now_ms
                else:
                    self.metered[key] = [*self.starts_of(key, limit), (self.now_ms, job.spec.policy.cost)]
