"""
Traces: the history of any queue, checked against the rules of order.

Needs neither Hypothesis nor pytest.
"""

from __future__ import annotations

from queuehint.testing.trace.check import check_trace, examine_trace, find_faults
from queuehint.testing.trace.drawings import mermaid, perfetto
from queuehint.testing.trace.faults import Fault, Rule, TraceError, TraceReport
from queuehint.testing.trace.lines import Trace, read_trace, trace_lines
from queuehint.testing.trace.values import InvalidTraceError, TraceEvent, TraceJob

__all__ = [
    "Fault",
    "InvalidTraceError",
    "Rule",
    "Trace",
    "TraceError",
    "TraceEvent",
    "TraceJob",
    "TraceReport",
    "check_trace",
    "examine_trace",
    "find_faults",
    "mermaid",
    "perfetto",
    "read_trace",
    "trace_lines",
]
