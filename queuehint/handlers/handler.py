"""
Handlers: the function of a task, its signature and the encoding of its arguments.

Everything that depends on the function alone is computed when it is registered: whether it takes the context, and its
annotations.
"""

from __future__ import annotations

import hashlib
import inspect
import re
import types
import typing
from typing import TYPE_CHECKING, Any

from queuehint.errors import (
    HandlerError,
    InvalidJobTypeError,
    PayloadError,
    UnknownToReleaseError,
    shown,
)
from queuehint.handlers.arguments import Check, checks_of, holds_literal, refuse_unread
from queuehint.handlers.codec import JsonCodec, dump_identified, is_deterministic, load_object
from queuehint.handlers.context import Children, Discard, Fail, JobContext, Retry, Snooze
from queuehint.handlers.conversion.annotations import Unresolved, is_union, resolved
from queuehint.handlers.conversion.plain_json import encode_flat
from queuehint.handlers.error_rules import ErrorRules
from queuehint.handlers.remote import import_path
from queuehint.schema.checks import check_name
from queuehint.values.outcome import RESULT_BYTES_MAX
from queuehint.values.policy import POLICY_OPTIONS
from queuehint.values.spec import JOB_OPTIONS, PAYLOAD_BYTES_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from queuehint.handlers.codec import Codec

    Upgrade = (
        Callable[[dict[str, Any]], Mapping[str, Any]] | Callable[[dict[str, Any], dict[str, str]], Mapping[str, Any]]
    )

USING = POLICY_OPTIONS | JOB_OPTIONS | {"after", "check_arguments", "mode", "queue_hint", "retry", "when"}
"""The options of `Job.using`, which are easily given as arguments of the job."""

_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_TYPE_PARAMETERS = (typing.TypeVar, typing.ParamSpecArgs, typing.ParamSpecKwargs)
_RESULT = "result"
_ANSWERS = (Retry, Snooze, Fail, Discard, Children)
_ALL_ARE_RETRIED = ErrorRules()


class Handler:
    """
    One registered function.

    Args:
        name: the task's name, used in messages.
        function: async function or plain function; plain ones run in threads.
        rules: which of its exceptions end a job at once.
        upgrade: makes arguments that do not fit into such that do, both by name and without their annotations. With a
            second parameter it renames stored steps too, and is called for each attempt of a job that has any.
        process: whether it runs in a process of the worker's own.

    Raises:
        HandlerError: it is a generator function, not callable, or cannot run in a process of its own.
    """

    def __init__(
        self,
        name: str,
        function: Callable[..., Any],
        rules: ErrorRules = _ALL_ARE_RETRIED,
        upgrade: Callable[..., Mapping[str, Any]] | None = None,
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
        self.upgrade = upgrade
        self.renames_steps = upgrade is not None and _takes_two(upgrade)
        # An object may have an async `__call__`.
        self.is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)
        self.import_path = import_path(name, function, is_async=self.is_async) if process else None
        """Where a process of its own finds the function; None if it runs in the worker's."""
        parameters = list(inspect.signature(function).parameters.values())
        annotations = resolved(function)
        self.wants_context = bool(parameters) and _is_context(parameters[0], annotations)
        if self.wants_context:
            del parameters[0]
        _refuse_odd(name, parameters, annotations)
        self.signature = inspect.Signature(parameters)
        self.parameters = {parameter.name: parameter for parameter in parameters}
        self.checks: dict[str, Check] = {}
        """How arguments of plain annotations are checked where a job is enqueued."""
        self.sure: dict[str, frozenset[type]] = {}
        """The types of which every value is right."""
        self.right: set[tuple[Any, ...]] = set()
        """Names and types of arguments of which every value is right, and none a mark: what jobs have found."""
        self.is_open = False
        """Whether annotations are to be looked at once more before the first use: what they name may come yet."""
        self._take(annotations)
        self._nothing: tuple[Codec, bytes] | None = None
        """None as an encoded result, by codec: the result of most handlers."""
        self._positional = tuple(p.name for p in parameters if p.kind in _POSITIONAL)
        self._most = len(self._positional)
        self._required = sum(p.kind in _POSITIONAL and p.default is p.empty for p in parameters)
        self._simple = all(p.kind in _POSITIONAL for p in parameters)
        self._names = frozenset(self._positional) if self._simple else None

    def _take(self, annotations: Mapping[str, Any]) -> None:
        """Record the annotations of the function. Unresolved annotations count as Any."""
        unresolved = {name: hint for name, hint in annotations.items() if isinstance(hint, Unresolved)}
        found = {name: Any if name in unresolved else hint for name, hint in annotations.items()}
        self.annotations = {
            name: _of_all(parameter, found.get(name, Any)) for name, parameter in self.parameters.items()
        }
        self.unresolved = {name: unresolved[name] for name in self.annotations if name in unresolved}
        """The annotations of parameters that cannot be resolved, and say nothing of what travels."""
        self.result_annotations = {_RESULT: _without_answers(found.get("return", Any))}
        self._result_unresolved = unresolved.get("return")
        self.is_open = self.is_open or bool(unresolved)
        self.checks.update(checks_of(self.annotations, self.parameters))
        self.right.clear()
        self.sure.update({name: check.sure for name, check in self.checks.items()})
        self._literals = {name: check for name, check in self.checks.items() if holds_literal(check.annotation)}
        self._plain_by: tuple[Codec | None, JsonCodec | None] = None, None
        """The codec that was used last, and again if it writes and reads all arguments as the JSON they are."""
        self._partly_plain: dict[frozenset[str], dict[str, Any]] = {}
        """The annotations with some taken as Any; kept, because a codec may know annotations by their identity."""

    def check_annotations(self, codec: Codec, *, is_declared_now: bool = False) -> None:
        """
        Check that a codec can write and read arguments and results. Undefined names are checked again later.

        A parameter with a default may be of a type that has no JSON: an argument is refused when it is given.

        Raises:
            PayloadError: it cannot; *path* names the parameter, or the result.
        """
        check = getattr(codec, "check_annotations", None)
        is_open = self.is_open and is_declared_now
        if check is not None:
            optional = {
                name
                for name, each in self.parameters.items()
                if each.default is not each.empty or each.kind in _VARIADIC
            }
            for name, hint in self.annotations.items():
                try:
                    check({name: hint})
                except NameError:
                    is_open = True
                except PayloadError:
                    if name not in optional or is_union(hint):
                        raise
            try:
                check(self.result_annotations)
            except NameError:
                is_open = True
        self.is_open = is_open

    def resolve(self) -> None:
        """Resolve the annotations that were unresolved when the task was declared, as far as possible now."""
        if self.unresolved or self._result_unresolved is not None:
            self._take(resolved(self.function))

    def settle(self, codec: Codec) -> None:
        """
        Resolve and check the annotations left over from the declaration, before any work is done.

        Raises:
            PayloadError: the annotation of the result cannot be resolved, or values of one cannot be written or read.
        """
        if not self.is_open:
            return
        self.resolve()
        self.check_annotations(codec)
        if self._result_unresolved is not None:
            self.is_open = True
            raise PayloadError(f"the result of {self.name}() has no type: {self._result_unresolved}")

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """
        Return the arguments of a call by parameter name, defaults left out.

        Raises:
            InvalidJobTypeError: the call does not fit the signature.
        """
        if self._simple and not kwargs and self._required <= len(args) <= self._most:
            return dict(zip(self._positional, args, strict=False))
        try:
            return dict(self.signature.bind(*args, **kwargs).arguments)
        except TypeError as error:
            options = [name for name in kwargs if name in USING and name not in self.parameters]
            way_out = f"; options go before: {self.name}.using({options[0]}=...)" if options else ""
            raise InvalidJobTypeError(f"{self.name}(): {error}{way_out}") from None

    def with_defaults(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments, completed by defaults."""
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
        if self.is_open:
            self.settle(codec)
        known, plain_codec = self._plain_by
        if codec is not known:
            plain_codec = self._see_codec(codec)
        try:
            if plain_codec is not None:
                flat = encode_flat(arguments, PAYLOAD_BYTES_MAX)
                return flat or plain_codec.dumps_nested(arguments, bytes_max=PAYLOAD_BYTES_MAX)
            annotations = self._annotations_less(plain) if plain else self.annotations
            return codec.dumps(arguments, annotations, bytes_max=PAYLOAD_BYTES_MAX)
        except PayloadError as error:
            self._name_unresolved(error)
            raise

    def _see_codec(self, codec: Codec) -> JsonCodec | None:
        """Record whether a codec writes and reads all arguments as plain JSON. Return the codec if so."""
        plain_codec = codec if type(codec) is JsonCodec and codec.is_plain(self.annotations) else None
        self._plain_by = codec, plain_codec
        return plain_codec

    def _name_unresolved(self, error: PayloadError) -> None:
        """
        Name the unresolved annotation in the error for an argument refused for lack of one.

        Raises:
            PayloadError: that is why.
        """
        for name, annotation in self.unresolved.items():
            if re.match(rf"\$\.{name}(?!\w)", error.path):
                what = error.problem.partition(":")[0]
                raise PayloadError(f"{what}: its {annotation}", path=error.path) from None

    def dumps_identified(
        self, codec: Codec, arguments: Mapping[str, Any], plain: frozenset[str] = frozenset()
    ) -> tuple[bytes, tuple[str, ...]]:
        """Return the arguments as `dumps`, and the digests by which they are compared."""
        if self.is_open:
            self.settle(codec)
        annotations = self._annotations_less(plain) if plain else self.annotations
        try:
            payload, digests = dump_identified(codec, arguments, annotations, bytes_max=PAYLOAD_BYTES_MAX)
        except PayloadError as error:
            self._name_unresolved(error)
            raise
        return payload, tuple([hashlib.sha256(digest).hexdigest() for digest in digests])

    def _annotations_less(self, plain: frozenset[str]) -> dict[str, Any]:
        annotations = self._partly_plain.get(plain)
        if annotations is None:
            annotations = {name: Any if name in plain else kind for name, kind in self.annotations.items()}
            self._partly_plain[plain] = annotations
        return annotations

    def loads(
        self, codec: Codec, payload: bytes, *, upgrades: bool = True, steps: dict[str, str] | None = None
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """
        Return the positional and keyword arguments of a call from bytes. Arguments that do not fit are upgraded.

        Args:
            upgrades: whether they are.
            steps: the names of stored steps, each as itself; an upgrade that renames steps puts others in their places.

        Raises:
            PayloadError: they do not fit this handler's annotations.
            UnknownToReleaseError: they have what this release does not know: a parameter, or a part of a value.
            InvalidJobTypeError: the arguments do not fit the signature (any more).
        """
        if self.is_open:
            self.settle(codec)
        if steps and self.renames_steps:
            return self._loads_upgraded(codec, payload, None, steps)
        try:
            try:
                known, plain_codec = self._plain_by
                if codec is not known:
                    plain_codec = self._see_codec(codec)
                if plain_codec is not None:
                    values = load_object(payload)
                else:
                    values = codec.loads(payload, self.annotations)
            except UnknownToReleaseError:
                raise
            except PayloadError:
                # A value of another type beside a parameter of a later release is of that release too.
                self._refuse_unknown(codec.loads(payload, {}))
                raise
            if self._literals:
                self._refuse_other_literals(values)
            if self._names is not None:
                if tuple(values) == self._positional:
                    # As most are: written in the order of the signature, none left out.
                    return tuple(values.values()), {}
                if values.keys() == self._names:
                    return tuple([values[name] for name in self._positional]), {}
            self._refuse_unknown(values)
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
        except (PayloadError, InvalidJobTypeError) as error:
            if self.upgrade is None or not upgrades:
                raise
            misfit = error
        return self._loads_upgraded(codec, payload, misfit)

    def _refuse_unknown(self, values: Mapping[str, Any]) -> None:
        if unknown := [name for name in values if name not in self.parameters]:
            raise UnknownToReleaseError(f"{self.name}() has no parameter {', '.join(map(shown, unknown))}")

    def _refuse_other_literals(self, values: Mapping[str, Any]) -> None:
        """
        Check arguments against plain annotations with a Literal, which a later release may extend.

        Raises:
            UnknownToReleaseError: a value of a literal's type is none of those that the annotation has.
            PayloadError: a value does not fit otherwise.
        """
        for name, check in self._literals.items():
            if name in values and not check.fits(values[name]):
                refuse_unread(name, values[name], check)

    def _loads_upgraded(
        self, codec: Codec, payload: bytes, misfit: Exception | None, steps: dict[str, str] | None = None
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        assert self.upgrade is not None
        arguments = codec.loads(payload, {})
        steps = {} if steps is None else steps
        try:
            upgraded = self.upgrade(arguments, steps) if self.renames_steps else self.upgrade(arguments)
        except Exception as error:
            if isinstance(misfit, UnknownToReleaseError):
                # It is of a later release, whose arguments the upgrade of this one was not written for.
                raise misfit from error
            raise
        if not isinstance(upgraded, dict):
            raise HandlerError(f"upgrade of {self.name} must return a dict, got {type(upgraded).__name__}")
        for step in steps.values():
            check_name(step, parameter=f"upgrade of {self.name}: the name of a step")
        payload = codec.dumps(upgraded, {}, bytes_max=PAYLOAD_BYTES_MAX)
        return self.loads(codec, payload, upgrades=False)

    def writes_none(self, codec: Codec) -> bool:
        """Return whether a codec is known to write None as a result."""
        return self._nothing is not None and self._nothing[0] is codec

    def dump_result(self, codec: Codec, result: Any) -> bytes:
        """Return a result as bytes."""
        if result is None and self._nothing is not None and self._nothing[0] is codec:
            return self._nothing[1]
        if self.is_open:
            self.settle(codec)
        payload = codec.dumps({_RESULT: result}, self.result_annotations, bytes_max=RESULT_BYTES_MAX)
        # Of a codec that encrypts each None is another text.
        if result is None and is_deterministic(codec):
            self._nothing = (codec, payload)
        return payload

    def load_result(self, codec: Codec, payload: bytes | None) -> Any:
        """Return a result from bytes. Return None for a job without a stored result."""
        if self.is_open:
            self.settle(codec)
        return None if payload is None else codec.loads(payload, self.result_annotations).get(_RESULT)


def _takes_two(function: Callable[..., Any]) -> bool:
    """Return whether a function can be called with two positional arguments."""
    try:
        inspect.signature(function).bind(None, None)
    except (TypeError, ValueError):
        return False
    return True


def _without_answers(annotation: Any) -> Any:
    """Return a result's annotation without the answers of a handler: ``int | Retry`` is read as int."""
    if annotation in _ANSWERS or annotation in (typing.Never, typing.NoReturn):
        return Any
    if typing.get_origin(annotation) not in (typing.Union, types.UnionType):
        return annotation
    kinds = tuple([kind for kind in typing.get_args(annotation) if kind not in _ANSWERS])
    return typing.Union[kinds] if kinds else Any  # noqa: UP007 - made of as many as are left


def _of_all(parameter: inspect.Parameter, annotation: Any) -> Any:
    """Return the annotation of all values of a parameter. A variadic annotation is of each value."""
    if parameter.kind not in _VARIADIC:
        return annotation
    if isinstance(annotation, _TYPE_PARAMETERS) or typing.get_origin(annotation) is typing.Unpack:
        return Any
    return list[annotation] if parameter.kind is parameter.VAR_POSITIONAL else dict[str, annotation]


def _refuse_odd(name: str, parameters: list[inspect.Parameter], annotations: Mapping[str, Any]) -> None:
    """
    Refuse parameters that no call can set.

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
    """Return whether an annotation is `JobContext`, alone or with the type of its state, unresolved too."""
    if isinstance(annotation, Unresolved):
        return annotation.text.partition("[")[0].rpartition(".")[2] == "JobContext"
    return annotation is JobContext or typing.get_origin(annotation) is JobContext
