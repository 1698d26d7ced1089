r"""
Templates: text with placeholders such as ``{{extract.rows[0].id}}``, filled from the results of other jobs.

::

    placeholder = "{{" spaces name { "." field | "[" index "]" } spaces "}}"
    name, field = one of A-Z a-z 0-9 _, then up to 127 of these or "-"
    index       = up to 9 digits; a "-" before them counts from the end

``\{{`` stands for ``{{`` itself, and everything else is literal. A text that is nothing but one placeholder becomes
the value; in any other text a str is inserted as it is, and any other value as compact JSON. Inserted text is not
searched for placeholders again.

A field is a key of a dictionary or, if it is a number, an index of a list: no attribute is ever read and nothing is
formatted, so a template reaches results and nothing else. The regular expression takes time linear in the text: its
quantifiers are possessive, and a placeholder holds no other ``{``, so that no part of a text is read twice.
"""

from __future__ import annotations

import json
import re
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

import attrs

from queuehint.errors import VALUE_LENGTH_MAX, PayloadError, TemplateError, shown

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

TEMPLATE_BYTES_MAX = 64 << 10
PLACEHOLDERS_MAX = 1000
NAMES_SHOWN = 10

_NAME = "[A-Za-z0-9_][A-Za-z0-9_-]{0,127}+"
_STEP = r"\.(" + _NAME + r")|\[(-?+[0-9]{1,9}+)\]"
_PLACEHOLDER = re.compile(r"\\\{\{|\{\{ *+(" + _NAME + r")((?:" + _STEP + r")*+) *+\}\}")
_STEPS = re.compile(_STEP)
_WHOLE_NAME = re.compile(_NAME)
_NO_ESCAPE = re.compile("~(?![01])")
_encoder = json.JSONEncoder(allow_nan=False, ensure_ascii=False, separators=(",", ":"))


@attrs.frozen
class Placeholder:
    """A placeholder: a dependency's name, and the fields (str) and indexes (int) that lead to a value."""

    name: str
    steps: tuple[str | int, ...] = ()

    def __str__(self) -> str:
        return "{{" + _path(self.name, self.steps) + "}}"


Pieces = tuple[str | Placeholder, ...]


def is_name(text: str) -> bool:
    """Return whether a placeholder can be written with this name, or with this field."""
    return _WHOLE_NAME.fullmatch(text) is not None


def parse(text: str) -> Pieces:
    r"""
    Return the literal parts and the placeholders of a template, in order. No part is empty.

    >>> parse(r"to {{user.name}} \{{")
    ('to ', Placeholder(name='user', steps=('name',)), ' {{')

    Raises:
        TemplateError: it is longer than 64 KiB.
    """
    if len(text) > TEMPLATE_BYTES_MAX or _bytes(text) > TEMPLATE_BYTES_MAX:
        raise TemplateError(f"a template takes more than {TEMPLATE_BYTES_MAX} bytes, the limit: {shown(text)}")
    pieces: list[str | Placeholder] = []
    literal: list[str] = []
    end = 0
    for match in _PLACEHOLDER.finditer(text):
        literal.append(text[end : match.start()])
        end = match.end()
        if match[1] is None:
            literal.append("{{")
            continue
        if before := "".join(literal):
            pieces.append(before)
        literal.clear()
        steps = [step[1] if step[1] is not None else int(step[2]) for step in _STEPS.finditer(match[2])]
        pieces.append(Placeholder(match[1], tuple(steps)))
    if after := "".join(literal) + text[end:]:
        pieces.append(after)
    return tuple(pieces)


def find(arguments: Any, marks: bool | Iterable[str]) -> list[str]:
    """
    Return the names in the templates among arguments, each once, in order of appearance.

    Args:
        arguments: decoded JSON.
        marks: which strings are templates: True for every string that is a value, never a key; or JSON pointers.

    Raises:
        TemplateError: a pointer does not lead to a string, a template is longer than 64 KiB, or the templates have
            more than 1 000 placeholders.
    """
    sites = _sites([arguments], marks)
    return list(dict.fromkeys(piece.name for *_, pieces in sites for piece in pieces if isinstance(piece, Placeholder)))


def fill(arguments: Any, marks: bool | Iterable[str], results: Mapping[str, Any], *, bytes_max: int) -> Any:
    """
    Return a copy of arguments with their templates filled.

    Args:
        arguments, marks: as for `find`.
        results: JSON values by the names that templates may use; the copy shares them.
        bytes_max: what the copy may take as compact JSON in UTF-8; it is not built if it takes more.

    Raises:
        TemplateError: as `find`, or there is no such result, field or index.
        PayloadError: it takes more than *bytes_max*, or a result is not JSON.

    Complexity: O(size of arguments, results used and what is built); nothing is recursive but the encoding of JSON.
    """
    if not marks:
        return arguments
    root = _copied([arguments])
    sites = list(_sites(root, marks))
    for container, key, _ in sites:
        container[key] = 0  # one byte, until it is filled
    values = _Values(results)
    size = _bytes(_json(root[0])) - len(sites)
    for more in chain([0], (values.size(pieces) for *_, pieces in sites)):
        size += more
        if size > bytes_max:
            problem = f"takes more than {bytes_max} bytes as JSON with its templates filled, the limit"
            raise PayloadError(problem, limit=bytes_max)
    for container, key, pieces in sites:
        container[key] = values.filled(pieces)
    return root[0]


class _Values:
    """The values of placeholders, each looked up and measured once."""

    def __init__(self, results: Mapping[str, Any]) -> None:
        self._results = results
        self._values: dict[Placeholder, tuple[Any, int]] = {}
        self._texts: dict[Placeholder, tuple[str, int]] = {}

    def size(self, pieces: Pieces) -> int:
        """Return the size of a filled template as JSON, in bytes."""
        if _is_value(pieces):
            return self._value(pieces[0])[1]
        return 2 + sum(_quoted(piece) if isinstance(piece, str) else self._text(piece)[1] for piece in pieces)

    def filled(self, pieces: Pieces) -> Any:
        """Return the filled template."""
        if _is_value(pieces):
            return self._value(pieces[0])[0]
        return "".join([piece if isinstance(piece, str) else self._text(piece)[0] for piece in pieces])

    def _value(self, placeholder: Any) -> tuple[Any, int]:
        found = self._values.get(placeholder)
        if found is None:
            value = _look_up(placeholder, self._results)
            found = self._values[placeholder] = (value, _bytes(_json(value)))
        return found

    def _text(self, placeholder: Placeholder) -> tuple[str, int]:
        found = self._texts.get(placeholder)
        if found is None:
            value = _look_up(placeholder, self._results)
            text = value if isinstance(value, str) else _json(value)
            found = self._texts[placeholder] = (text, _quoted(text))
        return found


def _is_value(pieces: Pieces) -> bool:
    """Return whether a template becomes a value of any type, and not a text."""
    return len(pieces) == 1 and isinstance(pieces[0], Placeholder)


def _look_up(placeholder: Placeholder, results: Mapping[str, Any]) -> Any:
    name, steps = placeholder.name, placeholder.steps
    if name not in results:
        raise TemplateError(f"{name} has no result; there are results of: {_listed(results)}")
    value = results[name]
    for number, step in enumerate(steps):
        if isinstance(value, dict) and step in value:
            value = value[step]
            continue
        if isinstance(value, list) and (isinstance(step, int) or step.isdigit()):
            index = int(step)
            if -len(value) <= index < len(value):
                value = value[index]
                continue
        if isinstance(value, dict):
            there = f"it has: {_listed(value)}"
        elif isinstance(value, list):
            there = f"it is a list of {len(value)}"
        else:
            there = f"it is {'null' if value is None else type(value).__name__}"
        where = _path(name, steps[:number])
        if len(where) > VALUE_LENGTH_MAX:
            where = where[: VALUE_LENGTH_MAX - 1] + "…"
        what = f'"{step}"' if isinstance(step, str) else f"[{step}]"
        raise TemplateError(f"{where} has no {what}; {there}")
    return value


def _path(name: str, steps: Iterable[str | int]) -> str:
    return name + "".join(f".{step}" if isinstance(step, str) else f"[{step}]" for step in steps)


def _listed(names: Mapping[str, Any]) -> str:
    """Return up to ten names as text, and no values."""
    few = [name if is_name(name) else shown(name) for name in islice(names, NAMES_SHOWN)]
    return ", ".join([*few, *(["…"] if len(names) > NAMES_SHOWN else [])]) or "nothing"


# --- where the templates are -----------------------------------------------------------------------------------


def _sites(root: list[Any], marks: bool | Iterable[str]) -> Iterator[tuple[Any, Any, Pieces]]:
    """Yield each template as the container it is in, its key there and its pieces; *root* holds the arguments."""
    if isinstance(marks, bool):
        places = _strings(root) if marks else iter(())
    else:
        places = _pointed(root, marks)
    count = 0
    for container, key in places:
        pieces = parse(container[key])
        count += sum(isinstance(piece, Placeholder) for piece in pieces)
        if count > PLACEHOLDERS_MAX:
            raise TemplateError(f"the templates of a job have more than {PLACEHOLDERS_MAX} placeholders, the limit")
        yield container, key, pieces


def _strings(root: list[Any]) -> Iterator[tuple[Any, Any]]:
    """Yield the place of each string that is a value, in the order of the text."""
    above: list[Any] = [root]
    levels: list[Iterator[tuple[Any, Any]]] = [enumerate(root)]
    while levels:
        for key, item in levels[-1]:
            if isinstance(item, str):
                yield above[-1], key
            elif isinstance(item, (dict, list)):
                above.append(item)
                levels.append(iter(item.items()) if isinstance(item, dict) else enumerate(item))
                break
        else:
            above.pop()
            levels.pop()


def _pointed(root: list[Any], pointers: Iterable[str]) -> Iterator[tuple[Any, Any]]:
    """Yield the place of each string a JSON pointer (RFC 6901) leads to, once."""
    for pointer in dict.fromkeys(pointers):
        if pointer[:1] not in ("", "/") or _NO_ESCAPE.search(pointer):
            raise TemplateError(f"{shown(pointer)} is not a JSON pointer")
        container: Any = root
        key: Any = 0
        for token in pointer.split("/")[1:]:
            container = container[key]
            key = _key(container, token)
            if key is None:
                raise TemplateError(f"templates: {shown(pointer)} leads nowhere in the arguments")
        if not isinstance(container[key], str):
            kind = type(container[key]).__name__
            raise TemplateError(f"templates: {shown(pointer)} leads to {kind}, and must lead to a string")
        yield container, key


def _key(container: Any, token: str) -> str | int | None:
    """Return the key of a container for a token of a pointer, None if there is none."""
    if isinstance(container, dict):
        key = token.replace("~1", "/").replace("~0", "~")
        return key if key in container else None
    if isinstance(container, list) and len(token) <= 9 and token.isdecimal() and str(int(token)) == token:
        return index if (index := int(token)) < len(container) else None
    return None


def _copied(root: list[Any]) -> list[Any]:
    """Copy all containers below a list, and the list."""
    root = list(root)
    left: list[Any] = [root]
    while left:
        container = left.pop()
        for key, item in container.items() if isinstance(container, dict) else enumerate(container):
            if isinstance(item, (dict, list)):
                copy = container[key] = item.copy()
                left.append(copy)
    return root


# --- sizes -----------------------------------------------------------------------------------------------------


def _json(value: Any) -> str:
    try:
        return _encoder.encode(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise PayloadError(f"a value for a template is not JSON: {error}") from None


def _bytes(text: str) -> int:
    """Return how many bytes a text takes in UTF-8."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def _quoted(text: str) -> int:
    """Return how many bytes a text takes inside a JSON string."""
    return _bytes(_json(text)) - 2
