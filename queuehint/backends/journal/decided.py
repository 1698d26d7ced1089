"""
What the rules decided when the operations of a journal were done: what another release has to follow.

- The grants of an exchange, as a line before its operation: the token of the first and the numbers of the jobs, each as
  the difference to the one before. Tokens of one exchange follow one another; only their lower halves are written, for
  the upper ones are those of the epoch. A lease ends as the operation says. Jobs that were taken and parked, because of
  a pause or a limit, stand between them, marked. ``:17 5,1p,1`` are two grants, of the jobs 5 and 7.
- The *standing* of the engine, as a line of four letters behind a mark, a checksum of what other rules would change
  first: the numbers and tokens drawn so far, the jobs taken in, and how many are in each state before their end. So it
  tells whether the operations before it have come to the same ends, refusals and numbers.
"""

from __future__ import annotations

from binascii import b2a_base64
from itertools import islice
from typing import TYPE_CHECKING, Any, Final
from zlib import crc32

from queuehint.errors import CorruptStateError, shown

if TYPE_CHECKING:
    from collections.abc import Sequence

    from queuehint.core.engine import Engine
    from queuehint.values.outcome import Grant

GRANTED: Final = b":"
STANDING: Final = b"#"
"""How the lines begin; no operation and no stream does so."""
LOW: Final = (1 << 32) - 1
PARKED: Final = "p"
_UNFINISHED: Final = 4
"""So many states come before all ends."""
_CHECKED_BYTES: Final = 3


def granted_line(engine: Engine, grants: Sequence[Grant]) -> bytes:
    """Return what an exchange has granted, which the engine has just done; nothing if it has taken no job."""
    state = engine.state
    if not (grants or state.aside):
        return b""
    jobs, steps, before = state.table.jobs, [], 0
    for grant in grants:
        number = jobs[grant.spec.id].number
        steps.append(str(number - before))
        before = number
    if state.aside:
        steps = _with_parked([jobs[grant.spec.id].number for grant in grants], state.aside)
    first = state.token - len(grants) + 1
    return b"%b%d %b" % (GRANTED, first & LOW, ",".join(steps).encode("ascii"))


def _with_parked(numbers: list[int], parked: list[tuple[int, int]]) -> list[str]:
    taken = [(number, "") for number in numbers]
    for at, number in reversed(parked):
        taken.insert(at, (number, PARKED))
    return [f"{number - before}{mark}" for (number, mark), (before, _) in zip(taken, [(0, ""), *taken], strict=False)]


def read_granted(line: bytes) -> tuple[int, list[tuple[int, bool]]]:
    """
    Return the lower half of the first token, and the numbers with whether they were granted, as `granted_line` has it.

    Raises:
        CorruptStateError: it has not.
    """
    token, _, steps = line[1:].partition(b" ")
    try:
        taken, number = [], 0
        for step in steps.decode("ascii").split(","):
            number += int(step.removesuffix(PARKED))
            taken.append((number, not step.endswith(PARKED)))
        return int(token), taken
    except ValueError as error:
        raise CorruptStateError(f"the journal holds a line that is no grant: {shown(line[:200])}") from error


def standing_line(engine: Engine) -> bytes:
    """Return the standing of an engine."""
    state = engine.state
    counts: Any = islice(state.table.counts.values(), _UNFINISHED)
    facts = b"%d %d %d %d %d %d %d" % (state.token, state.table.last_number, state.enqueued, *counts)
    return STANDING + b2a_base64(crc32(facts).to_bytes(4, "big")[:_CHECKED_BYTES], newline=False)
