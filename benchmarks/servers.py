"""Servers that a benchmark starts for itself, on free ports, pinned to one CPU; clients are pinned to another."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Iterator

_CPUS = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
IS_PINNED = len(_CPUS) > 1 and shutil.which("taskset") is not None
"""Left to the kernel, one and the same queue moves by a factor of 3, as server and client share a CPU or not."""
ON_SERVER_CPU = ("taskset", "-c", str(_CPUS[0])) if IS_PINNED else ()
ON_CLIENT_CPU = ("taskset", "-c", str(_CPUS[1])) if IS_PINNED else ()

_SCRIPTS = ("evalsha", "evalsha_ro", "eval", "eval_ro", "fcall", "fcall_ro")
_WAITS = ("bzpopmin",)
SLOW_US = 1000
LOADS_S = 60
_SIGN = re.compile(r"[0-9a-f]{40}$|#!|FCALL ")


@contextlib.contextmanager
def off_the_server_cpu() -> Iterator[None]:
    """Keep this process off the CPU of servers while the block runs."""
    if IS_PINNED:
        os.sched_setaffinity(0, {_CPUS[1]})
    try:
        yield
    finally:
        if IS_PINNED:
            os.sched_setaffinity(0, _CPUS)


def is_script(sign: str) -> bool:
    """Return whether an entry of `RedisServer.slow` is of a script."""
    return _SIGN.match(sign) is not None


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class RedisServer:
    """
    A redis-server that writes nothing to disk, for as long as the block runs.

    Args:
        dump: a dump of another server, which this one loads at its start.
    """

    def __init__(self, dump: Path | None = None) -> None:
        import redis

        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self._folder = tempfile.TemporaryDirectory(prefix="queuehint-bench-")
        if dump is not None:
            shutil.copy(dump, Path(self._folder.name, "dump.rdb"))
        options = {"--port": str(self.port), "--bind": "127.0.0.1", "--dir": self._folder.name}
        options |= {"--save": "", "--appendonly": "no", "--loglevel": "warning"}
        self._process = subprocess.Popen(
            (*ON_SERVER_CPU, "redis-server", *itertools.chain(*options.items())),
            stdout=subprocess.DEVNULL,
        )
        self.client: Any = redis.Redis(port=self.port)

    def __enter__(self) -> Self:
        import redis

        for _ in range(LOADS_S * 100):
            # One that loads a dump answers that it does, which is such an error too.
            with contextlib.suppress(redis.ConnectionError):
                self.client.ping()
                break
            assert self._process.poll() is None, "redis-server has ended"
            time.sleep(0.01)
        self.client.config_set("slowlog-log-slower-than", SLOW_US)
        self.client.config_set("slowlog-max-len", 10_000)
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()
        self._process.terminate()
        self._process.wait()
        self._folder.cleanup()

    @property
    def pid(self) -> int:
        return self._process.pid

    def dump(self, path: Path) -> None:
        """Write all data to a file, for other servers to load."""
        import redis

        with redis.Redis(port=self.port, socket_timeout=LOADS_S) as client:
            client.save()
        shutil.move(Path(self._folder.name, "dump.rdb"), path)

    @property
    def waited_ms(self) -> float:
        """For how long its main thread has waited for a CPU."""
        times = Path(f"/proc/{self.pid}/task/{self.pid}/schedstat").read_text(encoding="ascii").split()
        return int(times[1]) / 1e6

    @property
    def used_bytes(self) -> int:
        return int(self.client.info("memory")["used_memory"])

    @property
    def version(self) -> str:
        return str(self.client.info("server")["redis_version"])

    def reset_costs(self) -> None:
        self.client.config_resetstat()
        self._cpu_s = self._used_cpu_s()

    def costs_us(self) -> tuple[float, float, int]:
        """Return the µs in scripts and those of the whole server since the reset, and the count of scripts run."""
        stats = self.client.info("commandstats")
        scripts = [stats[f"cmdstat_{name}"] for name in _SCRIPTS if f"cmdstat_{name}" in stats]
        whole_us = (self._used_cpu_s() - self._cpu_s) * 1e6
        return sum(row["usec"] for row in scripts), whole_us, sum(row["calls"] for row in scripts)

    def sent(self) -> int:
        """Return how many commands clients have sent since the start that run a script or wait."""
        stats = self.client.info("commandstats")
        return sum(stats.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in (*_SCRIPTS, *_WAITS))

    def slow(self) -> list[tuple[float, str]]:
        """Return of each slow command the ms, and the SHA, function or first words of its script, or else its name."""
        found = []
        for entry in self.client.slowlog_get(-1):
            name, _, rest = entry["command"].decode(errors="replace").partition(" ")
            if name.lower().startswith("eval"):
                name = rest[:60] if rest.startswith("#!") else rest.partition(" ")[0]
            elif name.lower().startswith("fcall"):
                name = f"FCALL {rest.partition(' ')[0]}"
            found.append((entry["duration"] / 1000, name))
        return found

    def _used_cpu_s(self) -> float:
        used = self.client.info("cpu")
        return float(used["used_cpu_user"] + used["used_cpu_sys"])


class PostgresServer:
    """A cluster of its own that does not wait for the disk, as a Redis without append-only file does not."""

    def __init__(self) -> None:
        found = shutil.which("initdb") or next(map(str, Path("/usr/lib/postgresql").glob("*/bin/initdb")), None)
        self._bin = Path(found).resolve().parent if found else None
        self.port = free_port()
        self.url = f"postgresql://bench@127.0.0.1:{self.port}/bench"

    @property
    def is_installed(self) -> bool:
        return self._bin is not None and shutil.which("psql") is not None

    @contextlib.contextmanager
    def running(self) -> Iterator[Self]:
        assert self._bin is not None
        # PostgreSQL refuses to run as root.
        user: dict[str, Any] = {"user": "postgres"} if os.geteuid() == 0 else {}
        with tempfile.TemporaryDirectory(prefix="queuehint-bench-") as folder:
            if user:
                shutil.chown(folder, "postgres")
            data = str(Path(folder, "data"))
            settings = f"-p {self.port} -k {folder} -c listen_addresses=127.0.0.1 -c synchronous_commit=off"
            control = (*ON_SERVER_CPU, self._bin / "pg_ctl", "-D", data, "-l", str(Path(folder, "log")))

            def quietly(*command: Any) -> None:
                subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=folder, **user)

            quietly(self._bin / "initdb", "-D", data, "-U", "bench", "--auth=trust", "-N")
            quietly(*control, "-w", "-o", f"{settings} -c shared_buffers=512MB", "start")
            try:
                yield self
            finally:
                quietly(*control, "-m", "immediate", "stop")

    def clear(self) -> None:
        self._run("postgres", "drop database if exists bench with (force)")
        self._run("postgres", "create database bench")

    def analyze(self) -> None:
        """Gather statistics, as autovacuum does within minutes: without them, queries are planned for empty tables."""
        self._run("bench", "vacuum analyze")

    def _run(self, database: str, statement: str) -> None:
        where = ("psql", "-h", "127.0.0.1", "-p", str(self.port), "-U", "bench", "-d", database)
        subprocess.run((*where, "-qc", statement), check=True, capture_output=True)
