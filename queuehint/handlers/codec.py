"""
Arguments and results as JSON: by the handler's annotations through cattrs, and nothing but JSON on the wire.

A value whose annotation is a plain JSON type, or that has none, is written as it is and must be JSON; for any other
annotation cattrs converts the value to JSON and back, so a parameter opts in by an annotation such as
`datetime.datetime` or an attrs class. Pickle is never used, and no name in a message is ever imported.
"""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any, Literal, Protocol, Union, get_args, get_origin

from queuehint.errors import (
    VALUE_LENGTH_MAX,
    InvalidJobError,
    InvalidJobTypeError,
    PayloadError,
    UnknownToReleaseError,
)
from queuehint.handlers.arguments import called
from queuehint.handlers.conversion.plain_json import SCALARS, check_json, decode_json, encode_flat, encode_json, is_flat
from queuehint.schema.checks import IDENTITY_MAX, check_object

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import cattrs

ANNOTATIONS_KEPT = 10_000
"""So many annotations of handlers and steps are remembered with what is odd about them; one more begins anew."""
PLACES_MAX = 3
"""So many places that do not fit are named."""
_SCALARS = tuple(SCALARS)
"""To look through: an annotation need not be hashable."""
_WAY_OUT = ": annotate it, or register a hook: see JsonCodec.converter"


class Codec(Protocol):
    """
    The encoding of values as bytes. An object passed by the application's code, never named by a message.

    Jobs are compared by these bytes, so the same values have to become the same ones; a codec that may write them
    differently is an `IdentifyingCodec`. With an attribute ``is_deterministic`` that is True, bytes once written may be
    used again for the same values.

    Raises:
        PayloadError: from each method, for what cannot be turned.
    """

    def dumps(self, values: Mapping[str, Any], annotations: Mapping[str, Any], *, bytes_max: int) -> bytes:
        """Turn values by name into bytes, at most *bytes_max*."""

    def loads(self, payload: bytes, annotations: Mapping[str, Any]) -> dict[str, Any]:
        """Turn bytes back into values by name."""


class IdentifyingCodec(Codec, Protocol):
    """
    A codec whose bytes may differ for the same values, such as encryption with a random nonce.

    .. versionadded:: 1.0.0
    """

    def dumps_identified(
        self, values: Mapping[str, Any], annotations: Mapping[str, Any], *, bytes_max: int
    ) -> tuple[bytes, Sequence[bytes]]:
        """
        Turn values by name into bytes, as `dumps` does, and into up to 4 digests.

        Two calls of one id are the same job if they share a digest. Values that are equal have one in common, others
        have none, and nobody can make one who may not read the values: a store keeps them, hashed with task and id.
        Without digests the bytes are compared.
        """


def dump_identified(
    codec: Codec, values: Mapping[str, Any], annotations: Mapping[str, Any], *, bytes_max: int
) -> tuple[bytes, Sequence[bytes]]:
    """
    Return values as a codec's bytes, and its digests. A codec that is compared by its bytes has no digests.

    Raises:
        InvalidJobTypeError, InvalidJobError: what the codec returns is not bytes and up to 4 digests.
    """
    if not _declares(codec, "dumps_identified"):
        return codec.dumps(values, annotations, bytes_max=bytes_max), ()
    written: Any = codec.dumps_identified(values, annotations, bytes_max=bytes_max)  # type: ignore[attr-defined]
    payload, digests = written if isinstance(written, tuple) and len(written) == 2 else (written, None)
    if not isinstance(digests, (tuple, list)) or not all(isinstance(digest, bytes) for digest in digests):
        raise InvalidJobTypeError(
            f"dumps_identified() of codec {type(codec).__name__} must return bytes and a list of bytes"
        )
    if len(digests) > IDENTITY_MAX:
        name = type(codec).__name__
        raise InvalidJobError(
            f"dumps_identified() of codec {name} returned {len(digests)} digests, limit {IDENTITY_MAX}"
        )
    return payload, digests


def is_deterministic(codec: Codec) -> bool:
    """Return whether a codec declares its bytes reusable for the same values."""
    return _declares(codec, "is_deterministic") and codec.is_deterministic is True  # type: ignore[attr-defined]


def _declares(codec: Codec, name: str) -> bool:
    """Return whether a codec declares an attribute. A class that overrides `dumps` alone does not inherit it."""
    for kind in (codec, *type(codec).__mro__):
        said = getattr(kind, "__dict__", {})
        if name in said or "dumps" in said:
            return name in said
    return hasattr(codec, name)


def load_object(payload: bytes) -> dict[str, Any]:
    """
    Return a JSON object without conversion.

    Raises:
        PayloadError: it is none.
    """
    values = decode_json(payload)
    if type(values) is not dict:
        raise PayloadError(f"must be a JSON object, got {type(values).__name__}")
    return values


class JsonCodec:
    """
    JSON through cattrs.

    Args:
        converter: your own, with hooks for your own types; by default cattrs' preconfigured one for JSON, with hooks
            for UUID, Decimal, timedelta, time, dictionaries by int or float and the models of pydantic.
    """

    is_deterministic = True

    def __init__(self, converter: cattrs.Converter | None = None) -> None:
        self._own: cattrs.Converter | None = converter
        if converter is not None:
            check_object(converter, "structure", "unstructure", parameter="converter", what="a cattrs.Converter")
        self._odd: dict[int, tuple[Mapping[str, Any], tuple[str, ...]]] = {}

    @property
    def converter(self) -> cattrs.Converter:
        """The converter, to register hooks for types of your own."""
        if self._own is None:
            # Many applications have JSON types alone, and need no cattrs.
            from queuehint.handlers.conversion.converter import converter_for_json

            self._own = converter_for_json(_is_plain)
        return self._own

    def is_plain(self, annotations: Mapping[str, Any]) -> bool:
        """Return whether values by these annotations are JSON as they are."""
        return not self._odd_of(annotations)

    def dumps(self, values: Mapping[str, Any], annotations: Mapping[str, Any], *, bytes_max: int) -> bytes:
        """Turn values by name into one JSON object."""
        odd = self._odd_of(annotations)
        for name in odd:
            if name in values:
                written = self._unstructure(name, values[name], annotations[name], bytes_max)
                values = {**values, name: written}
        return encode_flat(values, bytes_max) or self.dumps_nested(values, bytes_max=bytes_max, checked=odd)

    @staticmethod
    def dumps_nested(values: Mapping[str, Any], *, bytes_max: int, checked: Sequence[str] = ()) -> bytes:
        """
        Turn values by name that `encode_flat` does not take, and that are JSON as they are, into one JSON object.

        Args:
            checked: names whose lists and objects are known to be JSON.

        Raises:
            PayloadError: one is no JSON, or they take more than *bytes_max* bytes.
        """
        for name, value in values.items():
            kind = type(value)
            if kind not in SCALARS and name in checked:
                continue
            if (kind not in SCALARS or (kind is str and len(value) > bytes_max)) and not is_flat(
                kind, value, bytes_max
            ):
                check_json(value, f"$.{name}", bytes_max, _WAY_OUT)
        return encode_json(values, bytes_max=bytes_max)

    def loads(self, payload: bytes, annotations: Mapping[str, Any]) -> dict[str, Any]:
        """Turn a JSON object back into values by name."""
        values = load_object(payload)
        odd = self._odd_of(annotations)
        refusal: PayloadError | None = None
        for name in odd:
            if name in values:
                annotation = annotations[name]
                try:
                    values[name] = self.converter.structure(values[name], annotation)
                except Exception as error:  # noqa: BLE001 - a hook of the application may raise anything
                    # Not its message, which holds values.
                    found = _misfit(error, annotation, name)
                    # What a later release has written may differ in a value of another type too.
                    if refusal is None or isinstance(found, UnknownToReleaseError):
                        found.__context__ = error
                        refusal = found
        if refusal is not None:
            raise refusal from None
        return values

    def _odd_of(self, annotations: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the names of values that need conversion to JSON. Computed once for each handler's annotations."""
        known = self._odd.get(id(annotations))
        if known is not None and known[0] is annotations:
            return known[1]
        if not annotations:
            return ()
        odd = tuple([name for name, annotation in annotations.items() if not _is_plain(annotation)])
        if len(self._odd) >= ANNOTATIONS_KEPT:
            self._odd.clear()
        # The annotations are kept beside the answer, so that their id stays theirs.
        self._odd[id(annotations)] = (annotations, odd)
        return odd

    def _unstructure(self, name: str, value: Any, annotation: Any, bytes_max: int) -> Any:
        """
        Return a value as JSON that is read as the value.

        Raises:
            PayloadError: there is none: it is of another type, or a part of it is lost on the way.
        """
        from queuehint.handlers.conversion.checks import refusal_of
        from queuehint.handlers.conversion.models import advice
        from queuehint.handlers.conversion.sameness import difference

        problem = f"{type(value).__name__} cannot be written as {called(annotation)}"
        try:
            written = self.converter.unstructure(value, unstructure_as=annotation)
        except Exception as error:  # noqa: BLE001 - as above
            why, at = refusal_of(self.converter, value, annotation, error)
            raise PayloadError(why, path=f"$.{name}{at}") from None
        text = written
        if type(written) not in SCALARS:
            # A hook may write what JSON has otherwise, such as a tuple.
            check_json(written, f"$.{name}", bytes_max, _WAY_OUT)
            text = decode_json(encode_json(written, bytes_max=bytes_max))
        try:
            read = self.converter.structure(text, annotation)
        except Exception as error:  # noqa: BLE001 - as above
            found = _misfit(error, annotation, name).problem
            why = advice(annotation, found.partition(": ")[2]) or found
            raise PayloadError(f"{problem}: {why}", path=f"$.{name}") from None
        place = difference(value, read)
        if place is not None:
            why = advice(annotation, place) or "it would be read as another value"
            raise PayloadError(f"{problem}: {why}", path=f"$.{name}{place}")
        return written

    def check_annotations(self, annotations: Mapping[str, Any]) -> None:
        """
        Check that values of annotations can be written and read.

        Raises:
            PayloadError: one of them cannot be; *path* names it.
            NameError: one of its classes names another one that is not defined yet.
        """
        for name, annotation in annotations.items():
            if not _is_plain(annotation):
                from queuehint.handlers.conversion.checks import ask_for_hooks

                problem = ask_for_hooks(self.converter, annotation)
                if problem is not None:
                    raise PayloadError(problem, path=f"$.{name}")


def _misfit(error: Exception, annotation: Any, name: str) -> PayloadError:
    """Return the place of a value's misfit, without the value and without the converter's message."""
    import cattrs

    if isinstance(error, PayloadError):
        why = f": {_cut(error.problem)}"
    elif isinstance(error, cattrs.BaseValidationError):
        places = cattrs.transform_error(error, f"$.{name}", _expected)
        more = f", and {len(places) - PLACES_MAX} more" if len(places) > PLACES_MAX else ""
        why = f": {'; '.join(map(_cut, places[:PLACES_MAX]))}{more}"
    else:
        why = f" ({type(error).__name__})"
    kind = UnknownToReleaseError if _is_unknown(error) else PayloadError
    return kind(f"cannot be read as {called(annotation)}{why}", path=f"$.{name}")


def _is_unknown(error: BaseException) -> bool:
    """Return whether a value has a part unknown to this release, whatever its other faults."""
    from cattrs.errors import ForbiddenExtraKeysError

    if isinstance(error, BaseExceptionGroup):
        return any(map(_is_unknown, error.exceptions))
    return isinstance(error, (UnknownToReleaseError, ForbiddenExtraKeysError))


def _expected(error: BaseException, kind: Any) -> str:
    if isinstance(error, KeyError):
        return "a field is missing"
    if isinstance(error, PayloadError):
        return error.problem
    from cattrs.errors import ForbiddenExtraKeysError

    if isinstance(error, ForbiddenExtraKeysError):
        return f"{len(error.extra_fields)} unknown fields"
    return f"{type(error).__name__}" if kind is None else f"{called(kind)} expected"


def _cut(text: str) -> str:
    return text if len(text) <= VALUE_LENGTH_MAX else text[: VALUE_LENGTH_MAX - 1] + "…"


def _is_plain(annotation: Any) -> bool:
    """Return whether values of this annotation are JSON as they are, both ways."""
    if annotation in (Any, object, None) or annotation in _SCALARS:
        return True
    origin, args = get_origin(annotation), get_args(annotation)
    if annotation is list or annotation is dict:
        return True
    if origin is list:
        return all(map(_is_plain, args))
    if origin is dict:
        return args[0] is str and _is_plain(args[1])
    if origin is Union or origin is types.UnionType:
        return all(map(_is_plain, args))
    if origin is Literal:
        return all(type(arg) in SCALARS for arg in args)
    return False
