"""Traces of real workers: they pass the check, changed ones fail it; and the commands."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import attrs
import pytest

from queuehint import Backoff, JobContext, Scheduler
from queuehint.cli.app import app
from queuehint.cli.logs import JsonFormatter
from queuehint.testing import TraceEvent, TraceJob, check_trace, examine_trace, find_faults, read_trace, trace_lines
from queuehint.testing.trace.records import Past, events_of
from tests.commands import CliRunner, System, open_system
from tests.schedulers import run
from tests.servers import Server, new_namespace

JOBS = 300
Trace = tuple[list[TraceEvent], dict[str, TraceJob]]


def work_through(sched: Scheduler, *, jobs: int = JOBS) -> tuple[Trace, list[Past], list[str]]:
    """Let two workers do jobs at places, with edges and retries; return what happened, as three of them tell it."""
    lines: list[str] = []
    random = Random(7)

    @sched.job(queue_hint=["{doc}", "{section}"], max_attempts=3, retry=Backoff(base=0.005, factor=1, cap=0.005))
    async def edit(ctx: JobContext, doc: str, section: str, number: int) -> None:
        await asyncio.sleep(0)
        if number % 7 == 0 and ctx.attempt < 3:
            raise ValueError("again")

    @sched.job(queue_hint=["{doc}"])
    async def publish(doc: str) -> None:
        await asyncio.sleep(0)

    async def main() -> tuple[list[TraceEvent], list[Past]]:
        events = []
        async with sched.events() as happening:
            ids: list[str] = []
            for number in range(jobs):
                doc = random.choice("abcd")
                options: dict[str, Any] = {"mode": random.choice(["exclusive", "exclusive", "shared"])}
                if ids and random.random() < 0.1:
                    options["after"] = [random.choice(ids[-30:])]
                if random.random() < 0.2:
                    handle = await publish.using(**options).enqueue(doc)
                else:
                    handle = await edit.using(**options).enqueue(doc, random.choice("xyz"), number)
                ids.append(handle.id)
            async with sched.worker(concurrency=8), sched.worker(concurrency=4):
                over = 0
                async for event in happening:
                    events.append(TraceEvent.of(event))
                    over += event.new is not None and event.new.is_over
                    if over == jobs:
                        break
            records = [record async for record in sched.records.iterate()]
        return events, [Past.of(record) for record in records]

    handler = logging.Handler()
    handler.setFormatter(JsonFormatter())
    handler.emit = lambda record: lines.append(handler.format(record))  # type: ignore[method-assign]
    logger = logging.getLogger("queuehint.worker")
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    try:
        events, pasts = run(main())
    finally:
        logger.removeHandler(handler)
        logger.setLevel(logging.NOTSET)
    return (events, {past.job.id: past.job for past in pasts}), pasts, lines


@pytest.fixture(params=["memory", pytest.param("redis", marks=pytest.mark.redis)])
def sched(request: pytest.FixtureRequest) -> Iterator[Scheduler]:
    if request.param == "memory":
        sched = Scheduler("memory://")
    else:
        server: Server = request.getfixturevalue("redis_server")
        sched = Scheduler(server.url, namespace=new_namespace("traces"))
    yield sched
    sched.close_sync()


def test_trace_of_real_workers_has_no_faults(sched: Scheduler) -> None:
    (events, jobs), pasts, lines = work_through(sched)
    report = examine_trace(events, jobs.values(), complete=True)
    assert (report.faults, report.unjudged, report.jobs) == ((), (), JOBS)
    assert sum(event.kind == "retried" for event in events) > 10

    # Traces of records and of the workers' log have fewer events, and pass the check as well.
    past, notes = events_of(pasts)
    assert notes == []
    assert {event.kind for event in past} == {"queued", "started", "finished"}
    check_trace(past, jobs.values(), tolerance_ms=1)

    logged = read_trace(lines)
    assert sum(event.kind == "started" for event in logged.events) == sum(event.kind == "started" for event in events)
    assert {job.id: job.claims for job in logged.jobs} == {job.id: job.claims for job in jobs.values()}
    assert find_faults(logged.events, logged.jobs, tolerance_ms=200) == []


# --- tampered with ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def recorded() -> Trace:
    sched = Scheduler("memory://")
    trace, _, _ = work_through(sched, jobs=120)
    sched.close_sync()
    return trace


def at(events: list[TraceEvent], job: str, kind: str) -> int:
    return next(index for index, event in enumerate(events) if (event.job, event.kind) == (job, kind))


def neighbours(trace: Trace) -> Iterator[tuple[str, str]]:
    """Pairs of jobs that claim the same exclusively, the first of which is queued before the second."""
    events, jobs = trace
    placed = [event.job for event in events if event.kind in {"enqueued", "queued"} and event.state == "QUEUED"]
    for number, job in enumerate(placed):
        for other in placed[number + 1 :]:
            if jobs[job].claims == jobs[other].claims and jobs[job].claims[0].mode == "exclusive":
                yield job, other


def moved(events: list[TraceEvent], source: int, target: int) -> list[TraceEvent]:
    """An event happens before another one."""
    found = list(events)
    event = found.pop(source)
    target -= target > source
    return [*found[:target], attrs.evolve(event, at_ms=events[target].at_ms), *found[target:]]


def a_start_during_another(events: list[TraceEvent], trace: Trace) -> tuple[str, list[TraceEvent]]:
    first, second = next(neighbours(trace))
    return "overlap", moved(events, at(events, second, "started"), at(events, first, "started") + 1)


def a_start_before_its_turn(events: list[TraceEvent], trace: Trace) -> tuple[str, list[TraceEvent]]:
    first, second = next(neighbours(trace))
    both = moved(events, at(events, second, "started"), at(events, first, "started"))
    return "order", moved(both, at(both, second, "finished"), at(both, first, "started"))


def a_retry_to_the_tail(events: list[TraceEvent], trace: Trace) -> tuple[str, list[TraceEvent]]:
    retried = {event.job: event for event in events if event.kind == "retried"}
    first, second = next(pair for pair in neighbours(trace) if pair[0] in retried and pair[1] not in retried)
    behind = at(events, first, "retried") + 1
    both = moved(events, at(events, second, "started"), behind)
    return "order", moved(both, at(both, second, "finished"), behind + 1)


def an_edge_that_is_not_waited_for(events: list[TraceEvent], trace: Trace) -> tuple[str, list[TraceEvent]]:
    job = next(job for job in trace[1].values() if job.depends_on)
    start = at(events, job.depends_on[0].id, "started")
    return "dependency", moved(events, at(events, job.id, "started"), start)


def a_fan_in_that_is_queued_twice(events: list[TraceEvent], trace: Trace) -> tuple[str, list[TraceEvent]]:
    index = next(index for index, event in enumerate(events) if event.kind == "queued")
    return "queued_twice", [*events[: index + 1], events[index], *events[index + 1 :]]


def a_start_twice(events: list[TraceEvent], trace: Trace) -> tuple[str, list[TraceEvent]]:
    index = next(index for index, event in enumerate(events) if event.kind == "started")
    return "started_twice", [*events[: index + 1], events[index], *events[index + 1 :]]


def a_start_after_the_end(events: list[TraceEvent], trace: Trace) -> tuple[str, list[TraceEvent]]:
    start = next(event for event in events if event.kind == "started")
    return "started_after_end", [*events, attrs.evolve(start, at_ms=events[-1].at_ms)]


def an_end_without_a_start(events: list[TraceEvent], trace: Trace) -> tuple[str, list[TraceEvent]]:
    index = next(index for index, event in enumerate(events) if event.kind == "started")
    return "not_started", [*events[:index], *events[index + 1 :]]


def an_end_that_is_lost(events: list[TraceEvent], trace: Trace) -> tuple[str, list[TraceEvent]]:
    index = max(index for index, event in enumerate(events) if event.kind == "finished")
    return "not_over", [*events[:index], *events[index + 1 :]]


def a_token_that_does_not_grow(events: list[TraceEvent], trace: Trace) -> tuple[str, list[TraceEvent]]:
    job = next(event.job for event in events if event.kind == "retried")
    return "token", [
        attrs.evolve(event, token=5) if (event.job, event.kind) == (job, "started") else event for event in events
    ]


def a_worker_that_gets_nothing(events: list[TraceEvent], trace: Trace) -> tuple[str, list[TraceEvent]]:
    index = next(index for index, event in enumerate(events) if event.kind == "started")
    return "idle", [*events[:index], TraceEvent(kind="idle", at_ms=events[index].at_ms), *events[index:]]


Tamper = Callable[[list[TraceEvent], Trace], tuple[str, list[TraceEvent]]]


@pytest.mark.parametrize(
    "tamper",
    [
        a_start_during_another,
        a_start_before_its_turn,
        a_retry_to_the_tail,
        an_edge_that_is_not_waited_for,
        a_fan_in_that_is_queued_twice,
        a_start_twice,
        a_start_after_the_end,
        an_end_without_a_start,
        an_end_that_is_lost,
        a_token_that_does_not_grow,
        a_worker_that_gets_nothing,
    ],
)
def test_a_recorded_trace_that_is_tampered_with_is_convicted(recorded: Trace, tamper: Tamper) -> None:
    events, jobs = recorded
    assert find_faults(events, jobs.values(), complete=True) == []
    rule, spoiled = tamper(events, recorded)
    faults = find_faults(spoiled, jobs.values(), complete=True)
    assert rule in {fault.rule.value for fault in faults}
    assert all(len(fault.picture.splitlines()) <= 12 for fault in faults)


# --- the commands ----------------------------------------------------------------------------------------------------


@pytest.fixture
def system(namespace: str) -> Iterator[System]:
    with open_system(namespace) as opened:
        yield opened


def check(*arguments: str, input: str | None = None) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["check-trace", *arguments], input=input)
    return result.exit_code, result.output


def fill(system: System) -> None:
    """Two jobs that are over, one of which was waited for; one that runs."""
    system.enqueue("edit", "doc1", "intro", id="a")
    system.enqueue("edit", "doc1", "intro", id="b")
    system.enqueue("step", id="c", after=["a"])
    for _ in range(2):
        for grant in system.claim():
            system.settle(grant)
    system.claim()


@pytest.mark.redis
def test_trace_command_writes_a_sound_trace(system: System, tmp_path: Path) -> None:
    fill(system)
    file = tmp_path / "trace.jsonl"
    system.ok("trace", "--file", str(file))
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert lines[0] == {"trace": 1, "resolution_ms": 1}
    assert {line["job"] for line in lines if "kind" not in line and "job" in line} == {"a", "b", "c"}
    assert [line["kind"] for line in lines if "kind" in line and line["job"] == "a"] == [
        "queued",
        "started",
        "finished",
    ]
    code, output = check(str(file))
    assert (code, output.splitlines()[-1]) == (0, "6 events of 2 jobs: in order")
    assert check("-", input=system.ok("export"))[0] == 0


@pytest.mark.redis
def test_a_part_of_a_store_is_written(system: System) -> None:
    fill(system)
    assert '"job":"c"' not in system.ok("trace", "--path", "doc1")
    assert system.ok("trace", "--limit", "1").count("\n") == 1 + 1 + 3
    assert system.run("trace", "--limit", "0").exit_code == 2
    assert system.run("trace", "--follow", "--task", "edit").exit_code == 2


@pytest.mark.redis
def test_trace_command_follows_new_events(system: System, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []

    def echo(text: str, **_: Any) -> None:
        said.append(text)
        fill(system)

    monkeypatch.setattr("queuehint.cli.trace.typer.echo", echo)
    written = system.ok("trace", "--follow", "--limit", "8")
    assert said == ["queuehint: following"]
    trace = read_trace(written.splitlines())
    happened = [(event.kind, event.job) for event in trace.events]
    assert happened[:5] == [
        ("enqueued", "a"),
        ("enqueued", "b"),
        ("enqueued", "c"),
        ("started", "a"),
        ("finished", "a"),
    ]
    assert ("queued", "c") in happened
    assert {job.id for job in trace.jobs} == {"a", "b", "c"}
    check_trace(trace.events, trace.jobs)


@pytest.mark.redis
def test_a_store_is_drawn(system: System) -> None:
    fill(system)
    drawn = json.loads(system.ok("trace", "--format", "perfetto"))["traceEvents"]
    assert {event["name"] for event in drawn if event["ph"] == "X" and event["pid"] == 1} == {"a", "b", "c"}
    assert sorted(event["ph"] for event in drawn if event.get("cat") == "dependency") == ["f", "s"]
    assert "section doc1/intro\n    edit a :done, " in system.ok("trace", "--format", "mermaid")


SPOILED = """\
{"job": "a", "hint": ["doc1"]}
{"job": "b", "hint": ["doc1", "intro"]}
{"kind": "queued", "job": "a", "at_ms": 0}
{"kind": "queued", "job": "b", "at_ms": 5}
{"kind": "started", "job": "a", "at_ms": 10}
{"kind": "retried", "job": "a", "at_ms": 20}
{"kind": "started", "job": "b", "at_ms": 30}
"""


def test_trace_that_breaks_a_rule_is_drawn() -> None:
    code, output = check("-", input=SPOILED)
    assert code == 1
    assert output.splitlines() == [
        "order: b at doc1:intro overtook a at doc1, which was put back for another attempt and keeps its place",
        "    ms             0   5   10  20  30",
        "  * a  doc1        Q.......S===R....",
        "  * b  doc1:intro      Q...........S",
        "                                   ^ order",
        "    Q queued, S started, R retried; . waits, = runs",
        "",
        "5 events of 2 jobs: 1 fault",
    ]


def test_a_trace_is_judged_for_programs() -> None:
    code, output = check("-", "--json", input=SPOILED)
    told = json.loads(output)
    assert (code, told["clean"], told["faults"][0]["rule"], told["faults"][0]["other"]) == (1, False, "order", "a")
    assert (told["events"], told["jobs"], told["attempts"]) == (5, 2, 2)


def test_the_options_of_a_check_are_heard() -> None:
    assert check("-", "--tolerance", "30", input=SPOILED)[0] == 0
    assert check("-", "--slots", "1", "--tolerance", "20", input=SPOILED)[0] == 0
    assert check("-", "--slots", "default=1", "--idle", "9", "--tolerance", "20", input=SPOILED)[0] == 1
    assert check("-", "--complete", "--tolerance", "30", input=SPOILED)[0] == 1
    for wrong in ("x", "-1", "p=", "²"):
        assert check("-", "--slots", wrong, input=SPOILED)[0] == 2
    assert check("-", "--slots", "1", "--slots", "2", input=SPOILED)[0] == 2


def test_malformed_trace_is_refused(tmp_path: Path) -> None:
    code, output = check("-", input=SPOILED + "no JSON\n")
    assert (code, output.startswith("queuehint: line 8: no JSON")) == (2, True)
    code, output = check(str(tmp_path / "nowhere"), "--json")
    assert (code, list(json.loads(output))) == (2, ["error"])


def test_several_files_are_one_trace(tmp_path: Path, recorded: Trace) -> None:
    events, jobs = recorded
    for name, some in (("jobs", trace_lines([], jobs.values())), ("events", trace_lines(events))):
        (tmp_path / name).write_text("".join(some))
    assert check(str(tmp_path / "jobs"), str(tmp_path / "events"), "--complete")[0] == 0


@pytest.mark.parametrize("text", ["", "\n\n", '{"job": "a", "hint": ["doc1"]}\n'])
def test_empty_trace_is_not_called_sound(text: str) -> None:
    assert check("-", input=text) == (2, "0 events of 0 jobs: there was nothing to check\n")


def test_trace_that_describes_no_job_is_not_called_in_order() -> None:
    lines = '{"kind": "queued", "job": "a"}\n{"kind": "started", "job": "a"}\n'
    code, output = check("-", input=lines)
    assert (code, output.splitlines()[-1]) == (2, "2 events of 1 jobs: no place is known, so that no order was checked")
    code, output = check("--json", "-", input=lines)
    assert (code, json.loads(output)["undescribed"], json.loads(output)["ran"]) == (2, 1, 1)
    code, output = check("-", input='{"job": "a", "hint": null}\n' + lines)
    assert code == 0
    assert " ".join(output.split()) == (
        "tried: 0 jobs came while one that conflicts was not over, so that no order was put to the test "
        "2 events of 1 jobs: in order"
    )
