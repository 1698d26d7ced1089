"""
More children than one outcome has room for: each job between parent and children waits for a part of these.

The worker of the parent enqueues them before it settles the parent, which then waits for these. Their code is no
handler: each worker knows their task, and has such a job wait for its part, as a parent does, without running anything.
So they end when their parts are over, FAILED if the parent is to fail, and the parent follows.
"""

from __future__ import annotations

import asyncio
import hashlib
from typing import TYPE_CHECKING, Any

import attrs

from queuehint.errors import BackendUnavailableError, OutcomeUnknownError, PayloadError, shown
from queuehint.handlers.conversion.plain_json import decode_json, encode_json
from queuehint.schema.checks import ID_BYTES_MAX, check_choice, check_id, check_items
from queuehint.values.outcome import CHILDREN_MAX, ON_CHILD_FAILURE, OutcomeKind
from queuehint.values.policy import Policy
from queuehint.values.spec import CHILDREN_TASK, JobSpec
from queuehint.worker.dependency_results import PAUSE_S
from queuehint.worker.outcomes import outcome_of

if TYPE_CHECKING:
    from queuehint.values.outcome import Grant, Outcome

SENDS_MAX = 5
"""How often such jobs are sent, `PAUSE_S` apart, before the parent is given back."""


def parts_of(grant: Grant, outcome: Outcome) -> list[JobSpec]:
    """
    Return the jobs that wait for the children of an outcome, up to 1 000 each.

    Their ids follow from the token of the attempt: another attempt of the parent waits for its children as they are
    then, also for those that have been redriven.
    """
    spec = grant.spec
    parts = []
    for begin in range(0, len(outcome.children), CHILDREN_MAX):
        part_id = f"{spec.id}.children-{grant.token}-{begin // CHILDREN_MAX + 1}"
        if len(part_id.encode()) > ID_BYTES_MAX:
            part_id = hashlib.sha256(part_id.encode()).hexdigest()
        asked = {
            "children": list(outcome.children[begin : begin + CHILDREN_MAX]),
            "on_child_failure": outcome.on_child_failure,
        }
        parts.append(
            JobSpec(
                id=part_id,
                task=CHILDREN_TASK,
                arguments=encode_json(asked),
                pool=spec.pool,
                user=spec.user,
                service=spec.service,
                priority=spec.priority,
                parent=spec.id,
                headers=spec.headers,
                policy=Policy(retention_ms=spec.policy.retention_ms),
            ).check()
        )
    return parts


async def with_parts(scheduler: Any, grant: Grant, outcome: Outcome) -> Outcome:
    """
    Return an outcome that waits for the jobs of the parts, once *scheduler* has enqueued these jobs.

    Raises:
        QueueHintError: what the store refuses them with.
    """
    parts = parts_of(grant, outcome)
    for _ in range(SENDS_MAX):
        try:
            await scheduler.submit_checked(parts, parent=(grant.spec.id, grant.token))
        except (BackendUnavailableError, OutcomeUnknownError):
            # Sent again they are the same.
            await asyncio.sleep(PAUSE_S)
        else:
            return attrs.evolve(outcome, children=tuple([part.id for part in parts]))
    return outcome_of(grant, OutcomeKind.RELEASED)


def of_part(grant: Grant) -> Outcome:
    """
    Return the outcome of a job that waits for a part of the children of another job.

    Raises:
        PayloadError, InvalidJobError, InvalidJobTypeError: its arguments are not what a worker has written.
    """
    asked = decode_json(grant.spec.arguments)
    if not isinstance(asked, dict) or asked.keys() != {"children", "on_child_failure"}:
        raise PayloadError(f"arguments of {CHILDREN_TASK}: children and on_child_failure, got {shown(asked)}")
    children = check_items(asked["children"], parameter="children", most=CHILDREN_MAX)
    return outcome_of(
        grant,
        OutcomeKind.CHILDREN,
        children=tuple([check_id(child, parameter="children") for child in children]),
        on_child_failure=check_choice(asked["on_child_failure"], ON_CHILD_FAILURE, parameter="on_child_failure"),
    )
