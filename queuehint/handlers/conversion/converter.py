"""
The converter of `JsonCodec`: cattrs' own for JSON, and hooks for more types of the standard library and pydantic.

It reads exactly: a scalar is of its type already, and what a later release may know (a field, a member of an enum, a
literal) is no part of a value of this one, and never dropped.
"""

from __future__ import annotations

import sys
from datetime import time, timedelta
from decimal import Decimal
from enum import Enum, Flag
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin
from uuid import UUID

import cattrs
from cattrs.preconf.json import make_converter

from queuehint.errors import UnknownToReleaseError
from queuehint.handlers.arguments import called

if TYPE_CHECKING:
    from collections.abc import Callable

_KEYS = (int, float)
_SCALARS = (str, int, float, bool)


def converter_for_json() -> cattrs.Converter:
    """Return a converter with hooks for UUID, Decimal, timedelta, time, dictionaries by number and pydantic models."""
    converter = make_converter(forbid_extra_keys=True)
    # A value without an annotation is not converted by its type: it must be JSON already.
    converter.register_unstructure_hook_func(lambda annotation: annotation is Any, lambda value: value)
    # Those of cattrs make a text of any value, a number of a text.
    for scalar, kinds in ((str, str), (int, int), (float, (int, float))):
        converter.register_structure_hook(scalar, _scalar_of(kinds))
    converter.register_structure_hook_func(_is_enum, _member)
    converter.register_structure_hook_factory(_is_literal, lambda kind: _reads_literal(kind, converter))
    converter.register_unstructure_hook_factory(_is_literal, lambda kind: _writes_literal(kind, converter))
    converter.register_unstructure_hook(UUID, str)
    converter.register_structure_hook(UUID, lambda value, _: UUID(value))
    converter.register_unstructure_hook(Decimal, _decimal_text)
    converter.register_structure_hook(Decimal, lambda value, _: Decimal(_text(value)))
    converter.register_unstructure_hook(timedelta, _seconds)
    converter.register_structure_hook(timedelta, lambda value, _: timedelta(seconds=value))
    converter.register_unstructure_hook(time, time.isoformat)
    converter.register_structure_hook(time, lambda value, _: time.fromisoformat(value))
    converter.register_unstructure_hook_factory(_is_by_number, lambda kind: _writes_by_number(kind, converter))
    converter.register_structure_hook_factory(_is_by_number, lambda kind: _reads_by_number(kind, converter))
    converter.register_unstructure_hook_func(_is_pydantic, _dump_model)
    converter.register_structure_hook_func(_is_pydantic, lambda value, kind: kind.model_validate(value))
    return converter


def _scalar_of(kinds: type | tuple[type, ...]) -> Callable[[Any, Any], Any]:
    """Return a hook for a scalar, its subclasses and the enums of them: a bool is an int, as type checkers say."""

    def structure(value: Any, kind: Any) -> Any:
        if issubclass(kind, Enum):
            return _member(value, kind)
        if not isinstance(value, bool if kind is bool else kinds):
            raise TypeError
        return value if kind in _SCALARS else kind(value)

    return structure


def _is_enum(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, Enum)


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
        TypeError: two have the same JSON.
    """
    literals = [(converter.unstructure(each), each) for each in get_args(kind)]
    if len({(type(written), written) for written, _ in literals}) < len(literals):
        raise TypeError
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


def _is_by_number(annotation: Any) -> bool:
    return get_origin(annotation) is dict and get_args(annotation)[0] in _KEYS


def _writes_by_number(annotation: Any, converter: cattrs.Converter) -> Callable[[Any], Any]:
    """Return a hook that writes dictionaries whose keys JSON has as text."""
    key_kind, item_kind = get_args(annotation)

    def unstructure(value: dict[Any, Any]) -> dict[str, Any]:
        found = {}
        for key, item in value.items():
            if not isinstance(key, key_kind) or isinstance(key, bool):
                raise TypeError
            found[key_kind.__repr__(key)] = converter.unstructure(item, unstructure_as=item_kind)
        return found

    return unstructure


def _reads_by_number(annotation: Any, converter: cattrs.Converter) -> Callable[[Any, Any], Any]:
    """Return a hook that reads dictionaries whose keys JSON has as text."""
    key_kind, item_kind = get_args(annotation)
    as_written: Any = dict.__class_getitem__((str, item_kind))
    by_text = converter.get_structure_hook(as_written)

    def structure(value: Any, _: Any) -> dict[Any, Any]:
        return {key_kind(key): item for key, item in by_text(value, as_written).items()}

    return structure


def _is_pydantic(annotation: Any) -> bool:
    """Return whether an annotation is a model of pydantic, which is imported then."""
    pydantic = sys.modules.get("pydantic")
    model = None if pydantic is None else getattr(pydantic, "BaseModel", None)
    return isinstance(annotation, type) and isinstance(model, type) and issubclass(annotation, model)


def _dump_model(value: Any) -> Any:
    # By the names that `model_validate` reads.
    return value.model_dump(mode="json", by_alias=True, round_trip=True)
