"""The converter of `JsonCodec`: cattrs' own for JSON, and hooks for more types of the standard library and pydantic."""

from __future__ import annotations

import sys
from datetime import time, timedelta
from decimal import Decimal
from typing import Any, get_args, get_origin
from uuid import UUID

import cattrs
from cattrs.preconf.json import make_converter

_KEYS = (int, float)


def converter_for_json() -> cattrs.Converter:
    """Return a converter with hooks for UUID, Decimal, timedelta, time, dictionaries by number and pydantic models."""
    converter = make_converter()
    # A value without an annotation is not converted by its type: it must be JSON already.
    converter.register_unstructure_hook_func(lambda annotation: annotation is Any, lambda value: value)
    converter.register_unstructure_hook(UUID, str)
    converter.register_structure_hook(UUID, lambda value, _: UUID(value))
    converter.register_unstructure_hook(Decimal, _decimal_text)
    converter.register_structure_hook(Decimal, lambda value, _: Decimal(_text(value)))
    converter.register_unstructure_hook(timedelta, _seconds)
    converter.register_structure_hook(timedelta, lambda value, _: timedelta(seconds=value))
    converter.register_unstructure_hook(time, time.isoformat)
    converter.register_structure_hook(time, lambda value, _: time.fromisoformat(value))
    converter.register_unstructure_hook_factory(_is_by_number, lambda kind: _by_number(kind, converter))
    converter.register_unstructure_hook_func(_is_pydantic, _dump_model)
    converter.register_structure_hook_func(_is_pydantic, lambda value, kind: kind.model_validate(value))
    return converter


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


def _by_number(annotation: Any, converter: cattrs.Converter) -> Any:
    """Return a hook for dictionaries whose keys JSON has as text."""
    key_kind, item_kind = get_args(annotation)

    def unstructure(value: dict[Any, Any]) -> dict[str, Any]:
        found = {}
        for key, item in value.items():
            if not isinstance(key, key_kind) or isinstance(key, bool):
                raise TypeError
            found[key_kind.__repr__(key)] = converter.unstructure(item, unstructure_as=item_kind)
        return found

    return unstructure


def _is_pydantic(annotation: Any) -> bool:
    """Return whether an annotation is a model of pydantic, which is imported then."""
    pydantic = sys.modules.get("pydantic")
    model = None if pydantic is None else getattr(pydantic, "BaseModel", None)
    return isinstance(annotation, type) and isinstance(model, type) and issubclass(annotation, model)


def _dump_model(value: Any) -> Any:
    # By the names that `model_validate` reads.
    return value.model_dump(mode="json", by_alias=True, round_trip=True)
