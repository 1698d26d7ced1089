"""Calls of scripts on a server, as functions and by SHA-1: which one a command runs, and how many were run."""

from __future__ import annotations

import functools
import os
from typing import Any

from queuehint.backends.redis import address
from queuehint.backends.redis.functions.library import library
from queuehint.backends.redis.scripts import constants_of, names, plain_lines, script, source
from tests.servers import Server

ARE_SINGLE = os.environ.get("TESTS_FUNCTIONS") == "never"
"""Whether this run uses functions only in tests that ask for them."""
COMMANDS = ("fcall", "fcall_ro", "evalsha", "eval")
STATE_FORMAT = "\n".join(
    (*plain_lines(source("lib/formats/state_format"), constants_of(source("lib/request/state"))), "")
)
"""Lua functions that read and write the state of a namespace: `unpack_state` and `pack_state`."""


def install() -> None:
    """Have this process run single scripts, if this is such a run."""
    if ARE_SINGLE:
        address.FUNCTIONS = "never"


def mark_of(name: str) -> bytes:
    """Return what is in a request for a script and in no other."""
    return script(name).sha.encode() if ARE_SINGLE else library().function(name).encode() + b"\r"


@functools.cache
def _names() -> dict[str, str]:
    by_sha = {script(name).sha: name for name in names()}
    return by_sha | {library().function(name): name for name in names() if script(name).is_function}


def script_of(command: tuple[Any, ...]) -> str | None:
    """Return the name of the script that a command runs; None if it runs none, or brings a text."""
    return _names().get(command[1]) if command[0].lower() in COMMANDS else None


def scripts_run(server: Server, measure: str = "calls") -> int:
    """Return how many scripts a server has run since its statistics were reset, or with ``usec`` for how long."""
    info: Any = server.client().info("commandstats")
    return sum(int(info.get(f"cmdstat_{name}", {measure: 0})[measure]) for name in COMMANDS)


def load(server: Server) -> None:
    """Have a server know the library."""
    if not server.call("FUNCTION", "LIST", "LIBRARYNAME", library().name):
        server.call("FUNCTION", "LOAD", library().text)


def load_scripts(server: Server) -> None:
    """Have a server know all scripts, in both ways."""
    load(server)
    for name in names():
        server.client().script_load(script(name).text)


def forget_scripts(server: Server) -> None:
    """Have a server forget all scripts, in both ways."""
    server.call("SCRIPT", "FLUSH")
    server.call("FUNCTION", "FLUSH")
