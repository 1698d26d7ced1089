"""
Handlers that run in a process of their own, ``process=True``: their import path, and the result of an attempt.

Nothing is pickled. Arguments and results cross as the scheduler's codec writes them, exceptions as text with the names
of their classes: no name sent by the process is imported or called in the worker. The process imports the module that
the worker names, in which the handler was declared, never a name from a job.
"""

from __future__ import annotations

import inspect
import os
import signal
import sys
from typing import TYPE_CHECKING, Any

import attrs

from queuehint.errors import HandlerError, QueueHintError, shown
from queuehint.schema.checks import sized

if TYPE_CHECKING:
    from collections.abc import Callable

MAIN = "__main__"
MAIN_OF_CHILD = "__mp_main__"
"""The name under which a process runs the main module, as those of `multiprocessing` do."""


@attrs.frozen
class ImportPath:
    """The import path of a function for another process: its module, and its qualified name in the module."""

    module: str
    qualname: str

    def __str__(self) -> str:
        return f"{self.module}:{self.qualname}"


def import_path(name: str, function: Callable[..., Any], *, is_async: bool) -> ImportPath:
    """
    Return the import path of a handler with its own process.

    Raises:
        HandlerError: it is async, cannot be imported by another process, or the system is not POSIX.
    """
    if os.name != "posix":
        raise HandlerError(f"{name}: process=True requires a POSIX system, this is {sys.platform}")
    if is_async:
        raise HandlerError(
            f"{name}: process=True requires a plain function, and this one is async: it can be canceled where it "
            "awaits, so leave process=True out, or make it a plain function"
        )
    module, qualname = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(qualname, str):
        raise HandlerError(
            f"{name}: process=True requires a function of a module, got {type(function).__name__}: {shown(function)}"
        )
    problem = ""
    if "<lambda>" in qualname:
        problem = "a lambda"
    elif "<locals>" in qualname:
        problem = f"the local function {qualname} (a decorator needs functools.wraps)"
    elif inspect.ismethod(function) and not isinstance(function.__self__, type):
        problem = f"the method {qualname} of an object"
    elif module == MAIN and main_module() is None:
        problem = "a function of an interactive session"
    if problem:
        raise HandlerError(
            f"{name}: process=True requires a function that another process can import from its module, "
            f"got {problem}; define it at the top of a module"
        )
    return ImportPath(module, qualname)


def main_module() -> dict[str, str] | None:
    """Return how another process runs the main module of this process, by name or file. None if it cannot."""
    main = sys.modules.get(MAIN)
    spec = getattr(main, "__spec__", None)
    if spec is not None and spec.name is not None:
        return {"module": spec.name}
    file = getattr(main, "__file__", None)
    return {"path": os.path.abspath(file)} if file and os.path.exists(file) else None  # noqa: PTH100, PTH110


@attrs.frozen
class Kinds:
    """The names of an exception's class and its bases, nearest first. Of a group, the names of its members too."""

    names: tuple[str, ...]
    members: tuple[Kinds, ...] | None = None

    def wire(self) -> list[Any]:
        """Return the names as JSON."""
        return [list(self.names), None if self.members is None else [member.wire() for member in self.members]]

    @classmethod
    def read(cls, wire: list[Any]) -> Kinds:
        """Return the names from JSON."""
        names, members = wire
        return cls(tuple(names), None if members is None else tuple([cls.read(member) for member in members]))


def kinds_of(error: BaseException) -> Kinds:
    """Return the names of an exception's classes."""
    members = None
    if isinstance(error, BaseExceptionGroup):
        members = tuple([kinds_of(member) for member in error.exceptions])
    return Kinds(tuple([class_name(kind) for kind in type(error).__mro__]), members)


def class_name(kind: type) -> str:
    """Return the name by which a class of exceptions is known in all processes."""
    module = MAIN if kind.__module__ == MAIN_OF_CHILD else kind.__module__
    return f"{module}.{kind.__qualname__}"


@attrs.frozen
class Trouble:
    """
    An exception as reported by a process.

    Args:
        type: the qualified name of its class.
        message: what it says.
        related: what the errors behind it say, those of a group and its causes: each a text with the type.
        traceback: its innermost frames, as they are stored.
        printed: the whole of it, as Python prints it.
        kinds: the names of its classes.
        is_final: whether another attempt would end the same way.
    """

    type: str
    message: str = attrs.field(repr=sized)
    related: tuple[str, ...] = attrs.field(repr=sized)
    traceback: str = attrs.field(repr=sized)
    printed: str = attrs.field(repr=sized)
    kinds: Kinds
    is_final: bool = False


class HandlerStopped(BaseException):
    """The worker interrupts a handler: its timeout has passed, its job was canceled, or its lease is lost."""


class RemoteError(Exception):
    """An exception that a handler has raised in its process."""

    def __init__(self, trouble: Trouble) -> None:
        self.trouble = trouble
        super().__init__(trouble.message)

    @property
    def is_exit(self) -> bool:
        """Return whether the handler requested the exit of its process."""
        return bool({"builtins.SystemExit", "builtins.KeyboardInterrupt"} & {*self.trouble.kinds.names})


class ProcessDiedError(QueueHintError):
    """
    The process of a handler (``process=True``) has died: a crash, `os._exit`, a lack of memory.

    *task* ran in it; *exit_code* is the code it ended with, or *signal* the name of the signal that ended it.

    .. versionadded:: 1.0.0
    """

    def __init__(self, task: str, return_code: int, problem: str = "") -> None:
        self.task = task
        self.problem = problem
        """What the worker has to say of it, "" if it has died by itself."""
        self.exit_code = return_code if return_code >= 0 else None
        self.signal = None if return_code >= 0 else _signal_name(-return_code)
        how = f"died of {self.signal}" if self.signal else f"ended with exit code {self.exit_code}"
        if self.signal == "SIGKILL" and not problem:
            how += "; the system kills what takes too much memory"
        super().__init__(f"the process of {task} {problem or how}")


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


@attrs.frozen
class EncodedResult:
    """
    A result encoded by the process of its handler.

    Args:
        payload: as `Handler.dump_result` gives it.
        kind: ``"none"`` for None, ``"dict"`` for a dictionary, ``"other"``.
    """

    payload: bytes = attrs.field(repr=sized)
    kind: str
