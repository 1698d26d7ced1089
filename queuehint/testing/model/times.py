"""Time: due jobs, expired leases, waits and records, and the follow-up work."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from queuehint.core.jobs.lifecycle import ID_KEPT_MS, PINNED_LOOK_MAX_MS, PINNED_LOOK_MIN_MS
from queuehint.core.structures.job import DEADLINE_MARK
from queuehint.testing.model.edges import Edges
from queuehint.testing.model.jobs import CANCELED, DEFERRED, EXPIRY, FINISHED, LEASE, PRUNE, QUEUED, Actor
from queuehint.values.spec import SIGNAL_MARK

if TYPE_CHECKING:
    from queuehint.core.structures.timers import TimerKind


class Times(Edges):
    """Effects of time: due times, expiry of leases and of records."""

    def next_alarm(self) -> tuple[int, TimerKind, int, Actor] | None:
        """Return the first timer: its time, its kind, the job's number and the job, ties by kind, then by number."""
        return min(
            (
                (at, kind, job.number, job)
                for jobs in (self.jobs, self.starts)
                for job in jobs.values()
                for kind, at in job.alarms.items()
            ),
            default=None,
        )

    def catch_up(self) -> None:
        """Apply follow-up work first in first out, then due timers, each with its own follow-up work."""
        while True:
            while self.agenda:
                self.agenda.popleft()()
            alarm = self.next_alarm()
            if alarm is None or alarm[0] > self.now_ms:
                break
            self.fire_timer(alarm[1], alarm[3])
        for wanted in [wanted for wanted, until in self.paused.items() if until is not None and until <= self.now_ms]:
            del self.paused[wanted]

    def fire_timer(self, kind: TimerKind, job: Actor) -> None:
        """Apply a due timer."""
        del job.alarms[kind]
        if job.id.startswith(DEADLINE_MARK):
            self.time_out(job)
        elif job.id in self.starts:
            self.drop_parts(job)
        elif kind is EXPIRY and job.is_over:
            """It gives its key up."""
        elif kind is EXPIRY:
            self.end(job, CANCELED, "expired")
        elif kind is LEASE:
            self.reap(job)
        elif kind is PRUNE:
            self.prune(job)
        elif job.state is QUEUED and job.due is not None and job.due > self.now_ms:
            # It has held its place long enough.
            self.yield_place(job, job.due)
        elif job.state is QUEUED:
            job.due = None
        elif job.waits:
            job.state, job.due = DEFERRED, None
        else:
            self.take_place(job)

    def time_out(self, deadline: Actor) -> None:
        """Cancel the unfinished jobs of a flow."""
        del self.starts[deadline.id]
        self.numbers += 1
        flow = deadline.id.removeprefix(DEADLINE_MARK)
        self.agenda.append(partial(self.sweep_flow, flow, self.numbers, "flow_timeout"))

    def drop_parts(self, start: Actor) -> None:
        """Forget a submission in parts that was never committed."""
        del self.starts[start.id]
        self.hidden = {job.id: job for job in self.hidden.values() if job.part != start.id}

    def reap(self, job: Actor) -> None:
        """Take a job from a worker, or a caller, that did not renew."""
        if job.is_for_a_caller:
            self.end(job, CANCELED, "waiter_lost")
        elif job.cancel is not None:
            self.end(job, CANCELED, job.cancel)
        elif job.to_begin:
            job.attempts -= 1
            self.put_back(job, None)
        else:
            self.lose(job)

    def prune(self, job: Actor) -> None:
        """Drop a record, later if its result is still needed, and later its id."""
        if job.state is FINISHED and not job.gone and self.is_needed(job):
            kept = min(max(self.kept_ms(job), PINNED_LOOK_MIN_MS), PINNED_LOOK_MAX_MS)
            job.alarms[PRUNE] = self.now_ms + kept
            return
        self.vacate(job)
        job.gone = True
        job.canceled_by = job.result = None
        job.steps = {}
        id_until = max(job.ended + ID_KEPT_MS, job.alarms.get(EXPIRY, 0))
        if job.id.startswith(SIGNAL_MARK):
            # It may be given anew.
            id_until = self.now_ms
        if id_until > self.now_ms:
            job.alarms[PRUNE] = id_until
        else:
            del self.jobs[job.id]
            self.awaited.discard(job.id)
            self.pruned += 1
        self.tell(job)
        self.let_go(job)
