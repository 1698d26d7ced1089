"""Annotations as written in code: resolved one by one, and taken apart."""

from __future__ import annotations

import functools
import inspect
import sys
import types
import typing
from typing import TYPE_CHECKING, Annotated, Any, Final, NewType, TypeVar, get_args, get_origin

import attrs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

_CONTAINERS = frozenset({"builtins", "collections", "collections.abc", "typing", "types"})


@attrs.frozen
class Unresolved:
    """
    An annotation that cannot be resolved at run time.

    Args:
        text: as it is written.
        missing: the name that is not there, if that is why.
    """

    text: str
    missing: str | None = None

    def __str__(self) -> str:
        what = f"annotation {self.text!r} cannot be resolved"
        return what if self.missing is None else f"{what}: {undefined(self.missing)}"


def undefined(name: str) -> str:
    """Return advice for a name in annotations that the module lacks at run time."""
    return f"define or import {name} in its module, not in a function and not for type checkers alone"


def resolved(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the annotations of a function, each resolved by itself. An unresolvable annotation is `Unresolved`."""
    target: Any = inspect.unwrap(function)
    while isinstance(target, functools.partial):
        target = inspect.unwrap(target.func)
    if not inspect.isroutine(target):
        target = type(target).__call__
    try:
        return typing.get_type_hints(target, include_extras=True)
    except Exception:  # noqa: BLE001 - a name that exists for type checkers only, or is defined further down
        return {name: _one(target, name, hint) for name, hint in _as_written(target).items()}


def _as_written(target: Any) -> Mapping[str, Any]:
    try:
        return dict(getattr(target, "__annotations__", {}))
    except NameError:
        # From Python 3.14 on they are worked out here, all at once.
        import annotationlib  # type: ignore[import-not-found,unused-ignore]

        found: dict[str, Any] = annotationlib.get_annotations(target, format=annotationlib.Format.FORWARDREF)
        return found


def _one(target: Any, name: str, hint: Any) -> Any:
    def holder() -> None: ...

    holder.__annotations__ = {name: hint}
    if sys.version_info >= (3, 12):
        holder.__type_params__ = getattr(target, "__type_params__", ())
    try:
        return typing.get_type_hints(holder, globalns=getattr(target, "__globals__", None), include_extras=True)[name]
    except NameError as error:
        return Unresolved(text_of(hint), error.name)
    except Exception:  # noqa: BLE001 - an annotation that is no type
        return Unresolved(text_of(hint))


def text_of(hint: Any) -> str:
    """Return an annotation as written."""
    if isinstance(hint, typing.ForwardRef):
        return hint.__forward_arg__
    return hint if isinstance(hint, str) else repr(hint).replace("typing.", "")


def bare(annotation: Any) -> Any:
    """Return an annotation without metadata and other names for it: Annotated, Final, NewType, `type`, a TypeVar."""
    while True:
        if get_origin(annotation) in (Annotated, Final):
            annotation = get_args(annotation)[0]
        elif isinstance(annotation, NewType):
            annotation = annotation.__supertype__
        elif isinstance(annotation, TypeVar):
            bound, constraints = annotation.__bound__, annotation.__constraints__
            annotation = bound if bound is not None else Any
            if constraints:
                annotation = typing.Union[constraints]  # noqa: UP007 - made of as many as there are
        elif hasattr(annotation, "__value__") and not isinstance(annotation, type):
            annotation = annotation.__value__
        else:
            return annotation


def typed_dict_hints(kind: Any) -> dict[str, Any]:
    """Return the annotations of a TypedDict's keys, without Required and NotRequired."""
    return {name: _without_needs(hint) for name, hint in typing.get_type_hints(kind, include_extras=True).items()}


def _without_needs(hint: Any) -> Any:
    while get_origin(hint) in (typing.Required, typing.NotRequired):
        (hint,) = get_args(hint)
    return hint


def is_key_required(kind: Any, name: str) -> bool:
    """
    Return whether a key of a TypedDict has to be there.

    ``__required_keys__`` does not know it where annotations are kept as text.
    """
    hint = typing.get_type_hints(kind, include_extras=True)[name]
    needs = get_origin(hint)
    if needs in (typing.Required, typing.NotRequired):
        return needs is typing.Required
    required: frozenset[str] = kind.__required_keys__
    return name in required


def is_union(annotation: Any) -> bool:
    """Return whether an annotation is a union."""
    return get_origin(annotation) in (typing.Union, types.UnionType)


def leaves(annotation: Any, _seen: frozenset[int] = frozenset()) -> Iterator[Any]:
    """Yield the types in an annotation: inside of generics and unions, and not inside of classes' fields."""
    annotation = bare(annotation)
    if id(annotation) in _seen:
        return
    origin = get_origin(annotation)
    args = () if origin is typing.Literal else get_args(annotation)
    if not args:
        yield annotation
    elif isinstance(origin, type) and origin.__module__ not in _CONTAINERS:
        yield origin
    for arg in args:
        if arg is not Ellipsis:
            yield from leaves(arg, _seen | {id(annotation)})


def below(annotation: Any, _seen: set[int] | None = None) -> Iterator[Any]:
    """Yield the classes of an annotation, and the classes of their fields, each once."""
    seen = set[int]() if _seen is None else _seen
    for leaf in leaves(annotation):
        if isinstance(leaf, type) and id(leaf) not in seen:
            seen.add(id(leaf))
            yield leaf
            fields = getattr(leaf, "model_fields", None)
            hints = [field.annotation for field in fields.values()] if isinstance(fields, dict) else _hints(leaf)
            for hint in hints:
                yield from below(hint, seen)


def _hints(kind: type) -> list[Any]:
    if not (attrs.has(kind) or hasattr(kind, "__dataclass_fields__") or typing.is_typeddict(kind)):
        return []
    try:
        return list(typing.get_type_hints(kind, include_extras=True).values())
    except Exception:  # noqa: BLE001 - a name that exists for type checkers only
        return []
