"""
A scope: which questions and orders are asked within a path, and what is left out of their answers.

Two scopes that do not meet see nothing of one another: no job, no name, no count. What they share shows all the same by
what it does to their own jobs: workers, limits and pauses above them, and the length of the event log.
"""

from __future__ import annotations

import hashlib
import hmac
from base64 import urlsafe_b64decode, urlsafe_b64encode
from functools import singledispatch
from typing import TYPE_CHECKING, Any, Final

import attrs

from queuehint import operations as op
from queuehint.errors import InvalidJobError, shown
from queuehint.schema.annotations import kind_of
from queuehint.schema.kinds import Optional, PathOf, Value
from queuehint.values.event import Event
from queuehint.values.hint import Path, is_prefix, key_of, meet, parse_key
from queuehint.values.limit import LimitState
from queuehint.values.record import JobRecord
from queuehint.values.report import PauseState, Reason
from queuehint.values.spec import JobSpec
from queuehint.web.forms import fields_of
from queuehint.web.problems import Refused

if TYPE_CHECKING:
    from queuehint.web.access import Access


TAG_BYTES: Final = 16


def forced(asked: Any, scope: Path) -> Any:
    """
    Return what is asked with each of its paths in a scope: one that is not given is the scope itself.

    Raises:
        Refused: a path is outside the scope.

    >>> forced(op.List(), ("t1",)).filter.path
    ('t1',)
    """
    if not scope:
        return asked
    changes: dict[str, Any] = {}
    for name, hint in fields_of(type(asked)).items():
        kind, value = kind_of(hint), getattr(asked, name)
        kind = kind.kind if isinstance(kind, Optional) else kind
        if isinstance(kind, PathOf):
            changes[name] = _within(value, scope)
        elif isinstance(kind, Value) and attrs.has(type(value)):
            changes[name] = forced(value, scope)
    return attrs.evolve(asked, **changes)


def _within(path: Path | None, scope: Path) -> Path:
    # The root stands for all there is, which is the scope.
    if not path:
        return scope
    if not is_prefix(scope, path):
        raise Refused(403, "out-of-scope", f"{key_of(path)} is outside {key_of(scope)}, which is all that is open here")
    return path


def is_within(spec: JobSpec, scope: Path) -> bool:
    """Return whether a job is of a scope: it has a claim there."""
    return not scope or any(is_prefix(scope, claim.path) for claim in spec.claims)


class Seal:
    """
    Hides positions that count the jobs or events of all: their holder gives them back as they are.

    Args:
        secret: what they are hidden by; a position of another one is refused.

    Source: a deterministic cipher of a keyed digest and a key stream made from it, as SIV (RFC 5297).
    """

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def hide(self, position: bytes) -> str:
        """Return a position as text that says nothing."""
        tag = self._tag(position)
        return urlsafe_b64encode(tag + self._mixed(position, tag)).rstrip(b"=").decode()

    def reveal(self, text: str, *, parameter: str) -> bytes:
        """
        Return the position that `hide` has made a text of.

        Raises:
            InvalidJobError: it has made none of this text.
        """
        try:
            packed = urlsafe_b64decode(text + "=" * (-len(text) % 4))
        except ValueError:
            packed = b""
        tag, mixed = packed[:TAG_BYTES], packed[TAG_BYTES:]
        position = self._mixed(mixed, tag)
        if not hmac.compare_digest(tag, self._tag(position)):
            raise InvalidJobError(f"{parameter} {shown(text)} is not one that this board has returned")
        return position

    def _tag(self, position: bytes) -> bytes:
        return hmac.digest(self._secret, position, "sha256")[:TAG_BYTES]

    def _mixed(self, text: bytes, tag: bytes) -> bytes:
        stream = hashlib.shake_256(self._secret + b"\0" + tag).digest(len(text))
        return bytes([one ^ other for one, other in zip(text, stream, strict=True)])


@singledispatch
def pruned(value: Any, access: Access, *, shows: bool = False) -> Any:
    """
    Return an answer without what an access may not see.

    Args:
        shows: keep arguments, results and headers.
    """
    if isinstance(value, tuple):
        return tuple([pruned(item, access, shows=shows) for item in value])
    if attrs.has(type(value)):
        changes = {}
        for name in fields_of(type(value)):
            found = getattr(value, name)
            if isinstance(found, tuple) or attrs.has(type(found)):
                changes[name] = pruned(found, access, shows=shows)
        return attrs.evolve(value, **changes) if changes else value
    return value


@pruned.register(JobRecord)
def _pruned_record(value: JobRecord, access: Access, *, shows: bool = False) -> JobRecord:
    spec = pruned(value.spec, access, shows=shows)
    return attrs.evolve(value, spec=spec, token=None, result=value.result if shows else None)


@pruned.register(JobSpec)
def _pruned_spec(value: JobSpec, access: Access, *, shows: bool = False) -> JobSpec:
    claims = tuple([claim for claim in value.claims if access.holds(claim.path)])
    arguments, headers = (value.arguments, value.headers) if shows else (b"", ())
    return attrs.evolve(value, claims=claims, arguments=arguments, headers=headers)


@pruned.register(Event)
def _pruned_event(value: Event, access: Access, *, shows: bool = False) -> Event:
    return attrs.evolve(value, claims=tuple([claim for claim in value.claims if access.holds(claim.path)]))


@pruned.register(Reason)
def _pruned_reason(value: Reason, access: Access, *, shows: bool = False) -> Reason:
    """Leave out the place where it waits if that is another's, and what is said of workers and of others' users."""
    if not access.scope:
        return value
    key, selection = value.path_key, value.selection
    is_own = key is None or meet(parse_key(key), access.scope)
    if selection is not None and selection.path is not None and not meet(selection.path, access.scope):
        selection = None
    return attrs.evolve(value, detail=None, path_key=key if is_own else None, selection=selection)


@pruned.register(op.Limits)
def _pruned_limits(value: op.Limits, access: Access, *, shows: bool = False) -> op.Limits:
    def is_own(state: LimitState) -> bool:
        return state.limit.path is not None and access.holds(state.limit.path)

    return value if not access.scope else op.Limits(tuple(filter(is_own, value.limits)))


@pruned.register(op.Pauses)
def _pruned_pauses(value: op.Pauses, access: Access, *, shows: bool = False) -> op.Pauses:
    def is_own(state: PauseState) -> bool:
        return state.filter.path is not None and access.holds(state.filter.path)

    return value if not access.scope else op.Pauses(tuple(filter(is_own, value.pauses)))
