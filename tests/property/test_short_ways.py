"""Short ways of enqueues, exchanges and dropped records leave every key and every reply as the long ways do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

from queuehint import operations as op
from queuehint.testing.state_machine.styles import CROWDED, SHARING, SPREAD, Style
from queuehint.values.hint import Claim
from queuehint.values.outcome import Outcome, OutcomeKind
from queuehint.values.spec import JobSpec
from tests.heads import FACTS_MAX
from tests.property.short_ways import TwoWays, walk_two_ways
from tests.support import thorough

pytestmark = pytest.mark.redis

STEPS = 100
YEAR_MS = 365 * 86_400_000
WALKS = thorough(40, quick=2)


@pytest.mark.heavy
@pytest.mark.parametrize(
    "style, room",
    [
        pytest.param(CROWDED, FACTS_MAX, marks=pytest.mark.slow),
        pytest.param(SPREAD, FACTS_MAX, marks=pytest.mark.slow),
        (SHARING, FACTS_MAX),
        pytest.param(SPREAD, 2, marks=pytest.mark.slow),
    ],
)
def test_short_ways_leave_every_key_as_the_long_ways_do(style: Style, room: int) -> None:
    taken: Counter[str] = Counter()
    for seed in range(WALKS):
        lockstep = TwoWays(start_ms=1_600_000_000_000, room=room)
        try:
            walk_two_ways(lockstep, Random(seed), style, STEPS)
            lockstep.wind_down()
            taken.update(lockstep.count_short())
        except BaseException as error:
            error.add_note(f"The walk from Random({seed}) after {lockstep.steps} steps.")
            raise
        finally:
            lockstep.close()
    assert min(taken["enqueue"], taken["exchange"], taken["drop"]) > WALKS, taken


@pytest.fixture
def twins() -> Iterator[TwoWays]:
    """A pair of namespaces whose first grant, which takes the long way, is done."""
    lockstep = TwoWays(start_ms=1_600_000_000_000)
    run_one(lockstep, "first")
    yield lockstep
    lockstep.wind_down()
    lockstep.check_residue()
    lockstep.close()


def run_one(lockstep: TwoWays, job_id: str, user: str | None = None) -> Counter[str]:
    """Enqueue, claim and settle one job; return how often a short way was taken for it."""
    before = lockstep.count_short()
    lockstep.do(op.Enqueue((JobSpec(id=job_id, task="t", pool="p", user=user),)))
    (grant,) = lockstep.do(op.Exchange("w", pools=("p",), limit=1)).grants
    lockstep.do(op.Exchange("w", (Outcome(job_id=job_id, token=grant.token, kind=OutcomeKind.FINISHED),), ("p",)))
    return Counter(lockstep.count_short()) - Counter(before)


ALL_SHORT = Counter(enqueue=1, exchange=2)


def test_worker_of_users_that_is_gone_leaves_short_ways(twins: TwoWays) -> None:
    assert run_one(twins, "a") == ALL_SHORT
    twins.do(op.Exchange("once", pools=("p",), limit=1, users=("ann",)))
    assert not run_one(twins, "b", "ann")
    twins.do(op.Enqueue((JobSpec(id="waits", task="t", pool="p", user="ann"),)))
    assert any(name.startswith("wake:user:") for name in twins.dump())
    twins.go_to(twins.now_ms + 62_000)
    twins.do(op.Tick())
    assert not any(name.startswith("wake:user:") for name in twins.dump())
    (grant,) = twins.do(op.Exchange("w", pools=("p",), limit=1)).grants
    twins.do(op.Exchange("w", (Outcome(job_id="waits", token=grant.token, kind=OutcomeKind.FINISHED),), ("p",)))
    assert run_one(twins, "c", "ann") == ALL_SHORT
    assert not twins.do(op.Exchange("once", pools=("p",), limit=1, users=("ann",))).grants


def test_short_ways_keep_the_lengths_of_a_line(twins: TwoWays) -> None:
    place = (Claim(("doc",)),)
    ids = [str(number) for number in range(10)]
    for job_id in ids:
        twins.do(op.Enqueue((JobSpec(id=job_id, task="t", pool="p", claims=place),)))
    assert twins.dump()["crowds"] == [(b"doc", 3.0)]
    (grant,) = twins.do(op.Exchange("w", pools=("p",), limit=1)).grants
    lengths = []
    for _ in ids[1:]:
        done = Outcome(job_id=grant.spec.id, token=grant.token, kind=OutcomeKind.FINISHED)
        (grant,) = twins.do(op.Exchange("w", (done,), ("p",), 1)).grants
        lengths.append(dict(twins.dump().get("crowds", ())).get(b"doc"))
    assert lengths == [3.0, 2.0, 2.0, 2.0, 2.0, None, None, None, None]
    assert Counter(twins.count_short()) >= Counter(enqueue=10, exchange=10)


@pytest.mark.parametrize("arguments", [b"x" * 100, b"x" * 200], ids=["in its head", "elsewhere"])
def test_next_in_line_that_waits_again_keeps_its_spec(twins: TwoWays, arguments: bytes) -> None:
    for job_id, segment in (("holds", "doc"), ("sooner", "other"), ("next", "doc")):
        claims = (Claim((segment,)),)
        twins.do(op.Enqueue((JobSpec(id=job_id, task="t", claims=claims, arguments=arguments, pool="p"),)))
    before, done, told = Counter(twins.count_short()), tuple[Outcome, ...](), list[tuple[str, bytes]]()
    for _ in range(4):
        for grant in (grants := twins.do(op.Exchange("w", done, ("p",), 1)).grants):
            told.append((grant.spec.id, grant.spec.arguments))
        done = tuple(Outcome(job_id=g.spec.id, token=g.token, kind=OutcomeKind.FINISHED) for g in grants)
    assert told == [(job_id, arguments) for job_id in ("holds", "sooner", "next")]
    assert Counter(twins.count_short()) - before == Counter(exchange=4)


@pytest.mark.parametrize("result", [None, b"1"], ids=["null", "result"])
@pytest.mark.parametrize("arguments", [b"x" * 100, b"x" * 200], ids=["in its head", "elsewhere"])
def test_record_of_plain_job_is_dropped_with_all_its_entries(
    twins: TwoWays, arguments: bytes, result: bytes | None
) -> None:
    fields: list[dict[str, Any]] = [
        {},
        {"claims": (Claim(("doc", "part")),)},
        {"claims": (Claim(()),), "user": "ann"},
        {"claims": (Claim(("doc",)),), "user": "ann", "service": "mail", "tags": ("x", "y")},
    ]
    before = twins.dump()
    twins.do(op.Enqueue(tuple(JobSpec(id=f"j{at}", task="t", arguments=arguments, **f) for at, f in enumerate(fields))))
    for _ in fields:
        for grant in twins.do(op.Exchange("w", limit=1)).grants:
            done = Outcome(job_id=grant.spec.id, token=grant.token, kind=OutcomeKind.FINISHED, result=result)
            twins.do(op.Exchange("w", (done,)))
    assert len(twins.dump()["jobs"]) == len(before["jobs"]) + len(fields)
    twins.go_to(twins.now_ms + YEAR_MS)
    twins.do(op.Tick())
    assert twins.count_short()["drop"] == len(fields) + 1
    kept = {name: held for name, held in twins.dump().items() if name not in {"meta", "receipts", "sessions", "seen"}}
    assert kept.keys() <= before.keys() and not kept.get("jobs"), kept


def test_value_kept_for_years_leaves_short_ways(twins: TwoWays) -> None:
    ten_years_ms = 3650 * 86_400_000
    twins.do(op.Push("n", "k", b"1", ten_years_ms))
    assert run_one(twins, "a") == ALL_SHORT
    twins.do(op.Push("n", "l", b"1", 5_000))
    assert run_one(twins, "b") == ALL_SHORT
    twins.go_to(twins.now_ms + 5_000)
    assert run_one(twins, "c") != ALL_SHORT
    assert twins.do(op.Pull("n", "l")).value is None
    assert run_one(twins, "d") == ALL_SHORT
    twins.do(op.Push("n", "k", b"2", 1))
