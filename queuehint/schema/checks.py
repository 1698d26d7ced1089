"""
Checks of user input: ids, numbers, times and names, with their limits.

Each function takes the user's value and the parameter's name and returns the value in the form used inside (times in
ms), or raises `InvalidJobTypeError` or `InvalidJobError` naming the parameter, the value and the limit.
A bool is never a number, and subclasses such as NumPy's scalars are refused: they do not survive JSON.
"""

from __future__ import annotations

import math
import re
from collections.abc import ItemsView, Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any, TypeVar

from queuehint.errors import InvalidJobError, InvalidJobTypeError, PayloadError, QueueHintError, shown

ID_BYTES_MAX = 128
NAME_BYTES_MAX = 256
TAGS_MAX = 8
TAG_BYTES_MAX = 64
IDENTITY_MAX = 4
HEADERS_BYTES_MAX = 4096
TEN_YEARS_MS = 10 * 366 * 24 * 3600 * 1000
RETENTION_MAX_MS = TEN_YEARS_MS
ATTEMPTS_MAX = 1000
LEASE_MIN_MS = 1000
LEASE_MAX_MS = 24 * 3600 * 1000

# The ends of the calendar: what lies outside cannot be shown as a datetime. A time before is as good as the first.
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
RUN_AT_MIN_MS = -(2**53)
RUN_AT_MAX_MS = (datetime.max.replace(tzinfo=UTC) - EPOCH) // timedelta(milliseconds=1)

# Characters refused in an id: white space, control and bidi control characters, lone surrogates.
_NOT_IN_ID = re.compile("[\\s\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_NOT_IN_NAME = re.compile("[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_MILLISECOND = timedelta(milliseconds=1)

_DIGEST = re.compile("[0-9a-f]{32}|[0-9a-f]{64}", re.ASCII)
_SIZED = frozenset({list, tuple, set, frozenset, dict, range})

Choice = TypeVar("Choice", bound=str)
T = TypeVar("T")


def check_id(value: object, *, parameter: str = "id") -> str:
    """Check a job id: a str of 1–128 UTF-8 bytes without white space or control characters."""
    # What can be printed holds nothing that is refused but a space; a character has at most four bytes.
    if type(value) is str and 0 < len(value) <= ID_BYTES_MAX // 4 and value.isprintable() and " " not in value:
        return value
    return _check_text(value, parameter, ID_BYTES_MAX, _NOT_IN_ID, "white space or a control character")


def check_name(value: object, *, parameter: str) -> str:
    """Check the name of a task, pool, user, service, key or worker: a str of 1–256 UTF-8 bytes, printable."""
    return _check_text(value, parameter, NAME_BYTES_MAX, _NOT_IN_NAME, "a control character")


def check_tag(value: object, *, parameter: str = "tag") -> str:
    """Check a tag: a str of 1–64 UTF-8 bytes, printable."""
    return _check_text(value, parameter, TAG_BYTES_MAX, _NOT_IN_NAME, "a control character")


def check_tags(value: object) -> tuple[str, ...]:
    """
    Check up to 8 tags. Return each once, in order.

    >>> check_tags(["urgent", "eu"]), check_tags(None)
    (('eu', 'urgent'), ())
    """
    if value is None:
        return ()
    items = check_items(value, parameter="tags", most=TAGS_MAX)
    return tuple(sorted({check_tag(item, parameter=f"tags[{index}]") for index, item in enumerate(items)}))


def check_identity(value: object) -> tuple[str, ...]:
    """Check up to 4 digests of arguments: 32 hexadecimal digits within one job, 64 across jobs."""
    items = check_items(value, parameter="identity", most=IDENTITY_MAX)
    for item in items:
        if not isinstance(item, str) or not _DIGEST.fullmatch(item):
            raise InvalidJobError(f"identity must be digests of 32 or 64 of 0-9 a-f, got {shown(item)}")
    return tuple([str.__str__(item) for item in items])


def check_headers(value: object) -> tuple[tuple[str, str], ...]:
    """
    Check headers, a mapping of text to text or its items. Return them in order of their names.

    No value is shown in an error: it is the application's own.

    >>> check_headers({"request": "7f3a"})
    (('request', '7f3a'),)
    """
    if value is None:
        return ()
    items = value.items() if isinstance(value, Mapping) else value
    if not isinstance(items, (tuple, ItemsView)):
        raise InvalidJobTypeError(f"headers must be a mapping of str to str, got {type(value).__name__}")
    headers: dict[str, str] = {}
    size = 0
    for item in items:
        if type(item) is not tuple or len(item) != 2:
            raise InvalidJobTypeError(f"headers must be pairs of str, got {type(item).__name__}")
        name = check_name(item[0], parameter="the name of a header")
        if not isinstance(item[1], str):
            raise InvalidJobTypeError(f"headers[{shown(name)}] must be str, got {type(item[1]).__name__}")
        text = str.__str__(item[1])
        if name in headers:
            raise InvalidJobError(f"headers names {shown(name)} twice")
        headers[name] = text
        # By characters first: what is far too long is never encoded whole.
        size += len(name.encode()) + (len(text) if len(text) > HEADERS_BYTES_MAX else len(encodable(text).encode()))
        if size > HEADERS_BYTES_MAX:
            raise InvalidJobError(
                f"headers are at least {size} bytes, names and values together; the limit is {HEADERS_BYTES_MAX}"
            )
        if encodable(text) != text:
            raise InvalidJobError(f"headers[{shown(name)}] is not encodable as UTF-8")
    return tuple(sorted(headers.items()))


def check_length(text: str, bytes_max: int, *, parameter: str, error: type[QueueHintError] = InvalidJobError) -> int:
    """Return the length of a text in bytes, or raise *error* above the limit."""
    # Characters first: a text over the limit in characters is over it in bytes, and is never encoded whole.
    if len(text) > bytes_max:
        size = str(len(text)) if text.isascii() else f"more than {len(text)}"
        raise error(f"{parameter} is {size} bytes, limit {bytes_max}: {shown(text)}")
    bytes_long = len(text.encode("utf-8", "surrogatepass"))
    if bytes_long > bytes_max:
        raise error(f"{parameter} is {bytes_long} bytes, limit {bytes_max}: {shown(text)}")
    return bytes_long


def _check_text(value: object, parameter: str, bytes_max: int, refused: re.Pattern[str], what: str) -> str:
    if not isinstance(value, str):
        raise InvalidJobTypeError(f"{parameter} must be str, got {type(value).__name__}: {shown(value)}")
    text = str.__str__(value)
    if not text:
        raise InvalidJobError(f"{parameter} is empty; it must be 1 to {bytes_max} bytes")
    check_length(text, bytes_max, parameter=parameter)
    if found := refused.search(text):
        problem = "is not encodable as UTF-8" if "\ud800" <= found[0] <= "\udfff" else f"holds {what}"
        raise InvalidJobError(f"{parameter} {problem} (U+{ord(found[0]):04X}): {shown(text)}")
    return text


def check_payload_size(payload: object, *, parameter: str, bytes_max: int) -> None:
    """Check that a payload is bytes within a limit."""
    if type(payload) is not bytes:
        raise InvalidJobTypeError(f"{parameter} must be bytes, got {type(payload).__name__}")
    if len(payload) > bytes_max:
        raise PayloadError(f"{parameter} take {len(payload)} bytes, limit {bytes_max}", limit=bytes_max)


def plain_text(value: object) -> str:
    """Return a value as a plain str. Exceptions of its own ``__str__`` propagate."""
    return str.__str__(value if isinstance(value, str) else str(value))


def check_items(value: object, *, parameter: str, most: int | None = None, advice: str = "") -> list[Any]:
    """
    Check that several items are given, in a list or any other iterable, and return them.

    Args:
        most: how many they may be; one more than that is read at most. None is for what tests are given.
        advice: how to do without so many, for the error.
    """
    if isinstance(value, (str, bytes, Mapping)) or not isinstance(value, Iterable):
        meant = f"; did you mean [{shown(value)}]?" if isinstance(value, str) else ""
        raise InvalidJobTypeError(f"{parameter} must be a list, got {type(value).__name__}: {shown(value)}{meant}")
    if most is None:
        return list(value)
    items = list(islice(value, most + 1))
    if len(items) > most:
        told = f"; {advice}" if advice else ""
        raise InvalidJobError(f"{parameter}: {count_of(value, most)} in one call, limit {most}{told}")
    return items


def each_item(value: object, *, parameter: str, most: int) -> Iterator[Any]:
    """
    Yield items checked like `check_items`, one after the other.

    Where there is too much is known at once if that can be asked, else when it comes. No item is shown: these are jobs.
    """
    if isinstance(value, (str, bytes, Mapping)) or not isinstance(value, Iterable):
        raise InvalidJobTypeError(f"{parameter} must be a list, got {type(value).__name__}")
    if type(value) in _SIZED and len(value) > most:  # type: ignore[arg-type]
        raise InvalidJobError(f"{parameter}: {count_of(value, most)} in one call, limit {most}")
    for index, item in enumerate(value):
        if index == most:
            raise InvalidJobError(f"{parameter}: more than {most} in one call, limit {most}")
        yield item


def sized(value: object) -> str:
    """
    Return the size of an application's data for a repr, which never shows the data itself.

    >>> sized(b'{"token":"secret"}'), sized({"token": "secret"}), sized(None)
    ('<18 bytes>', '<dict>', 'None')
    """
    if value is None:
        return "None"
    return f"<{len(value)} bytes>" if type(value) is bytes else f"<{type(value).__name__}>"


def counted(lines: tuple[str, ...]) -> str:
    """Return the number of log lines for a repr, which never shows the lines themselves."""
    return f"<{len(lines)} lines>"


def count_of(value: object, most: int) -> str:
    """Return the number of items above a limit as text: "more than *most*" for an iterator."""
    return str(len(value)) if type(value) in _SIZED else f"more than {most}"  # type: ignore[arg-type]


def check_callable(value: object, *, parameter: str) -> Any:
    """Check that something can be called."""
    if not callable(value):
        raise InvalidJobTypeError(f"{parameter} must be callable, got {type(value).__name__}: {shown(value)}")
    return value


def check_object(value: object, *methods: str, parameter: str, what: str) -> Any:
    """Check that an object of the application has the required methods."""
    for method in methods:
        if not callable(getattr(value, method, None)):
            raise InvalidJobTypeError(
                f"{parameter} must be {what}, which has {method}(), got {type(value).__name__}: {shown(value)}"
            )
    return value


def check_instance(value: object, kind: type[T], *, parameter: str) -> T:
    """Check that a value is of a class of ours."""
    if not isinstance(value, kind):
        a = "an" if kind.__name__[0] in "AEIOU" else "a"
        raise InvalidJobTypeError(
            f"{parameter} must be {a} {kind.__name__}, got {type(value).__name__}: {shown(value)}"
        )
    return value


def check_int(value: object, *, parameter: str, least: int, most: int) -> int:
    """Check a whole number in a range."""
    if type(value) is not int:
        raise InvalidJobTypeError(f"{parameter} must be int, got {type(value).__name__}: {shown(value)}")
    if not least <= value <= most:
        raise InvalidJobError(f"{parameter} must be from {least} to {most}, got {shown(value)}")
    return value


def check_str(value: object, *, parameter: str) -> str:
    """Check a text of any length."""
    if not isinstance(value, str):
        raise InvalidJobTypeError(f"{parameter} must be str, got {type(value).__name__}: {shown(value)}")
    return str.__str__(value)


def check_bool(value: object, *, parameter: str) -> bool:
    """Check a yes or no."""
    if not isinstance(value, bool):
        raise InvalidJobTypeError(f"{parameter} must be bool, got {type(value).__name__}: {shown(value)}")
    return value


def check_number(value: object, *, parameter: str, least: float, most: float) -> float:
    """Check a finite number in a range."""
    if type(value) not in (int, float):
        raise InvalidJobTypeError(f"{parameter} must be a number, got {type(value).__name__}: {shown(value)}")
    assert isinstance(value, (int, float))
    if not least <= value <= most:  # also false for NaN
        raise InvalidJobError(f"{parameter} must be from {least:g} to {most:g}, got {shown(value)}")
    return float(value)


def check_duration(value: object, *, parameter: str, least_ms: int = 0, most_ms: int = TEN_YEARS_MS) -> int:
    """
    Check a duration, a timedelta or a number of seconds, and return it in ms, rounded away from zero.

    >>> check_duration(1.5, parameter="delay"), check_duration(timedelta(minutes=1), parameter="delay")
    (1500, 60000)
    """
    if type(value) is timedelta:
        duration_ms, rest = divmod(value, _MILLISECOND)
        # The floor of a negative duration lies away from zero already; it must not be rounded to a valid 0.
        if rest and duration_ms >= 0:
            duration_ms += 1
    elif type(value) is int:
        duration_ms = value * 1000
    elif type(value) is float:
        if not math.isfinite(value):
            raise InvalidJobError(
                f"{parameter} must be finite, from {_span(least_ms)} to {_span(most_ms)}, got {shown(value)}"
            )
        # In whole ns first: 16.1 * 1000 is a little more than 16100.
        ns = round(value * 1_000_000_000) if abs(value) < TEN_YEARS_MS else int(value) * 1_000_000_000
        duration_ms = -(-ns // 1_000_000) if value > 0 else ns // 1_000_000
        if not duration_ms:
            duration_ms = (value > 0) - (value < 0)
    else:
        raise InvalidJobTypeError(
            f"{parameter} must be a timedelta or a number of seconds, got {type(value).__name__}: {shown(value)}"
        )
    if not least_ms <= duration_ms <= most_ms:
        raise InvalidJobError(f"{parameter} must be from {_span(least_ms)} to {_span(most_ms)}, got {shown(value)}")
    return duration_ms


def check_optional_duration(
    value: object, *, parameter: str, least_ms: int = 0, most_ms: int = TEN_YEARS_MS
) -> int | None:
    """Check a duration or None."""
    return None if value is None else check_duration(value, parameter=parameter, least_ms=least_ms, most_ms=most_ms)


def check_run_at(value: object, *, parameter: str = "run_at", now_ms: int | None = None) -> int:
    """
    Check a point in time, a timezone-aware datetime, and return ms since the epoch, rounded up.

    A time in the past is valid: the job is due at once.

    Args:
        now_ms: the time of the enqueue; *value* is at most 10 years later. None checks no upper limit.
    """
    if not isinstance(value, datetime):
        raise InvalidJobTypeError(f"{parameter} must be a datetime, got {type(value).__name__}: {shown(value)}")
    try:
        # By datetime's own methods, whatever a subclass makes of them; a time zone may be the application's.
        if datetime.utcoffset(value) is None:
            raise InvalidJobError(
                f"{parameter} must be timezone-aware, got {shown(value)}; local time is never guessed"
            )
        # Subtracting aware datetimes goes through UTC without building one, so the ends of the calendar are safe.
        time_ms, rest = divmod(datetime.__sub__(value, EPOCH), _MILLISECOND)
    except InvalidJobError:
        raise
    except Exception as error:
        raise InvalidJobError(f"{parameter} has a time zone that fails ({type(error).__name__})") from error
    if rest:
        time_ms += 1
    if now_ms is not None and time_ms - now_ms > TEN_YEARS_MS:
        raise InvalidJobError(f"{parameter} must be at most 10 years from now, got {shown(value)}")
    return time_ms


def check_choice(value: object, choices: tuple[Choice, ...], *, parameter: str) -> Choice:
    """Check one word of a closed set."""
    expected = f"{parameter} must be one of {', '.join(choices)}"
    if not isinstance(value, str):
        raise InvalidJobTypeError(f"{expected}, got {type(value).__name__}: {shown(value)}")
    text = str.__str__(value)
    for choice in choices:
        if text == choice:
            return choice
    raise InvalidJobError(f"{expected}, got {shown(text)}")


def _span(duration_ms: int) -> str:
    if duration_ms == TEN_YEARS_MS:
        return "10 years"
    return f"{duration_ms / 1000:g} s"


def encodable(text: str) -> str:
    r"""
    Return a text that UTF-8 can encode, with lone surrogates escaped.

    >>> print(encodable("x\udce9.txt"))
    x\udce9.txt
    """
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
