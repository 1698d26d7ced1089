"""The lead in PostgreSQL: one process has it, until it stands still, ends or leaves it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from queuehint.backends.journal.lead.leadership import DeposedError, Leader, LedElsewhereError
from queuehint.backends.journal.writing import NUDGE
from queuehint.backends.postgres import lead as lead_module
from queuehint.backends.postgres.address import parse_url
from queuehint.backends.postgres.layout import grants
from queuehint.backends.postgres.lead import PostgresLead
from queuehint.backends.postgres.sessions.session import Row, Session, Statement, Value
from queuehint.backends.postgres.store import PostgresStore
from queuehint.errors import BackendDeniedError, BackendUnavailableError
from tests.postgres_servers import until_waiting
from tests.postgres_store import Place
from tests.prefork import start
from tests.servers import until

pytestmark = pytest.mark.usefixtures("postgres_server")

LAPSE = "UPDATE queuehint.leader SET expires_at = clock_timestamp() - interval '1 ms'"
LEASE_S = 600.0
EXTEND = f"UPDATE queuehint.leader SET expires_at = clock_timestamp() + interval '{LEASE_S} s'"


@pytest.fixture(autouse=True)
def _leads_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a lease last for longer than a test may take."""
    monkeypatch.setattr(lead_module, "LEASE_S", LEASE_S)
    until_text = f"clock_timestamp() + interval '{LEASE_S} s'"
    for name in ("_TAKE", "_RENEW"):
        text = getattr(lead_module, name)
        assert lead_module._UNTIL in text
        monkeypatch.setattr(lead_module, name, text.replace(lead_module._UNTIL, until_text))


def is_led(place: Place, *options: str, **more: str) -> Leader | None:
    """Try to take the lead; return who has it, None if nobody had it."""
    try:
        place.lead(*options, **more)
    except LedElsewhereError as error:
        return error.leader
    return None


def test_one_process_leads_and_others_are_told_which(place: Place) -> None:
    lead = place.lead()
    assert is_led(place) == Leader(pid=os.getpid(), address=None, term=lead.term)
    lead.announce("unix:/run/x")
    assert is_led(place) == Leader(pid=os.getpid(), address="- - unix:/run/x", term=lead.term)
    assert lead.may_answer()
    assert is_led(place, namespace="another") is None


def test_process_that_may_not_lead_creates_tables_and_finds_leaders(place: Place) -> None:
    with pytest.raises(BackendUnavailableError, match=r"no process leads, and this one may not \(lead=no\)"):
        place.lead("lead=no")
    assert not place.store().has_leader()
    lead = place.lead()
    assert is_led(place, "lead=no") == Leader(pid=os.getpid(), address=None, term=lead.term)
    assert place.store().has_leader()
    lead.release()
    with pytest.raises(BackendUnavailableError, match="no process leads"):
        place.lead("lead=no")
    assert not place.store().has_leader()


def test_worker_that_may_not_lead_is_a_guest(place: Place) -> None:
    leader, worker = place.caller(), place.caller("lead=no")
    leader.apply(NUDGE)
    worker.store.adopt(list)
    worker.apply(NUDGE)
    assert leader.store.is_leading


def test_terms_epochs_and_secrets_of_leaders_differ(place: Place) -> None:
    first = place.lead()
    first.release()
    second = place.lead()
    assert (first.epoch, second.epoch) == (1, 2)
    assert first.term != second.term
    assert first.secret != second.secret
    assert second.secret not in second.term


def test_a_lead_that_was_left_is_taken_at_once(place: Place) -> None:
    lead = place.lead()
    lead.announce("x")
    lead.number = 7
    lead.release()
    lead.release()
    assert not lead.may_answer()
    assert place.run("SELECT pid, address, number FROM queuehint.leader") == [(None, None, 7)]
    for act in (lead.renew, lambda: lead.announce("y")):
        with pytest.raises(DeposedError):
            act()
    assert is_led(place) is None


@pytest.mark.parametrize("options", [(), ("pooled=1",)])
def test_expired_lead_is_taken_and_its_holder_deposed(place: Place, options: tuple[str, ...]) -> None:
    lead = place.lead(*options)
    assert is_led(place, *options) is not None
    place.run(LAPSE)
    assert is_led(place, *options) is None
    for act in (lead.renew, lead.renew, lambda: lead.announce("y")):
        with pytest.raises(DeposedError):
            act()
    assert not lead.may_answer()
    lead.release()
    assert is_led(place) is not None


def test_renewed_lead_extends_its_lease_and_keeps_facts(place: Place) -> None:
    lead = place.lead()
    place.run(LAPSE)
    lead.number = 3
    lead.renew()
    [(left_s, number)] = place.run(
        "SELECT extract(epoch FROM expires_at - clock_timestamp())::float8, number FROM queuehint.leader"
    )
    assert LEASE_S / 2 < left_s <= LEASE_S
    assert number == 3
    assert is_led(place) is not None


def test_questions_are_answered_until_the_lease_ends_locally(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = lead_module._now_s()
    monkeypatch.setattr(lead_module, "_now_s", lambda: now_s)
    lead = place.lead()
    now_s += LEASE_S - 0.01
    assert lead.may_answer()
    now_s += 0.02
    assert not lead.may_answer()
    slow = type(lead._session).run

    def run(*args: object) -> object:
        nonlocal now_s
        now_s += 2.0  # as long as the renewal is on its way
        return slow(*args)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(type(lead._session), "run", run)
        lead.renew()
    now_s += LEASE_S - 2.01
    assert lead.may_answer()
    now_s += 0.02
    assert not lead.may_answer()


def test_ended_session_ends_the_lead_before_its_lease(place: Place) -> None:
    lead = place.lead()
    place.end_sessions()
    assert not lead.may_answer()
    assert is_led(place) is None
    with pytest.raises(DeposedError):
        lead.renew()


def test_leader_with_an_ended_session_reconnects_unless_overtaken(place: Place) -> None:
    lead = place.lead()
    place.end_sessions()
    lead.renew()
    assert lead.may_answer()
    assert is_led(place) is not None
    place.end_sessions()
    lead.announce("here")
    assert is_led(place) == Leader(pid=os.getpid(), address="- - here", term=lead.term)


def test_leader_whose_new_session_may_not_write_answers_nothing(place: Place) -> None:
    """The row names a session that has ended, so any process may lead; it does so until it names another one."""
    setting = f"ALTER DATABASE {place.database}"
    lead = place.lead()
    place.server.run(f"{setting} SET default_transaction_read_only = on")
    place.end_sessions()
    for _ in range(2):
        with pytest.raises(BackendDeniedError, match="read-only transaction"):
            lead.renew()
        assert not lead.may_answer()
    place.server.run(f"{setting} RESET default_transaction_read_only")
    lead.renew()
    assert lead.may_answer()
    assert is_led(place) is not None


def test_leader_answers_nothing_while_it_attaches_another_session(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    lead = place.lead()
    seen = []

    class Attached(Session):
        def run(self, statement: Statement, *values: Value) -> list[Row]:
            seen.append(lead.may_answer())
            return super().run(statement, *values)

    monkeypatch.setattr(lead_module, "Session", Attached)
    place.end_sessions()
    lead.renew()
    assert seen == [False, True]  # attach, renew


def test_behind_a_pooler_only_the_lease_counts(place: Place) -> None:
    lead = place.lead("pooled=1")
    place.end_sessions()
    assert is_led(place) is not None
    lead.renew()
    assert place.run("SELECT session_pid, session_at, server_at FROM queuehint.leader") == [(None, None, None)]


def test_live_leader_may_return_within_its_lease_after_a_restart(place: Place) -> None:
    """Its session is gone, but its memory may be ahead of what the server has kept."""
    lead = place.lead()
    place.run("UPDATE queuehint.leader SET server_at = server_at - interval '1 s'")
    place.end_sessions()
    assert is_led(place) is not None
    lead.renew()
    place.end_sessions()
    until(lambda: is_led(place) is None, "the session of this server ends the lead")


def test_foreign_user_session_is_visible_and_not_considered_ended(place: Place) -> None:
    for user in ("one_of_test", "two_of_test"):
        place.run(f"CREATE ROLE {user} LOGIN")
    try:
        place.lead().release()
        for user in ("one_of_test", "two_of_test"):
            place.run(grants("queuehint", "worker", user))
        place.lead(user="one_of_test")
        assert is_led(place, user="two_of_test") is not None
        place.end_sessions()
        until(lambda: is_led(place, user="two_of_test") is None, "the session has ended")
    finally:
        place.close()
        for user in ("one_of_test", "two_of_test"):
            place.run(f"DROP OWNED BY {user}", f"DROP ROLE {user}")


def test_concurrent_leads_have_one_winner(place: Place) -> None:
    place.lead().release()
    blocker = place.connect()
    for _ in range(3):
        blocker.execute("SELECT FROM queuehint.leader FOR UPDATE")
        found: list[PostgresLead | Leader] = []

        def take(found: list[PostgresLead | Leader] = found) -> None:
            try:
                found.append(place.store().take_lead())
            except LedElsewhereError as error:
                found.append(error.leader)

        threads = [threading.Thread(target=take) for _ in range(2)]
        for thread in threads:
            thread.start()
        until_waiting(place.server, 2, place.database)
        blocker.commit()
        for thread in threads:
            thread.join()
        [lead] = [each for each in found if isinstance(each, PostgresLead)]
        [leader] = [each for each in found if isinstance(each, Leader)]
        assert leader.term == lead.term
        lead.release()


def test_renewals_of_another_thread_disturb_no_answer(place: Place) -> None:
    lead = place.lead()
    ends = threading.Event()

    def renew() -> None:
        while not ends.is_set():
            lead.renew()

    thread = threading.Thread(target=renew)
    thread.start()
    try:
        for _ in range(2_000):
            assert lead.may_answer()
    finally:
        ends.set()
        thread.join()


def test_a_fork_does_not_keep_the_session_of_its_parent(place: Place) -> None:
    """The lead of a process that was killed is free at once, even if a child of it lives."""
    child = start(__name__, "forks", place.url(), stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    grandchild = int(child.stdout.readline())
    place.run(EXTEND)
    try:
        child.kill()
        child.wait()
        os.kill(grandchild, 0)
        until(lambda: is_led(place) is None, "the session ends with the process")
    finally:
        os.kill(grandchild, signal.SIGKILL)
        child.stdout.close()


def forks(url: str) -> None:
    lead = PostgresStore(parse_url(url), "n").take_lead()
    pid = os.fork()
    if not pid:
        assert not lead.may_answer()
        lead.release()
        time.sleep(60)
    lead.renew()
    print(pid, flush=True)
    time.sleep(60)


def test_a_process_that_stood_still_is_deposed(place: Place) -> None:
    """It is stopped, its lease is over, another one leads and writes; it goes on, and writes and answers nothing."""
    zombie = start(__name__, "stands_still", place.url(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert zombie.stdin is not None
    assert zombie.stdout is not None
    try:
        assert zombie.stdout.readline() == "leads\n"
        zombie.send_signal(signal.SIGSTOP)
        place.run(EXTEND)
        assert is_led(place) is not None
        place.run(LAPSE)
        _, journal = place.open()
        journal.append(2, b"of the next")
        zombie.send_signal(signal.SIGCONT)
        zombie.stdin.write("\n")
        zombie.stdin.flush()
        assert zombie.stdout.readline() == "deposed, answers False\n"
        assert place.stored() == ["of the first", "of the next"]
    finally:
        zombie.kill()
        zombie.wait()
        zombie.stdin.close()
        zombie.stdout.close()


def stands_still(url: str) -> None:
    store = PostgresStore(parse_url(url), "n")
    lead = store.take_lead()
    journal = store.open(lead)
    journal.append(1, b"of the first")
    print("leads", flush=True)
    sys.stdin.readline()
    try:
        journal.append(3, b"of a zombie")
    except DeposedError:
        print(f"deposed, answers {lead.may_answer()}", flush=True)


def test_unavailable_server_leaves_the_lead_unchanged(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    lead = place.lead()
    with monkeypatch.context() as patch:
        patch.setattr(lead_module, "Session", refuse)
        place.end_sessions()
        with pytest.raises(BackendUnavailableError, match="down"):
            lead.renew()
        lead._until_s += 10
        assert not lead.may_answer()
    lead.renew()
    assert lead.may_answer()


def refuse(*_: object) -> None:
    raise BackendUnavailableError("down")


if __name__ == "__main__":
    {"forks": forks, "stands_still": stands_still}[sys.argv[1]](sys.argv[2])
