"""``queuehint cancel, retry, run-now, close, reopen, drain``: commands of an operator."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal

import typer
from rich.text import Text

from queuehint.backends.steps import order_some, run_steps_sync
from queuehint.cli.enqueue import read_arguments
from queuehint.cli.filters import All, Choose, Flow, check_choice, check_flow, choosing, of_flow, states_of
from queuehint.cli.opening import (
    EXIT_REFUSED,
    EXIT_TIMEOUT,
    AsJson,
    Namespace,
    Target,
    UsageError,
    Yes,
    confirm,
    namespace_of,
    opened,
    place,
)
from queuehint.cli.render import Grid, Lines, Printer, cell, state_cell
from queuehint.client.handle import make_due
from queuehint.handlers.conversion.plain_json import encode_json
from queuehint.operations import (
    Cancel,
    CountPending,
    Pending,
    Redrive,
    Verdict,
)
from queuehint.scheduler.records.due_now import WAITING
from queuehint.scheduler.records.queries import Filter
from queuehint.scheduler.scheduler import Scheduler
from queuehint.schema.checks import check_id
from queuehint.values.hint import Claim, queue_key
from queuehint.values.ids import new_id
from queuehint.values.record import JobState
from queuehint.values.spec import JobSpec

Ids = Annotated[list[str], typer.Argument(metavar="ID...", help="Of jobs.")]
PathKey = Annotated[str, typer.Argument(metavar="PATH", help="A queue key such as doc1:intro; root is above all.")]
SomePathKey = Annotated[
    str | None, typer.Argument(metavar="[PATH]", help="A queue key such as doc1:intro; all jobs if none is given.")
]
Reason = Annotated[str | None, typer.Option(help="The reason, for the records.")]
Downstream = Annotated[
    bool, typer.Option("--downstream", help="Also revive the jobs that were canceled because of these.")
]
UNFINISHED = tuple([state.value for state in JobState if not state.is_over])
POLL_MIN_S = 0.05
POLL_MAX_S = 1.0
REASONS_SHOWN = 20
_EXIT_OF = {"drained": 0, "stalled": EXIT_REFUSED, "timeout": EXIT_TIMEOUT}


# --- jobs ------------------------------------------------------------------------------------------------------------


def retry(
    ids: Ids,
    target: Target = None,
    namespace: Namespace = None,
    downstream: Downstream = False,
    as_json: AsJson = False,
) -> None:
    """Queue dead jobs again; attempts and losses count anew."""
    with opened(target, namespace, as_json=as_json) as sched:
        apply_each(sched, ids, lambda some: Redrive(some, downstream), as_json=as_json)


@choosing
def cancel(
    choose: Choose,
    ids: Annotated[list[str] | None, typer.Argument(metavar="[ID...]", help="Of jobs.")] = None,
    target: Target = None,
    namespace: Namespace = None,
    every: All = False,
    flow: Flow = None,
    state: Annotated[
        list[str] | None, typer.Option("--state", metavar="STATE", help="Only in this state, or one of several.")
    ] = None,
    reason: Reason = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Cancel jobs. Those that run are asked to stop, and if one finishes all the same it is FINISHED."""
    with opened(target, namespace, as_json=as_json) as sched:
        chosen = choose(state=states_of(state))
        check_choice(ids, chosen, flow, every=every, also=", --state")
        if ids:
            apply_each(sched, ids, lambda some: Cancel(some, reason), as_json=as_json, first="newest")
            return
        segments = chosen.get("path")
        path = None if segments is None else queue_key(segments)
        what = path
        if flow is not None:
            some = [record.id for record in of_flow(sched, flow, UNFINISHED)]
            confirm(f"Cancel {_counted(len(some))} of flow {flow} in {namespace_of(sched)}?", yes=yes)
            sched.get_flow(flow).cancel_sync(reason)
            reached, what = len(some), f"flow {flow}"
        elif chosen.keys() == {"path"}:
            reached = cancel_path(sched, path, reason, yes=yes)
        else:
            counts = sched.records.count_sync(**choose(state=states_of(state) or list(UNFINISHED))).states
            confirm(f"Cancel {_counted(sum(counts.values()))} in {namespace_of(sched)}?", yes=yes)
            reached, what = sched.cancel_sync(reason=reason, all=every, **chosen), namespace_of(sched)
        printer = Printer(as_json=as_json)
        if as_json:
            printer.json({"path": path, "done": "canceled", "changed": reached > 0, "reached": reached})
        else:
            printer.say(f"{what}: {_counted(reached)} canceled or asked to stop")


@choosing
def run_now(
    choose: Choose,
    ids: Annotated[list[str] | None, typer.Argument(metavar="[ID...]", help="Of jobs.")] = None,
    target: Target = None,
    namespace: Namespace = None,
    every: All = False,
    flow: Flow = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Make jobs due that wait for a time: a delay, a debounce, a back-off, a snooze. Others stay as they are."""
    with opened(target, namespace, as_json=as_json) as sched:
        chosen = choose()
        check_choice(ids, chosen, flow, every=every)
        if ids:
            apply_each(sched, ids, make_due, as_json=as_json)
            return
        if flow is not None:
            check_flow(sched, flow)
            chosen["flow"] = flow
        if not yes:
            waiting: Filter = {**chosen, "state": list(WAITING)}
            count = sum(record.due_ms is not None for record in sched.records.iterate_sync(**waiting))
            confirm(f"Make {_counted(count)} due in {namespace_of(sched)}?", yes=yes)
        reached = sched.run_now_sync(all=every, **chosen)
        printer = Printer(as_json=as_json)
        if as_json:
            printer.json({"done": "due", "changed": reached > 0, "reached": reached})
        else:
            printer.say(f"{namespace_of(sched)}: {_counted(reached)} due now")


def cancel_path(sched: Scheduler, path: str | None, reason: str | None, *, yes: bool) -> int:
    """Cancel the unfinished jobs at or below a path, after a confirmation. Return how many jobs were reached."""
    segments = place(path)
    left = sched.backend.call_sync(CountPending(segments, include_scheduled=True)).unfinished
    confirm(f"Cancel {_counted(left)} at or below {queue_key(segments)} in {namespace_of(sched)}?", yes=yes)
    return sched.cancel_sync(path=segments, reason=reason)


def apply_each(
    sched: Scheduler,
    ids: Sequence[str],
    make: Callable[[tuple[str, ...]], Any],
    *,
    as_json: bool,
    first: Literal["oldest", "newest"] = "oldest",
) -> None:
    """
    Apply an operation to jobs, and print the verdict of each.

    The command ends with 1 if one of them was not found or refused.
    """
    checked = [check_id(job_id) for job_id in ids]
    found = run_steps_sync(sched.backend, order_some(checked, make, first=first))
    verdicts = [(job_id, *verdict) for job_id, verdict in zip(checked, found, strict=True)]
    printer = Printer(as_json=as_json)
    if as_json:
        for job_id, verdict, state in verdicts:
            printer.json({"id": job_id, "verdict": verdict.value, "state": state})
    else:
        rows = [
            (cell(job_id), _verdict(verdict), cell() if state is None else state_cell(state))
            for job_id, verdict, state in verdicts
        ]
        printer.put(Grid(("id", "", "state"), rows))
    if any(verdict in {Verdict.REFUSED, Verdict.UNKNOWN} for _, verdict, _ in verdicts):
        raise typer.Exit(EXIT_REFUSED)


def _verdict(verdict: Verdict) -> Text:
    bad = verdict in {Verdict.REFUSED, Verdict.UNKNOWN}
    return Text(verdict.value, "bold red" if bad else "green")


# --- places ----------------------------------------------------------------------------------------------------------


def close(
    path: PathKey,
    target: Target = None,
    namespace: Namespace = None,
    last: Annotated[
        str | None, typer.Option(metavar="TASK", help="Cancel what waits there, and enqueue this task as the last job.")
    ] = None,
    arguments: Annotated[str, typer.Option(metavar="JSON", help="Of the last job: an object, by parameter.")] = "{}",
    pool: Annotated[str, typer.Option(metavar="POOL", help="Of the last job.")] = "default",
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Refuse new jobs at or below a path."""
    if last is None:
        _mark(Scheduler.close_path_sync, "closed", path, target, namespace, as_json=as_json)
        return
    with opened(target, namespace, as_json=as_json) as sched:
        segments = place(path)
        spec = JobSpec(
            id=new_id(),
            task=last,
            claims=(Claim(segments),),
            pool=pool,
            arguments=encode_json(read_arguments(arguments, "--arguments")),
        ).check()
        left = sched.backend.call_sync(CountPending(segments, include_scheduled=True)).unfinished
        confirm(f"Cancel {_counted(left)} at or below {path} in {namespace_of(sched)}, and close it?", yes=yes)
        job = sched.close_path_sync(segments, last=spec)
        printer = Printer(as_json=as_json)
        if as_json:
            printer.json({"path": path, "done": "closed", "changed": True, "last": job.id})
        else:
            printer.say(f"{path}: closed with {job.id} as the last job")


def reopen(path: PathKey, target: Target = None, namespace: Namespace = None, as_json: AsJson = False) -> None:
    """Undo `close` of this very path."""
    _mark(Scheduler.reopen_path_sync, "reopened", path, target, namespace, as_json=as_json)


def _mark(
    act: Callable[[Scheduler, Sequence[str]], bool],
    word: str,
    path: PathKey,
    target: Target,
    namespace: Namespace,
    *,
    as_json: bool,
) -> None:
    with opened(target, namespace, as_json=as_json) as sched:
        Printer(as_json=as_json).done("path", path, word, changed=act(sched, place(path)))


# --- until nothing is left -------------------------------------------------------------------------------------------


def drain(
    path: SomePathKey = None,
    target: Target = None,
    namespace: Namespace = None,
    timeout: Annotated[float | None, typer.Option(metavar="SECONDS", min=0, help="How long to wait at most.")] = None,
    include_scheduled: Annotated[
        bool,
        typer.Option(
            "--include-scheduled", help="Wait for jobs that wait for a time, or for a signal until a time, too."
        ),
    ] = False,
    cancel: Annotated[
        bool, typer.Option("--cancel", help="Cancel unfinished jobs first, and wait for running ones; needs a PATH.")
    ] = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """
    Wait until the workers have left no unfinished job, at or below a path if one is given; runs none itself.

    Ends with 1 when jobs are left of which none can move without a person, with 124 when the time is over.
    """
    with opened(target, namespace, as_json=as_json) as sched:
        if cancel:
            if path is None:
                raise UsageError("drain --cancel requires a PATH; root is above all places")
            cancel_path(sched, path, None, yes=yes)
        question = CountPending(None if path is None else place(path), include_scheduled)
        printer = Printer(as_json=as_json)
        pending, how = _wait(printer, sched, question, timeout)
        if as_json:
            reasons = [str(reason) for reason in pending.reasons]
            printer.json({"end": how, "unfinished": pending.unfinished, "reasons": reasons})
        else:
            printer.say(how if not pending.unfinished else f"{how}: {_counted(pending.unfinished)} left")
            if how == "stalled":
                printer.put(Lines([cell(reason) for reason in pending.reasons[:REASONS_SHOWN]]))
        raise typer.Exit(_EXIT_OF[how])


def _wait(printer: Printer, sched: Scheduler, question: CountPending, timeout: float | None) -> tuple[Pending, str]:
    """Wait, with a progress bar in a terminal. Return the jobs that are left, and how the wait ended."""
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn

    ends_s = None if timeout is None else time.monotonic() + timeout
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with printer.bar(*columns) as bar:
        job = bar.add_task("drain", total=None)
        most, pause_s = 0, POLL_MIN_S
        while True:
            pending = sched.backend.call_sync(question)
            most = max(most, pending.unfinished)
            bar.update(job, total=most, completed=most - pending.unfinished)
            if not pending.unfinished:
                return pending, "drained"
            if not pending.moving:
                return pending, "stalled"
            left_s = POLL_MAX_S if ends_s is None else ends_s - time.monotonic()
            if left_s <= 0:
                return pending, "timeout"
            time.sleep(min(pause_s, left_s))
            pause_s = min(pause_s * 1.5, POLL_MAX_S)


def _counted(count: int) -> str:
    return "1 job" if count == 1 else f"{count} jobs"
