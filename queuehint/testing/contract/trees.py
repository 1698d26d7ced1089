"""The rules of the tree in pages and of the longest lines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from queuehint.errors import InvalidJobError
from queuehint.operations import ListLines, Tree
from queuehint.testing.driver import SHARED, claim, job
from queuehint.values.hint import CLAIMS_MAX, Claim, key_of
from queuehint.values.signal import signal_id, signal_spec, wait_id, wait_spec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from queuehint.testing.contract.store import Store
    from queuehint.values.hint import Path
    from queuehint.values.spec import JobSpec

NAMES = (
    "-", "0", "A", "a", "a!", "a-b", "a1", "a12", "aB", "a:b", "a\\", "ab", "roo", "root", "root-1", "roots", "\u00e9",
    "\U0001f600",
)  # fmt: skip
"""Names that sort otherwise with what stands behind them in an index, or as a path key writes them."""


def pages(store: Store, path: Path = (), limit: int = 1000, depth: int = 1) -> list[tuple[str, ...]]:
    """Return the keys of the children of a place, by page."""
    found: list[tuple[str, ...]] = []
    after: str | None = None
    while True:
        assert len(found) < 100, "it goes on"
        node = store.apply(Tree(path, depth, after, limit))
        found.append(tuple([child.path_key for child in node.children]))
        if node.after is None:
            return found
        after = node.after


def spread(id: str, paths: Sequence[Path], **fields: Any) -> list[JobSpec]:
    """Return jobs that claim many places among them."""
    return [
        job(f"{id}-{at}", claims=tuple([Claim(path) for path in paths[at : at + CLAIMS_MAX]]), **fields)
        for at in range(0, len(paths), CLAIMS_MAX)
    ]


def lines(store: Store, path: Path = (), depth: int = 64, **fields: Any) -> list[tuple[str, int]]:
    """Return the places of all pages of lines with their lengths."""
    found: list[tuple[str, int]] = []
    after: str | None = None
    while True:
        page = store.apply(ListLines(path, depth, after, **fields))
        found += [(place.path_key, place.waiting) for place in page.places]
        if page.after is None:
            return found
        after = page.after


class TreePages:
    """`Tree` lists children in pages, in order of their names. A truncated page has a cursor."""

    def test_children_come_in_pages_in_path_key_order(self, store: Store) -> None:
        for number, name in enumerate(NAMES):
            hints = ([name], [name, "x"], [name, "y"])
            store.enqueue(*[job(f"{number}-{n}", hints[n]) for n in range(3) if number % 3 != n])
        expected = sorted(NAMES, key=lambda name: "root" if name == "root" else key_of((name,)))
        keys = [key_of((name,)) for name in expected]
        assert pages(store) == [tuple(keys)]
        for limit in (1, 2, 5):
            assert [key for page in pages(store, limit=limit) for key in page] == keys
        assert [len(page) for page in pages(store, limit=9)] == [9, 9]
        for number, name in enumerate(expected):
            node = store.apply(Tree((), 0, name))
            assert (node.children, node.after) == ((), None)
            behind = [child.path_key for child in store.apply(Tree((), 1, name)).children]
            assert behind == keys[number + 1 :]

    def test_stable_place_is_in_one_page_despite_changes(self, store: Store) -> None:
        store.enqueue(*[job(name, ["doc", name]) for name in "bdfhj"])
        store.start()
        first = store.apply(Tree(("doc",), 1, None, 2))
        assert ([child.path_key for child in first.children], first.after) == (["doc:b", "doc:d"], "d")
        store.finish("d", "f")
        store.enqueue(job("a", ["doc", "a"]), job("c", ["doc", "c", "1"]), job("e", ["doc", "e", "1"]))
        second = store.apply(Tree(("doc",), 1, first.after, 2))
        assert ([child.path_key for child in second.children], second.after) == (["doc:e", "doc:h"], "h")
        last = store.apply(Tree(("doc",), 1, second.after, 2))
        assert ([child.path_key for child in last.children], last.after) == (["doc:j"], None)

    def test_children_that_are_cut_have_a_cursor_at_every_level(self, store: Store) -> None:
        store.enqueue(*spread("a", [(f"{n // 3:04}", str(n % 3)) for n in range(1260)]))
        whole = store.apply(Tree((), 2))
        assert [(child.after, len(child.children)) for child in whole.children] == [(None, 3)] * 250
        rest = store.apply(Tree((), 2, whole.after))
        assert (whole.after, len(rest.children), rest.after) == ("0249", 170, None)
        store.enqueue(*spread("b", [("0000", "-", f"{n:04}") for n in range(995)]))
        (child,) = store.apply(Tree((), 3)).children
        assert [(below.path_key, len(below.children), below.after) for below in child.children] == [
            ("0000:-", 995, None), ("0000:0", 0, None), ("0000:1", 0, None), ("0000:2", 0, None)
        ]  # fmt: skip
        store.enqueue(job("c", ["0000", "-", "1", "x"]))
        (child,) = store.apply(Tree((), 3)).children
        assert (len(child.children), child.after) == (3, "1")
        store.enqueue(*spread("d", [("0000", "-", f"x{n}") for n in (0, 1, 9)]))
        (child,) = store.apply(Tree((), 3)).children
        assert (child.after, len(child.children[0].children), child.children[0].after) == ("-", 998, "x1")

    def test_place_without_room_for_children_has_their_first_cursor(self, store: Store) -> None:
        store.enqueue(*spread("a", [(f"{n:04}",) for n in range(999)]), job("z", ["z", "1"]))
        last = store.apply(Tree((), 2)).children[-1]
        assert (last.path_key, last.children, last.after) == ("z", (), "")
        assert [child.path_key for child in store.apply(Tree(("z",), 1, last.after)).children] == ["z:1"]

    def test_pages_pass_over_places_where_nothing_is_yet(self, store: Store) -> None:
        store.enqueue(*spread("a", [(f"1{n:04}",) for n in range(2600)], delay_ms=1000))
        store.enqueue(job("b", ["z"]), job("c", ["1", "1"]))
        assert [page for page in pages(store, limit=1) if page] == [("1",), ("z",)]

    def test_a_page_that_makes_no_sense_is_refused(self, store: Store) -> None:
        for limit in (0, 1001):
            with pytest.raises(InvalidJobError, match=f"limit must be from 1 to 1000, got {limit}"):
                store.apply(Tree((), 1, None, limit))
            with pytest.raises(InvalidJobError, match=f"limit must be from 1 to 1000, got {limit}"):
                store.apply(ListLines((), 1, None, limit))
        with pytest.raises(InvalidJobError, match="depth must be from 1 to 64, got 0"):
            store.apply(ListLines((), 0))


class LongestLines:
    """`ListLines` finds the places where jobs wait, the longest lines first."""

    def test_places_come_by_line_length_then_key(self, store: Store) -> None:
        store.enqueue(
            *[job(f"a{n}", ["doc1"]) for n in range(4)],
            *[job(f"b{n}", ["doc2", "intro"]) for n in range(5)],
            *[job(f"c{n}", ["doc2", "notes"]) for n in range(3)],
            *[job(f"d{n}", ["root"]) for n in range(3)],
            *[job(f"e{n}", ["a:b"]) for n in range(3)],
            *[job(f"f{n}", ["doc1-notes"]) for n in range(2)],
            *[job(f"g{n}", ["quiet", str(n)]) for n in range(3)],
        )
        store.start(1)
        expected = [("doc2:intro", 4), ("doc1", 3), ("\\root", 2), ("a\\:b", 2), ("doc2:notes", 2), ("doc1-notes", 1)]
        assert lines(store) == expected
        assert lines(store, limit=3) == expected[:3]
        assert lines(store, longer_than=2) == expected[:2]
        assert lines(store, depth=1) == [("doc1", 3), ("\\root", 2), ("a\\:b", 2), ("doc1-notes", 1)]
        assert lines(store, ("doc2",), depth=1) == [("doc2:intro", 4), ("doc2:notes", 2)]
        assert lines(store, ("doc1",)) == lines(store, ("nowhere",)) == []

    def test_line_is_counted_at_its_place_whatever_jobs_claim(self, store: Store) -> None:
        store.enqueue(
            job("a", ["doc"]),
            job("b", ["doc", "a", "1"]),
            job("c", ["doc", "b-1"]),
            job("d", claims=(claim("doc", "a", mode=SHARED), claim("other"))),
            job("e", ["other"]),
            job("f", []),
        )
        store.start()
        assert lines(store) == [("doc", 3), ("other", 1)]
        store.finish("a")
        store.start()
        assert lines(store) == [("doc:a", 1), ("other", 1)], "the root is not below itself"

    def test_longest_lines_come_in_one_page(self, store: Store) -> None:
        store.enqueue(*[job(f"{at}-{n}", [f"p{at:02}"]) for at in range(12) for n in range(at)])
        store.enqueue(*[job(f"deep-{n}", ["deep", "x"]) for n in range(7)])
        store.start()

        def longest(path: Path = (), depth: int = 1, **fields: Any) -> list[tuple[str, int]]:
            page = store.apply(ListLines(path, depth, longest=True, **fields))
            assert page.after is None
            return [(place.path_key, place.waiting) for place in page.places]

        assert longest(limit=3) == [("p11", 10), ("p10", 9), ("p09", 8)]
        assert longest(depth=2, limit=5) == [("p11", 10), ("p10", 9), ("p09", 8), ("p08", 7), ("deep:x", 6)]
        assert longest(("deep",)) == longest(("deep",), 3, longer_than=5) == [("deep:x", 6)]
        assert longest() == [(f"p{at:02}", at - 1) for at in range(11, 1, -1)]
        store.cancel(*[f"11-{n}" for n in range(1, 8)])
        store.finish("10-0")
        assert longest(limit=4) == [("p09", 8), ("p10", 8), ("p08", 7), ("p07", 6)]
        store.cancel(*[f"{at}-{n}" for at in range(12) for n in range(at)])
        assert longest(depth=2) == [("deep:x", 6)]

    def test_longest_lines_among_many_are_the_longest(self, store: Store) -> None:
        store.enqueue(
            *spread("a", [(f"a-{n:04}",) for n in range(1300)]), *spread("b", [(f"a-{n:04}",) for n in range(1300)])
        )
        store.enqueue(*spread("c", [(f"a-{n:04}",) for n in range(1300)]))
        store.enqueue(*[job(f"z{n}", ["z"]) for n in range(6)], *[job(f"y{n}", ["a-0000"]) for n in range(9)])
        page = store.apply(ListLines(limit=100, longest=True))
        told = [(place.path_key, place.waiting) for place in page.places]
        assert told[:2] == [("a-0000", 11), ("z", 5)]
        assert {waiting for _, waiting in told[2:]} == {2} and len(told) == 100

    def test_long_line_that_moves_on_is_no_longest_line(self, store: Store) -> None:
        store.enqueue(job("first", ["a"]), *[job(f"a{n}", ["a", str(n)]) for n in range(200)])
        store.enqueue(*[job(f"b{n}", ["b"]) for n in range(7)])
        question = ListLines(limit=1, longest=True)
        assert [place.waiting for place in store.apply(question).places] == [200]
        store.start(limit=1)
        store.finish("first")
        assert [(place.path_key, place.waiting) for place in store.apply(question).places] == [("b", 6)]

    def test_longest_lines_have_no_cursor(self, store: Store) -> None:
        with pytest.raises(InvalidJobError, match="after"):
            store.apply(ListLines(after="a", longest=True))

    def test_a_place_is_told_as_the_tree_tells_it(self, store: Store) -> None:
        store.enqueue(*[job(f"{n}", ["doc", "x"], max_attempts=1, on_dead="hold") for n in range(3)])
        store.start()
        store.pause("doc", "x")
        found = store.apply(ListLines(depth=2))
        assert (found.places, found.after) == (store.apply(Tree(("doc",), 1)).children, None)
        assert (found.places[0].started, found.places[0].paused) == (1, True)
        store.fail("0")
        (place,) = store.apply(ListLines(depth=2)).places
        assert (place.started, place.dead, place.waiting) == (0, 1, 2)

    def test_lines_behind_many_other_places_are_found(self, store: Store) -> None:
        store.enqueue(*spread("a", [(f"a-{n:04}",) for n in range(1300)]))
        store.enqueue(*[job(f"z{n}", ["z"]) for n in range(3)], *[job(f"a{n}", ["a", "x", "y"]) for n in range(4)])
        store.enqueue(*[job(f"b{n}", ["b", str(n)]) for n in range(5)], job("b", ["b"]), job("c", ["b", "1"]))
        assert dict(lines(store)) == {"z": 2, "a:x:y": 3, "b": 2}
        assert dict(lines(store, depth=1)) == {"z": 2, "b": 2}


S = signal_id("s")


def signal_waits(store: Store, path: Path = (), depth: int = 3) -> dict[str, tuple[int, int]]:
    """Return how many claims wait for signals at the places of a tree, and how many at or below them."""
    found: dict[str, tuple[int, int]] = {}
    todo = [store.apply(Tree(path, depth))]
    while todo:
        node = todo.pop(0)
        found[node.path_key] = (node.waiting_for_signals, node.waiting_for_signals_below)
        todo += node.children
    return found


class SignalsInTrees:
    """`Tree` counts the jobs that wait for signals at their places, though they hold none."""

    def test_tree_counts_signal_waits_at_and_below_places(self, store: Store) -> None:
        store.enqueue(
            wait_spec("s", "a", 1000),
            job("a", claims=(claim("x", "1", mode=SHARED), claim("x"), claim("root")), after=[wait_id("s", "a")]),
            job("b", ["x", "1"], after=[S]),
            job("c", [], after=[S]),
            job("d", after=[S]),
            job("e", ["x", "1"]),
            job("f", ["x", "2"], after="e"),
            job("g", ["x", "2"], after=[S], delay_ms=500),
        )
        of_x = {"x": (1, 3), "x:1": (2, 2)}
        assert signal_waits(store) == {"root": (1, 5), "\\root": (1, 1), **of_x}
        assert signal_waits(store, (), 0) == {"root": (1, 5)}
        assert signal_waits(store, ("x",), 1) == of_x
        assert signal_waits(store, ("x", "2")) == {"x:2": (0, 0)}
        store.wait(500)
        assert signal_waits(store, ("x",)) == {"x": (1, 4), "x:1": (2, 2), "x:2": (1, 1)}
        store.start()
        store.cancel("b")
        assert signal_waits(store, ("x", "1")) == {"x:1": (1, 1)}
        store.enqueue(signal_spec("s", b"1", 10_000))
        store.wait(0)
        assert set(signal_waits(store).values()) == {(0, 0)}

    def test_place_of_signal_waits_alone_is_in_the_tree(self, store: Store) -> None:
        store.enqueue(*[job(name, ["doc", name, "x"], after=[S]) for name in "bd"])
        store.enqueue(job("c", ["doc", "c"]), job("e", ["doc", "c"], after=[S]), job("f", ["doc", "d"], after=[S]))
        assert pages(store, ("doc",)) == [("doc:b", "doc:c", "doc:d")]
        assert pages(store, ("doc",), 1) == [("doc:b",), ("doc:c",), ("doc:d",)]
        node = store.apply(Tree(("doc", "b"), 1))
        assert (node.passing, node.granted, node.waiting) == (0, 0, 0)
        (child,) = node.children
        assert (child.path_key, child.waiting_for_signals, child.children, child.after) == ("doc:b:x", 1, (), None)
        store.cancel("b", "c", "e")
        assert pages(store, ("doc",)) == [("doc:d",)]
        assert signal_waits(store) == {"root": (0, 2), "doc": (0, 2), "doc:d": (1, 2), "doc:d:x": (1, 1)}

    def test_tree_counts_a_job_that_left_for_a_signal(self, store: Store) -> None:
        store.enqueue(job("a", ["x"]), job("b", ["x"]))
        store.start()
        store.enqueue_from("a", wait_spec("s", "a", None))
        store.await_children("a", wait_id("s", "a"), again=True)
        node = store.apply(Tree(("x",)))
        assert (node.granted, node.waiting, node.waiting_for_signals, node.waiting_for_signals_below) == (1, 0, 1, 1)

    def test_tree_counts_signal_waits_only_of_the_first_waiting_jobs(self, store: Store) -> None:
        store.enqueue(job("a"))
        store.enqueue(*[job(f"b{n}", ["x"], after=["a"]) for n in range(999)])
        store.enqueue(job("k", ["x", "1"], after=[S]), job("l", ["x", "2"], after=[S]))
        assert signal_waits(store, ("x",)) == {"x": (0, 1), "x:1": (1, 1)}
        store.cancel("b0")
        assert signal_waits(store, ("x",)) == {"x": (0, 2), "x:1": (1, 1), "x:2": (1, 1)}

    def test_longest_lines_count_signal_waits(self, store: Store) -> None:
        store.enqueue(job("a", ["x"]), job("b", ["x"]), job("c", ["x"], after=[S]), job("d", ["x", "1"], after=[S]))
        (place,) = store.apply(ListLines()).places
        assert (place.waiting, place.waiting_for_signals, place.waiting_for_signals_below) == (1, 1, 2)
