"""The port of a leader: guests that come by it, what they fall back to, and what strangers may do there."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any

import pytest

from queuehint.backends.base import Interest
from queuehint.backends.journal.guests import guest as guest_module
from queuehint.backends.journal.guests import links as links_module
from queuehint.backends.journal.guests import server as server_module
from queuehint.backends.journal.guests.greetings import hello
from queuehint.backends.journal.guests.messages import ANSWER_BYTES_MAX, HELLO, Frames, frame
from queuehint.backends.postgres import store as store_module
from queuehint.backends.postgres.backend import PostgresBackend
from queuehint.backends.postgres.layout import ddl, grants
from queuehint.backends.postgres.lead import read_ways
from queuehint.backends.postgres.mail import door as mail_door_module
from queuehint.backends.postgres.mail.carrier import Carrier
from queuehint.backends.postgres.port import door as door_module
from queuehint.backends.postgres.port import entrance as entrance_module
from queuehint.backends.postgres.port import opening as opening_module
from queuehint.backends.postgres.port.entrance import Entrance
from queuehint.backends.postgres.port.offer import Offer
from queuehint.backends.postgres.port.tunnel import Tunnel, guest_context
from queuehint.cli.app import app
from queuehint.errors import OutcomeUnknownError
from queuehint.operations import Operation
from queuehint.testing.driver import Driver, job
from tests.commands import CliRunner
from tests.postgres_store import Caller, Place
from tests.prefork import start
from tests.proxy import Proxy
from tests.support import LIMIT_S, until_sync

BIND = "bind=127.0.0.1:0"


@pytest.fixture
def leader(place: Place) -> Caller:
    """A process that leads, and has a port open."""
    leader = place.caller(BIND)
    leader.find("nobody")
    return leader


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a port that is cut tried again soon, one that is refused given up soon, and a slow leader waited for."""
    monkeypatch.setattr(door_module, "CONNECT_S", LIMIT_S)
    monkeypatch.setattr(links_module, "SILENCE_S", LIMIT_S)
    monkeypatch.setattr(guest_module, "SILENCE_S", LIMIT_S)
    monkeypatch.setattr(door_module, "AGAIN_S", 0.05)
    monkeypatch.setattr(door_module, "AGAIN_MAX_S", 0.05)
    monkeypatch.setattr(mail_door_module, "UNREACHED_S", 0.1)


def guest_of(place: Place, *options: str) -> Caller:
    """Return a guest on another machine, which has asked for something."""
    guest = place.caller(*options, machine="elsewhere")
    guest.find("nobody")
    return guest


def counted(patch: pytest.MonkeyPatch, where: Any, name: str) -> list[Any]:
    """Return a list that gets what a function is called with from now on."""
    calls: list[Any] = []
    call = getattr(where, name)

    def count(*said: Any) -> Any:
        calls.append(said)
        return call(*said)

    patch.setattr(where, name, count)
    return calls


class Asked(Exception):
    """An operation, which is not done."""


class Asking(Caller):
    """Makes operations, and does none."""

    def __init__(self) -> None:
        Driver.__init__(self)

    def apply(self, operation: Operation[Any]) -> Any:
        raise Asked(operation)


async def asked(store: PostgresBackend, what: str, *arguments: Any) -> Any:
    """Have a store do on a loop what a client does without one."""
    try:
        getattr(Asking(), what)(*arguments)
    except Asked as made:
        return await store.call(made.args[0])


def way(guest: Caller) -> str | None:
    return guest.store._guest.way


def offer_of(place: Place) -> Offer:
    (row,) = place.run("SELECT port, fingerprint, port_secret FROM queuehint.leader")
    return offer_in(row)


def offer_in(row: Any) -> Offer:
    found = read_ways(f"box {','.join(row)} here").offer
    assert found is not None
    return found


def entrance_of(leader: Caller) -> Entrance:
    service = leader.store._service
    assert isinstance(service, store_module.Served)
    (found,) = until_sync(lambda: service._server._entrances)
    assert isinstance(found, Entrance)
    return found


def events(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [getattr(record, "event", "") for record in caplog.records]


def advertised(place: Place, proxy: Proxy) -> Caller:
    """Return a leader that guests reach by a proxy."""
    leader = place.caller(BIND, f"advertise=127.0.0.1:{proxy.port}")
    leader.find("nobody")
    proxy.redirect(entrance_of(leader).port)
    return leader


# --- guests ----------------------------------------------------------------------------------------------------------


def test_remote_guest_uses_the_port_and_no_mail(place: Place, leader: Caller) -> None:
    leader.enqueue(job("a", ["doc"]))
    guest = guest_of(place)
    assert guest.find("a") == leader.find("a") is not None
    large = tuple(job(f"j{n}", ["doc"], arguments='{"é"'.encode() * (1 << 17)) for n in range(5))
    guest.enqueue(*large)
    assert guest.record("j4").spec == large[4]
    assert (way(guest), guest.store._is_open) == ("port", False)
    assert not carrier_of(guest.store).box


def carrier_of(guest: PostgresBackend) -> Carrier:
    assert isinstance(guest.store, store_module.PostgresStore)
    return guest.store._carrier


async def test_calls_waits_and_questions_use_the_port_on_a_loop(place: Place, leader: Caller) -> None:
    guest = place.caller(machine="elsewhere").store
    await asked(guest, "enqueue", job("a", ["doc"]))
    waiting = asyncio.create_task(guest.wait(Interest(jobs=("a",)), 600))
    answers = await asyncio.gather(*[asked(guest, "find", "a") for _ in range(200)])
    assert [each for each in answers if each.records[0] is None] == []
    waiting.cancel()
    with suppress(asyncio.CancelledError):
        await waiting
    assert await asked(guest, "stats") == leader.stats()
    assert guest._guest.way == "port"
    await guest.close()


def test_a_guest_may_run_on_uvloop(place: Place, leader: Caller) -> None:
    uvloop = pytest.importorskip("uvloop")

    async def ask(machine: str | None) -> str | None:
        guest = place.caller(machine=machine).store
        await asked(guest, "enqueue", job(f"by-{machine}"))
        await guest.close()
        return guest._guest.way

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        for machine in ("elsewhere", None):
            runner.run(ask(machine))
            assert leader.find(f"by-{machine}") is not None


def test_threads_and_a_loop_use_the_port_at_once(place: Place, leader: Caller) -> None:
    guest = guest_of(place)

    async def ask(count: int) -> None:
        await asyncio.gather(*[asked(guest.store, "enqueue", job(f"loop-{n}", ["doc"])) for n in range(count)])

    def ask_sync(thread: int) -> None:
        for n in range(30):
            guest.enqueue(job(f"{thread}-{n}", ["doc"]))

    with ThreadPoolExecutor(8) as pool:
        asking = [pool.submit(ask_sync, thread) for thread in range(8)]
        asyncio.run(ask(100))
        for each in asking:
            each.result()
    assert (way(guest), leader.stats().unfinished) == ("port", 8 * 30 + 100)


def test_local_guest_uses_the_socket(place: Place, leader: Caller) -> None:
    guest = place.caller()
    guest.find("nobody")
    assert way(guest) == "socket"
    assert leader.store.lead_facts()["port"].startswith("127.0.0.1:")
    assert guest.store.lead_facts() == {
        "leader": f"process {os.getpid()}",
        "reached_by": "socket",
        "port": leader.store.lead_facts()["port"],
    }


def test_guest_without_a_socket_uses_the_port(place: Place, leader: Caller) -> None:
    ((address,),) = place.run("SELECT address FROM queuehint.leader")
    Path(address.partition(" ")[2]).unlink()
    guest = place.caller()
    guest.find("nobody")
    assert way(guest) == "port"


def test_a_leader_without_a_port_is_reached_by_mail(place: Place) -> None:
    leader = place.caller()
    leader.find("nobody")
    assert way(guest_of(place)) == "mail"
    assert place.run("SELECT port, fingerprint, port_secret FROM queuehint.leader") == [(None, None, None)]


def test_port_row_is_new_with_each_lead_and_removed_afterwards(place: Place, leader: Caller) -> None:
    before = offer_of(place)
    leader.store.close_sync()
    assert place.run("SELECT port, fingerprint, port_secret FROM queuehint.leader") == [(None, None, None)]
    place.caller(BIND).find("nobody")
    after = offer_of(place)
    assert (before.fingerprint != after.fingerprint, before.secret != after.secret) == (True, True)


def test_guests_follow_a_leader_that_opens_another_port(place: Place, leader: Caller) -> None:
    guest = guest_of(place)
    before = offer_of(place)
    leader.store.close_sync()
    following = place.caller(BIND)
    following.find("nobody")
    guest.enqueue(job("a"))
    assert (way(guest), following.find("a") is not None) == ("port", True)
    assert offer_of(place).port != before.port


def test_next_leader_of_a_machine_reopens_the_port_at_once(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    """Whether the one before has left the lead to it, with guests connected, or has closed."""
    with closing(socket.create_server(("127.0.0.1", 0))) as free:
        port = free.getsockname()[1]
    bind = f"bind=127.0.0.1:{port}"
    leader, following, last = (place.caller(bind) for _ in range(3))
    leader.find("nobody")
    guest = guest_of(place)
    assert way(guest) == "port"
    following.store.adopt(list)  # it is to run jobs, and so to lead
    following.find("nobody")
    assert following.store._is_open
    guest.enqueue(job("a"))
    assert (way(guest), offer_of(place).port) == ("port", port)
    leader.store.close_sync()
    following.store.close_sync()
    last.find("nobody")
    guest.enqueue(job("b"))
    assert (way(guest), last.find("a") is not None) == ("port", True)
    assert "journal.port_closed" not in events(caplog)


@pytest.mark.slow
def test_operator_certificate_is_presented_to_guests(place: Place, tmp_path: Path) -> None:
    files = made_by_openssl(tmp_path)
    place.caller(BIND, *files).find("nobody")
    der = ssl.PEM_cert_to_DER_cert((tmp_path / "certificate.pem").read_text())
    assert offer_of(place).fingerprint == hashlib.sha256(der).hexdigest()
    assert way(guest_of(place)) == "port"


def made_by_openssl(folder: Path, *more: str) -> tuple[str, str]:
    """Make a certificate as an operator does; return the options that name its files."""
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-days", "1", "-subj", "/CN=x"]
    made += ["-keyout", str(key), "-out", str(certificate), *(more or ["-nodes"])]
    subprocess.run(made, check=True, capture_output=True)
    return f"certificate={certificate}", f"key={key}"


# --- a port that cannot be opened ------------------------------------------------------------------------------------


def test_leader_without_its_port_opens_it_once_free(
    place: Place, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening_module, "AGAIN_S", 0.05)
    tries = counted(monkeypatch, opening_module, "listen_at")
    caplog.set_level(logging.INFO, "queuehint.journal")
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
        leader = place.caller(f"bind=127.0.0.1:{port}")
        leader.enqueue(job("a"))
        guest = guest_of(place)
        assert (way(guest), guest.find("a") is not None) == ("mail", True)
        until_sync(lambda: len(tries) > 3, "it is tried again")
        (closed,) = [each for each in caplog.records if getattr(each, "event", "") == "journal.port_closed"]
        assert closed.levelno == logging.ERROR
        assert f"bind=127.0.0.1:{port} cannot be opened" in closed.getMessage()
        assert "Address already in use" in closed.getMessage()
        assert leader.store.lead_facts()["port"] == "none"
    until_sync(lambda: "journal.port_open" in events(caplog))
    until_sync(lambda: guest.find("a") is not None and way(guest) == "port", "guests are asked to come by the port")
    assert leader.store.lead_facts()["port"] == f"127.0.0.1:{port}"


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["missing", "not_pem", "other_key", "password", "folder"])
def test_unusable_certificate_is_named_and_its_leader_has_no_port(
    place: Place, tmp_path: Path, caplog: pytest.LogCaptureFixture, fault: str
) -> None:
    options = made_by_openssl(tmp_path, *(["-passout", "pass:secret"] if fault == "password" else []))
    key = tmp_path / "key.pem"
    if fault == "missing":
        key.unlink()
    elif fault == "not_pem":
        (tmp_path / "certificate.pem").write_text("x")
    elif fault == "other_key":
        (tmp_path / "other").mkdir()
        made_by_openssl(tmp_path / "other")
        key.write_bytes((tmp_path / "other" / "key.pem").read_bytes())
    elif fault == "folder":
        options = (f"certificate={tmp_path}", options[1])
    leader = place.caller(BIND, *options)
    leader.enqueue(job("a"))
    (closed,) = [each for each in caplog.records if getattr(each, "event", "") == "journal.port_closed"]
    assert "certificate" in closed.getMessage()
    assert "key" in closed.getMessage()
    assert way(guest_of(place)) == "mail"


def test_a_host_that_is_not_of_this_machine_is_named(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    place.caller("bind=192.0.2.1:7777").find("nobody")
    (closed,) = [each for each in caplog.records if getattr(each, "event", "") == "journal.port_closed"]
    assert "bind=192.0.2.1:7777 cannot be opened" in closed.getMessage()


# --- a way that is cut -----------------------------------------------------------------------------------------------


def test_refused_port_is_replaced_by_mail_and_used_later(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "queuehint.journal")
    with Proxy(1) as proxy:
        leader = advertised(place, proxy)
        guest = guest_of(place)
        guest.enqueue(job("a"))
        assert way(guest) == "port"
        proxy.refuse()
        proxy.rst()
        guest.enqueue(job("b"))
        assert way(guest) == "mail"
        guest.enqueue(job("c"))
        assert events(caplog).count("journal.port_cut") == 1
        proxy.heal()
        until_sync(lambda: guest.find("a") is not None and way(guest) == "port", "it comes back to the port")
        assert events(caplog)[-1] == "journal.port_back"
        assert [each for each in "abc" if leader.find(each) is None] == []


async def test_calls_on_a_loop_use_mail_during_a_cut_port(place: Place) -> None:
    with Proxy(1) as proxy:
        leader = advertised(place, proxy)
        guest = place.caller(machine="elsewhere").store
        await asked(guest, "enqueue", job("a"))
        proxy.refuse()
        proxy.rst()
        await asked(guest, "enqueue", job("b"))
        assert guest._guest.way == "mail"
        waiting = asyncio.create_task(guest.wait(Interest(jobs=("a",)), 600))
        await asyncio.sleep(0)
        proxy.heal()
        async with asyncio.timeout(LIMIT_S):
            while guest._guest.way != "port":
                await asked(guest, "find", "a")
                await asyncio.sleep(0.01)
        assert not waiting.done()  # what is under way on the other connection goes on
        waiting.cancel()
        async with asyncio.timeout(LIMIT_S):
            while carrier_of(guest)._streams:
                await asked(guest, "find", "a")
                await asyncio.sleep(0.01)
        assert leader.find("b") is not None
        await guest.close()


@pytest.mark.slow
@pytest.mark.parametrize("shell", ["async", "sync"])
def test_silent_port_is_replaced_by_mail_and_calls_run_once(
    place: Place, monkeypatch: pytest.MonkeyPatch, shell: str
) -> None:
    """The connection is half open: bytes vanish, and neither end is told."""
    monkeypatch.setattr(links_module, "SILENCE_S", 3.0)
    monkeypatch.setattr(links_module, "_LOOK_S", 0.1)
    monkeypatch.setattr(server_module, "BEAT_S", 0.2)
    monkeypatch.setattr(door_module, "CONNECT_S", 0.3)
    with Proxy(1) as proxy:
        leader = advertised(place, proxy)
        guest = guest_of(place)

        async def ask() -> Any:
            await asked(guest.store, "find", "a")
            proxy.blackhole()
            answer = await asked(guest.store, "enqueue", job("a"))
            await guest.store.close()
            return answer

        def ask_sync() -> Any:
            proxy.blackhole()
            return guest.enqueue(job("a"))

        answer = asyncio.run(ask()) if shell == "async" else ask_sync()
        assert answer.jobs[0].created
        assert leader.find("a") is not None


@pytest.mark.slow
def test_port_that_drops_packets_costs_bounded_time_once(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door_module, "CONNECT_S", 0.5)
    monkeypatch.setattr(door_module, "AGAIN_S", 600.0)
    with Proxy(1) as proxy:
        advertised(place, proxy)
        proxy.blackhole()
        guest = guest_of(place)
        assert way(guest) == "mail"
        before = proxy.accepted
        for _ in range(10):
            assert guest.store._leader is not None
            guest.store._forget_leader(guest.store._leader)  # it connects anew
            guest.find("nobody")
        assert proxy.accepted == before


def test_cuts_and_silence_lose_and_repeat_nothing(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links_module, "SILENCE_S", 3.0)
    monkeypatch.setattr(server_module, "BEAT_S", 0.2)
    monkeypatch.setattr(door_module, "CONNECT_S", 0.3)
    with Proxy(1) as proxy, ThreadPoolExecutor(4) as pool:
        leader = advertised(place, proxy)
        guests = [guest_of(place) for _ in range(4)]
        ends = threading.Event()
        made: dict[str, int] = {}

        def produce(doc: str, guest: Caller) -> None:
            try:
                while not ends.is_set():
                    (it,) = guest.enqueue(job(f"{doc}-{made.get(doc, 0)}", [doc])).jobs
                    assert it.created
                    made[doc] = made.get(doc, 0) + 1
            finally:
                ends.set()

        producing = [pool.submit(produce, f"doc{n}", guest) for n, guest in enumerate(guests)]
        try:
            for fault in (proxy.rst, proxy.refuse, proxy.rst, proxy.heal, proxy.blackhole, proxy.heal, proxy.rst):
                fault()
                before = sum(made.values())
                until_sync(lambda least=before + 12: ends.is_set() or sum(made.values()) >= least)  # type: ignore[misc]
        finally:
            ends.set()
        for each in producing:
            each.result()
        assert leader.stats().unfinished == sum(made.values())


# --- a leader that is not the one of the row -------------------------------------------------------------------------


def test_certificate_with_another_fingerprint_is_refused_before_any_send(
    place: Place, leader: Caller, caplog: pytest.LogCaptureFixture
) -> None:
    """As by somebody in the middle, who has a key of his own."""
    other = place.caller(BIND, namespace="other")
    other.find("nobody")
    theirs = entrance_of(other)
    heard: list[bytes] = []
    theirs.secret = bytes(32)
    look = entrance_module.Stranger._look

    def looked(self: entrance_module.Stranger) -> None:
        heard.append(self._said)
        look(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(entrance_module.Stranger, "_look", looked)
        tries = counted(patch, door_module.Cuts, "cut")
        place.run(f"UPDATE queuehint.leader SET port = '127.0.0.1:{theirs.port}' WHERE namespace = 'n'")
        guest = guest_of(place)
        until_sync(lambda: "journal.port_foreign" in events(caplog))
        until_sync(lambda: guest.find("nobody") is None and len(tries) > 3, "it is tried again")
    assert (way(guest), heard) == ("mail", [])
    (said,) = [each for each in caplog.records if getattr(each, "event", "") == "journal.port_foreign"]
    assert said.levelno == logging.ERROR
    assert "the certificate is not that of the leader" in said.getMessage()


def test_guest_with_another_secret_is_refused_and_uses_mail(
    place: Place, leader: Caller, caplog: pytest.LogCaptureFixture
) -> None:
    place.run(f"UPDATE queuehint.leader SET port_secret = '{'0' * 64}'")
    guest = guest_of(place)
    assert way(guest) == "mail"
    refused = until_sync(lambda: [e for e in caplog.records if getattr(e, "event", "") == "journal.strangers_refused"])
    assert "does not know the secret" in refused[0].getMessage()
    assert "does not accept the secret" in caplog.text


@pytest.mark.slow
@pytest.mark.parametrize("says", [b"", b"x" * 100, b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\x16\x03\x03" * 30_000])
def test_non_leader_port_is_left_in_time(
    place: Place, leader: Caller, monkeypatch: pytest.MonkeyPatch, says: bytes
) -> None:
    monkeypatch.setattr(door_module, "CONNECT_S", 0.5)

    def answer(listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                connection, _ = listener.accept()
                with suppress(OSError):
                    connection.sendall(says)
                kept.append(connection)

    kept: list[socket.socket] = []
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        threading.Thread(target=answer, args=(listener,), daemon=True).start()
        place.run(f"UPDATE queuehint.leader SET port = '127.0.0.1:{listener.getsockname()[1]}'")
        begin_s = time.monotonic()
        assert way(guest_of(place)) == "mail"
        assert time.monotonic() < begin_s + LIMIT_S / 2
        listener.shutdown(socket.SHUT_RDWR)
    for each in kept:
        each.close()


@pytest.mark.parametrize(
    "change", ["port = 'x'", "port = ':1'", "port = 'a:1b'", "fingerprint = 'x'", "port_secret = NULL", "port = NULL"]
)
def test_row_without_a_port_is_read_as_none(place: Place, leader: Caller, change: str) -> None:
    place.run(f"UPDATE queuehint.leader SET {change}")
    assert way(guest_of(place)) == "mail"


# --- strangers -------------------------------------------------------------------------------------------------------


def stranger(leader: Caller) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", entrance_of(leader).port), LIMIT_S)
    connection.settimeout(LIMIT_S)
    return connection


def shaken(connection: socket.socket) -> Tunnel:
    """Do the handshake of a guest."""
    tunnel = Tunnel(guest_context(), is_leader=False)
    data = b""
    while not tunnel.shake(data):
        connection.sendall(tunnel.to_send())
        data = connection.recv(1 << 16)
        assert data
    return tunnel


def is_closed(connection: socket.socket) -> bool:
    """Return whether the other end closes a connection, whatever it has said before."""
    with suppress(ConnectionError):
        while connection.recv(1 << 16):
            pass
    return True


def secret(leader: Caller) -> bytes:
    return entrance_of(leader).secret


RECORD = b"\x16\x03\x01\x40\x00"
STRANGERS: dict[str, Callable[[socket.socket, Caller], None]] = {
    "garbage": lambda connection, _: connection.sendall(os.urandom(300)),
    "plaintext": lambda connection, _: connection.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"),
    "frames in plaintext": lambda connection, _: connection.sendall(frame(HELLO, 0, hello("n", 0))),
    "the secret in plaintext": lambda connection, leader: connection.sendall(secret(leader)),
    "an older TLS": lambda connection, _: connection.sendall(older_hello()),
    "another secret": lambda connection, _: connection.sendall(shaken(connection).sealed(b"x" * 32)),
    "an empty secret": lambda connection, _: connection.sendall(shaken(connection).sealed(bytes(32))),
    "more than the secret": lambda connection, leader: connection.sendall(
        shaken(connection).sealed(secret(leader) + frame(HELLO, 0, hello("n", 0)))
    ),
    "frames without the secret": lambda connection, _: connection.sendall(
        shaken(connection).sealed(frame(HELLO, 0, hello("n", 0)) * 3)
    ),
    "a record that is changed": lambda connection, leader: connection.sendall(
        bytes([*(sealed := shaken(connection).sealed(secret(leader)))[:-1], sealed[-1] ^ 1])
    ),
    # The beginning of a handshake of 100 000 bytes.
    "much": lambda connection, _: connection.sendall(
        RECORD + b"\x01\x01\x86\xa0" + bytes(0x4000 - 4) + RECORD + bytes(0x4000)
    ),
}


def older_hello() -> bytes:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    out = ssl.MemoryBIO()
    with suppress(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), out).do_handshake()
    return out.read()


@pytest.mark.parametrize("what", STRANGERS)
def test_a_stranger_is_refused_at_once_and_guests_are_served(
    place: Place, leader: Caller, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(entrance_module, "STRANGER_S", 600.0)
    monkeypatch.setattr(server_module, "READ_S", 600.0)
    guest = guest_of(place)
    with closing(stranger(leader)) as connection:
        with suppress(ConnectionError):  # closed while it sends
            STRANGERS[what](connection, leader)
        assert is_closed(connection)
    guest.enqueue(job("a"))
    assert (way(guest), leader.find("a") is not None) == ("port", True)
    assert not entrance_of(leader)._strangers


@pytest.mark.slow
@pytest.mark.parametrize("what", ["nothing", "half a handshake", "slow bytes", "no secret", "half a secret"])
def test_slow_stranger_is_dropped_in_time_and_guests_are_served(
    place: Place, leader: Caller, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    guest = guest_of(place)
    monkeypatch.setattr(entrance_module, "STRANGER_S", 0.5)
    begin_s = time.monotonic()
    with closing(stranger(leader)) as connection:
        if what == "half a handshake":
            connection.sendall(guest_hello()[:100])
        elif what == "slow bytes":
            with suppress(ConnectionError):
                for byte in guest_hello():
                    connection.sendall(bytes([byte]))
                    guest.find("nobody")
                    time.sleep(0.02)
        elif what != "nothing":
            tunnel = shaken(connection)
            connection.sendall(tunnel.to_send())
            if what == "half a secret":
                connection.sendall(tunnel.sealed(secret(leader)[:16]))
        guest.enqueue(job("a"))
        assert is_closed(connection)
    assert time.monotonic() - begin_s > 0.3
    assert (way(guest), leader.find("a") is not None) == ("port", True)


def guest_hello() -> bytes:
    tunnel = Tunnel(guest_context(), is_leader=False)
    assert not tunnel.shake(b"")
    return tunnel.to_send()


def test_strangers_are_bounded_in_number_and_others_wait(
    place: Place, leader: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(door_module, "AGAIN_S", 600.0)
    monkeypatch.setattr(entrance_module, "STRANGER_S", 600.0)
    before = guest_of(place)
    entrance = entrance_of(leader)
    with ExitStack() as opened:
        for _ in range(entrance_module.STRANGERS_MAX + 20):
            opened.enter_context(closing(stranger(leader)))
        until_sync(lambda: len(entrance._strangers) == entrance_module.STRANGERS_MAX)
        with monkeypatch.context() as patch:
            patch.setattr(door_module, "CONNECT_S", 0.5)
            late = guest_of(place)
            assert way(late) == "mail"
        before.enqueue(job("a"))
        assert (way(before), late.find("a") is not None) == ("port", True)
        assert len(entrance._strangers) == entrance_module.STRANGERS_MAX
    until_sync(lambda: not entrance._strangers)
    assert way(guest_of(place)) == "port"


def test_a_guest_too_many_goes_by_mail(place: Place, leader: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    before = guest_of(place)
    monkeypatch.setattr(Entrance, "has_room", False)
    monkeypatch.setattr(door_module, "AGAIN_S", 600.0)
    guest = guest_of(place)
    assert (way(before), way(guest)) == ("port", "mail")


def test_known_guest_is_bounded_as_on_the_socket(place: Place, leader: Caller) -> None:
    with closing(stranger(leader)) as connection:
        tunnel = shaken(connection)
        connection.sendall(tunnel.sealed(secret(leader)))
        assert tunnel.opened(connection.recv(1 << 16)) == entrance_module.WELCOME
        connection.sendall(tunnel.sealed(frame(HELLO, 0, hello("n", 0))))
        frames = Frames(ANSWER_BYTES_MAX)
        assert list(frames.feed(tunnel.opened(connection.recv(1 << 16))))
        connection.sendall(tunnel.sealed((33 << 20).to_bytes(4, "big")))
        assert is_closed(connection)


def test_strangers_are_logged_now_and_then(
    leader: Caller, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(20):
        with closing(stranger(leader)) as connection:
            connection.sendall(b"GET / HTTP/1.1\r\n\r\n")
            assert is_closed(connection)
        if n == 9:
            monkeypatch.setattr(entrance_module, "SAY_EVERY_S", 0.0)
            assert events(caplog).count("journal.strangers_refused") == 1
    counts = [getattr(each, "count", 0) for each in caplog.records]
    assert sum(counts) == 20


def test_a_leader_that_closes_leaves_no_connection_and_no_port(place: Place, leader: Caller) -> None:
    entrance = entrance_of(leader)
    port = entrance.port
    with closing(stranger(leader)) as connection:
        until_sync(lambda: entrance._strangers)
        guest = guest_of(place)
        leader.store.close_sync()
        assert is_closed(connection)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), LIMIT_S)
    guest.find("nobody")
    assert guest.store._is_open  # it leads now


# --- processes -------------------------------------------------------------------------------------------------------


@pytest.fixture
def led(place: Place) -> Iterator[subprocess.Popen[Any]]:
    """A process that leads, by a command."""
    process = start("queuehint", "lead", place.url("durability=process"), "--namespace", "n", "--bind", "127.0.0.1:0")
    try:
        until_sync(lambda: is_announced(place))
        yield process
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        process.wait()


def is_announced(place: Place) -> bool:
    with suppress(Exception):
        return bool(place.run("SELECT port FROM queuehint.leader WHERE port IS NOT NULL"))
    return False


def test_a_leader_that_is_killed_is_followed_at_once(place: Place, led: subprocess.Popen[Any]) -> None:
    guest = guest_of(place)
    guest.enqueue(job("a"))
    assert way(guest) == "port"
    led.kill()
    led.wait()
    # Its session has ended: nobody waits for its lease.
    place.run("UPDATE queuehint.leader SET expires_at = clock_timestamp() + interval '1 hour'")
    guest.enqueue(job("b"))
    assert guest.find("a") is not None
    assert guest.store._is_open


@pytest.mark.slow
def test_stalled_leader_is_replaced_after_its_lease(
    place: Place, led: subprocess.Popen[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links_module, "SILENCE_S", 5.0)
    monkeypatch.setattr(guest_module, "SILENCE_S", 5.0)
    guest = guest_of(place)
    guest.enqueue(job("a"))
    assert way(guest) == "port"
    led.send_signal(signal.SIGSTOP)
    try:
        with suppress(OutcomeUnknownError):  # the other process may do it yet, as far as is known
            guest.enqueue(job("b"))
        guest.enqueue(job("b"))
        assert guest.find("a") is not None
        assert guest.store._is_open
    finally:
        led.send_signal(signal.SIGCONT)
    until_sync(lambda: guest.find("b") is not None)


@pytest.mark.slow
@pytest.mark.heavy
@pytest.mark.skipif(sys.platform != "linux", reason="the memory of another process is read")
def test_ten_thousand_connections_cost_bounded_memory_and_guests_are_answered(
    place: Place, led: subprocess.Popen[Any]
) -> None:
    guest = guest_of(place)
    guest.enqueue(job("a"))
    offer = offer_of(place)
    before = resident(led.pid)
    took: list[float] = []
    ends = threading.Event()

    def ask() -> None:
        while not ends.is_set():
            begin_s = time.monotonic()
            guest.find("a")
            took.append(time.monotonic() - begin_s)

    says = (b"", os.urandom(200), guest_hello(), guest_hello()[:60])
    most = 0
    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(ask)
        try:
            for batch in range(20):
                with ExitStack() as opened:
                    for n in range(500):
                        connection = opened.enter_context(closing(socket.socket()))
                        connection.setblocking(False)
                        with suppress(BlockingIOError):
                            connection.connect((offer.host, offer.port))
                        with suppress(OSError):
                            connection.send(says[(batch + n) % len(says)])
                    most = max(most, resident(led.pid))
                    time.sleep(0.05)
        finally:
            ends.set()
        asking.result()
    assert way(guest) == "port"
    assert len(took) > 100
    assert max(took) < LIMIT_S / 4
    assert most - before < 64 << 20
    guest.enqueue(job("b"))


def resident(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:")) << 10


# --- rights, commands ------------------------------------------------------------------------------------------------


def test_worker_role_uses_the_port_and_others_cannot_read_secrets(place: Place) -> None:
    place.run(ddl("queuehint"))
    kinds = ("worker", "looker", "producer")
    for kind in kinds:
        place.run(f"CREATE ROLE port_{kind} LOGIN", grants("queuehint", kind, f"port_{kind}"))
    try:
        place.caller(BIND, user="port_worker").find("nobody")
        guest = place.caller(machine="elsewhere", user="port_worker")
        guest.find("nobody")
        assert way(guest) == "port"
        assert place.run(
            "SELECT port IS NOT NULL AND fingerprint IS NOT NULL FROM queuehint.leader", user="port_looker"
        ) == [(True,)]
        for kind in ("looker", "producer"):
            with pytest.raises(Exception, match="permission denied"):
                place.run("SELECT port_secret FROM queuehint.leader", user=f"port_{kind}")
    finally:
        place.close()
        for kind in kinds:
            place.run(f"DROP OWNED BY port_{kind}", f"DROP ROLE port_{kind}")


def test_doctor_names_the_leader_and_the_connection_used(place: Place, leader: Caller) -> None:
    found = CliRunner().invoke(app, ["doctor", place.url(), "--namespace", "n"])
    assert f"leader: process {os.getpid()}" in found.output.splitlines()
    assert "reached by: socket" in found.output.splitlines()
    assert f"port: {offer_of(place).where}" in found.output.splitlines()
    alone = CliRunner().invoke(app, ["doctor", place.url(), "--namespace", "alone"])
    assert {"leader: this process", "port: none"} <= {*alone.output.splitlines()}


@pytest.mark.parametrize(
    "options, said",
    [
        (["--bind", "7777"], "bind must be host:port"),
        (["--bind", "127.0.0.1:0", "--certificate", "x"], "certificate and key must be given together"),
        (["--advertise", "h:1"], "advertise requires bind"),
        (["--bind", "0.0.0.0:7777"], "requires advertise"),
    ],
)
def test_malformed_lead_command_is_refused_before_any_open(options: list[str], said: str) -> None:
    found = CliRunner().invoke(app, ["lead", "postgresql://nobody@127.0.0.1:1/x", *options])
    assert (found.exit_code, said in found.output) == (2, True)


def test_a_port_is_not_for_a_file(tmp_path: Path) -> None:
    found = CliRunner().invoke(app, ["lead", f"sqlite:///{tmp_path}/jobs.db", "--bind", "127.0.0.1:0"])
    assert (found.exit_code, "--bind is for postgresql://" in found.output) == (2, True)
    assert not [*tmp_path.iterdir()]
