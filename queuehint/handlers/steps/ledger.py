"""The steps of one attempt: results that are stored, and calls that were made."""

from __future__ import annotations

import threading
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from queuehint.errors import HandlerError, InvalidJobError, PayloadError, shown
from queuehint.values.outcome import STEPS_BYTES_MAX, STEPS_MAX
from queuehint.values.record import StepInfo

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_NO_NAMES: Final[Mapping[str, str]] = MappingProxyType({})


class StepLedger:
    """
    The steps of one attempt: results that are stored, and the names of its calls. From any thread.

    Args:
        stored: name, time and result of each stored step, in order.
        names: what the code calls stored steps that it knows by another name; of two of one name the first counts.
    """

    def __init__(self, stored: Iterable[tuple[str, int, bytes]] = (), names: Mapping[str, str] = _NO_NAMES) -> None:
        self._stored: dict[str, tuple[int, bytes]] = {}
        self._sizes: dict[str, int] = {}
        """The bytes of the name and the result of each step that is stored, or on its way."""
        self._called: set[str] = set()
        self._lock = threading.Lock()
        for name, at_ms, result in stored:
            self._sizes[name] = len(name.encode()) + len(result)
            self._stored.setdefault(names.get(name, name), (at_ms, result))

    @property
    def infos(self) -> tuple[StepInfo, ...]:
        """The stored steps, in the order in which they were stored."""
        with self._lock:
            return tuple([StepInfo(name, at_ms) for name, (at_ms, _) in self._stored.items()])

    def begin(self, name: str) -> bytes | None:
        """
        Record a call. Return the stored result, None if the step has to be made.

        Raises:
            HandlerError: this attempt has called a step of that name.
            InvalidJobError: it is one step too many.
        """
        with self._lock:
            if name in self._called:
                raise HandlerError(f"step {shown(name)} is called twice in one attempt; name each call differently")
            found = self._stored.get(name)
            if found is None:
                if len(self._sizes) >= STEPS_MAX:
                    raise InvalidJobError(f"steps: {len(self._sizes) + 1} with step {shown(name)}, limit {STEPS_MAX}")
                self._sizes[name] = len(name.encode())
            self._called.add(name)
            return None if found is None else found[1]

    def take_room(self, name: str, result: bytes) -> None:
        """
        Count the bytes of a result.

        Raises:
            PayloadError: the steps of the job would take too many.
        """
        with self._lock:
            size = sum(self._sizes.values()) + len(result)
            if size > STEPS_BYTES_MAX:
                problem = f"the steps take {size} bytes with step {shown(name)}, limit {STEPS_BYTES_MAX}"
                raise PayloadError(problem, limit=STEPS_BYTES_MAX)
            self._sizes[name] += len(result)

    def give_up(self, name: str) -> None:
        """Forget a failed call, which may be repeated."""
        with self._lock:
            self._called.discard(name)
            if name not in self._stored:
                self._sizes.pop(name, None)

    def keep(self, name: str, at_ms: int, result: bytes) -> None:
        """Record that the result of a step is stored."""
        with self._lock:
            self._stored[name] = at_ms, result
