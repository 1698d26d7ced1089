"""
How a guest begins: who it is, and which releases understand one another.

What both say depends on the fields of operations, replies and the values in them. So the *wire* of a release is the
number of its frames and a digest of all these fields: a guest of another release may ask for everything if its wire is
equal, and for nothing else. The greeting itself never changes but by further words at its end. Whatever its wire, a
guest may ask for the lead: then the leader leaves a snapshot, if the guest reads its layout.
"""

from __future__ import annotations

import re
import sys
from enum import Enum
from functools import cache
from typing import TYPE_CHECKING, Any, Final
from zlib import crc32

import attrs

from queuehint import errors
from queuehint.backends.base import Interest, release
from queuehint.backends.journal.doctor import Examination
from queuehint.backends.journal.guests.messages import AIMS
from queuehint.backends.journal.snapshots.snapshot import SCHEMA
from queuehint.operations.wire import OPERATIONS, Await, PlaceAnew

if TYPE_CHECKING:
    from collections.abc import Iterator

FRAMES: Final = 2
"""The number of the frames, and of how values are written in them."""
READ: Final = frozenset({SCHEMA})
"""The layouts of snapshots that this release reads."""
_WORDS: Final = 6
_SHOWN: Final = 64
_HELLO_BYTES: Final = 1_000
_NAME: Final = re.compile(r"[A-Z]\w*")


@cache
def wire() -> str:
    """Return what has to be equal for two releases to understand one another."""
    said = sorted([f"{kind.__qualname__} {facts}" for kind, facts in _facts()])
    return f"{FRAMES}-{crc32(repr(said).encode()):08x}"


def _facts() -> Iterator[tuple[type[Any], str]]:
    """Yield each class that is written, with its fields as its source has them, or its members."""
    todo: list[Any] = [*OPERATIONS, *[each.reply_class for each in OPERATIONS], Await, PlaceAnew, Interest, Examination]
    seen: set[Any] = set()
    while todo:
        kind = todo.pop()
        if kind in seen or not isinstance(kind, type):
            continue
        seen.add(kind)
        if issubclass(kind, Enum):
            yield kind, repr([member.value for member in kind])
        elif attrs.has(kind):
            fields = repr([(field.name, field.type) for field in attrs.fields(kind) if field.init])
            known = vars(sys.modules[kind.__module__])
            todo += [known.get(word) for word in _NAME.findall(fields)]
            yield kind, fields


@attrs.frozen(kw_only=True)
class Hello:
    """
    A guest, as it says who it is.

    Args:
        release: its version of queuehint.
        wire: as of `wire`.
        reads: the layouts of snapshots that it reads.
        aim: what its process is for.
    """

    release: str
    wire: str
    reads: frozenset[int]
    aim: int

    def check(self) -> None:
        """
        Check that this process understands the guest.

        Raises:
            BackendDeniedError: it does not.
        """
        if self.wire != wire():
            raise errors.BackendDeniedError(
                f"the process that leads is of release {release()} (wire {wire()}) and cannot be asked by release "
                f"{self.release} (wire {self.wire}): use one release, or have the other one lead"
            )


def hello(namespace: str, aim: int) -> bytes:
    """Return how a guest begins."""
    reads = ",".join(map(str, sorted(READ)))
    return f"queuehint {release()} {namespace} {aim} {wire()} {reads}".encode()


def read_hello(body: bytes, namespace: str) -> Hello:
    """
    Return who a guest is; a later release may say more of itself.

    Raises:
        BackendDeniedError: it is of another namespace, or that is no beginning.
    """
    said = body[:_HELLO_BYTES].decode("ascii", "replace").split(" ")
    try:
        mark, its_release, its_namespace, aim, its_wire, reads = said[:_WORDS]
        if mark != "queuehint" or aim not in AIMS or len(its_release) > _SHOWN or len(its_wire) > _SHOWN:
            raise ValueError(mark)
        layouts = frozenset(map(int, reads.split(",")))
    except ValueError:
        raise errors.BackendDeniedError("that is not a request") from None
    if its_namespace != namespace:
        raise errors.BackendDeniedError(f"the jobs are those of namespace {namespace!r}, not {its_namespace!r}")
    return Hello(release=its_release, wire=its_wire, reads=layouts, aim=AIMS[aim])
