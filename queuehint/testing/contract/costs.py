"""The rules of costs: a job may take several slots, or starts, of each limit that applies to the job."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from queuehint.core.meters import counted_ms
from queuehint.core.structures.limits import LOOK_MS
from queuehint.errors import InvalidJobError
from queuehint.testing.contract.limits import at, limit
from queuehint.testing.contract.selected_limits import limit_jobs
from queuehint.testing.contract.slots import running_at
from queuehint.testing.driver import job
from queuehint.values.hint import Claim
from queuehint.values.record import JobState
from queuehint.values.report import ReasonKind

if TYPE_CHECKING:
    from typing import Any

    from queuehint.testing.contract.store import Store
    from queuehint.values.spec import JobSpec


def heavy(id: str, cost: int, **fields: Any) -> JobSpec:
    return job(id, ["a", id], cost=cost, **fields)


class Costs:
    """The cost of a job is taken from every limit that applies. Parked jobs start in order, whatever their costs."""

    def test_a_heavy_job_takes_as_many_slots_as_it_costs(self, store: Store) -> None:
        store.enqueue(heavy("h", 3), *at("a", 3))
        limit(store, "a", most=4)
        assert store.start() == ["h", "a0"]
        assert running_at(store, "a") == 4
        store.finish("h")
        assert store.start() == ["a1", "a2"]
        store.finish("a0", "a1", "a2")
        assert running_at(store, "a") == 0

    @pytest.mark.parametrize("burst", [None, 100])
    def test_heavy_job_takes_its_cost_from_a_rate(self, store: Store, burst: int | None) -> None:
        store.enqueue(heavy("h1", 50), heavy("h2", 50), heavy("h3", 50))
        limit(store, "a", rate=(100, 1000), burst=burst)
        assert store.start() == ["h1", "h2"]
        until_ms = store.began_ms + (counted_ms(1000) if burst is None else 500)
        assert store.why("h3").until_ms == store.tick().next_ms == until_ms
        store.wait(until_ms - store.began_ms - 1)
        assert store.start() == []
        store.wait(1)
        assert store.start() == ["h3"]

    def test_light_jobs_leave_the_room_a_heavy_one_waits_for(self, store: Store) -> None:
        store.enqueue(*at("a", 3))
        limit(store, "a", most=3)
        assert store.start() == ["a0", "a1", "a2"]
        store.enqueue(heavy("h", 3, user="ann"), *[job(f"l{n}", ["a", f"l{n}"], user=f"u{n}") for n in range(5)])
        assert store.start() == []
        store.finish("a0", "a1")
        store.enqueue(job("late", ["a", "late"], user="ben"))
        assert store.start() == [], "two slots are free, and the first in line needs three"
        assert store.why("h").kind is ReasonKind.LIMIT
        store.finish("a2")
        assert store.start() == ["h"]
        store.finish("h")
        assert store.start() == ["l0", "l1", "l2"]
        store.finish("l0")
        assert store.start() == ["l3"]
        store.finish("l1", "l2", "l3")
        assert store.start() == ["l4", "late"]

    def test_more_urgent_job_precedes_a_waiting_heavy_one(self, store: Store) -> None:
        store.enqueue(*at("a", 2))
        limit(store, "a", most=2)
        store.start()
        store.enqueue(heavy("h", 2), job("u", ["a", "u"], priority=5))
        store.finish("a0")
        assert store.start() == ["u"]
        store.finish("a1", "u")
        assert store.start() == ["h"]

    @pytest.mark.parametrize("kind", ["most", "rate", "task"])
    def test_job_before_a_heavy_one_starts_where_room_is(self, store: Store, kind: str) -> None:
        store.enqueue(*at("a", 1))
        if kind == "task":
            limit_jobs(store, task="task", most=3)
        else:
            limit(store, "a", **({"most": 3} if kind == "most" else {"rate": (3, 1000)}))
        assert store.start() == ["a0"]
        store.enqueue(heavy("h", 3))
        assert store.start() == []
        store.enqueue(job("u", ["a", "u"], priority=5), job("l", ["a", "l"]))
        assert store.start() == ["u"], "it is more urgent, and there is room for it"
        assert not store.tick().more
        store.finish("a0", "u")
        store.wait(counted_ms(1000))
        assert store.start() == ["h"]
        store.finish("h")
        store.wait(counted_ms(1000))
        assert store.start() == ["l"]

    def test_more_urgent_job_starts_before_the_called_one(self, store: Store) -> None:
        store.enqueue(*at("a", 2))
        limit(store, "a", most=3)
        assert store.start() == ["a0", "a1"]
        store.enqueue(heavy("h", 2, pool="p"))
        assert store.start(pools=("p",)) == []
        store.finish("a0")
        store.enqueue(job("u", ["a", "u"], priority=5), job("l", ["a", "l"]))
        assert store.start() == ["u"], "h is called, and no worker of its pool has claimed it"
        assert store.start(pools=("p",)) == [], "one slot is free"
        store.finish("u")
        assert store.start(pools=("p", "default")) == ["h"]
        store.finish("a1")
        assert store.start() == ["l"]

    def test_unclaimed_heavy_job_blocks_others_only_for_a_while(self, store: Store) -> None:
        store.enqueue(*at("a", 2))
        limit(store, "a", most=2)
        store.start(pools=("default", "p"))
        store.enqueue(heavy("h", 2, pool="p"), job("l", ["a", "l"]))
        assert store.start(pools=("p", "default")) == []
        store.finish("a0", "a1")
        assert store.start() == []
        store.wait(LOOK_MS)
        assert store.start() == ["l"]
        store.finish("l")
        assert store.start(pools=("p",)) == ["h"]

    def test_called_heavy_job_canceled_or_paused_releases_the_next_one(self, store: Store) -> None:
        for way in ("cancel", "pause"):
            names = [f"{way}{n}" for n in range(2)]
            store.enqueue(*[job(name, ["a", name]) for name in names])
            limit(store, "a", most=2)
            assert store.start() == names
            store.enqueue(heavy(f"h{way}", 2), job(f"l{way}", ["a", f"l{way}"]))
            assert store.start() == []
            store.finish(*names)
            if way == "cancel":
                store.cancel("hcancel")
            else:
                store.pause("a", "hpause")
            assert store.start() == [f"l{way}"]
            store.finish(f"l{way}")
        store.resume("a", "hpause")
        assert store.start() == ["hpause"]

    def test_cost_above_a_limit_is_refused_at_enqueue(self, store: Store) -> None:
        limit(store, "a", most=5)
        limit_jobs(store, task="task", rate=(4, 1000))
        with pytest.raises(InvalidJobError, match="job 'h': cost is 5, and the limit of task 'task' has 4"):
            store.enqueue(job("free"), heavy("h", 5))
        assert store.find("free") is None
        limit_jobs(store, task="task", rate=(4, 1000), burst=6)
        store.enqueue(heavy("h", 5))
        with pytest.raises(InvalidJobError, match="job 'i': cost is 6, and the limit of path 'a' has 5"):
            store.stage("S", heavy("i", 6))
        assert store.start() == ["h"]
        limit(store, "a")
        limit(store, "a", each=True, most=3)
        with pytest.raises(InvalidJobError, match="job 'j': cost is 4, and the limit of path 'a:j' has 3"):
            store.enqueue(job("j", claims=(Claim(("b",)), Claim(("a", "j", "below"))), cost=4))
        limit_jobs(store, pool="default", most=2)
        with pytest.raises(InvalidJobError, match="job 'k': cost is 3, and the limit of pool 'default' has 2"):
            store.enqueue(job("k", cost=3))

    def test_limit_below_a_waiting_cost_blocks_only_that_job(self, store: Store) -> None:
        store.enqueue(heavy("h", 5), *at("a", 2))
        limit(store, "a", most=3)
        assert store.start() == ["a0", "a1"]
        reason = store.why("h")
        assert (reason.kind, reason.path_key, reason.stuck) == (ReasonKind.LIMIT, "a", True)
        assert reason.detail == "its cost of 5 is more than the limit has"
        store.finish("a0", "a1")
        assert store.start() == []
        limit(store, "a", most=5)
        assert store.start() == ["h"]
        store.finish("h")
        assert store.state("h") is JobState.FINISHED
        assert store.is_clean

    def test_one_that_is_parked_apart_is_canceled_as_any_other(self, store: Store) -> None:
        store.enqueue(heavy("h", 5), heavy("i", 5))
        limit(store, "a", most=1)
        assert store.start() == []
        store.cancel("h")
        limit(store, "a")
        assert store.run() == ["i"]
        assert store.is_clean

    def test_limit_counts_costs_of_running_jobs_when_set(self, store: Store) -> None:
        store.enqueue(heavy("h", 3), *at("a", 2))
        assert store.start(limit=1) == ["h"]
        limit(store, "a", most=4)
        assert store.start() == ["a0"]
        store.finish("h")
        assert store.start() == ["a1"]
