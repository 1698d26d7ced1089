"""
``queuehint worker``: one process that claims and runs jobs, or several below a parent that supervises them.

The first SIGTERM or SIGINT lets running jobs end within the grace time and gives back what is left; a second one
gives back at once. Code that does not end then, or not within `abandon_after` of being asked, goes with its process,
which counts as a loss of those jobs and of no others.

A store that cannot be reached never ends a worker: it retries, at most once a second, its health is bad after 15
seconds, and it fences itself as its leases expire. It ends by itself only when the store refuses it from the start, or
when the application's lifespan of workers raises.

With ``--reload`` a parent supervises even a single process: see `queuehint.cli.reload`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import sys
import threading
import time
import traceback
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn

import attrs
import typer

from queuehint.cli.health import AGE_MAX_S, Health
from queuehint.cli.leader import Lead, LeaderProcess, leader_for, tell
from queuehint.cli.loading import TargetError, check_shared, load_scheduler
from queuehint.cli.logs import LogFormat, LogLevel, set_up
from queuehint.cli.processes import AT_ONCE_S, EXIT_USAGE, PAUSE_MAX_S, PAUSE_MIN_S, Processes
from queuehint.cli.reload import EXIT_RELOAD, SourceWatch, check_installed
from queuehint.cli.said import said
from queuehint.cli.signals import STOP_SIGNALS, SignalWatch, forget_signals, heard
from queuehint.cli.stores import as_journal, as_redis
from queuehint.clock import now_s
from queuehint.errors import BackendError, MissingExtraError, QueueHintError
from queuehint.handlers.forks import leaving_to_no_child
from queuehint.operations import ANYONE
from queuehint.worker.leases.helper import RenewerProcess
from queuehint.worker.worker import ABANDON_AFTER_S, GRACE_S, Worker

if TYPE_CHECKING:
    from queuehint.backends.base import Backend
    from queuehint.scheduler.scheduler import Scheduler

logger = logging.getLogger("queuehint.cli")

EXIT_STORE = EXIT_LIFESPAN = 1
EXIT_ABANDONED = 3
EXIT_AFTER_S = 3.0
"""How long a process that ends at once may take to tidy up."""
_CLOCKS_APART_S = time.time() - now_s()


@attrs.frozen(kw_only=True)
class Options:
    """Options of the command line."""

    target: str
    concurrency: int
    pools: list[str] | None
    users: list[str] | None
    steal: list[str] | Literal["*"]
    lease: float | None
    grace: float
    abandon_after: float
    health_file: Path | None
    health_port: int | None
    health_host: str
    log_format: LogFormat | None
    log_level: LogLevel | None
    processes: int = 1
    version_name: str | None = None
    lead: Lead = Lead.PROCESS
    reload: bool = False
    is_child: bool = False
    leader_pipe: int | None = None
    """Over which the parent is told how its process is to lead."""

    def for_child(self, health_file: Path | None) -> list[str]:
        """Return the arguments of a child process that does the work of this process."""
        arguments = ["worker", self.target, "--child", f"--concurrency={self.concurrency}"]
        arguments.append(f"--processes={self.processes}")
        arguments += [f"--grace={self.grace}", f"--abandon-after={self.abandon_after}"]
        if self.log_format is not None:
            arguments.append(f"--log-format={self.log_format}")
        if self.log_level is not None:
            arguments.append(f"--log-level={self.log_level}")
        if self.pools is not None:
            arguments.append(f"--pools={_listed(self.pools)}")
        if self.users is not None:
            arguments.append(f"--users={_listed(self.users)}")
        if self.steal:
            arguments.append(f"--steal={self.steal if self.steal == ANYONE else _listed(self.steal)}")
        if self.lease is not None:
            arguments.append(f"--lease={self.lease}")
        if self.version_name is not None:
            arguments.append(f"--version-name={self.version_name}")
        if health_file is not None:
            arguments.append(f"--health-file={health_file}")
        if self.reload:
            arguments.append("--reload")
        arguments.append(f"--lead={self.lead}")
        return arguments


def worker(
    target: Annotated[
        str, typer.Argument(metavar="MODULE:SCHEDULER", envvar="QUEUEHINT_SCHEDULER", help="Such as myapp.jobs:sched.")
    ],
    concurrency: Annotated[
        int,
        typer.Option("--concurrency", "-c", envvar="QUEUEHINT_CONCURRENCY", min=1, max=1000, help="Jobs at once."),
    ] = 16,
    processes: Annotated[
        int,
        typer.Option("--processes", "-p", envvar="QUEUEHINT_PROCESSES", min=1, max=256, help="Processes like this."),
    ] = 1,
    pools: Annotated[
        str | None,
        typer.Option(envvar="QUEUEHINT_POOLS", metavar="A,B", help="Pools to serve; by default those of the jobs."),
    ] = None,
    users: Annotated[
        str | None,
        typer.Option(envvar="QUEUEHINT_USERS", metavar="A,B", help="Run jobs of these users; by default everyone's."),
    ] = None,
    steal: Annotated[
        str | None,
        typer.Option(envvar="QUEUEHINT_STEAL", metavar="C,D", help="Whom to help while these have nothing; * anyone."),
    ] = None,
    lease: Annotated[
        float | None,
        typer.Option(envvar="QUEUEHINT_LEASE", metavar="SECONDS", help="Lease; by default the scheduler's."),
    ] = None,
    grace: Annotated[
        float,
        typer.Option(envvar="QUEUEHINT_GRACE", metavar="SECONDS", min=0, help="For running jobs, after a signal."),
    ] = GRACE_S,
    abandon_after: Annotated[
        float,
        typer.Option(
            envvar="QUEUEHINT_ABANDON_AFTER",
            metavar="SECONDS",
            min=0,
            help="End the process this long after code was asked to stop and did not.",
        ),
    ] = ABANDON_AFTER_S,
    version_name: Annotated[
        str | None,
        typer.Option(
            envvar="QUEUEHINT_VERSION_NAME", metavar="NAME", help="Of your release; shown by the workers command."
        ),
    ] = None,
    health_file: Annotated[
        Path | None,
        typer.Option(envvar="QUEUEHINT_HEALTH_FILE", help="Rewritten while the store answers, removed at the end."),
    ] = None,
    health_port: Annotated[
        int | None,
        typer.Option(envvar="QUEUEHINT_HEALTH_PORT", min=1, max=65535, help="Answers GET with 200 or 503."),
    ] = None,
    health_host: Annotated[
        str, typer.Option(envvar="QUEUEHINT_HEALTH_HOST", help="Where to listen for that.")
    ] = "127.0.0.1",
    lead: Annotated[
        Lead,
        typer.Option(
            envvar="QUEUEHINT_LEAD",
            help="On a file or PostgreSQL: lead in a process of its own, or inside the one that runs jobs.",
        ),
    ] = Lead.PROCESS,
    reload: Annotated[
        bool,
        typer.Option(
            "--reload", envvar="QUEUEHINT_RELOAD", help="Start anew when source files change; for development."
        ),
    ] = False,
    log_format: Annotated[
        LogFormat | None,
        typer.Option(envvar="QUEUEHINT_LOG_FORMAT", help="Default: the application's logging, else text."),
    ] = None,
    log_level: Annotated[
        LogLevel | None,
        typer.Option(
            envvar="QUEUEHINT_LOG_LEVEL", case_sensitive=False, help="Default: the application's logging, else info."
        ),
    ] = None,
    child: Annotated[bool, typer.Option("--child", hidden=True)] = False,
    leader_pipe: Annotated[int | None, typer.Option(hidden=True)] = None,
) -> None:
    """Claim and run the jobs of a scheduler until a signal says stop."""
    options = Options(
        target=target,
        concurrency=concurrency,
        pools=_names(pools),
        users=_names(users),
        steal=ANYONE if steal == ANYONE else _names(steal) or [],
        lease=lease,
        grace=grace,
        abandon_after=abandon_after,
        health_file=health_file,
        health_port=None if child else health_port,  # in the environment it is meant for the parent
        health_host=health_host,
        log_format=log_format,
        log_level=log_level,
        processes=processes,
        version_name=version_name,
        lead=lead,
        reload=reload,
        is_child=child,
        leader_pipe=leader_pipe,
    )
    if reload:
        try:
            check_installed()
        except MissingExtraError as error:
            typer.echo(f"queuehint worker: {error}", err=True)
            raise typer.Exit(EXIT_USAGE) from None
    if child or (processes == 1 and not reload):
        raise typer.Exit(_run(options))
    set_up(log_format, log_level)
    raise typer.Exit(_run_processes(options, processes))


def _names(text: str | None) -> list[str] | None:
    """Return the names of a list. A comma or backslash in a name is escaped by a backslash."""
    if text is None:
        return None
    names = re.findall(r"(?:[^,\\]|\\.|\\$)+", text, re.DOTALL)
    return [re.sub(r"\\([,\\])", r"\1", name) for name in names]


def _listed(names: Iterable[str]) -> str:
    """Return a list in the form of `_names`."""
    return ",".join([name.replace("\\", "\\\\").replace(",", "\\,") for name in names])


class _EndOfProcess:
    """Ends this process despite running code, without cleanup that waits for the code."""

    def __init__(self) -> None:
        self.health: Health | None = None

    def __call__(self, _job_ids: list[str]) -> NoReturn:
        # Even a lock of a log or a file that another thread holds must not keep this process alive.
        timer = threading.Timer(EXIT_AFTER_S, os._exit, [EXIT_ABANDONED])
        timer.daemon = True
        timer.start()
        with contextlib.suppress(Exception):
            if self.health is not None:
                self.health.end()
            logging.shutdown()
        os._exit(EXIT_ABANDONED)


def _run(options: Options) -> int:
    end_process = _EndOfProcess()
    watch = SourceWatch() if options.reload else None
    try:
        try:
            scheduler = load_scheduler(options.target)
        except Exception as error:
            if watch is None or not watch.take(error):
                raise
            set_up(options.log_format, options.log_level)
            return _wait_for_repair(error, watch)
        set_up(options.log_format, options.log_level, options.target.partition(":")[0].partition(".")[0])
        check_shared(scheduler)
        leader = _make_leader(scheduler, options)
        renewer = _make_renewer(scheduler, options)
        made = _make_worker(scheduler, options, end_process, renewer)
        health = end_process.health = Health(
            lambda: _known(made, scheduler.backend),
            file=options.health_file,
            port=options.health_port,
            host=options.health_host,
        )
        health.start()
        if leader is not None:
            leader.start()
    except (TargetError, QueueHintError, OSError) as error:
        typer.echo(f"queuehint worker: {said(str(error))}", err=True)
        return EXIT_USAGE
    try:
        with contextlib.ExitStack() as stack:
            companions = [each.leave_to_parent for each in (renewer, leader) if each is not None]
            for call in (forget_signals, health.leave_to_parent, *companions):
                stack.enter_context(leaving_to_no_child(call))
            asyncio.run(_serve(scheduler, made, options, watch))
    except BackendError as error:
        extra = {"event": "worker.failed", "error": str(error)}
        logger.error("the store cannot be used: %s", error, extra=extra)  # noqa: TRY400 - the reason is in the text
        return EXIT_STORE
    except Exception:
        if not made.has_broken_lifespan:
            raise
        return EXIT_LIFESPAN
    finally:
        if leader is not None:
            leader.end()
        health.end()
    # It got no order to stop, so it has to be started again, although its code has ended after all.
    if made.gave_up:
        return EXIT_ABANDONED
    return EXIT_RELOAD if watch is not None and watch.changed is not None else 0


def _wait_for_repair(error: Exception, watch: SourceWatch) -> int:
    """Wait until a source file of an application that cannot be imported has changed, or the parent says stop."""
    if isinstance(error, TargetError):
        typer.echo(f"queuehint worker: {said(str(error))}", err=True)
    else:
        traceback.print_exception(error)
    logger.error(
        "the application cannot be imported; waiting for a change of its source files",
        extra={"event": "worker.import_failed", "error": type(error).__name__},
    )
    told = threading.Event()

    def listen() -> None:
        sys.stdin.readline()
        told.set()

    threading.Thread(target=listen, name="queuehint-parent", daemon=True).start()
    return EXIT_RELOAD if watch.wait(told) else 0


def _make_leader(scheduler: Scheduler, options: Options) -> LeaderProcess | None:
    """Return the process that leads for this process, unless its parent has it."""
    config = None
    if options.lead is Lead.PROCESS:
        config = leader_for(scheduler, options.log_format, options.log_level)
    if options.leader_pipe is not None:
        tell(options.leader_pipe, config)
    if config is None:
        return None
    journal = as_journal(scheduler.backend)
    assert journal is not None
    journal.leaves_lead = True
    return LeaderProcess(config) if options.leader_pipe is None else None


def _make_renewer(scheduler: Scheduler, options: Options) -> RenewerProcess | None:
    # Elsewhere a pipe cannot be waited for: a thread renews. A store that keeps them renews by itself.
    if os.name != "posix" or scheduler.backend.keeps_leases:
        return None
    journal = as_journal(scheduler.backend)
    leaves_lead = journal is not None and journal.leaves_lead
    return RenewerProcess(
        scheduler.url, scheduler.namespace, abandon_after_s=options.abandon_after, leaves_lead=leaves_lead
    )


def _make_worker(
    scheduler: Scheduler, options: Options, end_process: _EndOfProcess, renewer: RenewerProcess | None
) -> Worker:
    made = scheduler.make_worker(
        options.concurrency,
        pools=options.pools,
        users=options.users,
        steal=options.steal,
        grace=options.grace,
        lease=options.lease,
        abandon_after=options.abandon_after,
        give_up=end_process,
        helper=renewer,
        version=options.version_name,
    )
    if renewer is not None:
        renewer.worker_name = made.name
    return made


async def _serve(scheduler: Scheduler, made: Worker, options: Options, watch: SourceWatch | None) -> None:
    loop = asyncio.get_running_loop()
    stops = _Stops(made)
    with contextlib.ExitStack() as stack:
        for number in STOP_SIGNALS:
            stack.enter_context(heard(loop, number, stops.signal))
        stack.callback(SignalWatch(loop).end)
        if options.is_child:
            threading.Thread(target=_obey, args=(loop, stops), name="queuehint-parent", daemon=True).start()
        if watch is not None:
            watch.start(lambda file: _reload(file, loop, stops))
            stack.callback(watch.end)
        stack.enter_context(scheduler.hosts(made))
        try:
            async with scheduler.listening():
                await made.run()
        finally:
            await made.join_helper()
            await scheduler.close()


class _Stops:
    """The effect of each further stop request."""

    def __init__(self, made: Worker) -> None:
        self._worker = made
        self._signals = 0

    def signal(self) -> None:
        """Stop. The second signal stops at once."""
        self._signals += 1
        if self._signals == 1:
            self._worker.stop()
        else:
            self._worker.abandon()

    def stop(self) -> None:
        """Stop. Idempotent."""
        self._worker.stop()

    def at_once(self) -> None:
        """Stop at once."""
        self._worker.abandon()


def _obey(loop: asyncio.AbstractEventLoop, stops: _Stops) -> None:
    """Carry out commands of the parent process. Its end is a stop request."""
    with contextlib.suppress(RuntimeError, OSError, ValueError):  # the loop is closed: there is nothing to stop
        for line in sys.stdin:
            loop.call_soon_threadsafe(stops.at_once if line.strip() == "now" else stops.stop)
        loop.call_soon_threadsafe(stops.stop)


def _reload(file: str, loop: asyncio.AbstractEventLoop, stops: _Stops) -> None:
    """Stop, so that the process is started again with a changed source file."""
    logger.info("a source file has changed", extra={"event": "worker.reload", "file": file})
    with contextlib.suppress(RuntimeError):  # the loop is closed: it has stopped
        loop.call_soon_threadsafe(stops.stop)


def _known(made: Worker, backend: Backend) -> dict[str, Any]:
    """Return the health report."""
    answered_s = made.answered_s
    age_s = now_s() - answered_s if answered_s else None
    redis, journal = as_redis(backend), as_journal(backend)
    return {
        "healthy": age_s is not None and age_s <= AGE_MAX_S and not made.is_stuck,
        "pid": os.getpid(),
        "worker": made.name,
        "last_round_trip": None if age_s is None else round(_CLOCKS_APART_S + answered_s, 3),
        "running": made.running,
        "stopping": made.is_stopping,
        "blocked_s": round(made.blocked_s, 1),
        "clock_behind_s": redis.session.clock_behind_ms / 1000 if redis is not None else 0.0,
        **(journal.lead_facts() if journal is not None else {}),
    }


def _run_processes(options: Options, count: int) -> int:
    return Processes(
        options.for_child,
        count,
        stop_within_s=options.grace + options.abandon_after + AT_ONCE_S,
        health_file=options.health_file,
        health_port=options.health_port,
        health_host=options.health_host,
        pause_max_s=PAUSE_MIN_S if options.reload else PAUSE_MAX_S,
        leads=options.lead is Lead.PROCESS,
    ).run()
