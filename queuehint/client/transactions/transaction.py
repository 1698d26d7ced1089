"""`Transaction`: submit jobs and cancel some, within a transaction of the application's database."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, overload

from queuehint.client.flows.flow import Flow, submitting, submitting_sync
from queuehint.client.handle import JobHandle, checked_reason, id_of
from queuehint.client.options import checked
from queuehint.client.signals import given_spec
from queuehint.client.transactions.writer import RowWriter
from queuehint.errors import InvalidJobError, shows_itself
from queuehint.operations import IDS_MAX, Cancel, CancelPath, Operation
from queuehint.schema.checks import check_items
from queuehint.values.hint import parse_path
from queuehint.values.signal import SIGNAL_KEPT
from queuehint.values.spec import JobSpec

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import timedelta


@shows_itself
class Transaction(RowWriter):
    """
    The scheduler within a transaction of the application's database, as returned by `Scheduler.within`.

    Each call writes one row, in the order of the calls, and all or nothing: after a rollback there is none. The
    connection may be used by one task or thread at a time, as its library says.

    .. versionadded:: 1.0.0
    """

    def __repr__(self) -> str:
        return f"Transaction({self._adapter.name}, {self.client!r})"

    @overload
    async def submit(self, specs: Iterable[JobSpec]) -> list[JobHandle[Any]]: ...
    @overload
    async def submit(self, specs: Flow) -> Flow: ...
    async def submit(self, specs: Iterable[JobSpec] | Flow) -> list[JobHandle[Any]] | Flow:
        """
        Submit jobs by their specs, or a flow, all at once.

        Args:
            specs: up to 100 000 jobs, in a row of up to 64 MiB. More than 500, or 6 000 gates, take no key. A `Flow` is
                given before it is submitted.

        Returns:
            The handles of the jobs, in the order of the specs, good once the transaction is committed; of a flow the
            flow itself. `JobHandle.created` is True, as it is not known yet; a job with a key may turn out to be the
            one that has the key, of another id.

        Raises:
            InvalidJobError, InvalidJobTypeError, InvalidHintError, PayloadError, CycleError, TemplateError,
                DuplicateJobError: a spec is not valid, or two do not fit together; the connection is in no transaction,
                or leads to another database than the scheduler. Nothing was written.
            Exception: what the library of the connection raises.
        """
        self.check_async()
        if isinstance(specs, Flow):
            await specs.submit_by(self)
            return specs
        return await self.submit_checked(checked(specs, may_lack_id=True))

    @overload
    def submit_sync(self, specs: Iterable[JobSpec]) -> list[JobHandle[Any]]: ...
    @overload
    def submit_sync(self, specs: Flow) -> Flow: ...
    def submit_sync(self, specs: Iterable[JobSpec] | Flow) -> list[JobHandle[Any]] | Flow:
        """Like `submit`, by a synchronous connection."""
        self.check_sync()
        if isinstance(specs, Flow):
            specs.submit_by_sync(self)
            return specs
        return self.submit_checked_sync(checked(specs, may_lack_id=True))

    def flow(
        self, id: str | None = None, *, timeout: float | timedelta | None = None
    ) -> contextlib.AbstractAsyncContextManager[Flow]:
        """
        Build a flow, written at the end of the block, as `Scheduler.flow`. Raises as `submit`.

        Its jobs are those of the scheduler, added as ever: ``flow.add(save, "doc1")``.
        """
        self.check_async()
        return submitting(Flow(self.client, id, timeout, submitter=self))

    def flow_sync(
        self, id: str | None = None, *, timeout: float | timedelta | None = None
    ) -> contextlib.AbstractContextManager[Flow]:
        """Like `flow`, over a synchronous connection: a plain context manager."""
        self.check_sync()
        return submitting_sync(Flow(self.client, id, timeout, submitter=self))

    async def signal(self, name: str, data: Any = None, *, keep: float | timedelta = SIGNAL_KEPT) -> None:
        """
        Give a signal once the transaction is committed, if it was not given before; the arguments are those of
        `Scheduler.signal`. Whether this data counts is not known yet.
        """
        self.check_async()
        await self.submit_checked([given_spec(name, data, keep, self.client.codec)])

    def signal_sync(self, name: str, data: Any = None, *, keep: float | timedelta = SIGNAL_KEPT) -> None:
        """Like `signal`, by a synchronous connection."""
        self.check_sync()
        self.submit_checked_sync([given_spec(name, data, keep, self.client.codec)])

    async def cancel(
        self,
        ids: str | JobHandle[Any] | Iterable[str | JobHandle[Any]] | None = None,
        *,
        path: Sequence[str] | None = None,
        reason: str | None = None,
    ) -> None:
        """
        Cancel the jobs that are unfinished when the transaction is committed.

        Args:
            ids: one job, or up to 1 000, by their ids or handles; or
            path: all at or below this place that come before this call in the order of commits.
            reason: the cause that their records name.

        Raises:
            InvalidJobError, InvalidJobTypeError, InvalidHintError: naming the parameter; otherwise as `submit`.
        """
        self.check_async()
        operation = self._cancellation(ids, path, reason)
        if operation is not None:
            await self.write([operation])

    def cancel_sync(
        self,
        ids: str | JobHandle[Any] | Iterable[str | JobHandle[Any]] | None = None,
        *,
        path: Sequence[str] | None = None,
        reason: str | None = None,
    ) -> None:
        """Like `cancel`, by a synchronous connection."""
        self.check_sync()
        operation = self._cancellation(ids, path, reason)
        if operation is not None:
            self.write_sync([operation])

    def _cancellation(self, ids: Any, path: Any, reason: Any) -> Operation[Any] | None:
        if (ids is None) == (path is None):
            raise InvalidJobError("cancel() in a transaction requires exactly one of ids and path")
        if ids is None:
            return CancelPath(parse_path(path), checked_reason(reason))
        found = [ids] if isinstance(ids, (str, JobHandle)) else check_items(ids, parameter="ids", most=IDS_MAX)
        named = dict.fromkeys([id_of(self.client, job, "ids") for job in found])
        return Cancel(tuple(named), checked_reason(reason)) if found else None
