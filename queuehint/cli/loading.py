"""``module:attribute`` -> the scheduler of an application, or a function of it."""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from queuehint.backends.masks import masked
from queuehint.scheduler.scheduler import Scheduler

_NAMED = re.compile(r"[\w.]+:[\w.]+")


class TargetError(Exception):
    """The named scheduler cannot be used. The text has the reason and advice."""


def load_scheduler(target: str) -> Scheduler:
    """
    Import the scheduler that *target* names, with the working directory on the path of imports.

    Raises:
        TargetError: there is no such module or attribute, or it is no `Scheduler`. An error inside the module is
            raised as it is.
    """
    if ":/" in target:
        raise TargetError(
            f"{masked(target)} is a URL; name the scheduler of an application, such as myapp.jobs:sched, whose store "
            "is that of QUEUEHINT_URL. Commands that look at jobs take a URL as --target"
        )
    found = _load(target, example="myapp.jobs:sched", meant=lambda each: isinstance(each, Scheduler))
    if not isinstance(found, Scheduler):
        raise TargetError(f"{target} must be a queuehint.Scheduler, got {type(found).__name__}")
    return found


def load_function(target: str, *, example: str) -> Callable[..., Any]:
    """
    Import the function that *target* names, with the working directory on the path of imports.

    Args:
        example: a target as it should be, for the error.

    Raises:
        TargetError: there is no such module or attribute, or it cannot be called. An error inside the module is raised
            as it is.
    """
    found = _load(target, example=example, meant=inspect.isfunction)
    if not callable(found):
        raise TargetError(f"{target} must be a function, got {type(found).__name__}")
    return found


def _load(target: str, *, example: str, meant: Callable[[object], bool]) -> object:
    """
    Import what *target* names.

    Args:
        meant: true of what is named in the error of a module without the attribute.
    """
    module_name, _, attribute = target.partition(":")
    if not _NAMED.fullmatch(target):
        raise TargetError(f"{target!r} must be module:attribute, such as {example}")
    here = str(Path.cwd())
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)
    try:
        found: object = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{module_name}.".startswith(f"{error.name}."):
            raise TargetError(f"there is no module {error.name!r} in {here} or among those installed") from None
        raise
    for name in attribute.split("."):
        if not hasattr(found, name):
            others = sorted(key for key, value in getattr(found, "__dict__", {}).items() if meant(value))
            named = f"; it has {', '.join(others)}" if others else ""
            raise TargetError(f"{module_name} has no {attribute!r}{named}")
        found = getattr(found, name)
    return found


def check_shared(scheduler: Scheduler) -> None:
    """
    Refuse a scheduler whose jobs no other process can see.

    Raises:
        TargetError: its store lives in the process that made it.
    """
    backend = scheduler.backend
    if not backend.is_durable:
        raise TargetError(
            f"{scheduler!r} keeps its jobs in the process that enqueues them: a worker process would never see one. "
            "Set QUEUEHINT_URL=postgresql://host/database, redis://host:6379/0 or sqlite:///jobs.db (or "
            "Scheduler(url=...)), or run workers inside the application: "
            "`async with sched.worker():`"
        )
