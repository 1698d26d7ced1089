"""
Opening the port of a leader.

A process leads whether its port can be opened or not: guests reach it by mail meanwhile. What is wrong is logged as an
error, and tried again until it can be opened: the port may be taken by the leader before, which stands still.
"""

from __future__ import annotations

import logging
import secrets
import threading
from typing import TYPE_CHECKING, Final

from queuehint.backends.journal.lead.leadership import DeposedError
from queuehint.backends.postgres.port.certificate import certificate_for
from queuehint.backends.postgres.port.entrance import SECRET_BYTES, Entrance, listen_at
from queuehint.backends.postgres.port.offer import Offer
from queuehint.errors import BackendError, MissingExtraError

if TYPE_CHECKING:
    from collections.abc import Callable

    from queuehint.backends.journal.guests.server import Server
    from queuehint.backends.postgres.address import PortOptions

AGAIN_S: Final = 2.0
"""How soon it is tried again to open the port."""

logger = logging.getLogger("queuehint.journal")


class Opening:
    """
    The port of a leader, from its making until `end`.

    Args:
        options: None for no port.
        server: of the guests.
        name: of the store.

    Attributes:
        where: the host and the port at which guests reach it; None while it is not open.
    """

    def __init__(self, options: PortOptions | None, server: Server, name: str) -> None:
        self.where: str | None = None
        self._options = options
        self._server = server
        self._name = name
        self._is_said = False
        self._over = threading.Event()

    def opened(self) -> Offer | None:
        """Open the port; return what is to be announced, None if it cannot be opened, or there is to be none."""
        options = self._options
        if options is None:
            return None
        try:
            certificate = certificate_for(options)
            listener = listen_at(*options.bind)
        except (OSError, MissingExtraError) as error:
            self._say_closed(options, error)
            return None
        secret = secrets.token_bytes(SECRET_BYTES)
        entrance = Entrance(listener, certificate, secret)
        host, port = options.advertise or (options.bind[0], entrance.port)
        offer = Offer(host=host, port=port, fingerprint=certificate.fingerprint, secret=secret.hex())
        self._server.open(entrance)
        self.where = offer.where
        extra = {"event": "journal.port_open", "path": self._name, "port": offer.where}
        logger.info("guests are answered at a port", extra=extra)
        return offer

    def _say_closed(self, options: PortOptions, error: Exception) -> None:
        if self._is_said:
            return
        self._is_said = True
        where = f"{options.bind[0]}:{options.bind[1]}"
        extra = {"event": "journal.port_closed", "path": self._name, "port": where, "error": str(error)}
        logger.error("bind=%s cannot be opened, other machines reach this one by mail: %s", where, error, extra=extra)

    def go_on(self, announce: Callable[[Offer], None]) -> None:
        """Try to open the port until that is done, if it is not."""
        if self._options is not None and self.where is None:
            threading.Thread(target=self._try, args=(announce,), daemon=True, name="queuehint-port").start()

    def _try(self, announce: Callable[[Offer], None]) -> None:
        offer: Offer | None = None
        while not self._over.wait(AGAIN_S):
            try:
                offer = offer or self.opened()
                if offer is not None:
                    announce(offer)
                    return
            except DeposedError:
                return
            except BackendError as error:
                logger.debug("the port was not announced: %s", error)

    def end(self) -> None:
        """Try no more; the server closes what is open."""
        self._over.set()
