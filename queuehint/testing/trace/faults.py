"""Faults of a trace, each with its rule and its two jobs, and events that could not be judged."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

import attrs

from queuehint.errors import shown
from queuehint.values.hint import Claim, conflict, queue_key

KEYS_SHOWN = 3
"""How many places of a job a message has."""


class Rule(StrEnum):
    """Rules that hold in every trace."""

    OVERLAP = "overlap"
    """Two jobs that conflict do not run at once."""
    ORDER = "order"
    """A job does not start until every conflicting job with an earlier place is over."""
    IDLE = "idle"
    """No slot is idle while a job is ready."""
    DEPENDENCY = "dependency"
    """A job does not start until each job it depends on has ended, and in a way that the edge accepts."""
    QUEUED_TWICE = "queued_twice"
    """A job takes its place once, however many dependencies end."""
    STARTED_TWICE = "started_twice"
    """A job that runs is not started."""
    STARTED_AFTER_END = "started_after_end"
    """A job that is over is not started, unless it is queued again."""
    NOT_STARTED = "not_started"
    """A job ends only after it was started."""
    TOKEN = "token"
    """Each grant of a job has a greater token, and only the newest can settle it."""
    NOT_OVER = "not_over"
    """In a trace that is complete every job is over at the end."""


@attrs.frozen(kw_only=True)
class Fault:
    """
    One broken rule.

    Args:
        rule: which.
        job: the id of the job that did what it must not.
        other: the id of the job it did it to; None where there is none.
        at_ms: when.
        index: the position, in the trace as it was given, of the event that shows it.
        message: what happened, in one sentence.
        picture: the moment, drawn in text.
    """

    rule: Rule
    job: str
    other: str | None
    at_ms: float
    index: int
    message: str
    picture: str = ""

    def __str__(self) -> str:
        return f"{self.rule}: {self.message}" + (f"\n\n{self.picture}" if self.picture else "")


@attrs.frozen(kw_only=True)
class TraceReport:
    """
    The findings in a trace.

    Args:
        faults: in order of their events, up to as many as were asked for.
        unjudged: what could not be judged, and why, one sentence each.
        events, jobs: how many there were.
        attempts: how many starts there were among the events.
        ran, undescribed: how many jobs there were among these, and how many of them at places that are not known.
        met: how many jobs came while one that conflicts with them was not over: only these put the order to the test.
    """

    faults: tuple[Fault, ...]
    unjudged: tuple[str, ...]
    events: int
    jobs: int
    attempts: int
    ran: int = 0
    undescribed: int = 0
    met: int = 0

    @property
    def is_blind(self) -> bool:
        """Whether jobs ran without any known place, so that neither order nor overlap was judged."""
        return 0 < self.ran == self.undescribed


class TraceError(AssertionError):
    """
    A trace breaks rules.

    ``faults`` are all that were found.
    """

    SHOWN = 5

    def __init__(self, faults: Sequence[Fault]) -> None:
        self.faults = tuple(faults)
        more = len(self.faults) - self.SHOWN
        texts = [str(fault) for fault in self.faults[: self.SHOWN]]
        if more > 0:
            texts.append(f"and {more} more")
        super().__init__("\n\n".join(texts))


def named(job_id: str) -> str:
    """Return the id of a job as shown in messages."""
    return job_id if job_id.isprintable() else shown(job_id)


def counted(count: int, noun: str) -> str:
    """Return a number with its noun, in the singular for 1."""
    if count == 1:
        return f"1 {noun}"
    if noun.endswith("ch"):
        return f"{count} {noun}es"
    return f"{count} {noun[:-1]}ies" if noun.endswith("y") else f"{count} {noun}s"


def name_at(job_id: str, claims: tuple[Claim, ...], others: tuple[Claim, ...]) -> str:
    """Name a job and its claims that conflict with another job's."""
    met = [claim for claim in claims if conflict((claim,), others)]
    shared = any(claim.mode == "shared" for some in (claims, others) for claim in some)
    keys = [queue_key(claim.path) + (f" ({claim.mode})" if shared else "") for claim in met[:KEYS_SHOWN]]
    return f"{named(job_id)} at {', '.join(keys)}"
