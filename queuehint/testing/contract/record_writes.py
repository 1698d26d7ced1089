"""The rules of changing records: deletion, amendments, partial results, log lines by any caller, drawn numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
import pytest

from queuehint import InvalidJobError, JobState, OutcomeKind, PayloadError
from queuehint import operations as op
from queuehint.testing.contract.listing import listed, users
from queuehint.testing.contract.store import DAY_MS
from queuehint.testing.driver import job
from queuehint.values.outcome import RESULT_BYTES_MAX
from queuehint.values.record_filter import RecordFilter
from queuehint.values.spec import Dependency

if TYPE_CHECKING:
    from queuehint.testing.contract.store import Store

SCHEDULED, DEFERRED, QUEUED, STARTED, FINISHED, FAILED, CANCELED = JobState
MINUTE = 60_000


def delete(store: Store, *ids: str, versions: tuple[int, ...] | None = None) -> list[Any]:
    return list(store.apply(op.Delete(ids, versions)).verdicts)


class Deletion:
    """An early deletion has the effects of the expiry of the record."""

    def test_delete_accepts_only_ended_jobs(self, store: Store) -> None:
        store.enqueue(job("over"), job("runs"), job("waits", delay_ms=1000))
        store.start(1)
        store.finish("over")
        store.start(1)
        assert delete(store, "over", "runs", "waits", "unknown", "over") == [
            (op.Verdict.DONE, None),
            (op.Verdict.REFUSED, STARTED),
            (op.Verdict.REFUSED, SCHEDULED),
            (op.Verdict.UNKNOWN, None),
            (op.Verdict.UNKNOWN, None),
        ]
        assert store.find("over") is None
        assert listed(store) == "runs waits"
        assert store.stats().states[FINISHED] == 0

    def test_a_record_of_another_version_is_not_deleted(self, store: Store) -> None:
        store.enqueue(job("a"), job("b"))
        store.cancel("a", "b")
        version = store.record("a").version
        store.say("a", None, ("changed",))
        assert delete(store, "a", "b", versions=(version, version)) == [
            (op.Verdict.STALE, CANCELED),
            (op.Verdict.DONE, None),
        ]
        assert delete(store, "a", versions=(version + 1,)) == [(op.Verdict.DONE, None)]
        with pytest.raises(InvalidJobError, match="versions: 1 for 2 ids"):
            delete(store, "a", "b", versions=(1,))

    def test_a_result_that_others_may_still_read_is_not_deleted(self, store: Store) -> None:
        store.enqueue(job("a"), job("b", after=["a"], delay_ms=1000))
        store.start()
        store.settle("a", result=b"1")
        store.wait(0)
        assert delete(store, "a") == [(op.Verdict.REFUSED, FINISHED)]
        store.cancel("b")
        store.wait(0)
        assert delete(store, "a") == [(op.Verdict.DONE, None)]

    def test_deleted_dead_job_frees_its_place_and_cancels_dependents(self, store: Store) -> None:
        store.enqueue(
            job("dead", ["x"], on_dead="hold", max_attempts=1), job("behind", ["x"]), job("after", after=["dead"])
        )
        store.start()
        store.fail("dead")
        assert store.start() == []
        assert delete(store, "dead") == [(op.Verdict.DONE, None)]
        store.wait(0)
        assert store.state("after") is CANCELED
        assert store.start() == ["behind"]

    def test_the_id_of_a_deleted_job_is_kept_ten_minutes(self, store: Store) -> None:
        store.enqueue(job("a"))
        store.run()
        delete(store, "a")
        assert not store.enqueue(job("a")).jobs[0].created
        store.wait(10 * MINUTE)
        assert store.enqueue(job("a")).jobs[0].created
        assert listed(store) == "a"

    def test_at_most_a_thousand_are_deleted_at_once(self, store: Store) -> None:
        with pytest.raises(InvalidJobError, match="ids"):
            delete(store, *[str(number) for number in range(1001)])


def amend(store: Store, job_id: str, **fields: Any) -> op.Verdict:
    record = store.record(job_id)
    return store.apply(op.Amend(attrs.evolve(record.spec, **fields), record.version)).verdict


class Amending:
    """A record's service and user can be changed, and nothing else."""

    def test_amended_record_is_found_by_its_new_fields(self, store: Store) -> None:
        store.enqueue(job("a", ["x"], user="ann", service="docs"), job("b", user="ann", service="docs"))
        version = store.record("a").version
        assert amend(store, "a", user="ben", service="mail") is op.Verdict.DONE
        record = store.record("a")
        assert (record.spec.user, record.spec.service, record.version) == ("ben", "mail", version + 1)
        assert listed(store, user="ann") == listed(store, service="docs") == "b"
        assert listed(store, user="ben") == listed(store, service="mail") == "a"
        assert (users(store, "docs"), users(store, "mail")) == ({"ann": 1}, {"ben": 1})
        assert amend(store, "a", user=None) is op.Verdict.DONE
        assert users(store, "mail") == {}
        assert store.record("a").spec.user is None

    def test_amend_to_equal_values_changes_nothing(self, store: Store) -> None:
        store.enqueue(job("a", user="u", service="s"), job("b", user="u"))
        record = store.record("a")
        assert amend(store, "a", user="u", service="s") is op.Verdict.DONE
        assert store.record("a") == record
        assert store.apply(op.Amend(record.spec, record.version + 1)).verdict is op.Verdict.STALE
        assert store.start(limit=1) == ["a"]

    def test_a_record_of_another_version_is_not_amended(self, store: Store) -> None:
        store.enqueue(job("a"))
        record = store.record("a")
        assert (
            store.apply(op.Amend(attrs.evolve(record.spec, user="u"), record.version + 1)).verdict is op.Verdict.STALE
        )
        assert store.record("a") == record

    def test_nothing_else_is_changed(self, store: Store) -> None:
        store.enqueue(job("a", ["x"], user="u"))
        record = store.record("a")
        for fields in (
            {"priority": 5},
            {"task": "other"},
            {"pool": "p"},
            {"arguments": b"[]"},
            {"claims": ()},
            {"key": "k"},
            {"policy": job("b", max_attempts=1).policy},
            {"delay_ms": 5},
        ):
            with pytest.raises(InvalidJobError, match="only the service and the user"):
                store.apply(op.Amend(attrs.evolve(record.spec, **fields), record.version))
        assert store.record("a") == record

    def test_amend_of_deleted_or_uncommitted_jobs_is_unknown(self, store: Store) -> None:
        store.enqueue(job("a"))
        store.run()
        record = store.record("a")
        store.apply(op.Delete(("a",)))
        store.stage("T", job("b"))
        assert store.apply(op.Amend(record.spec, record.version)).verdict is op.Verdict.UNKNOWN
        assert store.apply(op.Amend(job("b"), 1)).verdict is op.Verdict.UNKNOWN
        assert store.apply(op.Amend(job("c"), 1)).verdict is op.Verdict.UNKNOWN
        assert listed(store) == ""

    def test_a_ready_job_takes_its_turn_under_its_new_user(self, store: Store) -> None:
        store.enqueue(job("a1", user="ann"), job("a2", user="ann"), job("a3", user="ann"), job("b1", user="ben"))
        amend(store, "a1", user="zoe")
        assert store.run() == ["a2", "b1", "a1", "a3"]

    @pytest.mark.parametrize("state", ["STARTED", "waits", "parked", "over"])
    def test_a_job_is_amended_in_any_state(self, store: Store, state: str) -> None:
        store.enqueue(job("first", ["x"]), job("a", ["x"], user="u"))
        if state == "parked":
            store.pause("x")
        store.start(1)
        if state in {"STARTED", "over"}:
            store.finish("first")
            store.start()
        if state == "over":
            store.finish("a")
        before = store.state("a")
        assert amend(store, "a", user="v", service="s") is op.Verdict.DONE
        assert (store.state("a"), store.record("a").spec.user, users(store, "s")) == (before, "v", {"v": 1})
        store.resume("x")
        store.wait(0)
        if state == "STARTED":
            store.finish("a")
        if state == "waits":
            store.finish("first")
        store.run()
        assert store.state("a") is FINISHED
        assert listed(store, user="v", states=(FINISHED,)) == "a"

    def test_amended_job_is_recognised_by_its_first_spec(self, store: Store) -> None:
        first = job("a", user="u")
        store.enqueue(first)
        amend(store, "a", user="v")
        amend(store, "a", user="w")
        assert not store.enqueue(first).jobs[0].created
        assert not store.enqueue(job("a", user="w")).jobs[0].created
        store.run()
        store.apply(op.Delete(("a",)))
        assert not store.enqueue(first).jobs[0].created

    def test_new_service_of_an_ended_record_keeps_its_expiry(self, store: Store) -> None:
        store.enqueue(job("a"), job("b", service="s"))
        store.run()
        store.wait(DAY_MS // 2)
        amend(store, "a", service="s")
        amend(store, "b", service=None)
        store.wait(DAY_MS // 2 - 1)
        assert listed(store) == "a b"
        store.wait(1)
        assert listed(store) == ""


def update(store: Store, job_id: str, result: bytes) -> op.Verdict:
    return store.say(job_id, store.grants[job_id].token, result=result)


class Interim:
    """The result of a running job may be stored before its end."""

    def test_running_job_shows_its_partial_result(self, store: Store) -> None:
        store.enqueue(job("a"))
        store.start()
        version = store.record("a").version
        assert update(store, "a", b"1") is op.Verdict.DONE
        assert update(store, "a", b"2") is op.Verdict.DONE
        assert (store.record("a").result, store.record("a").version) == (b"2", version + 2)
        assert update(store, "a", b"null") is op.Verdict.DONE
        assert store.record("a").result == b"null"

    @pytest.mark.parametrize(
        "outcome, result",
        [
            ({}, b"1"),
            ({"result": b"2"}, b"2"),
            ({"result": b"null"}, b"null"),
            ({"kind": OutcomeKind.FAILED, "final": True}, None),
            ({"kind": OutcomeKind.DISCARDED}, None),
            ({"kind": OutcomeKind.RELEASED}, b"1"),
            ({"kind": OutcomeKind.FAILED, "delay_ms": 100}, b"1"),
        ],
    )
    def test_end_of_a_job_decides_its_partial_result(
        self, store: Store, outcome: dict[str, Any], result: bytes | None
    ) -> None:
        store.enqueue(job("a"))
        store.start()
        update(store, "a", b"1")
        store.settle("a", **outcome)
        assert store.record("a").result == result

    def test_a_later_attempt_finds_it_and_a_redrive_does_not(self, store: Store) -> None:
        store.enqueue(job("a", max_attempts=2))
        store.start()
        update(store, "a", b"1")
        store.fail("a")
        store.start()
        assert store.record("a").result == b"1"
        store.finish("a")
        assert store.record("a").result == b"1"
        store.enqueue(job("b", max_attempts=1))
        store.start()
        update(store, "b", b"1")
        store.fail("b")
        store.redrive("b")
        assert store.record("b").result is None

    def test_a_parent_keeps_it_while_it_waits_for_its_children(self, store: Store) -> None:
        store.enqueue(job("p"))
        store.start()
        update(store, "p", b"1")
        store.enqueue_from("p", job("c"))
        store.await_children("p", "c")
        assert store.record("p").result == b"1"
        store.run()
        store.wait(0)
        assert (store.state("p"), store.record("p").result) == (FINISHED, b"1")

    def test_only_the_newest_grant_may(self, store: Store) -> None:
        store.enqueue(job("a"))
        store.start()
        old = store.grants["a"].token
        store.settle("a", OutcomeKind.RELEASED)
        assert store.say("a", old, result=b"1") is op.Verdict.LOST
        store.start()
        assert store.say("a", old, result=b"1") is op.Verdict.LOST
        assert store.say("unknown", old, result=b"1") is op.Verdict.LOST
        assert store.record("a").result is None
        store.finish("a")
        assert update(store, "a", b"1") is op.Verdict.LOST

    def test_a_result_too_large_is_refused(self, store: Store) -> None:
        store.enqueue(job("a"))
        store.start()
        with pytest.raises(PayloadError):
            update(store, "a", b"x" * (RESULT_BYTES_MAX + 1))
        assert update(store, "a", b"x" * RESULT_BYTES_MAX) is op.Verdict.DONE

    def test_job_canceled_while_running_has_no_result(self, store: Store) -> None:
        store.enqueue(job("a"))
        store.start()
        update(store, "a", b"1")
        store.apply(op.Cancel(("a",)))
        store.settle("a", OutcomeKind.RELEASED)
        assert (store.state("a"), store.record("a").result) == (CANCELED, None)

    def test_dependents_read_the_final_result(self, store: Store) -> None:
        store.enqueue(job("a"), job("b", after=[Dependency("a", data=True)]))
        store.start()
        update(store, "a", b"1")
        store.finish("a")
        store.wait(0)
        store.start()
        assert store.fetch("b", "a").results == ((FINISHED, b"1"),)


def log(store: Store, job_id: str, *lines: str) -> op.Verdict:
    return store.say(job_id, None, lines)


class OpenLog:
    """Any client may append to the log of a record that is kept."""

    def test_a_record_takes_lines_in_any_state(self, store: Store) -> None:
        store.enqueue(job("a"), job("late", delay_ms=5))
        assert log(store, "a", "queued") is op.Verdict.DONE
        store.start()
        assert log(store, "a", "started", "") is op.Verdict.DONE
        store.say("a", store.grants["a"].token, ("mine",))
        store.finish("a")
        version = store.record("a").version
        assert log(store, "a", "over", "é\nü") is op.Verdict.DONE
        record = store.record("a")
        assert record.logs == ("queued", "started", "", "mine", "over", "é\nü")
        assert (record.version, record.logs_truncated) == (version + 1, False)
        assert log(store, "late", "x") is op.Verdict.DONE

    def test_log_of_unknown_jobs_is_refused(self, store: Store) -> None:
        store.enqueue(job("a"))
        store.run()
        store.apply(op.Delete(("a",)))
        store.stage("T", job("b"))
        assert [log(store, name, "x") for name in ("a", "b", "c")] == [op.Verdict.UNKNOWN] * 3

    def test_the_last_thousand_lines_are_kept(self, store: Store) -> None:
        store.enqueue(job("a"))
        for begin in range(0, 1200, 400):
            log(store, "a", *[str(number) for number in range(begin, begin + 400)])
        record = store.record("a")
        assert record.logs == tuple(str(number) for number in range(200, 1200))
        assert record.logs_truncated

    def test_a_record_that_is_gone_leaves_no_line_behind(self, store: Store) -> None:
        store.enqueue(job("a", retention_ms=1000))
        store.run()
        log(store, "a", "x")
        store.wait(10 * MINUTE)
        store.enqueue(job("a", retention_ms=1000))
        assert store.record("a").logs == ()


class Numbers:
    """Numbers are drawn once each."""

    def test_a_look_draws_nothing(self, store: Store) -> None:
        assert store.apply(op.Peek()).first == store.apply(op.Peek()).first == 1
        assert store.apply(op.Draw(5)).first == 1
        assert store.apply(op.Peek()).first == 6
        assert store.apply(op.Draw(1)).first == 6

    def test_a_flow_is_listed_as_before(self, store: Store) -> None:
        store.enqueue(job("a", flow="f"), job("b"), job("c", flow="f"))
        assert [record.id for record in store.apply(op.List(RecordFilter(flow="f"))).records] == ["a", "c"]
