"""
The testing kit: proofs of ordering rules for handlers, production logs, backends and other queues.

Needs the extra ``queuehint[testing]``, except the part for traces. A name is imported when it is first used, so a
program that uses one part loads no other. A part that needs Hypothesis or pytest raises `MissingExtraError` without.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from queuehint.errors import MissingExtraError

if TYPE_CHECKING:
    from queuehint.testing.assertions import (
        Wanted,
        all_enqueued,
        all_enqueued_sync,
        assert_enqueued,
        assert_enqueued_sync,
        refute_enqueued,
        refute_enqueued_sync,
    )
    from queuehint.testing.backend_queue import BackendQueue
    from queuehint.testing.contract import BackendConformance
    from queuehint.testing.draining import TooManyRunsError, drain, drain_sync, on_memory
    from queuehint.testing.interleaving import SerialEquivalence, check_serial_equivalence
    from queuehint.testing.intervals import (
        IntervalLog,
        IntervalRecorder,
        JobIntervals,
        RunInterval,
        check_intervals,
        examine_intervals,
        read_intervals,
    )
    from queuehint.testing.model import ReferenceModel
    from queuehint.testing.queue_check import QueueFaultError, QueueReport, check_queue
    from queuehint.testing.queue_story import QueueUnderTest
    from queuehint.testing.relaying import relay_now, relay_now_sync
    from queuehint.testing.scripted import ScriptedBackend
    from queuehint.testing.simulation import (
        FaultPlan,
        Simulation,
        SimulationError,
        simulate,
    )
    from queuehint.testing.state_machine import BackendStateMachine
    from queuehint.testing.strategies import (
        backoffs,
        claims,
        fault_plans,
        hints,
        job_graphs,
        jobs,
        operations,
        policies,
        recurrences,
        schedules,
    )
    from queuehint.testing.trace import (
        Fault,
        InvalidTraceError,
        Rule,
        Trace,
        TraceError,
        TraceEvent,
        TraceJob,
        TraceReport,
        check_trace,
        examine_trace,
        find_faults,
        read_trace,
        trace_lines,
    )
    from queuehint.testing.wakes.story import WaitingQueue

_MODULES: dict[str, str] = {
    "BackendConformance": "contract",
    "BackendQueue": "backend_queue",
    "BackendStateMachine": "state_machine",
    "Fault": "trace",
    "FaultPlan": "simulation",
    "IntervalLog": "intervals",
    "IntervalRecorder": "intervals",
    "InvalidTraceError": "trace",
    "JobIntervals": "intervals",
    "QueueFaultError": "queue_check",
    "QueueReport": "queue_check",
    "QueueUnderTest": "queue_story",
    "ReferenceModel": "model",
    "Rule": "trace",
    "RunInterval": "intervals",
    "ScriptedBackend": "scripted",
    "SerialEquivalence": "interleaving",
    "Simulation": "simulation",
    "SimulationError": "simulation",
    "TooManyRunsError": "draining",
    "Trace": "trace",
    "TraceError": "trace",
    "TraceEvent": "trace",
    "TraceJob": "trace",
    "TraceReport": "trace",
    "WaitingQueue": "wakes.story",
    "Wanted": "assertions",
    "all_enqueued": "assertions",
    "all_enqueued_sync": "assertions",
    "assert_enqueued": "assertions",
    "assert_enqueued_sync": "assertions",
    "backoffs": "strategies",
    "check_intervals": "intervals",
    "check_queue": "queue_check",
    "check_serial_equivalence": "interleaving",
    "check_trace": "trace",
    "claims": "strategies",
    "drain": "draining",
    "drain_sync": "draining",
    "examine_intervals": "intervals",
    "examine_trace": "trace",
    "fault_plans": "strategies",
    "find_faults": "trace",
    "hints": "strategies",
    "job_graphs": "strategies",
    "jobs": "strategies",
    "on_memory": "draining",
    "operations": "strategies",
    "policies": "strategies",
    "read_intervals": "intervals",
    "read_trace": "trace",
    "recurrences": "strategies",
    "refute_enqueued": "assertions",
    "refute_enqueued_sync": "assertions",
    "relay_now": "relaying",
    "relay_now_sync": "relaying",
    "schedules": "strategies",
    "simulate": "simulation",
    "trace_lines": "trace",
}
"""In which module of this package each public name is."""

__all__ = [
    "BackendConformance",
    "BackendQueue",
    "BackendStateMachine",
    "Fault",
    "FaultPlan",
    "IntervalLog",
    "IntervalRecorder",
    "InvalidTraceError",
    "JobIntervals",
    "QueueFaultError",
    "QueueReport",
    "QueueUnderTest",
    "ReferenceModel",
    "Rule",
    "RunInterval",
    "ScriptedBackend",
    "SerialEquivalence",
    "Simulation",
    "SimulationError",
    "TooManyRunsError",
    "Trace",
    "TraceError",
    "TraceEvent",
    "TraceJob",
    "TraceReport",
    "WaitingQueue",
    "Wanted",
    "all_enqueued",
    "all_enqueued_sync",
    "assert_enqueued",
    "assert_enqueued_sync",
    "backoffs",
    "check_intervals",
    "check_queue",
    "check_serial_equivalence",
    "check_trace",
    "claims",
    "drain",
    "drain_sync",
    "examine_intervals",
    "examine_trace",
    "fault_plans",
    "find_faults",
    "hints",
    "job_graphs",
    "jobs",
    "on_memory",
    "operations",
    "policies",
    "read_intervals",
    "read_trace",
    "recurrences",
    "refute_enqueued",
    "refute_enqueued_sync",
    "relay_now",
    "relay_now_sync",
    "schedules",
    "simulate",
    "trace_lines",
]


def __getattr__(name: str) -> Any:
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(f"{__name__}.{module}"), name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in {"hypothesis", "pytest"}:
            raise
        raise MissingExtraError("testing", f"{__name__}.{name} and similar names") from error


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})
