"""
The vocabulary of every backend: each change and each question is one value with a typed reply.

A history is a list of operations: recordings, replays, simulations and comparisons all use it. An operation that is
refused raises and has changed nothing. ``more`` in a reply means that follow-up work is left over, of this or an
earlier operation; the client sends `Tick` at once.

A mutating operation does, in this order: settlements, leftovers first in first out, due timers, its own placements and
claims.
"""

from __future__ import annotations

from typing import Any

# Each module lists its names, so that an operation is named where it is defined and not here again.
from queuehint.operations import asking, base, operating, places, producing, working
from queuehint.operations.asking import *
from queuehint.operations.base import *
from queuehint.operations.base import Operation
from queuehint.operations.operating import *
from queuehint.operations.places import *
from queuehint.operations.producing import *
from queuehint.operations.working import *

__all__: list[str] = []
__all__ += asking.__all__
__all__ += base.__all__
__all__ += operating.__all__
__all__ += places.__all__
__all__ += producing.__all__
__all__ += working.__all__

KINDS: tuple[type[Operation[Any]], ...] = tuple(
    [each for each in map(globals().__getitem__, __all__) if Operation in getattr(each, "__bases__", ())]
)
"""All operations."""
