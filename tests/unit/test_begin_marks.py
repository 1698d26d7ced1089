"""Race of a worker that begins a job against its helper that releases the lease: exactly one wins, in any order."""

from __future__ import annotations

import asyncio
import os
from itertools import permutations
from types import SimpleNamespace
from typing import Any, cast

import pytest

from queuehint import operations as op
from queuehint.errors import BackendUnavailableError, QueueHintError
from queuehint.handlers.codec import JsonCodec
from queuehint.handlers.context import JobContext
from queuehint.handlers.handler import Handler
from queuehint.values.outcome import Grant, OutcomeKind
from queuehint.values.spec import JobSpec
from queuehint.worker.attempts import AttemptRunner
from queuehint.worker.leases import helper as helper_module
from queuehint.worker.leases.begin_marks import PLACES, SEEN_AFTER_S, BeginMarks
from queuehint.worker.leases.helper import GIVE_BACK_AFTER_S, Renewer
from queuehint.worker.leases.pulse import BEAT_S
from queuehint.worker.leases.renewal import Renewal
from queuehint.worker.slots import Slot
from queuehint.worker.state import WorkerState

TOKEN = (180_000_000 << 32) + 7


def two_ends() -> tuple[BeginMarks, BeginMarks]:
    """Return the worker's end and the helper's, each with the memory mapped for itself."""
    mine = BeginMarks()
    return mine, BeginMarks(os.dup(mine.number))


class Steps:
    """The steps of both ends, one access to the memory at a time, in every order of them."""

    def __init__(self) -> None:
        self.worker, self.helper = two_ends()
        self.place = TOKEN % PLACES
        self.runs = self.gives_back = False
        self.took = False

    def worker_1(self) -> None:
        self.worker._begun[self.place] = TOKEN

    def worker_2(self) -> None:
        self.runs = self.worker._taken[self.place] != TOKEN

    def helper_1(self) -> None:
        self.took = self.helper.take(TOKEN)

    def helper_2(self) -> None:
        self.gives_back = self.took and not self.helper.has_begun(TOKEN)


@pytest.mark.parametrize(
    "order",
    [
        order
        for order in permutations(("worker_1", "worker_2", "helper_1", "helper_2"))
        if order.index("worker_1") < order.index("worker_2") and order.index("helper_1") < order.index("helper_2")
    ],
)
def test_at_most_one_has_it_in_every_order(order: tuple[str, ...]) -> None:
    steps = Steps()
    for step in order:
        getattr(steps, step)()
    assert not (steps.runs and steps.gives_back)
    if order.index("helper_1") > order.index("worker_2"):
        assert steps.runs, "without a helper that wants it, it runs"


def test_begin_is_these_steps() -> None:
    worker, helper = two_ends()
    assert worker.begin(TOKEN)
    assert helper.has_begun(TOKEN)
    assert not helper.take(TOKEN)
    assert helper.take(TOKEN + 1)
    assert not worker.begin(TOKEN + 1)
    assert not worker.begin(TOKEN + 1), "it stays so"
    helper.forget(TOKEN)
    assert not worker.begin(TOKEN + 1), "that was another one"


def test_of_two_that_share_a_place_none_runs_twice() -> None:
    worker, helper = two_ends()
    old, new = TOKEN, TOKEN + PLACES
    assert helper.take(new)
    assert not helper.take(old), "the place is taken"
    assert not worker.begin(new)
    helper.forget(new)
    # The older one counts as begun, and is left to the worker.
    assert not helper.take(old)
    assert worker.begin(old)
    assert helper.has_begun(new), "what was marked stays marked"


class Store:
    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.is_away = False

    def call_sync(self, operation: Any) -> Any:
        if self.is_away:
            raise BackendUnavailableError("away")
        self.asked.append(operation)
        assert isinstance(operation, (op.Exchange, op.Renew))
        if isinstance(operation, op.Renew):
            return op.Renewed(tuple(op.Verdict.DONE for _ in operation.leases), more=False)
        return None


class Pair:
    """A helper's rules in this process, its clock, and the worker's end of what they share."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.at_s = 1000.0
        monkeypatch.setattr(helper_module, "now_s", lambda: self.at_s)
        self.marks = BeginMarks()
        self.store = Store()
        self.said: list[str] = []
        config = {
            "lease_ms": 30_000,
            "abandon_after_s": 60.0,
            "worker": os.getppid(),
            "marks": os.dup(self.marks.number),
        }
        self.renewer = Renewer(cast("Any", self.store), config, self.said.append)
        self.renewer.take([".", *[f"+{TOKEN + n} j{n}" for n in range(4)]])

    def look(self, after_s: float) -> list[str]:
        self.at_s += after_s
        self.renewer.give_back()
        return [outcome.job_id for asked in self.store.asked for outcome in getattr(asked, "settle", ())]


def test_unbegun_jobs_of_a_blocked_loop_are_returned(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pair = Pair(monkeypatch)
    assert pair.marks.begin(TOKEN)
    assert pair.look(GIVE_BACK_AFTER_S) == []
    assert pair.look(BEAT_S) == [], "taken first"
    # Too late for this one: it is marked, and it sees that it was taken.
    assert not pair.marks.begin(TOKEN + 3)
    assert pair.look(SEEN_AFTER_S) == ["j1", "j2"]
    assert {outcome.kind for outcome in pair.store.asked[0].settle} == {OutcomeKind.RELEASED}
    assert pair.said == [f"released {TOKEN + n} j{n}" for n in (1, 2)]
    assert "2 jobs whose code has not begun are given back" in capsys.readouterr().err
    assert pair.look(5.0) == ["j1", "j2"], "once"
    pair.renewer.renew()
    assert pair.store.asked[-1].leases == (("j0", TOKEN), ("j3", TOKEN + 3))
    assert [pair.marks.begin(TOKEN + n) for n in (1, 2)] == [False, False], "also when the event loop runs again"
    pair.renewer.take([f"-{TOKEN + 1} j1"])
    assert pair.marks.begin(TOKEN + 1), "what the worker is done with is forgotten"


def test_nothing_is_taken_of_a_loop_that_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = Pair(monkeypatch)
    pair.look(GIVE_BACK_AFTER_S)
    pair.renewer.take(["."])
    assert pair.look(BEAT_S) == pair.look(SEEN_AFTER_S) == []
    assert all(pair.marks.begin(TOKEN + n) for n in range(4))


def test_unbegun_jobs_are_returned_after_an_outage(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = Pair(monkeypatch)
    pair.look(GIVE_BACK_AFTER_S + BEAT_S)
    pair.store.is_away = True
    with pytest.raises(QueueHintError):
        pair.look(SEEN_AFTER_S)
    assert pair.said == []
    pair.store.is_away = False
    assert pair.look(SEEN_AFTER_S) == ["j0", "j1", "j2", "j3"]


def state_of(helper: object = None) -> WorkerState:
    backend = cast("Any", SimpleNamespace(keeps_leases=False))
    return WorkerState(backend, JsonCodec(), "w", helper=cast("Any", helper))


def slot_of(state: WorkerState, token: int) -> Slot:
    grant = Grant(JobSpec(id="j", task="t", arguments=b"{}"), token, 1, 0, 0)
    (lease,) = state.leases.exchange((), (grant,), 0.0)
    slot = Slot(grant, JobContext(grant, state), lease)
    state.slots.enter(slot)
    return slot


async def test_code_whose_lease_was_taken_does_not_begin() -> None:
    worker, helper = two_ends()
    ran: list[int] = []

    async def work() -> None:
        ran.append(1)

    state = state_of()
    state.leases.marks = worker
    runner = AttemptRunner(state, {"t": Handler("t", work)})
    assert helper.take(TOKEN + 1)
    outcomes = []
    for token in (TOKEN, TOKEN + 1):
        slot = slot_of(state, token)
        slot.task = asyncio.ensure_future(cast("Any", runner.run(slot)))
        outcomes.append(await cast("Any", slot.task))
    assert [outcome.kind for outcome in outcomes] == [OutcomeKind.FINISHED, OutcomeKind.RELEASED]
    assert ran == [1]
    assert helper.has_begun(TOKEN)


def test_worker_drops_slots_returned_by_its_helper(caplog: pytest.LogCaptureFixture) -> None:
    state = state_of()
    slot = slot_of(state, TOKEN)
    Renewal(state)._take([f"released {TOKEN} j", f"released {TOKEN} gone"])
    assert slot.is_given_back
    assert state.leases.held == {}
    assert "given back by the helper" in caplog.text
