"""A producer that is killed between two parts of a large flow: nothing of it runs, and nothing is left of it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from queuehint import FakeClock, JobState, Scheduler
from queuehint import operations as op
from queuehint.backends.redis import keys
from queuehint.backends.redis.backend import RedisBackend
from queuehint.backends.redis.doctor.doctor import diagnose
from queuehint.client.arrangement import PART_JOBS
from tests.servers import Server, new_namespace, shared_server

pytestmark = pytest.mark.redis

JOBS = 1_000
PARTS = JOBS // PART_JOBS

PRODUCER = """
import os, signal, sys
from queuehint import FakeClock, Scheduler
from queuehint.backends.redis.backend import RedisBackend
from queuehint.operations import Commit, Enqueue

url, jobs, *namespaces = sys.argv[1:]
call = RedisBackend.call_sync

def submit(namespace, parts):
    left = [parts]

    def counted(self, operation):
        reply = call(self, operation)
        if isinstance(operation, (Enqueue, Commit)):
            left[0] -= 1
            if not left[0]:
                os.kill(os.getpid(), signal.SIGKILL)
        return reply

    RedisBackend.call_sync = counted
    sched = Scheduler(url, namespace=namespace, clock=FakeClock())
    @sched.job(name="step")
    def step(n): ...

    with sched.flow_sync("import") as flow:
        last = None
        for n in range(int(jobs)):
            last = flow.add(step.using(id=f"j{n}", after=[last] if last else []), n)

for parts, namespace in enumerate(namespaces, 1):
    child = os.fork()
    if not child:
        submit(namespace, parts)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
"""


@contextmanager
def opened(namespace: str, clock: FakeClock) -> Iterator[Scheduler]:
    sched = Scheduler(shared_server().url, namespace=namespace, clock=clock)
    try:
        yield sched
    finally:
        sched.close_sync()


def submit_again(sched: Scheduler) -> None:
    """Submit the flow that the killed producer has begun, with the same ids."""

    @sched.job(name="step")
    def step(n: int) -> None: ...

    with sched.flow_sync("import") as flow:
        last = None
        for n in range(JOBS):
            last = flow.add(step.using(id=f"j{n}", after=[last] if last is not None else []), n)


def keys_of(server: Server, namespace: str) -> set[str]:
    """Return the keys of a namespace, without those of the sessions of its clients."""
    prefix = keys.redis_key(namespace, "")
    found: list[bytes | str] = server.call("KEYS", f"{prefix}*")
    names = {(key.decode() if isinstance(key, bytes) else key).removeprefix(prefix) for key in found}
    return {name for name in names if not name.startswith("wake:")}


@pytest.mark.nightly
def test_producer_killed_between_parts_runs_and_leaves_nothing() -> None:
    server = shared_server()
    namespaces = [new_namespace(f"killed-{parts}") for parts in range(1, PARTS + 2)]
    subprocess.run([sys.executable, "-c", PRODUCER, server.url, str(JOBS), *namespaces], check=True)

    for parts, namespace in enumerate(namespaces, 1):
        clock = FakeClock()
        with opened(namespace, clock) as sched:
            backend = sched.backend
            assert isinstance(backend, RedisBackend)
            is_committed = parts > PARTS
            stats = sched.stats_sync()
            assert sum(stats.states.values()) == (JOBS if is_committed else 0)
            grants = backend.call_sync(op.Exchange("w", limit=10)).grants
            assert [grant.spec.id for grant in grants] == ["j0"] * is_committed
            if is_committed:
                continue
            assert diagnose(backend).is_clean
            if parts % 2:
                # The ids are free once the dead one has been silent for a while: what it has sent of them is replaced.
                clock.advance(ms=op.STAGED_FRESH_MS)
                submit_again(sched)
                assert sched.stats_sync().states[JobState.DEFERRED] == JOBS - 1
                assert [grant.spec.id for grant in backend.call_sync(op.Exchange("w", limit=10)).grants] == ["j0"]
                assert diagnose(backend).is_clean
                continue
            clock.advance(ms=op.STAGED_KEPT_MS)
            while backend.call_sync(op.Tick()).more:
                pass
            assert diagnose(backend).is_clean
            assert sum(sched.stats_sync().states.values()) == 0
            assert server.client().hlen(keys.redis_key(namespace, "jobs")) == 0
            assert keys_of(server, namespace) <= {"meta", "receipts", "sessions"}, (
                "nothing is left of what was never committed"
            )
