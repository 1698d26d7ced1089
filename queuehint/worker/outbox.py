"""
Outbox: log lines, progress and partial results, buffered within bounds. Sending never stops an exchange.

While jobs run their messages are sent together, those of all jobs in one exchange, a few times a second; the last of a
job go before its settlement. Messages that the store refuses together are sent one by one; those refused then are
dropped, counted and logged, once a minute. Two refusals are retried: an unreachable store gets everything later, in
order, and a store without memory gets a partial result later: the job's settlement merges it in any case. A settlement
waits for unsent messages only until an exchange shows that the store is reachable; remaining lines are then
appended to the settled record.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import threading
from collections import deque
from typing import TYPE_CHECKING

import attrs

from queuehint.errors import BackendFullError, BackendUnavailableError, OutcomeUnknownError, QueueHintError
from queuehint.handlers.partial_result import PartialResult
from queuehint.operations import Get, Note, Post, Verdict
from queuehint.schema.checks import check_payload_size
from queuehint.values.outcome import RESULT_BYTES_MAX
from queuehint.worker.failures import qualified_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from queuehint.backends.base import Backend
    from queuehint.handlers.codec import Codec
    from queuehint.values.outcome import Progress
    from queuehint.worker.slots import Wakeup

logger = logging.getLogger("queuehint.worker")

LINES_MAX = 10_000
"""The most lines buffered over all jobs, so that an unreachable store does not fill the memory."""
LINES_PER_MESSAGE = 200
NOTES_AT_ONCE = 500
"""How many messages go in one request: as many as hold up no server for 20 ms."""
BYTES_AT_ONCE = 1 << 20
"""How much goes in one request, and one message more."""
LINES_AT_ONCE = 100
"""How many lines go out before others on the loop have their turn: a call to memory never suspends."""
REST_S = 5.0
"""How long a store that does not take notes, but answers exchanges, is left alone with them."""
SAY_EVERY_S = 60.0
PACE_S = 0.2
"""How often notes are sent while their jobs go on: of progress and partial results the newest, of lines all since."""
PACE_MESSAGE_S = 0.002
PACE_MAX_S = 1.0
"""Each message takes so much longer, up to the other: many jobs that all speak are not to keep a store busy."""

_Lease = tuple[str, int]
Message = Note | PartialResult


class OutboxBuffer:
    """
    Lines, progress and partial results of running jobs, buffered from any thread until the worker sends them.

    Of a job's progress and its partial result only the newest counts; its lines go out together.
    """

    def __init__(self) -> None:
        self._progress: dict[_Lease, Progress] = {}
        self._lines: dict[_Lease, deque[str]] = {}
        self._partial_results: dict[_Lease, PartialResult] = {}
        self._count = 0
        self._has_dropped = False
        self._lock = threading.Lock()

    def __bool__(self) -> bool:
        return bool(self._progress or self._lines or self._partial_results)

    def report(self, job_id: str, token: int, progress: Progress) -> None:
        """Buffer progress, replacing earlier progress of the job."""
        with self._lock:
            self._progress[job_id, token] = progress

    def store(self, partial_result: PartialResult) -> None:
        """Buffer a changed partial result."""
        with self._lock:
            self._partial_results[partial_result.job_id, partial_result.token] = partial_result

    def log(self, job_id: str, token: int, line: str) -> None:
        """Buffer a log line. Beyond `LINES_MAX`, drop the oldest line of the first job, and log the loss once."""
        with self._lock:
            self._lines.setdefault((job_id, token), deque()).append(line)
            self._count += 1
            if self._count > LINES_MAX:
                self._drop_oldest()

    def take(self, leases: Iterable[_Lease] | None = None) -> list[Message]:
        """Remove and return all buffered messages, or the messages of some leases, joined."""
        if not self:
            return []
        with self._lock:
            if leases is None:
                lines, self._lines = self._lines, {}
                progress, self._progress = self._progress, {}
                partial_results, self._partial_results = self._partial_results, {}
                self._count = 0
            else:
                chosen = list(leases)
                lines = {lease: self._lines.pop(lease) for lease in chosen if lease in self._lines}
                progress = {lease: self._progress.pop(lease) for lease in chosen if lease in self._progress}
                partial_results = {
                    lease: self._partial_results.pop(lease) for lease in chosen if lease in self._partial_results
                }
                self._count -= sum(map(len, lines.values()))
        messages: list[Message] = []
        for (job_id, token), said in lines.items():
            messages += [Note(job_id, token, part) for part in _parts(said)]
        messages += [Note(job_id, token, progress=latest) for (job_id, token), latest in progress.items()]
        messages += partial_results.values()
        return messages

    def _drop_oldest(self) -> None:
        (job_id, token), lines = next(iter(self._lines.items()))
        lines.popleft()
        if not lines:
            del self._lines[job_id, token]
        self._count -= 1
        if not self._has_dropped:
            self._has_dropped = True
            logger.warning(
                "log lines of job %s are dropped: they are written faster than the store takes them",
                job_id,
                extra={"event": "worker.log_lines_dropped", "job_id": job_id, "lines_max": LINES_MAX},
            )


class Outbox:
    """
    Sends the buffered messages of one worker's handlers.

    Args:
        codec: how partial results travel.
        wakeup: set on the loop of the worker as soon as there are notes that may be sent.
    """

    def __init__(self, backend: Backend, codec: Codec, wakeup: Wakeup) -> None:
        self.buffer = OutboxBuffer()
        self.dropped = 0
        """How many lines, reports of progress and partial results were dropped."""
        self.is_used = False
        """True from the first message on: until then there is nothing to be sent."""
        self._backend = backend
        self._codec = codec
        self._wakeup = wakeup
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_posting = False
        self._waiting: deque[Message] = deque()
        self._refused: dict[_Lease, PartialResult] = {}
        self._alone = 0
        """How many of those that wait go one by one: together they were refused."""
        self._unanswered: tuple[list[Message], Post] | None = None
        self._is_away = self._is_passed_over = False
        self._rests_until_s = self._full_until_s = self._due_s = -math.inf
        self._said_s = -math.inf

    def __bool__(self) -> bool:
        """Return whether anything is to be sent."""
        return bool(self._waiting or self.buffer or self._refused)

    def open(self) -> None:
        """Send messages on the running loop from now on."""
        self._loop = asyncio.get_running_loop()

    def report(self, job_id: str, token: int, progress: Progress) -> None:
        """Send progress soon, and before the job is settled. From any thread."""
        self.buffer.report(job_id, token, progress)
        self._tell_of_notes()

    def log(self, job_id: str, token: int, line: str) -> None:
        """Send a log line soon, and before the job is settled. From any thread."""
        self.buffer.log(job_id, token, line)
        self._tell_of_notes()

    def store(self, partial_result: PartialResult) -> None:
        """Send a partial result soon, and before the job is settled. From any thread."""
        self.buffer.store(partial_result)
        self._tell_of_notes()

    def _tell_of_notes(self) -> None:
        """Schedule the next sending. From any thread."""
        self.is_used = True
        if not self._is_posting and self._loop is not None:
            self._is_posting = True
            with contextlib.suppress(RuntimeError):  # the loop was closed over this worker
                self._loop.call_soon_threadsafe(self._post)

    def _post(self) -> None:
        assert self._loop is not None
        left_s = self.left_s
        if left_s > 0:
            self._timer = self._loop.call_later(left_s, self._post)
        else:
            # A later message schedules again.
            self._is_posting = False
            self._wakeup.set_for_notes()

    def stop(self) -> None:
        """Cancel the timer."""
        if self._timer is not None:
            self._timer.cancel()

    @property
    def left_s(self) -> float:
        """How long the next notes have to wait, because others were sent just now."""
        return max(0.0, self._due_s - self._now_s())

    async def send(self, settled: Iterable[_Lease] = (), *, is_last: bool = False) -> bool:
        """
        Send all messages if a sending is due, else the messages of the jobs to be settled.

        Args:
            settled: the leases that are settled next; the messages of their jobs go first.
            is_last: there is no other time.

        Returns:
            False if these settlements should wait, because the store is out of reach.
        """
        now_s = self._now_s()
        if now_s < self._rests_until_s and not is_last:
            self._waiting += self.buffer.take(settled)
            return True
        if self._refused and (is_last or now_s >= self._full_until_s):
            self._waiting += self._refused.values()
            self._refused = {}
            self._full_until_s = -math.inf
        is_due = is_last or now_s >= self._due_s
        count = messages = 0
        # Unsent messages of the last time go first, newer ones after them.
        for newest in (False, True):
            if newest:
                self._waiting += self.buffer.take(None if is_due else settled)
            while self._waiting:
                sent = await self._deliver_next()
                if sent is None:
                    return self._is_left(settled)
                messages += len(sent)
                count += sum(map(_count, sent))
                if count >= LINES_AT_ONCE:
                    count = 0
                    await asyncio.sleep(0)
        self._is_away = self._is_passed_over = False
        if is_due and messages:
            self._due_s = self._now_s() + min(max(PACE_S, messages * PACE_MESSAGE_S), PACE_MAX_S)
        if self.buffer:
            # Said while others were sent: what they have woken may find that it is not time yet.
            self._tell_of_notes()
        return True

    @staticmethod
    def _now_s() -> float:
        return asyncio.get_running_loop().time()

    def see_answer(self) -> bool:
        """Record that an exchange succeeded. Return whether to retry waiting messages at once."""
        is_back, self._is_passed_over = self._is_away and not self._is_passed_over, self._is_away
        return is_back

    def forget(self, verdicts: Mapping[_Lease, Verdict]) -> None:
        """Drop messages of settled jobs, except their log lines."""
        self._refused = {
            lease: partial_result for lease, partial_result in self._refused.items() if lease not in verdicts
        }
        waiting: deque[Message] = deque()
        for message in self._waiting:
            verdict = verdicts.get((message.job_id, message.token or 0))
            if verdict is None:
                waiting.append(message)
            elif verdict is Verdict.DONE and isinstance(message, Note) and message.lines:
                waiting.append(attrs.evolve(message, token=None))
            elif not isinstance(message, PartialResult):
                self._drop(message, "its job is over")
        self._waiting = waiting

    async def close(self) -> None:
        """Send the remaining messages once, because the worker ends."""
        if self:
            await self.send(is_last=True)
            for message in (*self._waiting, *self.buffer.take()):
                self._drop(message, "the worker ends")

    def _is_left(self, settled: Iterable[_Lease]) -> bool:
        """Keep unsent messages for later. Return whether settlements go on without them."""
        self._waiting += self.buffer.take(settled)
        self._is_away = True
        if self._is_passed_over:
            self._rests_until_s = self._now_s() + REST_S
        return self._is_passed_over

    async def _deliver_next(self) -> list[Message] | None:
        """Send the next messages, as many as fit. Return None if the store is unreachable and they wait."""
        message = self._waiting[0]
        may_go_together = self._alone == 0 and len(self._waiting) > 1 and message.token is not None
        if may_go_together or self._unanswered is not None:
            return await self._deliver_together()
        if not await self._deliver(message):
            return None
        self._alone = max(0, self._alone - 1)
        return [self._waiting.popleft()]

    async def _deliver_together(self) -> list[Message] | None:
        """Send the next messages in one exchange. After a refusal, send each alone, as one may be the reason."""
        taken, post = self._take_unanswered()
        is_again = post is not None
        try:
            if post is None:
                post = Post(tuple(await self._take_notes(taken)))
            if post.notes:
                await self._backend.call(post)
        except (BackendUnavailableError, OutcomeUnknownError) as error:
            self._waiting.extendleft(reversed(taken))
            if is_again and self._is_passed_over:
                # Exchanges go through, and these do not: one of them may be the reason.
                self._alone = len(taken)
                return []
            self._unanswered = None if post is None else (taken, post)
            self._say_away(error)
            return None
        except Exception:  # noqa: BLE001 - it is met again by the message that is the reason
            self._waiting.extendleft(reversed(taken))
            self._alone = len(taken) + (post is None)
            return []
        except BaseException:
            self._waiting.extendleft(reversed(taken))
            raise
        return taken

    def _take_unanswered(self) -> tuple[list[Message], Post | None]:
        """Return the batch whose reply was lost, unchanged, so that the retry is idempotent."""
        if self._unanswered is None:
            return [], None
        before, post = self._unanswered
        self._unanswered = None
        # A job that was settled meanwhile has taken its own back; a partial result may be there anew, with more in it.
        ids = {id(message) for message in before}
        taken: list[Message] = []
        others: list[Message] = []
        for message in self._waiting:
            (taken if id(message) in ids else others).append(message)
            ids.discard(id(message))
        self._waiting = deque(others)
        return taken, post if taken else None

    async def _take_notes(self, taken: list[Message]) -> list[Note]:
        """Return the next messages as notes, and add the messages to *taken*. An unsendable message makes no note."""
        notes: list[Note] = []
        size = lines = 0
        lines_max = LINES_AT_ONCE if self._backend.keeps_leases else LINES_MAX
        while self._waiting and len(notes) < NOTES_AT_ONCE and size < BYTES_AT_ONCE and lines < lines_max:
            message = self._waiting[0]
            if message.token is None:
                break
            note = await self._note_of(message)
            self._waiting.popleft()
            if note is not None:
                taken.append(message)
                notes.append(note)
                size += len(note.result or b"") + sum(map(len, note.lines))
                lines += len(note.lines)
        return notes

    async def _note_of(self, message: Message) -> Note | None:
        if isinstance(message, Note):
            return message
        payload = await self._payload_of(message)
        return None if payload is None else Note(message.job_id, message.token, result=payload)

    async def _deliver(self, message: Message) -> bool:
        """Send one message. Return False if the store is unreachable and the message has to wait."""
        try:
            note = await self._note_of(message)
            if note is not None:
                await self._backend.call(Post((note,)))
        except (BackendUnavailableError, OutcomeUnknownError) as error:
            self._say_away(error)
            return False
        except BackendFullError as error:
            if isinstance(message, PartialResult):
                self._refused[message.job_id, message.token] = message
                self._full_until_s = self._now_s() + REST_S
                extra = {"event": "worker.notes_wait", "job_id": message.job_id, "error": str(error)}
                logger.warning("a partial result waits: the store is full", extra=extra)
            else:
                self._drop(message, error)
        except Exception as error:  # noqa: BLE001 - nothing that travels beside jobs may end the worker
            self._drop(message, error)
        return True

    @staticmethod
    def _say_away(error: Exception) -> None:
        extra = {"event": "worker.notes_wait", "error": str(error)}
        logger.warning("messages of jobs wait: the store cannot be reached", extra=extra)

    async def _payload_of(self, partial_result: PartialResult) -> bytes | None:
        """
        Return the stored partial result of a job with new fields merged over it.

        None if it is dropped, or waits for a store that is full.
        """
        if self._now_s() < self._full_until_s:
            self._refused[partial_result.job_id, partial_result.token] = partial_result
            return None
        if not partial_result.is_loaded:
            reply = await self._backend.call(Get((partial_result.job_id,)))
            partial_result.load(reply.records[0], self._codec)
        try:
            payload = partial_result.dump(self._codec)
            check_payload_size(payload, parameter="result", bytes_max=RESULT_BYTES_MAX)
        except BaseException as error:  # noqa: BLE001 - a codec of the application's; the job fails of it when it ends
            self._drop(partial_result, qualified_name(error))
            return None
        return payload

    def _drop(self, message: Message, why: Exception | str) -> None:
        self.dropped += _count(message)
        now_s = self._now_s()
        if now_s - self._said_s >= SAY_EVERY_S:
            self._said_s = now_s
            error = why if isinstance(why, str) else qualified_name(why)
            if isinstance(why, QueueHintError):
                error += f": {why}"
            extra = {"event": "worker.notes_dropped", "job_id": message.job_id, "dropped": self.dropped, "error": error}
            logger.warning("messages of jobs are dropped: the store refuses them", extra=extra)


def _count(message: Message) -> int:
    """Return how many lines, reports of progress and partial results a message is."""
    return len(message.lines) if isinstance(message, Note) and message.lines else 1


def _parts(lines: deque[str]) -> list[tuple[str, ...]]:
    whole = tuple(lines)
    return [whole[begin : begin + LINES_PER_MESSAGE] for begin in range(0, len(whole), LINES_PER_MESSAGE)]
