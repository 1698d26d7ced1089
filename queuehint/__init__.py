"""
queuehint: a job queue where order follows a path.

Two jobs conflict when the path of one is a prefix of the other's; conflicting jobs run one at a time in the order
they were queued, all others in parallel.

A name is imported when it is first used, so that a program which uses one part loads no other.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from queuehint.backends.base import Backend, open_backend
    from queuehint.client.flows.flow import Flow
    from queuehint.client.flows.graph import FlowGraph
    from queuehint.client.flows.handle import FlowHandle, FlowState
    from queuehint.client.flows.nodes import FlowGroup, Node
    from queuehint.client.handle import JobHandle
    from queuehint.client.job import Job
    from queuehint.client.signals import Signal
    from queuehint.client.transactions.transaction import Transaction
    from queuehint.clock import Clock, FakeClock, SystemClock
    from queuehint.errors import (
        BackendDeniedError,
        BackendError,
        BackendFullError,
        BackendInUseError,
        BackendUnavailableError,
        ConcurrentSubmissionError,
        CorruptStateError,
        CycleError,
        DependencyError,
        DrainStalledError,
        DrainTimeoutError,
        DuplicateFlowError,
        DuplicateJobError,
        FlowNotFoundError,
        HandlerError,
        InvalidHintError,
        InvalidHintTypeError,
        InvalidJobError,
        InvalidJobTypeError,
        InvalidTransitionError,
        JobCanceledError,
        JobFailedError,
        JobNotFoundError,
        LeaseLostError,
        MissingExtraError,
        OutcomeUnknownError,
        PathClosedError,
        PayloadError,
        QueueFullError,
        QueueHintError,
        QueueHintWarning,
        ResultTimeoutError,
        ScheduleChangedError,
        ScheduleNotFoundError,
        SignalTimeoutError,
        StaleRecordError,
        TemplateError,
        UnknownDependencyError,
        UnknownToReleaseError,
        WouldDeadlockError,
    )
    from queuehint.handlers.calls import Call
    from queuehint.handlers.codec import Codec, IdentifyingCodec, JsonCodec
    from queuehint.handlers.codecs.blobs import BlobCodec, BlobStore
    from queuehint.handlers.codecs.directory import DirectoryStore
    from queuehint.handlers.codecs.encrypted import EncryptedCodec
    from queuehint.handlers.context import Children, Discard, Fail, JobContext, Retry, Snooze
    from queuehint.handlers.references import template
    from queuehint.handlers.remote import ProcessDiedError
    from queuehint.operations import ANYONE, PathReasons, PlacedJob
    from queuehint.scheduler.event_streams import EventStream, EventStreamSync
    from queuehint.scheduler.holds.hold import Hold
    from queuehint.scheduler.listening import ListenerState
    from queuehint.scheduler.records.queries import RecordPage
    from queuehint.scheduler.scheduler import Scheduler
    from queuehint.values.event import Event, EventKind, Missed
    from queuehint.values.hint import Claim, conflict, parse_key, queue_key
    from queuehint.values.ids import new_id
    from queuehint.values.limit import Limit, LimitState
    from queuehint.values.outcome import JobError, Outcome, OutcomeKind, Progress
    from queuehint.values.policy import Backoff, Policy, Retention
    from queuehint.values.record import Attempt, JobRecord, JobState, StepInfo
    from queuehint.values.report import (
        Delays,
        EdgeStats,
        FlowStats,
        PauseState,
        Reason,
        ReasonKind,
        Stats,
        TreeNode,
        WorkerInfo,
    )
    from queuehint.values.schedule import Recurrence, Schedule
    from queuehint.values.spec import Dependency, JobSpec, Priority
    from queuehint.worker.worker import Worker

__version__ = "1.0.0rc1"

__all__ = [
    "ANYONE",
    "Attempt",
    "Backend",
    "BackendDeniedError",
    "BackendError",
    "BackendFullError",
    "BackendInUseError",
    "BackendUnavailableError",
    "Backoff",
    "BlobCodec",
    "BlobStore",
    "Call",
    "Children",
    "Claim",
    "Clock",
    "Codec",
    "ConcurrentSubmissionError",
    "CorruptStateError",
    "CycleError",
    "Delays",
    "Dependency",
    "DependencyError",
    "DirectoryStore",
    "Discard",
    "DrainStalledError",
    "DrainTimeoutError",
    "DuplicateFlowError",
    "DuplicateJobError",
    "EdgeStats",
    "EncryptedCodec",
    "Event",
    "EventKind",
    "EventStream",
    "EventStreamSync",
    "Fail",
    "FakeClock",
    "Flow",
    "FlowGraph",
    "FlowGroup",
    "FlowHandle",
    "FlowNotFoundError",
    "FlowState",
    "FlowStats",
    "HandlerError",
    "Hold",
    "IdentifyingCodec",
    "InvalidHintError",
    "InvalidHintTypeError",
    "InvalidJobError",
    "InvalidJobTypeError",
    "InvalidTransitionError",
    "Job",
    "JobCanceledError",
    "JobContext",
    "JobError",
    "JobFailedError",
    "JobHandle",
    "JobNotFoundError",
    "JobRecord",
    "JobSpec",
    "JobState",
    "JsonCodec",
    "LeaseLostError",
    "Limit",
    "LimitState",
    "ListenerState",
    "Missed",
    "MissingExtraError",
    "Node",
    "Outcome",
    "OutcomeKind",
    "OutcomeUnknownError",
    "PathClosedError",
    "PathReasons",
    "PauseState",
    "PayloadError",
    "PlacedJob",
    "Policy",
    "Priority",
    "ProcessDiedError",
    "Progress",
    "QueueFullError",
    "QueueHintError",
    "QueueHintWarning",
    "Reason",
    "ReasonKind",
    "RecordPage",
    "Recurrence",
    "ResultTimeoutError",
    "Retention",
    "Retry",
    "Schedule",
    "ScheduleChangedError",
    "ScheduleNotFoundError",
    "Scheduler",
    "Signal",
    "SignalTimeoutError",
    "Snooze",
    "StaleRecordError",
    "Stats",
    "StepInfo",
    "SystemClock",
    "TemplateError",
    "Transaction",
    "TreeNode",
    "UnknownDependencyError",
    "UnknownToReleaseError",
    "Worker",
    "WorkerInfo",
    "WouldDeadlockError",
    "conflict",
    "new_id",
    "open_backend",
    "parse_key",
    "queue_key",
    "template",
]

_NAMES: dict[str, tuple[str, ...]] = {
    "backends.base": ("Backend", "open_backend"),
    "client.flows.flow": ("Flow",),
    "client.flows.graph": ("FlowGraph",),
    "client.flows.handle": ("FlowHandle", "FlowState"),
    "client.flows.nodes": ("FlowGroup", "Node"),
    "client.handle": ("JobHandle",),
    "client.job": ("Job",),
    "client.signals": ("Signal",),
    "client.transactions.transaction": ("Transaction",),
    "clock": ("Clock", "FakeClock", "SystemClock"),
    "errors": (
        "BackendDeniedError",
        "BackendError",
        "BackendFullError",
        "BackendInUseError",
        "BackendUnavailableError",
        "ConcurrentSubmissionError",
        "CorruptStateError",
        "CycleError",
        "DependencyError",
        "DrainStalledError",
        "DrainTimeoutError",
        "DuplicateFlowError",
        "DuplicateJobError",
        "FlowNotFoundError",
        "HandlerError",
        "InvalidHintError",
        "InvalidHintTypeError",
        "InvalidJobError",
        "InvalidJobTypeError",
        "InvalidTransitionError",
        "JobCanceledError",
        "JobFailedError",
        "JobNotFoundError",
        "LeaseLostError",
        "MissingExtraError",
        "OutcomeUnknownError",
        "PathClosedError",
        "PathReasons",
        "PayloadError",
        "QueueFullError",
        "QueueHintError",
        "QueueHintWarning",
        "ResultTimeoutError",
        "ScheduleChangedError",
        "ScheduleNotFoundError",
        "SignalTimeoutError",
        "StaleRecordError",
        "TemplateError",
        "UnknownDependencyError",
        "UnknownToReleaseError",
        "WouldDeadlockError",
    ),
    "handlers.calls": ("Call",),
    "handlers.codec": ("Codec", "IdentifyingCodec", "JsonCodec"),
    "handlers.codecs.blobs": ("BlobCodec", "BlobStore"),
    "handlers.codecs.directory": ("DirectoryStore",),
    "handlers.codecs.encrypted": ("EncryptedCodec",),
    "handlers.context": ("Children", "Discard", "Fail", "JobContext", "Retry", "Snooze"),
    "handlers.references": ("template",),
    "handlers.remote": ("ProcessDiedError",),
    "operations": ("ANYONE", "PathReasons", "PlacedJob"),
    "scheduler.event_streams": ("EventStream", "EventStreamSync"),
    "scheduler.holds.hold": ("Hold",),
    "scheduler.listening": ("ListenerState",),
    "scheduler.records.queries": ("RecordPage",),
    "scheduler.scheduler": ("Scheduler",),
    "values.event": ("Event", "EventKind", "Missed"),
    "values.hint": ("Claim", "conflict", "parse_key", "queue_key"),
    "values.ids": ("new_id",),
    "values.limit": ("Limit", "LimitState"),
    "values.outcome": ("JobError", "Outcome", "OutcomeKind", "Progress"),
    "values.policy": ("Backoff", "Policy", "Retention"),
    "values.record": ("Attempt", "JobRecord", "JobState", "StepInfo"),
    "values.report": (
        "Delays",
        "EdgeStats",
        "FlowStats",
        "PauseState",
        "Reason",
        "ReasonKind",
        "Stats",
        "TreeNode",
        "WorkerInfo",
    ),
    "values.schedule": ("Recurrence", "Schedule"),
    "values.spec": ("Dependency", "JobSpec", "Priority"),
    "worker.worker": ("Worker",),
}
"""The public names by the module that each is in."""
_ROOMS = frozenset({"errors", "metrics", "operations", "testing"})
"""Modules that are public by themselves."""
_MODULES = {name: module for module, names in _NAMES.items() for name in names}


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_ROOMS})


if not TYPE_CHECKING:  # a checker would take any name for one of ours

    def __getattr__(name: str) -> object:
        if name in _ROOMS:
            return import_module(f"{__name__}.{name}")
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
        return value
