"""Connections cut before or after a request: it is applied once, and answered as without the cut."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import pytest

from queuehint import FakeClock, OutcomeUnknownError
from queuehint import operations as op
from queuehint.backends.redis import session as redis_session
from queuehint.backends.redis.backend import RedisBackend
from queuehint.backends.redis.codec import codec
from queuehint.errors import BackendUnavailableError, DuplicateJobError
from queuehint.values.outcome import Grant, JobError, Outcome, OutcomeKind, Progress
from queuehint.values.policy import Policy
from queuehint.values.record_filter import RecordFilter
from tests.calls import load_scripts, mark_of
from tests.conftest import StartProxy
from tests.faults import checks
from tests.proxy import Proxy
from tests.schedulers import run
from tests.servers import Server, new_namespace

pytestmark = pytest.mark.redis

NOT_COMPARED = ("sessions", "receipts")
"""They are named by chance."""
ERROR = JobError(type="ValueError", message="no", traceback="line 1")
ONCE = Policy(max_attempts=1, on_dead="hold")


@attrs.define
class Story:
    """The history so far: the clock, and the newest grant of each job."""

    clock: FakeClock = attrs.field(factory=FakeClock)
    grants: dict[str, Grant] = attrs.field(factory=dict)

    def outcome(self, job_id: str, kind: OutcomeKind = OutcomeKind.FINISHED, **fields: Any) -> Outcome:
        return Outcome(job_id=job_id, token=self.grants[job_id].token, kind=kind, **fields)

    def lease(self, job_id: str) -> tuple[str, int]:
        return job_id, self.grants[job_id].token

    def reap(self) -> op.Tick:
        self.clock.advance(seconds=31)
        return op.Tick()


STEPS: dict[str, Callable[[Story], op.Operation[Any]]] = {
    "draw": lambda _: op.Draw(3),
    "enqueue": lambda _: op.Enqueue(
        (
            checks.job("a", ["x"]),
            checks.job("b", ["x", "y"]),
            checks.job("c", ["x"]),
            checks.job("d", ["z"], delay_ms=500),
            checks.job("e", ["v"], key="k"),
            checks.job("f", policy=ONCE),
            *[checks.job(f"g{number}", ["many", str(number)]) for number in range(20)],
        )
    ),
    "replace by key": lambda _: op.Enqueue((checks.job("e2", ["v"], key="k", on_conflict="replace", priority=5),)),
    "claim": lambda _: op.Exchange("w", limit=4),
    "renew": lambda story: op.Renew((story.lease("a"), ("b", 5)), 40_000),
    "report": lambda story: op.Post((op.Note(*story.lease("a"), progress=Progress(1, 2, "half")),)),
    "log": lambda story: op.Post((op.Note(*story.lease("a"), ("one", "two")),)),
    "settle and claim": lambda story: op.Exchange("w", (story.outcome("a", result=b"[1,2]"),), limit=2),
    "fail": lambda story: op.Exchange("w", (story.outcome("b", OutcomeKind.FAILED, error=ERROR, delay_ms=9),), limit=0),
    "wait for a started one": lambda _: op.Enqueue((checks.job("e3", ["u"], key="k", on_conflict="after"),)),
    "die": lambda story: op.Exchange("w", (story.outcome("f", OutcomeKind.FAILED, error=ERROR),)),
    "make due": lambda _: op.Redrive(("b", "d", "nobody"), waiting=True),
    "redrive": lambda _: op.Redrive(("f", "nobody")),
    "claim again": lambda _: op.Exchange("w", limit=100),
    "die again": lambda story: op.Exchange("w", (story.outcome("f", OutcomeKind.FAILED, error=ERROR),)),
    "discard": lambda _: op.Discard(("f",)),
    "pause": lambda _: op.Pause(RecordFilter(path=("x",))),
    "resume": lambda _: op.Resume(RecordFilter(path=("x",))),
    "pause jobs for a while": lambda _: op.Pause(RecordFilter(task="t"), 60_000),
    "resume jobs": lambda _: op.Resume(RecordFilter(task="t")),
    "close": lambda _: op.Close(("closed",)),
    "reopen": lambda _: op.Close(("closed",), reopen=True),
    "close behind a last job": lambda _: op.Enqueue((checks.job("last", ["y"]),), closing=op.Closing(("y",))),
    "cancel": lambda _: op.Cancel(("c", "g0", "nobody"), "not wanted"),
    "cancel path": lambda _: op.CancelPath(("many",), "not wanted"),
    "reap": Story.reap,
}


def apply(operation: op.Operation[Any], reply: Any, story: Story) -> None:
    if isinstance(operation, op.Exchange):
        story.grants.update({grant.spec.id: grant for grant in reply.grants})


def tell(store: RedisBackend, arm: Callable[[str, op.Operation[Any]], None]) -> list[Any]:
    """Tell the story by the synchronous shell."""
    story = Story(clock=store.session._clock)  # type: ignore[arg-type]
    replies = []
    for name, make in STEPS.items():
        operation = make(story)
        arm(name, operation)
        replies.append(store.call_sync(operation))
        apply(operation, replies[-1], story)
    store.close_sync()
    return replies


async def tell_async(store: RedisBackend, arm: Callable[[str, op.Operation[Any]], None]) -> list[Any]:
    """Tell the story by the asynchronous shell."""
    story = Story(clock=store.session._clock)  # type: ignore[arg-type]
    replies = []
    for name, make in STEPS.items():
        operation = make(story)
        arm(name, operation)
        replies.append(await store.call(operation))
        apply(operation, replies[-1], story)
    await store.close()
    return replies


def check_step(server: Server, proxy: Proxy, step: str, *, after: bool, times: int, by_loop: bool) -> None:
    cut, twin = new_namespace("cut"), new_namespace("twin")

    def arm(name: str, operation: op.Operation[Any]) -> None:
        if name == step:
            (proxy.cut_after if after else proxy.cut_before)(mark_of(codec.encode(operation)[0]), times=times)

    before = proxy.cuts
    store = checks.open_store(proxy.url, cut, clock=FakeClock())
    replies = run(tell_async(store, arm)) if by_loop else tell(store, arm)
    assert proxy.cuts - before == times
    uncut = tell(checks.open_store(server.url, twin, clock=FakeClock()), lambda *_: None)
    assert replies == uncut
    client = server.client()
    assert checks.dump(client, cut, without=NOT_COMPARED) == checks.dump(client, twin, without=NOT_COMPARED)


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_session, "PAUSE_S", (0.001,))


def by_turns(turn: int) -> list[Any]:
    """Return all steps; every other one is for the night."""
    return [
        pytest.param(step, marks=[pytest.mark.nightly] if (number + turn) % 2 else [])
        for number, step in enumerate(STEPS)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("step", by_turns(0))
def test_a_cut_before_the_request_arrives_only_delays_it(
    redis_server: Server, start_proxy: StartProxy, step: str
) -> None:
    load_scripts(redis_server)
    proxy = start_proxy(redis_server)
    for times in (1, 2, 3):
        check_step(redis_server, proxy, step, after=False, times=times, by_loop=times == 2)


@pytest.mark.slow
@pytest.mark.parametrize("step", by_turns(1))
def test_cut_after_a_request_does_not_apply_it_twice(redis_server: Server, start_proxy: StartProxy, step: str) -> None:
    load_scripts(redis_server)
    proxy = start_proxy(redis_server)
    for times in (1, 2, 3):
        check_step(redis_server, proxy, step, after=True, times=times, by_loop=times == 2)


@pytest.mark.nightly
@pytest.mark.parametrize("by_loop", [False, True])
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("step", STEPS)
def test_five_cuts_in_a_row_apply_each_operation_once(
    redis_server: Server, start_proxy: StartProxy, step: str, *, after: bool, by_loop: bool
) -> None:
    load_scripts(redis_server)
    proxy = start_proxy(redis_server)
    for times in range(1, 6):
        check_step(redis_server, proxy, step, after=after, times=times, by_loop=by_loop)


@pytest.mark.parametrize("by_loop", [False, True])
def test_unknown_outcome_is_raised_and_its_operation_can_be_repeated(
    redis_server: Server, start_proxy: StartProxy, namespace: str, monkeypatch: pytest.MonkeyPatch, *, by_loop: bool
) -> None:
    monkeypatch.setattr(redis_session, "RETRY_S", 0.05)
    load_scripts(redis_server)
    proxy = start_proxy(redis_server)
    store = checks.open_store(proxy.url, namespace, clock=FakeClock())

    async def tell() -> None:
        operations: list[op.Operation[Any]] = [
            op.Enqueue((checks.job("a", ["x"]), checks.job("b", ["x"]))),
            op.Draw(5),
            op.Exchange("w", limit=2),
            op.Cancel(("b",)),
        ]
        for operation in operations:
            proxy.cut_after(mark_of(codec.encode(operation)[0]), times=100)
            with pytest.raises(OutcomeUnknownError):
                await store.call(operation) if by_loop else store.call_sync(operation)
            proxy.disarm()
            reply = await store.call(operation) if by_loop else store.call_sync(operation)
            if isinstance(operation, op.Enqueue):
                assert [job.created for job in reply.jobs] == [True, True]
            elif isinstance(operation, op.Draw):
                assert reply.first == 1
            elif isinstance(operation, op.Exchange):
                assert [grant.spec.id for grant in reply.grants] == ["a"]
            else:
                assert reply.verdicts[0][0] is op.Verdict.DONE
        assert (await store.call(op.Draw(1))).first == 6
        # By its id and content a submission is known even to a process that was never told of it.
        again = await store.call(op.Enqueue((checks.job("a", ["x"]),)))
        assert not again.jobs[0].created
        with pytest.raises(DuplicateJobError):
            await store.call(op.Enqueue((checks.job("a", ["y"]),)))
        assert (await store.call(op.CountJobs())).enqueued == 2
        await store.close()

    run(tell())


def test_permanently_cut_server_is_unavailable_and_unchanged(
    redis_server: Server, start_proxy: StartProxy, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_session, "RETRY_S", 0.05)
    proxy = start_proxy(redis_server)
    store = checks.open_store(proxy.url, namespace)
    store.call_sync(op.Draw(1))
    proxy.refuse()
    proxy.rst()
    with pytest.raises(BackendUnavailableError):
        store.call_sync(op.Draw(1))
    proxy.heal()
    assert store.call_sync(op.Draw(1)).first == 2
    store.close_sync()
