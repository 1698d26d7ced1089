"""
The thread that carries the streams of a process through the database.

    link or server --socket--> carrier --mail in the database--> carrier --socket--> server or link

- What is read from sockets while a statement is under way goes with the next one, for all boxes at once.
- A guest's carrier opens streams. It asks until the stream is accepted, and then sends. While nothing is heard it looks
  whether that leader still leads: its streams end when another process may lead.
- A leader's carrier accepts streams. It removes mail that nobody fetches any more, and listens for rows in the inbox.
- Nothing of it lasts. When the session was lost, all streams end as soon as the server answers again: those who had
  calls on them ask again under their numbers. So it is when a piece is missing, or the other end is gone.
- Without a session of its own, behind a pooler, the carrier looks into its box: each 3 ms while there is traffic, then
  less and less often.
"""

from __future__ import annotations

import logging
import secrets
import selectors
import socket
import threading
import time
from collections import defaultdict
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import attrs

from queuehint.backends.journal.guests.doors import GoneError
from queuehint.backends.postgres.mail.letters import (
    ACCEPT,
    DATA,
    END,
    ID_BYTES,
    OPEN,
    PING,
    RESET,
    TAKEN,
    Piece,
)
from queuehint.backends.postgres.mail.mailbox import Mailbox
from queuehint.backends.postgres.mail.stream import Stream
from queuehint.backends.postgres.sessions.failures import LostError, RefusedError, judgement
from queuehint.errors import BackendError, BackendUnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable

    from queuehint.backends.postgres.address import Address

STREAMS_MAX: Final = 1_000
"""How many streams are open at a time; others wait."""
TURN_BYTES: Final = 4 << 20
"""How much is sent by one statement, of all streams."""
TICK_S: Final = 0.25
"""How often to ask again for a stream to be accepted, and to look for a leader of which nothing is heard."""
PING_S: Final = 5.0
"""How often a guest says that it lives."""
DEAD_S: Final = 20.0
"""A guest of which a leader hears nothing for so long is gone."""
GAP_S: Final = 2.0
"""For how long a piece may be missing before those that have come."""
PRUNE_S: Final = 30.0
"""How often a leader removes mail that nobody fetches."""
LINGER_S: Final = 2.0
"""How long a guest's session is kept without a stream."""
CLOSE_S: Final = 0.5
"""How long the end of streams may take when a leader closes."""
_PAUSE_MIN_S: Final = 0.02
_PAUSE_MAX_S: Final = 0.5
_LOOK_SHARE: Final = 0.25

logger = logging.getLogger("queuehint.journal")


class Carrier:
    """
    The streams of a process.

    Args:
        adopt: takes the other end of a stream that was accepted, on a leader; None for a guest.
        look: called on the thread when rows may have come into the inbox, on a leader.

    Attributes:
        box: where mail for this process goes; of a guest another one for each session.
    """

    def __init__(
        self,
        address: Address,
        namespace: str,
        adopt: Callable[[socket.socket], None] | None = None,
        look: Callable[[], None] | None = None,
    ) -> None:
        self._address = attrs.evolve(address, durability="process")
        self._namespace = namespace
        self._adopt = adopt
        self._look = look
        self.box = ""
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._asked: list[Stream] = []
        self._is_closing = self._is_turning_away = False
        self._close_s = 0.0
        self._waker: socket.socket | None = None
        # --- of the thread
        self._woken: socket.socket
        self._mailbox: Mailbox | None = None
        self._selector: selectors.BaseSelector
        self._streams: dict[bytes, Stream] = {}
        self._out: defaultdict[str, list[Piece]] = defaultdict(list)
        self._pruned_s = self._ticked_s = self._needed_s = 0.0

    # --- from any thread -----------------------------------------------------------------------------------------

    def start(self) -> None:
        """
        Begin to accept streams; on a leader.

        Raises:
            BackendError: the server cannot be used.
        """
        mailbox = self._connect()
        try:
            mailbox.clear()
            self._begin()
        except (LostError, RefusedError) as error:
            raise judgement(error, self._address.shown) from error

    def open(self, box: str, term: str, timeout_s: float) -> socket.socket:
        """
        Open a stream to a leader.

        Raises:
            GoneError: it leads no more, or does not accept it in time, as while the server cannot be reached.
            BackendError: the server refuses this process.
        """
        mine, connection = socket.socketpair()
        connection.setblocking(False)
        stream = Stream(secrets.token_bytes(ID_BYTES), connection, box, time.monotonic(), term)
        with self._lock:
            self._asked.append(stream)
            try:
                if self._thread is None:
                    self._begin()
            except (OSError, RuntimeError) as error:  # too many files or threads, or the interpreter ends
                self._asked.remove(stream)
                mine.close()
                connection.close()
                raise BackendUnavailableError(f"{self._address.shown}: {error}") from error
        self._wake()
        is_settled = stream.settled.wait(timeout_s)
        if not (is_settled and stream.is_accepted):
            problem = stream.problem or GoneError(is_silent=not is_settled)
            mine.close()  # which its other end notices, and takes for its own problem
            raise problem
        return mine

    def turn_away(self) -> None:
        """End all streams of now: their guests ask again, and find a better way."""
        self._is_turning_away = True
        self._wake()

    def close(self) -> None:
        """End all streams, once what was read from their sockets is sent; idempotent."""
        with self._lock:
            thread, self._is_closing = self._thread, True
        self._wake()
        if thread is not None:
            thread.join(2 * CLOSE_S)
        elif self._mailbox is not None:
            self._mailbox.close()

    def _begin(self) -> None:
        self._waker, self._woken = socket.socketpair()
        for each in (self._waker, self._woken):
            each.setblocking(False)
        self._needed_s = time.monotonic()
        thread = threading.Thread(target=self._run, daemon=True, name="queuehint-mail")
        thread.start()
        self._thread = thread

    def _wake(self) -> None:
        waker = self._waker
        if waker is not None:
            with suppress(OSError):
                waker.send(b"x")

    # --- on the thread -------------------------------------------------------------------------------------------

    def _run(self) -> None:
        is_failed = True
        try:
            self._selector = selectors.DefaultSelector()
            self._selector.register(self._woken, selectors.EVENT_READ)
            pause_s = _PAUSE_MIN_S
            while not self._is_over():
                try:
                    self._carry(self._mailbox or self._connect_again())
                    pause_s = _PAUSE_MIN_S
                except (LostError, RefusedError, BackendError) as error:
                    self._lose(error)
                    time.sleep(pause_s)
                    pause_s = min(2 * pause_s, _PAUSE_MAX_S)
            is_failed = False
        except Exception:
            logger.exception("the mail of a journal has ended", extra={"event": "journal.mail_ended"})
        finally:
            with self._lock:
                self._end(is_failed=is_failed)

    def _is_over(self) -> bool:
        """Return whether the thread is not needed any more."""
        now_s = time.monotonic()
        with self._lock:
            if self._streams or self._asked:
                self._needed_s = now_s
            if not self._is_closing:
                return self._adopt is None and now_s > self._needed_s + LINGER_S
            self._close_s = self._close_s or now_s + CLOSE_S
            return not (self._streams or self._out or self._asked) or now_s > self._close_s

    def _end(self, *, is_failed: bool) -> None:
        """Leave nothing open; what was asked for meanwhile begins another thread."""
        self._thread = None
        if is_failed or self._is_closing:
            asked, self._asked = self._asked, []
        else:
            asked = []
        for stream in (*asked, *self._streams.values()):
            self._close(stream)
        self._streams.clear()
        self._out.clear()
        self._selector.close()
        mailbox, self._mailbox = self._mailbox, None
        if mailbox is not None:
            mailbox.close()
        if self._waker is not None:
            self._waker.close()
        self._woken.close()
        if self._asked:
            self._begin()

    # --- the session ---------------------------------------------------------------------------------------------

    def _connect_again(self) -> Mailbox:
        mailbox = self._connect()
        if self._look is not None:
            self._look()  # meanwhile nobody has listened
        return mailbox

    def _connect(self) -> Mailbox:
        mailbox = Mailbox(self._address, self._namespace, None if self._adopt is None else self.box, self._look)
        self.box, self._mailbox = mailbox.name, mailbox
        for stream in list(self._streams.values()):
            if stream.is_accepted:
                self._reset(stream)
            else:
                stream.said_s = 0.0
        return mailbox

    def _lose(self, error: LostError | RefusedError | BackendError) -> None:
        """Take note that the server cannot be used; streams end when it can be used again, or nobody waits for that."""
        mailbox, self._mailbox = self._mailbox, None
        if mailbox is not None:
            mailbox.close()
        problem = error if isinstance(error, BackendError) else judgement(error, self._address.shown)
        self._out.clear()
        self._take_asked()
        if not isinstance(problem, BackendUnavailableError):
            for stream in [each for each in self._streams.values() if not each.is_accepted]:
                stream.problem = problem
                self._forget(stream)
        self._drop_abandoned()

    def _drop_abandoned(self) -> None:
        """Forget streams whose other end was closed while there was no session."""
        for key, _ in self._selector.select(0):
            stream = key.data
            if stream is None:
                self._drain()
                continue
            with suppress(OSError):
                if stream.socket.recv(1, socket.MSG_PEEK):
                    self._watch(stream, is_reading=False)
                    continue
            self._forget(stream)

    # --- a turn --------------------------------------------------------------------------------------------------

    def _carry(self, mailbox: Mailbox) -> None:
        """Carry mail for as long as the thread is needed, or until the session is lost."""
        self._selector.register(mailbox.socket, selectors.EVENT_READ)
        try:
            self._say(mailbox)
            while not self._is_over():
                self._move(self._selector.select(self._pause_s(mailbox)))
                for letter in mailbox.receive():
                    self._take(*letter)
                self._say(mailbox)
            for stream in list(self._streams.values()):
                self._reset(stream)
            self._send(mailbox)
        finally:
            self._selector.unregister(mailbox.socket)

    def _pause_s(self, mailbox: Mailbox) -> float:
        now_s = time.monotonic()
        pause_s = mailbox.pause_s(now_s)
        tick_s = self._ticked_s + TICK_S - now_s
        return max(0.0, tick_s if pause_s is None else min(tick_s, pause_s))

    def _say(self, mailbox: Mailbox) -> None:
        """Send what is due: before it is looked whether the thread is needed, which would wait for nothing else."""
        if self._is_turning_away:
            self._is_turning_away = False
            for stream in list(self._streams.values()):
                self._reset(stream)
        self._take_asked()
        self._tick(mailbox)
        self._send(mailbox)

    def _send(self, mailbox: Mailbox) -> None:
        if self._out:
            out, self._out = self._out, defaultdict(list)
            mailbox.send(out)

    def _take_asked(self) -> None:
        with self._lock:
            asked, self._asked = self._asked, []
        for stream in asked:
            self._streams[stream.id] = stream
            self._watch(stream)
            self._ticked_s = 0.0

    def _move(self, events: list[tuple[selectors.SelectorKey, int]]) -> None:
        """Read from sockets, and write to them."""
        left = TURN_BYTES
        for key, mask in events:
            stream: Stream | None = key.data
            if stream is None:
                if key.fileobj is self._woken:
                    self._drain()
                continue
            try:
                if mask & selectors.EVENT_WRITE:
                    stream.write()
                    self._after_writing(stream)
                if mask & selectors.EVENT_READ and left > 0 and stream.id in self._streams:
                    left -= self._read(stream, left)
            except OSError:
                self._reset(stream)

    def _drain(self) -> None:
        with suppress(OSError):
            while self._woken.recv(4096):
                pass

    def _read(self, stream: Stream, most: int) -> int:
        if not stream.is_accepted:  # its caller has gone
            self._out[stream.box].append(Piece(stream.id, RESET))
            self._forget(stream)
            return 0
        piece = stream.read(most) if stream.room > 0 else None
        if piece is None:
            return 0
        if self._adopt is None:
            stream.active_s = time.monotonic()
        self._out[stream.box].append(piece)
        if piece.kind == END:
            self._forget(stream)
        else:
            self._watch(stream)
        return len(piece.data)

    def _after_writing(self, stream: Stream) -> None:
        told = stream.to_tell()
        if told is not None:
            self._out[stream.box].append(told)
        if stream.is_done:
            self._forget(stream)
        else:
            self._watch(stream)

    # --- what has come -------------------------------------------------------------------------------------------

    def _take(self, sender: str, pieces: list[Piece]) -> None:
        now_s = time.monotonic()
        for piece in pieces:
            stream = self._streams.get(piece.stream)
            if stream is None or stream.box != sender:
                self._take_unknown(sender, piece, now_s)
                continue
            stream.active_s = now_s
            try:
                self._take_piece(stream, piece, now_s)
            except (OSError, ValueError):
                self._reset(stream)

    def _take_piece(self, stream: Stream, piece: Piece, now_s: float) -> None:
        if piece.kind in {DATA, END} and stream.is_accepted:
            stream.take(piece, now_s)
            self._after_writing(stream)
        elif piece.kind == TAKEN:
            stream.acknowledge(piece.number)
            self._watch(stream)
        elif piece.kind == RESET:
            self._forget(stream)
        elif piece.kind == ACCEPT and not stream.is_accepted:
            stream.is_accepted = True
            stream.settled.set()
            self._watch(stream)
        elif piece.kind == OPEN:
            self._out[stream.box].append(Piece(stream.id, ACCEPT))

    def _take_unknown(self, sender: str, piece: Piece, now_s: float) -> None:
        if piece.kind == OPEN and self._adopt is not None and piece.stream not in self._streams:
            if len(self._streams) >= STREAMS_MAX or self._is_closing:
                return  # it is asked again
            other, connection = socket.socketpair()
            connection.setblocking(False)
            stream = self._streams[piece.stream] = Stream(piece.stream, connection, sender, now_s)
            self._watch(stream)
            self._adopt(other)
            self._out[sender].append(Piece(piece.stream, ACCEPT))
        elif piece.kind not in {RESET, END}:
            self._out[sender].append(Piece(piece.stream, RESET))

    # --- time ----------------------------------------------------------------------------------------------------

    def _tick(self, mailbox: Mailbox) -> None:
        now_s = time.monotonic()
        if now_s < self._ticked_s + TICK_S:
            return
        self._ticked_s = now_s
        for stream in list(self._streams.values()):
            if stream.ahead_s is not None and now_s > stream.ahead_s + GAP_S:
                self._reset(stream)
            elif self._adopt is not None:
                if now_s > stream.active_s + DEAD_S:
                    self._reset(stream)
            elif not stream.is_accepted or now_s > stream.said_s + PING_S:
                stream.said_s = now_s
                self._out[stream.box].append(Piece(stream.id, PING if stream.is_accepted else OPEN))
        if self._adopt is None:
            self._look_for_leaders(mailbox, now_s)
        elif now_s > self._pruned_s + PRUNE_S:
            self._pruned_s = now_s
            mailbox.prune()

    def _look_for_leaders(self, mailbox: Mailbox, now_s: float) -> None:
        """End the streams to leaders that do not lead any more: looked for when nothing is heard, then less often."""
        silent: set[str] = set()
        for stream in self._streams.values():
            quiet_s = now_s - stream.active_s
            if quiet_s > TICK_S and now_s > stream.looked_s + min(PING_S, _LOOK_SHARE * quiet_s):
                stream.looked_s = now_s
                silent.add(stream.term or "")
        for term in silent:
            if not mailbox.leads(term):
                for stream in [each for each in self._streams.values() if each.term == term]:
                    stream.problem = None
                    self._forget(stream)

    # --- streams -------------------------------------------------------------------------------------------------

    def _watch(self, stream: Stream, *, is_reading: bool = True) -> None:
        """Wait for what may be done with a socket now: nothing is read while the other end does not take it."""
        # One that is not accepted is watched for the end of its caller.
        wants = selectors.EVENT_READ if is_reading and (stream.room > 0 or not stream.is_accepted) else 0
        wants |= selectors.EVENT_WRITE if stream.has_to_write else 0
        watched = self._selector.get_map().get(stream.socket)
        if watched is None:
            if wants:
                self._selector.register(stream.socket, wants, stream)
        elif not wants:
            self._selector.unregister(stream.socket)
        elif watched.events != wants:
            self._selector.modify(stream.socket, wants, stream)

    def _reset(self, stream: Stream) -> None:
        """End a stream at both ends."""
        self._out[stream.box].append(Piece(stream.id, RESET))
        self._forget(stream)

    def _forget(self, stream: Stream) -> None:
        """End a stream at this end."""
        self._streams.pop(stream.id, None)
        with suppress(KeyError, ValueError):
            self._selector.unregister(stream.socket)
        self._close(stream)

    @staticmethod
    def _close(stream: Stream) -> None:
        stream.socket.close()
        if stream.problem is None and not stream.is_accepted:
            stream.problem = GoneError()
        stream.settled.set()
