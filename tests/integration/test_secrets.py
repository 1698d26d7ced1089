"""
Secrets never leak: a canary in each part of a URL, in arguments, in results and in texts given to `redact` appears in
no message, log line, exception chain or `repr` of any failure; on all stores.
"""

from __future__ import annotations

import asyncio
import json
import logging
import traceback
from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import Any
from uuid import UUID

import attrs
import pytest

from queuehint import (
    Children,
    Fail,
    Flow,
    JobContext,
    JobSpec,
    JsonCodec,
    Outcome,
    OutcomeKind,
    PayloadError,
    QueueHintError,
    ReasonKind,
    Scheduler,
    template,
)
from queuehint import operations as op
from queuehint.values.record import JobState
from tests.schedulers import until
from tests.servers import shared_server
from tests.urls import ODD, WITH_SECRETS
from tests.urls import SECRET as PASSWORD

SECRET: Any = "C4NARYpw"


class Unwritable:
    """Is no JSON, and says what is in it wherever it is asked."""

    def __repr__(self) -> str:
        return str(SECRET)

    __str__ = __repr__


@attrs.frozen
class Card:
    number: int
    owner: str


class Heard:
    """All texts shown or logged."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.DEBUG)
        self.caplog = caplog
        self.secret: str = SECRET
        self.texts: list[str] = []

    def note(self, *values: object) -> None:
        """Take down what values say of themselves; errors with all that they came of."""
        for value in values:
            self.texts += [repr(value), str(value), f"{[value]}"]
            if isinstance(value, BaseException):
                # Without the lines of the source, which has canaries in it too.
                lines = traceback.TracebackException.from_exception(value, lookup_lines=False)
                self.texts += list(lines.format())

    def check(self) -> None:
        for record in self.caplog.records:
            self.texts.append(str(vars(record)))
        said = [text for text in [*self.texts, self.caplog.text] if self.secret in text]
        assert not said


DO: Any = op.Enqueue
BYTES: Any = bytearray(SECRET.encode())
RESULT: Any = ({"result": SECRET},)


async def refused(heard: Heard, call: Callable[[], Any], kind: type[Exception] = QueueHintError) -> Exception:
    with pytest.raises(kind) as caught:
        answer = call()
        if asyncio.iscoroutine(answer):
            await answer
    heard.note(caught.value)
    return caught.value


@pytest.fixture
def heard(caplog: pytest.LogCaptureFixture) -> Heard:
    return Heard(caplog)


@pytest.mark.slow
async def test_arguments_and_results_are_told_nobody_where_they_are_refused(url: str, heard: Heard) -> None:
    deep: Any = [SECRET]
    for _ in range(70):
        deep = [deep]

    sched = Scheduler(url)

    @sched.job(queue_hint=["docs"])
    async def work(ctx: JobContext, data: Any, card: Card | None = None) -> None: ...

    placed = sched.job(name="placed", queue_hint=["{data}"])(lambda data: None)
    bad = [
        Unwritable(),
        {SECRET},
        [Unwritable()],
        {5: SECRET},
        {SECRET.encode(): 1},
        deep,
        SECRET + "\ud800",
        1e999,
    ]
    for value in bad:
        await refused(heard, partial(work.enqueue, value), PayloadError)
        await refused(heard, partial(sched.xcom.push, "key", [value]), PayloadError)
    outcome = Outcome(job_id="x", token=1, kind=OutcomeKind.FINISHED, result=SECRET)
    loose: Any = sched
    for call in [
        lambda: work.enqueue(1, SECRET),
        lambda: work.enqueue(1, card=SECRET),
        lambda: work.enqueue(SECRET * 1_000_000),
        lambda: placed.enqueue({"a": SECRET}),
        lambda: work.enqueue_many(SECRET),
        lambda: work.enqueue_many([SECRET]),
        lambda: work.enqueue_many([({SECRET},)]),
        lambda: loose.submit([JobSpec(id="x", task="t", arguments=SECRET)]),
        lambda: loose.submit([JobSpec(id="x", task="t", arguments=BYTES)]),
        lambda: loose.submit([JobSpec(id="x", task="", arguments=SECRET.encode())]),
        lambda: loose.submit(JobSpec(id="x", task="t", arguments=SECRET.encode())),
        lambda: loose.submit([{"arguments": SECRET}]),
        lambda: loose.submit([JobSpec(id="x", task="t", arguments=SECRET.encode(), templates=True)]),
        lambda: loose.schedule("s", work, every=60, args=SECRET),
        lambda: loose.schedule("s", work, every=60, kwargs=SECRET),
        lambda: loose.schedule("s", work, every=60, args=[Unwritable()]),
        lambda: loose.backend.call(DO((JobSpec(id="x", task="t", arguments=SECRET),))),
        lambda: loose.backend.call(DO(JobSpec(id="x", task="t", arguments=SECRET.encode()))),
        lambda: loose.backend.call(DO(({"arguments": SECRET},))),
        lambda: loose.backend.call(op.Exchange(worker="w", settle=RESULT)),
        lambda: loose.backend.call(op.Exchange(worker="w", settle=(outcome,))),
        lambda: loose.backend.call(op.Push("default", "key", SECRET, 1000)),
        lambda: loose.backend.call(op.Post((op.Note("x", 1, result=SECRET),))),
    ]:  # fmt: skip
        await refused(heard, call)
    await refused(heard, lambda: work.enqueue(1, 2, SECRET, surplus=SECRET), TypeError)
    await work.using(id="a").enqueue(1)
    await refused(heard, lambda: work.using(id="a").enqueue(SECRET))
    heard.note(sched, sched.backend, work, sched.xcom, sched.records, sched.schedules, sched.dead)
    await sched.close()
    heard.check()


async def test_reprs_of_store_replies_contain_no_data(url: str, heard: Heard) -> None:
    sched = Scheduler(url)
    work = sched.job(name="work")(lambda data: data)
    handle = await work.using(id="a").enqueue(SECRET)
    await sched.xcom.push("key", SECRET)
    await sched.schedule("s", work, every=60, args=[SECRET])
    flow = Flow(sched, "flow")
    node = flow.add(work, SECRET)
    heard.note(flow, node, repr(node.out), flow.add(work, node.out))
    await flow.submit()
    heard.note(handle, await handle.record(), await sched.schedules.get("s"), await sched.records.list())
    heard.note(work.spec(SECRET), await sched.stats(), await sched.why("a"), await sched.tree())
    exchanged = await sched.backend.call(op.Exchange(worker="w", limit=5))
    heard.note(exchanged)
    token = exchanged.grants[0].token
    for operation in (
        op.Get(("a",)),
        op.Pull("default", "key"),
        op.Post((op.Note("a", token, result=SECRET.encode()),)),
        op.Fetch("a", 1, ()),
    ):
        heard.note(operation, await sched.backend.call(operation))
    await sched.close()
    heard.check()


@pytest.mark.slow
async def test_worker_errors_contain_no_data(url: str, heard: Heard) -> None:
    """A handler's errors are redacted; what goes wrong around it says nothing of arguments and results by itself."""

    async def over(handle: Any) -> bool:
        state: JobState = await handle.state()
        return state.is_over

    async def given_back(handle: Any) -> bool:
        return bool((await handle.why()).kind is ReasonKind.UNKNOWN_TASK)

    sched = Scheduler(url, redact=lambda text: text.replace(SECRET, "***"))
    handles = []

    @sched.job(max_attempts=1)
    async def changed(card: Card) -> None: ...

    @sched.job(max_attempts=1)
    async def raising(data: Any) -> None:
        try:
            raise LookupError(data)
        except LookupError as error:
            raise ValueError(f"cannot take {data}") from error

    @sched.job(max_attempts=1)
    async def returning(data: Any) -> Any:
        return {"a": Unwritable() if data else {data}}

    @sched.job(max_attempts=1)
    async def failing(ctx: JobContext, data: Any) -> Any:
        with pytest.raises(PayloadError) as caught:
            ctx.update({"a": {data}})
        heard.note(caught.value, ctx)
        ctx.update({"a": data})
        ctx.log(data)
        ctx.progress(1, 2, data)
        answer = Children("x", result=data)
        heard.note(answer)
        return Fail(data)

    values = (SECRET, {"number": SECRET, "owner": SECRET}, [SECRET], {"number": [SECRET]}, {SECRET: 1})
    handles += await sched.submit(
        [
            JobSpec(
                id=f"c{at}",
                task="changed",
                arguments=json.dumps({"card": value}).encode(),
                policy=changed.spec(Card(1, "a")).policy,
            )
            for at, value in enumerate(values)
        ]
    )
    later = handles.pop()  # its field is one of a later release
    handles += [await job.enqueue(SECRET) for job in (raising, returning, failing)]
    first = await sched.job(name="first")(lambda data: {"a": data}).enqueue(SECRET)
    filled = sched.job(name="filled", max_attempts=1)(lambda data: None)
    handles.append(await filled.using(after=[first]).enqueue(template("{{" + first.id + ".b.c}}")))

    def broken(*_: object) -> None:
        raise RuntimeError(SECRET)

    sched.after_job(broken)
    async with sched.worker(2):
        for handle in handles:
            await until(partial(over, handle))
        await until(partial(given_back, later))
    heard.note(await later.record(), await later.why())
    for handle in handles:
        record = await handle.record()
        assert record.state is JobState.FAILED
        heard.note(handle, record.errors, record.cause, await refused(heard, handle.result))
    heard.note(await first.record(), first)
    await refused(heard, lambda: changed.handler.load_result(sched.codec, SECRET.encode()), PayloadError)
    await sched.close()
    heard.check()


@pytest.mark.parametrize(
    "kind", [Card, list[Card], dict[str, int], datetime, UUID, set[int], tuple[int, ...], int | Card]
)
@pytest.mark.parametrize(
    "value", [SECRET, [SECRET], {"number": SECRET, "owner": 5}, [{"number": [SECRET]}], {"a": SECRET}]
)
def test_annotation_mismatch_does_not_quote_the_value(kind: Any, value: Any, heard: Heard) -> None:
    for call in (
        lambda: JsonCodec().loads(json.dumps({"a": value}).encode(), {"a": kind}),
        lambda: JsonCodec().dumps({"a": value}, {"a": kind}, bytes_max=1000),
    ):
        try:
            call()
        except PayloadError as error:
            heard.note(error)
    heard.note(JsonCodec())
    heard.check()


@pytest.mark.parametrize("address", [*ODD, *WITH_SECRETS])
def test_no_part_of_a_url_is_told_anybody(address: str, heard: Heard) -> None:
    heard.secret = PASSWORD
    try:
        sched = Scheduler(address)
    except QueueHintError as error:
        heard.note(error)
    else:
        heard.note(sched, sched.handle("a"), sched.job(name="t")(lambda: None), sched.xcom, sched.get_flow("f"))
        try:
            heard.note(sched.backend, sched.make_worker(), sched.backend.identity)
        except QueueHintError as error:
            heard.note(error)
    heard.check()


@pytest.mark.redis
@pytest.mark.parametrize(
    "credentials, options",
    [(f"ann:{PASSWORD}@", ""), (f":{PASSWORD}@", ""), ("", f"?password={PASSWORD}&username=ann")],
)
async def test_a_store_that_refuses_a_password_does_not_say_it(credentials: str, options: str, heard: Heard) -> None:
    heard.secret = PASSWORD
    sched = Scheduler(f"redis://{credentials}{shared_server().url.removeprefix('redis://')}{options}")
    work = sched.job(name="work")(lambda: None)
    for call in (sched.stats, work.enqueue, sched.handle("a").record):
        await refused(heard, call)
    heard.note(sched, sched.backend)
    await sched.close()
    heard.check()
