"""
Recounted sums over all jobs of a namespace, compared with the stored ones.

Counters, gates and tallies are sums over many heads. A pass adds up its batches of heads; the stored sums are compared
once all of them were read at one moment.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import attrs

from queuehint.backends.redis.doctor.findings import miscounted, problem, repairable
from queuehint.backends.redis.doctor.places import examine_places
from queuehint.schema.checks import sized

if TYPE_CHECKING:
    from collections.abc import Callable

    from queuehint.backends.report import Finding

MARGIN: Final = 1_000_000
"""How far above the greatest number seen a lost counter begins anew."""
FINDINGS_MAX: Final = 10_000
"""Findings of a pass that are kept; the rest is found once these are put right."""


COUNTED: Final = {
    "scheduled": "jobs are SCHEDULED",
    "deferred": "jobs are DEFERRED",
    "queued": "jobs are QUEUED",
    "started": "jobs are STARTED",
    "finished": "jobs are FINISHED",
    "failed": "jobs are FAILED",
    "canceled": "jobs are CANCELED",
    "holding": "jobs are dead and hold their places",
    "unknown_tasks": "jobs are of unknown tasks",
    "backing_off": "jobs are backing off",
    "open_edges": "edges are open",
    "limited": "jobs are put aside by limits",
    "staged": "jobs wait for the commit of their submissions",
    **{f"level_{level}": f"jobs of level {level} have places" for level in range(1, 6)},
}
"""Counters of the state that are sums over all heads, and what they count."""
_OF_LIMITS: Final = ("pause", "limits", "watched")
"""Counters that show whether a limit is set, changed or dropped."""
_FIRSTS: Final = {
    "next_timer": "timers",
    "next_lease": "leases",
    "next_prune": "prunes",
    "next_shared": "shared_ends",
    "left": "left",
}
"""Facts about keys that the state caches: the first time in each, or its number of entries."""
_OF_SCHEDULES: Final = ("schedules", "schedule_names", "schedule_dues")


@attrs.frozen(kw_only=True)
class State:
    """The state of a namespace at one moment."""

    packed: bytes = attrs.field(repr=sized)
    kind: str
    """`kept`, `none` (a new namespace), `lost` or `damaged`."""
    now_ms: int
    clock_ms: int
    changes: int
    """How many steps have changed a job: workers with nothing to do change the time alone."""
    counters: dict[str, int]
    sizes: dict[str, int]

    def is_same_as(self, other: State) -> bool:
        """Return whether no job and no limit changed between two states of one history."""
        mine, others = ((each.kind, each.changes, *map(each.counters.get, _OF_LIMITS)) for each in (self, other))
        return mine == others


class Pass:
    """One full read of the store."""

    def __init__(self) -> None:
        self.findings: dict[tuple[str, str, str], Finding] = {}
        self.unchecked: list[str] = []
        """Reasons for unchecked jobs and other omissions."""
        self.notes: list[str] = []
        self.is_quiet = False
        self.packed = b""
        self.clock: Finding | None = None
        """The finding about a server's clock that was set back."""
        self.by_prefix: dict[str, list[str]] = {}
        self.begin_sums()

    def begin_sums(self) -> None:
        """Reset counted and stored sums, to read both again."""
        self.counted: Counter[str] = Counter()
        self.entries: Counter[str] = Counter()
        self.gates: dict[str, list[int]] = {}
        self.placed: list[bytes] = []
        """Three for each job with claims and a place, as a script tells them."""
        self.started: dict[str, str] = {}
        self.waits: dict[str, list[str]] = {}
        self.unsure: dict[str, list[str]] = {}
        """By dependents of many: keys of dependents that each is in, and of whose jobs it may need none."""
        self.greatest: dict[str, int] = {}
        self.is_whole = False
        self.stored_gates: dict[str, str] = {}
        self.tallies: Counter[str] = Counter()
        self.running: Counter[str] = Counter()
        """How many jobs run at each place of a limit."""
        self.stored_running: dict[str, tuple[str, str, int]] = {}
        """The same by the counters of limits: key, field and number, by place."""
        self.stored_tallies: dict[str, str] = {}
        self.stored_counters: dict[str, int] = {}

    def add(self, finding: Finding, item: str = "") -> None:
        """Keep a finding, once for each place and item, and no more than `FINDINGS_MAX`."""
        key = (finding.kind, finding.where, item)
        if key in self.findings or len(self.findings) < FINDINGS_MAX:
            self.findings.setdefault(key, finding)

    def see(self, greatest: dict[str, int]) -> None:
        """Raise the greatest numbers seen."""
        for name, number in greatest.items():
            self.greatest[name] = max(number, self.greatest.get(name, number))


class Sums:
    """
    Compare the stored sums with the counts of a pass.

    Args:
        key: returns the whole name of a key of the namespace.
        facts: gets what a report says without a finding.
    """

    def __init__(self, key: Callable[[str], str], facts: dict[str, Any]) -> None:
        self._key = key
        self._facts = facts

    def look_at_state(self, this: Pass, after: State) -> None:
        """Compare counters with what can be counted at once, and with the greatest numbers seen."""
        meta, counters, sizes = self._key("meta"), after.counters, after.sizes
        if after.kind in {"lost", "damaged"}:
            made = self._new_state(this, after)
            repairs = [("counter", name, f"\n{number}") for name, number in made.items()]
            what = f"the state is {after.kind}: its counters have to begin anew, far above all that is seen"
            this.add(repairable("state", meta, what, *repairs))
            return
        for name, key in (("paused", "pauses"), ("closed", "closed")):
            if counters[name] != sizes[key]:
                what = f"{counters[name]} paths are {name} by the state, and {sizes[key]} by {self._key(key)}"
                this.add(miscounted(meta, what, name, counters[name], sizes[key]), name)
        there = sizes["refused"]
        # Once the queues of refused jobs are as they should be.
        if counters["refused"] != there and not any(
            each.kind in {"refused", "pool"} for each in this.findings.values()
        ):
            what = f"{counters['refused']} pools have refused jobs by the state, and {there} by {self._key('refused')}"
            this.add(miscounted(meta, what, "refused", counters["refused"], there), "refused")
        if counters["weighted"] != sizes["weights"]:
            what = f"{counters['weighted']} users have a weight by the state, and {sizes['weights']} by their key"
            this.add(miscounted(meta, what, "weighted", counters["weighted"], sizes["weights"]), "weights")
        if counters["shared_values"] != sizes["shared"]:
            what = f"{counters['shared_values']} values are shared by the state, and {sizes['shared']} by their key"
            this.add(miscounted(meta, what, "shared_values", counters["shared_values"], sizes["shared"]), "shared")
        for name, what in (("limits", "hold jobs back"), ("watched", "bound what is unfinished")):
            if counters[name] != sizes[name]:
                what = f"{counters[name]} limits {what} by the state, and {sizes[name]} by {self._key('limits')}"
                this.add(miscounted(meta, what, name, counters[name], sizes[name]), name)
        self._look_at_schedules(this, counters, sizes)
        self._look_at_firsts(this, counters, sizes)
        # A submission in parts counts once it is committed.
        enqueued, pruned, there = counters["enqueued"], counters["pruned"], sizes["jobs"] - this.counted["hidden"]
        if this.counted["hidden"] and not this.is_quiet:
            pass
        elif enqueued > pruned + there:
            lost = enqueued - pruned - there
            what = f"{enqueued} jobs were enqueued, {pruned} pruned and {there} are there: {lost} are lost"
            this.add(miscounted(meta, what, "pruned", pruned, pruned + lost), "enqueued")
        elif enqueued < pruned + there:
            what = f"{enqueued} jobs were enqueued, yet {pruned} were pruned and {there} are there"
            this.add(miscounted(meta, what, "enqueued", enqueued, pruned + there), "enqueued")
        for name, number in this.greatest.items():
            if number > counters[name]:
                what = f"the counter {name!r} is at {counters[name]}, and {number} is taken"
                this.add(miscounted(meta, what, name, counters[name], number), name)

    def _look_at_schedules(self, this: Pass, counters: dict[str, int], sizes: dict[str, int]) -> None:
        """Compare what the state says of schedules with their keys, once these are as they should be."""
        if any(each.where in map(self._key, _OF_SCHEDULES) for each in this.findings.values()):
            return
        meta, there, first_ms = self._key("meta"), counters["schedules"], counters["next_schedule"]
        if there != sizes["schedules"]:
            what = f"there are {there} schedules by the state, and {sizes['schedules']} by their key"
            this.add(miscounted(meta, what, "schedules", there, sizes["schedules"]), "schedules")
        if first_ms != sizes["next_schedule"]:
            what = f"the first schedule is due at {first_ms} by the state, and at {sizes['next_schedule']} by their key"
            this.add(miscounted(meta, what, "next_schedule", first_ms, sizes["next_schedule"]), "next_schedule")

    def _look_at_firsts(self, this: Pass, counters: dict[str, int], sizes: dict[str, int]) -> None:
        """Compare what the state says of timers and of leftovers with their keys, once these are as they should be."""
        for name, key in _FIRSTS.items():
            where = self._key(key)
            if counters[name] != sizes[name] and not any(each.where == where for each in this.findings.values()):
                what = f"{name.replace('_', ' ')} is {counters[name]} by the state, and {sizes[name]} by {where}"
                this.add(miscounted(self._key("meta"), what, name, counters[name], sizes[name]), name)

    def _new_state(self, this: Pass, after: State) -> dict[str, int]:
        """Return the counters of a rebuilt state."""
        numbers = ("numbers", "places", "turn", "pause", "marks", "schedule_versions")
        above = {name: this.greatest.get(name, 0) + MARGIN for name in numbers}
        return {
            **above,
            **{name: this.counted[name] for name in COUNTED},
            # Ids that were drawn are no more than jobs that were numbered, or not many more.
            "drawn": above["numbers"],
            "epoch": this.greatest.get("epoch", 0),
            "paused": after.sizes["pauses"],
            "closed": after.sizes["closed"],
            "refused": after.sizes["refused"],
            "enqueued": after.sizes["jobs"] - this.counted["hidden"],
            "shared_values": after.sizes["shared"],
            "limits": after.sizes["limits"],
            "watched": after.sizes["watched"],
            "schedules": after.sizes["schedules"],
            "next_schedule": after.sizes["next_schedule"],
            **{name: after.sizes[name] for name in _FIRSTS},
            "weighted": after.sizes["weights"],
            # No sooner than a worker asked for jobs of some users: markers of users go with that time.
            "users_seen": after.sizes["users_seen"],
        }

    def look_at_sums(self, this: Pass, after: State) -> None:
        """Compare gates and counters with the recount, if that is of one moment and no head is missing in it."""
        if not this.is_quiet and not this.is_whole:
            this.notes.append(
                "sums over all jobs (places, gates, counters): they changed while they were read; look again later"
            )
            return
        if any(each.kind == "damaged" for each in this.findings.values()):
            return
        self._look_at_places(this)
        self._look_at_running(this)
        counters = this.stored_counters if this.is_whole else after.counters
        if after.counters["dropped"]:
            self._facts["records_dropped"] = after.counters["dropped"]
        for name, counts in COUNTED.items() if after.kind in {"kept", "none"} else ():
            is_now, is_right = counters[name], this.counted[name]
            if is_now != is_right:
                what = f"{is_now} {counts} by the state, {is_right} by their heads"
                this.add(miscounted(self._key("meta"), what, name, is_now, is_right), name)
        for name, is_now in counters.items():
            kind, _, field = name.partition(":")
            if field and is_now != this.counted[name]:
                what = f"the limit {field!r} counts {is_now} unfinished jobs, and {this.counted[name]} are there"
                repair = (kind, field, f"{is_now}\n{this.counted[name]}")
                this.add(repairable("limit_count", self._key("limits"), what, repair), field)
        for key in this.gates.keys() | this.stored_gates.keys():
            stored, held = this.stored_gates.get(key, ""), " ".join(map(str, this.gates.get(key, [0] * 5)))
            if stored != held:
                what = f"the gate {key!r} should have {held} (IS IX S X, waiting) and has {stored or 'nothing'}"
                this.add(repairable("gate", self._key("gates"), what, ("gate", key, f"{stored}\n{held}")), key)

        for key in this.tallies.keys() | this.stored_tallies.keys():
            stored, right = this.stored_tallies.get(key, ""), this.tallies[key]
            if stored != str(right):
                what = f"{right} records have the service and the user {key!r}, and {stored or 'none'} are counted"
                this.add(repairable("tally", self._key("tallies"), what, ("tally", key, f"{stored}\n{right}")), key)

    def _look_at_running(self, this: Pass) -> None:
        """Compare how many jobs run by the counters of limits with the heads; they are never of one script."""
        for place, (name, field, started) in this.stored_running.items() if this.is_quiet else ():
            if started != this.running[place]:
                this.add(problem("gauge", name, self._key(name), field, field, ""), field)

    def _look_at_places(self, this: Pass) -> None:
        findings, unchecked = examine_places(this.placed, self._key("jobs"))
        for finding in findings:
            this.add(finding, finding.job_id or "")
        if unchecked is not None:
            this.notes.append(unchecked)
