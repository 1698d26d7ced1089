"""
Kinds of fields: their allowed values, as data.

A field says its kind in its annotation, as ``Annotated[int, Count(1, 100)]`` or by a name for that, such as `JobId`;
`queuehint.schema.annotations` reads it.

Each kind of a single thing has a `test`, an expression that is true of nearly all that fits, for `compiled`; and
`check`, which decides, and raises with the words of the error. A value must be of exactly the class that is named, for
a subclass may behave in any way, and stores treat fields in different ways: the same value may be a number for one, a
text for another, and impossible to write for a third.

>>> Count(1, 100).take(7, "limit")
7
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final

from queuehint.errors import InvalidHintTypeError, InvalidJobError, InvalidJobTypeError, shown
from queuehint.schema.checks import (
    ID_BYTES_MAX,
    NAME_BYTES_MAX,
    RUN_AT_MAX_MS,
    RUN_AT_MIN_MS,
    TAG_BYTES_MAX,
    TEN_YEARS_MS,
    check_bool,
    check_choice,
    check_duration,
    check_id,
    check_int,
    check_name,
    check_number,
    check_payload_size,
    check_str,
    check_tag,
)

if TYPE_CHECKING:
    from collections.abc import Callable

NUMBER_MAX: Final = 2**53
TOKEN_MAX: Final = 2**127
"""Above every token that a store grants."""
FLOAT_MAX: Final = 2**63
TEXT_MAX: Final = 4096


class Kind:
    """The allowed values of a field."""

    __slots__ = ()

    def __repr__(self) -> str:
        names = [name for cls in reversed(type(self).__mro__) for name in getattr(cls, "__slots__", ())]
        facts = [(name, getattr(self, name)) for name in names]
        # A function by its name: its address is another in each process, and tests are named after kinds.
        told = [f"{name}={getattr(fact, '__qualname__', None) or repr(fact)}" for name, fact in facts]
        return f"{type(self).__name__}({', '.join(told)})"


class Single(Kind):
    """The kind of a field with a single value."""

    __slots__ = ()

    @property
    def test(self) -> str:
        """An expression of ``{x}``, without calls of Python functions, true only of allowed values."""
        raise NotImplementedError

    def check(self, value: Any, where: str) -> None:
        """
        Refuse a value that does not match.

        Args:
            where: what the value is called: the operation, the field, the field in that.

        Raises:
            InvalidJobTypeError, InvalidHintTypeError: it is of another class.
            InvalidJobError, InvalidHintError, PayloadError: no such field may hold it.
        """
        raise NotImplementedError

    def take(self, value: Any, parameter: str) -> Any:
        """Return the user's value in the form of the field, or raise an error with the name of the parameter."""
        self.check(value, parameter)
        return value

    def ask(self, value: Any, parameter: str) -> Any:
        """Like `take`, for the option of a job: times are given as users give them."""
        return self.take(value, parameter)


def refuse(where: str, expected: str, value: object) -> InvalidJobTypeError:
    """Return the error of a value of another class."""
    return InvalidJobTypeError(f"{where} must be {expected}, got {type(value).__name__}: {shown(value)}")


class Label(Single):
    """A text that names something."""

    __slots__ = ()
    most: ClassVar[int]
    """How many bytes it may have."""
    _check: Callable[..., str]

    @property
    def test(self) -> str:
        # What can be printed holds nothing that is refused but a space; a character has at most four bytes.
        return f"type({{x}}) is str and 0 < len({{x}}) <= {self.most // 4} and {{x}}.isprintable()"

    def check(self, value: Any, where: str) -> None:
        if type(value) is not str:
            raise refuse(where, "str", value)
        self.take(value, where)

    def take(self, value: Any, parameter: str) -> str:
        return type(self)._check(value, parameter=parameter)  # noqa: SLF001 - its own class


class Id(Label):
    """The id of a job, a flow or a schedule."""

    __slots__ = ()
    _check = check_id
    most = ID_BYTES_MAX

    @property
    def test(self) -> str:
        return f"{super().test} and ' ' not in {{x}}"


class Name(Label):
    """The name of a task, a pool, a user, a service, a worker; a key."""

    __slots__ = ()
    _check = check_name
    most = NAME_BYTES_MAX


class Tag(Label):
    """A tag of records, for queries."""

    __slots__ = ()
    _check = check_tag
    most = TAG_BYTES_MAX


class Text(Single):
    """Any text of so many characters."""

    __slots__ = ("most",)

    def __init__(self, most: int = TEXT_MAX) -> None:
        self.most = most

    @property
    def test(self) -> str:
        return f"type({{x}}) is str and len({{x}}) <= {self.most} and {{x}}.isascii()"

    def check(self, value: Any, where: str) -> None:
        if type(value) is not str:
            raise refuse(where, "str", value)
        if len(value) > self.most:
            raise InvalidJobError(f"{where} is {len(value)} characters, limit {self.most}: {shown(value)}")
        try:
            value.encode()
        except UnicodeEncodeError as error:
            code = f"U+{ord(value[error.start]):04X}"
            raise InvalidJobError(f"{where} is not encodable as UTF-8 ({code}): {shown(value)}") from None

    def take(self, value: Any, parameter: str) -> str:
        text = check_str(value, parameter=parameter)
        self.check(text, parameter)
        return text


class Digest(Text):
    """Letters and digits, or none."""

    __slots__ = ()

    @property
    def test(self) -> str:
        return f"{super().test} and ({{x}}.isalnum() or not {{x}})"

    def check(self, value: Any, where: str) -> None:
        super().check(value, where)
        if value and not (value.isascii() and value.isalnum()):
            name = where.rpartition(".")[2]
            raise InvalidJobError(f"{name} must be letters a to z, A to Z and digits, got {shown(value)}")


class Count(Single):
    """A whole number."""

    __slots__ = ("least", "most")

    def __init__(self, least: int = 0, most: int = NUMBER_MAX) -> None:
        self.least = least
        self.most = most

    @property
    def test(self) -> str:
        return f"type({{x}}) is int and {self.least} <= {{x}} <= {self.most}"

    def check(self, value: Any, where: str) -> None:
        check_int(value, parameter=where, least=self.least, most=self.most)


class Asked(Count):
    """A whole number passed on unchanged from a caller. An error names the caller's parameter."""

    __slots__ = ()

    def check(self, value: Any, where: str) -> None:
        is_named = type(value) is not int or abs(value) > NUMBER_MAX
        super().check(value, where if is_named else where.rpartition(".")[2])


class Proof(Count):
    """The token of a grant, or a number in its place."""

    __slots__ = ()


class Moment(Count):
    """A time, in ms since the epoch."""

    __slots__ = ()


class Duration(Count):
    """A length of time, in ms."""

    __slots__ = ()

    def __init__(self, least: int = 0, most: int = TEN_YEARS_MS) -> None:
        super().__init__(least, most)

    def ask(self, value: Any, parameter: str) -> int:
        return check_duration(value, parameter=parameter, least_ms=self.least, most_ms=self.most)


class Number(Single):
    """A finite number, whole or not."""

    __slots__ = ("least", "most")

    def __init__(self, least: float = -FLOAT_MAX, most: float = FLOAT_MAX) -> None:
        self.least = least
        self.most = most

    @property
    def test(self) -> str:
        return f"(type({{x}}) is float or type({{x}}) is int) and {self.least!r} <= {{x}} <= {self.most!r}"

    def check(self, value: Any, where: str) -> None:
        check_number(value, parameter=where, least=self.least, most=self.most)


class Payload(Single):
    """Opaque bytes of the application."""

    __slots__ = ("most",)

    def __init__(self, most: int) -> None:
        self.most = most

    @property
    def test(self) -> str:
        return f"type({{x}}) is bytes and len({{x}}) <= {self.most}"

    def check(self, value: Any, where: str) -> None:
        check_payload_size(value, parameter=where, bytes_max=self.most)


class Flag(Single):
    """True or False."""

    __slots__ = ()

    @property
    def test(self) -> str:
        return "type({x}) is bool"

    def check(self, value: Any, where: str) -> None:
        check_bool(value, parameter=where)


class Choice(Single):
    """One of a few words."""

    __slots__ = ("words",)

    def __init__(self, *words: str) -> None:
        self.words = words

    @property
    def test(self) -> str:
        return f"type({{x}}) is str and {{x}} in {self.words!r}"

    def check(self, value: Any, where: str) -> None:
        expected = f"one of {', '.join(self.words)}"
        if type(value) is not str:
            raise refuse(where, expected, value)
        if value not in self.words:
            raise InvalidJobError(f"{where} must be {expected}, got {shown(value)}")

    def take(self, value: Any, parameter: str) -> str:
        return check_choice(value, self.words, parameter=parameter)


class PathOf(Single):
    """The path of a place."""

    __slots__ = ("parse",)

    def __init__(self, parse: Callable[..., object]) -> None:
        self.parse = parse

    @property
    def test(self) -> str:
        return (
            "type({x}) is tuple and len({x}) <= 64 and {{*map(type, {x})}} <= {{str}} and '' not in {x} "
            "and len(text := ''.join({x})) <= 64 and text.isprintable()"
        )

    def check(self, value: Any, where: str) -> None:
        if type(value) is not tuple or any(type(segment) is not str for segment in value):
            raise InvalidHintTypeError(f"{where} must be a tuple of str, got {type(value).__name__}: {shown(value)}")
        self.parse(value, parameter=where)

    def take(self, value: Any, parameter: str) -> Any:
        return self.parse(value, parameter=parameter)


class Parsed(Single):
    """A value checked and converted by a function of ours."""

    __slots__ = ("likely", "parse", "types")

    def __init__(self, parse: Callable[..., object], *types: type[Any], likely: str) -> None:
        self.parse = parse
        self.types = types
        self.likely = likely

    @property
    def test(self) -> str:
        return self.likely

    def check(self, value: Any, where: str) -> None:
        if type(value) not in self.types:
            raise refuse(where, self.types[0].__name__, value)
        self.parse(value, parameter=where)

    def take(self, value: Any, parameter: str) -> Any:
        return self.parse(value, parameter=parameter)


# --- kinds that annotations say --------------------------------------------------------------------------------------


class Value(Kind):
    """A value of a class of ours."""

    __slots__ = ("cls",)

    def __init__(self, cls: type[Any]) -> None:
        self.cls = cls

    def ask(self, value: Any, parameter: str) -> Any:
        """Return the value of the class for a user's value, by ``of`` of the class."""
        return self.cls.of(value, parameter=parameter)


class Member(Value):
    """A member of an enum."""

    __slots__ = ()


class Optional(Kind):
    """Another kind, or None, or True or False, or one of some words."""

    __slots__ = ("kind", "takes_bool", "takes_none", "words")

    def __init__(self, kind: Kind, *, words: tuple[str, ...], takes_none: bool, takes_bool: bool) -> None:
        self.kind = kind
        self.words = words
        self.takes_none = takes_none
        self.takes_bool = takes_bool

    def ask(self, value: Any, parameter: str) -> Any:
        """Return the user's value in the form of the field."""
        return None if value is None else self.kind.ask(value, parameter)  # type: ignore[attr-defined]


def bare(kind: Kind) -> Kind:
    """
    Return the kind within an `Optional`, or the kind itself.

    >>> bare(Optional(Id(), words=(), takes_none=True, takes_bool=False)), bare(Flag())
    (Id(), Flag())
    """
    return kind.kind if isinstance(kind, Optional) else kind


class Many(Kind):
    """A tuple of any number, or of at most so many."""

    __slots__ = ("item", "most")

    def __init__(self, item: Kind, most: int | None = None) -> None:
        self.item = item
        self.most = most


class Row(Kind):
    """A tuple with one item of each kind."""

    __slots__ = ("items",)

    def __init__(self, items: tuple[Kind, ...]) -> None:
        self.items = items


class Also(Kind):
    """Another kind, and further values accepted by a function."""

    __slots__ = ("kind", "parse")

    def __init__(self, parse: Callable[..., object], kind: Kind | None = None) -> None:
        self.parse = parse
        self.kind = kind


class Repeated(Kind):
    """Another kind, mostly given the same object again: such an object is checked once."""

    __slots__ = ("kind",)

    def __init__(self, kind: Kind | None = None) -> None:
        self.kind = kind


class Mark:
    """An annotation of a field besides its kind."""

    __slots__ = ("what",)

    def __init__(self, what: str) -> None:
        self.what = what


RULED: Final = Mark("ruled")
"""The rules of a store read it: on Redis it has a place in a line, and others are for workers only."""


class AtMost:
    """The annotation of a tuple with its highest length."""

    __slots__ = ("most",)

    def __init__(self, most: int) -> None:
        self.most = most


# --- names of those that many fields have ----------------------------------------------------------------------------

JobId = Annotated[str, Id()]
NameText = Annotated[str, Name()]
TagText = Annotated[str, Tag()]
ShortText = Annotated[str, Text()]
AnyCount = Annotated[int, Count()]
Token = Annotated[int, Proof(-TOKEN_MAX, TOKEN_MAX)]
MomentMs = Annotated[int, Moment(RUN_AT_MIN_MS, RUN_AT_MAX_MS)]
DurationMs = Annotated[int, Duration()]
SomeMs = Annotated[int, Duration(least=1)]
AnyNumber = Annotated[float, Number()]
