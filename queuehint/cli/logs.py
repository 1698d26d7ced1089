"""Log formatters for people and for programs: the message is constant, the facts are in its fields."""

from __future__ import annotations

import json
import logging
import sys
import time
from enum import StrEnum
from typing import Any

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class LogFormat(StrEnum):
    """How log lines look."""

    TEXT = "text"
    JSON = "json"


class LogLevel(StrEnum):
    """The log message."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


def fields(record: logging.LogRecord) -> dict[str, Any]:
    """Return the fields given as `extra`."""
    return {name: value for name, value in vars(record).items() if name not in _STANDARD}


def _time(record: logging.LogRecord) -> str:
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(record.created))}.{int(record.msecs):03}Z"


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, logger, message, the fields, and the traceback as text."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        line = {
            "time": _time(record),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            "pid": record.process,
            **fields(record),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class TextFormatter(logging.Formatter):
    """Time, level, logger and message, then the fields as ``name=value``; nothing in it can break the line."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, and the traceback below it."""
        text = f"{_time(record)} {record.levelname:<7} {record.name}[{record.process}] {record.getMessage()}"
        for name, value in fields(record).items():
            shown = str(value)
            text += f" {name}={shown if shown and shown.isprintable() and ' ' not in shown else repr(shown)}"
        return f"{text}\n{self.formatException(record.exc_info)}" if record.exc_info else text


def set_up(log_format: LogFormat, level: LogLevel) -> None:
    """Log to the standard error; what the application has set up for its own loggers stays."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if log_format is LogFormat.JSON else TextFormatter())
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(level.upper())
