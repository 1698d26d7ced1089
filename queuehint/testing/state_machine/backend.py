"""`BackendStateMachine`: the class that authors of a backend subclass to test it against the rules."""

from __future__ import annotations

import contextlib
import traceback
from abc import abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from queuehint.clock import FakeClock
from queuehint.testing.commits import commit_of
from queuehint.testing.state_machine.agreement import with_tokens
from queuehint.testing.state_machine.comparison import Ask, Comparison, Restart
from queuehint.testing.state_machine.parts import first_jobs
from queuehint.testing.state_machine.rules import OperationMachine
from queuehint.testing.state_machine.shrink import shorten
from queuehint.testing.state_machine.source import as_code
from queuehint.values.policy import Retention

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from queuehint.backends.base import Backend
    from queuehint.operations import Commit, Operation
    from queuehint.values.hint import Claim

__all__ = ["BackendStateMachine"]

Reply = TypeVar("Reply")


class BackendStateMachine(OperationMachine):
    """
    A backend in step with the engine and the reference model, through every fault.

    Subclass it in a module of tests, with a method ``open`` that returns an empty store on the clock that it is given,
    and name its test case::

        class Mine(BackendStateMachine):
            def open(self, clock: FakeClock) -> Backend:
                return MyBackend(BackendOptions(clock=clock))


        TestMine = Mine.TestCase

    Every reply, refusal and due time is compared with the engine's, and the engine's with the rules of the model; after
    each step all records are, and now and then every question is asked. At the end everything is ended and pruned, and
    the store must be empty. Tokens may be any integers that rise.

    What fails is shrunk to a short history. It is printed as calls of the rules, and as operations for `replay`::

        def test_a_dependent_waits() -> None:
            Mine.replay([(0, Enqueue(...)), (1, Exchange("w", limit=1))])

    Tests are marked and set like all tests of Hypothesis, but begin with the settings that are there: else Hypothesis
    shrinks what fails by itself, too: ``TestMine.settings = settings(TestMine.settings, max_examples=1000)``.

    .. versionadded:: 1.0.0
    """

    retention: ClassVar[Retention] = Retention()
    """How long the store keeps records; a store that `open` tells otherwise says so here."""

    leases_end_at_restart: ClassVar[bool] = False
    """Reopening the store ends all leases: their jobs are reaped at once."""

    _done: Comparison | None = None
    _is_replay = False
    _failed = False

    @abstractmethod
    def open(self, clock: FakeClock) -> Backend:
        """Return an empty store on the time of *clock*, closed at the end of the history."""

    def reopen(self, backend: Backend, clock: FakeClock) -> Backend | None:
        """
        End a store as by a crash, and return its successor in another process, None if there is none.

        Nothing that was answered may be lost. Override it for a store that outlives its process.
        """
        return None

    @property
    def bench(self) -> Comparison:
        """The store beside the engine and the model."""
        assert self._done is not None, "a history begins with `begin`"
        return self._done

    @initialize(target=OperationMachine.ids, shell=st.sampled_from(["sync", "async"]), jobs=first_jobs)
    def begin(self, shell: str, jobs: Any) -> Any:
        """Open a store, and enqueue some jobs. Calls go through ``call_sync`` or ``call``."""
        clock = FakeClock()
        self._done = Comparison(
            self.open(clock),
            clock,
            retention=self.retention,
            shell=shell,
            reopen=self.reopen,
            leases_end=self.leases_end_at_restart,
        )
        return self.begin_with(jobs)

    @classmethod
    def replay(cls, history: Iterable[tuple[int, Any]], *, shell: str = "sync") -> None:
        """
        Replay a history to its end, as the machine does.

        Args:
            history: times, in ms from the beginning, and operations, with tokens 1, 2, 3 in order of grant.
            shell: ``"async"`` to call by ``call``.

        Raises:
            AssertionError: as the machine does.
        """
        cls._play(list(history), shell, {})

    @classmethod
    def _play(cls, history: list[tuple[int, Any]], shell: str, names: dict[int, tuple[str, int]]) -> None:
        """Play a history. *names* maps the tokens in the source history to the grants of jobs."""
        machine = cls()
        machine._is_replay = True
        machine.begin(shell, [])
        bench, done = machine.bench, []
        try:
            for at_ms, operation in history:
                tokens = {name: token for token, name in bench.names.items()}
                renamed = with_tokens(operation, {token: tokens.get(name, token) for token, name in names.items()})
                done.append((at_ms, renamed))
                machine.go_to(bench.begin_ms + at_ms)
                machine.do(renamed)
        finally:
            history[:] = done
            machine.teardown()

    def do(self, operation: Operation[Reply]) -> Reply | None:
        """Apply an operation to all, and compare the replies."""
        reply: Reply | None = self._try(lambda: self.bench.do(operation))
        return reply

    def _try(self, act: Callable[[], Any]) -> Any:
        """Run a step. On a failure, report how to reproduce it in few steps."""
        try:
            return act()
        except Exception as error:
            self._failed = True
            if not self._is_replay:
                self._explain(error)
            raise

    def _explain(self, error: Exception) -> None:
        bench, fault = self.bench, _fault_of(error)
        if not str(error):
            last = traceback.extract_tb(error.__traceback__)[-1]
            error.add_note(f"The engine does not do what the rules say, {last.name}: {last.line}")

        def fails(history: list[tuple[int, Any]]) -> bool:
            try:
                self._play(list(history), bench.shell, bench.names)
            except Exception as other:  # noqa: BLE001
                return _fault_of(other) == fault
            return False

        history = [(at - bench.begin_ms, operation) for at, operation in bench.history]
        if fails(history):
            history = shorten(history, fails)
            with contextlib.suppress(Exception):
                # With the tokens that this history gives.
                self._play(history, bench.shell, bench.names)
        steps = "".join(f"    ({at}, {as_code(operation)}),\n" for at, operation in history)
        shell = "" if bench.shell == "sync" else f", shell={bench.shell!r}"
        error.add_note(f"To see it again in {len(history)} steps:\n{type(self).__name__}.replay([\n{steps}]{shell})")

    @property
    def now_ms(self) -> int:
        """The time of all."""
        return self.bench.now_ms

    def commit_of(self, staged: str) -> Commit:
        """Return the commit of all that the engine has of a submission in parts."""
        return commit_of(self.bench.engine, staged)

    def go_to(self, now_ms: int) -> None:
        """Move the time of all forward."""
        self.bench.go_to(now_ms)

    def next_ms(self) -> int | None:
        """When something is due."""
        return self.bench.engine.next_ms

    def ask_everything(self, claim: Claim) -> None:
        """Send every query, and compare."""
        self.do(Ask(claim))

    @precondition(lambda self: type(self).reopen is not BackendStateMachine.reopen)
    @rule()
    def restart(self) -> None:
        """Close and reopen the store."""
        self.do(Restart())

    def teardown(self) -> None:
        """End all jobs, check for leftovers, and close the store."""
        if self._done is None:
            return
        try:
            if not self._failed:
                self._try(self._done.wind_down)
        finally:
            self._done.close()

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        # A history is shortened by its operations, which is a hundred times as fast as by the choices of Hypothesis.
        cls.TestCase.settings = settings(
            cls.TestCase.settings,
            phases=[phase for phase in cls.TestCase.settings.phases if phase not in {Phase.shrink, Phase.explain}],
            report_multiple_bugs=False,
        )


def _fault_of(error: Exception) -> tuple[object, ...]:
    """Return the class and the place of an error, because a shorter history may have another fault."""
    where = error.__traceback__
    while where is not None and where.tb_next is not None:
        where = where.tb_next
    return type(error), None if where is None else (where.tb_frame.f_code, where.tb_lineno)
