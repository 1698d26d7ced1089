"""
Edges between jobs: the dependencies of a job, and the effect of a job's end on its dependents.

Children are edges too: a parent that waits for its children holds no place, and ends when the last of them has ended.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Literal

from queuehint.testing.model.jobs import CANCELED, DEFERRED, EXPIRY, FAILED, FINISHED, Actor
from queuehint.testing.model.moves import Moves
from queuehint.values.outcome import Outcome
from queuehint.values.record import JobState
from queuehint.values.spec import SIGNAL_MARK, SIGNAL_TASK, Dependency

if TYPE_CHECKING:
    from collections.abc import Collection

    from queuehint.values.policy import OnDependencyFailure


def effect_of_end(
    edge: Dependency, on_failure: OnDependencyFailure, state: JobState
) -> Literal["drop", "wait", "cancel", "fail"]:
    """
    Return the effect of a dependency's end on its dependent, from the table of the documentation.

    >>> effect_of_end(Dependency("A"), "wait", JobState.FAILED)
    'wait'
    >>> effect_of_end(Dependency("A", data=True), "run", JobState.FAILED)
    'cancel'
    """
    if edge.when == "failure":
        return "drop" if state is FAILED else "cancel"
    if state is FINISHED:
        return "drop"
    if edge.when == "must":
        return "fail"
    if edge.when == "success" and on_failure == "wait" and state is FAILED:
        return "wait"
    if edge.when == "success" and on_failure == "cancel":
        return "cancel"
    return "cancel" if edge.data else "drop"


def cause_of(job_id: str, state: JobState | None) -> str:
    """Return the cause of the cancellation of a dependent, by the end of its dependency."""
    how = {FINISHED: "has finished", FAILED: "has failed", CANCELED: "was canceled", None: "has expired"}
    return f"dependency {job_id} {how[state]}"


class Edges(Moves):
    """Effects of the end of a job on its dependents."""

    # --- at first ----------------------------------------------------------------------------------------------------

    def evaluate(self, job: Actor, coming: Collection[str] = ()) -> tuple[list[str], str | None]:
        """Return the open dependencies of a job, and the first needed one that cancels the job."""
        waits = []
        for edge, on_failure in job.needs.values():
            other = self.needed(job, edge.id)
            if edge.id.startswith(SIGNAL_MARK):
                # Given at any time it is given; not given, it may be given yet.
                what = "wait" if self.find(edge.id) is None else "drop"
            elif other is None:
                if edge.id in self.jobs or edge.id not in coming:
                    return [], edge.id
                what = "wait"
            else:
                what = effect_of_end(edge, on_failure, other.state) if other.is_over else "wait"
            if what in {"cancel", "fail"}:
                return [], edge.id
            if what == "wait":
                waits.append(edge.id)
        return waits, None

    def needed(self, job: Actor, job_id: str) -> Actor | None:
        """Return the dependency of an id, if the id has not been taken by a later job."""
        other = self.find(job_id)
        return None if other is None or other.enqueued > job.enqueued else other

    def bind(self, job: Actor, coming: Collection[str] = ()) -> bool:
        """Open the edges of a job. Return False if the job is canceled instead."""
        waits, canceled_by = self.evaluate(job, coming)
        if canceled_by is None:
            job.waits.update(dict.fromkeys(waits, "need"))
            self.awaited.update(job.needs)
            return True
        dependency = self.needed(job, canceled_by)
        if dependency is None:
            self.end(job, CANCELED, cause_of(canceled_by, None))
        else:
            self.end_because_of(job, dependency)
        return False

    # --- when one ends -----------------------------------------------------------------------------------------------

    def resolve(self, dependency: Actor, waiting: list[Actor]) -> None:
        for job in waiting:
            if not dependency.is_over:
                return
            if not job.is_over and dependency.id in job.waits:
                self.follow_edge(job, dependency)

    def follow_edge(self, job: Actor, dependency: Actor) -> None:
        kind = job.waits[dependency.id]
        if kind == "need":
            edge, on_failure = job.needs[dependency.id]
            what = effect_of_end(edge, on_failure, dependency.state)
            if what == "wait":
                # For a redrive, and there is none of a job whose record is gone.
                return self.end(job, CANCELED, cause_of(dependency.id, None)) if dependency.gone else None
            if what in {"cancel", "fail"}:
                return self.end_because_of(job, dependency)
        if kind == "child" and dependency.state is not FINISHED:
            job.child_failed = True
        del job.waits[dependency.id]
        if job.waits:
            return None
        if job.is_parent:
            return self.end_parent(job)
        if job.state is not DEFERRED:
            return None
        return self.give(job) if job.spec.task == SIGNAL_TASK else self.take_place(job)

    def end_because_of(self, job: Actor, dependency: Actor) -> None:
        """Cancel a job after the end of a dependency, or let the job fail, by the policy of its edge."""
        if effect_of_end(*job.needs[dependency.id], dependency.state) == "fail":
            # It was never run, and waits for nothing any more: a redrive runs it at once.
            job.released = True
            return self.die(job, "dependency_failed")
        self.end(job, CANCELED, cause_of(dependency.id, dependency.state))
        job.canceled_by = None if dependency.gone else dependency.id
        return None

    def give(self, job: Actor) -> None:
        """End a signal with its data, or a wait with the data of its signal."""
        edge = next(iter(job.needs), None)
        job.result = job.spec.arguments if edge is None else self.jobs[edge].result
        self.end(job, FINISHED)

    # --- when one comes back -----------------------------------------------------------------------------------------

    def revive_canceled_by(self, by: Actor) -> None:
        """Revive the jobs canceled because of a job, in order of number, unless that job has ended again."""
        for job in sorted(self.jobs.values(), key=lambda job: job.number):
            if by.is_over and by.state is not FINISHED:
                return
            if job.canceled_by == by.id:
                self.revive(job)

    def revive(self, job: Actor) -> None:
        waits, canceled_by = self.evaluate(job)
        if canceled_by is not None:
            job.canceled_by = canceled_by if self.needed(job, canceled_by) is not None else None
            return
        if self.last_above(job) is not None:
            return
        self.begin_anew(job)
        job.waits.update(dict.fromkeys(waits, "need"))
        self.awaited.update(job.needs)
        within = job.spec.policy.start_within_ms
        if within is not None and not job.ever_started:
            job.alarms[EXPIRY] = self.now_ms + within
        if job.waits:
            job.state = DEFERRED
        else:
            self.place(job)
        self.agenda.append(partial(self.revive_canceled_by, job))

    # --- children ----------------------------------------------------------------------------------------------------

    def await_children(self, job: Actor, outcome: Outcome) -> None:
        """Suspend a running job until its children have ended. An unknown or circular child fails the job."""
        # Of one whose record has expired it is still known how it ended, as long as its id is kept.
        children = [(child_id, self.jobs.get(child_id)) for child_id in dict.fromkeys(outcome.children)]
        unfinished = [child_id for child_id, child in children if child is not None and not child.is_over]
        if any(child is None for _, child in children) or self.waits_for(unfinished, job.id):
            return self.die(job, "failed")
        job.result = job.result if outcome.result is None else outcome.result
        if outcome.again:
            return self.await_again(job, unfinished)
        strict = outcome.on_child_failure == "fail"
        job.is_parent = True
        job.child_failed = strict and any(child.state in {FAILED, CANCELED} for _, child in children if child)
        if not unfinished:
            return self.end_parent(job)
        self.woven = True
        self.stop(job)
        self.vacate(job)
        job.state = DEFERRED
        self.awaited.update(unfinished)
        return job.waits.update(dict.fromkeys(unfinished, "child" if strict else "ignored child"))

    def await_again(self, job: Actor, awaited: list[str]) -> None:
        """Suspend a running job until other jobs have ended, in any way, and run it again with their results."""
        job.attempts -= 1
        if not awaited:
            return self.put_back(job, None)
        self.woven = True
        self.stop(job)
        self.vacate(job)
        job.state = DEFERRED
        self.awaited.update(awaited)
        for job_id in awaited:
            self.hold(job, job_id)
            job.waits[job_id] = "again"
        return None

    def hold(self, job: Actor, job_id: str) -> None:
        """Keep the result of a dependency for a running job."""
        job.needs.setdefault(job_id, (Dependency(job_id, "done"), "run"))
        job.released = False
        self.awaited.update(job.needs)

    def end_parent(self, job: Actor) -> None:
        if job.child_failed:
            self.die(job, "child_failed")
        else:
            self.end(job, FINISHED)
