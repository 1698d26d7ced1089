"""
Dependency results: fetched when a job is granted, before its handler runs; templates are filled from them. So are the
results of its steps that earlier attempts have stored.

A result is decoded on access, so an unused one costs nothing and raises nothing. Results that are too large together
are refused to the handler that reads them, and to no other.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from queuehint.errors import BackendError, CorruptStateError, PayloadError, clipped
from queuehint.handlers.templates import fill
from queuehint.operations import FETCH_MAX, Fetch, Operation, Verdict
from queuehint.values.record import JobState
from queuehint.values.signal import name_of
from queuehint.values.spec import PAYLOAD_BYTES_MAX

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from queuehint.handlers.codec import Codec
    from queuehint.values.outcome import Grant
    from queuehint.values.spec import Dependency, JobSpec

Reply = TypeVar("Reply")

logger = logging.getLogger("queuehint.worker")

RESULTS_BYTES_MAX = 64 << 20
PAUSE_S = 1.0
"""How long a job whose results cannot be had now is kept before it is given back."""

_RESULT = "result"
_ANY: dict[str, Any] = {_RESULT: Any}


class _Call(Protocol):
    async def __call__(self, operation: Operation[Reply]) -> Reply: ...


class DependencyResults(Mapping[str, Any]):
    """
    Results by name and by id. Iteration yields each result once, by its name if there is a name.

    Args:
        edges: what the job depends on. A name wins over an id, and the first of one name over the others.
        payloads: what those that are FINISHED have stored, by id; None for nothing.
        codec: how results travel.
        left_out: the ids of those that were not fetched, because all together are too large.

    Raises:
        PayloadError: on asking for a result that cannot be read, for one that is left out, or for all if one is.
    """

    def __init__(
        self,
        edges: Iterable[Dependency],
        payloads: Mapping[str, bytes | None],
        codec: Codec,
        left_out: Iterable[str] = (),
    ) -> None:
        self.edges = edges = list(edges)
        ids: dict[str, str] = {}
        for edge in edges:
            if edge.name is not None:
                ids.setdefault(edge.name, edge.id)
        for edge in edges:
            ids.setdefault(edge.id, edge.id)
            if (signal := name_of(edge.id)) is not None:
                ids.setdefault(signal, edge.id)
        self.left_out = frozenset(left_out)
        self._left_out_names = frozenset([name for name, job_id in ids.items() if job_id in self.left_out])
        self._ids = {name: job_id for name, job_id in ids.items() if job_id in payloads}
        own = [next((name for name in _names(edge) if ids.get(name) == edge.id), edge.id) for edge in edges]
        self._listed = tuple(dict.fromkeys(name for name in own if name in self._ids))
        self.payloads = payloads
        self._codec = codec
        self._values: dict[str, Any] = {}
        self.is_refused = False
        """Whether a result that was left out was read: a further attempt would be refused too."""

    def _refuse(self) -> None:
        self.is_refused = True
        problem = f"the results it depends on take more than {RESULTS_BYTES_MAX} bytes together, the limit"
        raise PayloadError(problem, limit=RESULTS_BYTES_MAX)

    def __getitem__(self, name: str) -> Any:
        if name in self._left_out_names:
            self._refuse()
        job_id = self._ids[name]
        if job_id not in self._values:
            payload = self.payloads[job_id]
            self._values[job_id] = None if payload is None else self._codec.loads(payload, _ANY).get(_RESULT)
        return self._values[job_id]

    def __contains__(self, name: object) -> bool:
        if name in self._left_out_names:
            self._refuse()
        return name in self._ids

    def __iter__(self) -> Iterator[str]:
        if self.left_out:
            self._refuse()
        return iter(self._listed)

    def __len__(self) -> int:
        if self.left_out:
            self._refuse()
        return len(self._listed)

    def __repr__(self) -> str:
        return f"<DependencyResults of {clipped(', '.join(self._listed)) or 'nothing'}>"


def _names(edge: Dependency) -> tuple[str, ...]:
    """Return the keys of an edge's result, the key for listings first."""
    return tuple([name for name in (name_of(edge.id), edge.name) if name])


async def fetch(call: _Call, grant: Grant, codec: Codec, *, all_of_them: bool) -> DependencyResults | None:
    """
    Return the results of the dependencies of a granted job.

    Args:
        call: the backend's.
        all_of_them: else only of those whose result is needed for the arguments.

    Returns:
        None if they cannot be had now, or by this attempt: the job is to be given back.

    Raises:
        PayloadError: those for the arguments take more than 64 MiB together.
    """
    spec = grant.spec
    ids = [edge.id for edge in spec.depends_on if edge.data]
    needed = len(ids)
    if all_of_them:
        ids += [edge.id for edge in spec.depends_on if not edge.data]
    payloads: dict[str, bytes | None] = {}
    done = size = 0
    try:
        while done < len(ids):
            page = ids[done : done + FETCH_MAX]
            reply = await call(Fetch(spec.id, grant.token, tuple(page)))
            if reply.verdict is Verdict.LOST:
                return None
            if not reply.results:
                raise CorruptStateError(f"job {spec.id!r}: the store has returned none of the results asked for")
            for job_id, (state, payload) in zip(page, reply.results, strict=False):
                if state is JobState.FINISHED:
                    payloads[job_id] = payload
                    size += len(payload or b"")
            done += len(reply.results)
            if size > RESULTS_BYTES_MAX:
                kept = {job_id: payloads[job_id] for job_id in ids[:needed] if job_id in payloads}
                if done < needed or sum(len(payload or b"") for payload in kept.values()) > RESULTS_BYTES_MAX:
                    raise PayloadError(
                        f"the results that its arguments are made of take more than {RESULTS_BYTES_MAX} bytes "
                        "together, the limit",
                        limit=RESULTS_BYTES_MAX,
                    )
                return DependencyResults(spec.depends_on, kept, codec, ids[needed:])
    except BackendError as error:
        extra = {"event": "job.no_results", "job_id": spec.id, "task": spec.task, "error": str(error)}
        logger.warning("the results that job %s needs cannot be read now; it is given back", spec.id, extra=extra)
        await asyncio.sleep(PAUSE_S)
        return None
    return DependencyResults(spec.depends_on, payloads, codec)


async def fetch_steps(call: _Call, grant: Grant) -> list[tuple[str, int, bytes]] | None:
    """
    Return the stored results of the steps of a granted job, in order: name, time and result of each.

    Returns:
        None if they cannot be had now, or by this attempt: the job is to be given back.
    """
    spec = grant.spec
    found: list[tuple[str, int, bytes]] = []
    try:
        while len(found) < grant.steps:
            reply = await call(Fetch(spec.id, grant.token, (), len(found)))
            if reply.verdict is Verdict.LOST:
                return None
            if not reply.steps:
                raise CorruptStateError(f"job {spec.id!r}: the store has {len(found)} steps, not {grant.steps}")
            found += reply.steps
    except BackendError as error:
        extra = {"event": "job.no_steps", "job_id": spec.id, "task": spec.task, "error": str(error)}
        logger.warning("the steps of job %s cannot be read now; it is given back", spec.id, extra=extra)
        await asyncio.sleep(PAUSE_S)
        return None
    return found


def filled(spec: JobSpec, results: DependencyResults, codec: Codec) -> bytes:
    """
    Return the arguments of a job with its templates filled, as the codec writes them.

    Raises:
        TemplateError: a template names a missing result.
        PayloadError: the arguments or a result are not JSON, or they take more than 1 MiB.
    """
    arguments = fill(codec.loads(spec.arguments, {}), spec.templates, results, bytes_max=PAYLOAD_BYTES_MAX)
    return codec.dumps(arguments, {}, bytes_max=PAYLOAD_BYTES_MAX)
