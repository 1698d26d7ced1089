"""
A world of operations: clients that talk to one store over a network, each with its own beliefs.

A world carries out *steps*: a client sends a request, a copy of it arrives, the answer arrives, a client dies, stands
still and continues, the store's clock jumps, the store restarts, another process leads it. A step whose precondition is
missing, because an earlier step was left out, does nothing. So a run is a list of steps; `scenario` draws them.

Besides the safety of every store (`promises`), each client may believe:

- a job whose enqueue was answered exists, unless the store has lost that step; a job of a part exists once the commit
  was answered too;
- while a lease is valid, by the client's clock and by the store's, the job is its own: the store agrees, a settlement
  is accepted, and no other client has a conflicting job of which it may believe the same;
- it was told of every job that the store says it runs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from queuehint import operations as op
from queuehint.core.engine import EngineOptions
from queuehint.errors import QueueHintError
from queuehint.testing.invariants import check_empty
from queuehint.testing.model.places import conflict
from queuehint.testing.simulation.promises import Book
from queuehint.testing.simulation.store import BEGIN_MS, CHECK_EVERY, StaleRequestError, Store
from queuehint.values.outcome import Grant, Outcome, OutcomeKind
from queuehint.values.policy import Retention
from queuehint.values.record import JobState

STARTED = JobState.STARTED
LEASE_MS = 10_000
RETENTION = Retention(finished=600, failed=1200, canceled=600, service=600)
ROUNDS_MAX = 400
REQUESTS_MAX = 1000
"""To end all jobs of a world takes no more, with the smallest budget."""

Step = tuple[Any, ...]
"""When it is done, ms since the beginning, what is done, and what that needs."""


class Holding:
    """A job a client was granted: what it believes of it."""

    __slots__ = ("book", "done_ms", "grant", "index", "is_leaving", "until_ms", "until_store_ms")

    def __init__(self, grant: Grant, book: Book | None, until_ms: int, until_store_ms: int, index: int) -> None:
        self.grant = grant
        self.book = book
        self.until_ms = until_ms
        self.until_store_ms = until_store_ms
        self.index = index
        """Which step of the store granted it."""
        self.is_leaving = False
        """Its settlement is on its way."""
        self.done_ms: int | None = None
        """When its code will have ended; set by the maker of the steps."""


class Request:
    """One request of a client, as often as it arrives."""

    __slots__ = ("answer", "applied_ms", "client", "index", "is_answered", "number", "operation", "sent_ms", "stream")

    def __init__(self, client: Client, operation: op.Operation[Any], sent_ms: int) -> None:
        self.client = client
        self.stream = client.name
        self.number = client.number
        self.operation = operation
        self.sent_ms = sent_ms
        self.applied_ms = 0
        """When it was carried out, by the store's clock."""
        self.answer: Any = None
        self.is_answered = False
        self.index = -1


RELEASES = ("", "one", "two")
"""The releases of clients, by their places; what all have refused is run by a last one without a release."""


class Client:
    """A worker or a producer, and this incarnation of it."""

    __slots__ = ("held", "is_paused", "life", "name", "number", "place", "request", "until_ms")

    def __init__(self, place: int) -> None:
        self.place = place
        self.life = 0
        self.is_paused = False
        self.begin()

    def begin(self) -> None:
        """Begin a new incarnation, which knows nothing."""
        self.life += 1
        self.name = f"c{self.place}.{self.life}"
        self.number = 0
        self.request: Request | None = None
        self.held: dict[str, Holding] = {}
        self.until_ms = 0


class World:
    """
    Clients, a wire and a store.

    Args:
        clients: how many.
        budget: of following work of one operation.
        make: makes the store, given its options; for tests of the simulation itself.
    """

    def __init__(
        self, clients: int, *, budget: int = 1000, make: Callable[[EngineOptions], Store] | None = None
    ) -> None:
        epoch_s = 1
        options = EngineOptions(epoch_s=epoch_s, budget=budget, retention=RETENTION)
        self.store = make(options) if make is not None else Store(options, lease_max_ms=LEASE_MS)
        self.clients = [Client(place) for place in range(clients)]
        self.requests: dict[int, Request] = {}
        self.acked: dict[str, int] = {}
        """The jobs whose enqueue, or commit, was answered, and which step of the store that was."""
        self.parts: dict[str, dict[str, int]] = {}
        """The same of submissions in parts that were not committed, as far as was answered."""
        self.orphans: set[int] = set()
        """Tokens of jobs that run again only because the store has lost what was told of them."""
        self.clock_ms = 0
        """How far the store's clock is ahead."""
        self.highest_ms = 0
        self.now_ms = BEGIN_MS
        self.steps = 0
        self._do: dict[str, Callable[..., bool]] = {
            "send": self._send,
            "deliver": self._deliver,
            "answer": self._answer,
            "crash": self._crash,
            "pause": self._pause,
            "wake": self._wake,
            "clock": self._set_clock,
            "restart": self._restart,
            "take_over": self._take_over,
        }

    @property
    def store_ms(self) -> int:
        """The time by the store's clock, which never goes backwards."""
        return max(self.store.engine.now_ms, self.now_ms + self.clock_ms)

    def do(self, step: Step) -> bool:
        """
        Do a step; return whether there was anything to do.

        Raises:
            AssertionError: a promise was broken.
        """
        now_ms = BEGIN_MS + step[0]
        self.now_ms = max(self.now_ms, now_ms)
        if not self._do[step[1]](*step[2:]):
            return False
        self.steps += 1
        if self.steps % CHECK_EVERY == 0:
            self.check_all()
        return True

    # --- clients -----------------------------------------------------------------------------------------------------

    def _send(self, key: int, place: int, what: str, *args: Any) -> bool:
        client = self.clients[place]
        if client.is_paused or client.request is not None:
            return False
        operation = self._operation(client, what, args)
        if operation is None:
            return False
        client.number += 1
        request = Request(client, operation, self.now_ms)
        client.request = self.requests[key] = request
        return True

    def _operation(self, client: Client, what: str, args: tuple[Any, ...]) -> op.Operation[Any] | None:
        if what == "exchange":
            limit, outcomes = args
            settle = []
            for job_id, kind, delay_ms, *children in outcomes:
                holding = client.held.get(job_id)
                if holding is not None and not holding.is_leaving:
                    holding.is_leaving = True
                    token = holding.grant.token
                    outcome = Outcome(
                        job_id=job_id, token=token, kind=kind, delay_ms=delay_ms, children=tuple(children)
                    )
                    settle.append(outcome)
            release = RELEASES[client.place % len(RELEASES)]
            return op.Exchange(client.name, tuple(settle), ("default",), limit, LEASE_MS, release=release)
        if what == "renew":
            leases = tuple([(job_id, holding.grant.token) for job_id, holding in client.held.items()])
            return op.Renew(leases, LEASE_MS) if leases else None
        operation: op.Operation[Any] = args[0]
        return operation

    def _deliver(self, key: int) -> bool:
        """Deliver a request, for the first time or again."""
        request = self.requests.get(key)
        if request is None:
            return False
        store = self.store
        before = len(store.history)
        self.highest_ms = max(self.highest_ms, self.store_ms)
        try:
            answer = store.ask(request.stream, request.number, request.operation, self.store_ms)
        except StaleRequestError:
            # A client waits for this answer only if the store has lost the answered step.
            return True
        except QueueHintError as error:
            answer = error
        if len(store.history) > before:
            request.index, request.applied_ms = before, store.now_ms
            if store.restarts and request.client.request is not request and isinstance(answer, op.Exchanged):
                # A late copy, at a store that has forgotten the first one: no client gets this answer.
                self.orphans |= {grant.token for grant in answer.grants}
        request.answer = answer
        self._check_beliefs()
        return True

    def _answer(self, key: int) -> bool:
        """Deliver the answer to a request to its client."""
        request = self.requests.get(key)
        if request is None or request.answer is None:
            return False
        client = request.client
        if client.request is not request or client.is_paused:
            return False
        client.request = None
        request.is_answered = True
        operation, answer = request.operation, request.answer
        if isinstance(answer, QueueHintError):
            return True
        if type(operation) is op.Exchange:
            self._learn(client, request, operation, answer)
        elif type(operation) is op.Renew:
            for (job_id, token), verdict in zip(operation.leases, answer.verdicts, strict=True):
                holding = client.held.get(job_id)
                if holding is None or holding.grant.token != token:
                    continue
                if verdict is op.Verdict.LOST:
                    self._check_lost(client, holding)
                    del client.held[job_id]
                    if request.index < 0:
                        # In the history that is left it is not lost; no client will settle it.
                        self.orphans.add(token)
                else:
                    holding.until_ms = max(holding.until_ms, request.sent_ms + LEASE_MS)
                    holding.until_store_ms = max(holding.until_store_ms, request.applied_ms + LEASE_MS)
        elif type(operation) is op.Enqueue and request.index >= 0:
            acked = self.acked if operation.staged is None else self.parts.setdefault(operation.staged, {})
            for job in answer.jobs:
                acked[job.id] = request.index
        elif type(operation) is op.Withdraw and request.index >= 0:
            self.parts.pop(operation.staged, None)
        elif type(operation) is op.Commit and request.index >= 0:
            # A part that came after the commit was refused.
            self.acked |= dict.fromkeys(self.parts.pop(operation.staged, {}), request.index)
        return True

    def _learn(self, client: Client, request: Request, operation: op.Exchange, answer: Any) -> None:
        for outcome, verdict in zip(operation.settle, answer.verdicts, strict=True):
            holding = client.held.pop(outcome.job_id)
            if verdict is op.Verdict.LOST:
                self._check_lost(client, holding)
        until_ms, until_store_ms = request.sent_ms + LEASE_MS, request.applied_ms + LEASE_MS
        books = self.store.promises.books
        for grant in answer.grants:
            holding = Holding(grant, books.get(grant.spec.id), until_ms, until_store_ms, request.index)
            if self._is_sure(holding):
                for other in self.clients:
                    for mine in other.held.values():
                        if self._is_sure(mine) and not mine.is_leaving:
                            assert not conflict_of(mine.grant, grant), (
                                f"{client.name} and {other.name} both hold leases that last, of {grant.spec.id} and "
                                f"{mine.grant.spec.id}, which conflict"
                            )
            client.held[grant.spec.id] = holding

    # --- what clients may believe ------------------------------------------------------------------------------------

    def _is_sure(self, holding: Holding) -> bool:
        """Return whether a lease lasts, by whatever clock, of a grant that the store has not lost."""
        return self.now_ms < holding.until_ms and self.store_ms < holding.until_store_ms and holding.index >= 0

    def _check_lost(self, client: Client, holding: Holding) -> None:
        assert not self._is_sure(holding), (
            f"{client.name} was told that it has lost {holding.grant.spec.id}, token {holding.grant.token}, and its "
            "lease lasts"
        )

    def _check_beliefs(self) -> None:
        now_ms, store_ms, started = self.now_ms, self.store_ms, self.store.promises.started
        for client in self.clients:
            for job_id, holding in client.held.items():
                if (
                    not holding.is_leaving
                    and now_ms < holding.until_ms
                    and store_ms < holding.until_store_ms
                    and holding.index >= 0
                ):
                    book = started.get(job_id)
                    assert book is not None and book.token == holding.grant.token, (
                        f"{client.name} holds {job_id}, token {holding.grant.token}, its lease lasts for "
                        f"{min(holding.until_ms - now_ms, holding.until_store_ms - store_ms)} ms, and the store "
                        f"{'has it not running' if book is None else f'has given it away with token {book.token}'}"
                    )

    def check_all(self) -> None:
        """Assert I1 to I8 by looking at everything, and what clients may believe of it."""
        promises = self.store.promises
        promises.check_all(self.store.engine)
        for job_id, index in self.acked.items():
            is_there = job_id in promises.ids or job_id in self.store.engine.table.jobs
            assert is_there, f"the enqueue of {job_id} was answered (step {index}), and it is not there"
        clients = {client.name: client for client in self.clients}
        for book in promises.started.values():
            client = clients.get(book.worker or "")
            if client is not None and client.request is None and book.token not in self.orphans:
                assert book.id in client.held, f"{client.name} runs {book.id} by the store, and has not been told of it"

    # --- faults ------------------------------------------------------------------------------------------------------

    def _crash(self, place: int) -> bool:
        client = self.clients[place]
        client.begin()
        client.is_paused = False
        return True

    def _pause(self, place: int) -> bool:
        client = self.clients[place]
        was_paused, client.is_paused = client.is_paused, True
        return not was_paused

    def _wake(self, place: int) -> bool:
        client = self.clients[place]
        was_paused, client.is_paused = client.is_paused, False
        return was_paused

    def _set_clock(self, ahead_ms: int) -> bool:
        self.highest_ms = max(self.highest_ms, self.store_ms)
        self.clock_ms += ahead_ms
        return True

    def _restart(self, lost: int) -> bool:
        store = self.store
        # Of a server whose clock is behind that of the one before nothing is promised.
        self.highest_ms = max(self.highest_ms, self.store_ms) + 1
        self.clock_ms = max(self.clock_ms, self.highest_ms - self.now_ms)
        kept = store.restart(lost, self.highest_ms)
        self.acked = {job_id: index for job_id, index in self.acked.items() if index < kept}
        self.parts = {
            staged: {job_id: index for job_id, index in part.items() if index < kept}
            for staged, part in self.parts.items()
        }
        started = store.promises.started
        held = {}
        for client in self.clients:
            for holding in client.held.values():
                if holding.index >= kept:
                    holding.index = -1
                elif not holding.is_leaving:
                    held[holding.grant.token] = holding
        self.orphans |= {book.token for book in started.values() if book.token not in held and book.token is not None}
        for request in self.requests.values():
            if request.index >= kept:
                # The answer that is still on its way is of a history that is no more.
                request.index = -1
        return True

    def _take_over(self, is_heir: bool) -> bool:
        """Have the leader die between what it has written and its answers."""
        for request in self.requests.values():
            if not request.is_answered:
                request.answer = None
        self.highest_ms = max(self.highest_ms, self.store_ms)
        self.store.take_over(self.store_ms, is_heir=is_heir)
        return True

    # --- the end -----------------------------------------------------------------------------------------------------

    def wind_down(self) -> None:
        """
        Let all go well from now on: every job ends, every record expires, and nothing is left over.

        Raises:
            AssertionError: some job never ends, or something is left over.
        """
        self.check_all()
        self.clock_ms = max(self.clock_ms, self.highest_ms - self.now_ms)
        store, number = self.store, 0
        engine = store.engine
        # Those that end by themselves do, and limits let every job start in time.
        for pause in [pause for pause in engine.table.pauses.all() if pause.until_ms is None]:
            number += 1
            store.ask("end", number, op.Resume(pause.filter), self.store_ms)
        for _ in range(ROUNDS_MAX):
            number += 1
            now_ms = self.store_ms
            reply = store.ask("end", number, op.Exchange("end", limit=100, lease_ms=LEASE_MS), now_ms)
            while reply.grants or reply.more:
                number += 1
                assert number < REQUESTS_MAX, f"after {number} requests there is still something to be done at once"
                settle = tuple(
                    [Outcome(job_id=g.spec.id, token=g.token, kind=OutcomeKind.FINISHED) for g in reply.grants]
                )
                reply = store.ask("end", number, op.Exchange("end", settle, limit=100, lease_ms=LEASE_MS), now_ms)
            if not engine.table.jobs and not engine.table.pauses:
                break
            next_ms = engine.next_ms
            assert next_ms is not None, f"{len(engine.table.jobs)} jobs wait for nothing that is to come"
            self.now_ms = max(self.now_ms, next_ms - self.clock_ms)
        assert not engine.table.jobs, f"{sorted(engine.table.jobs)} are left"
        for limit in list(store.promises.starts.limits.values()):
            number += 1
            store.ask("end", number, op.SetLimit(limit.lifted), self.store_ms)
        check_empty(engine)


def conflict_of(one: Grant, other: Grant) -> bool:
    """Return whether the jobs of two grants conflict, by the definition."""
    return conflict(one.spec.claims, other.spec.claims)
