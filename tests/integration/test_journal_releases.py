"""Rows of a journal say what was granted, and a release that replays them decides nothing anew."""

from __future__ import annotations

import logging
import re
import sqlite3
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from queuehint import operations as op
from queuehint.backends.base import release
from queuehint.backends.journal import leading, opening, recovery
from queuehint.backends.journal.backend import JournalBackend
from queuehint.backends.journal.groups import DECIDED, Request, unpack
from queuehint.backends.journal.guests import links
from queuehint.backends.journal.guests.greetings import wire
from queuehint.backends.journal.lead import standing as standing_module
from queuehint.backends.journal.lead.standing import Standby
from queuehint.backends.journal.snapshots import compaction
from queuehint.backends.journal.snapshots.snapshot import SCHEMA
from queuehint.backends.journal.store import Position
from queuehint.backends.journal.writer import Ticket
from queuehint.backends.journal.writing import NUDGE
from queuehint.backends.sqlite import file as file_module
from queuehint.backends.sqlite.backend import SqliteBackend
from queuehint.core.engine import Engine
from queuehint.errors import BackendDeniedError, BackendFullError, CorruptStateError, OutcomeUnknownError
from queuehint.operations.wire import decode
from queuehint.testing.driver import Driver
from queuehint.values.outcome import Grant
from queuehint.values.record import JobState
from tests.other_rules import OTHER, other_release
from tests.sqlite_store import Shelf, claim, claiming, enqueue, events, finish, free, leave_journal, make_shelf, record
from tests.support import until_sync

shelf = pytest.fixture(make_shelf)
QUEUED, STARTED = JobState.QUEUED, JobState.STARTED


def rows(shelf: Shelf) -> list[bytes]:
    journal = shelf.stores[-1]._journal
    assert journal is not None
    return [data for _, data in journal.rows()]


class Client(Driver):
    """A client of a store."""

    def __init__(self, store: SqliteBackend) -> None:
        super().__init__()
        self.store = store

    def apply(self, operation: op.Operation[Any]) -> Any:
        return self.store.call_sync(operation)

    def advance(self, ms: int) -> None:
        raise NotImplementedError


class Blocked:
    """A file whose appends wait until they may go on; they fail at once if there is an error."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, error: Exception | None = None) -> None:
        self.began, self.go_on = threading.Event(), threading.Event()
        self.error = error
        if error is not None:
            self.go_on.set()
        self.count = 0
        append = file_module.JournalFile.append

        def wait(journal: Any, *said: Any, **others: Any) -> None:
            self.count += 1
            self.began.set()
            assert self.go_on.wait(60)
            if self.error is not None:
                raise self.error
            append(journal, *said, **others)

        monkeypatch.setattr(file_module.JournalFile, "append", wait)


# --- rows ------------------------------------------------------------------------------------------------------------


def test_row_lists_grants_before_their_exchange_and_standing_last(shelf: Shelf) -> None:
    store = shelf.open()
    free(store, "a", "b", "c")
    grants = claim(store, 2)
    first = grants[0].token & 0xFFFFFFFF
    lines = rows(shelf)[-1].split(b"\n")
    assert lines[0] == b":%d 1,1" % first
    assert lines[1].startswith(b'{"":"Exchange"')
    assert lines[2][:1] == b"#"
    assert len(lines[2]) == 5


def test_first_row_begins_with_the_standing_unless_already_written(shelf: Shelf) -> None:
    store = shelf.open()
    free(store, "a", "b")
    claim(store)
    free(store, "c", "d")
    firsts = [[line[:1] for line in row.split(b"\n")] for row in rows(shelf)]
    assert firsts == [[b"{"], [b"#", b"{"], [b"#", b"{"], [b":", b"{", b"#"], [b"{"], [b"#", b"{"]]


def test_jobs_that_a_pause_has_parked_stand_between_the_grants(shelf: Shelf) -> None:
    store = shelf.open()
    Client(store).pause_jobs(user="u")
    free(store, "a")
    free(store, "b", user="u")
    free(store, "c")
    claim(store, 2)
    assert rows(shelf)[-1].split(b"\n")[0].endswith(b" 1,1p,1")
    claim(store, 0)
    assert not [line for line in rows(shelf)[-1].split(b"\n") if line.startswith(b":")], "it has taken none"


# --- the engine is ahead ---------------------------------------------------------------------------------------------


def test_question_is_answered_after_the_granting_row(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    store = shelf.open()
    free(store, "a")
    blocked = Blocked(monkeypatch)
    claiming = threading.Thread(target=claim, args=(store,))
    claiming.start()
    assert blocked.began.wait(60)
    found: list[JobState] = []
    asking = threading.Thread(target=lambda: found.append(record(store, "a").state))
    asking.start()
    asking.join(0.05)
    assert not found, "nobody knows yet whether that is so"
    blocked.go_on.set()
    asking.join()
    claiming.join()
    assert found == [STARTED]


def test_question_is_answered_as_before_an_unwritable_grant(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    store = shelf.open()
    free(store, "a")
    blocked = Blocked(monkeypatch, BackendFullError("no room"))
    with pytest.raises(BackendFullError):
        claim(store)
    assert record(store, "a").state is QUEUED
    assert store.engine.token & 0xFFFFFFFF == 0
    blocked.error = None
    assert [grant.spec.id for grant in claim(store)] == ["a"]
    shelf.crash()
    assert record(shelf.reopen(), "a").state is STARTED


def test_long_unwritable_journal_reloads_the_engine_once(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    store = shelf.open()
    free(store, "a")
    blocked = Blocked(monkeypatch, BackendFullError("no room"))
    loaded: list[Any] = []

    def count(*said: Any) -> recovery.Recovered:
        loaded.append(said)
        return recovery.recover(*said)

    monkeypatch.setattr(opening, "recover", count)
    for _ in range(5):
        with pytest.raises(BackendFullError):
            claim(store)
        assert record(store, "a").state is QUEUED
    assert len(loaded) == 1
    blocked.error = None
    assert len(claim(store)) == 1
    assert len(loaded) == 1


def test_failure_in_a_granting_group_leaves_it_unwritten(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    store = shelf.open()
    free(store, "a", "b")
    apply = Engine.apply

    def break_down(self: Engine, operation: op.Operation[Any], now_ms: int) -> Any:
        reply = apply(self, operation, now_ms)
        if operation == claiming(worker="bad"):
            raise MemoryError
        return reply

    tickets = [Ticket(each) for each in (claiming(), claiming(worker="bad"), claiming(worker="v"))]
    with monkeypatch.context() as patch:
        patch.setattr(Engine, "apply", break_down)
        store._do_together(tickets)
    assert [type(each.error) for each in tickets] == [type(None), MemoryError, OutcomeUnknownError]
    assert (record(store, "a").state, record(store, "b").state) == (STARTED, QUEUED)
    shelf.crash()
    again = shelf.reopen()
    assert (record(again, "a").state, record(again, "b").state) == (STARTED, QUEUED)


# --- replayed by the same release ------------------------------------------------------------------------------------


def test_release_with_other_decisions_logs_and_follows_them(shelf: Shelf, caplog: pytest.LogCaptureFixture) -> None:
    grant = ahead_of_b(shelf)
    with other_release("newest_first", name=release()):
        again = shelf.reopen()
        assert [record(again, each).state for each in "abc"] == [STARTED, QUEUED, QUEUED]
        assert finish(again, grant) is op.Verdict.DONE
    assert events(caplog) == ["journal.replay_differs"]
    assert f"release {release()} granted jobs otherwise when it was replayed" in caplog.text


def test_invalid_grant_of_the_same_release_is_damage(shelf: Shelf, caplog: pytest.LogCaptureFixture) -> None:
    store = shelf.open()
    enqueue(store, "a", "b")
    claim(store)
    change(shelf, b" 1\n", b" 2\n")
    with pytest.raises(CorruptStateError, match="granted job b, which may not run when that is replayed"):
        shelf.reopen().call_sync(NUDGE)


def change(shelf: Shelf, old: bytes, new: bytes) -> None:
    """Write something else into the newest row, after a crash."""
    shelf.crash()
    with sqlite3.connect(shelf.path) as db:
        (number, data) = db.execute("SELECT number, operations FROM journal ORDER BY number DESC").fetchone()
        assert data.count(old) == 1
        db.execute("UPDATE journal SET operations = ? WHERE number = ?", (data.replace(old, new), number))
    db.close()


# --- followed by another release -------------------------------------------------------------------------------------


def ahead_of_b(shelf: Shelf) -> Grant:
    """Have release A grant the oldest of three jobs and die; release B would have granted the newest."""
    store = shelf.open()
    for job_id in "abc":
        free(store, job_id)
        shelf.clock.advance(ms=1)
    (grant,) = claim(store)
    shelf.crash()
    return grant


def test_other_release_replays_earlier_grants_and_makes_a_snapshot(
    shelf: Shelf, caplog: pytest.LogCaptureFixture
) -> None:
    grant = ahead_of_b(shelf)
    with other_release("newest_first"):
        again = shelf.reopen()
        assert [record(again, each).state for each in "abc"] == [STARTED, QUEUED, QUEUED]
        assert (shelf.count("journal"), shelf.count("snapshot")) == (0, 3)
        assert finish(again, grant) is op.Verdict.DONE
        assert [each.spec.id for each in claim(again)] == ["c"], "from here on its own rules choose"
    assert events(caplog) == ["journal.other_release"]


def test_claims_in_one_row_have_each_their_own_grants(shelf: Shelf) -> None:
    store = shelf.open()
    free(store, "a", "b")
    tickets = [Ticket(claiming(worker=name)) for name in "uvw"]
    store._do_together(tickets)
    assert [[each.spec.id for each in ticket.wait().grants] for ticket in tickets] == [["a"], ["b"], []]
    shelf.crash()
    with other_release():
        again = shelf.reopen()
        assert [record(again, each).state for each in "ab"] == [STARTED, STARTED]


def test_release_with_other_ends_refuses_and_changes_nothing(shelf: Shelf) -> None:
    grant = ahead_of_b(shelf)
    before = shelf.count("journal")
    with other_release(), pytest.MonkeyPatch.context() as patch:
        apply = Engine.apply

        def refuse(self: Engine, operation: op.Operation[Any], now_ms: int) -> Any:
            if [each.id for each in getattr(operation, "jobs", ())] == ["b"]:
                return None
            return apply(self, operation, now_ms)

        patch.setattr(Engine, "apply", refuse)
        with pytest.raises(BackendDeniedError) as caught:
            shelf.reopen().call_sync(NUDGE)
    said = str(caught.value)
    assert f"was led by release {release()}, which decided otherwise, and release {OTHER} does not guess" in said
    assert f"have release {release()} lead it again and hand it over, or close it, in order" in said
    assert shelf.count("journal") == before
    assert finish(shelf.reopen(), grant) is op.Verdict.DONE


def test_release_refuses_grants_that_its_rules_forbid(shelf: Shelf) -> None:
    store = shelf.open()
    enqueue(store, "a", "b")
    claim(store)
    change(shelf, b" 1\n", b" 2\n")
    with other_release(), pytest.raises(BackendDeniedError, match="which granted job b, and release"):
        shelf.reopen().call_sync(NUDGE)


def test_unknown_operations_of_another_release_are_refused_by_name(shelf: Shelf) -> None:
    enqueue(shelf.open(), "a")
    change(shelf, b'{"":"Enqueue"', b'{"":"Enrol"')
    with other_release(), pytest.raises(BackendDeniedError, match="has operations that this one does not know"):
        shelf.reopen().call_sync(NUDGE)
    with pytest.raises(CorruptStateError, match="not an operation"):
        shelf.reopen().call_sync(NUDGE)


@pytest.mark.parametrize("line", [b":x 1", b":1 ", b":1 1,", b":1 1q"])
def test_a_line_that_is_no_grant_is_damage(shelf: Shelf, line: bytes) -> None:
    store = shelf.open()
    free(store, "a")
    claim(store)
    change(shelf, rows(shelf)[-1].split(b"\n")[0], line)
    with other_release(), pytest.raises(CorruptStateError, match="a line that is no grant"):
        shelf.reopen().call_sync(NUDGE)


def test_request_repeated_to_another_release_gets_the_first_answer(shelf: Shelf) -> None:
    store = shelf.open()
    for job_id in "abc":
        free(store, job_id)
        shelf.clock.advance(ms=1)
    request, asked = Request("f00-1", 1), claiming(lease_ms=5_000)
    ticket = Ticket(asked, request=request)
    store.submit(ticket)
    first = ticket.wait()
    shelf.crash()
    with other_release("newest_first"):
        again = shelf.reopen()
        repeated = [Ticket(asked, request=request) for _ in range(2)]
        for each in repeated:
            again.submit(each)
        assert [each.wait() for each in repeated] == [first, first]
        assert [each.spec.id for each in claim(again)] == ["c"]


def test_replay_restores_tokens_drawn_by_another_release(shelf: Shelf) -> None:
    store = shelf.open()
    free(store, "a", "b")
    grants = claim(store, 2)
    shelf.crash()
    with other_release(), pytest.MonkeyPatch.context() as patch:
        begin = Engine.begin_epoch
        patch.setattr(Engine, "begin_epoch", lambda self, token, reap_ms: begin(self, token + 7, reap_ms))
        patch.setattr(recovery.History, "check", lambda *_: None)
        again = shelf.reopen()
        again.call_sync(NUDGE)
        assert [again.engine.table.jobs[each.spec.id].token for each in grants] == [each.token for each in grants]


# --- guests of another release ---------------------------------------------------------------------------------------


@pytest.fixture
def foreign(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Have guests say that they are of another release, with the wire of this one unless another is given."""

    def say(its_wire: str | None = None, reads: int = SCHEMA) -> None:
        def hello(namespace: str, aim: int) -> bytes:
            return f"queuehint {OTHER} {namespace} {aim} {its_wire or wire()} {reads} more".encode()

        monkeypatch.setattr(links, "hello", hello)

    return say


def test_guest_of_another_release_with_equal_wire_is_served(shelf: Shelf, foreign: Callable[..., None]) -> None:
    foreign()
    leader, guest = shelf.open(), shelf.open()
    leader.adopt(list)
    free(leader, "a")
    (grant,) = claim(guest)
    assert finish(guest, grant) is op.Verdict.DONE
    assert record(guest, "a").state is JobState.FINISHED
    assert leader.is_leading


def test_a_guest_with_another_wire_is_refused_by_both_releases(shelf: Shelf, foreign: Callable[..., None]) -> None:
    foreign("7-00000000")
    leader, guest = shelf.open(), shelf.open()
    leader.adopt(list)
    free(leader, "a")
    problem = rf"is of release {re.escape(release())} .*cannot be asked by release {OTHER} \(wire 7-00000000\)"
    with pytest.raises(BackendDeniedError, match=problem):
        claim(guest)
    assert record(leader, "a").state is QUEUED


@pytest.mark.parametrize("its_wire", [None, "7-00000000"])
def test_leader_without_worker_leaves_snapshot_and_lead_to_another(
    shelf: Shelf, foreign: Callable[..., None], its_wire: str | None
) -> None:
    free(shelf.open(), "a")
    shelf.crash()
    foreign(its_wire)
    leader, guest = shelf.open(), shelf.open()
    assert record(leader, "a").state is QUEUED
    assert shelf.count("snapshot") == 0, "what is read again is no change"
    guest.adopt(list)
    (grant,) = claim(guest)
    assert guest.is_leading
    assert shelf.count("snapshot") > 0
    assert claims_of(guest) == [True], "the row of this claim is all there is behind the snapshot"
    assert finish(guest, grant) is op.Verdict.DONE


def claims_of(store: SqliteBackend) -> list[bool]:
    """Return of each operation after the snapshot whether it is a claim."""
    assert store._journal is not None
    lines = [line for _, data in store._journal.rows() for request, line in unpack(data) if request is not DECIDED]
    return [decode(line).is_claim for line in lines]


def test_leader_keeps_the_lead_from_a_release_unable_to_read(shelf: Shelf, foreign: Callable[..., None]) -> None:
    foreign(reads=SCHEMA - 1)
    leader, guest = shelf.open(), shelf.open()
    free(leader, "a")
    guest.adopt(list)
    assert len(claim(guest)) == 1, "it goes on as a guest"
    assert leader.is_leading
    assert not guest.is_leading


def test_snapshot_for_another_release_is_written_beside_the_work(
    shelf: Shelf, foreign: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (leading, compaction):
        monkeypatch.setattr(module, "CLOSING_JOBS", 5)
    monkeypatch.setattr(compaction, "SMALL_JOBS", 5)
    foreign()
    leader, guest = shelf.open(), shelf.open()
    free(leader, *[f"a{n}" for n in range(20)])
    guest.adopt(list)
    held = claim(guest, 2)
    until_sync(lambda: not leader.is_leading, "it has left the lead")
    held += claim(guest, 2)
    assert guest.is_leading
    assert shelf.count("snapshot") > 0
    assert [finish(guest, grant) for grant in held] == [op.Verdict.DONE] * 4
    assert {grant.spec.id for grant in held} == {"a0", "a1", "a2", "a3"}


def test_two_processes_of_another_release_get_one_lead(shelf: Shelf, foreign: Callable[..., None]) -> None:
    foreign()
    leader, *guests = shelf.open(), shelf.open(), shelf.open()
    free(leader, "a", "b")
    for guest in guests:
        guest.adopt(list)
    found: list[Grant] = []
    asking = [threading.Thread(target=lambda store: found.extend(claim(store)), args=(guest,)) for guest in guests]
    for each in asking:
        each.start()
    for each in asking:
        each.join()
    assert [guest.is_leading for guest in guests].count(True) == 1
    assert sorted(grant.spec.id for grant in found) == ["a", "b"]


# --- layouts ---------------------------------------------------------------------------------------------------------


def test_journal_of_a_newer_layout_is_refused_unchanged(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "SCHEMA", 77)
    monkeypatch.setattr(compaction, "release", lambda: OTHER)
    free(shelf.open(), "a")
    shelf.stores[-1].close_sync()
    before = shelf.path.read_bytes()
    older = shelf.open()
    served: list[Any] = []
    monkeypatch.setattr(older, "_serve", served.append)
    said = (
        f"has a snapshot of layout 77, and this release of queuehint, {release()}, reads {SCHEMA}: have release {OTHER}"
    )
    for _ in range(2):
        with pytest.raises(BackendDeniedError, match=said):
            older.call_sync(NUDGE)
    assert not served
    assert shelf.path.read_bytes() == before
    monkeypatch.setattr(recovery, "SCHEMA", 77)
    newer = shelf.open()
    assert record(newer, "a").state is QUEUED, "the other one has let go of the lead"


def test_unreadable_header_is_refused_by_the_release_it_names(shelf: Shelf) -> None:
    shelf.open().call_sync(NUDGE)
    change(shelf, b'"release":"%b"' % release().encode(), b'"more":1,"release":"%b"' % OTHER.encode())
    problem = f"was led by release {OTHER}, which has operations that this one does not know, and release {release()}"
    with pytest.raises(BackendDeniedError, match=re.escape(problem)):
        shelf.reopen().call_sync(NUDGE)


# --- standing by -----------------------------------------------------------------------------------------------------


@pytest.fixture
def standing() -> Iterator[Callable[[JournalBackend], None]]:
    """Have backends stand by until the end of the test."""
    stop, threads = threading.Event(), list[threading.Thread]()

    def begin(backend: JournalBackend) -> None:
        threads.append(threading.Thread(target=Standby(backend).run, args=(stop,)))
        threads[-1].start()

    yield begin
    stop.set()
    for thread in threads:
        thread.join()


def test_standby_of_another_release_follows_nothing_and_leads_by_grants(
    shelf: Shelf,
    standing: Callable[[JournalBackend], None],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "queuehint.journal")
    leader, ready, worker = shelf.open(), shelf.open(), shelf.open()
    leader.adopt(list)
    free(leader, "a", "b")
    (grant,) = claim(leader)
    monkeypatch.setattr(recovery, "release", lambda: OTHER)
    standing(ready)
    until_sync(lambda: "journal.standby_waits" in events(caplog), "it waits")
    leave_journal(leader)
    leader.close_sync()
    worker.adopt(list)
    assert finish(worker, grant) is op.Verdict.DONE
    assert ready.is_leading, "a worker leaves the lead to it, though it has not followed"
    assert events(caplog).count("journal.standby_waits") == 1
    assert "journal.other_release" in events(caplog)


def test_standby_of_the_same_release_leads_first(
    shelf: Shelf, standing: Callable[[JournalBackend], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    leader, same, other = shelf.open(), shelf.open(), shelf.open()
    leader.adopt(list)
    free(leader, "a", "b")
    waiting = Standby(other)
    waiting._waits_at = Position(0)
    monkeypatch.setattr(standing_module, "YIELDS_S", 60.0)
    leave_journal(leader)
    leader.close_sync()
    for _ in range(2):
        waiting._step()
        assert not other.is_leading, "for a moment nobody leads"
    standing(same)
    until_sync(lambda: same.is_leading, "it leads")
    monkeypatch.setattr(standing_module, "YIELDS_S", 0.0)
    leave_journal(same)
    same.close_sync()
    waiting._step()
    assert other.is_leading
    waiting._forget()


def test_waiting_standby_follows_from_a_snapshot_of_its_release(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    leader, other = shelf.open(), shelf.open()
    leader.adopt(list)
    free(leader, "a")
    waiting = Standby(other)
    monkeypatch.setattr(recovery, "release", lambda: OTHER)
    with pytest.raises(recovery.OtherRulesError) as caught:
        waiting._step()
    waiting._begin_to_wait(caught.value)
    monkeypatch.setattr(recovery, "release", release)
    waiting._step()
    assert waiting._replica is None, "there is no further snapshot"
    monkeypatch.setattr(compaction, "SNAPSHOT_OPERATIONS", 1)
    free(leader, "b", "c")
    waiting._step()
    assert waiting._replica is not None
    waiting._forget()


def test_repeated_standby_error_is_logged_once(
    shelf: Shelf,
    standing: Callable[[JournalBackend], None],
    caplog: pytest.LogCaptureFixture,
    foreign: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    foreign("7-00000000")
    monkeypatch.setattr(standing_module, "ASK_EVERY_S", 0.01)
    monkeypatch.setattr(standing_module, "AGAIN_S", 0.01)
    leader, other = shelf.open(), shelf.open()
    leader.adopt(list)
    free(leader, "a")
    asked: list[Any] = []
    take_over = other.take_over

    def count(replica: Any) -> None:
        asked.append(replica)
        take_over(replica)

    monkeypatch.setattr(other, "take_over", count)
    monkeypatch.setattr(recovery, "release", lambda: OTHER)
    standing(other)
    until_sync(lambda: len(asked) > 3, "it asks again and again")
    assert events(caplog).count("journal.standby_failed") == 1
