"""
Unions: the JSON form of a value is all that selects its member.

Each member has a form: null, a number, text of a grammar (a date, a UUID), text or numbers of a set (an enum), an
array, an object with certain keys. Members whose forms have a value in common are refused when the task is declared:
nothing in the JSON would say which of them it is, and what a reader guesses is another value for some.
"""

from __future__ import annotations

import collections.abc
import contextlib
import dataclasses
import re
import typing
from collections import deque
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, Flag
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin
from uuid import UUID

import attrs

from queuehint.errors import UnknownToReleaseError
from queuehint.handlers.arguments import called
from queuehint.handlers.conversion.annotations import bare, is_key_required, is_union
from queuehint.handlers.conversion.models import is_of_pydantic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import cattrs


class AmbiguousUnionError(TypeError):
    """Two members of a union have a form in common."""


class KeysError(AmbiguousUnionError):
    """Keys of a dictionary may be text or numbers, or are neither."""

    def __init__(self, kind: Any) -> None:
        super().__init__(f"{called(kind)} cannot be the key of a JSON object: annotate str, int or a type of text")


_GRAMMARS: dict[Any, re.Pattern[str]] = {
    datetime: re.compile(r"\d{4}-\d\d-\d\dT.*", re.ASCII),
    date: re.compile(r"\d{4}-\d\d-\d\d", re.ASCII),
    time: re.compile(r"\d\d:\d\d.*", re.ASCII),
    UUID: re.compile(r"[\da-f]{8}(-[\da-f]{4}){3}-[\da-f]{12}", re.ASCII | re.IGNORECASE),
    Decimal: re.compile(r"-?(\d+(\.\d*)?|\.\d+)(E[+-]?\d+)?|-?Infinity|-?s?NaN\d*", re.ASCII),
}
"""Texts of one of these are none of another."""
_ARRAYS = (list, tuple, set, frozenset, deque, collections.abc.Sequence, collections.abc.Set, collections.abc.Iterable)
_KINDS = ("null", "bool", "int", "float", "text", "array", "object")
_KIND_OF = {type(None): "null", bool: "bool", int: "int", float: "float", str: "text", list: "array", tuple: "array",
            dict: "object"}  # fmt: skip


@attrs.frozen
class Shape:
    """
    The keys of a class's objects.

    Args:
        required: those that each object has where it is read.
        written: those that each object has that is written now.
        allowed: all that there may be.
        marks: the values that a key must have one of.
    """

    required: frozenset[str]
    written: frozenset[str]
    allowed: frozenset[str]
    marks: dict[str, tuple[Any, ...]]

    def fits(self, data: dict[str, Any]) -> bool:
        """Return whether an object may be of the class."""
        return self.required <= data.keys() <= self.allowed and self.is_marked(data)

    def is_marked(self, data: dict[str, Any]) -> bool:
        """Return whether an object has none of the marks of other classes."""
        return all(data.get(key, values[0]) in values for key, values in self.marks.items())

    def is_apart_from(self, other: Shape) -> bool:
        """Return whether the two classes have no object in common."""
        for key in self.marks.keys() & other.marks.keys():
            if not set(self.marks[key]) & set(other.marks[key]):
                return True
        return bool(self.written - other.allowed or other.written - self.allowed)


@attrs.frozen
class Form:
    """
    The JSON form of a member.

    Args:
        member: the annotation.
        kinds: of JSON; all for a type with hooks of the application's, but null.
        texts: whether a text is of it, if only some are.
        values: the values that it has, if they can be counted.
        shape: its keys, if it is a class.
    """

    member: Any
    kinds: frozenset[str]
    texts: Any = None
    values: tuple[Any, ...] | None = None
    shape: Shape | None = None

    def fits(self, data: Any) -> bool:
        """Return whether JSON may be of this member."""
        kind = _KIND_OF.get(type(data))
        if kind not in self.kinds:
            return False
        if self.values is not None:
            return any(type(data) is type(value) and data == value for value in self.values)
        if self.texts is not None and kind == "text":
            return _GRAMMARS[self.texts].fullmatch(data) is not None
        return self.shape is None or self.shape.fits(data)

    def is_apart_from(self, other: Form) -> bool:
        """Return whether no JSON is of both."""
        if not self.kinds & other.kinds:
            return True
        if self.values is not None:
            return not any(map(other.fits, self.values))
        if other.values is not None:
            return not any(map(self.fits, other.values))
        common = self.kinds & other.kinds
        if common == {"text"}:
            return None not in (self.texts, other.texts) and self.texts is not other.texts
        if common == {"object"} and self.shape is not None and other.shape is not None:
            return self.shape.is_apart_from(other.shape)
        return False


def form_of(member: Any) -> Form:
    """Return the JSON form of an annotation's values."""
    kind = bare(member)
    origin = get_origin(kind) or kind
    if origin is Literal:
        return _counted(member, [getattr(each, "value", each) for each in get_args(kind)])
    if not isinstance(origin, type) or origin is object:
        return Form(member, frozenset(_KINDS))
    if issubclass(origin, Enum):
        if issubclass(origin, Flag):
            return Form(member, frozenset({"int"}))
        return _counted(member, [each.value for each in origin])
    for simple, name in ((type(None), "null"), (bool, "bool")):
        if origin is simple:
            return Form(member, frozenset({name}))
    if issubclass(origin, int):
        return Form(member, frozenset({"int", "bool"}))
    if issubclass(origin, (float, timedelta)):
        # An int is a float for type checkers.
        return Form(member, frozenset({"int", "float"}))
    if origin in _GRAMMARS:
        return Form(member, frozenset({"text"}), texts=origin)
    if issubclass(origin, (str, bytes, Path)):
        return Form(member, frozenset({"text"}))
    if attrs.has(origin) or dataclasses.is_dataclass(origin) or typing.is_typeddict(origin):
        return Form(member, frozenset({"object"}), shape=_shape(origin))
    if issubclass(origin, (dict, collections.abc.Mapping)):
        return Form(member, frozenset({"object"}))
    if origin in _ARRAYS or issubclass(origin, (list, tuple, set, frozenset, deque)):
        return Form(member, frozenset({"array"}))
    if is_of_pydantic(member) and hasattr(origin, "model_fields"):
        return Form(member, frozenset({"object"}))
    # A class with hooks of the application's may be anything; not null, as None is what it is not.
    return Form(member, frozenset(_KINDS) - {"null"})


def forms_of(annotation: Any) -> list[Form]:
    """Return the JSON forms of an annotation's values: for a union, the form of each member."""
    return [form_of(member) for member in (_members(annotation) if is_union(bare(annotation)) else [annotation])]


def _counted(member: Any, values: list[Any]) -> Form:
    # A literal of bytes is written as text of any kind.
    if not all(type(value) in _KIND_OF for value in values):
        return Form(member, frozenset(_KINDS) - {"null"})
    return Form(member, frozenset(_KIND_OF[type(value)] for value in values), values=tuple(values))


def _shape(kind: Any) -> Shape:
    try:
        hints = typing.get_type_hints(kind)
    except NameError:
        raise
    except Exception:  # noqa: BLE001 - a class that does not tell
        hints = {}
    if attrs.has(kind):
        fields = [field for field in attrs.fields(kind) if field.init]
        required = {field.name for field in fields if field.default is attrs.NOTHING}
        written = allowed = {field.name for field in fields}
    elif typing.is_typeddict(kind):
        required = written = {name for name in hints if is_key_required(kind, name)}
        allowed = set(hints)
    else:
        items = [item for item in dataclasses.fields(kind) if item.init]
        missing = dataclasses.MISSING
        required = {item.name for item in items if item.default is missing and item.default_factory is missing}
        written = allowed = {item.name for item in items}
    marks = {}
    for name in allowed:
        form = form_of(hints.get(name, Any)) if get_origin(bare(hints.get(name))) is Literal else None
        if form is not None and form.values is not None:
            marks[name] = form.values
    return Shape(frozenset(required), frozenset(written), frozenset(allowed), marks)


class Union:
    """
    The hooks of one union.

    Args:
        annotation: the union.
        is_plain: whether values of an annotation are JSON as they are.

    Raises:
        AmbiguousUnionError: two of its members cannot be told apart.
        NameError: a class names another one that is not defined yet.
    """

    def __init__(self, annotation: Any, converter: cattrs.Converter, is_plain: Callable[[Any], bool]) -> None:
        members = list(_members(annotation))
        self._annotation = annotation
        self._converter = converter
        self._plain = [form_of(member) for member in members if is_plain(member)]
        self._odd = [form_of(member) for member in members if not is_plain(member)]
        for index, form in enumerate(self._odd):
            for other in [*self._plain, *self._odd[:index]]:
                if not _fits_beside(form, other):
                    one, two = sorted([called(form.member), called(other.member)])
                    raise AmbiguousUnionError(
                        f"{one} and {two} cannot be told apart in JSON: annotate one of them, or a class that holds one"
                    )
        with contextlib.suppress(RecursionError):  # a class inside of itself
            for form in self._odd:
                converter.get_unstructure_hook(form.member)
                converter.get_structure_hook(form.member)

    def write(self, value: Any) -> Any:
        """
        Return a value as the JSON of its member.

        Raises:
            TypeError: it is of none.
        """
        found = self._of(value)
        if found is not None:
            return self._converter.unstructure(value, unstructure_as=found.member)
        if any(type(value) in _KIND_OF and _KIND_OF[type(value)] in form.kinds for form in self._plain):
            return value
        if isinstance(value, (str, int, float, list, tuple, dict)) and self._plain:
            return value
        raise TypeError

    def _of(self, value: Any) -> Form | None:
        """Return the form of a value that is not plain. Its exact class takes precedence."""
        exact = [form for form in self._odd if _runtime(form.member) is type(value)]
        if not exact and not (type(value) in _KIND_OF and any(form.fits(value) for form in self._plain)):
            exact = [form for form in self._odd if _is_instance(value, form)]
        if len(exact) > 1:  # of TypedDicts; of literals beside an enum
            exact = [form for form in exact if _is_instance(value, form) and (form.shape is None or form.fits(value))]
        return exact[0] if exact else None

    def read(self, data: Any, _: Any = None) -> Any:
        """
        Return a value from JSON.

        Raises:
            UnknownToReleaseError: it is of a member that a later release knows.
            TypeError: it is of none.
        """
        for form in self._plain:
            if form.fits(data):
                return data
        kind = _KIND_OF.get(type(data))
        forms = [form for form in self._odd if kind in form.kinds]
        fitting = [form for form in forms if form.fits(data)]
        if len(fitting) > 1:
            # A class that has gained fields since may be read without them; another one has just those there are.
            fitting = [form for form in fitting if form.shape is not None and form.shape.allowed == data.keys()]
        if not fitting and len(forms) == 1:
            fitting = forms  # it says itself what is wrong
        if len(fitting) == 1:
            member = fitting[0].member
            return self._converter.structure(data, member)
        if forms and all(form.values is not None or form.shape is not None for form in forms):
            raise UnknownToReleaseError(f"none of {called(self._annotation)}")
        raise TypeError


def _members(annotation: Any) -> Iterator[Any]:
    """Yield the members of a union, including the members of inner unions."""
    for member in get_args(bare(annotation)):
        inner = bare(member)
        if is_union(inner):
            yield from _members(inner)
        else:
            yield member


def _fits_beside(form: Form, other: Form) -> bool:
    # None is never what another member is written as.
    return other.kinds == {"null"} or form.is_apart_from(other)


def _runtime(member: Any) -> Any:
    kind = bare(member)
    return get_origin(kind) or kind


def _is_instance(value: Any, form: Form) -> bool:
    kind = _runtime(form.member)
    if kind is Literal:
        return any(type(value) is type(each) and value == each for each in get_args(bare(form.member)))
    if typing.is_typeddict(kind):
        return isinstance(value, dict)
    try:
        return isinstance(value, kind)
    except TypeError:
        return False
