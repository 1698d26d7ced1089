"""
A web service outside of the application, to try it with: busy for the first two requests for each document.

    python -m examples.document_app.publishing_service --port 8001

PUT /{doc}   201 and a Location; 503 and a Retry-After while busy; 422 for a text with the word "forbidden"
"""

from __future__ import annotations

import argparse
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote

BUSY_TIMES = 2


class Service(ThreadingHTTPServer):
    """
    The service; `serve_forever` runs it.

    Args:
        port: 0 for one that is free; it is then in `server_port`.
        retry_after: what a busy service says, in seconds.
    """

    daemon_threads = True

    def __init__(self, port: int, *, retry_after: int = 1) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.retry_after = retry_after
        self.asked: Counter[str] = Counter()
        self.traces: list[str] = []


class Handler(BaseHTTPRequestHandler):
    """Answers one request."""

    def do_PUT(self) -> None:
        service = self.server
        assert isinstance(service, Service)
        doc = unquote(self.path.removeprefix("/"))
        text = self.rfile.read(int(self.headers["Content-Length"])).decode()
        service.traces.append(self.headers.get("traceparent", ""))
        if "forbidden" in text:
            self._answer(422, b"no such words here")
            return
        service.asked[doc] += 1
        if service.asked[doc] <= BUSY_TIMES:
            self._answer(503, b"busy", ("Retry-After", str(service.retry_after)))
            return
        self._answer(201, b"", ("Location", f"http://127.0.0.1:{service.server_port}{self.path}"))

    def log_message(self, format: str, *_: object) -> None:
        """Log nothing."""

    def _answer(self, status: int, body: bytes, *headers: tuple[str, str]) -> None:
        self.send_response(status)
        for name, value in (*headers, ("Content-Length", str(len(body)))):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)


def main() -> None:
    parser = argparse.ArgumentParser(description="A service that publishes documents.")
    parser.add_argument("--port", type=int, default=8001)
    Service(parser.parse_args().port).serve_forever()


if __name__ == "__main__":
    main()
