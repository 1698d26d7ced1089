"""TLS without I/O, what a row says of a port, and when a port is cut."""

from __future__ import annotations

import io
import os
import ssl
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from queuehint.backends.base import open_backend
from queuehint.backends.postgres.address import PortOptions
from queuehint.backends.postgres.port import certificate as certificate_module
from queuehint.backends.postgres.port import door as door_module
from queuehint.backends.postgres.port.certificate import Certificate, certificate_for, check_can_make
from queuehint.backends.postgres.port.door import CutError, Cuts, PortDoor
from queuehint.backends.postgres.port.offer import Offer, read_offer
from queuehint.backends.postgres.port.tunnel import Tunnel, guest_context
from queuehint.errors import MissingExtraError

pytest.importorskip("cryptography")
OPTIONS = PortOptions(bind=("127.0.0.1", 0))


@pytest.fixture(scope="module")
def certificate() -> Certificate:
    return certificate_for(OPTIONS)


def shaken(certificate: Certificate) -> tuple[Tunnel, Tunnel]:
    """Return both ends of a connection, that of the guest first."""
    guest, leader = Tunnel(guest_context(), is_leader=False), Tunnel(certificate.context, is_leader=True)
    data = b""
    while not guest.shake(data):
        leader.shake(guest.to_send())
        data = leader.to_send()
    assert leader.shake(guest.to_send())
    return guest, leader


def test_bytes_arrive_unchanged_in_pieces_of_any_size(certificate: Certificate) -> None:
    guest, leader = shaken(certificate)
    for size in (0, 1, 16_384, 16_385, 300_000):
        data = os.urandom(size)
        for sender, receiver in ((guest, leader), (leader, guest)):
            sealed = sender.sealed(data)
            assert data[:64] not in sealed or size < 2
            cut = len(sealed) // 3
            assert receiver.opened(sealed[:cut]) + receiver.opened(sealed[cut:]) == data


def test_certificate_is_verified_by_fingerprint_and_nothing_is_resumed(certificate: Certificate) -> None:
    guest, leader = shaken(certificate)
    assert guest.fingerprint() == certificate.fingerprint
    assert guest._object.version() == "TLSv1.3"
    assert leader.to_send() == b""  # no ticket


def test_certificate_is_new_each_time_and_its_key_never_stored(
    certificate: Certificate, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[bytes] = []
    load = certificate_module._loaded

    def loaded(der: bytes, file: str, *more: Any) -> Certificate:
        written.append(Path(file).read_bytes())
        return load(der, file, *more)

    monkeypatch.setattr(certificate_module, "_loaded", loaded)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert certificate_for(OPTIONS).fingerprint != certificate.fingerprint
    assert b"BEGIN ENCRYPTED PRIVATE KEY" in written[0]
    assert b"BEGIN PRIVATE KEY" not in written[0]
    assert not [*tmp_path.iterdir()]


def test_altered_bytes_are_never_accepted_as_a_frame(certificate: Certificate) -> None:
    guest, leader = shaken(certificate)
    sealed = guest.sealed(b"x" * 100)
    with pytest.raises(ValueError, match=r"(?i)mac|decrypt"):
        leader.opened(sealed[:-1] + bytes([sealed[-1] ^ 1]))
    for no_tls in (b"GET / HTTP/1.1\r\n\r\n", bytes(300)):
        with pytest.raises(ValueError, match=r"(?i)request|version|record|length"):
            Tunnel(certificate.context, is_leader=True).shake(no_tls)


def test_an_end_of_the_other_end_is_the_end(certificate: Certificate) -> None:
    guest, leader = shaken(certificate)
    sealed = guest.sealed(b"last")
    with pytest.raises(ssl.SSLWantReadError):
        guest._object.unwrap()
    assert leader.opened(sealed + guest.to_send()) == b"last"


def test_missing_extra_is_named_before_any_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography.x509", None)
    with pytest.raises(MissingExtraError, match=r"queuehint\[crypto\]"):
        check_can_make(OPTIONS)
    with pytest.raises(MissingExtraError):
        certificate_for(OPTIONS)
    check_can_make(PortOptions(bind=("h", 1), certificate="c", key="k"))
    url = "postgresql://nobody@127.0.0.1:1/x?bind=127.0.0.1:0"
    with pytest.raises(MissingExtraError):
        open_backend(url)
    open_backend(f"{url}&lead=no").close_sync()


def test_the_secret_of_an_offer_is_not_shown() -> None:
    offer = Offer(host="::1", port=1, fingerprint="0" * 64, secret="5ec4e7" + "0" * 58)
    assert "5ec4e7" not in repr(offer)
    assert read_offer(offer.where, offer.fingerprint, offer.secret) == offer
    assert read_offer("h:1", "0" * 63, "0" * 64) is None


# --- which port is cut ---


class Port(PortDoor):
    """A port that can be used, or not."""

    def __init__(self) -> None:
        super().__init__(Offer(host="h", port=1, fingerprint="0" * 64, secret="0" * 64))
        self.tries = 0
        self.is_cut = True
        self.may_end = threading.Event()

    def connect(self, _timeout_s: float) -> Any:
        self.tries += 1
        assert self.may_end.wait(60)
        if self.is_cut:
            raise CutError("no")
        return io.BytesIO(), None


def looked(cuts: Cuts, port: Port) -> None:
    """Look until the thread that tries the port has ended."""
    before = port.tries
    while port.tries == before or cuts._is_trying:
        cuts.look("1.a", port)


def test_cut_port_is_retried_by_one_thread_with_backoff(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    cuts, port = Cuts(), Port()
    assert cuts.look("1.a", port)
    cuts.cut("1.a", "h:1", CutError("no"))
    assert not cuts.look("1.a", port)
    assert port.tries == 0
    now_s += door_module.AGAIN_S
    for _ in range(5):
        assert not cuts.look("1.a", port)
    port.may_end.set()
    while cuts._is_trying:
        pass
    assert port.tries == 1
    for again_s in (2.0, 4.0, 8.0, 16.0, 30.0, 30.0):
        now_s += again_s - 0.1
        assert not cuts.look("1.a", port)
        assert not cuts._is_trying
        now_s += 0.1
        looked(cuts, port)
    port.is_cut = False
    now_s += 30.0
    looked(cuts, port)
    assert cuts.look("1.a", port)
    assert not cuts.is_cut("1.a")


def test_cut_port_without_a_thread_is_retried_at_next_look(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    offer = Offer(host="localhost", port=1, fingerprint="0" * 64, secret="0" * 64)
    cuts, port = Cuts(), Port()
    port.may_end.set()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", fail)
        with pytest.raises(CutError, match="can't start new thread") as found:
            PortDoor(offer).connect(5)
        cuts.cut("1.a", "h:1", found.value)
        cuts._again_s = 0
        assert not cuts.look("1.a", port)
    assert not cuts._is_trying
    looked(cuts, port)
    assert port.tries == 1


def test_cut_applies_to_the_port_of_one_leader() -> None:
    cuts = Cuts()
    cuts.cut("1.a", "h:1", CutError("no"))
    assert (cuts.is_cut("1.a"), cuts.is_cut("2.b")) == (True, False)
    cuts.cut("2.b", "h:2", CutError("no"))
    assert (cuts.is_cut("1.a"), cuts.is_cut("2.b")) == (False, True)
    assert cuts.look("1.a", Port())


def test_a_cut_is_said_once_and_a_foreign_certificate_too(caplog: pytest.LogCaptureFixture) -> None:
    cuts = Cuts()
    for error in (
        CutError("no"),
        CutError("no"),
        CutError("other", is_foreign=True),
        CutError("other", is_foreign=True),
    ):
        cuts.cut("1.a", "h:1", error)
    assert [each.levelname for each in caplog.records] == ["WARNING", "ERROR"]
