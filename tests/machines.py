"""
Machines that are namespaces of the network: each has an address of its own, and a cable that can be cut.

A cut is silent, as behind a firewall that drops packets: each end has a wrong hardware address for the other one, so
that nobody receives what it sends, and no error tells of it. The server of a test is on the machine of the tests.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from contextlib import suppress
from typing import Self

import attrs

_WRONG = "02:00:00:00:00:99"
_PROBE = 250


def may_cable() -> bool:
    """Return whether a process of this user can make machines."""
    if os.getuid() != 0 or shutil.which("ip") is None:
        return False
    try:
        with Machine(_PROBE):
            return True
    except subprocess.CalledProcessError:  # some kernels have namespaces and no cables
        return False


@attrs.frozen
class Machine:
    """
    A namespace with a cable to the machine of the tests.

    Args:
        number: from 1 to 250.
    """

    number: int

    @property
    def server(self) -> str:
        """The address of the machine of the tests, at the other end of the cable."""
        return f"10.213.{self.number}.1"

    @property
    def address(self) -> str:
        """That of this one."""
        return f"10.213.{self.number}.2"

    @property
    def command(self) -> list[str]:
        """What begins a command that runs there."""
        return ["ip", "netns", "exec", _name(self.number)]

    def __enter__(self) -> Self:
        there, cable = _name(self.number), self._cable
        with suppress(subprocess.CalledProcessError):
            _ip("netns", "del", there)
        _ip("netns", "add", there)
        try:
            _ip("link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", there)
            _ip("addr", "add", f"{self.server}/24", "dev", cable)
            _ip("link", "set", cable, "up")
            _ip("-n", there, "addr", "add", f"{self.address}/24", "dev", "eth0")
            _ip("-n", there, "link", "set", "eth0", "up")
            _ip("-n", there, "link", "set", "lo", "up")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        with suppress(subprocess.CalledProcessError):
            _ip("link", "del", self._cable)  # with the namespace it ends a moment later, and keeps its name until then
        _ip("netns", "del", _name(self.number))

    @property
    def _cable(self) -> str:
        return f"qh{os.getpid()}-{self.number}"

    def cut(self) -> None:
        """Have nothing arrive at either end any more."""
        _ip("neigh", "replace", self.address, "lladdr", _WRONG, "dev", self._cable, "nud", "permanent")
        here = ("neigh", "replace", self.server, "lladdr", _WRONG, "dev", "eth0", "nud", "permanent")
        _ip("-n", _name(self.number), *here)

    def heal(self) -> None:
        """Have everything arrive again."""
        _ip("neigh", "del", self.address, "dev", self._cable)
        _ip("-n", _name(self.number), "neigh", "del", self.server, "dev", "eth0")


def _name(number: int) -> str:
    return f"queuehint-{os.getpid()}-{number}"


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)
