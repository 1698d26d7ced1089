"""Metrics for Prometheus: a collector that queries the store at each scrape, and histograms made of events."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from queuehint.errors import MissingExtraError
from queuehint.metrics.measures import (
    BUCKETS_S,
    FRESH_S,
    MEASURES,
    TIMED,
    TIMEOUT_S,
    Answer,
    Measure,
    Source,
    pool_label,
    timings,
)
from queuehint.values.event import Missed

try:
    from prometheus_client import REGISTRY, CollectorRegistry, Counter, Histogram
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
    from prometheus_client.registry import Collector
except ImportError:
    raise MissingExtraError("prometheus", "metrics for Prometheus") from None

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from datetime import timedelta

    from queuehint.scheduler.scheduler import Scheduler
    from queuehint.values.event import Event

PREFIX = "queuehint_"


def name_of(measure: Measure) -> str:
    """
    Return the name of a measure, without the ``_total`` that samples of counters end in.

    >>> [name_of(measure) for measure in MEASURES][:2]
    ['queuehint_jobs', 'queuehint_jobs_ready']
    """
    return PREFIX + measure.name.replace(".", "_") + ("_seconds" if measure.unit == "s" else "")


class SchedulerCollector(Collector):
    """
    The counts of the store, for a registry: ``REGISTRY.register(SchedulerCollector(sched))``.

    ``queuehint_up`` is 0, and there is nothing else, while the store does not answer.

    Args:
        scheduler: whose jobs; the label ``namespace`` tells several from each other.
        timeout: how long a scrape waits for the store, a timedelta or seconds.
        fresh: how long an answer, also that there is none, is given again.

    .. versionadded:: 1.0.0
    """

    def __init__(
        self, scheduler: Scheduler, *, timeout: float | timedelta = TIMEOUT_S, fresh: float | timedelta = FRESH_S
    ) -> None:
        self._namespace = scheduler.namespace
        self._source = Source(scheduler, timeout=timeout, fresh=fresh)

    def describe(self) -> Iterator[Metric]:
        """Describe the metrics without asking the store."""
        yield self._up(0)
        yield from [self._family(measure, None) for measure in MEASURES]

    def collect(self) -> Iterator[Metric]:
        """Query the store."""
        answer = self._source.answer()
        yield self._up(answer is not None)
        if answer is not None:
            yield from [self._family(measure, answer) for measure in MEASURES]

    def _up(self, value: int) -> Metric:
        family = GaugeMetricFamily(PREFIX + "up", "Whether the store answers.", labels=["namespace"])
        family.add_metric([self._namespace], value)
        return family

    def _family(self, measure: Measure, answer: Answer | None) -> Metric:
        labels = ["namespace", *([measure.label] if measure.label else [])]
        make: Callable[..., Any] = CounterMetricFamily if measure.is_counter else GaugeMetricFamily
        family: Any = make(name_of(measure), measure.help, labels=labels)
        for value, number in measure.read(answer).items() if answer is not None else ():
            family.add_metric([self._namespace, *([value] if measure.label else [])], number)
        return family  # type: ignore[no-any-return]


def observe(scheduler: Scheduler, *, registry: CollectorRegistry | None = REGISTRY) -> None:
    """
    Record histograms, from events, of how long jobs wait at their places and how long they run.

    They grow while the scheduler's listeners are told of events: while a worker runs, or inside `Scheduler.listening`.
    Each process that does so hears of the jobs of all: do it in one, or look at one.
    """
    wait = Histogram(
        PREFIX + "job_wait_seconds",
        "How long jobs have waited at their places until they were started.",
        ["namespace", "pool"],
        registry=registry,
        buckets=BUCKETS_S,
    )
    run = Histogram(
        PREFIX + "job_run_seconds",
        "How long attempts have run.",
        ["namespace", "pool", "outcome"],
        registry=registry,
        buckets=BUCKETS_S,
    )
    missed = Counter(PREFIX + "events_missed", "Events that these histograms lack.", ["namespace"], registry=registry)
    missed.labels(scheduler.namespace)

    def tell(event: Event | Missed) -> None:
        if isinstance(event, Missed):
            missed.labels(scheduler.namespace).inc(event.count)
            return
        for what, seconds in timings(event):
            if what == "wait":
                wait.labels(scheduler.namespace, pool_label(event.pool)).observe(seconds)
            else:
                run.labels(scheduler.namespace, pool_label(event.pool), event.kind.value).observe(seconds)

    scheduler.on([*TIMED, "missed"], tell)
