"""`ScriptedBackend` answers as its script says, and names a call that it has no answer to."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from queuehint import operations as op
from queuehint.backends.base import Interest
from queuehint.errors import BackendUnavailableError
from queuehint.testing import ScriptedBackend


async def test_script_answers_calls_in_order() -> None:
    store = ScriptedBackend([op.Drawn(5), BackendUnavailableError("away"), lambda asked: op.Drawn(asked.count)])
    assert await store.call(op.Draw(1)) == op.Drawn(5)
    assert store.left == 2
    with pytest.raises(BackendUnavailableError, match="away"):
        store.call_sync(op.Draw(2))
    assert store.call_sync(op.Draw(3)) == op.Drawn(3)
    assert store.asked == [op.Draw(1), op.Draw(2), op.Draw(3)]
    with pytest.raises(AssertionError, match="no answer to call 4, <Draw>"):
        await store.call(op.Draw(9))


def test_function_answers_all_calls() -> None:
    store = ScriptedBackend(lambda asked: op.Drawn(asked.count), is_local=True, owes_turn=True)
    assert [store.call_sync(op.Draw(count)) for count in (1, 2)] == [op.Drawn(1), op.Drawn(2)]
    assert store.left == 0
    away = ScriptedBackend(lambda _: BackendUnavailableError("away"))
    with pytest.raises(BackendUnavailableError):
        away.call_sync(op.Draw(1))
    assert (store.is_local, store.keeps_leases, store.owes_turn(op.Draw(1))) == (True, False, True)


def test_threads_take_an_answer_each() -> None:
    store = ScriptedBackend([op.Drawn(number) for number in range(400)])
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: store.call_sync(op.Draw(1)), range(400)))
    assert sorted(each.first for each in found) == list(range(400))


async def test_waits_return_at_once_and_are_kept() -> None:
    store = ScriptedBackend([])
    await store.wait(Interest(), 60)
    store.wait_sync(Interest(), 5)
    store.adopt(list)()
    await store.close()
    store.close_sync()
    assert store.waits == [(Interest(), 60), (Interest(), 5)]


@pytest.mark.parametrize("wrong", [5, "answers", None])
def test_wrong_script_is_refused_by_name(wrong: Any) -> None:
    with pytest.raises(TypeError, match="script must be a list of answers or a function, got"):
        ScriptedBackend(wrong)
