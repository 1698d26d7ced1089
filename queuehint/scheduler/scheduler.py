"""`Scheduler`: registers handlers, enqueues jobs, runs workers, answers queries."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Concatenate, Literal, Never, ParamSpec, TypeVar, overload

from queuehint.client.flows.flow import Flow, flow_of_tasks, submitting, submitting_sync
from queuehint.client.flows.handle import FlowHandle
from queuehint.client.handle import JobHandle
from queuehint.client.job import Job
from queuehint.client.options import TASK_OPTIONS, Options, checked, meant_option
from queuehint.clock import Clock
from queuehint.errors import HandlerError, InvalidJobTypeError, PayloadError, shown, shows_itself
from queuehint.handlers.context import Answer, JobContext
from queuehint.handlers.error_rules import ErrorRules
from queuehint.handlers.handler import Handler
from queuehint.handlers.placement import ClaimTemplates, HintTemplate, parse_user, placement_of
from queuehint.scheduler.dead_jobs import DeadLetters
from queuehint.scheduler.draining import Draining
from queuehint.scheduler.holds.holding import Holding
from queuehint.scheduler.operating import Control
from queuehint.scheduler.records.store import RecordStore
from queuehint.scheduler.schedules import Schedules, Scheduling
from queuehint.scheduler.xcom import XCom
from queuehint.schema.checks import (
    check_bool,
    check_callable,
    check_id,
    check_items,
    check_name,
)
from queuehint.values.hint import Mode
from queuehint.values.policy import Backoff, OnDead, OnDependencyFailure, OnRetry, Retention
from queuehint.values.spec import JobSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
    from datetime import timedelta

    from queuehint.client.transactions.transaction import Transaction
    from queuehint.handlers.codec import Codec
    from queuehint.handlers.handler import Upgrade

P = ParamSpec("P")
R = TypeVar("R")
ALIASES_MAX = 100
"""How many earlier names a task may have."""


class _Decorator:
    """Decorator that ``@sched.job(...)`` returns."""

    def __init__(self, register: Callable[[Callable[..., Any]], Job[..., Any]]) -> None:
        self._register = register

    @overload
    def __call__(
        self, function: Callable[Concatenate[JobContext[Never], P], Coroutine[Any, Any, Answer]]
    ) -> Job[P, Any]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[JobContext[Never], P], Coroutine[Any, Any, R | Answer]]
    ) -> Job[P, R]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[JobContext[Never], P], Answer]) -> Job[P, Any]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[JobContext[Never], P], R | Answer]) -> Job[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, Answer]]) -> Job[P, Any]: ...
    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R | Answer]]) -> Job[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, Answer]) -> Job[P, Any]: ...
    @overload
    def __call__(self, function: Callable[P, R | Answer]) -> Job[P, R]: ...
    def __call__(self, function: Callable[..., Any]) -> Job[..., Any]:
        """Register the function and return its job."""
        return self._register(function)


@shows_itself
class Scheduler(Control, Draining, Holding, Scheduling):
    """
    One per application. Safe to create at import, connects on first use.

    Args:
        url: the store; by default the environment's ``QUEUEHINT_URL``, else ``memory://``.
        namespace: jobs of different namespaces never meet; ``[A-Za-z0-9_.-]{1,64}``. What the URL says goes before it.
        ids: ``"time"`` makes unique ids in order of time, ``"sequence"`` draws 1, 2, 3.
        lease: of grants, 1 s to 24 h; a worker that does not renew loses its jobs when it ends.
        retention: how long records are kept once a job is over; a `Retention`. The store keeps it for all processes of
            the namespace: the newest that says so counts, and a scheduler without one takes the store's.
        codec: how arguments and results travel; JSON through cattrs.
        check_arguments: whether arguments are checked against plain annotations where a job is enqueued: str, int,
            float, bool, None, Literal, and list, tuple, dict and unions of these; see `job` for one task alone.
        redact: applied to the text of errors before it is stored or logged.
        log_errors: whether workers log the messages and tracebacks of handlers' exceptions; False leaves their types.
        patience: how long a store that does not answer is tried before a call fails, a timedelta or seconds, 0.1 s to
            24 h; by default 10 s on Redis. What the URL says (``?patience=2``) goes before it.
        clock: for tests.

    Raises:
        InvalidJobError, InvalidJobTypeError: naming the parameter, the value and the limit.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        namespace: str = "default",
        ids: Literal["time", "sequence"] = "time",
        lease: float | timedelta = 30,
        retention: Retention | None = None,
        codec: Codec | None = None,
        check_arguments: bool = True,
        redact: Callable[[str], str] | None = None,
        log_errors: bool = True,
        patience: float | timedelta | None = None,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(
            url,
            namespace,
            ids,
            lease,
            retention,
            codec,
            check_arguments,
            redact,
            clock,
            log_errors=log_errors,
            patience=patience,
        )
        self.dead = DeadLetters(self)
        """The dead-letter queue: FAILED jobs, to list, redrive and discard."""
        self.records = RecordStore(self)
        """The records of all jobs: look up, page, count, write to, export, delete."""
        self.schedules = Schedules(self, self._definitions)
        """The schedules: list, pause, resume, remove, run now; store those the code defines."""
        self.xcom = XCom(self)
        """A small store that jobs share: values by key, for a time."""

    # --- handlers ------------------------------------------------------------------------------------------------

    @overload
    def job(
        self, function: Callable[Concatenate[JobContext[Never], P], Coroutine[Any, Any, Answer]], /
    ) -> Job[P, Any]: ...
    @overload
    def job(
        self, function: Callable[Concatenate[JobContext[Never], P], Coroutine[Any, Any, R | Answer]], /
    ) -> Job[P, R]: ...
    @overload
    def job(self, function: Callable[Concatenate[JobContext[Never], P], Answer], /) -> Job[P, Any]: ...
    @overload
    def job(self, function: Callable[Concatenate[JobContext[Never], P], R | Answer], /) -> Job[P, R]: ...
    @overload
    def job(self, function: Callable[P, Coroutine[Any, Any, Answer]], /) -> Job[P, Any]: ...
    @overload
    def job(self, function: Callable[P, Coroutine[Any, Any, R | Answer]], /) -> Job[P, R]: ...
    @overload
    def job(self, function: Callable[P, Answer], /) -> Job[P, Any]: ...
    @overload
    def job(self, function: Callable[P, R | Answer], /) -> Job[P, R]: ...
    @overload
    def job(
        self,
        hint: Sequence[str] | None = None,
        /,
        *,
        queue_hint: HintTemplate = None,
        claims: ClaimTemplates = None,
        name: str | None = None,
        max_attempts: int = 5,
        max_losses: int = 3,
        backoff: Backoff | Sequence[float | timedelta] | None = None,
        retry: Backoff | Sequence[float | timedelta] | None = None,
        fail_on: type[Exception] | Sequence[type[Exception]] = (),
        retry_on: type[Exception] | Sequence[type[Exception]] | None = None,
        timeout: float | timedelta | None = None,
        priority: int = 3,
        pool: str = "default",
        service: str | None = None,
        tags: Iterable[str] | None = None,
        headers: Mapping[str, str] | None = None,
        user: str | None = None,
        mode: Mode = "exclusive",
        on_retry: OnRetry = "hold",
        on_dead: OnDead = "continue",
        on_dependency_failure: OnDependencyFailure = "wait",
        max_hold: float | timedelta = 300,
        cost: int = 1,
        start_within: float | timedelta | None = None,
        retention: float | timedelta | None = None,
        key_for: float | timedelta | None = None,
        depends_on: Sequence[str] | None = None,
        check_arguments: bool = True,
        aliases: Sequence[str] = (),
        upgrade: Upgrade | None = None,
        process: bool = False,
    ) -> _Decorator: ...
    def job(self, function_or_hint: Any = None, /, *, queue_hint: Any = None, **options: Any) -> Any:
        """
        Make a job of a function: ``@sched.job`` or ``@sched.job(queue_hint=[...], ...)``.

        Args:
            queue_hint: where its jobs go: a template such as ``["{doc_id}", "{section}"]``, filled from the call's
                arguments and checked against the signature now; a callable that gets the arguments by name; None
                for no place.
            claims: several places, in place of *queue_hint*: up to 64 such templates, or pairs of one and its mode:
                ``[["folders", "{source}"], (["docs", "{doc}"], "shared")]``, or `Claim` values; or a callable that gets
                the arguments by name and returns such places without templates, or None. `Job.using` replaces them all.
            name: the task's name; by default the function's own. Unique in a scheduler: the same function again
                (by qualified name) replaces it, another one is refused.
            max_attempts: counted attempts before it is FAILED, 1–1 000.
            max_losses: workers it may lose before it is FAILED ``worker_lost``.
            backoff: the wait between attempts: a `Backoff`, or a list of waits, as timedeltas or seconds, of which the
                last one goes on; *retry* is another name for it.
            fail_on: exceptions after which the job is FAILED at once, a class or several.
            retry_on: exceptions after which it is tried again; after all others it is FAILED at once. A class counts
                for those derived from it; where both lists have one, the class nearer to the exception's own decides.
                A timeout is a `TimeoutError`.
            timeout: how long the handler may run, a timedelta or seconds.
            priority: 1–5 (most urgent) or `Priority.CRITICAL`; orders ready jobs only.
            pool: which workers serve it.
            service: the part of the application that it belongs to, such as ``"exports"``: a label to list, count and
                pause by. Its record is kept as any other, unless `Retention` names the service.
            tags: words that its records are found by, at most 8 of 64 bytes.
            headers: what travels with its jobs and their children, names and values: at most 4 KiB.
            user: whose it is: a name, or a template such as ``"{author}"`` filled from the call's arguments; None, also
                as the only argument in it, for nobody. Users take turns.
            mode: of *queue_hint*: ``"exclusive"``, or ``"shared"`` for jobs that may run beside others at its place.
            on_retry: ``"hold"`` keeps the place during a back-off, ``"yield"`` gives it up.
            on_dead: what a job that is FAILED for good does with its place: ``"continue"`` frees it, ``"hold"`` keeps
                it, ``"cancel_behind"`` cancels the jobs behind it.
            on_dependency_failure: when a dependency fails, ``"wait"`` for its redrive, ``"cancel"``, or ``"run"``.
            max_hold: the longest back-off that keeps the place, a timedelta or seconds, as for the next two.
            cost: how many slots, and starts of a rate, of its limits it takes, 1–1 000.
            start_within: CANCELED unless it was started this long after it was enqueued, or due.
            retention: how long its record is kept once it is over; by default as the scheduler says.
            key_for: how long after its end a job with a *key* keeps it, a timedelta or seconds, see `Job.using`.
            depends_on: names of the tasks that have to be FINISHED before it; such a task is submitted by `run`, or in
                a flow after nodes of those tasks.
            check_arguments: whether the arguments of its calls are checked against plain annotations; by default as
                the scheduler says.
            aliases: earlier names of the task, up to 100: workers run jobs of these too.
            upgrade: called by workers with the arguments of a job that do not fit the signature, a dictionary of what
                their JSON says; returns one of those that do. With a second parameter, the names of stored steps, each
                as itself, it is called for each attempt of a job that has some too, and may put others in their places.
            process: run it in a process of the worker's own, which a timeout or a cancellation ends if need be: a plain
                function at the top of a module. Not in `queuehint.testing.simulate`, where it runs like any other.

        Raises:
            HandlerError: a name is taken by another function, the template does not fit the signature, or no process
                can import the function.
            InvalidJobError, InvalidJobTypeError, InvalidHintError: an option is not valid.
        """
        if getattr(function_or_hint, "__name__", None) == "<lambda>" and "name" not in options:
            raise HandlerError(
                "job() got a lambda, which is a task without a name; "
                "write queue_hint=lambda ... for the places of another task, or give it a name="
            )
        if callable(function_or_hint):
            return self._register(function_or_hint, queue_hint, options)
        if function_or_hint is not None:
            queue_hint = function_or_hint
        return _Decorator(lambda function: self._register(function, queue_hint, options))

    def _register(self, function: Callable[..., Any], queue_hint: Any, options: dict[str, Any]) -> Job[..., Any]:
        options = dict(options)
        name = options.pop("name", None)
        user = options.pop("user", None)
        claims = options.pop("claims", None)
        rules = ErrorRules(options.pop("fail_on", ()), options.pop("retry_on", None))
        aliases = check_items(options.pop("aliases", ()), parameter="aliases", most=ALIASES_MAX)
        aliases = [check_name(alias, parameter="aliases") for alias in aliases]
        upgrade = options.pop("upgrade", None)
        upgrade = None if upgrade is None else check_callable(upgrade, parameter="upgrade")
        name = check_name(name if name is not None else getattr(function, "__name__", None), parameter="name")
        process = check_bool(options.pop("process", False), parameter="process")
        if "executor" in options:
            raise InvalidJobTypeError(
                "job() has no option 'executor': it is one of workers (Scheduler.make_worker), for plain functions "
                "without process=True"
            )
        unknown = [option for option in options if option not in TASK_OPTIONS]
        if unknown:
            raise InvalidJobTypeError(f"job() has no option {shown(unknown[0])}{meant_option(unknown[0])}")
        handler = Handler(name, function, rules, upgrade, process=process)
        try:
            handler.check_annotations(self.codec, is_declared_now=True)
        except PayloadError as error:
            what = error.path.removeprefix("$.")
            raise HandlerError(f"{name}(): {what} must have an annotation that travels: {error.problem}") from None
        placement = placement_of(handler, queue_hint=queue_hint, claims=claims, has_mode="mode" in options)
        for taken in (name, *aliases):
            existing = self._handlers.get(taken)
            if existing is not None and _identity(existing.function) != _identity(function):
                raise HandlerError(
                    f"task {taken!r} is {_identity(existing.function)} and cannot be {_identity(function)} too; "
                    "give one another name="
                )
        basic = Options(user=parse_user(user, handler), check_arguments=self._check_arguments)
        job: Job[..., Any] = Job(self, handler, placement, basic.changed(**options))
        self._handlers.update(dict.fromkeys((name, *aliases), handler))
        self._jobs[name] = job
        return job

    def before_job(self, hook: Callable[[JobContext], Any]) -> Callable[[JobContext], Any]:
        """Call *hook*, plain or async, with the context before each handler. If the hook raises, the attempt fails."""
        self._before.append(check_callable(hook, parameter="hook"))
        return hook

    def after_job(self, hook: Callable[..., Any]) -> Callable[..., Any]:
        """Call *hook*, plain or async, with context and outcome after each handler. Its exceptions are logged."""
        self._after.append(check_callable(hook, parameter="hook"))
        return hook

    def headers_from(self, source: Callable[[Job[..., Any]], Mapping[str, str] | None]) -> Callable[..., Any]:
        """
        Call *source* with each `Job` that this scheduler enqueues from now on.

        Its return value adds headers to the job.

        So a job carries what belongs to the request that enqueues it: a request id, a trace. A header of this name in
        the job's own ``headers=`` goes before it, and it goes before what a child has from its parent.

        .. versionadded:: 1.0.0
        """
        self.header_sources.append(check_callable(source, parameter="source"))
        return source

    # --- producers -----------------------------------------------------------------------------------------------

    async def submit(self, specs: Iterable[JobSpec]) -> list[JobHandle[Any]]:
        """
        Enqueue jobs by their specs, in order. The layer below `Job.enqueue`, for tools and other languages.

        Args:
            specs: up to 500 jobs with 4 MiB of arguments, 6 000 gates and 4 000 edges are one submission, all or
                nothing; more are several, in order, up to 1 000 000 jobs with 1 GiB of arguments. Specs of which one
                depends on another, by name or id and in any order, take effect all at once, up to 100 000 of them.

        Returns:
            Their handles, in the order of the specs.

        Raises:
            InvalidJobError, InvalidJobTypeError, InvalidHintError, PayloadError, CycleError, TemplateError: a spec is
                not valid, or two do not fit together; nothing was enqueued.
            DuplicateJobError, PathClosedError, UnknownDependencyError: refused; submissions before the refused one
                went through, unless all were to take effect at once.
        """
        return await self.submit_checked(checked(specs, may_lack_id=self.ids == "sequence"))

    def submit_sync(self, specs: Iterable[JobSpec]) -> list[JobHandle[Any]]:
        """Like `submit`, for code without a loop."""
        return self.submit_checked_sync(checked(specs, may_lack_id=self.ids == "sequence"))

    def within(self, connection: object, *, notify: bool = False) -> Transaction:
        """
        Return this scheduler within the transaction of a connection of the application's database.

        ``await sched.within(connection).submit(specs)``, and of a single task ``save.within(connection).enqueue(…)``,
        write jobs by that connection: they are there if and only if its transaction is committed, a savepoint that is
        rolled back takes its own with it, and jobs of one place run in the order of commits. A call of this scheduler
        that begins after the commit comes behind them. The call itself checks all that the store need not be asked for,
        so that bad input fails the transaction.

        Args:
            connection: of SQLAlchemy 2 (`Connection`, `Session`, `AsyncConnection`, `AsyncSession`), psycopg 3
                (`Connection`, `AsyncConnection`), asyncpg, Django (`django.db.connection`, or one of ``connections``),
                `sqlite3` or aiosqlite, to the database in which this scheduler keeps its jobs. One that commits each
                statement by itself is refused when it is used.
            notify: the statements that write jobs also notify the leader, by PostgreSQL's NOTIFY, so that it finds them
                at once after the commit, whichever process commits. Commits that notify wait for one another, on the
                whole server. On a file this changes nothing.

        Raises:
            InvalidJobError: the jobs are not kept in PostgreSQL, or in a file with ``shared=yes``; or the connection
                leads to the other kind.
            InvalidJobTypeError: the connection is none of these, or *notify* is no bool.

        .. versionadded:: 1.0.0
        """
        from queuehint.client.transactions.transaction import Transaction

        return Transaction(self, connection, notify=notify)

    # --- flows ---------------------------------------------------------------------------------------------------

    def flow(
        self, id: str | None = None, *, timeout: float | timedelta | None = None
    ) -> contextlib.AbstractAsyncContextManager[Flow]:
        """
        Build a flow, several jobs with edges: ``async with sched.flow() as flow: flow.add(job, ...)``.

        Leaving the block submits it, all or nothing (see `Flow.submit`); an exception inside submits nothing. After the
        block ``flow`` is the flow's handle.

        Args:
            id: the flow's id, 1–128 bytes; made if none is given.
            timeout: what is unfinished of the flow this long after it was submitted is canceled with the cause
                ``flow_timeout``, as `FlowHandle.cancel` does it, by the store itself: also when this process is gone.
                A timedelta or seconds, 1 ms to 10 years; None for no timeout. A flow that was submitted before keeps
                the one it has.
        """
        return submitting(Flow(self, id, timeout))

    def flow_sync(
        self, id: str | None = None, *, timeout: float | timedelta | None = None
    ) -> contextlib.AbstractContextManager[Flow]:
        """Like `flow`, a plain context manager."""
        return submitting_sync(Flow(self, id, timeout))

    def get_flow(self, id: str) -> FlowHandle:
        """Return a handle of any flow by its id, without a check that the flow exists."""
        return FlowHandle(self, check_id(id, parameter="flow"))

    async def run(self, /, *targets: Job[..., Any], **arguments: Any) -> FlowHandle:
        """
        Submit tasks and all tasks they depend on (``@sched.job(depends_on=["extract"])``) as a flow, one job each.

        Args:
            targets: jobs, also those made by `Job.using`.
            arguments: by parameter name; each task gets those that its signature names. A parameter that has the name
                of a task its own depends on gets that one's result, unless it is given.

        Raises:
            InvalidJobTypeError: a task lacks an argument, or no task takes one.
            UnknownDependencyError: a task depends on one that is not registered here.
            CycleError: tasks depend on each other in a cycle.
        """
        flow = flow_of_tasks(self, self._jobs, targets, arguments)
        await flow.submit()
        return flow

    def run_sync(self, /, *targets: Job[..., Any], **arguments: Any) -> FlowHandle:
        """Like `run`, for code without a loop."""
        flow = flow_of_tasks(self, self._jobs, targets, arguments)
        flow.submit_sync()
        return flow

    # --- life ----------------------------------------------------------------------------------------------------


def _identity(function: Callable[..., Any]) -> str:
    return f"{getattr(function, '__module__', '?')}.{getattr(function, '__qualname__', type(function).__qualname__)}"
