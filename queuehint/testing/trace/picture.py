"""
The moment of a fault in text: a lane for each job, a column for each event.

    ms       0  4  9  20 31
  * a  doc1  Q.....S==R.....
  * b  doc1     Q........S==
                         ^ order
    Q queued, S started, R retried; . waits, = runs
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from queuehint.testing.trace.faults import Fault
from queuehint.testing.trace.values import TraceEvent, TraceJob
from queuehint.values.hint import conflict, queue_key

COLUMNS_MAX = 12
AFTERWARDS = 2
"""How many events after the moment are shown."""
LANES_MAX = 5
LOOKED_BACK_MAX = 200
"""How many events before the moment are looked through for other jobs."""
ID_WIDTH, PLACE_WIDTH = 24, 32

LETTERS = {
    "enqueued": "N",
    "scheduled": "T",
    "deferred": "D",
    "queued": "Q",
    "started": "S",
    "progressed": "p",
    "finished": "F",
    "failed": "X",
    "retried": "R",
    "snoozed": "Z",
    "released": "G",
    "lost": "L",
    "canceled": "C",
    "redriven": "V",
    "pruned": "P",
    "ended": "E",
    "idle": "I",
    "gap": "-",
}
_WAITS, _RUNS, _HOLDS, _NOWHERE = ".", "=", "#", " "
_FILLS = {_WAITS: "waits", _RUNS: "runs", _HOLDS: "holds its place"}


def draw(
    events: Sequence[TraceEvent],
    order: Sequence[int],
    jobs: Mapping[str, TraceJob],
    faults: Sequence[Fault],
    *,
    unit: str = "ms",
    also: Collection[str] = (),
) -> list[str]:
    """
    Draw the moment of each fault.

    Args:
        order: the positions of *events* in the order in which they were gone through.
        also: other jobs to show, as many as there is room for.
        unit: of the times. They are shown from the first one on; in another unit than ms they are shown as they are.
    """
    if not faults:
        return []
    wanted = {job_id for fault in faults for job_id in (fault.job, fault.other) if job_id is not None}
    wanted.update(also)
    ranks: dict[str, list[int]] = {job_id: [] for job_id in wanted}
    moments = dict.fromkeys([fault.index for fault in faults], 0)
    for rank, index in enumerate(order):
        if events[index].job in ranks:
            ranks[events[index].job].append(rank)
        if index in moments:
            moments[index] = rank
    return [_Picture(events, order, jobs, ranks, moments[fault.index]).of(fault, unit, also) for fault in faults]


class _Picture:
    def __init__(
        self,
        events: Sequence[TraceEvent],
        order: Sequence[int],
        jobs: Mapping[str, TraceJob],
        ranks: Mapping[str, Sequence[int]],
        moment: int,
    ) -> None:
        self._events = [events[index] for index in order[max(0, moment - LOOKED_BACK_MAX) : moment]]
        self._all = events
        self._order = order
        self._jobs = jobs
        self._ranks = dict(ranks)
        self._moment = moment

    def _at(self, rank: int) -> TraceEvent:
        return self._all[self._order[rank]]

    def of(self, fault: Fault, unit: str, also: Collection[str]) -> str:
        culprits = [job_id for job_id in (fault.other, fault.job) if job_id is not None]
        known = dict.fromkeys([*culprits, *also][: max(LANES_MAX, len(culprits))])
        lanes = sorted([*known, *self._neighbours(culprits, known)], key=self._place)
        columns = self._columns(culprits, lanes)
        base = self._at(columns[0]).at_ms if unit == "ms" else 0
        times = [self._at(rank).at_ms - base for rank in columns]
        labels = [f"{time:.10g}" for time in times]
        if not any(times):  # of a trace without times the order is shown
            unit, labels = "event", [str(rank) for rank in columns]
        width = max(len(label) for label in labels) + 2
        names = [self._name(job_id, is_culprit=job_id in culprits) for job_id in lanes]
        margin = max(len(name) for name in [*names, f"  {unit}"]) + 2
        used: dict[str, str] = {}
        lines = [f"  {unit}".ljust(margin) + "".join(label.ljust(width) for label in labels)]
        for job_id, name in zip(lanes, names, strict=True):
            lines.append(name.ljust(margin) + "".join(self._cells(job_id, columns, width, used)))
        lines.append(" " * (margin + width * columns.index(self._moment)) + f"^ {fault.rule}")
        letters = [f"{letter} {word}" for letter, word in used.items() if word in LETTERS]
        fills = [f"{letter} {word}" for letter, word in used.items() if word not in LETTERS]
        lines.append(f"  {', '.join(letters)}" + (f"; {', '.join(fills)}" if fills else ""))
        return "\n".join(line.rstrip() for line in lines)

    def _place(self, job_id: str) -> tuple[tuple[str, ...], int]:
        job = self._jobs.get(job_id)
        ranks = self._ranks[job_id]
        return (job.claims[0].path if job is not None and job.claims else ()), ranks[0] if ranks else 0

    def _name(self, job_id: str, *, is_culprit: bool) -> str:
        job = self._jobs.get(job_id)
        keys = (
            ", ".join(queue_key(claim.path) + (" (shared)" if claim.mode == "shared" else "") for claim in job.claims)
            if job
            else "?"
        )
        return f"{'*' if is_culprit else ' '} {_cut(job_id, ID_WIDTH)}  {_cut(keys, PLACE_WIDTH)}"

    def _neighbours(self, culprits: Sequence[str], known: Collection[str]) -> list[str]:
        """Return other jobs of late that conflict with one of the two, and have their events remembered."""
        claims = [claim for job_id in culprits if job_id in self._jobs for claim in self._jobs[job_id].claims]
        first = self._moment - len(self._events)
        found: dict[str, list[int]] = {}
        for offset in range(len(self._events) - 1, -1, -1):
            job_id = self._events[offset].job
            job = self._jobs.get(job_id)
            if job_id in known or job is None:
                continue
            if job_id not in found:
                if len(found) + len(known) >= LANES_MAX or not conflict(job.claims, claims):
                    continue
                found[job_id] = []
            found[job_id].append(first + offset)
        for job_id, ranks in found.items():
            self._ranks[job_id] = ranks[::-1]
        return list(found)

    def _columns(self, culprits: Sequence[str], lanes: Sequence[str]) -> list[int]:
        """Return the events to show: placements and runs of the two jobs, the last ones before, the next ones."""
        chosen = {self._moment}
        for job_id in culprits:
            before = [rank for rank in self._ranks[job_id] if rank <= self._moment]
            for kinds in ({"queued", "enqueued", "redriven"}, {"started"}):
                chosen.update([rank for rank in before if self._at(rank).kind in kinds][-1:])
            chosen.update(before[-1:])
        after = sorted(rank for job_id in culprits for rank in self._ranks[job_id] if rank > self._moment)
        chosen.update(after[:AFTERWARDS])
        for ranks in ([self._ranks[job_id] for job_id in culprits], [self._ranks[job_id] for job_id in lanes]):
            rest = sorted({rank for some in ranks for rank in some if rank < self._moment} - chosen, reverse=True)
            chosen.update(rest[: max(0, COLUMNS_MAX - len(chosen))])
        return sorted(chosen)

    def _cells(self, job_id: str, columns: Sequence[int], width: int, used: dict[str, str]) -> Iterator[str]:
        fill = _NOWHERE
        ranks = iter([*self._ranks[job_id], self._moment + (1 << 60)])
        rank = next(ranks)
        for column in columns:
            while rank < column:
                fill = self._fill(self._at(rank), fill)
                rank = next(ranks)
            letter = fill
            if rank == column:
                event = self._at(rank)
                letter = LETTERS[event.kind]
                used.setdefault(letter, event.kind)
                fill = self._fill(event, fill)
                rank = next(ranks)
            if fill != _NOWHERE and column != columns[-1]:
                used.setdefault(fill, _FILLS[fill])
            yield letter + (fill * (width - 1) if column != columns[-1] else "")

    def _fill(self, event: TraceEvent, before: str) -> str:
        """Return how a lane goes on after an event."""
        job = self._jobs.get(event.job)
        if event.kind == "progressed":
            return before
        if event.kind == "started":
            return _RUNS
        if event.kind in {"retried", "snoozed"} and event.state is None and job is not None and job.on_retry == "yield":
            return _NOWHERE
        if event.kind == "failed" and job is not None and job.on_dead == "hold":
            return _HOLDS
        if event.kind in {"queued", "enqueued", "redriven", "retried", "snoozed", "released", "lost"}:
            return (
                before
                if before == _RUNS and event.kind in {"queued", "enqueued"}
                else (_WAITS if event.state in {None, "QUEUED"} else _NOWHERE)
            )
        return _NOWHERE


def _cut(text: str, width: int) -> str:
    """Return a text on one line that no terminal obeys, cut in the middle."""
    if not text.isprintable():
        text = text.encode("unicode_escape").decode("ascii")
    return text if len(text) <= width else f"{text[: width - 10]}…{text[-9:]}"
