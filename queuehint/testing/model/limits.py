"""Limits: on running and on unfinished jobs at a path, and on starts in a time."""

from __future__ import annotations

from fractions import Fraction
from math import ceil
from typing import TYPE_CHECKING

import attrs

from queuehint.testing.model.jobs import STARTED, Actor, Jobs
from queuehint.testing.model.places import is_at_or_below

if TYPE_CHECKING:
    from collections.abc import Container

    from queuehint.values.hint import Path
    from queuehint.values.limit import Key, Limit


class Limits(Jobs):
    """Rate and concurrency limits of ready jobs, and limits of submissions."""

    def places(self, job: Actor, limit: Limit) -> set[Path]:
        """Return at which places a job counts towards a limit on starts; of a task or a pool it is the root."""
        if limit.path is None:
            return {()} if job.spec.task == limit.task or job.spec.pool == limit.pool else set()
        length = len(limit.path) + limit.each
        return {
            claim.path[:length]
            for claim in job.claims
            if is_at_or_below(claim.path, limit.path) and len(claim.path) >= length
        }

    def is_limited(self, job: Actor) -> bool:
        """Some limit may keep a job from being started."""
        return any(limit.holds_back and self.places(job, limit) for limit in self.limits.values())

    def count_started(self, limit: Limit) -> list[Path]:
        """Return the places of all STARTED jobs that count towards a limit."""
        return [place for job in self.placed if job.state is STARTED for place in self.places(job, limit)]

    def unfinished(self, taken: Container[str] = ()) -> list[Actor]:
        """Return the unfinished jobs, without the hidden ones of these ids, which another submission takes."""
        hidden = [job for job in self.hidden.values() if job.id not in taken]
        return [job for job in (*self.jobs.values(), *hidden) if not job.is_over]

    def count_unfinished(self, path: Path | None, taken: Container[str] = ()) -> int:
        """Return how many jobs are unfinished below a path, once a claim; all of them if there is none."""
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

    def tokens_of(self, bucket: tuple[Key, Path], rate: tuple[int, int]) -> Fraction:
        """Return what is in a bucket that holds as many starts as a rate has, and fills up in its time."""
        left, as_of = self.tokens_left.get(bucket, (Fraction(rate[0]), self.now_ms))
        return min(Fraction(rate[0]), left + Fraction((self.now_ms - as_of) * rate[0], rate[1]))

    def set_limit(self, limit: Limit) -> bool:
        """Put a limit in place of another; what was spent of a rate stays spent, in whole tokens."""
        key = limit.key
        old = self.limits.pop(key, attrs.evolve(limit, most=None, rate=None, max_pending=None))
        if limit.holds_back or limit.max_pending is not None:
            self.limits[key] = limit
        if old.max_pending is None:
            # Hidden jobs that are older count towards the limit of a task or a pool once they are committed.
            self.pending_since[key] = self.numbers
        if (limit.most, limit.rate) != (old.most, old.rate):
            for bucket in [bucket for bucket in self.tokens_left if bucket[0] == key]:
                assert old.rate is not None
                spent = ceil(old.rate[0] - self.tokens_of(bucket, old.rate))
                del self.tokens_left[bucket]
                if limit.rate is not None:
                    self.tokens_left[bucket] = Fraction(max(0, limit.rate[0] - spent)), self.now_ms
        return limit != old

    def broken_by(self, job: Actor) -> Limit | None:
        """Return a limit that a job which has just been started breaks."""
        for limit in self.limits.values():
            if not limit.holds_back or not (places := self.places(job, limit)):
                continue
            started = self.count_started(limit)
            if limit.most is not None and any(started.count(place) > limit.most for place in places):
                return limit
            if limit.rate is not None:
                if any(self.tokens_of((limit.key, place), limit.rate) < 1 for place in places):
                    return limit
        return None

    def spend(self, job: Actor) -> None:
        """Take the tokens of a job that has just been started."""
        for limit in self.limits.values():
            if limit.rate is not None:
                for place in self.places(job, limit):
                    bucket = limit.key, place
                    self.tokens_left[bucket] = self.tokens_of(bucket, limit.rate) - 1, self.now_ms
