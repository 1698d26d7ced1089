"""`ScriptedBackend`: a store without jobs, with the replies and errors set by a test."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar, cast

from queuehint.backends.base import Backend, Interest
from queuehint.errors import shown
from queuehint.operations import Operation

Reply = TypeVar("Reply")


class ScriptedBackend(Backend):
    """
    A store that answers by script, for tests of code that has to bear any answer of a store.

    It has no rules: replies are as the test makes them. For a store with rules take ``Scheduler("memory://")``.

    Args:
        script: the answers, one for each call in order, or a function of the operation that answers all calls. An
            answer is a reply; an exception, which is raised; or a function of the operation, which returns one of
            the two.
        is_local, keeps_leases, owes_turn: what the store says of itself.

    ``asked`` are the operations of the calls so far, ``left`` is how many answers were not taken yet, ``waits`` are the
    interests and times of `wait`, which returns at once. Calls may come from any thread; each takes an answer of its
    own.

    Raises:
        TypeError: *script* is neither a function nor answers.
        AssertionError: from a call for which the script has no answer; it names the operation.

    >>> from queuehint import operations as op
    >>> from queuehint.errors import BackendUnavailableError
    >>> store = ScriptedBackend([BackendUnavailableError("away"), op.Drawn(7)])
    >>> store.call_sync(op.Draw(1))
    Traceback (most recent call last):
    ...
    queuehint.errors.BackendUnavailableError: away
    >>> store.call_sync(op.Draw(1)).first, len(store.asked)
    (7, 2)

    .. versionadded:: 1.0.0
    """

    def __init__(
        self,
        script: Iterable[Any] | Callable[[Any], Any],
        *,
        is_local: bool = False,
        keeps_leases: bool = False,
        owes_turn: bool = False,
    ) -> None:
        if not callable(script) and (isinstance(script, (str, bytes)) or not isinstance(script, Iterable)):
            raise TypeError(
                f"script must be a list of answers or a function, got {type(script).__name__}: {shown(script)}"
            )
        self._answer = script if callable(script) else None
        self._answers: deque[Any] = deque() if callable(script) else deque(script)
        self._lock = threading.Lock()
        self._is_local = is_local
        self._keeps_leases = keeps_leases
        self._owes_turn = owes_turn
        self.asked: list[Operation[Any]] = []
        self.waits: list[tuple[Interest, float]] = []

    async def call(self, operation: Operation[Reply]) -> Reply:
        """Return or raise the next answer."""
        return self.call_sync(operation)

    def call_sync(self, operation: Operation[Reply]) -> Reply:
        """Return or raise the next answer."""
        with self._lock:
            self.asked.append(operation)
            if self._answer is None and not self._answers:
                raise AssertionError(f"the script has no answer to call {len(self.asked)}, {shown(operation)}")
            answer = self._answers.popleft() if self._answer is None else self._answer
        if callable(answer):
            answer = answer(operation)
        if isinstance(answer, BaseException):
            raise answer
        return cast("Reply", answer)

    @property
    def left(self) -> int:
        """The number of replies left, 0 for a function."""
        return len(self._answers)

    async def wait(self, interest: Interest, timeout_s: float) -> None:
        """Return at once."""
        self.wait_sync(interest, timeout_s)

    def wait_sync(self, interest: Interest, timeout_s: float) -> None:
        """Return at once."""
        self.waits.append((interest, timeout_s))

    def adopt(
        self, leases: Callable[[], Sequence[tuple[str, int]]], blocked_ms: Callable[[], int] = int
    ) -> Callable[[], None]:
        """Renew nothing. Return a function without effect."""
        return lambda: None

    async def close(self) -> None:
        """Do nothing. Later calls are answered."""

    def close_sync(self) -> None:
        """Do nothing. Later calls are answered."""

    @property
    def is_local(self) -> bool:
        """As it was made."""
        return self._is_local

    @property
    def keeps_leases(self) -> bool:
        """As it was made."""
        return self._keeps_leases

    def owes_turn(self, operation: Operation[Any]) -> bool:
        """As it was made."""
        return self._owes_turn
