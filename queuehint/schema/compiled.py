"""
Checks and constructors compiled from the kinds of the fields of a class, at first use.

A check is one function: a test for each field, those of the values in it included, and only what fails a test goes to
its kind, which decides. Nothing but kinds of ours is ever compiled: no name or value from outside gets into the code.
``python -m queuehint.schema Exchange`` prints it.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from operator import is_
from types import FunctionType
from typing import Any, TypeVar, get_type_hints

import attrs

from queuehint.errors import CycleError, InvalidJobError, InvalidJobTypeError, shown
from queuehint.schema.annotations import kind_of
from queuehint.schema.kinds import (
    Also,
    Kind,
    Many,
    Member,
    Optional,
    PathOf,
    Repeated,
    Row,
    Single,
    Value,
    refuse,
)

Check = Callable[[Any], None]
T = TypeVar("T")


class Remembered:
    """
    Base of values that remember their checks, except for an empty `id`, which may be drawn later.

    The note is no field: it is neither compared nor written anywhere.
    """

    __slots__ = ("_is_checked",)


def check_of(cls: type[Any], *more: Check) -> Check:
    """
    Return the check of a class of ours: it refuses a value with a field that does not match its kind.

    A value that remembers that it was checked is not checked again.

    Args:
        more: what is checked when all fields are right.

    Raises (the check):
        InvalidJobTypeError, InvalidHintTypeError: naming the class, the field and its value.
        InvalidJobError, InvalidHintError, PayloadError: no such field may hold it, or not together with the others.

    Complexity (of the check): O(n) of what the value holds.
    """
    check: Check = _compiled(*_check_source(cls, *more), "check")
    return check


def maker(cls: type[T], *, of_strangers: bool = False) -> Callable[..., T]:
    """
    Return a function that makes a value of a frozen class without a `__weakref__`, from its fields in their order.

    A frozen class sets each field by a call of `object.__setattr__`, which takes most of the time of making one. Where
    thousands are made a second, a draft of another class is made, its fields are set, and it is given its class. What
    is made of a class that remembers is marked as checked with ``is_checked=True``.

    Args:
        of_strangers: the fields come from elsewhere by their names; nothing is marked as checked.
    """
    return _at_first_use(lambda: _compiled(*_maker_source(cls, of_strangers=of_strangers), "make"))


def taker(find: Callable[[], type[Any]], **called: str) -> Callable[[Any], None]:
    """
    Return a function that converts the user's fields of a new value of a class of ours.

    A field of a single thing that is not in the form of its kind is replaced by what the kind takes it for; a value of
    another class of ours is looked at; paths and tuples are left to the class.

    Args:
        find: returns the class, which may be made later.
        called: what errors call a field, if it is not its name.

    Raises (the function):
        InvalidJobError, InvalidJobTypeError: naming the field.
    """
    return _at_first_use(lambda: _compiled(*_taker_source(find(), called), "take"))


def normaliser(find: Callable[[], type[Any]], **parse: Callable[[Any], Any]) -> Callable[[Any], dict[str, Any]]:
    """
    Return a function that checks the user's fields of a value, and returns the changed ones by name.

    A field of a single thing that is not in the form of its kind becomes what the kind takes it for; several members of
    an enum become each once, in its order; what a function takes as well becomes what that returns.

    Args:
        find: returns the class, which may be made later.
        parse: functions that return what a field becomes, or the same if it is right.

    Raises (the function):
        InvalidJobError, InvalidJobTypeError, InvalidHintError, PayloadError: naming the field.
    """
    return _at_first_use(lambda: _compiled(*_normaliser_source(find(), parse), "normal"))


def asker(find: Callable[[], type[Any]]) -> Callable[[str, Any], tuple[str, Any]]:
    """
    Return a function that converts an option of a job and its value to a field of a class and its value.

    Args:
        find: returns the class, which may be made later.

    Raises (the function):
        InvalidJobError, InvalidJobTypeError: naming the option.
    """

    def compiled() -> Any:
        asked = {option_of(name): (name, kind) for name, kind in kinds_of(find()).items()}
        source = "def ask(option, value):\n    field, kind = asked[option]\n    return field, kind.ask(value, option)\n"
        return _compiled(source, {"cls": find(), "asked": asked}, "ask")

    return _at_first_use(compiled)


def option_of(name: str) -> str:
    """Return the option name of a field: times without their unit."""
    return name.removesuffix("_ms")


def options_of(cls: type[Any]) -> frozenset[str]:
    """Return the option names of the fields of a class."""
    return frozenset([option_of(field.name) for field in attrs.fields(cls)])


def _at_first_use(compiled: Callable[[], Any]) -> Callable[..., Any]:
    """Return a function that compiles its own code at the first call, without indirection afterwards."""

    def fill() -> Callable[..., Any]:
        made = compiled()
        first.__code__, first.__defaults__, first.__kwdefaults__ = made.__code__, made.__defaults__, made.__kwdefaults__
        names.update(made.__globals__)
        return typed

    names: dict[str, Any] = {"fill": fill}
    first: Any = FunctionType(_first.__code__, names)
    typed: Callable[..., Any] = first
    return typed


def _first(*args: Any, **kwargs: Any) -> Any:
    return fill()(*args, **kwargs)  # type: ignore[name-defined]  # noqa: F821 - of the namespace that it is given


def source_of(cls: type[Any]) -> str:
    """Return the code compiled for a class."""
    sources = [_check_source(cls)[0]]
    if "__weakref__" not in getattr(cls, "__slots__", ("__weakref__",)):
        sources.append(_maker_source(cls)[0])
    return "\n\n".join(sources)


def kinds_of(cls: type[Any]) -> dict[str, Kind]:
    """Return the kinds of the fields of a class, by name."""
    return {name: (isinstance(kind, Repeated) and kind.kind) or kind for name, kind in _kinds_of(cls).items()}


def _kinds_of(cls: type[Any]) -> dict[str, Kind]:
    hints = get_type_hints(cls, include_extras=True)
    return {field.name: kind_of(hints[field.name]) for field in attrs.fields(cls)}


def _compiled(source: str, names: dict[str, Any], called: str) -> Any:
    exec(compile(source, f"<queuehint.schema {names['cls'].__name__}>", "exec"), names)  # noqa: S102 - of kinds of ours
    return names[called]


# --- checks ----------------------------------------------------------------------------------------------------------


def _check_source(cls: type[Any], *more: Check) -> tuple[str, dict[str, Any]]:
    writer = _Writer({"cls": cls})
    writer.line(0, "def check(value):")
    for each in more:
        writer.name(each, "more")
    writer.fields(cls, "value", cls.__name__, 1)
    for name in [name for name in writer.names if name.startswith("more__")]:
        writer.line(1, f"{name}(value)")
    if len(writer.lines) == 1:
        writer.line(1, "pass")
    return "\n".join(writer.lines) + "\n", writer.names


class _Writer:
    """The lines of one check, and the values of its names."""

    def __init__(self, names: dict[str, Any]) -> None:
        self.lines: list[str] = []
        self.names = names
        self._variables = 0

    def line(self, depth: int, text: str) -> None:
        self.lines.append("    " * depth + text)

    def name(self, value: object, hint: str) -> str:
        """Return a name for a value in the code."""
        name = f"{hint}__{len(self.names)}"
        self.names[name] = value
        return name

    def variable(self, field: str) -> str:
        """Return a variable for the value of a field."""
        self._variables += 1
        return f"{field}_{self._variables}"

    def fields(self, cls: type[Any], x: str, where: str, depth: int) -> None:
        """Check all fields of a value of a class, and the rules across its fields."""
        kinds = _kinds_of(cls)
        is_remembered = issubclass(cls, Remembered)
        outer = depth
        if is_remembered:
            self.line(depth, f"if not getattr({x}, '_is_checked', False):")
            depth += 1
        for field in attrs.fields(cls):
            self._field(field, kinds[field.name], x, where, depth)
        if (check_rules := getattr(cls, "check_rules", None)) is not None:
            self.names["check_by"] = check_by
            self.line(depth, f"check_by({self.name(check_rules, 'rules')}, {x}, {where!r})")
        if is_remembered:
            kind = kinds["id"]
            assert isinstance(kind, Single)
            self.names["note"] = object.__setattr__
            self.line(depth, f"note({x}, '_is_checked', True)")
            self.line(outer, f"elif not {x}.id:")
            self.line(depth, f"{self.name(kind.check, 'check')}({x}.id, {where + '.id'!r})")

    def _field(self, field: attrs.Attribute[Any], kind: Kind, x: str, where: str, depth: int) -> None:
        held = self.variable(field.name)
        self.line(depth, f"{held} = {x}.{field.name}")
        default = field.default
        takes_none = isinstance(kind, Optional) and kind.takes_none
        if default is attrs.NOTHING or isinstance(default, attrs.Factory) or (default is None and takes_none):  # type: ignore[arg-type]
            self.kind(kind, held, f"{where}.{field.name}", depth, ())
        else:
            literal = repr(default) if default is None or type(default) is bool else self.name(default, field.name)
            self.kind(kind, held, f"{where}.{field.name}", depth, (f"{held} is not {literal}",))

    def kind(self, kind: Kind, x: str, where: str, depth: int, unless: tuple[str, ...]) -> None:
        """
        Check one value.

        Args:
            unless: conditions that hold if there is something to check.
        """
        if isinstance(kind, Single):
            test = kind.test.format(x=x)
            conditions = " and ".join([*unless, f"not ({test})"])
            self.line(depth, f"if {conditions}:")
            self.line(depth + 1, f"{self.name(kind.check, 'check')}({x}, {where!r})")
        elif isinstance(kind, Optional):
            if kind.takes_none:
                unless += (f"{x} is not None",)
            if kind.takes_bool:
                unless += (f"{x} is not True", f"{x} is not False")
            if kind.words:
                unless += (f"not (type({x}) is str and {x} in {kind.words!r})",)
            self.kind(kind.kind, x, where, depth, unless)
        elif isinstance(kind, Repeated):
            assert kind.kind is not None
            last = self.name(object(), "last")  # not None: a caller may give that
            self.lines.insert(1, f"    global {last}")
            self.line(depth, f"if {' and '.join([*unless, f'{x} is not {last}'])}:")
            self.kind(kind.kind, x, where, depth + 1, ())
            self.line(depth + 1, f"{last} = {x}")
        elif isinstance(kind, Member):
            conditions = " and ".join([*unless, f"type({x}) is not {self.name(kind.cls, kind.cls.__name__)}"])
            self.line(depth, f"if {conditions}:")
            self._refuse(depth + 1, x, where, _called(kind.cls))
        else:
            if unless:
                self.line(depth, f"if {' and '.join(unless)}:")
                depth += 1
            self._several(kind, x, where, depth)

    def _several(self, kind: Kind, x: str, where: str, depth: int) -> None:
        if isinstance(kind, Many):
            self.line(depth, f"if type({x}) is not tuple:")
            self._refuse(depth + 1, x, where, "a tuple")
            if kind.most is not None:
                self.names["check_size"] = check_size
                self.line(depth, f"if len({x}) > {kind.most}:")
                self.line(depth + 1, f"check_size({where.rpartition('.')[2]!r}, len({x}), {kind.most})")
            self.line(depth, f"for {x}_ in {x}:")
            self.kind(kind.item, f"{x}_", where, depth + 1, ())
        elif isinstance(kind, Row):
            self.line(depth, f"if type({x}) is not tuple or len({x}) != {len(kind.items)}:")
            self._refuse(depth + 1, x, where, f"a tuple of {len(kind.items)}")
            names = [f"{x}_{index}" for index in range(len(kind.items))]
            self.line(depth, f"{', '.join(names)} = {x}")
            for name, item in zip(names, kind.items, strict=True):
                self.kind(item, name, where, depth, ())
        elif isinstance(kind, Also):
            assert kind.kind is not None
            self.kind(kind.kind, x, where, depth, ())
            self.names["check_by"] = check_by
            self.line(depth, f"check_by({self.name(kind.parse, 'parse')}, {x}, {where.rpartition('.')[0]!r})")
        else:
            assert isinstance(kind, Value), kind
            self.line(depth, f"if type({x}) is not {self.name(kind.cls, kind.cls.__name__)}:")
            self._refuse(depth + 1, x, where, _called(kind.cls), is_shown=_is_shown(kind.cls))
            self.fields(kind.cls, x, where, depth)

    def _refuse(self, depth: int, x: str, where: str, expected: str, *, is_shown: bool = True) -> None:
        how = refuse if is_shown else _refuse_unshown
        self.names[how.__name__] = how
        self.line(depth, f"raise {how.__name__}({where!r}, {expected!r}, {x})")


def check_size(what: str, size: int, most: int) -> None:
    """Refuse more items than one operation may have."""
    if size > most:
        raise InvalidJobError(f"{what}: {size} in one operation, limit {most}")


def check_by(rules: Callable[[Any], object], value: Any, where: str) -> None:
    """Run a check of a part of a value, and prefix its error with the part's position."""
    try:
        rules(value)
    except CycleError:
        raise
    except ValueError as error:
        error.args = (f"{where}: {error}",)
        raise


def members(cls: type[Enum], value: Any, parameter: str) -> tuple[Any, ...]:
    """Return the named members of an enum, each once and in its order."""
    if type(value) is not tuple or not all(isinstance(member, cls) for member in value):
        raise InvalidJobTypeError(f"{parameter} must be a tuple of {cls.__name__}, got {shown(value)}")
    return tuple([member for member in cls if member in value])


def are_same(items: object, others: object) -> bool:
    """Return whether two values are identical, item by item for tuples."""
    if type(items) is not tuple or type(others) is not tuple:
        return items is others
    return len(items) == len(others) and all(map(is_, items, others))


def _called(cls: type[Any]) -> str:
    return f"{'an' if cls.__name__[0] in 'AEIOU' else 'a'} {cls.__name__}"


def _is_shown(cls: type[Any]) -> bool:
    """Return whether a wrong value may be shown, which excludes classes with a hidden field of application data."""
    return not any(callable(field.repr) for field in attrs.fields(cls))


def _refuse_unshown(where: str, expected: str, value: object) -> InvalidJobTypeError:
    return InvalidJobTypeError(f"{where} must be {expected}, got {type(value).__name__}")


# --- constructors ----------------------------------------------------------------------------------------------------


def _maker_source(cls: type[Any], *, of_strangers: bool = False) -> tuple[str, dict[str, Any]]:
    draft = type(cls.__name__, cls.__bases__, {"__slots__": cls.__slots__})
    names: dict[str, Any] = {"cls": cls, "draft": draft, "new": object.__new__}
    parameters, lines = [], []
    for field in attrs.fields(cls):
        if field.default is attrs.NOTHING:
            parameters.append(field.name)
        else:
            names[f"default_{field.name}"] = field.default
            parameters.append(f"{field.name}=default_{field.name}")
        lines.append(f"    self.{field.name} = {field.name}")
    if issubclass(cls, Remembered) and not of_strangers:
        parameters += ["*", "is_checked=False"]
        lines.append("    if is_checked:\n        self._is_checked = True")
    lines = [f"def make({', '.join(parameters)}):", "    self = new(draft)", *lines, "    self.__class__ = cls"]
    return "\n".join([*lines, "    return self\n"]), names


def _taker_source(cls: type[Any], called: dict[str, str]) -> tuple[str, dict[str, Any]]:
    writer = _Writer({"cls": cls, "put": object.__setattr__, "refuse": refuse})
    writer.line(0, "def take(self):")
    for name, kind in kinds_of(cls).items():
        unless = ""
        if isinstance(kind, Optional):
            kind, unless = kind.kind, "x is not None and "
        parameter = called.get(name, name)
        if isinstance(kind, Value):
            kept = writer.name(kind.cls, kind.cls.__name__)
            writer.line(1, f"if {unless}not isinstance(self.{name}, {kept}):")
            writer.line(2, f"raise refuse({parameter!r}, {_called(kind.cls)!r}, self.{name})")
        elif isinstance(kind, Single) and not isinstance(kind, PathOf):
            writer.line(1, f"x = self.{name}")
            writer.line(1, f"if {unless}not ({kind.test.format(x='x')}):")
            writer.line(2, f"put(self, {name!r}, {writer.name(kind.take, 'take')}(x, {parameter!r}))")
    return "\n".join(writer.lines) + "\n", writer.names


def _normaliser_source(cls: type[Any], parse: dict[str, Callable[[Any], Any]]) -> tuple[str, dict[str, Any]]:
    writer = _Writer({"cls": cls, "refuse": refuse, "are_same": are_same})
    writer.line(0, "def normal(self):")
    writer.line(1, "changed = {}")
    kinds = kinds_of(cls)
    for field in attrs.fields(cls):
        name, kind = field.name, kinds[field.name]
        conditions = [f"x is not {writer.name(field.default, name)}"]
        if isinstance(kind, Optional):
            conditions += ["x is not None"] * kind.takes_none + ["x is not True", "x is not False"] * kind.takes_bool
            kind = kind.kind
        if name in parse:
            taken = f"{writer.name(parse[name], 'parse')}(x)"
        elif isinstance(kind, Also):
            taken = f"{writer.name(kind.parse, 'parse')}(x)"
        elif isinstance(kind, Many):
            assert isinstance(kind.item, Member), kind
            taken = f"{writer.name(members, 'members')}({writer.name(kind.item.cls, 'cls')}, x, {name!r})"
        elif isinstance(kind, Value):
            writer.line(1, f"if not isinstance(self.{name}, {writer.name(kind.cls, kind.cls.__name__)}):")
            writer.line(2, f"raise refuse({name!r}, {_called(kind.cls)!r}, self.{name})")
            continue
        else:
            assert isinstance(kind, Single), kind
            conditions.append(f"not ({kind.test.format(x='x')})")
            taken = f"{writer.name(kind.take, 'take')}(x, {name!r})"
        writer.line(1, f"x = self.{name}")
        writer.line(1, f"if {' and '.join(conditions)} and not are_same(taken := {taken}, x):")
        writer.line(2, f"changed[{name!r}] = taken")
    writer.line(1, "return changed")
    return "\n".join(writer.lines) + "\n", writer.names
