"""The rules of records below a path in order of time."""

from __future__ import annotations

from typing import Any

from queuehint.operations import Position
from queuehint.testing.contract.listing import page
from queuehint.testing.contract.store import Store
from queuehint.testing.driver import claim, job
from queuehint.values.record import JobState

SORTED_MAX = 4000
"""Of so many claims at or below a path those that pass are sorted for each page; of more all records are read."""


def by_time(store: Store, limit: int = 200, *, newest_first: bool = True, **fields: Any) -> list[str]:
    """Return the ids of the records that pass a filter in order of time, a string a page."""
    pages: list[str] = []
    after: Position | None = None
    while True:
        found = page(store, limit, after, newest_first=newest_first, by_time=True, **fields)
        pages.append(" ".join(record.id for record in found.records))
        after = found.after
        if after is None:
            return pages


class ListingByTime:
    """
    With ``by_time`` the records below a path are listed in order of enqueue, whatever their places.

    .. versionadded:: 1.0.0
    """

    def test_records_below_a_path_come_in_order_of_enqueue(self, store: Store) -> None:
        store.enqueue(
            job("c", ["x", "3"]), job("other", ["y"]), job("a", ["x", "1"], user="ann"), job("nowhere"),
            job("both", claims=(claim("x", "2"), claim("x", "4"), claim("y"))), job("top", ["x"], user="ann"),
        )  # fmt: skip
        assert by_time(store, path=("x",)) == ["top both a c"]
        assert by_time(store, path=("x",), newest_first=False) == ["c a both top"]
        assert by_time(store, path=("x", "4")) == ["both"]
        assert by_time(store, path=("x",), user="ann") == ["top a"]
        assert by_time(store, path=()) == ["top both a other c"]
        assert by_time(store, path=("nix",)) == [""]
        assert [by_time(store, n, path=("x",)) for n in (1, 2, 3)] == [
            ["top", "both", "a", "c"], ["top both", "a c"], ["top both a", "c"],
        ]  # fmt: skip
        assert by_time(store, 3, path=("x",), newest_first=False) == ["c a both", "top"]

    def test_records_of_jobs_that_are_over_come_between_the_others(self, store: Store) -> None:
        store.enqueue(*[job(name, ["x", name]) for name in "abcd"])
        store.cancel("b")
        store.cancel("d")
        assert by_time(store, path=("x",)) == ["d c b a"]
        assert by_time(store, path=("x",), states=(JobState.CANCELED,)) == ["d b"]
        assert by_time(store, path=("x",), states=(JobState.QUEUED,)) == ["c a"]
        store.stage("S", job("hidden", ["x"]))
        assert by_time(store, path=("x",)) == ["d c b a"]

    def test_order_without_a_path_and_in_a_flow_is_unchanged(self, store: Store) -> None:
        store.enqueue(job("b", ["x", "2"], flow="f"), job("a", ["x", "1"], flow="f"), job("none", after=["b"]))
        assert by_time(store) == ["none a b"]
        assert by_time(store, flow="f", path=("x",), newest_first=False) == ["b a"]
        assert by_time(store, waits_for="b") == ["none"]

    def test_a_job_that_leaves_moves_no_other_to_another_page(self, store: Store) -> None:
        store.enqueue(*[job(f"j{n}", ["x", str(n)]) for n in range(6)])
        first = page(store, 2, newest_first=True, by_time=True, path=("x",))
        store.cancel("j3")
        store.enqueue(job("new", ["x"]))
        second = page(store, 9, first.after, newest_first=True, by_time=True, path=("x",))
        assert [record.id for record in (*first.records, *second.records)] == [f"j{n}" for n in range(5, -1, -1)]

    def test_path_of_many_jobs_is_listed_in_the_same_order(self, store: Store) -> None:
        def enqueue(first: int, count: int) -> None:
            specs = [job(f"j{n:04}", ["x", f"{9 - n % 10}"] if n % 4 else ["y"]) for n in range(first, first + count)]
            store.enqueue(*specs)

        expected: list[str] = []
        for first in range(0, 5600, 400):
            enqueue(first, 400)
            expected += [f"j{n:04}" for n in range(first, first + 400) if n % 4]
            if first in {4800, 5200}:
                assert (len(expected) > SORTED_MAX) == (first == 5200)
                pages = [each.split() for each in by_time(store, path=("x",))]
                assert [job_id for each in pages for job_id in each] == expected[::-1]
                assert max(map(len, pages)) == 200
        assert page(store, newest_first=True, by_time=True, path=("x",), user="nobody").records == ()
