"""
Lockstep of `PathTrie` and `normalise` with the program extracted from their proof.

After each operation the whole state is compared: the gates that each walk has passed; of each node its four counts, its
line, and whether the line waits to be advanced; of each advance the units used, whether it was cut, and the granted
claims in order. If nothing is left over, the claims are placed anew in an empty trie, which must reach the same state
(`settled_state`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any, Final

from queuehint.core.structures.trie import Node, PathTrie, Walk, counts
from queuehint.values.hint import Claim, normalise
from tests.proof.programs import replay

SHAPES: Final = [
    Claim((), "exclusive"),
    Claim(("1",), "exclusive"),
    Claim(("1",), "shared"),
    Claim(("1", "1"), "exclusive"),
    Claim(("1", "1"), "shared"),
    Claim(("1", "2"), "exclusive"),
]
"""The claims of exhaustive histories."""
BATCH: Final = 500


class Job:
    """The fields of a job that the trie reads."""

    __slots__ = ("seq", "walks")

    def __init__(self, seq: int) -> None:
        self.seq = seq
        self.walks: list[Walk] = []


class Play:
    """One history, and what the code answers."""

    def __init__(self) -> None:
        self.jobs: dict[int, Job] = {}
        self.last_job = self.last_number = 0
        self.leftovers: deque[Any] = deque()
        self.trie = PathTrie(self.leftovers)
        self.numbers: dict[Walk, int] = {}
        self.operations = ["R"]
        self.answers = ["R .=0,0,0,0;"]

    def enqueue(self, claims: list[Claim]) -> None:
        self.last_job += 1
        job = self.jobs[self.last_job] = Job(self.last_job)
        for claim in normalise(claims):
            self.last_number += 1
            walk = Walk(job, claim)
            self.numbers[walk] = self.last_number
            job.walks.append(walk)
            assert self.trie.place(walk) == walk.depth + 1, "the gates visited are not those down to where it stands"
        words = [".".join(claim.path) + ("?" if claim.mode == "shared" else "!") for claim in claims]
        self._record(" ".join(["E", *words]), "E")

    def vacate(self, number: int) -> None:
        for walk in self.jobs.pop(number).walks:
            depth = walk.depth
            assert self.trie.leave(walk) == depth + 1, "the gates left are not those up from where it stood"
            del self.numbers[walk]
        self._record(f"V {number}", "V")

    def advance(self, node: Node, budget: int) -> None:
        arrived: list[Walk] = []
        path = node.path
        used, more = self.trie.advance(node, budget, arrived)
        if more:
            self.leftovers.append(node)
        if self.trie.find(path) is not node:
            # Its line has emptied and the node was deleted while it waited to be advanced.
            assert not used and not more and not arrived, "a node that is gone was advanced"
            return
        numbers = ",".join([str(self.numbers[walk]) for walk in arrived])
        self._record(f"A {'.'.join(path) or '.'} {budget}", f"A {used} {'true' if more else 'false'} [{numbers}]")

    def _record(self, operation: str, answer: str) -> None:
        self.operations.append(operation)
        self.answers.append(answer + self._state())

    def _state(self) -> str:
        numbers = self.numbers
        walks = [walk for job in self.jobs.values() for walk in job.walks]
        parts = [f" {numbers[walk]}:{walk.depth + walk.granted}" for walk in walks]
        if not any(node.to_advance for node in self.leftovers):
            assert parts == self._placed_anew(walks), "placed anew, the walks stand elsewhere"
        gates = []
        marked = 0
        stack = [(self.trie.root, ".")]
        while stack:
            node, path = stack.pop()
            line = []
            walk = node.line
            while walk is not None:
                line.append(str(numbers[walk]))
                walk = walk.after
            assert node.waiting == len(line), f"the number of those waiting at {path} is wrong"
            marked += node.to_advance
            held = ",".join(map(str, counts(node.held)))
            gates.append((path, f" {path}={held};{','.join(line)}{'*' if node.to_advance else ''}"))
            for segment, child in (node.children or {}).items():
                stack.append((child, segment if path == "." else f"{path}.{segment}"))
        assert marked == sum([self.trie.find(node.path) is node for node in self.leftovers]), (
            "the leftovers are not the nodes whose lines wait to be advanced, each once"
        )
        assert len(gates) == self.trie.nodes + 1, "the number of nodes is wrong"
        gates.sort()
        return "".join(parts + [text for _, text in gates])

    def _placed_anew(self, walks: list[Walk]) -> list[str]:
        trie = PathTrie(deque())
        parts = []
        for old in walks:
            walk = Walk(old.job, Claim(old.path, "shared" if old.shared else "exclusive"))
            trie.place(walk)
            parts.append(f" {self.numbers[old]}:{walk.depth + walk.granted}")
        return parts


# --- histories -------------------------------------------------------------------------------------------------------


def random_histories(seeds: range, steps: int) -> Iterator[Callable[[Play], None]]:
    """Yield a history for each seed, of a depth, width, number of claims, … of its own."""
    return (_RandomHistory(seed, steps) for seed in seeds)


class _RandomHistory:
    def __init__(self, seed: int, steps: int) -> None:
        self.random = random = Random(seed)
        self.steps = steps
        self.depth = random.choice((1, 2, 3, 3, 4, 6))
        self.width = random.choice((1, 2, 2, 3))
        self.shared = random.choice((0, 0.1, 0.3, 0.5, 0.9))
        self.claims = random.choice((1, 1, 1, 2, 3, 5))
        self.jobs = random.choice((3, 6, 10, 20))
        self.advancing = random.choice((0.2, 0.6, 0.9))

    def __call__(self, play: Play) -> None:
        for _ in range(self.steps):
            self._step(play)

    def _claim(self) -> Claim:
        draw = self.random.random
        depth = int(draw() * (self.depth + 1)) if draw() < 0.95 else 0
        path = tuple([str(1 + int(draw() * self.width)) for _ in range(depth)])
        return Claim(path, "shared" if draw() < self.shared else "exclusive")

    def _step(self, play: Play) -> None:
        random = self.random
        draw = random.random()
        if play.leftovers and draw < self.advancing:
            if random.random() < 0.5:
                play.leftovers.rotate(random.randrange(len(play.leftovers)))
            play.advance(play.leftovers.popleft(), random.choice((0, 1, 1, 2, 3, 5, 1000)))
        elif draw < 0.02:
            nodes = [play.trie.root]
            for node in nodes:
                nodes.extend((node.children or {}).values())
            node = random.choice(nodes)
            if not node.to_advance:
                play.advance(node, random.choice((0, 1, 10)))
        elif not play.jobs or (len(play.jobs) < self.jobs and random.random() < 0.55):
            play.enqueue([self._claim() for _ in range(1 + int(random.random() * self.claims))])
        else:
            ready = [number for number, job in play.jobs.items() if all(walk.granted for walk in job.walks)]
            play.vacate(random.choice(ready if ready and random.random() < 0.75 else list(play.jobs)))


def all_histories(steps: int, first: tuple[int, ...] = ()) -> Iterator[Callable[[Play], None]]:
    """
    Yield all histories of so many steps: a claim is placed, a job leaves, or a line advances by one walk.

    Args:
        first: the choices of the first steps, to divide the work.
    """
    chosen = list(first)
    options = [choice + 1 for choice in first]

    def history(play: Play) -> None:
        for at in range(steps):
            jobs = list(play.jobs)
            nodes: list[Any] = [left for left in play.leftovers if play.trie.find(left.path) is left]
            if at == len(chosen):
                chosen.append(0)
                options.append(len(SHAPES) + len(jobs) + len(nodes))
            choice = chosen[at]
            if choice < len(SHAPES):
                play.enqueue([SHAPES[choice]])
            elif choice < len(SHAPES) + len(jobs):
                play.vacate(jobs[choice - len(SHAPES)])
            else:
                node = nodes[choice - len(SHAPES) - len(jobs)]
                play.leftovers.remove(node)
                play.advance(node, 1)

    while True:
        yield history
        # The last choice that has an alternative is made anew.
        while chosen and chosen[-1] + 1 == options[-1]:
            chosen.pop()
            options.pop()
        if not chosen:
            return
        chosen[-1] += 1


def compare(program: Path, histories: Iterator[Callable[[Play], None]]) -> int:
    """Play histories on both sides; return how many there were, and fail at the first difference."""
    count = 0
    while batch := list(_played(islice(histories, BATCH))):
        count += len(batch)
        operations = [operation for play in batch for operation in play.operations]
        answers = [answer for play in batch for answer in play.answers]
        proved = replay(program, operations)
        if proved != answers:
            raise AssertionError(_difference(operations, answers, proved))
    return count


def _played(histories: Iterator[Callable[[Play], None]]) -> Iterator[Play]:
    for history in histories:
        play = Play()
        try:
            history(play)
        except Exception as error:
            raise AssertionError(f"{error!r} after\n" + "\n".join(play.operations)) from error
        yield play


def _difference(operations: list[str], answers: list[str], proved: list[str]) -> str:
    begin = 0
    for at, (answer, other) in enumerate(zip(answers, proved, strict=True)):
        if operations[at] == "R":
            begin = at
        if answer != other:
            break
    history = "\n".join(operations[begin : at + 1])
    return f"after\n{history}\nthe code says    {answer}\nthe proof says   {other}"
