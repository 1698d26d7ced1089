"""The rules of steps: stored results of a running job for its later attempts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from queuehint import operations as op
from queuehint.errors import InvalidJobError, PayloadError
from queuehint.testing.contract.record_writes import delete
from queuehint.testing.contract.store import DAY_MS
from queuehint.testing.driver import job
from queuehint.values.outcome import STEP_BYTES_MAX, STEPS_BYTES_MAX, STEPS_MAX, OutcomeKind
from queuehint.values.record import StepInfo

if TYPE_CHECKING:
    from queuehint.testing.contract.store import Store

DONE, LOST, REFUSED = op.Verdict.DONE, op.Verdict.LOST, op.Verdict.REFUSED


def start(store: Store, id: str = "a") -> int:
    """Start a job. Return its token."""
    assert store.start() == [id]
    return store.grants[id].token


class StoredSteps:
    """The result of a step is stored once a job, by the holder of its lease, and kept as long as the record."""

    def test_later_attempt_reads_stored_steps_in_order(self, store: Store) -> None:
        store.enqueue(job("a"))
        token = start(store)
        assert store.grants["a"].steps == 0
        assert store.fetch_steps("a", token).steps == ()
        began_ms = store.began_ms
        assert store.store_steps("a", token, z=b"1").steps == ((began_ms, None),)
        store.advance(5)
        assert store.store_steps("a", token, b=b"", a=b"\xff\0").steps == ((began_ms + 5, None),) * 2
        steps = (("z", began_ms, b"1"), ("b", began_ms + 5, b""), ("a", began_ms + 5, b"\xff\0"))
        assert store.fetch_steps("a", token).steps == steps
        store.fail("a")
        again = start(store)
        assert (store.grants["a"].steps, store.grants["a"].attempt) == (3, 2)
        assert store.fetch_steps("a", again) == op.Fetched(DONE, (), steps)
        assert store.fetch_steps("a", again, 2).steps == steps[2:]
        assert store.fetch_steps("a", again, 3).steps == store.fetch_steps("a", again, 9).steps == ()
        assert store.record("a").steps == tuple([StepInfo(name, at_ms) for name, at_ms, _ in steps])

    def test_the_first_result_of_a_name_is_kept_and_told(self, store: Store) -> None:
        store.enqueue(job("a"), job("b"))
        store.start()
        token, other = store.grants["a"].token, store.grants["b"].token
        stored = (store.began_ms, b"1")
        store.store_steps("a", token, s=b"1")
        store.advance(7)
        assert store.store_steps("a", token, s=b"2", t=b"3").steps == (stored, (store.began_ms + 7, None))
        assert store.store_steps("a", token, s=b"1").steps == (stored,)
        assert store.store_steps("b", other, s=b"4").steps == ((store.began_ms + 7, None),)
        assert [result for _, _, result in store.fetch_steps("a", token).steps] == [b"1", b"3"]
        (step,) = store.steps_of(u=b"5")
        reply = store.post(*[op.Note("b", other, step=step)] * 2)
        assert reply.steps == ((store.began_ms + 7, None), (store.began_ms + 7, b"5"))
        assert store.grants["a"].steps == 0

    def test_an_old_grant_stores_no_step_and_reads_none(self, store: Store) -> None:
        store.enqueue(job("a"))
        old = start(store)
        store.store_steps("a", old, s=b"1")
        store.wait(30_000)
        assert store.store_steps("a", old, t=b"2") == op.Posted((LOST,))
        token = start(store)
        before = store.record("a")
        assert store.store_steps("a", old, s=b"1", t=b"2") == op.Posted((LOST, LOST))
        assert store.fetch_steps("a", old) == op.Fetched(LOST, ())
        assert store.record("a") == before
        assert store.fetch_steps("a", token).steps == (("s", store.began_ms, b"1"),)
        assert store.store_steps("none", token, s=b"1") == op.Posted((LOST,))
        store.finish("a")
        assert store.store_steps("a", token, t=b"2") == op.Posted((LOST,))
        assert store.fetch_steps("a", token) == op.Fetched(LOST, ())

    @pytest.mark.parametrize("kind", ["released", "snoozed", "retried", "lost", "unknown task"])
    def test_steps_are_kept_over_every_way_to_a_further_attempt(self, store: Store, kind: str) -> None:
        store.enqueue(job("a"))
        store.store_steps("a", start(store), s=b"1")
        if kind == "lost":
            store.wait(30_000)
        else:
            kinds = {"retried": OutcomeKind.FAILED, "unknown task": OutcomeKind.UNKNOWN_TASK}
            assert store.settle("a", kinds.get(kind) or OutcomeKind(kind)) is DONE
            store.wait(5_000)
        token = start(store)
        assert store.grants["a"].steps == 1
        assert store.fetch_steps("a", token).steps == (("s", store.began_ms, b"1"),)

    def test_note_stores_step_log_and_result_together(self, store: Store) -> None:
        store.enqueue(job("a"))
        token = start(store)
        (step,) = store.steps_of(s=b"1")
        version = store.record("a").version
        assert store.post(op.Note("a", token, ("line",), result=b"2", step=step)).verdicts == (DONE,)
        record = store.record("a")
        assert (record.logs, record.result, len(record.steps)) == (("line",), b"2", 1)
        assert record.version == version + 1
        store.settle("a", result=b"3")
        assert (store.record("a").result, len(store.record("a").steps)) == (b"3", 1)

    @pytest.mark.parametrize("drops", [False, True])
    def test_a_redrive_keeps_steps_unless_it_drops_them(self, store: Store, drops: bool) -> None:
        store.enqueue(job("a", max_attempts=1))
        store.store_steps("a", start(store), s=b"1")
        store.fail("a")
        assert len(store.record("a").steps) == 1
        assert store.redrive("a", drop_steps=drops) == [DONE]
        assert len(store.record("a").steps) == (0 if drops else 1)
        token = start(store)
        assert store.grants["a"].steps == (0 if drops else 1)
        reply = store.store_steps("a", token, s=b"2")
        assert reply.steps == ((store.began_ms, None if drops else b"1"),)
        store.finish("a")

    @pytest.mark.parametrize("drops", [False, True])
    def test_a_rerun_keeps_steps_unless_it_drops_them(self, store: Store, drops: bool) -> None:
        store.enqueue(job("a"))
        store.store_steps("a", start(store), s=b"1")
        store.finish("a")
        store.rerun("a", drop_steps=drops)
        assert len(store.record("a").steps) == (0 if drops else 1)
        start(store)
        assert store.grants["a"].steps == (0 if drops else 1)
        store.finish("a")

    def test_redrive_that_drops_steps_keeps_steps_of_revived_jobs(self, store: Store) -> None:
        store.enqueue(job("dead", max_attempts=1), job("behind", after=["dead"]))
        store.store_steps("dead", start(store, "dead"), s=b"1")
        store.fail("dead")
        store.wait(0)
        store.redrive("dead", downstream=True, drop_steps=True)
        store.wait(0)
        assert store.run() == ["dead", "behind"]
        assert store.record("dead").steps == ()

    def test_steps_go_with_the_record(self, store: Store) -> None:
        store.enqueue(job("kept"), job("deleted"))
        store.start()
        for job_id in ("kept", "deleted"):
            store.store_steps(job_id, store.grants[job_id].token, s=b"1")
        store.finish("kept", "deleted")
        assert delete(store, "deleted") == [(DONE, None)]
        assert store.find("deleted") is None
        assert len(store.record("kept").steps) == 1
        store.wait(20 * DAY_MS)
        assert store.find("kept") is None
        store.enqueue(job("kept"), job("deleted"))
        store.start()
        for job_id in ("kept", "deleted"):
            assert store.grants[job_id].steps == 0
            assert store.store_steps(job_id, store.grants[job_id].token, s=b"2").steps[0][1] is None
            assert len(store.record(job_id).steps) == 1

    def test_a_job_has_so_many_steps_and_no_more(self, store: Store) -> None:
        store.enqueue(job("a"))
        token = start(store)
        for first in range(0, STEPS_MAX - 1, 333):
            names = [f"s{number}" for number in range(first, first + 333)]
            assert set(store.store_steps("a", token, **dict.fromkeys(names, b"1")).verdicts) == {DONE}
        reply = store.store_steps("a", token, last=b"1", more=b"1", s0=b"2")
        assert reply.verdicts == (DONE, REFUSED, DONE)
        assert reply.steps == ((store.began_ms, None), (store.began_ms, b"1"))
        (step,) = store.steps_of(more=b"1")
        version = store.record("a").version
        assert store.post(op.Note("a", token, ("line",), step=step)) == op.Posted((REFUSED,))
        record = store.record("a")
        assert (record.version, record.logs, len(record.steps)) == (version, (), STEPS_MAX)
        assert len(store.fetch_steps("a", token).steps) == STEPS_MAX
        assert [step.name for step in record.steps][-2:] == ["s998", "last"]

    def test_steps_of_a_job_are_bounded_in_bytes(self, store: Store) -> None:
        store.enqueue(job("a", max_attempts=1))
        token = start(store)
        largest = STEP_BYTES_MAX - 4
        for first in range(0, 256, 16):
            names = [f"é{number:02x}" for number in range(first, first + 16)]
            left = 0 if first < 240 else 1
            for name in names[: 16 - left]:
                assert store.store_steps("a", token, **{name: b"x" * largest}).verdicts == (DONE,)
        assert store.store_steps("a", token, éff=b"x" * (largest + 1)).verdicts == (REFUSED,)
        assert store.store_steps("a", token, éff=b"x" * largest).verdicts == (DONE,)
        assert store.store_steps("a", token, more=b"").verdicts == (REFUSED,)
        assert 256 * (largest + 4) == STEPS_BYTES_MAX
        found: list[tuple[str, int, bytes]] = []
        while page := store.fetch_steps("a", token, len(found)).steps:
            assert sum(len(result) for _, _, result in page) <= 4 << 20
            found += page
        assert len(found) == 256
        assert {result for _, _, result in found} == {b"x" * largest}
        store.fail("a")
        assert store.redrive("a", drop_steps=True) == [DONE]
        assert store.store_steps("a", start(store), more=b"x").verdicts == (DONE,), "dropped steps leave their room"
        assert len(store.record("a").steps) == 1

    def test_malformed_step_is_refused_by_name(self, store: Store) -> None:
        store.enqueue(job("a"))
        token = start(store)
        before = store.record("a")
        with pytest.raises(PayloadError, match="65537 bytes, limit 65536"):
            store.store_steps("a", token, s=b"x" * (STEP_BYTES_MAX + 1))
        for name in ("", "n" * 257, "a\nb"):
            with pytest.raises(InvalidJobError, match="name"):
                store.store_steps("a", token, **{name: b""})
        (step,) = store.steps_of(s=b"1")
        with pytest.raises(InvalidJobError, match="token: a note of 'a' has none, so it has lines alone"):
            store.post(op.Note("a", None, step=step))
        assert store.record("a") == before
