"""The rules of identity: ids, deduplication keys, and records."""

from __future__ import annotations

from typing import Any, TypeVar

import attrs
import pytest

from queuehint import (
    Backoff,
    Claim,
    DuplicateJobError,
    InvalidJobError,
    JobNotFoundError,
    JobState,
    OutcomeKind,
    Policy,
    ReasonKind,
)
from queuehint import operations as op
from queuehint.backends.base import Interest
from queuehint.testing.contract.store import DAY_MS, Store
from queuehint.testing.driver import SHARED, job, unusual_policy
from queuehint.values.schedule import Recurrence
from queuehint.values.spec import PAYLOAD_BYTES_MAX, JobSpec

Reply = TypeVar("Reply")

SCHEDULED, DEFERRED, QUEUED, STARTED, FINISHED, FAILED, CANCELED = JobState


class Identity:
    """An id identifies a job. The same submission again is the same job, and a different job of that id is refused."""

    def test_the_same_submission_again_changes_nothing(self, store: Store) -> None:
        first = store.enqueue(job("a", ["doc"])).jobs[0]
        again = store.enqueue(job("a", ["doc"])).jobs[0]
        assert (first.created, again.created, first.number) == (True, False, again.number)

    def test_repeated_id_is_recognised_during_and_after_its_run(self, store: Store) -> None:
        for state in (QUEUED, STARTED, FINISHED):
            reply = store.enqueue(job("a")).jobs[0]
            assert (reply.created, reply.state) == (state is QUEUED, state)
            if not store.start():
                store.settle("a")

    def test_the_id_is_free_once_its_record_has_expired(self, store: Store) -> None:
        store.enqueue(job("a"))
        store.run()
        store.wait(DAY_MS)
        assert store.enqueue(job("a", ["elsewhere"])).jobs[0].created

    def test_changed_content_is_refused_naming_fields_without_values(self, store: Store) -> None:
        store.enqueue(job("a", ["doc"]))
        with pytest.raises(DuplicateJobError) as caught:
            store.enqueue(job("new"), job("a", ["secret"], arguments=b'{"password":1}'))
        assert caught.value.fields == ("claims", "arguments")
        assert "secret" not in str(caught.value)
        assert "password" not in str(caught.value)
        assert store.find("new") is None

    @pytest.mark.parametrize("size", [10, 300, 30_000])
    @pytest.mark.parametrize("is_deleted", [False, True])
    def test_changed_content_is_refused_after_the_record_expired(
        self, store: Store, size: int, is_deleted: bool
    ) -> None:
        ms = DAY_MS if is_deleted else 0
        asked = job("a", ["doc"], arguments=b"x" * size, retention_ms=ms)
        store.enqueue(asked)
        store.run()
        if is_deleted:
            store.apply(op.Delete(("a",)))
        store.wait(0)
        assert store.find("a") is None
        assert not store.enqueue(asked).jobs[0].created
        for other, fields in (
            (job("a", ["doc"], arguments=b"x" * (size - 1) + b"y", retention_ms=ms), ("arguments",)),
            (job("a", ["elsewhere"], arguments=b"x" * size, retention_ms=ms), ("claims",)),
        ):
            with pytest.raises(DuplicateJobError) as caught:
                store.enqueue(other)
            assert caught.value.fields == fields

    def test_identity_of_a_replaced_spec_outlives_its_record(self, store: Store) -> None:
        first = job("a", key="k", arguments=b"1" * 500, retention_ms=0)
        other = job("b", key="k", on_conflict="replace", arguments=b"2" * 500, retention_ms=0)
        store.enqueue(first)
        store.enqueue(other)
        store.run()
        store.wait(0)
        assert store.find("a") is None
        assert not store.enqueue(first).jobs[0].created
        with pytest.raises(DuplicateJobError):
            store.enqueue(job("a", key="k", arguments=b"3" * 500, retention_ms=0))

    def test_a_submission_of_too_many_bytes_is_refused(self, store: Store) -> None:
        specs = [job(str(n), arguments=b"x" * PAYLOAD_BYTES_MAX) for n in range(4)]
        with pytest.raises(InvalidJobError, match="a submission has 4194305 bytes of arguments, limit 4194304"):
            store.enqueue(*specs, job("more", arguments=b"1"))
        assert store.stats().enqueued == 0
        assert all(made.created for made in store.enqueue(*specs).jobs)

    def test_an_id_twice_in_one_submission_is_refused(self, store: Store) -> None:
        with pytest.raises(DuplicateJobError):
            store.enqueue(job("a"), job("b"), job("a"))
        assert store.stats().unfinished == 0

    @pytest.mark.parametrize("id", ["{}", "*", "meta", "__root__", "id:sequence", "123", "é", "e\u0301", "🙂"])
    def test_an_id_is_literal(self, store: Store, id: str) -> None:
        store.enqueue(job(id), job("x"))
        assert store.run() == [id, "x"]
        assert store.record(id).state is FINISHED

    def test_an_unknown_job_is_not_found(self, store: Store) -> None:
        assert store.find("a") is None
        with pytest.raises(JobNotFoundError):
            store.why("a")


def written(digests: str, *, as_: bytes = b"1", **fields: Any) -> JobSpec:
    """Return a job whose arguments a codec has written as some bytes, and whose digests begin with these digits."""
    return job("a", ["doc"], arguments=as_ * 500, identity=tuple([digit * 32 for digit in digests]), **fields)


class Digests:
    """Of arguments that a codec may write as other bytes a digest is compared."""

    def test_other_bytes_of_a_shared_digest_are_the_same_job(self, store: Store) -> None:
        first = store.enqueue(written("a")).jobs[0]
        for digests in ("a", "ab", "cab"):
            again = store.enqueue(written(digests, as_=b"2")).jobs[0]
            assert (again.created, again.number) == (False, first.number)
        assert store.record("a").spec == written("a")

    @pytest.mark.parametrize("digests", ["b", "bc", ""])
    def test_no_shared_digest_is_another_job(self, store: Store, digests: str) -> None:
        store.enqueue(written("a"))
        for as_ in (b"1", b"2"):
            with pytest.raises(DuplicateJobError) as caught:
                store.enqueue(written(digests, as_=as_))
            assert caught.value.fields == ("arguments",)

    def test_bytes_without_digest_differ_from_bytes_with_one(self, store: Store) -> None:
        store.enqueue(written(""))
        with pytest.raises(DuplicateJobError):
            store.enqueue(written("a"))

    def test_another_field_beside_a_shared_digest_is_refused(self, store: Store) -> None:
        store.enqueue(written("a", as_=b"\0\2"))
        for fields in ({"user": "ann"}, {"flow": "f"}, {"priority": 5}, {"pool": "p"}):
            with pytest.raises(DuplicateJobError) as caught:
                store.enqueue(written("a", as_=b"2", **fields))
            assert caught.value.fields == tuple(fields)
        assert not store.enqueue(written("a", as_=b"2", headers=(("h", "1"),))).jobs[0].created

    @pytest.mark.parametrize("is_deleted", [False, True])
    def test_digests_are_compared_when_the_record_is_gone(self, store: Store, is_deleted: bool) -> None:
        ms = DAY_MS if is_deleted else 0
        store.enqueue(written("ab", retention_ms=ms))
        store.run()
        if is_deleted:
            store.apply(op.Delete(("a",)))
        store.wait(0)
        assert store.find("a") is None
        assert not store.enqueue(written("b", as_=b"2", retention_ms=ms)).jobs[0].created
        with pytest.raises(DuplicateJobError) as caught:
            store.enqueue(written("c", retention_ms=ms))
        assert caught.value.fields == ("arguments",)

    @pytest.mark.parametrize("ends", ["kept", "expired", "deleted"])
    def test_digests_of_a_replaced_submission_are_compared(self, store: Store, ends: str) -> None:
        ms = 0 if ends == "expired" else DAY_MS
        fields: dict[str, Any] = {"key": "k", "on_conflict": "replace", "retention_ms": ms}
        store.enqueue(written("a", **fields))
        store.enqueue(attrs.evolve(written("b", **fields), id="b"))
        assert store.record("a").spec == written("b", **fields)
        store.run()
        if ends == "deleted":
            store.apply(op.Delete(("a",)))
        store.wait(0)
        assert (store.find("a") is None) is (ends != "kept")
        for digests in ("a", "b"):
            assert not store.enqueue(written(digests, as_=b"2", **fields)).jobs[0].created
        with pytest.raises(DuplicateJobError):
            store.enqueue(written("c", **fields))

    def test_parts_sent_again_are_known_by_digests(self, store: Store) -> None:
        first = store.apply(op.Enqueue((written("a"),), "parts"))
        again = store.apply(op.Enqueue((written("a", as_=b"2"),), "parts"))
        assert ([made.created for made in first.jobs], [made.created for made in again.jobs]) == ([True], [False])
        with pytest.raises(DuplicateJobError):
            store.apply(op.Enqueue((written("b"),), "parts"))

    def test_a_flow_of_shared_digests_is_the_same_flow(self, store: Store) -> None:
        store.apply(op.Enqueue((written("a", flow="f"),), flow="f"))
        assert not store.apply(op.Enqueue((written("a", as_=b"2", flow="f"),), flow="f")).jobs[0].created

    def test_a_schedule_of_a_shared_digest_is_stored_once(self, store: Store) -> None:
        due_ms = store.clock.now_ms() + 60_000
        changes = [
            store.apply(op.PutSchedule("a", spec, Recurrence(every_ms=60_000), due_ms)).changed
            for spec in (
                written("a"),
                written("ab", as_=b"2"),
                written("b"),
                written("b", as_=b"2", headers=(("h", "1"),)),
                written("b", as_=b"3", user="ann"),
                written("", user="ann"),
                written("", as_=b"2", user="ann"),
            )
        ]
        assert changes == [True, False, True, True, True, True, True]

    def test_running_job_with_digests_is_explained(self, store: Store) -> None:
        store.enqueue(written("ab", timeout_ms=DAY_MS))
        store.start()
        assert store.why("a").kind is ReasonKind.RUNNING

    @pytest.mark.parametrize("identity", [("a",), ("A" * 32,), ("a" * 33,), ("a" * 32,) * 5, "a" * 32, ["a" * 32]])
    def test_a_wrong_digest_is_refused(self, store: Store, identity: Any) -> None:
        with pytest.raises(InvalidJobError, match="identity"):
            store.enqueue(job("a", identity=identity))
        assert store.find("a") is None


class Records:
    """The record of a job is kept for a time after its end."""

    def test_a_record_tells_the_life_of_its_job(self, store: Store) -> None:
        began = store.clock.now_ms()
        store.enqueue(job("a", ["doc", "1"], user="ann", service="s"))
        store.wait(10)
        store.start(worker="w")
        store.wait(10)
        store.settle("a", result=b'{"result":1}')
        record = store.record("a")
        assert (record.state, record.result, record.attempts) == (FINISHED, b'{"result":1}', 1)
        assert (record.enqueued_ms, record.started_ms, record.ended_ms) == (began, began + 10, began + 20)
        assert (record.path, record.queue_keys) == (("doc", "1"), ("doc:1",))
        assert (record.spec.user, record.spec.service) == ("ann", "s")

    @pytest.mark.parametrize("failing, kept_ms", [(False, DAY_MS), (True, 7 * DAY_MS)])
    def test_a_record_expires_after_its_end(self, store: Store, failing: bool, kept_ms: int) -> None:
        store.enqueue(job("a", max_attempts=1))
        store.start()
        store.settle("a", OutcomeKind.FAILED if failing else OutcomeKind.FINISHED)
        store.wait(kept_ms - 1)
        assert store.find("a") is not None
        store.wait(1)
        assert store.find("a") is None
        assert sum(store.stats().states.values()) == 0

    def test_a_jobs_own_retention_wins(self, store: Store) -> None:
        store.enqueue(job("a", retention_ms=0))
        store.run()
        store.wait(0)
        assert store.find("a") is None

    @pytest.mark.parametrize("kind", [OutcomeKind.FINISHED, OutcomeKind.FAILED, OutcomeKind.DISCARDED])
    def test_awaited_record_is_kept_for_a_minute(self, store: Store, kind: OutcomeKind) -> None:
        kept = {"awaited": 0, "alone": 0, "longer": 90_000}
        store.enqueue(*[job(name, max_attempts=1, retention_ms=ms) for name, ms in kept.items()])
        store.sleep(Interest(jobs=("awaited", "longer")), 0.001)
        store.start()
        for name in kept:
            store.settle(name, kind, result=b"1" if kind is OutcomeKind.FINISHED else None)
        store.wait(0)
        assert store.find("alone") is None
        store.wait(59_999)
        assert store.record("awaited").result == (b"1" if kind is OutcomeKind.FINISHED else None)
        store.wait(1)
        assert store.find("awaited") is None
        store.wait(29_999)
        assert store.find("longer") is not None
        store.wait(1)
        assert store.find("longer") is None

    def test_records_read_together_are_kept_for_a_minute(self, store: Store) -> None:
        kept = {"a": 0, "b": 1000, "alone": 0, "longer": 90_000}
        store.enqueue(*[job(name, max_attempts=1, retention_ms=ms) for name, ms in kept.items()])
        store.sleep(Interest(kept=("a", "b", "longer", "unknown")), 0)
        store.start()
        for name in kept:
            store.settle(name, result=b"1")
        store.wait(0)
        assert store.find("alone") is None
        store.wait(59_999)
        assert [store.record(name).result for name in ("a", "b", "longer")] == [b"1"] * 3
        store.wait(1)
        assert [store.find(name) for name in ("a", "b")] == [None, None]
        store.wait(30_000)
        assert store.find("longer") is None

    def test_waiter_after_the_end_keeps_no_record(self, store: Store) -> None:
        store.enqueue(job("a", retention_ms=1000))
        store.run()
        store.sleep(Interest(jobs=("a",)), 0.001)
        store.wait(1000)
        assert store.find("a") is None

    def test_counts_add_up(self, store: Store) -> None:
        store.enqueue(job("a"), job("b", ["doc"]), job("c", ["doc"]), job("d", delay_ms=1_000))
        store.start(1)
        stats = store.stats()
        assert stats.states[STARTED] == 1
        assert stats.states[QUEUED] == 2
        assert stats.states[SCHEDULED] == 1
        assert (stats.unfinished, stats.enqueued, stats.started, stats.ready) == (4, 4, 1, {"default": 1})

    def test_tree_shows_jobs_at_each_path(self, store: Store) -> None:
        store.enqueue(job("a", ["doc", "1"]), job("b", ["doc"]))
        store.start()
        doc = store.apply(op.Tree(("doc",), 1))
        assert (doc.path_key, doc.started, doc.started_below, doc.waiting) == ("doc", 0, 1, 1)
        assert [(child.path_key, child.started) for child in doc.children] == [("doc:1", 1)]

    def test_nothing_is_left_when_all_is_over(self, store: Store) -> None:
        store.enqueue(*[job(f"j{n}", ["doc", str(n % 3)]) for n in range(12)], job("whole", ["doc"]))
        store.run(4)
        assert store.stats().nodes == 0
        store.wait(DAY_MS)
        stats = store.stats()
        assert (sum(stats.states.values()), stats.leftovers, stats.pruned) == (0, 0, 13)

    def test_a_list_of_waits_comes_back_as_it_was(self, store: Store) -> None:
        spec = job("a", policy=Policy(backoff=Backoff(waits=[0, 1.5, 86_400], jitter=0)))
        store.enqueue(spec)
        assert store.record("a").spec == spec

    def test_spec_of_every_field_is_returned_unchanged(self, store: Store) -> None:
        policy = unusual_policy(Backoff(base=2, factor=3, cap=9, jitter=0.5))
        spec = job(
            "a",
            claims=(Claim(("x",), SHARED), Claim(("y", "ü:\\"))),
            arguments='{"é":[1.0,-0.0,18446744073709551616,null,"\\u0000"]}'.encode(),
            priority=9,
            pool="p q",
            user="u:v",
            service="s",
            key="k",
            on_conflict="after",
            run_at_ms=store.clock.now_ms() + 99,
            policy=policy,
        )
        store.enqueue(spec)
        assert store.record("a").spec == spec
