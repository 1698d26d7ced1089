"""
Client session of a Redis store: idempotent requests with retries, without I/O.

`Session.execute` is a generator. It yields actions (`Send`, `Sleep`, `Redirect`), receives the reply or the failure of
each, and returns the operation's reply; the two shells carry the actions out.

A *direct call* is a change that a shell sends without a generator, while nothing has to be checked or stated before it:
`Session.direct_call` makes the request, `answered` takes its reply. Only if it fails, a generator goes on from there
(`go_on`), so the rules of retries are in `send` alone.

Requests are numbered in *streams*. A stream has one request in flight, and the store keeps a receipt of its last one,
so a request may be repeated until it is answered. A request without an answer raises `OutcomeUnknownError`; calling
with the *same operation object* again continues the same request.
"""

from __future__ import annotations

import logging
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import attrs
from redis import exceptions as driver

from queuehint.backends.base import BackendOptions, begins_history
from queuehint.backends.redis import keys
from queuehint.backends.redis.codec import codec
from queuehint.backends.redis.codec.failures import Failures
from queuehint.backends.redis.examination import Examination, RetentionStatement, parse_info, wrong_role
from queuehint.backends.redis.functions.calls import Call, Calls, Plain
from queuehint.backends.redis.outages import Outages
from queuehint.backends.redis.scripts import Script, script
from queuehint.backends.redis.streams import Streams
from queuehint.backends.redis.transport import (
    SAME_NODE,
    Closed,
    Failed,
    NotSent,
    Redirect,
    Send,
    Sleep,
    Unanswered,
    onward,
    passes,
)
from queuehint.clock import SystemClock
from queuehint.errors import (
    BackendUnavailableError,
    DuplicateJobError,
    QueueHintError,
)
from queuehint.operations import BUDGET, Announced, Enqueue, Exchange, Exchanged, Operation
from queuehint.values.policy import Retention

if TYPE_CHECKING:
    from collections.abc import Generator

    from queuehint.backends.redis.address import Address
    from queuehint.backends.redis.transport import Talk

logger = logging.getLogger("queuehint.redis")

RETRY_S: Final = 10.0
"""How long an operation is retried before its error is raised, unless its address says otherwise."""
PAUSE_S: Final = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
"""Between attempts; the last one is repeated."""
CHECK_EVERY_S: Final = 60.0
ROLE_EVERY_S: Final = 5.0
"""How old the proof that a node is a primary may be when it is asked what a replica answers too."""
STOPPED_S: Final = 1.0
"""How often an idle worker checks whether claims are allowed again."""
REDIRECTIONS_AT_ONCE: Final = 5
"""How many nodes may send a request on to each other before it pauses."""
STANDS_STILL_S: Final = 4.0
"""If two replies so far apart tell the same time, it stands still; an idle worker asks every five seconds."""


def patience_s(address: Address) -> float:
    """Return how long a store that does not answer is tried."""
    return RETRY_S if address.patience_s is None else address.patience_s


class Session:
    """
    The state shared by both shells of a backend: streams, unknown outcomes, checks, the next due time.

    Safe across threads; a fork begins anew.
    """

    def __init__(self, address: Address, options: BackendOptions, *, budget: int = BUDGET) -> None:
        self.address = address
        self.namespace = options.namespace
        self.root = keys.root(options.namespace)
        # The root itself never exists: while a slot is on its way from one node of a cluster to another, a command that
        # names a key that is there and one that is not is refused by both, so no script sees half a namespace.
        self._keys = (2, self.root, keys.redis_key(options.namespace, "meta"))
        self._clock = None if isinstance(options.clock, SystemClock) else options.clock
        self._retention = options.retention
        self._failures = Failures(address.shown, self.root)
        self._settings = (*codec.kept_args(options.retention or Retention()), budget)
        self.begin()

    @property
    def has_own_time(self) -> bool:
        """True unless a test sets the time."""
        return self._clock is None

    @property
    def clock_behind_ms(self) -> int:
        """The lag of the server's clock behind the store's time, which stalls meanwhile, at the last check."""
        return self._examination.clock_behind_ms

    def begin(self) -> None:
        """Reset the state of this process after a start or a fork."""
        # A thread that does not exist in a fork may have held the old one.
        self._lock = threading.Lock()
        self.streams = Streams(self._lock)
        self._checked_s: float | None = None
        self.outages = Outages(self.address)
        self._primary_s = 0.0
        self._may_write = False
        self._examination = Examination(self)
        self._calls = Calls(self.address)
        self._token: int | None = None
        self._prepared: tuple[Operation[Any], tuple[str, codec.Args]] | None = None
        self._statement = RetentionStatement(self._retention, self.root)
        self.time_ms, self._time_s = 0, 0.0
        """The newest time of the store, and when it was first received."""
        self.due_s: float | None = None
        """When something is due, by this process's monotonic clock, as far as it was told."""

    # --- one operation -----------------------------------------------------------------------------------------------

    def execute(self, operation: Operation[Any]) -> Talk:
        """
        Carry out an operation.

        Raises:
            BackendError: the store cannot serve it; see the classes.
            QueueHintError: as the operation says.
        """
        encoded = self._encoded(operation)
        asked_s = time.monotonic()
        is_due = self._checked_s is None or asked_s - self._checked_s >= CHECK_EVERY_S
        if is_due or (self._examination.policy is not None and _adds(operation)):
            yield from self._check()
        if self._examination.policy is not None and _adds(operation):
            encoded = yield from self._without_claims(operation)
        now: Any = "" if self._clock is None else self._clock.now_ms()
        if operation.is_question:
            if asked_s - max(self._primary_s, self._checked_s or 0.0) >= ROLE_EVERY_S:
                yield from self._look_at_role(asked_s)
            return (yield from self._question(operation, now))
        if not self._may_write:
            yield from self._ask(script("probe"), (), None)
            self._may_write = True
        if self._statement.is_due:
            yield from self._statement.state(self._retain)
        return (yield from self._change(operation, self.call_of(operation, encoded, now), asked_s))

    def _change(self, operation: Operation[Any], call: Call, asked_s: float, failed: Failed | None = None) -> Talk:
        """Send the request of a change until it is answered. Return the typed reply."""
        try:
            reply = yield from self.send(call, operation, failed)
        except DuplicateJobError as error:
            if not error.fields:
                raise
            raise (yield from self._name_fields(operation, error)) from None
        return self.take_in(operation, reply, asked_s)

    # --- direct calls ------------------------------------------------------------------------------------------------

    def direct_call(self, operation: Operation[Any], *, waits: bool = False) -> Call | None:
        """
        Return the timed request of a change that skips the steps of `execute`.

        Its reply goes to `answered`, and its failure to `go_on`. None for a question, and while something has to be
        checked or stated before.

        Args:
            waits: it is sent behind a wait. So a missing answer is no outage, and a test that tells the time has none.

        Raises:
            QueueHintError: the operation carries too much, or what is not valid; nothing is sent.
        """
        asked_s, checked_s = time.monotonic(), self._checked_s
        if (
            operation.is_question
            or checked_s is None
            or asked_s - checked_s >= CHECK_EVERY_S
            or not self._may_write
            or self._statement.is_due
            or self._examination.policy is not None
            or (waits and self._clock is not None)
        ):
            return None
        call = self.call_of(operation, None, "" if self._clock is None else self._clock.now_ms())
        call.asked_s = asked_s
        if not waits:
            self.outages.asked_s = asked_s
        return call

    def answered(self, operation: Operation[Any], call: Call, reply: list[Any]) -> Any:
        """End a direct call. Return the typed reply. Exceptions from here on go to `go_on` too."""
        self.outages.asked_s = None
        if (stream := call.stream) is not None:
            # No signal comes between these: the call has its stream or has given it back.
            stream.is_unknown, call.stream = False, None
            self.streams.free.append(stream)
        return self.take_in(operation, reply, call.asked_s)

    def go_on(self, operation: Operation[Any], call: Call, sent: Send, error: BaseException) -> Talk:
        """Go on where a direct call failed, as after the first attempt of any other request."""
        return self._change(operation, call, call.asked_s, Failed(sent, call.asked_s, error))

    def call_of(self, operation: Operation[Any], encoded: tuple[str, codec.Args] | None = None, now: Any = "") -> Call:
        """
        Return the request of a change: the continued one of the operation, or the next one of a stream.

        The stream is taken with the slot in which the request is sent. So there are as many streams as requests in
        flight, however many callers wait.

        Args:
            encoded: the name of its script and the arguments, if they are known.
            now: the time that a test tells; "" for that of the server.

        Raises:
            QueueHintError: it carries too much, or what is not valid.
        """
        if encoded is None:
            encoded = codec.encode(operation) if self._prepared is None else self._encoded(operation)
        name, args = encoded
        streams, is_numbered = self.streams, not operation.is_repeatable
        words = (*self._keys, now, "", 0, *self._settings, *args)
        call = Call(self._calls, script(name), words, streams.take if is_numbered else None)
        if is_numbered and streams.unknown and (known := streams.take_unknown(operation)) is not None:
            call.number(known)
        return call

    def _encoded(self, operation: Operation[Any]) -> tuple[str, codec.Args]:
        """Return the script and the arguments of an operation, prepared or encoded now."""
        prepared = self._prepared
        if prepared is not None and prepared[0] is operation:
            self._prepared = None
            return prepared[1]
        return codec.encode(operation)

    # --- replies -----------------------------------------------------------------------------------------------------

    def take_in(self, operation: Operation[Any], reply: list[Any], asked_s: float) -> Any:
        """Return the answer to a request, and update the state of the store from its reply."""
        self._primary_s = asked_s
        now_ms, next_ms = codec.clocked(reply)
        answered_s = time.monotonic()
        if now_ms != self.time_ms:
            self.time_ms, self._time_s = now_ms, answered_s
        else:
            self._see_time_again(answered_s)
        if next_ms is None:
            self.due_s = None
        else:
            self.due_s = answered_s if next_ms <= now_ms else answered_s + (next_ms - now_ms) / 1000
        answer = codec.decode(operation, reply)
        if type(operation) in codec.DROPPED_AT and (dropped := codec.dropped(operation, reply)):
            logger.warning(
                "%s is short of memory: %d records of ended jobs were dropped before they expired",
                self.address.shown,
                dropped,
                extra={"event": "redis.records_dropped", "count": dropped},
            )
        if type(answer) is Exchanged and answer.grants:
            self._watch_history(answer.grants[0].token)
        elif type(answer) is Announced:
            self._watch_history(answer.token)
        return answer

    def prepare(self, operation: Operation[Any]) -> None:
        """Encode an operation ahead of its execution. An encoding error is raised at the execution."""
        self._prepared = None
        with suppress(QueueHintError):
            self._prepared = operation, codec.encode(operation)

    def _without_claims(
        self, operation: Operation[Any]
    ) -> Generator[Send | Sleep | Redirect, Any, tuple[str, codec.Args]]:
        """
        Refuse a submission while the server may evict. Let an exchange settle without claims.

        Raises:
            BackendUnavailableError: naming the setting.
        """
        if not isinstance(operation, Exchange):
            raise BackendUnavailableError(f"{self.address.shown}: {self._examination.policy}")
        if not operation.settle:
            # The markers of unclaimed jobs stay set, and end a wait at once.
            yield Sleep(STOPPED_S)
        return codec.encode(attrs.evolve(operation, limit=0))

    def _question(self, operation: Operation[Any], now: Any) -> Talk:
        """Query page by page, so that no script blocks the server while it copies hundreds of MiB."""
        whole = None
        while True:
            name, args = codec.encode(operation)
            reply = yield from self._ask(script(name), (now, "", 0, 0, 0, 0, 0, 0, *args), operation)
            answer = codec.decode(operation, reply)
            whole = answer if whole is None else codec.joined(whole, answer)
            following = codec.following(operation, reply, answer)
            if following is None:
                return whole
            operation = following

    def _see_time_again(self, moment_s: float) -> None:
        """Examine the server again if the store's time stands still."""
        if moment_s - self._time_s >= STANDS_STILL_S and not self.clock_behind_ms and self._checked_s is not None:
            # In doubt once for each time it stands still: after that, each minute.
            self._checked_s, self._time_s = min(self._checked_s, moment_s - CHECK_EVERY_S), moment_s

    def _watch_history(self, token: int) -> None:
        """Warn of a changed token epoch, after a restart or a replacement of the server."""
        before, self._token = self._token, token
        if before is not None and begins_history(before, token):
            self._statement.renew()
            logger.warning(
                "the token epoch of %s changed: it restarted or was replaced; changes it had not saved are lost",
                self.address.shown,
                extra={"event": "redis.new_history"},
            )

    def _retain(self, text: str, *, begins: bool) -> Talk:
        """Have a retention kept: in place of any other if the process *begins*, else of none; return that before."""
        return (yield from self._ask(script("retain"), ("", "", 0, 0, 0, 0, 0, 0, text, int(begins)), None))

    def _name_fields(
        self, operation: Operation[Any], error: DuplicateJobError
    ) -> Generator[Send | Sleep | Redirect, Any, DuplicateJobError]:
        """Return the names of the fields in which a job differs from the stored job of its id."""
        reply = yield from self.execute_script("spec", (error.job_id,))
        asked = next(spec for spec in operation.jobs if spec.id == error.job_id)  # type: ignore[attr-defined]
        there = codec.decode_spec(error.job_id, reply)
        fields = codec.known_of(there, asked).differing_fields(asked) if there is not None else ()
        return DuplicateJobError(error.job_id, fields=fields or ("content",))

    def execute_script(self, name: str, args: tuple[Any, ...]) -> Talk:
        """Run a repeatable script without an operation. Return its raw reply."""
        now: Any = "" if self._clock is None else self._clock.now_ms()
        asked_s, which = time.monotonic(), script(name)
        reply = yield from self._ask(which, (now, "", 0, *self._settings, *args), None)
        if which.writes:
            self._primary_s = asked_s
        return reply

    def _ask(self, which: Script, args: tuple[Any, ...], operation: Operation[Any] | None) -> Talk:
        """Run a script without a stream until it is answered, or the retries end."""
        return (yield from self.send(Call(self._calls, which, (*self._keys, *args)), operation))

    def send(self, call: Call | Plain, operation: Operation[Any] | None, failed: Failed | None = None) -> Talk:
        """
        Send a command until it is answered.

        Args:
            failed: the first attempt, if a direct call has made it.
        """
        ask = call.first() if failed is None else failed.sent
        self.outages.asked_s = begun_s = time.monotonic() if failed is None else failed.begun_s
        attempts = redirections = 0
        asking: Redirect | None = None
        is_unknown = call.stream is not None and call.stream.is_unknown
        answered = False
        try:
            while True:
                try:
                    if failed is not None:
                        before, failed = failed, None
                        raise before.error()
                    reply = yield ask
                    if ask is call.load:
                        ask = call.first()
                        continue
                    answered = True
                    if attempts:
                        self.outages.end()
                    return reply
                except Closed as error:
                    answered = not is_unknown
                    raise self._failures.closed(operation, is_unknown=is_unknown) from error
                except NotSent as error:
                    failure: Exception = error
                    yield Redirect()
                except Unanswered as error:
                    failure, is_unknown = error, is_unknown or (call.stream is not None and ask is not call.load)
                    yield Redirect()
                except driver.ResponseError as error:
                    if (instead := call.instead(ask, error)) is not None:
                        ask = instead
                        if asking is not None:
                            yield asking
                        continue
                    message = str(error)
                    if isinstance(error, driver.AskError):
                        asking = onward(error)
                        yield asking
                        redirections += 1
                        if redirections % REDIRECTIONS_AT_ONCE:
                            continue
                    elif not passes(error, message):
                        # Unless an earlier attempt is still under way, this is an answer: nothing was changed.
                        answered = not is_unknown
                        raise self._failures.refused(error, operation, is_unknown=is_unknown) from error
                    elif not message.startswith(SAME_NODE):
                        yield onward(error)
                    failure = error
                if attempts == 1:
                    self.outages.note(failure, patience_s(self.address))
                if time.monotonic() - begun_s >= patience_s(self.address):
                    answered = not is_unknown
                    raise self._failures.gave_up(failure, operation, patience_s(self.address), is_unknown) from failure
                if call.stream is not None and not is_unknown:
                    # Whoever has a slot meanwhile uses it.
                    self.streams.drop(call.stream)
                    call.stream = None
                ask, asking = call.first(), None
                yield Sleep(PAUSE_S[min(attempts, len(PAUSE_S) - 1)])
                attempts += 1
        finally:
            # Also when the caller was canceled while the request was under way.
            self.outages.asked_s = None
            if call.stream is not None:
                self.streams.give_back(call.stream, operation, answered=answered)

    # --- the store itself --------------------------------------------------------------------------------------------

    def _check(self) -> Talk:
        """
        Check the store once (version, role, types of our keys, eviction), and the settings each minute.

        Where jobs may be evicted, what runs goes on to be renewed and settled, but nothing more is enqueued or claimed.

        Raises:
            BackendUnavailableError: naming the setting.
        """
        before, first = self._checked_s, self._checked_s is None
        if not first:
            # Concurrent callers need not check too.
            self._checked_s = time.monotonic()
        try:
            yield from self._examination.look(first=first)
        except BaseException:
            self._checked_s = before
            raise
        self._checked_s = time.monotonic()
        self._statement.renew()

    def _look_at_role(self, asked_s: float) -> Talk:
        """
        Find the primary after a role change of the node, because a replica would answer queries too.

        Raises:
            BackendUnavailableError: none was found for as long as an operation is tried.
        """
        if self.address.kind != "cluster":  # where a replica redirects its clients
            problem = wrong_role((yield from self.ask_primary("replication")))
            if problem is not None:
                raise BackendUnavailableError(f"{self.address.shown}: {problem}")
        self._primary_s = asked_s

    def ask_primary(self, section: str) -> Generator[Send | Sleep | Redirect, Any, dict[str, str]]:
        """
        Return a section of the primary's INFO.

        A node that is none any more is left, and another one or a new connection is tried; the answer is that of a
        replica only if nothing else is found for as long as an operation is tried.
        """
        begun_s = time.monotonic()
        attempts = 0
        while True:
            if self.address.kind == "cluster":
                # INFO is answered by whichever node is asked, of a key by the one that has the namespace.
                yield from self.plain("EXISTS", keys.redis_key(self.namespace, "meta"))
            info = parse_info((yield from self.plain("INFO", section)))
            if wrong_role(info) is None or time.monotonic() - begun_s >= patience_s(self.address):
                return info
            yield Redirect(leaves=True)
            yield Sleep(PAUSE_S[min(attempts, len(PAUSE_S) - 1)])
            attempts += 1

    def plain(self, *command: Any) -> Talk:
        """Send a command that may be sent twice."""
        return (yield from self.send(Plain(*command), None))


def _adds(operation: Operation[Any]) -> bool:
    """Return whether an operation brings in jobs, or has some begin."""
    return isinstance(operation, Enqueue) or (isinstance(operation, Exchange) and operation.limit > 0)
