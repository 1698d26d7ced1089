"""
Plain JSON: values that need no conversion, written, read, and checked before both.

The parts of a refused value are named by JSON paths.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from queuehint.errors import PayloadError, shown
from queuehint.values.spec import PAYLOAD_BYTES_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

DEPTH_MAX = 64
SCALARS = frozenset({str, int, float, bool, type(None)})
"""The types of values that are JSON as they are, and hold no others."""
INT_DIGITS_MAX = 4300
INT_BITS_SURE = 1_024
"""An int of so many bits is printed without a limit."""
TEMPLATES_MAX = 256
TEMPLATE_LENGTH_MAX = 1_024
"""A longer template is not kept."""

_encoder = json.JSONEncoder(allow_nan=False, ensure_ascii=False, separators=(",", ":"))
_decoder = json.JSONDecoder()
_decode: Callable[[str, int], tuple[Any, int]] = _decoder.scan_once  # type: ignore[attr-defined]
_quoted: Callable[[str], str] = json.encoder.encode_basestring
_templates: dict[tuple[str, ...], str] = {}
_TEXT = frozenset({str})
_WORDS = {None: "null", False: "false", True: "true"}


def _make_scan() -> Callable[[Any, int], Iterable[str]]:
    """
    Return the pieces that the encoder makes of a value, given 0.

    In CPython the C function that does the work is made once instead of once a call, which takes half the time. It
    looks for no cycles; they end in a RecursionError, after which `check_json` names the place.
    """
    make = getattr(json.encoder, "c_make_encoder", None)
    if make is None:
        return lambda value, _: (_encoder.encode(value),)
    scan: Callable[[Any, int], Iterable[str]] = make(
        None, _encoder.default, json.encoder.encode_basestring, None, _encoder.key_separator, _encoder.item_separator,
        _encoder.sort_keys, _encoder.skipkeys, _encoder.allow_nan,
    )  # fmt: skip
    return scan


_scan = _make_scan()


def encode_json(value: Any, *, bytes_max: int = PAYLOAD_BYTES_MAX) -> bytes:
    """
    Return a checked value as JSON in UTF-8.

    Raises:
        PayloadError: it is not JSON after all, or longer than *bytes_max*.
    """
    try:
        payload = "".join(_scan(value, 0)).encode()
    except UnicodeEncodeError as error:
        check_json(value, "$", bytes_max)
        raise PayloadError(f"a string is not encodable as UTF-8: {error.reason}") from None
    except (TypeError, ValueError, RecursionError) as error:
        check_json(value, "$", bytes_max)
        raise PayloadError(str(error)) from None
    if len(payload) > bytes_max:
        raise PayloadError(f"takes {len(payload)} bytes as JSON, limit {bytes_max}", limit=bytes_max)
    return payload


def encode_flat(values: Mapping[str, Any], bytes_max: int) -> bytes | None:
    """
    Return an object of texts, integers, booleans and None as JSON in UTF-8, by the template of its names.

    None where a value is of another type, cannot be written or is longer than *bytes_max* bytes, as is the whole:
    `check_json` and `encode_json` know why.
    """
    given = values.values()
    texts: Iterable[str] | None
    if set(map(type, given)) == _TEXT:
        texts = map(_quoted, given) if sum(map(len, given)) <= bytes_max else None
    else:
        texts = _scalars(given, bytes_max)
    if texts is None:
        return None
    names = tuple(values)
    template = _templates.get(names) or _template(names)
    try:
        payload = (template % tuple(texts)).encode()
    except UnicodeEncodeError:
        return None
    return payload if len(payload) <= bytes_max else None


def _scalars(values: Iterable[Any], bytes_max: int) -> list[str] | None:
    """Return texts, integers, booleans and None as JSON each; None if one of them is of another type or too long."""
    texts = []
    for value in values:
        kind = type(value)
        if kind is str:
            if len(value) > bytes_max:
                return None
            texts.append(_quoted(value))
        elif kind is int:
            if value.bit_length() > INT_BITS_SURE:
                return None
            texts.append(int.__repr__(value))
        elif kind is bool or value is None:
            texts.append(_WORDS[value])
        else:
            return None
    return texts


def _template(names: tuple[str, ...]) -> str:
    """Return a JSON object with a place for the value of each name, and keep it for the next call of the task."""
    template = "{" + ",".join([f"{_quoted(name)}:".replace("%", "%%") + "%s" for name in names]) + "}"
    if len(template) <= TEMPLATE_LENGTH_MAX:
        if len(_templates) >= TEMPLATES_MAX:
            _templates.clear()
        _templates[names] = template
    return template


def is_flat(kind: type, value: Any, bytes_max: int) -> bool:
    """Return whether a list or dictionary holds but scalars, all texts or none: the encoder finds those not JSON."""
    size = 0
    if kind is dict:
        if not _TEXT.issuperset(map(type, value)):
            return False
        size = sum(map(len, value))
        value = value.values()
    elif kind is not list:
        return False
    kinds = set(map(type, value))
    if kinds == _TEXT:
        size += sum(map(len, value))
    return size <= bytes_max and (kinds == _TEXT or (kinds <= SCALARS and str not in kinds))


def decode_json(payload: bytes) -> Any:
    """
    Return the value of JSON in UTF-8.

    Raises:
        PayloadError: it is not JSON.
    """
    try:
        text = payload.decode()
        try:
            value, end = _decode(text, 0)
        except StopIteration:
            # It says what is wrong.
            return _decoder.raw_decode(text)[0]
        return value if end == len(text) else _decoder.decode(text)
    except (ValueError, RecursionError) as error:
        raise PayloadError(f"is not JSON: {error}") from None


def check_json(value: Any, path: str = "$", bytes_max: int = PAYLOAD_BYTES_MAX, way_out: str = "") -> None:
    """
    Check that a value is JSON: str, int, float, bool, None, list, tuple, dict with str keys; at most 64 deep.

    Args:
        path: where the value stands, for messages.
        bytes_max: strings longer than this in all are refused before anything is copied.
        way_out: what to do about a type that is not JSON, for the message.

    Raises:
        PayloadError: naming the place as a JSON path.

    Complexity: O(size), iterative.
    """
    size = 0
    # Each level of the stack iterates over one container; its key there and its id are kept on the way down.
    stack: list[Iterator[tuple[str | int, Any]]] = [iter([(0, value)])]
    steps: list[str | int] = [0]
    above: list[int] = []

    def here() -> str:
        return path + "".join(map(_step, steps[1:]))

    while stack:
        for steps[-1], item in stack[-1]:
            kind = type(item)
            if kind is str:
                size += len(item)
                if size > bytes_max:
                    raise _too_large(bytes_max, here())
                _check_text(item, here)
            elif kind is int:
                # A decimal digit is over 3.3 bits; Python refuses to print or read more digits than this.
                if item.bit_length() > INT_DIGITS_MAX * 3.3219:
                    raise PayloadError(f"int of more than {INT_DIGITS_MAX} digits cannot be read back", path=here())
            elif kind is float:
                if item != item or item in (float("inf"), float("-inf")):  # noqa: PLR0124 - NaN
                    raise PayloadError(f"{item} is not JSON", path=here())
            elif item is None or kind is bool:
                pass
            elif isinstance(item, (list, tuple, dict)):
                if id(item) in above:
                    raise PayloadError("circular reference", path=here())
                if len(stack) > DEPTH_MAX:
                    raise PayloadError(f"deeper than {DEPTH_MAX}", path=path)
                if isinstance(item, dict):
                    for key in item:
                        if not isinstance(key, str):
                            problem = f"a key is {type(key).__name__}, JSON keys are str{way_out}"
                            raise PayloadError(problem, path=here())
                        size += len(key)
                        if size > bytes_max:
                            raise _too_large(bytes_max, here())
                        _check_text(key, here)
                    members = iter(item.items())
                else:
                    members = enumerate(item)
                above.append(id(item))
                stack.append(members)
                steps.append(0)
                break
            elif not isinstance(item, (str, int, float)):
                raise PayloadError(f"{kind.__name__} is not JSON{way_out}", path=here())
        else:
            stack.pop()
            steps.pop()
            if above:
                above.pop()


def _too_large(bytes_max: int, path: str) -> PayloadError:
    return PayloadError(f"holds strings of more than {bytes_max} bytes, the limit", path=path, limit=bytes_max)


def _step(step: str | int) -> str:
    """Return one step of a JSON path: ``.key``, or ``[0]``, or ``['any other key']``."""
    return f".{step}" if isinstance(step, str) and len(step) <= 80 and step.isidentifier() else f"[{shown(step)}]"


def _check_text(text: str, here: Callable[[], str]) -> None:
    try:
        text.isascii() or text.encode()
    except UnicodeEncodeError as error:
        raise PayloadError(f"string holds {text[error.start]!r}, not encodable as UTF-8", path=here()) from None
