"""``queuehint flow show, rerun``: how far a flow is, and a part of it again."""

from __future__ import annotations

from typing import Annotated

import typer

from queuehint.cli.inspect import records_grid
from queuehint.cli.opening import AsJson, Namespace, Target, opened
from queuehint.cli.render import Printer, Row, cell

app = typer.Typer(no_args_is_help=True, help="Flows: how far one is, and a part of it again.")

FlowId = Annotated[str, typer.Argument(metavar="FLOW", help="The id of a flow.")]


@app.command()
def show(flow: FlowId, target: Target = None, namespace: Namespace = None, as_json: AsJson = False) -> None:
    """Show the state of a flow, its jobs by state, and the dead jobs that hold it up if it is STUCK."""
    with opened(target, namespace, as_json=as_json) as sched:
        handle = sched.get_flow(flow)
        state, stats = handle.state_sync(), handle.stats_sync()
        done = stats.total - stats.unfinished
        printer = Printer(as_json=as_json)
        if as_json:
            printer.json(
                {
                    "flow": flow,
                    "state": state.value,
                    "done": done,
                    "total": stats.total,
                    "states": {name.value: count for name, count in stats.states.items() if count},
                    "held_by": list(stats.held_by),
                }
            )
            return
        counts = [(name.value, cell(count)) for name, count in stats.states.items() if count]
        printer.put(Row([(flow, cell(state.value, "bold")), ("over", cell(f"{done} of {stats.total}")), *counts]))
        if stats.held_by:
            printer.put(records_grid(sched.records.list_by_ids_sync(stats.held_by)))


@app.command()
def rerun(
    flow: FlowId,
    jobs: Annotated[list[str], typer.Argument(metavar="JOB...", help="Names in the flow, or ids.")],
    target: Target = None,
    namespace: Namespace = None,
    alone: Annotated[bool, typer.Option("--alone", help="Leave the jobs that follow from them as they are.")] = False,
    keep_steps: Annotated[bool, typer.Option("--keep-steps", help="Keep the stored results of their steps.")] = False,
    as_json: AsJson = False,
) -> None:
    """Run jobs of a flow again that are over, however they ended, and the jobs that follow from them."""
    with opened(target, namespace, as_json=as_json) as sched:
        first, *others = jobs
        count = sched.get_flow(flow).rerun_sync(
            first, *others, downstream=not alone, steps="keep" if keep_steps else "drop"
        )
        printer = Printer(as_json=as_json)
        if as_json:
            printer.json({"flow": flow, "done": "rerun", "changed": count > 0, "reached": count})
        else:
            printer.say(f"{flow}: {'1 job runs' if count == 1 else f'{count} jobs run'} again")
