"""The small shared store: values by namespace and key, each for a time."""

from __future__ import annotations

from queuehint.core.xcom import EXPIRED_AT_ONCE, SharedStore
from queuehint.operations import Pull, Push
from queuehint.testing.driver import Queue, job

PLACE = ("n", "k")


# --- the store -------------------------------------------------------------------------------------------------------


def test_a_value_is_there_until_its_time_is_over() -> None:
    store = SharedStore()
    assert (store.pull(PLACE, 0), store.next_ms()) == (None, None)
    assert not store.push(PLACE, b"1", 100, 0)
    assert store.next_ms() == 100
    assert (store.pull(PLACE, 99), store.pull(PLACE, 100)) == (b"1", None)
    assert len(store) == 1
    store.expire(99)
    assert len(store) == 1
    store.expire(100)
    assert len(store) == 0


def test_value_replaces_the_previous_one_with_its_own_expiry() -> None:
    store = SharedStore()
    store.push(PLACE, b"1", 100, 0)
    assert store.push(PLACE, b"2", 50, 10)
    assert store.pull(PLACE, 49) == b"2"
    store.expire(50)
    assert len(store) == 0
    store.push(PLACE, b"1", 100, 60)
    store.push(PLACE, b"2", 300, 60)
    store.expire(200)
    assert store.pull(PLACE, 299) == b"2"


def test_one_whose_time_is_over_is_not_replaced() -> None:
    store = SharedStore()
    store.push(PLACE, b"1", 100, 0)
    assert not store.push(PLACE, b"2", 300, 100)
    assert store.pull(PLACE, 100) == b"2"
    assert len(store) == 1


def test_namespaces_and_keys_are_apart() -> None:
    store = SharedStore()
    for number, place in enumerate([("a", "b"), ("b", "a"), ("a:b", ""), ("", "a:b")]):
        assert not store.push(place, bytes([number]), 10, 0)
    assert store.pull(("b", "a"), 0) == b"\x01"


def test_expired_values_are_dropped_a_few_at_a_time() -> None:
    store = SharedStore()
    for number in range(2 * EXPIRED_AT_ONCE + 5):
        store.push(("n", str(number)), b"", 10 + number % 3, 0)
    left = []
    while len(store):
        store.expire(20)
        left.append(len(store))
    assert left == [EXPIRED_AT_ONCE + 5, 5, 0]


def test_keys_are_kept_in_order_once_they_were_listed() -> None:
    store = SharedStore()
    for key in ("b", "a", "c"):
        store.push(("n", key), b"", 100 if key == "a" else 200, 0)
    assert store.keys("n", "", None, 2, 0) == (("a", "b"), "b")
    store.push(("n", "aa"), b"", 200, 0)
    store.push(("n", "b"), b"", 200, 0)
    store.push(("m", "x"), b"", 200, 0)
    store.push(("o", "x"), b"", 200, 0)
    assert store.keys("n", "a", None, 5, 0) == (("a", "aa"), None)
    store.expire(100)
    assert store.keys("n", "", "aa", 5, 100) == (("b", "c"), None)
    assert store.keys("n", "", None, 5, 100) == (("aa", "b", "c"), None)


# --- through the engine ----------------------------------------------------------------------------------------------


def push(queue: Queue, value: bytes, *, key: str = "k", ttl_ms: int = 1000) -> bool:
    return queue.apply(Push("n", key, value, ttl_ms)).replaced


def pull(queue: Queue, key: str = "k") -> bytes | None:
    return queue.apply(Pull("n", key)).value


def test_pushed_value_is_pulled_until_it_expires() -> None:
    queue = Queue(now_ms=0)
    assert pull(queue) is None
    assert not push(queue, b"1")
    assert push(queue, b"2")
    assert (pull(queue), pull(queue, "other")) == (b"2", None)
    queue.now_ms = 999
    assert pull(queue) == b"2"
    queue.now_ms = 1000
    assert pull(queue) is None
    assert not push(queue, b"3")


def test_values_are_dropped_by_whatever_comes_next() -> None:
    queue = Queue(now_ms=0)
    for number in range(EXPIRED_AT_ONCE + 5):
        push(queue, b"", key=str(number))
    queue.now_ms = 1000
    assert len(queue.engine.state.shared) == EXPIRED_AT_ONCE + 5
    queue.tick()
    assert len(queue.engine.state.shared) == 5
    queue.enqueue(job("a"))
    assert len(queue.engine.state.shared) == 0


def test_a_value_is_no_reason_to_wake_up() -> None:
    queue = Queue(now_ms=0)
    push(queue, b"1")
    assert queue.engine.next_ms is None


def test_push_does_due_work_and_reports_leftovers() -> None:
    queue = Queue(*[job(f"j{number}", delay_ms=5) for number in range(3)], budget=1, now_ms=0)
    queue.now_ms = 5
    assert queue.apply(Push("n", "k", b"1", 1000)).more
    assert queue.stats().leftovers == 0
    queue.wait(0)
    assert not queue.apply(Push("n", "k", b"1", 1000)).more
