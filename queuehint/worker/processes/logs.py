"""Log records of a handler in a process of its own: the worker logs them, as it does those of its threads."""

from __future__ import annotations

import logging
from typing import Any

from queuehint.worker.processes.channel import Channel

_FIELDS = ("name", "levelno", "pathname", "lineno", "funcName", "created", "process", "threadName")


class ToWorker(logging.Handler):
    """
    Sends records to the worker, unless the application has set up logging in this process.

    Args:
        level: that of the worker's root logger.
        levels: those of other loggers in the worker, by name.
    """

    def __init__(self, channel: Channel, level: int, levels: dict[str, int]) -> None:
        super().__init__()
        self._channel = channel
        root = logging.getLogger()
        root.setLevel(level)
        root.addHandler(self)
        for name, other in levels.items():
            logging.getLogger(name).setLevel(other)

    def emit(self, record: logging.LogRecord) -> None:
        """Send a record. An unsendable record is dropped, because the worker has ended."""
        if len(logging.getLogger().handlers) > 1:
            return
        try:
            fields = {name: getattr(record, name) for name in _FIELDS}
            trace = logging.Formatter().formatException(record.exc_info) if record.exc_info else record.exc_text
            self._channel.send({"note": "record", "fields": {**fields, "msg": record.getMessage(), "exc_text": trace}})
        except Exception:  # noqa: BLE001 - as handlers do
            self.handleError(record)


def levels() -> dict[str, int]:
    """Return the levels that loggers of this process have, but for the root logger, by name."""
    there = dict(logging.root.manager.loggerDict)
    return {name: found.level for name, found in there.items() if isinstance(found, logging.Logger) and found.level}


def log_record(fields: dict[str, Any]) -> None:
    """Log a record of a handler's process, in the worker."""
    logger = logging.getLogger(fields["name"])
    if logger.isEnabledFor(fields["levelno"]):
        record = logging.makeLogRecord({**fields, "levelname": logging.getLevelName(fields["levelno"])})
        logger.handle(record)
