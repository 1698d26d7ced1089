"""Metrics and spans for OpenTelemetry: observable instruments, histograms of events, traces from enqueue to handler."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from queuehint.errors import MissingExtraError
from queuehint.metrics.measures import (
    BUCKETS_S,
    FRESH_S,
    MEASURES,
    TIMED,
    TIMEOUT_S,
    Measure,
    Source,
    pool_label,
    timings,
)
from queuehint.worker.failures import qualified_name

try:
    from opentelemetry import context, metrics, trace
    from opentelemetry.metrics import CallbackOptions, Observation
    from opentelemetry.trace import Link, SpanKind, Status, StatusCode
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ImportError:
    raise MissingExtraError("otel", "metrics and spans for OpenTelemetry") from None

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from datetime import timedelta

    from opentelemetry.metrics import Meter
    from opentelemetry.trace import Span, Tracer

    from queuehint.client.job import Job
    from queuehint.handlers.context import JobContext
    from queuehint.scheduler.scheduler import Scheduler
    from queuehint.values.event import Event
    from queuehint.values.outcome import Outcome

PREFIX = "queuehint."
NAMESPACE = "queuehint.namespace"


def measure(
    scheduler: Scheduler,
    *,
    meter: Meter | None = None,
    timeout: float | timedelta = TIMEOUT_S,
    fresh: float | timedelta = FRESH_S,
) -> None:
    """
    Register an observable instrument for each count of the store. None has a value while the store is unreachable.

    Args:
        meter: by default that of the global provider.
        timeout: how long an answer of the store is waited for, a timedelta or seconds.
        fresh: how long an answer, also that there is none, is given again.

    .. versionadded:: 1.0.0
    """
    meter = meter or metrics.get_meter("queuehint")
    source = Source(scheduler, timeout=timeout, fresh=fresh)
    for each in MEASURES:
        make = meter.create_observable_counter if each.is_counter else meter.create_observable_gauge
        make(PREFIX + each.name, [_callback(source, each, scheduler.namespace)], each.unit or "1", each.help)


def _callback(source: Source, each: Measure, namespace: str) -> Callable[[CallbackOptions], Iterator[Observation]]:
    def read(_options: CallbackOptions) -> Iterator[Observation]:
        answer = source.answer()
        for value, number in each.read(answer).items() if answer is not None else ():
            said = {f"{PREFIX}{each.label}": value} if each.label else {}
            yield Observation(number, {NAMESPACE: namespace, **said})

    return read


def observe(scheduler: Scheduler, *, meter: Meter | None = None) -> None:
    """
    Record histograms, from events, of how long jobs wait at their places and how long they run.

    They grow while the scheduler's listeners are told of events: while a worker runs, or inside `Scheduler.listening`.
    Each process that does so hears of the jobs of all: do it in one.
    """
    meter = meter or metrics.get_meter("queuehint")
    waits = meter.create_histogram(
        PREFIX + "job.wait.duration",
        "s",
        "How long jobs have waited at their places until they were started.",
        explicit_bucket_boundaries_advisory=BUCKETS_S,
    )
    runs = meter.create_histogram(
        PREFIX + "job.run.duration",
        "s",
        "How long attempts have run.",
        explicit_bucket_boundaries_advisory=BUCKETS_S,
    )

    def tell(event: Event) -> None:
        said = {NAMESPACE: scheduler.namespace, PREFIX + "pool": pool_label(event.pool)}
        for what, seconds in timings(event):
            if what == "wait":
                waits.record(seconds, said)
            else:
                runs.record(seconds, {**said, PREFIX + "outcome": event.kind.value})

    scheduler.on(TIMED, tell)


def trace_jobs(scheduler: Scheduler, *, tracer: Tracer | None = None) -> None:
    """
    Trace jobs from their enqueue to each attempt. Call it in the processes of producers and workers.

    A job that this process enqueues has a span, ``create <task>``, below the current one, and its context among the
    job's headers: ``traceparent``, and ``tracestate`` if there is one. Each attempt of this process runs inside a span
    of the same trace, ``process <task>``, with status error if the attempt fails; later attempts link to the first span
    too. What the handler does is below it, with the jobs that it enqueues. So is a span for each step that is made,
    ``step <name>``, with its storing; one whose result was stored before has none.

    A job without such a header, as one that a schedule fires, begins a trace with each attempt.

    Args:
        tracer: by default that of the global provider.
    """
    tracer = tracer or trace.get_tracer("queuehint")
    propagator = TraceContextTextMapPropagator()

    def create(job: Job[..., Any]) -> dict[str, str]:
        said = {
            "messaging.system": "queuehint",
            "messaging.operation.type": "create",
            "messaging.destination.name": scheduler.namespace,
            PREFIX + "task": job.name,
        }
        carrier: dict[str, str] = {}
        with tracer.start_as_current_span(f"create {job.name}", kind=SpanKind.PRODUCER, attributes=said):
            propagator.inject(carrier)
        return carrier

    open_spans: dict[tuple[str, int], tuple[Span, Any]] = {}

    def begin(job: JobContext) -> None:
        said: dict[str, str | int] = {
            "messaging.system": "queuehint",
            "messaging.operation.type": "process",
            "messaging.message.id": job.id,
            "messaging.destination.name": scheduler.namespace,
            PREFIX + "task": job.task,
            PREFIX + "attempt": job.attempt,
        }
        created = propagator.extract(job.headers)
        origin = trace.get_current_span(created).get_span_context()
        links = [Link(origin)] if origin.is_valid and job.attempt > 1 else []
        kind = SpanKind.CONSUMER
        span = tracer.start_span(f"process {job.task}", created, kind=kind, attributes=said, links=links)
        open_spans[job.id, job.token] = span, context.attach(trace.set_span_in_context(span))

    def end(job: JobContext, outcome: Outcome) -> None:
        if (opened := open_spans.pop((job.id, job.token), None)) is None:
            return
        span, token = opened
        context.detach(token)
        span.set_attribute(PREFIX + "outcome", outcome.kind.value)
        if outcome.error is not None:
            span.set_status(Status(StatusCode.ERROR, outcome.error.type))
        span.end()

    @contextmanager
    def step(job: JobContext, name: str, began_ns: int | None) -> Iterator[None]:
        opened = open_spans.get((job.id, job.token))
        parent = None if opened is None else trace.set_span_in_context(opened[0])
        said = {PREFIX + "step": name, PREFIX + "task": job.task}
        with tracer.start_as_current_span(
            f"step {name}",
            parent,
            attributes=said,
            start_time=began_ns,
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            try:
                yield
            except BaseException as error:
                span.set_status(Status(StatusCode.ERROR, qualified_name(error)))
                raise

    scheduler.headers_from(create)
    scheduler.step_hooks.append(step)
    scheduler.before_job(begin)
    scheduler.after_job(end)
