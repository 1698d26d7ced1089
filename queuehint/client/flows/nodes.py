"""
Nodes of a flow, groups of nodes, and the registry of all nodes.

A node is a call of a job, checked when it is added. It refers to its dependencies by their names in the flow, which the
submission resolves, so that ids are generated only then.
"""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeGuard, TypeVar, Union, cast

from queuehint.client.handle import JobHandle
from queuehint.client.job import Job
from queuehint.client.options import Options
from queuehint.errors import (
    CycleError,
    InvalidJobError,
    InvalidJobTypeError,
    JobNotFoundError,
    UnknownDependencyError,
    shown,
    shows_itself,
)
from queuehint.handlers.references import Referable, Reference
from queuehint.handlers.templates import is_name
from queuehint.schema.checks import check_id
from queuehint.values.spec import Dependency, JobSpec, When, evolved

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from queuehint.client.handle import Client, InFlow
    from queuehint.client.options import Awaited

P = ParamSpec("P")
R = TypeVar("R")

CALLED_MAX = 128

_SPACE = re.compile(r"\s")
_NOT_IN_TEMPLATE = re.compile("[^A-Za-z0-9_-]")
Source = Union["FlowGroup", Dependency]
Sources = list[tuple[Source, When]]


@shows_itself
class Node(JobHandle[R], Referable, Generic[R]):
    """
    A job of a flow. Once the flow is submitted, the node is the handle of its job.

    Args:
        name: what it is called in the flow.
        called: what templates in the jobs that depend on it call it: its name, with ``_`` for what a template cannot
            write, and a number if that is another's.
        within: the groups it is in, the flow first.
    """

    __slots__ = ("called", "name", "registry", "spec", "within")

    def __init__(
        self, registry: FlowRegistry, spec: JobSpec, *, name: str, called: str, within: tuple[FlowGroup, ...]
    ) -> None:
        super().__init__(registry.client, spec.id)
        self.registry = registry
        self.name = name
        self.called = called
        self.within = within
        self.spec = spec
        """Its spec; edges from groups are added at the submission."""

    def __repr__(self) -> str:
        return f"Node({self.name!r})"

    @property
    def out(self) -> R:
        """
        The result of the node, as an argument of other jobs: ``node.out``, or a part: ``node.out.rows[0]["id"]``.

        Type checkers take it for the result itself, which is not there yet: it may be passed on and nothing else.
        """
        # Outside of its flow, where another node may be called the same, it goes by its id if a template can write it.
        by_id = self.registry.is_submitted and is_name(self.id)
        return cast("R", Reference(self.id if by_id else self.called, self))

    def edge(self, when: When = "success") -> Dependency:
        """Return the edge by which another node of the flow depends on this node."""
        return Dependency(self.name, when, self.called)

    def edges(self, when: When, client: Client, flow: InFlow | None = None) -> Sequence[Dependency]:
        """
        Return the edges of a job that depends on this node.

        Raises:
            InvalidJobError: that job is not of this flow, which is not submitted.
        """
        if flow is self.registry:
            return (self.edge(when),)
        return super().edges(when, client, flow)

    def id_for(self, client: Client, parameter: str) -> str:
        """
        Return the job's id for a call of *client*.

        Raises:
            InvalidJobError: its flow is not submitted; else as any handle's.
        """
        self.registry.check_submitted()
        return super().id_for(client, parameter)


@shows_itself
class FlowGroup:
    """
    Nodes and groups whose names share a prefix. Made by `flow` of the group above.

    Args:
        prefix: what their names begin with.
        above: the groups it is in, the flow first.
        waiting: the dependencies of its first nodes, which wait for no node in it.
    """

    def __init__(self, registry: FlowRegistry, prefix: str, above: tuple[FlowGroup, ...], waiting: Sources) -> None:
        self.registry = registry
        self._prefix = prefix
        self._within = (*above, self)
        self.nodes: list[Node[Any]] = []
        """Those in it; not those in groups below."""
        self.below: dict[str, FlowGroup] = {}
        self.waiting = waiting
        self.ends: list[Node[Any]] = []
        """The nodes that no node in it waits for; known when the flow is submitted."""
        registry.groups.append(self)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    @property
    def name(self) -> str:
        """The name of the group in the flow."""
        return self._prefix[:-1]

    def __getitem__(self, name: str) -> Node[Any]:
        """
        Return a node by its name in this group.

        Raises:
            JobNotFoundError: there is none.
        """
        full = f"{self._prefix}{check_id(name, parameter='name')}"
        node = self.registry.named.get(full)
        if node is None:
            raise JobNotFoundError(full)
        return node

    @property
    def is_empty(self) -> bool:
        """True if neither the group nor any group below has a node."""
        return not self.nodes and all(group.is_empty for group in self.below.values())

    def all_nodes(self) -> list[Node[Any]]:
        """Return the nodes of the group and of the groups below."""
        found: list[Node[Any]] = []
        left = [self]
        while left:
            group = left.pop()
            found += group.nodes
            left += reversed(group.below.values())
        return found

    def add(self, job: Job[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Node[R]:
        """
        Add a call of a job.

        Args:
            args, kwargs: as of `Job.enqueue`. `Node.out` of a node of this flow, or of a job that was submitted before,
                may stand anywhere in them: the new job waits for that one and gets its result.

        Raises:
            InvalidJobError, InvalidJobTypeError, InvalidHintError, PayloadError: the call or an option is not valid,
                the name is taken, or it waits for what is neither in this flow nor submitted.
            UnknownDependencyError: its task depends on another (``depends_on``) of which there is no node yet.
            CycleError: it waits for a group it is in.
        """
        if not isinstance(job, Job):
            raise InvalidJobTypeError(f"job must be a Job made by @sched.job, got {type(job).__name__}: {shown(job)}")
        return self.add_call(job, job.handler.bind(args, kwargs))

    def add_call(self, job: Job[..., R], arguments: dict[str, Any]) -> Node[R]:
        """Add a call by its arguments as the handler binds them. Everything else is as in `add`."""
        registry = self.registry
        registry.check_open()
        if job.scheduler is not registry.client:
            raise InvalidJobError(f"{job.name} is a job of another scheduler than the flow's")
        before = [node.edge() for task in job.options.depends_on for node in self._nodes_of(task, job.name)]
        spec = job.build_spec(arguments, flow=registry, before=before)
        name, called = registry.names_for(self._prefix, spec)
        sources = [item for item in job.options.after or () if registry.owns(item)]
        self._refuse_own(sources, name)
        spec = evolved(spec, name=name, flow=registry.flow_id, id=registry.id_for(spec, name, job))
        node: Node[R] = Node(registry, spec, name=name, called=called, within=self._within)
        registry.take(node, [(group, job.options.when) for group in sources])
        self.nodes.append(node)
        return node

    def flow(
        self, name: str, *, after: Iterable[str | Dependency | Awaited] | None = None, when: When = "success"
    ) -> FlowGroup:
        """
        Add a group. Its nodes are submitted with all others, and their names begin with its name and a dot.

        What waits for it (``after=[group]``) waits for those of its nodes that no other node in it waits for; if it has
        none, for what the group itself waits for.

        Args:
            name: no other group here has it.
            after, when: as of `Job.using`, for those of its nodes that wait for no other node in it.

        Raises:
            InvalidJobError, InvalidJobTypeError: naming the parameter.
            CycleError: it waits for a group it is in.
        """
        registry = self.registry
        registry.check_open()
        full = check_id(f"{self._prefix}{check_id(name, parameter='name')}", parameter="name")
        if full in self.below:
            raise InvalidJobError(f"the name {shown(full)} is used by another group of the flow")
        options = Options().changed(after=() if after is None else after, when=when)
        waiting: Sources = []
        for item in options.after or ():
            if isinstance(item, str):
                item = Dependency(item, when)
            if isinstance(item, Dependency):
                waiting.append((item, item.when))
            elif registry.owns(item):
                self._refuse_own([item], full)
                waiting.append((item, options.when))
            else:
                waiting += [(edge, edge.when) for edge in item.edges(options.when, registry.client, registry)]
        group = FlowGroup(registry, f"{full}.", self._within, waiting)
        self.below[full] = group
        return group

    def edges(self, when: When, client: Client, flow: InFlow | None = None) -> Sequence[Dependency]:
        """
        Return the edges of a job that depends on this group. Edges inside of the flow are added on submission.

        Raises:
            InvalidJobError: that job is not of this flow, which is not submitted.
        """
        if flow is self.registry:
            return ()
        self.registry.check_submitted()
        return [edge for node in self.ends for edge in node.edges(when, client, flow)]

    def _nodes_of(self, task: str, dependent: str) -> Sequence[Node[Any]]:
        """Return the nodes of a task in this group and below, else in the nearest group above with any."""
        nodes = self.registry.of_task.get(task, ())
        for group in reversed(self._within):
            if found := [node for node in nodes if group in node.within]:
                return found
        raise UnknownDependencyError(dependent, task)

    def _refuse_own(self, groups: Iterable[FlowGroup], name: str) -> None:
        for group in groups:
            if group in self._within:
                raise CycleError([name, group.name or self.registry.flow_id])


class FlowRegistry:
    """
    All nodes and groups of one flow.

    Args:
        client: where it is submitted.
        is_named: the user has given the id: the same flow, built again, has the same jobs.
    """

    def __init__(self, client: Client, flow_id: str, *, is_named: bool) -> None:
        self.client = client
        self.flow_id = flow_id
        self.is_named = is_named
        self.nodes: list[Node[Any]] = []
        self.groups: list[FlowGroup] = []
        """In the order of their making: each comes after those it is in. The first is the flow."""
        self.named: dict[str, Node[Any]] = {}
        self.of_task: dict[str, list[Node[Any]]] = {}
        self.is_submitted = False
        self.is_left = False
        """Its block has ended: nothing may be added any more."""
        self.waits: list[tuple[Node[Any], Sources]] = []
        """Nodes and the groups that they wait for."""
        self.outside: dict[str, None] = {}
        """Ids of jobs outside of the flow that nodes wait for."""
        self._numbers: dict[str, int] = {}
        self._called: set[str] = set()

    def check_open(self) -> None:
        """Raise if nothing may be added any more."""
        if self.is_submitted or self.is_left:
            state = "submitted" if self.is_submitted else "given up"
            raise InvalidJobError(f"flow {shown(self.flow_id)} is {state}: nothing can be added to it")

    def check_submitted(self) -> None:
        """Raise if the nodes are not submitted yet."""
        if not self.is_submitted:
            raise InvalidJobError(f"flow {shown(self.flow_id)} is not submitted: no job outside of it can wait for it")

    def owns(self, item: object) -> TypeGuard[FlowGroup]:
        """Return whether an item of `after` is a group of this flow."""
        return isinstance(item, FlowGroup) and item.registry is self

    def id_for(self, spec: JobSpec, name: str, job: Job[..., Any]) -> str:
        """Return the id of a new node: its own, or an id derived from its name if the user has named the flow."""
        if not self.is_named or not spec.id or isinstance(job.options.id, str):
            return spec.id
        return hashlib.sha256(f"{self.flow_id}\0{name}".encode()).hexdigest()[:32]

    def names_for(self, prefix: str, spec: JobSpec) -> tuple[str, str]:
        """
        Return the name of a new node in the flow, and its name in templates.

        Raises:
            InvalidJobError: the name given is another's, or is too long.
        """
        if spec.name is not None:
            name = check_id(f"{prefix}{spec.name}", parameter="name")
            if name in self.named:
                raise InvalidJobError(f"the name {shown(name)} is used by another node of the flow")
        else:
            name = self._unused(check_id(prefix + _SPACE.sub("_", spec.task), parameter="name"), self.named)
            # With its number it may be too long.
            name = check_id(name, parameter="name")
        called = name
        if not is_name(called):
            called = _NOT_IN_TEMPLATE.sub("_", name)
            called = f"_{called[1:]}" if called[0] == "-" else called
        return name, self._unused(called, self._called)

    def _unused(self, base: str, used: dict[str, Node[Any]] | set[str]) -> str:
        """Return a name, or the first of name-2, name-3, … that is not used."""
        if base not in used:
            return base
        key = f"{base} {type(used).__name__}"
        number = self._numbers.get(key, 1)
        while True:
            number += 1
            self._numbers[key] = number
            suffix = f"-{number}"
            name = f"{base[: CALLED_MAX - len(suffix)]}{suffix}" if isinstance(used, set) else f"{base}{suffix}"
            if name not in used:
                return name

    def take(self, node: Node[Any], sources: Sources) -> None:
        """Register a node, with the groups on which the node depends."""
        self.nodes.append(node)
        self.named[node.name] = node
        self._called.add(node.called)
        self.of_task.setdefault(node.spec.task, []).append(node)
        if sources:
            self.waits.append((node, sources))

    def note_outside(self, job_id: str) -> None:
        """Record the id of a job outside of the flow on which a job of the flow depends."""
        self.outside[job_id] = None
