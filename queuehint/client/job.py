"""`Job`: a registered function that can be called, enqueued, or enqueued with other options."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar

import attrs

from queuehint.client.handle import Client, JobHandle
from queuehint.client.options import UNSET, Awaited, Options, Unset
from queuehint.errors import InvalidJobError, InvalidJobTypeError, shown, shows_itself
from queuehint.handlers.arguments import refuse_misfit
from queuehint.handlers.calls import Call
from queuehint.handlers.codec import JsonCodec
from queuehint.handlers.handler import Handler
from queuehint.handlers.placement import MODE_OF_NONE, Placement, SeveralPlaces, UserTemplate
from queuehint.handlers.references import PLAIN, Extracted, extract, target
from queuehint.operations import JOBS_PER_CALL_MAX
from queuehint.schema.checks import check_headers, check_instance, each_item
from queuehint.values.hint import Claim, Mode
from queuehint.values.ids import new_id
from queuehint.values.policy import Backoff
from queuehint.values.spec import (
    PAYLOAD_BYTES_MAX,
    Dependency,
    JobSpec,
    OnConflict,
    When,
    check_call_size,
    new_spec,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from datetime import datetime, timedelta

    from queuehint.client.handle import InFlow, Submitter
    from queuehint.handlers.references import Reference
    from queuehint.values.policy import OnDead, OnDependencyFailure, OnRetry

P = ParamSpec("P")
R = TypeVar("R")


RIGHT_MAX = 64
"""How many combinations of names and types of arguments a handler remembers to be right."""
_NO_WORDS: Mapping[str, Any] = {}
_NOTHING: Mapping[str, frozenset[type]] = {}
_NO_NAMES: frozenset[str] = frozenset()


@shows_itself
class Job(Generic[P, R]):
    """
    A task: the function itself when called, and the entry point to enqueue its jobs.

    Made by `Scheduler.job`; typed like the handler, so that type checkers check the arguments of `enqueue`.
    """

    def __init__(
        self,
        scheduler: Client,
        handler: Handler,
        placement: Placement | SeveralPlaces,
        options: Options,
        *,
        parent: tuple[str, int] | None = None,
        make_id: Callable[[], str] | None = None,
        inherited: tuple[tuple[str, str], ...] = (),
        submitter: Submitter | None = None,
    ) -> None:
        self._scheduler = scheduler
        self._submitter = submitter or scheduler
        self._handler = handler
        self._placement = placement
        self._options = options
        self._sure, self._right = (handler.sure, handler.right) if options.check_arguments else (_NOTHING, set())
        self._parent = parent
        self._make_id = make_id or scheduler.make_id
        self._inherited = inherited
        self.__name__ = handler.name
        self.__doc__ = handler.function.__doc__
        self.__wrapped__ = handler.function

    def __repr__(self) -> str:
        return f"<Job {self.name}>"

    @property
    def name(self) -> str:
        """The task's name."""
        return self._handler.name

    @property
    def given_id(self) -> str | None:
        """The id given by `using`, None without one."""
        return self._options.id

    @property
    def pool(self) -> str:
        """The pool of the workers that serve the task."""
        return self._options.pool

    @property
    def scheduler(self) -> Client:
        """The scheduler that enqueues the jobs."""
        return self._scheduler

    @property
    def handler(self) -> Handler:
        """The handler of the task."""
        return self._handler

    @property
    def options(self) -> Options:
        """The options of the task's jobs."""
        return self._options

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function itself, here and now, with nothing queued."""
        return self._handler.function(*args, **kwargs)

    def using(
        self,
        *,
        id: str | Unset | None = UNSET,
        key: str | Unset | None = UNSET,
        on_conflict: OnConflict | Unset = UNSET,
        claims: Sequence[Claim | Sequence[str] | tuple[Sequence[str], Mode]] | Unset | None = UNSET,
        delay: float | timedelta | Unset | None = UNSET,
        max_delay: float | timedelta | Unset | None = UNSET,
        run_at: datetime | Unset | None = UNSET,
        user: str | Unset | None = UNSET,
        queue_hint: Sequence[str] | Unset | None = UNSET,
        mode: Mode | Unset = UNSET,
        priority: int | Unset = UNSET,
        pool: str | Unset = UNSET,
        service: str | Unset | None = UNSET,
        tags: Iterable[str] | Unset | None = UNSET,
        headers: Mapping[str, str] | Unset | None = UNSET,
        max_attempts: int | Unset = UNSET,
        max_losses: int | Unset = UNSET,
        backoff: Backoff | Sequence[float | timedelta] | Unset = UNSET,
        retry: Backoff | Sequence[float | timedelta] | Unset = UNSET,
        timeout: float | timedelta | Unset | None = UNSET,
        on_retry: OnRetry | Unset = UNSET,
        on_dead: OnDead | Unset = UNSET,
        on_dependency_failure: OnDependencyFailure | Unset = UNSET,
        max_hold: float | timedelta | Unset = UNSET,
        cost: int | Unset = UNSET,
        start_within: float | timedelta | Unset | None = UNSET,
        retention: float | timedelta | Unset | None = UNSET,
        key_for: float | timedelta | Unset | None = UNSET,
        depends_on: Sequence[str] | Unset | None = UNSET,
        after: Iterable[str | Dependency | Awaited] | Unset | None = UNSET,
        when: When | Unset = UNSET,
        name: str | Unset | None = UNSET,
        check_arguments: bool | Unset = UNSET,
    ) -> Job[P, R]:
        """
        Return this job with other options. The original is unchanged.

        Args:
            id: the job's own id; the same id and content again is the same job.
            key: makes bursts one job: the key names its newest unfinished job.
            on_conflict: what a further job of the key does. While that one was never started, ``"return"`` and
                ``"after"`` are that job and ``"replace"`` gives it the new content; once it was started they make a
                new job, with ``"after"`` one that waits for its end. ``"reject"`` raises while there is one.
            key_for: keep the key from the first start until this long after the end: at most one job of the key runs in
                such a time. A further job of the key is then the one that has it, as it is, with ``"return"``,
                ``"replace"`` and ``"after"``; ``"reject"`` raises.
            claims: several places, in place of all those of the declaration: hints, ``(hint, mode)`` pairs or `Claim`
                values, taken literally (no templates). ``[]`` for no place, None for those of the declaration.
            delay: due this long after the enqueue, a timedelta or seconds, at most 10 years.
            max_delay: with a *key*, ``on_conflict="replace"`` and a *delay*: a replaced job is due this long after its
                first enqueue at the latest, a timedelta or seconds, not less than *delay*.
            run_at: due at this timezone-aware time.
            user: whose it is, taken literally (no template); users take turns.
            queue_hint: the place itself, in place of all those of the declaration, taken literally (no template); None
                for no place.
            after: the jobs it waits for, at most 100 000: handles, nodes, flows (all their jobs that no other job of
                them waits for), ids, names of nodes of the flow it is added to, or `Dependency` values.
            when: what it waits for, except where a `Dependency` says so itself: ``"success"`` for FINISHED, and
                *on_dependency_failure* says what another end does; ``"failure"`` runs on FAILED and is canceled
                otherwise; ``"done"`` runs on any end.
            name: what others in its flow call it; by default the task's name.

        The other options are those of `Scheduler.job`.

        Raises:
            InvalidJobError, InvalidJobTypeError, InvalidHintError: naming the option, its value and the limit.
        """
        options = {name: value for name, value in locals().items() if name != "self" and value is not UNSET}
        changed = self._options.changed(**options)
        if mode is not UNSET and self._placement.has_modes and changed.path is UNSET:
            raise InvalidJobTypeError(MODE_OF_NONE)
        return self._like(changed)

    def within(self, connection: object, *, notify: bool = False) -> Job[P, R]:
        """
        Return this job, enqueued within the transaction of a connection of the application's database.

        ``await save.within(connection).enqueue("doc1")`` writes the call by that connection: the job is there if and
        only if its transaction is committed, in the order of commits, and all of an `enqueue_many` is or none. See
        `Scheduler.within` for connections, for *notify*, and for what is refused.

        Raises:
            InvalidJobError: the store takes no jobs in transactions.
            InvalidJobTypeError: the connection is none of those that are known, or *notify* is no bool.

        .. versionadded:: 1.0.0
        """
        from queuehint.client.transactions.writer import RowWriter

        return self._like(self._options, submitter=RowWriter(self._scheduler, connection, notify=notify))

    def as_child_of(
        self,
        parent: tuple[str, int],
        make_id: Callable[[], str] | None = None,
        headers: tuple[tuple[str, str], ...] = (),
    ) -> Job[P, R]:
        """
        Return this job as the child of a running job.

        Args:
            parent: its id and token.
            make_id: makes the ids of the jobs to which `using` gives none.
            headers: those of the parent, which its children have too.
        """
        return self._like(self._options, parent=parent, make_id=make_id, inherited=headers)

    def _like(
        self,
        options: Options,
        *,
        parent: tuple[str, int] | None = None,
        make_id: Callable[[], str] | None = None,
        inherited: tuple[tuple[str, str], ...] = (),
        submitter: Submitter | None = None,
    ) -> Job[P, R]:
        return Job(
            self._scheduler,
            self._handler,
            self._placement,
            options,
            parent=parent or self._parent,
            make_id=make_id or self._make_id,
            inherited=inherited or self._inherited,
            submitter=submitter or self._submitter,
        )

    def spec(self, *args: P.args, **kwargs: P.kwargs) -> JobSpec:
        """
        Return the spec that `enqueue` would submit, with its own id and without headers of the moment.

        What functions given to `Scheduler.headers_from` say is added by `enqueue`, `enqueue_many` and flows only.

        Raises:
            InvalidJobTypeError: the call does not fit the handler's signature, or an argument not its annotation.
            InvalidHintError, PayloadError: the place or an argument is not valid.
        """
        return self._spec(self._handler.bind(args, kwargs), new_id, of_now=False)

    def spec_of(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> JobSpec:
        """Return the spec that `enqueue` submits, for another submission."""
        check_instance(args, tuple, parameter="args")
        check_instance(kwargs, dict, parameter="kwargs")
        return self._spec(self._handler.bind(args, kwargs), self._make_id)

    def specs_of(self, calls: Iterable[Call[P] | tuple[Any, ...] | dict[str, Any]]) -> list[JobSpec]:
        """Return the specs that `enqueue_many` submits, for another submission."""
        return self._specs(calls)

    def _spec(self, arguments: dict[str, Any], make_id: Callable[[], str], *, of_now: bool = True) -> JobSpec:
        if self._options.depends_on:
            raise InvalidJobError(
                f"{self.name} depends on the tasks {', '.join(map(shown, self._options.depends_on))}: submit it with "
                "Scheduler.run() or in a flow, or give it depends_on=[]"
            )
        return self.build_spec(arguments, make_id, of_now=of_now)

    def build_spec(
        self,
        arguments: dict[str, Any],
        make_id: Callable[[], str] | None = None,
        *,
        flow: InFlow | None = None,
        before: Sequence[Dependency] = (),
        of_now: bool = True,
    ) -> JobSpec:
        """
        Return the spec of one call.

        Args:
            arguments: by parameter name, as `Handler.bind` gives them.
            flow: the flow it is added to.
            before: what it depends on besides what its options and arguments say.
            of_now: add the headers that the scheduler's sources say now.

        Raises:
            InvalidHintError, PayloadError, InvalidJobError, InvalidJobTypeError: as `spec`.
        """
        options = self._options
        extracted: Extracted | None = None
        kinds = (*arguments, *map(type, arguments.values()))
        if kinds not in self._right:
            extracted = self._checked(arguments, kinds)
        claims = options.claims
        if claims is None:
            path = options.path
            if type(path) is tuple:
                claims = (Claim(path, options.mode),)
            else:
                claims = () if path is None else self._placement.claims(arguments, options.mode)
        edges: Iterable[Dependency] = ()
        references = () if extracted is None else extracted.references
        if before or options.after or references:
            edges = dict.fromkeys([*before, *self._edges(references, flow)])
        user = options.user
        if type(user) is UserTemplate:
            user = user.user(arguments)
        headers = options.headers
        if self._inherited or (of_now and self._scheduler.header_sources):
            headers = self._gathered(of_now=of_now)
        pointers: tuple[str, ...] = ()
        codec, plain = self._scheduler.codec, _NO_NAMES
        identity: tuple[str, ...] = ()
        is_plain = True
        if extracted is not None:
            pointers, arguments, plain = extracted.pointers, extracted.arguments, extracted.names
        if type(codec) is JsonCodec:
            payload = self._handler.dumps(codec, arguments, plain)
        else:
            payload, identity = self._handler.dumps_identified(codec, arguments, plain)
            # The options were checked when they were given; a codec of the application's may return anything.
            is_plain = type(payload) is bytes and len(payload) <= PAYLOAD_BYTES_MAX
        return new_spec(
            options.id or (make_id or self._make_id)(),
            self._handler.name,
            claims,
            payload,
            headers,
            options.priority,
            options.pool,
            user,
            options.service,
            options.tags,
            options.key,
            options.on_conflict,
            options.delay_ms,
            options.run_at_ms,
            options.max_delay_ms,
            None,
            tuple(edges),
            pointers or False,
            options.name,
            None,
            None if self._parent is None else self._parent[0],
            None,
            None,
            options.policy,
            identity,
            is_checked=is_plain and not edges and not pointers and type(options.policy.backoff) is Backoff,
        )

    def _checked(self, arguments: dict[str, Any], kinds: tuple[Any, ...]) -> Extracted | None:
        """
        Take the marks out of arguments, and check the others against their annotations. Return None without marks.

        Args:
            kinds: their names and types; known from then on if these alone say that nothing is wrong.
        """
        if self._handler.is_open:
            self._handler.settle(self._scheduler.codec)
        extracted = extract(arguments)
        sure = self._sure
        is_sure = PLAIN.issuperset(kinds[len(arguments) :])
        for name, value in arguments.items():
            if name in sure and type(value) not in sure[name] and name not in extracted.names:
                is_sure = False
                check = self._handler.checks[name]
                if not check.fits(value):
                    refuse_misfit(self._handler.name, name, value, check)
        if is_sure and len(self._right) < RIGHT_MAX:
            self._right.add(kinds)
        return extracted if extracted.names else None

    def _gathered(self, *, of_now: bool) -> tuple[tuple[str, str], ...]:
        """Return the headers of a job: its own win over those of the sources, and these over its parent's."""
        gathered = dict(self._inherited)
        for source in self._scheduler.header_sources if of_now else ():
            gathered |= check_headers(source(self))
        return check_headers(gathered | dict(self._options.headers))

    def _edges(self, references: Iterable[Reference], flow: InFlow | None) -> Iterator[Dependency]:
        when = self._options.when
        for item in self._options.after or ():
            if isinstance(item, str):
                yield Dependency(item, when)
            elif isinstance(item, Dependency):
                yield item
            else:
                yield from item.edges(when, self._scheduler, flow)
        for reference in references:
            name, node = target(reference)
            if not callable(getattr(node, "edges", None)):
                raise InvalidJobTypeError(f"{reference!r} is not of a flow's node, but of {shown(node)}")
            for edge in node.edges("success", self._scheduler, flow):
                yield edge if name in (edge.id, edge.name) else attrs.evolve(edge, name=name)

    def call(self, *args: P.args, **kwargs: P.kwargs) -> Call[P]:
        """
        Return a call for `enqueue_many`. Type checkers check its arguments like arguments of `enqueue`.

        Raises:
            InvalidJobTypeError: the call does not fit the handler's signature.
        """
        return Call(self.name, self._handler.bind(args, kwargs))

    async def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]:
        """
        Enqueue a call of the handler with these arguments.

        In memory it suspends in every tenth call only: who enqueues in a loop need not care for others on the loop, but
        has to suspend itself (``await asyncio.sleep(0)``) to have a worker of this process begin at once.

        Raises:
            InvalidJobTypeError, InvalidHintError, PayloadError: as `spec`.
            InvalidJobError: its task depends on others (`Scheduler.run`), or it waits for what is not submitted.
            DuplicateJobError: the id or the key is taken.
            PathClosedError: the place takes no new jobs.
            UnknownDependencyError, CycleError, TemplateError: it waits for what is not there, or for itself; or a
                template among its arguments names what it does not wait for.
        """
        make_spec = self._spec if self._options.depends_on else self.build_spec
        spec = make_spec(self._handler.bind(args, kwargs), self._make_id)
        return (await self._submitter.submit_checked([spec], parent=self._parent))[0]

    def enqueue_sync(self, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]:
        """Like `enqueue`, for code without a loop."""
        make_spec = self._spec if self._options.depends_on else self.build_spec
        spec = make_spec(self._handler.bind(args, kwargs), self._make_id)
        return self._submitter.submit_checked_sync([spec], parent=self._parent)[0]

    async def enqueue_many(self, calls: Iterable[Call[P] | tuple[Any, ...] | dict[str, Any]]) -> list[JobHandle[R]]:
        """
        Enqueue many calls, in order.

        Args:
            calls: each made by `call`, a tuple of positional or a dict of keyword arguments. Up to 500, with 4 MiB of
                arguments, are one submission, all or nothing; more are several submissions in order (on Redis of 200),
                up to 1 000 000 calls with 1 GiB of arguments. A flow takes effect at once, however many jobs it has.

        Raises:
            InvalidJobTypeError, InvalidHintError, PayloadError: a call is not valid; it is named by its index and
                nothing at all was enqueued.
            DuplicateJobError, PathClosedError: as `enqueue`; or any other error of the store. Submissions before the
                refused one went through: `enqueued_ids` of the error tells how many of the first calls these were.
        """
        return await self._submitter.submit_checked(self._specs(calls), parent=self._parent)

    def enqueue_many_sync(self, calls: Iterable[Call[P] | tuple[Any, ...] | dict[str, Any]]) -> list[JobHandle[R]]:
        """Like `enqueue_many`, for code without a loop."""
        return self._submitter.submit_checked_sync(self._specs(calls), parent=self._parent)

    def _specs(self, calls: Iterable[Call[P] | tuple[Any, ...] | dict[str, Any]]) -> list[JobSpec]:
        specs = []
        size = 0
        bind, make_id = self._handler.bind, self._make_id
        make_spec = self._spec if self._options.depends_on else self.build_spec
        for index, call in enumerate(each_item(calls, parameter="calls", most=JOBS_PER_CALL_MAX)):
            try:
                if isinstance(call, tuple):
                    arguments = bind(call, _NO_WORDS)
                elif isinstance(call, dict):
                    arguments = bind((), call)
                elif isinstance(call, Call):
                    arguments = self._own(call)
                else:
                    kind = type(call).__name__
                    raise InvalidJobTypeError(
                        f"a call must be {self.name}.call(...), a tuple of positional or a dict of keyword arguments, "
                        f"got {kind}"
                    )
                spec = make_spec(arguments, make_id)
            except ValueError as error:
                error.args = (f"calls[{index}]: {error}",)
                raise
            specs.append(spec)
            size += len(spec.arguments)
            check_call_size(size, parameter="calls")
        return specs

    def _own(self, call: Call[P]) -> dict[str, Any]:
        if call.task != self.name:
            raise InvalidJobTypeError(f"a call of {shown(call.task)} is not one of {shown(self.name)}")
        return call.arguments
