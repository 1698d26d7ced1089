"""
JSON of values, written and read by their annotations and kinds.

A value of one of our classes is an object of its fields, and times stay ints of ms. The tables here say what is written
besides the fields of a class, and which of its fields never are.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from enum import Enum
from functools import lru_cache
from types import MappingProxyType, UnionType
from typing import Annotated, Any, Final, Protocol, Union, get_args, get_origin, get_type_hints

import attrs

from queuehint import operations as op
from queuehint.errors import InvalidJobError, InvalidJobTypeError, PayloadError, shown
from queuehint.handlers.conversion.plain_json import decode_json, encode_json
from queuehint.schema.annotations import kind_of
from queuehint.schema.checks import check_choice, check_int
from queuehint.schema.kinds import Count, Flag, Kind, Many, Member, PathOf, Payload, Value, bare
from queuehint.values.event import Event
from queuehint.values.hint import parse_key
from queuehint.values.record import JobRecord
from queuehint.values.report import FlowStats, Reason, Stats
from queuehint.values.spec import JobSpec

ITEMS_MAX: Final = 1000
"""So many items of a list are written."""
SHOWN_BYTES_MAX: Final = 65_536
"""So many bytes of arguments or of a result are written."""

NEVER: Final[Mapping[type[Any], frozenset[str]]] = {
    JobRecord: frozenset({"token"}),
    JobSpec: frozenset({"identity", "presence_ms"}),
    op.EnqueuedJob: frozenset({"presence_token"}),
}
"""Fields that are neither written nor read: they prove a lease, or are between a producer and a store."""
OF_ALL: Final[Mapping[type[Any], frozenset[str]]] = {
    JobRecord: frozenset({"number", "seq"}),
    Event: frozenset({"at", "number"}),
    op.EnqueuedJob: frozenset({"number"}),
    op.Counts: frozenset({"after"}),
    op.SweptPath: frozenset({"number"}),
    op.PathReasons: frozenset({"more_ahead", "holders"}),
    op.PlacedJob: frozenset({"claims"}),
}
"""Numbers that count jobs, events or claims of the whole namespace: in a scope they are not written."""
FILLED_IN: Final[Mapping[type[Any], frozenset[str]]] = {JobSpec: frozenset({"parent", "schedule", "scheduled_ms"})}
"""Fields that the library itself fills in: they are not read."""
BESIDES: Final[Mapping[type[Any], Mapping[str, tuple[Any, Callable[[Any], Any]]]]] = {
    Reason: {"text": (str, str), "way_out": (str | None, lambda reason: reason.way_out)},
    Stats: {"unfinished": (int, lambda stats: stats.unfinished)},
    FlowStats: {"total": (int, lambda stats: stats.total)},
    op.PathReasons: {"more": (int, lambda found: found.more)},
    op.Counts: {"total": (int, lambda counts: counts.total), "complete": (bool, lambda counts: counts.complete)},
}
"""What is written of a value besides its fields, by name: its type, and how it is found."""


def _fields_of(cls: type[Any], *, is_asked: bool = False) -> Mapping[str, Any]:
    """Return the annotations of the fields of a class that are written, or with *is_asked* of those that are read."""
    hints = get_type_hints(cls, include_extras=True)
    left_out = NEVER.get(cls, frozenset()) | (FILLED_IN.get(cls, frozenset()) if is_asked else frozenset())
    fields = [field.name for field in attrs.fields(cls) if field.init and field.name not in left_out]
    return MappingProxyType({name: hints[name] for name in fields})


fields_of: Final[Callable[..., Mapping[str, Any]]] = lru_cache(256)(_fields_of)


# --- written ---------------------------------------------------------------------------------------------------------


def written(value: Any, *, in_scope: bool = False) -> Any:
    """
    Return a value as JSON.

    Args:
        in_scope: leave out the numbers that count the jobs and events of the whole namespace.

    >>> written(op.Judged(((op.Verdict.DONE, None),), more=False))
    {'verdicts': [['done', None]], 'more': False}
    """
    cls = type(value)
    if attrs.has(cls):
        left_out = OF_ALL.get(cls, frozenset()) if in_scope else frozenset()
        found = {
            name: written(dict(value.headers) if name == "headers" else getattr(value, name), in_scope=in_scope)
            for name in fields_of(cls)
            if name not in left_out
        }
        return found | {name: find(value) for name, (_, find) in BESIDES.get(cls, {}).items()}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, tuple | list):
        return [written(item, in_scope=in_scope) for item in value[:ITEMS_MAX]]
    if isinstance(value, Mapping):
        return {str(key): written(item, in_scope=in_scope) for key, item in value.items()}
    return _payload(value) if isinstance(value, bytes) else value


def _payload(payload: bytes) -> Any:
    """Return arguments or a result as JSON: None if hidden, else the value, or a truncated text."""
    if not payload:
        return None
    shown_bytes = payload[:SHOWN_BYTES_MAX]
    try:
        return {"bytes": len(payload), "value": decode_json(shown_bytes)}
    except PayloadError:
        return {"bytes": len(payload), "text": shown_bytes.decode("utf-8", "replace")}


# --- read ------------------------------------------------------------------------------------------------------------


class Parameters(Protocol):
    """The parameters of a query. A name may occur several times."""

    def getlist(self, key: Any) -> list[str]:
        """Return all values of a name."""


def read_json(body: bytes) -> Any:
    """
    Return the value of a body.

    Raises:
        InvalidJobError: it is no JSON.
    """
    try:
        return json.loads(body or b"{}", parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise InvalidJobError(f"body must be JSON: {shown(str(error))}") from None


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no number")


def read(cls: type[Any], given: Any, where: str = "body", **bound: Any) -> Any:
    """
    Return the value of a class from a JSON object. The class checks its fields.

    Args:
        where: what the object is called in errors.
        bound: fields that are said elsewhere.

    Raises:
        InvalidJobError, InvalidJobTypeError, InvalidHintError, PayloadError: naming the field.

    >>> read(op.Cancel, {"reason": "no more"}, ids=("a",))
    Cancel(ids=('a',), reason='no more')
    """
    if not isinstance(given, dict):
        raise InvalidJobTypeError(f"{where} must be an object, got {type(given).__name__}: {shown(given)}")
    hints = {name: hint for name, hint in fields_of(cls, is_asked=True).items() if name not in bound}
    if unknown := sorted(given.keys() - hints.keys()):
        raise InvalidJobTypeError(f"{where} has no field {shown(unknown[0])}; there are {', '.join(hints)}")
    found = {
        # Of headers an object is the form in which users give them.
        name: value if name == "headers" else _read(hints[name], value, f"{where}.{name}")
        for name, value in given.items()
    }
    return made(cls, found | bound, where)


def made(cls: type[Any], fields: dict[str, Any], where: str) -> Any:
    """
    Return a value of a class.

    Raises:
        InvalidJobTypeError: a field without a default is missing.
    """
    for field in attrs.fields(cls):
        if field.init and field.default is attrs.NOTHING and field.name not in fields:
            raise InvalidJobTypeError(f"{where}.{field.name} is missing")
    return cls(**fields)


def _read(hint: Any, value: Any, where: str) -> Any:
    """Return a value of JSON in the form of a field: lists as tuples, objects as values, the rest as it is."""
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        if isinstance(args[1], Payload):
            return _read_payload(value, args[1].most, where)
        return _read(args[0], value, where)
    if origin in {Union, UnionType}:
        fitting = next((arg for arg in args if _may_be(arg, value)), None)
        return value if fitting is None else _read(fitting, value, where)
    if origin is tuple:
        return _read_list(args, value, where)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return hint(check_choice(value, tuple([member.value for member in hint]), parameter=where))
    return read(hint, value, where) if attrs.has(hint) else value


def _read_payload(value: Any, bytes_max: int, where: str) -> bytes:
    """
    Return a value of JSON as arguments or data.

    Raises:
        PayloadError: naming the field.
    """
    try:
        return encode_json(value, bytes_max=bytes_max)
    except PayloadError as error:
        path = f"{where}{error.path.removeprefix('$')}"
        raise PayloadError(error.problem, path=path, limit=error.limit) from None


def _read_list(hints: tuple[Any, ...], value: Any, where: str) -> tuple[Any, ...]:
    if not isinstance(value, list):
        raise InvalidJobTypeError(f"{where} must be a list, got {type(value).__name__}: {shown(value)}")
    if hints[-1] is Ellipsis:
        hints = hints[:1] * len(value)
    if len(hints) != len(value):
        raise InvalidJobTypeError(f"{where} must be a list of {len(hints)}, got {len(value)}")
    return tuple(
        [_read(hint, item, f"{where}[{at}]") for at, (hint, item) in enumerate(zip(hints, value, strict=True))]
    )


def _may_be(hint: Any, value: Any) -> bool:
    """Return whether a value of JSON may be read by one annotation of several, because it is no plain value there."""
    hint = get_args(hint)[0] if get_origin(hint) is Annotated else hint
    return (get_origin(hint) is tuple and isinstance(value, list)) or (attrs.has(hint) and isinstance(value, dict))


# --- read from a query -----------------------------------------------------------------------------------------------

SPELLED: Final = {"states": "state", "job_id": "id"}
"""What a field is called in a query, if not by its name."""


def parameters_of(cls: type[Any]) -> dict[str, tuple[tuple[str, ...], Kind, bool]]:
    """
    Return the parameters of a query for a value of a class by name: the way to its field, its kind, if it is needed.

    Fields of a filter are parameters themselves.
    """
    found: dict[str, tuple[tuple[str, ...], Kind, bool]] = {}
    for name, hint in fields_of(cls, is_asked=True).items():
        kind = kind_of(hint)
        if isinstance(kind, Value) and not isinstance(kind, Member):
            for inner, (way, *rest) in parameters_of(kind.cls).items():
                found[inner] = ((name, *way), *rest)  # type: ignore[assignment]
        else:
            is_needed = attrs.fields_dict(cls)[name].default is attrs.NOTHING
            found[SPELLED.get(name, name)] = ((name,), kind, is_needed)
    return found


def read_query(cls: type[Any], query: Parameters, keys: set[str], **bound: Any) -> Any:
    """
    Return the value of a class that the parameters of a query stand for.

    Args:
        keys: the names that the query has.
        bound: fields that are said elsewhere.

    Raises:
        InvalidJobError, InvalidJobTypeError, InvalidHintError: naming the parameter.
    """
    known = {name: said for name, said in parameters_of(cls).items() if said[0][0] not in bound}
    if unknown := sorted(keys - known.keys()):
        raise InvalidJobTypeError(f"query has no parameter {shown(unknown[0])}; there are {', '.join(known) or 'none'}")
    found: dict[str, Any] = {}
    for name in sorted(keys):
        (*outer, last), kind, _ = known[name]
        inner = found
        for each in outer:
            inner = inner.setdefault(each, {})
        inner[last] = _read_text(kind, query.getlist(name), name)
    hints = fields_of(cls)
    fields = {name: hints[name](**value) if isinstance(value, dict) else value for name, value in found.items()}
    return made(cls, fields | bound, "query")


def _read_text(kind: Kind, texts: list[str], where: str) -> Any:
    kind = bare(kind)
    if isinstance(kind, Many):
        return tuple([_read_text(kind.item, [text], where) for text in texts])
    if len(texts) > 1:
        raise InvalidJobError(f"{where} is given {len(texts)} times, limit 1")
    (text,) = texts
    if isinstance(kind, PathOf):
        return parse_key(text)
    if isinstance(kind, Flag):
        return check_choice(text, ("true", "false", "1", "0"), parameter=where) in {"true", "1"}
    if isinstance(kind, Member):
        return kind.cls(check_choice(text, tuple([member.value for member in kind.cls]), parameter=where))
    if isinstance(kind, Count):
        return _number(kind, text, where)
    return text


def _number(kind: Count, text: str, where: str) -> int:
    if not text.removeprefix("-").isdecimal() or not text.isascii() or len(text) > 20:
        raise InvalidJobTypeError(f"{where} must be a whole number, got {shown(text)}")
    return check_int(int(text), parameter=where, least=kind.least, most=kind.most)
