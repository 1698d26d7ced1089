"""
queuehint: a job scheduler that knows places.

Two jobs conflict when the path of one is a prefix of the other's; conflicting jobs run one at a time in the order
they were queued, all others in parallel.
"""

import logging
import sys

from queuehint.backends.base import Backend, open_backend
from queuehint.clock import Clock, FakeClock, SystemClock
from queuehint.context import Children, Discard, Fail, JobContext, Retry, Snooze
from queuehint.errors import (
    BackendDeniedError,
    BackendError,
    BackendFullError,
    BackendInUseError,
    BackendUnavailableError,
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
    ResultTimeoutError,
    ScheduleChangedError,
    ScheduleNotFoundError,
    StaleRecordError,
    TemplateError,
    UnknownDependencyError,
    WouldDeadlockError,
)
from queuehint.event_streams import EventStream, EventStreamSync
from queuehint.events import Event, EventKind, Missed
from queuehint.exclusive import Hold
from queuehint.flow import Flow
from queuehint.flow_graph import FlowGraph
from queuehint.flow_handle import FlowHandle, FlowState
from queuehint.flow_nodes import FlowGroup, Node
from queuehint.handles import JobHandle
from queuehint.hint import Claim, parse_key, queue_key
from queuehint.jobs import Job
from queuehint.limits import Limit, LimitState
from queuehint.listening import ListenerState
from queuehint.operations import ANYONE
from queuehint.payload import Codec, JsonCodec
from queuehint.policy import Backoff, Policy, Retention
from queuehint.record_dialogues import RecordPage
from queuehint.records import (
    Dependency,
    JobError,
    JobRecord,
    JobSpec,
    JobState,
    Outcome,
    OutcomeKind,
    Priority,
    Progress,
)
from queuehint.references import template
from queuehint.reports import Delays, EdgeStats, FlowStats, Reason, ReasonKind, Stats, TreeNode
from queuehint.schedule import Recurrence, Schedule
from queuehint.scheduler import Scheduler
from queuehint.worker import Worker

__version__ = "0.1.0"

logging.getLogger("queuehint").addHandler(logging.NullHandler())

__all__ = [
    "ANYONE",
    "Backend",
    "BackendDeniedError",
    "BackendError",
    "BackendFullError",
    "BackendInUseError",
    "BackendUnavailableError",
    "Backoff",
    "Children",
    "Claim",
    "Clock",
    "Codec",
    "CorruptStateError",
    "CycleError",
    "Delays",
    "Dependency",
    "DependencyError",
    "Discard",
    "DrainStalledError",
    "DrainTimeoutError",
    "DuplicateFlowError",
    "DuplicateJobError",
    "EdgeStats",
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
    "PayloadError",
    "Policy",
    "Priority",
    "Progress",
    "QueueFullError",
    "QueueHintError",
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
    "Snooze",
    "StaleRecordError",
    "Stats",
    "SystemClock",
    "TemplateError",
    "TreeNode",
    "UnknownDependencyError",
    "Worker",
    "WouldDeadlockError",
    "open_backend",
    "parse_key",
    "queue_key",
    "template",
]

# Types are registered with Hypothesis by its plug-in, `_queuehint_hypothesis`, unless it was imported before these.
if "hypothesis" in sys.modules:
    from queuehint.testing.registration import register

    register()
    del register
