"""`queuehint doctor` on a job with many dependencies: exact, and of a cost that grows with the number of jobs."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from queuehint import operations as op
from queuehint.backends.redis.doctor import doctor
from queuehint.backends.redis.doctor.sums import Pass
from queuehint.backends.steps import run_steps_sync
from queuehint.client.submission import submit
from queuehint.values.limit import Limit
from queuehint.values.outcome import Outcome, OutcomeKind
from queuehint.values.spec import Dependency
from tests.doctor_store import Store, job, open_store

pytestmark = pytest.mark.redis

store = pytest.fixture(open_store)

WIDE = 2_200
"""Dependencies of three portions."""


def fill(store: Store, width: int = WIDE, *, run: int = 0) -> None:
    """Enqueue one job behind so many, and run some of these; what follows is left over where there is no other work."""
    loads = [job(f"load{number}", "import", str(number), flow="import") for number in range(width)]
    last = job("last", "import", flow="import")
    last = attrs.evolve(last, depends_on=tuple([Dependency(load.id) for load in loads]))
    run_steps_sync(store.backend, submit([*loads, last], whole=True))
    outcomes: tuple[Outcome, ...] = ()
    while run or outcomes:
        reply = store.do(op.Exchange("w", settle=outcomes, limit=min(run, op.JOBS_AT_ONCE)))
        run -= len(reply.grants)
        outcomes = tuple(
            [Outcome(job_id=got.spec.id, token=got.token, kind=OutcomeKind.FINISHED) for got in reply.grants]
        )


def calls(store: Store) -> tuple[int, int]:
    """Examine the namespace; return how many commands that took, of scripts too, and the most of one script."""
    client: Any = store.server.client()
    before = client.info("commandstats")
    report = store.look()
    assert report.is_clean, str(report)
    assert report.was_quiet
    counted = {
        name: stats["calls"] - before.get(name, {}).get("calls", 0)
        for name, stats in client.info("commandstats").items()
    }
    return sum(counted.values()), sum(counted.get(f"cmdstat_{name}", 0) for name in ("eval", "evalsha"))


@pytest.mark.slow
@pytest.mark.parametrize("run", [0, WIDE // 2, WIDE + 1])
def test_wide_job_is_clean_before_amid_and_after_its_dependencies(store: Store, run: int) -> None:
    fill(store, run=run)
    report = store.look()
    assert report.is_clean, str(report)
    assert report.was_quiet
    assert not report.unchecked


@pytest.mark.slow
@pytest.mark.parametrize("part", [0, 1, 2])
def test_cost_of_a_wide_job_grows_with_its_width(redis_server: Any, namespace: str, part: int) -> None:
    costs = []
    for width in (WIDE // 2, 2 * WIDE):
        for each in open_store(f"{namespace}-{width}", redis_server):
            fill(each, width, run=part * width // 2)
            commands, scripts = calls(each)
            assert scripts < width / 10 + 60, "many keys are looked at by one script"
            costs.append(commands / width)
    assert costs[1] < 1.3 * costs[0], costs


def test_cost_of_running_jobs_under_a_limit_is_linear(redis_server: Any, namespace: str) -> None:
    costs = []
    for count in (300, 1_200):
        for each in open_store(f"{namespace}-{count}", redis_server):
            each.do(op.SetLimit(Limit(path=("mail",), each=True, most=2)))
            for begin in range(0, count, op.JOBS_AT_ONCE):
                some = range(begin, min(begin + op.JOBS_AT_ONCE, count))
                each.do(op.Enqueue(tuple([job(f"{number}", "mail", f"{number}") for number in some])))
                assert len(each.do(op.Exchange("w", limit=op.JOBS_AT_ONCE)).grants) == len(some)
            commands, _ = calls(each)
            costs.append(commands / count)
    assert costs[1] < 1.3 * costs[0], costs


@pytest.mark.slow
def test_dependents_of_a_wide_job_are_not_searched_for_each(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(store, run=WIDE // 2)
    unsure: list[str] = []
    look = doctor._Doctor._look_at_unsure

    def look_and_note(self: Any, this: Pass) -> Any:
        unsure.extend(this.unsure["last"])
        yield from look(self, this)

    monkeypatch.setattr(doctor._Doctor, "_look_at_unsure", look_and_note)
    calls(store)
    assert len(unsure) == WIDE // 2, "each edge that has closed and whose job may be needed"


@pytest.mark.slow
def test_stray_edges_of_a_wide_job_are_put_right(store: Store) -> None:
    fill(store, run=WIDE // 2)
    store.do(op.Tick())
    client: Any = store.server.client()
    client.zrem(store.key("waiting:load3"), "last")
    client.zrem(store.key(f"waiting:load{WIDE - 1}"), "last")
    client.zadd(store.key("waiting:load"), {"last": WIDE + 1})
    found = {(finding.kind, finding.where.split(":", 2)[2]) for finding in store.look().errors}
    keys = ("waiting:load", "waiting:load3", f"waiting:load{WIDE - 1}", "blocked:last")
    assert found == {("edge", key) for key in keys}
    assert store.is_put_right()


def test_id_that_begins_another_is_no_edge(store: Store) -> None:
    loads = [job(name) for name in ("a", "b", "ab")]
    last = attrs.evolve(job("last"), depends_on=(Dependency("ab"),))
    run_steps_sync(store.backend, submit([*loads, last], whole=True))
    client: Any = store.server.client()
    for name in ("a", "b"):
        client.zadd(store.key(f"waiting:{name}"), {"last": len(loads) + 1})
    assert sorted(finding.where.rpartition(":")[2] for finding in store.look().errors) == ["a", "b"]
    assert store.is_put_right()
