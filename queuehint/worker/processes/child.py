"""
The process that runs handlers: ``python -m queuehint.worker.processes.child``, started by a worker, never forked.

It runs one attempt at a time, on its main thread, so that a signal can interrupt it. Three events end an attempt early:
SIGTERM after a message of the worker raises `HandlerStopped` in the handler; SIGKILL; and the end of the worker. To
notice the last, the worker holds the other end of a pipe. Linux sends SIGKILL when that is closed, also while code
holds the interpreter; elsewhere a thread waits for it.

A signal without a message of the worker was sent to all processes by a terminal or a supervisor: this process ends with
its worker, not before it.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib
import inspect
import os
import runpy
import signal
import socket
import sys
import threading
import time
import types
from functools import partial
from typing import TYPE_CHECKING, Any

from queuehint.errors import HandlerError, UnknownToReleaseError, shown
from queuehint.handlers.codec import JsonCodec
from queuehint.handlers.context import CURRENT, JobContext
from queuehint.handlers.conversion.plain_json import encode_json
from queuehint.handlers.forks import end_any_child, leaving_to_no_child
from queuehint.handlers.handler import Handler
from queuehint.handlers.partial_result import PartialResult
from queuehint.handlers.remote import MAIN, MAIN_OF_CHILD, HandlerStopped
from queuehint.operations import Enqueue
from queuehint.operations.wire import decode_grant, encode, error_of
from queuehint.values.ids import this_process
from queuehint.values.record import JobState
from queuehint.values.spec import Dependency
from queuehint.worker.dependency_results import DependencyResults
from queuehint.worker.processes.channel import Channel
from queuehint.worker.processes.ends import end_of_error, end_of_result, end_of_unread
from queuehint.worker.processes.logs import ToWorker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from queuehint.handlers.codec import Codec
    from queuehint.handlers.signals.waits import WaitState
    from queuehint.values.outcome import Grant, Progress, Step
    from queuehint.values.spec import JobSpec
    from queuehint.worker.processes.channel import Frame

EXIT_ORPHANED = 1


class Host:
    """The host of a job's context: sends its requests to the worker, over the channel."""

    def __init__(self, channel: Channel, answers: Channel, scheduler: Any, codec: Codec) -> None:
        self.codec = codec
        self._channel = channel
        self._answers = answers
        self._lock = threading.Lock()
        self._began_ns: dict[str, int] = {}
        self.scheduler = scheduler

    @property
    def state(self) -> Any:
        """
        Refuse access: the state of the lifespan is in the worker's process.

        Raises:
            HandlerError: always.
        """
        raise HandlerError(
            "ctx.state is in the process of the worker, and this handler runs in its own (process=True): open what it "
            "needs at the top of its module, or at first use"
        )

    def report(self, _job_id: str, _token: int, progress: Progress) -> None:
        """Send progress."""
        self._channel.send({"note": "progress", "values": [progress.done, progress.total, progress.note]})

    def log(self, _job_id: str, _token: int, line: str) -> None:
        """Send a log line."""
        self._channel.send({"note": "log", "values": [line]})

    def store(self, partial_result: PartialResult) -> None:
        """Send nothing, as `ContextInProcess.update` has sent the fields."""

    def send_fields(self, fields: dict[str, Any]) -> None:
        """Send fields of the partial result."""
        self._channel.send({"note": "update"}, encode_json(fields))

    def submit(self, specs: list[JobSpec]) -> list[tuple[str, bool]]:
        """
        Have the worker enqueue children. Return their ids, and whether they are new.

        Raises:
            QueueHintError: what the worker's scheduler has raised.
        """
        parts = [encode(Enqueue((spec,))) for spec in specs]
        head, _ = self._ask({"ask": [len(part) for part in parts]}, b"".join(parts))
        return [(job_id, created) for job_id, created in head["jobs"]]

    def _ask(self, head: dict[str, Any], payload: bytes) -> Frame:
        """Return the worker's answer, or raise it as an exception."""
        with self._lock:
            self._channel.send(head, payload)
            frame = self._answers.receive()
        if frame is None:
            raise HandlerStopped("the worker has ended")
        if "error" in frame[0]:
            raise error_of(frame[0]["error"])
        return frame

    def store_step_sync(self, _job_id: str, _token: int, step: Step) -> tuple[int, bytes | None]:
        """
        Have the worker store the result of a step.

        Raises:
            QueueHintError: what the store, or the worker, has raised.
        """
        head, kept = self._ask({"step": step.name, "began_ns": self._began_ns[step.name]}, step.result)
        return head["at_ms"], kept if head["is_kept"] else None

    async def store_step(self, job_id: str, token: int, step: Step) -> tuple[int, bytes | None]:
        """Do as `store_step_sync`, since a plain function blocks only the loop of its own process."""
        return self.store_step_sync(job_id, token, step)

    @staticmethod
    async def run_plain(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a function on the calling thread."""
        return function(*args, **kwargs)

    @contextlib.contextmanager
    def around_step(self, _context: Any, name: str) -> Iterator[None]:
        """Record the begin of a step. The worker makes its span at the end."""
        self._began_ns[name] = time.time_ns()
        try:
            yield
        finally:
            del self._began_ns[name]

    def ask_wait(self, spec: JobSpec) -> WaitState:
        """
        Have the worker begin a wait for a signal. Return the state of the wait.

        Raises:
            QueueHintError: what the worker's scheduler has raised.
        """
        head, data = self._ask({"wait": True}, encode(Enqueue((spec,))))
        return JobState(head["state"]), data if head["has_data"] else None, head["cause"]


class ContextInProcess(JobContext[Any]):
    """`JobContext` in the process of a handler."""

    def __init__(self, grant: Grant, host: Host) -> None:
        super().__init__(grant, host)
        self._own_host = host

    def update(self, fields: dict[str, Any]) -> None:
        """Merge fields into the job's result, through the worker."""
        super().update(fields)
        self._own_host.send_fields(fields)

    def enqueue_sync(self, job: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Enqueue a child, through the worker."""
        return self._made(job, [self._child(job).spec_of(args, kwargs)])[0]

    def enqueue_many_sync(self, job: Any, calls: Any) -> list[Any]:
        """Enqueue many children, through the worker."""
        return self._made(job, self._child(job).specs_of(calls))

    async def _enqueue(self, job: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Do as `enqueue_sync`, since a plain function blocks only the loop of its own process."""
        return self.enqueue_sync(job, *args, **kwargs)

    async def _enqueue_many(self, job: Any, calls: Any) -> list[Any]:
        """Do as `enqueue_many_sync`."""
        return self.enqueue_many_sync(job, calls)

    def _ask_wait_sync(self, spec: JobSpec) -> WaitState:
        """Return the state of a wait, through the worker."""
        return self._own_host.ask_wait(spec)

    async def _ask_wait(self, spec: JobSpec) -> WaitState:
        """Do as `_ask_wait_sync`."""
        return self._ask_wait_sync(spec)

    def _made(self, job: Any, specs: list[JobSpec]) -> list[Any]:
        handles = []
        for job_id, created in self._own_host.submit(specs):
            handle = job.scheduler.handle(job_id)
            handle.created = created
            handles.append(handle)
        self._note_all(handles)
        return handles


class Attempts:
    """
    Runs the attempts that the worker requests.

    Args:
        hello: the worker's first frame.
    """

    def __init__(self, channel: Channel, answers: Channel, hello: dict[str, Any]) -> None:
        self._channel = channel
        self._answers = answers
        self._hello = hello
        self._is_running = False
        self._context: ContextInProcess | None = None

    def serve(self) -> None:
        """Run attempts until the worker closes the channel."""
        while (frame := self._channel.receive()) is not None:
            if "run" not in frame[0]:
                continue  # to stop what has ended meanwhile
            try:
                self._is_running = True
                end = self._run(frame[0]["run"], frame[1])
            except BaseException as error:  # noqa: BLE001 - the worker decides what comes of it
                end = end_of_error(error)
            finally:
                self._is_running = False
            flush()
            self._channel.send(*end)

    def _run(self, run: dict[str, Any], payload: bytes) -> Frame:
        process = this_process.mark
        arguments_at = run["grant"]
        results_at = arguments_at + run["arguments"]
        try:
            handler, codec, scheduler = self._find(run)
        except Exception as error:  # noqa: BLE001 - a module may raise anything
            return end_of_error(error)
        try:
            names = {name: name for name, _, _ in run["steps"]}
            args, kwargs = handler.loads(codec, payload[arguments_at:results_at], steps=names)
        except UnknownToReleaseError as error:
            return end_of_unread(error)
        except BaseException as error:  # noqa: BLE001 - what a codec of the application's raises
            return end_of_error(error, is_final=not isinstance(error, OSError))
        host = Host(self._channel, self._answers, scheduler, codec)
        context = ContextInProcess(decode_grant(payload[:arguments_at]), host)
        context.bring(results_of(run, memoryview(payload)[results_at:], codec))
        context.bring_steps(steps_of(run, payload), names)
        if handler.wants_context:
            args = (context, *args)
        self._context = context
        variable = CURRENT.set(context)
        try:
            self._channel.send({"begun": True})
            result = handler.function(*args, **kwargs)
        except BaseException as error:  # noqa: BLE001 - whatever a handler raises
            end_any_child(process, error)
            return end_of_error(error)
        finally:
            CURRENT.reset(variable)
            context.is_over = True
            self._context = None
        end_any_child(process)
        return end_of_result(handler, codec, context, result)

    def _find(self, run: dict[str, Any]) -> tuple[Handler, Codec, Any]:
        """
        Import a handler. Return the handler with the codec and scheduler of its declaration.

        Raises:
            HandlerError: it is not where it was, or its codec cannot be known.
        """
        module_name, qualname = run["module"], run["qualname"]
        found: Any = self._main() if module_name == MAIN else importlib.import_module(module_name)
        for name in qualname.split("."):
            if not hasattr(found, name):
                raise HandlerError(f"{run['name']}: process=True: there is no {qualname} in {module_name}")
            found = getattr(found, name)
        job = found
        while not isinstance(getattr(job, "handler", None), Handler):
            job = getattr(job, "__wrapped__", None)
            if job is None:
                break
        if job is not None:
            return job.handler, job.scheduler.codec, job.scheduler
        if run["codec"] is not None:
            raise HandlerError(
                f"{run['name']}: process=True: {module_name}:{qualname} is not declared as a job in its module, and "
                f"only there is the codec known, {shown(run['codec'])}; write @sched.job above the function"
            )
        return Handler(run["name"], inspect.unwrap(found, stop=lambda _: True)), JsonCodec(), None

    def _main(self) -> Any:
        """Run the main module of the worker under another name, as `multiprocessing`. Return the module."""
        main = sys.modules.get(MAIN_OF_CHILD)
        if main is None:
            how = self._hello["main"]
            if "module" in how:
                names = runpy.run_module(how["module"], run_name=MAIN_OF_CHILD, alter_sys=True)
            else:
                names = runpy.run_path(how["path"], run_name=MAIN_OF_CHILD)
            main = types.ModuleType(MAIN_OF_CHILD)
            main.__dict__.update(names)
            sys.modules[MAIN] = sys.modules[MAIN_OF_CHILD] = main
        return main

    def stop(self, *_: object) -> None:
        """
        Request a job to stop, or interrupt it, by the message of the worker. The handler of SIGTERM.

        Raises:
            HandlerStopped: the worker interrupts.
        """
        if not self._is_running or not self._channel.has_input():
            return
        frame = self._channel.receive()
        if self._context is not None:
            self._context.ask_to_stop()
        if frame is None or frame[0].get("stop") != "told":
            raise HandlerStopped("interrupted by the worker")


def results_of(run: dict[str, Any], payload: memoryview, codec: Codec) -> DependencyResults:
    """Return the results of the jobs that a job depends on."""
    payloads: dict[str, bytes | None] = {}
    at = 0
    for job_id, length in run["results"]:
        payloads[job_id] = None if length is None else bytes(payload[at : at + length])
        at += length or 0
    edges = [Dependency(job_id, name=name) for job_id, name in run["edges"]]
    return DependencyResults(edges, payloads, codec, run["left_out"])


def steps_of(run: dict[str, Any], payload: bytes) -> list[tuple[str, int, bytes]]:
    """Return the stored steps of a job. Their results stand at the end of the payload."""
    at = len(payload) - sum(length for _, _, length in run["steps"])
    found = []
    for name, at_ms, length in run["steps"]:
        found.append((name, at_ms, payload[at : at + length]))
        at += length
    return found


def flush() -> None:
    """Flush the output of the handler, as this process may be killed while it waits."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()


def die_with(life: int) -> None:
    """Kill this process, and the processes it has started, when the other end of a pipe is closed."""
    if hasattr(fcntl, "F_SETSIG"):
        fcntl.fcntl(life, fcntl.F_SETOWN, -os.getpgrp())
        fcntl.fcntl(life, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(life, fcntl.F_SETFL, fcntl.fcntl(life, fcntl.F_GETFL) | os.O_ASYNC)

    def wait() -> None:
        with contextlib.suppress(OSError):
            os.read(life, 1)
        kill_all()

    # Also where the system does it: the worker may have ended before it was asked to.
    threading.Thread(target=wait, name="queuehint-life", daemon=True).start()


def kill_all() -> None:
    """Kill this process and the processes it has started."""
    os.killpg(os.getpgrp(), signal.SIGKILL)


def close_all(closes: list[Callable[[], object]]) -> None:
    """Close the resources of this process, in a fork."""
    for close in closes:
        close()


def main() -> None:
    """Set the paths of modules, and run attempts."""
    numbers = [int(number) for number in sys.argv[1:]]
    for number in numbers:
        os.set_inheritable(number, False)
    channel, answers = (Channel(socket.socket(fileno=number)) for number in numbers[:2])
    life = numbers[2]
    die_with(life)
    frame = channel.receive()
    if frame is None:
        return
    hello = frame[0]
    ToWorker(channel, hello["log_level"], hello["log_levels"])
    attempts = Attempts(channel, answers, hello)
    signal.signal(signal.SIGTERM, attempts.stop)
    for name in (signal.SIGINT, signal.SIGHUP):
        # Not SIG_IGN, which the programs that a handler starts would inherit.
        signal.signal(name, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTERM, signal.SIGINT, signal.SIGHUP))
    sys.path[:], sys.argv[:] = hello["path"], hello["argv"]
    this_process.has_no_store = not hello["is_durable"]
    with leaving_to_no_child(partial(close_all, [channel.close, answers.close, partial(os.close, life)])):
        try:
            attempts.serve()
        except (HandlerStopped, OSError):
            kill_all()
    flush()


if __name__ == "__main__":
    main()
