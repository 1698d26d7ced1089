"""Which process leads a journal: what others know of it, and the right to write."""

from __future__ import annotations

from typing import Protocol

import attrs


@attrs.frozen(kw_only=True)
class Leader:
    """
    The process that leads, as others find it.

    Args:
        pid: None if it has not said it yet.
        address: where it answers others, and what they have to know for that; "" for nowhere, None if it has not said
            it yet.
        term: differs from that of each leader before it; what a guest says belongs to one term.
    """

    pid: int | None = None
    address: str | None = attrs.field(default=None, repr=False)
    term: str = ""


class LedElsewhereError(Exception):
    """Another process leads."""

    def __init__(self, leader: Leader) -> None:
        self.leader = leader
        super().__init__(f"led by {leader.pid}")


class DeposedError(Exception):
    """The process leads no more: another one does, or may do so; what was to be written is not."""


class Lead(Protocol):
    """
    The right to write a journal, from its making until `release`.

    Attributes:
        renew_every_s: how often `renew` is to be called, by any thread; None if the lead lasts for as long as the
            process.
    """

    renew_every_s: float | None
    is_heir: bool
    """The process that led before is dead, so that leases of its workers may end at once."""

    def announce(self, address: str) -> None:
        """
        Write where this process answers others, ``""`` for nowhere.

        Raises:
            OSError, BackendError: it cannot be written.
        """

    def renew(self) -> None:
        """
        Extend the lead.

        Raises:
            DeposedError: another process leads.
            BackendError: the store does not answer; the lead lasts until `may_answer` says no.
        """

    def may_answer(self) -> bool:
        """Return whether no other process can lead yet, so that questions may be answered from memory."""

    def release(self) -> None:
        """Leave the lead, so that another process can take it at once; idempotent, and raises nothing."""
