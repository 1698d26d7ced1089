"""The form that enqueues a job: its fields from the task's type hints, and the parsing of their values."""

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
_KINDS: Final[Mapping[Any, str]] = {bool: "bool", int: "int", float: "number", str: "text"}
OPTIONS: Final = ("user", "pool", "priority", "delay", "tags", "id")


def field_of(
    name: str, hint: Any, default: Any = inspect.Parameter.empty, value: Any = inspect.Parameter.empty
) -> View:
    """
    Return the field of an argument.

    Args:
        default: of the parameter, if it has one.
        value: that of the job of which a copy is made, as JSON has it.

    Returns:
        A value of the field is that of the argument: a text that has line breaks, and whatever does not fit the hint,
        is shown as JSON.

    >>> field_of("count", int)["kind"], field_of("on", bool)["kind"], field_of("mode", Literal["a", "b"])["choices"]
    ('int', 'bool', ['a', 'b'])
    """
    is_optional, plain = _without_none(hint)
    has_default, is_copied = default is not inspect.Parameter.empty, value is not inspect.Parameter.empty
    given = value if is_copied else default if has_default else None
    field: View = {
        "name": name,
        "field": f"{PREFIX}{name}",
        "hint": _hint_text(hint),
        "required": not has_default and not is_optional,
        "default": _json(default) if has_default else None,
        "optional": is_optional or has_default,
        "choices": [],
    }
    kind = "choice" if get_origin(plain) is Literal else _KINDS.get(plain, "json")
    if kind == "choice":
        field["choices"] = [each if isinstance(each, str) else _json(each) for each in get_args(plain)]
        field["texts"] = [each for each in get_args(plain) if isinstance(each, str)]
    if is_copied and not _is_kept(kind, plain, value, default):
        kind = "json"
    if kind == "bool":
        return {**field, "kind": kind, "value": bool(given)}
    if kind == "json":
        return {**field, "kind": kind, "value": _json(given) if is_copied or has_default else ""}
    return {**field, "kind": kind, "value": "" if given is None else given if isinstance(given, str) else _json(given)}


def _is_kept(kind: str, hint: Any, value: Any, default: Any) -> bool:
    """Return whether a field of a kind returns its value unchanged."""
    if kind == "json":
        return True
    if value is None or (value == "" and default is not inspect.Parameter.empty):
        # An empty field leaves the argument out.
        return kind != "bool" and default == value
    if kind == "choice":
        return any(type(each) is type(value) and each == value for each in get_args(hint))
    if kind == "text":
        # A line of input loses its line breaks.
        return isinstance(value, str) and value.isprintable()
    if kind == "number":
        return type(value) in {int, float}
    return type(value) is (bool if kind == "bool" else int)


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
    Return the value of a field, `inspect.Parameter.empty` for an omitted one.

    Raises:
        InvalidJobError: naming the field and the value.

    >>> read_argument(field_of("count", int), "5"), read_argument(field_of("rows", list), "[1]")
    (5, [1])
    """
    kind, name = field["kind"], field["name"]
    if kind == "bool":
        return text is not None
    if not text and (text is None or kind != "text" or field["optional"]):
        if field["required"]:
            raise InvalidJobError(f"{name} must be given")
        return inspect.Parameter.empty
    if kind == "text":
        return text
    if kind == "choice":
        return _of_choice(field, text)
    if kind in {"int", "number"}:
        return _number(field, text)
    try:
        return decode_json(text.encode())
    except PayloadError as error:
        raise InvalidJobError(f"{name} must be JSON, got {shown(text)}: {error}") from None


def _of_choice(field: View, text: str) -> Any:
    if text not in field["choices"]:
        raise InvalidJobError(f"{field['name']} must be one of {', '.join(field['choices'])}, got {shown(text)}")
    return text if text in field["texts"] else json.loads(text)


def _number(field: View, text: str) -> int | float:
    kind = int if field["kind"] == "int" else float
    try:
        return kind(text)
    except ValueError:
        noun = "a whole number" if kind is int else "a number"
        raise InvalidJobError(f"{field['name']} must be {noun}, got {shown(text)}") from None
