"""F-03, F-08: a server killed while its disk is slow loses acknowledged steps, and nothing else breaks."""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from queuehint import JobState
from queuehint.backends.redis.doctor import diagnose
from queuehint.operations import CancelPath, Enqueue, Exchange, Renew, Verdict
from tests.faults import books

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import StartServer
    from tests.servers import Server

pytestmark = pytest.mark.redis

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


@pytest.fixture
def slow_disk(tmp_path: Path) -> str:
    """Return a library for LD_PRELOAD with which each `fdatasync` in the background takes a minute."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler: a slow disk is made by a small library")
    source, library = tmp_path / "slow_disk.c", tmp_path / "slow_disk.so"
    source.write_text(_SLOW_DISK, "utf-8")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    return str(library)


@pytest.fixture
def slow_server(start_server: StartServer, slow_disk: str, monkeypatch: pytest.MonkeyPatch) -> Server:
    """Start a server with a slow disk; started anew, its disk is as fast as others'."""
    with monkeypatch.context() as environment:
        environment.setenv("LD_PRELOAD", slow_disk)
        return start_server(appendonly="yes", appendfsync="everysec")


def test_a_server_killed_while_its_disk_is_slow_loses_up_to_two_seconds_of_what_it_acknowledged(
    slow_server: Server, namespace: str
) -> None:
    """
    With `appendfsync everysec` Redis puts off writing, for up to 2 s, while the last fsync is under way.

    So the death of the process alone takes acknowledged steps back: an end, a cancellation by path, a new job. All of
    it is the end of the history, and the new history goes on without a step of the old one.
    """
    server, client = slow_server, slow_server.client()
    books.start_audit(client, namespace)
    store = books.open_store(server.url, namespace)
    store.call_sync(Enqueue((books.job("ends", ["doc1"]), books.job("canceled", ["doc1"]))))

    def is_written() -> bool:
        state = client.info("persistence")
        return bool(state["aof_pending_bio_fsync"] and not state["aof_buffer_length"])

    books.until_sync(is_written, "the disk is busy, and nothing waits to be written")
    kept = len(books.read_audit(client, namespace))
    state = books.dump(client, namespace)
    [grant] = store.call_sync(Exchange("w", limit=1)).grants
    assert store.call_sync(Exchange("w", (books.finished(grant),))).verdicts == (Verdict.DONE,)
    store.call_sync(CancelPath(("doc1",)))
    store.call_sync(Enqueue((books.job("new", ["doc1"]),)))
    assert {job_id: record.state for job_id, record in books.records(store, client).items()} == {
        "ends": JobState.FINISHED,
        "canceled": JobState.CANCELED,
        "new": JobState.QUEUED,
    }
    assert client.info("persistence")["aof_buffer_length"], "nothing of it is in the file"
    store.close_sync()
    server.kill()

    server.restart()
    client = server.client()
    assert len(books.read_audit(client, namespace)) == kept
    assert books.dump(client, namespace) == state, "what came back is a state that was"
    store = books.open_store(server.url, namespace)
    # Tokens of the lost time are worthless, and what ended or was canceled in it runs again, with greater ones.
    assert store.call_sync(Renew(((grant.spec.id, grant.token),))).verdicts == (Verdict.LOST,)
    tokens = [grant.token]
    for job_id in ("ends", "canceled"):
        [again] = store.call_sync(Exchange("w", limit=2)).grants
        assert again.spec.id == job_id
        tokens.append(again.token)
        assert store.call_sync(Exchange("w", (books.finished(again),))).verdicts == (Verdict.DONE,)
    assert tokens == sorted(set(tokens))
    # A job of the lost time is unknown: the same id again enqueues it.
    store.call_sync(Enqueue((books.job("new", ["doc1"]),)))
    [grant] = store.call_sync(Exchange("w", limit=1)).grants
    assert grant.spec.id == "new"
    store.close_sync()


def test_the_doctor_warns_of_a_disk_too_slow_for_what_the_server_promises(slow_server: Server, namespace: str) -> None:
    client = slow_server.client()

    def has_waited() -> bool:
        client.incr("counter")
        return bool(client.info("persistence")["aof_delayed_fsync"])

    books.until_sync(has_waited, "the server has waited for its disk for longer than it puts off writing")
    store = books.open_store(slow_server.url, namespace)
    warnings = [finding.where for finding in diagnose(store).warnings]
    store.close_sync()
    assert "aof_delayed_fsync" in warnings
