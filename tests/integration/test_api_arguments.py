"""Invalid arguments: refused at once, in one printable line that names the parameter."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import attrs
import pytest

from queuehint import (
    Dependency,
    InvalidHintError,
    InvalidJobError,
    InvalidJobTypeError,
    JobSpec,
    QueueHintError,
    Retention,
    Scheduler,
    open_backend,
    queue_key,
)
from queuehint.schema.checks import check_items
from tests.each import for_each
from tests.schedulers import scheduler

SCHED: Any = scheduler()[0]
JOB: Any = SCHED.job(name="job")(lambda: None)


class Lines:
    """Is shown on several lines, as an array or a data frame is."""

    def __repr__(self) -> str:
        return "array([[1],\n       [2]]) \x1b[31m"


NEVER_MEANT: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "a text for a path": (lambda: queue_key("doc1"), InvalidHintError, "did you mean ['doc1']"),
    "a number in a path": (lambda: queue_key([1]), InvalidHintError, "path segment 0"),  # type: ignore[list-item]
    "an empty segment": (lambda: queue_key(["a", ""]), InvalidHintError, "path segment 1 is empty"),
    "a list of kinds in a list": (lambda: SCHED.on([["failed"]], print), InvalidJobTypeError, "kinds must be one of"),
    "no kind to be told": (lambda: SCHED.on([], print), InvalidJobError, "kinds must not be empty"),
    "no kind to wait for": (lambda: SCHED.events_sync(kinds=[]), InvalidJobError, "kinds must not be empty"),
    "what is no listener": (lambda: SCHED.off(5), InvalidJobTypeError, "listener must be callable"),
    "an id for a record": (lambda: SCHED.records.arguments_of("x"), InvalidJobTypeError, "record must be a JobRecord"),
    "an id for a result": (lambda: SCHED.records.result_of("x"), InvalidJobTypeError, "record must be a JobRecord"),
    "a dict for options": (lambda: open_backend("memory://", {}), InvalidJobTypeError, "must be a BackendOptions"),  # type: ignore[arg-type]
    "no codec": (lambda: Scheduler(codec=5), InvalidJobTypeError, "codec must be a Codec"),  # type: ignore[arg-type]
    "half a codec": (lambda: Scheduler(codec=Half()), InvalidJobTypeError, "loads()"),  # type: ignore[arg-type]
    "no clock": (lambda: Scheduler(clock=5), InvalidJobTypeError, "clock must be a Clock"),  # type: ignore[arg-type]
    "no redact": (lambda: Scheduler(redact=5), InvalidJobTypeError, "redact must be callable"),  # type: ignore[arg-type]
    "no retention": (lambda: Scheduler(retention=5), InvalidJobTypeError, "must be a Retention"),  # type: ignore[arg-type]
    "no hook before": (lambda: SCHED.before_job(5), InvalidJobTypeError, "hook must be callable"),
    "no hook after": (lambda: SCHED.after_job(5), InvalidJobTypeError, "hook must be callable"),
    "no mode": (lambda: SCHED.can_dequeue_sync(None, 5), InvalidHintError, "mode must be one of"),
    "several lines": (
        lambda: JOB.using(user=Lines()),
        InvalidJobTypeError,
        "user must be str, got Lines: <Lines>",
    ),
    "a class of several lines": (lambda: JOB.using(user=type("a\nb", (), {})()), InvalidJobTypeError, r"got a\nb: "),
    "an option of calls": (
        lambda: SCHED.job(key="k")(print),
        InvalidJobTypeError,
        "no option 'key': it is one of each call, using(key=...)",
    ),
    "an option of Celery": (
        lambda: SCHED.job(max_retries=3)(print),
        InvalidJobTypeError,
        "no option 'max_retries'; did you mean 'max_attempts'?",
    ),
    "a misspelt option": (lambda: SCHED.job(max_attempt=1)(print), InvalidJobTypeError, "did you mean 'max_attempts'?"),
    "a hint and claims": (
        lambda: SCHED.job(["a"], claims=[["b"]])(print),
        InvalidJobTypeError,
        "give queue_hint or claims, not both",
    ),
    "a mode of claims": (lambda: JOB.using(claims=[["b"]], mode="shared"), InvalidJobTypeError, "mode is that of q"),
    "an option of several lines": (lambda: SCHED.job(**{"a\nb": 1})(print), InvalidJobTypeError, r"no option 'a\nb'"),
    "a filter of several lines": (lambda: SCHED.stats_sync(**{"a\nb": 1}), InvalidJobTypeError, r"no filter 'a\nb'"),
    "a change of several lines": (lambda: SCHED.records.amend_sync("x", **{"a\nb": 1}), InvalidJobTypeError, r"a\nb"),
    "a number of schedules": (lambda: SCHED.every(5, args=5)(JOB), InvalidJobTypeError, "args must be a list"),
    "a list by name": (lambda: SCHED.every(5, kwargs=[1])(JOB), InvalidJobTypeError, "kwargs must be a dict"),
}


class Half:
    """Has one of the two methods of a codec."""

    def dumps(self) -> None: ...


@for_each("name", NEVER_MEANT)
def test_malformed_argument_is_refused_in_one_line(name: str) -> None:
    call, kind, words = NEVER_MEANT[name]
    before = len(SCHED.listeners), len(SCHED._before), len(SCHED._after)
    with pytest.raises(QueueHintError) as caught:
        call()
    assert isinstance(caught.value, kind)
    assert words in str(caught.value)
    assert str(caught.value).isprintable()
    assert (len(SCHED.listeners), len(SCHED._before), len(SCHED._after)) == before


class Endless:
    """Goes on and on, and counts how far it was read."""

    def __init__(self, *items: Any) -> None:
        self.items = items or ("a",)
        self.read = 0

    def __iter__(self) -> Iterator[Any]:
        while self.read < 10**6:
            self.read += 1
            yield self.items[self.read % len(self.items)]


class EndlessList(list[Any]):
    """Is a list, and goes on and on."""

    def __init__(self, item: Any) -> None:
        super().__init__([item])
        self.endless = Endless(item)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.endless)


ITERABLES: dict[str, tuple[int, Callable[[Any], Any]]] = {
    "pools": (64, lambda items: SCHED.make_worker(pools=items)),
    "users": (64, lambda items: SCHED.make_worker(users=items)),
    "steal": (64, lambda items: SCHED.make_worker(users=["a"], steal=items)),
    "pools of a worker": (64, lambda items: SCHED.worker_sync(pools=items).__enter__()),
    "users of a worker": (64, lambda items: SCHED.worker_sync(users=items).__enter__()),
    "kinds": (16, lambda items: SCHED.on(items, print)),
    "kinds of events": (15, SCHED.events_sync),
    "after": (100_000, lambda items: JOB.using(after=items)),
    "depends_on": (1000, lambda items: JOB.using(depends_on=items)),
    "ids to cancel": (1000, SCHED.cancel_sync),
    "ids to redrive": (1000, SCHED.dead.redrive_sync),
    "ids to discard": (1000, SCHED.dead.discard_sync),
    "ids to make due": (1000, lambda items: SCHED.run_now_sync(ids=items)),
    "ids to delete": (1000, SCHED.records.delete_sync),
    "ids to list": (1000, SCHED.records.list_by_ids_sync),
    "state": (7, lambda items: SCHED.records.list_sync(state=items)),
    "args": (10_000, lambda items: SCHED.every(5, args=items)(JOB)),
}


@for_each("name", ITERABLES)
def test_endless_iterator_is_read_one_beyond_the_limit(name: str) -> None:
    limit, call = ITERABLES[name]
    items = Endless()
    with pytest.raises(InvalidJobError, match=f"more than {limit} in one call, limit {limit}"):
        call(items)
    assert items.read == limit + 1


SUBMITTED: dict[str, tuple[Any, Callable[[Any], Any]]] = {
    "calls": ((), JOB.enqueue_many_sync),
    "specs": (JobSpec(id="a", task="t", arguments=b"x" * 100), SCHED.submit_sync),
}


@pytest.mark.parametrize("name", SUBMITTED)
def test_jobs_without_end_are_read_up_to_the_limit(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    item, call = SUBMITTED[name]
    for module in ("job", "options"):
        monkeypatch.setattr(f"queuehint.client.{module}.JOBS_PER_CALL_MAX", 2500)
    items = Endless(item)
    with pytest.raises(InvalidJobError, match=f"^{name}: more than 2500 in one call, limit 2500"):
        call(items)
    assert items.read == 2501
    assert len(call([attrs.evolve(item, id=str(n)) if item else item for n in range(2500)])) == 2500
    before = SCHED.stats_sync()
    for many, found in (([item] * 2501, 2501), (range(10**12), 10**12)):
        with pytest.raises(InvalidJobError, match=f"^{name}: {found} in one call, limit 2500"):
            call(many)
    with pytest.raises(InvalidJobTypeError, match=rf"{name}\[0\]"):
        call(Endless("a"))
    assert SCHED.stats_sync() == before


@pytest.mark.parametrize("name", SUBMITTED)
def test_jobs_are_read_up_to_so_many_bytes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    item, call = SUBMITTED[name]
    monkeypatch.setattr("queuehint.values.spec.CALL_BYTES_MAX", 10_000)
    items = Endless(item)
    with pytest.raises(InvalidJobError, match=f"^{name}: more than 10000 bytes of arguments in one call, the limit"):
        call(items)
    assert items.read <= 5001


def test_endless_list_is_read_one_beyond_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("queuehint.values.spec.DEPENDENCIES_MAX", 1000)
    ids = EndlessList("a")
    with pytest.raises(InvalidJobError, match="depends_on names more than 1000 jobs, limit 1000"):
        JobSpec(id="x", task="t", depends_on=ids).check()  # type: ignore[arg-type]
    edges = EndlessList(Dependency("a"))
    with pytest.raises(InvalidJobError, match="depends_on names more than 1000 jobs, limit 1000"):
        JobSpec(id="x", task="t", depends_on=edges).check()  # type: ignore[arg-type]
    pointers = EndlessList("/a")
    with pytest.raises(InvalidJobError, match="templates names more than 1000 strings, limit 1000"):
        JobSpec(id="x", task="t", templates=pointers).check()  # type: ignore[arg-type]
    segments = EndlessList("a")
    with pytest.raises(InvalidHintError, match="has 1 segments, limit 64"):
        queue_key(segments)
    assert [each.endless.read for each in (ids, edges, pointers, segments)] == [1001, 1001, 1001, 65]


def test_endless_mapping_is_read_one_beyond_the_limit() -> None:
    from collections.abc import Mapping

    class EndlessMapping(Mapping[str, int]):
        def __init__(self) -> None:
            self.endless = Endless()

        def __getitem__(self, key: str) -> int:
            return 5

        def __iter__(self) -> Iterator[str]:
            return (f"a{number}" for number, _ in enumerate(self.endless))

        def __len__(self) -> int:
            return 1

    kept, named = EndlessMapping(), EndlessMapping()
    with pytest.raises(InvalidJobError, match="services names more than 100 services, limit 100"):
        Retention(services=kept)
    with pytest.raises(InvalidJobError, match="kwargs: more than 10000 in one call"):
        SCHED.every(5, kwargs=named)(JOB)
    assert (kept.endless.read, named.endless.read) == (101, 10_001)


def test_how_many_there_are_is_said_where_that_costs_nothing() -> None:
    for items in (["a"] * 5, ("a",) * 5, range(5), frozenset("abcde")):
        with pytest.raises(InvalidJobError, match=r"^ids: 5 in one call, limit 4$"):
            check_items(items, parameter="ids", most=4)
    assert check_items(iter("abcd"), parameter="ids", most=4) == ["a", "b", "c", "d"]
    with pytest.raises(InvalidJobError, match=r"^ids: 1000000000000 in one call, limit 4$"):
        check_items(range(10**12), parameter="ids", most=4)


@pytest.mark.parametrize("secret", [["hunter2"], "hunter2", {"hunter2"}, 5])
def test_arguments_are_not_shown_where_they_are_no_call(secret: Any) -> None:
    calls: list[Callable[[], Any]] = [
        lambda: JOB.enqueue_many_sync([secret]),
        lambda: SCHED.every(5, args={"a": secret})(JOB),
        lambda: SCHED.every(5, kwargs=[secret])(JOB),
    ]
    for call in calls:
        with pytest.raises(InvalidJobTypeError) as caught:
            call()
        assert "hunter2" not in str(caught.value)
