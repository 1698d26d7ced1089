"""
Lockstep of an engine and the program extracted from the proof of leases.

Workers claim, settle with tokens that are valid, lost, another job's or none, and renew; leases expire, jobs are
canceled, the store is opened again. A settlement counts in the engine exactly if it does in the model, and after each
operation the same jobs are leased by the same tokens.
"""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any, Final

from queuehint import operations as op
from queuehint.core.engine import Engine, EngineOptions
from queuehint.core.structures.job import Job
from queuehint.values.event import EventKind
from queuehint.values.hint import Claim
from queuehint.values.outcome import Outcome, OutcomeKind
from queuehint.values.policy import Policy
from queuehint.values.spec import JobSpec
from tests.proof.programs import replay

KINDS: Final = [kind for kind in OutcomeKind if kind is not OutcomeKind.CHILDREN]
DELAYED: Final = frozenset({OutcomeKind.FAILED, OutcomeKind.SNOOZED})
UNKNOWN: Final = 7
"""A token that was never granted."""
LEASE_MS: Final = 1000


class Leases:
    """One history, what it is to the model, and what the engine says."""

    def __init__(self, seed: int) -> None:
        self.random = random = Random(seed)
        self.engine = Engine(EngineOptions(budget=random.choice((1, 3, 1000))))
        self.engine.begin_epoch(1000, 0)
        self.now_ms = 1_000_000
        self.jobs = 0
        self.given: list[tuple[str, int]] = []
        self.stopped: list[str] = []
        self.started: list[tuple[str, int]] = []
        self.events = ["B"]
        self.answers = ["B"]
        self.counted = self.late = 0
        self._watch()

    def _watch(self) -> None:
        table = self.engine.table
        stop, start = table._stop, table.start

        def stopped(job: Job, kind: EventKind) -> None:
            self.stopped.append(job.id)
            stop(job, kind)

        def started(job: Job, worker: str, token: int, lease_until_ms: int, now_ms: int) -> None:
            self.started.append((job.id, token))
            start(job, worker, token, lease_until_ms, now_ms)

        for name, watching in (("_stop", stopped), ("start", started)):
            setattr(table, name, watching)

    def play(self, steps: int) -> None:
        for _ in range(steps):
            self._step()
            leased = sorted((int(job.id), job.token) for job in self.engine.table.registry.running.values())
            self._say("?", "?" + "".join([f" {job}:{token}" for job, token in leased]))

    def _say(self, event: str, answer: str) -> None:
        self.events.append(event)
        self.answers.append(answer)

    def _apply(self, operation: Any) -> Any:
        self.stopped.clear()
        self.started.clear()
        return self.engine.apply(operation, self.now_ms)

    def _reaped(self, stopped: list[str]) -> None:
        for job_id in stopped:
            self._say(f"P {job_id}", "P")

    def _token(self) -> tuple[str, int]:
        """Return a job and the token of its lease, or one that was lost, of another job or of none."""
        random, leased = self.random, [(job.id, job.token or 0) for job in self.engine.table.registry.running.values()]
        draw = random.random()
        if leased and draw < 0.5:
            return random.choice(leased)
        if not self.given or draw < 0.55:
            return random.choice(self.given)[0] if self.given else "1", UNKNOWN
        job_id, token = random.choice(self.given)
        return (random.choice(self.given)[0] if draw < 0.65 else job_id), token

    def _step(self) -> None:
        random = self.random
        draw = random.random()
        self.now_ms += random.choice((0, 0, 1, 300, LEASE_MS))
        if draw < 0.25:
            self._enqueue()
        elif draw < 0.75:
            self._exchange()
        elif draw < 0.85:
            self._renew()
        elif draw < 0.97:
            self._apply(op.Cancel((str(1 + random.randrange(self.jobs + 1)),)) if draw < 0.9 else op.Tick())
            self._reaped(self.stopped)
        else:
            self.engine.begin_epoch(self.engine.token + 100, 0)
            self.engine.end_leases(self.now_ms)
            self._say("N 100", "N")

    def _enqueue(self) -> None:
        self.jobs += 1
        policy = Policy(max_attempts=3, max_losses=2, on_retry=self.random.choice(("hold", "yield")))
        claims = (Claim((self.random.choice("ab"),)),) if self.random.random() < 0.7 else ()
        self._apply(op.Enqueue((JobSpec(id=str(self.jobs), task="t", claims=claims, policy=policy),)))
        self._reaped(self.stopped)

    def _exchange(self) -> None:
        random = self.random
        outcomes = [
            Outcome(job_id=job_id, token=token, kind=kind, delay_ms=random.choice((0, 500)) if kind in DELAYED else 0)
            for job_id, token in (self._token() for _ in range(random.choice((0, 1, 1, 3))))
            for kind in (random.choice(KINDS),)
        ]
        limit = random.choice((0, 1, 2))
        asked = op.Exchange("w", settle=tuple(outcomes), pools=("default",), limit=limit, lease_ms=LEASE_MS)
        verdicts = self._apply(asked).verdicts
        counted = 0
        for outcome, verdict in zip(outcomes, verdicts, strict=True):
            counts = verdict is op.Verdict.DONE
            self._say(f"S {outcome.job_id} {outcome.token}", f"S {str(counts).lower()}")
            counted += counts
        self.counted += counted
        self.late += len(outcomes) - counted
        # A settlement stops its own job.
        self._reaped(self.stopped[counted:])
        for job_id, token in self.started:
            self.given.append((job_id, token))
            self._say(f"G {job_id} {token}", "G true")

    def _renew(self) -> None:
        leases = [self._token() for _ in range(2)]
        for (job_id, token), verdict in zip(
            leases, self._apply(op.Renew(tuple(leases), LEASE_MS)).verdicts, strict=True
        ):
            self._say(f"W {job_id} {token}", f"W {str(verdict is not op.Verdict.LOST).lower()}")
        self._reaped(self.stopped)


def compare(program: Path, seeds: range, steps: int) -> tuple[int, int]:
    """Play histories on both sides; return how many settlements counted and how many came late."""
    histories = [Leases(seed) for seed in seeds]
    for history in histories:
        history.play(steps)
    proved = iter(replay(program, [event for history in histories for event in history.events]))
    for seed, history in zip(seeds, histories, strict=True):
        for at, (answer, other) in enumerate(zip(history.answers, proved, strict=False)):
            if answer != other:
                events = "\n".join(history.events[: at + 1])
                raise AssertionError(f"seed {seed}, after\n{events}\nthe code says {answer!r}, the proof {other!r}")
    return sum(history.counted for history in histories), sum(history.late for history in histories)
