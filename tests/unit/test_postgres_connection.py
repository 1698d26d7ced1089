"""How long a server that does not answer is tried, by a clock of the test's own."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from queuehint.backends.postgres.address import parse_url
from queuehint.backends.postgres.journal import connection as connection_module
from queuehint.backends.postgres.journal.connection import LATER_S, PATIENCE_S, Connection
from queuehint.backends.postgres.sessions.failures import LostError
from queuehint.backends.postgres.sessions.session import ANSWER_S, CANCEL_S, CONNECT_S, statement
from queuehint.errors import BackendError, BackendUnavailableError

NOTHING = statement("nothing", "SELECT")
SILENT_S = ANSWER_S + 2 * CANCEL_S
"""After so long a statement that is not answered is given up."""


class Network:
    """A clock, and sessions of a server that is behind it."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.is_silent = False
        self.tries = 0

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, s: float) -> None:
        self.now_s += s

    def session(self, _address: Any) -> Any:
        self.tries += 1
        if self.is_silent:
            self.now_s += CONNECT_S
            raise BackendUnavailableError("connection timeout expired")
        return SimpleNamespace(run=self.run, is_pooled=False, judgement=BackendUnavailableError)

    def run(self, *_: Any) -> list[Any]:
        if self.is_silent:
            self.now_s += SILENT_S
            raise LostError("the server does not answer", is_sent=True)
        return []

    def asked(self, connection: Connection) -> float:
        """Return how long it takes until a question is given up."""
        began_s = self.now_s
        with pytest.raises(BackendError):
            connection.ask(NOTHING)
        return self.now_s - began_s


@pytest.fixture
def network(monkeypatch: pytest.MonkeyPatch) -> Network:
    network = Network()
    monkeypatch.setattr(connection_module, "time", network)
    monkeypatch.setattr(connection_module, "Session", network.session)
    return network


def test_patience_counts_from_the_first_unanswered_statement(network: Network) -> None:
    connection = Connection(parse_url("postgresql://db/app"))
    network.now_s += 1000
    network.is_silent = True
    assert PATIENCE_S <= network.asked(connection) <= PATIENCE_S + CONNECT_S + 1


def test_later_call_waits_shortly_for_a_silent_server(network: Network) -> None:
    connection = Connection(parse_url("postgresql://db/app"))
    network.is_silent = True
    waited_s = network.asked(connection)
    for _ in range(3):
        before, connection._session = network.tries, SimpleNamespace(run=lost)  # type: ignore[assignment]
        later_s = network.asked(connection)
        assert network.tries > before, "it is tried"
        assert waited_s + later_s <= PATIENCE_S + LATER_S + 2 * CONNECT_S + 1


def test_server_that_answered_is_waited_for_again(network: Network) -> None:
    connection = Connection(parse_url("postgresql://db/app"))
    for _ in range(2):
        network.is_silent = True
        assert network.asked(connection) >= PATIENCE_S
        network.is_silent = False
        assert connection.ask(NOTHING) == []


def test_reader_waits_no_longer_for_being_late(network: Network) -> None:
    connection = Connection(parse_url("postgresql://db/app"), patience_s=1)
    network.is_silent = True
    for _ in range(2):
        assert network.asked(connection) <= SILENT_S + 2 * CONNECT_S


def lost(*_: Any) -> Any:
    raise LostError("the connection has ended", is_sent=False)
