"""The example application: its web process, a worker process and a store, driven as its users would drive it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.postgres_servers import PostgresServer
from tests.prefork import start
from tests.probes import free_port, until
from tests.servers import Server, new_namespace
from tests.support import LIMIT_S

# Not imported here: only the processes need them, and they take a second.
MISSING = [name for name in ("fastapi", "uvicorn", "opentelemetry", "pydantic") if find_spec(name) is None]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.name != "posix", reason="signals"),
    pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}"),
]

TRACE, CALLER = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
OVER_S = 20.0


class Browser:
    """Sends requests to the web application, as parts of one trace."""

    def __init__(self, port: int) -> None:
        self._root = f"http://127.0.0.1:{port}"

    def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        headers = {
            "Content-Type": "application/json",
            "X-User": "ann",
            "traceparent": f"00-{TRACE}-{CALLER}-01",
        }
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._root + path, data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=LIMIT_S) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error)

    @contextlib.contextmanager
    def follow(self, path: str) -> Iterator[Iterator[dict[str, Any]]]:
        """Yield the server-sent events of a stream that is open when the block begins."""
        with urllib.request.urlopen(self._root + path, timeout=OVER_S) as answer:
            assert answer.readline() == b": from now on\n"
            yield (json.loads(line.removeprefix(b"data: ")) for line in answer if line.startswith(b"data: "))

    def is_up(self) -> bool:
        try:
            return self.ask("GET", "/workers")[0] == 200
        except OSError:
            return False

    def enqueue(self, path: str, body: Any = None) -> str:
        status, answer = self.ask("POST", path, body)
        assert status == 202, answer
        job: str = answer["job"]
        return job

    def over(self, job: str) -> dict[str, Any]:
        """Wait until a job is over, and return what is told of it."""
        found: dict[str, Any] = {}

        def look() -> bool:
            found.update(self.ask("GET", f"/jobs/{job}")[1])
            return found["state"] in {"FINISHED", "FAILED", "CANCELED"}

        until(look, OVER_S)
        return found


def spans_of(file: Path) -> list[dict[str, Any]]:
    """Return the spans of all processes, oldest first."""
    spans = [json.loads(line) for line in file.read_text().splitlines()]
    return sorted(spans, key=lambda span: str(span["start_time"]))


@pytest.fixture(params=["redis", "postgres"])
def url(request: pytest.FixtureRequest) -> str:
    server: Server | PostgresServer = request.getfixturevalue(f"{request.param}_server")
    return f"{server.url}?namespace={new_namespace()}"


def test_the_document_app_serves_its_users(url: str, tmp_path: Path) -> None:
    from examples.document_app.publishing_service import Service

    service = Service(0, retry_after=0)
    threading.Thread(target=service.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    port, traces = free_port(), tmp_path / "spans.jsonl"
    environment = {
        **os.environ,
        "QUEUEHINT_URL": url,
        "DOCUMENTS_DB": str(tmp_path / "documents.db"),
        "PUBLISH_URL": f"http://127.0.0.1:{service.server_port}",
        "TRACE_FILE": str(traces),
    }
    web = start("uvicorn", "examples.document_app.web:app", f"--port={port}", "--log-level=warning", env=environment)
    worker = start("queuehint", "worker", "examples.document_app.jobs:sched", "--version-name=2.1", env=environment)
    browser = Browser(port)
    try:
        until(browser.is_up, OVER_S)
        # Edits of two sections, then the publication of the whole: by places alone it comes after them.
        edits = [
            browser.enqueue(f"/documents/doc1/sections/{n % 2}?tag=import-7", {"insert": f"{n} "}) for n in range(4)
        ]
        publication = browser.enqueue("/documents/doc1/publication")
        told = browser.over(publication)
        address = f"http://127.0.0.1:{service.server_port}/doc1"
        assert (told["state"], told["result"]) == ("FINISHED", address)
        assert told["last_error"] == "the service is busy"
        assert told["attempts"] == ["retried", "retried", "finished"]
        assert (told["user"], told["tags"]) == ("ann", ["publication"])
        assert [browser.over(job)["result"] for job in edits] == [2, 2, 4, 4]
        assert browser.ask("GET", "/documents/doc1") == (
            200,
            {"sections": {"0": "0 2 ", "1": "1 3 "}, "published": address},
        )
        # Two bursts of edits are two versions: each is kept when the last editor leaves, ten minutes before its time.
        for number in (1, 2):
            assert browser.ask("POST", "/documents/doc4/leave") == (200, {"version": number - 1})
            browser.enqueue("/documents/doc4/sections/a", {"insert": "x"})
            browser.enqueue("/documents/doc4/sections/b", {"insert": "y"})
            assert browser.ask("POST", "/documents/doc4/leave") == (200, {"version": number})
        # A refusal of the service and a missing document are not retried.
        browser.enqueue("/documents/doc2/sections/a", {"insert": "forbidden"})
        refused, unknown = (browser.over(browser.enqueue(f"/documents/{doc}/publication")) for doc in ("doc2", "doc3"))
        assert (refused["state"], refused["attempts"]) == ("FAILED", ["failed"])
        assert "no such words here" in refused["last_error"]
        assert (unknown["state"], unknown["attempts"]) == ("FAILED", ["failed"])
        assert "'doc3'" in unknown["last_error"]
        # Lists: by tag, and of workers.
        tagged = browser.ask("GET", "/jobs?tag=import-7")[1]
        assert [job["job"] for job in tagged] == edits[::-1]
        [known] = browser.ask("GET", "/workers")[1]
        assert (known["pid"], known["version"], known["slots"]) == (worker.pid, "2.1", 16)
        # Deleted for good, while somebody follows the document.
        with browser.follow("/documents/doc1/events") as events:
            edit = browser.enqueue("/documents/doc1/sections/a", {"insert": "x"})
            assert next(event for event in events if event["kind"] == "finished")["job"] == edit
            status, answer = browser.ask("DELETE", "/documents/doc1")
            assert (status, browser.over(answer["job"])["state"]) == (202, "FINISHED")
            assert next(event for event in events if event["kind"] == "finished")["job"] == answer["job"]
        assert browser.ask("GET", "/documents/doc1")[0] == 404
        assert browser.ask("POST", "/documents/doc1/sections/a", {"insert": "back"})[0] == 410
        assert browser.over(browser.ask("DELETE", "/documents/doc1")[1]["job"])["state"] == "FINISHED"
        # A client error names what is wrong with the request.
        assert browser.ask("GET", "/jobs/unknown")[0] == 404
        assert browser.ask("GET", "/documents/doc3")[0] == 404
        assert browser.ask("POST", f"/documents/{'n' * 300}/publication")[0] == 400
        assert browser.ask("POST", "/documents/doc1/sections/a", {"at": -1})[0] == 422
        for process in (worker, web):
            process.send_signal(signal.SIGTERM)
        assert worker.wait(OVER_S) == 0
        web.wait(OVER_S)
    finally:
        for process in (worker, web):
            if process.poll() is None:
                process.kill()
            process.wait()
        service.shutdown()
        service.server_close()
    # One trace: the request, the job it enqueued, each attempt, and the service that is not ours.
    spans = {str(span["context"]["span_id"]): span for span in spans_of(traces)}
    attempts = [
        span
        for span in spans.values()
        if span["name"] == "process publish" and span["attributes"]["messaging.message.id"] == publication
    ]
    [created] = {span["parent_id"] for span in attempts}
    assert spans[created]["name"] == "create publish"
    request = spans[created]
    while request["parent_id"] in spans:
        request = spans[request["parent_id"]]
    assert (request["kind"], request["name"]) == ("SpanKind.SERVER", "POST /documents/{doc}/publication")
    assert (request["context"]["trace_id"], request["parent_id"]) == (f"0x{TRACE}", f"0x{CALLER}")
    assert [span["attributes"]["queuehint.attempt"] for span in attempts] == [1, 2, 3]
    assert [len(span["links"]) for span in attempts] == [0, 1, 1]
    assert service.traces[:3] == [f"00-{TRACE}-{span['context']['span_id'][2:]}-01" for span in attempts]
