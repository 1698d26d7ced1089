"""Refusals: the error of each invalid operation, which has no effect."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

from queuehint import operations as op
from queuehint.core.structures.job import START_MARK
from queuehint.errors import (
    ConcurrentSubmissionError,
    CycleError,
    DuplicateFlowError,
    DuplicateJobError,
    FlowNotFoundError,
    InvalidJobError,
    JobNotFoundError,
    LeaseLostError,
    PathClosedError,
    QueueFullError,
    QueueHintError,
    UnknownDependencyError,
)
from queuehint.testing.model.jobs import EXPIRY
from queuehint.testing.model.places import at_or_below, is_at_or_below
from queuehint.testing.model.records import Records
from queuehint.values.spec import SIGNAL_MARK

if TYPE_CHECKING:
    from queuehint.testing.model.jobs import Actor
    from queuehint.values.spec import JobSpec


class Refusals(Records):
    """The errors of refused operations."""

    def refuses(self, operation: Any) -> type[QueueHintError] | None:
        """Return the error of a refused operation, None for a valid one."""
        if isinstance(operation, op.Enqueue):
            return refuses_by_itself(operation) or self._refuses_here(operation)
        if isinstance(operation, op.Exchange):
            return InvalidJobError if operation.users is None and operation.steal else None
        if isinstance(operation, op.Commit):
            return self._refuses_commit(operation)
        if isinstance(operation, op.Depend):
            return self._refuses_portion(operation)
        if isinstance(operation, op.Why):
            is_of_path = operation.job_id is None
            return None if is_of_path or self.find(operation.job_id or "") is not None else JobNotFoundError
        if isinstance(operation, op.Amend):
            job = self.find(operation.spec.id)
            if job is None:
                return None
            old, new = (attrs.evolve(spec, user=None, service=None) for spec in (job.spec, operation.spec))
            return None if old == new else InvalidJobError
        return None

    def _refuses_here(self, operation: op.Enqueue) -> type[QueueHintError] | None:
        """Return the error required by existing jobs, None without one."""
        if operation.parent is not None and self.held(*operation.parent) is None:
            return LeaseLostError
        start = self.starts.get(f"{START_MARK}{operation.staged}")
        if start is None and operation.is_further:
            return FlowNotFoundError
        if start is not None and operation.jobs and operation.jobs[0].flow != start.spec.flow:
            return InvalidJobError
        closing = operation.closing
        ids = {spec.id for spec in operation.jobs}
        new_keys: set[str] = set()
        for spec in operation.jobs:
            existing = self.existing(spec.id, operation.staged)
            if existing is not None:
                if all(known.differing_fields(spec) for known in (existing.spec, existing.asked)):
                    return DuplicateJobError
                if closing is not None and self.closed.get(closing.path) != spec.id:
                    return DuplicateJobError
                continue
            if operation.staged is not None and self._has_to_wait(spec.id, start):
                return ConcurrentSubmissionError
            # A last job passes closed paths at or below the path that it closes.
            closed = [path for path in self.closed if closing is None or not is_at_or_below(path, closing.path)]
            if any(at_or_below(spec.claims, path) for path in closed):
                return PathClosedError
            if self.costs_max(spec) < spec.policy.cost:
                return InvalidJobError
            if spec.key is not None:
                if spec.on_conflict == "reject" and (self.newest(spec.key) is not None or spec.key in new_keys):
                    return DuplicateJobError
                new_keys.add(spec.key)
            for edge in spec.depends_on:
                other = self.existing(edge.id, operation.staged)
                if edge.id.startswith(SIGNAL_MARK):
                    continue
                if other.gone if other is not None else edge.id not in ids:
                    return UnknownDependencyError
            if operation.parent is not None:
                if self.waits_for([edge.id for edge in spec.depends_on], operation.parent[0]):
                    return CycleError
        if operation.flow is not None and self._is_other_flow(operation, operation.flow):
            return DuplicateFlowError
        return QueueFullError if closing is None and self._leaves_too_many(operation) else None

    def _is_other_flow(self, operation: op.Enqueue, flow: str) -> bool:
        """Whether a flow exists with other jobs. A subset of its parts is no other flow."""
        there = self.of_flow(flow)
        known = [self.existing(spec.id, operation.staged) for spec in operation.jobs]
        kept = sum(job is not None and not job.gone for job in known)
        return bool(there) and (None in known or (operation.staged is None and kept < len(there)))

    def _has_to_wait(self, job_id: str, start: Actor | None) -> bool:
        """A job is hidden in an older submission, of which a part came a short time ago."""
        hidden = self.hidden.get(job_id)
        if hidden is None:
            return False
        other = self.starts[hidden.part or ""]
        is_younger = start is None or start.number > other.number
        return is_younger and self.now_ms < other.alarms[EXPIRY] - op.STAGED_KEPT_MS + op.STAGED_FRESH_MS

    def _refuses_commit(self, operation: op.Commit) -> type[QueueHintError] | None:
        """Return the error of a refused commit: its parts are unknown, or its flow exists."""
        start_id = START_MARK + operation.staged
        if start_id not in self.starts:
            return FlowNotFoundError
        jobs = sum(job.part == start_id for job in self.hidden.values())
        if (jobs, self.starts[start_id].portions) != (operation.jobs, operation.portions):
            return FlowNotFoundError
        is_other = jobs and operation.flow is not None and self.of_flow(operation.flow)
        return DuplicateFlowError if is_other else None

    def _refuses_portion(self, operation: op.Depend) -> type[QueueHintError] | None:
        """Return the error that further dependencies of a job of a submission in parts require."""
        if any(edge.id == operation.job_id for edge in operation.edges):
            return CycleError
        if START_MARK + operation.staged not in self.starts:
            return FlowNotFoundError
        job = self.portion_for(operation)
        for edge in operation.edges if job is not None else ():
            other = self.existing(edge.id, operation.staged)
            if edge.id.startswith(SIGNAL_MARK):
                continue
            if other is None or other.gone:
                return UnknownDependencyError
            if job is not None and other.part == job.part and other.sent >= job.number:
                return CycleError
        return None

    def _leaves_too_many(self, operation: op.Enqueue) -> bool:
        """Some limit on unfinished jobs would be broken."""
        new: dict[object, JobSpec] = {}
        for spec in operation.jobs:
            newest = self.newest(spec.key)
            is_there = self.existing(spec.id, operation.staged) is not None
            if spec.id.startswith(SIGNAL_MARK):
                continue
            if not is_there and (newest is None or not newest.stands_for_key):
                new.setdefault(spec.key if spec.key is not None else (spec.id,), spec)
        claims = [claim.path for spec in new.values() for claim in spec.claims]
        taken = {spec.id for spec in operation.jobs if self.existing(spec.id, operation.staged) is None}
        for limit in self.limits.values():
            if limit.selection is not None:
                if limit.max_pending is not None:
                    added = sum(limit.task == spec.task or limit.pool == spec.pool for spec in new.values())
                    if added and self.count_towards(limit, taken) + added > limit.max_pending:
                        return True
                continue
            places = [limit.path]
            if limit.path is not None and limit.each:
                length = len(limit.path) + 1
                places = [path[:length] for path in claims if is_at_or_below(path, limit.path) and path != limit.path]
            for place in places if limit.max_pending is not None else ():
                added = len(new) if place is None else sum(is_at_or_below(path, place) for path in claims)
                if added and self.count_unfinished(place, taken) + added > (limit.max_pending or 0):
                    return True
        return False


def refuses_by_itself(operation: op.Enqueue) -> type[QueueHintError] | None:
    """Return the error that a look at a submission alone shows."""
    specs = {spec.id: spec for spec in operation.jobs}
    if operation.is_further and operation.staged is None:
        return InvalidJobError
    if operation.staged is not None:
        if len({spec.flow for spec in specs.values()}) > 1:
            return InvalidJobError
        if any(spec.key is not None or spec.presence_ms is not None for spec in specs.values()):
            return InvalidJobError
        if any(spec.id.startswith(SIGNAL_MARK) for spec in specs.values()):
            return InvalidJobError
    edges = {spec.id: {edge.id for edge in spec.depends_on} & specs.keys() for spec in specs.values()}
    named = [specs[job_id] for ids in edges.values() for job_id in ids]
    if any(spec.key is not None and spec.on_conflict != "reject" for spec in named):
        return InvalidJobError
    # A job without an edge to a remaining job can go first; if there is none, there is a cycle.
    while edges:
        free = [job_id for job_id, ids in edges.items() if not ids & edges.keys()]
        if not free:
            return CycleError
        for job_id in free:
            del edges[job_id]
    return None
