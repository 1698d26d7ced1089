"""Certificates and authorities that are renewed while clients run: each next connection reads the files again."""

from __future__ import annotations

import asyncio
import shutil
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

from queuehint.backends.redis import session as redis_session
from queuehint.backends.redis.transport import Send
from queuehint.errors import BackendUnavailableError
from queuehint.operations import Draw
from tests.faults import checks
from tests.servers import Certificate, Server, find_servers, make_certificate

pytestmark = pytest.mark.redis


@attrs.define
class Mutual:
    """A server that wants certificates of its clients, and the files of both, which are replaced together."""

    server: Server
    files: Certificate
    folder: Path

    @property
    def url(self) -> str:
        return f"{self.server.url}&ssl_certfile={self.files.cert}&ssl_keyfile={self.files.key}"

    def renew(self) -> None:
        """Start the server with a certificate of another authority, and give clients one that this trusts."""
        made = make_certificate(self.folder)
        self.server.terminate()
        shutil.copy(made.cert, self.files.cert)
        shutil.copy(made.key, self.files.key)
        self.server.restart()


@pytest.fixture
def mutual(tmp_path: Path) -> Iterator[Mutual]:
    if find_servers()[0].name != "redis":
        pytest.skip("the Valkey of the wheel has no TLS")
    files = make_certificate(tmp_path)
    with Server(certificate=files, tls_auth_clients="yes") as server:
        yield Mutual(server, files, tmp_path)


async def test_renewed_certificates_are_read_at_the_next_connection(mutual: Mutual, namespace: str) -> None:
    store = checks.open_store(mutual.url, namespace)
    backend: Any = store

    async def call_each_way() -> list[int]:
        """Draw numbers by a task and by a thread, and wait once; return the numbers."""
        drawn = [(await store.call(Draw(1))).first, (await asyncio.to_thread(store.call_sync, Draw(1))).first]
        await backend._loop()._waits.ask(Send(("BZPOPMIN", "{x}:nothing", "0.01")))
        return drawn

    assert await call_each_way() == [1, 2]
    await asyncio.to_thread(mutual.renew)
    assert await call_each_way() == [1, 2], "the server came back empty"
    await store.close()


async def test_certificate_files_are_read_outside_the_loop(
    mutual: Mutual, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = checks.open_store(mutual.url, namespace)
    await store.call(Draw(1))
    readers = set()
    load = ssl.SSLContext.load_cert_chain

    def load_chain(context: ssl.SSLContext, *args: Any, **kwargs: Any) -> None:
        readers.add(threading.current_thread())
        load(context, *args, **kwargs)

    monkeypatch.setattr(ssl.SSLContext, "load_cert_chain", load_chain)
    await asyncio.to_thread(mutual.server.restart)
    await store.call(Draw(1))
    assert readers
    assert threading.main_thread() not in readers
    await store.close()


async def test_a_certificate_file_missing_for_a_moment_is_waited_for(
    mutual: Mutual, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = checks.open_store(mutual.url, namespace)
    cert = mutual.files.cert.read_bytes()
    mutual.files.cert.unlink()
    calling = asyncio.create_task(store.call(Draw(1)))
    await asyncio.sleep(0.1)
    assert not calling.done()
    mutual.files.cert.write_bytes(cert)
    assert (await calling).first == 1
    await store.close()
    monkeypatch.setattr(redis_session, "RETRY_S", 0.05)
    mutual.files.cert.unlink()
    store = checks.open_store(mutual.url, namespace)
    for call in (store.call(Draw(1)), asyncio.to_thread(store.call_sync, Draw(1))):
        with pytest.raises(BackendUnavailableError):
            await call
    await store.close()
