"""The engine: submissions, their ids and keys, and what is refused as a whole."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from queuehint.errors import (
    DuplicateJobError,
    InvalidHintError,
    InvalidJobError,
    InvalidJobTypeError,
    PathClosedError,
    QueueHintError,
)
from queuehint.operations import Close, Draw, Reopen
from queuehint.testing.driver import Queue, claim, job
from queuehint.values.outcome import JobError, OutcomeKind
from queuehint.values.record import JobState
from queuehint.values.report import ReasonKind
from queuehint.values.spec import JobSpec

SCHEDULED, DEFERRED, QUEUED, STARTED, FINISHED, FAILED, CANCELED = JobState


# --- what a submission does ------------------------------------------------------------------------------------------


def test_jobs_are_numbered_in_the_order_of_their_submission() -> None:
    queue = Queue()
    reply = queue.enqueue(job("b", ["x"]), job("a", ["x"]), job("c", delay_ms=5))
    assert [(made.id, made.number, made.state, made.created) for made in reply.jobs] == [
        ("b", 1, QUEUED, True),
        ("a", 2, QUEUED, True),
        ("c", 3, SCHEDULED, True),
    ]
    assert queue.run() == ["b", "a"]


def test_an_empty_submission_does_nothing() -> None:
    assert Queue().enqueue().jobs == ()


@pytest.mark.parametrize(
    "fields, state, due_ms",
    [
        ({}, QUEUED, None),
        ({"delay_ms": 0}, QUEUED, None),
        ({"delay_ms": 1}, SCHEDULED, 1001),
        ({"run_at_ms": 999}, QUEUED, None),
        ({"run_at_ms": 1000}, QUEUED, None),
        ({"run_at_ms": -(10**14)}, QUEUED, None),
        ({"run_at_ms": 1001}, SCHEDULED, 1001),
    ],
)
def test_a_job_with_a_time_ahead_waits_for_it_and_any_other_is_queued(
    fields: dict[str, Any], state: JobState, due_ms: int | None
) -> None:
    queue = Queue(job("a", ["x"], **fields), now_ms=1000)
    assert (queue.state("a"), queue.record("a").due_ms) == (state, due_ms)
    queue.wait(1)
    assert queue.run() == ["a"]


def test_a_scheduled_job_takes_its_place_when_it_is_due() -> None:
    queue = Queue(job("late", ["x"], delay_ms=1000), job("early", ["x"]), now_ms=0)
    queue.start()
    queue.enqueue(job("behind", ["x"]))
    queue.wait(1000)
    queue.enqueue(job("last", ["x"]))
    queue.finish("early")
    assert queue.run() == ["behind", "late", "last"]


def test_jobs_due_at_the_same_time_take_their_places_in_order_of_enqueue() -> None:
    queue = Queue(job("b", ["x"], delay_ms=1000), job("a", ["x"], run_at_ms=1000), now_ms=0)
    queue.wait(1000)
    assert queue.run() == ["b", "a"]


# --- ids -------------------------------------------------------------------------------------------------------------


def test_the_same_id_and_content_again_is_the_job_that_is_there() -> None:
    queue = Queue(job("a", ["x"], arguments=b"1"))
    states = []
    for step in (lambda: None, queue.start, lambda: queue.finish("a")):
        step()
        (made,) = queue.enqueue(job("a", ["x"], arguments=b"1")).jobs
        assert (made.number, made.created) == (1, False)
        states.append(made.state)
    assert states == [QUEUED, STARTED, FINISHED]
    assert queue.stats().enqueued == 1


def test_a_submission_sent_again_and_a_new_job_go_together() -> None:
    queue = Queue(job("a", ["x"]))
    reply = queue.enqueue(job("a", ["x"]), job("b", ["x"]))
    assert [made.created for made in reply.jobs] == [False, True]
    assert queue.run() == ["a", "b"]


@pytest.mark.parametrize(
    "other, fields",
    [
        (job("a", ["y"], arguments=b'"old"'), ("claims",)),
        (job("a", ["x"], arguments=b'"new"'), ("arguments",)),
        (job("a", ["x"], arguments=b'"new"', priority=5, max_attempts=9), ("arguments", "priority", "policy")),
    ],
)
def test_the_same_id_with_other_content_is_refused_naming_fields_never_values(
    other: JobSpec, fields: tuple[str, ...]
) -> None:
    queue = Queue(job("a", ["x"], arguments=b'"old"'))
    before = queue.everything()
    with pytest.raises(DuplicateJobError) as caught:
        queue.enqueue(job("new"), other)
    assert (caught.value.job_id, caught.value.fields) == ("a", fields)
    assert "old" not in str(caught.value) and "new" not in str(caught.value)
    assert queue.everything() == before


def test_the_same_id_twice_in_one_submission_is_refused() -> None:
    queue = Queue()
    before = queue.everything()
    with pytest.raises(DuplicateJobError, match="job id 'a' appears twice in one submission"):
        queue.enqueue(job("a"), job("b"), job("a"))
    assert queue.everything() == before


def test_ids_that_look_alike_are_different_jobs() -> None:
    ids = ["1", "01", "a", "A", "é", "e\u0301", "root", "__root__", "*", "{}", str(2**53), str(2**53 + 1)]
    queue = Queue(*[job(job_id) for job_id in ids])
    assert queue.start() == ids


def test_a_number_is_never_drawn_twice() -> None:
    queue = Queue()
    assert [queue.apply(Draw(count)).first for count in (1, 3, 0, 1000, 1)] == [1, 2, 5, 5, 1005]


# --- all or nothing --------------------------------------------------------------------------------------------------


def busy() -> Queue:
    """Return a queue with something of everything: a refused operation must not touch any of it."""
    queue = Queue(
        job("a", ["x"], key="k"), job("b", ["x"]), job("timed", delay_ms=10), job("dead", max_attempts=1), now_ms=0
    )
    queue.apply(Close(("closed",)))
    queue.start()
    queue.fail("dead")
    queue.cancel("a")
    return queue


@pytest.mark.parametrize(
    "bad, error",
    [
        (job("b", ["y"]), DuplicateJobError),
        (job("first"), DuplicateJobError),
        (job("c", key="k", on_conflict="reject"), DuplicateJobError),
        (job("c", ["closed", "d"]), PathClosedError),
        (job("c", claims=(claim("x"), claim("closed"))), PathClosedError),
        (job("c", claims=tuple(claim(*["d"] * 60, str(number)) for number in range(65))), InvalidHintError),
    ],
)
@pytest.mark.parametrize("index", [0, 1, 2])
def test_a_submission_with_one_bad_job_changes_nothing_at_all(
    bad: JobSpec, error: type[QueueHintError], index: int
) -> None:
    queue = busy()
    before = queue.everything()
    jobs = [job("first", ["x"]), job("second", key="k2"), job("third", delay_ms=1)]
    jobs.insert(index, bad)
    with pytest.raises(error):
        queue.enqueue(*jobs)
    assert queue.everything() == before


def test_a_key_taken_within_the_submission_refuses_it_as_a_whole() -> None:
    queue = Queue()
    with pytest.raises(DuplicateJobError) as caught:
        queue.enqueue(job("a", key="k"), job("b", key="k", on_conflict="reject"))
    assert (caught.value.job_id, caught.value.key) == ("a", "k")
    assert queue.stats().enqueued == 0


def test_a_thousand_jobs_are_one_submission_and_one_more_is_too_many() -> None:
    queue = Queue(checked=False)
    queue.enqueue(*[job(str(number)) for number in range(1000)])
    with pytest.raises(InvalidJobError, match="jobs: 1001 in one operation, limit 1000"):
        queue.enqueue(*[job(f"x{number}") for number in range(1001)])
    assert queue.stats().enqueued == 1000


def test_sixteen_thousand_gates_are_one_submission_and_one_more_is_too_many() -> None:
    claims = [tuple(claim(*["d"] * 62, f"{number}-{each}") for each in range(10)) for number in range(25)]
    jobs = [job(str(number), claims=one) for number, one in enumerate(claims)]
    queue = Queue(checked=False)
    queue.enqueue(*jobs)
    with pytest.raises(InvalidJobError, match=r"visits 16001 gates \(depth \+ 1 a claim\), limit 16000"):
        queue.enqueue(*jobs, job("one-more", []))


# --- closed paths ----------------------------------------------------------------------------------------------------


def test_a_closed_path_refuses_new_jobs_at_and_below_it_until_it_is_reopened() -> None:
    queue = Queue(job("a", ["doc", "x"]))
    assert queue.apply(Close(("doc",))).changed is True
    assert queue.apply(Close(("doc",))).changed is False
    for hint in (["doc"], ["doc", "x"], ["doc", "x", "y"]):
        with pytest.raises(PathClosedError, match="path 'doc' is closed") as caught:
            queue.enqueue(job("b", hint))
        assert caught.value.path_key == "doc"
    queue.enqueue(job("above", []), job("beside", ["doc1"]), job("none"))
    assert queue.enqueue(job("a", ["doc", "x"])).jobs[0].created is False
    assert queue.run() == ["a", "above", "beside", "none"]
    assert queue.apply(Reopen(("doc",))).changed is True
    assert queue.apply(Reopen(("doc",))).changed is False
    assert queue.enqueue(job("b", ["doc", "x"])).jobs[0].created


def test_a_closed_root_refuses_every_job_that_has_a_place() -> None:
    queue = Queue()
    queue.apply(Close(()))
    with pytest.raises(PathClosedError, match="path 'root'"):
        queue.enqueue(job("a", ["x"]))
    assert queue.enqueue(job("b")).jobs[0].created


# --- keys ------------------------------------------------------------------------------------------------------------


def keyed(id: str, on_conflict: str = "return", hint: list[str] | None = None, **fields: Any) -> JobSpec:
    return job(id, ["x"] if hint is None else hint, key="k", on_conflict=on_conflict, **fields)


def enqueue(queue: Queue, spec: JobSpec) -> tuple[str, bool]:
    (made,) = queue.enqueue(spec).jobs
    return made.id, made.created


def test_return_makes_a_burst_one_job_while_it_is_fresh() -> None:
    queue = Queue(job("before", ["x"]), keyed("a"))
    assert enqueue(queue, keyed("b", arguments=b"new")) == ("a", False)
    assert queue.record("a").spec.arguments == b"{}"
    assert queue.find("b") is None
    queue.run(limit=1)
    assert enqueue(queue, keyed("c")) == ("c", True)


def test_return_makes_a_new_job_once_the_first_was_started() -> None:
    queue = Queue(keyed("a"))
    queue.start()
    assert enqueue(queue, keyed("b")) == ("b", True)
    assert enqueue(queue, keyed("c")) == ("b", False)
    queue.fail("a")
    assert queue.state("a") is QUEUED
    assert enqueue(queue, keyed("d")) == ("b", False)
    assert queue.run() == ["a", "b"]
    assert queue.is_clean


def test_a_job_that_was_started_once_is_fresh_no_more() -> None:
    queue = Queue(keyed("a"))
    queue.start()
    queue.settle("a", OutcomeKind.RELEASED)
    assert enqueue(queue, keyed("b")) == ("b", True)


def test_within_one_submission_a_key_makes_one_job_too() -> None:
    queue = Queue()
    reply = queue.enqueue(keyed("a"), keyed("b"), keyed("c", "after"), keyed("d", "replace", arguments=b"4"))
    assert [(made.id, made.created) for made in reply.jobs] == [("a", True), ("a", False), ("a", False), ("a", False)]
    assert queue.record("a").spec.arguments == b"4"
    assert queue.run() == ["a"]


def test_replace_with_equal_claims_gives_new_content_and_keeps_id_and_place() -> None:
    queue = Queue(job("before", ["x"]), keyed("a"), job("behind", ["x"]))
    new = keyed("b", "replace", arguments=b"new", priority=5, user="ann", pool="p")
    assert enqueue(queue, new) == ("a", False)
    record = queue.record("a")
    assert (record.id, record.spec.id, record.spec.arguments, record.spec.priority) == ("a", "a", b"new", 5)
    assert (record.seq, record.version) == (2, 2)
    queue.start()
    queue.finish("before")
    assert queue.start() == []
    assert queue.start(pools=("p",)) == ["a"]
    assert queue.grants["a"].spec.arguments == b"new"
    queue.finish("a")
    assert queue.run() == ["behind"]


def test_replacing_a_ready_job_offers_the_new_one_in_its_stead() -> None:
    queue = Queue(keyed("a"), job("b"))
    enqueue(queue, keyed("c", "replace", pool="p"))
    assert queue.start() == ["b"]
    assert queue.start(pools=("p",)) == ["a"]


def test_replace_with_other_claims_takes_a_new_place() -> None:
    queue = Queue(job("before", ["x"]), keyed("a"), job("behind", ["x"]), job("other", ["y"]))
    assert enqueue(queue, keyed("b", "replace", ["y"])) == ("a", False)
    assert queue.record("a").seq == 5
    assert queue.start() == ["before", "other"]
    queue.finish("before", "other")
    assert queue.start() == ["a", "behind"]
    queue.finish("a", "behind")
    assert queue.is_clean


def test_replace_may_take_a_place_away_or_give_one() -> None:
    queue = Queue(keyed("a"))
    enqueue(queue, job("b", key="k", on_conflict="replace"))
    assert queue.record("a").spec.claims == ()
    enqueue(queue, keyed("c", "replace", ["z"]))
    assert queue.record("a").spec.claims == (claim("z"),)
    queue.cancel_path("z")
    assert queue.state("a") is CANCELED
    assert queue.is_clean


def test_replace_with_a_time_gives_the_place_up_until_then() -> None:
    queue = Queue(keyed("a"), job("behind", ["x"]), now_ms=0)
    assert enqueue(queue, keyed("b", "replace", delay_ms=1000)) == ("a", False)
    assert (queue.state("a"), queue.record("a").due_ms) == (SCHEDULED, 1000)
    assert queue.run() == ["behind"]
    enqueue(queue, keyed("c", "replace", run_at_ms=3000))
    assert (queue.state("a"), queue.record("a").due_ms) == (SCHEDULED, 3000)
    queue.wait(2999)
    assert queue.start() == []
    queue.wait(1)
    assert queue.run() == ["a"]


def test_replace_without_a_time_queues_a_job_that_had_one() -> None:
    queue = Queue(keyed("a", delay_ms=1000), now_ms=0)
    enqueue(queue, keyed("b", "replace"))
    assert (queue.state("a"), queue.record("a").due_ms) == (QUEUED, None)
    assert queue.run() == ["a"]
    queue.wait(10_000)
    assert queue.state("a") is FINISHED


def test_replace_begins_the_time_allowed_anew() -> None:
    queue = Queue(job("before", ["x"]), keyed("a", start_within_ms=1000), now_ms=0)
    queue.start(lease_ms=10**6)
    queue.wait(500)
    enqueue(queue, keyed("b", "replace", start_within_ms=1000))
    queue.wait(999)
    assert queue.state("a") is QUEUED
    queue.wait(1)
    assert queue.state("a") is CANCELED


def test_replace_of_a_job_put_aside_by_a_pause_is_offered_where_it_belongs_now() -> None:
    queue = Queue(keyed("a", hint=["paused"]))
    queue.pause("paused")
    assert queue.start() == []
    enqueue(queue, keyed("b", "replace", ["x"]))
    assert queue.start() == ["a"]
    queue.finish("a")
    assert queue.resume("paused")
    assert queue.is_clean


def test_replace_makes_a_new_job_once_the_first_was_started() -> None:
    queue = Queue(keyed("a"))
    queue.start()
    assert enqueue(queue, keyed("b", "replace")) == ("b", True)
    queue.finish("a")
    assert queue.run() == ["b"]


def test_after_waits_for_the_one_that_was_started() -> None:
    queue = Queue(keyed("a"))
    assert enqueue(queue, keyed("b", "after")) == ("a", False)
    queue.start()
    assert enqueue(queue, keyed("c", "after", ["elsewhere"])) == ("c", True)
    assert queue.state("c") is DEFERRED
    assert enqueue(queue, keyed("d", "after")) == ("c", False)
    assert queue.start() == []
    queue.finish("a")
    assert queue.run() == ["c"]
    assert queue.is_clean


@pytest.mark.parametrize("end", ["failed", "canceled"])
def test_after_waits_for_any_end(end: str) -> None:
    queue = Queue(keyed("a"))
    queue.start()
    enqueue(queue, keyed("b", "after"))
    queue.settle("a", OutcomeKind.FAILED if end == "failed" else OutcomeKind.DISCARDED, final=True)
    assert queue.run() == ["b"]


def test_after_takes_its_place_when_what_it_waits_for_is_over() -> None:
    queue = Queue(keyed("a"))
    queue.start()
    enqueue(queue, keyed("b", "after"))
    queue.enqueue(job("meanwhile", ["x"]))
    queue.finish("a")
    assert queue.run() == ["meanwhile", "b"]


def test_after_with_a_time_waits_for_both_in_either_order() -> None:
    queue = Queue(keyed("a"), now_ms=0)
    queue.start(lease_ms=10**6)
    enqueue(queue, keyed("b", "after", delay_ms=1000))
    assert queue.state("b") is SCHEDULED
    queue.wait(1000)
    assert queue.state("b") is DEFERRED
    queue.finish("a")
    assert queue.state("b") is QUEUED
    queue.start(lease_ms=10**6)
    enqueue(queue, keyed("c", "after", delay_ms=1000))
    queue.finish("b")
    assert queue.state("c") is SCHEDULED
    queue.wait(1000)
    assert queue.run() == ["c"]


def test_one_that_waits_may_be_replaced_and_still_waits() -> None:
    queue = Queue(keyed("a"), now_ms=0)
    queue.start(lease_ms=10**6)
    enqueue(queue, keyed("b", "after"))
    enqueue(queue, keyed("c", "replace", arguments=b"new"))
    assert (queue.state("b"), queue.record("b").spec.arguments) == (DEFERRED, b"new")
    enqueue(queue, keyed("c", "replace", delay_ms=500))
    assert queue.state("b") is SCHEDULED
    queue.wait(500)
    assert queue.state("b") is DEFERRED
    queue.finish("a")
    assert queue.run() == ["b"]


def test_one_that_waits_and_is_canceled_is_waited_for_no_more() -> None:
    queue = Queue(keyed("a"))
    queue.start()
    enqueue(queue, keyed("b", "after"))
    queue.cancel("b")
    queue.finish("a")
    assert queue.run() == []
    assert queue.is_clean


def test_reject_refuses_while_the_key_s_job_is_unfinished() -> None:
    queue = Queue(keyed("a"))
    for step in (lambda: None, queue.start):
        step()
        with pytest.raises(DuplicateJobError, match="key 'k' belongs to the unfinished job 'a'"):
            queue.enqueue(keyed("b", "reject"))
    queue.finish("a")
    assert enqueue(queue, keyed("b", "reject")) == ("b", True)


def test_reject_does_not_refuse_the_same_job_sent_again() -> None:
    queue = Queue(keyed("a", "reject"))
    assert enqueue(queue, keyed("a", "reject")) == ("a", False)


@pytest.mark.parametrize("on_conflict", ["return", "replace", "after", "reject"])
def test_the_key_is_given_up_in_the_step_that_ends_its_job(on_conflict: str) -> None:
    queue = Queue(keyed("a"))
    queue.cancel("a")
    assert len(queue.engine.ledger.keys) == 0
    assert enqueue(queue, keyed("b", on_conflict)) == ("b", True)
    assert queue.state("b") is QUEUED


def test_an_older_job_of_the_key_does_not_give_up_the_newest_s() -> None:
    queue = Queue(keyed("a"))
    queue.start()
    enqueue(queue, keyed("b"))
    queue.finish("a")
    assert enqueue(queue, keyed("c")) == ("b", False)


# --- a key names its newest unfinished job ---------------------------------------------------------------------------


def test_when_the_newest_of_a_key_ends_the_key_names_the_one_before() -> None:
    queue = Queue(job("running", key="k", on_conflict="after"))
    queue.start()
    queue.enqueue(job("waits", key="k", on_conflict="after"))
    queue.cancel("waits")
    queue.enqueue(job("waits-too", key="k", on_conflict="after"))
    assert queue.state("waits-too") is DEFERRED
    assert queue.why("waits-too").jobs == ("running",)
    with pytest.raises(DuplicateJobError):
        queue.enqueue(job("refused", key="k", on_conflict="reject"))


def test_a_redriven_job_has_its_key_again_behind_what_is_newer() -> None:
    queue = Queue(job("old", key="k", max_attempts=1))
    queue.start()
    queue.fail("old")
    queue.enqueue(job("new", key="k"))
    queue.redrive("old")
    assert queue.enqueue(job("more", key="k")).jobs[0].id == "new"
    queue.cancel("new")
    with pytest.raises(DuplicateJobError, match="old"):
        queue.enqueue(job("refused", key="k", on_conflict="reject"))


def test_a_replaced_job_is_still_known_by_what_it_was_first_asked_to_be() -> None:
    first = job("a", ["x"], key="k")
    queue = Queue(first)
    queue.enqueue(job("b", ["x"], key="k", on_conflict="replace", arguments=b'{"new":1}'))
    assert not queue.enqueue(first).jobs[0].created
    assert queue.record("a").spec.arguments == b'{"new":1}'
    with pytest.raises(DuplicateJobError):
        queue.enqueue(job("a", ["y"], key="k"))


def test_what_a_replaced_job_was_first_asked_to_be_is_known_as_long_as_its_id() -> None:
    first = job("a", ["x"], key="k", retention_ms=0)
    queue = Queue(first, now_ms=0)
    queue.enqueue(job("b", ["x"], key="k", on_conflict="replace", arguments=b'{"new":1}', retention_ms=0))
    assert queue.run() == ["a"]
    queue.wait(1)
    assert queue.find("a") is None
    assert queue.enqueue(first).jobs[0].state is FINISHED


def test_a_token_is_an_int() -> None:
    queue = Queue(job("a"))
    queue.start()
    outcome = queue.outcome("a")
    equal = attrs.evolve(outcome, token=float(outcome.token))  # type: ignore[arg-type]
    with pytest.raises(InvalidJobTypeError, match=r"^Exchange\.settle\.token must be int, got float"):
        queue.exchange(equal)
    assert queue.state("a") is STARTED


def test_the_pause_for_an_unknown_task_begins_anew_once_a_worker_knew_it() -> None:
    queue = Queue(job("a"), now_ms=0)
    pauses = []
    for kind in (OutcomeKind.UNKNOWN_TASK, OutcomeKind.UNKNOWN_TASK, OutcomeKind.FAILED, OutcomeKind.UNKNOWN_TASK):
        queue.start()
        queue.settle("a", kind, delay_ms=1)
        due_ms = queue.record("a").due_ms
        assert due_ms is not None
        pauses.append(due_ms - queue.now_ms)
        queue.wait(pauses[-1])
    assert pauses == [5_000, 10_000, 1, 5_000]


def test_a_pool_that_nobody_asked_for_lately_is_not_served() -> None:
    queue = Queue(job("a"), now_ms=0)
    assert queue.why("a").kind is ReasonKind.NO_WORKER
    queue.exchange()
    assert queue.why("a").kind is ReasonKind.WORKER
    queue.now_ms += 60_001
    assert queue.why("a").kind is ReasonKind.NO_WORKER
    assert queue.stats().stuck[ReasonKind.NO_WORKER] == 1


def test_of_a_job_whose_record_is_gone_nothing_but_its_id_is_kept() -> None:
    queue = Queue(job("a", retention_ms=0, max_attempts=2), now_ms=0)
    queue.start()
    queue.fail("a", delay_ms=1, error=JobError(type="E", message="m"))
    assert queue.record("a").errors
    queue.wait(1)
    assert queue.run() == ["a"]
    queue.wait(1)
    kept = queue.engine.ledger.jobs["a"]
    assert (kept.gone, kept.result, kept.notes) == (True, None, None)
