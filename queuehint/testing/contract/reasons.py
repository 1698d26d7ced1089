"""The rules of reasons: which blockers `Why` names, and how many."""

from __future__ import annotations

from queuehint.operations import CountPending, Pause, Verdict
from queuehint.testing.contract.store import Store
from queuehint.testing.driver import SHARED, claim, job
from queuehint.values.outcome import OutcomeKind
from queuehint.values.record_filter import RecordFilter
from queuehint.values.report import ReasonKind

JOBS_NAMED_MAX = 10
MANY = 1200


def enqueue_many(store: Store, count: int, *, shared: bool = False) -> None:
    """Enqueue one job for each of *count* sections of a document, ``s0000`` on."""
    mode = SHARED if shared else "exclusive"
    specs = [job(f"s{n:04}", claims=(claim("doc", f"s{n:04}", mode=mode),)) for n in range(count)]
    for first in range(0, count, 500):
        store.enqueue(*specs[first : first + 500])


def kill(store: Store, name: str, *path: str) -> None:
    """Fail a job permanently, so that the dead job keeps its place."""
    store.enqueue(job(name, list(path), max_attempts=1, on_dead="hold"))
    assert name in store.start(1_000)
    store.fail(name)


class Reasons:
    """
    `Why` names the blockers of a job at its place: the dead jobs that hold it if there are any, else ten.

    .. versionadded:: 1.0.0
    """

    def test_why_of_a_running_job_reports_a_blocked_loop(self, store: Store) -> None:
        store.enqueue(job("a"), job("b"))
        store.start(2)
        usual = {name: store.why(name).detail for name in "ab"}
        store.renew("a", "b", blocked_ms=7_000)
        store.wait(5_500)
        for name in "ab":
            reason = store.why(name)
            assert (reason.kind, reason.stuck) == (ReasonKind.RUNNING, False)
            assert reason.detail == f"{usual[name]}, its event loop blocked for 12 s"
        store.renew("a")
        assert store.why("a").detail == usual["a"], "it turns again"
        assert store.settle("b", OutcomeKind.RELEASED) is Verdict.DONE
        assert store.why("b").kind is ReasonKind.WORKER
        assert store.start() == ["b"]
        assert "blocked" not in (store.why("b").detail or ""), "another worker may have it"

    def test_why_names_ten_holders_once_despite_two_claims_each(self, store: Store) -> None:
        twice = [job(f"h{n:02}", claims=(claim("doc", f"a{n}"), claim("doc", f"b{n}"))) for n in range(12)]
        store.enqueue(*twice, job("whole", ["doc"]))
        named = store.why("whole").jobs
        assert len(set(named)) == len(named) == JOBS_NAMED_MAX
        assert list(named) == sorted(named)

    def test_why_names_holders_by_path_and_waiters_from_the_head(self, store: Store) -> None:
        store.enqueue(*[job(f"h{n:02}", ["doc", f"s{99 - n}"]) for n in range(12)], job("whole", ["doc"]))
        assert store.why("whole").jobs == tuple([f"h{n:02}" for n in range(2, 12)])
        store.enqueue(*[job(f"w{n:02}", ["doc"]) for n in range(12)], job("last", ["doc", "x"]))
        assert store.why("last").jobs == ("whole", *[f"w{n:02}" for n in range(9)])
        assert store.why("w11").jobs == store.why("whole").jobs

    def test_many_later_jobs_at_root_hide_no_other_holder(self, store: Store) -> None:
        store.enqueue(job("first", ["root", "x"]), job("second", ["a"]), job("all", []))
        store.enqueue(*[job(f"w{n:02}", ["root"]) for n in range(40)])
        assert store.why("all").jobs == ("first", "second")

    def test_dead_job_is_named_alone_among_excess_holders(self, store: Store) -> None:
        enqueue_many(store, 30)
        kill(store, "dead", "doc", "zz")
        store.enqueue(job("whole", ["doc"]))
        reason = store.why("whole")
        assert (reason.kind, reason.jobs, reason.path_key, reason.stuck) == (
            ReasonKind.DEAD_HOLD,
            ("dead",),
            "doc",
            True,
        )

    def test_dead_jobs_are_named_in_place_order_up_to_ten(self, store: Store) -> None:
        for n in range(12):
            kill(store, f"d{n:02}", "doc", f"s{99 - n}")
        store.enqueue(job("whole", ["doc"]))
        assert store.why("whole").jobs == tuple([f"d{n:02}" for n in range(10)])

    def test_jobs_behind_a_barrier_on_a_dead_job_name_it(self, store: Store) -> None:
        kill(store, "dead", "other", "zz")
        store.enqueue(job("barrier", []))
        enqueue_many(store, MANY)
        for name in ("barrier", "s0000", f"s{MANY - 1:04}"):
            reason = store.why(name)
            assert (reason.kind, reason.jobs, reason.stuck) == (ReasonKind.DEAD_HOLD, ("dead",), True)
        assert not store.apply(CountPending(("doc",))).moving
        store.redrive("dead")
        assert store.why("s0000").jobs[0] == "barrier"
        assert store.why("barrier").jobs == ("dead",)

    def test_dead_job_awaited_further_ahead_is_named_too(self, store: Store) -> None:
        kill(store, "dead", "doc", "a")
        store.enqueue(job("reader", claims=(claim("doc", "b", mode=SHARED),)))
        assert store.start() == ["reader"]
        store.enqueue(job("whole", ["doc"]), job("b", ["doc", "b"]))
        assert store.why("b").jobs == ("dead",)

    def test_dead_job_that_blocks_nobody_is_not_named(self, store: Store) -> None:
        kill(store, "dead", "doc", "a")
        store.enqueue(job("x", ["doc", "b"]), job("y", ["doc", "b"]), job("z", ["doc", "a"]))
        assert (store.why("y").kind, store.why("y").jobs) == (ReasonKind.PLACE, ("x",))
        assert (store.why("z").kind, store.why("z").jobs) == (ReasonKind.DEAD_HOLD, ("dead",))

    def test_only_holders_in_a_conflicting_mode_are_named(self, store: Store) -> None:
        store.enqueue(
            job("w", ["doc", "w"]),
            *[job(f"r{n:02}", claims=(claim("doc", f"r{n:02}", mode=SHARED),)) for n in range(20)],
        )
        store.enqueue(job("all", claims=(claim("doc", mode=SHARED),)))
        assert store.why("all").jobs == ("w",)

    def test_why_finds_the_holder_behind_many_waiters_of_earlier_paths(self, store: Store) -> None:
        store.apply(Pause(RecordFilter(path=("doc", "zz"))))
        store.enqueue(job("held", ["doc", "zz"]), job("whole", ["doc"]))
        enqueue_many(store, MANY)
        assert store.why("whole").jobs == ("held",)
        pending = store.apply(CountPending(("doc",)))
        assert not pending.moving
        assert len(pending.reasons) == 100

    def test_holder_is_found_below_delayed_jobs_of_its_section(self, store: Store) -> None:
        store.enqueue(job("held", ["doc", "a", "x"]))
        for first in range(0, 6_000, 500):
            later = [job(f"l{n:04}", ["doc", "a"], delay_ms=60_000) for n in range(first, first + 500)]
            store.enqueue(*later)
        store.enqueue(job("whole", ["doc"]))
        assert store.why("whole").jobs == ("held",)

    def test_holder_is_found_among_earlier_jobs_of_its_path(self, store: Store) -> None:
        store.enqueue(*[job(f"later{n:02}", ["doc"], delay_ms=60_000) for n in range(50)])
        store.enqueue(job("now", ["doc"]), job("next", ["doc"]))
        assert store.why("next").jobs == ("now",)

    def test_names_that_read_like_paths_are_told_apart(self, store: Store) -> None:
        store.enqueue(job("a", ["a:b", "c"]), job("root", ["root"]), job("b", ["a", "b", "c"]), job("all", []))
        assert store.why("all").jobs == ("a", "root", "b")
        store.enqueue(job("last", ["a:b", "c", "d"]))
        assert store.why("last").jobs == ("all",)
