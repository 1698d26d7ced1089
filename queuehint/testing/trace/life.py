"""The state of one job while a trace is checked."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from queuehint.testing.trace.values import TraceJob
    from queuehint.values.hint import Claim


class Life:
    """State of one job at one moment of a trace."""

    __slots__ = (
        "after",
        "bound",
        "claims",
        "ended",
        "is_awaiting",
        "is_away",
        "is_known",
        "is_off",
        "is_over",
        "is_refused",
        "job",
        "job_id",
        "placed_ms",
        "put_back",
        "ran",
        "seq",
        "started_ms",
        "token",
        "worker",
    )

    def __init__(self, job_id: str, job: TraceJob | None) -> None:
        self.job_id = job_id
        self.job = job
        self.claims: tuple[Claim, ...] = () if job is None else job.claims
        self.seq = 0
        """Its place; 0 if it has none."""
        self.placed_ms = 0.0
        self.after = 0
        """A place it takes unseen is not before this one."""
        self.bound = 0
        """Jobs with a smaller place than this were certainly queued before it."""
        self.ran = 0
        """The number of its start, while it runs."""
        self.started_ms = 0.0
        self.token: int | None = None
        self.worker: str | None = None
        self.put_back: str | None = None
        """How it was put back to its place, if it was; until it starts again."""
        self.is_away = False
        """It was put back and not queued since: to be queued then is no second place."""
        self.is_off = False
        """It was put back for an unknown time."""
        self.is_refused = False
        """A worker did not know its task: from then on nobody knows which workers are offered it."""
        self.ended: set[str] = set()
        """In which ways it has ever ended."""
        self.is_known = False
        self.is_over = False
        self.is_awaiting = False
        """Its handler has ended, and it waits for its children."""
