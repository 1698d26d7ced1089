"""Strategies for jobs, their outcomes, and graphs of them."""

from __future__ import annotations

from collections.abc import Collection
from itertools import count
from typing import TYPE_CHECKING, Any

import attrs
from hypothesis import strategies as st
from hypothesis.errors import InvalidArgument

from queuehint.schema.compiled import kinds_of
from queuehint.schema.kinds import Choice, Count, Duration, Kind, Optional
from queuehint.testing.strategies.arguments import check_choices, check_range, check_strategy
from queuehint.testing.strategies.places import CLAIMS
from queuehint.values.hint import CLAIMS_MAX, Claim, normalise
from queuehint.values.policy import DEFAULT_BACKOFF, DEFAULT_POLICY, Backoff, Policy
from queuehint.values.spec import WHEN, Dependency, JobSpec

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

    from queuehint.values.spec import When

_FIELDS = attrs.fields_dict(JobSpec)


def backoffs() -> SearchStrategy[Backoff]:
    """
    Generate back-offs of every legal range, mostly short ones.

    Shrinks towards 1 s before each attempt, without jitter.

    .. versionadded:: 1.0.0
    """
    seconds = st.sampled_from((1.0, 0.001, 60.0)) | st.floats(0.001, 3600)
    jitter = st.sampled_from((0.0, 0.1, 1.0)) | st.floats(0, 1)
    growing = st.builds(
        lambda base, more, factor, jitter: Backoff(base=base, factor=factor, cap=base + more, jitter=jitter),
        base=seconds,
        more=st.floats(0, 3600),
        factor=st.sampled_from((1.0, 2.0)) | st.floats(1, 100),
        jitter=jitter,
    )
    return growing | st.builds(Backoff, waits=st.lists(seconds | st.just(0), min_size=1, max_size=3), jitter=jitter)


def policies() -> SearchStrategy[Policy]:
    """
    Generate policies of jobs that do not simply finish: few attempts, short times, every policy word.

    Shrinks towards one attempt and the default of every choice.

    .. versionadded:: 1.0.0
    """
    kinds = {name: kind for name, kind in kinds_of(Policy).items() if name != "backoff"}
    fields = {name: _asked(kind, getattr(DEFAULT_POLICY, name)) for name, kind in kinds.items()}
    return st.builds(Policy, backoff=st.just(DEFAULT_BACKOFF) | backoffs(), **fields)


def _asked(kind: Kind, default: Any) -> SearchStrategy[Any]:
    """Return small values of an option."""
    if isinstance(kind, Optional):
        return st.none() | _asked(kind.kind, None)
    if isinstance(kind, Choice):
        return st.sampled_from(kind.words)
    assert isinstance(kind, Count)
    if isinstance(kind, Duration):
        times = st.integers(kind.least, 600_000)
        return times if default is None else st.sampled_from((default, kind.least)) | times
    return st.integers(kind.least, 3)


# Ids that are distinct within an example and count from 1, also when they are drawn in several places of a test.
_IDS = st.shared(st.builds(count, st.just(1)), key="queuehint.testing.ids").map(lambda numbers: str(next(numbers)))


def jobs(
    *,
    claims: SearchStrategy[Claim] = CLAIMS,
    min_claims: int = 0,
    max_claims: int = 2,
    **fields: SearchStrategy[Any],
) -> SearchStrategy[JobSpec]:
    """
    Generate jobs, normalised as `queuehint.JobSpec.check` leaves them.

    Ids are ``"1"``, ``"2"`` ... in each example, in the order in which they are drawn. All fields but the claims have
    their defaults, and the task is ``"task"``, unless a strategy is given.

    Shrinks towards no claim, then one, then as *claims* and *fields* do.

    Args:
        claims: what jobs may claim.
        min_claims, max_claims: how many claims a job has, 0–64; as many as are left where one covers another.
        fields: strategies for other fields of `queuehint.JobSpec`, by name.

    Raises:
        InvalidArgument: an argument is of the wrong type or out of its range, or names no field.
        InvalidJobError, InvalidHintError: when drawn, if a strategy gave what a job cannot be.

    >>> from hypothesis import find, strategies as st
    >>> find(jobs(user=st.sampled_from(["ann", "bob"])), lambda job: job.user != "ann").user
    'bob'

    .. versionadded:: 1.0.0
    """
    check_strategy("claims", claims)
    check_range("claims", min_claims, max_claims, most=CLAIMS_MAX)
    for name, values in fields.items():
        if name not in _FIELDS:
            raise InvalidArgument(f"{name}= is not a field of JobSpec, which has {', '.join(_FIELDS)}")
        check_strategy(name, values)
    fields = {"id": _IDS, "task": st.just("task"), **fields}
    wanted = st.lists(claims, min_size=min_claims, max_size=max_claims).map(normalise)
    return st.builds(_checked_job, claims=wanted, **fields)


def _checked_job(**fields: Any) -> JobSpec:
    return JobSpec(**fields).check()


JOBS = jobs()
_SUCCESS: tuple[When, ...] = ("success",)


def job_graphs(
    *,
    jobs: SearchStrategy[JobSpec] = JOBS,
    min_jobs: int = 1,
    max_jobs: int = 5,
    max_edges: int = 2,
    whens: Collection[When] = _SUCCESS,
) -> SearchStrategy[tuple[JobSpec, ...]]:
    """
    Generate graphs: jobs with places and with edges, each depending on earlier jobs only.

    So they may be enqueued one by one in their order, or all at once in any.

    Shrinks towards few jobs, then no edges, then edges to the job right before.

    Args:
        jobs: what its jobs are; those with an id that is there already are left out.
        min_jobs, max_jobs: how many, 0–1 000.
        max_edges: how many others one of them depends on at most; 0 makes lists of jobs that have places alone.
        whens: the conditions of edges to choose from: ``"success"``, ``"failure"``, ``"done"``.

    Raises:
        InvalidArgument: an argument is of the wrong type or out of its range.

    >>> from hypothesis import find
    >>> [job.id for job in find(job_graphs(), lambda graph: any(job.depends_on for job in graph))]
    ['1', '2']

    .. versionadded:: 1.0.0
    """
    check_strategy("jobs", jobs)
    check_range("jobs", min_jobs, max_jobs, most=1000)
    # A submission takes 4 000 edges, and a job 1 000.
    check_range("edges", 0, max_edges, most=min(1000, 4000 // max(max_jobs, 1)))
    edge = st.tuples(st.integers(0, max(max_jobs - 2, 0)), st.sampled_from(check_choices("whens", whens, WHEN)))
    knot = st.tuples(jobs, st.lists(edge, max_size=max_edges))
    return st.lists(knot, min_size=min_jobs, max_size=max_jobs, unique_by=lambda knot: knot[0].id).map(_tied)


def _tied(knots: list[tuple[JobSpec, list[tuple[int, When]]]]) -> tuple[JobSpec, ...]:
    """Make the graph. An edge is the number of jobs between its ends, counted round."""
    made: list[JobSpec] = []
    named: list[str] = []
    for job, chosen in knots:
        edges = {edge.id: edge for edge in job.depends_on}
        if named and job.presence_ms is None and (job.key is None or job.on_conflict != "replace"):
            for back, when in chosen:
                other = named[-1 - back % len(named)]
                edges.setdefault(other, Dependency(other, when))
        made.append(attrs.evolve(job, depends_on=tuple(edges.values())))
        # Which job a key stands for is known when it is enqueued: no job can depend on it in the same submission.
        if job.key is None or job.on_conflict == "reject":
            named.append(job.id)
    return tuple(made)
