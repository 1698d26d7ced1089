"""
What keeps the two backends honest: an engine and a store in step, on one virtual clock.

Every operation goes to both, and every reply, refusal, due time and question is compared. `Twins` does and compares,
`Busybody` makes up what a `Player` does not: results, errors, logs and text that means something to somebody.

Only one answer is not promised to be the same: which ten of *more* jobs in the way `Why` names, and what follows from
that. Then each side is held to what is true by the engine.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import attrs

from queuehint.backends.base import BackendOptions, Interest
from queuehint.backends.redis import codec, keys
from queuehint.backends.redis.address import parse_url
from queuehint.backends.redis.backend import RedisBackend
from queuehint.backends.redis.conversation import Ask, Desk, Move, Sleep
from queuehint.clock import FakeClock
from queuehint.core.answers import JOBS_NAMED_MAX
from queuehint.core.engine import EPOCH_BEGIN_S, Engine, EngineOptions
from queuehint.core.trie import counts
from queuehint.errors import QueueHintError
from queuehint.hint import Claim
from queuehint.operations import (
    BUDGET,
    IDS_MAX,
    CanDequeue,
    CountJobs,
    CountPending,
    Enqueue,
    Exchange,
    Get,
    ListDead,
    Operation,
    Reopen,
    Resume,
    Tick,
    Tree,
    Why,
)
from queuehint.records import OVER, JobError, JobSpec, JobState, Outcome, OutcomeKind
from queuehint.reports import Pending, Reason, ReasonKind
from tests.property.walks import PATHS, POOLS, RETENTION, Player, check_empty
from tests.servers import Server, new_namespace, shared_server

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable
    from random import Random

    from queuehint.core.job import Job
    from queuehint.hint import Path
    from tests.property.walks import Style

FIXED = {"meta", "seen", "sessions", "receipts", "wake:timer"}
"""
Keys that stay in a namespace without jobs: its counters, the pools asked for within a minute, the sessions heard of
within ten, and a marker that a time has changed, which nobody has taken.
"""
ID_KEPT_S = 600


