"""
The conformance suite: the rules as tests of a `Backend`, each written once.

A test class that inherits `BackendConformance` and defines how to open a store runs all of them::

    class TestMine(BackendConformance):
        def open(self, clock: FakeClock) -> Backend:
            return MyBackend(BackendOptions(clock=clock))

A backend that implements only a part inherits the rules that it keeps, one class each, after `Binding`::

    class TestMine(Binding, SerialPath, Ancestors, Leases):
        def open(self, clock: FakeClock) -> Backend: ...

A durable backend defines in a second class how its store is restarted::

    class TestRestartsOfMine(Restarts):
        def open(self, clock: FakeClock) -> Backend: ...
        def restart(self, store: Store) -> None: ...

A third class says how a store comes near the end of a count of tokens::

    class TestTokensOfMine(Tokens):
        def open(self, clock: FakeClock) -> Backend: ...
        def count_to(self, store: Store, count: int) -> None: ...
"""

from __future__ import annotations

from queuehint.testing.contract.answers import Trees, WhatIsLeft, WhyAJobWaits
from queuehint.testing.contract.attempts import Cancellation, Dead, History, Retries
from queuehint.testing.contract.cancellation import CanceledByIds, CanceledByPath, KeptIds
from queuehint.testing.contract.chains import Chains
from queuehint.testing.contract.child_limits import RatesOfChildren, RoomOfChildren
from queuehint.testing.contract.closings import LastJobs
from queuehint.testing.contract.concurrent_submissions import ConcurrentSubmissions
from queuehint.testing.contract.conflicts import Conflicts
from queuehint.testing.contract.costs import Costs
from queuehint.testing.contract.debounces import Debounces, Throttles
from queuehint.testing.contract.dependents import Dependents, Judged, KeptResults, Unknowns
from queuehint.testing.contract.due_now import DueNow
from queuehint.testing.contract.edges import Downstream, Edges, Ends, Refusals
from queuehint.testing.contract.ends import Attempts, DeadLetters, OnDead, StartWithin
from queuehint.testing.contract.event_filters import FilteredEvents
from queuehint.testing.contract.events import Events, Following, Totals
from queuehint.testing.contract.fairness import Levels, Served, Turns
from queuehint.testing.contract.fan_in import FanIn
from queuehint.testing.contract.flow_timeouts import FlowTimeouts
from queuehint.testing.contract.flows import Counts, Flows, Parts
from queuehint.testing.contract.identity import Digests, Identity, Records
from queuehint.testing.contract.kept_places import Callers, Grants, KeptPlaces
from queuehint.testing.contract.keys import KeyHolders, Keys
from queuehint.testing.contract.labels import Headers, Tags
from queuehint.testing.contract.leases import Leases, Presence, Waiting
from queuehint.testing.contract.limits import LimitChanges, LimitsAtOnce, LimitsInAll, LimitsInTime
from queuehint.testing.contract.listing import Counting, Listing, ListingByPath
from queuehint.testing.contract.listing_by_time import ListingByTime
from queuehint.testing.contract.parents import FailedParents, Parents
from queuehint.testing.contract.parts import Commits, FlowsTold, HiddenParts
from queuehint.testing.contract.path_reasons import WhyAPathWaits
from queuehint.testing.contract.pauses import PausesByFilter, PausesInTime
from queuehint.testing.contract.permits import Permits
from queuehint.testing.contract.places import Ancestors, ArrivalOrder, Pauses, Root, SerialPath, Siblings
from queuehint.testing.contract.reasons import Reasons
from queuehint.testing.contract.record_writes import Amending, Deletion, Interim, Numbers, OpenLog
from queuehint.testing.contract.releases import Releases
from queuehint.testing.contract.reruns import Reruns, RerunsRefused
from queuehint.testing.contract.restarts import Restarts
from queuehint.testing.contract.results import Children, Results, Shared
from queuehint.testing.contract.revivals import EdgesTold, Revivals
from queuehint.testing.contract.schedules import Firings, SchedulePauses, ScheduleWaits, Timetable
from queuehint.testing.contract.selected_limits import LimitsOfJobs
from queuehint.testing.contract.signals import Leaving, Signals
from queuehint.testing.contract.slots import LimitsTold, Rates, Slots
from queuehint.testing.contract.steps import Bounds, PausedPlaces, Steps
from queuehint.testing.contract.store import Binding, Store
from queuehint.testing.contract.stored_steps import StoredSteps
from queuehint.testing.contract.submissions import AllOrNothing, ClosedPaths, Submissions
from queuehint.testing.contract.tokens import Tokens
from queuehint.testing.contract.trees import LongestLines, SignalsInTrees, TreePages
from queuehint.testing.contract.workers import KnownWorkers
from queuehint.testing.contract.wrong_values import WrongValues

__all__ = [
    "AllOrNothing",
    "Amending",
    "Ancestors",
    "ArrivalOrder",
    "Attempts",
    "BackendConformance",
    "Binding",
    "Bounds",
    "Callers",
    "CanceledByIds",
    "CanceledByPath",
    "Cancellation",
    "Chains",
    "Children",
    "ClosedPaths",
    "Commits",
    "ConcurrentSubmissions",
    "Conflicts",
    "Costs",
    "Counting",
    "Counts",
    "Dead",
    "DeadLetters",
    "Debounces",
    "Deletion",
    "Dependents",
    "Digests",
    "Downstream",
    "DueNow",
    "Edges",
    "EdgesTold",
    "Ends",
    "Events",
    "FailedParents",
    "FanIn",
    "FilteredEvents",
    "Firings",
    "FlowTimeouts",
    "Flows",
    "FlowsTold",
    "Following",
    "Grants",
    "Headers",
    "HiddenParts",
    "History",
    "Identity",
    "Interim",
    "Judged",
    "KeptIds",
    "KeptPlaces",
    "KeptResults",
    "KeyHolders",
    "Keys",
    "KnownWorkers",
    "LastJobs",
    "Leases",
    "Leaving",
    "Levels",
    "LimitChanges",
    "LimitsAtOnce",
    "LimitsInAll",
    "LimitsInTime",
    "LimitsOfJobs",
    "LimitsTold",
    "Listing",
    "ListingByPath",
    "ListingByTime",
    "LongestLines",
    "Numbers",
    "OnDead",
    "OpenLog",
    "Parents",
    "Parts",
    "PausedPlaces",
    "Pauses",
    "PausesByFilter",
    "PausesInTime",
    "Permits",
    "Presence",
    "Rates",
    "RatesOfChildren",
    "Reasons",
    "Records",
    "Refusals",
    "Releases",
    "Reruns",
    "RerunsRefused",
    "Restarts",
    "Results",
    "Retries",
    "Revivals",
    "RoomOfChildren",
    "Root",
    "SchedulePauses",
    "ScheduleWaits",
    "SerialPath",
    "Served",
    "Shared",
    "Siblings",
    "Signals",
    "SignalsInTrees",
    "Slots",
    "StartWithin",
    "Steps",
    "Store",
    "StoredSteps",
    "Submissions",
    "Tags",
    "Throttles",
    "Timetable",
    "Tokens",
    "Totals",
    "TreePages",
    "Trees",
    "Turns",
    "Unknowns",
    "Waiting",
    "WhatIsLeft",
    "WhyAJobWaits",
    "WhyAPathWaits",
    "WrongValues",
]


class BackendConformance(
    Binding,
    SerialPath,
    Ancestors,
    Siblings,
    Root,
    ArrivalOrder,
    Pauses,
    PausesByFilter,
    PausesInTime,
    Reasons,
    Chains,
    Leases,
    Presence,
    Waiting,
    Retries,
    Cancellation,
    Dead,
    History,
    Keys,
    KeyHolders,
    Debounces,
    Throttles,
    Identity,
    Digests,
    Records,
    Edges,
    Refusals,
    Ends,
    Downstream,
    Results,
    Parts,
    Children,
    Flows,
    Counts,
    Shared,
    Listing,
    ListingByPath,
    ListingByTime,
    Counting,
    Tags,
    Headers,
    Deletion,
    Amending,
    Interim,
    OpenLog,
    Numbers,
    Events,
    Following,
    FilteredEvents,
    Totals,
    Turns,
    Levels,
    Served,
    LimitsAtOnce,
    LimitsInTime,
    LimitsInAll,
    LimitChanges,
    Timetable,
    Firings,
    SchedulePauses,
    ScheduleWaits,
    WrongValues,
    Submissions,
    AllOrNothing,
    ClosedPaths,
    LastJobs,
    CanceledByIds,
    CanceledByPath,
    KeptIds,
    ConcurrentSubmissions,
    Conflicts,
    Attempts,
    OnDead,
    DeadLetters,
    DueNow,
    StartWithin,
    KeptPlaces,
    Grants,
    Callers,
    WhyAJobWaits,
    WhyAPathWaits,
    Trees,
    TreePages,
    SignalsInTrees,
    LongestLines,
    WhatIsLeft,
    Parents,
    FailedParents,
    Slots,
    Rates,
    RatesOfChildren,
    RoomOfChildren,
    LimitsOfJobs,
    Costs,
    Permits,
    LimitsTold,
    Steps,
    Bounds,
    StoredSteps,
    PausedPlaces,
    Dependents,
    Judged,
    KeptResults,
    Unknowns,
    HiddenParts,
    Commits,
    FlowsTold,
    FlowTimeouts,
    FanIn,
    Revivals,
    EdgesTold,
    Reruns,
    RerunsRefused,
    KnownWorkers,
    Releases,
    Signals,
    Leaving,
):
    """
    All rules of a backend, each a test on both of its shells, asynchronous and synchronous.

    Subclass it in a module of tests, as ``Test...``, with a method ``open`` that returns an empty store on the clock
    that it is given. A test that fails names the rule that is broken.

    .. versionadded:: 1.0.0
    """
