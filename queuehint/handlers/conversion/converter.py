"""
The converter of `JsonCodec`: cattrs' own for JSON, and hooks for more types of the standard library and pydantic.

It reads exactly: a scalar is of its type already, and what a later release may know (a field, a member of an enum, a
literal) is no part of a value of this one, and never dropped.
"""

from __future__ import annotations

from datetime import time, timedelta
from decimal import Decimal
from enum import Enum, Flag
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Never, get_args, get_origin
from uuid import UUID

import cattrs
from cattrs.errors import StructureHandlerNotFoundError
from cattrs.preconf.json import make_converter

from queuehint.errors import UnknownToReleaseError
from queuehint.handlers.arguments import called
from queuehint.handlers.conversion.annotations import is_union
from queuehint.handlers.conversion.arrays import (
    is_array,
    is_named_tuple,
    reads_array,
    reads_named_tuple,
    writes_array,
    writes_named_tuple,
)
from queuehint.handlers.conversion.models import Adapter, is_of_pydantic
from queuehint.handlers.conversion.objects import (
    is_mapping,
    is_typed_dict,
    reads_mapping,
    reads_typed_dict,
    writes_mapping,
    writes_typed_dict,
)
from queuehint.handlers.conversion.unions import AmbiguousUnionError, Union

if TYPE_CHECKING:
    from collections.abc import Callable

_SCALARS = (str, int, float, bool)


def converter_for_json(is_plain: Callable[[Any], bool]) -> cattrs.Converter:
    """
    Return a converter with hooks for more types than cattrs, and none for an unknown type.

    Args:
        is_plain: whether values of an annotation are JSON as they are.
    """
    converter = make_converter(
        forbid_extra_keys=True, unstructure_fallback_factory=_writes_scalar, structure_fallback_factory=_reads_nothing
    )
    # A value without an annotation is not converted by its type: it must be JSON already.
    converter.register_unstructure_hook_func(_is_any, lambda value: value)
    converter.register_structure_hook_func(_is_any, lambda value, _: value)
    converter.register_structure_hook_func(lambda kind: kind in (None, type(None)), _nothing)
    # Those of cattrs make a text of any value, a number of a text.
    for scalar, kinds in ((str, str), (int, int), (float, (int, float))):
        converter.register_structure_hook(scalar, _scalar_of(kinds))
    converter.register_unstructure_hook(str, _plain_text)
    # By the class, and not by a predicate: older cattrs has hooks of its own for the class, which take precedence.
    converter.register_unstructure_hook(Enum, lambda value: value.value)
    converter.register_structure_hook(Enum, _member)
    for is_meant, writes, reads in (
        (_is_literal, _writes_literal, _reads_literal),
        (is_array, writes_array, reads_array),
        (is_named_tuple, writes_named_tuple, reads_named_tuple),
        (is_mapping, writes_mapping, reads_mapping),
        (is_typed_dict, writes_typed_dict, reads_typed_dict),
    ):
        converter.register_unstructure_hook_factory(is_meant, partial(writes, converter=converter))
        converter.register_structure_hook_factory(is_meant, partial(reads, converter=converter))
    converter.register_unstructure_hook(UUID, str)
    converter.register_structure_hook(UUID, lambda value, _: UUID(value))
    converter.register_unstructure_hook(Decimal, _decimal_text)
    converter.register_structure_hook(Decimal, lambda value, _: Decimal(_text(value)))
    converter.register_unstructure_hook(timedelta, _seconds)
    converter.register_structure_hook(timedelta, lambda value, _: timedelta(seconds=value))
    converter.register_unstructure_hook(time, time.isoformat)
    converter.register_structure_hook(time, lambda value, _: time.fromisoformat(value))
    unions: dict[Any, Union] = {}
    adapters: dict[Any, Adapter] = {}

    def union_of(annotation: Any) -> Union:
        if annotation not in unions:
            unions[annotation] = Union(annotation, converter, is_plain)
        return unions[annotation]

    def adapter_of(annotation: Any) -> Adapter:
        if annotation not in adapters:
            adapters[annotation] = Adapter(annotation)
        return adapters[annotation]

    converter.register_unstructure_hook_factory(is_union, lambda kind: union_of(kind).write)
    converter.register_structure_hook_factory(is_union, lambda kind: union_of(kind).read)
    converter.register_unstructure_hook_factory(is_of_pydantic, lambda kind: adapter_of(kind).write)
    converter.register_structure_hook_factory(is_of_pydantic, lambda kind: adapter_of(kind).read)
    return converter


def _is_any(annotation: Any) -> bool:
    return annotation is Any or annotation is object


def _nothing(value: Any, _: Any) -> None:
    if value is not None:
        raise TypeError


def _writes_scalar(kind: Any) -> Callable[[Any], Any]:
    """
    Return the hook of a type unknown to cattrs. Numbers and None are JSON without conversion.

    Raises:
        StructureHandlerNotFoundError: it is another one.
    """
    if kind is None or (isinstance(kind, type) and issubclass(kind, (int, float, type(None)))):
        return lambda value: value
    raise StructureHandlerNotFoundError("no hook", kind)


def _reads_nothing(kind: Any) -> Never:
    raise StructureHandlerNotFoundError("no hook", kind)


def _scalar_of(kinds: type | tuple[type, ...]) -> Callable[[Any, Any], Any]:
    """Return a hook for a scalar, its subclasses and their enums. A bool is an int, as for type checkers."""

    def structure(value: Any, kind: Any) -> Any:
        if issubclass(kind, Enum):
            return _member(value, kind)
        if not isinstance(value, bool if kind is bool else kinds):
            raise TypeError
        return value if kind in _SCALARS else kind(value)

    return structure


def _plain_text(value: Any) -> str:
    return value if type(value) is str else str.__str__(value)


def _member(value: Any, kind: type[Enum]) -> Enum:
    """
    Return the member of an enum.

    Raises:
        UnknownToReleaseError: none has this value, and some have one of its type.
        TypeError: none has a value of its type.
    """
    if isinstance(value, list):
        value = _as_tuple(value)
    try:
        found = kind(value)
    except (ValueError, TypeError):
        found = None
    if found is not None and found.value == value and type(found.value) is not type(value):
        raise TypeError
    # A flag may drop what it does not know; an enum that takes what it does not know for a member says so itself.
    if found is None or (issubclass(kind, Flag) and found.value != value):
        if type(value) in {type(member.value) for member in kind}:
            raise UnknownToReleaseError(f"not a member of {called(kind)}")
        raise TypeError
    return found


def _as_tuple(value: Any) -> Any:
    return tuple(map(_as_tuple, value)) if isinstance(value, list) else value


def _is_literal(annotation: Any) -> bool:
    return get_origin(annotation) is Literal


def _written(kind: Any, converter: cattrs.Converter) -> list[tuple[Any, Any]]:
    """
    Return the literals of an annotation, each after its JSON.

    Raises:
        AmbiguousUnionError: two have the same JSON.
    """
    literals = [(converter.unstructure(each), each) for each in get_args(kind)]
    if len({(type(written), written) for written, _ in literals}) < len(literals):
        raise AmbiguousUnionError(f"two values of {called(kind)} cannot be told apart in JSON: leave one of them out")
    return literals


def _reads_literal(kind: Any, converter: cattrs.Converter) -> Callable[[Any, Any], Any]:
    literals = _written(kind, converter)

    def structure(value: Any, _: Any) -> Any:
        for written, literal in literals:
            if type(value) is type(written) and value == written:
                return literal
        if type(value) in {type(written) for written, _ in literals}:
            raise UnknownToReleaseError(f"none of {called(kind)}")
        raise TypeError

    return structure


def _writes_literal(kind: Any, converter: cattrs.Converter) -> Callable[[Any], Any]:
    literals = _written(kind, converter)

    def unstructure(value: Any) -> Any:
        for written, literal in literals:
            if value == literal and (type(value) is type(literal) or (type(literal) is str and isinstance(value, str))):
                return written
        raise TypeError

    return unstructure


def _decimal_text(value: Decimal) -> str:
    if not isinstance(value, Decimal):
        raise TypeError
    return str(value)


def _seconds(value: timedelta) -> float:
    if not value.microseconds:
        return value // timedelta(seconds=1)
    seconds = value.total_seconds()
    if timedelta(seconds=seconds) != value:  # centuries, to the microsecond
        raise ValueError
    return seconds


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value
