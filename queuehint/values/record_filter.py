"""A filter of job records."""

from __future__ import annotations

from typing import Final

import attrs

from queuehint.errors import InvalidJobError
from queuehint.schema.compiled import normaliser
from queuehint.schema.kinds import JobId, MomentMs, NameText, TagText
from queuehint.values.hint import Path
from queuehint.values.record import OVER, JobState

_NAMES = ("service", "user", "task", "pool")


@attrs.frozen(kw_only=True)
class RecordFilter:
    """
    Conditions on records, joined by AND. None or ``()`` is no condition.

    Args:
        service, user, task, pool: exactly these names.
        states: one of these.
        path: with a claim at or below this path; ``()`` is any claim at all.
        flow: of the flow with this id.
        tag: with this tag.
        parent: made by the handler of the job with this id.
        waits_for: with an open edge to the job with this id.
        since_ms, until_ms: enqueued at or after the first and before the second, ms since the epoch.

    >>> RecordFilter(user="ann", states=(JobState.FAILED,)).is_unfinished
    False
    """

    service: NameText | None = None
    user: NameText | None = None
    task: NameText | None = None
    pool: NameText | None = None
    states: tuple[JobState, ...] = ()
    path: Path | None = None
    since_ms: MomentMs | None = None
    until_ms: MomentMs | None = None
    flow: JobId | None = None
    tag: TagText | None = None
    parent: JobId | None = None
    waits_for: JobId | None = None

    def check(self) -> RecordFilter:
        """
        Return the filter with its words plain, its states each once and in the order of `JobState`.

        Raises:
            InvalidJobError, InvalidJobTypeError, InvalidHintError: naming the field.
        """
        wanted = attrs.evolve(self, **_normal_filter(self))
        wanted.check_rules()
        return wanted

    def check_rules(self) -> None:
        """
        Check that the times are consistent.

        Raises:
            InvalidJobError: the end is before the begin.
        """
        if self.since_ms is not None and self.until_ms is not None and self.until_ms < self.since_ms:
            raise InvalidJobError(f"until must not be before since, got {self.until_ms} and {self.since_ms} ms")

    @property
    def flow_alone(self) -> str | None:
        """The flow, if no other condition is set."""
        return self.flow if self == RecordFilter(flow=self.flow) else None

    @property
    def path_alone(self) -> Path | None:
        """The path, if no other condition is set."""
        return self.path if self == RecordFilter(path=self.path) else None

    @property
    def is_by_entry(self) -> bool:
        """Whether records are found along a path, a flow or the dependents of a job."""
        return self.path is not None or self.flow is not None or self.waits_for is not None

    @property
    def is_by_path(self) -> bool:
        """Whether records are found along a path, in order of queue key."""
        return self.path is not None and self.flow is None and self.waits_for is None

    @property
    def is_unfinished(self) -> bool:
        """Whether the filter may select unfinished jobs."""
        return not self.states or any(state not in OVER for state in self.states)

    @property
    def is_over(self) -> bool:
        """Whether the filter may select ended jobs."""
        return not self.states or any(state in OVER for state in self.states)


_normal_filter: Final = normaliser(lambda: RecordFilter)
ALL_RECORDS = RecordFilter()
DEAD_RECORDS = RecordFilter(states=(JobState.FAILED,))
"""Jobs of the dead-letter queue."""
