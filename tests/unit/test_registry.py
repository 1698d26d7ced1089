"""The registry of executing jobs: a second check against conflicts."""

from __future__ import annotations

import itertools
from collections import deque

import pytest

from queuehint.core.structures.job import Job
from queuehint.core.structures.registry import ActiveExecutions
from queuehint.core.structures.trie import PathTrie, Walk
from queuehint.errors import CorruptStateError
from queuehint.operations import CanDequeue
from queuehint.testing.driver import SHARED, Queue, claim, job
from queuehint.values.hint import Claim, Mode, conflict
from queuehint.values.record import JobState
from queuehint.values.spec import JobSpec


def placed(trie: PathTrie, spec: JobSpec, number: int = 1) -> Job:
    made = Job(spec, number, JobState.QUEUED, 0)
    for one in reversed(spec.claims):
        walk = Walk(made, one)
        walk.next, made.walk = made.walk, walk
    for walk in made.walks:
        trie.place(walk)
    return made


def forced(trie: PathTrie, id: str, *claims: Claim) -> Job:
    """Let a job through gates that are open by mistake: each node's line is ignored and what is held forgotten."""
    held = {}
    stack = [trie.root]
    while stack:
        node = stack.pop()
        held[node], node.held = node.held, 0
        stack += (node.children or {}).values()
    made = placed(trie, job(id, claims=claims))
    for node, before in held.items():
        node.held += before
    assert all(walk.granted for walk in made.walks)
    return made


@pytest.mark.parametrize(
    "running, other",
    [
        (claim("a"), claim("a")),
        (claim("a"), claim("a", "b")),
        (claim("a", "b"), claim("a")),
        (claim(), claim("a")),
        (claim("a", mode=SHARED), claim("a", "b")),
        (claim("a", "b", mode=SHARED), claim("a")),
    ],
)
def test_a_start_that_conflicts_is_refused_as_corrupt_state(running: Claim, other: Claim) -> None:
    trie = PathTrie(deque())
    registry = ActiveExecutions(trie)
    registry.enter(placed(trie, job("first", claims=(running,))))
    with pytest.raises(CorruptStateError, match=r"job 'second' was let through a gate at \(.*\) while a job that conf"):
        registry.enter(forced(trie, "second", other))
    assert list(registry.running) == ["first"]


def test_starts_that_do_not_conflict_are_let_in() -> None:
    trie = PathTrie(deque())
    registry = ActiveExecutions(trie)
    for number, made in enumerate([claim("a", mode=SHARED), claim("a", "b", mode=SHARED), claim("c"), claim("d", "e")]):
        registry.enter(placed(trie, job(f"j{number}", claims=(made,))))
        registry.check()
    registry.enter(placed(trie, job("none")))
    assert len(registry.running) == 5


def test_a_job_is_started_once() -> None:
    trie = PathTrie(deque())
    registry = ActiveExecutions(trie)
    first = placed(trie, job("a"))
    registry.enter(first)
    with pytest.raises(CorruptStateError, match="job 'a' is started twice"):
        registry.enter(first)


def test_an_engine_with_a_broken_gate_raises_instead_of_starting() -> None:
    queue = Queue(job("a", ["x"]), job("b", ["x"]), checked=False)
    queue.start()
    waiting = queue.engine.table.jobs["b"]
    waiting.missing = 0
    queue.engine.table.ready.add(waiting)
    with pytest.raises(CorruptStateError):
        queue.start()
    assert queue.states("a", "b") == "STARTED QUEUED"


# --- can_dequeue -----------------------------------------------------------------------------------------------------

PATHS: list[tuple[str, ...]] = [
    (),
    ("a",),
    ("a", "b"),
    ("a", "b", "c"),
    ("a", "c"),
    ("b",),
    ("a:b",),
    ("doc1",),
    ("doc10",),
]
MODES: list[Mode] = ["exclusive", "shared"]


@pytest.mark.parametrize("running", [Claim(path, mode) for path in PATHS for mode in MODES], ids=str)
def test_can_dequeue_accepts_paths_without_running_conflicts(running: Claim) -> None:
    queue = Queue(job("a", claims=(running,)))
    asked = list(itertools.product(PATHS, MODES))
    assert all(queue.apply(CanDequeue(path, mode)) for path, mode in asked)
    queue.start()
    for path, mode in asked:
        assert queue.apply(CanDequeue(path, mode)) is not conflict([running], [Claim(path, mode)])
    queue.finish("a")
    assert all(queue.apply(CanDequeue(path, mode)) for path, mode in asked)


def test_a_job_without_hint_executes_in_nobody_s_way() -> None:
    queue = Queue(job("a"))
    queue.start()
    assert queue.apply(CanDequeue(()))


def test_waiting_job_does_not_block_can_dequeue() -> None:
    queue = Queue(job("a", ["x", "y"]), job("b", ["x"]))
    queue.start()
    assert not queue.apply(CanDequeue(("x",)))
    assert queue.apply(CanDequeue(("x", "z")))
