"""Processes that use a file owned by another one: requests, refusals, and permissions."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import attrs
import pytest

from queuehint import JobState, Scheduler
from queuehint import operations as op
from queuehint.backends.journal.doctor import diagnose
from queuehint.backends.journal.guests import guest as guest_module
from queuehint.backends.journal.guests import server as server_module
from queuehint.backends.journal.guests.messages import GONE, framed, head_of, read_answer, request
from queuehint.backends.sqlite.backend import SqliteBackend
from queuehint.cli.app import app
from queuehint.core.structures.trie import ONE, X
from queuehint.errors import (
    BackendDeniedError,
    BackendError,
    BackendInUseError,
    BackendUnavailableError,
    InvalidJobError,
    JobNotFoundError,
    OutcomeUnknownError,
    PathClosedError,
    PayloadError,
)
from queuehint.operations.wire import PlaceAnew
from queuehint.testing.driver import job
from queuehint.values.outcome import Outcome, OutcomeKind
from queuehint.values.record_filter import DEAD_RECORDS, RecordFilter
from tests.commands import CliRunner
from tests.folders import quick_folder
from tests.schedulers import until
from tests.sqlite_store import Shelf

QUESTIONS: Any = (
    op.Get(("a", "b", "nobody")), op.List(), op.CountRecords(), op.CountJobs(), op.CountEdges(), op.List(DEAD_RECORDS),
    op.Tree(depth=3), op.Peek(), op.Why("a"), op.Why("b"), op.Why("c"),
)  # fmt: skip
LIMIT_S = 30


class Table(Shelf):
    """A file, and the stores that were opened on it: the first has it."""

    def have(self) -> SqliteBackend:
        """Return a store that has the file, with jobs in several states."""
        store = self.open()
        store.call_sync(op.Enqueue((job("a", ["doc"]), job("b", ["doc"]), job("c", ["bad"], max_attempts=1))))
        (grant,) = store.call_sync(op.Exchange("w", limit=1)).grants
        (bad,) = store.call_sync(op.Exchange("w", limit=1)).grants
        assert (grant.spec.id, bad.spec.id) == ("a", "c")
        store.call_sync(op.Exchange("w", (Outcome(job_id="c", token=bad.token, kind=OutcomeKind.FAILED),)))
        return store


@pytest.fixture
def table() -> Iterator[Table]:
    with quick_folder() as folder, closing(Table(folder)) as table:
        yield table


def has_file(store: SqliteBackend) -> bool:
    return store._file is not None


# --- questions, orders and submissions -------------------------------------------------------------------------------


def test_questions_have_the_answers_of_the_process_that_has_the_file(table: Table) -> None:
    owner, guest = table.have(), table.open()
    for question in QUESTIONS:
        there, here = guest.call_sync(question), owner.call_sync(question)
        assert (there, repr(there)) == (here, repr(here))
    with pytest.raises(JobNotFoundError, match="no job 'nobody'"):
        guest.call_sync(op.Why("nobody"))
    with pytest.raises(InvalidJobError, match="limit must be from 1 to 200"):
        guest.call_sync(op.List(limit=0))
    assert has_file(owner)
    assert not has_file(guest)


def test_orders_and_submissions_reach_the_process_that_has_the_file(table: Table) -> None:
    owner, guest = table.have(), table.open()
    guest.call_sync(op.Pause(RecordFilter(path=("doc",))))
    assert guest.call_sync(op.Redrive(("c",))).verdicts[0][1] is JobState.QUEUED
    guest.call_sync(op.Cancel(("b",)))
    (made,) = guest.call_sync(op.Enqueue((job("d", ["doc"]),))).jobs
    guest.call_sync(op.Close(("bad",)))
    with pytest.raises(PathClosedError) as caught:
        guest.call_sync(op.Enqueue((job("e", ["bad"]),)))
    assert caught.value.path_key == "bad"
    states = {each.id: each.state for each in owner.call_sync(op.List()).records}
    assert {job_id: str(state) for job_id, state in states.items()} == {
        "a": "STARTED", "b": "CANCELED", "c": "QUEUED", "d": "QUEUED",
    }  # fmt: skip
    assert owner.call_sync(op.Tree()).children[-1].paused
    assert made.created


def test_a_submission_of_the_largest_size_reaches_it(table: Table) -> None:
    table.open().call_sync(op.Peek())
    guest = table.open()
    large = tuple(job(f"j{n}", ["doc"], arguments='{"é"'.encode() * (1 << 17)) for n in range(5))
    guest.call_sync(op.Enqueue(large))
    assert guest.call_sync(op.Get(("j4",))).records[0].spec == large[4]  # type: ignore[union-attr]
    with pytest.raises(PayloadError):
        guest.call_sync(op.Enqueue((job("x", ["doc"], arguments=bytes(2 << 20)),)))


async def test_a_guest_on_a_loop_asks_as_well_and_many_at_a_time(table: Table) -> None:
    owner, guest = table.have(), table.open()
    drawn, counted = await asyncio.gather(
        asyncio.gather(*[guest.call(op.Draw(1)) for _ in range(50)]), guest.call(op.CountJobs())
    )
    assert counted == owner.call_sync(op.CountJobs())
    assert sorted(each.first for each in drawn) == list(range(1, 51))
    await guest.close()
    with pytest.raises(BackendUnavailableError, match="was closed"):
        await guest.call(op.Draw(1))


def test_a_guest_waits_for_results_of_jobs_that_are_forgotten_at_once(table: Table) -> None:
    table.clock = None  # type: ignore[assignment]
    url = f"sqlite:///{table.path}?durability=process"
    here, there = Scheduler(url), Scheduler(url)

    @there.job(queue_hint=["{doc}"], retention=0)
    async def edit(doc: str) -> str:
        return doc

    @here.job(name="edit", queue_hint=["{doc}"], retention=0)
    async def run(doc: str) -> str:
        await asyncio.sleep(0.3)
        return doc

    async def work() -> str:
        async with here.worker():
            return await asyncio.to_thread(lambda: edit.enqueue_sync("doc").result_sync(timeout=LIMIT_S))

    assert asyncio.run(work()) == "doc"
    there.close_sync()
    here.close_sync()


def test_the_doctor_asks_the_process_that_has_the_file(table: Table) -> None:
    owner, guest = table.have(), table.open()
    assert diagnose(guest) == diagnose(owner)
    assert diagnose(guest).facts["jobs"] == 3


def test_the_doctor_repairs_only_where_no_other_process_runs_jobs(table: Table) -> None:
    owner, guest = table.open(), table.open()
    owner.call_sync(op.Enqueue((job("a", ["doc"]), job("b", ["doc"]))))
    forget = owner.adopt(list)
    owner.engine.table.trie.root.held += ONE[X]  # no operation makes it so
    found = diagnose(guest, fix=True)
    assert found.findings == diagnose(owner).findings != ()
    assert len(found.unchecked) == 1
    assert found.unchecked[0].startswith(f"repairs: {table.path} is in use by process {os.getpid()}")
    forget()
    assert diagnose(guest, fix=True).repaired == found.findings
    assert (has_file(owner), has_file(guest)) == (False, True)


# --- the owner of the file -------------------------------------------------------------------------------------------


def test_a_guest_has_the_file_once_the_other_one_has_closed_it(table: Table) -> None:
    owner, guest = table.have(), table.open()
    guest.call_sync(op.Peek())
    owner.close_sync()
    guest.call_sync(op.Draw(1))
    assert has_file(guest)
    assert not table.path.with_name("jobs.db.sock").exists() or guest._server is not None
    guest.close_sync()
    assert not table.path.with_name("jobs.db.sock").exists()


def test_one_that_runs_no_jobs_leaves_the_file_to_one_that_does(table: Table) -> None:
    first, second = table.open(), table.open()
    first.call_sync(op.Enqueue((job("a", ["doc"]),)))
    held: list[tuple[str, int]] = []
    forget = second.adopt(lambda: held)
    (grant,) = second.call_sync(op.Exchange("w", limit=1)).grants
    held.append(("a", grant.token))
    assert (has_file(first), has_file(second)) == (False, True)
    first.call_sync(op.Enqueue((job("b", ["doc"]),)))
    assert [each.id for each in second.call_sync(op.List()).records] == ["a", "b"]
    first.adopt(list)
    for work in (op.Exchange("v", limit=1), op.Peek()):
        with pytest.raises(BackendInUseError, match="one process at a time may run its jobs"):
            first.call_sync(work)
    forget()
    assert first.call_sync(op.Peek()).first == 1
    assert has_file(first)


async def test_who_waits_goes_on_when_the_file_is_left_to_another(table: Table) -> None:
    url = f"sqlite:///{table.path}?durability=process"
    front, back = Scheduler(url), Scheduler(url)

    @front.job(name="edit", queue_hint=["{doc}"])
    @back.job(name="edit", queue_hint=["{doc}"])
    async def edit(doc: str) -> str:
        return doc

    handle = await front.submit([attrs.evolve(job("a", ["doc"], arguments=b'{"doc": "doc"}'), task="edit")])
    waiting = asyncio.create_task(handle[0].result(timeout=LIMIT_S))
    await until(lambda: len(front.backend._waiting) > 0)  # type: ignore[attr-defined]
    async with back.worker():
        assert await waiting == "doc"
    await front.close()
    await back.close()


@pytest.mark.parametrize(
    "work", [op.Renew(()), PlaceAnew(), op.Enqueue((job("x", ["doc"], presence_ms=1000),))], ids=repr
)
def test_what_runs_jobs_is_refused_beside_a_process_that_runs_them(table: Table, work: Any) -> None:
    owner, guest = table.have(), table.open()
    owner.adopt(list)
    with pytest.raises(BackendInUseError):
        guest.call_sync(work)
    with pytest.raises(BackendDeniedError):
        read_answer(say(table, request("default", work)), object)
    assert owner.call_sync(op.CountJobs()).unfinished == 2


def test_another_namespace_and_another_release_are_refused(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    table.have()
    with pytest.raises(BackendDeniedError, match="holds the jobs of namespace 'default', not 'docs'"):
        table.open(namespace="docs").call_sync(op.Peek())
    monkeypatch.setattr("queuehint.backends.journal.guests.messages.head_of", lambda _: b"queuehint 9.9 default\n")
    answer = say(table, framed(b"queuehint 1.0 default\n"))
    with pytest.raises(BackendDeniedError, match="cannot be asked by release 1"):
        read_answer(answer, object)


# --- other processes -------------------------------------------------------------------------------------------------

OWNER = """
import asyncio, sys
from queuehint import Scheduler

sched = Scheduler(sys.argv[1])

@sched.job(queue_hint=["{doc}"], max_attempts=1)
async def edit(doc: str) -> str:
    if doc == "bad":
        raise ValueError("no such page")
    await asyncio.sleep(3600)

async def main():
    for n, doc in enumerate(("oak", "oak", "bad")):
        await edit.using(id=f"{doc}{n}").enqueue(doc)
    async with sched.worker():
        while (await sched.stats()).states["FAILED"] == 0:
            await asyncio.sleep(0.01)
        print("up", flush=True)
        await asyncio.sleep(3600)

asyncio.run(main())
"""


@pytest.fixture
def owner(table: Table) -> Iterator[subprocess.Popen[str]]:
    url = f"sqlite:///{table.path}?durability=process"
    process = subprocess.Popen([sys.executable, "-c", OWNER, url], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "up\n"
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_a_process_that_stands_is_told_from_one_that_works_and_one_that_died(
    table: Table, owner: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:///{table.path}?durability=process"

    def run(*arguments: str, code: int = 0) -> str:
        found = CliRunner().invoke(app, [*arguments, "--target", url])
        assert found.exit_code == code, found.output
        return found.output

    # While it works.
    assert "STARTED" in run("ls")
    assert "oak  1 running, 1 waiting" in run("tree")
    assert "waits for the place of oak0 at oak" in run("why", "oak1")
    assert "no such page" in run("dead", "ls")
    assert "oak: paused" in run("pause", "oak")
    assert "oak0" in run("top", "--json", "--times", "1")
    assert "QUEUED" in run("dead", "retry", "bad2")
    assert "CANCELED" in run("cancel", "oak1", "--yes")
    doctor = CliRunner().invoke(app, ["doctor", url])
    assert (doctor.exit_code, doctor.output.splitlines()[-1]) == (0, "clean")
    # While it stands.
    guest, worker = table.open(), table.open()
    worker.adopt(list)
    guest.call_sync(op.Peek())
    owner.send_signal(signal.SIGSTOP)
    os.waitpid(owner.pid, os.WUNTRACED)  # a signal takes its time on a busy machine
    monkeypatch.setattr(guest_module, "PATIENCE_S", 0.3)
    with pytest.raises(BackendUnavailableError, match=f"in use by process {owner.pid}, which has not answered for 0.3"):
        guest.call_sync(op.CountJobs())
    with pytest.raises(OutcomeUnknownError, match="may have been done, or be done when that process goes on"):
        guest.call_sync(op.Close(("oak",)))
    with pytest.raises(BackendInUseError, match="has not answered"):
        worker.call_sync(op.Peek())
    assert f"in use by process {owner.pid}, which has not answered" in run("stats", code=3)
    monkeypatch.undo()
    owner.send_signal(signal.SIGCONT)
    assert guest.call_sync(op.Get(("oak0",))).records[0].state is JobState.STARTED  # type: ignore[union-attr]
    # When it has died.
    owner.kill()
    owner.wait()
    guest.call_sync(op.Tick())
    assert guest.call_sync(op.Get(("oak0",))).records[0].state is JobState.QUEUED  # type: ignore[union-attr]
    assert has_file(guest)
    worker.call_sync(op.Peek())
    assert (has_file(guest), has_file(worker)) == (False, True)


# --- what is sent by others ------------------------------------------------------------------------------------------


def connected(table: Table) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(LIMIT_S)
    connection.connect(str(table.path.with_name("jobs.db.sock")))
    return connection


def say(table: Table, message: bytes) -> bytes:
    """Send bytes, and return the answer without its length; nothing if the connection was closed."""
    with closing(connected(table)) as connection:
        said = b""
        try:
            connection.sendall(message)
            connection.shutdown(socket.SHUT_WR)
            while piece := connection.recv(1 << 16):
                said += piece
        except (BrokenPipeError, ConnectionResetError):  # it was closed before all was read
            pass
    return said.lstrip(b"\0")[1:] if said.startswith(b"\0\0\0\0") else said[4:]


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\0",
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        bytes(4),
        b"\xff\xff\xff\xff" + b"x" * 1000,
        (33 << 20).to_bytes(4, "big"),
        (20 << 20).to_bytes(4, "big") + b"half",
        framed(b"\xff" * 1000),
        framed(head_of("default") + b"[" * 100_000),
        framed(head_of("default") + b'{"":"Get","ids":[["a"]]}'),
        framed(head_of("default") + b'{"":"Await","job_ids":[["a"]]}'),
        framed(head_of("default") + b'{"":"Enqueue","jobs":[{"":"Cancel","ids":["a"]}]}'),
        framed(head_of("default") + b'{"":"Tree","path":"no path","depth":1e999}'),
        framed(head_of("default") + b'{"":"Cancel","ids":5}'),
        framed(head_of("default") + b'{"":"Draw","count":1' + b"0" * 5000 + b"}"),
    ],
    ids=range(15),
)
def test_bytes_that_are_no_request_do_no_harm(table: Table, message: bytes, caplog: pytest.LogCaptureFixture) -> None:
    owner = table.have()
    before = owner.call_sync(op.CountJobs())
    answer = say(table, message)
    assert answer == b"" or answer.startswith(b"e")
    assert owner.call_sync(op.CountJobs()) == before
    assert table.open().call_sync(op.CountJobs()) == before
    assert not caplog.records


def test_connections_that_say_nothing_keep_nobody_out_for_long(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "READ_S", 0.2)
    monkeypatch.setattr(server_module, "CONNECTIONS_MAX", 4)
    owner = table.have()
    idle = [connected(table) for _ in range(12)]
    idle[0].sendall((1000).to_bytes(4, "big") + b"half")
    assert table.open().call_sync(op.CountJobs()) == owner.call_sync(op.CountJobs())
    for connection in idle:
        connection.close()


def test_an_answer_that_takes_long_is_waited_for(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "BEAT_S", 0.02)
    owner, guest = table.have(), table.open()
    got: list[object] = []
    send, beats = server_module._send, threading.Semaphore(0)

    async def send_and_count(connection: socket.socket, message: bytes) -> None:
        await send(connection, message)
        beats.release()

    monkeypatch.setattr(server_module, "_send", send_and_count)
    waiting = threading.Thread(target=lambda: got.append(guest.call_sync(op.Peek())))
    with owner._lock:
        waiting.start()
        assert all(beats.acquire(timeout=LIMIT_S) for _ in range(3))
        assert not got
    waiting.join(LIMIT_S)
    assert got == [owner.call_sync(op.Peek())]


def test_an_operation_that_fails_in_an_unknown_way_may_have_been_done(
    table: Table, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    owner, guest = table.have(), table.open()

    def fail(*_: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(owner, "call", fail)
    with pytest.raises(OutcomeUnknownError, match="failed with ZeroDivisionError; the operation may have been done"):
        guest.call_sync(op.Draw(1))
    with pytest.raises(BackendError, match="failed with ZeroDivisionError; nothing was changed"):
        guest.call_sync(op.Peek())
    assert {each.__dict__["event"] for each in caplog.records} == {"sqlite.request_failed"}


@pytest.mark.parametrize("operation", [op.Draw(1), op.Peek()], ids=["change", "question"])
def test_a_change_whose_answer_is_cut_off_may_have_been_done(
    table: Table, monkeypatch: pytest.MonkeyPatch, operation: Any
) -> None:
    owner, guest = table.have(), table.open()
    send, answers = server_module._send, []

    async def send_later(connection: socket.socket, message: bytes) -> None:
        answers.append(message)
        if len(answers) == 1:
            raise ConnectionResetError
        await send(connection, message)

    monkeypatch.setattr(server_module, "_send", send_later)
    if isinstance(operation, op.Draw):
        with pytest.raises(OutcomeUnknownError, match=f"process {os.getpid()}, which had it, died meanwhile"):
            guest.call_sync(operation)
        assert owner.call_sync(op.Peek()).first == 2
    else:
        assert guest.call_sync(operation).first == 1
        assert len(answers) == 2


def test_a_closed_store_says_that_it_is_gone(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = table.have()
    monkeypatch.setattr(owner, "_closed", True)  # as for the moment until its file is closed
    assert say(table, request("default", op.Draw(1))) == GONE
    monkeypatch.undo()


# --- the socket ------------------------------------------------------------------------------------------------------


def test_the_socket_is_for_its_user_alone(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    table.have()
    found = table.path.with_name("jobs.db.sock").stat()
    assert (stat.S_ISSOCK(found.st_mode), stat.S_IMODE(found.st_mode)) == (True, 0o600)
    asked: list[set[int]] = []

    def is_trusted(_: socket.socket, users: set[int]) -> bool:
        asked.append(users)
        return False

    monkeypatch.setattr(server_module, "is_trusted", is_trusted)
    assert say(table, request("default", op.Peek())) == b""
    assert asked == [{os.geteuid(), 0}]


def test_another_user_does_not_answer_for_the_process_that_has_the_file(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    table.have()
    monkeypatch.setattr(guest_module, "is_trusted", lambda *_: False)
    with pytest.raises(BackendDeniedError, match="the socket belongs to another user"):
        table.open().call_sync(op.Peek())


def test_the_other_end_is_asked_for_its_user() -> None:
    here, there = socket.socketpair()
    with closing(here), closing(there):
        assert server_module.is_trusted(here, {os.geteuid()})
        assert not server_module.is_trusted(here, {os.geteuid() + 1}) or sys.platform != "linux"


def test_a_socket_of_a_killed_process_is_replaced_and_anything_else_is_left_alone(table: Table) -> None:
    beside = table.path.with_name("jobs.db.sock")
    with closing(socket.socket(socket.AF_UNIX)) as stale:
        stale.bind(str(beside))
    table.have()
    assert table.open().call_sync(op.Peek()).first == 1
    table.stores[0].close_sync()
    table.stores[1].close_sync()
    beside.write_text("a diary")
    table.open().call_sync(op.Peek())
    assert table.open().call_sync(op.Peek()).first == 1
    assert beside.read_text() == "a diary"


def test_a_path_that_is_too_long_has_its_socket_in_a_directory_of_the_user(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(table.path.parent))
    far = table.path.parent / ("d" * 100) / "jobs.db"
    far.parent.mkdir()
    owner = table.open(far)
    owner.call_sync(op.Draw(1))
    assert table.open(far).call_sync(op.Peek()).first == 2
    private = table.path.parent / f"queuehint-{os.geteuid()}"
    assert stat.S_IMODE(private.stat().st_mode) == 0o700
    assert len(list(private.iterdir())) == 1
    owner.close_sync()
    table.stores[1].close_sync()
    assert not list(private.iterdir())


def test_without_a_socket_the_file_is_for_one_process(
    table: Table, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(table.path.parent))
    far = table.path.parent / ("d" * 100) / "jobs.db"
    far.parent.mkdir()
    (table.path.parent / f"queuehint-{os.geteuid()}").mkdir(mode=0o755)
    table.open(far).call_sync(op.Draw(1))
    with pytest.raises(BackendInUseError, match=f"in use by process {os.getpid()}, which answers no other process"):
        table.open(far).call_sync(op.Peek())
    assert [each.__dict__["event"] for each in caplog.records] == ["sqlite.not_shared"]


def test_a_fork_does_not_keep_others_waiting_after_its_parent(table: Table) -> None:
    owner = table.have()
    assert owner._server is not None
    owner._server.leave_to_parent()
    assert all(each.fileno() == -1 for each in owner._server._sockets)
