"""``module:attribute`` -> the scheduler of an application."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path

from queuehint.backends.masks import masked
from queuehint.scheduler.scheduler import Scheduler

_NAMED = re.compile(r"[\w.]+:[\w.]+")


class TargetError(Exception):
    """The scheduler that was named cannot be used; the text says why and what to do."""


def load_scheduler(target: str) -> Scheduler:
    """
    Import the scheduler that *target* names, with the working directory on the path of imports.

    Raises:
        TargetError: there is no such module or attribute, or it is no `Scheduler`. An error inside the module is
            raised as it is.
    """
    module_name, _, attribute = target.partition(":")
    if ":/" in target:
        raise TargetError(
            f"{masked(target)} is a URL; name the scheduler of an application, such as myapp.jobs:sched, whose store "
            "is that of QUEUEHINT_URL. Commands that look at jobs take a URL as --target"
        )
    if not _NAMED.fullmatch(target):
        raise TargetError(f"{target!r} must be module:attribute, such as myapp.jobs:sched")
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
            schedulers = sorted(key for key, value in vars(found).items() if isinstance(value, Scheduler))
            meant = f"; it has {', '.join(schedulers)}" if schedulers else ""
            raise TargetError(f"{module_name} has no {attribute!r}{meant}")
        found = getattr(found, name)
    if not isinstance(found, Scheduler):
        raise TargetError(f"{target} must be a queuehint.Scheduler, got {type(found).__name__}")
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
