"""The rules of chains: from a waiting job to the root cause of its wait."""

from __future__ import annotations

import pytest

from queuehint.errors import JobNotFoundError
from queuehint.operations import CHAIN_MAX, Pause
from queuehint.testing.contract.store import Store
from queuehint.testing.driver import claim, job
from queuehint.values.outcome import Progress
from queuehint.values.record import JobState
from queuehint.values.record_filter import RecordFilter
from queuehint.values.report import ReasonKind


def told(store: Store, name: str) -> list[tuple[str, ReasonKind]]:
    """Return the jobs and kinds of a chain."""
    return [(reason.job_id, reason.kind) for reason in store.chain(name)]


class Chains:
    """
    `Why` with a limit above 1 leads from a job to the root cause of its wait. Each reason but the last names the job
    of the next.

    .. versionadded:: 1.0.0
    """

    def test_chain_ends_at_the_running_job_with_progress_and_worker(self, store: Store) -> None:
        store.enqueue(job("a", ["x", "1"]))
        store.start()
        store.say("a", store.grants["a"].token, progress=Progress(3, 10, "pages"))
        store.enqueue(job("b", ["x"]), job("c", ["x", "2"]), job("d", after=("c",)))
        chain = store.chain("d")
        assert told(store, "d") == [
            ("d", ReasonKind.DEPENDENCY), ("c", ReasonKind.PLACE), ("b", ReasonKind.PLACE), ("a", ReasonKind.RUNNING),
        ]  # fmt: skip
        assert chain[0] == store.why("d")
        assert chain[-1] == store.why("a")
        assert (chain[-1].progress, chain[-1].detail) == (Progress(3, 10, "pages"), "worker w, attempt 1")

    def test_job_without_blockers_is_a_chain_of_one(self, store: Store) -> None:
        store.enqueue(job("a"), job("later", delay_ms=500))
        assert [reason.kind for reason in store.chain("a")] == [ReasonKind.NO_WORKER]
        assert store.chain("later") == (store.why("later"),)
        with pytest.raises(JobNotFoundError):
            store.chain("nobody")

    def test_chain_prefers_the_wait_without_an_end(self, store: Store) -> None:
        store.apply(Pause(RecordFilter(path=("z",))))
        store.enqueue(job("a"), job("b", ["z", "1"]))
        assert store.start() == ["a"]
        store.enqueue(job("sum", after=("a", "b")))
        assert told(store, "sum") == [("sum", ReasonKind.DEPENDENCY), ("b", ReasonKind.PAUSED)]
        store.resume("z")
        assert told(store, "sum") == [("sum", ReasonKind.DEPENDENCY), ("a", ReasonKind.RUNNING)]

    def test_a_chain_ends_at_the_dead_job_that_holds(self, store: Store) -> None:
        store.enqueue(job("dead", ["x", "1"], on_dead="hold", max_attempts=1))
        store.start()
        store.fail("dead")
        store.enqueue(job("a", ["x"]), job("b", after=("a",)))
        chain = store.chain("b")
        assert told(store, "b") == [("b", ReasonKind.DEPENDENCY), ("a", ReasonKind.DEAD_HOLD)]
        assert (chain[-1].jobs, chain[-1].stuck) == (("dead",), True)

    def test_a_chain_has_sixteen_reasons_at_most(self, store: Store) -> None:
        store.enqueue(job("j00"), *[job(f"j{n:02}", after=(f"j{n - 1:02}",)) for n in range(1, 20)])
        chain = store.chain("j19")
        assert [reason.job_id for reason in chain] == [f"j{n:02}" for n in range(19, 19 - CHAIN_MAX, -1)]
        assert chain[-1].jobs == ("j03",)
        assert len(store.chain("j15")) == CHAIN_MAX
        assert store.chain("j15")[-1].kind is ReasonKind.NO_WORKER

    def test_jobs_whose_records_have_expired_are_not_followed(self, store: Store) -> None:
        many = [job(f"n{n:03}", ["doc", f"{n:03}"]) for n in range(120)]
        store.enqueue(*many, job("whole", ["doc"]), job("both", claims=(claim("doc", "5"), claim("other"))))
        store.start(1000)
        assert told(store, "both") == [
            ("both", ReasonKind.PLACE), ("whole", ReasonKind.PLACE), ("n000", ReasonKind.RUNNING),
        ]  # fmt: skip
        store.finish("n000")
        assert store.state("n000") is JobState.FINISHED
        assert told(store, "both")[-1] == ("n001", ReasonKind.RUNNING)
