"""
When two answers are the same: all of it, but for tokens, which are each store's own, and for what is not promised.

Not promised is which ten jobs of more in the way `Why` names, and what follows from that. There each side is held to
what is true by the engine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

from queuehint.core.answers import JOBS_NAMED_MAX
from queuehint.operations import Enqueue, Enqueued, Exchanged, Operation, Pending, Renew
from queuehint.records import JobState
from queuehint.reports import Reason, ReasonKind

if TYPE_CHECKING:
    from collections.abc import Mapping

    from queuehint.core.engine import Engine
    from queuehint.core.job import Job
    from queuehint.core.trie import Walk

__all__ = ["Refused", "TokenMap", "agree", "tokens_in", "with_tokens"]

_MANY = 1_000_000


@attrs.frozen
class Refused:
    """An error, as far as a caller can tell it from another one."""

    type: type[Exception]
    facts: dict[str, Any]

    @classmethod
    def of(cls, error: Exception) -> Refused:
        """Take what an error says, but for how it says it."""
        return cls(type(error), {name: fact for name, fact in vars(error).items() if not name.startswith("_")})


def agree(engine: Engine, expected: Any, actual: Any) -> bool:
    """Say whether a store answers what the engine does, as far as that is promised."""
    if isinstance(expected, Reason) and isinstance(actual, Reason):
        return _reasons_agree(engine, expected, actual)
    if isinstance(expected, Pending) and isinstance(actual, Pending):
        return _pending_agree(engine, expected, actual)
    return bool(expected == actual)


def _reasons_agree(engine: Engine, expected: Reason, actual: Reason) -> bool:
    in_the_way = _in_the_way(engine, engine.ledger.jobs[expected.job_id])
    if len(in_the_way) < JOBS_NAMED_MAX:
        return expected == actual
    true = {walk.job.id: walk.job for walk in in_the_way}
    places = [true[job_id].seq for job_id in actual.jobs if job_id in true]
    is_dead = actual.kind is ReasonKind.DEAD_HOLD
    return (
        attrs.evolve(expected, jobs=(), kind=actual.kind, stuck=is_dead) == attrs.evolve(actual, jobs=())
        and actual.kind in {ReasonKind.PLACE, ReasonKind.DEAD_HOLD}
        and len(places) == len(actual.jobs) <= JOBS_NAMED_MAX
        and places == sorted(places)
        and bool(places)
        and all((true[job_id].state is JobState.FAILED) == is_dead for job_id in actual.jobs)
    )


def _in_the_way(engine: Engine, job: Job) -> list[Walk]:
    """All that keeps a job from its place, not only what is named."""
    for walk in job.walks if job.state is JobState.QUEUED else ():
        if not walk.granted:
            return engine.ledger.trie.in_the_way(walk, _MANY)
    return []


def _pending_agree(engine: Engine, expected: Pending, actual: Pending) -> bool:
    if expected.unfinished != actual.unfinished:
        return False
    if any(len(_in_the_way(engine, job)) >= JOBS_NAMED_MAX for job in engine.ledger.jobs.values()):
        # Whether something moves is worked out from the jobs that are named.
        return True
    # In which order reasons are told is not promised.
    mine, theirs = (sorted(pending.reasons, key=lambda reason: reason.job_id) for pending in (expected, actual))
    return expected.moving == actual.moving and mine == theirs


class TokenMap:
    """
    Tokens of the engine, 1, 2, 3, and those of a backend in their place.

    Both rise with every grant, so that they come in pairs; a token that neither has given is the same to both.
    """

    def __init__(self) -> None:
        self._theirs: dict[int, int] = {}
        self._ours: dict[int, int] = {}
        self._last = 0

    def learn(self, expected: Any, actual: Any) -> None:
        """
        Pair the tokens of two replies.

        Raises:
            AssertionError: a token of the backend is not greater than all before.
        """
        for (_, ours), (_, theirs) in zip(tokens_in(expected), tokens_in(actual), strict=False):
            if ours in self._theirs:
                continue
            assert theirs > self._last, f"token {theirs} comes after {self._last}: tokens only rise"
            self._last = theirs
            self._theirs[ours], self._ours[theirs] = theirs, ours

    def to_theirs(self, operation: Operation[Any]) -> Operation[Any]:
        """Return an operation with the backend's tokens."""
        theirs: Operation[Any] = with_tokens(operation, self._theirs)
        return theirs

    def to_ours(self, reply: Any) -> Any:
        """Return a reply, or an error, with the engine's tokens."""
        return with_tokens(reply, self._ours)


def tokens_in(reply: Any) -> list[tuple[str, int]]:
    """Return the jobs whose tokens a reply gives, with these."""
    if isinstance(reply, Exchanged):
        return [(grant.spec.id, grant.token) for grant in reply.grants]
    if isinstance(reply, Enqueued):
        return [(job.id, job.presence_token) for job in reply.jobs if job.presence_token is not None]
    return []


def with_tokens(value: Any, others: Mapping[int, int]) -> Any:
    """Return a value with its tokens put in place of others, wherever they are."""
    if isinstance(value, Refused):
        return Refused(
            value.type,
            {name: others.get(fact, fact) if name == "token" else fact for name, fact in value.facts.items()},
        )
    if isinstance(value, Renew):
        return attrs.evolve(value, leases=tuple([(job_id, others.get(token, token)) for job_id, token in value.leases]))
    if isinstance(value, Enqueue):
        return (
            value
            if value.parent is None
            else attrs.evolve(value, parent=(value.parent[0], others.get(value.parent[1], value.parent[1])))
        )
    if isinstance(value, tuple):
        return tuple([with_tokens(item, others) for item in value])
    if not attrs.has(type(value)):
        return value
    changed: dict[str, Any] = {}
    for field in attrs.fields(type(value)):
        item = getattr(value, field.name)
        if field.name in {"token", "presence_token"}:
            new = others.get(item, item)
        elif field.name in {"settle", "grants", "jobs", "records"}:
            new = with_tokens(item, others)
        else:
            continue
        if new is not item:
            changed[field.name] = new
    return attrs.evolve(value, **changed) if changed else value
