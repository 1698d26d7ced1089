"""
A short text of the types that a release's handlers can read: equal for the same code, in any process.

It is made of what decides whether a job can be read exactly: names of tasks, parameters, fields and whether they may be
missing, members of enums, literals, the code of upgrades. Modules, defaults and documentation are no part of it, nor is
anything that differs from process to process, such as addresses and the order of sets.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import inspect
import json
import types
import typing
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any, Literal, NewType, TypeVar, Union, get_args, get_origin

import attrs

from queuehint.handlers.conversion.annotations import is_key_required, typed_dict_hints

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from queuehint.handlers.handler import Handler

DIGEST_BYTES = 8
_STABLE = (str, bytes, int, float, complex, bool, type(None))


def digest_of(handlers: Mapping[str, Handler]) -> str:
    """
    Return the digest of the types that handlers can read: 16 hexadecimal digits.

    Args:
        handlers: by the name of their task, and by its aliases.
    """
    text = json.dumps([[name, _handler(handlers[name])] for name in sorted(handlers)], ensure_ascii=True)
    return hashlib.blake2b(text.encode(), digest_size=DIGEST_BYTES).hexdigest()


def _handler(handler: Handler) -> list[Any]:
    parameters = []
    handler.resolve()
    for name, parameter in handler.parameters.items():
        is_required = parameter.default is parameter.empty
        annotation = handler.unresolved[name].text if name in handler.unresolved else handler.annotations[name]
        parameters.append([name, parameter.kind.name, is_required, _annotation(annotation, {})])
    return [parameters, None if handler.upgrade is None else _code(handler.upgrade)]


def _annotation(annotation: Any, seen: dict[Any, int]) -> Any:
    """
    Return an annotation as JSON.

    Args:
        seen: what was met before, each with its number: a class is described once, also one inside of itself.
    """
    if annotation is None or annotation is type(None):
        return "None"
    if isinstance(annotation, (str, typing.ForwardRef, TypeVar)):
        return str(annotation)
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        metadata = [_stable(each) for each in annotation.__metadata__]
        return ["Annotated", _annotation(args[0], seen), metadata]
    if origin is Literal:
        return ["Literal", sorted(map(_stable, args))]
    if origin in (Union, types.UnionType):
        return ["Union", sorted([json.dumps(_annotation(each, seen)) for each in args])]
    if isinstance(annotation, NewType):
        return _annotation(annotation.__supertype__, seen)
    if isinstance(annotation, list):  # the parameters of a Callable
        return [_annotation(each, seen) for each in annotation]
    if annotation in seen:
        return ["same", seen[annotation]]
    seen[annotation] = len(seen)
    if hasattr(annotation, "__value__"):  # `type Name = ...`
        return _annotation(annotation.__value__, seen)
    kind = origin or annotation
    if not isinstance(kind, type):
        return _stable(annotation)
    return [kind.__qualname__, [_annotation(each, seen) for each in args], _parts(kind, seen)]


def _parts(kind: type, seen: dict[Any, int]) -> Any:
    """Return the members or the fields of a class. Return None if none are known."""
    if issubclass(kind, Enum):
        return sorted([[name, _stable(member.value)] for name, member in kind.__members__.items()])
    fields: list[list[Any]] = []
    if isinstance(models := getattr(kind, "model_fields", None), dict) and hasattr(kind, "model_config"):
        for name, field in models.items():
            read_by = [_stable(getattr(field, "alias", None)), repr(getattr(field, "validation_alias", None))]
            rules = sorted([_stable(each) for each in getattr(field, "metadata", ())])
            fields.append([name, read_by, field.is_required(), rules, _annotation(field.annotation, seen)])
        return [sorted(fields), _stable(kind.model_config.get("extra"))]
    hints = _hints(kind)
    if attrs.has(kind):
        for attribute in attrs.fields(kind):
            is_required = attribute.default is attrs.NOTHING
            hint = hints.get(attribute.name, attribute.type)
            fields.append([attribute.name, attribute.init, is_required, _annotation(hint, seen)])
    elif dataclasses.is_dataclass(kind):
        for item in dataclasses.fields(kind):
            is_required = item.default is dataclasses.MISSING and item.default_factory is dataclasses.MISSING
            fields.append([item.name, item.init, is_required, _annotation(hints.get(item.name, item.type), seen)])
    elif typing.is_typeddict(kind):
        keys = typed_dict_hints(kind).items()
        fields = [[name, is_key_required(kind, name), _annotation(hint, seen)] for name, hint in keys]
    elif issubclass(kind, tuple) and hasattr(kind, "_fields"):
        defaults = getattr(kind, "_field_defaults", {})
        return [[name, name in defaults, _annotation(hints.get(name, Any), seen)] for name in kind._fields]
    else:
        return None
    return sorted(fields, key=lambda each: str(each[0]))


def _hints(kind: type) -> dict[str, Any]:
    """Return the annotations of a class, unresolved if one of them cannot be resolved."""
    try:
        return typing.get_type_hints(kind, include_extras=True)
    except Exception:  # noqa: BLE001 - a name that exists for type checkers only
        return dict(getattr(kind, "__annotations__", {}))


def _stable(value: Any) -> str:
    """Return a value as text, by its type alone where its text may differ between processes."""
    if isinstance(value, Enum):
        return f"{type(value).__qualname__}.{value.name}={_stable(value.value)}"
    if isinstance(value, (tuple, list)):
        return f"({','.join(map(_stable, value))})"
    if isinstance(value, (frozenset, set)):
        return f"{{{','.join(sorted(map(_stable, value)))}}}"
    if type(value) in _STABLE:
        return repr(value)
    if isinstance(value, type):
        return value.__qualname__
    return type(value).__qualname__


def _code(function: Callable[..., Any]) -> Any:
    """Return the code of a function as JSON, without line numbers."""
    function = inspect.unwrap(function)
    while isinstance(function, (functools.partial, types.MethodType)):
        function = function.func if isinstance(function, functools.partial) else function.__func__
    code = getattr(function, "__code__", None)
    if code is None:
        return type(function).__qualname__
    return [function.__qualname__, _of_code(code)]


def _of_code(code: types.CodeType) -> Any:
    constants = [_of_code(each) if isinstance(each, types.CodeType) else _stable(each) for each in code.co_consts]
    return [code.co_code.hex(), code.co_names, code.co_varnames, constants]
