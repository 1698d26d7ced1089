"""Payloads never leak: a canary in arguments, results and shared values is in no error message and no log line."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any

import pytest

from queuehint import DuplicateJobError, Flow, JobContext, QueueHintError, Scheduler
from tests.schedulers import scheduler, until

CANARY = "C4NARY"
NOT_JSON: list[Any] = [{CANARY}, CANARY.encode(), {"a": [CANARY, {CANARY}]}, (CANARY, object())]


def work_of(sched: Scheduler) -> Any:
    @sched.job(name="work", queue_hint=["doc"])
    def work(card: Any = None, *, more: Any = None) -> None: ...

    return work


@pytest.mark.parametrize("value", NOT_JSON, ids=lambda value: type(value).__name__)
def test_arguments_that_are_refused_are_in_no_message(value: Any) -> None:
    sched, _ = scheduler()
    work = work_of(sched)
    calls: list[Callable[[], Any]] = [
        lambda: work.enqueue_sync(value),
        lambda: work.enqueue_sync(CANARY, CANARY, CANARY),
        lambda: work.enqueue_sync(CANARY, what=CANARY),
        lambda: work.enqueue_many_sync([(CANARY,), (value,)]),
        lambda: work.enqueue_many_sync([[CANARY]]),
        lambda: sched.every(5, args=[value])(work),
        lambda: sched.every(5, args=CANARY)(work),
        lambda: sched.every(5, kwargs=[CANARY])(work),  # type: ignore[arg-type]
        lambda: sched.run_sync(work, card=value),
        lambda: sched.run_sync(work, what=CANARY),
        lambda: Flow(sched, "f").add(work, value),
        lambda: Flow(sched, "f").add(work, CANARY, what=CANARY),
        lambda: sched.xcom.push_sync("key", value),
        lambda: work.using(queue_hint=["a", 5]).enqueue_sync(CANARY),
    ]
    for number, call in enumerate(calls):
        with pytest.raises(QueueHintError) as caught:
            call()
        assert CANARY not in str(caught.value), f"call {number}"


def test_duplicate_error_names_fields_without_values() -> None:
    sched, _ = scheduler()
    work = work_of(sched)
    work.using(id="x").enqueue_sync(CANARY)
    with pytest.raises(DuplicateJobError) as caught:
        work.using(id="x").enqueue_sync("another")
    assert CANARY not in f"{caught.value} {caught.value!r}"
    with pytest.raises(DuplicateJobError) as caught:
        work.using(id="x").enqueue_sync(f"another {CANARY}")
    assert CANARY not in f"{caught.value} {caught.value!r}"


def test_reprs_contain_no_arguments() -> None:
    sched, _ = scheduler()
    work = work_of(sched)
    handle = work.enqueue_sync(CANARY)
    flow = Flow(sched, "f")
    node = flow.add(work, CANARY)
    for held in (sched, work, handle, node, flow, flow.flow("group"), handle.why_sync(), sched.stats_sync()):
        assert CANARY not in f"{held!r} {held}"


async def test_worker_logs_contain_no_arguments(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)

    async def over(handle: Any) -> bool:
        state = await handle.state()
        return bool(state.is_over or state == "QUEUED")

    sched, _ = scheduler(log_errors=False)

    @sched.job(name="breaks", max_attempts=2)
    async def breaks(ctx: JobContext, how: str, card: Any) -> Any:
        ctx.log(card)
        ctx.update({"card": card})
        ctx.progress(1, 2, card)
        if how == "raise":
            raise ValueError(card)
        return {"a": {card}} if how == "result" else card

    handles = [await breaks.enqueue(how, CANARY) for how in ("raise", "result", "well")]
    unread = await breaks.enqueue("well", CANARY)
    breaks.handler.annotations["card"] = int
    sched.before_job(lambda ctx: None)
    async with sched.worker():
        for handle in (*handles, unread):
            await until(functools.partial(over, handle))
    assert CANARY not in caplog.text + "".join(str(vars(record)) for record in caplog.records)
