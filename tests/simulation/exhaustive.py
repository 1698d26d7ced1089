"""
Every order in which the requests of a few clients can arrive.

Each client follows its program, a letter an operation: ``e`` enqueues a job at its path, ``c`` claims one job of any
client, ``f`` finishes the job it holds, ``r`` gives it back, ``t`` retries it at once, ``x`` cancels its first job. All
choices of the next client are tried. Orders that reach the same situation are continued once: the progress of each
client, the state and place of each job, and its holder.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from queuehint import operations as op
from queuehint.core.engine import EngineOptions
from queuehint.testing.invariants import check_empty
from queuehint.testing.simulation.report import SimulationError, reason_of
from queuehint.testing.simulation.store import BEGIN_MS, Store
from queuehint.values.hint import Claim, Path, queue_key
from queuehint.values.outcome import Grant, Outcome, OutcomeKind
from queuehint.values.policy import Backoff, Policy
from queuehint.values.record import JobState
from queuehint.values.spec import JobSpec
from tests.simulation.world import RETENTION

PATHS: tuple[Path, ...] = ((), ("a",), ("b",), ("a", "a"), ("a", "b"))
_KINDS = {"f": OutcomeKind.FINISHED, "r": OutcomeKind.RELEASED, "t": OutcomeKind.FAILED}
_WORDS = {"e": "enqueues", "c": "claims", "f": "finishes", "r": "gives back", "t": "fails", "x": "cancels"}
_POLICY = Policy(backoff=Backoff(base=1, cap=1, jitter=0), max_attempts=3)


class _Clients:
    """Some clients, a store, and how far each client is."""

    def __init__(self, programs: Sequence[str], paths: Sequence[Path], make: Callable[[EngineOptions], Store]) -> None:
        self.store = make(EngineOptions(epoch_s=1, retention=RETENTION))
        self.story: list[str] = []
        self.at = [0] * len(programs)
        self.held: list[list[Grant]] = [[] for _ in programs]
        self._made: list[list[str]] = [[] for _ in programs]
        self._programs = programs
        self._paths = paths

    def step(self, client: int) -> None:
        """Run the next operation of a client."""
        letter = self._programs[client][self.at[client]]
        self.at[client] += 1
        self.story.append(f"c{client} {_WORDS[letter]}")
        self.story[-1] = self._do(client, letter)

    def _do(self, client: int, letter: str) -> str:
        """Do an operation; return it in words."""
        name, held = f"c{client}", self.held[client]
        if letter == "e":
            made = self._made[client]
            made.append(f"{name}.{len(made) + 1}")
            claims = (Claim(self._paths[client]),)
            self._ask(name, op.Enqueue((JobSpec(id=made[-1], task="t", claims=claims, policy=_POLICY),)))
            return f"{name} enqueues {made[-1]} at {queue_key(self._paths[client])}"
        if letter == "c":
            grants = self._ask(name, op.Exchange(name, limit=1)).grants
            held += grants
            return f"{name} claims {', '.join(grant.spec.id for grant in grants) or 'and gets nothing'}"
        if letter == "x":
            job_id = self._made[client][0] if self._made[client] else "nobody"
            self._ask(name, op.Cancel((job_id,)))
            return f"{name} cancels {job_id}"
        settle = tuple([Outcome(job_id=grant.spec.id, token=grant.token, kind=_KINDS[letter]) for grant in held])
        ids = ", ".join(grant.spec.id for grant in held) or "nothing"
        held.clear()
        self._ask(name, op.Exchange(name, settle))
        return f"{name} settles {ids}: {_KINDS[letter].name.lower()}"

    def _ask(self, stream: str, operation: op.Operation[Any]) -> Any:
        return self.store.ask(stream, len(self.store.history) + 1, operation, BEGIN_MS)

    def situation(self) -> tuple[Any, ...]:
        """Return all that decides what may happen from here on."""
        jobs = sorted(self.store.engine.table.jobs.values(), key=lambda job: job.number)
        ranks = {job_id: rank for rank, job_id in enumerate(self.store.promises.placed)}
        return (
            tuple(self.at),
            tuple(
                [(job.id, job.state, ranks.get(job.id), job.record().worker, job.attempts, job.cancel) for job in jobs]
            ),
        )

    def check(self) -> None:
        self.store.promises.check_all(self.store.engine)

    def wind_down(self) -> None:
        """Give back what is held, run what is left, let all records expire, and see that nothing remains."""
        engine = self.store.engine
        for client in range(len(self.held)):
            settle = tuple([Outcome(job_id=g.spec.id, token=g.token, kind=_KINDS["r"]) for g in self.held[client]])
            self._ask(f"c{client}", op.Exchange(f"c{client}", settle))
        while grants := self._ask("end", op.Exchange("end", limit=100)).grants:
            self._ask(
                "end",
                op.Exchange("end", tuple([Outcome(job_id=g.spec.id, token=g.token, kind=_KINDS["f"]) for g in grants])),
            )
        states = {job.state for job in engine.table.jobs.values()}
        assert states <= {JobState.FINISHED, JobState.CANCELED}, f"at the end there are jobs that are {states}"
        while (next_ms := engine.next_ms) is not None:
            self.store.ask("end", len(self.store.history) + 1, op.Exchange("end"), next_ms)
        check_empty(engine)


def explore(
    programs: Sequence[str],
    paths: Sequence[Path],
    *,
    make: Callable[[EngineOptions], Store] = Store,
) -> int:
    """
    Try every order in which some clients may do what their programs say.

    Args:
        programs: what each client does, a letter an operation.
        paths: where each one's jobs belong.
        make: makes the store; for tests of this.

    Returns:
        How many situations there are.

    Raises:
        SimulationError: a promise was broken; with an order of the fewest operations.
    """
    known: set[tuple[Any, ...]] = set()
    # The shortest orders first: what fails first fails with the fewest operations.
    orders: list[tuple[int, ...]] = [()]
    while orders:
        longer: list[tuple[int, ...]] = []
        for order in orders:
            for client, program in enumerate(programs):
                if order.count(client) == len(program):
                    continue
                crew = _Clients(programs, paths, make)
                try:
                    for each in (*order, client):
                        crew.step(each)
                    situation = crew.situation()
                    if situation in known:
                        continue
                    known.add(situation)
                    crew.check()
                    if all(at == len(each) for at, each in zip(crew.at, programs, strict=True)):
                        crew.story.append("everything comes to its end")
                        crew.wind_down()
                except Exception as error:
                    told = ", ".join(repr(queue_key(path)) for path in paths)
                    raise SimulationError(
                        seed=0,
                        step=len(crew.story),
                        reason=reason_of(error),
                        story=crew.story,
                        command=f"explore({list(programs)}, paths {told})",
                    ) from error
                longer.append((*order, client))
        orders = longer
    return len(known)
