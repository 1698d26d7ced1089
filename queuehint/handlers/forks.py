"""
Forks of a worker's process: the cleanup in a child, and its end when it returns into the worker's code.

A handler may fork, by `os.fork` or with `multiprocessing`. The child is a copy of the worker: it has the code of all
running jobs, the listening sockets, the signal handlers. So after user code has returned, raised or yielded to the
loop, the worker checks that it is still in the same process; in a fork it exits at once, without cleaning up: the
resources are the parent's.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import types
from typing import TYPE_CHECKING, Any

from queuehint.values.ids import this_process

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator, Iterator

EXIT_FAILED = 1

_in_child: list[Callable[[], object]] = []
_forking = threading.local()
"""The signals that the thread that forks has held back before."""


@contextlib.contextmanager
def leaving_to_no_child(call: Callable[[], object]) -> Iterator[None]:
    """While the block runs, call a function first in each forked child, before any other code."""
    _in_child.append(call)
    try:
        yield
    finally:
        _in_child.remove(call)


def _leave_behind() -> None:
    for call in _in_child:
        with contextlib.suppress(Exception):
            call()
    _in_child.clear()


def _hold_signals() -> None:
    if _in_child:
        _forking.held = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGINT))


def _let_signals_through() -> None:
    held = _forking.__dict__.pop("held", None)
    if held is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, held)


def _begin_child() -> None:
    _leave_behind()
    _let_signals_through()


if hasattr(os, "register_at_fork"):
    # A child that gets a signal before it has dropped its parent's handlers would act on it as its parent.
    os.register_at_fork(before=_hold_signals, after_in_parent=_let_signals_through, after_in_child=_begin_child)


def end_any_child(process: object, error: BaseException | None = None) -> None:
    """
    End this process unless it is the given process.

    Args:
        process: the mark of `this_process` there.
        error: what its code has raised; `SystemExit` says how the process is to exit, all else that it failed.
    """
    if this_process.mark is process:
        return
    code = _exit_code(error)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(code)


def _exit_code(error: BaseException | None) -> int:
    if error is None:
        return 0
    if not isinstance(error, SystemExit):
        # Its text may hold secrets.
        what = f"queuehint: a child of worker process {os.getppid()} has ended with {type(error).__name__}\n"
        with contextlib.suppress(Exception):
            sys.stderr.write(what)
        return EXIT_FAILED
    if error.code is None:
        return 0
    return error.code & 0xFF if isinstance(error.code, int) else EXIT_FAILED


@types.coroutine
def in_one_process(coroutine: Coroutine[Any, Any, Any], process: object) -> Generator[Any, Any, Any]:
    """Await a coroutine. A child in which the coroutine would let the loop go on is ended instead."""
    value: Any = None
    error: BaseException | None = None
    while True:
        try:
            awaited = coroutine.send(value) if error is None else coroutine.throw(error)
        except StopIteration as stop:
            return stop.value
        finally:
            error = None
        end_any_child(process)
        try:
            value = yield awaited
        except GeneratorExit:
            coroutine.close()
            raise
        except BaseException as thrown:  # noqa: BLE001 - handed on to the code
            value, error = None, thrown
