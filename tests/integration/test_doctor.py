"""`queuehint doctor`: it finds what is missing, says nothing that is not so, and puts right what can be."""

from __future__ import annotations

import json
import threading
import time
from random import Random
from typing import TYPE_CHECKING, Any

import attrs
import pytest
from typer.testing import CliRunner

from queuehint.backends.base import BackendOptions
from queuehint.backends.redis import conversation, doctor, keys, scripts
from queuehint.backends.redis.address import parse_url
from queuehint.backends.redis.backend import RedisBackend
from queuehint.backends.redis.checkup import lacks_lua_fixes
from queuehint.backends.redis.doctor import BATCH, MARGIN, WHOLE_MAX, diagnose
from queuehint.backends.redis.findings import Finding, Report
from queuehint.cli import doctor as command
from queuehint.cli.app import app
from queuehint.clock import FakeClock
from queuehint.hint import Claim
from queuehint.operations import (
    BUDGET,
    Cancel,
    CancelPath,
    Close,
    CountJobs,
    Enqueue,
    Exchange,
    Log,
    Pause,
    Renew,
    Reopen,
    Report as Note,
    Resume,
    Tick,
)
from queuehint.policy import Policy
from queuehint.records import JobError, JobSpec, JobState, Outcome, OutcomeKind, Progress
from tests.property.agreement import ALPHABETS, Busybody, Twins
from tests.property.walks import LEASE_MS, MINUTE, POOLS, STYLES, Style
from tests.servers import Server, new_namespace, shared_server

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.conftest import StartServer

pytestmark = pytest.mark.redis

BUDGETS = (BUDGET, 2)
SILENT = frozenset({"asked", "seen", "sessions", "receipts", "untold", "audit", "wake:timer", "wake:pool:", "wake:session:"})
"""Keys of which nobody can tell that an entry is gone, and whose loss loses no job: only that it was, or a marker."""
SEEN_AT = {
    "left": ("gates", "waiting:", "parked", "left"),
    "pauses": ("meta", "parked"),
    "closed": ("meta",),
    "turns": ("users", "pools"),
    "waiting:": ("blocked:", "waiting:"),
    "blocked:": ("waiting:", "blocked:"),
    "jobs": ("meta", "jobs"),
}
"""Where the loss of an entry shows, if not in its own key."""


# --- a store to look at ----------------------------------------------------------------------------------------------


@attrs.frozen
class Store:
    """A namespace of a test's own, its clock, and what may be done to it by hand."""

    backend: RedisBackend
    clock: FakeClock
    server: Server
    namespace: str

    def key(self, name: str) -> str:
        return keys.redis_key(self.namespace, name)

    def do(self, operation: Any) -> Any:
        return self.backend.call_sync(operation)

    def call(self, *words: Any) -> Any:
        return self.server.call(*words)

    def change_packed(self, name: str, field: str, change: str) -> None:
        """Change a packed value by a line of Lua on `value`."""
        text = f"""local value = cmsgpack.unpack(redis.call('HGET', KEYS[1], ARGV[1]))
            {change}
            redis.call('HSET', KEYS[1], ARGV[1], cmsgpack.pack(value))"""
        self.call("EVAL", text, 1, self.key(name), field)

    def look(self, *, fix: bool = False) -> Report:
        return diagnose(self.backend, fix=fix)

    def kinds(self) -> set[str]:
        return {finding.kind for finding in self.look().errors}

    def is_put_right(self) -> bool:
        """`--fix` finds the errors there are, and none is left."""
        before = self.look().errors
        report = self.look(fix=True)
        assert report.is_clean, str(report)
        assert not report.unchecked
        assert set(before) <= set(report.repaired), str(report)
        return self.look().is_clean and bool(before)

    def drain(self) -> None:
        """Run all there is and let all records expire."""
        drain(self.backend, self.clock, self.server, self.namespace)


def drain(backend: RedisBackend, clock: FakeClock, server: Server, namespace: str) -> None:
    client = server.client()
    grants: tuple[Any, ...] = ()
    for _ in range(5_000):
        settled = tuple(Outcome(job_id=g.spec.id, token=g.token, kind=OutcomeKind.FINISHED) for g in grants)
        reply = backend.call_sync(Exchange("last", settle=settled, pools=(*POOLS, "default"), limit=100))
        grants = reply.grants
        if grants or reply.more:
            continue
        if not client.hlen(keys.redis_key(namespace, "jobs")):
            return
        firsts = [
            client.zrange(keys.redis_key(namespace, name), 0, 0, withscores=True)
            for name in ("timers", "leases", "prunes")
        ]
        next_ms = min((int(first[0][1]) for first in firsts if first), default=None)
        assert next_ms is not None, "there are jobs, and nothing will ever happen to them"
        clock.advance(ms=max(1, next_ms - clock.now_ms()))
    raise AssertionError("it does not drain")


@pytest.fixture
def store(request: pytest.FixtureRequest) -> Iterator[Store]:
    clock = FakeClock()
    namespace = new_namespace(request.node.name)
    server = shared_server()
    backend = RedisBackend(parse_url(server.url), BackendOptions(namespace=namespace, clock=clock))
    yield Store(backend, clock, server, namespace)
    backend.close_sync()


def job(id: str, *segments: str, **more: Any) -> JobSpec:
    return JobSpec(id=id, task="t", claims=(Claim(segments),) if segments else (), **more)


def some_of_everything(store: Store) -> None:
    """Make a state in which every kind of key has an entry, and jobs are in every state."""
    do = store.do
    once = Policy(max_attempts=1)
    hold = Policy(max_attempts=1, on_dead="hold")
    do(Enqueue((job("done", "a"), job("dead", "b", policy=once), job("holds", "c", policy=hold), job("runs", "d", "e"))))
    do(Enqueue((job("behind dead", "c"), job("behind", "d"), job("below", "d", "e", "f"))))
    do(Enqueue((job("keyed", "k", key="k"),)))
    tokens = {grant.spec.id: grant.token for grant in do(Exchange("w", pools=("default",), limit=5)).grants}
    assert tokens.keys() == {"done", "dead", "holds", "runs", "keyed"}
    do(Log("runs", tokens["runs"], ("one", "two")))
    do(Note("runs", tokens["runs"], Progress(1, 2)))
    error = JobError(type="E", message="no")
    outcomes = [Outcome(job_id="done", token=tokens["done"], kind=OutcomeKind.FINISHED, result=b"1")]
    outcomes += [
        Outcome(job_id=job_id, token=tokens[job_id], kind=OutcomeKind.FAILED, error=error) for job_id in ("dead", "holds")
    ]
    do(Exchange("w", settle=tuple(outcomes)))
    do(Enqueue((job("after", "k", key="k", on_conflict="after"),)))
    do(Enqueue((job("later", "l", delay_ms=MINUTE, key="l"),)))
    do(Enqueue((job("new", "l", delay_ms=2 * MINUTE, key="l", on_conflict="replace"),)))
    do(Enqueue((job("free"), job("user", user="u"), job("gone", "g"))))
    do(Cancel(("gone", "runs")))
    do(Pause(("p",)))
    do(Enqueue((job("paused", "p", "q"), job("ready", "r"))))
    do(Exchange("x", pools=("default",), limit=1))
    do(Close(("z",)))
    # The caller of a job that nobody works for yet, and a line of work that was cut.
    do(Enqueue((job("waits", "w", presence_ms=MINUTE),)))
    store.backend.wait_sync(doctor_interest("paused"), 0)
    short = RedisBackend(store.backend.desk.address, store.backend_options(), budget=1)
    try:
        for path in ("s", "s2"):
            short.call_sync(Enqueue((job(f"{path} 1", path), job(f"{path} 2", path), job(f"{path} 3", path))))
        short.call_sync(CancelPath(("s",)))
    finally:
        short.close_sync()
