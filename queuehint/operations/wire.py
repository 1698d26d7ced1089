"""
Operations as bytes and back, for a journal that another process or another release reads.

The bytes are ASCII JSON. A value of one of our classes is an object that names its class under the key ``""`` and has
the fields that differ from their defaults; bytes are such an object too, of text where they are UTF-8, else of base64;
a tuple is an array. Classes are looked up in a closed table: no name in a journal is ever imported. A field
that was added later has its default; an unknown field is an error.

A value is read back equal and of the same types, and the engine gives the same reply to both: so the operations with
the times at which they were applied are the whole history.

The frames of handler processes carry grants in the same form, and all wires carry errors in one: `error_facts`.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from functools import lru_cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

import attrs

from queuehint import errors, operations
from queuehint.errors import CorruptStateError, InvalidJobError, InvalidJobTypeError, QueueHintError, shown
from queuehint.operations import Closing, Firing, Note, Operation
from queuehint.schema.compiled import maker
from queuehint.schema.kinds import AnyCount, DurationMs, JobId, NameText, ShortText, Token
from queuehint.values.event import EventFilter, EventKind
from queuehint.values.hint import SEGMENT_BYTES_MAX, Claim
from queuehint.values.limit import Limit
from queuehint.values.outcome import Grant, JobError, Outcome, OutcomeKind, Progress, Step
from queuehint.values.policy import Backoff, Policy, Retention
from queuehint.values.record import JobState
from queuehint.values.record_filter import RecordFilter
from queuehint.values.schedule import Recurrence
from queuehint.values.spec import Dependency, JobSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_CLASS: Final = ""
_TEXT: Final = "b"
_BASE64: Final = "x"

VALUES: Final[tuple[type[Any], ...]] = (
    Backoff,
    Claim,
    Dependency,
    Closing,
    EventFilter,
    Firing,
    JobError,
    JobSpec,
    Limit,
    Note,
    Outcome,
    Policy,
    Progress,
    RecordFilter,
    Recurrence,
    Step,
)
"""The classes of which operations are made, besides tuples, numbers, texts, bytes, True, False and None."""
_KNOWN: Final = frozenset({int, str, bytes, bool, float, type(None), OutcomeKind, *VALUES})


@attrs.frozen
class Extend(Operation[None]):
    """The leader has renewed its own leases, of its own accord, before anything is reaped."""

    leases: tuple[tuple[JobId, Token], ...]
    lease_ms: DurationMs


@attrs.frozen
class Await(Operation[None]):
    """Callers wait for these jobs. Their records are kept until they can be read."""

    job_ids: tuple[JobId, ...]


@attrs.frozen
class PlaceAnew(Operation[None]):
    """The doctor has replaced the gates by those of a fresh placement of the jobs."""


@attrs.frozen(kw_only=True)
class Begin(Operation[None]):
    """
    The store was opened.

    Args:
        epoch_s: tokens count from here on, in seconds since 2020; None if the same process has opened it again: then
            holders of leases may still be there.
        retention: finished, failed, canceled, of services or None, in ms; None for the default.
        services: the retention of single services, by name, in ms.
        budget: as of `EngineOptions`.
        release: the version of queuehint that has opened it.
        is_heir: the process that led before is dead; False if its workers may go on.
    """

    epoch_s: AnyCount | None
    budget: AnyCount
    retention: tuple[DurationMs, DurationMs, DurationMs, DurationMs | None] | None
    services: tuple[tuple[NameText, DurationMs], ...]
    release: ShortText
    is_heir: bool = True

    @classmethod
    def of(
        cls, retention: Retention | None, *, epoch_s: int | None, budget: int, release: str, is_heir: bool = True
    ) -> Begin:
        """Return a `Begin` with the numbers of a retention, if any."""
        kept, services = (None, ()) if retention is None else retention.in_ms()
        return cls(epoch_s=epoch_s, budget=budget, retention=kept, services=services, release=release, is_heir=is_heir)

    def kept(self) -> Retention | None:
        """Return the retention."""
        return None if self.retention is None else Retention.of_ms((self.retention, self.services))


OPERATIONS: Final[tuple[type[Any], ...]] = tuple(
    sorted(
        [
            each
            for each in vars(operations).values()
            if isinstance(each, type) and issubclass(each, Operation) and attrs.has(each)
        ],
        key=attrgetter("__name__"),
    )
)
"""All operations there are."""
QUESTIONS: Final[frozenset[type[Any]]] = frozenset([kind for kind in OPERATIONS if kind.is_question])


class _Form:
    """
    The writer and reader of the values of one class.

    Attributes:
        dump: returns a value as a JSON object, without fields that have their defaults.
    """

    __slots__ = ("_make", "_readers", "dump")

    def __init__(self, cls: type[Any]) -> None:
        self._readers = _READERS.get(cls, {})
        self._make: Callable[..., Any] = _MAKERS.get(cls, cls)
        self.dump: Callable[[Any], dict[str, Any]] = _dumping(cls, self._readers)

    def load(self, pairs: list[tuple[str, Any]]) -> Any:
        """Return the value of a JSON object without its class."""
        fields = dict(pairs)
        for name, field in fields.items():
            if type(field) is list:
                fields[name] = _tupled(field)
        for name, read in self._readers.items():
            if name in fields:
                fields[name] = read(fields[name])
        return self._make(**fields)


def _dumping(cls: type[Any], readers: dict[str, Callable[[Any], Any]]) -> Callable[[Any], dict[str, Any]]:
    """Return a function that writes values of a class, compiled once for the class."""
    names: dict[str, Any] = {"known": _KNOWN, "refuse": _refuse_objects, "OutcomeKind": OutcomeKind}
    lines = ["def dump(value):", f"    found = {{{_CLASS!r}: {cls.__name__!r}}}"]
    for n, field in enumerate([field for field in attrs.fields(cls) if field.init]):
        names[f"default{n}"], names[f"type{n}"] = field.default, type(field.default)
        lines += [
            f"    field = value.{field.name}",
            # 0 and False are equal, and not the same.
            f"    if field is not default{n} and (type(field) is not type{n} or field != default{n}):",
            "        if type(field) not in known:",
            "            for each in field if type(field) is tuple else (field,):",
            "                if type(each) not in known:",
            "                    refuse(each)",
        ]
        if field.name in readers:
            names[f"read{n}"] = readers[field.name]
            lines += ["        if type(field) is not OutcomeKind:", f"            read{n}(field)"]
        lines.append(f"        found[{field.name!r}] = field")
    source = "\n".join([*lines, "    return found"])
    exec(compile(source, f"<queuehint {cls.__name__} as JSON>", "exec"), names)  # noqa: S102 - of classes of ours
    dump: Callable[[Any], dict[str, Any]] = names["dump"]
    return dump


def _refuse_objects(value: Any) -> None:
    """Refuse an object that could not be read again: one such row would make a journal unreadable."""
    if isinstance(value, dict):
        raise InvalidJobTypeError(f"an operation holds a {type(value).__name__}: {shown(value)}")
    if isinstance(value, (tuple, list)):
        for item in value:
            if type(item) not in _KNOWN:
                _refuse_objects(item)


def _tupled(items: list[Any]) -> tuple[Any, ...]:
    for item in items:
        if type(item) is list:
            return tuple([_tupled(each) if type(each) is list else each for each in items])
    return tuple(items)


def _states(names: Iterable[str]) -> tuple[JobState, ...]:
    return tuple([JobState(name) for name in names])


def _event_kinds(words: Iterable[str]) -> tuple[EventKind, ...]:
    return tuple([EventKind(word) for word in words])


_READERS: Final[dict[type[Any], dict[str, Callable[[Any], Any]]]] = {
    EventFilter: {"kinds": _event_kinds},
    Outcome: {"kind": OutcomeKind},
    RecordFilter: {"states": _states},
}
CACHED_MAX: Final = 512
"""A claim on a longer path is made anew each time: the cache is bounded in entries, and so in bytes."""
_kept_claim: Final = lru_cache(4096, typed=True)(Claim)


def _claim(path: Any, mode: Any = "exclusive") -> Claim:
    # Two segments are never too long, and most places have no more.
    is_short = len(path) <= CACHED_MAX // SEGMENT_BYTES_MAX or sum(map(len, path)) <= CACHED_MAX
    return (_kept_claim if is_short else Claim)(path, mode)


_MAKERS: Final[dict[type[Any], Callable[..., Any]]] = {
    Backoff: lru_cache(4096, typed=True)(Backoff),
    Claim: _claim,
    Policy: lru_cache(4096, typed=True)(Policy),
    **{cls: maker(cls, of_strangers=True) for cls in (JobSpec, Outcome, Grant)},
}
"""Of the first three there are few different ones, which many jobs share: they are made once."""

_FORMS: Final = {cls: _Form(cls) for cls in (*OPERATIONS, *VALUES, Extend, Await, PlaceAnew, Begin, Grant)}
_BY_NAME: Final = {cls.__name__: form for cls, form in _FORMS.items()}


def _dump_bytes(value: bytes) -> dict[str, Any]:
    try:
        return {_CLASS: _TEXT, _TEXT: value.decode()}
    except UnicodeDecodeError:
        return {_CLASS: _BASE64, _BASE64: b64encode(value).decode()}


_DUMPS: Final = {bytes: _dump_bytes, **{cls: form.dump for cls, form in _FORMS.items()}}


def _dump_value(value: Any) -> dict[str, Any]:
    dump = _DUMPS.get(type(value))
    if dump is None:
        raise InvalidJobTypeError(f"an operation holds a {type(value).__name__}: {shown(value)}")
    return dump(value)


def _load_value(pairs: list[tuple[str, Any]]) -> Any:
    key, name = pairs[0]
    if key != _CLASS:
        raise ValueError("an object without a class")
    if name == _TEXT:
        return pairs[1][1].encode()
    if name == _BASE64:
        return b64decode(pairs[1][1], validate=True)
    return _BY_NAME[name].load(pairs[1:])


_encode: Final = json.JSONEncoder(default=_dump_value, separators=(",", ":"), check_circular=False).encode
_decode: Final = json.JSONDecoder(object_pairs_hook=_load_value).decode


WIRED: Final = {cls: _DUMPS[cls] for cls in (*VALUES, Grant, bytes)}
"""Classes of values that replies carry as operations do, and what writes one; what it holds is left to the encoder."""


def load_value(pairs: list[tuple[str, Any]]) -> Any:
    """Return the value of a JSON object. An object without a class is a dictionary."""
    return _load_value(pairs) if pairs and pairs[0][0] == _CLASS else dict(pairs)


def encode(operation: Operation[Any]) -> bytes:
    """
    Return an operation as bytes.

    Raises:
        InvalidJobTypeError: it holds a value that is none of ours.
        InvalidJobError: it holds a number or a word that could not be read again.

    >>> encode(operations.Cancel(("a",)))
    b'{"":"Cancel","ids":["a"]}'
    """
    try:
        return _encode(operation).encode("ascii")
    except (ValueError, RecursionError) as error:
        if isinstance(error, QueueHintError):
            raise
        raise InvalidJobError(f"an operation that cannot be written down: {error}") from error


def decode(data: bytes) -> Operation[Any]:
    """
    Return the operation encoded by some bytes.

    Raises:
        CorruptStateError: they stand for none.

    >>> decode(b'{"":"Cancel","ids":["a"]}')
    Cancel(ids=('a',), reason=None)
    """
    try:
        found = _decode(data.decode("ascii"))
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError) as error:
        raise CorruptStateError(f"the journal holds an entry that is not an operation: {shown(data[:200])}") from error
    if not isinstance(found, Operation):
        raise CorruptStateError(f"the journal holds an entry that is not an operation: {shown(data[:200])}")
    return found


def encode_grant(grant: Grant) -> bytes:
    """
    Return a grant as bytes, for a process that already has the arguments and has no dependencies of its own.

    What tells the arguments apart and fills them is left out with them.
    """
    spec = attrs.evolve(grant.spec, arguments=b"{}", identity=(), templates=False, depends_on=())
    return _encode(attrs.evolve(grant, spec=spec)).encode("ascii")


def decode_grant(data: bytes) -> Grant:
    """Return the grant that `encode_grant` has written."""
    grant = _decode(data.decode("ascii"))
    assert isinstance(grant, Grant)
    return grant


# --- errors ----------------------------------------------------------------------------------------------------------

_ERRORS: Final = {
    name: each for name, each in vars(errors).items() if isinstance(each, type) and issubclass(each, QueueHintError)
}
_PLAIN: Final = (str, int, float, type(None))


def error_facts(error: QueueHintError) -> list[Any]:
    """
    Return an error as JSON: its class, the texts of its arguments, and its plain facts and tuples.

    A class of an application's is told as the one of ours that it is made of. What the error was raised from is left
    out.

    >>> error_facts(errors.JobNotFoundError("a"))[::2]
    ['JobNotFoundError', {'job_id': 'a'}]
    """
    name = next(kind.__name__ for kind in type(error).__mro__ if _ERRORS.get(kind.__name__) is kind)
    facts = {fact: value for fact, value in vars(error).items() if _is_plain(value)}
    return [name, [str(each) for each in error.args], facts]


def error_of(facts: list[Any]) -> QueueHintError:
    """
    Return the error of some `error_facts`. Tuples are tuples again.

    Raises:
        KeyError: it names none of ours; no name is ever imported.
        ValueError, TypeError, AttributeError: it is in another form.
    """
    name, args, said = facts
    kind = _ERRORS[name]
    error: QueueHintError = kind.__new__(kind)
    error.args = tuple(args)
    for fact, value in said.items():
        setattr(error, fact, _tupled(value) if type(value) is list else value)
    return error


def _is_plain(value: object) -> bool:
    return isinstance(value, _PLAIN) or (isinstance(value, (list, tuple)) and all(map(_is_plain, value)))
