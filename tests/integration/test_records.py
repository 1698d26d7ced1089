"""The records of a scheduler, with the same answers on all stores: look-ups, pages, counts, ends."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from queuehint import (
    Claim,
    JobNotFoundError,
    JobSpec,
    JobState,
    Policy,
    Scheduler,
)
from queuehint.values.outcome import OutcomeKind
from tests.manual_jobs import ids, on, settle, spec

SCHEDULED, DEFERRED, QUEUED, STARTED, FINISHED, FAILED, CANCELED = JobState


# --- look-ups ---------------------------------------------------------------------------------------------------------


def test_records_are_looked_up_by_id_and_owner(url: str) -> None:
    async def main(sched: Scheduler) -> None:
        store = sched.records
        await sched.submit(
            [
                spec("a", service="docs", user="ann"),
                spec("b", service="docs", user="ben"),
                spec("c", service="mail", user="ann"),
                spec("d", user="ann"),
                spec("e"),
            ]
        )
        assert await store.get("c") == await sched.get("c") == store.get_sync("c")
        assert ids(await store.list_by_ids(["d", "x", "a", "d"])) == ["d", "a"]
        assert ids(await store.list_all()) == ids(store.list_all_sync()) == list("abcde")
        assert ids(await store.list_by_service("docs")) == ids(store.list_by_service_sync("docs")) == ["a", "b"]
        assert ids(await store.list_by_user("ann")) == ids(store.list_by_user_sync("ann")) == ["a", "c", "d"]
        assert ids(await store.list_by_service_and_user("docs", "ann")) == ["a"]
        assert ids(store.list_by_service_and_user_sync("mail", "ben")) == []
        assert ids(await store.list_by_user("ann", newest_first=True, limit=2)) == ["d", "c"]
        with pytest.raises(JobNotFoundError):
            await store.get("x")
        assert await store.list_by_ids([]) == []

    on(url, main)


def test_records_are_looked_up_by_task_pool_state_and_time(url: str) -> None:
    async def main(sched: Scheduler) -> None:
        store = sched.records
        await sched.submit([spec("a", task="one"), spec("b", pool="big"), spec("c"), spec("d", delay_ms=60_000)])
        await settle(sched, OutcomeKind.FINISHED, OutcomeKind.FAILED)
        assert ids(await store.list(task="one")) == ["a"]
        assert ids(await store.list(pool="big")) == ["b"]
        assert ids(await store.list(state="FAILED")) == ["c"]
        assert ids(await store.list(state=[FAILED, "FINISHED", FAILED])) == ["a", "c"]
        assert ids(await store.list(state={"SCHEDULED"}, task="work", pool="default")) == ["d"]
        times = [record.enqueued_at for record in await store.list_all()]
        assert ids(await store.list(since=times[0])) == list("abcd")
        assert ids(await store.list(until=times[0])) == []
        assert ids(await store.list(since=times[0], until=times[-1] + timedelta(microseconds=1))) == list("abcd")
        assert ids(await store.list(since=times[-1] + timedelta(microseconds=1))) == []
        assert ids(await store.list(since=datetime.min.replace(tzinfo=UTC))) == list("abcd")

    on(url, main)


def test_records_of_a_path_come_in_place_order_below_it(url: str) -> None:
    async def main(sched: Scheduler) -> None:
        store = sched.records
        await sched.submit(
            [
                spec("a", "doc2", "x"),
                spec("b", "doc1"),
                spec("c", "doc1", "y"),
                spec("d", "doc10"),
                spec("e", "doc1", "x"),
                spec("f", "doc1"),
                spec("g"),
                JobSpec(id="h", task="work", claims=(Claim(("doc1", "y")), Claim(("doc2",)))),
            ]
        )
        await settle(sched, OutcomeKind.FINISHED, OutcomeKind.FINISHED)
        assert ids(await store.list(path=["doc1"])) == ["b", "f", "e", "c", "h"]
        assert ids(await store.list(path=["doc1"], newest_first=True)) == ["h", "c", "e", "f", "b"]
        assert ids(await store.list(path=["doc1", "x"])) == ["e"]
        assert sorted(ids(await store.list(path=[]))) == list("abcdefh")
        assert ids(await store.list(path=["doc"])) == []
        first = await store.list(path=["doc1"], limit=2)
        assert ids(first) == ["b", "f"]
        assert ids(await store.list(path=["doc1"], cursor=first.cursor)) == ["e", "c", "h"]
        assert ids(await store.list(path=["doc1"], order="time")) == ["b", "c", "e", "f", "h"]
        assert ids(await store.list(path=["doc1"], order="time", newest_first=True)) == ["h", "f", "e", "c", "b"]
        page = await store.list(path=["doc1"], order="time", newest_first=True, limit=3)
        rest = store.list_sync(path=["doc1"], order="time", newest_first=True, cursor=page.cursor)
        assert (ids(page), ids(rest), rest.cursor) == (["h", "f", "e"], ["c", "b"], None)
        found = [record.id async for record in store.iterate(path=["doc1"], order="time", state="FINISHED")]
        assert found == [record.id for record in store.iterate_sync(path=["doc1"], order="time", state="FINISHED")]
        assert found == ["b"]

    on(url, main)


def test_names_that_look_alike_are_not_mixed_up(url: str) -> None:
    async def main(sched: Scheduler) -> None:
        store = sched.records
        await sched.submit(
            [
                spec("id:sequence", service="a:user:b", user="c"),
                spec("x:metadata", service="a", user="b:user:c"),
                spec("records", service="*", user="?"),
                spec("a:b", service="a", user="b"),
                spec("{a}:records:index", service="a:user", user="b"),
            ]
        )
        assert ids(await store.list_by_service_and_user("a:user:b", "c")) == ["id:sequence"]
        assert ids(await store.list_by_service_and_user("a", "b:user:c")) == ["x:metadata"]
        assert ids(await store.list_by_service("a")) == ["x:metadata", "a:b"]
        assert ids(await store.list_by_service("a:user:b")) == ["id:sequence"]
        assert ids(await store.list_by_user("*")) == []
        assert ids(await store.list_by_service("*")) == ["records"]
        assert [user async for user in store.users("a")] == [("b", 1), ("b:user:c", 1)]
        assert (await store.get("id:sequence")).spec.user == "c"
        assert await store.next_id() == "1"

    on(url, main)


# --- order and pages --------------------------------------------------------------------------------------------------


def test_numbers_are_listed_in_order_of_number_not_of_letters(url: str) -> None:
    async def main(sched: Scheduler) -> None:
        @sched.job
        async def work() -> None: ...

        assert await sched.records.peek_id() == "1"
        for _ in range(10):
            await work.enqueue()
        assert (await sched.records.peek_id(), sched.records.peek_id_sync()) == ("11", "11")
        assert (await sched.records.next_id(), sched.records.next_id_sync()) == ("11", "12")
        await work.using(id="12").enqueue()
        await work.using(id="11").enqueue()
        assert await sched.records.peek_id() == "13"
        assert ids(await sched.records.list_all()) == [*map(str, range(1, 11)), "12", "11"]
        await work.enqueue()
        page = await sched.records.list(limit=4, newest_first=True)
        assert ids(page) == ["13", "11", "12", "10"]

    on(url, main, ids="sequence")


def test_twelve_drawn_numbers_are_in_order(url: str) -> None:
    async def main(sched: Scheduler) -> None:
        await sched.submit([JobSpec(id="", task="work", user="ann")] * 12)
        assert ids(await sched.records.list_all()) == list(map(str, range(1, 13)))
        assert ids(await sched.records.list_by_user("ann")) == list(map(str, range(1, 13)))

    on(url, main, ids="sequence")


def test_pages_follow_one_another_and_the_last_says_so(url: str) -> None:
    async def main(sched: Scheduler) -> None:
        names = [f"j{n}" for n in range(25)]
        await sched.submit([spec(name, user="ann" if n % 5 else "ben") for n, name in enumerate(names)])
        for newest_first in (False, True):
            expected = names[::-1] if newest_first else names
            page, found = None, []
            while page is None or page.cursor is not None:
                page = await sched.records.list(
                    limit=10, newest_first=newest_first, cursor=None if page is None else page.cursor
                )
                assert len(page) <= 10
                found += ids(page)
            assert found == expected
            assert [record.id async for record in sched.records.iterate(newest_first=newest_first)] == expected
        assert [record.id for record in sched.records.iterate_sync(user="ben")] == names[::5]
        first = await sched.records.list(limit=2, user="ben")
        assert (first[0].id, ids(first[1:]), len(first), first.cursor is None) == ("j0", ["j5"], 2, False)
        rest = await sched.records.list(limit=200, user="ben", cursor=first.cursor)
        assert (ids(rest), rest.cursor) == (["j10", "j15", "j20"], None)
        assert ids(sched.records.list_sync(limit=200, user="ben", cursor=first.cursor)) == ids(rest)

    on(url, main)


def test_record_expired_between_pages_is_omitted(url: str) -> None:
    async def main(sched: Scheduler) -> None:
        brief = Policy(retention_ms=0)
        await sched.submit([spec(f"j{n}", policy=brief if n in (1, 2, 3, 8) else Policy()) for n in range(10)])
        first = await sched.records.list(limit=3)
        assert ids(first) == ["j0", "j1", "j2"]
        await settle(sched, *[OutcomeKind.FINISHED] * 10)
        rest = await sched.records.list(cursor=first.cursor)
        assert ids(rest) == ["j4", "j5", "j6", "j7", "j9"]
        assert ids(await sched.records.list_all()) == ["j0", "j4", "j5", "j6", "j7", "j9"]
        assert ids(await sched.records.list_by_ids(["j1", "j4"])) == ["j4"]
        with pytest.raises(JobNotFoundError):
            await sched.records.get("j2")
        assert (await sched.records.count()).states[FINISHED] == 6

    on(url, main)


@pytest.mark.slow
def test_a_page_is_filled_though_little_is_found_in_much(url: str) -> None:
    async def main(sched: Scheduler) -> None:
        for begin in range(0, 6000, 1000):
            await sched.submit(
                [spec(f"j{n}", "doc", user="ann" if n in (0, 5999) else "ben") for n in range(begin, begin + 1000)]
            )
        page = await sched.records.list(path=["doc"], user="ann")
        assert (ids(page), page.cursor) == (["j0", "j5999"], None)
        # Nor does a count end with what one question counts.
        assert (await sched.records.count(path=["doc"])).total == sched.stats_sync(path=["doc"]).total == 6000
        assert sched.records.count_sync(path=["doc"], user="ann").total == 2

    on(url, main)


# --- counts and users -------------------------------------------------------------------------------------------------


def test_counts_are_by_state(url: str) -> None:
    async def main(sched: Scheduler) -> None:
        await sched.submit([spec(f"j{n}", "doc", f"s{n}", service="docs" if n < 3 else None) for n in range(5)])
        await settle(sched, OutcomeKind.FINISHED, OutcomeKind.FAILED)
        counts = await sched.records.count(service="docs")
        assert {state: count for state, count in counts.states.items() if count} == {QUEUED: 1, FINISHED: 1, FAILED: 1}
        assert (counts.total, counts.complete) == (3, True)
        assert sched.records.count_sync(path=["doc", "s4"]).total == 1
        assert (await sched.records.count(service="other")).total == 0

        assert await sched.stats(service="docs") == sched.stats_sync(service="docs") == counts
        assert (await sched.stats(state=["FINISHED", "FAILED"])).total == 2
        whole = await sched.stats()
        assert (whole.states[QUEUED], whole.enqueued) == (3, 5)

    on(url, main)


def test_records_are_counted_by_owner_and_place(url: str) -> None:
    async def main(sched: Scheduler) -> None:
        users = ["ann", "ben", None, "ann"]
        await sched.submit([spec(f"j{n}", "doc", f"s{n}", user=user) for n, user in enumerate(users)])
        await settle(sched, OutcomeKind.FAILED)
        of_ann = await sched.stats(user="ann")
        assert {state: count for state, count in of_ann.states.items() if count} == {QUEUED: 1, FAILED: 1}
        assert sched.stats_sync(user="ann", path=["doc", "s3"]).states[QUEUED] == 1
        assert sched.stats_sync(user="ann", pool="big").total == sched.stats_sync(user="eve").total == 0
        assert sched.stats_sync(path=["doc"], task="work").total == 4

    on(url, main)


def test_users_of_a_service_come_in_order_with_their_counts(url: str) -> None:
    async def main(sched: Scheduler) -> None:
        names = [f"u{n:03}" for n in range(250)]
        await sched.submit([spec(name, service="docs", user=name, policy=Policy(retention_ms=0)) for name in names])
        await sched.submit([spec("more", service="docs", user="u007"), spec("nobody", service="docs")])
        expected = [(name, 2 if name == "u007" else 1) for name in names]
        assert [user async for user in sched.records.users("docs")] == expected
        assert list(sched.records.users_sync("docs")) == expected
        page = await sched.records.list_users("docs", limit=2, after="u005")
        assert (page.users, page.after) == ((("u006", 1), ("u007", 2)), "u007")
        assert sched.records.list_users_sync("docs", after="u249").users == ()
        await settle(sched, *[OutcomeKind.FINISHED] * 252)
        assert [user async for user in sched.records.users("docs")] == [("u007", 1)]

    on(url, main)
