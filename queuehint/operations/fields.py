"""
Type and range checks of the fields of operations: types, ids, names, texts, numbers.

Stores treat fields in different ways: the same value may be a number for one, a text for another, and impossible to
write for a third. So every store refuses, before anything is written, a value that is not exactly of the annotated
type; subclasses too, which may behave in any way.

The checks follow from the annotations of `queuehint.operations`, compiled once a class. A field that holds its default
costs a comparison; a spec that was checked when it was made is not checked again.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from operator import attrgetter
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, Final, Literal, Union, get_args, get_origin, get_type_hints

import attrs

from queuehint.errors import CycleError, InvalidHintTypeError, InvalidJobError, InvalidJobTypeError, shown
from queuehint.operations import GRANTS_MAX, POOLS_MAX, SETTLEMENTS_MAX, TALLIES, Operation
from queuehint.operations.ranges import FLOAT_MAX, IDS, NAMES, NUMBERS, PAYLOADS, TEXTS, TOKEN_MAX
from queuehint.schema.checks import ID_BYTES_MAX, NAME_BYTES_MAX, TEN_YEARS_MS, check_id, check_name
from queuehint.values.hint import parse_path
from queuehint.values.outcome import RESULT_BYTES_MAX, Outcome, OutcomeKind
from queuehint.values.spec import JobSpec, Priority, check_payload_size, is_checked, note_checked

if TYPE_CHECKING:
    from collections.abc import Sequence

    from queuehint.operations import Exchange

Check = Callable[[Any], None]
"""Check a value against a field; raise if it does not fit."""
BULK: Final = 8
"""So many items and more are looked at together first."""
_OF_DATA: Final = frozenset({JobSpec, Outcome})
"""Classes that hold an application's own data: a wrong value in their place is not shown."""
_NO_DEFAULT: Final = object()

_FINISHED: Final = OutcomeKind.FINISHED
_NO_DELAY: Final = attrs.fields(Outcome).delay_ms.default
_NO_CHILDREN: Final = attrs.fields(Outcome).children.default
_FAIL: Final = attrs.fields(Outcome).on_child_failure.default

_checks: dict[type[Any], Check] = {}
_seen: set[str] = set()
"""Names of workers and pools with which nothing is wrong."""
_releases: set[str] = set()
"""The same of releases."""
SEEN_MAX: Final = 1000


def check_fields(operation: Operation[Any]) -> None:
    """
    Refuse an operation of which a field holds something else than it names.

    Raises:
        InvalidJobTypeError, InvalidHintTypeError: naming the operation, the field and its value.
        InvalidJobError, InvalidHintError, PayloadError: a text or a number that no such field may hold.

    Complexity: O(n) of what the operation holds.
    """
    kind = type(operation)
    check = _checks.get(kind)
    if check is None:
        if Operation not in getattr(kind, "__bases__", ()):
            raise InvalidJobTypeError(f"operation must be one of queuehint.operations, got {kind.__name__}")
        check = _checks[kind] = _fields(kind, kind.__name__)
    check(operation)


def is_usual(exchange: Exchange) -> bool:
    """
    Return whether an exchange is one that workers make all the time, and nothing is wrong with it; else look closer.

    It says the same as `check_fields` and `check_limits`, in a quarter of the time.
    """
    worker, pools, settle = exchange.worker, exchange.pools, exchange.settle
    limit, lease_ms, steal = exchange.limit, exchange.lease_ms, exchange.steal
    if (
        (type(worker) is not str or worker not in _seen)
        or (type(pools) is not tuple or len(pools) > POOLS_MAX)
        or (type(settle) is not tuple or len(settle) > SETTLEMENTS_MAX)
        or (type(limit) is not int or not 0 <= limit <= GRANTS_MAX)
        or (type(lease_ms) is not int or not 0 <= lease_ms <= TEN_YEARS_MS)
        or (exchange.users is not None or type(steal) is not tuple or steal)
        or (exchange.is_last is not False or type(exchange.announces) is not bool)
        or (type(exchange.release) is not str or exchange.release not in _releases)
    ):
        return False
    for pool in pools:
        if type(pool) is not str or pool not in _seen:
            return False
    for outcome in settle:
        if type(outcome) is not Outcome:
            return False
        token, result = outcome.token, outcome.result
        if (
            (type(token) is not int or not 0 <= token <= TOKEN_MAX)
            or outcome.kind is not _FINISHED
            or (result is not None and (type(result) is not bytes or len(result) > RESULT_BYTES_MAX))
            or (outcome.error is not None or outcome.reason is not None or outcome.final is not False)
            # The defaults are the very same objects; what is equal is looked at closer.
            or (outcome.delay_ms is not _NO_DELAY or outcome.children is not _NO_CHILDREN)
            or outcome.on_child_failure is not _FAIL
        ):
            return False
    return not settle or _are_ids([outcome.job_id for outcome in settle])


def note_usual(exchange: Exchange) -> None:
    """Cache the checked names of an exchange for the next one of its worker."""
    if len(_seen) + len(_releases) > SEEN_MAX:
        _seen.clear()
        _releases.clear()
    _seen.add(exchange.worker)
    _releases.add(exchange.release)
    _seen.update(exchange.pools)


def _refuse(where: str, expected: str, value: object) -> InvalidJobTypeError:
    return InvalidJobTypeError(f"{where} must be {expected}, got {type(value).__name__}: {shown(value)}")


# --- compiled from annotations ---------------------------------------------------------------------------------------


def _fields(kind: type[Any], where: str) -> Check:
    """Return a check of all fields of a value of a class of ours; the value's own class was looked at."""
    fields = attrs.fields(kind)
    hints = get_type_hints(kind)
    checks = [_compile(hints[field.name], field.name, f"{where}.{field.name}") for field in fields]
    defaults = [_default(field) for field in fields]
    getters = [attrgetter(field.name) for field in fields]
    if len(fields) < 2:
        rows = list(zip(getters, checks, strict=True))

        def check_few(value: Any) -> None:
            for get, check in rows:
                check(get(value))

        return check_few
    get_all = attrgetter(*[field.name for field in fields])

    def check_all(value: Any) -> None:
        for held, default, check in zip(get_all(value), defaults, checks):  # noqa: B905 - made of equal length
            if held is not default:
                check(held)

    return check_all


def _default(field: attrs.Attribute[Any]) -> object:
    default = field.default
    return _NO_DEFAULT if default is attrs.NOTHING or isinstance(default, attrs.Factory) else default  # type: ignore[arg-type]


def _compile(hint: Any, name: str, where: str) -> Check:
    """Return the check of an annotation."""
    origin = get_origin(hint)
    if origin in (Union, UnionType):
        return _either(get_args(hint), name, where)
    if origin is Literal:
        return _choice(get_args(hint), where)
    if origin is tuple:
        items = get_args(hint)
        if name == "path":
            return _path(where)
        if items[-1] is Ellipsis:
            return _sequence(items[0], name, where)
        return _fixed([_compile(item, name, where) for item in items], where)
    if hint is str:
        return _str(name, where)
    if hint is int:
        return _int(name, where)
    if hint is float:
        return _float(where)
    if hint is bytes:
        return _bytes(where, PAYLOADS[name])
    if hint is JobSpec:
        return _spec(where)
    if attrs.has(hint):
        return _value(hint, where)
    return _exact(hint, where)


def _called(kind: type[Any]) -> str:
    if kind is bool:
        return "bool"
    return f"{'an' if kind.__name__[0] in 'AEIOU' else 'a'} {kind.__name__}"


def _exact(kind: type[Any], where: str) -> Check:
    assert kind is bool or issubclass(kind, Enum), where
    expected = _called(kind)

    def check(value: Any) -> None:
        if type(value) is not kind:
            raise _refuse(where, expected, value)

    return check


def _value(kind: type[Any], where: str) -> Check:
    check_fields_of = _fields(kind, where)
    expected = _called(kind)
    check_whole = _check_nameless if kind is JobSpec else getattr(kind, "check", None)

    def check(value: Any) -> None:
        if type(value) is not kind:
            if kind in _OF_DATA:
                raise InvalidJobTypeError(f"{where} must be {expected}, got {type(value).__name__}")
            raise _refuse(where, expected, value)
        check_fields_of(value)
        if check_whole is not None:
            _check_whole(check_whole, value, where)

    return check


def _check_whole(check: Callable[[Any], object], value: Any, where: str) -> None:
    """Run a value's own check of its fields, and name the operation in its error."""
    try:
        check(value)
    except CycleError:
        raise
    except ValueError as error:
        error.args = (f"{where}: {error}",)
        raise


def _check_nameless(spec: JobSpec) -> None:
    """Check a spec whose edges are ids by now: its own name may be the id of another job."""
    (spec if spec.name is None else attrs.evolve(spec, name=None)).check()


def _spec(where: str) -> Check:
    check_by_hand = _value(JobSpec, where)

    def check(value: Any) -> None:
        if type(value) is JobSpec and is_checked(value):
            return
        check_by_hand(value)
        note_checked(value)

    return check


def _either(kinds: Sequence[Any], name: str, where: str) -> Check:
    """Return the check of a union: None, True and False, a word, or what the field is otherwise."""
    rest = [kind for kind in kinds if kind not in (NoneType, bool) and get_origin(kind) is not Literal]
    words = frozenset([word for kind in kinds if get_origin(kind) is Literal for word in get_args(kind)])
    takes_none, takes_bool = NoneType in kinds, bool in kinds
    assert len(rest) == 1, where
    check_rest = _compile(rest[0], name, where)

    def check(value: Any) -> None:
        if value is None and takes_none:
            return
        if type(value) is bool and takes_bool:
            return
        if type(value) is str and value in words:
            return
        check_rest(value)

    return check


def _choice(words: Sequence[str], where: str) -> Check:
    expected = f"one of {', '.join(words)}"

    def check(value: Any) -> None:
        if type(value) is not str:
            raise _refuse(where, expected, value)
        if value not in words:
            raise InvalidJobError(f"{where} must be {expected}, got {shown(value)}")

    return check


def _sequence(item: Any, name: str, where: str) -> Check:
    check_item = _compile(item, name, where)
    are_fine = _bulk(item, name)

    def check(value: Any) -> None:
        if type(value) is not tuple:
            raise _refuse(where, "a tuple", value)
        if len(value) > BULK and are_fine(value):
            return
        for held in value:
            check_item(held)

    return check


def _fixed(checks: list[Check], where: str) -> Check:
    expected = f"a tuple of {len(checks)}"

    def check(value: Any) -> None:
        if type(value) is not tuple or len(value) != len(checks):
            raise _refuse(where, expected, value)
        for check_item, held in zip(checks, value, strict=True):
            check_item(held)

    return check


def _path(where: str) -> Check:
    def check(value: Any) -> None:
        if type(value) is not tuple or any(type(segment) is not str for segment in value):
            raise InvalidHintTypeError(f"{where} must be a tuple of str, got {type(value).__name__}: {shown(value)}")
        parse_path(value, parameter=where)

    return check


def _float(where: str) -> Check:
    def check(value: Any) -> None:
        if type(value) not in (int, float):
            raise _refuse(where, "a number", value)
        if not -FLOAT_MAX <= value <= FLOAT_MAX:  # also true for NaN
            raise InvalidJobError(f"{where} must be from {-FLOAT_MAX:g} to {FLOAT_MAX:g}, got {shown(value)}")

    return check


def _int(name: str, where: str) -> Check:
    of_class = ".".join(where.split(".")[-2:])
    least, most = NUMBERS[of_class] if of_class in NUMBERS else NUMBERS[name]

    also = Priority if name == "priority" else int

    def check(value: Any) -> None:
        if type(value) is not int and type(value) is not also:
            raise _refuse(where, "int", value)
        if not least <= value <= most:
            raise InvalidJobError(f"{where} must be from {least} to {most}, got {shown(value)}")

    return check


def _bytes(where: str, most: int) -> Check:
    def check(value: Any) -> None:
        check_payload_size(value, parameter=where, bytes_max=most)

    return check


def _str(name: str, where: str) -> Check:
    if where == "Pull.namespace":
        return _either_text(TALLIES, _label(where, NAME_BYTES_MAX, check_name, "\n"))
    if name in IDS:
        return _label(where, ID_BYTES_MAX, check_id, " ")
    if name in NAMES:
        return _label(where, NAME_BYTES_MAX, check_name, "\n")
    return _text(where, TEXTS[name])


def _either_text(word: str, check_other: Check) -> Check:
    """Return the check of a text that may also be one word of ours."""

    def check(value: Any) -> None:
        if not (type(value) is str and value == word):
            check_other(value)

    return check


def _label(where: str, most: int, check_label: Callable[..., str], refused: str) -> Check:
    """Return the check of an id or a name: what most are is seen at once, the rest by *check_label*."""

    def check(value: Any) -> None:
        if type(value) is not str:
            raise _refuse(where, "str", value)
        if not (value.isascii() and value.isprintable() and 0 < len(value) <= most and refused not in value):
            check_label(value, parameter=where)

    return check


def _text(where: str, most: int) -> Check:
    def check(value: Any) -> None:
        if type(value) is not str:
            raise _refuse(where, "str", value)
        if len(value) > most:
            raise InvalidJobError(f"{where} is {len(value)} characters, limit {most}: {shown(value)}")
        if not value.isascii():
            try:
                value.encode()
            except UnicodeEncodeError as error:
                raise InvalidJobError(
                    f"{where} is not encodable as UTF-8 (U+{ord(value[error.start]):04X}): {shown(value)}"
                ) from None

    return check


# --- many at once ----------------------------------------------------------------------------------------------------


def _bulk(item: Any, name: str) -> Callable[[Sequence[Any]], bool]:
    """Return whether many items all pass a fast check; if not, each is checked alone."""
    if item is str and name in IDS:
        return _are_ids
    if get_args(item) == (str, int) and name in IDS:
        return _are_pairs
    if item is JobSpec:
        return _are_checked
    return _is_unknown


def _is_unknown(values: Sequence[Any]) -> bool:
    return False


def _are_ids(values: Sequence[Any]) -> bool:
    if {*map(type, values)} != {str}:
        return False
    joined = "".join(values)
    lengths = {*map(len, values)}
    return (
        joined.isascii()
        and joined.isprintable()
        and " " not in joined
        and min(lengths) > 0
        and max(lengths) <= ID_BYTES_MAX
    )


_CHECKED: Final = attrgetter("_is_checked")
_ID: Final = attrgetter("id")


def _are_checked(values: Sequence[Any]) -> bool:
    """Return whether values are specs for all of which `is_checked` holds."""
    try:
        return {*map(type, values)} == {JobSpec} and all(map(_CHECKED, values)) and all(map(_ID, values))
    except AttributeError:  # one was never checked
        return False


def _are_pairs(values: Sequence[Any]) -> bool:
    if {*map(type, values)} != {tuple} or {*map(len, values)} != {2}:
        return False
    ids, tokens = zip(*values, strict=True)
    return _are_ids(ids) and {*map(type, tokens)} == {int} and min(tokens) >= -TOKEN_MAX and max(tokens) <= TOKEN_MAX
