"""The rules on the PostgreSQL backend, of the process that leads and of a guest; all of them in the nightly run."""

from __future__ import annotations

import pytest

from queuehint import Backend, FakeClock
from queuehint.backends.base import BackendOptions
from queuehint.backends.postgres import store
from queuehint.backends.postgres.address import parse_url
from queuehint.backends.postgres.backend import PostgresBackend
from queuehint.backends.postgres.port import door
from queuehint.operations import Peek
from queuehint.testing import contract
from tests.journal_bindings import Leaders, Led
from tests.postgres_servers import shared_postgres
from tests.servers import new_namespace
from tests.support import LIMIT_S


class Tables(Leaders):
    """A namespace for each store."""

    options = ""

    def open(self, clock: FakeClock) -> Backend:
        address = parse_url(f"{shared_postgres().url}?durability=process{self.options}")
        return PostgresBackend(address, BackendOptions(clock=clock, namespace=new_namespace()))


class Guests(Led, Tables):
    """A store beside one that leads."""

    def open(self, clock: FakeClock) -> Backend:
        leader = self.lead(super().open(clock))
        assert isinstance(leader, PostgresBackend)
        return PostgresBackend(leader.address, BackendOptions(clock=clock, namespace=leader.namespace))


class GuestsByMail(Guests):
    """A store beside one that leads, as on another machine."""

    far_options = ""

    def open(self, clock: FakeClock) -> Backend:
        near = super().open(clock)
        assert isinstance(near, PostgresBackend)
        address = parse_url(f"{shared_postgres().url}?durability=process{self.far_options}")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(store, "machine", lambda: "elsewhere")
            return PostgresBackend(address, BackendOptions(clock=clock, namespace=near.namespace))


class GuestsByPolledMail(GuestsByMail):
    far_options = "&pooled=1"


class GuestsByPort(Guests):
    """A store beside one that leads and has a port open, as on another machine."""

    options = "&bind=127.0.0.1:0"

    def open(self, clock: FakeClock) -> Backend:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(store, "machine", iter(["here", "elsewhere"]).__next__)
            patch.setattr(door, "CONNECT_S", LIMIT_S)  # or it would go by mail on a slow machine
            guest = super().open(clock)
            assert isinstance(guest, PostgresBackend)
            guest.call_sync(Peek())
        assert guest.lead_facts()["reached_by"] == "port"
        return guest


class TestPlacesInPostgres(Tables, contract.SerialPath, contract.Ancestors, contract.Root, contract.Waiting): ...


class TestJobsInPostgres(Guests, contract.Leases, contract.Presence, contract.Parts, contract.Events): ...


class TestJobsByMail(GuestsByMail, contract.Leases, contract.Parts, contract.Waiting): ...


class TestJobsByPort(GuestsByPort, contract.Leases, contract.Parts, contract.Waiting): ...


class TestPlacesByPolledMail(GuestsByPolledMail, contract.SerialPath): ...


@pytest.mark.nightly
class TestPostgres(Tables, contract.BackendConformance): ...


@pytest.mark.nightly
class TestPostgresOverTheSocket(Guests, contract.BackendConformance): ...


@pytest.mark.nightly
class TestPostgresByMail(GuestsByMail, contract.BackendConformance): ...


@pytest.mark.nightly
class TestPostgresByPort(GuestsByPort, contract.BackendConformance): ...


@pytest.mark.nightly
class TestPostgresByPolledMail(GuestsByPolledMail, contract.BackendConformance): ...
