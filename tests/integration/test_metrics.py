"""Metrics for Prometheus and OpenTelemetry, which never hold up the work."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import attrs
import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import get_current_span
from prometheus_client import CollectorRegistry, generate_latest

from queuehint import BackendUnavailableError, Backoff, JobContext, Missed, Scheduler
from queuehint.metrics import measures, otel, prometheus
from tests.schedulers import run
from tests.support import LIMIT_S

BOARD = Path(__file__).parents[2] / "docs" / "grafana" / "queuehint.json"


def busy() -> Scheduler:
    """Return a scheduler of which a job has finished, one has failed, one is ready and one waits."""
    sched = Scheduler("memory://", namespace="shop")

    @sched.job(max_attempts=1)
    async def work(fails: bool = False) -> None:
        if fails:
            raise ValueError

    async def main() -> None:
        async with sched.worker():
            await (await work.enqueue()).result()
            handle = await work.enqueue(fails=True)
            async for record in handle.events():
                if record.state.is_over:
                    break
        dead = await work.using(pool="slow").enqueue()
        await work.using(after=[dead]).enqueue()

    run(main())
    return sched


def scraped(registry: CollectorRegistry) -> dict[str, float]:
    lines = generate_latest(registry).decode().splitlines()
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if not line.startswith("#")}


# --- Prometheus ------------------------------------------------------------------------------------------------------


def test_scrape_reports_the_counts_of_the_store() -> None:
    registry = CollectorRegistry()
    registry.register(prometheus.SchedulerCollector(busy()))
    samples = scraped(registry)
    assert samples['queuehint_up{namespace="shop"}'] == 1
    assert samples['queuehint_jobs{namespace="shop",state="FINISHED"}'] == 1
    assert samples['queuehint_jobs_ready{namespace="shop",pool="slow"}'] == 1
    assert samples['queuehint_jobs_stuck{namespace="shop",reason="no_worker"}'] == 1
    assert samples['queuehint_jobs_enqueued_total{namespace="shop"}'] == 4
    assert samples['queuehint_jobs_failed_total{namespace="shop"}'] == 1
    assert samples['queuehint_jobs_waiting_for_signals{namespace="shop"}'] == 0
    assert samples['queuehint_edges_open_edges{namespace="shop"}'] == 1
    assert samples['queuehint_edges_oldest_timestamp_seconds{namespace="shop"}'] == pytest.approx(time.time(), abs=60)


def test_a_scrape_tells_which_pools_have_workers() -> None:
    sched = Scheduler("memory://", namespace="shop")

    @sched.job
    async def work() -> dict[str, float]:
        # In a thread, as a scrape is: it asks the store by itself.
        return await asyncio.to_thread(scraped, registry)

    registry = CollectorRegistry()
    registry.register(prometheus.SchedulerCollector(sched, fresh=0))

    async def main() -> dict[str, float]:
        await work.using(pool="nobody").enqueue()
        async with sched.worker(concurrency=3, pools=["default", "slow"]), sched.worker(concurrency=2):
            return await (await work.enqueue()).result()

    samples = run(main())
    by_pool = {pool: samples[f'queuehint_workers{{namespace="shop",pool="{pool}"}}'] for pool in ("default", "slow")}
    assert by_pool == {"default": 2, "slow": 1}
    assert samples['queuehint_workers{namespace="shop",pool="nobody"}'] == 0
    assert samples['queuehint_workers_slots{namespace="shop"}'] == 5
    assert samples['queuehint_workers_running{namespace="shop"}'] in {0, 1}


def test_names_follow_the_conventions_of_prometheus() -> None:
    for measure in measures.MEASURES:
        name = prometheus.name_of(measure)
        assert re.fullmatch("queuehint(_[a-z]+)+", name)
        assert not name.endswith("_total"), "samples of counters get that by themselves"
        assert measure.help.endswith(".")


def test_to_register_asks_nothing_of_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    sched = Scheduler("memory://")
    monkeypatch.setattr(Scheduler, "stats_sync", lambda self: pytest.fail("asked"))
    CollectorRegistry().register(prometheus.SchedulerCollector(sched))


def test_dead_store_is_reported_and_not_queried_again_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    sched = Scheduler("memory://")
    asked: list[int] = []

    def refuse(_sched: Scheduler) -> Any:
        asked.append(1)
        raise BackendUnavailableError("away")

    monkeypatch.setattr(Scheduler, "stats_sync", refuse)
    registry = CollectorRegistry()
    registry.register(prometheus.SchedulerCollector(sched, fresh=60))
    assert [scraped(registry) for _ in range(3)] == 3 * [{'queuehint_up{namespace="default"}': 0.0}]
    assert asked == [1]


def test_hanging_store_delays_no_scrape_and_is_queried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    sched = Scheduler("memory://")
    asked: list[int] = []
    go_on = threading.Event()
    stats_sync = Scheduler.stats_sync

    def hang(sched: Scheduler) -> Any:
        asked.append(1)
        assert go_on.wait(60)
        return stats_sync(sched)

    monkeypatch.setattr(Scheduler, "stats_sync", hang)
    registry = CollectorRegistry()
    registry.register(prometheus.SchedulerCollector(sched, timeout=0.01, fresh=60))
    assert [scraped(registry)['queuehint_up{namespace="default"}'] for _ in range(3)] == [0, 0, 0]
    assert asked == [1]
    go_on.set()
    deadline = time.monotonic() + LIMIT_S
    while not scraped(registry)['queuehint_up{namespace="default"}']:
        assert time.monotonic() < deadline
    assert asked == [1]


def test_histograms_of_waits_and_runs_are_made_of_events() -> None:
    sched = Scheduler("memory://")
    registry = CollectorRegistry()
    prometheus.observe(sched, registry=registry)

    @sched.job(max_attempts=2, retry=None)
    async def work() -> None:
        pass

    async def main() -> None:
        async with sched.worker():
            await (await work.enqueue()).result()
            for _ in range(2):
                async with sched.exclusive(["doc1"]):
                    pass
            await (await work.enqueue()).result()

    run(main())
    samples = scraped(registry)
    assert samples['queuehint_job_run_seconds_count{namespace="default",outcome="finished",pool="@"}'] == 2
    assert not [
        name
        for name in samples
        if "pool=" in name and "default" not in name.partition("pool=")[2] and '"@"' not in name
    ]
    assert samples['queuehint_job_wait_seconds_count{namespace="default",pool="default"}'] == 2
    assert samples['queuehint_job_run_seconds_count{namespace="default",outcome="finished",pool="default"}'] == 2
    assert samples['queuehint_events_missed_total{namespace="default"}'] == 0
    sched._announcer._listeners[0].call(Missed(count=3))
    assert scraped(registry)['queuehint_events_missed_total{namespace="default"}'] == 3


def test_permits_that_wait_share_a_label_and_lack_no_worker() -> None:
    sched = Scheduler("memory://")
    answer = measures.Answer(
        stats=attrs.evolve(
            sched.stats_sync(), ready={"default": 3, "@a": 1, "@b": 2}, oldest_ready_ms={"@a": 9_000, "@b": 7_000}
        ),
        edges=sched.edges_sync(),
        workers=(),
    )
    read = {measure.name: measure.read(answer) for measure in measures.MEASURES if measure.label == "pool"}
    assert read["jobs.ready"] == {"default": 3, "@": 3}
    assert read["jobs.oldest.ready.timestamp"] == {"@": 7}
    assert read["workers"] == {"default": 0}


def test_every_metric_that_the_board_names_is_exported() -> None:
    sched = busy()
    registry = CollectorRegistry()
    registry.register(prometheus.SchedulerCollector(sched))
    prometheus.observe(sched, registry=registry)
    exported = {
        name
        for family in registry.collect()
        for name in (family.name, *(family.name + end for end in ("_total", "_bucket", "_sum", "_count")))
    }
    board = json.loads(BOARD.read_text("utf-8"))
    expressions = [target["expr"] for panel in board["panels"] for target in panel.get("targets", ())]
    named = {name for expression in expressions for name in re.findall(r"queuehint_\w+", expression)}
    assert len(named) > 15
    assert named <= exported, named - exported


# --- OpenTelemetry ---------------------------------------------------------------------------------------------------


def test_the_same_is_told_to_opentelemetry() -> None:
    sched = busy()
    reader = InMemoryMetricReader()
    meter = MeterProvider([reader]).get_meter("test")
    otel.measure(sched, meter=meter)
    data: Any = reader.get_metrics_data()
    points = {
        (metric.name, *sorted(map(str, point.attributes.values()))): point.value
        for metric in data.resource_metrics[0].scope_metrics[0].metrics
        for point in metric.data.data_points
    }
    assert points["queuehint.jobs", "FINISHED", "shop"] == 1
    assert points["queuehint.jobs.enqueued", "shop"] == 4
    assert points["queuehint.edges.orphans", "shop"] == 0


def test_histograms_and_spans_of_opentelemetry() -> None:
    sched = Scheduler("memory://")
    reader, spans = InMemoryMetricReader(), InMemorySpanExporter()
    otel.observe(sched, meter=MeterProvider([reader]).get_meter("test"))
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    otel.trace_jobs(sched, tracer=provider.get_tracer("test"))
    inside: list[int] = []

    @sched.job(max_attempts=1)
    def plain(fails: bool) -> None:
        inside.append(get_current_span().get_span_context().span_id)
        if fails:
            raise ValueError

    async def main() -> None:
        async with sched.worker(concurrency=1):
            for fails in (False, True):
                async for record in (await plain.enqueue(fails)).events():
                    if record.state.is_over:
                        break

    run(main())
    found = spans.get_finished_spans()
    assert [span.name for span in found] == ["create plain", "process plain"] * 2
    found = found[1::2]
    assert [span.context.span_id for span in found if span.context] == inside
    assert [span.status.is_ok for span in found] == [True, False]
    assert get_current_span().get_span_context().span_id == 0
    data: Any = reader.get_metrics_data()
    counts = {
        metric.name: sum(point.count for point in metric.data.data_points)
        for metric in data.resource_metrics[0].scope_metrics[0].metrics
    }
    assert counts == {"queuehint.job.wait.duration": 2, "queuehint.job.run.duration": 2}


def test_trace_leads_from_request_to_third_attempt_and_child() -> None:
    sched, spans = Scheduler("memory://"), InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    tracer = provider.get_tracer("test")
    otel.trace_jobs(sched, tracer=tracer)

    @sched.job
    async def child() -> None: ...

    @sched.job(max_attempts=3, backoff=Backoff(base=0.001, jitter=0))
    async def work(ctx: JobContext) -> None:
        if ctx.attempt < 3:
            raise ValueError
        await ctx.enqueue(child)

    async def main() -> None:
        with tracer.start_as_current_span("request"):
            job = await work.enqueue()
        assert (await job.record()).headers.keys() == {"traceparent"}
        async with sched.worker():
            await sched.drain(timeout=30)

    run(main())
    found = {}
    for span in spans.get_finished_spans():
        attempt = (span.attributes or {}).get("queuehint.attempt")
        found[f"{span.name} {attempt}" if attempt else span.name] = span
    order = ["request", "create work", *[f"process work {n}" for n in (1, 2, 3)], "create child", "process child 1"]
    assert sorted(found) == sorted(order)
    request, created, first, second, third, made, of_child = [found[name] for name in order]
    assert len({span.context.trace_id for span in found.values() if span.context}) == 1, "one trace"

    def parent(span: Any) -> Any:
        return span.parent and span.parent.span_id

    assert [parent(span) for span in (created, first, second, third, made, of_child)] == [
        span.context.span_id for span in (request, created, created, created, third, made) if span.context
    ]
    assert [[link.context.span_id for link in span.links] for span in (first, second, third)] == [
        [],
        [parent(second)],
        [parent(second)],
    ]
    assert [span.status.is_ok for span in (first, second, third)] == [False, False, True]


def test_executed_step_has_a_span_below_its_attempt() -> None:
    sched, spans = Scheduler("memory://"), InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    tracer = provider.get_tracer("test")
    otel.trace_jobs(sched, tracer=tracer)

    def in_thread() -> None:
        with tracer.start_as_current_span("in thread"):
            pass

    def fail() -> None:
        raise ValueError("secret")

    @sched.job(retry=[0])
    async def work(ctx: JobContext) -> None:
        await ctx.step("thread", in_thread)
        if ctx.attempt == 1:
            await ctx.step("fail", fail)

    async def main() -> None:
        async with sched.worker():
            await work.enqueue()
            await sched.drain(timeout=30)

    run(main())
    found = {span.name: span for span in spans.get_finished_spans()[::-1]}
    assert [span.name for span in spans.get_finished_spans()] == [
        *("create work", "in thread", "step thread", "step fail", "process work", "process work")
    ]
    thread, failed, inner = found["step thread"], found["step fail"], found["in thread"]
    attempts = [span for span in spans.get_finished_spans() if span.name == "process work"]
    assert inner.parent and thread.context and inner.parent.span_id == thread.context.span_id
    assert all(span.parent and span.parent.span_id == attempts[0].context.span_id for span in (thread, failed))
    assert (thread.status.is_ok, failed.status.is_ok, failed.status.description) == (True, False, "ValueError")
    assert failed.events == ()
    assert dict(thread.attributes or {}) == {"queuehint.step": "thread", "queuehint.task": "work"}


def test_a_store_that_does_not_answer_has_no_values() -> None:
    sched = Scheduler("memory://")
    sched.backend.close_sync()
    reader = InMemoryMetricReader()
    otel.measure(sched, meter=MeterProvider([reader]).get_meter("test"))
    data: Any = reader.get_metrics_data()
    points = [
        point
        for resource in (data.resource_metrics if data is not None else ())
        for scope in resource.scope_metrics
        for metric in scope.metrics
        for point in metric.data.data_points
    ]
    assert points == []


@pytest.mark.slow
@pytest.mark.parametrize("extra", ["prometheus", "otel"])
def test_without_the_extra_the_error_names_it(extra: str) -> None:
    package = {"prometheus": "prometheus_client", "otel": "opentelemetry"}[extra]
    code = f"""
import sys
sys.modules[{package!r}] = None
try:
    import queuehint.metrics.{extra}
except ImportError as error:
    print(type(error).__name__, error)
"""
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert said.startswith("MissingExtraError") and f"queuehint[{extra}]" in said
