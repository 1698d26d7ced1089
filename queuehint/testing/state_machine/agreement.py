"""
Equality of two replies: all fields, except tokens, which each store draws for itself, and the unspecified order of the
reasons of `CountPending`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

from queuehint import operations as op

if TYPE_CHECKING:
    from collections.abc import Mapping


__all__ = ["Refused", "TokenMap", "agree", "tokens_in", "with_tokens"]


@attrs.frozen
class Refused:
    """An error, reduced to the fields that a caller can compare."""

    type: type[Exception]
    facts: dict[str, Any]

    @classmethod
    def of(cls, error: Exception) -> Refused:
        """Return the fields of an error without its wording."""
        return cls(type(error), {name: fact for name, fact in vars(error).items() if not name.startswith("_")})


def agree(expected: Any, actual: Any) -> bool:
    """Return whether the reply of a store equals the engine's, within the promises."""
    if isinstance(expected, op.Pending) and isinstance(actual, op.Pending):
        return _pending_agree(expected, actual)
    if isinstance(expected, op.Announced) and isinstance(actual, op.Announced):
        # The newest token there is, of a grant or of none.
        return (expected.verdict, expected.is_new) == (actual.verdict, actual.is_new)
    return bool(expected == actual)


def _pending_agree(expected: op.Pending, actual: op.Pending) -> bool:
    facts = [
        (pending.unfinished, pending.moving, sorted(pending.reasons, key=lambda reason: reason.job_id))
        for pending in (expected, actual)
    ]
    return facts[0] == facts[1]


class TokenMap:
    """
    Tokens of the engine, 1, 2, 3, and the corresponding tokens of a backend.

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

    def to_theirs(self, operation: op.Operation[Any]) -> op.Operation[Any]:
        """Return an operation with the backend's tokens."""
        theirs: op.Operation[Any] = with_tokens(operation, self._theirs)
        return theirs

    def to_ours(self, reply: Any) -> Any:
        """Return a reply, or an error, with the engine's tokens."""
        return with_tokens(reply, self._ours)


def tokens_in(reply: Any) -> list[tuple[str, int]]:
    """Return the jobs of the tokens in a reply, added to these."""
    if isinstance(reply, op.Exchanged):
        return [(grant.spec.id, grant.token) for grant in reply.grants]
    if isinstance(reply, op.Enqueued):
        return [(job.id, job.presence_token) for job in reply.jobs if job.presence_token is not None]
    return []


def with_tokens(value: Any, others: Mapping[int, int]) -> Any:
    """Return a value with all its tokens replaced."""
    if isinstance(value, Refused):
        return Refused(
            value.type,
            {name: others.get(fact, fact) if name == "token" else fact for name, fact in value.facts.items()},
        )
    if isinstance(value, op.Renew):
        return attrs.evolve(value, leases=tuple([(job_id, others.get(token, token)) for job_id, token in value.leases]))
    if isinstance(value, op.Enqueue):
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
        elif field.name in {"settle", "notes", "grants", "jobs", "records"}:
            new = with_tokens(item, others)
        else:
            continue
        if new is not item:
            changed[field.name] = new
    return attrs.evolve(value, **changed) if changed else value
