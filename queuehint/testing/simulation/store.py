"""
A store that can fail: the engine behind sessions, with the history for a restart.

A client numbers its requests in a stream, one in flight at a time; the store keeps a receipt of the stream's last one,
so that a repeat is answered and changes nothing, as on Redis. All operations are recorded: a restart without the last
steps replays the others, and so does another process that begins to lead a journal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

from queuehint.backends.journal.recovery import begin_engine, begin_with
from queuehint.core.engine import EPOCH_BEGIN_S, Engine, EngineOptions
from queuehint.testing.simulation.promises import Promises, Recorder

if TYPE_CHECKING:
    from collections.abc import Callable

    from queuehint.operations import Operation
    from queuehint.operations.wire import Begin
    from queuehint.testing.simulation.promises import Move
    from queuehint.testing.trace import TraceEvent

BEGIN_MS = 1_600_000_000_000
"""When every simulation begins, by the clock of its store."""
CHECK_EVERY = 20
"""Each so many steps all is counted again."""


class StaleRequestError(Exception):
    """A request arrived late, after a newer one of its stream."""


@attrs.frozen
class _Epoch:
    """A new history of tokens was begun."""

    token: int
    reap_from_ms: int


@attrs.frozen
class _Lead:
    """A change of leadership in the journal."""

    begin: Begin
    guests: frozenset[str]


class Store:
    """
    One namespace, and all its operations.

    Args:
        options: of the engine.
        lease_max_ms: the longest lease that clients ask for; after a restart nothing is reaped for so long.
        make: another engine, for tests of the simulation itself.
        keeps_receipts, fences, waits: another session, for tests of the simulation itself: no receipts, tokens that go
            on after a restart, leases that are not waited for after one.
        traced: events are written down, as `trace`.
    """

    def __init__(
        self,
        options: EngineOptions,
        *,
        lease_max_ms: int = 30_000,
        make: Callable[[EngineOptions], Engine] = Engine,
        keeps_receipts: bool = True,
        fences: bool = True,
        waits: bool = True,
        traced: bool = False,
    ) -> None:
        self._options = options
        self._make = make
        self._lease_max_ms = lease_max_ms
        self._keeps_receipts = keeps_receipts
        self._fences = fences
        self._waits = waits
        self._traced = traced
        self.history: list[tuple[Operation[Any] | _Epoch | _Lead, int, str, int, Any]] = []
        self.moves: list[Move] = []
        """Those of the last operation."""
        self.restarts = 0
        self._begin()

    def _begin(self) -> None:
        self.engine = self._make(self._options)
        self.trace: list[TraceEvent] = []
        self._recorder = self.engine.table.journal = Recorder(self.trace if self._traced else None)
        self.promises = Promises()
        self.receipts: dict[str, tuple[int, Any]] = {}

    @property
    def now_ms(self) -> int:
        """The latest time seen."""
        return self.engine.now_ms

    def ask(self, stream: str, number: int, operation: Operation[Any], now_ms: int) -> Any:
        """
        Answer a request of a stream.

        Raises:
            StaleRequestError: a newer one of the stream was answered; nothing was changed.
            QueueHintError: as the operation says; nothing was changed.
            AssertionError: a promise was broken.
        """
        self.moves = []
        receipt = self.receipts.get(stream)
        if receipt is not None and number <= receipt[0] and self._keeps_receipts:
            if number < receipt[0]:
                raise StaleRequestError(stream)
            return receipt[1]
        reply = self._apply(operation, now_ms)
        self.receipts[stream] = (number, reply)
        self.history.append((operation, now_ms, stream, number, reply))
        return reply

    def _apply(self, operation: Operation[Any], now_ms: int) -> Any:
        promises, recorder, engine = self.promises, self._recorder, self.engine
        expected = promises.expect(operation)
        self.moves = recorder.moves = []
        reply = engine.apply(operation, now_ms)
        promises.see(engine, operation, reply, expected, recorder.moves)
        return reply

    def restart(self, lost: int, now_ms: int) -> int:
        """
        Restart without the last steps. Return the number of kept steps.

        Args:
            lost: how many of the last steps are gone; never what was done before the first.
        """
        kept = max(0, len(self.history) - lost)
        token = self.promises.token
        done = self.history[:kept]
        self._begin()
        self.restarts += 1
        self._replay(done)
        epoch = max((self.engine.state.token >> 32) + 1, now_ms // 1000 - EPOCH_BEGIN_S)
        begun = _Epoch((epoch << 32) + (now_ms % 1000 << 20), now_ms + self._lease_max_ms)
        if not self._fences:
            begun = _Epoch(self.engine.state.token, begun.reap_from_ms)
        if not self._waits:
            begun = _Epoch(begun.token, 0)
        self.engine.begin_epoch(begun.token, begun.reap_from_ms)
        # No token of any history may be repeated, however much was lost.
        self.promises.token = token
        self.history = [*done, (begun, now_ms, "", 0, None)]
        return kept

    def take_over(self, now_ms: int, *, is_heir: bool) -> None:
        """
        Let another process lead a journal, which has all operations, even unanswered ones.

        Args:
            is_heir: all but those that have asked are known to be dead.
        """
        token, done = self.promises.token, self.history
        self._begin()
        self._replay(done)
        begin = begin_with(self.engine.state.options, max(0, now_ms // 1000 - EPOCH_BEGIN_S), is_heir=is_heir)
        guests = [getattr(operation, "worker", None) for operation, *_ in done]
        led = _Lead(begin, frozenset(filter(None, guests)))
        self._lead(led, now_ms)
        self.promises.token = token
        self.history = [*done, (led, now_ms, "", 0, None)]

    def _lead(self, led: _Lead, now_ms: int) -> None:
        """Begin to lead, by the rules of a journal."""
        begin_engine(self.engine, led.begin, now_ms, led.guests)

    def _replay(self, done: list[tuple[Operation[Any] | _Epoch | _Lead, int, str, int, Any]]) -> None:
        for operation, then_ms, stream, number, reply in done:
            if isinstance(operation, _Epoch):
                self.engine.begin_epoch(operation.token, operation.reap_from_ms)
                self.promises.token = max(self.promises.token, operation.token)
            elif isinstance(operation, _Lead):
                self._lead(operation, then_ms)
            else:
                again = self._apply(operation, then_ms)
                assert again == reply, f"{operation} was answered {reply}, and {again} when it was done again"
                self.receipts[stream] = (number, reply)
        self.moves = []
