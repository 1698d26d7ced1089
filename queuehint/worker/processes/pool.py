"""The processes of one worker's handlers: at most one for each slot, started on demand, kept until the end."""

from __future__ import annotations

import asyncio
import contextlib
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from queuehint.clock import now_s
from queuehint.errors import QueueHintError
from queuehint.handlers.codec import JsonCodec
from queuehint.handlers.conversion.plain_json import decode_json
from queuehint.handlers.forks import leaving_to_no_child
from queuehint.handlers.remote import ProcessDiedError
from queuehint.operations import Enqueue
from queuehint.operations.wire import decode, encode_grant, error_facts
from queuehint.values.outcome import Step
from queuehint.worker.processes.ends import result_of
from queuehint.worker.processes.logs import log_record
from queuehint.worker.processes.process import LEAVE_S, HandlerProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from queuehint.handlers.codec import Codec
    from queuehint.handlers.context import JobContext
    from queuehint.handlers.handler import Handler
    from queuehint.values.spec import JobSpec
    from queuehint.worker.dependency_results import DependencyResults
    from queuehint.worker.processes.channel import Frame
    from queuehint.worker.slots import Slot
    from queuehint.worker.state import WorkerState


class ProcessPool:
    """
    Runs handlers in processes.

    Args:
        most: how many at once.
        codec: how arguments and results travel.
        is_durable: whether other processes see what is in the store.
    """

    def __init__(self, most: int, codec: Codec, *, is_durable: bool) -> None:
        self._codec = codec
        self._is_durable = is_durable
        self._threads = ThreadPoolExecutor(most, thread_name_prefix="queuehint-process")
        self._idle: list[HandlerProcess] = []
        self._all: set[HandlerProcess] = set()
        self._is_closed = False
        self._open = contextlib.ExitStack()
        self._open.enter_context(leaving_to_no_child(self._leave_to_parent))

    @property
    def pids(self) -> list[int]:
        """The ids of the running processes."""
        return [process.pid for process in self._all if process.pid is not None]

    async def run(
        self,
        slot: Slot,
        handler: Handler,
        arguments: bytes,
        results: DependencyResults | None,
        steps: Sequence[tuple[str, int, bytes]],
        host: WorkerState,
        begun: Callable[[], object],
    ) -> Any:
        """
        Run a handler in a process, and stop it on cancellation. Returns when the handler or its process has ended.

        Args:
            arguments: with their templates filled.
            results: of the jobs that it depends on.
            steps: name, time and result of its stored steps.
            host: does what the handler asks for.
            begun: called on the loop when its code begins.

        Returns:
            An `EncodedResult`, or an answer.

        Raises:
            RemoteError: what the handler has raised.
            UnknownToReleaseError: a later release has written the arguments.
            ProcessDiedError: its process has died, or was killed.
        """
        run = run_of(handler, self._codec)
        grant = encode_grant(slot.grant)
        stored = {} if results is None else results.payloads
        run["left_out"] = [] if results is None else list(results.left_out)
        run["edges"] = [] if results is None else [(edge.id, edge.name) for edge in results.edges]
        run["grant"], run["arguments"] = len(grant), len(arguments)
        run["results"] = [(job_id, None if data is None else len(data)) for job_id, data in stored.items()]
        run["steps"] = [(name, at_ms, len(result)) for name, at_ms, result in steps]
        told = [data for data in stored.values() if data is not None]
        payload = b"".join([grant, arguments, *told, *[result for _, _, result in steps]])

        for is_last in (False, True):
            process = self._take()
            end = await self._run_in(process, run, payload, slot, handler, host, begun)
            # Not an attempt: no code of the job has begun. It is run once more, and then what keeps it from beginning
            # is told. A request to stop may have come just after the death.
            is_unbegun = isinstance(end, ProcessDiedError) and not end.problem and process.has_died_unbegun
            if is_last or not is_unbegun or slot.why_stop is not None:
                break
        if isinstance(end, ProcessDiedError):
            raise end
        return result_of(end)

    async def _run_in(
        self,
        process: HandlerProcess,
        run: dict[str, Any],
        payload: bytes,
        slot: Slot,
        handler: Handler,
        host: WorkerState,
        begun: Callable[[], object],
    ) -> Frame | ProcessDiedError:
        """Run an attempt in a process to its end, or the end of the process."""
        loop = asyncio.get_running_loop()

        def heard(head: dict[str, Any], data: bytes) -> None:
            if "begun" in head:
                with contextlib.suppress(RuntimeError):  # the loop was closed over this worker
                    loop.call_soon_threadsafe(begun)
            elif "ask" in head:
                process.answer(enqueued(slot, host.scheduler, head, data))
            elif "wait" in head:
                process.answer(*awaited(slot, host.scheduler, data))
            elif "step" in head:
                process.answer(*stored_step(slot, host, head, data))
            else:
                take_note(slot.context, head, data)

        future = loop.run_in_executor(self._threads, process.run, run, payload, heard)
        try:
            while True:
                try:
                    return await asyncio.shield(future)
                except asyncio.CancelledError:
                    is_told_first = handler.wants_context and slot.why_stop != "lease lost"
                    process.stop(is_told_first=is_told_first)
                    # Its place must not be freed before it has ended.
                    if loop.is_closed():
                        raise
        finally:
            self._give_back(process)

    def _take(self) -> HandlerProcess:
        while self._idle:
            process = self._idle.pop()
            if process.is_usable:
                return process
            self._forget(process)
        process = HandlerProcess(is_durable=self._is_durable)
        self._all.add(process)
        return process

    def _give_back(self, process: HandlerProcess) -> None:
        if process.is_usable and not self._is_closed:
            self._idle.append(process)
        else:
            self._forget(process)

    def _forget(self, process: HandlerProcess) -> None:
        self._all.discard(process)
        process.close()

    def _leave_to_parent(self) -> None:
        """Close all pipes, in a fork of the worker. Otherwise its processes would miss the worker's end."""
        for process in self._all:
            process.leave_to_parent()

    def close(self) -> None:
        """End the waiting processes at once, and the other processes after their handlers."""
        self._is_closed = True
        self._open.close()
        self._threads.shutdown(wait=False)
        idle, self._idle = self._idle, []
        for process in idle:
            process.let_go()
        until_s = now_s() + LEAVE_S
        for process in idle:
            process.close(max(0.0, until_s - now_s()))
            self._all.discard(process)


def run_of(handler: Handler, codec: Codec) -> dict[str, Any]:
    """Return the data by which a process finds a handler."""
    path = handler.import_path
    assert path is not None
    return {
        "module": path.module,
        "qualname": path.qualname,
        "name": handler.name,
        # Only the module that declares the task knows its hooks.
        "codec": None if type(codec) is JsonCodec else type(codec).__qualname__,
    }


def enqueued(slot: Slot, scheduler: Any, head: dict[str, Any], data: bytes) -> dict[str, Any]:
    """Enqueue jobs as children of a handler's job. Return the answer."""
    specs: list[JobSpec] = []
    at = 0
    try:
        for length in head["ask"]:
            operation = decode(data[at : at + length])
            assert isinstance(operation, Enqueue)
            specs += operation.jobs
            at += length
        handles = scheduler.submit_checked_sync(specs, parent=(slot.context.id, slot.context.token))
    except QueueHintError as error:
        return {"error": error_facts(error)}
    return {"jobs": [[handle.id, handle.created] for handle in handles]}


def awaited(slot: Slot, scheduler: Any, data: bytes) -> Frame:
    """Begin the wait of a handler for a signal. Return the state of the wait."""
    try:
        operation = decode(data)
        assert isinstance(operation, Enqueue)
        parent = (slot.context.id, slot.context.token)
        state, result, cause = scheduler.ask_wait_sync(operation.jobs[0], parent)
    except QueueHintError as error:
        return {"error": error_facts(error)}, b""
    return {"state": state, "has_data": result is not None, "cause": cause}, result or b""


def stored_step(slot: Slot, host: WorkerState, head: dict[str, Any], data: bytes) -> Frame:
    """Store the result of a handler's step. Return the answer."""
    context = slot.context
    try:
        with host.around_step(context, head["step"], head["began_ns"]):
            at_ms, kept = host.store_step_sync(context.id, context.token, Step(head["step"], data))
    except QueueHintError as error:
        return {"error": error_facts(error)}, b""
    return {"at_ms": at_ms, "is_kept": kept is not None}, kept or b""


def take_note(context: JobContext, head: dict[str, Any], data: bytes) -> None:
    """Carry out a request of a handler to its context."""
    with contextlib.suppress(QueueHintError):  # it was checked where it was asked
        if head["note"] == "progress":
            context.progress(*head["values"])
        elif head["note"] == "record":
            log_record(head["fields"])
        elif head["note"] == "log":
            context.log(*head["values"])
        else:
            context.update(decode_json(data))
