"""Replies acknowledged by a store and not yet durable, on a slow disk and in a file."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from queuehint import JobState
from queuehint import operations as op
from queuehint.backends.redis.doctor.doctor import diagnose
from tests import audit
from tests.conftest import StartServer
from tests.faults import checks
from tests.prefork import ROOT
from tests.servers import Server

_SLOW_DISK = """
#define _GNU_SOURCE
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

int fdatasync(int fd) {
    struct timespec pause = {60, 0};
    if (syscall(SYS_gettid) != getpid()) nanosleep(&pause, 0);
    return syscall(SYS_fdatasync, fd);
}
"""


_COUNTED = """
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

static void count(void) {
    int file = open(getenv("COUNT_IN"), O_WRONLY | O_CREAT | O_APPEND, 0600);
    if (write(file, ".", 1) != 1) abort();
    close(file);
}
int fsync(int fd) { count(); return syscall(SYS_fsync, fd); }
int fdatasync(int fd) { count(); return syscall(SYS_fdatasync, fd); }
"""

_ENQUEUE = """
import os, sys
from queuehint.backends.base import open_backend
from queuehint.operations import Enqueue
from queuehint.values.spec import JobSpec

backend = open_backend(sys.argv[1])
for number in range(int(sys.argv[2])):
    backend.call_sync(Enqueue((JobSpec(id=f"job-{number}", task="t"),)))
    print(os.path.getsize(os.environ["COUNT_IN"]), flush=True)
backend.close_sync()
"""


def build(source: str, folder: Path) -> str:
    """Compile a library for LD_PRELOAD, and return its path."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler: what the disk does is seen by a small library")
    text, library = folder / "preloaded.c", folder / "preloaded.so"
    text.write_text(source, "utf-8")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(library), str(text)], check=True)
    return str(library)


@pytest.fixture
def slow_server(start_server: StartServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Server:
    """Start a server whose `fdatasync` in the background takes a minute, until it is started anew."""
    with monkeypatch.context() as environment:
        environment.setenv("LD_PRELOAD", build(_SLOW_DISK, tmp_path))
        return start_server(appendonly="yes", appendfsync="everysec")


@pytest.mark.redis
def test_server_killed_on_slow_disk_loses_at_most_two_seconds(slow_server: Server, namespace: str) -> None:
    """
    With `appendfsync everysec` Redis puts off writing, for up to 2 s, while the last fsync is under way.

    So the death of the process alone takes acknowledged steps back: an end, a cancellation by path, a new job. All of
    it is the end of the history, and the new history goes on without a step of the old one.
    """
    server, client = slow_server, slow_server.client()
    audit.begin_audit(namespace)
    store = checks.open_store(server.url, namespace)
    store.call_sync(op.Enqueue((checks.job("ends", ["doc1"]), checks.job("canceled", ["doc1"]))))

    def is_written() -> bool:
        state = client.info("persistence")
        return bool(state["aof_pending_bio_fsync"] and not state["aof_buffer_length"])

    checks.until_sync(is_written, "the disk is busy, and nothing waits to be written")
    kept = len(list(audit.entries(client, namespace)))
    state = checks.dump(client, namespace)
    [grant] = store.call_sync(op.Exchange("w", limit=1)).grants
    assert store.call_sync(op.Exchange("w", (checks.finished(grant),))).verdicts == (op.Verdict.DONE,)
    store.call_sync(op.CancelPath(("doc1",)))
    store.call_sync(op.Enqueue((checks.job("new", ["doc1"]),)))
    assert {job_id: record.state for job_id, record in checks.records(store, client).items()} == {
        "ends": JobState.FINISHED,
        "canceled": JobState.CANCELED,
        "new": JobState.QUEUED,
    }
    assert client.info("persistence")["aof_buffer_length"], "nothing of it is in the file"
    store.close_sync()
    server.kill()

    server.restart()
    client = server.client()
    assert len(list(audit.entries(client, namespace))) == kept
    assert checks.dump(client, namespace) == state, "what came back is a state that was"
    store = checks.open_store(server.url, namespace)
    # Tokens of the lost time are worthless, and what ended or was canceled in it runs again, with greater ones.
    assert store.call_sync(op.Renew(((grant.spec.id, grant.token),))).verdicts == (op.Verdict.LOST,)
    tokens = [grant.token]
    for job_id in ("ends", "canceled"):
        [again] = store.call_sync(op.Exchange("w", limit=2)).grants
        assert again.spec.id == job_id
        tokens.append(again.token)
        assert store.call_sync(op.Exchange("w", (checks.finished(again),))).verdicts == (op.Verdict.DONE,)
    assert tokens == sorted(set(tokens))
    # A job of the lost time is unknown: the same id again enqueues it.
    store.call_sync(op.Enqueue((checks.job("new", ["doc1"]),)))
    [grant] = store.call_sync(op.Exchange("w", limit=1)).grants
    assert grant.spec.id == "new"
    store.close_sync()


@pytest.mark.slow
@pytest.mark.redis
def test_doctor_warns_of_a_disk_too_slow_for_its_durability(slow_server: Server, namespace: str) -> None:
    client = slow_server.client()

    def has_waited() -> bool:
        client.incr("counter")
        return bool(client.info("persistence")["aof_delayed_fsync"])

    checks.until_sync(has_waited, "the server has waited for its disk for longer than it puts off writing")
    store = checks.open_store(slow_server.url, namespace)
    warnings = [finding.where for finding in diagnose(store).warnings]
    store.close_sync()
    assert "aof_delayed_fsync" in warnings


@pytest.mark.slow
@pytest.mark.parametrize("durability", ["full", "process"])
def test_file_store_acknowledges_after_the_sync_of_its_durability(tmp_path: Path, durability: str) -> None:
    counted = tmp_path / "count"
    counted.touch()
    done = subprocess.run(
        [sys.executable, "-c", _ENQUEUE, f"sqlite:///{tmp_path}/jobs.db?durability={durability}", "20"],
        env={**os.environ, "LD_PRELOAD": build(_COUNTED, tmp_path), "COUNT_IN": str(counted)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    after = list(map(int, done.stdout.split()))
    assert len(after) == 20
    waited = sum(later > earlier for earlier, later in pairwise(after))
    assert waited == (19 if durability == "full" else 0)
