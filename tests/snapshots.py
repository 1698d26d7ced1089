"""Snapshots in tests: an engine read again, and the rows of one that can be looked at."""

from __future__ import annotations

import json
import zlib
from base64 import b64decode
from typing import Any

from queuehint.backends.journal.snapshots.freezing import freeze
from queuehint.backends.journal.snapshots.thawing import thaw
from queuehint.core.engine import Engine, EngineOptions


def thawed(engine: Engine, options: EngineOptions | None = None) -> Engine:
    """Write an engine down, and return what is read again."""
    return read(list(freeze(engine)), options)


def read(parts: list[bytes], options: EngineOptions | None = None) -> Engine:
    """Return the engine that the parts of a snapshot make, in the order in which they were made."""
    *rows, description = parts
    return thaw(description, rows, options or EngineOptions())


def rows_of(engine: Engine) -> list[tuple[str, list[Any]]]:
    """Return what a snapshot says of each object: the name of its class, and the values of all fields, or all items."""
    *parts, (kinds, shapes, heads, packed) = [json.loads(zlib.decompress(part)) for part in freeze(engine)]
    marks, heads = zlib.decompress(b64decode(packed)), dict(heads)
    found = []
    for number, (shape, *items) in enumerate([row for part in parts for row in part]):
        name, *of_class = kinds[marks[number]]
        if of_class:
            values = [*of_class[1]]
            for index, item in zip(shapes[shape][1:], items, strict=True):
                values[index] = item
        else:
            values = [heads[number], *items] if number in heads else items
        found.append((name, values))
    return found
