"""The target of a connection, its greeting, and its encryption."""

from __future__ import annotations

import ssl
from typing import Any, Final

import attrs
from redis import exceptions as driver

from queuehint.backends.redis.transport import NotSent

CONNECT_TIMEOUT_S: Final = 3.0


@attrs.frozen
class Endpoint:
    """
    A server to connect to, and the greeting of a connection.

    Args:
        path: of a Unix socket, in place of host and port.
        tls: None for plain text.
        greeting: requests that have to succeed before any other is sent, passwords among them.
    """

    host: str
    port: int
    path: str | None = None
    tls: ssl.SSLContext | None = None
    greeting: tuple[tuple[str, ...], ...] = attrs.field(default=(), repr=False)


def greeting_of(options: dict[str, Any]) -> tuple[tuple[str, ...], ...]:
    """Return the greeting of a new connection, from the options of an address."""
    user, password, database = options.get("username"), options.get("password"), options.get("db", 0)
    greeting: list[tuple[str, ...]] = []
    if user or password:
        greeting.append(("AUTH", *([user] if user else []), password or ""))
    if database:
        greeting.append(("SELECT", str(database)))
    return tuple(greeting)


def read_tls(options: dict[str, Any]) -> ssl.SSLContext:
    """
    Return the TLS context of one connection, from the files in the options of an address.

    A certificate or an authority that was renewed counts from the next connection on.

    Raises:
        NotSent: a file is not there, or is no certificate, as for a moment while it is replaced.
    """
    context = ssl.create_default_context()
    if options.get("ssl_cert_reqs") == "none":
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    else:
        context.check_hostname = options.get("ssl_check_hostname", True)
    cert, key, authorities = (options.get(f"ssl_{name}") for name in ("certfile", "keyfile", "ca_certs"))
    try:
        if cert or key:
            context.load_cert_chain(cert, key)  # type: ignore[arg-type]
        if authorities:
            context.load_verify_locations(authorities)
    except OSError as error:
        raise NotSent from unreadable(error)
    return context


def unreadable(error: OSError) -> driver.ConnectionError:
    """Return why nothing can be encrypted."""
    return driver.ConnectionError(f"the TLS files cannot be read: {error}")
