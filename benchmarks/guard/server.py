"""
A Redis server whose scripts run in this process, in Lua 5.1, so that what they execute can be counted.

Data stay in a real redis-server: each `redis.call` of a script is sent there, and so is each command of a client that
runs no script. Redis's own interpreter has no way to count instructions. The clock, the run id and the used memory that
scripts read are the same at every run.
"""

from __future__ import annotations

import hashlib
import importlib
import shutil
import socket
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

import attrs

from benchmarks.guard import lua_libraries
from queuehint.backends.redis.connections.resp import open_reader, pack

if TYPE_CHECKING:
    from collections.abc import Callable

BEGIN_MS: Final = 1_800_000_000_000
_RUN: Final = b"run_id:" + b"0123456789abcdef" * 2 + b"01234567\r\n"
_MEMORY: Final = b"used_memory:1000000\r\nmaxmemory:0\r\n"
_STEP_MS: Final = 1
"""By how much the clock goes on at each script."""

_HARNESS: Final = Path(__file__).with_name("harness.lua")


@attrs.define
class Counts:
    """Counts since the last `ScriptServer.take`."""

    instructions: int = 0
    commands: int = 0
    """How many a script has run by `redis.call`."""
    sent: int = 0
    received: int = 0


class Status(bytes):
    """A reply that begins with ``+``."""

    __slots__ = ()


class Refusal(Exception):  # noqa: N818 - a reply like others, raised only inside a script
    """A reply that begins with ``-``."""


class ScriptServer:
    """A redis-server of its own, for as long as the block runs, and the interpreter of its scripts."""

    def __init__(self) -> None:
        self.counts = Counts()
        self.now_ms = BEGIN_MS
        self._texts: dict[str, bytes] = {}
        self._libraries: set[bytes] = set()
        lua: Any = importlib.import_module("lupa.lua51")
        runtime = lua.LuaRuntime(encoding=None, unpack_returned_tuples=True, register_eval=False)
        self._is_table: Callable[[Any], bool] = lambda value: lua.lua_type(value) == "table"
        self._table = runtime.table_from
        packer = lua_libraries.MessagePack(self._table, self._is_table)
        libraries = {
            b"cmsgpack": {b"pack": packer.pack, b"unpack": packer.unpack},
            b"struct": {
                b"pack": lua_libraries.struct_pack,
                b"unpack": lua_libraries.struct_unpack,
                b"size": lua_libraries.struct_size,
            },
            b"bit": {name.encode(): function for name, function in lua_libraries.BIT.items()},
        }
        tables = self._table({name: self._table(library) for name, library in libraries.items()})
        self._harness = runtime.execute(_HARNESS.read_bytes(), tables, self._call, _sha1)

    def __enter__(self) -> Self:
        self._folder = tempfile.TemporaryDirectory(prefix="queuehint-guard-")
        path = str(Path(self._folder.name, "redis.sock"))
        options = ("--port", "0", "--unixsocket", path, "--dir", self._folder.name, "--save", "", "--appendonly", "no")
        binary = shutil.which("redis-server") or "redis-server"
        self._process = subprocess.Popen((binary, *options), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self._socket = socket.socket(socket.AF_UNIX)
        for _ in range(1000):
            with suppress(OSError):
                self._socket.connect(path)
                break
            time.sleep(0.01)
        self._reader = open_reader()
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()
        self._process.terminate()
        self._process.wait()
        self._folder.cleanup()

    def take(self) -> Counts:
        """Return what has been counted since the last time."""
        taken, self.counts = self.counts, Counts()
        return taken

    # --- what a client sends -----------------------------------------------------------------------------------------

    def answer(self, command: tuple[Any, ...]) -> bytes:
        """Carry out a command; return the reply as it would be sent, and count its bytes."""
        words = [word if isinstance(word, bytes) else str(word).encode() for word in command]
        self.counts.sent += len(pack(tuple(words)))
        reply = encoded(self._carried_out(words))
        self.counts.received += len(reply)
        return reply

    def popped(self, redis_keys: list[bytes]) -> bytes:
        """Return the reply to a `BZPOPMIN` of some keys if one of them is there, else nothing."""
        for redis_key in redis_keys:
            if found := self.ask((b"ZPOPMIN", redis_key)):
                return encoded([redis_key, *found])
        return b""

    def _carried_out(self, words: list[bytes]) -> Any:
        match [word.upper() if at < 2 else word for at, word in enumerate(words)]:
            case [b"EVALSHA" | b"EVALSHA_RO", *_]:
                text = self._texts.get(words[1].decode())
                return Refusal("NOSCRIPT No matching script.") if text is None else self._script(text, words)
            case [b"EVAL" | b"EVAL_RO", *_]:
                self._texts[_sha1(words[1]).decode()] = words[1]
                return self._script(words[1], words)
            case [b"SCRIPT", b"LOAD", text]:
                self._texts[_sha1(text).decode()] = text
                return _sha1(text)
            case [b"FUNCTION", b"LOAD", *_]:
                return self._load(words[-1])
            case [b"FCALL" | b"FCALL_RO", *_]:
                return self._function(words)
            case _:
                return self.ask(tuple(words))

    def _script(self, text: bytes, words: list[bytes]) -> Any:
        keys, argv = self._arguments(words)
        # The first line is Redis's: it says which flags the script has.
        body = b"--" + text if text.startswith(b"#!") else text
        return self._counted(self._harness.script(_sha1(text), body, keys, argv))

    def _load(self, text: bytes) -> Any:
        name = text.partition(b"\n")[0].partition(b"name=")[2].split()[0]
        if name not in self._libraries:
            self._harness.load(b"--" + text)
            self._libraries.add(name)
        return name

    def _function(self, words: list[bytes]) -> Any:
        if not self._harness.has(words[1]):
            return Refusal("ERR Function not found")
        keys, argv = self._arguments(words)
        return self._counted(self._harness.call(words[1], keys, argv))

    def _arguments(self, words: list[bytes]) -> tuple[Any, Any]:
        self.now_ms += _STEP_MS
        after = 3 + int(words[2])
        return self._table(words[3:after]), self._table(words[after:])

    def _counted(self, result: tuple[Any, int]) -> Any:
        reply, steps = result
        self.counts.instructions += steps
        return reply if reply is None or isinstance(reply, (bool, int, float, bytes)) else self._plain(reply)

    def _plain(self, value: Any) -> Any:
        """Return what a script has returned as Redis would reply it."""
        if not self._is_table(value):
            return value
        if (error := value[b"err"]) is not None:
            return Refusal(error.decode())
        if (status := value[b"ok"]) is not None:
            return Status(status)
        found, at = [], 1
        while (item := value[at]) is not None:
            found.append(self._plain(item))
            at += 1
        return found

    # --- what a script sends -----------------------------------------------------------------------------------------

    def _call(self, *words: Any) -> Any:
        """Carry out a command of a script; return the reply as it sees it."""
        self.counts.commands += 1
        name = words[0].upper().decode()
        if name == "TIME":
            seconds, rest_ms = divmod(self.now_ms, 1000)
            return self._table([b"%d" % seconds, b"%d" % (rest_ms * 1000)])
        if name == "INFO":
            return _RUN if words[1] == b"server" else _MEMORY
        reply = self.ask(tuple(_argument(word) for word in words))
        if isinstance(reply, Refusal):
            raise reply
        return self._seen(reply)

    def _seen(self, reply: Any) -> Any:
        if reply is None:
            return False
        if isinstance(reply, list):
            return self._table([self._seen(item) for item in reply])
        return self._table({b"ok": reply}) if isinstance(reply, Status) else reply

    def ask(self, words: tuple[Any, ...]) -> Any:
        """Have redis-server itself carry out a command; return its reply, also if that is a refusal."""
        self._socket.sendall(pack(words))
        first = data = self._socket.recv(1 << 20)
        self._reader.feed(data)
        while (reply := self._reader.gets()) is False:
            data = self._socket.recv(1 << 20)
            assert data, "redis-server has ended"
            self._reader.feed(data)
        if isinstance(reply, Exception):
            return Refusal(str(reply))
        return Status(reply) if first.startswith(b"+") else reply


def _sha1(text: bytes) -> bytes:
    return hashlib.sha1(text, usedforsecurity=False).hexdigest().encode()


def _argument(word: Any) -> bytes:
    """Return an argument of `redis.call` as Redis passes it on."""
    if isinstance(word, bytes):
        return word
    assert isinstance(word, (int, float)), f"Lua redis lib command arguments must be strings or integers: {word!r}"
    return str(word).encode() if isinstance(word, int) else f"{word:.17g}".encode()


def encoded(reply: Any) -> bytes:
    """Return a reply as it is sent."""
    if reply is None or reply is False:
        return b"$-1\r\n"
    if isinstance(reply, Refusal):
        return f"-{reply}\r\n".encode()
    if isinstance(reply, Status):
        return b"+%b\r\n" % reply
    if isinstance(reply, bytes):
        return b"$%d\r\n%b\r\n" % (len(reply), reply)
    if isinstance(reply, (bool, int, float)):
        return b":%d\r\n" % int(reply)
    return b"".join((b"*%d\r\n" % len(reply), *map(encoded, reply)))
