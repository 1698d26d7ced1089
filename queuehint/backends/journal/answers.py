"""
The newest answer of each stream, so that a request that is repeated is answered and not done twice.

They are part of what the journal makes: the next leader makes them again from the rows, and a snapshot has them. With
them stand the names of the workers of guests: their leases outlive a leader.

Bounded in streams and in bytes: what is repeated after its answer was dropped is done again, as by a server that has
lost its memory, and the operations tell most repeats by themselves (jobs by their ids, outcomes by their tokens).
"""

from __future__ import annotations

import json
import zlib
from typing import TYPE_CHECKING, Any, Final

import attrs

from queuehint.backends.journal.guests.messages import read_answer, refused, replied
from queuehint.errors import BackendDeniedError, CorruptStateError, QueueHintError
from queuehint.operations import Exchange, Exchanged

if TYPE_CHECKING:
    from queuehint.backends.journal.groups import Request
    from queuehint.operations import Operation

STREAMS_MAX: Final = 1_000
BYTES_MAX: Final = 16 << 20
WORKERS_MAX: Final = 1_000
_ANSWER_BYTES: Final = 500
_GRANT_BYTES: Final = 1_000


@attrs.frozen
class Answer:
    """
    What a request was answered with: a reply, an error, or either as it was sent.

    Args:
        number: of the request.
        size: bytes that it is counted with.
    """

    number: int
    reply: Any
    size: int = _ANSWER_BYTES

    def encoded(self) -> bytes:
        """Return it as it is sent."""
        reply = self.reply
        if type(reply) is bytes:
            return reply
        return refused(reply) if isinstance(reply, QueueHintError) else replied(reply)

    def reply_of(self, operation: Operation[Any]) -> Any:
        """
        Return the reply of the operation that it answers.

        Raises:
            QueueHintError: what it was refused with.
        """
        reply = self.reply
        if isinstance(reply, QueueHintError):
            raise reply
        kind: Any = operation.reply_class
        return read_answer(reply, kind) if type(reply) is bytes else reply


class Answers:
    """
    The newest answers by stream, the stream that was longest without a request first; and workers of guests.

    Attributes:
        workers: names of workers of guests that have asked for jobs, in order of the first request.
    """

    def __init__(self) -> None:
        self._by_stream: dict[str, Answer] = {}
        self._bytes = 0
        self.workers: dict[str, None] = {}

    def find(self, request: Request) -> Answer | None:
        """
        Return the answer of a request that was done already.

        Raises:
            BackendDeniedError: its stream has gone on since, so that nobody waits for the answer.
        """
        known = self._by_stream.get(request.stream)
        if known is None or known.number < request.number:
            return None
        if known.number > request.number:
            raise BackendDeniedError("that request was answered before the one that came after it")
        return known

    def keep(self, request: Request | None, operation: Operation[Any], reply: Any) -> None:
        """Keep what an operation was answered with, None for one of the leader's own process."""
        if type(operation) is Exchange:
            if request is None:
                self.workers.pop(operation.worker, None)
            else:
                self.workers[operation.worker] = None
                while len(self.workers) > WORKERS_MAX:
                    del self.workers[next(iter(self.workers))]
        if request is not None:
            self._put(request.stream, Answer(request.number, reply, _size_of(reply)))

    def _put(self, stream: str, answer: Answer) -> None:
        before = self._by_stream.pop(stream, None)
        self._by_stream[stream] = answer
        self._bytes += answer.size - (0 if before is None else before.size)
        while len(self._by_stream) > STREAMS_MAX or (self._bytes > BYTES_MAX and len(self._by_stream) > 1):
            self._bytes -= self._by_stream.pop(next(iter(self._by_stream))).size

    def frozen(self) -> bytes:
        """Return all as a part of a snapshot."""
        streams = [[name, each.number, each.encoded().decode("ascii")] for name, each in self._by_stream.items()]
        return zlib.compress(json.dumps([list(self.workers), streams]).encode("ascii"), 1)

    @classmethod
    def thawed(cls, part: bytes) -> Answers:
        """
        Return what `frozen` has made.

        Raises:
            CorruptStateError: that is none.
        """
        made = cls()
        try:
            workers, streams = json.loads(zlib.decompress(part))
            made.workers = dict.fromkeys(workers)
            for name, number, text in streams:
                made._put(name, Answer(number, text.encode("ascii"), max(len(text), _ANSWER_BYTES)))
        except (ValueError, TypeError, AttributeError, zlib.error) as error:
            raise CorruptStateError(f"the snapshot cannot be read: {type(error).__name__}: {error}") from error
        return made


def _size_of(reply: Any) -> int:
    """Return about how many bytes a reply takes: those that carry arguments of jobs may be large."""
    if isinstance(reply, Exchanged):
        return _ANSWER_BYTES + sum([_GRANT_BYTES + len(grant.spec.arguments) for grant in reply.grants])
    return _ANSWER_BYTES
