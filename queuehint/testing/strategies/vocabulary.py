"""
Strategies for operations.

Ids, tokens and paths are drawn from small sets, so that they often name something that exists: by default the ids that
`queuehint.testing.jobs` draws first.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import attrs
from hypothesis import strategies as st
from hypothesis.errors import InvalidArgument

from queuehint import operations as op
from queuehint.schema import kinds
from queuehint.schema.compiled import kinds_of
from queuehint.testing.strategies.arguments import check_choices, check_strategy
from queuehint.testing.strategies.places import PLACES
from queuehint.testing.strategies.recurring import NOW_MS, RECURRENCES
from queuehint.testing.strategies.specs import job_graphs, jobs
from queuehint.testing.strategies.values import (
    BYTES,
    FIRST_IDS,
    LIVES_MS,
    NAMES,
    USERS,
    event_filters,
    few,
    limits,
    outcomes,
    progresses,
    record_filters,
)
from queuehint.values.event import EventFilter
from queuehint.values.hint import Path
from queuehint.values.limit import Limit
from queuehint.values.outcome import Progress, Step
from queuehint.values.policy import ON_DEPENDENCY_FAILURE
from queuehint.values.record_filter import RecordFilter
from queuehint.values.schedule import Recurrence
from queuehint.values.spec import WHEN, Dependency, JobSpec

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

AnyOperation = op.Operation[Any]

_WORKERS = st.sampled_from(("w", "x"))
_LEASES_MS = st.sampled_from((30_000, 1_000))
_VERSIONS = st.integers(1, 5)
_TIMES_MS = st.integers(NOW_MS, NOW_MS + 60_000)
_CURSORS = st.integers(0, 5)
_LINES = few(st.text(max_size=10))


@attrs.frozen(kw_only=True)
class _Named:
    """Strategies for the ids, grants, paths and specs that operations name."""

    has_grants: bool
    jobs: SearchStrategy[JobSpec]
    graphs: SearchStrategy[tuple[JobSpec, ...]]
    id: SearchStrategy[str]
    ids: SearchStrategy[tuple[str, ...]]
    grant: SearchStrategy[tuple[str, int]]
    grants: SearchStrategy[tuple[tuple[str, int], ...]]
    path: SearchStrategy[Path]


def _enqueue(named: _Named) -> SearchStrategy[op.Enqueue]:
    def submit(
        specs: tuple[JobSpec, ...], staged: str | None, parent: tuple[str, int] | None, is_further: bool
    ) -> op.Enqueue:
        if any(spec.key is not None or spec.presence_ms is not None for spec in specs):
            staged = None
        if len({spec.flow for spec in specs}) > 1:
            staged = None
        return op.Enqueue(specs, staged=staged, parent=parent, is_further=is_further and staged is not None)

    parents = st.none() | named.grant if named.has_grants else st.none()
    return st.builds(submit, named.graphs, st.none() | st.just("S"), parents, st.booleans())


def _exchange(named: _Named) -> SearchStrategy[op.Exchange]:
    users = st.none() | few(USERS, least=1, most=2)
    steal = st.sampled_from(((), ("u",), op.ANYONE))
    return st.builds(
        lambda users, steal, **more: op.Exchange(users=users, steal=() if users is None else steal, **more),
        users=users,
        steal=steal,
        worker=_WORKERS,
        settle=few(outcomes(grants=named.grant, ids=named.id)),
        limit=st.integers(0, 3),
        lease_ms=_LEASES_MS,
        announces=st.booleans(),
        release=st.sampled_from(("", "one", "two")),
    )


def _delete(named: _Named) -> SearchStrategy[op.Delete]:
    versions = st.lists(_VERSIONS, min_size=3, max_size=3)
    return st.builds(
        lambda ids, versions: op.Delete(ids, None if versions is None else tuple(versions[: len(ids)])),
        named.ids,
        st.none() | versions,
    )


def _redrive(named: _Named) -> SearchStrategy[op.Redrive]:
    return st.builds(
        lambda ids, waiting, downstream, drops, again: op.Redrive(
            ids, downstream > waiting, waiting, drops > waiting, () if waiting else tuple(again[: len(ids)])
        ),
        named.ids,
        st.booleans(),
        st.booleans(),
        st.booleans(),
        st.just([]) | st.lists(_VERSIONS, min_size=3, max_size=3),
    )


def _depend(named: _Named) -> SearchStrategy[op.Depend]:
    return st.builds(
        lambda job_id, portion, ids, when, on_failure: op.Depend(
            "S", job_id, portion, tuple([Dependency(each, when) for each in ids if each != job_id]), on_failure
        ),
        named.id,
        st.integers(1, 2),
        named.ids,
        st.sampled_from(WHEN),
        st.sampled_from(ON_DEPENDENCY_FAILURE),
    )


def _amend(named: _Named) -> SearchStrategy[op.Amend]:
    return st.builds(
        lambda spec, job_id, user, version: op.Amend(attrs.evolve(spec, id=job_id, user=user), version),
        named.jobs,
        named.id,
        USERS,
        _VERSIONS,
    )


_WHILES_MS = st.integers(1, 60_000)


def _selections(named: _Named) -> SearchStrategy[RecordFilter]:
    """Draw the filter of a pause: a path, or one or two conditions and perhaps a path."""
    words = st.sampled_from([{"user": "u"}, {"task": "task"}, {"pool": "default"}, {"service": "s"}, {"tag": "x"}])
    alone = st.builds(lambda path: RecordFilter(path=path), named.path)
    return alone | st.builds(
        lambda one, other, path: RecordFilter(**one | other, path=path), words, words, st.none() | named.path
    )


# --- one after the other, by their fields ----------------------------------------------------------------------------

_Maker = Callable[[_Named], "SearchStrategy[Any]"]

_OF_NAME: Final[dict[str, _Maker]] = {
    "blocked_ms": lambda _: st.integers(0, 20_000),
    "depth": lambda _: st.integers(0, 2),
    "for_ms": lambda _: _WHILES_MS,
    "first": lambda _: st.just("") | NAMES,
    "ids": lambda named: named.ids,
    "job_id": lambda named: named.id,
    "lease_ms": lambda _: _LEASES_MS,
    "leases": lambda named: named.grants,
    "next_ms": lambda _: _TIMES_MS,
    "ttl_ms": lambda _: LIVES_MS,
    "user": lambda _: USERS,
    "version": lambda _: _VERSIONS,
}
_OF_CLASS: Final[dict[type[Any], _Maker]] = {
    EventFilter: lambda named: event_filters(paths=named.path),
    JobSpec: lambda named: named.jobs,
    Limit: lambda named: limits(paths=named.path),
    Progress: lambda _: progresses(),
    RecordFilter: lambda named: record_filters(paths=named.path),
    Recurrence: lambda _: RECURRENCES,
    op.Note: lambda named: _notes(named),  # noqa: PLW0108 - it is below
}
_OF_KIND: Final[dict[type[kinds.Kind], _Maker]] = {
    kinds.Count: lambda _: _CURSORS,
    kinds.Flag: lambda _: st.booleans(),
    kinds.Label: lambda _: NAMES,
    kinds.PathOf: lambda named: named.path,
    kinds.Payload: lambda _: BYTES,
    kinds.Text: lambda _: NAMES,
}


def _drawn(kind: kinds.Kind, named: _Named) -> SearchStrategy[Any] | None:
    """Return the strategy of a field by its kind, None for the default."""
    if isinstance(kind, kinds.Asked):
        return st.integers(kind.least, min(kind.most, 100))
    if isinstance(kind, kinds.Choice):
        return st.sampled_from(kind.words)
    if isinstance(kind, kinds.Value):
        return _OF_CLASS[kind.cls](named) if kind.cls in _OF_CLASS else None
    if isinstance(kind, kinds.Many):
        return few(_OF_CLASS[kind.item.cls](named)) if isinstance(kind.item, kinds.Value) else None
    if isinstance(kind, kinds.Row):
        return st.tuples(st.just(""), _CURSORS) if isinstance(kind.items[0], kinds.Text) else None
    makers = [make for known, make in _OF_KIND.items() if isinstance(kind, known)]
    return makers[0](named) if makers else None


def _notes(named: _Named) -> SearchStrategy[op.Note]:
    by_anyone = st.builds(lambda grant, lines: op.Note(grant[0], None, lines), named.grant, _LINES)
    return by_anyone | st.builds(
        lambda grant, lines, done, result, step: op.Note(grant[0], grant[1], lines, done, result, step),
        named.grant,
        _LINES,
        st.none() | progresses(),
        st.none() | BYTES,
        st.none() | st.builds(Step, NAMES, BYTES),
    )


def _value(field: attrs.Attribute[Any], kind: kinds.Kind, named: _Named) -> SearchStrategy[Any] | None:
    """Return the strategy of a field by its name or its kind, None for the default."""
    takes_none = isinstance(kind, kinds.Optional) and kind.takes_none
    if isinstance(kind, kinds.Optional):
        kind = kind.kind
    make = None if isinstance(kind, kinds.Asked) else _OF_NAME.get(field.name)
    drawn = _drawn(kind, named) if make is None else make(named)
    if drawn is None:
        assert field.default is not attrs.NOTHING, f"say how {field.name} is drawn, which is {kind}"
        return None
    return st.none() | drawn if takes_none else drawn


def _by_fields(kind: type[Any], named: _Named) -> SearchStrategy[Any]:
    """Draw each field of an operation by itself, but for the job and the token of one grant."""
    of_kinds = kinds_of(kind)
    fields = {field.name: _value(field, of_kinds[field.name], named) for field in attrs.fields(kind)}
    drawn = {name: value for name, value in fields.items() if value is not None}
    if not {"job_id", "token"} <= drawn.keys():
        return st.builds(kind, **drawn)
    rest = {name: value for name, value in drawn.items() if name not in {"job_id", "token"}}
    return st.builds(lambda grant, **rest: kind(job_id=grant[0], token=grant[1], **rest), named.grant, **rest)


def _change_schedule(_: _Named) -> SearchStrategy[op.ChangeSchedule]:
    """Draw a change of a schedule. A resume has a version."""
    times = st.none() | _TIMES_MS
    resumes = st.builds(op.ChangeSchedule, NAMES, st.just("resume"), _VERSIONS, times)
    return st.builds(op.ChangeSchedule, NAMES, st.sampled_from(["pause", "drop"])) | resumes


def _list_lines(named: _Named) -> SearchStrategy[op.ListLines]:
    """Draw a query of lines. A query of the longest has no cursor."""
    return _by_fields(op.ListLines, named).map(
        lambda drawn: attrs.evolve(drawn, longest=drawn.longest and drawn.after is None)
    )


def _why(named: _Named) -> SearchStrategy[op.Why]:
    """Draw a question about a job, or about a path."""
    of_jobs = st.builds(op.Why, named.id, st.integers(1, op.CHAIN_MAX))
    return of_jobs | st.builds(op.Why, st.none(), st.integers(1, op.CHAIN_MAX), named.path)


_OWN: Final[dict[type[AnyOperation], _Maker]] = {
    op.Enqueue: _enqueue,
    op.Exchange: _exchange,
    op.Commit: lambda _: st.builds(op.Commit, st.just("S"), st.integers(0, 2)),
    op.Delete: _delete,
    op.ListLines: _list_lines,
    op.Withdraw: lambda _: st.builds(op.Withdraw, st.just("S")),
    op.ChangeSchedule: _change_schedule,
    op.Depend: _depend,
    op.Redrive: _redrive,
    op.Amend: _amend,
    op.Pause: lambda named: st.builds(op.Pause, _selections(named), st.none() | _WHILES_MS),
    op.Resume: lambda named: st.builds(op.Resume, _selections(named)),
    op.Why: _why,
}
"""Operations whose fields depend on one another."""


def _order(kind: type[Any]) -> tuple[bool, int, str]:
    return kind is not op.Tick, len(attrs.fields(kind)), kind.__name__


MAKERS: Final[dict[type[AnyOperation], _Maker]] = {
    kind: _OWN.get(kind) or partial(_by_fields, kind) for kind in sorted(op.KINDS, key=_order)
}
"""How each operation is drawn, the simplest first."""
KINDS = (*MAKERS, *[op.Enqueue] * 7, *[op.Exchange] * 5)

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
    Generate operations, changes and queries alike, each valid or refused because of the state of the backend.

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

    .. versionadded:: 1.0.0
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
