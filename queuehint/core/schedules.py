"""
The schedules of a namespace: their due times, and optimistic locking of their firings.

Workers compute the next due time, because no store can read a cron expression. A firing carries the version of the
schedule that it was computed from; it is refused if the version has changed, and changes it. So one worker fires at a
due time.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

import attrs
from sortedcontainers import SortedDict, SortedSet

from queuehint.errors import InvalidJobError, ScheduleChangedError, ScheduleNotFoundError
from queuehint.values.schedule import SCHEDULES_MAX, TOO_MANY_SCHEDULES, Schedule

if TYPE_CHECKING:
    from queuehint.operations import Firing, PutSchedule


class Timetable:
    """Schedules by name and by due time. A paused or ended schedule has no due time."""

    __slots__ = ("_by_name", "dues", "versions")

    def __init__(self) -> None:
        self._by_name: SortedDict[str, Schedule] = SortedDict()
        self.dues: SortedSet[tuple[int, str]] = SortedSet()
        """The due time and the name of each that comes to be due."""
        self.versions = 0
        """The newest version of any schedule."""

    def __len__(self) -> int:
        return len(self._by_name)

    # --- changes ---------------------------------------------------------------------------------------------------

    def put(self, asked: PutSchedule) -> bool:
        """
        Store a schedule in place of its predecessor of the same name. Return whether they differed.

        One with the recurrence of that in place keeps its next due time: what has come due is still to be fired, and an
        interval keeps its beat however often its job is changed.

        Raises:
            InvalidJobError: there are too many.
        """
        there, next_ms = self._by_name.get(asked.name), asked.next_ms
        if there is None:
            if len(self) >= SCHEDULES_MAX:
                raise InvalidJobError(TOO_MANY_SCHEDULES)
            there = Schedule(name=asked.name, spec=asked.spec, recurrence=asked.recurrence, version=0, next_ms=None)
        elif there.recurrence == asked.recurrence and there.spec.is_alike(asked.spec):
            return False
        elif there.recurrence == asked.recurrence:
            next_ms = there.next_ms
        self._become(attrs.evolve(there, spec=asked.spec, recurrence=asked.recurrence, next_ms=next_ms))
        return True

    def drop(self, name: str) -> bool:
        """Drop a schedule. Return whether there was such a schedule."""
        there = self._by_name.pop(name, None)
        if there is not None and there.next_ms is not None:
            self.dues.discard((there.next_ms, name))
        return there is not None

    def pause(self, name: str) -> bool:
        """
        Pause the firings of an active schedule. Return False for a paused one.

        Raises:
            ScheduleNotFoundError: there is none of this name.
        """
        there = self._known(name)
        if not there.is_paused:
            self._become(attrs.evolve(there, is_paused=True))
        return not there.is_paused

    def resume(self, name: str, version: int, next_ms: int | None) -> bool:
        """
        Resume a schedule paused at one version. Return False for an active one or another version.

        Raises:
            ScheduleNotFoundError: there is none of this name.
        """
        there = self._known(name)
        if not there.is_paused or there.version != version:
            return False
        self._become(attrs.evolve(there, is_paused=False, next_ms=next_ms))
        return True

    def check_firing(self, firing: Firing) -> None:
        """
        Refuse a firing computed from another version.

        Raises:
            ScheduleChangedError: the schedule was fired or changed meanwhile, or is gone.
        """
        there = self._by_name.get(firing.name)
        if there is None or there.version != firing.version:
            raise ScheduleChangedError(firing.name)

    def fire(self, firing: Firing, last_id: str | None) -> None:
        """Record the last firing (None for none) and the next due time."""
        there = attrs.evolve(self._by_name[firing.name], next_ms=firing.next_ms)
        self._become(there if last_id is None else attrs.evolve(there, last_ms=firing.last_ms, last_id=last_id))

    def _known(self, name: str) -> Schedule:
        there = self._by_name.get(name)
        if there is None:
            raise ScheduleNotFoundError(name)
        return there

    def _become(self, schedule: Schedule) -> None:
        self.versions += 1
        self.drop(schedule.name)
        self._by_name[schedule.name] = attrs.evolve(schedule, version=self.versions)
        if schedule.next_ms is not None and not schedule.is_paused:
            self.dues.add((schedule.next_ms, schedule.name))

    # --- questions -------------------------------------------------------------------------------------------------

    def page(self, first: str, limit: int) -> tuple[list[Schedule], str | None]:
        """Return schedules in order of name, from *first* on, and the first name of the next page, None at the end."""
        names = list(islice(self._by_name.irange(first), limit + 1))
        return [self._by_name[name] for name in names[:limit]], names[limit] if len(names) > limit else None

    def due(self, now_ms: int, limit: int, after: tuple[int, str] | None = None) -> list[Schedule]:
        """Return due schedules behind a position, by due time, then name."""
        found = []
        for next_ms, name in islice(self.dues.irange(after, inclusive=(False, True)), limit):
            if next_ms > now_ms:
                break
            found.append(self._by_name[name])
        return found

    def is_due(self, now_ms: int) -> bool:
        """Return whether a schedule is due; such a schedule is in ``dues``."""
        return bool(self.dues[0][0] <= now_ms)

    def next_ms(self, now_ms: int) -> int | None:
        """Return the next due time, None without any. Schedules already due are left out."""
        at = self.dues.bisect_left((now_ms + 1, ""))
        return self.dues[at][0] if at < len(self.dues) else None

    def count_dues(self) -> int:
        """Return how many schedules have a due time; for tests."""
        return len(self.dues)
