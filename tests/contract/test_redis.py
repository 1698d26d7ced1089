"""The rules on the Redis backend: on Redis, and on Valkey."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from queuehint.backends.base import BackendOptions
from queuehint.backends.redis.address import parse_url
from queuehint.backends.redis.backend import RedisBackend
from tests.contract import catalog, edges, events, fairness, limits, rules, schedules
from tests.servers import Binary, find_redis, find_valkey, new_namespace, shared_server

if TYPE_CHECKING:
    from queuehint import Backend, FakeClock

pytestmark = pytest.mark.redis

FIND = {"redis": find_redis, "valkey": find_valkey}


class OnRedis(rules.Binding):
    binary: Binary

    @pytest.fixture(params=FIND, autouse=True)
    def choose(self, request: pytest.FixtureRequest) -> None:
        found = FIND[request.param]()
        if isinstance(found, str):
            pytest.skip(found)
        self.binary = found

    def open(self, clock: FakeClock) -> Backend:
        options = BackendOptions(namespace=new_namespace(), clock=clock)
        return RedisBackend(parse_url(shared_server(self.binary).url), options)


class TestSerialPath(OnRedis, rules.SerialPath):
    pass


class TestAncestors(OnRedis, rules.Ancestors):
    pass


class TestSiblings(OnRedis, rules.Siblings):
    pass


class TestRoot(OnRedis, rules.Root):
    pass


class TestArrivalOrder(OnRedis, rules.ArrivalOrder):
    pass


class TestLeases(OnRedis, rules.Leases):
    pass


class TestRetries(OnRedis, rules.Retries):
    pass


class TestCancellation(OnRedis, rules.Cancellation):
    pass


class TestDead(OnRedis, rules.Dead):
    pass


class TestKeys(OnRedis, rules.Keys):
    pass


class TestIdentity(OnRedis, rules.Identity):
    pass


class TestPauses(OnRedis, rules.Pauses):
    pass


class TestPresence(OnRedis, rules.Presence):
    pass


class TestRecords(OnRedis, rules.Records):
    pass


class TestWaiting(OnRedis, rules.Waiting):
    pass


class TestEdges(OnRedis, edges.Edges):
    pass


class TestRefusals(OnRedis, edges.Refusals):
    pass


class TestEnds(OnRedis, edges.Ends):
    pass


class TestDownstream(OnRedis, edges.Downstream):
    pass


class TestResults(OnRedis, edges.Results):
    pass


class TestParts(OnRedis, edges.Parts):
    pass


class TestChildren(OnRedis, edges.Children):
    pass


class TestFlows(OnRedis, edges.Flows):
    pass


class TestCounts(OnRedis, edges.Counts):
    pass


class TestShared(OnRedis, edges.Shared):
    pass


class TestTimetable(OnRedis, schedules.Timetable):
    pass


class TestFirings(OnRedis, schedules.Firings):
    pass


class TestSchedulePauses(OnRedis, schedules.SchedulePauses):
    pass


class TestScheduleWaits(OnRedis, schedules.ScheduleWaits):
    pass


class TestEvents(OnRedis, events.Events):
    pass


class TestFollowing(OnRedis, events.Following):
    pass


class TestTotals(OnRedis, events.Totals):
    pass


class TestTurns(OnRedis, fairness.Turns):
    pass


class TestLevels(OnRedis, fairness.Levels):
    pass


class TestServed(OnRedis, fairness.Served):
    pass


class TestLimitsAtOnce(OnRedis, limits.LimitsAtOnce):
    pass


class TestLimitsInTime(OnRedis, limits.LimitsInTime):
    pass


class TestLimitsInAll(OnRedis, limits.LimitsInAll):
    pass


class TestLimitChanges(OnRedis, limits.LimitChanges):
    pass


class TestListing(OnRedis, catalog.Listing):
    pass


class TestListingByPath(OnRedis, catalog.ListingByPath):
    pass


class TestCounting(OnRedis, catalog.Counting):
    pass


class TestDeletion(OnRedis, catalog.Deletion):
    pass


class TestAmending(OnRedis, catalog.Amending):
    pass


class TestInterim(OnRedis, catalog.Interim):
    pass


class TestOpenLog(OnRedis, catalog.OpenLog):
    pass


class TestNumbers(OnRedis, catalog.Numbers):
    pass
