"""
A scope: the limits of queries and orders to a path, and the redaction of their answers.

Two scopes that do not meet see nothing of one another: no job, no name, no count. What they share shows all the same by
what it does to their own jobs: workers, limits and pauses above them, and the length of the event log.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from functools import cache, singledispatch
from typing import TYPE_CHECKING, Any, Final, TypeVar, get_args

import attrs

from queuehint import operations as op
from queuehint.errors import InvalidJobError, shown
from queuehint.schema.annotations import kind_of
from queuehint.schema.kinds import PathOf, Value, bare
from queuehint.values.event import Event
from queuehint.values.hint import Path, is_prefix, key_of, meet, parse_key
from queuehint.values.limit import LimitState
from queuehint.values.outcome import JobError
from queuehint.values.record import JobRecord
from queuehint.values.report import FlowStats, PauseState, Reason
from queuehint.values.signal import name_of
from queuehint.values.spec import JobSpec
from queuehint.web.forms import fields_of
from queuehint.web.problems import Refused

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from queuehint.web.access import Access


V = TypeVar("V")
TAG_BYTES: Final = 16
OF_DEPENDENCY: Final = "dependency_failed"
"""The type of the error of a job that its dependency made fail; its message is a cause."""
_NAMES_DEPENDENCY: Final = re.compile(r"dependency (\S+) ")
"""How a cause begins that names a dependency; an id has no white space."""


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
        kind, value = bare(kind_of(hint)), getattr(asked, name)
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
    """Return whether a job has a claim in a scope."""
    return not scope or any(is_prefix(scope, claim.path) for claim in spec.claims)


def is_own(job_id: str, access: Access, own: Collection[str] = ()) -> bool:
    """
    Return whether a job or a signal may be named: it was found to be of the scope, or its id is one that is made there.

    Args:
        own: the ids of jobs that were found to be.
    """
    return not access.scope or job_id in own or (name_of(job_id) or job_id).startswith(access.prefix)


class Seal:
    """
    Encrypts cursors, which count the jobs or events of all scopes, so that their holders can only return them.

    A position is hidden for one parameter and scope: where another is asked for it is not known, so that no error of
    another parameter, and no user of another scope, reads it.

    Args:
        secret: what they are hidden by; a position of another one is refused.

    Source: a deterministic cipher of a keyed digest and a key stream made from it, as SIV (RFC 5297).
    """

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def hide(self, position: bytes, *, parameter: str, scope: Path) -> str:
        """Return a position as an opaque text."""
        tag = self._tag(position, parameter, scope)
        return urlsafe_b64encode(tag + self._mixed(position, tag)).rstrip(b"=").decode()

    def reveal(self, text: str, *, parameter: str, scope: Path) -> bytes:
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
        if not hmac.compare_digest(tag, self._tag(position, parameter, scope)):
            raise InvalidJobError(f"{parameter} {shown(text)} must be one that this board returned")
        return position

    def _tag(self, position: bytes, parameter: str, scope: Path) -> bytes:
        label = json.dumps([parameter, scope]).encode()
        return hmac.digest(self._secret, label + b"\0" + position, "sha256")[:TAG_BYTES]

    def _mixed(self, text: bytes, tag: bytes) -> bytes:
        stream = hashlib.shake_256(self._secret + b"\0" + tag).digest(len(text))
        return bytes([one ^ other for one, other in zip(text, stream, strict=True)])


def _find_hidden(cls: type[Any]) -> bool:
    """Return whether a value of a class may have, at any depth, one of a class that `pruned` has a rule for."""
    found, left = {cls}, [cls]
    while left:
        named = {each for hint in fields_of(left.pop()).values() for each in _classes_in(hint)} - found
        if any(pruned.dispatch(each) is not pruned.dispatch(object) for each in named):
            return True
        found |= named
        left += named
    return False


_has_hidden: Final[Callable[..., bool]] = cache(_find_hidden)


def _classes_in(hint: Any) -> Iterator[type[Any]]:
    """Yield the classes of values that an annotation names; of one that names any, a class with a rule."""
    if hint in {Any, object}:
        yield JobRecord
    elif isinstance(hint, type) and attrs.has(hint):
        yield hint
    for part in get_args(hint):
        yield from _classes_in(part)


@singledispatch
def pruned(value: Any, access: Access, *, shows: bool = False, own: Collection[str] = ()) -> Any:
    """
    Return an answer without the fields hidden by an access.

    Args:
        shows: keep arguments, results and headers.
        own: ids of jobs that were found to be of the scope.
    """
    if isinstance(value, tuple):
        return tuple([pruned(item, access, shows=shows, own=own) for item in value])
    if attrs.has(type(value)) and _has_hidden(type(value)):
        changes = {}
        for name in fields_of(type(value)):
            found = getattr(value, name)
            if isinstance(found, tuple) or attrs.has(type(found)):
                changes[name] = pruned(found, access, shows=shows, own=own)
        return attrs.evolve(value, **changes) if changes else value
    return value


def _evolved(value: V, **changes: Any) -> V:
    """Return a value with some fields changed; the value itself if they are as they were."""
    new = {name: item for name, item in changes.items() if item != getattr(value, name)}
    return attrs.evolve(value, **new) if new else value  # type: ignore[misc]


@pruned.register(JobRecord)
def _pruned_record(value: JobRecord, access: Access, *, shows: bool = False, own: Collection[str] = ()) -> JobRecord:
    changes = {
        name: pruned(getattr(value, name), access, shows=shows, own=own) for name in ("spec", "errors", "history")
    }
    cause = _pruned_cause(value.cause, access, own)
    return _evolved(value, token=None, result=value.result if shows else None, cause=cause, **changes)


@pruned.register(JobSpec)
def _pruned_spec(value: JobSpec, access: Access, *, shows: bool = False, own: Collection[str] = ()) -> JobSpec:
    claims = tuple([claim for claim in value.claims if access.holds(claim.path)])
    edges = tuple([edge for edge in value.depends_on if is_own(edge.id, access, own)])
    parent = value.parent if value.parent is None or is_own(value.parent, access, own) else None
    arguments, headers = (value.arguments, value.headers) if shows else (b"", ())
    return _evolved(value, claims=claims, depends_on=edges, parent=parent, arguments=arguments, headers=headers)


@pruned.register(Event)
def _pruned_event(value: Event, access: Access, *, shows: bool = False, own: Collection[str] = ()) -> Event:
    claims = tuple([claim for claim in value.claims if access.holds(claim.path)])
    cause, message = value.cause, value.error_message
    if value.error_type == OF_DEPENDENCY:
        message = _pruned_cause(message, access, own)
    return attrs.evolve(value, claims=claims, cause=_pruned_cause(cause, access, own), error_message=message)


@pruned.register(JobError)
def _pruned_error(value: JobError, access: Access, *, shows: bool = False, own: Collection[str] = ()) -> JobError:
    if value.type != OF_DEPENDENCY:
        return value
    return attrs.evolve(value, message=_without_name(value.message, access, own))


def _pruned_cause(cause: str | None, access: Access, own: Collection[str]) -> str | None:
    return None if cause is None else _without_name(cause, access, own)


def _without_name(cause: str, access: Access, own: Collection[str]) -> str:
    """Return a cause without the id of a dependency that is another's."""
    found = _NAMES_DEPENDENCY.match(cause)
    return cause if found is None or is_own(found[1], access, own) else f"dependency {cause[found.end() :]}"


@pruned.register(Reason)
def _pruned_reason(value: Reason, access: Access, *, shows: bool = False, own: Collection[str] = ()) -> Reason:
    """Leave out the place where it waits if that is another's, and what is said of workers and of others' users."""
    if not access.scope:
        return value
    key, selection = value.path_key, value.selection
    if key is not None and not meet(parse_key(key), access.scope):
        key = None
    if selection is not None and selection.path is not None and not meet(selection.path, access.scope):
        selection = None
    jobs = tuple([job_id for job_id in value.jobs if is_own(job_id, access, own)])
    return attrs.evolve(value, detail=None, path_key=key, selection=selection, jobs=jobs)


@pruned.register(op.PlacedJob)
def _pruned_place(
    value: op.PlacedJob, access: Access, *, shows: bool = False, own: Collection[str] = ()
) -> op.PlacedJob:
    key, mode, reason = value.path_key, value.mode, pruned(value.reason, access, shows=shows, own=own)
    if key is not None and not access.holds(parse_key(key)):
        key = mode = None
    return attrs.evolve(value, path_key=key, mode=mode, reason=reason)


@pruned.register(FlowStats)
def _pruned_flow(value: FlowStats, access: Access, *, shows: bool = False, own: Collection[str] = ()) -> FlowStats:
    return attrs.evolve(value, held_by=tuple([job_id for job_id in value.held_by if is_own(job_id, access, own)]))


@pruned.register(op.Limits)
def _pruned_limits(value: op.Limits, access: Access, *, shows: bool = False, own: Collection[str] = ()) -> op.Limits:
    def is_of_scope(state: LimitState) -> bool:
        return state.limit.path is not None and access.holds(state.limit.path)

    return value if not access.scope else op.Limits(tuple(filter(is_of_scope, value.limits)))


@pruned.register(op.Pauses)
def _pruned_pauses(value: op.Pauses, access: Access, *, shows: bool = False, own: Collection[str] = ()) -> op.Pauses:
    def is_of_scope(state: PauseState) -> bool:
        return state.filter.path is not None and access.holds(state.filter.path)

    return value if not access.scope else op.Pauses(tuple(filter(is_of_scope, value.pauses)))
