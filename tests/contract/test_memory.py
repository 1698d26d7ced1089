"""The rules on the memory backend."""

from __future__ import annotations

from typing import TYPE_CHECKING

from queuehint.backends.base import BackendOptions
from queuehint.backends.memory import MemoryBackend
from tests.contract import catalog, edges, events, fairness, limits, rules, schedules

if TYPE_CHECKING:
    from queuehint import Backend, FakeClock


class OnMemory(rules.Binding):
    def open(self, clock: FakeClock) -> Backend:
        return MemoryBackend(BackendOptions(clock=clock))


class TestSerialPath(OnMemory, rules.SerialPath):
    pass


class TestAncestors(OnMemory, rules.Ancestors):
    pass


class TestSiblings(OnMemory, rules.Siblings):
    pass


class TestRoot(OnMemory, rules.Root):
    pass


class TestArrivalOrder(OnMemory, rules.ArrivalOrder):
    pass


class TestLeases(OnMemory, rules.Leases):
    pass


class TestRetries(OnMemory, rules.Retries):
    pass


class TestCancellation(OnMemory, rules.Cancellation):
    pass


class TestDead(OnMemory, rules.Dead):
    pass


class TestKeys(OnMemory, rules.Keys):
    pass


class TestIdentity(OnMemory, rules.Identity):
    pass


class TestPauses(OnMemory, rules.Pauses):
    pass


class TestPresence(OnMemory, rules.Presence):
    pass


class TestRecords(OnMemory, rules.Records):
    pass


class TestWaiting(OnMemory, rules.Waiting):
    pass


class TestEdges(OnMemory, edges.Edges):
    pass


class TestRefusals(OnMemory, edges.Refusals):
    pass


class TestEnds(OnMemory, edges.Ends):
    pass


class TestDownstream(OnMemory, edges.Downstream):
    pass


class TestResults(OnMemory, edges.Results):
    pass


class TestParts(OnMemory, edges.Parts):
    pass


class TestChildren(OnMemory, edges.Children):
    pass


class TestFlows(OnMemory, edges.Flows):
    pass


class TestCounts(OnMemory, edges.Counts):
    pass


class TestShared(OnMemory, edges.Shared):
    pass


class TestListing(OnMemory, catalog.Listing):
    pass


class TestListingByPath(OnMemory, catalog.ListingByPath):
    pass


class TestCounting(OnMemory, catalog.Counting):
    pass


class TestDeletion(OnMemory, catalog.Deletion):
    pass


class TestAmending(OnMemory, catalog.Amending):
    pass


class TestInterim(OnMemory, catalog.Interim):
    pass


class TestOpenLog(OnMemory, catalog.OpenLog):
    pass


class TestNumbers(OnMemory, catalog.Numbers):
    pass


class TestTimetable(OnMemory, schedules.Timetable):
    pass


class TestFirings(OnMemory, schedules.Firings):
    pass


class TestSchedulePauses(OnMemory, schedules.SchedulePauses):
    pass


class TestScheduleWaits(OnMemory, schedules.ScheduleWaits):
    pass


class TestEvents(OnMemory, events.Events):
    pass


class TestFollowing(OnMemory, events.Following):
    pass


class TestTotals(OnMemory, events.Totals):
    pass


class TestTurns(OnMemory, fairness.Turns):
    pass


class TestLevels(OnMemory, fairness.Levels):
    pass


class TestServed(OnMemory, fairness.Served):
    pass


class TestLimitsAtOnce(OnMemory, limits.LimitsAtOnce):
    pass


class TestLimitsInTime(OnMemory, limits.LimitsInTime):
    pass


class TestLimitsInAll(OnMemory, limits.LimitsInAll):
    pass


class TestLimitChanges(OnMemory, limits.LimitChanges):
    pass
