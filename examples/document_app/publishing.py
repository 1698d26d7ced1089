"""
The client of an external web service that publishes documents: it may be busy, and it may refuse.

The client raises `Retry` and `Fail` for these, from inside a call of the handler.
"""

from __future__ import annotations

import os
import urllib.error
import urllib.request
from urllib.parse import quote

from opentelemetry.propagate import inject

from queuehint import Fail, Retry

URL = os.environ.get("PUBLISH_URL", "http://127.0.0.1:8001")
TIMEOUT_S = 10.0
BUSY, REFUSED = 503, 422


def send(doc: str, text: str) -> str:
    """
    Publish a text, and return where it can be read.

    A request without an answer is an `OSError`, after which the job is tried again by its back-off.

    Raises:
        Retry: the service is busy, and says when to come again.
        Fail: it does not take this text, however often it is asked.
    """
    headers = {"Content-Type": "text/plain; charset=utf-8"}
    inject(headers)  # `traceparent`: the service goes on with the trace
    request = urllib.request.Request(f"{URL}/{quote(doc, safe='')}", text.encode(), headers, method="PUT")
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
            return str(answer.headers["Location"])
    except urllib.error.HTTPError as error:
        with error:
            if error.code == BUSY:
                raise Retry(after=float(error.headers["Retry-After"]), reason="the service is busy") from None
            if error.code == REFUSED:
                raise Fail(f"refused: {error.read().decode()}") from None
            raise
