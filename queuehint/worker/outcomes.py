"""
Outcomes: from a handler's result or exception to the settlement of its job, and batches of settlements.

Nothing a handler does may harm its worker: texts are cut, redacted and made encodable, exceptions whose ``str``
raises are named by their type, and tracebacks hold source lines, never the values of variables.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import random
import traceback
from collections import deque
from typing import TYPE_CHECKING, Any

import attrs

from queuehint.errors import CycleError, InvalidJobError
from queuehint.handlers.context import CHILDREN_MAX, Children, Discard, Fail, Retry, Snooze
from queuehint.operations import SETTLEMENTS_MAX, Verdict
from queuehint.values.checks import encodable, plain_text
from queuehint.values.outcome import ERROR_TEXT_MAX, RESULT_BYTES_MAX, JobError, Outcome, OutcomeKind, finished
from queuehint.values.spec import check_payload_size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from queuehint.handlers.codec import Codec
    from queuehint.handlers.context import JobContext
    from queuehint.handlers.handler import Handler
    from queuehint.operations import Exchanged, Unreadable
    from queuehint.values.outcome import Grant

logger = logging.getLogger("queuehint.worker")

GIVE_BACK = frozenset({"canceled", "shutdown", "lease lost"})
"""The reasons to stop after which an attempt that ends by raising has not failed."""

_REDACTED_MAX = 16 * ERROR_TEXT_MAX
"""How much of a text `redact` sees: more than is kept, so that nothing it looks for is cut in two."""
BATCH_BYTES_MAX = 4 << 20
"""Results of together more than this go in several batches: one has to be sent within a few seconds."""
_PLAIN_RESULTS = frozenset({type(None), bool, int, float, str, list, dict})


def outcome_of(grant: Grant, kind: OutcomeKind, **facts: Any) -> Outcome:
    """Return the outcome of a grant."""
    return Outcome(job_id=grant.spec.id, token=grant.token, kind=kind, **facts)


class OutcomeBuilder:
    """
    Makes outcomes.

    Args:
        codec: how results travel.
        redact: applied to error messages, reasons and tracebacks before they are stored or logged.
    """

    def __init__(self, codec: Codec, redact: Callable[[str], str] | None = None) -> None:
        self._codec = codec
        self._redact = redact

    def of_result(
        self, grant: Grant, handler: Handler, result: Any, why_stop: str | None, context: JobContext | None = None
    ) -> Outcome:
        """
        Turn a handler's return value into an outcome.

        Args:
            why_stop: why it was asked to stop, if it was.
            context: what the handler had, to know which jobs it made and what it has stored of its result.
        """
        if why_stop == "timeout":
            return self.of_error(grant, TimeoutError("ended after its timeout"), why_stop)
        if (
            type(result) not in _PLAIN_RESULTS
            and (special := self._special(grant, handler, result, why_stop, context)) is not None
        ):
            return special
        return self._ended(grant, handler, result, why_stop, context)

    def of_error(
        self, grant: Grant, error: BaseException, why_stop: str | None = None, *, final: bool = False
    ) -> Outcome:
        """Turn a handler's exception into an outcome; *final*: another attempt would end the same way."""
        if why_stop in GIVE_BACK and isinstance(error, (Exception, asyncio.CancelledError)):
            # It was asked to stop and stopped, by whatever it raised; that is no failed attempt.
            return outcome_of(grant, OutcomeKind.RELEASED)
        timed_out = why_stop == "timeout"
        kind = "timeout" if timed_out else qualified_name(error)
        message = "the handler ran longer than its timeout" if timed_out else _safe_str(error)
        described = JobError(
            type=self._text(kind), message=self._text(message), traceback=self._text(_traceback(error))
        )
        if isinstance(error, (SystemExit, KeyboardInterrupt)):
            return outcome_of(grant, OutcomeKind.LOST, error=described)
        return self._failed(grant, described, final=final)

    def of_accident(self, grant: Grant, error: BaseException) -> Outcome:
        """Turn an error around a handler into an outcome."""
        described = JobError(type=self._text(qualified_name(error)), message=self._text(_safe_str(error)))
        wait_ms = grant.spec.policy.backoff.delay_ms(grant.attempt, random.random())
        return outcome_of(grant, OutcomeKind.FAILED, error=described, delay_ms=wait_ms)

    def of_unreadable(self, job: Unreadable) -> Outcome:
        """Turn a job that cannot be read here into an outcome: back to its place for a later release, or a failure."""
        if job.is_newer:
            return Outcome(job_id=job.job_id, token=job.token, kind=OutcomeKind.UNKNOWN_TASK)
        described = JobError(type="unreadable", message=self._text(job.problem))
        return Outcome(job_id=job.job_id, token=job.token, kind=OutcomeKind.FAILED, error=described, final=True)

    def of_refusal(self, outcome: Outcome, error: BaseException) -> Outcome:
        """Turn an outcome that cannot be sent into a failure: another attempt would end the same way."""
        described = JobError(type=self._text(qualified_name(error)), message=self._text(_safe_str(error)))
        return Outcome(job_id=outcome.job_id, token=outcome.token, kind=OutcomeKind.FAILED, error=described, final=True)

    def _ended(
        self, grant: Grant, handler: Handler, result: Any, why_stop: str | None, context: JobContext | None
    ) -> Outcome:
        """Turn a result into an outcome."""
        partial_result = None if context is None else context.partial_result
        payload: bytes | None
        try:
            payload = handler.dump_result(self._codec, result)
            if result is None:
                # The partial result of an earlier attempt stays.
                payload = partial_result.dump(self._codec) if partial_result else None
            elif partial_result and isinstance(result, dict):
                payload = partial_result.dump(self._codec, payload)
            if payload is not None:
                check_payload_size(payload, parameter="result", bytes_max=RESULT_BYTES_MAX)
        except BaseException as error:  # noqa: BLE001 - a codec of the application's may raise anything
            return self.of_error(grant, error, why_stop, final=True)
        return finished(grant.spec.id, grant.token, payload)

    def _of_children(
        self, grant: Grant, handler: Handler, answer: Children, why_stop: str | None, context: JobContext | None
    ) -> Outcome:
        """Turn the answer to wait for children into an outcome; if it names none it means those the handler made."""
        children = answer.ids or (context.made if context else ())
        if len(children) > CHILDREN_MAX:
            error = InvalidJobError(f"children: {len(children)} jobs, limit {CHILDREN_MAX}")
            return self.of_error(grant, error, why_stop, final=True)
        try:
            if context is not None:
                context.check_children(answer)
        except InvalidJobError as error:
            return self.of_error(grant, error, why_stop, final=True)
        if grant.spec.id in children:
            return self.of_error(grant, CycleError([grant.spec.id]), why_stop, final=True)
        ended = self._ended(grant, handler, answer.result, why_stop, context)
        if not children or ended.kind is not OutcomeKind.FINISHED:
            return ended
        return attrs.evolve(
            ended, kind=OutcomeKind.CHILDREN, children=children, on_child_failure=answer.on_child_failure
        )

    def _special(
        self, grant: Grant, handler: Handler, result: Any, why_stop: str | None, context: JobContext | None
    ) -> Outcome | None:
        """Turn an answer, or an invalid return value, into an outcome; None for a result."""
        if isinstance(result, Children):
            return self._of_children(grant, handler, result, why_stop, context)
        if isinstance(result, Retry):
            described = JobError(type="retry", message=self._text(result.reason))
            return self._failed(grant, described, after_ms=result.after_ms)
        if isinstance(result, Snooze):
            return outcome_of(grant, OutcomeKind.SNOOZED, delay_ms=result.delay_ms)
        if isinstance(result, Fail):
            return self._failed(grant, JobError(type="fail", message=self._text(result.reason)), final=True)
        if isinstance(result, Discard):
            return outcome_of(grant, OutcomeKind.DISCARDED, reason=self._text(result.reason))
        if inspect.iscoroutine(result) or inspect.isgenerator(result) or inspect.isasyncgen(result):
            close = getattr(result, "close", None)
            if close is not None:
                close()
            message = f"{handler.name} returned a {type(result).__name__}, not a result; is an `await` missing?"
            return self.of_error(grant, TypeError(message), why_stop, final=True)
        return None

    @staticmethod
    def _failed(grant: Grant, described: JobError, *, after_ms: int | None = None, final: bool = False) -> Outcome:
        spec = grant.spec
        facts = {"job_id": spec.id, "task": spec.task, "attempt": grant.attempt, "error": described.type}
        if final or grant.attempt >= spec.policy.max_attempts:
            logger.error("job failed", extra={"event": "job.failed", **facts})
        else:
            logger.warning("job retries", extra={"event": "job.retry", **facts})
        if after_ms is None:
            after_ms = spec.policy.backoff.delay_ms(grant.attempt, random.random())
        return outcome_of(grant, OutcomeKind.FAILED, error=described, delay_ms=after_ms, final=final)

    def log_failed_hook(self, message: str, error: BaseException, **extra: Any) -> None:
        """Log a hook's exception with its traceback, redacted like texts of handlers."""
        extra["error"] = qualified_name(error)
        if self._redact is None:
            logger.error(message, extra=extra, exc_info=error)
        else:
            logger.error(message, extra={**extra, "traceback": self._text(_whole_traceback(error))})

    def _text(self, text: str) -> str:
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
            logger.error("redact failed", extra=extra)  # noqa: TRY400
            return "<withheld: redact failed>"
        return text if len(text) <= ERROR_TEXT_MAX else text[: ERROR_TEXT_MAX - 1] + "…"


class Settlements:
    """
    Outcomes of one worker on their way to the store, in the order in which they ended.

    A batch is cut by number and by bytes. One that fails with what is no error of the store is sent again by halves,
    until an outcome is alone. If it fails twice, and an exchange without any goes through in between, its job is
    FAILED; all others are settled as they ended.
    """

    def __init__(self) -> None:
        self._outcomes: deque[Outcome] = deque()
        self._most = SETTLEMENTS_MAX
        self._suspect: Outcome | None = None
        self._replaced: Outcome | None = None

    def __len__(self) -> int:
        return len(self._outcomes)

    def __iter__(self) -> Iterator[Outcome]:
        return iter(list(self._outcomes))

    def append(self, outcome: Outcome) -> None:
        """Take one outcome in."""
        self._outcomes.append(outcome)

    def add(self, outcomes: Iterable[Outcome]) -> None:
        """Take outcomes in."""
        self._outcomes += outcomes

    def batch(self) -> tuple[Outcome, ...]:
        """Return those to be sent next."""
        batch: list[Outcome] = []
        size = 0
        for outcome in self._outcomes:
            size += len(outcome.result or b"")
            if len(batch) == self._most or (batch and size > BATCH_BYTES_MAX):
                break
            batch.append(outcome)
        return tuple(batch)

    def take(self, count: int) -> None:
        """Remove the first ones, which are sent now."""
        for _ in range(count):
            self._outcomes.popleft()

    def give_back(self, outcomes: Sequence[Outcome]) -> None:
        """Put some that were taken first again, for they were refused."""
        self._outcomes.extendleft(reversed(outcomes))

    def settled(self, count: int) -> None:
        """Record that the store has accepted so many."""
        if count:
            self._most = min(2 * self._most, SETTLEMENTS_MAX)

    def halve(self, count: int) -> bool:
        """Halve the batch after a failure; return False if it was a single outcome."""
        self._most = min(self._most, max(1, count // 2))
        return count > 1

    @property
    def is_halved(self) -> bool:
        """True from a failure on until as many as ever go together."""
        return self._most < SETTLEMENTS_MAX

    def is_suspect(self, outcome: Outcome) -> bool:
        """Return whether it has failed alone before, while an exchange without outcomes went through."""
        is_suspect, self._suspect = self._suspect is outcome, outcome
        return is_suspect

    def replace(self, old: Outcome, outcome: Outcome) -> Outcome | None:
        """Replace an outcome by another one; return the old one, and remove it, if it was replaced before."""
        at = next(index for index, each in enumerate(self._outcomes) if each is old)
        if old is self._replaced:
            del self._outcomes[at]
            return old
        self._replaced = self._outcomes[at] = outcome
        return None


def log_exchange(worker: str, settled: tuple[Outcome, ...], reply: Exchanged) -> None:
    """Log the leases that were lost, the jobs that cannot be read and, for debugging, what `check-trace` needs."""
    is_traced = logger.isEnabledFor(logging.DEBUG)
    for outcome, verdict in zip(settled, reply.verdicts, strict=True):
        if verdict is Verdict.LOST:
            logger.warning("lease lost", extra={"event": "job.lease_lost", "job_id": outcome.job_id})
        elif is_traced:
            what = {"event": "job.settled", "job_id": outcome.job_id, "outcome": str(outcome.kind)}
            logger.debug("job settled", extra={**what, "token": outcome.token, "worker": worker})
    for job in reply.unreadable:
        extra = {"event": "job.unreadable", "job_id": job.job_id, "problem": job.problem, "is_newer": job.is_newer}
        logger.error("a job cannot be read by this release", extra=extra)
    for grant in reply.grants if is_traced else ():
        spec = grant.spec
        claims = [{"path": list(claim.path), "mode": claim.mode} for claim in spec.claims]
        begun = {"event": "job.started", "job_id": spec.id, "task": spec.task, "attempt": grant.attempt}
        logger.debug("job started", extra={**begun, "token": grant.token, "worker": worker, "claims": claims})


def qualified_name(error: BaseException) -> str:
    """Return the name of an exception's class, even if the class overrides it."""
    kind = type(error)
    try:
        name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
        return plain_text(name)
    except BaseException:  # noqa: BLE001 - a class of the application's may raise anything
        return "BaseException"


def _safe_str(error: BaseException) -> str:
    try:
        return plain_text(error)[:_REDACTED_MAX]
    except BaseException:  # noqa: BLE001 - an exception whose __str__ raises must not hide the failure
        return f"<{qualified_name(error).rpartition('.')[2]}>"


def _traceback(error: BaseException) -> str:
    """Return the innermost frames: file, line and the line's source, never the values of variables."""
    try:
        frames = traceback.extract_tb(error.__traceback__)[-12:]
        return "".join(traceback.format_list(frames))[-_REDACTED_MAX:]
    except BaseException:  # noqa: BLE001 - a loader of the application's gives the source
        return ""


def _whole_traceback(error: BaseException) -> str:
    try:
        return "".join(traceback.format_exception(error))[-_REDACTED_MAX:]
    except BaseException:  # noqa: BLE001 - as above
        return ""


def _where(error: BaseException) -> str:
    """Return the file and the line in which an exception was raised."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return "" if trace is None else f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"
