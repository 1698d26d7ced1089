"""Types of the kit's checks of order for type checkers: strategies, queues, traces, intervals, worlds. Nothing runs."""

from __future__ import annotations

from typing import Any, assert_type

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from queuehint import Backend, Backoff, Claim, FakeClock, JobSpec, Policy, Recurrence, Schedule, Scheduler
from queuehint.operations import Operation, Tick
from queuehint.testing import (
    BackendQueue,
    Fault,
    FaultPlan,
    IntervalLog,
    IntervalRecorder,
    JobIntervals,
    QueueFaultError,
    QueueReport,
    QueueUnderTest,
    ReferenceModel,
    Rule,
    RunInterval,
    ScriptedBackend,
    Simulation,
    TraceError,
    TraceEvent,
    TraceJob,
    TraceReport,
    WaitingQueue,
    backoffs,
    check_intervals,
    check_queue,
    check_trace,
    claims,
    examine_intervals,
    examine_trace,
    fault_plans,
    find_faults,
    hints,
    job_graphs,
    jobs,
    operations,
    policies,
    read_intervals,
    recurrences,
    schedules,
    simulate,
)

sched = Scheduler()


@sched.job(queue_hint=["{doc}"])
async def render(doc: str) -> int:
    return len(doc)


# --- strategies ---


def strategies_are_typed() -> None:
    assert_type(hints(), SearchStrategy[list[str] | None])
    assert_type(hints(allow_none=False, alphabet=["doc", "page"], max_depth=3), SearchStrategy[list[str]])
    assert_type(claims(hints=hints(allow_none=False), modes=["shared"]), SearchStrategy[Claim])
    assert_type(jobs(claims=claims(), user=st.sampled_from([None, "ann"])), SearchStrategy[JobSpec])
    assert_type(job_graphs(jobs=jobs(max_claims=1), whens=["success", "done"]), SearchStrategy[tuple[JobSpec, ...]])
    assert_type(backoffs(), SearchStrategy[Backoff])
    assert_type(policies(), SearchStrategy[Policy])
    assert_type(recurrences(allow_cron=False), SearchStrategy[Recurrence])
    assert_type(schedules(jobs=jobs()), SearchStrategy[Schedule])
    assert_type(operations(kinds=[Tick], ids=["a"], grants=[("a", 1)]), SearchStrategy[Operation[Any]])
    assert_type(fault_plans(most=0.1), SearchStrategy[FaultPlan])
    claims(hints=hints())  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    claims(modes=["read"])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]
    jobs(user="ann")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    hints(depth=3)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    job_graphs(whens=["ever"])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]


@given(job_graphs(), st.from_type(JobSpec))
def drawn_graph_is_typed(graph: tuple[JobSpec, ...], job: JobSpec) -> None:
    assert_type(graph[0], JobSpec)


# --- queues ---


class Plain:
    def enqueue(self, job: TraceJob) -> None:
        assert_type(job.path, tuple[str, ...] | None)

    def start(self) -> str | None:
        return None

    def end(self, job_id: str, outcome: str) -> None: ...


class Asynchronous:
    async def enqueue(self, job: TraceJob) -> None: ...

    async def start(self) -> str | None:
        return None

    async def end(self, job_id: str, outcome: str) -> None: ...


class Numbering:
    def enqueue(self, job: TraceJob) -> None: ...

    def start(self) -> int:
        return 1

    def end(self, job_id: str, outcome: str) -> None: ...


class Waiting:
    def enqueue(self, job: TraceJob) -> None: ...

    async def take(self) -> str | None:
        return None

    def end(self, job_id: str, outcome: str) -> None: ...


def a_queue_that_waits_has_three_others() -> None:
    waiting: WaitingQueue = Waiting()
    assert_type(check_queue(Waiting, wakes=True), QueueReport)
    assert_type(check_queue(lambda: waiting, wakes=True).switches, int)
    check_queue(Waiting, wakes="yes")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def a_queue_has_three_methods() -> None:
    queue: QueueUnderTest = Plain()
    check_queue(Plain)
    check_queue(Asynchronous, jobs=jobs(), edges=True, outcomes=["finished"], rules=[Rule.OVERLAP, "order"])
    check_queue(lambda: BackendQueue(sched), cancels=True, seed=None)
    check_queue(lambda: queue)
    check_queue(Numbering)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    check_queue(Plain())  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    check_queue(Plain, outcomes=["lost"])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]
    try:
        check_queue(Plain)
    except QueueFaultError as error:
        assert_type(error.faults, tuple[Fault, ...])
        assert_type(error.jobs, tuple[TraceJob, ...])
        assert_type(error.steps, tuple[str, ...])
        assert_type(error.events, tuple[TraceEvent, ...])


# --- traces ---


def a_trace_is_events_and_jobs() -> None:
    there = [TraceJob.of("a", ["doc1"]), TraceJob.of("b", ["doc1"], after=["a"]), TraceJob.of(render.spec("doc1"))]
    happened = [TraceEvent(kind="queued", job="a", at_ms=1), TraceEvent(kind="idle", at_ms=2.5, free_slots=1)]
    check_trace(happened, there)
    assert_type(find_faults(happened, there, tolerance_ms=5), list[Fault])
    assert_type(examine_trace(happened, there, complete=True), TraceReport)
    TraceJob.of("a", 5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    try:
        check_trace(happened, there)
    except TraceError as error:
        assert_type(error.faults[0].rule, Rule)


# --- intervals ---


def a_log_is_intervals_of_jobs() -> None:
    log = [JobIntervals.of("a", ["doc1"], called_ms=0, returned_ms=1.5), JobIntervals(job="b", claims=[["doc1"]])]
    check_intervals(log, tolerance_ms=5, complete=True)
    assert_type(examine_intervals(iter(log), limit=3), TraceReport)
    assert_type(read_intervals(["{}", b"{}"]), IntervalLog)
    assert_type(RunInterval(began_ms=0).ended_ms, float | None)
    recorder = IntervalRecorder("log.jsonl", worker="w", clock=FakeClock())
    with recorder.enqueue(["doc1"], mode="shared") as job:
        assert_type(job, str)
    with recorder.run(job):
        recorder.canceled(job)
    with recorder.enqueue(["doc1"], mode="both"):  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        pass
    check_intervals(["a"])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]


# --- stores ---


def a_script_is_answers_or_a_function() -> None:
    store: Backend = ScriptedBackend([Tick()], is_local=True)
    assert_type(store.is_local, bool)
    assert_type(ScriptedBackend(lambda asked: asked).asked, list[Operation[Any]])
    ScriptedBackend(5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


# --- simulation and model ---


def a_world_is_simulated() -> None:
    assert_type(simulate(sched, [render.spec("doc1")], seed=1, faults=FaultPlan(crash=0.1)), Simulation)
    simulate(sched, [], faults=5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    assert ReferenceModel is not None
