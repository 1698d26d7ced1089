"""Partial results: fields merged over fields."""

from __future__ import annotations

import sys
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from queuehint import InvalidJobTypeError, JobContext, JsonCodec, PayloadError
from queuehint.handlers import context as context_module
from queuehint.handlers.conversion.plain_json import decode_json
from queuehint.handlers.partial_result import PartialResult
from queuehint.operations import Note
from queuehint.testing.driver import job
from queuehint.values.outcome import RESULT_BYTES_MAX, Grant
from queuehint.worker.outbox import OutboxBuffer

CODEC = JsonCodec()
TOKEN = 7


def partial_result(**fields: Any) -> PartialResult:
    made = PartialResult("a", TOKEN)
    if fields:
        made.update(fields)
    return made


def stored(result: bytes | None, token: int = TOKEN) -> Any:
    return SimpleNamespace(result=result, token=token)


def value(it: PartialResult, returned: bytes | None = None) -> Any:
    return decode_json(it.dump(CODEC, returned))["result"]


def test_later_fields_go_over_earlier_ones() -> None:
    it = partial_result(a=1, b={"deep": 1})
    it.update({"b": {"other": 2}, "c": None})
    assert value(it) == {"a": 1, "b": {"other": 2}, "c": None}


def test_partial_result_resumes_from_an_earlier_attempt() -> None:
    it = partial_result(a=2)
    it.load(stored(b'{"result":{"a":1,"z":9}}'), CODEC)
    assert it.is_loaded
    assert value(it) == {"a": 2, "z": 9}


def test_a_returned_dict_goes_over_all_others() -> None:
    it = partial_result(a=2, b=2)
    it.load(stored(b'{"result":{"a":1,"z":9}}'), CODEC)
    assert value(it, b'{"result":{"b":3}}') == {"a": 2, "b": 3, "z": 9}


@pytest.mark.parametrize("result", [None, b'{"result":5}', b'{"result":null}', b"{}", b"\x80", b"[]"])
def test_stored_non_dict_is_replaced(result: bytes | None) -> None:
    it = partial_result(a=1)
    it.load(stored(result), CODEC)
    assert value(it) == {"a": 1}


def test_partial_result_of_another_token_is_ignored() -> None:
    it = partial_result(a=1)
    it.load(stored(b'{"result":{"z":9}}', token=TOKEN + 1), CODEC)
    assert value(it) == {"a": 1}
    it.load(None, CODEC)
    assert value(it) == {"a": 1}


def test_partial_result_is_isolated_from_later_mutations() -> None:
    inner = [1]
    fields = {"a": inner}
    it = partial_result(**fields)
    inner.append(2)
    fields["b"] = []
    assert value(it) == {"a": [1]}


def test_nothing_said_is_false() -> None:
    assert not partial_result()
    assert partial_result(a=None)
    empty = partial_result()
    empty.update({})
    assert not empty


@pytest.mark.parametrize("fields", [None, [("a", 1)], "a", 5, {"a"}])
def test_fields_that_are_no_dict_are_refused(fields: Any) -> None:
    with pytest.raises(InvalidJobTypeError, match="fields must be a dict"):
        partial_result().update(fields)


@pytest.mark.parametrize(
    "fields, words",
    [
        ({"a": {1}}, r"^\$\.a: set is not JSON"),
        ({1: 2}, "JSON keys are str"),
        ({"a": float("nan")}, "not JSON"),
        ({"a": "\ud800"}, "not encodable"),
        ({"a": "x" * RESULT_BYTES_MAX}, "bytes"),
    ],
    ids=["set", "key", "nan", "surrogate", "long"],
)
def test_fields_that_are_not_json_are_refused_whole(fields: Any, words: str) -> None:
    it = partial_result(b=1)
    with pytest.raises(PayloadError, match=words):
        it.update({"c": 2, **fields})
    assert value(it) == {"b": 1}


def test_all_fields_together_are_a_mebibyte_at_most() -> None:
    it = partial_result(a="x" * (RESULT_BYTES_MAX - 100))
    with pytest.raises(PayloadError, match="1048576"):
        it.update({"b": "x" * 100})
    it.update({"a": 1})
    it.update({"b": "x" * 100})
    assert value(it).keys() == {"a", "b"}


def test_merged_partial_result_is_limited_to_one_mebibyte() -> None:
    it = partial_result(a="x" * 600_000)
    it.load(stored(b'{"result":{"b":"' + b"x" * 600_000 + b'"}}'), CODEC)
    with pytest.raises(PayloadError, match="1048576"):
        it.dump(CODEC)


def test_threads_lose_no_field() -> None:
    it = partial_result()

    def say(who: int) -> None:
        for n in range(100):
            it.update({f"{who}.{n}": n})

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        threads = [threading.Thread(target=say, args=(who,)) for who in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert len(value(it)) == 800


def test_threads_that_are_first_at_once_share_one(monkeypatch: pytest.MonkeyPatch) -> None:
    barrier, made = threading.Barrier(2), list[PartialResult]()

    def make(job_id: str, token: int) -> PartialResult:
        time.sleep(0.02)
        made.append(PartialResult(job_id, token))
        return made[-1]

    monkeypatch.setattr(context_module, "PartialResult", make)
    host: Any = SimpleNamespace(store=lambda _: None)
    context = JobContext(Grant(job("a"), TOKEN, attempt=1, losses=0, lease_until_ms=0), host)

    def say(name: str) -> None:
        barrier.wait()
        context.update({name: 1})

    threads = [threading.Thread(target=say, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert context.partial_result is made[0]
    assert value(made[0]) == {"a": 1, "b": 1}


def test_repeated_partial_result_is_sent_once_after_the_lines() -> None:
    buffer, it = OutboxBuffer(), partial_result(a=1)
    assert not buffer
    buffer.store(it)
    buffer.log("a", TOKEN, "line")
    buffer.store(it)
    assert buffer
    assert buffer.take() == [Note("a", TOKEN, ("line",)), it]
    assert not buffer
