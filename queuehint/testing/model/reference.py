"""
The reference: the scheduler by the plain definition of its rules, readable as their specification.

No trie, no index, no heap, nothing derived is stored. Read the modules in this order:

1. `places`: R1 and R2, conflicts and readiness, as functions of a few lines;
2. `jobs`: the state of a job;
3. `moves`: its transitions: take a place, start over, end;
4. `edges`: the effect of a job's end on its dependents;
5. `times`: due times, leases, expiry;
6. `limits`: rate and concurrency limits.

These are the rules. The others apply them to each operation: `submissions`, `work` and `records` answer, `refusals`
refuses. `ReferenceModel` combines them.

The model does all follow-up work at once, so it stands for a backend within its budget.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import attrs

from queuehint import operations as op
from queuehint.testing.model.jobs import STARTED
from queuehint.testing.model.places import can_start
from queuehint.testing.model.refusals import Refusals
from queuehint.values.hint import Claim
from queuehint.values.policy import Retention

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["ReferenceModel"]

Reply = TypeVar("Reply")


class ReferenceModel(Refusals):
    """
    The scheduler by the plain definition of its rules.

    It follows a backend operation by operation: `refuses` says what must be refused, `follow` asserts that a reply is
    right. Or it answers by itself: `apply`. Of what it cannot foretell, above all which of the ready jobs a worker
    gets, it judges whether the rules allow it. Schedules, events and announced workers it does not know.

    Args:
        retention: how long records are kept, as the backend was told.

    >>> from queuehint.values.hint import Claim
    >>> from queuehint import operations as op
    >>> from queuehint.values.spec import JobSpec
    >>> model = ReferenceModel()
    >>> intro, document = (Claim(("doc1", "intro")),), (Claim(("doc1",)),)
    >>> jobs = JobSpec(id="edit", task="t", claims=intro), JobSpec(id="print", task="t", claims=document)
    >>> [job.state.value for job in model.apply(op.Enqueue(jobs)).jobs]
    ['QUEUED', 'QUEUED']
    >>> model.ready()
    [<edit QUEUED doc1:intro>]
    >>> first = model.apply(op.Exchange("worker", limit=9))
    >>> [grant.spec.id for grant in first.grants], model.can_dequeue(Claim(("doc1",)))
    (['edit'], False)

    What a backend answers that starts the second job beside the first:

    >>> wrong = attrs.evolve(first.grants[0], spec=jobs[1], token=2)
    >>> model.follow(op.Exchange("worker", limit=9), op.Exchanged((), (wrong,), (), more=False))
    Traceback (most recent call last):
    AssertionError: print was started out of order: [<edit STARTED doc1:intro>] comes before <print QUEUED doc1>
    ...

    .. versionadded:: 1.0.0
    """

    look_ms: Callable[[], int | None] | None = None
    """Returns when a store checks jobs parked by a limit again, if that is known: no rule defines it."""

    def __init__(self, retention: Retention | None = None) -> None:
        super().__init__(retention or Retention())
        self.weights: dict[str | None, int] = {}
        self.reached: set[str] = set()
        """The jobs that the last cancellation by path canceled or asked to stop."""

    def knows(self, operation: op.Operation[Any]) -> bool:
        """Return whether `follow` can judge the reply to an operation."""
        return isinstance(operation, (op.Exchange, op.Tick)) or type(operation) in _NAMES

    def can_dequeue(self, claim: Claim) -> bool:
        """R1 of a claim: no running job conflicts with it."""
        return can_start(claim, [job for job in self.placed if job.state is STARTED])

    def next_ms(self) -> int | None:
        """Return when something is due."""
        alarm, look_ms = self.next_alarm(), None if self.look_ms is None else self.look_ms()
        ends = self.paused.values()
        due = [at for at in (None if alarm is None else alarm[0], look_ms, *ends) if at is not None]
        return min(due, default=None)

    def follow(
        self, operation: op.Operation[Reply], reply: Reply, *, now_ms: int | None = None, cut: bool = False
    ) -> None:
        """
        Apply an operation, and assert that its reply is right.

        Args:
            now_ms: the time of the operation, if it is another than before.
            cut: the backend may not have caught up, because its budget is used up.

        Raises:
            AssertionError: the rules refuse the operation, or ask for another reply; the message says which. The model
                is of no use any more.
            NotImplementedError: the model does not know the operation.
        """
        self._go_to(now_ms)
        refusal = self.refuses(operation)
        assert refusal is None, f"{operation}\nmust be refused with {refusal.__name__}, but was answered:\n{reply}"
        try:
            expected = self._answer(operation, reply, cut=cut)
        except AssertionError as error:
            error.args = (f"{error}\n{operation}\nwas answered:\n{reply}",)
            raise
        assert reply == expected, f"{operation}\nexpected:\n{expected}\nbut the reply was:\n{reply}"

    def apply(self, operation: op.Operation[Reply], now_ms: int | None = None) -> Reply:
        """
        Apply an operation, and return a reply that the rules allow.

        Raises:
            ValueError: the operation must be refused; with which error the message says.
            NotImplementedError: the model does not know the operation, or only how to judge its reply.
        """
        self._go_to(now_ms)
        refusal = self.refuses(operation)
        if refusal is not None:
            raise ValueError(f"{operation} must be refused with {refusal.__name__}")
        reply: Reply = self._answer(operation, None, cut=False)
        return reply

    def _go_to(self, now_ms: int | None) -> None:
        if now_ms is not None:
            self.now_ms = max(self.now_ms, now_ms)

    def _answer(self, operation: Any, reply: Any, *, cut: bool) -> Any:
        """Return the required reply, by the *reply* of the queue where the rules leave a choice."""
        if isinstance(operation, op.Exchange):
            answer: Any = self.exchange(operation, reply, cut=cut)
        elif isinstance(operation, op.Tick):
            answer = self.tick(operation, reply, cut=cut)
        else:
            name = _NAMES.get(type(operation))
            if name is None or (reply is None and type(operation) in _JUDGED):
                raise NotImplementedError(f"the model has no answer to {operation}")
            answer = getattr(self, name)(operation, reply)
        if hasattr(answer, "more") and not isinstance(answer, op.Ticked):
            # How much a backend does at once of what follows is its own affair.
            answer = attrs.evolve(answer, more=bool(self.agenda) if reply is None else reply.more)
        return answer

    # --- housekeeping and operators ----------------------------------------------------------------------------------

    def tick(self, operation: op.Tick, reply: op.Ticked | None, *, cut: bool) -> op.Ticked:
        """Apply due work, and return the next due time."""
        self.catch_up()
        next_ms = self.next_ms()
        unknown = self.look_ms is None and any(limit.holds_back for limit in self.limits.values())
        if reply is not None and cut:
            return reply
        if reply is not None and reply.next_ms is not None and unknown:
            next_ms = reply.next_ms if next_ms is None else min(next_ms, reply.next_ms)
        return op.Ticked(more=False, next_ms=next_ms)

    def cancel_path(self, operation: op.CancelPath, reply: op.SweptPath | None) -> op.SweptPath:
        """Cancel and count the jobs at or below a path that were enqueued before."""
        self.numbers += 1
        cause = operation.reason or "canceled"
        self.reached = set()
        self.agenda.append(partial(self.sweep, [operation.path], self.numbers, cause, reached=self.reached))
        self.catch_up()
        if reply is None or reply.number is None:
            return op.SweptPath(more=False, reached=len(self.reached))
        # How far a sweep comes at once is the backend's own affair.
        return op.SweptPath(more=False, reached=min(reply.reached, len(self.reached)), number=self.numbers)

    def cancel_flow(self, operation: op.CancelFlow, reply: op.Swept | None) -> op.Swept:
        """Cancel the jobs of a flow that were enqueued before."""
        self.numbers += 1
        cause = operation.reason or "canceled"
        self.agenda.append(partial(self.sweep_flow, operation.flow, self.numbers, cause))
        self.catch_up()
        return op.Swept(more=False)

    def pause(self, operation: op.Pause, reply: op.Marked | None) -> op.Marked:
        """Pause the selected jobs, until a resume or until a time."""
        wanted = operation.filter
        until = None if operation.for_ms is None else self.now_ms + operation.for_ms
        changed = wanted not in self.paused or self.paused[wanted] != until
        self.paused[wanted] = until
        self.catch_up()
        return op.Marked(changed, more=False)

    def resume(self, operation: op.Resume, reply: op.Marked | None) -> op.Marked:
        """Resume the selected jobs."""
        changed = operation.filter in self.paused
        self.paused.pop(operation.filter, None)
        self.catch_up()
        return op.Marked(changed, more=False)

    def close(self, operation: op.Close, reply: op.Marked | None) -> op.Marked:
        """Close a path, or reopen it."""
        changed = (operation.path in self.closed) == operation.reopen
        if operation.reopen:
            self.closed.pop(operation.path, None)
        else:
            self.closed.setdefault(operation.path)
        self.catch_up()
        return op.Marked(changed, more=False)

    def limit(self, operation: op.SetLimit, reply: op.Marked | None) -> op.Marked:
        """Put a limit in place of the one there is."""
        changed = self.set_limit(operation.limit)
        self.catch_up()
        return op.Marked(changed, more=False)

    def weigh(self, operation: op.Weigh, reply: op.Marked | None) -> op.Marked:
        """Set the weight of a user. The rules leave turns to the backend."""
        changed = self.weights.get(operation.user, 1) != operation.weight
        self.weights[operation.user] = operation.weight
        self.catch_up()
        return op.Marked(changed, more=False)

    def answer_can_dequeue(self, question: op.CanDequeue, told: bool | None) -> bool:
        """Return whether anything that runs conflicts with a claim."""
        return self.can_dequeue(Claim(question.path, question.mode))


_NAMES: dict[type[op.Operation[Any]], str] = {
    op.Enqueue: "enqueue",
    op.Commit: "commit",
    op.Depend: "depend",
    op.Withdraw: "withdraw",
    op.Cancel: "cancel_ids",
    op.CancelPath: "cancel_path",
    op.CancelFlow: "cancel_flow",
    op.Redrive: "take_dead_jobs_away",
    op.Discard: "take_dead_jobs_away",
    op.Delete: "delete",
    op.Amend: "amend",
    op.Renew: "renew",
    op.Post: "post",
    op.Fetch: "fetch",
    op.Push: "push",
    op.Pull: "pull",
    op.ListShared: "list_shared",
    op.Pause: "pause",
    op.Resume: "resume",
    op.Close: "close",
    op.SetLimit: "limit",
    op.Weigh: "weigh",
    op.CanDequeue: "answer_can_dequeue",
    op.CountRecords: "count_records",
    op.List: "check_page",
    op.CountEdges: "count_edges",
    op.Why: "check_chain",
}
"""Which method answers an operation."""
_JUDGED = {op.List, op.Why}
"""Of these replies the rules say something, but not all."""
