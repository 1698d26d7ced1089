r"""
Places: a queue hint becomes a path, a path has a queue key, a job claims paths.

A *path* is a tuple of segments; ``()`` is the root and ``None`` is no place at all. A *claim* is a path and a
mode. Two claims meet when one path is a prefix of the other; they conflict unless both are shared. One that is
*counted* takes no place and conflicts with none: its job counts under the limits of the path, as one below it does.

The *queue key* of a path is one string: segments joined by ``:``, with ``\`` and ``:`` inside a segment escaped
by ``\``. The root is ``root``; a lone segment ``root`` is written ``\root``. No two paths share a key, and the
descendants of a path have one contiguous range of keys, `keys_below`.

>>> queue_key(("doc1", "scope1")), queue_key(("a:b",)), queue_key(()), queue_key(("root",))
('doc1:scope1', 'a\\:b', 'root', '\\root')
>>> parse_key("a\\:b"), parse_key("root")
(('a:b',), ())
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

import attrs

from queuehint.errors import InvalidHintError, InvalidHintTypeError, shown
from queuehint.schema.checks import check_length
from queuehint.schema.kinds import PathOf, Text

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

SEGMENT_BYTES_MAX = 256
DEPTH_MAX = 64
PATH_BYTES_MAX = 4096
CLAIMS_MAX = 64
# Each character escaped, and the colons between the segments.
KEY_LENGTH_MAX = 2 * PATH_BYTES_MAX + DEPTH_MAX - 1

Mode = Literal["exclusive", "shared"]
"""The modes of a place."""
ClaimMode = Literal["exclusive", "shared", "counted"]
MODES: tuple[str, ...] = get_args(Mode)
COUNTED: ClaimMode = "counted"
"""The mode of the one claim of a permit, which only a job has that its caller runs."""

ROOT: Path = ()
ROOT_KEY = "root"

# C0 and C1 controls forge log lines and terminals, bidi controls spoof what is displayed, lone surrogates
# cannot be sent as UTF-8.
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f]")
_BIDI = re.compile("[\u202a-\u202e\u2066-\u2069]")
_SURROGATE = re.compile("[\ud800-\udfff]")
_ESCAPED = re.compile(r"[\\:]")


@attrs.frozen(weakref_slot=False)
class Claim:
    """
    A claim of a job on one path.

    Args:
        path: the tuple of segments; ``()`` is the root.
        mode: ``"exclusive"`` conflicts with every claim whose path is a prefix of this one or the other way
            round; ``"shared"`` only with such exclusive claims; ``"counted"``, that of a permit, with none.
    """

    path: Path
    mode: ClaimMode = "exclusive"


def parse_hint(hint: object, *, parameter: str = "queue_hint") -> Path | None:
    """
    Check a queue hint and return its path.

    Args:
        hint: a list or tuple of up to 64 segments, each a str of 1–256 UTF-8 bytes without control or bidi
            control characters, 4 096 bytes in all; ``[]`` is the root, ``None`` is no place.
        parameter: the name used in messages.

    Raises:
        InvalidHintTypeError: not a list or tuple of str.
        InvalidHintError: a segment is empty, too long or not printable text; too many segments or bytes.

    >>> parse_hint(["doc1", "intro"])
    ('doc1', 'intro')
    """
    if hint is None:
        return None
    if not isinstance(hint, (list, tuple)):
        raise InvalidHintTypeError(_not_a_list(hint, parameter))
    # One snapshot, one segment longer than allowed: what another thread does to the list meanwhile changes nothing.
    path = tuple(islice(hint, DEPTH_MAX + 1))
    if len(path) > DEPTH_MAX:
        raise InvalidHintError(f"{parameter} has {_length(hint)} segments, limit {DEPTH_MAX}: {shown(path[0])}, …")
    exact = True
    bytes_total = 0
    for index, segment in enumerate(path):
        if type(segment) is not str:
            if not isinstance(segment, str):
                raise InvalidHintTypeError(
                    f"{parameter} segment {index} must be str, got {type(segment).__name__}: {shown(segment)}"
                )
            exact = False
            segment = str.__str__(segment)  # a str subclass may override everything else
        if not (segment.isascii() and segment.isprintable() and 0 < len(segment) <= SEGMENT_BYTES_MAX):
            bytes_total += _check_segment(segment, index, parameter)
        else:
            bytes_total += len(segment)
    if bytes_total > PATH_BYTES_MAX:
        raise InvalidHintError(
            f"{parameter} is {bytes_total} bytes in all, limit {PATH_BYTES_MAX}: {shown(path[0])}, …"
        )
    return path if exact else tuple(str.__str__(segment) for segment in path)


def parse_path(hint: object, *, parameter: str = "path") -> Path:
    """Check the hint of a parameter that requires a place: `parse_hint`, with ``None`` refused."""
    path = parse_hint(hint, parameter=parameter)
    if path is None:
        raise InvalidHintTypeError(f"{parameter} must be a list of segments, got None; [] is the root")
    return path


Path = Annotated[tuple[str, ...], PathOf(parse_path)]
KeyText = Annotated[str, Text(KEY_LENGTH_MAX)]


def parse_mode(mode: object, *, parameter: str = "mode") -> Mode:
    """Check a claim's mode."""
    expected = f"{parameter} must be one of {', '.join(MODES)}"
    if not isinstance(mode, str):
        raise InvalidHintTypeError(f"{expected}, got {type(mode).__name__}: {shown(mode)}")
    word = str.__str__(mode)
    if word == "exclusive":
        return "exclusive"
    if word == "shared":
        return "shared"
    raise InvalidHintError(f"{expected}, got {shown(word)}")


def parse_claims(claims: object, *, parameter: str = "claims") -> tuple[Claim, ...]:
    """
    Check a job's claims and normalise them.

    Args:
        claims: as for `each_claim`.

    Raises:
        InvalidHintTypeError, InvalidHintError: as `parse_hint`.
    """
    return normalise(each_claim(claims, parameter=parameter))


def each_claim(claims: object, *, parameter: str = "claims") -> list[Claim]:
    """
    Check a job's claims and return each unchanged.

    Args:
        claims: a list or tuple of up to 64 items: `Claim`, or a hint (claimed exclusively), or ``(hint, mode)``.

    Raises:
        InvalidHintTypeError, InvalidHintError: as `parse_hint`.
    """
    if not isinstance(claims, (list, tuple)):
        raise InvalidHintTypeError(
            f"{parameter} must be a list of claims, got {type(claims).__name__}: {shown(claims)}"
        )
    items = tuple(islice(claims, CLAIMS_MAX + 1))
    if len(items) > CLAIMS_MAX:
        raise InvalidHintError(f"{parameter} holds {_length(claims)} claims, limit {CLAIMS_MAX}")
    parsed = [_parse_claim(item, f"{parameter}[{index}]") for index, item in enumerate(items)]
    check_counted(parsed, parameter=parameter)
    return parsed


def parse_places(claims: object, *, parameter: str = "claims") -> tuple[Claim, ...]:
    """
    Check the claims of a job that workers run. No claim may be that of a permit, which takes no place.

    Raises:
        InvalidHintTypeError, InvalidHintError: as `parse_claims`.
    """
    parsed = parse_claims(claims, parameter=parameter)
    if is_counted(parsed):
        parse_mode(parsed[0].mode, parameter=f"{parameter}[0] mode")
    return parsed


def check_counted(claims: Sequence[Claim], *, parameter: str = "claims") -> None:
    """
    Check that a claim without a place is the only one.

    Raises:
        InvalidHintError: there is another.
    """
    if len(claims) > 1 and (counted := [claim for claim in claims if claim.mode == COUNTED]):
        path = key_of(counted[0].path)
        raise InvalidHintError(
            f"{parameter}: the counted one of {shown(path)} is that of a permit, and must stand alone"
        )


def _parse_claim(item: Any, parameter: str) -> Claim:
    if isinstance(item, Claim):
        path, mode = parse_path(item.path, parameter=parameter), _object(item.mode)
        if isinstance(mode, str) and str.__str__(mode) == COUNTED:
            return Claim(path, COUNTED)
        return Claim(path, parse_mode(mode, parameter=f"{parameter} mode"))
    if isinstance(item, tuple) and len(item) == 2 and isinstance(item[0], (list, tuple)):
        return Claim(parse_path(item[0], parameter=parameter), parse_mode(item[1], parameter=f"{parameter} mode"))
    return Claim(parse_path(item, parameter=parameter))


def _object(value: object) -> object:
    """Return a value whose annotation is not to be believed."""
    return value


def normalise(claims: Iterable[Claim]) -> tuple[Claim, ...]:
    """
    Return equivalent claims that never block one another, sorted by path.

    What another claim covers is dropped (an exclusive claim covers all below it, a shared one what is shared
    below it); a shared claim with an exclusive one below it becomes exclusive; repeated until nothing changes.
    What is left is an antichain: no path is a prefix of another.

    Complexity: O(n log n) by sorting: an ancestor sorts right before its descendants.

    >>> normalise([Claim(("a",), "shared"), Claim(("a", "b"))])
    (Claim(path=('a',), mode='exclusive'),)
    """
    kept: list[Claim] = []
    for claim in sorted(claims, key=lambda claim: claim.path):
        if kept and is_prefix(kept[-1].path, claim.path):
            if claim.mode == "exclusive" and kept[-1].mode == "shared":
                kept[-1] = Claim(kept[-1].path)
        else:
            kept.append(claim)
    return tuple(kept)


def is_counted(claims: tuple[Claim, ...]) -> bool:
    """Return whether claims are those of a permit: a single one, which takes no place."""
    return len(claims) == 1 and claims[0].mode == COUNTED


def is_prefix(path: Path, other: Path) -> bool:
    """
    Return whether *path* is *other* or an ancestor of it.

    >>> is_prefix(("doc1",), ("doc1", "scope1")), is_prefix(("doc1",), ("doc10",))
    (True, False)
    """
    return other[: len(path)] == path


def meet(path: Path, other: Path) -> bool:
    """Return whether one of two paths is a prefix of the other."""
    return is_prefix(path, other) or is_prefix(other, path)


def conflict(claims: Iterable[Claim], others: Iterable[Claim]) -> bool:
    """
    Return whether two jobs conflict: some claim of one meets some claim of the other and not both are shared.

    Args:
        claims: those of one job, up to 64.
        others: those of the other.

    Raises:
        InvalidHintTypeError, InvalidHintError: not claims, or too many.

    >>> conflict([Claim(("a",), "shared")], [Claim(("a", "b"), "shared")])
    False
    >>> conflict([Claim(("a",), "counted")], [Claim(("a",))])
    False
    """
    if type(claims) is not tuple or type(others) is not tuple:
        claims, others = _claims(claims, "claims"), _claims(others, "others")
    try:
        return any(
            meet(claim.path, other.path)
            and not (claim.mode == other.mode == "shared")
            and COUNTED not in {claim.mode, other.mode}
            for claim in claims
            for other in others
        )
    except AttributeError:
        raise InvalidHintTypeError("claims and others must hold nothing but Claim") from None


def _claims(claims: object, parameter: str) -> tuple[Claim, ...]:
    try:
        items = tuple(islice(claims, CLAIMS_MAX + 1))  # type: ignore[call-overload]
    except TypeError:
        items = (None,)
    if not all(type(claim) is Claim for claim in items):
        raise InvalidHintTypeError(f"{parameter} must hold nothing but Claim, got {shown(claims)}")
    if len(items) > CLAIMS_MAX:
        raise InvalidHintError(f"{parameter} holds more than {CLAIMS_MAX} claims, the limit")
    return items


def queue_key(path: Sequence[str]) -> str:
    """
    Return the unique key of a path.

    Raises:
        InvalidHintError, InvalidHintTypeError: as `parse_path`.
    """
    return key_of(parse_path(path))


def key_of(path: Path) -> str:
    """Return the key of a checked path."""
    key = ":".join(path)
    if "\\" in key or key.count(":") >= len(path) or key == ROOT_KEY:
        if not path:
            return ROOT_KEY
        key = gate_key(path)
        return "\\root" if key == ROOT_KEY else key
    return key


def keys_below(path: Path) -> tuple[str, str]:
    """
    Return two strings between which, themselves excluded, the keys of the descendants of *path* sort, and no others.

    >>> keys_below(("doc1",)), keys_below(("root",))
    (('doc1:', 'doc1;'), ('root:', 'root;'))

    Args:
        path: not the root, whose descendants have all keys but `ROOT_KEY`.
    """
    key = gate_key(path)
    return f"{key}:", f"{key};"


def gate_key(path: Path) -> str:
    r"""
    Return the stored form of a path: its queue key, but ``""`` for the root and ``root`` for a lone segment `root`.

    So the gates above a path are what stands before each colon of its gate key that is not escaped.

    >>> gate_key(()), gate_key(("root",)), gate_key(("a:b", "c"))
    ('', 'root', 'a\\:b:c')
    """
    key = ":".join(path)
    if "\\" in key or key.count(":") >= len(path):
        return ":".join(_ESCAPED.sub(r"\\\g<0>", segment) for segment in path)
    return key


def parse_gate_key(key: str) -> Path:
    """Return the path of a valid gate key."""
    if not key:
        return ROOT
    return tuple(key.split(":")) if "\\" not in key else _segments(key)


def _segments(key: str) -> Path:
    """Split a key at its unescaped colons."""
    segments, segment, rest = [], "", iter(key)
    for character in rest:
        if character == ":":
            segments.append(segment)
            segment = ""
        else:
            segment += next(rest, "") if character == "\\" else character
    return (*segments, segment)


def parse_key(key: str) -> Path:
    """
    Return the path whose `queue_key` is *key*.

    Raises:
        InvalidHintError: no path has this key.
    """
    if not isinstance(key, str):
        raise InvalidHintTypeError(f"a queue key must be str, got {type(key).__name__}: {shown(key)}")
    key = str.__str__(key)
    if key == ROOT_KEY:
        return ROOT
    if len(key) > KEY_LENGTH_MAX:
        raise InvalidHintError(f"a queue key is at most {KEY_LENGTH_MAX} characters, got {len(key)}: {shown(key)}")
    path = _segments("root" if key == "\\root" else key)
    if not all(path) or key_of(path) != key:
        raise InvalidHintError(f"{shown(key)} is not the key of any path")
    return parse_path(path, parameter="queue key")


def _length(items: list[Any] | tuple[Any, ...]) -> int:
    """Return the true length, whatever a subclass reports."""
    return list.__len__(items) if isinstance(items, list) else tuple.__len__(items)


def _not_a_list(hint: object, parameter: str) -> str:
    kind = type(hint).__name__
    message = f"{parameter} must be a list of segments, got {kind}"
    if isinstance(hint, str):
        return f"{message}; did you mean [{shown(str.__str__(hint))}]?"
    if isinstance(hint, (AbstractSet, Mapping)):
        return f"{message}, which has no order: {shown(hint)}"
    return f"{message}: {shown(hint)}"


def _check_segment(segment: str, index: int, parameter: str) -> int:
    """Return the segment's length in bytes, or raise for an invalid segment."""
    where = f"{parameter} segment {index}"
    if not segment:
        raise InvalidHintError(f"{where} is empty; it must be 1 to {SEGMENT_BYTES_MAX} bytes")
    bytes_long = check_length(segment, SEGMENT_BYTES_MAX, parameter=where, error=InvalidHintError)
    if found := _CONTROL.search(segment):
        raise InvalidHintError(f"{where} holds the control character U+{ord(found[0]):04X}: {shown(segment)}")
    if found := _BIDI.search(segment):
        raise InvalidHintError(f"{where} holds the bidirectional control U+{ord(found[0]):04X}: {shown(segment)}")
    if found := _SURROGATE.search(segment):
        raise InvalidHintError(f"{where} is not encodable as UTF-8 (U+{ord(found[0]):04X}): {shown(segment)}")
    return bytes_long
