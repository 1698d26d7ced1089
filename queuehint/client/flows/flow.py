"""Flows: several jobs with edges as one submission, built node by node or from tasks with dependencies."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from queuehint.client.flows.edges import specs_of
from queuehint.client.flows.handle import FlowHandle
from queuehint.client.flows.nodes import FlowGroup, FlowRegistry
from queuehint.client.job import Job
from queuehint.client.signals import Signal
from queuehint.errors import (
    InvalidJobError,
    InvalidJobTypeError,
    UnknownDependencyError,
    shown,
    shows_itself,
)
from queuehint.operations.bounds import topological
from queuehint.schema.checks import check_id, check_optional_duration
from queuehint.values.ids import new_id

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping
    from datetime import timedelta

    from queuehint.client.handle import Client, JobHandle, Submitter
    from queuehint.values.signal import OnTimeout
    from queuehint.values.spec import JobSpec

_VARIADIC = ("VAR_POSITIONAL", "VAR_KEYWORD")


@shows_itself
class Flow(FlowGroup, FlowHandle):
    """
    Several jobs with edges, submitted all or nothing. After the submission, the flow is its own handle.

    Args:
        id: the flow's id; made if none is given.
        timeout: what is unfinished of it this long after it was submitted is canceled; see `Scheduler.flow`.
        submitter: where it is submitted; by default *client*.

    Raises:
        InvalidJobError, InvalidJobTypeError: the id or the timeout is not valid.
    """

    def __init__(
        self,
        client: Client,
        id: str | None = None,
        timeout: float | timedelta | None = None,
        *,
        submitter: Submitter | None = None,
    ) -> None:
        self._submitter = client if submitter is None else submitter
        self._timeout_ms = check_optional_duration(timeout, parameter="timeout", least_ms=1)
        FlowHandle.__init__(self, client, new_id() if id is None else check_id(id, parameter="flow"))
        FlowGroup.__init__(self, FlowRegistry(client, self.id, is_named=id is not None), "", (), [])

    def __repr__(self) -> str:
        return f"Flow({self.id!r})"

    @property
    def name(self) -> str:
        """Its id: only the groups in it are called something."""
        return self.id

    @staticmethod
    def signal(name: str, *, timeout: float | timedelta | None = None, on_timeout: OnTimeout = "fail") -> Signal:
        """
        Return a signal that nodes wait for: ``flow.add(publish, flow.signal("approved:doc1").out)``.

        It is no node. Each node that waits for it has a timeout of its own; the arguments are those of `Signal`.

        .. versionadded:: 1.0.0
        """
        return Signal(name, timeout=timeout, on_timeout=on_timeout)

    async def submit(self) -> None:
        """
        Submit the flow. ``async with`` submits on leaving.

        Up to 1 000 jobs with 4 MiB of arguments, 16 000 gates and 4 000 edges are one operation, on Redis 200 jobs with
        400 edges; larger flows, up to 100 000 jobs, are sent in parts and take effect at once. One with a job that has
        a key is one operation: up to 300 jobs with 3 000 gates and 500 edges.

        Raises:
            InvalidJobError: no job was added: a flow without jobs has no record; more than 100 000 jobs; a
                job with a key in a flow that is too large for that, or with one by which it may be a job outside the
                flow; more than 1 000 dependencies of one job.
            CycleError: the edges close a cycle; it names just the jobs on it.
            UnknownDependencyError: a job depends on one that is neither in the flow nor enqueued.
            TemplateError: a template names a job that its own does not depend on.
            DuplicateFlowError: a flow of this id is there already, with other jobs.
            FlowNotFoundError: its parts were lost before its commit, each time that they were sent. Nothing was
                enqueued.
            ConcurrentSubmissionError: another submission with a job of the same id is under way for ten minutes.
            DuplicateJobError, PathClosedError: as `Job.enqueue`.
        """
        await self.submit_by(self._submitter)

    def submit_sync(self) -> None:
        """Like `submit`, for code without a loop."""
        self.submit_by_sync(self._submitter)

    async def submit_by(self, submitter: Submitter) -> None:
        """Submit the flow through another submitter than its scheduler. Everything else is as in `submit`."""
        specs = self._begin()
        self._end(await submitter.submit_checked(specs, whole=True, flow_timeout_ms=self._timeout_ms))

    def submit_by_sync(self, submitter: Submitter) -> None:
        """Like `submit_by`, for code without a loop."""
        specs = self._begin()
        self._end(submitter.submit_checked_sync(specs, whole=True, flow_timeout_ms=self._timeout_ms))

    def give_up(self) -> None:
        """Close the flow without submitting it."""
        self.registry.is_left = True

    def _begin(self) -> list[JobSpec]:
        self.registry.check_open()
        if not self.registry.nodes:
            self.give_up()
            raise InvalidJobError(f"flow {shown(self.id)} has no jobs and is not submitted: add one, or make no flow")
        return specs_of(self.registry)

    def _end(self, handles: list[JobHandle[Any]]) -> None:
        for node, handle in zip(self.registry.nodes, handles, strict=True):
            node.id = handle.id
            node.created = handle.created
        self.registry.is_submitted = True
        self._jobs = tuple([node.id for node in self.registry.nodes])
        self._ends = tuple([node.id for node in self.ends])


@contextlib.asynccontextmanager
async def submitting(flow: Flow) -> AsyncIterator[Flow]:
    """Submit a flow at the end of the block, unless it raises."""
    try:
        yield flow
    except BaseException:
        flow.give_up()
        raise
    await flow.submit()


@contextlib.contextmanager
def submitting_sync(flow: Flow) -> Iterator[Flow]:
    """Like `submitting`, for code without a loop."""
    try:
        yield flow
    except BaseException:
        flow.give_up()
        raise
    flow.submit_sync()


# --- tasks that say what they depend on --------------------------------------------------------------------------


def flow_of_tasks(
    client: Client, known: Mapping[str, Job[..., Any]], targets: tuple[Job[..., Any], ...], arguments: dict[str, Any]
) -> Flow:
    """
    Return a flow of tasks and all their dependencies, one node for each task.

    Args:
        known: all tasks by name.
        targets: the jobs asked for.
        arguments: by parameter name, for all of them: each task gets those its signature names. A parameter with the
            name of a task that its own depends on gets that one's result, unless it is among them.

    Raises:
        InvalidJobTypeError: no target, or something else; a task lacks an argument, or no task takes one.
        UnknownDependencyError: a task depends on one that is not known.
        CycleError: tasks depend on each other in a cycle.
    """
    tasks = _tasks(known, targets)
    unused = dict(arguments)
    flow = Flow(client)
    nodes: dict[str, Any] = {}
    for name in _in_order(tasks):
        job = tasks[name]
        own: dict[str, Any] = {}
        for parameter in job.handler.parameters.values():
            if parameter.kind.name in _VARIADIC:
                continue
            if parameter.name in arguments:
                own[parameter.name] = arguments[parameter.name]
                unused.pop(parameter.name, None)
            elif parameter.name in job.options.depends_on:
                own[parameter.name] = nodes[parameter.name].out
            elif parameter.default is parameter.empty:
                raise InvalidJobTypeError(f"run(): task {shown(name)} lacks the argument {shown(parameter.name)}")
        nodes[name] = flow.add_call(job, own)
    if unused:
        raise InvalidJobTypeError(
            f"run(): none of the tasks {', '.join(map(shown, tasks))} takes {', '.join(map(shown, unused))}"
        )
    return flow


def _tasks(known: Mapping[str, Job[..., Any]], targets: tuple[Job[..., Any], ...]) -> dict[str, Job[..., Any]]:
    """Return the requested tasks and all their dependencies, by name."""
    if not targets:
        raise InvalidJobTypeError("run() takes one or more jobs")
    tasks: dict[str, Job[..., Any]] = {}
    for target in targets:
        if not isinstance(target, Job):
            raise InvalidJobTypeError(
                f"run() takes jobs made by @sched.job, got {type(target).__name__}: {shown(target)}"
            )
        if tasks.setdefault(target.name, target) is not target:
            raise InvalidJobError(f"run(): task {shown(target.name)} is given twice, with other options")
    left = list(tasks.values())
    for job in left:
        for name in job.options.depends_on:
            if name in tasks:
                continue
            if name not in known:
                raise UnknownDependencyError(job.name, name)
            tasks[name] = known[name]
            left.append(known[name])
    return tasks


def _in_order(tasks: Mapping[str, Job[..., Any]]) -> list[str]:
    """Return the names of tasks, each after its dependencies."""
    names = list(tasks)
    place = {name: index for index, name in enumerate(names)}
    before = [[place[other] for other in tasks[name].options.depends_on] for name in names]
    return [names[index] for index in topological(before, names.__getitem__)]
