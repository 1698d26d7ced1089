"""Messages of failed checks."""

from __future__ import annotations

import pprint
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any

from queuehint.testing.interleaving.jobs import Part
from queuehint.testing.interleaving.play import Played, Step
from queuehint.values.hint import Claim, queue_key

STEPS_SHOWN_MAX = 60
STATE_LINES_MAX = 40


def narrate(headline: str, parts: Sequence[Part], played: Played[Any], states: dict[str, Any], footnote: str) -> str:
    """
    Return a message: the fault, the jobs, the order of their steps, and the states.

    Args:
        states: what is to be shown, by how it came about.
    """
    lines = [headline, "", "The jobs, in the order in which they are enqueued:"]
    lines += [f"  {part.number}  {part}  {_place(part, parts)}" for part in parts]
    lines += ["", "The order of their steps:"]
    lines += _steps(played.steps)
    lines += [f"      {number} waits for ever{_at(where)}" for number, where in played.stuck.items()]
    lines.append("")
    width = max(map(len, states), default=0)
    for how, state in states.items():
        shown = pprint.pformat(state, width=100).splitlines()
        if len(shown) > STATE_LINES_MAX:
            shown = [*shown[:STATE_LINES_MAX], "..."]
        lines.append(f"{how:{width}}  {shown[0]}")
        lines += [f"{'':{width}}  {line}" for line in shown[1:]]
    return "\n".join([*lines, "", footnote])


def _place(part: Part, parts: Iterable[Part]) -> str:
    claims = part.spec.claims
    text = "at " + " and ".join(map(_claim, claims)) if claims else "without a place"
    numbers = {other.spec.id: str(other.number) for other in parts}
    after = [numbers.get(edge.id, edge.id) for edge in part.spec.depends_on]
    return f"{text}, after {' and '.join(after)}" if after else text


def _claim(claim: Claim) -> str:
    return queue_key(claim.path) + (" (shared)" if claim.mode == "shared" else "")


def _steps(steps: Sequence[Step]) -> Iterator[str]:
    """Yield a line for the steps that a job makes in a row."""
    for shown, (job, group) in enumerate(groupby(steps, key=lambda step: step.job), start=1):
        made = list(group)
        if shown > STEPS_SHOWN_MAX:
            yield f"      ... and {len(steps)} steps in all"
            return
        yield f"{shown:4}. {job} {_made(made)}"


def _made(made: Sequence[Step]) -> str:
    last = made[-1]
    begins, ends = any(step.begins for step in made), next((step for step in made if step.ends), None)
    if ends is not None:
        done = "ends" if ends.error is None else f"raises {ends.error!r}"
        if begins:
            return f"begins and {done}"
        return f"goes on and {done}"
    if not begins and not any(step.where for step in made):
        return "is over, and what it left running goes on"
    return f"{'begins' if begins else 'goes on'}, waits{_at(last.where)}"


def _at(where: str | None) -> str:
    return f" at: {where}" if where else ""
