"""
Checks of arguments against plain annotations, where a job is enqueued.

Plain are str, int, float, bool and None, Literal of these, and lists, tuples, dictionaries and unions of plain types.
Values of any other annotation are left to the codec. Accepted are values that a type checker accepts (an int for a
float, a bool for an int), and values that become the same JSON (a tuple for a list).
"""

from __future__ import annotations

import types
from inspect import Parameter
from typing import TYPE_CHECKING, Any, Literal, Never, Union, get_args, get_origin

import attrs

from queuehint.errors import VALUE_LENGTH_MAX, InvalidJobTypeError, PayloadError, UnknownToReleaseError, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

_NOTHING = frozenset[type]()
_SEQUENCES = frozenset({list, tuple})
_SCALARS: dict[Any, tuple[frozenset[type], tuple[type, ...]]] = {
    str: (frozenset({str}), (str,)),
    int: (frozenset({int, bool}), (int,)),
    float: (frozenset({float, int, bool}), (float, int)),
    bool: (frozenset({bool}), (bool,)),
    None: (frozenset({type(None)}), (type(None),)),
    type(None): (frozenset({type(None)}), (type(None),)),
    list: (_SEQUENCES, (list, tuple)),
    tuple: (_SEQUENCES, (list, tuple)),
    dict: (frozenset({dict}), (dict,)),
}
_KEYS = (str, int, float)


@attrs.frozen
class Check:
    """
    The check of the values of one annotation.

    Args:
        annotation: what is said in messages.
        sure: types of which every value fits; most values need no more than this look.
        fits: returns whether a value fits.
    """

    annotation: Any
    sure: frozenset[type]
    fits: Callable[[Any], bool]


def check_of(annotation: Any) -> Check | None:
    """Return the check of an annotation, None if the annotation is not plain."""
    if isinstance(annotation, type) or annotation is None:
        scalar = _SCALARS.get(annotation)
        if scalar is None:
            return None
        sure, kinds = scalar
        return Check(annotation, sure, lambda value: isinstance(value, kinds))
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        if not all(type(arg) in (str, int, bool, type(None)) for arg in args):
            return None
        return Check(annotation, _NOTHING, lambda value: any(_is_same(value, arg) for arg in args))
    if origin is Union or origin is types.UnionType:
        checks = [check_of(arg) for arg in args]
        known = [check for check in checks if check is not None]
        if len(known) < len(checks):
            return None
        sure = frozenset[type]().union(*[check.sure for check in known])
        return Check(annotation, sure, lambda value: type(value) in sure or any(check.fits(value) for check in known))
    if origin in (list, tuple, dict):
        return _of_container(annotation, origin, args)
    return None


def _of_container(annotation: Any, origin: Any, args: tuple[Any, ...]) -> Check | None:
    if origin is tuple and (len(args) != 2 or args[1] is not Ellipsis):
        return _of_fixed(annotation, args)
    # The types of all items are looked at in C; one by one only if they are not all sure.
    item = _member(args[-1] if origin is dict else args[0])
    if item is None:
        return None
    items_sure, item_fits = item.sure.issuperset, item.fits
    if item is _ANYTHING:
        items_sure = _always
    if origin is dict:
        key = check_of(args[0]) if args[0] in _KEYS else None
        if key is None:
            return None
        keys_sure, key_fits = key.sure.issuperset, key.fits
        return Check(
            annotation,
            _NOTHING,
            lambda value: (
                isinstance(value, dict)
                and (keys_sure(map(type, value)) or all(map(key_fits, value)))
                and (items_sure(map(type, value.values())) or all(map(item_fits, value.values())))
            ),
        )
    return Check(
        annotation,
        _NOTHING,
        lambda value: isinstance(value, (list, tuple)) and (items_sure(map(type, value)) or all(map(item_fits, value))),
    )


def _of_fixed(annotation: Any, args: tuple[Any, ...]) -> Check | None:
    """Return the check of a tuple of fixed length."""
    members = [member for arg in args if (member := _member(arg)) is not None]
    if len(members) < len(args):
        return None
    return Check(
        annotation,
        _NOTHING,
        lambda value: (
            isinstance(value, (list, tuple))
            and len(value) == len(members)
            and all(member.fits(item) for member, item in zip(members, value, strict=True))
        ),
    )


def _always(_: object) -> bool:
    return True


_ANYTHING = Check(Any, _NOTHING, _always)


def _member(annotation: Any) -> Check | None:
    return _ANYTHING if annotation is Any or annotation is object else check_of(annotation)


def _is_same(value: Any, literal: Any) -> bool:
    # True is no 1 here, and an enum of strings is the string.
    kind = type(literal)
    return (type(value) is kind or (kind is str and isinstance(value, str))) and bool(value == literal)


def checks_of(annotations: Mapping[str, Any], parameters: Mapping[str, Parameter]) -> dict[str, Check]:
    """
    Return the checks of a handler's arguments by parameter name. Other than plain annotations have none.

    Args:
        annotations: by parameter name.
        parameters: None as a default is right too; one whose default does not fit its annotation is not checked.
    """
    checks = {}
    for name, annotation in annotations.items():
        check, default = check_of(annotation), parameters[name].default
        if check is not None and default is None:
            check = check_of(Union[annotation, None])  # noqa: UP007 - made at run time
        if check is not None and (default is Parameter.empty or check.fits(default)):
            checks[name] = check
    return checks


def refuse_misfit(task: str, name: str, value: Any, check: Check) -> Never:
    """
    Refuse an argument that does not fit its annotation.

    Raises:
        InvalidJobTypeError: naming the parameter and the place in it, without the value.
    """
    place, annotation, found = _misfit(name, value, check.annotation)
    if check_of(annotation) is not None and type(found) in _kinds(annotation):
        got = f"another {type(found).__name__}"
    elif get_origin(annotation) is tuple and isinstance(found, (list, tuple)):
        got = f"{len(found)} items"
    else:
        got = type(found).__name__
    raise InvalidJobTypeError(f"{task}(): {place} must be {called(annotation)}, got {got}")


def holds_literal(annotation: Any) -> bool:
    """Return whether an annotation is or holds a Literal."""
    return get_origin(annotation) is Literal or any(map(holds_literal, get_args(annotation)))


def refuse_unread(name: str, value: Any, check: Check) -> Never:
    """
    Refuse an argument of a job that does not fit its annotation when the job is to run.

    Raises:
        UnknownToReleaseError: it is of the type of a literal, and none of those of the annotation.
        PayloadError: it is of another type.
    """
    place, annotation, found = _misfit(name, value, check.annotation)
    must, kind = f"must be {called(annotation)}", type(found)
    if kind in set[type]().union(*map(_kinds, _alternatives(annotation))):
        raise UnknownToReleaseError(f"{must}, got another {kind.__name__}", path=f"$.{place}")
    raise PayloadError(f"{must}, got {kind.__name__}", path=f"$.{place}")


def _kinds(annotation: Any) -> set[type]:
    """Return the types of the values of a Literal."""
    return {type(arg) for arg in get_args(annotation)} if get_origin(annotation) is Literal else set()


def _misfit(place: str, value: Any, annotation: Any) -> tuple[str, Any, Any]:
    """Return the first misfit in a value: its path, with the annotation and the value there."""
    while True:
        inner = None
        for kind in _alternatives(annotation):
            inner = inner or _inner_misfit(value, get_origin(kind), get_args(kind))
        if inner is None:
            return place, annotation, value
        step, annotation, value = inner
        place += step


def _inner_misfit(value: Any, origin: Any, args: tuple[Any, ...]) -> tuple[str, Any, Any] | None:
    """Return the first misfit part of a container. Return None if the container itself misfits, or is none."""
    parts: Iterable[tuple[str, Any, Any]] = ()
    if origin is dict and isinstance(value, dict):
        parts = [(f"'s key {shown(key)}", args[0], key) for key in value]
        parts += [(f"[{shown(key)}]", args[1], item) for key, item in value.items()]
    elif origin in (list, tuple) and isinstance(value, (list, tuple)):
        kinds = [args[0]] * len(value) if origin is list or args[1:] == (Ellipsis,) else args
        if len(kinds) == len(value):
            parts = [(f"[{index}]", kinds[index], item) for index, item in enumerate(value)]
    for step, kind, item in parts:
        check = _member(kind)
        if check is not None and not check.fits(item):
            return step, kind, item
    return None


def _alternatives(annotation: Any) -> tuple[Any, ...]:
    if get_origin(annotation) in (Union, types.UnionType):
        return get_args(annotation)
    return (annotation,)


def called(annotation: Any) -> str:
    """Return the name of an annotation, which is code of the application and no secret value."""
    if annotation is type(None):
        return "None"
    is_class = isinstance(annotation, type) and get_origin(annotation) is None
    text = annotation.__name__ if is_class else repr(annotation).replace("typing.", "")
    return text if len(text) <= VALUE_LENGTH_MAX else text[: VALUE_LENGTH_MAX - 1] + "…"
