"""
Run jobs of a flow again, and their dependents.

The jobs that are over are run again in order of their dependencies, at most `AGAIN_MAX` at once, each by the version of
the record that was read: so of two callers one runs a job again, and the other finds that it was. One that is told
nothing of an outcome, or that has come to a part of the jobs only, asks for the same once more: what has run since, or
will, is left, and the rest is done. Tokens tell it: one that started before what it depends on started last is old.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from queuehint.backends.steps import tick_until_done
from queuehint.client.handle import JobHandle
from queuehint.errors import CorruptStateError, InvalidJobError, JobNotFoundError, StaleRecordError, shown
from queuehint.operations.base import AGAIN_MAX, IDS_MAX, Verdict
from queuehint.operations.bounds import topological
from queuehint.schema.checks import check_bool, check_choice, check_id, check_int, check_items

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
    client: Client, read: Read, make: Any, jobs: Sequence[object], downstream: object, version: object, steps: object
) -> Steps[list[str]]:
    """
    Run jobs again and, if *downstream*, their dependents. Return the ids of the jobs that were queued again.

    Args:
        read: returns the records of the flow.
        make: `Redrive`.
        jobs, downstream, version, steps: as of `FlowHandle.rerun`.

    Raises:
        InvalidJobError, InvalidJobTypeError: naming the parameter.
        JobNotFoundError: the flow has no such job.
        InvalidJobError: one that would have to run again is not over, or cannot run again; it is named.
        StaleRecordError: the records change again and again.
    """
    given = check_items(jobs, parameter="jobs", most=IDS_MAX)
    names = [
        each.id_for(client, "job") if isinstance(each, JobHandle) else check_id(each, parameter="job") for each in given
    ]
    follows = check_bool(downstream, parameter="downstream")
    drops = check_choice(steps, ("keep", "drop"), parameter="steps") == "drop"
    versions = _versions(version, len(names))
    seen: dict[str, int] | None = None
    done: list[str] = []
    for _ in range(TRIES_MAX):
        records = yield from read()
        firsts = _find(records, names)
        if seen is None:
            seen = {each.id: each.version for each in firsts}
            seen.update({} if versions is None else zip([each.id for each in firsts], versions, strict=True))
        left, because = _due(records, firsts, seen, downstream=follows)
        refused: str | None = None
        for batch in _batches(left):
            ids, found = tuple([each.id for each in batch]), tuple([each.version for each in batch])
            reply: Judged = yield make(ids, drop_steps=drops, again=found)
            verdicts = dict(zip(ids, [verdict for verdict, _ in reply.verdicts], strict=True))
            yield from tick_until_done(more=reply.more)
            if any(verdict is not Verdict.DONE for verdict in verdicts.values()):
                refused = next((each for each, verdict in verdicts.items() if verdict is Verdict.REFUSED), None)
                break
            done += ids
        else:
            return done
        if refused is not None and not reply.more:
            _explain(refused, (yield from read()), because[refused])
    raise StaleRecordError(firsts[0].id, firsts[0].version)


def _versions(version: object, count: int) -> list[int] | None:
    """Return the versions that a caller has seen of so many jobs."""
    if version is None:
        return None
    given = list(version) if isinstance(version, (list, tuple)) else [version]
    if len(given) != count:
        raise InvalidJobError(f"version: {len(given)} for {count} jobs; give one for each, in their order")
    return [check_int(each, parameter="version", least=1, most=VERSION_MAX) for each in given]


def _find(records: Sequence[JobRecord], names: Sequence[str]) -> list[JobRecord]:
    """Return the jobs of these names or ids, in their order."""
    for record in records:
        if record.problem is not None:
            raise CorruptStateError(f"job {shown(record.id)}: {record.problem}")
    known = {record.id: record for record in records}
    known.update({record.spec.name: record for record in reversed(records) if record.spec.name is not None})
    for name in names:
        if name not in known:
            raise JobNotFoundError(name)
    return [known[name] for name in names]


def _due(
    records: Sequence[JobRecord], firsts: Sequence[JobRecord], seen: Mapping[str, int], *, downstream: bool
) -> tuple[list[JobRecord], dict[str, JobRecord]]:
    """
    Return the jobs that are to run again: those that are over, and were not run again since.

    With them comes from which of *firsts* each follows. What follows from one that has run again since is due if it is
    older; what follows from another one in any case. So each job is visited once, from the ones that leave most due on.
    """
    behind: dict[str, list[JobRecord]] = {}
    for record in records if downstream else ():
        for edge in record.spec.depends_on:
            behind.setdefault(edge.id, []).append(record)
    anew = {each.id for each in firsts if each.version != seen[each.id] or not each.state.is_over}
    because: dict[str, JobRecord] = {}
    due: list[JobRecord] = []
    unfinished: list[JobRecord] = []
    for first in sorted(firsts, key=lambda each: (each.id in anew, -_limit(each))):
        token = _limit(first) if first.id in anew else math.inf
        todo = [] if first.id in because else [first]
        for record in todo:
            if record.id in because:
                continue
            because[record.id] = first
            if not record.state.is_over:
                unfinished.append(record)
            elif (record is not first or first.id not in anew) and (record.token is None or record.token < token):
                due.append(record)
            todo += behind.get(record.id, ())
    ids = {each.id for each in due}
    for each in unfinished:
        # One that waits for the first of them all goes on waiting, and one behind a dead job too.
        if each.state != "DEFERRED" and any(edge.id in ids for edge in each.spec.depends_on):
            first = because[each.id]
            raise InvalidJobError(
                f"job {shown(each.spec.name or each.id)} follows from {shown(first.spec.name or first.id)} and "
                f"is {each.state}: wait until it has ended, or cancel it"
            )
    return due, because


def _limit(record: JobRecord) -> float:
    """Return the token from which on jobs that follow from one that has run again are as new as it is."""
    return math.inf if record.token is None or not record.state.is_over else record.token


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


def _explain(refused: str, records: Sequence[JobRecord], first: JobRecord) -> None:
    """
    Raise the reason why a job cannot run again, unless the job has changed meanwhile.

    Raises:
        InvalidJobError: naming the job, and the one that is in its way if that is known.
    """
    known: Mapping[str, JobRecord] = {record.id: record for record in records}
    job = known.get(refused)
    if job is None or not job.state.is_over:
        return
    called, name = shown(job.spec.name or job.id), shown(first.spec.name or first.id)
    for other in records:
        if not other.state.is_over and any(edge.id == refused for edge in other.spec.depends_on):
            waiting = shown(other.spec.name or other.id)
            raise InvalidJobError(
                f"job {called} cannot run again for {name}: {waiting} is {other.state} and counts on its "
                "result; wait until it has ended, or cancel it"
            )
    raise InvalidJobError(
        f"job {called} cannot run again for {name}: an unfinished job outside of the flow counts on its result, "
        "what it depends on has expired or would cancel it, or its path is closed"
    )
