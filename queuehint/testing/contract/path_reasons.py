"""The rules of `Why` for a path: the waiting jobs, and their blockers."""

from __future__ import annotations

import attrs

from queuehint.operations import PathReasons, PlacedJob
from queuehint.testing.contract.limits import limit
from queuehint.testing.contract.permits import permit, take
from queuehint.testing.contract.store import Store
from queuehint.testing.driver import SHARED, claim, job
from queuehint.values.record import JobState
from queuehint.values.report import ReasonKind

LOOKED_AT_MAX = 500


def ids(jobs: tuple[PlacedJob, ...]) -> list[str]:
    return [each.id for each in jobs]


def told(found: PathReasons) -> tuple[list[str], list[str], list[str]]:
    """Return the ids of the oldest jobs, of the newest, and of their blockers."""
    return ids(found.oldest), ids(found.newest), ids(found.ahead)


class WhyAPathWaits:
    """
    `Why` of a path names the oldest and the newest waiting jobs and their blockers in one reply.

    .. versionadded:: 1.0.0
    """

    def test_a_path_where_nothing_is_has_no_reasons(self, store: Store) -> None:
        store.enqueue(job("other", ["y"]), job("nowhere"))
        for path in ((), ("x",), ("y", "1"), ("root",)):
            found = store.why_path(*path)
            if path in ((), ("y", "1")):
                continue
            assert found == PathReasons(
                path_key="x" if path == ("x",) else "\\root", oldest=(), newest=(), ahead=(), waiting=0, more_ahead=0,
                holders=0, complete=True,
            )  # fmt: skip

    def test_oldest_and_newest_jobs_of_a_path_are_disjoint(self, store: Store) -> None:
        store.enqueue(job("run", ["x"]))
        store.start()
        store.enqueue(*[job(f"w{n}", ["x"]) for n in range(6)])
        assert told(store.why_path("x", limit=2)) == (["w0", "w1"], ["w5", "w4"], ["run"])
        assert told(store.why_path("x", limit=4)) == (["w0", "w1", "w2", "w3"], ["w5", "w4"], ["run"])
        assert told(store.why_path("x", limit=6))[1] == []
        found = store.why_path("x", limit=1)
        assert (found.waiting, found.more, found.more_ahead, found.holders, found.complete) == (6, 4, 0, 1, True)

    def test_each_job_is_reported_with_task_user_place_state_reason(self, store: Store) -> None:
        several = (claim("x", "1", mode=SHARED), claim("y"))
        store.enqueue(
            attrs.evolve(job("run", ["x"]), task="save", user="ann"),
            attrs.evolve(job("wait", claims=several), task="read", user="bob"),
        )
        assert store.start() == ["run"]
        store.advance(5)
        found = store.why_path("x", "1")
        assert found.oldest == (
            PlacedJob(
                id="wait", task="read", user="bob", path_key="x:1", mode="shared", claims=2,
                enqueued_ms=store.began_ms, reason=store.why("wait"),
            ),
        )  # fmt: skip
        assert found.ahead == (
            PlacedJob(
                id="run", task="save", user="ann", path_key="x", mode="exclusive", claims=1,
                enqueued_ms=store.began_ms, reason=store.why("run"),
            ),
        )  # fmt: skip
        assert found.ahead[0].state is JobState.STARTED

    def test_why_path_names_the_holder_of_an_empty_line(self, store: Store) -> None:
        store.enqueue(job("above", ["x"]))
        assert store.start() == ["above"]
        assert told(store.why_path("x", "1", "a")) == ([], [], ["above"])
        assert told(store.why_path("x")) == ([], [], ["above"])
        assert told(store.why_path()) == ([], [], ["above"])
        assert told(store.why_path("y")) == ([], [], [])
        store.finish("above")
        store.enqueue(job("below", ["x", "1", "a"]))
        assert store.start() == ["below"]
        assert told(store.why_path("x", "1")) == ([], [], ["below"])
        assert told(store.why_path("x", "2")) == ([], [], [])

    def test_running_job_is_reported_behind_many_ready_ones(self, store: Store) -> None:
        store.enqueue(job("run", ["x", "z"]))
        assert store.start() == ["run"]
        store.enqueue(*[job(f"r{n:02}", ["x", f"{n:02}"]) for n in range(20)])
        found = store.why_path("x", limit=1)
        assert (told(found), found.waiting, found.holders) == ((["r00"], ["r19"], ["run"]), 20, 21)

    def test_permit_blocks_jobs_that_wait_for_a_limit(self, store: Store) -> None:
        limit(store, "x", most=1)
        store.enqueue(permit("held", "x"), permit("wanted", "x"), job("a", ["x"]))
        assert take(store, "held")
        found = store.why_path("x")
        assert (told(found), found.waiting, found.holders) == ((["wanted", "a"], [], []), 2, 1)
        assert [each.mode for each in found.oldest] == ["counted", "exclusive"]
        assert store.start() == []
        found = store.why_path("x")
        assert (told(found), found.oldest[1].reason.kind) == ((["wanted", "a"], [], ["held"]), ReasonKind.LIMIT)
        assert (found.ahead[0].mode, found.ahead[0].state) == ("counted", JobState.STARTED)

    def test_why_path_names_readers_above_and_omits_readers_beside(self, store: Store) -> None:
        store.enqueue(
            job("above", claims=(claim("x", mode=SHARED),)),
            job("beside", claims=(claim("x", "2", mode=SHARED),)),
        )
        assert store.start(2) == ["above", "beside"]
        assert ids(store.why_path("x", "1").ahead) == ["above"]
        assert ids(store.why_path("x").ahead) == ["above", "beside"]

    def test_dead_job_that_holds_the_place_is_a_blocker(self, store: Store) -> None:
        store.enqueue(job("dead", ["x", "1"], max_attempts=1, on_dead="hold"))
        store.start()
        store.fail("dead")
        assert ids(store.why_path("x").ahead) == ["dead"]
        store.enqueue(job("wait", ["x"]))
        found = store.why_path("x")
        assert told(found) == (["wait"], [], ["dead"])
        assert (found.oldest[0].reason.kind, found.oldest[0].reason.stuck) == (ReasonKind.DEAD_HOLD, True)
        assert (found.ahead[0].state, found.ahead[0].reason.kind) == (JobState.FAILED, ReasonKind.OVER)
        store.discard("dead")
        assert told(store.why_path("x")) == (["wait"], [], [])

    def test_why_path_gives_reasons_of_delayed_dependent_and_paused_jobs(self, store: Store) -> None:
        store.pause("x", "3")
        store.enqueue(
            job("first", ["y"]), job("later", ["x", "1"], delay_ms=500), job("after", ["x", "2"], after=("first",)),
            job("paused", ["x", "3"]), job("ready", ["x", "4"]),
        )  # fmt: skip
        found = store.why_path("x", limit=16)
        assert [(each.id, each.reason.kind) for each in found.oldest] == [
            ("later", ReasonKind.TIME), ("after", ReasonKind.DEPENDENCY), ("paused", ReasonKind.PAUSED),
            ("ready", ReasonKind.NO_WORKER),
        ]  # fmt: skip
        assert told(found)[1:] == ([], ["first"])
        assert [each.reason for each in found.oldest] == [store.why(each.id) for each in found.oldest]

    def test_a_job_of_several_claims_waits_once(self, store: Store) -> None:
        store.enqueue(job("run", ["z"]))
        store.start()
        store.enqueue(job("both", claims=(claim("x", "1"), claim("x", "2"), claim("z"))), job("one", ["x", "1"]))
        found = store.why_path("x")
        assert (told(found), found.waiting) == ((["both", "one"], [], ["run"]), 2)
        assert (found.oldest[0].path_key, found.oldest[0].claims) == ("x:1", 3)
        assert store.why_path("z").oldest[0].path_key == "z"
        assert found.ahead[0].path_key == "z", "it claims nothing at the path, so its first claim is told"

    def test_why_path_names_ten_blockers_and_counts_the_rest(self, store: Store) -> None:
        store.enqueue(*[job(f"h{n:02}", ["x", f"{n:02}"]) for n in range(15)])
        assert len(store.start(15)) == 15
        found = store.why_path("x")
        assert (ids(found.ahead), found.more_ahead, found.holders) == ([f"h{n:02}" for n in range(10)], 5, 15)
        store.enqueue(job("last", ["x"]), *[job(f"w{n:02}", ["x", f"{14 - n:02}"]) for n in range(15)])
        found = store.why_path("x", limit=16)
        assert (found.waiting, len(found.oldest), found.newest) == (16, 16, ())
        assert (ids(found.ahead), found.more_ahead) == ([f"h{n:02}" for n in range(10)], 5)
        assert told(store.why_path("x", "14")) == (["w00"], [], ["last", "h14"])
        store.enqueue(*[job(f"d{n}", ["v", str(n)], after=(f"h{n:02}", f"h{n + 1:02}")) for n in range(10, 14)])
        store.enqueue(*[job(f"e{n}", ["v", str(n)], after=(f"h{n:02}",)) for n in range(9)])
        found = store.why_path("v", limit=16)
        assert (len(found.ahead), found.more_ahead) == (10, 4)

    def test_path_with_excess_claims_is_read_from_both_ends(self, store: Store) -> None:
        def more(first: int, count: int) -> None:
            store.enqueue(*[job(f"w{n:04}", ["x"]) for n in range(first, first + count)])

        more(0, LOOKED_AT_MAX - 1)
        found = store.why_path("x")
        assert (found.waiting, found.complete) == (LOOKED_AT_MAX - 1, True)
        more(LOOKED_AT_MAX - 1, 1)
        more(LOOKED_AT_MAX, 200)
        found = store.why_path("x", limit=2)
        assert (found.waiting, found.complete) == (LOOKED_AT_MAX, False)
        assert told(found)[:2] == (["w0000", "w0001"], ["w0699", "w0698"])

    def test_runs_of_two_ranges_are_read_in_key_order(self, store: Store) -> None:
        here = [job(f"h{n:03}", ["x"]) for n in range(LOOKED_AT_MAX // 2 + 50)]
        below = [job(f"b{n:03}", ["x", "1"]) for n in range(LOOKED_AT_MAX // 2 + 50)]
        store.enqueue(*below)
        store.enqueue(*here)
        found = store.why_path("x", limit=1)
        assert (found.waiting, found.complete) == (LOOKED_AT_MAX, False)
        assert told(found)[:2] == (["b050"], ["h249"]), "the first half is of the path itself, the other of those below"

    def test_hidden_jobs_of_a_submission_in_parts_do_not_wait(self, store: Store) -> None:
        store.stage("P", job("a", ["x"], flow="f"))
        assert told(store.why_path("x")) == ([], [], [])
        store.commit("P", flow="f")
        assert told(store.why_path("x")) == (["a"], [], [])

    def test_paths_asked_about_that_read_like_others_are_told_apart(self, store: Store) -> None:
        store.enqueue(job("a", ["a:b", "c"]), job("b", ["a", "b", "c"]), job("c", ["a!", "b"]), job("r", ["root", "1"]))
        assert ids(store.why_path("a").oldest) == ["b"]
        assert ids(store.why_path("a:b").oldest) == ["a"]
        assert ids(store.why_path("root").oldest) == ["r"]
        assert ids(store.why_path().oldest) == ["a", "b", "c"]
        assert ids(store.why_path().newest) == ["r"]
        assert store.why_path("a:b").path_key == "a\\:b"
