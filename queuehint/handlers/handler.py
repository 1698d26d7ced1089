"""
Handlers: the function of a task, its signature, its place and the encoding of its arguments.

Everything that depends on the function alone is computed when it is registered: whether it takes the context, its
annotations, and the template of its queue hint, which is checked against the signature.
"""

from __future__ import annotations

import inspect
import string
import types
import typing
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from queuehint.errors import (
    HandlerError,
    InvalidHintError,
    InvalidHintTypeError,
    InvalidJobError,
    InvalidJobTypeError,
    PayloadError,
    shown,
)
from queuehint.handlers.arguments import checks_of
from queuehint.handlers.context import Children, Discard, Fail, JobContext, Retry, Snooze
from queuehint.handlers.error_rules import ErrorRules
from queuehint.handlers.remote import import_path
from queuehint.values.checks import check_name
from queuehint.values.hint import SEGMENT_BYTES_MAX, Claim, Mode, Path, parse_hint
from queuehint.values.outcome import RESULT_BYTES_MAX
from queuehint.values.policy import POLICY_OPTIONS
from queuehint.values.spec import PAYLOAD_BYTES_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from queuehint.handlers.codec import Codec

HintTemplate = typing.Union["Sequence[str]", "Callable[..., Sequence[str] | None]", None]

USING = POLICY_OPTIONS | {
    *("after", "check_arguments", "claims", "delay", "depends_on", "headers", "id", "key", "max_delay", "mode", "name"),
    *("on_conflict", "pool", "priority", "queue_hint", "retry", "run_at", "service", "tags", "user", "when"),
}
"""The options of `Job.using`, which are easily given as arguments of the job."""

_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_RESULT = "result"
_KNOWN_MAX = 16_384
_KNOWN_BYTES_MAX = 768 << 10
_DIGITS_MAX = SEGMENT_BYTES_MAX
_INT_END = 10**_DIGITS_MAX
_ANSWERS = (Retry, Snooze, Fail, Discard, Children)
_ALL_ARE_RETRIED = ErrorRules()
_is_texts = frozenset({str}).issuperset


class UnknownArgumentsError(InvalidJobTypeError):
    """A job has arguments that its handler does not know: a later release has enqueued it, most likely."""


class Handler:
    """
    One registered function.

    Args:
        name: the task's name, used in messages.
        function: async function or plain function; plain ones run in threads.
        rules: which of its exceptions end a job at once.
        upgrade: makes arguments that do not fit into such that do, both by name and without their annotations.
        process: whether it runs in a process of the worker's own.

    Raises:
        HandlerError: it is a generator function, not callable, or cannot run in a process of its own.
    """

    def __init__(
        self,
        name: str,
        function: Callable[..., Any],
        rules: ErrorRules = _ALL_ARE_RETRIED,
        upgrade: Callable[[dict[str, Any]], Mapping[str, Any]] | None = None,
        *,
        process: bool = False,
    ) -> None:
        if not callable(function):
            raise HandlerError(f"{shown(function)} is not callable; a job is made from a function")
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise HandlerError(f"{name} is a generator function; a handler returns one result")
        self.name = name
        self.function = function
        self.rules = rules
        self._upgrade = upgrade
        # An object may have an async `__call__`.
        self.is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)
        self.import_path = import_path(name, function, is_async=self.is_async) if process else None
        """Where a process of its own finds the function; None if it runs in the worker's."""
        parameters = list(inspect.signature(function).parameters.values())
        annotations = _annotations(function)
        self.wants_context = bool(parameters) and _is_context(parameters[0], annotations)
        if self.wants_context:
            del parameters[0]
        _refuse_odd(name, parameters, annotations)
        self.signature = inspect.Signature(parameters)
        self.parameters = {parameter.name: parameter for parameter in parameters}
        self.annotations = {name: annotations.get(name, Any) for name in self.parameters}
        for parameter in parameters:
            if parameter.kind in _VARIADIC:  # the annotation is that of one value
                self.annotations[parameter.name] = Any
        self.checks = checks_of(self.annotations, self.parameters)
        """How arguments of plain annotations are checked where a job is enqueued."""
        self.sure = {name: check.sure for name, check in self.checks.items()}
        """The types of which every value is right."""
        self._partly_plain: dict[frozenset[str], dict[str, Any]] = {}
        """The annotations with some taken as Any; kept, because a codec may know annotations by their identity."""
        self.result_annotations = {_RESULT: _without_answers(annotations.get("return", Any))}
        self._nothing: tuple[Codec, bytes] | None = None
        """None as an encoded result, by codec: the result of most handlers."""
        self._positional = tuple(p.name for p in parameters if p.kind in _POSITIONAL)
        self._required = sum(p.kind in _POSITIONAL and p.default is p.empty for p in parameters)
        self._simple = all(p.kind in _POSITIONAL for p in parameters)
        self._names = frozenset(self._positional) if self._simple else None

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """
        Return the arguments of a call by parameter name, defaults left out.

        Raises:
            InvalidJobTypeError: the call does not fit the signature.
        """
        if self._simple and not kwargs and self._required <= len(args) <= len(self._positional):
            return dict(zip(self._positional, args, strict=False))
        try:
            return dict(self.signature.bind(*args, **kwargs).arguments)
        except TypeError as error:
            options = [name for name in kwargs if name in USING and name not in self.parameters]
            way_out = f"; options go before: {self.name}.using({options[0]}=...)" if options else ""
            raise InvalidJobTypeError(f"{self.name}(): {error}{way_out}") from None

    def with_defaults(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments with the defaults of those left out."""
        complete = dict(arguments)
        for name, parameter in self.parameters.items():
            if name not in complete and parameter.default is not parameter.empty:
                complete[name] = parameter.default
        return complete

    def dumps(self, codec: Codec, arguments: Mapping[str, Any], plain: frozenset[str] = frozenset()) -> bytes:
        """
        Return the arguments as bytes.

        Args:
            plain: the names of those that hold templates: they are written as the JSON they are, whatever their
                annotation, by which they are read once they are filled.
        """
        annotations = self._annotations_less(plain) if plain else self.annotations
        return codec.dumps(arguments, annotations, bytes_max=PAYLOAD_BYTES_MAX)

    def _annotations_less(self, plain: frozenset[str]) -> dict[str, Any]:
        annotations = self._partly_plain.get(plain)
        if annotations is None:
            annotations = {name: Any if name in plain else kind for name, kind in self.annotations.items()}
            self._partly_plain[plain] = annotations
        return annotations

    def loads(self, codec: Codec, payload: bytes, *, upgrades: bool = True) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """
        Return the positional and keyword arguments of a call from bytes; those that do not fit are upgraded.

        Raises:
            PayloadError: they do not fit this handler's annotations.
            UnknownArgumentsError: there are some that the signature does not have.
            InvalidJobTypeError: the arguments do not fit the signature (any more).
        """
        try:
            values = codec.loads(payload, self.annotations)
            if self._names is not None:
                if tuple(values) == self._positional:
                    # As most are: written in the order of the signature, none left out.
                    return tuple(values.values()), {}
                if values.keys() == self._names:
                    return tuple([values[name] for name in self._positional]), {}
            if unknown := [name for name in values if name not in self.parameters]:
                raise UnknownArgumentsError(f"{self.name}(): unexpected arguments {', '.join(map(shown, unknown))}")
            args: list[Any] = []
            kwargs: dict[str, Any] = {}
            for name, parameter in self.parameters.items():
                if name not in values:
                    if parameter.default is parameter.empty and parameter.kind not in _VARIADIC:
                        raise InvalidJobTypeError(f"{self.name}(): missing argument {name!r}")
                    if parameter.kind in _POSITIONAL:
                        args.append(parameter.default)
                elif parameter.kind is parameter.VAR_POSITIONAL:
                    args.extend(values[name])
                elif parameter.kind is parameter.VAR_KEYWORD:
                    kwargs.update(values[name])
                elif parameter.kind is parameter.KEYWORD_ONLY:
                    kwargs[name] = values[name]
                else:
                    args.append(values[name])
            return tuple(args), kwargs
        except (PayloadError, InvalidJobTypeError):
            if self._upgrade is None or not upgrades:
                raise
        return self._loads_upgraded(codec, payload)

    def _loads_upgraded(self, codec: Codec, payload: bytes) -> tuple[tuple[Any, ...], dict[str, Any]]:
        assert self._upgrade is not None
        upgraded = self._upgrade(codec.loads(payload, {}))
        if not isinstance(upgraded, dict):
            raise HandlerError(f"upgrade of {self.name} must return a dict, got {type(upgraded).__name__}")
        annotations = dict.fromkeys(upgraded, Any)
        payload = codec.dumps(upgraded, annotations, bytes_max=PAYLOAD_BYTES_MAX)
        return self.loads(codec, payload, upgrades=False)

    def writes_none(self, codec: Codec) -> bool:
        """Return whether a codec is known to write None as a result."""
        return self._nothing is not None and self._nothing[0] is codec

    def dump_result(self, codec: Codec, result: Any) -> bytes:
        """Return a result as bytes."""
        if result is None and self._nothing is not None and self._nothing[0] is codec:
            return self._nothing[1]
        payload = codec.dumps({_RESULT: result}, self.result_annotations, bytes_max=RESULT_BYTES_MAX)
        if result is None:
            self._nothing = (codec, payload)
        return payload

    def load_result(self, codec: Codec, payload: bytes | None) -> Any:
        """Return a result from bytes; None for a job that stored none."""
        return None if payload is None else codec.loads(payload, self.result_annotations).get(_RESULT)


class _Recent:
    """The claims of the places used lately: the last 16 384, or 768 KiB of their text, and at most twice as many."""

    def __init__(self) -> None:
        self._bytes = 0
        """The text of the younger generation."""
        self.young: dict[tuple[Mode, Path], tuple[Claim, ...]] = {}
        self._old: dict[tuple[Mode, Path], tuple[Claim, ...]] = {}

    def get(self, place: tuple[Mode, Path]) -> tuple[Claim, ...] | None:
        """Return the value of a placeholder."""
        found = self.young.get(place)
        if found is None and (found := self._old.get(place)) is not None:
            self.put(place, found)
        return found

    def put(self, place: tuple[Mode, Path], claims: tuple[Claim, ...]) -> tuple[Claim, ...]:
        """Remember and return the claims of a place; the older generation is forgotten when the younger is full."""
        if len(self.young) >= _KNOWN_MAX or self._bytes >= _KNOWN_BYTES_MAX:
            self.young, self._old, self._bytes = {}, self.young, 0
        self._bytes += sum(map(len, place[1]))
        self.young[place] = claims
        return claims


class Placement:
    """
    Where the jobs of a task go: a template such as ``["{doc_id}", "{section}"]``, a callable, or nowhere.

    In a template each segment is text in which ``{name}`` stands for the argument of that name, which must be a str
    or an int; ``{{`` and ``}}`` are braces. A callable gets the arguments of the call by name, defaults included.

    Raises:
        HandlerError: the template names no parameter of the handler, or uses a format or attribute.
    """

    def __init__(self, hint: object, handler: Handler) -> None:
        self._handler = handler
        self._callable: Callable[..., object] | None = None
        self._fixed: Path | None = None
        self._segments: list[list[tuple[str, str | None]]] = []
        self._names: frozenset[str] = frozenset()
        self._plain: tuple[str, ...] | None = None
        """The names of a template whose segments are nothing but one placeholder each."""
        self._pick: Callable[[Mapping[str, Any]], tuple[Any, ...]] = lambda _arguments: ()
        """Gives the arguments of these names."""
        self._known = _Recent()
        if hint is None:
            return
        if callable(hint):
            self._callable = hint
            return
        path = parse_hint(hint)
        assert path is not None
        self._segments = [
            _parse(segment, handler, "queue_hint segment", "; pass a callable for odd cases") for segment in path
        ]
        self._names = frozenset(name for parts in self._segments for _, name in parts if name is not None)
        if not self._names:
            self._fixed = tuple("".join(text for text, _ in parts) for parts in self._segments)
        elif all(len(parts) == 1 and not parts[0][0] for parts in self._segments):
            names = self._plain = tuple(name for parts in self._segments for _, name in parts if name is not None)
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
                found = known.young.get((mode, place)) or known.get((mode, place))
                if found is not None:
                    return found
                # As a list of texts it says what the filled template would.
                return known.put((mode, place), (Claim(parse_hint(place) or (), mode),))
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
        if not self._segments:
            return self._fixed
        if self._names:
            if not self._names <= arguments.keys():
                arguments = self._handler.with_defaults(arguments)
            return parse_hint([self._fill(parts, arguments) for parts in self._segments])
        return self._fixed

    def _fill(self, parts: list[tuple[str, str | None]], arguments: Mapping[str, Any]) -> str:
        filled = ""
        for text, name in parts:
            filled += text
            if name is not None:
                value = arguments.get(name)
                if type(value) is not str:
                    if type(value) is not int and not isinstance(value, str):
                        raise InvalidHintTypeError(
                            f"queue_hint: argument {name!r} must be str or int to name a place, "
                            f"got {type(value).__name__}"
                        )
                    value = str.__str__(value) if isinstance(value, str) else _digits(name, value)
                filled += value
        return filled


class UserTemplate:
    """
    Whose the jobs of a task are: a text such as ``"{author}"``, filled from the arguments of a call as a place is.

    Raises:
        HandlerError: it names no parameter of the handler, or uses a format or attribute.
    """

    def __init__(self, text: str, handler: Handler) -> None:
        self._handler = handler
        self._parts = _parse(text, handler, "user")
        self._names = frozenset(name for _, name in self._parts if name is not None)
        self.fixed = None if self._names else check_name("".join(text for text, _ in self._parts), parameter="user")
        """The user, if it is the same for all calls."""

    def user(self, arguments: Mapping[str, Any]) -> str | None:
        """
        Return the user of a call's job; None where the text is but a placeholder, and its argument None.

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
            if type(value) is not int and not isinstance(value, str):
                kind = type(value).__name__
                raise InvalidJobTypeError(f"user: argument {name!r} must be str or int to name a user, got {kind}")
            if not isinstance(value, str) and abs(value) >= _INT_END:
                raise InvalidJobError(f"user: argument {name!r} is an int of more than {_DIGITS_MAX} digits")
            filled += str.__str__(value) if isinstance(value, str) else str(value)
        return check_name(filled, parameter="user")


def _parse(template: str, handler: Handler, parameter: str, way_out: str = "") -> list[tuple[str, str | None]]:
    """Return the parts of a template: text, and the name of the argument after it, if there is one."""
    try:
        fields = list(string.Formatter().parse(template))
    except ValueError as error:
        raise HandlerError(f"{parameter} {template!r}: {error}") from None
    parts: list[tuple[str, str | None]] = []
    for text, name, spec, conversion in fields:
        if name is not None and (spec or conversion or not name.isidentifier()):
            raise HandlerError(
                f"{parameter} {template!r}: write {{name}} for an argument; attributes, indexes and formats are not "
                f"filled in{way_out}"
            )
        parameters = handler.parameters
        if name is not None and (name not in parameters or parameters[name].kind in _VARIADIC):
            known = ", ".join(known for known in parameters if parameters[known].kind not in _VARIADIC) or "none"
            raise HandlerError(f"{parameter} {template!r}: {handler.name} has no parameter {name!r}; it has {known}")
        parts.append((text, name))
    return parts


def _digits(name: str, value: int) -> str:
    # Of more digits Python writes none, and a segment has room for fewer.
    if abs(value) >= _INT_END:
        raise InvalidHintError(f"queue_hint: argument {name!r} is an int of more than {_DIGITS_MAX} digits")
    return str(value)


def _annotations(function: Callable[..., Any]) -> dict[str, Any]:
    """Return resolved annotations; those that cannot be resolved are taken as Any."""
    target = inspect.unwrap(function)
    if not inspect.isroutine(target):
        target = type(target).__call__
    try:
        return typing.get_type_hints(target, include_extras=True)
    except Exception:  # noqa: BLE001 - a name that exists for type checkers only, a forward reference
        raw: dict[str, Any] = getattr(target, "__annotations__", {})
        return {name: hint if _names_context(hint) else Any for name, hint in raw.items()}


def _without_answers(annotation: Any) -> Any:
    """Return a result's annotation less the answers a handler may give instead: ``int | Retry`` is read as int."""
    if annotation in _ANSWERS:
        return Any
    if typing.get_origin(annotation) not in (typing.Union, types.UnionType):
        return annotation
    kinds = tuple([kind for kind in typing.get_args(annotation) if kind not in _ANSWERS])
    return typing.Union[kinds] if kinds else Any  # noqa: UP007 - made of as many as are left


def _refuse_odd(name: str, parameters: list[inspect.Parameter], annotations: Mapping[str, Any]) -> None:
    """
    Refuse parameters that no call can give.

    Raises:
        HandlerError: the function is a method of a class, or does not take its context first.
    """
    if parameters and parameters[0].name == "self" and "self" not in annotations:
        raise HandlerError(f"{name} is a method, and `self` cannot be enqueued; make it a function, or static")
    for parameter in parameters:
        annotation = annotations.get(parameter.name)
        if _names_context(annotation):
            raise HandlerError(f"{name}: the JobContext has to be the first parameter, not {parameter.name!r}")


def _is_context(parameter: inspect.Parameter, annotations: Mapping[str, Any]) -> bool:
    annotation = annotations.get(parameter.name)
    if annotation is None:
        return parameter.name == "ctx"
    return _names_context(annotation)


def _names_context(annotation: Any) -> bool:
    """Return whether an annotation is `JobContext`, alone or with the type of its state; also one left a text."""
    if isinstance(annotation, str):
        return annotation.partition("[")[0] == "JobContext"
    return annotation is JobContext or typing.get_origin(annotation) is JobContext
