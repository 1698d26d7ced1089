"""
The checker of traces: one pass over the events of a queue.

Three times of a job matter: when it took its place (it was queued), when it ran and when it ended; a job that is put
back keeps its place unless its events or its `TraceJob` say otherwise. A start is checked against

- the jobs that run: none may conflict,
- the jobs with an earlier place: those that conflict must have left it. Exactly this is the rule for exclusive claims;
  with shared ones a queue may let more jobs wait, never fewer,
- the jobs it depends on.

A trace may begin in the middle: a start that depends on unknown events is no fault, but listed as not judged.

Complexity: O(depth) for each event and claim, beside sorting; idle slots are found by checking the waiters of a job
again when it ends.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from math import isfinite

from queuehint.testing.trace.faults import Fault, Rule, counted, name_at, named
from queuehint.testing.trace.life import Life
from queuehint.testing.trace.places import Places
from queuehint.testing.trace.slots import Slots
from queuehint.testing.trace.values import PUT_BACK, InvalidTraceError, TraceEvent, TraceJob
from queuehint.values.hint import Claim
from queuehint.values.signal import name_of
from queuehint.values.spec import Dependency

_ENDS = frozenset({"finished", "failed", "canceled", "ended", "pruned"})
_FREES = PUT_BACK | _ENDS | {"scheduled", "deferred"}
"""Events that take a job from its worker, or its place away."""
_BY_EDGE = "dependency_failed"
_STRANGER = "unknown_task"

_NOT_DESCRIBED = "have events and are not described, so that no conflict of theirs is seen"
_NEVER_QUEUED = "started and never queued, so that nobody knows whose turn it was"
_STARTED_BEFORE = "ended and were started before the trace begins"
_WITHOUT_EVENTS = "are depended on and have no events, so that nobody knows whether they were over"


def in_order(events: Sequence[TraceEvent], tolerance_ms: float) -> list[int]:
    """
    Return the positions of events in the order in which they are gone through.

    That is by time, with what frees a place moved forward by *tolerance_ms*, never before what the job did last: so
    that what is in order within the tolerance is in order.
    """
    if not all(isfinite(event.at_ms) for event in events):
        raise InvalidTraceError("at_ms must be a finite number")
    order = list(range(len(events)))
    if any(events[index].at_ms < events[index - 1].at_ms for index in range(1, len(events))):
        order.sort(key=lambda index: events[index].at_ms)
    if not tolerance_ms:
        return order
    keys: dict[int, tuple[float, int, int, int]] = {}
    last: dict[str, tuple[float, int, int, int]] = {}
    for index in order:
        event = events[index]
        key = event.at_ms, 1, index, 0
        if event.kind in _FREES:
            key = event.at_ms - tolerance_ms, 0, index, 0
            before = last.get(event.job)
            if before is not None and key < before:
                # Right behind it: of several jobs started at one time each ends before the next is started.
                key = *before[:3], before[3] + 1
        keys[index] = last[event.job] = key
    return sorted(order, key=keys.__getitem__)


class Checker:
    """A pass through a trace. ``faults`` has its findings."""

    def __init__(
        self,
        events: Sequence[TraceEvent],
        jobs: Mapping[str, TraceJob],
        *,
        tolerance_ms: float,
        complete: bool,
        limit: int,
    ) -> None:
        self._events = events
        self._jobs = jobs
        self._tolerance_ms = tolerance_ms
        self._is_complete = complete
        self._limit = limit
        self.faults: list[Fault] = []
        self._last_faults: list[Fault] = []
        """Reported as far as those of other rules leave room."""
        self.lives: dict[str, Life] = {}
        self.slots: Slots | None = None
        self.met: set[str] = set()
        """The jobs that took a place while one that conflicts had an earlier one."""
        self._placed: Places[Life] = Places()
        self._running: Places[Life] = Places()
        self._number = 0
        self._queued_later = {event.job for event in events if event.kind == "queued"}
        self._unseen: dict[str, list[Fault]] = {}
        """By a dependency of which nothing was seen yet: what is a fault if it begins later."""
        self._missing: Counter[str] = Counter()
        self._index = 0
        self._gaps = 0

    def run(self, order: Iterable[int]) -> None:
        """Go through events in this order, until enough faults are found."""
        for self._index in order:
            if len(self.faults) >= self._limit:
                break
            event = self._events[self._index]
            if self.slots is not None:
                for life, since_ms in self.slots.idle_until(event.at_ms):
                    self._blame_idle(event, life, since_ms)
            if event.kind == "idle":
                self._idle(event)
            elif event.kind == "gap":
                self._forget()
            else:
                self._happen(event, self._life(event))
            if self.slots is not None:
                self.slots.told(event)
        else:
            self._end()
        self.faults.sort(key=lambda fault: fault.at_ms)
        self.faults = sorted([*self.faults, *self._last_faults][: self._limit], key=lambda fault: fault.at_ms)

    def _forget(self) -> None:
        """Forget all jobs after missing events."""
        self.lives.clear()
        self._placed, self._running = Places(), Places()
        if self.slots is not None:
            self.slots = self.slots.forgotten()
        self._gaps += 1

    def unjudged(self) -> tuple[str, ...]:
        """Return the unjudged events, and the reasons."""
        found = [f"{text}: {counted(count, 'job')}" for text, count in self._missing.items()]
        return (*found, f"what happened across a gap: {self._gaps}") if self._gaps else tuple(found)

    # --- one event -----------------------------------------------------------------------------------------------

    def _life(self, event: TraceEvent) -> Life:
        life = self.lives.get(event.job)
        if life is not None:
            return life
        job = self._jobs.get(event.job)
        if job is None and event.claims is None:
            self._missing[_NOT_DESCRIBED] += 1
        life = self.lives[event.job] = Life(event.job, job)
        for fault in self._unseen.pop(event.job, ()):
            if event.kind != "pruned":
                self.faults.append(fault)
        return life

    def _happen(self, event: TraceEvent, life: Life) -> None:
        kind = event.kind
        if event.claims is not None and event.claims != life.claims:
            self._move(life, event.claims, event)
        if kind == "progressed":
            return
        if kind == "started":
            self._start(event, life)
        elif kind == "queued":
            self._queue(event, life)
        elif kind == "enqueued":
            self._enqueue(event, life)
        elif kind == "redriven":
            self._redrive(event, life)
        elif kind in PUT_BACK:
            self._stop(event, life)
            if event.state == "SCHEDULED" or (event.state is None and self._yields(kind, life)):
                self._leave(life, event)
            else:
                life.put_back, life.is_away = kind, True
                life.is_refused |= event.cause == _STRANGER
                life.is_off = kind in {"retried", "snoozed"} or event.cause == _STRANGER
                if self.slots is not None and life.seq and not life.is_over:
                    self.slots.withdraw(life)
                    if not life.is_off:
                        self.slots.put_back(life, event.at_ms, self._placed)
        elif kind in _ENDS:
            self._finish(event, life)
        else:
            life.is_awaiting = kind == "deferred" and bool(life.ran)
            if life.ran:
                self._halt(life, event)
            self._leave(life, event)
        life.is_known = True

    def _yields(self, kind: str, life: Life) -> bool:
        return kind in {"retried", "snoozed"} and life.job is not None and life.job.on_retry == "yield"

    def _enqueue(self, event: TraceEvent, life: Life) -> None:
        if life.is_over:
            self._begin_anew(life)
        if life.seq or life.ran:
            return
        if event.state is None:
            waits = life.job is not None and any(not self._is_met(edge, life.job) for edge in life.job.depends_on)
            has_place = event.job not in self._queued_later and not waits
        else:
            has_place = event.state == "QUEUED"
        if has_place:
            self._place(life, event)
        else:
            life.after = self._number + 1

    def _queue(self, event: TraceEvent, life: Life) -> None:
        if event.old == "QUEUED":  # given new content by its key
            self._leave(life, event)
        elif life.ran and event.at_ms - life.started_ms <= self._tolerance_ms and self._tolerance_ms:
            return
        elif (life.seq and not life.is_over and not life.is_away) or life.ran:
            how = "runs" if life.ran else "has its place already"
            self._blame(Rule.QUEUED_TWICE, event, life, None, f"{_named(life)} was queued again while it {how}")
            return
        if life.is_over:
            self._begin_anew(life)
        if life.seq:
            # A back-off has ended, or a dead job is brought back: it has its place.
            life.is_away = life.is_off = False
            if self.slots is not None:
                self.slots.put_back(life, event.at_ms, self._placed)
        else:
            self._place(life, event)

    def _redrive(self, event: TraceEvent, life: Life) -> None:
        self._begin_anew(life)
        if event.state == "DEFERRED":
            # It waits for what is run again, and gives up a place that it held.
            self._leave(life, event)
        elif life.seq:
            life.put_back, life.is_away, life.is_off = "redriven", False, False
            if self.slots is not None:
                self.slots.put_back(life, event.at_ms, self._placed)
        else:
            bound = life.bound
            self._place(life, event)
            if life.job is None or life.job.on_dead == "cancel_behind":
                # It may have its old place still, held or because not all behind it were canceled yet: nothing tells.
                life.bound = bound
                if self.slots is not None:
                    self.slots.doubt(life)

    def _finish(self, event: TraceEvent, life: Life) -> None:
        kind = event.kind
        if kind in {"finished", "failed", "ended"} and not life.is_awaiting and not _may_end_unstarted(event, life):
            self._stop(event, life)
        elif life.ran:
            self._halt(life, event)
        life.is_awaiting = False
        life.ended.add(kind)
        is_held = kind == "failed" and life.job is not None and life.job.on_dead == "hold" and life.seq
        life.is_over = True
        if not is_held:
            self._leave(life, event)
        elif self.slots is not None:
            self.slots.withdraw(life)
        life.put_back = "held" if is_held else None

    def _begin_anew(self, life: Life) -> None:
        life.is_over = life.is_awaiting = life.is_away = life.is_off = False
        life.put_back = "redriven" if life.put_back else None

    # --- starts and stops ----------------------------------------------------------------------------------------

    def _start(self, event: TraceEvent, life: Life) -> None:
        if life.token is not None and event.token is not None and event.token <= life.token:
            said = f"{_named(life)} was started with token {event.token}, after it had {life.token}"
            self._blame(Rule.TOKEN, event, life, None, said)
        life.token = event.token if event.token is not None else life.token
        if life.ran:
            worker = f" by {life.worker}" if life.worker is not None else ""
            said = f"{_named(life)} was started again while it runs{worker}"
            self._blame(Rule.STARTED_TWICE, event, life, None, said)
            life.worker = event.worker
            return
        if life.is_over:
            said = f"{_named(life)} was started after it was over, and was not queued again"
            self._blame(Rule.STARTED_AFTER_END, event, life, None, said)
            life.is_over = False
            self._leave(life, event)
        elif not self._judge_conflicts(event, life):
            self._judge_edges(event, life)
        if not life.seq:
            if not life.is_known and life.claims:
                self._missing[_NEVER_QUEUED] += 1
            bound = life.after
            self._place(life, event)
            life.bound = bound
        if self.slots is not None:
            self.slots.started(life, event)
        self._number += 1
        life.ran = self._number
        life.started_ms, life.worker = event.at_ms, event.worker
        life.put_back = None
        life.is_awaiting = life.is_away = life.is_off = False
        self._running.add(life.claims, life.ran, life)

    def _judge_conflicts(self, event: TraceEvent, life: Life) -> bool:
        """Check a start against the jobs in its way. Return whether there is a conflict."""
        found = self._running.first(life.claims)
        if found is not None:
            other = found[1]
            said = f"{_at(life, other)} was started while {_at(other, life)} was running"
            self._blame(Rule.OVERLAP, event, life, other, said)
            return True
        found = self._placed.first(life.claims)
        if found is None:
            return False
        seq, other = found
        if seq >= (life.bound if life.seq else life.after):
            return False
        if life.seq and self._tolerance_ms and life.placed_ms - other.placed_ms <= self._tolerance_ms:
            return False
        said = f"{_at(life, other)} overtook {_at(other, life)}, {_WHY[other.put_back]}"
        self._blame(Rule.ORDER, event, life, other, said)
        return True

    def _judge_edges(self, event: TraceEvent, life: Life) -> None:
        job = life.job
        if job is None or ("failed" in life.ended and _must_wait(job)):
            # One that has failed by an edge is redriven without its edges.
            return
        for edge in job.depends_on:
            if self._is_met(edge, job):
                continue
            other = self.lives.get(edge.id)
            if other is None:
                said = f"{_named(life)} was started before {edge.id}, which it depends on, began"
                fault = self._fault(Rule.DEPENDENCY, event, life, edge.id, said)
                if self._is_complete:
                    self.faults.append(fault)
                else:
                    self._unseen.setdefault(edge.id, []).append(fault)
                continue
            if other.is_over:
                how = "failed" if "failed" in other.ended else "finished" if "finished" in other.ended else "canceled"
                wanted = "" if edge.when == "success" else f" on {edge.when}"
                said = f"{_named(life)} was started although {other.job_id}, which it depends on{wanted}, is {how}"
            else:
                said = f"{_named(life)} was started before {other.job_id}, which it depends on, was over"
            self._blame(Rule.DEPENDENCY, event, life, other, said)

    def _is_met(self, edge: Dependency, job: TraceJob) -> bool:
        """Return whether the end of a job opens an edge. A resolved edge stays resolved."""
        other = self.lives.get(edge.id)
        if other is None:
            return False
        ended = other.ended
        if not ended:
            return False
        if edge.when == "done" or "ended" in ended or ended == {"pruned"}:
            return True
        if edge.when == "failure":
            return "failed" in ended
        if edge.when == "must":
            return "finished" in ended
        on_failure = job.on_dependency_failure
        return (
            "finished" in ended
            or (on_failure == "run" and not edge.data)
            or (on_failure == "wait" and not edge.data and "canceled" in ended)
        )

    def _stop(self, event: TraceEvent, life: Life) -> None:
        """Take a job from its worker. A stop without a start is a fault, unless the job is unknown."""
        if life.ran:
            if event.token is not None and life.token is not None and event.token != life.token:
                said = f"{_named(life)} was {event.kind} with token {event.token}, and runs with {life.token}"
                self._blame(Rule.TOKEN, event, life, None, said)
            self._halt(life, event)
        elif life.is_known:
            said = f"{_named(life)} {_ENDED.get(event.kind, f'was {event.kind}')} and was not running"
            self._blame(Rule.NOT_STARTED, event, life, None, said)
        else:
            self._missing[_STARTED_BEFORE] += 1

    def _halt(self, life: Life, event: TraceEvent) -> None:
        self._running.remove(life.claims, life.ran)
        life.ran = 0
        if self.slots is not None:
            self.slots.stopped(life, event)

    # --- places --------------------------------------------------------------------------------------------------

    def _place(self, life: Life, event: TraceEvent) -> None:
        self._number += 1
        if self.slots is not None:
            self.slots.place(life, self._number, event.at_ms, self._placed)
        if self._placed.first(life.claims) is not None:
            self.met.add(life.job_id)
        life.seq = life.bound = self._number
        life.placed_ms = event.at_ms
        life.is_awaiting = False
        life.put_back, life.is_away, life.is_off = None, False, False
        self._placed.add(life.claims, life.seq, life)

    def _leave(self, life: Life, event: TraceEvent) -> None:
        life.after = self._number + 1
        life.put_back, life.is_away, life.is_off = None, False, False
        if life.seq:
            self._placed.remove(life.claims, life.seq)
            life.seq = 0
            if self.slots is not None:
                self.slots.left(life, event.at_ms, self._placed)

    def _move(self, life: Life, claims: tuple[Claim, ...], event: TraceEvent) -> None:
        if life.ran:
            self._running.remove(life.claims, life.ran)
            self._running.add(claims, life.ran, life)
        if life.seq:
            self._leave(life, event)
            life.claims = claims
            if event.kind not in _FREES and event.kind != "queued":
                self._place(life, event)
        life.claims = claims

    # --- slots ---------------------------------------------------------------------------------------------------

    def _idle(self, event: TraceEvent) -> None:
        assert self.slots is not None
        life = self.slots.any_ready(event.pool)
        if life is not None:
            worker = f"worker {event.worker}" if event.worker is not None else "a worker"
            said = f"{worker} asked for a job and got none while {_named(life)} was ready"
            self._blame(Rule.IDLE, event, life, self.slots.freed_by(life), said)

    def _blame_idle(self, event: TraceEvent, life: Life, since_ms: float) -> None:
        assert self.slots is not None
        said = f"a slot was idle for {event.at_ms - since_ms:g} ms while {_named(life)} was ready"
        said += f"; {self.slots.idle_ms:g} ms are allowed (idle_ms)"
        self._blame(Rule.IDLE, event, life, self.slots.freed_by(life), said)

    # --- the end -------------------------------------------------------------------------------------------------

    def _end(self) -> None:
        if self._unseen:
            self._missing[_WITHOUT_EVENTS] += len(self._unseen)
        if not self._is_complete or not self._events:
            return
        for life in self.lives.values():
            if not life.is_over:
                how = (
                    "still runs" if life.ran else "was not started" if not life.started_ms else "was not started again"
                )
                said = f"{_named(life)} {how} at the end of the trace"
                self._blame(Rule.NOT_OVER, self._events[self._index], life, None, said)

    def _blame(self, rule: Rule, event: TraceEvent, life: Life, other: Life | None, said: str) -> None:
        fault = self._fault(rule, event, life, None if other is None else other.job_id, said)
        if rule not in {Rule.IDLE, Rule.NOT_OVER}:
            self.faults.append(fault)
        elif len(self._last_faults) < self._limit:
            self._last_faults.append(fault)

    def _fault(self, rule: Rule, event: TraceEvent, life: Life, other: str | None, said: str) -> Fault:
        return Fault(rule=rule, job=life.job_id, other=other, at_ms=event.at_ms, index=self._index, message=said)


# --- words -----------------------------------------------------------------------------------------------------------

_WHY = {
    None: "which was queued before it and was not over",
    "retried": "which was put back for another attempt and keeps its place",
    "snoozed": "which was put back by its handler and keeps its place",
    "released": "which was given back by its worker and keeps its place",
    "lost": "which was taken from a dead worker and keeps its place",
    "redriven": "which was brought back to the place it held",
    "held": "which is dead and holds its place",
}
_ENDED = {"finished": "finished", "failed": "failed", "ended": "ended"}


def _must_wait(job: TraceJob) -> bool:
    """Return whether a job fails by an end of a dependency other than the awaited one."""
    return any(edge.when == "must" for edge in job.depends_on)


def _may_end_unstarted(event: TraceEvent, life: Life) -> bool:
    """Return whether a job may end without a start: a signal, a wait for one, or a job failed by an edge."""
    if life.ran:
        return False
    if event.cause is not None:
        return event.cause == _BY_EDGE
    return name_of(life.job_id) is not None or (
        event.kind == "failed" and life.job is not None and _must_wait(life.job)
    )


def _named(life: Life) -> str:
    return named(life.job_id)


def _at(life: Life, other: Life) -> str:
    return name_at(life.job_id, life.claims, other.claims)
