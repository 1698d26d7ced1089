"""
References to results of other jobs in the arguments of a call: as a value, or as a placeholder inside a text.

When the job is made they are replaced by their text, and their positions are kept as JSON pointers: only these are
filled when the job starts (see `queuehint.handlers.templates`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Never

import attrs

from queuehint.errors import InvalidJobError, InvalidJobTypeError, PayloadError, clipped, shown
from queuehint.handlers.conversion.plain_json import DEPTH_MAX
from queuehint.handlers.templates import Placeholder, is_name, parse
from queuehint.schema.checks import sized
from queuehint.values.spec import TEMPLATES_MAX

if TYPE_CHECKING:
    from collections.abc import Iterable

INDEX_MAX = 10**9 - 1

PLAIN = frozenset({str, int, float, bool, type(None), bytes})
"""The types of values that neither are nor hold marks."""


class Template:
    """
    A text argument, filled from the results of the job's dependencies.

    Raises:
        InvalidJobTypeError: it is not a str.
        TemplateError: it takes more than 64 KiB.
    """

    __slots__ = ("text",)
    text: str

    def __init__(self, text: str) -> None:
        if not isinstance(text, str):
            raise InvalidJobTypeError(f"a template must be str, got {type(text).__name__}: {shown(text)}")
        text = str.__str__(text)
        parse(text)
        object.__setattr__(self, "text", text)

    def __repr__(self) -> str:
        return f"template({shown(self.text)})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Template) and self.text == other.text

    def __hash__(self) -> int:
        return hash((Template, self.text))

    def __setattr__(self, name: str, value: object) -> Never:
        raise AttributeError(f"a template cannot be changed: {name}")

    def __copy__(self) -> Template:
        return self

    def __deepcopy__(self, memo: object) -> Template:
        return self

    def __reduce__(self) -> tuple[type[Template], tuple[str]]:
        return Template, (self.text,)

    def __str__(self) -> Never:
        raise InvalidJobTypeError("a template has no text before the job starts; pass it as an argument by itself")


def template(text: str) -> Any:
    r"""
    Mark a text among the arguments of a call as a template, filled when the job starts.

    ``{{name.field[0]}}`` stands for what the job of that name (or id) returned, which must be among the jobs this one
    depends on; ``\{{`` for ``{{`` itself. Alone it becomes the value, whatever its type; inside other text it becomes
    text. Texts that are not marked are never touched.

    Raises:
        InvalidJobTypeError: it is not a str.
        TemplateError: it takes more than 64 KiB.
    """
    return Template(text)


class Reference:
    """
    A value in another job's result, as an argument of a call.

    ``.field`` and ``["field"]`` give a reference to a field of it, ``[0]`` to an item: a reference has no attributes of
    its own, and nothing can be done with it but to pass it on. Two are equal when they mean the same value of the same
    node.

    Args:
        name: what templates of the job that gets it call the other job.
        node: the other job, as the maker of the reference knows it (see `target`); compared by identity.

    Raises:
        InvalidJobError: a placeholder cannot be written with this name, field or index.
    """

    # Names that no field can have.
    __slots__ = ("node__", "placeholder__")
    node__: object
    placeholder__: Placeholder

    def __init__(self, name: str, node: object, steps: tuple[str | int, ...] = ()) -> None:
        object.__setattr__(self, "node__", node)
        object.__setattr__(self, "placeholder__", Placeholder(_checked(name, "name"), steps))

    def __getattr__(self, name: str) -> Reference:
        if "__" in name:
            raise AttributeError(f'{self!r} is a reference to a result; for a field of this name write ["{name}"]')
        return self[name]

    def __getitem__(self, key: str | int) -> Reference:
        if isinstance(key, str):
            step: str | int = _checked(key, "a field")
        elif type(key) is int:
            if not -INDEX_MAX <= key <= INDEX_MAX:
                raise InvalidJobError(f"an index must be from {-INDEX_MAX} to {INDEX_MAX}, got {shown(key)}")
            step = key
        else:
            raise InvalidJobTypeError(
                f"a field is named by str, an item by int, got {type(key).__name__}: {shown(key)}"
            )
        found = self.placeholder__
        return Reference(found.name, self.node__, (*found.steps, step))

    def __repr__(self) -> str:
        return clipped(str(self.placeholder__))

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Reference) and self.node__ is other.node__ and self.placeholder__ == other.placeholder__
        )

    def __hash__(self) -> int:
        return hash((id(self.node__), self.placeholder__))

    def __setattr__(self, name: str, value: object) -> Never:
        raise AttributeError(f"a reference cannot be changed: {name}")

    def __copy__(self) -> Reference:
        return self

    def __deepcopy__(self, memo: object) -> Reference:
        return self

    def __refuse(self, *_: object) -> Never:
        raise InvalidJobTypeError(
            f"{self!r} is a result that is not there yet: pass it to a job as an argument of its own, or write "
            'queuehint.template("…") for a text with it'
        )

    # Python would answer these without it: wrongly, or, where it asks for items 0, 1, 2, for ever.
    __str__ = __format__ = __bool__ = __iter__ = __contains__ = __reversed__ = __reduce_ex__ = __refuse
    # These it would refuse in words that do not help.
    __add__ = __sub__ = __mul__ = __truediv__ = __floordiv__ = __mod__ = __divmod__ = __pow__ = __matmul__ = __refuse
    __radd__ = __rsub__ = __rmul__ = __rtruediv__ = __rfloordiv__ = __rmod__ = __rdivmod__ = __rpow__ = __refuse
    __rmatmul__ = __and__ = __or__ = __xor__ = __lshift__ = __rshift__ = __rand__ = __ror__ = __rxor__ = __refuse
    __rlshift__ = __rrshift__ = __lt__ = __le__ = __gt__ = __ge__ = __neg__ = __pos__ = __abs__ = __invert__ = __refuse
    __int__ = __float__ = __round__ = __refuse


class Referable:
    """A job whose ``out`` refers to its result. The job itself is refused as an argument."""

    __slots__ = ()


def target(reference: Reference) -> tuple[str, Any]:
    """Return the name in a reference, and its node."""
    return reference.placeholder__.name, reference.node__


@attrs.define
class Extracted:
    """
    The arguments of a call without marks.

    Args:
        arguments: each `Template` and `Reference` replaced by its text; the very same dictionary if there was none.
        pointers: where they stood, as JSON pointers, at most 1 000.
        references: each once, in the order in which they came.
        names: the arguments that held any; their annotations say nothing of what travels.
    """

    arguments: dict[str, Any] = attrs.field(repr=sized)
    pointers: tuple[str, ...] = ()
    references: tuple[Reference, ...] = ()
    names: frozenset[str] = frozenset()


def extract(arguments: dict[str, Any]) -> Extracted:
    """
    Take the marks out of the arguments of a call. The search covers dict, list and tuple, 64 deep.

    Raises:
        PayloadError: what holds a mark holds itself, or is no JSON object for its keys.
        InvalidJobError: more than 1 000 marks.
        InvalidJobTypeError: a job stands where its result is meant.
    """
    if PLAIN.issuperset(map(type, arguments.values())):
        return Extracted(arguments)
    known: dict[int, bool] = {}
    names = frozenset([name for name, value in arguments.items() if _holds_mark(value, known, 1)])
    if not names:
        return Extracted(arguments)
    taking = _Taking(known)
    plain = {
        name: taking.plain(value, f"/{_escaped(name)}") if name in names else value for name, value in arguments.items()
    }
    return Extracted(plain, tuple(taking.pointers), tuple(taking.references), names)


class _Taking:
    """Replaces marks by their text and notes where they stood."""

    def __init__(self, known: dict[int, bool]) -> None:
        self.pointers: list[str] = []
        self.references: dict[Reference, None] = {}
        self._known = known
        self._above: list[int] = []

    def plain(self, value: Any, pointer: str) -> Any:
        """Return a value without marks. A value that holds none is returned itself."""
        kind = type(value)
        if kind is Reference or kind is Template:
            self.pointers.append(pointer)
            if len(self.pointers) > TEMPLATES_MAX:
                raise InvalidJobError(
                    f"the arguments hold more than {TEMPLATES_MAX} templates and references, the limit; "
                    "for the results of more jobs name these in after= and read ctx.results"
                )
            if kind is Template:
                return value.text
            self.references[value] = None
            return str(value.placeholder__)
        if not self._known.get(id(value)):
            return value
        if id(value) in self._above:
            raise PayloadError("circular reference", path=f"${pointer.replace('/', '.')}")
        self._above.append(id(value))
        if isinstance(value, dict):
            made: Any = {key: self.plain(item, f"{pointer}/{_escaped(key)}") for key, item in value.items()}
        else:
            made = [self.plain(item, f"{pointer}/{index}") for index, item in enumerate(value)]
        self._above.pop()
        return made


def _holds_mark(value: Any, known: dict[int, bool], depth: int) -> bool:
    """Return whether a value is or holds a mark. Record the result in *known* for each container by its id."""
    kind = type(value)
    if kind is Reference or kind is Template:
        return True
    if depth > DEPTH_MAX or not isinstance(value, (list, tuple, dict)):
        if isinstance(value, Referable):
            raise InvalidJobTypeError(f"{value!r} is a job and not its result: did you mean node.out?")
        return False  # deeper values are refused when they are written
    found = known.get(id(value))
    if found is None:
        found = known[id(value)] = False  # a container inside itself adds no marks
        items: Iterable[Any] = value.values() if isinstance(value, dict) else value
        for item in items:
            if type(item) not in PLAIN and _holds_mark(item, known, depth + 1):
                found = True
        known[id(value)] = found
    return found


def _checked(name: object, parameter: str) -> str:
    if not isinstance(name, str):
        raise InvalidJobTypeError(f"{parameter} must be str, got {type(name).__name__}: {shown(name)}")
    text = str.__str__(name)
    if not is_name(text):
        raise InvalidJobError(
            f"{parameter} in a template is 1 to 128 of A-Z a-z 0-9 _ -, no - first; got {shown(text)}"
        )
    return text


def _escaped(key: object) -> str:
    if not isinstance(key, str):
        raise PayloadError(f"a key is {type(key).__name__}, JSON keys are str")
    return str.__str__(key).replace("~", "~0").replace("/", "~1")
