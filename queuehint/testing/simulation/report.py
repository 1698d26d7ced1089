"""Failure reports of a simulation: the broken property, the steps, and the command to repeat it."""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

LINES_SHOWN = 60


class SimulationError(AssertionError):
    """
    A promise was broken in a simulated world.

    Args:
        seed: of the run.
        step: at which step of it the promise was found broken.
        reason: the promise and the job or worker that broke it.
        story: what has to happen so that it is broken, a line each: the run without all that could be left out.
        command: what to type to see it again.
    """

    def __init__(self, *, seed: int, step: int, reason: str, story: Sequence[str], command: str) -> None:
        self.seed = seed
        self.step = step
        self.reason = reason
        self.story = tuple(story)
        self.command = command
        shown = [f"  {line}" for line in self.story[-LINES_SHOWN:]]
        if len(self.story) > LINES_SHOWN:
            shown.insert(0, f"  ... {len(self.story) - LINES_SHOWN} lines before")
        super().__init__(
            "\n".join(
                [
                    f"{reason} (seed {seed}, step {step})",
                    f"It takes {len(self.story)} step{'s' * (len(self.story) != 1)}:",
                    *shown,
                    f"Again: {command}",
                ]
            )
        )


def reason_of(error: BaseException) -> str:
    """Return the text of an error in one line, or the line of code that raised it."""
    text = str(error).strip()
    if isinstance(error, AssertionError) and (not text or text.startswith("assert ")):
        frame = traceback.extract_tb(error.__traceback__)[-1]
        return f"{frame.line or 'assert'} (in {frame.name})"
    first = text.splitlines()[0] if text else repr(error)
    return first if isinstance(error, AssertionError) else f"{type(error).__name__}: {first}"
