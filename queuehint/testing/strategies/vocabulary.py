"""
Strategies for operations.

Ids, tokens and paths are drawn from few, so that they often name something that exists: by default the ids that
`queuehint.testing.jobs` draws first.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any, Final

import attrs
from hypothesis import strategies as st
from hypothesis.errors import InvalidArgument

from queuehint import operations as ops
from queuehint.testing.strategies.arguments import check_choices, check_strategy
from queuehint.testing.strategies.places import PLACES, claims
from queuehint.testing.strategies.recurring import NOW_MS, RECURRENCES
from queuehint.testing.strategies.specs import job_graphs, jobs
from queuehint.testing.strategies.values import (
    BYTES,
    FIRST_IDS,
    LIVES_MS,
    NAMES,
    REASONS,
    USERS,
    few,
    limits,
    outcomes,
    progresses,
    record_filters,
)
from queuehint.values.hint import Path
from queuehint.values.spec import JobSpec

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

AnyOperation = ops.Operation[Any]

_WORKERS = st.sampled_from(("w", "x"))
_LEASES_MS = st.sampled_from((30_000, 1_000))
_LIMITS = st.integers(1, 100)
_VERSIONS = st.integers(1, 5)
_TIMES_MS = st.none() | st.integers(NOW_MS, NOW_MS + 60_000)


@attrs.frozen(kw_only=True)
class _Named:
    """What operations name, as strategies."""

    has_grants: bool
    jobs: SearchStrategy[JobSpec]
    graphs: SearchStrategy[tuple[JobSpec, ...]]
    id: SearchStrategy[str]
    ids: SearchStrategy[tuple[str, ...]]
    grant: SearchStrategy[tuple[str, int]]
    grants: SearchStrategy[tuple[tuple[str, int], ...]]
    path: SearchStrategy[Path]


def _enqueue(named: _Named) -> SearchStrategy[ops.Enqueue]:
    def submit(specs: tuple[JobSpec, ...], staged: str | None, parent: tuple[str, int] | None) -> ops.Enqueue:
        if any(spec.key is not None or spec.presence_ms is not None for spec in specs):
            staged = None
        if len({spec.flow for spec in specs}) > 1:
            staged = None
        return ops.Enqueue(specs, staged=staged, parent=parent)

    parents = st.none() | named.grant if named.has_grants else st.none()
    return st.builds(submit, named.graphs, st.none() | st.just("S"), parents)


def _exchange(named: _Named) -> SearchStrategy[ops.Exchange]:
    users = st.none() | few(USERS, least=1, most=2)
    steal = st.sampled_from(((), ("u",), ops.ANYONE))
    return st.builds(
        lambda users, steal, **more: ops.Exchange(users=users, steal=() if users is None else steal, **more),
        users=users,
        steal=steal,
        worker=_WORKERS,
        settle=few(outcomes(grants=named.grant, ids=named.id)),
        limit=st.integers(0, 3),
        lease_ms=_LEASES_MS,
        announces=st.booleans(),
    )


def _delete(named: _Named) -> SearchStrategy[ops.Delete]:
    versions = st.lists(_VERSIONS, min_size=3, max_size=3)
    return st.builds(
        lambda ids, versions: ops.Delete(ids, None if versions is None else tuple(versions[: len(ids)])),
        named.ids,
        st.none() | versions,
    )


_Maker = Callable[[_Named], "SearchStrategy[Any]"]

_CURSORS = st.integers(0, 5)
_POSITIONS = st.none() | st.tuples(st.just(""), _CURSORS)

MAKERS: Final[dict[type[AnyOperation], _Maker]] = {
    ops.Tick: lambda _: st.builds(ops.Tick),
    ops.Enqueue: _enqueue,
    ops.Exchange: _exchange,
    ops.Renew: lambda named: st.builds(ops.Renew, named.grants, _LEASES_MS, st.booleans(), st.integers(0, 20_000)),
    ops.Commit: lambda _: st.builds(ops.Commit, st.just("S")),
    ops.Draw: lambda _: st.builds(ops.Draw, st.integers(0, 3)),
    ops.Peek: lambda _: st.builds(ops.Peek),
    ops.Cancel: lambda named: st.builds(ops.Cancel, named.ids, REASONS),
    ops.CancelPath: lambda named: st.builds(ops.CancelPath, named.path, REASONS),
    ops.CancelFlow: lambda _: st.builds(ops.CancelFlow, NAMES, REASONS),
    ops.Redrive: lambda named: st.builds(ops.Redrive, named.ids, st.booleans()),
    ops.Discard: lambda named: st.builds(ops.Discard, named.ids),
    ops.Delete: _delete,
    ops.Push: lambda _: st.builds(ops.Push, NAMES, NAMES, BYTES, LIVES_MS),
    ops.Report: lambda named: st.builds(
        lambda grant, done: ops.Report(grant[0], grant[1], done), named.grant, progresses()
    ),
    ops.Log: lambda named: st.builds(
        lambda grant, is_proved, lines: ops.Log(grant[0], grant[1] if is_proved else None, lines),
        named.grant,
        st.booleans(),
        few(st.text(max_size=10)),
    ),
    ops.Post: lambda named: st.builds(
        ops.Post,
        few(
            st.builds(
                lambda grant, lines, done, result: ops.Note(grant[0], grant[1], lines, done, result),
                named.grant,
                few(st.text(max_size=10)),
                st.none() | progresses(),
                st.none() | BYTES,
            )
        ),
    ),
    ops.Update: lambda named: st.builds(
        lambda grant, result: ops.Update(grant[0], grant[1], result), named.grant, BYTES
    ),
    ops.Amend: lambda named: st.builds(
        lambda spec, job_id, user, version: ops.Amend(attrs.evolve(spec, id=job_id, user=user), version),
        named.jobs,
        named.id,
        USERS,
        _VERSIONS,
    ),
    ops.Fetch: lambda named: st.builds(lambda grant, ids: ops.Fetch(grant[0], grant[1], ids), named.grant, named.ids),
    ops.Pause: lambda named: st.builds(ops.Pause, named.path),
    ops.Resume: lambda named: st.builds(ops.Resume, named.path),
    ops.Close: lambda named: st.builds(ops.Close, named.path),
    ops.Reopen: lambda named: st.builds(ops.Reopen, named.path),
    ops.PutSchedule: lambda named: st.builds(ops.PutSchedule, NAMES, named.jobs, RECURRENCES, _TIMES_MS),
    ops.DropSchedule: lambda _: st.builds(ops.DropSchedule, NAMES),
    ops.PauseSchedule: lambda _: st.builds(ops.PauseSchedule, NAMES),
    ops.ResumeSchedule: lambda _: st.builds(ops.ResumeSchedule, NAMES, st.integers(1, 3), _TIMES_MS),
    ops.SetLimit: lambda named: st.builds(ops.SetLimit, limits(paths=named.path)),
    ops.DropLimit: lambda named: st.builds(ops.DropLimit, st.none() | named.path),
    ops.Follow: lambda _: st.builds(ops.Follow, st.none() | _CURSORS, _LIMITS),
    ops.Weigh: lambda _: st.builds(ops.Weigh, USERS, st.integers(1, 3)),
    ops.Get: lambda named: st.builds(ops.Get, named.ids),
    ops.ListDead: lambda _: st.builds(ops.ListDead, _CURSORS, _LIMITS),
    ops.ListFlow: lambda _: st.builds(ops.ListFlow, NAMES, _CURSORS, _LIMITS),
    ops.List: lambda named: st.builds(
        ops.List, record_filters(paths=named.path), newest_first=st.booleans(), after=_POSITIONS, limit=_LIMITS
    ),
    ops.CountRecords: lambda named: st.builds(ops.CountRecords, record_filters(paths=named.path)),
    ops.ListUsers: lambda _: st.builds(ops.ListUsers, NAMES, st.none() | NAMES, _LIMITS),
    ops.CountFlow: lambda _: st.builds(ops.CountFlow, NAMES),
    ops.CountEdges: lambda _: st.builds(ops.CountEdges),
    ops.ListSchedules: lambda _: st.builds(ops.ListSchedules, st.just("") | NAMES, _LIMITS),
    ops.DueSchedules: lambda _: st.builds(ops.DueSchedules, _LIMITS),
    ops.Pull: lambda _: st.builds(ops.Pull, NAMES, NAMES),
    ops.Why: lambda named: st.builds(ops.Why, named.id),
    ops.Tree: lambda named: st.builds(ops.Tree, named.path, st.integers(0, 2)),
    ops.CountJobs: lambda _: st.builds(ops.CountJobs),
    ops.ListWeights: lambda _: st.builds(ops.ListWeights),
    ops.CanDequeue: lambda named: claims(hints=named.path.map(list)).map(
        lambda claim: ops.CanDequeue(claim.path, claim.mode)
    ),
    ops.ListLimits: lambda _: st.builds(ops.ListLimits),
    ops.CountPending: lambda named: st.builds(ops.CountPending, st.none() | named.path, st.booleans()),
}
"""How each operation is drawn, the simplest first."""
KINDS = (*MAKERS, *[ops.Enqueue, ops.Exchange] * 5)

_JOBS = jobs(user=USERS, service=st.none() | NAMES, flow=st.none() | NAMES)


def operations(
    *,
    kinds: Collection[type[AnyOperation]] = KINDS,
    ids: Sequence[str] = FIRST_IDS,
    grants: Sequence[tuple[str, int]] = (),
    jobs: SearchStrategy[JobSpec] = _JOBS,
    hints: SearchStrategy[list[str]] = PLACES,
) -> SearchStrategy[AnyOperation]:
    """
    Generate operations, changes and questions alike: each is one that a backend does, or refuses for what is there.

    In a state machine pass what there is: ``data.draw(operations(ids=self.ids, grants=self.grants))``.

    Shrinks towards the first of *kinds*, which is `queuehint.operations.Tick`, and few of everything.

    Args:
        kinds: which classes of `queuehint.operations`; one that is given twice comes up twice as often. By default all,
            those that submit, settle and claim more often than the others.
        ids: jobs that are there.
        grants: the ids and tokens of running jobs; without any, tokens are wrong and nothing is settled.
        jobs: what is enqueued.
        hints: the paths that are named, none of them ``None``.

    Raises:
        InvalidArgument: an argument is of the wrong type.

    >>> from hypothesis import find
    >>> from queuehint.operations import Cancel
    >>> find(operations(kinds=[Cancel]), lambda operation: operation.ids != ())
    Cancel(ids=('1',), reason=None)

    .. versionadded:: 0.1
    """
    chosen = check_choices("kinds", kinds, MAKERS)
    if not ids or isinstance(ids, str) or not all(isinstance(job_id, str) for job_id in ids):
        raise InvalidArgument(f"ids={ids!r} must be some ids of jobs")
    check_strategy("jobs", jobs)
    check_strategy("hints", hints)
    one = st.sampled_from(tuple(ids))
    grant = st.sampled_from(tuple(grants)) if grants else st.tuples(one, st.integers(1, 3))
    named = _Named(
        has_grants=bool(grants),
        jobs=jobs,
        graphs=job_graphs(jobs=jobs, max_jobs=3),
        id=one,
        ids=few(one),
        grant=grant,
        grants=few(grant),
        path=hints.map(tuple),
    )
    return st.one_of([MAKERS[kind](named) for kind in chosen])
