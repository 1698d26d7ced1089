"""
Styles of walks: the weights of operations, and the small values they are made of.

Times are in minutes, so that leases, back-offs, retention and the ten minutes for which an id is kept overlap.
"""

from __future__ import annotations

from functools import cache, partial
from itertools import product
from typing import TYPE_CHECKING, Any, cast

import attrs

from queuehint import operations as op
from queuehint.core.structures.job import DEADLINE_MARK, START_MARK
from queuehint.schema.kinds import Count, Flag, Kind, Label, Optional, Payload, Text
from queuehint.testing.commits import commit_of
from queuehint.values.hint import COUNTED, Claim
from queuehint.values.limit import Limit
from queuehint.values.outcome import OutcomeKind
from queuehint.values.policy import Backoff, Policy
from queuehint.values.record_filter import RecordFilter
from queuehint.values.signal import signal_spec, wait_spec

if TYPE_CHECKING:
    from collections.abc import Sequence
    from random import Random

    from queuehint.core.engine import Engine
    from queuehint.values.hint import Mode, Path
    from queuehint.values.policy import OnDependencyFailure
    from queuehint.values.spec import JobSpec

MINUTE = 60_000
LEASE_MS = 4 * MINUTE
POOLS = ("p", "q")
FLOWS = ("f", "g")
TIMEOUTS_MS = (None, 1, MINUTE, 2 * MINUTE, 60 * MINUTE)
"""Timeouts of flows."""
KEYLESS: dict[str, Any] = {"key": None, "max_delay_ms": None}
"""The fields of a job that no other one stands for."""
SIGNALS = ("s", "t")
WAITS_MS = (None, 1, MINUTE, 3 * MINUTE)
"""Timeouts of waits for signals."""
SHARED_KEYS = ("k", "l")
SHARED_MS = 5 * MINUTE
PARTS = ("S", "T")
SENT: tuple[dict[str, Any], ...] = (
    *[{"staged": part} for part in PARTS],
    *[{"staged": part, "is_further": True} for part in PARTS],
)
"""What an enqueue of a part is told of its submission."""
OUTCOMES = (
    *[OutcomeKind.FINISHED] * 8,
    *[OutcomeKind.FAILED] * 6,
    OutcomeKind.SNOOZED,
    OutcomeKind.RELEASED,
    OutcomeKind.UNKNOWN_TASK,
    OutcomeKind.LOST,
    OutcomeKind.DISCARDED,
)

_OF_KINDS: tuple[tuple[type[Kind], tuple[Any, ...]], ...] = (
    (Flag, (False, True)),
    (Payload, (b"1", b"{}", b"")),
    (Label, ("u", "v")),
    (Text, ("u", "v")),
)

_OF_JOBS = {"count", "filter", "for_ms", "ids", "job_id", "jobs", "leases", "name", "notes", "settle", "spec", "staged"}
_APART = (op.CancelFlow, op.CancelPath, op.Close, op.Push, op.SetLimit)
"""Others with a move and a rule of their own."""
PLAIN: tuple[type[Any], ...] = tuple(
    [
        kind
        for kind, names in [
            (kind, {field.name for field in attrs.fields(cast("type[Any]", kind))}) for kind in op.KINDS
        ]
        if names and not (kind.is_question or kind.is_repeatable or kind in _APART or names & _OF_JOBS)
    ]
)
"""Changes without one, which name no job, grant, submission, schedule or number of ids: drawn from their fields."""


def values_of(kind: Kind) -> tuple[Any, ...]:
    """Return the values of a field, by its kind, none for the default alone."""
    if isinstance(kind, Count):
        return tuple([max(number, kind.least) for number in (1, 1, 2, 3)])
    if isinstance(kind, Optional):
        values = values_of(kind.kind) if isinstance(kind.kind, (Label, Text)) else ()
        return (None, *values) if values and kind.takes_none else values
    return next((values for known, values in _OF_KINDS if isinstance(kind, known)), ())


def limit_of(random: Random, known: Sequence[Limit], path: Path, pending_max: int) -> Limit:
    """Return a limit, mostly a low concurrency limit, now and then a known one with another number, or none."""
    if known and random.random() < 0.3:
        limit = random.choice(known)
        most = random.choice((None, 1, 2, limit.most)) if limit.most is not None else None
        return attrs.evolve(limit, most=most)
    most, roll = random.choice((1, 1, 2, 3)), random.random()
    rate = random.choice((1, 1, 2, 3)), random.choice((1, MINUTE, 2 * MINUTE, 5 * MINUTE))
    # The same random numbers as ever, so that a seed stands for the same history.
    rated: dict[str, Any] = {"rate": rate, "burst": rate[0] + 1 if rate[1] == 2 * MINUTE else None}
    if roll < 0.15:
        return Limit(path=path[: random.choice((0, 1, 1, 2))], each=True, most=most)
    if roll < 0.3:
        return Limit(
            path=path[: random.choice((0, 1, 1, 2))],
            each=True,
            most=random.choice((None, most)),
            **rated,
        )
    if roll < 0.55:
        return Limit(path=path[:2], most=random.choice((None, most)), **rated)
    if roll < 0.65:
        return Limit(path=random.choice((None, (), path)), max_pending=random.randint(2, pending_max))
    if roll < 0.7:
        return Limit(path=random.choice(((), path[:1])), each=True, max_pending=random.randint(2, pending_max))
    if roll < 0.8:
        of: dict[str, Any] = random.choice(({"task": "t"}, *[{"pool": pool} for pool in (*POOLS, "default")]))
        if roll < 0.73:
            return Limit(most=random.choice((None, most)), max_pending=random.randint(2, pending_max), **of)
        return Limit(most=most, **of) if roll < 0.76 else Limit(most=random.choice((None, most)), **rated, **of)
    return Limit(path=path, most=most)


def as_flow(random: Random, operation: op.Enqueue) -> op.Enqueue:
    """Make a submission a flow now and then, mostly one with a timeout."""
    if random.random() < 0.9:
        return operation
    flow = random.choice((*FLOWS, "h", "i"))
    jobs = tuple([attrs.evolve(spec, flow=flow) for spec in operation.jobs])
    return attrs.evolve(operation, jobs=jobs, flow=flow, flow_timeout_ms=random.choice(TIMEOUTS_MS))


def end_of_parts(random: Random, engine: Engine) -> op.Commit | op.Withdraw:
    """Return the commit of a begun submission in parts, perhaps of a flow with a timeout, or a withdrawal."""
    begun = [job for job in engine.table.jobs.values() if job.is_start and not job.id.startswith(DEADLINE_MARK)]
    if not begun or random.random() < 0.05:
        return op.Commit(random.choice(PARTS), random.choice((0, 1)))
    staged = random.choice(begun).id[1:]
    if random.random() < 0.15:
        return op.Withdraw(staged)
    commit = commit_of(engine, staged)
    if random.random() < 0.05:
        return attrs.evolve(commit, jobs=random.choice((commit.jobs, 0, 1, 2)), portions=random.choice((0, 1)))
    flow = engine.table.jobs[START_MARK + staged].spec.flow
    if flow is None or random.random() < 0.5:
        return commit
    return attrs.evolve(commit, flow=flow, flow_timeout_ms=random.choice(TIMEOUTS_MS))


def signal_of(random: Random) -> op.Enqueue:
    """Return an operation that gives one of a few signals, with one of a few data, for a time."""
    kept_ms = random.choice((0, MINUTE, 12 * MINUTE))
    return op.Enqueue((signal_spec(random.choice(SIGNALS), random.choice((b"1", b"1", b"2")), kept_ms),))


def wait_of(name: str, job_id: str, timeout_ms: int | None) -> JobSpec:
    """Return the wait of a job for a signal, with the usual retention."""
    spec = wait_spec(name, job_id, timeout_ms)
    return attrs.evolve(spec, policy=attrs.evolve(spec.policy, retention_ms=12 * MINUTE))


def pause_of(random: Random, path: Path) -> op.Operation[Any]:
    """Return a pause of a path or, less often, of a selection, for a while or without an end."""
    for_ms = random.choice((None, None, 1, MINUTE))
    if random.random() < 0.6:
        return op.Pause(RecordFilter(path=path), for_ms)
    words: dict[str, Any] = random.choice(
        ({"user": "u"}, {"pool": "p"}, {"task": "t"}, {"service": "s"}, {"tag": "x"}, {"user": "v", "pool": "q"})
    )
    return op.Pause(RecordFilter(**words, path=path if random.random() < 0.5 else None), for_ms)


def resume_of(random: Random, paused: Sequence[RecordFilter], path: Path) -> op.Operation[Any]:
    """Return the resume of a paused selection or, now and then, of a path."""
    return op.Resume(random.choice(paused) if paused and random.random() < 0.9 else RecordFilter(path=path))


def paths(depth_max: int) -> list[Path]:
    """All paths over two letters."""
    return [path for depth in range(depth_max + 1) for path in product("ab", repeat=depth)]


PATHS = paths(4)
PATHS_BY_DEPTH = [list(product("ab", repeat=depth)) for depth in range(5)]

_flat = Backoff(base=60, factor=1, cap=60, jitter=0)
_policy = partial(Policy, backoff=_flat)
POLICIES = (
    _policy(),
    _policy(max_attempts=2, max_losses=1),
    _policy(max_attempts=1, on_dead="hold"),
    _policy(max_attempts=1, on_dead="hold", retention_ms=8 * MINUTE),
    _policy(max_attempts=2, max_losses=2, on_dead="cancel_behind"),
    _policy(max_attempts=2, on_retry="yield", on_dead="cancel_behind", retention_ms=0),
    _policy(on_retry="yield", start_within_ms=6 * MINUTE),
    _policy(max_hold_ms=2 * MINUTE, key_for_ms=MINUTE, cost=2),
    _policy(max_attempts=1, retention_ms=0, key_for_ms=15 * MINUTE, cost=3),
    _policy(max_hold_ms=0, start_within_ms=2 * MINUTE, retention_ms=11 * MINUTE),
)
# Where jobs depend on each other records are kept longer: what fell because of a dead job can be brought back.
_woven: tuple[tuple[OnDependencyFailure, int | None], ...] = (
    ("wait", 12 * MINUTE),
    ("cancel", 12 * MINUTE),
    ("run", 12 * MINUTE),
    ("cancel", None),
)
WOVEN_POLICIES = tuple(
    attrs.evolve(policy, on_dependency_failure=on_failure, retention_ms=kept)
    for on_failure, kept in _woven
    for policy in (
        _policy(max_attempts=1),
        _policy(max_attempts=1),
        _policy(max_attempts=2, max_losses=1),
        _policy(max_attempts=1, on_dead="hold"),
        _policy(max_attempts=1, on_dead="cancel_behind"),
        _policy(on_retry="yield", start_within_ms=6 * MINUTE, cost=2),
    )
)


@cache
def one_claim(path: Path, mode: Mode) -> tuple[Claim, ...]:
    """The claims of a job with one claim, one object for equal claims."""
    return (Claim(path, mode),)


def for_workers(spec: JobSpec) -> JobSpec:
    """Return the spec of a job without a waiting caller. A permit then has no claim."""
    claims = tuple([claim for claim in spec.claims if claim.mode != COUNTED])
    return attrs.evolve(spec, claims=claims, presence_ms=None)


@attrs.frozen(kw_only=True)
class Style:
    """
    The preferences of a walk.

    Args:
        shared: the share of claims that are shared.
        depth_weights: how often a path has depth 0, 1, 2, 3, 4.
        unfinished_max: no job is enqueued while so many are unfinished.
        keyed: the share of jobs with a key.
        edges: the share of jobs that depend on others; with any, jobs have children, flows and results too.
        parts: how often a submission comes in parts, for one that comes whole.
        limited: limits are set, changed and dropped.
        meddled: how often people amend and delete records, weigh users, pause and limit, for once in other styles.
        due_within: delays, back-offs of 0 and times in the past are used too; without, nothing an operation does is
            due in that same ms.
    """

    shared: float = 0.0
    depth_weights: tuple[int, ...] = (1, 4, 5, 3, 2)
    unfinished_max: int = 10
    keyed: float = 0.15
    edges: float = 0.0
    parts: float = 0.0
    limited: bool = False
    meddled: int = 1
    due_within: bool = True


CROWDED = Style()
SPREAD = Style(depth_weights=(0, 1, 3, 4, 4), unfinished_max=14, limited=True)
KEYED = Style(depth_weights=(0, 1, 2, 3, 3), keyed=0.7)
SHARING = Style(shared=0.6)
MIXED = Style(shared=0.3, depth_weights=(1, 3, 3, 2, 1), unfinished_max=14, limited=True)
WOVEN = Style(depth_weights=(0, 1, 2, 3, 3), unfinished_max=14, keyed=0.05, edges=0.7)
IN_PARTS = Style(depth_weights=(0, 1, 2, 3, 3), unfinished_max=14, keyed=0.2, edges=0.4, parts=0.4, limited=True)
TANGLED = Style(shared=0.2, depth_weights=(1, 4, 3, 1, 1), edges=0.6, parts=0.1)
ALL_AT_ONCE = Style(
    shared=0.2,
    depth_weights=(1, 4, 3, 1, 1),
    unfinished_max=16,
    keyed=0.3,
    edges=0.4,
    parts=0.3,
    limited=True,
    meddled=4,
)
"""Every feature meets every other."""
EXCLUSIVE_STYLES = (CROWDED, SPREAD, KEYED, WOVEN, IN_PARTS)
STYLES = (*EXCLUSIVE_STYLES, SHARING, MIXED, TANGLED)


def conflict(random: Random, key: str | None, delay_ms: int | None) -> dict[str, Any]:
    """Return the conflict resolution of a job with a key."""
    chosen = random.choice(("return", "replace", "replace", "after", "after", "after", "reject"))
    most_ms = None
    if key is not None and chosen == "replace" and delay_ms is not None:
        most_ms = random.choice((None, delay_ms, delay_ms + MINUTE))
    return {"on_conflict": chosen, "max_delay_ms": most_ms}


def labels(random: Random) -> dict[str, Any]:
    """Return rare fields of a job: a service, tags, digests of its arguments, headers."""
    service = "s" if random.random() < 0.05 else None
    tags = random.choice((("x",), ("x", "y"))) if random.random() < 0.05 else ()
    return {
        "service": service,
        "tags": tags,
        "identity": ("a" * 32, "b" * 32) if tags else (),
        "headers": (("h", str(random.random())),) if random.random() < 0.05 else (),
    }
