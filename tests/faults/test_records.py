"""Expired records are dropped whole or not at all, also by a process that is killed meanwhile."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from queuehint import Retention
from queuehint import operations as op
from queuehint.backends.base import BackendOptions
from queuehint.backends.redis import keys
from queuehint.backends.redis.address import parse_url
from queuehint.backends.redis.backend import RedisBackend
from queuehint.backends.redis.doctor.doctor import diagnose
from queuehint.values.hint import Claim
from queuehint.values.record import JobState
from queuehint.values.spec import JobSpec
from tests.servers import new_namespace, shared_server
from tests.support import LIMIT_S

pytestmark = [pytest.mark.slow, pytest.mark.redis]

ROOT = Path(__file__).absolute().parents[2]
RECORDS = 1000
RETENTION = Retention(canceled=0, service=0)
PRUNER = """
import sys
from queuehint import Retention
from queuehint.backends.base import BackendOptions
from queuehint.backends.redis.address import parse_url
from queuehint.backends.redis.backend import RedisBackend
from queuehint.operations import Tick

options = BackendOptions(namespace=sys.argv[2], retention=Retention(canceled=0, service=0))
backend = RedisBackend(parse_url(sys.argv[1]), options, budget=50)
print("ready", flush=True)
while True:
    backend.call_sync(Tick())
"""


def open_store(namespace: str, budget: int = 1000) -> RedisBackend:
    options = BackendOptions(namespace=namespace, retention=RETENTION)
    return RedisBackend(parse_url(shared_server().url), options, budget=budget)


def test_prune_of_a_killed_process_is_resumed_by_another() -> None:
    namespace = new_namespace()
    # With one unit of budget what was canceled waits to be dropped.
    store = open_store(namespace, budget=1)
    specs = [
        JobSpec(id=f"j{at}", task="t", claims=(Claim(("x", str(at))),), user=f"u{at % 7}", service="s")
        for at in range(RECORDS)
    ]
    store.call_sync(op.Enqueue(tuple(specs)))
    store.call_sync(op.Cancel(tuple([spec.id for spec in specs])))
    left = kept(store)
    for _ in range(3):
        with subprocess.Popen(
            (sys.executable, "-c", PRUNER, shared_server().url, namespace), stdout=subprocess.PIPE, cwd=ROOT
        ) as pruner:
            assert pruner.stdout is not None
            assert pruner.stdout.readline() == b"ready\n"
            wait_for_less(store, left)
            pruner.send_signal(signal.SIGKILL)
        kept(store)  # By its reply the server has carried out what the process had sent.
        left = kept(store)
        assert left, "it was not killed in the middle"
        report = diagnose(store)
        assert report.is_clean, str(report)
        assert sum(dict(store.call_sync(op.ListUsers("s")).users).values()) == left
        assert store.call_sync(op.CountRecords()).states[JobState.CANCELED] == left
    other = open_store(namespace)
    while other.call_sync(op.Tick()).more:
        pass
    assert other.call_sync(op.List()).records == ()
    client: Any = shared_server().client()
    names = ("index", "blocks", "facts", "tallies", "tallied", "past", "paths")
    assert not [name for name in names if client.exists(keys.redis_key(namespace, name))]
    assert diagnose(other).is_clean
    store.close_sync()
    other.close_sync()


def kept(store: RedisBackend) -> int:
    return sum(store.call_sync(op.CountJobs()).states.values())


def wait_for_less(store: RedisBackend, left: int) -> None:
    """Wait until another process has dropped records."""
    end_s = time.monotonic() + LIMIT_S
    while kept(store) == left:
        assert time.monotonic() < end_s, "nothing is dropped"
        time.sleep(0.001)
