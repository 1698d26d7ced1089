"""
A guarded redrive: dead jobs are requeued at a bounded rate, until too many of them fail again.

A board has one under way a namespace and scope, as a task of its process: it ends with the process, and what it has not
redriven by then is dead as before. Jobs that it has redriven are looked at once a second, the latest `WATCHED_MAX`.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import attrs

from queuehint import operations as op
from queuehint.errors import BackendError
from queuehint.values.record import JobState
from queuehint.web.pages.asking import by_id, redrive
from queuehint.web.pages.views import words

if TYPE_CHECKING:
    from collections.abc import Sequence

    from queuehint.values.hint import Path
    from queuehint.web.board import Asker

RATE: Final = 50
"""So many jobs a second, if nothing else is said."""
FAILED_MAX: Final = 10
"""So many may fail again before it stops."""
TURN_S: Final = 0.2
"""So often some are redriven."""
LOOK_S: Final = 1.0
WATCHED_MAX: Final = 1000
AFTER_S: Final = 10.0
"""So long jobs are looked at after the last was redriven."""
SAID_S: Final = 600.0
"""So long a page says what has come of one that has ended."""


@attrs.define(eq=False)
class Redriving:
    """
    One guarded redrive.

    Args:
        ids: of the jobs, in the order in which they are redriven.
        reached: how many of them were tried.
        done: how many of these were redriven; the others were not dead any more.
        failed: how many have failed again.
        ended: how it has ended, in words; None while it is under way.
    """

    ids: tuple[str, ...]
    rate: int
    downstream: bool
    reached: int = 0
    done: int = 0
    failed: int = 0
    ended: str | None = None
    ended_s: float = 0.0
    task: asyncio.Task[None] | None = None

    @property
    def text(self) -> str:
        """The progress of the redrive, in a sentence."""
        of = f"{words.number(self.done)} of {words.counted(len(self.ids), 'job')} redriven"
        alive = f"; {words.number(self.reached - self.done)} not dead any more" if self.reached > self.done else ""
        again = f"; {words.number(self.failed)} failed again" if self.failed else ""
        return f"{of}{alive}{again}. {self.ended or f'{self.rate} a second.'}"


def _place(asker: Asker) -> tuple[str, Path]:
    return asker.namespace, asker.access.scope


def current(asker: Asker) -> Redriving | None:
    """Return the redrive of a namespace that is under way, or has ended lately."""
    found: Redriving | None = asker.board.redrives.get(_place(asker))
    if found is None or found.ended is None:
        return found
    return found if asyncio.get_running_loop().time() - found.ended_s < SAID_S else None


def start(asker: Asker, ids: Sequence[str], *, rate: int, downstream: bool) -> bool:
    """Begin a redrive. Return False if another one is running."""
    running = current(asker)
    if running is not None and running.ended is None:
        return False
    now_s, redrives = asyncio.get_running_loop().time(), asker.board.redrives
    for key in [key for key, each in redrives.items() if each.ended is not None and now_s - each.ended_s >= SAID_S]:
        del redrives[key]
    found = Redriving(tuple(ids), rate, downstream)
    redrives[_place(asker)] = found
    found.task = asyncio.get_running_loop().create_task(_run(asker, found), name="queuehint-redrive")
    return True


def stop(asker: Asker) -> bool:
    """Stop the running redrive. Return whether there was one."""
    found = current(asker)
    if found is None or found.ended is not None:
        return False
    _end(found, "It was stopped.")
    return True


def _end(found: Redriving, how: str) -> None:
    if found.ended is None:
        found.ended, found.ended_s = how, asyncio.get_running_loop().time()


async def _run(asker: Asker, found: Redriving) -> None:
    try:
        await _redrive(asker, found)
    except BackendError as error:
        _end(found, f"It stopped: {error}")
    except Exception:
        _end(found, "It stopped: the log of the server says why.")
        raise


async def _redrive(asker: Asker, found: Redriving) -> None:
    loop = asyncio.get_running_loop()
    owed, looked_s = 1.0, loop.time()
    while found.ended is None and found.reached < len(found.ids):
        some = found.ids[found.reached : found.reached + min(int(owed), op.JOBS_AT_ONCE)]
        if some:
            judged = await redrive(asker, some, downstream=found.downstream)
            found.reached += len(some)
            found.done += sum(verdict is op.Verdict.DONE for verdict, _ in judged.verdicts)
        owed += found.rate * TURN_S - len(some)
        if loop.time() - looked_s >= LOOK_S:
            looked_s = loop.time()
            await _look(asker, found)
        await asyncio.sleep(TURN_S)
    until_s = loop.time() + AFTER_S
    while found.ended is None and loop.time() < until_s:
        await _look(asker, found)
        await asyncio.sleep(LOOK_S)
    _end(found, "It has ended.")


async def _look(asker: Asker, found: Redriving) -> None:
    """Count the jobs that failed again, and stop at the limit."""
    watched = found.ids[max(0, found.reached - WATCHED_MAX) : found.reached]
    records = await by_id(asker, watched)
    found.failed = sum(record.state is JobState.FAILED for record in records.values())
    if found.failed > FAILED_MAX:
        _end(found, f"It stopped by itself: more than {FAILED_MAX} have failed again.")
