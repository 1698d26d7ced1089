"""
The rules as one deterministic state machine: the reference that every backend must match.

`Engine.apply(operation, now_ms)` answers one operation. There is no I/O, clock, thread, log or randomness in here:
the same operations at the same times give the same replies.

A mutating operation does, in this order: its changes to existing jobs (settlements, cancellations); follow-up work
within an exact budget (leftovers first in first out, then due timers, each timer's own leftovers before the next
timer); its own placements and claims. One unit of the budget is one gate visited or left, one end of an edge removed,
one job promoted. Bigger changes use more units, so that no step is much longer than others: two for a job canceled by a
sweep, parked or offered again, three for an edge that a commit makes, a job of a submission that is not committed and a
lease that has ended, five for a job revived or canceled because of another one, six for a record dropped. A piece of
work is begun while units are left and is then finished: one walk from where it stands to where it stops, one job with
its gates, fifty edges of a commit. A leftover that is cut goes to the end of the leftovers, so that a long sweep does
not hold up a short line.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from queuehint.core import operating, producing, working
from queuehint.core.asking import chain, places, questions, why
from queuehint.core.jobs import invariants
from queuehint.core.refusals import fresh_for_ms
from queuehint.core.state import HANDLERS, EngineOptions, State
from queuehint.core.structures.timers import TimerKind
from queuehint.operations.bounds import LIMITS
from queuehint.values.record import JobState

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from queuehint.core.jobs.lifecycle import Lifecycle
    from queuehint.core.jobs.table import JobTable
    from queuehint.operations import CountPending, Operation, Verdict

__all__ = ["EPOCH_BEGIN_S", "ROOMS", "Engine", "EngineOptions"]

Reply = TypeVar("Reply")

EPOCH_BEGIN_S = 1_577_836_800
"""2020-01-01T00:00:00Z, from which the seconds in a token count."""
ROOMS = (producing, working, operating, questions, why, chain, places)
"""The modules that answer operations; each enters its functions in the table of handlers."""


class Engine:
    """
    The scheduler of one namespace.

    >>> from queuehint.operations import Enqueue, Exchange
    >>> from queuehint.values.hint import Claim
    >>> from queuehint.values.spec import JobSpec
    >>> engine = Engine()
    >>> section = JobSpec(id="a", task="edit", claims=(Claim(("doc1", "intro")),))
    >>> whole = JobSpec(id="b", task="snapshot", claims=(Claim(("doc1",)),))
    >>> _ = engine.apply(Enqueue((section, whole)), now_ms=0)
    >>> [grant.spec.id for grant in engine.apply(Exchange("w", limit=2), now_ms=0).grants]
    ['a']

    Args:
        state: the state of an earlier engine, to continue from.
    """

    def __init__(self, options: EngineOptions | None = None, state: State | None = None) -> None:
        self.state = state or State(options or EngineOptions())

    @property
    def table(self) -> JobTable:
        """The table of jobs."""
        return self.state.table

    @property
    def lifecycle(self) -> Lifecycle:
        """The lifecycle rules of jobs."""
        return self.state.lifecycle

    @property
    def now_ms(self) -> int:
        """The latest time of an operation; ms since the epoch."""
        return self.state.now_ms

    @property
    def token(self) -> int:
        """The newest token there is."""
        return self.state.token

    @property
    def next_ms(self) -> int | None:
        """The time of the next due work; now, while leftovers remain."""
        return self.state.next_ms()

    def apply(self, operation: Operation[Reply], now_ms: int) -> Reply:
        """
        Answer one operation.

        Args:
            now_ms: ms since the epoch; a time before an earlier one counts as that one.

        Raises:
            QueueHintError: as the operation says; nothing was changed.
        """
        LIMITS[type(operation)](operation)
        state = self.state
        state.see_time(now_ms)
        state.table.begin_step()
        reply: Reply = HANDLERS[type(operation)](state, operation)
        return reply

    def grant_again(self, operation: Operation[Any], now_ms: int, token: int, taken: Iterable[tuple[int, bool]]) -> Any:
        """
        Answer a claim with the grants of its first answer, which may have followed other rules.

        Args:
            token: of the first grant.
            taken: the numbers of the jobs taken, in their order, and whether they were granted, or parked.

        Raises:
            NotGrantableError: one of them may not run; the state is undefined then.
            QueueHintError: as of `apply`.
        """
        claim: Any = operation
        assert claim.is_claim
        LIMITS[type(operation)](operation)
        self.state.see_time(now_ms)
        self.state.table.begin_step()
        return working.exchange(self.state, claim, partial(working.grant_again, token=token, taken=taken))

    def extend(self, leases: Sequence[tuple[str, int]], lease_ms: int, now_ms: int) -> list[Verdict]:
        """
        Extend leases, without follow-up work or delivery of cancellations. For in-process backends.

        Returns:
            One verdict for each, as of `Renewed`.
        """
        self.state.see_time(now_ms)
        return working.extend(self.state, leases, lease_ms)

    def check(self) -> None:
        """Assert that all structures agree, for tests; O(all)."""
        invariants.check(self.state.table)

    def begin_epoch(self, token: int, reap_from_ms: int) -> None:
        """
        Begin a new history of tokens, as after a restart of the store.

        Args:
            token: the next tokens count up from it; greater than every earlier one.
            reap_from_ms: no lease is reaped before, because no worker could renew it.
        """
        self.state.token = token
        self.state.lifecycle.reap_from_ms = reap_from_ms

    def end_leases(self, now_ms: int, others: Collection[str] | None = (), kept_ms: int = 0) -> None:
        """
        Expire every lease and the presence of every waiting caller now: their holders are known to be dead.

        They are reaped as follow-up work of the next operation.

        Args:
            others: workers whose leases go on, as does the presence of callers if there are any: their processes may
                live. None for all of them.
            kept_ms: for how long at least.

        Complexity: O(n log n) of the leases.
        """
        state = self.state
        state.see_time(now_ms)
        for job in state.table.timers.of(TimerKind.LEASE):
            assert job.timer is not None
            is_anothers = others is None or (
                bool(others) and (job.state is not JobState.STARTED or job.worker in others)
            )
            state.table.set_lease(job, max(job.timer[0], state.now_ms + kept_ms) if is_anothers else state.now_ms)

    def is_under_way(self, job_ids: Iterable[str], now_ms: int) -> bool:
        """Return whether one of these jobs is hidden in a submission in parts under way."""
        found = map(self.state.table.jobs.get, job_ids)
        return any(job is not None and fresh_for_ms(job, now_ms) > 0 for job in found)

    def is_drained(self, question: CountPending) -> bool:
        """Return whether a question counts zero. False too where a search of a few jobs gives no proof."""
        return why.is_drained(self.state, question)

    def await_ends(self, job_ids: Iterable[str]) -> None:
        """Record that a caller waits for jobs. Records of the unfinished ones are kept for a minute at least."""
        table = self.state.table
        for job_id in job_ids:
            job = table.jobs.get(job_id)
            if job is not None and not job.is_over:
                table.awaited.add(job_id)
