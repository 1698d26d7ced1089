"""Base class of operations, verdicts of replies, and size limits."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, TypeVar, get_args

import attrs

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = [
    "AGAIN_MAX",
    "ANYONE",
    "BLOCKS_LOOKED_AT_MAX",
    "BLOCK_COUNTS_AS",
    "BUDGET",
    "BYTES_PER_SUBMISSION_MAX",
    "EDGES_AT_ONCE",
    "EDGES_PER_SUBMISSION_MAX",
    "EDGE_UNITS",
    "EVENTS_LOOKED_AT_MAX",
    "EVENTS_MAX",
    "EVENT_FILTERS_MAX",
    "FETCH_BYTES_MAX",
    "FETCH_MAX",
    "FLOW_JOBS_MAX",
    "GATES_PER_SUBMISSION_MAX",
    "GRANTS_MAX",
    "IDS_MAX",
    "JOBS_AT_ONCE",
    "JOBS_PER_CALL_MAX",
    "JOBS_PER_SUBMISSION_MAX",
    "LEASES_AT_ONCE",
    "LEASES_MAX",
    "LIST_MAX",
    "NOTES_MAX",
    "POOLS_MAX",
    "RECORDS_COUNTED_MAX",
    "RECORDS_LOOKED_AT_MAX",
    "RECORDS_PER_BLOCK",
    "RELEASE_LENGTH_MAX",
    "SCHEDULE_LIST_MAX",
    "SERVED_MAX",
    "SETTLEMENTS_MAX",
    "SHARED_LIST_MAX",
    "STAGED_FRESH_MS",
    "STAGED_KEPT_MS",
    "USERS_NAMED_MAX",
    "WEIGHTS_MAX",
    "WEIGHT_MAX",
    "WORKERS_MAX",
    "WORKER_SEEN_MS",
    "Noted",
    "Operation",
    "Reply",
    "Verdict",
]

JOBS_PER_SUBMISSION_MAX = 1000
GATES_PER_SUBMISSION_MAX = 16_000
EDGES_PER_SUBMISSION_MAX = 4000
BYTES_PER_SUBMISSION_MAX = 4 << 20
"""Arguments of together more than this are sent in parts: each has to be sent, whole, before a connection times out."""
FLOW_JOBS_MAX = 100_000
JOBS_PER_CALL_MAX = 1_000_000
FETCH_MAX = 100
FETCH_BYTES_MAX = 4 << 20
"""Results of together more than this come in several replies."""
STAGED_KEPT_MS = 600_000
"""How long the parts of a submission wait for its `Commit`, counted from the last part."""
STAGED_FRESH_MS = 5_000
"""How long after its last part a submission counts as under way: until then no younger one takes its hidden jobs."""
SETTLEMENTS_MAX = 1000
GRANTS_MAX = 1000
RELEASE_LENGTH_MAX = 16
LEASES_MAX = 16_000
JOBS_AT_ONCE = 128
"""As many jobs as one request of the library settles, claims or orders something of: no Redis is held up for 20 ms."""
LEASES_AT_ONCE = 1000
"""As many leases as one request of the library renews, for the same reason."""
NOTES_MAX = 1000
LIST_MAX = 200
RECORDS_PER_BLOCK = 1024
"""Records of so many consecutive numbers are indexed together."""
BLOCKS_LOOKED_AT_MAX = 2048
RECORDS_LOOKED_AT_MAX = 4000
RECORDS_COUNTED_MAX = 1024
BLOCK_COUNTS_AS = 8
"""A block whose records are counted together costs as much as so many that are looked at one by one."""
SCHEDULE_LIST_MAX = 100
SHARED_LIST_MAX = 1000
"""Keys of shared values that one question reads, those whose time is over too."""
IDS_MAX = 1000
AGAIN_MAX = 100
"""How many jobs that are over are run again at once."""
EVENTS_MAX = 1000
EVENTS_LOOKED_AT_MAX = 2000
"""How many events are compared with filters at once."""
EVENT_FILTERS_MAX = 1000
POOLS_MAX = 64
USERS_NAMED_MAX = 64
SERVED_MAX = 1000
"""Pools times users that one worker may ask for: it is woken for each of these pairs."""
WEIGHT_MAX = 100
WEIGHTS_MAX = 1000
WORKERS_MAX = 1000
"""So many workers are known at once; of more, the one that has been silent for longest is forgotten."""
WORKER_SEEN_MS = 60_000
"""How long a worker is known after it was heard of last, unless it says that it leaves."""
ANYONE: Final = "*"
"""In place of users to help: all of them."""
BUDGET = 1000
"""Units of following work of one operation: as many as no Redis is held up by for 20 ms, the same for all backends."""
EDGE_UNITS = 3
"""Units for an edge that a commit makes."""
EDGES_AT_ONCE = 50
"""How many edges of a job a commit makes as one piece of work."""

Reply = TypeVar("Reply", covariant=True)  # noqa: PLC0105 - one name for the one variable


class Operation(Generic[Reply]):
    """A request to a backend. `Reply` is the type of its reply."""

    __slots__ = ()
    reply_class: ClassVar[Any]
    """The class of its reply."""
    is_question: ClassVar[bool] = False
    """It changes nothing: it is not journaled, and a read-only script may answer it."""
    is_of_newest: ClassVar[bool] = False
    """A question whose answer has to count all that was committed before it was asked."""
    is_repeatable: ClassVar[bool] = False
    """It changes something, and may be done twice: a repeat reads again, so that it needs no receipt."""

    is_claim: ClassVar[bool] = False
    """Its reply may have grants."""
    is_for_inbox: ClassVar[bool] = False
    """A producer may write it in a transaction of the application's: alone, or as part of one submission."""

    @property
    def named(self) -> Iterable[str]:
        """The ids of jobs that have to be there already for what it changes."""
        return ()

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        (cls.reply_class,) = get_args(cls.__orig_bases__[0])  # type: ignore[attr-defined]


class Verdict(StrEnum):
    """Result of one item of a batch."""

    DONE = "done"
    REQUESTED = "requested"
    """The job runs: its worker is asked to stop it; a settlement "finished" still wins."""
    REFUSED = "refused"
    """The job is in a state this cannot be done from."""
    UNKNOWN = "unknown"
    """No such job."""
    LOST = "lost"
    """The token is not that of the job's newest grant; nothing was changed."""
    CANCELED = "canceled"
    """Renewed, and asked to stop."""
    STALE = "stale"
    """The record has another version than the given one; nothing was changed."""


@attrs.frozen
class Noted:
    """DONE or LOST; UNKNOWN for a missing optional record, STALE for another version."""

    verdict: Verdict
