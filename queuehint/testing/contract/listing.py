"""The rules of listing and counting records."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
import pytest

from queuehint import Claim, InvalidJobError, JobState, OutcomeKind
from queuehint import operations as op
from queuehint.testing.contract.store import DAY_MS, error
from queuehint.testing.driver import SHARED, claim, job
from queuehint.values.record_filter import DEAD_RECORDS, RecordFilter

if TYPE_CHECKING:
    from queuehint.testing.contract.store import Store

SCHEDULED, DEFERRED, QUEUED, STARTED, FINISHED, FAILED, CANCELED = JobState
MINUTE = 60_000


def page(
    store: Store,
    limit: int = 200,
    after: op.Position | None = None,
    *,
    newest_first: bool = False,
    by_time: bool = False,
    **fields: Any,
) -> op.Page:
    return store.apply(op.List(RecordFilter(**fields), newest_first, after, limit, by_time))


def listed(store: Store, *, newest_first: bool = False, **fields: Any) -> str:
    """Return the ids of the records that pass a filter as one string of words."""
    found = page(store, newest_first=newest_first, **fields)
    assert found.after is None
    return " ".join(record.id for record in found.records)


def paged(store: Store, limit: int, *, newest_first: bool = False, **fields: Any) -> list[str]:
    """Return the same, a string a page."""
    pages, after = [], None
    while True:
        found = page(store, limit, after, newest_first=newest_first, **fields)
        pages.append(" ".join(record.id for record in found.records))
        after = found.after
        if after is None:
            return pages


def counted(store: Store, **fields: Any) -> dict[JobState, int]:
    """Return the number of records that pass a filter, by state, without zeros."""
    counts = store.apply(op.CountRecords(RecordFilter(**fields)))
    assert counts.complete
    return {state: count for state, count in counts.states.items() if count}


def counted_behind(store: Store, after: op.Position, **fields: Any) -> int:
    """Return how many records behind a place pass a filter."""
    counts = store.apply(op.CountRecords(RecordFilter(**fields), after))
    assert counts.complete
    return counts.total


def users(store: Store, service: str) -> dict[str, int]:
    return dict(store.apply(op.ListUsers(service)).users)


class Listing:
    """Records are listed by their fields, in order of enqueue, while they are kept."""

    def test_listing_by_each_filter_finds_only_matching_records(self, store: Store) -> None:
        store.enqueue(
            job("a", user="ann", service="docs", pool="p"),
            job("b", user="ann"),
            job("c", user="ben", service="docs"),
            attrs.evolve(job("d"), task="other"),
        )
        assert listed(store) == "a b c d"
        assert listed(store, user="ann") == "a b"
        assert listed(store, service="docs") == "a c"
        assert listed(store, service="docs", user="ann") == "a"
        assert listed(store, pool="p") == "a"
        assert listed(store, task="other") == "d"
        assert listed(store, task="task", pool="default", user="ann") == "b"
        assert listed(store, user="nobody") == listed(store, service="ann") == ""
        assert listed(store, newest_first=True) == "d c b a"

    def test_flow_jobs_are_listed_in_order_with_other_filters(self, store: Store) -> None:
        store.enqueue(job("z", ["b"], flow="f"), job("other", flow="f2"), job("none", ["a"]), job("y", ["a"], flow="f"))
        store.stage("S", job("staged", ["a"], flow="f"))
        store.enqueue(job("x", claims=(claim("a", "1"), claim("a", "2")), flow="f", user="ann", after=["y"]))
        assert listed(store, flow="f") == "z y x"
        assert listed(store, flow="f", newest_first=True) == "x y z"
        assert listed(store, flow="f2") == "other"
        assert listed(store, flow="nix") == ""
        assert listed(store, flow="f", path=("a",)) == "y x"
        assert listed(store, flow="f", path=("a", "2"), newest_first=True) == listed(store, flow="f", user="ann") == "x"
        assert listed(store, flow="f", states=(DEFERRED,)) == "x"
        assert counted(store, flow="f") == {QUEUED: 2, DEFERRED: 1}
        assert counted(store, flow="f", path=("a",), since_ms=0) == {QUEUED: 1, DEFERRED: 1}
        assert [paged(store, n, flow="f") for n in (1, 2)] == [["z", "y", "x"], ["z y", "x"]]
        assert paged(store, 1, flow="f", newest_first=True) == ["x", "y", "z"]
        store.commit("S")
        store.enqueue(*[job(f"n{n:03}", flow="f") for n in range(150)])
        assert len(listed(store, flow="f").split()) == len(listed(store, flow="f", newest_first=True).split()) == 154
        assert listed(store, flow="f", path=("a",)) == "y staged x"
        store.cancel("z")
        assert listed(store, flow="f", states=(CANCELED,)) == "z"
        store.wait(DAY_MS)
        assert listed(store, flow="f", path=("b",)) == "", "its record has expired"

    def test_children_of_a_job_are_listed_with_other_filters(self, store: Store) -> None:
        store.enqueue(job("p"), job("q"), job("other", ["a"]))
        store.start()
        store.enqueue_from("p", job("p.1", ["a"], parent="p"), job("p.2", ["b"], parent="p", user="ann", flow="f"))
        store.enqueue_from("q", job("q.1", ["a", "x"], parent="q", key="k"))
        assert listed(store, parent="p") == "p.1 p.2"
        assert listed(store, parent="p", newest_first=True) == "p.2 p.1"
        assert listed(store, parent="q") == "q.1"
        assert listed(store, parent="p.1") == ""
        assert listed(store, parent="p", user="ann") == listed(store, parent="p", flow="f") == "p.2"
        assert listed(store, parent="p", path=("a",)) == "p.1"
        assert counted(store, parent="p", states=(QUEUED,)) == {QUEUED: 2}
        store.enqueue(job("new", ["a", "x"], key="k", on_conflict="replace", parent="p"))
        assert (listed(store, parent="p"), listed(store, parent="q")) == ("p.1 p.2 q.1", "")
        assert listed(store, flow="f") == "p.2"
        store.finish("p", "q", "other")
        store.run(limit=10)
        assert counted(store, parent="p") == {FINISHED: 3}
        store.wait(DAY_MS)
        assert listed(store, parent="p") == "", "their records have expired"

    def test_dependents_of_a_job_are_listed_while_they_wait(self, store: Store) -> None:
        store.enqueue(job("a", max_attempts=1), job("b"), job("p"))
        store.enqueue(job("x", ["k"], after="ab", flow="f"), job("y", after="a"), job("late", after="a", delay_ms=9))
        store.stage("S", job("staged", after="a"))
        store.start()
        store.enqueue_from("p", job("c"))
        store.await_children("p", "c")
        assert listed(store, waits_for="a") == "x y late"
        assert listed(store, waits_for="a", newest_first=True) == "late y x"
        assert [paged(store, n, waits_for="a") for n in (1, 2)] == [["x", "y", "late"], ["x y", "late"]]
        assert paged(store, 2, waits_for="a", newest_first=True) == ["late y", "x"]
        assert (listed(store, waits_for="b"), listed(store, waits_for="c"), listed(store, waits_for="x")) == (
            "x",
            "p",
            "",
        )
        assert listed(store, waits_for="a", path=("k",)) == listed(store, waits_for="a", flow="f") == "x"
        assert listed(store, waits_for="a", states=(SCHEDULED,)) == "late"
        assert counted(store, waits_for="a") == {DEFERRED: 2, SCHEDULED: 1}
        store.finish("b")
        assert (listed(store, waits_for="b"), store.record("x").open_dependencies) == ("", 1)
        store.fail("a")
        assert listed(store, waits_for="a") == "x y late", "they wait for a redrive"
        store.cancel("y")
        store.redrive("a")
        store.enqueue(job("z", after="a"))
        store.commit("S")
        assert listed(store, waits_for="a") == "x late staged z"
        store.run()
        assert listed(store, waits_for="a") == ""

    def test_listed_record_equals_the_read_record(self, store: Store) -> None:
        store.enqueue(job("a", ["x"], user="u"), job("b"))
        store.start(1)
        store.settle("a", OutcomeKind.FAILED, error=error(), delay_ms=50)
        records = page(store).records
        assert records == (store.record("a"), store.record("b"))
        assert page(store, path=("x",)).records == (store.record("a"),)

    def test_listing_by_state_reads_current_states(self, store: Store) -> None:
        store.enqueue(
            job("late", delay_ms=5000),
            job("first", ["x"]),
            job("second", ["x"], after=["first"]),
            job("gone"),
            job("ready"),
        )
        store.cancel("gone")
        assert store.start(1) == ["first"]
        states = {state: listed(store, states=(state,)) for state in JobState}
        assert states == {
            SCHEDULED: "late",
            DEFERRED: "second",
            QUEUED: "ready",
            STARTED: "first",
            FINISHED: "",
            FAILED: "",
            CANCELED: "gone",
        }
        store.finish("first")
        store.wait(0)
        assert listed(store, states=(FINISHED, CANCELED)) == "first gone"
        assert listed(store, states=(QUEUED,)) == "second ready"
        store.wait(5000)
        assert listed(store, states=(SCHEDULED,)) == ""

    def test_retried_canceled_or_redriven_job_is_listed_at_its_state(self, store: Store) -> None:
        store.enqueue(job("a", max_attempts=2))
        for expected in (QUEUED, FAILED):
            store.start()
            store.fail("a")
            assert [state for state in JobState if listed(store, states=(state,))] == [expected]
        store.redrive("a")
        assert listed(store, states=(QUEUED,)) == "a"
        store.cancel("a")
        assert listed(store, states=(CANCELED,)) == "a"

    def test_pages_follow_one_another_without_a_gap(self, store: Store) -> None:
        store.enqueue(*[job(name, user="u" if name in "acegi" else None) for name in "abcdefghi"])
        assert paged(store, 4) == ["a b c d", "e f g h", "i"]
        assert paged(store, 9) == ["a b c d e f g h i"]
        assert paged(store, 2, user="u") == ["a c", "e g", "i"]
        assert paged(store, 4, newest_first=True) == ["i h g f", "e d c b", "a"]

    def test_page_resumes_at_its_position_despite_changes(self, store: Store) -> None:
        store.enqueue(*[job(name) for name in "abcd"])
        first = page(store, 2)
        store.cancel("b", "c")
        store.apply(op.Delete(("b", "c")))
        store.enqueue(job("e"))
        assert first.after is not None
        assert [record.id for record in page(store, 2, first.after).records] == ["d", "e"]

    def test_records_are_ordered_by_number_rather_than_text(self, store: Store) -> None:
        ids = [str(number) for number in range(1, 13)]
        store.enqueue(*[job(name, ["x"]) for name in ids])
        assert listed(store).split() == listed(store, path=("x",)).split() == ids

    def test_more_than_one_block_is_in_order(self, store: Store) -> None:
        for begin in (0, 1000):
            store.enqueue(*[job(f"j{begin + at}", user="u" if (begin + at) % 700 == 3 else None) for at in range(1000)])
        assert listed(store, user="u") == "j3 j703 j1403"
        assert listed(store, user="u", newest_first=True) == "j1403 j703 j3"
        assert paged(store, 1, user="u") == ["j3", "j703", "j1403"]
        assert paged(store, 2, user="u", newest_first=True) == ["j1403 j703", "j3"]
        ids, after = [], None
        while (found := page(store, 200, after)).records:
            ids += [record.id for record in found.records]
            after = found.after
            if after is None:
                break
        assert ids == [f"j{number}" for number in range(2000)]
        assert counted(store) == {QUEUED: 2000}
        assert counted(store, user="u") == {QUEUED: 3}

    def test_enqueue_time_filter_includes_its_start_and_excludes_its_end(self, store: Store) -> None:
        begin_ms = store.clock.now_ms()
        for name in "abcd":
            store.enqueue(job(name, user="u" if name != "c" else "v"))
            store.wait(1000)
        since_ms, until_ms = begin_ms + 1000, begin_ms + 3000
        assert listed(store, since_ms=since_ms) == "b c d"
        assert listed(store, until_ms=until_ms) == "a b c"
        assert listed(store, since_ms=since_ms, until_ms=until_ms, user="u") == "b"
        assert listed(store, since_ms=begin_ms + 4000) == ""
        assert listed(store, until_ms=begin_ms) == ""
        assert counted(store, since_ms=since_ms, until_ms=until_ms) == {QUEUED: 2}
        assert counted(store, since_ms=begin_ms, until_ms=until_ms + 5000) == {QUEUED: 4}

    def test_uncommitted_jobs_are_not_listed(self, store: Store) -> None:
        store.stage("T", job("a", ["x"], user="u", service="s"), job("b", after=["a"]))
        assert listed(store) == listed(store, path=("x",)) == ""
        assert counted(store, path=()) == counted(store) == {}
        assert users(store, "s") == {}
        store.wait(1000)
        store.commit("T")
        store.wait(0)
        assert listed(store, states=(QUEUED,)) == listed(store, path=("x",)) == listed(store, user="u") == "a"
        assert listed(store, since_ms=store.clock.now_ms()) == "a b"
        assert users(store, "s") == {"u": 1}

    def test_expired_records_are_not_listed(self, store: Store) -> None:
        store.enqueue(job("a", ["x"], user="u", service="s", retention_ms=1000), job("b", ["x"]))
        store.run()
        assert listed(store, path=("x",)) == "a b"
        store.wait(1000)
        assert listed(store) == listed(store, path=("x",)) == "b"
        assert listed(store, user="u") == ""
        assert users(store, "s") == {}
        store.wait(2 * DAY_MS)
        assert listed(store) == listed(store, path=()) == ""
        assert counted(store) == counted(store, path=()) == {}

    def test_keyed_job_is_listed_as_its_replacement(self, store: Store) -> None:
        store.enqueue(job("a", ["x"], key="k", user="ann", service="s", on_conflict="replace"))
        store.enqueue(job("b", ["y"], key="k", user="ben", service="s", on_conflict="replace"))
        assert listed(store, user="ann") == listed(store, path=("x",)) == ""
        assert listed(store, user="ben") == listed(store, path=("y",)) == "a"
        assert users(store, "s") == {"ben": 1}

    @pytest.mark.parametrize("limit", [-1, 0, 201, 10**9])
    def test_a_page_has_between_one_and_two_hundred_records(self, store: Store, limit: int) -> None:
        with pytest.raises(InvalidJobError, match="limit must be from 1 to 200"):
            page(store, limit)
        with pytest.raises(InvalidJobError, match="limit must be from 1 to 200"):
            store.apply(op.ListUsers("s", limit=limit))

    def test_names_that_resemble_store_keys_collide_with_nothing(self, store: Store) -> None:
        store.enqueue(
            job("id:sequence", service="a:user:b", user="c"),
            job("x:metadata", service="a", user="b:user:c"),
            job("jobs", service="a", user="s"),
        )
        assert listed(store) == "id:sequence x:metadata jobs"
        assert listed(store, service="a:user:b", user="c") == "id:sequence"
        assert listed(store, service="a", user="b:user:c") == "x:metadata"
        assert listed(store, user="c") == "id:sequence"
        assert users(store, "a") == {"b:user:c": 1, "s": 1}
        assert store.apply(op.Draw(1)).first == 1

    def test_many_large_records_are_told_whole(self, store: Store) -> None:
        names = [f"j{number}" for number in range(12)]
        arguments = b'["%s"]' % (b"x" * (1 << 19))
        for name in names:
            store.enqueue(job(name, ["doc", name], arguments=arguments, flow="f", max_attempts=1))
        store.start()
        for name in names:
            store.fail(name, error=error(name))
        told = [
            store.apply(op.Get((*names, "unknown", names[0]))).records,
            store.apply(op.List()).records,
            store.apply(op.List(newest_first=True)).records,
            store.apply(op.List(RecordFilter(path=("doc",)))).records,
            store.apply(op.List(DEAD_RECORDS)).records,
            store.apply(op.List(RecordFilter(flow="f"))).records,
        ]
        assert [record and record.id for record in told[0]] == [*names, None, names[0]]
        assert [[record and record.id for record in records] for records in told[1:]] == [
            names,
            names[::-1],
            sorted(names),
            names,
            names,
        ]
        assert {record.spec.arguments for records in told for record in records if record is not None} == {arguments}
        first = store.apply(op.List(limit=11))
        assert [record.id for record in store.apply(op.List(after=first.after)).records] == names[11:]
        dead, flow = (
            store.apply(op.List(DEAD_RECORDS, limit=10)),
            store.apply(op.List(RecordFilter(flow="f"), limit=10)),
        )
        assert [len(dead.records), len(flow.records)] == [10, 10]
        assert dead.after is not None
        assert flow.after is not None
        assert [record.id for record in store.apply(op.List(DEAD_RECORDS, after=dead.after)).records] == names[10:]
        assert [
            record.id for record in store.apply(op.List(RecordFilter(flow="f"), after=flow.after)).records
        ] == names[10:]


def fill(store: Store) -> None:
    store.enqueue(
        job("b1", ["a", "b"]),
        job("a1", ["a"], user="u"),
        job("c1", ["a", "c"], user="u"),
        job("other", ["ab"]),
        job("b2", ["a", "b"]),
        job("odd", ["a!"]),
        job("none"),
        job("root", []),
    )


class ListingByPath:
    """Jobs at or below a path are listed in order of queue key, then of number, unfinished or over."""

    def test_a_prefix_is_a_prefix_of_segments(self, store: Store) -> None:
        fill(store)
        assert listed(store, path=("a",)) == "a1 b1 b2 c1"
        assert listed(store, path=("a", "b")) == "b1 b2"
        assert listed(store, path=("a", "b", "x")) == listed(store, path=("b",)) == ""
        assert listed(store, path=("a!",)) == "odd"
        assert listed(store, path=()) == "a1 odd b1 b2 c1 other root"
        assert listed(store, path=("a",), newest_first=True) == "c1 b2 b1 a1"
        assert listed(store, path=(), newest_first=True) == "root other c1 b2 b1 odd a1"
        assert listed(store, path=("a",), user="u") == "a1 c1"

    def test_ended_jobs_are_listed_among_unfinished_ones(self, store: Store) -> None:
        fill(store)
        store.cancel("b1", "c1")
        assert listed(store, path=("a",)) == "a1 b1 b2 c1"
        assert listed(store, path=("a",), states=(CANCELED,)) == "b1 c1"
        assert listed(store, path=("a",), states=(QUEUED,)) == "a1 b2"
        assert listed(store, path=("a",), newest_first=True) == "c1 b2 b1 a1"
        assert counted(store, path=("a",)) == {QUEUED: 2, CANCELED: 2}
        assert counted(store, path=("a",), states=(CANCELED,), user="u") == {CANCELED: 1}

    @pytest.mark.parametrize("newest_first", [False, True])
    @pytest.mark.parametrize("limit", [1, 2, 3])
    def test_pages_of_a_path_follow_one_another_without_a_gap(
        self, store: Store, limit: int, newest_first: bool
    ) -> None:
        fill(store)
        store.cancel("b1", "c1")
        for path in (("a",), ()):
            pages = paged(store, limit, path=path, newest_first=newest_first)
            assert " ".join(pages) == listed(store, path=path, newest_first=newest_first)
            assert all(len(ids.split()) == limit for ids in pages[:-1])

    def test_job_of_several_claims_is_listed_once_at_the_first(self, store: Store) -> None:
        store.enqueue(
            job("two", claims=(Claim(("a", "c")), Claim(("a", "d"), SHARED), Claim(("z",)))),
            job("one", ["a", "b"]),
            job("last", ["a", "e"]),
        )
        assert listed(store, path=("a",)) == "one two last"
        assert listed(store, path=("a",), newest_first=True) == "last two one"
        assert listed(store, path=("a", "d")) == listed(store, path=("z",)) == "two"
        assert paged(store, 1, path=()) == ["one", "two", "last", ""]
        assert counted(store, path=()) == {QUEUED: 3}
        store.cancel("two")
        assert listed(store, path=("a",)) == "one two last"

    def test_a_dead_job_that_is_brought_back_is_listed_once(self, store: Store) -> None:
        store.enqueue(job("a", ["x"], max_attempts=1, on_dead="hold"), job("b", ["x"], max_attempts=1))
        store.start()
        store.fail("a")
        assert listed(store, path=("x",), states=(FAILED,)) == "a"
        store.apply(op.Redrive(("a",)))
        assert listed(store, path=("x",), states=(FAILED,)) == ""
        assert listed(store, path=("x",)) == "a b"
        store.start()
        store.fail("a")
        store.apply(op.Discard(("a",)))
        assert listed(store, path=("x",), states=(CANCELED,)) == "a"


class Counting:
    """Counts of the records that pass a filter, by state and by user of a service."""

    def test_counts_are_by_state(self, store: Store) -> None:
        store.enqueue(*[job(name, user="u", service="s") for name in "abc"], job("d", user="v"))
        store.start(1)
        store.finish("a")
        store.start(1)
        assert counted(store) == {QUEUED: 2, STARTED: 1, FINISHED: 1}
        assert counted(store, user="u") == {QUEUED: 2, FINISHED: 1}
        assert counted(store, states=(QUEUED,), service="s") == {QUEUED: 2}
        assert counted(store, user="w") == {}
        assert set(store.apply(op.CountRecords()).states) == set(JobState)

    def test_records_after_a_cursor_are_counted(self, store: Store) -> None:
        services = {"a": "s", "b": "t", "c": "s", "d": "t"}
        store.enqueue(*[job(name, ["x", name], user="u", service=service) for name, service in services.items()])
        store.clock.advance(ms=MINUTE)
        store.enqueue(attrs.evolve(job("e"), claims=(Claim(("x", "a")), Claim(("x", "z")))), job("f", user="u"))
        store.start(2)
        numbers = [store.record(name).number for name in "abcdef"]
        for fields, those in (
            ({}, "abcdef"),
            ({"user": "u"}, "abcdf"),
            ({"user": "u", "service": "s"}, "ac"),
            ({"states": (QUEUED, STARTED), "task": "task"}, "abcdef"),
            ({"since_ms": store.clock.now_ms()}, "ef"),
        ):
            for number, name in zip(numbers, "abcdef", strict=True):
                left = [other for other in those if other > name]
                assert counted_behind(store, ("", number), **fields) == len(left), (fields, name)
            assert counted_behind(store, ("", 10**9), **fields) == 0
            assert counted_behind(store, ("", 0), **fields) == len(those)
        places = [record.id for record in page(store, path=("x",)).records]
        assert places == ["a", "e", "b", "c", "d"]
        assert counted_behind(store, ("x:a", numbers[0]), path=("x",)) == 4
        assert counted_behind(store, ("x:a", numbers[4]), path=("x",)) == 3
        assert counted_behind(store, ("x:b", 10**9), path=("x",)) == 2
        assert counted_behind(store, ("x:z", numbers[4]), path=("x",)) == 0

    def test_users_are_listed_by_service_in_order_of_name(self, store: Store) -> None:
        names = ["ann", "Ben", "é", "a:b", "zoë"]
        store.enqueue(*[job(name, user=name, service="s") for name in names])
        store.enqueue(job("more", user="ann", service="s"), job("t", user="ann", service="t"), job("u", user="ann"))
        expected = [("Ben", 1), ("a:b", 1), ("ann", 2), ("zoë", 1), ("é", 1)]
        found = store.apply(op.ListUsers("s"))
        assert (list(found.users), found.after) == (expected, None)
        first = store.apply(op.ListUsers("s", limit=2))
        assert (list(first.users), first.after) == (expected[:2], "a:b")
        rest = store.apply(op.ListUsers("s", first.after, 3))
        assert (list(rest.users), rest.after) == (expected[2:], None)
        assert users(store, "nobody's") == {}

    def test_a_user_whose_records_are_gone_is_gone(self, store: Store) -> None:
        store.enqueue(job("a", user="u", service="s"), job("b", user="u", service="s"))
        store.cancel("a")
        assert users(store, "s") == {"u": 2}
        store.apply(op.Delete(("a",)))
        assert users(store, "s") == {"u": 1}
        store.cancel("b")
        store.wait(91 * DAY_MS)
        assert users(store, "s") == {}
