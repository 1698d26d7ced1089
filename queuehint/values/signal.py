"""
Signals: external events for which jobs wait, and the records that represent them.

Two kinds of records have the task `SIGNAL_TASK`. They take no place and need no worker: one that waits for nothing is
FINISHED at once.

- A *signal* is there once it is given, and its result is its data. Jobs depend on its id before it is there.
- A *wait* is that of one job for one signal. It is FINISHED by the signal, whose data it takes over, or CANCELED
  (``expired``) by its time. Whichever comes first, its record says which, whatever comes later.
"""

from __future__ import annotations

import hashlib
from datetime import timedelta
from typing import Final, Literal, get_args

from queuehint.errors import InvalidJobError, shown
from queuehint.schema.checks import check_id
from queuehint.values.policy import Policy
from queuehint.values.spec import ASKED_MARK, SIGNAL_MARK, SIGNAL_TASK, WAIT_MARK, Dependency, JobSpec, When, evolved

OnTimeout = Literal["fail", "cancel", "run"]
ON_TIMEOUT: tuple[OnTimeout, ...] = get_args(OnTimeout)
SIGNAL_NAME_BYTES_MAX = 90
SIGNAL_BYTES_MAX = 65_536
"""How many bytes the data of a signal may take, as its codec writes them."""
SIGNAL_KEPT: Final = timedelta(days=7)
"""How long a signal is kept by default once it is given, and longer while a job that waits for it may still run."""
DIGEST_LENGTH = 20
WHEN_OF: Final[dict[OnTimeout, tuple[When, bool]]] = {
    "fail": ("must", False),
    "cancel": ("success", True),
    "run": ("done", False),
}
"""What the end of a wait does to its job: on which ends that goes on, and whether it cannot without the data."""


def check_signal_name(value: object, *, parameter: str = "name") -> str:
    """
    Check the name of a signal: 1 to 90 bytes, no white space or control characters.

    Raises:
        InvalidJobError, InvalidJobTypeError: naming the parameter, the value and the limit.
    """
    name = check_id(value, parameter=parameter)
    size = len(name.encode())
    if size > SIGNAL_NAME_BYTES_MAX:
        raise InvalidJobError(f"{parameter} {shown(name)} takes {size} bytes, limit {SIGNAL_NAME_BYTES_MAX}")
    return name


def signal_id(name: str) -> str:
    """Return the id of the record of a signal."""
    return SIGNAL_MARK + name


def signal_spec(name: str, data: bytes, kept_ms: int, identity: tuple[str, ...] = ()) -> JobSpec:
    """Return the spec of the job that gives a signal."""
    policy = Policy(retention_ms=kept_ms)
    return JobSpec(id=signal_id(name), task=SIGNAL_TASK, arguments=data, policy=policy, identity=identity)


def wait_id(name: str, job_id: str) -> str:
    """Return the id of the record of a job's wait for a signal."""
    digest = hashlib.sha256(f"{job_id}\0{name}".encode()).hexdigest()
    return f"{WAIT_MARK}{name}:{digest[:DIGEST_LENGTH]}"


def wait_spec(name: str, job_id: str, timeout_ms: int | None, flow: str | None = None) -> JobSpec:
    """
    Return the wait of a job for a signal.

    Args:
        timeout_ms: after this long it is CANCELED; None for never.
        flow: that of the job.
    """
    policy = Policy(start_within_ms=timeout_ms)
    edges = (Dependency(signal_id(name)),)
    return JobSpec(id=wait_id(name, job_id), task=SIGNAL_TASK, depends_on=edges, flow=flow, policy=policy)


def asked_id(name: str, timeout_ms: int) -> str:
    """Return the placeholder id by which an edge of an unsubmitted job requests a wait of its own."""
    return f"{ASKED_MARK}{timeout_ms}:{name}"


def name_of(job_id: str) -> str | None:
    """
    Return the name of the signal of an id; None for the id of any other job.

    >>> name_of(signal_id("approved:doc1")), name_of(wait_id("approved:doc1", "a")), name_of("a")
    ('approved:doc1', 'approved:doc1', None)
    """
    if job_id.startswith(SIGNAL_MARK):
        return job_id[len(SIGNAL_MARK) :]
    return job_id[len(WAIT_MARK) : -DIGEST_LENGTH - 1] if job_id.startswith(WAIT_MARK) else None


def with_waits(specs: list[JobSpec]) -> list[JobSpec]:
    """
    Add own waits to the specs whose edges request one, in place. Return these waits.

    Raises:
        InvalidJobError: a job asks for two waits for one signal, or by what `asked_id` does not return.
    """
    waits: list[JobSpec] = []
    for index, spec in enumerate(specs):
        if any(edge.id.startswith(ASKED_MARK) for edge in spec.depends_on):
            own: dict[str, JobSpec] = {}
            edges = tuple([_edge_of_wait(edge, spec, own) for edge in spec.depends_on])
            specs[index] = evolved(spec, depends_on=edges)
            waits += own.values()
    return waits


def _edge_of_wait(edge: Dependency, spec: JobSpec, own: dict[str, JobSpec]) -> Dependency:
    if not edge.id.startswith(ASKED_MARK):
        return edge
    timeout_ms, _, name = edge.id[len(ASKED_MARK) :].partition(":")
    if not timeout_ms.isdecimal() or not 0 < len(name.encode()) <= SIGNAL_NAME_BYTES_MAX:
        raise InvalidJobError(f"after: {shown(edge.id)} is no job's id; for a signal give Signal(name, timeout=...)")
    wait = wait_spec(name, spec.id, int(timeout_ms), spec.flow).check()
    if own.setdefault(wait.id, wait) != wait:
        raise InvalidJobError(f"it waits for the signal {shown(name)} twice, with two timeouts")
    return Dependency(wait.id, edge.when, edge.name, edge.data)
