"""Hooks for arrays in JSON: lists, tuples, sets, deques and named tuples, each read as its own type."""

from __future__ import annotations

import collections.abc
import typing
from collections import deque
from typing import TYPE_CHECKING, Any, get_args, get_origin

import cattrs
from cattrs.errors import IterableValidationError, IterableValidationNote

from queuehint.errors import UnknownToReleaseError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_LISTS = (list, tuple)
_SETS = (set, frozenset)
_MADE: dict[Any, tuple[Callable[[list[Any]], Any], tuple[type, ...]]] = {
    list: (list, _LISTS),
    collections.abc.Iterable: (list, _LISTS),
    collections.abc.Collection: (list, _LISTS),
    collections.abc.Sequence: (list, _LISTS),
    collections.abc.MutableSequence: (list, _LISTS),
    tuple: (tuple, _LISTS),
    set: (set, (set,)),
    collections.abc.Set: (set, _SETS),
    collections.abc.MutableSet: (set, (set,)),
    frozenset: (frozenset, (frozenset,)),
    deque: (deque, (deque,)),
}
"""What is made of an array for an annotation, and of what values an array is made."""


def is_array(annotation: Any) -> bool:
    """Return whether an annotation is such a type, alone or with its items."""
    return (get_origin(annotation) or annotation) in _MADE


def writes_array(annotation: Any, converter: cattrs.Converter) -> Callable[[Any], Any]:
    """Return a hook that writes arrays. Sets are sorted by their items' text, so that equal sets are the same JSON."""
    origin = get_origin(annotation) or annotation
    kinds = _MADE[origin][1]
    items, fixed = _items(annotation)
    hooks = [writer(item, converter) for item in items]

    def unstructure(value: Any) -> list[Any]:
        if not issubclass(type(value), kinds) or (fixed and len(value) != len(hooks)):
            raise TypeError
        if fixed:
            return [hook(item) for hook, item in zip(hooks, value, strict=True)]
        found = list(map(hooks[0], value))
        return sorted(found, key=repr) if isinstance(value, _SETS) else found

    return unstructure


def reads_array(annotation: Any, converter: cattrs.Converter) -> Callable[[Any, Any], Any]:
    """Return a hook that reads arrays. A text is no array."""
    origin = get_origin(annotation) or annotation
    make = _MADE[origin][0]
    items, fixed = _items(annotation)
    hooks = [reader(item, converter) for item in items]

    def structure(value: Any, _: Any) -> Any:
        if not isinstance(value, _LISTS) or (fixed and len(value) != len(hooks)):
            raise TypeError
        many = len(value)
        return make(_read(annotation, value, hooks if fixed else hooks * many, items if fixed else items * many))

    return structure


def is_named_tuple(annotation: Any) -> bool:
    """Return whether an annotation is a class of named tuples."""
    kind = get_origin(annotation) or annotation
    return isinstance(kind, type) and issubclass(kind, tuple) and hasattr(kind, "_fields")


def writes_named_tuple(annotation: Any, converter: cattrs.Converter) -> Callable[[Any], Any]:
    """Return a hook that writes named tuples as arrays."""
    kind = get_origin(annotation) or annotation
    hooks = [writer(item, converter) for item in _fields(kind)]

    def unstructure(value: Any) -> list[Any]:
        if not isinstance(value, kind):
            raise TypeError
        return [hook(item) for hook, item in zip(hooks, value, strict=True)]

    return unstructure


def reads_named_tuple(annotation: Any, converter: cattrs.Converter) -> Callable[[Any, Any], Any]:
    """Return a hook that reads named tuples. Fields with a default may be missing at the end."""
    kind = get_origin(annotation) or annotation
    items = _fields(kind)
    hooks = [reader(item, converter) for item in items]
    required = len(items) - len(kind._field_defaults)

    def structure(value: Any, _: Any) -> Any:
        if not isinstance(value, _LISTS) or len(value) < required:
            raise TypeError
        if len(value) > len(items):
            raise UnknownToReleaseError(f"{len(value) - len(items)} unknown fields")
        return kind(*_read(annotation, value, hooks[: len(value)], items[: len(value)]))

    return structure


def _fields(kind: Any) -> list[Any]:
    hints = typing.get_type_hints(kind, include_extras=True)
    return [hints.get(name, Any) for name in kind._fields]


def _items(annotation: Any) -> tuple[list[Any], bool]:
    """Return the annotations of the items, and whether there is one for each."""
    args = get_args(annotation)
    if get_origin(annotation) is tuple and (len(args) != 2 or args[1] is not Ellipsis):
        return list(args), True
    return [args[0] if args else Any], False


def writer(item: Any, converter: cattrs.Converter) -> Callable[[Any], Any]:
    """Return the hook that writes an item. Of a recursive class, the hook is looked up on use."""
    try:
        return converter.get_unstructure_hook(item)
    except RecursionError:  # a class inside of itself
        return lambda value: converter.unstructure(value, unstructure_as=item)


def reader(item: Any, converter: cattrs.Converter) -> Callable[[Any, Any], Any]:
    """Return the hook that reads an item."""
    try:
        return converter.get_structure_hook(item)
    except RecursionError:
        return converter.structure


def _read(annotation: Any, value: Any, hooks: Sequence[Callable[[Any, Any], Any]], items: Sequence[Any]) -> list[Any]:
    """
    Read items, each by its hook.

    Raises:
        IterableValidationError: some do not fit; each with its index.
    """
    found, errors = [], []
    for index, (hook, item, kind) in enumerate(zip(hooks, value, items, strict=True)):
        try:
            found.append(hook(item, kind))
        except Exception as error:  # noqa: BLE001 - a hook of the application may raise anything
            error.add_note(IterableValidationNote(f"Structuring {annotation} @ index {index}", index, kind))
            errors.append(error)
    if errors:
        raise IterableValidationError(f"While structuring {annotation!r}", errors, annotation)
    return found
