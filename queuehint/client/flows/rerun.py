"""
Run a job of a flow again, and what follows from it.

The jobs that are over are run again in order of their dependencies, at most `AGAIN_MAX` at once, each by the version of
the record that was read: so of two callers one runs a job again, and the other finds that it was. One that is told
nothing of an outcome, or that has come to a part of the jobs only, asks for the same once more: what has run since, or
will, is left, and the rest is done. Tokens tell it: one that started before what it depends on started last is old.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from queuehint.backends.steps import tick_until_done
from queuehint.client.handle import JobHandle
from queuehint.errors import CorruptStateError, InvalidJobError, JobNotFoundError, StaleRecordError, shown
from queuehint.operations.base import AGAIN_MAX, Verdict
from queuehint.operations.bounds import topological
from queuehint.schema.checks import check_bool, check_choice, check_id, check_int

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from queuehint.backends.steps import Steps
    from queuehint.client.handle import Client
    from queuehint.operations import Judged
    from queuehint.values.record import JobRecord

    Read = Callable[[], Steps[list[JobRecord]]]

EDGES_AT_ONCE = 4_000
"""How many dependencies jobs have together that are run again at once, unless one has more."""
VERSION_MAX = 2**62
TRIES_MAX = 10
"""How often what was read is found to have changed, before that is an error."""


def rerun(
    client: Client, read: Read, make: Any, job: Any, downstream: object, version: object, steps: object
) -> Steps[int]:
    """
    Run a job again and, if *downstream*, what follows from it; return how many jobs were queued again.

    Args:
        read: returns the records of the flow.
        make: `Redrive`.
        job, downstream, version, steps: as of `FlowHandle.rerun`.

    Raises:
        InvalidJobError, InvalidJobTypeError: naming the parameter.
        JobNotFoundError: the flow has no such job.
        InvalidJobError: one that would have to run again is not over, or cannot run again; it is named.
        StaleRecordError: the records change again and again.
    """
    name = job.id_for(client, "job") if isinstance(job, JobHandle) else check_id(job, parameter="job")
    follows = check_bool(downstream, parameter="downstream")
    drops = check_choice(steps, ("keep", "drop"), parameter="steps") == "drop"
    seen = None if version is None else check_int(version, parameter="version", least=1, most=VERSION_MAX)
    done = 0
    for _ in range(TRIES_MAX):
        records = yield from read()
        first = _find(records, name)
        seen = first.version if seen is None else seen
        left = _due(records, first, seen, downstream=follows)
        refused: str | None = None
        for batch in _batches(left):
            ids, versions = tuple([each.id for each in batch]), tuple([each.version for each in batch])
            reply: Judged = yield make(ids, drop_steps=drops, again=versions)
            verdicts = dict(zip(ids, [verdict for verdict, _ in reply.verdicts], strict=True))
            yield from tick_until_done(more=reply.more)
            if any(verdict is not Verdict.DONE for verdict in verdicts.values()):
                refused = next((each for each, verdict in verdicts.items() if verdict is Verdict.REFUSED), None)
                break
            done += len(batch)
        else:
            return done
        if refused is not None and not reply.more:
            _explain(refused, (yield from read()), name)
    raise StaleRecordError(first.id, first.version)


def _find(records: Sequence[JobRecord], name: str) -> JobRecord:
    for record in records:
        if record.problem is not None:
            raise CorruptStateError(f"job {shown(record.id)}: {record.problem}")
    found = [record for record in records if record.spec.name == name] or [
        record for record in records if record.id == name
    ]
    if not found:
        raise JobNotFoundError(name)
    return found[0]


def _due(records: Sequence[JobRecord], first: JobRecord, version: int, *, downstream: bool) -> list[JobRecord]:
    """Return the jobs that are to run again: those that are over, and were not run again since."""
    behind: dict[str, list[JobRecord]] = {}
    for record in records:
        for edge in record.spec.depends_on:
            behind.setdefault(edge.id, []).append(record)
    following = {first.id: first}
    todo = [first] if downstream else []
    for record in todo:
        for each in behind.get(record.id, ()):
            if each.id not in following:
                following[each.id] = each
                todo.append(each)
    is_anew = first.version != version or not first.state.is_over
    due = [each for each in following.values() if each.state.is_over and (each is not first or not is_anew)]
    if is_anew and first.state.is_over:
        due = [each for each in due if each.token is None or first.token is None or each.token < first.token]
    ids = {each.id for each in due}
    for each in following.values():
        # One that waits for the first of them all goes on waiting, and one behind a dead job too.
        if not each.state.is_over and each.id != first.id and each.state != "DEFERRED":
            for edge in each.spec.depends_on:
                if edge.id in ids:
                    raise InvalidJobError(
                        f"job {shown(each.spec.name or each.id)} follows from {shown(first.spec.name or first.id)} and "
                        f"is {each.state}: wait until it is over, or cancel it"
                    )
    return due


def _batches(due: list[JobRecord]) -> list[list[JobRecord]]:
    """Return jobs in order of their dependencies, so many at once."""
    places = {record.id: place for place, record in enumerate(due)}
    before = [[places[edge.id] for edge in record.spec.depends_on if edge.id in places] for record in due]
    batches: list[list[JobRecord]] = []
    edges = 0
    for place in topological(before, lambda place: due[place].id):
        count = len(due[place].spec.depends_on)
        if not batches or len(batches[-1]) == AGAIN_MAX or edges + count > EDGES_AT_ONCE:
            batches.append([])
            edges = 0
        batches[-1].append(due[place])
        edges += count
    return batches


def _explain(refused: str, records: Sequence[JobRecord], name: str) -> None:
    """
    Raise why a job cannot run again, unless it has changed meanwhile.

    Raises:
        InvalidJobError: naming the job, and the one that is in its way if that is known.
    """
    known: Mapping[str, JobRecord] = {record.id: record for record in records}
    job = known.get(refused)
    if job is None or not job.state.is_over:
        return
    called = shown(job.spec.name or job.id)
    for other in records:
        if not other.state.is_over and any(edge.id == refused for edge in other.spec.depends_on):
            waiting = shown(other.spec.name or other.id)
            raise InvalidJobError(
                f"job {called} cannot run again for {shown(name)}: {waiting} is {other.state} and counts on its "
                "result; wait until it is over, or cancel it"
            )
    raise InvalidJobError(
        f"job {called} cannot run again for {shown(name)}: an unfinished job outside of the flow counts on its result, "
        "what it depends on has expired or would cancel it, or its path is closed"
    )
