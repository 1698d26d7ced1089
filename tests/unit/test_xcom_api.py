"""The API of the small shared store: its operations on the backend, and input refused before."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from queuehint import InvalidJobError, InvalidJobTypeError, PayloadError
from queuehint import operations as op
from queuehint.handlers.references import Reference
from queuehint.scheduler.xcom import XCom
from queuehint.schema.checks import TEN_YEARS_MS
from queuehint.testing import ScriptedBackend
from tests.each import for_each


class Store(ScriptedBackend):
    """Keeps values for ever."""

    def __init__(self) -> None:
        super().__init__(self.answer)
        self.values: dict[tuple[str, str], bytes] = {}
        self.pages: list[op.SharedKeys] = []

    @property
    def backend(self) -> Any:
        return self

    def answer(self, operation: Any) -> Any:
        if isinstance(operation, op.ListShared):
            return self.pages.pop(0)
        place = (operation.namespace, operation.key)
        if isinstance(operation, op.Pull):
            return op.Pulled(self.values.get(place))
        replaced = place in self.values
        self.values[place] = operation.value
        return op.Pushed(replaced, more=False)


def xcom_of(store: Any) -> XCom:
    return XCom(store)


@pytest.mark.parametrize("value", [None, 0, "", [], {"a": [1, None, "é"]}, 2**64, 1e308])
async def test_pulled_value_equals_the_pushed_value(value: Any) -> None:
    xcom = xcom_of(Store())

    assert await xcom.push("k", value) is False
    assert await xcom.push("k", value) is True
    assert await xcom.pull("k", default="other") == value
    assert xcom.push_sync("k2", value) is False
    assert xcom.pull_sync("k2", default="other") == value


def test_without_a_value_the_default_is_returned() -> None:
    xcom = xcom_of(Store())
    assert asyncio.run(xcom.pull("k")) is None
    assert asyncio.run(xcom.pull("k", default=5)) == 5
    xcom.push_sync("k", 1, namespace="other")
    assert xcom.pull_sync("k", default=5) == 5
    assert xcom.pull_sync("k", namespace="other", default=5) == 1


def test_push_sends_json_with_a_time_to_live() -> None:
    store = Store()
    xcom_of(store).push_sync("k", {"a": "é"})
    xcom_of(store).push_sync("k", 1, namespace="n", ttl=timedelta(milliseconds=1))
    xcom_of(store).push_sync("k", 1, ttl=TEN_YEARS_MS // 1000)
    xcom_of(store).push_sync("k", 1, ttl=None)
    xcom_of(store).pull_sync("k")
    assert store.asked == [
        op.Push("default", "k", '{"a":"é"}'.encode(), 86_400_000),
        op.Push("n", "k", b"1", 1),
        op.Push("default", "k", b"1", TEN_YEARS_MS),
        op.Push("default", "k", b"1", TEN_YEARS_MS),
        op.Pull("default", "k"),
    ]


async def test_a_value_is_deleted() -> None:
    store = Store()
    xcom_of(store).push_sync("k", 1)
    xcom_of(store).delete_sync("k", namespace="n")
    await xcom_of(store).delete("k")
    assert store.asked[1:] == [op.Push("n", "k", b"", 0), op.Push("default", "k", b"", 0)]


async def test_keys_are_listed_until_the_page_or_list_ends() -> None:
    store = Store()
    store.pages = [
        op.SharedKeys(("a",), "b"),
        op.SharedKeys((), "c"),
        op.SharedKeys(("d",), "d"),
        op.SharedKeys(("e",), None),
    ]
    assert await xcom_of(store).list(limit=2) == ("a", "d")
    assert xcom_of(store).list_sync("p", namespace="n", after="d") == ("e",)
    assert store.asked == [
        op.ListShared("default", "", None, 2),
        op.ListShared("default", "", "b", 1),
        op.ListShared("default", "", "c", 1),
        op.ListShared("n", "p", "d", 100),
    ]


@pytest.mark.parametrize(
    "wrong, text",
    [
        ({"prefix": "x" * 257}, "prefix "),
        ({"prefix": None}, "prefix must be str"),
        ({"prefix": "\n"}, "prefix "),
        ({"namespace": ""}, "namespace "),
        ({"after": ""}, "after "),
        ({"after": 5}, "after must be str"),
        ({"limit": 0}, "limit must be from 1 to 1000, got 0"),
        ({"limit": 1_001}, "limit must be from 1 to 1000, got 1001"),
        ({"limit": True}, "limit must be int"),
    ],
)
def test_malformed_key_query_is_refused_before_any_request(wrong: dict[str, Any], text: str) -> None:
    store = Store()
    with pytest.raises(InvalidJobError, match=f"^{text}"):
        xcom_of(store).list_sync(**wrong)
    with pytest.raises(InvalidJobError, match=f"^{text}"):
        asyncio.run(xcom_of(store).list(**wrong))
    assert store.asked == []


@for_each("name", ["", "x" * 257, "a\n", "\x00", "\ud800", 5, None, b"k"])
@for_each("parameter", ["key", "namespace"])
def test_a_name_that_is_none_is_refused(parameter: str, name: Any) -> None:
    store = Store()
    names = {"key": "k", "namespace": "n", parameter: name}
    for call in (
        lambda: xcom_of(store).push_sync(names["key"], 1, namespace=names["namespace"]),
        lambda: xcom_of(store).pull_sync(names["key"], namespace=names["namespace"]),
        lambda: xcom_of(store).delete_sync(names["key"], namespace=names["namespace"]),
        lambda: asyncio.run(xcom_of(store).delete(names["key"], namespace=names["namespace"])),
        lambda: asyncio.run(xcom_of(store).push(names["key"], 1, namespace=names["namespace"])),
        lambda: asyncio.run(xcom_of(store).pull(names["key"], namespace=names["namespace"])),
    ):
        with pytest.raises(InvalidJobError, match=f"^{parameter} "):
            call()
    assert store.asked == []


@pytest.mark.parametrize(
    "ttl, error",
    [
        *[(bad, InvalidJobError) for bad in (0, -1, float("nan"), float("inf"), 10**30, timedelta.max, -0.0)],
        *[(bad, InvalidJobTypeError) for bad in ("5", True)],
    ],
)
def test_a_time_to_live_that_is_none_is_refused(ttl: Any, error: type[Exception]) -> None:
    store = Store()
    with pytest.raises(error, match=r"^ttl "):
        xcom_of(store).push_sync("k", 1, ttl=ttl)
    assert store.asked == []


CYCLE: list[Any] = []
CYCLE.append(CYCLE)


@pytest.mark.parametrize(
    "value, words",
    [
        ({"a": [{1}]}, r"^value\.a\[0\]: set is not JSON"),
        (b"x", "bytes is not JSON"),
        (float("nan"), "nan is not JSON"),
        ({1: 2}, "JSON keys are str"),
        (CYCLE, "circular"),
        ("\ud800", "not encodable"),
        (Reference("A", None), "Reference is not JSON"),
        ("x" * ((1 << 20) + 1), "more than 1048576 bytes"),
        ("x" * (1 << 20), "takes 1048578 bytes"),
    ],
    ids=["set", "bytes", "nan", "key", "cycle", "surrogate", "reference", "long", "quotes"],
)
def test_non_json_or_oversized_value_is_refused(value: Any, words: str) -> None:
    store = Store()
    with pytest.raises(PayloadError, match=words):
        xcom_of(store).push_sync("k", value)
    assert store.asked == []
    xcom_of(store).push_sync("k", "x" * ((1 << 20) - 2))
