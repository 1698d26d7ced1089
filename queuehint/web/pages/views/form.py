"""The form that enqueues a job: its fields from the task's type hints, and how they are read back."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from types import NoneType, UnionType
from typing import Any, Final, Literal, Union, get_args, get_origin

from queuehint.errors import InvalidJobError, PayloadError, shown
from queuehint.handlers.conversion.plain_json import decode_json

View = dict[str, Any]

PREFIX: Final = "arg."
"""What the field of an argument is called, before its name."""
_TEXTS = frozenset({str})
OPTIONS: Final = ("user", "pool", "priority", "delay", "tags", "id")


def field_of(
    name: str, hint: Any, default: Any = inspect.Parameter.empty, value: Any = inspect.Parameter.empty
) -> View:
    """
    Return the field of an argument.

    Args:
        default: of the parameter, if it has one.
        value: that of the job of which a copy is made, as JSON has it.

    >>> field_of("count", int)["kind"], field_of("on", bool)["kind"], field_of("mode", Literal["a", "b"])["choices"]
    ('int', 'bool', ['a', 'b'])
    """
    is_optional, plain = _without_none(hint)
    has_default = default is not inspect.Parameter.empty
    given = value if value is not inspect.Parameter.empty else default if has_default else None
    field: View = {
        "name": name,
        "field": f"{PREFIX}{name}",
        "hint": _hint_text(hint),
        "required": not has_default and not is_optional,
        "default": _json(default) if has_default else None,
        "optional": is_optional or has_default,
        "choices": [],
    }
    if get_origin(plain) is Literal:
        choices = [str(each) for each in get_args(plain)]
        return {**field, "kind": "choice", "choices": choices, "value": "" if given is None else str(given)}
    if plain is bool:
        return {**field, "kind": "bool", "value": bool(given)}
    if plain in {int, float}:
        kind = "int" if plain is int else "number"
        return {**field, "kind": kind, "value": "" if given is None else str(given)}
    if plain in _TEXTS:
        return {**field, "kind": "text", "value": "" if given is None else str(given)}
    shown_value = "" if given is None and value is inspect.Parameter.empty and not has_default else _json(given)
    return {**field, "kind": "json", "value": shown_value}


def _without_none(hint: Any) -> tuple[bool, Any]:
    """Return whether None is allowed, and the rest of a hint if that is one."""
    if get_origin(hint) in {Union, UnionType}:
        rest = [arg for arg in get_args(hint) if arg is not NoneType]
        if len(rest) < len(get_args(hint)):
            return True, rest[0] if len(rest) == 1 else Any
    return False, hint


def _hint_text(hint: Any) -> str:
    if hint is Any or hint is inspect.Parameter.empty:
        return "JSON"
    text = hint.__name__ if isinstance(hint, type) and get_origin(hint) is None else str(hint)
    return text.replace("typing.", "").removeprefix("builtins.")[:80]


def _json(value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, indent=None)
    except (TypeError, ValueError):
        return ""


def fields_of(
    parameters: Mapping[str, inspect.Parameter], annotations: Mapping[str, Any], values: Mapping[str, Any] | None = None
) -> list[View]:
    """Return the fields of the arguments of a task."""
    return [
        field_of(
            name,
            annotations.get(name, Any),
            parameter.default,
            inspect.Parameter.empty if values is None or name not in values else values[name],
        )
        for name, parameter in parameters.items()
        if parameter.kind not in {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}
    ]


def read_argument(field: View, text: str | None) -> Any:
    """
    Return the value of a field; `inspect.Parameter.empty` where it is left out.

    Raises:
        InvalidJobError: naming the field and the value.

    >>> read_argument(field_of("count", int), "5"), read_argument(field_of("rows", list), "[1]")
    (5, [1])
    """
    kind, name = field["kind"], field["name"]
    if kind == "bool":
        return text is not None
    if text is None or (text == "" and (kind != "text" or field["optional"])):
        if field["required"]:
            raise InvalidJobError(f"{name} must be given")
        return inspect.Parameter.empty
    if kind in {"text", "choice"}:
        return _of_choice(field, text)
    if kind in {"int", "number"}:
        return _number(field, text)
    try:
        return decode_json(text.encode())
    except PayloadError as error:
        raise InvalidJobError(f"{name} must be JSON, got {shown(text)}: {error}") from None


def _of_choice(field: View, text: str) -> str:
    if field["kind"] == "choice" and text not in field["choices"]:
        raise InvalidJobError(f"{field['name']} must be one of {', '.join(field['choices'])}, got {shown(text)}")
    return text


def _number(field: View, text: str) -> int | float:
    kind = int if field["kind"] == "int" else float
    try:
        return kind(text)
    except ValueError:
        noun = "a whole number" if kind is int else "a number"
        raise InvalidJobError(f"{field['name']} must be {noun}, got {shown(text)}") from None
