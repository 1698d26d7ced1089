"""
Failed attempts: the stored texts of an exception, and its log lines.

Nothing a handler does may harm its worker: texts are cut, redacted and made encodable, exceptions whose ``str``
raises are named by their type, and tracebacks hold source lines, never the values of variables. The log messages are
complete without their fields, because Python prints only the messages, from WARNING on, where no logging is set up.
"""

from __future__ import annotations

import logging
import math
import os
import traceback
from collections import deque
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from queuehint.clock import now_s
from queuehint.errors import QueueHintError, printable
from queuehint.handlers import forks
from queuehint.handlers.remote import HandlerStopped, RemoteError
from queuehint.schema.checks import encodable, plain_text
from queuehint.schema.kinds import TEXT_MAX
from queuehint.values.outcome import JobError

if TYPE_CHECKING:
    from collections.abc import Callable

    from queuehint.values.outcome import Grant

logger = logging.getLogger("queuehint.worker")

REDACTED_MAX = 16 * TEXT_MAX
"""How much of a text `redact` sees: more than is kept, so that nothing it looks for is cut in two."""
LINE_MAX = 500
"""How much of an exception's message is part of a log line; the traceback has more of it."""
FRAMES_MAX = 12
RELATED_MAX = 6
"""How many of the errors behind a failure are named: members of its group, and causes."""
RELATED_FRAMES_MAX = 4
RELATED_TEXT_MAX = 400
RELATED_LOOKED_AT_MAX = 1_000
GIVEN_BACK_EVERY_S = 60.0
TASKS_COUNTED_MAX = 1_000
"""Of how many events and tasks given-back jobs are counted; names of tasks are 256 bytes at most."""
_OURS = str(Path(__file__).parents[1]) + os.sep
_ON_PURPOSE = (QueueHintError, HandlerStopped)
_FORKS = forks.__file__
"""Its frames lie between a coroutine and what that awaits; tracebacks leave them out."""


class GivenBackLog:
    """
    Logs jobs that this release cannot run: one line a minute for each event and task, with the number of jobs.

    After a deploy a worker may give back thousands of jobs for one reason. The line of the first is logged at once;
    those that follow within a minute are counted, and the next line has their number and the id of the last.

    Args:
        now_s: returns the time by which a minute is measured.
    """

    def __init__(self, now_s: Callable[[], float] = now_s) -> None:
        self._now_s = now_s
        self._counted: dict[tuple[str, str], tuple[float, int, tuple[Any, ...]]] = {}
        """By event and task: when a line was logged, how many jobs came after it, what to log of the last of them."""

    def __len__(self) -> int:
        return len(self._counted)

    def log(self, event: str, task: str, message: str, args: tuple[str, ...], facts: dict[str, Any]) -> None:
        """Log, or count, one job."""
        key, now_s = (event, task), self._now_s()
        logged_s, count, _ = self._counted.get(key, (-math.inf, 0, ()))
        line = (message, args, facts)
        if now_s < logged_s + GIVEN_BACK_EVERY_S:
            self._counted[key] = logged_s, count + 1, line
            return
        if key not in self._counted and len(self._counted) >= TASKS_COUNTED_MAX:
            self._emit(next(iter(self._counted)))
        self._counted[key] = now_s, count + 1, line
        self._emit(key)
        self._counted[key] = now_s, 0, ()

    def flush(self, *, at_end: bool = False) -> None:
        """Log the counts whose minute has passed. *at_end* logs all counts."""
        now_s = self._now_s()
        for key, (logged_s, count, _) in list(self._counted.items()):
            if at_end or now_s >= logged_s + GIVEN_BACK_EVERY_S:
                self._emit(key)
                if count:
                    self._counted[key] = now_s, 0, ()

    def _emit(self, key: tuple[str, str]) -> None:
        """Log and remove the count of an event and task, if there is one."""
        _, count, line = self._counted.pop(key)
        if count:
            message, args, facts = line
            more = "" if count == 1 else f", and {count - 1} more jobs like it since the last such line"
            extra = {"event": key[0], **facts, "jobs": count}
            logger.error("%s%s", message % tuple([printable(each) for each in args]), more, extra=extra)


class Failures:
    """
    Describes exceptions, and logs failed attempts.

    Args:
        redact: applied to error messages, reasons and tracebacks before they are stored or logged.
        log_errors: whether messages and tracebacks of exceptions are logged; False leaves the type.
    """

    def __init__(self, redact: Callable[[str], str] | None = None, *, log_errors: bool = True) -> None:
        self._redact = redact
        self._log_errors = log_errors
        self.given_back = GivenBackLog()

    def describe(self, kind: str, message: str, error: BaseException | None = None) -> JobError:
        """Return the stored form of a failed attempt, with the traceback of *error* and the errors behind it."""
        trace = None if error is None else self.text(stored_traceback(error))
        # Each is redacted as a whole before any of it is cut.
        related = [] if error is None else [_cut(self.text(text), RELATED_TEXT_MAX) for text in related_texts(error)]
        behind = "".join([f"; {text}" for text in related])
        message = _cut(self.text(message), TEXT_MAX - len(behind)) + behind
        return JobError(type=self.text(kind), message=message, traceback=trace)

    def log(
        self, grant: Grant, described: JobError, error: BaseException | None = None, *, retry_ms: int | None = None
    ) -> None:
        """
        Log a failed attempt. The last attempt has its traceback, and every attempt with debug logging.

        Args:
            retry_ms: after how long the next attempt follows; None after the last one.
        """
        spec = grant.spec
        most = spec.policy.max_attempts
        facts = {"job_id": spec.id, "task": spec.task, "attempt": grant.attempt, "max_attempts": most}
        if retry_ms is None:
            level, event, message = logging.ERROR, "job.failed", "job %s (%s) failed for good, attempt %d of %d: %s"
            args: tuple[Any, ...] = (spec.id, spec.task, grant.attempt, most)
        else:
            wait_s = retry_ms / 1000
            facts["retry_in_s"] = wait_s
            level, event = logging.WARNING, "job.retry"
            message = "job %s (%s) failed, attempt %d of %d, next in %s s: %s"
            args = (spec.id, spec.task, grant.attempt, most, f"{wait_s:.3g}")
        self._log(level, event, message, args, facts, described, error)

    def log_exit(self, grant: Grant, described: JobError, error: BaseException) -> None:
        """Log an attempt that requested the end of the process. It counts as a lost worker."""
        spec = grant.spec
        facts = {"job_id": spec.id, "task": spec.task, "attempt": grant.attempt}
        message = "job %s (%s) asked its worker to exit, which counts as loss %d of %d: %s"
        args = (spec.id, spec.task, grant.losses + 1, spec.policy.max_losses)
        self._log(logging.WARNING, "job.exit", message, args, facts, described, error)

    def _log(
        self,
        level: int,
        event: str,
        message: str,
        args: tuple[Any, ...],
        facts: dict[str, Any],
        described: JobError,
        error: BaseException | None,
    ) -> None:
        facts = {"event": event, **facts, "error": described.type}
        summary = described.type
        if self._log_errors:
            facts["error_message"] = described.message
            summary = f"{summary}: {described.message}" if described.message else summary
        has_trace = level >= logging.ERROR or logger.isEnabledFor(logging.DEBUG)
        summary = printable(summary)
        summary = summary if len(summary) <= LINE_MAX else summary[: LINE_MAX - 1] + "…"
        args = (*[printable(each) if isinstance(each, str) else each for each in args], summary)
        is_remote = isinstance(error, RemoteError)
        has_trace = has_trace and error is not None and (is_remote or error.__traceback__ is not None)
        self._emit(level, message, args, facts, error if has_trace else None)

    def log_hook(self, message: str, error: BaseException, **extra: Any) -> None:
        """Log a hook's exception with its traceback, redacted like texts of handlers."""
        self._emit(logging.ERROR, message, (), {**extra, "error": qualified_name(error)}, error)

    def _emit(
        self, level: int, message: str, args: tuple[Any, ...], extra: dict[str, Any], error: BaseException | None
    ) -> None:
        """Log a message with the text of an exception. The exception itself is attached only if no text is redacted."""
        if not logger.isEnabledFor(level):
            return
        text, exc_info = None, None
        if error is not None and self._log_errors:
            lines = self.text(whole_traceback(error), keeps_end=True).split("\n")
            text = "\n".join([printable(line) for line in lines])
            if text and self._redact is None:
                exc_info = (type(error), error, _begun_outside(error.__traceback__))
        record = logger.makeRecord(logger.name, level, __file__, 0, message, args, exc_info, None, extra)
        # A formatter takes this text for that of the exception.
        record.exc_text = text
        try:
            logger.handle(record)
        except Exception:  # noqa: BLE001 - a filter of the application's raises: the attempt ends all the same
            logging.Handler().handleError(record)

    def text(self, text: str, *, keeps_end: bool = False) -> str:
        """Return a text in its stored form: redacted, encodable, and cut (*keeps_end*: at its beginning)."""
        try:
            if self._redact is not None:
                redacted: object = self._redact(plain_text(text))
                if not isinstance(redacted, str):
                    raise TypeError("redact must return str")
                text = redacted
            text = encodable(plain_text(text))
        except BaseException as error:  # noqa: BLE001 - whatever a hook raises, the attempt ends
            # Not what it says, nor what it came of: both may hold the very text that is withheld.
            extra = {"event": "redact.failed", "error": qualified_name(error), "where": _where(error)}
            self._emit(logging.ERROR, "redact failed", (), extra, None)
            return "<withheld: redact failed>"
        if keeps_end and len(text) > TEXT_MAX:
            return "…" + text[1 - TEXT_MAX :]
        return _cut(text, TEXT_MAX)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def qualified_name(error: BaseException) -> str:
    """Return the real name of an exception's class, even if the class overrides it."""
    if isinstance(error, RemoteError):
        return error.trouble.type
    kind = type(error)
    try:
        name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
        return plain_text(name)
    except BaseException:  # noqa: BLE001 - a class of the application's may raise anything
        return "BaseException"


def safe_str(error: BaseException) -> str:
    """Return the text of an exception, or its type if `str` raises."""
    try:
        return plain_text(error)[:REDACTED_MAX]
    except BaseException:  # noqa: BLE001 - an exception whose __str__ raises must not hide the failure
        return f"<{qualified_name(error).rpartition('.')[2]}>"


def related(error: BaseException) -> list[tuple[str, BaseException]]:
    """
    Return the errors behind an error with their relation: members of groups, and causes of ``raise … from``.

    At most `RELATED_LOOKED_AT_MAX` are looked at, in order: a group's members before what comes behind each of them.
    """
    found: list[tuple[str, BaseException]] = []
    seen = {id(error)}
    todo = deque([("", error)])
    while todo and len(seen) < RELATED_LOOKED_AT_MAX:
        how, each = todo.popleft()
        if how and not isinstance(each, BaseExceptionGroup):
            found.append((how, each))
        members = list(each.exceptions) if isinstance(each, BaseExceptionGroup) else []
        # What this package refuses is said without data; its cause may hold the value that was refused.
        causes = [] if each.__cause__ is None or isinstance(each, QueueHintError) else [each.__cause__]
        for word, others in (("with", members), ("caused by", causes)):
            for other in others:
                if id(other) not in seen:
                    seen.add(id(other))
                    todo.append((word, other))
    return found


def related_texts(error: BaseException) -> tuple[str, ...]:
    """Return type and text of the errors behind an error, `RELATED_MAX` at most, then the number of the rest."""
    if isinstance(error, RemoteError):
        return error.trouble.related
    try:
        found = related(error)
    except BaseException:  # noqa: BLE001 - a class of the application's may raise anything
        return ()
    texts = []
    for how, each in found[:RELATED_MAX]:
        said = safe_str(each)[: 16 * RELATED_TEXT_MAX]
        texts.append(f"{how} {qualified_name(each)}: {said}" if said else f"{how} {qualified_name(each)}")
    if len(found) > RELATED_MAX:
        texts.append(f"and {len(found) - RELATED_MAX} more")
    return tuple(texts)


def whole_traceback(error: BaseException) -> str:
    """Return an exception as printed by Python, with its causes, and without the frames of this package."""
    if isinstance(error, RemoteError):
        return error.trouble.printed
    try:
        described = traceback.TracebackException.from_exception(error)
        _shorten(described, error)
        return "".join(described.format()).rstrip("\n")[-REDACTED_MAX:]
    except BaseException:  # noqa: BLE001 - a loader of the application's gives the source
        return ""


def stored_traceback(error: BaseException) -> str:
    """Return the innermost frames: file, line and the line's source, never the values of variables."""
    if isinstance(error, RemoteError):
        return error.trouble.traceback
    try:
        text = _frames(error, FRAMES_MAX)
        for how, each in related(error)[:RELATED_MAX]:
            text += f"{how} {qualified_name(each)}:\n{_frames(each, RELATED_FRAMES_MAX)}"
        return text[-REDACTED_MAX:]
    except BaseException:  # noqa: BLE001 - as above
        return ""


def _frames(error: BaseException, most: int) -> str:
    frames = _of_the_application(traceback.extract_tb(error.__traceback__), error)[-most:]
    return "".join(traceback.format_list(frames))


def _shorten(described: traceback.TracebackException, error: BaseException) -> None:
    """Remove the frames of this package from an exception and its causes."""
    todo: list[tuple[traceback.TracebackException | None, BaseException | None]] = [(described, error)]
    seen = set()
    while todo:
        text, each = todo.pop()
        if text is None or each is None or id(text) in seen:
            continue
        seen.add(id(text))
        text.stack = traceback.StackSummary.from_list(_of_the_application(text.stack, each))
        todo += [(text.__cause__, each.__cause__), (text.__context__, each.__context__)]
        if isinstance(each, BaseExceptionGroup):
            todo += zip(text.exceptions or (), each.exceptions, strict=False)


def _of_the_application(frames: list[traceback.FrameSummary], error: BaseException) -> list[traceback.FrameSummary]:
    """
    Return frames without those of this package before the application's code.

    What was refused on purpose needs no frames of this package behind it either; of any other error they are its cause.
    """
    begin, end = 0, len(frames)
    while begin < end and frames[begin].filename.startswith(_OURS):
        begin += 1
    if begin == end:
        return [] if isinstance(error, _ON_PURPOSE) else list(frames)
    behind = _OURS if isinstance(error, _ON_PURPOSE) else _FORKS
    while frames[end - 1].filename.startswith(behind):
        end -= 1
    return list(frames[begin:end])


def _begun_outside(trace: TracebackType | None) -> TracebackType | None:
    """Return a traceback from its first frame outside of this package, or the whole traceback without such a frame."""
    first = trace
    while first is not None and first.tb_frame.f_code.co_filename.startswith(_OURS):
        first = first.tb_next
    return trace if first is None else first


def _where(error: BaseException) -> str:
    """Return the file and the line in which an exception was raised."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return "" if trace is None else f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"
