"""
Run jobs on Redis with Sentinel under faults, and judge every event: ``python -m tests.chaos --minutes 20 --seed 1``.

Prints one line for each fault and a table at the end; the exit code is 1 if a promise was broken. ``--json FILE`` keeps
the figures, ``--trace FILE`` the events of the history that survived, which `queuehint check-trace` reads, ``--times
FILE`` when faults, messages of sentinels, failovers and lost acknowledgements were. The load is a recorded history:
``--repo`` or ``--history`` as in `examples/replay_history.py`, ``--edits`` as in `examples/replay_trace.py`.
"""

from __future__ import annotations

import argparse
import functools
import gzip
import json
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import attrs

from examples.replay_history import HistoryError
from examples.replay_trace import TraceError
from queuehint.testing.trace import trace_lines
from tests.chaos import judging
from tests.chaos.clocks import ServerClock
from tests.chaos.failovers import Failover, Message, Watch
from tests.chaos.injecting import WORKERS, Injected, Injector
from tests.chaos.judging import Loss
from tests.chaos.load import Load, Producer
from tests.chaos.nodes import Nodes
from tests.chaos.recording import Recorder, trace_of
from tests.faults import app, checks
from tests.faults.worker_processes import Crew

NAMESPACE = "chaos"
LEASE_S = 2.0
CALM_S = (1.0, 4.0)
"""How long nothing is wrong between two faults."""
DRAINED_WITHIN_S = 120.0


@attrs.frozen(kw_only=True)
class Plan:
    """
    Settings of a run.

    Args:
        seconds: how long faults are injected; healing and the end of all jobs come after that.
        rate: jobs a second.
        min_replicas: as of `Nodes`.
        kinds: the kinds of faults; all of them if none is named.
    """

    seconds: float
    seed: int = 1
    rate: float = 10.0
    min_replicas: int = 0
    kinds: tuple[str, ...] = ()


def run(
    plan: Plan,
    folder: Path,
    load: Load,
    *,
    trace: Path | None = None,
    times: Path | None = None,
    say: Callable[[str], None] = print,
) -> dict[str, Any]:
    """
    Run the load under faults; return the figures.

    Args:
        folder: for logs and what handlers say.
        trace: a file for the events of the history that survived, as JSON lines, compressed.
        times: a file for when what happened, as `_times` yields it, compressed too.
        say: takes each line of progress.
    """
    clock = ServerClock(folder)
    faults: list[Injected] = []
    with (
        Nodes(clock, min_replicas=plan.min_replicas) as nodes,
        Crew(nodes.url, NAMESPACE, folder, lease=LEASE_S) as crew,
    ):
        injector = Injector(nodes, crew, clock, plan.seed, plan.kinds)
        with Watch(nodes) as watch, Recorder(nodes, NAMESPACE) as recorder:
            injector.start_workers()
            with Producer(nodes.url, NAMESPACE, load.calls(plan.seed), plan.rate) as producer:
                begun_s = time.monotonic()
                for kind in injector.order():
                    time.sleep(injector.rng.uniform(*CALM_S))
                    if time.monotonic() >= begun_s + plan.seconds or producer.error or recorder.error:
                        break
                    faults.append(injector.inject(kind))
                    injector.replace_dead_workers()
                    say(_line(faults[-1], begun_s))
                ended_s = time.monotonic()
                nodes.heal()
                nodes.wait_until_settled()
                producer.stop()
            violations = [f"{name}: {error!r}" for name, error in _errors(producer, recorder)]
            if not _drain(nodes, injector):
                violations.append(f"jobs were not over {DRAINED_WITHIN_S:g} s after the last fault")
            primary = nodes.settled()
            survivor = None if primary is None else recorder.read_to_the_end(primary)
            if primary is None or survivor is None:
                raise SystemExit("no primary has its replicas in the end")
            violations += judging.store_faults(primary, NAMESPACE)
        lines = checks.read_lines(crew.lines_path)
    failovers = watch.failovers()
    lost, not_allowed = judging.lost_jobs(survivor, recorder.histories.values(), producer.asked, faults, failovers)
    violations += not_allowed
    violations += judging.broken_rules(survivor, recorder.histories.values(), producer.asked)
    violations += judging.old_tokens(lines, clock)
    violations += [f"{fault.kind}: not settled in a minute" for fault in faults if fault.settled_s is None]
    violations += judging.unseen_kinds(faults)
    if times is not None:
        with gzip.open(times, "wt", compresslevel=9, encoding="utf-8") as file:
            file.writelines(
                f"{json.dumps(line)}\n" for line in _times(begun_s, faults, watch.messages, failovers, lost)
            )
    if trace is not None:
        jobs = [each.call.described() for each in producer.asked.values()]
        with gzip.open(trace, "wt", compresslevel=9, encoding="ascii") as file:
            file.writelines(trace_lines(trace_of(survivor.events), jobs))
    kinds = judging.count_by_kind(survivor)
    cut_off = [
        len(history.events) - common
        for history in recorder.histories.values()
        if (common := judging.common_events(survivor, history)) < len(history.events)
    ]
    return {
        **attrs.asdict(plan),
        "seconds": round(ended_s - begun_s),
        "server": nodes.version,
        "python": platform.python_version(),
        "workers": WORKERS,
        "lease_s": LEASE_S,
        "load": load.described(),
        "jobs": len(producer.asked),
        "answers": dict(sorted(producer.answers.items())),
        "acknowledged_and_lost": len(lost),
        "lost_because": {cause.name.lower(): sum(loss.cause is cause for loss in lost) for cause in judging.Cause},
        "failovers": {
            "count": len(failovers),
            "with_losses": len({loss.failover for loss in lost if loss.failover is not None}),
            "old_primary_stayed_s": round(
                max(
                    (each.demoted_s - each.ordered_s for each in failovers if each.demoted_s < checks.NEVER_S),
                    default=0,
                ),
                1,
            ),
        },
        "done": kinds.get("finished", 0),
        "attempts": sum(line.event == "start" for line in lines),
        "events": len(survivor.events),
        "missed": sum(event is None for event in survivor.events),
        "events_by_kind": kinds,
        "histories": len(recorder.histories),
        "cut_off": {"histories": len(cut_off), "events": sum(cut_off)},
        "faults": _by_kind(faults, lines, begun_s, lost),
        "violations": violations,
    }


def _by_kind(
    faults: Sequence[Injected], lines: Sequence[checks.Line], begun_s: float, lost: Sequence[Loss]
) -> dict[str, dict[str, float]]:
    """Return by kind how often it was, the longest pause between ends of attempts, the longest until all settled."""
    ends_s = [begun_s, *(line.t for line in lines if line.event == "end")]
    found: dict[str, dict[str, float]] = {}
    for kind in sorted({fault.kind for fault in faults}):
        each = [fault for fault in faults if fault.kind == kind]
        spans = [(fault.begun_s, fault.settled_s or fault.begun_s) for fault in each]
        found[kind] = {
            "count": len(each),
            "seen": sum(fault.is_seen for fault in each),
            "lost": sum(start_s <= loss.acknowledged_s <= end_s for loss in lost for start_s, end_s in spans),
            "outage_s": round(max(judging.longest_pause(ends_s, *span) for span in spans), 1),
            "settled_s": round(max(end_s - start_s for start_s, end_s in spans), 1),
        }
    return found


def _times(
    begun_s: float,
    faults: Iterable[Injected],
    messages: Iterable[Message],
    failovers: Iterable[Failover],
    lost: Iterable[Loss],
) -> Iterator[dict[str, Any]]:
    """Yield when what happened, a line each: faults, messages of sentinels, failovers, lost acknowledgements."""
    for what, each in (("fault", faults), ("sentinel", messages), ("failover", failovers), ("lost", lost)):
        for one in each:
            fields = attrs.asdict(one)
            for name, value in fields.items():
                if name.endswith("_s") and value is not None:
                    fields[name] = round(value - begun_s, 3) if value < checks.NEVER_S else None
            yield {"line": what, **fields}


def _drain(nodes: Nodes, injector: Injector) -> bool:
    """Wait until all jobs are over."""
    until_s = time.monotonic() + DRAINED_WITHIN_S
    sched = app.make(nodes.url, namespace=NAMESPACE).sched
    try:
        while sched.stats_sync().unfinished:
            if time.monotonic() > until_s:
                return False
            injector.replace_dead_workers()
            time.sleep(0.1)
        return True
    finally:
        sched.close_sync()


def _errors(producer: Producer, recorder: Recorder) -> list[tuple[str, BaseException]]:
    told = (("producer", producer.error), ("recorder", recorder.error))
    return [(name, error) for name, error in told if error is not None]


def _line(fault: Injected, begun_s: float) -> str:
    settled = "not settled" if fault.settled_s is None else f"settled after {fault.settled_s - fault.begun_s:.1f} s"
    return f"{fault.begun_s - begun_s:7.1f} s  {fault.kind:18} {fault.what}; {settled}"


def table(figures: dict[str, Any]) -> str:
    """Return the figures as lines of text."""
    faults = figures["faults"]
    rows = [
        ("jobs enqueued", figures["jobs"]),
        ("jobs done", figures["done"]),
        ("attempts", figures["attempts"]),
        ("acknowledged, lost by failover", figures["acknowledged_and_lost"]),
        *((f"  {name.replace('_', ' ')}", count) for name, count in figures["lost_because"].items()),
        ("failovers", f"{figures['failovers']['count']}, {figures['failovers']['with_losses']} of them with losses"),
        ("events judged", f"{figures['events']}, and {figures['cut_off']['events']} of histories cut off"),
        ("histories", f"{figures['histories']}, {figures['cut_off']['histories']} of them cut off"),
        ("faults", sum(each["count"] for each in faults.values())),
        *(
            (f"  {kind}", f"{each['count']:3}, {each['seen']} seen  {each['outage_s']:5} s")
            for kind, each in faults.items()
        ),
        ("longest outage", f"{max((each['outage_s'] for each in faults.values()), default=0)} s"),
        ("violations", len(figures["violations"])),
    ]
    lines = [f"{name:32} {value}" for name, value in rows]
    return "\n".join(lines + [f"! {text}" for text in figures["violations"][:50]])


def main() -> int:
    """Read the arguments, run, print; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0, help="how long faults are injected (5)")
    parser.add_argument("--seed", type=int, default=1, help="of the order and the sizes of faults and of the load (1)")
    parser.add_argument("--rate", type=float, default=10.0, help="jobs a second (10)")
    parser.add_argument("--min-replicas", type=int, default=0, help="min-replicas-to-write of the servers (0)")
    parser.add_argument("--json", type=Path, help="a file for the figures")
    parser.add_argument("--trace", type=Path, help="a file for the events, such as trace.jsonl.gz")
    parser.add_argument("--times", type=Path, help="a file for when faults, failovers and losses were: times.jsonl.gz")
    parser.add_argument(
        "--kind", action="append", default=[], help="a kind of fault; may be repeated; all if not given"
    )
    parser.add_argument("--repo", type=Path, help="a git repository whose history is the load")
    parser.add_argument("--history", type=Path, help="a history recorded as JSON")
    parser.add_argument("--edits", type=Path, action="append", default=[], help="a recorded document; may be repeated")
    parser.add_argument("--folder", type=Path, help="an empty folder for logs and what handlers say; kept")
    asked = parser.parse_args()
    try:
        load = Load.read(repo=asked.repo, history=asked.history, edits=asked.edits)
    except (HistoryError, TraceError) as error:
        parser.error(str(error))
    plan = Plan(
        seconds=60 * asked.minutes,
        seed=asked.seed,
        rate=asked.rate,
        min_replicas=asked.min_replicas,
        kinds=tuple(asked.kind),
    )
    with tempfile.TemporaryDirectory() as made:
        folder = asked.folder or Path(made)
        folder.mkdir(parents=True, exist_ok=True)
        figures = run(
            plan, folder, load, trace=asked.trace, times=asked.times, say=functools.partial(print, flush=True)
        )
    print(table(figures))
    if asked.json is not None:
        asked.json.write_text(json.dumps(figures, indent=2) + "\n", "utf-8")
    return 1 if figures["violations"] else 0


if __name__ == "__main__":
    sys.exit(main())
