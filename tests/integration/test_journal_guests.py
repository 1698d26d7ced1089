"""Processes that use a journal led by another one: calls, refusals, permissions, and a leader that dies."""

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
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing, contextmanager, suppress
from types import SimpleNamespace
from typing import Any

import attrs
import pytest

from queuehint import JobState, Scheduler
from queuehint import operations as op
from queuehint.backends.base import Interest
from queuehint.backends.journal import opening as opening_module
from queuehint.backends.journal.groups import Request, line_of, unpack
from queuehint.backends.journal.guests import doors as doors_module
from queuehint.backends.journal.guests import guest as guest_module
from queuehint.backends.journal.guests import host as host_module
from queuehint.backends.journal.guests import links as links_module
from queuehint.backends.journal.guests import messages as messages_module
from queuehint.backends.journal.guests import server as server_module
from queuehint.backends.journal.guests import sockets as sockets_module
from queuehint.backends.journal.guests.doors import GoneError
from queuehint.backends.journal.guests.greetings import hello
from queuehint.backends.journal.guests.messages import (
    ANSWER,
    ANSWER_BYTES_MAX,
    ASK,
    BEAT,
    BEHIND,
    CALL,
    GONE,
    HELLO,
    LEAD,
    LEAVE,
    RUN,
    WAIT,
    WANT,
    Frames,
    frame,
    read_answer,
)
from queuehint.backends.sqlite.backend import SqliteBackend
from queuehint.backends.sqlite.doctor import diagnose
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
    QueueHintError,
)
from queuehint.operations.wire import encode
from queuehint.testing.driver import job
from queuehint.values.outcome import Grant, Outcome, OutcomeKind
from queuehint.values.record_filter import DEAD_RECORDS, RecordFilter
from tests.commands import CliRunner
from tests.folders import quick_folder
from tests.schedulers import until
from tests.sqlite_store import Shelf, leave_journal
from tests.support import LIMIT_S, until_sync

QUESTIONS: Any = (
    op.Get(("a", "b", "nobody")), op.List(), op.CountRecords(), op.CountJobs(), op.CountEdges(), op.List(DEAD_RECORDS),
    op.Tree(depth=3), op.Peek(), op.Why("a"), op.Why("b"), op.Why("c"), op.Why(None, 2, ()),
)  # fmt: skip


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


def calls_of_guests(leader: Any) -> int:
    """Return how many calls of guests are under way at a leader."""
    return sum(each._guest.calls for each in list(leader._service._server._connections))


def leads(store: SqliteBackend) -> bool:
    return store._journal is not None


def end(store: SqliteBackend, grant: Grant, worker: str) -> op.Verdict:
    outcome = Outcome(job_id=grant.spec.id, token=grant.token, kind=OutcomeKind.FINISHED)
    return store.call_sync(op.Exchange(worker, (outcome,))).verdicts[0]


# --- questions, orders and submissions -------------------------------------------------------------------------------


def test_questions_are_answered_by_the_leader_of_the_file(table: Table) -> None:
    owner, guest = table.have(), table.open()
    for question in QUESTIONS:
        there, here = guest.call_sync(question), owner.call_sync(question)
        assert (there, repr(there)) == (here, repr(here))
    with pytest.raises(JobNotFoundError, match="no job 'nobody'"):
        guest.call_sync(op.Why("nobody"))
    with pytest.raises(InvalidJobError, match="limit must be from 1 to 200"):
        guest.call_sync(op.List(limit=0))
    assert leads(owner)
    assert not leads(guest)


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


async def test_guest_on_a_loop_may_ask_many_questions_concurrently(table: Table) -> None:
    owner, guest = table.have(), table.open()
    drawn, counted = await asyncio.gather(
        asyncio.gather(*[guest.call(op.Draw(1)) for _ in range(50)]), guest.call(op.CountJobs())
    )
    assert counted == owner.call_sync(op.CountJobs())
    assert sorted(each.first for each in drawn) == list(range(1, 51))
    await guest.close()
    with pytest.raises(BackendUnavailableError, match="was closed"):
        await guest.call(op.Draw(1))


def test_guest_on_a_foreign_loop_may_ask(table: Table) -> None:
    uvloop = pytest.importorskip("uvloop")
    owner, guest = table.have(), table.open()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(asyncio.wait_for(guest.call(op.CountJobs()), 60)) == owner.call_sync(op.CountJobs())


def test_guest_waits_for_results_of_jobs_without_retention(table: Table) -> None:
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
    asked, own = diagnose(guest), diagnose(owner)
    led = {"leader": f"process {os.getpid()}", "reached_by": "socket"}
    assert asked.facts == {**own.facts, **led}
    assert attrs.evolve(asked, facts=own.facts) == own
    assert (own.facts["leader"], own.facts["jobs"]) == ("this process", 3)


def test_the_doctor_repairs_where_another_process_leads_and_runs_jobs(table: Table) -> None:
    leader, guest = table.open(), table.open()
    leader.call_sync(op.Enqueue((job("a", ["doc"]), job("b", ["doc"]))))
    leader.adopt(list)
    leader.engine.table.trie.root.held += ONE[X]  # no operation makes it so
    found = diagnose(guest)
    assert found.findings == diagnose(leader).findings != ()
    assert diagnose(guest, fix=True).repaired == found.findings
    assert (leads(leader), leads(guest)) == (True, False)
    leader.engine.check()


# --- who leads -------------------------------------------------------------------------------------------------------


def test_guest_takes_the_file_after_the_leader_closed(table: Table) -> None:
    owner, guest = table.have(), table.open()
    guest.call_sync(op.Peek())
    owner.close_sync()
    guest.call_sync(op.Draw(1))
    assert leads(guest)
    assert not table.path.with_name("jobs.db.sock").exists() or guest._service is not None
    guest.close_sync()
    assert not table.path.with_name("jobs.db.sock").exists()


def test_process_without_jobs_leaves_the_lead_to_a_worker(table: Table) -> None:
    first, second = table.open(), table.open()
    first.call_sync(op.Enqueue((job("a", ["doc"]),)))
    held: list[tuple[str, int]] = []
    second.adopt(lambda: held)
    (grant,) = second.call_sync(op.Exchange("w", limit=1)).grants
    held.append(("a", grant.token))
    assert (leads(first), leads(second)) == (False, True)
    first.call_sync(op.Enqueue((job("b", ["doc"]), job("c", ["other"]))))
    assert [each.id for each in second.call_sync(op.List()).records] == ["a", "b", "c"]
    first.adopt(list)
    (other,) = first.call_sync(op.Exchange("v", limit=1)).grants
    assert other.spec.id == "c"
    assert (leads(first), leads(second)) == (False, True)


@pytest.mark.parametrize("shell", ["sync", "async"])
def test_guest_that_starts_a_worker_is_left_the_lead(table: Table, shell: str) -> None:
    first, second = table.open(), table.open()
    first.call_sync(op.Peek())

    async def work() -> None:
        await second.call(op.Peek())
        second.adopt(list)
        await second.call(op.Peek())

    if shell == "async":
        asyncio.run(work())
    else:
        second.call_sync(op.Peek())
        second.adopt(list)
        second.call_sync(op.Peek())
    assert (leads(first), leads(second)) == (False, True)


def test_call_without_leader_is_repeated_at_once_then_after_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [100.0]
    monkeypatch.setattr(guest_module, "time", SimpleNamespace(monotonic=lambda: now_s[0]))
    guest = guest_module.Guest("the store", "default", lambda _: pytest.fail("nobody leads"))
    attempt = guest_module.Attempt(op.Peek())
    pauses_s = [guest.pause_s(attempt, GoneError(), None, 0) for _ in range(3)]
    assert pauses_s == [0.0, guest_module.RETRY_S, guest_module.RETRY_S]
    now_s[0] += links_module.SILENCE_S
    with pytest.raises(BackendUnavailableError, match="nothing was changed"):
        guest.pause_s(attempt, GoneError(), None, 0)


def test_guest_leases_survive_a_new_leader_and_dead_ones_end(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    leader, guest, next_one = table.open(), table.open(), table.open()
    leader.adopt(list)
    leader.call_sync(op.Enqueue((job("a", ["a"]), job("b", ["b"]))))
    (here,) = leader.call_sync(op.Exchange("leader", limit=1)).grants
    guest.adopt(list)
    (there,) = guest.call_sync(op.Exchange("guest", limit=1, lease_ms=1_000)).grants
    leave_journal(leader)
    leader.close_sync()
    table.clock.advance(seconds=3)
    monkeypatch.setattr(opening_module, "_process", "another")
    next_one.call_sync(op.Tick())
    assert leads(next_one)
    states = {each.id: each.state for each in next_one.call_sync(op.List()).records}
    assert states == {here.spec.id: JobState.QUEUED, there.spec.id: JobState.STARTED}
    assert guest.call_sync(op.Renew(((there.spec.id, there.token),), 30_000)).verdicts == (op.Verdict.DONE,)
    table.clock.advance(seconds=20)
    guest.call_sync(op.Tick())
    assert end(guest, there, "guest") is op.Verdict.DONE


def test_lease_of_a_dead_former_leader_ends(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second, third = table.open(), table.open(), table.open()
    for store in (first, second):
        store.adopt(list)
    first.call_sync(op.Enqueue((job("a", ["a"]),)))
    second.call_sync(op.Exchange("second"))
    first.close_sync()
    assert second.call_sync(op.Exchange("second", limit=1)).grants
    second.call_sync(op.Exchange("second"))  # from now on it is known to be a worker of the leader
    assert leads(second)
    leave_journal(second)
    second.close_sync()
    monkeypatch.setattr(opening_module, "_process", "another")
    third.call_sync(op.Tick())
    assert third.call_sync(op.Get(("a",))).records[0].state is JobState.QUEUED  # type: ignore[union-attr]


def test_a_guest_is_woken_by_the_leader(table: Table) -> None:
    leader, guest = table.open(), table.open()
    leader.call_sync(op.Peek())
    guest.call_sync(op.Peek())
    woken = threading.Event()

    def wait() -> None:
        guest.wait_sync(Interest(pools=("default",)), LIMIT_S)
        woken.set()

    async def wait_on_loop() -> None:
        await guest.wait(Interest(jobs=("a",)), LIMIT_S)

    waiting = threading.Thread(target=wait)
    waiting.start()
    until_sync(lambda: len(leader._waiting), "it waits")
    leader.call_sync(op.Enqueue((job("a", ["a"]),)))
    assert woken.wait(LIMIT_S)
    waiting.join()

    async def cancel() -> None:
        waiting = asyncio.create_task(wait_on_loop())
        await until(lambda: len(leader._waiting) == 1)
        leader.call_sync(op.Cancel(("a",)))
        await waiting
        leader.call_sync(op.Enqueue((job("a2", ["a"]),)))
        waiting = asyncio.create_task(guest.wait(Interest(jobs=("a2",)), 2 * LIMIT_S))  # longer than is waited here
        await until(lambda: len(leader._waiting) == 1)
        waiting.cancel()
        await until(lambda: len(leader._waiting) == 0)

    asyncio.run(cancel())


async def test_waiters_survive_a_handover_of_the_file(table: Table) -> None:
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


def test_another_namespace_and_another_release_are_refused(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    table.have()
    with pytest.raises(BackendDeniedError, match="the jobs are those of namespace 'default', not 'docs'"):
        table.open(namespace="docs").call_sync(op.Peek())
    ((kind, call, answer),) = say(table, frame(HELLO, 9, b"queuehint 1.0 default 0 1-00000000 12"))
    assert (kind, call) == (ANSWER, 9)
    with pytest.raises(BackendDeniedError, match=r"cannot be asked by release 1\.0 \(wire 1-00000000\)"):
        read_answer(answer, object)


# --- once, and not twice ---------------------------------------------------------------------------------------------


@pytest.fixture
def lost(table: Table, monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Have the connection end in place of the first answer to a change."""
    monkeypatch.setattr(host_module, "THERE_MAX", 0)
    answers: list[bytes] = []
    answer = server_module.Connection.answer

    def lose(self: Any, call: int, body: bytes) -> None:
        if call:  # the greeting has no number
            answers.append(body)
        if call and len(answers) == 1:
            self.abort()
        else:
            answer(self, call, body)

    monkeypatch.setattr(server_module.Connection, "answer", lose)
    return answers


@pytest.mark.parametrize("shell", ["sync", "async"])
def test_change_with_a_lost_answer_is_answered_and_done_once(table: Table, lost: list[bytes], shell: str) -> None:
    leader, guest = table.have(), table.open()
    leader.call_sync(op.Enqueue((job("d", ["d"]), job("e", ["e"]))))
    claim = op.Exchange("v", limit=1)
    grants = (asyncio.run(guest.call(claim)) if shell == "async" else guest.call_sync(claim)).grants
    assert [grant.spec.id for grant in grants] == ["d"]
    assert lost[0] == lost[1]
    assert leader.call_sync(op.CountJobs()).started == 3
    assert [grant.spec.id for grant in guest.call_sync(op.Exchange("v", limit=1)).grants] == ["e"]


def test_a_refusal_that_is_lost_is_told_again(table: Table, lost: list[bytes]) -> None:
    leader: Any = table.have()
    leader.call_sync(op.Close(("doc",)))
    guest, before = table.open(), leader._journal.number
    with pytest.raises(PathClosedError):
        guest.call_sync(op.Enqueue((job("d", ["doc"]),)))
    assert lost[0] == lost[1]
    assert leader._journal.number == before + 1, "it is not done again"


@pytest.mark.parametrize("is_snapshot", [False, True], ids=["journal", "snapshot"])
def test_next_leader_knows_answers_of_the_previous_one(table: Table, is_snapshot: bool) -> None:
    leader, guest = table.have(), table.open()
    leader.call_sync(op.Enqueue((job("d", ["d"]), job("e", ["e"]))))
    begun = threading.Event()

    def die(*_: object) -> None:
        begun.set()

    guest.call_sync(op.Peek())
    claims: list[Any] = []
    asking = threading.Thread(target=lambda: claims.append(guest.call_sync(op.Exchange("v", limit=1))))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(server_module.Connection, "answer", die)
        patch.setattr(host_module, "THERE_MAX", 0)
        asking.start()
        assert begun.wait(LIMIT_S)
    if not is_snapshot:
        leave_journal(leader)
    leader.close_sync()
    asking.join(LIMIT_S)
    assert leads(guest)
    assert [[grant.spec.id for grant in each.grants] for each in claims] == [["d"]]
    assert guest.call_sync(op.CountJobs()).started == 3


def test_canceled_call_is_answered_when_repeated(table: Table) -> None:
    leader, guest = table.have(), table.open()
    leader.call_sync(op.Enqueue((job("d", ["d"]), job("e", ["e"]))))
    claim = op.Exchange("v", limit=1)

    async def cancel() -> None:
        await guest.call(op.Peek())
        with leader._lock:
            call = asyncio.create_task(guest.call(claim))
            await until(lambda: calls_of_guests(leader) == 1)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
        assert [grant.spec.id for grant in (await guest.call(claim)).grants] == ["d"]
        await guest.close()

    asyncio.run(cancel())
    assert leader.call_sync(op.CountJobs()).started == 3


def test_next_call_of_a_thread_continues_its_stream(table: Table) -> None:
    leader, guest = table.have(), table.open()
    for _ in range(5):
        guest.call_sync(op.Draw(1))
    with pytest.raises(InvalidJobError):
        guest.call_sync(op.Draw(-1))
    (last,) = guest._guest._free
    assert last.number == 5
    assert len(leader._answers._by_stream) == 1


def test_a_request_that_is_sent_twice_is_journaled_once(table: Table) -> None:
    leader: Any = table.have()
    before = leader._journal.number
    call = frame(CALL, 1, line_of(encode(op.Draw(1)), Request("s-1", 1)))
    with closing(connected(table)) as connection:
        connection.sendall(HERE)
        heard(connection, 1)
        with leader._lock:  # so that none is done before both have come
            connection.sendall(call + call)
            until_sync(lambda: calls_of_guests(leader) == 2, "both have come")
        assert {body for _, _, body in heard(connection, 2)} == {b"r[1]"}
    rows = [line for _, row in leader._journal.rows() for line in unpack(row)]
    assert [request for request, _ in rows].count(Request("s-1", 1)) == 1
    assert leader._journal.number == before + 1


def test_request_older_than_its_stream_is_not_done(table: Table) -> None:
    leader = table.have()
    late = [frame(CALL, n, line_of(encode(op.Draw(1)), Request("s-1", number))) for n, number in enumerate((2, 1, 2))]
    answers = say(table, frame(HELLO, 9, hello("default", 0)), *late)
    (_, _, first), (_, _, second), (_, _, third) = answers[1:]
    assert first == third == b"r[1]"
    with pytest.raises(BackendDeniedError, match="was answered before the one that came after it"):
        read_answer(second, op.Drawn)
    assert leader.call_sync(op.Peek()).first == 2


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


@pytest.mark.slow
def test_stalled_process_differs_from_working_and_dead_ones(
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
    monkeypatch.setattr(links_module, "SILENCE_S", 0.3)
    monkeypatch.setattr(guest_module, "SILENCE_S", 0.3)
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
    assert leads(guest)
    worker.call_sync(op.Peek())
    assert (leads(guest), leads(worker)) == (False, True)


@pytest.mark.parametrize("shell", ["sync", "async"])
def test_a_leader_that_stands_is_told_on_a_loop_too(table: Table, monkeypatch: pytest.MonkeyPatch, shell: str) -> None:
    for module in (links_module, guest_module):
        monkeypatch.setattr(module, "SILENCE_S", 0.2)
    monkeypatch.setattr(links_module, "_LOOK_S", 0.05)
    monkeypatch.setattr(server_module.Connection, "look", lambda *_: None)
    leader, guest = table.have(), table.open()

    async def reached(call: Callable[[], Awaitable[object]]) -> None:
        """Ask until it is answered, however slow the leader is."""
        while True:
            with suppress(BackendUnavailableError):
                await call()
                return

    async def peek() -> None:
        guest.call_sync(op.Peek())

    asyncio.run(reached(peek))

    async def ask() -> None:
        await reached(lambda: guest.call(op.Peek()))
        with leader._lock:
            await guest.call(op.Cancel(("a",)))

    def ask_sync() -> None:
        with leader._lock:
            guest.call_sync(op.Cancel(("a",)))

    with pytest.raises(OutcomeUnknownError, match=r"has not answered for 0\.2 s; the operation may have been done"):
        asyncio.run(ask()) if shell == "async" else ask_sync()


# --- what is sent by others ------------------------------------------------------------------------------------------


def connected(table: Table) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(LIMIT_S)
    connection.connect(str(table.path.with_name("jobs.db.sock")))
    return connection


def heard(connection: socket.socket, count: int) -> list[tuple[int, int, bytes]]:
    """Return so many frames, but those that say that the leader is at work; fewer if the connection ends."""
    frames = Frames(ANSWER_BYTES_MAX)
    found: list[tuple[int, int, bytes]] = []
    try:
        while len(found) < count and (piece := connection.recv(1 << 16)):
            found += [each for each in frames.feed(piece) if each[0] != BEAT]
    except ConnectionResetError:
        pass
    return found


def say(table: Table, *messages: bytes) -> list[tuple[int, int, bytes]]:
    """Send frames one after the other, and return the answer to each; fewer if the connection is closed."""
    found = []
    with closing(connected(table)) as connection:
        for message in messages:
            try:
                connection.sendall(message)
            except (BrokenPipeError, ConnectionResetError):
                break
            found += heard(connection, 1)
    return found


HERE = frame(HELLO, 0, hello("default", 0))


@contextmanager
def is_left_alone(table: Table, caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """See that nothing is changed meanwhile, that others are served afterwards, and that nothing was logged."""
    leader = table.have()
    before = leader.call_sync(op.CountJobs()), leader.call_sync(op.Peek())
    yield
    for store in (leader, table.open()):
        assert (store.call_sync(op.CountJobs()), store.call_sync(op.Peek())) == before
    assert not caplog.records


@pytest.mark.parametrize(
    "message",
    [
        b"\0",
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        bytes(4),
        b"\xff\xff\xff\xff" + b"x" * 1000,
        (33 << 20).to_bytes(4, "big"),
        (20 << 20).to_bytes(4, "big") + b"half",
        frame(HELLO, 1, b"\xff" * 1000),
        frame(CALL, 1, b"before it has said who it is"),
        HERE + HERE,
        *[HERE + frame(LEAVE, 1, body) for body in (b"", b"[" * 100_000)],
        HERE + frame(ASK, 1, b'{"":"Get","ids":[["a"]]}'),
        HERE + frame(CALL, 1, b's 1 {"":"Cancel","ids":5}'),
        HERE + frame(WAIT, 1, b"[{},5]") + frame(WAIT, 1, b"[{},5]"),
    ],
    ids=range(14),
)
def test_bytes_that_are_no_request_do_no_harm(table: Table, message: bytes, caplog: pytest.LogCaptureFixture) -> None:
    with is_left_alone(table, caplog), closing(connected(table)) as connection:
        with suppress(BrokenPipeError, ConnectionResetError):
            connection.sendall(message)
            connection.shutdown(socket.SHUT_WR)  # a refusal may be lost by that
        for _, call, answer in heard(connection, 9):
            assert answer.startswith(b"e") or (call, answer) == (0, b"rnull")


@pytest.mark.parametrize(
    "message, problem",
    [
        *[(frame(ASK, 1, body), "that is not an operation") for body in (b"", b"[" * 100_000)],
        *[(frame(WAIT, 1, body), "that is not a wait") for body in (b"", b"[" * 100_000)],
        *[
            (frame(kind, 1, body), "that is not a request")
            for kind in (CALL, BEAT, BEHIND, 99)
            for body in (b"", b"[" * 100_000)
        ],
        *[(frame(BEHIND, 1, body), "that is not a request") for body in (b"-1", b"1" * 20, b"1 ")],
        (frame(CALL, 1, b's 1 {"":"Draw",\n"count":1}'), "that is not a request"),
        (frame(CALL, 1, b's 1 {"":"Draw","count":1' + b"0" * 5000 + b"}"), "that is not an operation"),
        (frame(ASK, 1, encode(op.Draw(1))), "Draw is not accepted from another process in this way"),
        (frame(CALL, 1, b"s 1 " + encode(op.Peek())), "Peek is not accepted from another process in this way"),
        (frame(ASK, 1, b'{"":"Get","ids":[["a"]]}'), r"Get\.ids must be str, got tuple"),
        (frame(ASK, 1, b'{"":"Tree","path":"no path","depth":1e999}'), r"Tree\.path must be a tuple of str, got str"),
        (frame(CALL, 1, b's 1 {"":"Await","job_ids":[["a"]]}'), r"Get\.ids must be str, got tuple"),
        (
            frame(CALL, 1, b's 1 {"":"Enqueue","jobs":[{"":"Cancel","ids":["a"]}]}'),
            r"Enqueue\.jobs must be a JobSpec, got Cancel",
        ),
        (frame(CALL, 1, b's 1 {"":"Cancel","ids":5}'), r"Cancel\.ids must be a tuple, got int"),
        (frame(WAIT, 1, b"[{},5]") * 2, "a call of that number is under way"),
    ],
    ids=range(25),
)
def test_malformed_request_is_refused_by_name(
    table: Table, message: bytes, problem: str, caplog: pytest.LogCaptureFixture
) -> None:
    with is_left_alone(table, caplog), closing(connected(table)) as connection:
        connection.sendall(HERE + message)
        greeted, (kind, call, answer) = heard(connection, 2)
        assert greeted == (ANSWER, 0, b"rnull")
        assert (kind, call) == (ANSWER, 1)
        with pytest.raises(QueueHintError, match=f"^{problem}"):
            read_answer(answer, object)


def test_connections_that_say_nothing_keep_nobody_out_for_long(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "READ_S", 0.2)
    monkeypatch.setattr(server_module, "BEAT_S", 0.05)
    monkeypatch.setattr(server_module, "CONNECTIONS_MAX", 4)
    leader = table.have()
    idle = [connected(table) for _ in range(12)]
    idle[0].sendall((1000).to_bytes(4, "big") + b"half")
    idle[1].sendall(HERE + (1000).to_bytes(4, "big") + b"half")
    assert table.open().call_sync(op.CountJobs()) == leader.call_sync(op.CountJobs())
    for connection in idle:
        connection.close()


def test_a_guest_that_says_nothing_keeps_its_connection(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "BEAT_S", 0.05)
    table.have()
    with closing(connected(table)) as connection:
        connection.sendall(HERE)
        assert heard(connection, 1) == [(ANSWER, 0, b"rnull")]
        monkeypatch.setattr(server_module, "READ_S", 0.1)
        time.sleep(0.4)
        connection.sendall(frame(ASK, 1, encode(op.Peek())))
        assert heard(connection, 1) == [(ANSWER, 1, b"r[1]")]


@pytest.mark.slow
def test_one_that_does_not_read_its_answers_is_left(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "WRITE_S", 0.2)
    monkeypatch.setattr(server_module, "BEAT_S", 0.05)
    leader = table.have()
    leader.call_sync(op.Enqueue(tuple(job(f"j{n}", ["p"], arguments=b"x" * 100_000) for n in range(20))))
    questions: list[int] = []
    ask = host_module.HostedGuest._ask

    async def count(self: Any, question: Any) -> bytes:
        questions.append(self._questions)
        return await ask(self, question)

    monkeypatch.setattr(host_module.HostedGuest, "_ask", count)
    with closing(connected(table)) as connection:
        asks = encode(op.Get(tuple(f"j{n}" for n in range(20))))
        sent = 2 * host_module.QUESTIONS_MAX
        connection.sendall(HERE + b"".join([frame(ASK, n, asks) for n in range(sent)]))  # read before any is answered
        with suppress(BrokenPipeError, ConnectionResetError):
            while sent < 5_000:
                connection.sendall(frame(ASK, sent, asks))
                sent += 1
        assert sent < 5_000
    assert max(questions) == host_module.QUESTIONS_MAX
    assert table.open().call_sync(op.Peek()).first == 1


def test_large_frames_are_read_one_at_a_time(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "SMALL_BYTES", 1000)
    leader = table.have()
    body = line_of(encode(op.Enqueue((job("x", ["p"], arguments=b"x" * 500_000),))), Request("s-1", 1))
    large = frame(CALL, 1, body)
    with closing(connected(table)) as first, closing(connected(table)) as second:
        for connection in (first, second):
            connection.sendall(HERE)
            assert len(heard(connection, 1)) == 1
        first.sendall(large[:2000])
        service: Any = leader._service
        server = service._server
        until_sync(lambda: len(server._large) == 1, "the first one has begun")
        second.setblocking(False)
        sent = 0
        with suppress(BlockingIOError):
            while sent < len(large):
                sent += second.send(large[sent:])
        until_sync(lambda: len(server._large) == 2, "the second one waits")
        assert sent < len(large)
        first.sendall(large[2000:])
        assert heard(first, 1)[0][2].startswith(b"r")
        second.setblocking(True)
        second.sendall(large[sent:])
        assert heard(second, 1)[0][2].startswith(b"r")
    until_sync(lambda: not server._large, "both have ended")
    assert leader.call_sync(op.Get(("x",))).records[0] is not None


def test_more_calls_than_are_done_at_a_time_wait(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_module, "CALLS_MAX", 5)
    leader = table.have()
    calls: list[int] = []
    wait = host_module.HostedGuest._wait

    async def count(self: Any, *waited: Any) -> bytes:
        calls.append(self.calls)
        return await wait(self, *waited)

    monkeypatch.setattr(host_module.HostedGuest, "_wait", count)
    with closing(connected(table)) as connection:
        connection.sendall(HERE + b"".join([frame(WAIT, n, b"[{},0.01]") for n in range(1, 30)]))
        assert {call for _, call, _ in heard(connection, 30)} == set(range(30))
    assert max(calls) == 5
    assert leader.call_sync(op.Peek()).first == 1


@pytest.mark.parametrize("there", [host_module.THERE_MAX, 0])
def test_changes_that_wait_begin_after_earlier_answers(
    table: Table, monkeypatch: pytest.MonkeyPatch, there: int
) -> None:
    monkeypatch.setattr(host_module, "CALLS_MAX", 2)
    monkeypatch.setattr(host_module, "THERE_MAX", there)
    table.have()
    calls = [frame(CALL, n, line_of(encode(op.Draw(1)), Request(f"s-{n}", 1))) for n in range(1, 50)]
    with closing(connected(table)) as connection:
        connection.sendall(HERE + b"".join(calls))
        assert sorted(call for _, call, _ in heard(connection, 50)) == list(range(50))


async def test_guest_call_is_sent_at_once_or_with_its_turn(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    table.have()
    guest = table.open()
    await guest.call(op.Peek())
    sent: list[int] = []
    send = links_module.Link._send

    def spy(self: Any) -> None:
        sent.append(len(self._out))
        send(self)

    monkeypatch.setattr(links_module.Link, "_send", spy)
    assert [(await guest.call(op.Draw(1))).first for _ in range(3)] == [1, 2, 3]
    assert sent == []
    drawn = await asyncio.gather(*[guest.call(op.Draw(1)) for _ in range(5)])
    assert sorted(each.first for each in drawn) == [4, 5, 6, 7, 8]
    assert sent == [4]
    await guest.close()


def test_change_is_answered_on_its_writing_thread(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    table.have()
    guest = table.open()
    guest.call_sync(op.Draw(1))
    threads: list[str] = []
    answer_now = server_module.Connection.answer_now

    def spy(self: Any, answers: Any) -> bool:
        threads.append(threading.current_thread().name)
        return answer_now(self, answers)

    monkeypatch.setattr(server_module.Connection, "answer_now", spy)
    monkeypatch.setattr(server_module.Server, "call_soon", lambda *_: pytest.fail("the other thread is woken"))
    assert [guest.call_sync(op.Draw(1)) for _ in range(3)] == [op.Drawn(n) for n in (2, 3, 4)]
    assert threads == ["queuehint-sqlite"] * 3


def test_an_answer_that_goes_out_in_pieces_is_whole(table: Table) -> None:
    leader = table.have()
    jobs = [job(f"large{n}", [f"{n}"], arguments=b'{"a":"%b"}' % (b"x" * 900_000)) for n in range(3)]
    for each in jobs:
        leader.call_sync(op.Enqueue((each,)))
    claims = [frame(CALL, n, line_of(encode(op.Exchange("v", limit=1)), Request(f"s-{n}", 1))) for n in range(1, 4)]
    with closing(connected(table)) as connection:
        connection.sendall(HERE)
        heard(connection, 1)
        for claim in claims:
            connection.sendall(claim)
            time.sleep(0.05)  # nobody reads: what does not fit waits at the leader
        connection.sendall(frame(ASK, 9, encode(op.Peek())))
        found = heard(connection, 4)
    assert sorted(call for _, call, _ in found) == [1, 2, 3, 9]
    grants = [grant for _, call, body in found if call < 9 for grant in read_answer(body, op.Exchanged).grants]
    assert sorted(grant.spec.id for grant in grants) == ["large0", "large1", "large2"]
    assert {len(grant.spec.arguments) for grant in grants} == {900_008}


def test_an_answer_that_cannot_be_encoded_ends_no_thread(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    leader, guest = table.have(), table.open()
    guest.call_sync(op.Draw(1))
    said = messages_module.replied
    failures = [ValueError("a fault of ours")]

    def fail_once(reply: object) -> bytes:
        if failures:
            raise failures.pop()
        return said(reply)

    monkeypatch.setattr(host_module, "replied", fail_once)
    assert guest.call_sync(op.Draw(1)) == op.Drawn(2)
    assert leader.call_sync(op.Draw(1)) == op.Drawn(3)


@pytest.mark.slow
def test_an_answer_that_takes_long_is_waited_for(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "BEAT_S", 0.1)
    for module in (links_module, guest_module):
        monkeypatch.setattr(module, "SILENCE_S", 2.0)
    leader, guest = table.have(), table.open()
    got: list[object] = []
    waiting = [threading.Thread(target=lambda: got.append(guest.call_sync(op.Peek())))]
    waiting.append(threading.Thread(target=lambda: got.append(asyncio.run(guest.call(op.Peek())))))
    with leader._lock:
        for each in waiting:
            each.start()
        time.sleep(3)
        assert not got
    for each in waiting:
        each.join(LIMIT_S)
    assert got == [leader.call_sync(op.Peek())] * 2


def test_operation_with_an_unknown_failure_has_an_unknown_outcome(
    table: Table, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    leader, guest = table.have(), table.open()

    def fail(*_: Any) -> None:
        raise ZeroDivisionError

    guest.call_sync(op.Peek())
    monkeypatch.setattr(leader.engine, "apply", fail)
    with pytest.raises(BackendError, match="failed with ZeroDivisionError; nothing was changed"):
        guest.call_sync(op.Peek())
    with pytest.raises(OutcomeUnknownError, match="failed with ZeroDivisionError; the operation may have been done"):
        guest.call_sync(op.Draw(1))
    assert {each.__dict__["event"] for each in caplog.records} == {"journal.request_failed"}


def test_a_closed_store_says_that_it_is_gone(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    leader = table.have()
    monkeypatch.setattr(leader, "_closed", True)  # as for the moment until its file is closed
    line = line_of(encode(op.Draw(1)), Request("s-1", 1))
    assert say(table, HERE, frame(CALL, 1, line), frame(ASK, 2, encode(op.Peek())))[1:] == [
        (ANSWER, 1, GONE),
        (ANSWER, 2, GONE),
    ]
    monkeypatch.undo()


def test_aspiring_worker_is_left_the_lead_or_stays_a_guest(table: Table) -> None:
    leader = table.have()
    forget = leader.adopt(list)
    wants = frame(WANT, 1, b"%d" % (LEAD | RUN))
    assert say(table, HERE, wants) == [(ANSWER, 0, b"rnull"), (ANSWER, 1, b"rnull")]
    forget()
    runs = frame(WANT, 1, b"%d" % RUN)
    assert say(table, HERE, runs, wants) == [(ANSWER, 0, b"rnull"), (ANSWER, 1, b"rnull"), (ANSWER, 1, GONE)]


def test_leader_knows_which_guests_run_jobs(table: Table) -> None:
    leader = table.have()
    leader.keeps_lead = True
    for aim, runners in ((LEAD, 0), (RUN, 1), (LEAD | RUN, 1)):
        with closing(connected(table)) as connection:
            connection.sendall(frame(HELLO, 0, hello("default", 0)) + frame(WANT, 1, b"%d" % aim) * 2)
            heard(connection, 3)
            assert leader._runners == runners
        until_sync(lambda: not leader._runners, "it has left")


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
    assert say(table, HERE) == []
    assert asked == [{os.geteuid(), 0}]


def test_other_user_cannot_impersonate_the_leader(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    table.have()
    monkeypatch.setattr(doors_module, "is_trusted", lambda *_: False)
    with pytest.raises(BackendDeniedError, match="the socket belongs to another user"):
        table.open().call_sync(op.Peek())


def test_the_other_end_is_asked_for_its_user() -> None:
    here, there = socket.socketpair()
    with closing(here), closing(there):
        assert sockets_module.is_trusted(here, {os.geteuid()})
        assert not sockets_module.is_trusted(here, {os.geteuid() + 1}) or sys.platform != "linux"


def test_stale_socket_is_replaced_and_foreign_files_are_kept(table: Table) -> None:
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


def test_overlong_path_puts_its_socket_in_a_user_directory(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
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
    leader: Any = table.have()
    server = leader._service._server
    server.leave_to_parent()
    assert all(each.fileno() == -1 for each in server._sockets)
