"""Attempts of suspected poison jobs: when they start, on a virtual clock."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from queuehint.handlers.codec import JsonCodec
from queuehint.handlers.context import JobContext
from queuehint.handlers.handler import Handler
from queuehint.operations import Renewed, Verdict
from queuehint.testing.simulation.loop import VirtualLoop
from queuehint.values.outcome import Grant, Outcome, OutcomeKind
from queuehint.values.policy import Policy
from queuehint.values.spec import JobSpec
from queuehint.worker.attempts import LAST_LIFE_S, LAST_LIVES_WITHIN_S, AttemptRunner
from queuehint.worker.slots import Slot
from queuehint.worker.state import WorkerState


class Stage:
    """One worker's attempts at jobs that have lost all workers but one, and its store; it tells when each began."""

    is_local = keeps_leases = True

    def __init__(self, job_s: float) -> None:
        self.job_s = job_s
        self.begun_s: list[float] = []
        self.said: list[str] = []
        self.may_begin = True
        self.slots: list[Slot] = []
        self.state = WorkerState(cast("Any", self), JsonCodec(), "w")
        self.attempts = AttemptRunner(self.state, {"t": Handler("t", self.work)})

    async def call(self, operation: Any) -> Renewed:
        """Answer as a store that is told of begins."""
        await asyncio.sleep(0)
        self.said += [job_id for job_id, _ in operation.leases]
        return Renewed(tuple([Verdict.DONE if self.may_begin else Verdict.LOST] * len(operation.leases)), False)

    async def work(self) -> None:
        self.begun_s.append(asyncio.get_running_loop().time())
        await asyncio.sleep(self.job_s)

    def start(self, count: int) -> list[asyncio.Task[Outcome]]:
        tasks = []
        for n in range(count):
            spec = JobSpec(id=f"j{n}", task="t", arguments=b"{}", policy=Policy(max_losses=3))
            grant = Grant(spec, n, 1, 2, 0)
            (lease,) = self.state.leases.exchange((), (grant,), 0.0)
            slot = Slot(grant, JobContext(grant, self.state), lease)
            self.state.slots.enter(slot)
            slot.task = asyncio.ensure_future(cast("Any", self.attempts.run(slot)))
            self.slots.append(slot)
            tasks.append(cast("asyncio.Task[Outcome]", slot.task))
        return tasks


def run(main: Any) -> None:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(main)


def test_last_life_begins_after_the_previous_one_or_a_delay() -> None:
    async def main(job_s: float) -> list[float]:
        stage = Stage(job_s)
        outcomes = await asyncio.gather(*stage.start(3))
        assert {outcome.kind for outcome in outcomes} == {OutcomeKind.FINISHED}
        return stage.begun_s

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        assert runner.run(main(1)) == [0, 1, 2]
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        assert runner.run(main(3600)) == [0, LAST_LIFE_S, 2 * LAST_LIFE_S]


@pytest.mark.parametrize("count", [13, 100, 1000])
def test_all_waiting_last_lives_begin_within_a_minute(count: int) -> None:
    async def main() -> None:
        stage = Stage(3600)
        await asyncio.gather(*stage.start(count))
        assert len(stage.begun_s) == count
        assert stage.begun_s[1] == LAST_LIFE_S, "when the first one began nobody waited"
        assert stage.begun_s[-1] - stage.begun_s[1] <= LAST_LIVES_WITHIN_S
        assert len(set(stage.begun_s)) == count, "each by itself"
        # A job that comes when none waits is as suspect as before.
        begun = len(stage.begun_s)
        await asyncio.gather(*stage.start(2))
        first_s, second_s = stage.begun_s[begun:]
        assert second_s - first_s == LAST_LIFE_S

    run(main())


def test_forbidden_last_life_is_released_and_the_next_begins() -> None:
    async def main() -> None:
        stage = Stage(1)
        stage.may_begin = False
        outcomes = await asyncio.gather(*stage.start(2))
        assert [outcome.kind for outcome in outcomes] == [OutcomeKind.RELEASED] * 2
        assert (stage.said, stage.begun_s) == (["j0", "j1"], [])

    run(main())


def test_last_life_stopped_during_its_announcement_does_not_begin() -> None:
    async def main() -> None:
        stage = Stage(1)
        first, second = stage.start(2)
        await asyncio.sleep(0)
        stage.slots[0].why_stop = "canceled"
        assert (await first).kind is OutcomeKind.RELEASED
        assert (await second).kind is OutcomeKind.FINISHED
        assert stage.begun_s == [0]

    run(main())
