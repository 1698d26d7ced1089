"""
What it takes to prove ordering rules: of handlers, of production logs, of backends, of queues of any make.

Needs the extra ``queuehint[testing]``, but for what reads traces. A name is imported when it is first used, so a
program that asks for one part carries no other.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from queuehint.testing.contract import BackendConformance
    from queuehint.testing.interleaving import SerialEquivalence, check_serial_equivalence
    from queuehint.testing.model import ReferenceModel
    from queuehint.testing.simulation import FaultPlan, SimulationError, simulate_engine, simulate_gates
    from queuehint.testing.trace import (
        Fault,
        InvalidTraceError,
        Rule,
        TraceError,
        TraceEvent,
        TraceJob,
        TraceReport,
        check_trace,
        examine_trace,
        find_faults,
    )

_MODULES: dict[str, str] = {
    "BackendConformance": "contract",
    "Fault": "trace",
    "FaultPlan": "simulation",
    "InvalidTraceError": "trace",
    "ReferenceModel": "model",
    "Rule": "trace",
    "SerialEquivalence": "interleaving",
    "TraceError": "trace",
    "TraceEvent": "trace",
    "TraceJob": "trace",
    "TraceReport": "trace",
    "check_serial_equivalence": "interleaving",
    "check_trace": "trace",
    "examine_trace": "trace",
    "find_faults": "trace",
    "SimulationError": "simulation",
    "simulate_engine": "simulation",
    "simulate_gates": "simulation",
}
"""In which module of this package each public name is."""

__all__ = [
    "BackendConformance",
    "Fault",
    "FaultPlan",
    "InvalidTraceError",
    "ReferenceModel",
    "Rule",
    "SerialEquivalence",
    "SimulationError",
    "TraceError",
    "TraceEvent",
    "TraceJob",
    "TraceReport",
    "check_serial_equivalence",
    "check_trace",
    "examine_trace",
    "find_faults",
    "simulate_engine",
    "simulate_gates",
]


def __getattr__(name: str) -> Any:
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{module}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})
