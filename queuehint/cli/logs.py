"""Log formatters for people and for programs. The facts of a message are in its fields."""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from enum import StrEnum
from typing import Any

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


_OURS = "queuehint"
_PLAIN, _FAINT = "\x1b[0m", "\x1b[2m"
_STYLES = {logging.WARNING: "\x1b[33m", logging.ERROR: "\x1b[31m", logging.CRITICAL: "\x1b[1;31m"}
_TOLD_WITH_OTHERS = {
    event: {"error", "error_message", "retry_in_s"} for event in ("job.retry", "job.failed", "job.exit")
}
"""Fields that are part of a message in other words."""


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
        if text := _trace_of(self, record):
            line["traceback"] = text
        return json.dumps(line, default=str)


class TextFormatter(logging.Formatter):
    """
    Time, level, logger and message, then the fields as ``name=value``. No value can break the line.

    Fields whose values are part of the message are left out.

    Args:
        in_colour: mark levels, and what is read less often, for a terminal.
    """

    def __init__(self, *, in_colour: bool = False) -> None:
        super().__init__()
        self._in_colour = in_colour

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, and the traceback below it."""
        begin = f"{_time(record)} {record.levelname:<7} {record.name}[{record.process}]"
        message, end = record.getMessage(), ""
        told = {str(each) for each in record.args} if isinstance(record.args, tuple) else set()
        for name, value in fields(record).items():
            shown = str(value)
            if shown not in told and name not in _TOLD_WITH_OTHERS.get(str(getattr(record, "event", "")), ()):
                end += f" {name}={shown if shown and shown.isprintable() and ' ' not in shown else repr(shown)}"
        trace = _trace_of(self, record)
        if self._in_colour:
            style = _STYLES.get(record.levelno, "")
            begin, end = f"{_FAINT}{begin}{_PLAIN}", f"{_FAINT}{end}{_PLAIN}" if end else ""
            message = f"{style}{message}{_PLAIN}" if style else message
        return f"{begin} {message}{end}" + (f"\n{trace}" if trace else "")


def _trace_of(formatter: logging.Formatter, record: logging.LogRecord) -> str | None:
    """Return the traceback of a record: its own text, or the traceback of its exception."""
    return record.exc_text or (formatter.formatException(record.exc_info) if record.exc_info else None)


def set_up(log_format: LogFormat | None, level: LogLevel | None, package: str = "") -> None:
    """
    Log to the standard error, in colour to a terminal, unless the application has set up logging.

    Called once the application is imported. Each line is logged once: where it has handlers of its own, what was given
    on the command line is for the loggers of queuehint alone. Other libraries keep their levels.

    Args:
        log_format, level: None where they were not given.
        package: that of the application, whose loggers get the level of queuehint's where nothing is set up.
    """
    root, ours = logging.getLogger(), logging.getLogger(_OURS)
    enable()
    is_heard = _has_handlers(root) or _has_handlers(ours)
    if log_format is not None or not is_heard:
        handler = logging.StreamHandler(sys.stderr)
        in_colour = sys.stderr.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        handler.setFormatter(JsonFormatter() if log_format is LogFormat.JSON else TextFormatter(in_colour=in_colour))
        is_alone = is_heard or any(_has_handlers(logger) for logger in _loggers())
        ours.propagate = not is_heard
        (ours if is_alone else root).addHandler(handler)
    if level is not None or not is_heard:
        word = (level or LogLevel.INFO).upper()
        ours.setLevel(word)
        other = logging.getLogger(package)
        if package and not is_heard and other.level == logging.NOTSET:
            other.setLevel(word)


def enable() -> None:
    """Enable the loggers of queuehint, which `logging.config` disables by default if they exist before."""
    for logger in _loggers():
        if f"{logger.name}.".startswith(f"{_OURS}."):
            logger.disabled = False


def _loggers() -> list[logging.Logger]:
    there = list(logging.root.manager.loggerDict.values())
    return [logger for logger in there if isinstance(logger, logging.Logger)]


def _has_handlers(logger: logging.Logger) -> bool:
    return any(not isinstance(handler, logging.NullHandler) for handler in logger.handlers)
