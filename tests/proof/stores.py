"""
Compare the gates of a store with those of the program extracted from the proof.

The calls of an engine's trie are recorded: places taken and left, lines advanced. An engine and a store that do the
same operations have the same gates after each, and so has the program: the gates each walk has passed, the counts of
each node in each mode, its line in order, and whether the line waits to be advanced.
"""

from __future__ import annotations

import pathlib
import re
from typing import Any, Final

import attrs

from queuehint.backends.redis import scripts
from queuehint.core.engine import Engine
from queuehint.core.structures.job import Job
from queuehint.core.structures.trie import Node, Walk, counts
from queuehint.operations import Operation
from queuehint.values.hint import Path, parse_key
from tests.proof.programs import replay
from tests.property.agreement import RedisLockstep

GRANTED: Final = 128
"""Value in a head in Redis for a claim that has passed all its gates; else it is the depth at which it stands."""
_ANSWER: Final = re.compile(r"(?:[REV]|A \d+ (?:true|false) \[[\d,]*\])(.*)")
_READ: Final = """\
#!lua flags=no-writes,allow-oom
-- @include doctor/lib/rules
-- @include doctor/lib/examine_heads
local heads, stored_gates = {}, {}
for _, id in ipairs(redis.call('HKEYS', store.jobs)) do
  local job = examine.head(id)
  if job and job[WALKS] then heads[#heads + 1] = {id, job[WALKS]} end
end
local stored = redis.call('HGETALL', store.gates)
for at = 1, #stored, 2 do
  local line = redis.call('ZRANGE', store.line(stored[at]), 0, -1)
  stored_gates[#stored_gates + 1] = {stored[at], examine.gate(stored[at + 1]), line}
end
return {heads, stored_gates}
"""


@attrs.frozen
class Gate:
    """One node as a store keeps it."""

    held: tuple[int, ...]
    line: list[int]
    to_advance: bool


@attrs.frozen
class State:
    """Gates as a store keeps them: how many each claim has passed, by its number, and all nodes."""

    positions: dict[int, int]
    gates: dict[Path, Gate]


class Gates:
    """The calls of an engine's trie, as operations of the program, and the gates of a store after some of them."""

    def __init__(self, engine: Engine) -> None:
        self.numbers: dict[str, list[int]] = {}
        """For each job with a place the numbers of its claims."""
        self._operations: list[tuple[str, Any]] = []
        self._seen: list[tuple[int, State]] = []
        self._placed: dict[str, int] = {}
        self._jobs = self._claims = 0
        self._watch(engine)

    def _watch(self, engine: Engine) -> None:
        table = engine.table
        place, vacate, advance = table.place, table.vacate, table.trie.advance

        def placed(job: Job, now_ms: int) -> int:
            self._jobs += 1
            self._placed[job.id] = self._jobs
            first = self._claims + 1
            self._claims += len(job.spec.claims)
            self.numbers[job.id] = list(range(first, self._claims + 1))
            self._operations.append(("E", job.spec.claims))
            return place(job, now_ms)

        def vacated(job: Job) -> int:
            if job.seq:
                self._operations.append(("V", self._placed.pop(job.id)))
                del self.numbers[job.id]
            return vacate(job)

        def advanced(node: Node, budget: int, arrived: list[Walk]) -> tuple[int, bool]:
            path = node.path
            if table.trie.find(path) is node:
                self._operations.append(("A", (path, budget)))
            return advance(node, budget, arrived)

        for owner, name, recording in (
            (table, "place", placed),
            (table, "vacate", vacated),
            (table.trie, "advance", advanced),
        ):
            setattr(owner, name, recording)

    def see(self, state: State) -> None:
        """Remember what a store keeps now, to be compared."""
        self._seen.append((len(self._operations), state))

    def compare(self, program: pathlib.Path) -> int:
        """Have the program do all that was recorded; return how many states were equal, fail at the first other one."""
        # The program sorts claims by the numbers of their segments, the engine by their text.
        paths = [claim.path for kind, what in self._operations if kind == "E" for claim in what]
        segments = sorted({segment for path in paths for segment in path})
        name = {segment: str(number) for number, segment in enumerate(segments, 1)}

        def dotted(path: Path) -> str:
            return ".".join([name[segment] for segment in path])

        def shown(state: State) -> str:
            walks = [f" {number}:{position}" for number, position in sorted(state.positions.items())]
            gates = {".": " .=0,0,0,0;"}
            for path, gate in state.gates.items():
                place = dotted(path) or "."
                held, line = ",".join(map(str, gate.held)), ",".join(map(str, gate.line))
                gates[place] = f" {place}={held};{line}{'*' if gate.to_advance else ''}"
            return "".join(walks + [gates[place] for place in sorted(gates)])

        lines = ["R"]
        for kind, what in self._operations:
            if kind == "E":
                words = [dotted(claim.path) + ("?" if claim.mode == "shared" else "!") for claim in what]
            elif kind == "A":
                words = [dotted(what[0]) or ".", str(what[1])]
            else:
                words = [str(what)]
            lines.append(" ".join([kind, *words]))
        printed = replay(program, lines)
        for count, state in self._seen:
            answer = _ANSWER.fullmatch(printed[count])
            assert answer is not None
            history = "\n".join(lines[: count + 1])
            assert shown(state) == answer[1], (
                f"after\n{history}\nthe store says   {shown(state)}\nthe proof says   {answer[1]}"
            )
        return len(self._seen)


def gates_of_engine(gates: Gates, engine: Engine) -> State:
    """Return the gates of an engine."""
    table = engine.table
    positions: dict[int, int] = {}
    numbers: dict[Walk, int] = {}
    for job_id, claims in gates.numbers.items():
        for number, walk in zip(claims, table.jobs[job_id].walks, strict=True):
            positions[number] = walk.depth + walk.granted
            numbers[walk] = number
    held = {}
    nodes = [table.trie.root]
    for node in nodes:
        nodes.extend((node.children or {}).values())
        line, at = [], node.line
        while at is not None:
            line.append(numbers[at])
            at = at.after
        held[node.path] = Gate(counts(node.held), line, node.to_advance)
    return State(positions, held)


class ProvedLockstep(RedisLockstep):
    """An engine and a store in step, whose gates are read after each operation."""

    gates: Gates

    def do(self, operation: Operation[Any], *, shell: str = "sync") -> Any:
        # The first operation is done as this is made.
        if not hasattr(self, "gates"):
            self.gates = Gates(self.engine)
            self.text = scripts.assemble(_READ)
        reply = super().do(operation, shell=shell)
        if not operation.is_question:
            self.gates.see(gates_of_engine(self.gates, self.engine))
            self.gates.see(self.stored_gates())
        return reply

    def stored_gates(self) -> State:
        """Return the gates that the store keeps."""
        session = self.session
        heads, stored = self.server.call("EVAL", self.text, *session._keys, self.now_ms, "", 0, *session._settings)
        numbers, jobs = self.gates.numbers, self.engine.table.jobs
        positions: dict[int, int] = {}
        for job_id, walks in heads:
            name = job_id.decode()
            for number, claim, depth in zip(numbers[name], jobs[name].spec.claims, walks, strict=True):
                positions[number] = len(claim.path) + 1 if depth == GRANTED else depth
        assert positions.keys() == {number for each in numbers.values() for number in each}
        gates = {}
        for key, (*held, waiting, mark), line in stored:
            # A member of a line is a character for the claim, from "1" on, and the id of the job.
            claims = [numbers[member[1:].decode()][member[0] - ord("1")] for member in line]
            assert waiting == len(claims)
            gates[_path_of(key.decode())] = Gate(tuple(held), claims, mark > 0)
        return State(positions, gates)


def _path_of(key: str) -> Path:
    """Return the path of a gate; in the store the root is no text, so that a lone segment ``root`` needs no escape."""
    if not key:
        return ()
    return (key,) if key == "root" else parse_key(key)
