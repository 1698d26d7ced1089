"""Which arguments are equal, of codecs that write the same ones as other bytes each time."""

from __future__ import annotations

import hashlib
import hmac
import os
from itertools import pairwise
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuehint import (
    BlobCodec,
    DirectoryStore,
    DuplicateJobError,
    EncryptedCodec,
    IdentifyingCodec,
    InvalidJobError,
    JobContext,
    JsonCodec,
    Scheduler,
)
from queuehint.schema.checks import IDENTITY_MAX
from tests.each import for_each

OLD, NEW = b"o" * 32, b"n" * 32
MAX = 1 << 20
VALUES = {"doc": "secret", "n": 5}


# --- digests ---------------------------------------------------------------------------------------------------------


def digests(codec: IdentifyingCodec, values: dict[str, Any] = VALUES) -> set[bytes]:
    _, found = codec.dumps_identified(values, {}, bytes_max=MAX)
    assert len(found) <= IDENTITY_MAX
    return set(found)


def plain(values: dict[str, Any]) -> bytes:
    return JsonCodec().dumps(values, {}, bytes_max=MAX)


@given(st.dictionaries(st.text(), st.integers()), st.dictionaries(st.text(), st.integers()))
def test_equal_values_share_digests_and_others_none(values: dict[str, Any], others: dict[str, Any]) -> None:
    codec = EncryptedCodec({"a": OLD})
    payload, found = codec.dumps_identified(values, {}, bytes_max=MAX)
    assert codec.loads(payload, {}) == values
    assert (digests(codec, others) == set(found)) is (plain(others) == plain(values))
    assert digests(EncryptedCodec({"a": NEW}), values).isdisjoint(found)


def test_digest_needs_more_than_the_values() -> None:
    known = {hashlib.sha256(plain(VALUES)).digest(), hmac.digest(OLD, plain(VALUES), "sha256")}
    assert digests(EncryptedCodec({"a": OLD})).isdisjoint(known)


@pytest.mark.parametrize("older", [0, 3, 9])
def test_each_step_of_a_rotation_shares_digests_with_the_next(older: int) -> None:
    kept = {f"k{number}": bytes([number]) * 32 for number in range(older)}
    steps = [
        EncryptedCodec({**kept, "old": OLD}, encrypts="old"),
        EncryptedCodec({**kept, "old": OLD, "new": NEW}, encrypts="old"),
        EncryptedCodec({**kept, "old": OLD, "new": NEW}, encrypts="new"),
        EncryptedCodec({**kept, "new": NEW}, encrypts="new"),
    ]
    for first, second in pairwise(steps):
        assert digests(first) & digests(second)
    assert digests(steps[0]) & digests(steps[2])
    assert digests(steps[1]) & digests(steps[3])


def test_digests_follow_the_inner_codec(tmp_path: Path) -> None:
    inner = EncryptedCodec({"a": OLD, "b": NEW}, encrypts="a")
    for codec in (EncryptedCodec({"c": b"c" * 32}, inner=inner), BlobCodec(DirectoryStore(tmp_path), inner=inner)):
        assert digests(codec) == digests(codec)
        assert digests(codec)
        assert digests(codec).isdisjoint(digests(codec, {"doc": "other"}))
    assert digests(BlobCodec(DirectoryStore(tmp_path))) == set()


class Odd(JsonCodec):
    """A codec whose digests are given."""

    def __init__(self, answer: object) -> None:
        super().__init__()
        self.answer = answer

    def dumps_identified(self, *_: object, **__: object) -> Any:
        return self.answer


@for_each(
    "case",
    [
        (b"{}", "must return bytes and a list of bytes"),
        ((b"{}", b"digest"), "must return bytes and a list of bytes"),
        ((b"{}", ["digest"]), "must return bytes and a list of bytes"),
        ((b"{}", [b"1", b"2", b"3", b"4", b"5"]), "returned 5 digests, limit 4"),
    ],
)
def test_wrong_digests_of_a_codec_are_refused(case: tuple[object, str]) -> None:
    answer, message = case
    sched = Scheduler(codec=Odd(answer))

    @sched.job
    async def work() -> None: ...

    with pytest.raises(InvalidJobError, match=rf"dumps_identified\(\) of codec Odd {message}"):
        work.spec()


class Marked(EncryptedCodec):
    """A codec that has replaced how it is written."""

    def dumps(self, *args: Any, **options: Any) -> bytes:
        return b"!" + super().dumps(*args, **options)

    def loads(self, payload: bytes, annotations: Any) -> dict[str, Any]:
        return super().loads(payload.removeprefix(b"!"), annotations)


class Salted(JsonCodec):
    """JSON behind a random salt."""

    def dumps(self, *args: Any, **options: Any) -> bytes:
        return os.urandom(4) + super().dumps(*args, **options)


def test_codec_that_replaces_dumps_inherits_no_claims() -> None:
    sched = Scheduler(codec=Marked({"a": OLD}))

    @sched.job
    async def work(text: str) -> None: ...

    spec = work.spec("text")
    assert (spec.arguments[:1], spec.identity) == (b"!", ())
    assert sched.codec.loads(spec.arguments, {}) == {"text": "text"}
    assert len({work.handler.dump_result(Salted(), None) for _ in range(2)}) == 2
    around = EncryptedCodec({"b": NEW}, inner=Marked({"a": OLD}))
    assert digests(around).isdisjoint(digests(around))


def test_result_none_is_encrypted_each_time() -> None:
    sched = Scheduler(codec=EncryptedCodec({"a": OLD}))

    @sched.job
    async def nothing() -> None: ...

    assert len({nothing.handler.dump_result(sched.codec, None) for _ in range(3)}) == 3
    assert not nothing.handler.writes_none(sched.codec)
    json = JsonCodec()
    assert nothing.handler.dump_result(json, None) == b'{"result":null}'
    assert nothing.handler.writes_none(json)


# --- jobs ------------------------------------------------------------------------------------------------------------


def encrypting() -> Scheduler:
    return Scheduler("memory://", codec=EncryptedCodec({"a": OLD}))


async def test_encrypted_call_again_is_the_same_job() -> None:
    async with encrypting() as sched:

        @sched.job(queue_hint=["{doc}"])
        async def save(doc: str, text: str) -> None: ...

        one = save.using(id="one")
        assert (await one.enqueue("doc", "text")).created
        assert not (await one.enqueue("doc", "text")).created
        assert not (await one.enqueue_many([("doc", "text")]))[0].created
        assert not (await sched.submit([one.spec("doc", "text")]))[0].created
        with pytest.raises(DuplicateJobError) as caught:
            await one.enqueue("doc", "other")
        assert caught.value.fields == ("arguments",)


async def test_encrypted_last_job_again_is_the_same_job() -> None:
    async with encrypting() as sched:

        @sched.job(queue_hint=["{doc}"])
        async def erase(doc: str) -> None: ...

        for is_new in (True, False):
            last = attrs.evolve(erase.spec("doc"), id="last")
            assert (await sched.close_path(["doc"], last=last)).created is is_new


async def test_digests_in_a_store_are_of_one_job_each() -> None:
    async with encrypting() as sched:

        @sched.job
        async def save(text: str) -> None: ...

        handles = await save.enqueue_many([("text",), ("text",)])
        first, second = [(await handle.record()).spec.identity for handle in handles]
        assert {len(digest) for digest in (*first, *second)} == {32}
        assert set(first).isdisjoint(second)


async def test_retried_parent_finds_its_encrypted_children() -> None:
    async with encrypting() as sched:
        attempts: list[int] = []

        @sched.job
        async def child(text: str) -> str:
            return text

        @sched.job(max_attempts=2, backoff=[0])
        async def parent(ctx: JobContext) -> int:
            attempts.append(ctx.attempt)
            await ctx.enqueue(child, "one")
            await ctx.enqueue_many(child, [("two",), ("three",)])
            if len(attempts) == 1:
                raise OSError
            return ctx.attempt

        handle = await parent.enqueue()
        await sched.drain(run=True)
        assert await handle.result() == 2
        assert (await sched.stats()).enqueued == 4


async def test_encrypted_flow_again_is_the_same_flow() -> None:
    async with encrypting() as sched:

        @sched.job
        async def load(text: str) -> str:
            return text

        async def submit(last: str) -> None:
            async with sched.flow("import") as flow:
                first = flow.add(load.using(name="first"), "text")
                flow.add(load.using(name="second"), first.out)
                flow.add(load.using(name="third"), last)

        await submit("end")
        await submit("end")
        assert (await sched.stats()).unfinished == 3
        with pytest.raises(DuplicateJobError):
            await submit("other")


async def test_encrypted_schedule_is_stored_once() -> None:
    async with encrypting() as sched:

        @sched.job
        async def report(text: str) -> None: ...

        stored = [await sched.schedule("nightly", report, args=[text], every=60) for text in ("a", "a", "b", "b")]
        assert [schedule.version for schedule in stored] == [1, 1, 2, 2]
