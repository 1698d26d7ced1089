"""Results of steps as bytes and back, by the return annotation of the step's function."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Coroutine
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, TypeVar, get_args, get_origin

from queuehint.errors import PayloadError, shown
from queuehint.handlers.conversion.annotations import Unresolved, resolved
from queuehint.values.outcome import STEP_BYTES_MAX

if TYPE_CHECKING:
    from collections.abc import Mapping

    from queuehint.handlers.codec import Codec

_RESULT: Final = "result"


def annotations_of(function: Callable[..., Any]) -> dict[str, Any]:
    """
    Return the return annotation of a function in the form of codecs. Equal annotations are one object.

    Raises:
        PayloadError: it cannot be resolved.
    """
    annotation = resolved(function).get("return", Any)
    if isinstance(annotation, Unresolved):
        raise PayloadError(f"the result of a step has no type: {annotation}")
    if get_origin(annotation) in {Awaitable, Coroutine}:
        annotation = get_args(annotation)[-1]
    if isinstance(annotation, TypeVar):
        annotation = Any
    try:
        return _of_result(annotation, str(annotation))
    except TypeError:  # it cannot be hashed
        return {_RESULT: annotation}


@lru_cache(1000)
def _of_result(annotation: Any, _text: str) -> dict[str, Any]:
    """Return the annotations of a result; unions of other orders are equal, and other texts."""
    return {_RESULT: annotation}


def is_async(function: Callable[..., Any]) -> bool:
    """Return whether a function, or the call of an object, is asynchronous."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


def dump(codec: Codec, name: str, result: Any, annotations: Mapping[str, Any]) -> bytes:
    """
    Return the result of a step as bytes.

    Raises:
        PayloadError: it has none, or they are too many; the step is named.
    """
    try:
        payload = codec.dumps({_RESULT: result}, annotations, bytes_max=STEP_BYTES_MAX)
    except PayloadError as error:
        problem = f"the result of step {shown(name)}: {error.problem}"
        raise PayloadError(problem, path=error.path, limit=error.limit) from None
    if len(payload) > STEP_BYTES_MAX:
        problem = f"the result of step {shown(name)} takes {len(payload)} bytes, limit {STEP_BYTES_MAX}"
        raise PayloadError(problem, limit=STEP_BYTES_MAX)
    return payload


def load(codec: Codec, name: str, payload: bytes, annotations: Mapping[str, Any]) -> Any:
    """
    Return the result of a step from bytes.

    Raises:
        PayloadError: it does not fit the annotation; the step is named.
    """
    try:
        return codec.loads(payload, annotations)[_RESULT]
    except PayloadError as error:
        raise type(error)(f"the stored result of step {shown(name)}: {error.problem}", path=error.path) from None
