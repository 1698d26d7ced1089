"""Connections of synchronous callers: whatever breaks, each request has its own reply or none."""

from __future__ import annotations

import os
import random
import select
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from redis import exceptions as driver

from queuehint.backends.redis import session as redis_session
from queuehint.backends.redis.address import parse_url
from queuehint.backends.redis.connections import line as lines
from queuehint.backends.redis.connections import link as links
from queuehint.backends.redis.connections import resp
from queuehint.backends.redis.connections.endpoint import Endpoint, read_tls
from queuehint.backends.redis.connections.line import Line
from queuehint.backends.redis.connections.sync_link import SyncLink
from queuehint.backends.redis.transport import Closed, NotSent, Redirect, Send, Unanswered
from tests import wire_codecs
from tests.conftest import StartProxy, StartServer
from tests.faults import checks
from tests.proxy import Proxy
from tests.servers import Certificate, Server, find_servers, make_certificate
from tests.support import LIMIT_S, until_sync

pytestmark = pytest.mark.redis

ROOT = Path(__file__).parents[2]
SIZE = 300_000


@pytest.fixture(params=wire_codecs.WAYS)
def _codec(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    wire_codecs.use(request.param, lines, monkeypatch)


@pytest.fixture
def proxy(redis_server: Server, start_proxy: StartProxy) -> Proxy:
    return start_proxy(redis_server)


@pytest.fixture
def certificate(tmp_path: Path) -> Certificate:
    if find_servers()[0].name != "redis":
        pytest.skip("the Valkey of the wheel has no TLS")
    return make_certificate(tmp_path)


def connect(where: Any, timeout_s: float = LIMIT_S, **options: Any) -> Line:
    line = Line(timeout_s)
    line.connect(Endpoint("127.0.0.1", where.port, **options), LIMIT_S, 0)
    return line


def hurry(line: Line, timeout_s: float) -> Line:
    """Have a line wait for no more than so long from now on, when it has been greeted."""
    assert line._socket is not None
    line._socket.settimeout(timeout_s)
    return line


def open_link(url: str) -> SyncLink:
    return SyncLink(parse_url(url))


def echo(link: SyncLink, word: str) -> str:
    return link.ask(Send(("ECHO", word))).decode()  # type: ignore[no-any-return]


class Peer:
    """
    A server that answers each request as a test says.

    Args:
        answer: gives the bytes for the words of a request other than HELLO; they may end with `END`.
    """

    END = b"<end>"
    """The server says no more, and leaves the connection open on its side of reading."""

    def __init__(self, answer: Callable[[list[bytes]], bytes]) -> None:
        self._answer = answer
        self._door = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._door.getsockname()[1]
        self.accepted = 0
        self.clients: list[socket.socket] = []
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._door.accept()
                self.accepted += 1
                self.clients.append(client)
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        reader = resp.Reader()
        with suppress(OSError):
            while data := client.recv(1 << 16):
                reader.feed(data)
                while (words := reader.gets()) is not False:
                    reply = b"*0\r\n" if words == [b"HELLO"] else self._answer(words)
                    client.sendall(reply.removesuffix(self.END))
                    if reply.endswith(self.END):
                        client.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        with suppress(OSError):
            self._door.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        for each in (self._door, *self.clients):
            each.close()


@pytest.fixture
def start_peer() -> Iterator[Callable[[Callable[[list[bytes]], bytes]], Peer]]:
    peers: list[Peer] = []

    def start(answer: Callable[[list[bytes]], bytes]) -> Peer:
        peers.append(Peer(answer))
        return peers[-1]

    yield start
    for peer in peers:
        peer.close()


StartPeer = Callable[[Callable[[list[bytes]], bytes]], Peer]


def alive(link: SyncLink) -> list[Line]:
    return [line for each in link._lines if (line := each()) is not None]


class Interrupt(BaseException):
    """What a signal raises, such as KeyboardInterrupt."""


@contextmanager
def signals(each_s: float, then: Callable[[], None]) -> Iterator[None]:
    """Have a signal handled each so often; that of the time limit of tests waits meanwhile."""
    before = signal.signal(signal.SIGALRM, lambda *_: then())
    limit = signal.setitimer(signal.ITIMER_REAL, 0)
    try:
        signal.setitimer(signal.ITIMER_REAL, each_s, each_s)
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        signal.setitimer(signal.ITIMER_REAL, *limit)


def interrupting(is_time: Callable[[], object]) -> Callable[[], None]:
    """Return what interrupts, from when it is time on."""

    def interrupt() -> None:
        if is_time():
            raise Interrupt

    return interrupt


def is_in(function: Callable[..., Any]) -> bool:
    """Return whether this thread is in a function of Python."""
    frame = sys._getframe()
    while frame.f_back is not None and frame.f_code is not function.__code__:
        frame = frame.f_back
    return frame.f_code is function.__code__


# --- one line --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.usefixtures("_codec")
def test_a_reply_that_comes_in_pieces_is_read_whole(proxy: Proxy) -> None:
    line = connect(proxy)
    proxy.slice(7)
    for size in (0, 1, 100, SIZE if resp.hiredis else 1_000):
        word = "ü" * (size // 2)
        assert line.ask(("ECHO", word)).decode() == word
    proxy.slice(0)
    assert line.ask(("EVAL", "return {1, {'a', {}}, false, 'b'}", 0)) == [1, [b"a", []], None, b"b"]
    assert line.ask(("SET", "lines:a", "1"), ("INCR", "lines:a")) == 2
    line.close()
    assert not line.is_usable()


@pytest.mark.usefixtures("_codec")
def test_a_refusal_is_a_reply_and_the_connection_stays(proxy: Proxy) -> None:
    line = connect(proxy)
    for _ in range(2):
        with pytest.raises(driver.ResponseError, match="unknown command"):
            line.ask(("NONSENSE",))
    # Of several the first refusal counts, and each reply is read.
    with pytest.raises(driver.ResponseError, match="unknown command"):
        line.ask(("NONSENSE",), ("ECHO", "behind it"))
    assert line.is_usable()
    assert line.ask(("ECHO", "a")) == b"a"
    line.close()
    assert proxy.accepted == 1


@pytest.mark.usefixtures("_codec")
@pytest.mark.parametrize(
    "reply, cause",
    [
        (b"", driver.TimeoutError),
        (b"$100\r\nonly the begin", driver.TimeoutError),
        (Peer.END, driver.ConnectionError),
        (b"$5\r\nhal" + Peer.END, driver.ConnectionError),
        (b"?what is that\r\n", driver.InvalidResponse),
        (b"+one\r\n+and one that nobody asked for\r\n", driver.InvalidResponse),
    ],
    ids=["silence", "half", "end", "half-end", "garbage", "surplus"],
)
def test_connection_with_a_partial_reply_is_unusable(
    start_peer: StartPeer, reply: bytes, cause: type[Exception]
) -> None:
    line = connect(start_peer(lambda _: reply))
    if cause is driver.TimeoutError:
        hurry(line, 0.2)
    with pytest.raises(Unanswered) as failure:
        line.ask(("ECHO", "a"))
    assert isinstance(failure.value.__cause__, cause)
    assert not line.is_ready
    assert not line.is_usable()
    line.close()


def test_unsolicited_reply_answers_nothing(start_peer: StartPeer) -> None:
    peer = start_peer(lambda words: b"+%b\r\n" % words[1])
    link = open_link(f"redis://127.0.0.1:{peer.port}")
    assert echo(link, "first") == "first"
    peer.clients[0].sendall(b"+stray\r\n")
    until_sync(lambda: not _only(link).is_usable(), "it has come")
    assert echo(link, "second") == "second"
    assert peer.accepted == 2
    link.close()


def _only(link: SyncLink) -> Line:
    [line] = alive(link)
    return line


def test_server_greeting_error_is_not_a_reply(start_peer: StartPeer) -> None:
    said = [b"-LOADING the data\r\n", b"-ERR max number of clients reached\r\n" + Peer.END, b"+a\r\n"]
    peer = start_peer(lambda _: said.pop(0))
    link = open_link(f"redis://127.0.0.1:{peer.port}")
    for cause in (driver.BusyLoadingError, driver.ConnectionError):
        with pytest.raises(NotSent) as failure:
            echo(link, "a")
        assert isinstance(failure.value.__cause__, cause)
    until_sync(lambda: not _only(link).is_usable(), "the end has come")
    assert echo(link, "a") == "a"
    assert peer.accepted == 2
    link.close()


def test_server_with_excess_clients_has_not_seen_the_request(start_server: StartServer) -> None:
    server = start_server(maxclients="1")
    line = connect(server)
    for _ in range(3):
        with pytest.raises(NotSent) as failure:
            connect(server)
        assert "max number of clients" in str(failure.value.__cause__)
    assert line.ask(("ECHO", "a")) == b"a"
    line.close()


def test_server_that_requires_a_password_refuses_the_request(start_server: StartServer) -> None:
    line = connect(start_server(requirepass="a"))
    with pytest.raises(driver.NoPermissionError):
        line.ask(("ECHO", "a"))
    line.close()


@pytest.mark.parametrize("greeting", [(), (("SELECT", "1"),)], ids=["none", "some"])
def test_connection_that_ends_at_once_has_sent_nothing(
    start_proxy: StartProxy, redis_server: Server, greeting: tuple[tuple[str, ...], ...]
) -> None:
    proxy = start_proxy(redis_server)
    proxy.refuse()
    for _ in range(5):
        with pytest.raises(NotSent):
            connect(proxy, greeting=greeting)


def test_a_connection_begins_with_its_user_and_its_database(start_server: StartServer) -> None:
    server = start_server()
    server.call("ACL", "SETUSER", "ann", "on", ">a b", "+@all", "~*", "&*")
    link = open_link(f"redis://ann:a%20b@127.0.0.1:{server.port}/3")
    said = link.ask(Send(("CLIENT", "INFO")))
    assert b"user=ann" in said
    assert b" db=3 " in said
    link.close()
    for url, words in (
        (f"redis://ann:x@127.0.0.1:{server.port}", "WRONGPASS|invalid username"),
        (f"redis://ann:a%20b@127.0.0.1:{server.port}/99", "out of range"),
    ):
        link = open_link(url)
        for _ in range(2):
            with pytest.raises(driver.ResponseError, match=words):
                echo(link, "a")
            # No other caller may have the connection, which leads to database 0.
            assert not _only(link).is_ready
        link.close()


@pytest.mark.parametrize("reply", [b"+OK\r\n", b"+OK\r\n+OK\r\n" + Peer.END], ids=["silence", "end"])
def test_nothing_of_a_request_was_sent_while_the_greeting_fails(start_peer: StartPeer, reply: bytes) -> None:
    peer = start_peer(lambda _: reply[:0] if reply.endswith(b"OK\r\n") else Peer.END)
    with pytest.raises(NotSent):
        connect(peer, timeout_s=0.2, greeting=(("AUTH", "a"), ("SELECT", "1")))


def test_nobody_answers_where_there_is_no_server(tmp_path: Path) -> None:
    line = Line(LIMIT_S)
    for path, where in ((str(tmp_path / "none.sock"), "none.sock"), (None, "127.0.0.1:1")):
        with pytest.raises(NotSent) as failure:
            line.connect(Endpoint("127.0.0.1", 1, path=path), LIMIT_S, 0)
        assert where in str(failure.value.__cause__)


def test_requests_go_by_a_socket_of_the_machine(start_server: StartServer) -> None:
    server = start_server()
    link = open_link(f"unix://{server.socket_path}?db=2")
    assert [echo(link, word) for word in "ab"] == ["a", "b"]
    assert b" db=2 " in link.ask(Send(("CLIENT", "INFO")))
    server.restart()
    assert echo(link, "c") == "c"
    link.close()


# --- TLS -------------------------------------------------------------------------------------------------------------


def test_requests_of_any_size_go_by_tls(start_server: StartServer, certificate: Certificate) -> None:
    server = start_server(certificate=certificate)
    link = open_link(server.url)
    for size in (1, 20_000, SIZE):
        assert echo(link, "x" * size) == "x" * size
    assert server.info("stats")["total_connections_received"] >= 1
    # What TLS says by itself is no end.
    assert _only(link).is_usable()
    [client] = [each for each in server.client().client_list() if each["cmd"] == "echo"]
    server.call("CLIENT", "KILL", "ID", client["id"])
    until_sync(lambda: not _only(link).is_usable(), "the end has come")
    assert echo(link, "a") == "a"
    link.close()


def test_a_server_with_the_certificate_of_another_is_told_nothing(
    start_server: StartServer, certificate: Certificate, tmp_path: Path
) -> None:
    server = start_server(certificate=certificate)
    with pytest.raises(NotSent) as failure:
        connect(server, tls=read_tls({}))
    assert "CERTIFICATE_VERIFY_FAILED" in str(failure.value.__cause__)
    line = connect(server, tls=read_tls({"ssl_cert_reqs": "none", "ssl_check_hostname": False}))
    assert line.ask(("ECHO", "a")) == b"a"
    line.close()
    (tmp_path / "empty").write_text("")
    with pytest.raises(NotSent) as failure:
        read_tls({"ssl_ca_certs": str(tmp_path / "empty")})
    assert "the TLS files cannot be read" in str(failure.value.__cause__)


def test_a_server_that_does_not_shake_hands_is_given_up(start_peer: StartPeer) -> None:
    with pytest.raises(NotSent):
        connect(start_peer(lambda _: b""), timeout_s=0.3, tls=read_tls({"ssl_cert_reqs": "none"}))


def test_ended_tls_connection_sends_nothing_in_the_clear(
    start_server: StartServer, certificate: Certificate, start_proxy: StartProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy = start_proxy(start_server(certificate=certificate))
    line = connect(proxy, tls=read_tls({"ssl_ca_certs": str(certificate.cert)}))
    made, sent = line._socket, []
    assert isinstance(made, ssl.SSLSocket)
    monkeypatch.setattr(socket.socket, "shutdown", lambda *_: None)
    monkeypatch.setattr(socket.socket, "sendall", lambda _, data: sent.append(data))
    line.end()
    made.sendall(b"secret")
    assert not sent
    monkeypatch.undo()
    line.close()


# --- interrupts ------------------------------------------------------------------------------------------------------


def test_signal_during_a_read_leaves_its_reply_to_nobody(proxy: Proxy) -> None:
    link = open_link(proxy.url)
    assert echo(link, "before") == "before"
    line = _only(link)
    proxy.hold()
    with pytest.raises(Interrupt), signals(0.05, interrupting(lambda: not line.is_ready)):
        echo(link, "interrupted")
    proxy.heal()
    assert echo(link, "after") == "after"
    assert proxy.accepted == 2
    link.close()
    until_sync(lambda: not proxy.connections, "no connection stays")


# A socket may be given up half made; it is closed with its object.
@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
def test_signals_at_any_moment_lose_no_reply_and_no_place(
    redis_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links, "REQUESTS_MAX", 2)
    # A signal may also raise while a connection is thrown away; that of pytest is itself no place for signals.
    monkeypatch.setattr(sys, "unraisablehook", bool)
    chance, raised, left = random.Random(1), 0, 0
    link = open_link(f"{redis_server.url}?patience={LIMIT_S}")
    held = [link._enter()]

    def raise_twice() -> None:
        nonlocal left, raised
        left -= 1
        if left >= 0 and is_in(echo):
            raised += 1
            raise Interrupt
        signal.setitimer(signal.ITIMER_REAL, 0)

    def ask(word: str) -> str | None:
        """Ask, interrupted once or twice at any moment."""
        nonlocal left
        left = chance.randrange(3)
        signal.setitimer(signal.ITIMER_REAL, chance.uniform(1e-5, 2e-4), chance.uniform(1e-4, 3e-4))
        try:
            return echo(link, word)
        except Interrupt:
            return None

    with signals(LIMIT_S, raise_twice):
        for number in range(600):
            if number % 3 == 0 and held:
                link._give_back(held.pop())
            said = ask(f"word {number}")
            left = 0
            assert said in {None, f"word {number}"}
            if number % 3 == 0:
                # So that the next ones have to wait for room now and then.
                held.append(link._enter())
    assert raised > 20
    while held:
        link._give_back(held.pop())
    # There is room for both that may be under way.
    held = [link._enter(), link._enter()]
    while held:
        link._give_back(held.pop())
    assert echo(link, "a") == "a"
    assert len(alive(link)) <= 2
    link.close()


def test_a_deadline_holds_whatever_signals_come(proxy: Proxy) -> None:
    line, came = hurry(connect(proxy), 0.5), []
    proxy.blackhole()
    begun_s = time.monotonic()
    # With signals that come sooner than that it would not end, if each gave it all the time anew.
    with signals(0.1, lambda: came.append(1)), pytest.raises(Unanswered):
        line.ask(("ECHO", "a"))
    assert time.monotonic() - begun_s > 0.4
    assert came
    line.close()


def test_signal_handler_may_call_while_its_thread_calls(redis_server: Server) -> None:
    link = open_link(redis_server.url)
    line = link._enter()
    with link._lock, line._lock:
        assert echo(link, "of the signal") == "of the signal"
        link._leave(link._at)
        line.end()
    link._give_back(line)
    link.close()


def test_interrupted_line_is_closed_and_frees_its_slot(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "REQUESTS_MAX", 1)
    link = open_link(f"{proxy.url}?patience={LIMIT_S}")
    echo(link, "a")
    # As if it came between the step that took the line and the next one.
    link._idle.pop()
    until_sync(lambda: not proxy.connections, "it is closed")
    assert echo(link, "b") == "b"
    link.close()


# --- forks -----------------------------------------------------------------------------------------------------------

FORKS = """
import os, sys, threading
from queuehint.backends.redis.address import parse_url
from queuehint.backends.redis.connections import link as links
from queuehint.backends.redis.connections.sync_link import SyncLink
from queuehint.backends.redis.transport import Send

links.TIMEOUT_S = 300.0
link = SyncLink(parse_url(sys.argv[1]))

def echo_in_threads():
    def ask():
        for number in range(100):
            word = f"{threading.get_ident()} {number}".encode()
            assert link.ask(Send(("ECHO", word))) == word
    threads = [threading.Thread(target=ask) for _ in range(4)]
    for each in threads: each.start()
    for each in threads: each.join()

def ids():
    return {line.ask(("CLIENT", "ID")) for line in list(link._idle)}

waiting = threading.Thread(target=lambda: print(link.ask(Send(("BLPOP", "lines:forks", "240")))[1].decode()))
waiting.start()
while len(link._lines) < 4: echo_in_threads()
lock, before, children = link._lock, ids(), []
for how in ("ask", "close", "exit"):
    with lock:
        pid = os.fork()
    if not pid:
        code = 1
        try:
            if how == "ask":
                link._lock = threading.RLock()
                own = link.ask(Send(("CLIENT", "ID")))
                assert own not in before
                assert link.ask(Send(("CLIENT", "ID"))) == own
                for number in range(300):
                    assert link.ask(Send(("ECHO", f"child {number}"))) == f"child {number}".encode()
            if how != "exit":
                link.close()
            code = 0
        finally:
            os._exit(code)
    children.append(pid)
    echo_in_threads()
codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
echo_in_threads()
link.ask(Send(("RPUSH", "lines:forks", "not lost")))
waiting.join()
print(codes, before <= ids())
link.close()
"""


@pytest.mark.slow
def test_a_fork_uses_and_ends_no_connection_of_its_parent(proxy: Proxy) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKS, proxy.url],
        capture_output=True,
        text=True,
        timeout=2 * LIMIT_S,
        cwd=ROOT,
        check=False,
    )
    assert done.stdout.splitlines() == ["not lost", "[0, 0, 0] True"], done.stderr


def test_forked_copy_of_a_connection_is_neither_used_nor_closed(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    line = connect(proxy)
    copy = line._socket
    assert copy is not None
    kept = copy.dup()
    line._lock.acquire()  # by a thread that the fork does not have
    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", lambda: -1)
        assert not line.is_usable()
        line.end()
        line.close()
    assert copy.fileno() == -1
    kept.sendall(resp.pack_words(("ECHO", "a")))
    assert kept.recv(100) == b"$1\r\na\r\n"
    kept.close()


# --- servers and links that fail -------------------------------------------------------------------------------------


@pytest.mark.slow
def test_idle_connection_closed_by_the_server_is_replaced(start_server: StartServer, start_proxy: StartProxy) -> None:
    server = start_server(timeout="1")
    proxy = start_proxy(server)
    link = open_link(proxy.url)
    assert echo(link, "a") == "a"
    until_sync(lambda: not proxy.connections, "the server has closed it")
    assert echo(link, "b") == "b"
    assert proxy.accepted == 2
    link.close()


@pytest.mark.slow
@pytest.mark.parametrize("poll", ["there", "none", "another"])
def test_restarted_server_is_reached_by_a_new_connection(
    start_server: StartServer, monkeypatch: pytest.MonkeyPatch, poll: str
) -> None:
    if poll == "none":
        monkeypatch.delattr(select, "poll")
    elif poll == "another":
        monkeypatch.setattr(select, "poll", lambda: pytest.fail("it may know nothing yet"))
    server = start_server()
    link = open_link(server.url)
    for _ in range(3):
        assert [echo(link, word) for word in "ab"] == ["a", "b"]
        assert len(link._lines) == 1
        server.restart()
    link.close()


def test_of_a_connection_that_was_reset_nothing_is_sent(proxy: Proxy) -> None:
    link = open_link(proxy.url)
    assert echo(link, "a") == "a"
    proxy.rst()
    until_sync(lambda: not _only(link).is_usable(), "the reset has come")
    assert echo(link, "b") == "b"
    link.close()


@pytest.mark.slow
def test_threads_have_their_own_replies_whatever_happens_on_the_way(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links, "REQUESTS_MAX", 5)
    monkeypatch.setattr(links, "TIMEOUT_S", 1.0)
    link = open_link(proxy.url)
    problems, answered, failed, is_over = list[BaseException](), [0], [0], threading.Event()

    def act(thread: int) -> None:
        number = 0
        try:
            while not is_over.is_set() or number < 50:
                number += 1
                word = f"{thread}.{number}" + "x" * (number % 7 * 3_000)
                try:
                    assert echo(link, word) == word
                    answered[0] += 1
                except (Unanswered, NotSent):
                    failed[0] += 1
                    time.sleep(0.001)
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=act, args=(thread,)) for thread in range(8)]
    for each in threads:
        each.start()
    chance = random.Random(2)
    turn = 0
    while turn < 60 or (failed[0] <= 8 and not problems):
        turn += 1
        chance.choice(
            (
                proxy.rst,
                lambda: proxy.cut_before(b"ECHO", times=3),
                lambda: proxy.cut_after(b"ECHO", times=3),
                lambda: proxy.slice(chance.choice((0, 500))),
                lambda: proxy.delay(chance.choice((0, 5)), jitter_ms=5),
                proxy.refuse,
                proxy.heal,
                proxy.blackhole,
                proxy.hold,
            )
        )()
        time.sleep(0.03)
        if chance.random() < 0.4:
            proxy.heal()
    proxy.heal()
    is_over.set()
    for each in threads:
        each.join(checks.LIMIT_S)
    assert not problems
    assert answered[0] > 8 * 20
    assert [echo(link, str(number)) for number in range(20)] == [str(number) for number in range(20)]
    assert len(link._lines) <= 5
    link.close()
    until_sync(lambda: not proxy.connections, "no connection stays")


def test_nothing_stays_open_of_a_link_that_is_forgotten(proxy: Proxy) -> None:
    link = open_link(proxy.url)
    echo(link, "a")
    del link
    until_sync(lambda: not proxy.connections, "no connection stays")


# --- who waits for a line --------------------------------------------------------------------------------------------


def _in_line(link: SyncLink, word: str, came: list[str]) -> threading.Thread:
    """Have a thread ask, and wait until it stands in line."""

    def ask() -> None:
        try:
            came.append(echo(link, word))
        except NotSent as error:
            came.append(type(error).__name__)

    before, thread = len(link._turns), threading.Thread(target=ask)
    thread.start()
    until_sync(lambda: len(link._turns) > before, "it waits")
    return thread


def test_waiting_callers_get_connections_in_order_of_arrival(
    redis_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links, "REQUESTS_MAX", 1)
    link, came = open_link(redis_server.url), list[str]()
    line = link._enter()
    threads = [_in_line(link, str(number), came) for number in range(6)]
    link._give_back(line)
    link._call_next()
    for each in threads:
        each.join()
    assert came == list("012345")
    assert len(link._lines) == 1
    link.close()


@pytest.mark.slow
def test_a_caller_that_leaves_the_line_holds_up_nobody(redis_server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "REQUESTS_MAX", 1)
    link, came = open_link(redis_server.url), list[str]()
    line = link._enter()
    with pytest.raises(Interrupt), signals(0.1, interrupting(lambda: link._turns)):
        link._enter()
    assert not link._turns
    # As if it had been interrupted before it left: nobody is told.
    link._turns.append(gone := weakref.ref(threading.Lock()))
    assert gone() is None
    thread = threading.Thread(target=lambda: came.append(echo(link, "a")))
    thread.start()
    until_sync(lambda: link._turns and link._turns[0] is not gone, "it waits")
    link._idle.append(line)
    thread.join()
    assert came == ["a"]
    assert not link._turns
    link.close()


def test_later_caller_queues_behind_waiting_callers(redis_server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "REQUESTS_MAX", 1)
    link, came, turn = open_link(redis_server.url), list[str](), threading.Lock()
    turn.acquire()
    link._turns.append(first := weakref.ref(turn))
    thread = _in_line(link, "a", came)
    link._give_back(Line(1.0))
    link._call_next()
    assert turn.acquire(timeout=30)
    assert not came
    link._turns.remove(first)
    link._call_next()
    thread.join()
    link.close()


def test_closed_link_refuses_waiting_callers(redis_server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "REQUESTS_MAX", 1)
    link, came = open_link(redis_server.url), list[str]()
    held = link._enter()
    threads = [_in_line(link, str(number), came) for number in range(3)]
    link.close()
    for each in threads:
        each.join()
    assert came == ["Closed"] * 3
    link._give_back(held)
    with pytest.raises(Closed):
        echo(link, "a")


def test_stalled_line_raises_an_error_that_names_it(redis_server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "REQUESTS_MAX", 1)
    link = open_link(redis_server.url)
    held = link._enter()
    with monkeypatch.context() as patch, pytest.raises(NotSent) as failure:
        patch.setattr(redis_session, "RETRY_S", 0.2)
        echo(link, "a")
    assert "1 calls are under way, and none ended within 0.2 s" in str(failure.value.__cause__)
    link._give_back(held)
    assert echo(link, "b") == "b"
    link.close()


def test_commands_that_block_have_a_connection_each(redis_server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "REQUESTS_MAX", 1)
    monkeypatch.setattr(links, "WAIT_TIMEOUT_S", 2 * LIMIT_S)
    link, came = SyncLink(parse_url(redis_server.url), waits=True), list[Any]()
    asked = Send(("BLPOP", "lines:waits", str(LIMIT_S)))
    threads = [threading.Thread(target=lambda: came.append(link.ask(asked)[1])) for _ in range(3)]
    for each in threads:
        each.start()
    until_sync(lambda: redis_server.info("clients")["blocked_clients"] >= 3, "they block")
    redis_server.call("RPUSH", "lines:waits", "a", "b", "c")
    for each in threads:
        each.join()
    assert sorted(came) == [b"a", b"b", b"c"]
    link.close()


# --- nodes that are left ---------------------------------------------------------------------------------------------


def test_connections_of_an_abandoned_node_close_with_their_reply(proxy: Proxy) -> None:
    link = open_link(proxy.url)
    send = Send(("ECHO", "a"))
    link.ask(send)
    taken, other = link._idle.pop(), link._enter()
    link._connect(other, link._at, link._term)
    link._give_back(other)
    link.move(Redirect(leaves=True), send)
    assert proxy.connections >= 1
    until_sync(lambda: proxy.connections == 1, "the free one is closed at once")
    assert taken.ask(("ECHO", "b")) == b"b"
    link._give_back(taken)
    until_sync(lambda: not proxy.connections, "the other one with its reply")
    link.close()


def test_node_abandoned_during_a_return_keeps_no_line(proxy: Proxy) -> None:
    link = open_link(proxy.url)
    echo(link, "a")

    class Idle(type(link._idle)):  # type: ignore[misc]
        def append(self, line: Line) -> None:
            link._term += 1
            super().append(line)

    link._idle = Idle(link._idle)
    link._give_back(link._idle.pop())
    until_sync(lambda: not proxy.connections, "it is closed")
    link.close()
