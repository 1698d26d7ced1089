"""
Place and user of a task's jobs: templates that are filled from the arguments of a call.

A template is checked against the signature of the handler when the task is registered.
"""

from __future__ import annotations

import inspect
import string
import typing
import uuid
from datetime import date, datetime
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from queuehint.errors import (
    HandlerError,
    InvalidHintError,
    InvalidHintTypeError,
    InvalidJobError,
    InvalidJobTypeError,
    shown,
)
from queuehint.handlers.arguments import called
from queuehint.handlers.conversion.annotations import bare, is_union
from queuehint.schema.checks import check_name
from queuehint.values.hint import (
    SEGMENT_BYTES_MAX,
    Claim,
    Mode,
    Path,
    each_claim,
    normalise,
    parse_hint,
    parse_mode,
    parse_places,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from queuehint.handlers.handler import Handler

HintTemplate = typing.Union["Sequence[str]", "Callable[..., Sequence[str] | None]", None]
ClaimTemplate = typing.Union[Claim, "Sequence[str]", "tuple[Sequence[str], Mode]"]
ClaimTemplates = typing.Union["Sequence[ClaimTemplate]", "Callable[..., Sequence[ClaimTemplate] | None]", None]
PLACES_TWICE = "give queue_hint or claims, not both"
MODE_OF_NONE = "mode is that of queue_hint, each of claims has its own: ([...], 'shared')"

_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_KNOWN_MAX = 16_384
_KNOWN_BYTES_MAX = 768 << 10
_DIGITS_MAX = SEGMENT_BYTES_MAX
_INT_END = 10**_DIGITS_MAX
_TOO_LONG = "9" * (_DIGITS_MAX + 1)
_NAMES = (str, int, uuid.UUID, date)
_NAMING = "str, int, UUID or date"
_is_texts = frozenset({str}).issuperset


class _Recent:
    """The claims of recent places: the last 16 384, or 768 KiB of their text, and at most twice as many."""

    def __init__(self) -> None:
        self._bytes = 0
        """The text of the younger generation."""
        self.young: dict[tuple[Mode, Path], tuple[Claim, ...]] = {}
        self._old: dict[tuple[Mode, Path], tuple[Claim, ...]] = {}

    def get(self, place: tuple[Mode, Path]) -> tuple[Claim, ...] | None:
        """Return the claims of a recent place, None for another place."""
        found = self.young.get(place)
        if found is None and (found := self._old.get(place)) is not None:
            self.put(place, found)
        return found

    def of_texts(self, place: tuple[Mode, tuple[str, ...]]) -> tuple[Claim, ...]:
        """
        Return the claims of a place outside of the younger generation, and remember them.

        Args:
            place: its path may be no valid one.

        Raises:
            InvalidHintError: it is not.
        """
        found = self._old.get(place)
        if found is not None:
            return self.put(place, found)
        mode, path = place
        text = "".join(path)
        size = len(text)
        # Of that length in all they are neither too long nor too many; `parse_hint` names what is wrong with others.
        if not (size <= SEGMENT_BYTES_MAX and text.isascii() and text.isprintable() and "" not in path):
            return self.put(place, (Claim(parse_hint(path) or (), mode),))
        if self._bytes >= _KNOWN_BYTES_MAX or len(self.young) >= _KNOWN_MAX:
            self._forget()
        self._bytes += size
        claims = self.young[place] = (Claim(path, mode),)
        return claims

    def put(self, place: tuple[Mode, Path], claims: tuple[Claim, ...]) -> tuple[Claim, ...]:
        """Remember and return the claims of a place."""
        if self._bytes >= _KNOWN_BYTES_MAX or len(self.young) >= _KNOWN_MAX:
            self._forget()
        self._bytes += sum(map(len, place[1]))
        self.young[place] = claims
        return claims

    def _forget(self) -> None:
        """Forget the older generation, as the younger is full."""
        self.young, self._old, self._bytes = {}, self.young, 0


class _PathTemplate:
    """
    A path whose segments are text in which ``{name}`` stands for the argument of this name.

    Args:
        path: of up to 64 segments.
        parameter: what it is called in messages, such as ``"queue_hint"``.
        way_out: what to write where a template cannot be filled.

    Raises:
        HandlerError: as `Placement`.
    """

    def __init__(self, path: Path, handler: Handler, parameter: str, way_out: str) -> None:
        self._handler = handler
        self._parameter = parameter
        self.segments = [_parse(segment, handler, f"{parameter} segment", way_out) for segment in path]
        self.names = frozenset(name for parts in self.segments for _, name in parts if name is not None)
        self._fixed: Path = () if self.names else tuple("".join(text for text, _ in parts) for parts in self.segments)

    def path(self, arguments: Mapping[str, Any]) -> Path:
        """
        Return the path of a call's job.

        Raises:
            InvalidHintError: an argument names no place, or the path is not valid.
        """
        if not self.names:
            return self._fixed
        if not self.names <= arguments.keys():
            arguments = self._handler.with_defaults(arguments)
        filled = parse_hint([self._fill(parts, arguments) for parts in self.segments], parameter=self._parameter)
        assert filled is not None
        return filled

    def _fill(self, parts: list[tuple[str, str | None]], arguments: Mapping[str, Any]) -> str:
        filled = ""
        for text, name in parts:
            filled += text
            if name is not None:
                value = arguments.get(name)
                if type(value) is not str:
                    found = _text(value)
                    if found is None:
                        raise InvalidHintTypeError(
                            f"{self._parameter}: argument {name!r} must be {_NAMING} to name a place, got "
                            f"{type(value).__name__}; pass a callable for another type"
                        )
                    if len(found) > _DIGITS_MAX and isinstance(value, int):
                        raise InvalidHintError(
                            f"{self._parameter}: argument {name!r} is an int of more than {_DIGITS_MAX} digits"
                        )
                    value = found
                filled += value
        return filled


class Placement:
    """
    The place of a task's jobs: a template such as ``["{doc_id}", "{section}"]``, a callable, or no place.

    In a template each segment is text in which ``{name}`` stands for the argument of that name, which must be a str,
    an int, a UUID or a date; ``{{`` and ``}}`` are braces. A callable gets the arguments of the call by name, defaults
    included.

    Raises:
        HandlerError: the template names no parameter of the handler, or one whose annotation has no such values, or
            uses a format or attribute.
    """

    has_modes = False
    """Whether each claim has a mode of its own, whatever the option *mode* says."""

    def __init__(self, hint: object, handler: Handler) -> None:
        self._handler = handler
        self._callable: Callable[..., object] | None = None
        self._template: _PathTemplate | None = None
        self._plain: tuple[str, ...] | None = None
        """The names of a template whose segments are nothing but one placeholder each."""
        self._pick: Callable[[Mapping[str, Any]], tuple[Any, ...]] = lambda _arguments: ()
        """Gives the arguments of these names."""
        self._known = _Recent()
        if callable(hint):
            self._callable = hint
            return
        path = parse_hint(hint)
        if path is None:
            return
        way_out = "pass a callable, such as queue_hint=lambda doc: [str(doc)]"
        self._template = _PathTemplate(path, handler, "queue_hint", way_out)
        segments = self._template.segments
        if self._template.names and all(len(parts) == 1 and not parts[0][0] for parts in segments):
            names = self._plain = tuple(name for parts in segments for _, name in parts if name is not None)
            # Of one name it would give no tuple.
            self._pick = itemgetter(*names) if len(names) > 1 else lambda arguments: (arguments[names[0]],)

    def claims(self, arguments: Mapping[str, Any], mode: Mode) -> tuple[Claim, ...]:
        """
        Return the claims of a call's job: one, or none without a place. Jobs at one place share the value.

        Raises:
            InvalidHintError: the template or the callable gives no valid hint.
        """
        known = self._known
        if self._plain is not None:
            place: tuple[Any, ...]
            try:
                place = self._pick(arguments)
            except KeyError:  # a default, to be filled in
                place = (None,)
            if _is_texts(map(type, place)):
                # As a list of texts it says what the filled template would.
                return known.young.get((mode, place)) or known.of_texts((mode, place))
        path = self.path(arguments)
        if path is None:
            return ()
        return known.get((mode, path)) or known.put((mode, path), (Claim(path, mode),))

    def path(self, arguments: Mapping[str, Any]) -> Path | None:
        """
        Return the path of a call's job.

        Raises:
            InvalidHintError: the template or the callable gives no valid hint.
        """
        if self._callable is not None:
            return parse_hint(self._callable(**self._handler.with_defaults(arguments)))
        return None if self._template is None else self._template.path(arguments)


class SeveralPlaces:
    """
    The several places of a task's jobs: up to 64 templates with a mode each, or a callable.

    Templates are those of `Placement`. A callable gets the arguments of the call by name, defaults included, and
    returns what `Job.using` takes as *claims*; None is nowhere.

    Raises:
        InvalidHintError, InvalidHintTypeError: these are no claims, or too many; naming the first by its index.
        HandlerError: as `Placement`.
    """

    has_modes = True

    def __init__(self, claims: object, handler: Handler) -> None:
        self._handler = handler
        self._callable: Callable[..., object] | None = None
        self._templates: list[tuple[_PathTemplate, Mode]] = []
        self._fixed: tuple[Claim, ...] | None = None
        """The claims, if they are the same for all calls."""
        if callable(claims):
            self._callable = claims
            return
        way_out = 'pass a callable, such as claims=lambda docs: [["docs", str(doc)] for doc in docs]'
        self._templates = [
            (
                _PathTemplate(claim.path, handler, f"claims[{index}]", way_out),
                parse_mode(claim.mode, parameter=f"claims[{index}] mode"),
            )
            for index, claim in enumerate(each_claim(claims))
        ]
        if not any(template.names for template, _ in self._templates):
            self._fixed = self._filled({})

    def claims(self, arguments: Mapping[str, Any], mode: Mode) -> tuple[Claim, ...]:
        """
        Return the claims of a call's job, as those of `Job.using` that are these.

        Raises:
            InvalidHintError: an argument names no place, or the callable gives no claims.
        """
        if self._callable is not None:
            given = self._callable(**self._handler.with_defaults(arguments))
            return () if given is None else parse_places(given)
        return self._filled(arguments) if self._fixed is None else self._fixed

    def _filled(self, arguments: Mapping[str, Any]) -> tuple[Claim, ...]:
        return normalise([Claim(template.path(arguments), mode) for template, mode in self._templates])


def placement_of(handler: Handler, *, queue_hint: object, claims: object, has_mode: bool) -> Placement | SeveralPlaces:
    """
    Return the placement of a task's jobs, by its options.

    Args:
        has_mode: the option *mode* is given too.

    Raises:
        InvalidJobTypeError: these options are not given together.
        InvalidHintError, HandlerError: as `Placement` and `SeveralPlaces`.
    """
    if claims is None:
        return Placement(queue_hint, handler)
    if queue_hint is not None:
        raise InvalidJobTypeError(PLACES_TWICE)
    if has_mode:
        raise InvalidJobTypeError(MODE_OF_NONE)
    return SeveralPlaces(claims, handler)


class UserTemplate:
    """
    The user of a task's jobs: a text such as ``"{author}"``, filled from the arguments of a call like a place.

    Raises:
        HandlerError: it names no parameter of the handler, or uses a format or attribute.
    """

    def __init__(self, text: str, handler: Handler) -> None:
        self._handler = handler
        self._parts = _parse(text, handler, "user", "give it by using(user=...)")
        self._names = frozenset(name for _, name in self._parts if name is not None)
        self.fixed = None if self._names else check_name("".join(text for text, _ in self._parts), parameter="user")
        """The user, if it is the same for all calls."""

    def user(self, arguments: Mapping[str, Any]) -> str | None:
        """
        Return the user of a call's job. Return None if the template is one placeholder whose argument is None.

        Raises:
            InvalidJobError, InvalidJobTypeError: the arguments name no user.
        """
        if not self._names <= arguments.keys():
            arguments = self._handler.with_defaults(arguments)
        filled = ""
        for text, name in self._parts:
            filled += text
            if name is None:
                continue
            value = arguments.get(name)
            if value is None and len(self._parts) == 1 and not text:
                return None
            found = _text(value)
            if found is None:
                kind = type(value).__name__
                raise InvalidJobTypeError(
                    f"user: argument {name!r} must be {_NAMING} to name a user, got {kind}; give it by using(user=...)"
                )
            if len(found) > _DIGITS_MAX and isinstance(value, int):
                raise InvalidJobError(f"user: argument {name!r} is an int of more than {_DIGITS_MAX} digits")
            filled += found
        return check_name(filled, parameter="user")


def parse_user(user: object, handler: Handler) -> str | UserTemplate | None:
    """
    Return the user template of a task, by its option ``user``.

    Raises:
        InvalidJobTypeError: it is no text.
        HandlerError: as `UserTemplate`.
    """
    if user is None:
        return None
    if not isinstance(user, str):
        raise InvalidJobTypeError(f"user must be str, got {type(user).__name__}: {shown(user)}")
    template = UserTemplate(user, handler)
    return template.fixed or template


def _text(value: Any) -> str | None:
    """Return the text of a value for a place or a user. Return None for a value of another type."""
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int) and not isinstance(value, bool):
        # Of more digits Python writes none, and a segment has room for fewer.
        return int.__repr__(value) if abs(value) < _INT_END else _TOO_LONG
    if isinstance(value, uuid.UUID):
        return uuid.UUID.__str__(value)
    if isinstance(value, date) and not isinstance(value, datetime):
        return date.isoformat(value)
    return None


def _may_name(annotation: Any) -> bool:
    """Return whether a value of an annotation may name a place or a user."""
    kind = bare(annotation)
    if kind is Any:
        return True
    if is_union(kind):
        return any(map(_may_name, typing.get_args(kind)))
    if typing.get_origin(kind) is typing.Literal:
        return any(_text(each) is not None for each in typing.get_args(kind))
    if not isinstance(kind, type):
        return typing.get_origin(kind) is None and kind is not None
    if issubclass(kind, (bool, datetime)):
        return False
    try:
        return issubclass(kind, _NAMES) or any(issubclass(each, kind) for each in _NAMES)
    except TypeError:  # a protocol that cannot be asked
        return True


def _parse(template: str, handler: Handler, parameter: str, way_out: str) -> list[tuple[str, str | None]]:
    """Return the parts of a template: text, and the name of the argument after it, if any."""
    try:
        fields = list(string.Formatter().parse(template))
    except ValueError as error:
        raise HandlerError(f"{parameter} {template!r}: {error}") from None
    parts: list[tuple[str, str | None]] = []
    for text, name, spec, conversion in fields:
        if name is not None and (spec or conversion or not name.isidentifier()):
            raise HandlerError(
                f"{parameter} {template!r}: write {{name}} for an argument; attributes, indexes and formats are not "
                f"filled in; {way_out}"
            )
        parameters = handler.parameters
        if name is not None and (name not in parameters or parameters[name].kind in _VARIADIC):
            known = ", ".join(known for known in parameters if parameters[known].kind not in _VARIADIC) or "none"
            raise HandlerError(f"{parameter} {template!r}: {handler.name} has no parameter {name!r}; it has {known}")
        if name is not None and not _may_name(handler.annotations[name]):
            kind = called(handler.annotations[name])
            what = "user" if parameter == "user" else "place"
            must = f"{name!r} must be {_NAMING} to name a {what}, and is annotated {kind}"
            raise HandlerError(f"{parameter} {template!r}: {must}; {way_out}")
        parts.append((text, name))
    return parts
