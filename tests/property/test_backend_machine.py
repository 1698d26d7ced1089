"""Our backends in lockstep with the engine and the reference model; broken backends are detected."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any, ClassVar

import attrs
import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from queuehint import Backend, FakeClock
from queuehint import operations as op
from queuehint.backends.base import BackendOptions
from queuehint.backends.journal import opening as opening_module
from queuehint.backends.memory import MemoryBackend
from queuehint.backends.redis.address import parse_url
from queuehint.backends.redis.backend import RedisBackend
from queuehint.backends.sqlite.address import Address
from queuehint.backends.sqlite.backend import SqliteBackend
from queuehint.schema.compiled import kinds_of
from queuehint.schema.kinds import Proof, Value
from queuehint.testing import BackendStateMachine
from queuehint.testing.contract.wrong_values import right_operations
from queuehint.testing.state_machine.agreement import TokenMap, with_tokens
from queuehint.testing.state_machine.comparison import Restart
from queuehint.testing.state_machine.shrink import shorten
from queuehint.values.hint import Claim
from queuehint.values.outcome import Grant
from queuehint.values.spec import JobSpec
from tests.folders import quick_folder
from tests.servers import new_namespace, shared_server
from tests.sqlite_store import leave_journal


class OnMemory(BackendStateMachine):
    def open(self, clock: FakeClock) -> Backend:
        return MemoryBackend(BackendOptions(clock=clock))


class OnRedis(BackendStateMachine):
    def open(self, clock: FakeClock) -> Backend:
        options = BackendOptions(namespace=new_namespace("machine"), clock=clock)
        return RedisBackend(parse_url(shared_server().url), options)


class OnSqlite(BackendStateMachine):
    """One file after the other; it is closed and opened again, or cut off, by the same process."""

    folder: ClassVar[Path]
    files: ClassVar[Iterator[int]] = count()

    def open(self, clock: FakeClock) -> Backend:
        self.address = Address(path=self.folder / f"{next(self.files)}.db", durability="process")
        return SqliteBackend(self.address, BackendOptions(clock=clock))

    def reopen(self, backend: Backend, clock: FakeClock) -> Backend | None:
        assert isinstance(backend, SqliteBackend)
        if clock.now_ms() % 2:
            leave_journal(backend)
        backend.close_sync()
        return SqliteBackend(self.address, BackendOptions(clock=clock))


class OnSqliteOfOthers(OnSqlite):
    """The file is opened by another process; its previous owner is dead."""

    leases_end_at_restart = True

    def reopen(self, backend: Backend, clock: FakeClock) -> Backend | None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(opening_module, "_process", f"another {next(self.files)}")
            reopened = super().reopen(backend, clock)
            assert reopened is not None
            reopened.call_sync(op.Peek())
        return reopened


@pytest.fixture(autouse=True, scope="module")
def _folder() -> Iterator[None]:
    with quick_folder() as OnSqlite.folder:
        yield


TestMemory = OnMemory.TestCase
TestMemory.settings = settings(TestMemory.settings, max_examples=max(10, settings().max_examples // 3))
TestRedis = pytest.mark.redis(OnRedis.TestCase)
TestSqlite = OnSqlite.TestCase
TestSqlite.settings = settings(OnSqlite.TestCase.settings, max_examples=max(3, settings().max_examples // 10))
TestSqliteOfOthers = OnSqliteOfOthers.TestCase
TestSqliteOfOthers.settings = TestSqlite.settings
# A step is a hundred times as dear as without a store.
TestRedis.settings = settings(OnRedis.TestCase.settings, max_examples=max(3, settings().max_examples // 10))


# --- backends that break a rule --------------------------------------------------------------------------------------


class Wrong(MemoryBackend):
    """A backend that does something else than it is asked."""

    def __init__(self, clock: FakeClock, twist: Callable[[Any], Any]) -> None:
        super().__init__(BackendOptions(clock=clock))
        self.twist = twist

    def call_sync(self, operation: op.Operation[Any]) -> Any:
        answer = self.twist(operation)
        return super().call_sync(operation) if answer is None else super().call_sync(answer)


def convicted(twist: Callable[[Any], Any], histories: int = 200) -> tuple[str, int]:
    """Return what is said of a backend with a twist, and how many steps it takes to see it."""

    class Machine(BackendStateMachine):
        def open(self, clock: FakeClock) -> Backend:
            return Wrong(clock, twist)

    with pytest.raises(AssertionError) as caught:
        run_state_machine_as_test(
            Machine,
            settings=settings(Machine.TestCase.settings, max_examples=histories, database=None, derandomize=True),
        )
    notes = "\n".join(getattr(caught.value, "__notes__", ()))
    found = re.search(r"To see it again in (\d+) steps:\nMachine.replay\(", notes)
    assert found is not None, notes
    return str(caught.value), int(found[1])


def test_backend_that_forgets_cancellations_is_convicted_in_two_steps() -> None:
    said, steps = convicted(lambda operation: op.Tick() if isinstance(operation, op.Cancel) else None)
    assert "must be answered" in said
    assert "but the backend said" in said
    assert steps <= 2


@pytest.mark.nightly
def test_backend_that_renews_too_briefly_is_convicted_in_five_steps() -> None:
    def twist(operation: Any) -> Any:
        return attrs.evolve(operation, lease_ms=operation.lease_ms - 1) if isinstance(operation, op.Renew) else None

    # Few histories renew a job, and then look at it before its lease is renewed again or ends otherwise.
    assert convicted(twist, histories=2000)[1] <= 5


def test_backend_without_claims_is_convicted_in_three_steps() -> None:
    def twist(operation: Any) -> Any:
        if isinstance(operation, op.Enqueue):
            return attrs.evolve(operation, jobs=tuple([attrs.evolve(spec, claims=()) for spec in operation.jobs]))
        return None

    assert convicted(twist)[1] <= 3


# --- a store that outlives its process -------------------------------------------------------------------------------


class Journaled(MemoryBackend):
    """A store that writes down what it did, and when."""

    def __init__(self, clock: FakeClock, journal: list[tuple[int, op.Operation[Any]]]) -> None:
        super().__init__(BackendOptions(clock=clock))
        self.clock = clock
        # Tokens begin anew with each store, but those of one that is begun again.
        self.engine.state.token = 0
        for at_ms, operation in journal:
            try:
                self.engine.apply(operation, at_ms)
            except Exception:
                continue
        self.journal = journal

    def call_sync(self, operation: op.Operation[Any]) -> Any:
        self.journal.append((self.clock.now_ms(), operation))
        return super().call_sync(operation)


class Lasting(BackendStateMachine):
    def open(self, clock: FakeClock) -> Backend:
        return Journaled(clock, [])

    def reopen(self, backend: Backend, clock: FakeClock) -> Backend | None:
        assert isinstance(backend, Journaled)
        return Journaled(clock, list(backend.journal))


class Losing(Lasting):
    def reopen(self, backend: Backend, clock: FakeClock) -> Backend | None:
        assert isinstance(backend, Journaled)
        return Journaled(clock, [step for step in backend.journal if not isinstance(step[1], op.Exchange)])


@pytest.mark.slow
def test_a_store_goes_on_after_a_restart() -> None:
    run_state_machine_as_test(Lasting, settings=settings(Lasting.TestCase.settings, max_examples=20, database=None))


@pytest.mark.slow
def test_store_that_loses_answered_operations_is_convicted() -> None:
    with pytest.raises(AssertionError) as caught:
        run_state_machine_as_test(
            Losing, settings=settings(Losing.TestCase.settings, max_examples=200, database=None, derandomize=True)
        )
    assert "Restart()" in "".join(caught.value.__notes__)


# --- histories -------------------------------------------------------------------------------------------------------

A = JobSpec(id="A", task="t", claims=(Claim(("x",)),))


def test_a_history_is_replayed_to_its_end() -> None:
    OnMemory.replay([(0, op.Enqueue((A,))), (0, op.Exchange("w", limit=1)), (10, op.Renew((("A", 1),)))])
    OnMemory.replay([(0, op.Enqueue((A,))), (0, op.Exchange("w", limit=1)), (10, op.Renew((("A", 1),)))], shell="async")


def test_a_replay_fails_as_the_machine_does() -> None:
    class Machine(BackendStateMachine):
        def open(self, clock: FakeClock) -> Backend:
            return Wrong(clock, lambda operation: op.Tick() if isinstance(operation, op.Renew) else None)

    with pytest.raises(AssertionError, match="Ticked"):
        Machine.replay([(0, op.Renew(()))])


def test_shortened_history_keeps_the_failure_without_delays() -> None:
    history = [(at, op.Enqueue((attrs.evolve(A, id=str(at), priority=5),))) for at in range(20)]

    def fails(steps: list[tuple[int, Any]]) -> bool:
        return {"3", "7"} <= {spec.id for _, operation in steps for spec in operation.jobs}

    assert shorten(history, fails) == [
        (0, op.Enqueue((JobSpec(id="3", task="t"),))),
        (0, op.Enqueue((JobSpec(id="7", task="t"),))),
    ]


def test_tokens_of_replies_are_the_engines() -> None:
    tokens = TokenMap()

    def granted(token: int) -> op.Exchanged:
        return op.Exchanged((), (Grant(A, token, 1, 0, 5),), (), more=False)

    tokens.learn(granted(1), granted(70))
    assert tokens.to_ours(granted(70)) == granted(1)
    assert tokens.to_theirs(op.Renew((("A", 1), ("B", 5)))) == op.Renew((("A", 70), ("B", 5)))
    assert tokens.to_ours(op.Renewed((op.Verdict.DONE,), more=False)) == op.Renewed((op.Verdict.DONE,), more=False)
    with pytest.raises(AssertionError, match="tokens only rise"):
        tokens.learn(granted(2), granted(69))


def _holds_a_token(kind: Any) -> bool:
    if isinstance(kind, Value):
        return attrs.has(kind.cls) and any(map(_holds_a_token, kinds_of(kind.cls).values()))
    parts = [getattr(kind, "kind", kind), getattr(kind, "item", kind), *getattr(kind, "items", ())]
    return isinstance(kind, Proof) or any(_holds_a_token(part) for part in parts if part is not kind)


def test_every_operation_with_a_token_sends_that_of_the_backend() -> None:
    with_one = [each for each in right_operations() if any(map(_holds_a_token, kinds_of(type(each)).values()))]
    assert len(with_one) == 5
    for operation in [each for each in with_one if not isinstance(each, op.Enqueue)]:
        theirs = with_tokens(operation, {1: 70})
        assert theirs != operation
        assert with_tokens(theirs, {70: 1}) == operation
    assert with_tokens(op.Enqueue((A,), parent=("P", 1)), {1: 70}) == op.Enqueue((A,), parent=("P", 70))


def test_opening_the_file_of_a_dead_process_expires_its_leases() -> None:
    class WithLeases(OnSqliteOfOthers):
        leases_end_at_restart = False

    history = [(0, op.Enqueue((A,))), (0, op.Exchange("w", limit=1)), (5, Restart()), (5, op.Tick())]
    OnSqliteOfOthers.replay(history)
    with pytest.raises(AssertionError, match="must be answered"):
        WithLeases.replay(history)
