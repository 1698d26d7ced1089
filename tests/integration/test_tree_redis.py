"""The longest lines on Redis: no page looks at more than a bounded number of gates, however deep they are."""

from __future__ import annotations

from queuehint.backends.base import BackendOptions, open_backend
from queuehint.operations import Enqueue, ListLines
from queuehint.testing.driver import job


def test_page_of_lines_ends_after_6_000_gates_and_continues(redis_url: str, namespace: str) -> None:
    backend = open_backend(redis_url, BackendOptions(namespace=namespace))
    names = [f"{number:03}" for number in range(96)]
    for begin in range(0, len(names), 48):
        some = names[begin : begin + 48]
        backend.call_sync(Enqueue(tuple([job(name, [name, *"x" * 63]) for name in some])))
        backend.call_sync(Enqueue(tuple([job(f"behind-{name}", [name, *"x" * 63]) for name in some])))
    whole = 6_000 // 65 + 1
    first = backend.call_sync(ListLines(depth=64))
    assert first.after is not None
    rest = backend.call_sync(ListLines(depth=64, after=first.after))
    assert (len(first.places), len(rest.places), rest.after) == (whole, len(names) - whole, None)
    found = [place.path_key.split(":")[0] for place in (*first.places, *rest.places)]
    assert found == names
    backend.close_sync()
