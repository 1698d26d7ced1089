"""
Outcomes: from a handler's result or exception to the settlement of its job, and batches of settlements.

The texts of an exception are made by `queuehint.worker.failures`.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import random
from collections import deque
from itertools import islice
from typing import TYPE_CHECKING, Any

import attrs

from queuehint.errors import CycleError, InvalidJobError
from queuehint.handlers.context import Children, Discard, Fail, Leave, Retry, Snooze, check_children_count
from queuehint.handlers.remote import EncodedResult, RemoteError
from queuehint.operations import JOBS_AT_ONCE, Verdict
from queuehint.schema.checks import check_payload_size
from queuehint.values.outcome import (
    RESULT_BYTES_MAX,
    JobError,
    Outcome,
    OutcomeKind,
    new_outcome,
)
from queuehint.worker.failures import Failures, qualified_name, safe_str

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from queuehint.handlers.codec import Codec
    from queuehint.handlers.context import JobContext
    from queuehint.handlers.handler import Handler
    from queuehint.operations import Exchanged, Unreadable
    from queuehint.values.outcome import Grant

logger = logging.getLogger("queuehint.worker")

GIVE_BACK = frozenset({"canceled", "shutdown", "lease lost"})
"""The reasons to stop after which an attempt that ends by raising has not failed."""

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
        failures: describes and logs failed attempts; by default nothing is redacted.
    """

    def __init__(self, codec: Codec, failures: Failures | None = None) -> None:
        self._codec = codec
        self.failures = Failures() if failures is None else failures

    def of_result(
        self, grant: Grant, handler: Handler, result: Any, why_stop: str | None, context: JobContext | None = None
    ) -> Outcome:
        """
        Turn a handler's return value, or its raised answer, into an outcome.

        Args:
            why_stop: why it was asked to stop, if it was.
            context: what the handler had, to know which jobs it made and what it has stored of its result.
        """
        if why_stop == "timeout":
            late = TimeoutError("ended after its timeout")
            return self.of_error(grant, late, why_stop, final=handler.rules.is_final(late))
        if (
            type(result) not in _PLAIN_RESULTS
            and (special := self._special(grant, handler, result, why_stop, context)) is not None
        ):
            return special
        return self._ended(grant, handler, result, why_stop, context)

    def of_error(
        self, grant: Grant, error: BaseException, why_stop: str | None = None, *, final: bool = False
    ) -> Outcome:
        """Turn a handler's exception into an outcome. *final*: another attempt would end the same way."""
        if why_stop in GIVE_BACK and isinstance(error, (Exception, asyncio.CancelledError)):
            # It was asked to stop and stopped, by whatever it raised; that is no failed attempt.
            return outcome_of(grant, OutcomeKind.RELEASED)
        timed_out = why_stop == "timeout"
        kind = "timeout" if timed_out else qualified_name(error)
        message = _timed_out(grant.spec.policy.timeout_ms) if timed_out else safe_str(error)
        described = self.failures.describe(kind, message, error)
        if isinstance(error, (SystemExit, KeyboardInterrupt)) or (isinstance(error, RemoteError) and error.is_exit):
            self.failures.log_exit(grant, described, error)
            return outcome_of(grant, OutcomeKind.LOST, error=described)
        return self._failed(grant, described, error, final=final)

    def of_accident(self, grant: Grant, error: BaseException) -> Outcome:
        """Turn an error around a handler into an outcome."""
        return self._failed(grant, self.failures.describe(qualified_name(error), safe_str(error)), error)

    def of_unreadable(self, job: Unreadable) -> Outcome:
        """Turn an unreadable job into an outcome: back to its place for a later release, or a failure."""
        facts = {"job_id": job.job_id, "problem": job.problem, "is_newer": job.is_newer}
        message, what = "job %s cannot be read by this release: %s", "newer" if job.is_newer else "damaged"
        self.failures.given_back.log("job.unreadable", what, message, (job.job_id, job.problem), facts)
        if job.is_newer:
            return Outcome(job_id=job.job_id, token=job.token, kind=OutcomeKind.UNKNOWN_TASK)
        described = self.failures.describe("unreadable", job.problem)
        return Outcome(job_id=job.job_id, token=job.token, kind=OutcomeKind.FAILED, error=described, final=True)

    def of_refusal(self, outcome: Outcome, error: BaseException) -> Outcome:
        """Turn an unsendable outcome into a failure, as another attempt would end the same way."""
        described = self.failures.describe(qualified_name(error), safe_str(error))
        return Outcome(job_id=outcome.job_id, token=outcome.token, kind=OutcomeKind.FAILED, error=described, final=True)

    def _ended(
        self, grant: Grant, handler: Handler, result: Any, why_stop: str | None, context: JobContext | None
    ) -> Outcome:
        """Turn a result into an outcome."""
        partial_result = None if context is None else context.partial_result
        if result is None and partial_result is None and handler.writes_none(self._codec):
            return new_outcome(grant.spec.id, grant.token, OutcomeKind.FINISHED, None)
        payload: bytes | None
        try:
            if isinstance(result, EncodedResult):
                payload, kind = result.payload, result.kind
            else:
                payload = handler.dump_result(self._codec, result)
                kind = "none" if result is None else "dict" if isinstance(result, dict) else "other"
            if kind == "none":
                # The partial result of an earlier attempt stays.
                payload = partial_result.dump(self._codec) if partial_result else None
            elif partial_result and kind == "dict":
                payload = partial_result.dump(self._codec, payload)
            if payload is not None and (type(payload) is not bytes or len(payload) > RESULT_BYTES_MAX):
                check_payload_size(payload, parameter="result", bytes_max=RESULT_BYTES_MAX)
        except BaseException as error:  # noqa: BLE001 - a codec of the application's may raise anything
            return self.of_error(grant, error, why_stop, final=not isinstance(error, OSError))
        return new_outcome(grant.spec.id, grant.token, OutcomeKind.FINISHED, payload)

    def _of_children(
        self, grant: Grant, handler: Handler, answer: Children, why_stop: str | None, context: JobContext | None
    ) -> Outcome:
        """Turn the answer to wait for children into an outcome. Without names, it means the handler's children."""
        children = answer.ids or (context.made if context else ())
        try:
            check_children_count(len(children))
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
        """Turn an answer, or an invalid return value, into an outcome. Return None for a result."""
        if isinstance(result, Children):
            return self._of_children(grant, handler, result, why_stop, context)
        if isinstance(result, Retry):
            return self._failed(grant, self._described("retry", result), _raised(result), after_ms=result.after_ms)
        if isinstance(result, Snooze):
            return outcome_of(grant, OutcomeKind.SNOOZED, delay_ms=result.delay_ms)
        if isinstance(result, Leave):
            return outcome_of(grant, OutcomeKind.CHILDREN, children=(result.wait_id,), again=True)
        if isinstance(result, Fail):
            return self._failed(grant, self._described("fail", result), _raised(result), final=True)
        if isinstance(result, Discard):
            return outcome_of(grant, OutcomeKind.DISCARDED, reason=self.failures.text(result.reason))
        if inspect.iscoroutine(result) or inspect.isgenerator(result) or inspect.isasyncgen(result):
            close = getattr(result, "close", None)
            if close is not None:
                close()
            message = f"{handler.name} returned a {type(result).__name__}, not a result; is an `await` missing?"
            return self.of_error(grant, TypeError(message), why_stop, final=True)
        return None

    def _described(self, kind: str, answer: Retry | Fail) -> JobError:
        return self.failures.describe(kind, answer.reason, _raised(answer))

    def _failed(
        self,
        grant: Grant,
        described: JobError,
        error: BaseException | None = None,
        *,
        after_ms: int | None = None,
        final: bool = False,
    ) -> Outcome:
        policy = grant.spec.policy
        if after_ms is None:
            after_ms = policy.backoff.delay_ms(grant.attempt, random.random())
        is_last = final or grant.attempt >= policy.max_attempts
        self.failures.log(grant, described, error, retry_ms=None if is_last else after_ms)
        return outcome_of(grant, OutcomeKind.FAILED, error=described, delay_ms=after_ms, final=final)


class Settlements:
    """
    Outcomes of one worker on their way to the store, in the order in which they ended.

    A batch is cut by number and by bytes. One that fails with what is no error of the store is sent again by halves,
    until an outcome is alone. If it fails twice, and an exchange without any goes through in between, its job is
    FAILED; all others are settled as they ended.
    """

    def __init__(self) -> None:
        self.waiting: deque[Outcome] = deque()
        """Those that are not sent."""
        self.append = self.waiting.append
        """Takes one outcome in."""
        self._most = JOBS_AT_ONCE
        self._suspect: Outcome | None = None
        self._replaced: Outcome | None = None

    def add(self, outcomes: Iterable[Outcome]) -> None:
        """Take outcomes in."""
        self.waiting += outcomes

    def batch(self) -> tuple[Outcome, ...]:
        """Return the next batch of outcomes."""
        batch: list[Outcome] = []
        size = 0
        for outcome in islice(self.waiting, self._most):
            if outcome.result is not None:
                size += len(outcome.result)
                if batch and size > BATCH_BYTES_MAX:
                    break
            batch.append(outcome)
        return tuple(batch)

    def take(self, count: int) -> None:
        """Remove the first outcomes, which are sent now."""
        if count == len(self.waiting):
            self.waiting.clear()
            return
        for _ in range(count):
            self.waiting.popleft()

    def give_back(self, outcomes: Sequence[Outcome]) -> None:
        """Return refused outcomes to the front of the queue."""
        self.waiting.extendleft(reversed(outcomes))

    def settled(self) -> None:
        """Record that the store has accepted a batch."""
        self._most = min(2 * self._most, JOBS_AT_ONCE)

    def halve(self, count: int) -> bool:
        """Halve the batch after a failure. Return False for a single outcome."""
        self._most = min(self._most, max(1, count // 2))
        return count > 1

    @property
    def is_halved(self) -> bool:
        """True from a failure on until as many as ever go together."""
        return self._most < JOBS_AT_ONCE

    def is_suspect(self, outcome: Outcome) -> bool:
        """Return whether this outcome already failed when sent alone while an empty exchange succeeded."""
        is_suspect, self._suspect = self._suspect is outcome, outcome
        return is_suspect

    def replace(self, old: Outcome, outcome: Outcome) -> Outcome | None:
        """Replace an outcome. If it was replaced before, remove and return the old outcome."""
        at = next(index for index, each in enumerate(self.waiting) if each is old)
        if old is self._replaced:
            del self.waiting[at]
            return old
        self._replaced = self.waiting[at] = outcome
        return None


def log_exchange(worker: str, settled: tuple[Outcome, ...], reply: Exchanged) -> None:
    """Log the leases that were lost and, for debugging, what `check-trace` needs."""
    is_traced = logger.isEnabledFor(logging.DEBUG)
    for outcome, verdict in zip(settled, reply.verdicts, strict=True):
        if verdict is Verdict.LOST:
            lost = {"event": "job.lease_lost", "job_id": outcome.job_id}
            logger.warning("the lease of job %s was lost before it was settled", outcome.job_id, extra=lost)
        elif is_traced:
            what = {"event": "job.settled", "job_id": outcome.job_id, "outcome": str(outcome.kind)}
            logger.debug("job settled", extra={**what, "token": outcome.token, "worker": worker})
    for grant in reply.grants if is_traced else ():
        spec = grant.spec
        claims = [{"path": list(claim.path), "mode": claim.mode} for claim in spec.claims]
        begun = {"event": "job.started", "job_id": spec.id, "task": spec.task, "attempt": grant.attempt}
        logger.debug("job started", extra={**begun, "token": grant.token, "worker": worker, "claims": claims})


def _raised(answer: Retry | Fail) -> BaseException | None:
    """Return a raised answer as an exception, None for a returned answer."""
    if isinstance(answer.__cause__, RemoteError):
        return answer.__cause__
    return None if answer.__traceback__ is None else answer


def _timed_out(timeout_ms: int | None) -> str:
    return "the handler ran longer than its timeout" + (f" of {timeout_ms / 1000:g} s" if timeout_ms else "")
