"""Hooks for objects in JSON other than classes: dictionaries with keys of any type with a text, TypedDicts."""

from __future__ import annotations

import collections.abc
import typing
from collections import Counter, OrderedDict, defaultdict
from functools import partial
from typing import TYPE_CHECKING, Any, get_args, get_origin

import cattrs
from cattrs.errors import (
    AttributeValidationNote,
    ClassValidationError,
    ForbiddenExtraKeysError,
    IterableValidationError,
    IterableValidationNote,
)

from queuehint.handlers.conversion.annotations import is_key_required, typed_dict_hints
from queuehint.handlers.conversion.arrays import reader, writer
from queuehint.handlers.conversion.unions import KeysError, forms_of

if TYPE_CHECKING:
    from collections.abc import Callable

_MADE: dict[Any, Any] = {
    dict: dict,
    collections.abc.Mapping: dict,
    collections.abc.MutableMapping: dict,
    OrderedDict: OrderedDict,
    defaultdict: defaultdict,
    Counter: Counter,
}
"""What is made of an object for an annotation."""


def is_mapping(annotation: Any) -> bool:
    """Return whether an annotation is such a type, alone or with its keys and items."""
    return (get_origin(annotation) or annotation) in _MADE


def writes_mapping(annotation: Any, converter: cattrs.Converter) -> Callable[[Any], Any]:
    """Return a hook that writes dictionaries. A number as a key is written as its text."""
    key_kind, item_kind = _kinds(annotation)
    kind = get_origin(annotation) or annotation
    _check_keys(key_kind)
    write_key, write_item = writer(key_kind, converter), writer(item_kind, converter)

    def unstructure(value: Any) -> dict[Any, Any]:
        if not isinstance(value, kind):
            raise TypeError
        found = {}
        for key, item in value.items():
            written = write_key(key)
            found[written if key_kind is Any else _text(written)] = write_item(item)
        if len(found) < len(value):
            raise ValueError
        return found

    return unstructure


def reads_mapping(annotation: Any, converter: cattrs.Converter) -> Callable[[Any, Any], Any]:
    """Return a hook that reads dictionaries."""
    key_kind, item_kind = _kinds(annotation)
    kind = get_origin(annotation) or annotation
    is_number = _check_keys(key_kind)
    read_key, read_item = reader(key_kind, converter), reader(item_kind, converter)
    make = _MADE[kind]
    if make is defaultdict:
        factory = get_origin(item_kind) or item_kind
        make = partial(defaultdict, factory if isinstance(factory, type) else None)

    def structure(value: Any, _: Any) -> Any:
        if not isinstance(value, dict):
            raise TypeError
        found, errors = [], []
        for text, item in value.items():
            try:
                found.append((read_key(_number(text) if is_number else text, key_kind), read_item(item, item_kind)))
            except Exception as error:  # noqa: BLE001 - a hook of the application may raise anything
                error.add_note(IterableValidationNote(f"Structuring {annotation} @ key {text!r}", text, item_kind))
                errors.append(error)
        if errors:
            raise IterableValidationError(f"While structuring {annotation!r}", errors, annotation)
        return make(found) if make is not Counter else Counter(dict(found))

    return structure


def _kinds(annotation: Any) -> tuple[Any, Any]:
    args = get_args(annotation)
    if (get_origin(annotation) or annotation) is Counter:
        return (args[0] if args else Any), int
    return (args[0], args[1]) if args else (Any, Any)


def _check_keys(kind: Any) -> bool:
    """
    Return whether keys are numbers.

    Raises:
        KeysError: they may be text or numbers, and the text of a key would not say which.
    """
    kinds = frozenset({"text"}) if kind is Any else frozenset[str]().union(*[form.kinds for form in forms_of(kind)])
    is_number = kinds <= {"int", "float", "bool"}
    if kinds == {"bool"} or not (is_number or kinds == {"text"} or "object" in kinds):
        raise KeysError(kind)
    return is_number


def _text(key: Any) -> str:
    if isinstance(key, str):
        return key
    if isinstance(key, bool) or not isinstance(key, (int, float)):
        raise TypeError
    return int.__repr__(key) if isinstance(key, int) else float.__repr__(key)


def _number(text: str) -> int | float:
    """
    Return the number whose text is a key.

    Raises:
        ValueError: it is not written as numbers are.
    """
    for kind in (int, float):
        try:
            number: int | float = kind(text)
        except ValueError:
            continue
        if repr(number) == text:
            return number
    raise ValueError


def is_typed_dict(annotation: Any) -> bool:
    """Return whether an annotation is a TypedDict."""
    return typing.is_typeddict(get_origin(annotation) or annotation)


def writes_typed_dict(annotation: Any, converter: cattrs.Converter) -> Callable[[Any], Any]:
    """Return a hook that writes TypedDicts."""
    hooks = {name: writer(hint, converter) for name, (hint, _) in _fields(annotation).items()}

    def unstructure(value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise TypeError
        return {name: hooks[name](item) if name in hooks else item for name, item in value.items()}

    return unstructure


def reads_typed_dict(annotation: Any, converter: cattrs.Converter) -> Callable[[Any, Any], Any]:
    """Return a hook that reads TypedDicts. An unknown key is of a later release."""
    fields = _fields(annotation)
    hooks = {name: reader(hint, converter) for name, (hint, _) in fields.items()}
    required = [name for name, (_, is_needed) in fields.items() if is_needed]

    def structure(value: Any, _: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise TypeError
        found: dict[str, Any] = {}
        errors: list[Exception] = [KeyError(name) for name in required if name not in value]
        unknown = value.keys() - fields.keys()
        if unknown:
            errors.append(ForbiddenExtraKeysError("", annotation, unknown))
        for name, item in value.items():
            if name in fields:
                try:
                    found[name] = hooks[name](item, fields[name][0])
                except Exception as error:  # noqa: BLE001 - a hook of the application may raise anything
                    note = f"Structuring {annotation} @ attribute {name}"
                    error.add_note(AttributeValidationNote(note, name, fields[name][0]))
                    errors.append(error)
        if errors:
            raise ClassValidationError(f"While structuring {annotation!r}", errors, annotation)
        return found

    return structure


def _fields(annotation: Any) -> dict[str, tuple[Any, bool]]:
    """Return the annotation of each key, and whether the key is required."""
    kind = get_origin(annotation) or annotation
    return {name: (hint, is_key_required(kind, name)) for name, hint in typed_dict_hints(kind).items()}
