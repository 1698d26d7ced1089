"""The signals that stop a worker: handled on its loop, dropped in its forks, watched for the application's handlers."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from typing import TYPE_CHECKING, Any

from queuehint.cli.logs import enable

if TYPE_CHECKING:
    from collections.abc import Callable

logger = logging.getLogger("queuehint.cli")

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
EVERY_S = 1.0


@contextlib.contextmanager
def heard(loop: asyncio.AbstractEventLoop, number: signal.Signals, call: Callable[[], None]) -> Any:
    """Call a function on the loop at a signal."""
    try:
        loop.add_signal_handler(number, call)
    except NotImplementedError:  # pragma: no cover - Windows
        before = signal.signal(number, lambda *_: loop.call_soon_threadsafe(call))
        yield
        signal.signal(number, before)
    else:
        yield
        loop.remove_signal_handler(number)


def forget_signals() -> None:
    """Drop signals in a forked child, as the parent's loop would receive them."""
    signal.set_wakeup_fd(-1)
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_DFL)


class SignalWatch:
    """Logs once for each replaced signal handler, as this worker would miss a stop request."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._handlers = {number: signal.getsignal(number) for number in STOP_SIGNALS}
        self._timer = loop.call_later(EVERY_S, self._look)

    def end(self) -> None:
        """Look no more."""
        self._timer.cancel()

    def _look(self) -> None:
        self._timer = self._loop.call_later(EVERY_S, self._look)
        # A lifespan of the application may have set up logging only now.
        enable()
        for number, ours in list(self._handlers.items()):
            handler = signal.getsignal(number)
            if handler != ours:
                del self._handlers[number]
                logger.warning(
                    "application code has replaced a signal handler; this worker will not notice the signal to stop",
                    extra={"event": "worker.signal_taken", "signal": number.name, "by": _name_of(handler)},
                )


def _name_of(handler: object) -> str:
    module, name = getattr(handler, "__module__", None), getattr(handler, "__qualname__", None)
    return f"{module}.{name}" if isinstance(name, str) else type(handler).__name__
