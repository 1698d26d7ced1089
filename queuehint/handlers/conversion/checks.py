"""Whether annotations can be written and read at all, and why a value changes between write and read."""

from __future__ import annotations

import collections.abc
import dataclasses
import typing
from collections import Counter
from typing import TYPE_CHECKING, Any, get_args, get_origin

import attrs
from cattrs.errors import StructureHandlerNotFoundError

from queuehint.handlers.arguments import called
from queuehint.handlers.conversion.annotations import bare, is_union, typed_dict_hints, undefined
from queuehint.handlers.conversion.arrays import is_array, is_named_tuple
from queuehint.handlers.conversion.sameness import step_to
from queuehint.handlers.conversion.unions import AmbiguousUnionError

WAY_OUT = ": annotate another type, or register hooks before the job: see JsonCodec.converter"

if TYPE_CHECKING:
    from collections.abc import Iterable

    import cattrs


def ask_for_hooks(converter: cattrs.Converter, annotation: Any) -> str | None:
    """
    Request both hooks of an annotation from a converter. Return the problem of the annotation, None if none.

    Raises:
        NameError: a class names another one that is not defined yet.
    """
    try:
        converter.get_unstructure_hook(annotation)
        converter.get_structure_hook(annotation)
    except NameError:
        raise
    except Exception as error:  # noqa: BLE001 - a hook factory of the application may raise anything
        return problem_of(error) or f"{called(annotation)} has no JSON{WAY_OUT}"
    return None


def problem_of(error: BaseException) -> str | None:
    """Return the problem of an annotation, if it keeps its values from being written or read."""
    if isinstance(error, AmbiguousUnionError):
        return str(error)
    if isinstance(error, StructureHandlerNotFoundError):
        return f"{called(error.type_)} has no JSON{WAY_OUT}"
    return None


def refusal_of(converter: cattrs.Converter, value: Any, annotation: Any, error: Exception) -> tuple[str, str]:
    """Return why a value cannot be written, and the path of its bad part."""
    problem = problem_of(error) or (_unknown_name(converter, annotation) if isinstance(error, NameError) else None)
    if problem is not None:
        return problem, ""
    place = ""
    while True:
        for step, kind, part in _parts(value, annotation):
            try:
                converter.unstructure(part, unstructure_as=kind)
            except Exception as inner:  # noqa: BLE001 - a hook of the application may raise anything
                place, annotation, value, error = f"{place}{step}", kind, part, inner
                break
        else:
            return f"{type(value).__name__} cannot be written as {called(annotation)} ({type(error).__name__})", place


def _unknown_name(converter: cattrs.Converter, annotation: Any) -> str | None:
    """Return the undefined name in a class of an annotation. Return None if only the code of a hook lacks a name."""
    try:
        ask_for_hooks(converter, annotation)
    except NameError as error:
        if error.name:
            return f"{called(annotation)} needs {error.name!r}: {undefined(error.name)}"
        return f"a class in {called(annotation)} is not fully defined"
    return None


def _parts(value: Any, annotation: Any) -> Iterable[tuple[str, Any, Any]]:
    """Yield the parts of a value, each with its path and its annotation. A value of another kind has no parts."""
    annotation = bare(annotation)
    kind, args = get_origin(annotation) or annotation, get_args(annotation)
    if is_union(annotation):
        kinds = [each for each in args if each is not type(None)]
        return [("", kinds[0], value)] if len(kinds) == 1 and value is not None else []
    if is_array(annotation):
        if not args or not isinstance(value, (list, tuple, collections.abc.Set)):
            return []
        is_fixed = kind is tuple and args[-1] is not Ellipsis
        kinds = list(args) if is_fixed else [args[0]] * len(value)
        return [(f"[{index}]", each, item) for index, (each, item) in enumerate(zip(kinds, value, strict=False))]
    if typing.is_typeddict(kind):
        hints = typed_dict_hints(kind)
        return (
            [(f".{key}", hints[key], item) for key, item in value.items() if key in hints]
            if isinstance(value, dict)
            else []
        )
    if isinstance(value, collections.abc.Mapping):
        is_of_items = len(args) == 2 and kind is not Counter
        return [(step_to(key), args[1], item) for key, item in value.items()] if is_of_items else []
    if args or not isinstance(kind, type) or not isinstance(value, kind):
        return []
    if is_named_tuple(kind) or attrs.has(kind) or dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind, include_extras=True)
        return [(f".{name}", hint, getattr(value, name)) for name, hint in hints.items() if hasattr(value, name)]
    return []
