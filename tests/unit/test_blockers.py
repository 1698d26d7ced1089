"""Blockers of a queued job beyond the contract: bounds, and a line about to advance."""

from __future__ import annotations

import pytest

from queuehint.core.asking.blockers import Blockers
from queuehint.testing.driver import SHARED, Queue, claim, job
from queuehint.values.report import JOBS_NAMED_MAX, ReasonKind


def why(queue: Queue, name: str) -> tuple[ReasonKind, tuple[str, ...]]:
    reason = queue.why(name)
    return reason.kind, reason.jobs


def test_holders_beyond_the_sorting_limit_are_found_by_path() -> None:
    queue = Queue(*[job(f"h{n:04}", ["doc", f"s{9999 - n}"]) for n in range(1000)])
    queue.enqueue(*[job(f"i{n}", ["doc", f"t{n}"]) for n in range(9)], job("whole", ["doc"]), job("next", ["doc"]))
    assert why(queue, "whole") == (ReasonKind.PLACE, tuple(f"h{n:04}" for n in range(990, 1000)))
    assert why(queue, "next") == why(queue, "whole")


@pytest.mark.slow
def test_looking_for_holders_is_bounded() -> None:
    queue = Queue()
    for first in range(0, 6000, 1000):
        queue.enqueue(*[job(f"r{n}", claims=(claim("a", f"{n:04}", mode=SHARED),)) for n in range(first, first + 1000)])
    queue.enqueue(job("w", ["a", "w"]), job("all", claims=(claim("a", mode=SHARED),)))
    assert why(queue, "all") == (ReasonKind.PLACE, ())


def test_blockers_of_a_gate_are_searched_once() -> None:
    queue = Queue(job("dead", ["a", "x"], max_attempts=1, on_dead="hold"))
    queue.start()
    queue.fail("dead")
    queue.enqueue(job("w", ["b"]), *[job(name, ["a"]) for name in "cd"], *[job(name, ["b"]) for name in "ef"])
    table = queue.engine.table
    found = Blockers(table)
    for name, other in zip("cdef", ("dead", "dead", "w", "w"), strict=True):
        (walk,) = table.jobs[name].walks
        first = found.of(walk)[0]
        assert (first.id, found.of(walk)[0]) == (other, first)


def test_the_hundred_first_of_a_line_are_looked_at() -> None:
    queue = Queue(job("running", ["a"]), *[job(f"w{n}", ["a"]) for n in range(200)])
    assert len(queue.why("w199").jobs) == JOBS_NAMED_MAX


def test_a_job_is_never_named_before_itself() -> None:
    queue = Queue(job("barrier", []), job("both", claims=(claim("a"), claim("b"))), job("c", claims=(claim("c"),)))
    assert why(queue, "both") == (ReasonKind.PLACE, ("barrier",))
    assert why(queue, "c") == (ReasonKind.PLACE, ("barrier", "both"))


def test_line_about_to_move_has_no_blockers() -> None:
    queue = Queue(job("a", ["x"]), *[job(f"w{n}", ["x", str(n)]) for n in range(5)], budget=1)
    queue.start()
    queue.finish("a")
    heads = [name for name in ("w0", "w1", "w2", "w3", "w4") if why(queue, name) == (ReasonKind.PLACE, ())]
    assert len(heads) == 1, "the head of the line has none in conflict before it, and none is named"
    behind = why(queue, "w4")
    assert behind[0] is ReasonKind.PLACE
    assert heads[0] in behind[1]
