"""Servers that keep an archive of their log, servers restored from one, and servers whose log has little room."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path

from tests.postgres_servers import USER, PostgresServer, demoted, new_folder
from tests.servers import HOST, Process, until


class ArchivedServer(PostgresServer):
    """A server whose log is archived; see `RestoredServer`."""

    def __init__(self) -> None:
        super().__init__(archive_mode="on", archive_command="cp %p ../archive/%f")

    def _fill(self) -> None:
        super()._fill()
        _make(self.archive)

    @property
    def archive(self) -> Path:
        """Where the log is kept."""
        return self.directory / "archive"

    def back_up(self) -> Path:
        """Copy the data while the server runs."""
        program, base = self.programs.folder / "pg_basebackup", self.directory / "base"
        where = ("--host", HOST, "--port", str(self.port), "--username", USER)
        command = [str(program), "-D", str(base), *where, "--checkpoint", "fast", "--no-sync"]
        subprocess.run(command, check=True, capture_output=True, cwd="/", **demoted())
        return base

    def name_point(self, name: str) -> None:
        """Name the present point in time."""
        self.run(f"SELECT pg_create_restore_point('{name}')")

    def archive_all(self) -> None:
        """Wait until the archive has the whole log."""
        [(segment,)] = self.run("SELECT pg_walfile_name(pg_switch_wal())")
        until((self.archive / segment).exists, "the log is archived")


class RestoredServer(PostgresServer):
    """
    A server with the data of a point in time.

    Args:
        source: whose archive is read.
        base: a copy of its data, from before.
        point: the name of that point.
    """

    def __init__(self, source: ArchivedServer, base: Path, point: str) -> None:
        self._base = base
        super().__init__(
            source.programs,
            restore_command=f"cp {source.archive}/%f %p",
            recovery_target_name=point,
            recovery_target_action="promote",
        )
        until(lambda: self.run("SELECT pg_is_in_recovery()") == [(False,)], "the server takes changes")

    def _fill(self) -> None:
        shutil.copytree(self._base, self.data)
        (self.data / "recovery.signal").touch()
        for path in (self.data, *self.data.rglob("*")):
            if os.getuid() == 0:
                shutil.chown(path, 65_534, 65_534)
        self.data.chmod(0o700)


class _Room(Process):
    """A process in whose view of the file system a folder has little room."""

    def __init__(self, folder: Path, mebibytes: int) -> None:
        super().__init__(new_folder())
        mount = f"mount -t tmpfs -o size={mebibytes}m,mode=700,uid=65534,gid=65534 tmpfs {folder}"
        script = f"cp -a {folder} {self.directory}/first && {mount} && cp -a {self.directory}/first/. {folder}"
        ready = self.directory / "ready"
        self._launch(["unshare", "--mount", "sh", "-c", f"{script} && touch {ready} && exec sleep 900"], ready.exists)


class SmallLogServer(PostgresServer):
    """A server whose write-ahead log is on a disk with little room; see `may_mount`."""

    def __init__(self, mebibytes: int = 72) -> None:
        self._mebibytes = mebibytes
        super().__init__(max_wal_size="32MB", min_wal_size="32MB", wal_recycle="off")

    def _fill(self) -> None:
        super()._fill()
        log = self.directory / "log"
        (self.data / "pg_wal").rename(log)
        (self.data / "pg_wal").symlink_to(log)
        self._room = _Room(log, self._mebibytes)

    @property
    def _ballast(self) -> Path:
        return Path(f"/proc/{self._room.pid}/root{self.directory}/log/ballast")

    def fill(self) -> None:
        """Leave no room for the log; the server goes down as it needs some."""
        with self._ballast.open("wb", buffering=0) as file:
            try:
                while file.write(bytes(4096)):
                    pass
            except OSError:
                return

    def empty(self) -> None:
        """Leave room again, and start the server if it is down."""
        self._ballast.unlink()
        self.restart(signal.SIGQUIT)

    def _command(self) -> list[str]:
        user = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
        return ["nsenter", f"--target={self._room.pid}", "--mount", *user, *super()._command()]

    def _start(self) -> bool:
        return self._launch(self._command(), self._is_ready)

    def close(self) -> None:
        """End it for good, and its disk."""
        super().close()
        self._room.close()


def _make(folder: Path) -> None:
    subprocess.run(["mkdir", folder], check=True, cwd="/", **demoted())
