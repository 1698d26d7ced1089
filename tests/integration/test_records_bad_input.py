"""Bad input to `Scheduler.records`, refused before a request is sent."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from queuehint import (
    Claim,
    InvalidHintError,
    InvalidJobError,
    InvalidJobTypeError,
    JobState,
    Retention,
    Scheduler,
)
from queuehint.values.outcome import OutcomeKind
from queuehint.values.spec import JobSpec
from tests.manual_jobs import ids, on, settle, spec
from tests.schedulers import run

SCHEDULED, DEFERRED, QUEUED, STARTED, FINISHED, FAILED, CANCELED = JobState
MONDAY = datetime(2026, 1, 5, tzinfo=UTC)


@pytest.fixture
def empty() -> Scheduler:
    return Scheduler()


@pytest.mark.parametrize(
    "asked, kind, words",
    [
        *[({"limit": bad}, InvalidJobError, "limit") for bad in (-1, 0, 201, 10**9)],
        *[({"limit": bad}, InvalidJobTypeError, "limit") for bad in ("abc", 1.0, True, None)],
        *[({"cursor": bad}, InvalidJobError, "cursor") for bad in ("", "abc", "-1", "0", "AQ", "x" * 10**6, "\ud800")],
        *[({"cursor": bad}, InvalidJobTypeError, "cursor") for bad in (-1, 0, 10**9, b"abc")],
        *[({"newest_first": bad}, InvalidJobTypeError, "newest_first") for bad in (1, None, "yes")],
        *[({"order": bad}, InvalidJobError, "order must be one of place, time") for bad in ("", "newest", "TIME")],
        *[({"order": bad}, InvalidJobTypeError, "order") for bad in (None, 5, ["time"])],
        *[({"state": bad}, InvalidJobError, "state") for bad in ("", "finished", "DONE", [], ["FINISHED", "x"])],
        *[({"state": bad}, InvalidJobTypeError, "state") for bad in (5, [5], [None])],
        *[({name: bad}, InvalidJobError, name) for name in ("service", "user", "task", "pool") for bad in ("", "a\n")],
        *[({name: 5}, InvalidJobTypeError, name) for name in ("service", "user", "task", "pool")],
        ({"path": "doc1"}, InvalidHintError, "path"),
        ({"path": [""]}, InvalidHintError, "path"),
        *[({name: 5}, InvalidJobTypeError, name) for name in ("since", "until")],
        *[({name: datetime(2026, 1, 1)}, InvalidJobError, "timezone-aware") for name in ("since", "until")],
        ({"since": MONDAY, "until": MONDAY - timedelta(days=1)}, InvalidJobError, "until"),
        ({"owner": "docs"}, InvalidJobTypeError, "no filter 'owner'; there are service, user, "),
    ],
)  # fmt: skip
def test_a_bad_question_is_refused_before_anything_is_asked(
    empty: Scheduler, asked: dict[str, Any], kind: type[Exception], words: str
) -> None:
    with pytest.raises(kind, match=words):
        run(empty.records.list(**asked))
    with pytest.raises(kind, match=words):
        empty.records.list_sync(**asked)
    if "order" in asked:
        with pytest.raises(kind, match=words):
            empty.records.iterate(**asked)
        with pytest.raises(kind, match=words):
            empty.records.iterate_sync(**asked)
    elif not {"limit", "cursor", "newest_first"} & asked.keys():
        with pytest.raises(kind, match=words):
            empty.records.iterate(**asked)
        with pytest.raises(kind, match=words):
            empty.records.count_sync(**asked)
        with pytest.raises(kind, match=words):
            empty.records.export_sync("/nonexistent/file", **asked)


def test_a_cursor_belongs_to_its_question(empty: Scheduler) -> None:
    store = empty.records
    empty.submit_sync([spec(f"j{n}", user="ann") for n in range(3)])
    cursor = store.list_sync(limit=1).cursor
    others: list[Any] = [{"user": "ann"}, {"newest_first": True}, {"path": []}, {"state": "QUEUED"}]
    for other in others:
        with pytest.raises(InvalidJobError, match="cursor"):
            store.list_sync(cursor=cursor, **other)
    assert store.list_sync(cursor=cursor, order="time").cursor is None, "without a path it is the one order"
    empty.submit_sync([JobSpec(id=f"p{n}", task="work", claims=(Claim(("x",)),)) for n in range(3)])
    orders: list[Any] = ["place", "time"]
    for order in orders:
        cursor = store.list_sync(path=["x"], limit=1, order=order).cursor
        assert len(store.list_sync(path=["x"], cursor=cursor, order=order)) == 2
        with pytest.raises(InvalidJobError, match="cursor"):
            store.list_sync(path=["x"], cursor=cursor, order=orders[order == "place"])


@pytest.mark.parametrize("bad", ["", 5, None, "a\n", "x" * 257])
def test_a_name_that_has_to_be_given_is_checked(empty: Scheduler, bad: Any) -> None:
    for call in (
        empty.records.list_by_service_sync,
        empty.records.list_by_user_sync,
        lambda name: empty.records.list_by_service_and_user_sync("docs", name),
        lambda name: empty.records.list_by_service_and_user_sync(name, "ann"),
        empty.records.list_users_sync,
        empty.records.users_sync,
        empty.records.users,
    ):
        with pytest.raises(InvalidJobError):
            call(bad)


def test_a_bad_write_is_refused(empty: Scheduler) -> None:
    store = empty.records
    empty.submit_sync([spec("a")])
    for call, words in (
        (lambda: store.amend_sync("a"), "takes service, user or both"),
        (lambda: store.amend_sync("a", task="x"), "takes service, user or both"),  # type: ignore[call-arg]
        (lambda: store.amend_sync("a", user=""), "user is empty"),
        (lambda: store.amend_sync("a", user="ann", version="1"), "version"),  # type: ignore[arg-type]
        (lambda: store.amend_sync("a", user="ann", version=-1), "version"),
        (lambda: store.amend_sync("", user="ann"), "id is empty"),
        (lambda: store.delete_sync("a"), "ids must be a list"),
        (lambda: store.delete_sync(["a", "b"], version=1), "2 ids are given"),
        (lambda: store.delete_sync([""]), "id is empty"),
        (lambda: store.delete_sync([f"j{n}" for n in range(1001)]), "limit 1000"),
        (lambda: store.list_by_ids_sync([f"j{n}" for n in range(1001)]), "limit 1000"),
        (lambda: store.append_log_sync("a", b"x"), "text must be str"),  # type: ignore[arg-type]
        (lambda: store.append_log_sync("", "x"), "id is empty"),
        (lambda: store.get_sync("a b"), "id"),
        (lambda: store.list_users_sync("docs", limit=0), "limit"),
        (lambda: store.list_users_sync("docs", after=""), "after"),
        (lambda: store.export_sync(5), "file must be"),  # type: ignore[arg-type]
    ):
        with pytest.raises(InvalidJobError, match=words):
            call()
    assert store.get_sync("a").version == 1


@pytest.mark.parametrize("bad", [-1, timedelta(days=3661), "1", True])
def test_a_retention_out_of_its_range_is_refused(bad: Any) -> None:
    for options in ({"finished": bad}, {"services": {"docs": bad}}):
        with pytest.raises(InvalidJobError):
            Retention(**options)


def test_records_of_a_service_follow_its_retention(url: str) -> None:
    async def main(sched: Scheduler) -> None:
        await sched.submit([spec("a", service="brief"), spec("b", service="docs"), spec("c")])
        await settle(sched, *[OutcomeKind.FINISHED] * 3)
        assert ids(await sched.records.list_all()) == ["b", "c"]

    on(url, main, retention=Retention(services={"brief": 0}))
