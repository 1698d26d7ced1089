"""JSON of values: hidden and long payloads, lists that are cut, and the description of it all."""

from __future__ import annotations

import json
import sys
from importlib import reload
from typing import Any

import pytest

import queuehint.web
from queuehint import Backoff, JobSpec, MissingExtraError, Scheduler
from queuehint.errors import InvalidJobTypeError
from queuehint.values.event import EventFilter
from queuehint.values.limit import Limit
from queuehint.values.policy import Policy
from queuehint.web import Access, make_app
from queuehint.web.board import ROUTES
from queuehint.web.forms import ITEMS_MAX, SHOWN_BYTES_MAX, read, written
from queuehint.web.openapi import described
from tests.web_client import WebClient


def test_payload_is_a_value_a_text_or_nothing() -> None:
    assert written(b"") is None
    assert written(b'{"n":1}') == {"bytes": 7, "value": {"n": 1}}
    assert written(b"\xff{") == {"bytes": 2, "text": "\ufffd{"}
    long = b'"' + b"x" * SHOWN_BYTES_MAX + b'"'
    assert written(long) == {"bytes": len(long), "text": long[:SHOWN_BYTES_MAX].decode()}


def test_list_is_cut() -> None:
    assert len(written(tuple(range(ITEMS_MAX + 1)))) == ITEMS_MAX


def test_value_that_is_written_is_read_again() -> None:
    values = [
        Policy(max_attempts=3, backoff=Backoff.of([1, 2]), timeout_ms=5),
        Limit(path=("a", "b"), most=2, rate=(3, 1000), burst=5),
        EventFilter(kinds=(), path=(), user="ann"),
    ]
    for value in values:
        assert read(type(value), json.loads(json.dumps(written(value)))) == value


@pytest.mark.parametrize(
    "cls, given, named",
    [
        (Limit, {"rate": [1, 2, 3]}, "body.rate must be a list of 2, got 3"),
        (EventFilter, {"kinds": "lost"}, "body.kinds must be a list, got str"),
        (EventFilter, {"kinds": [1]}, r"body.kinds\[0\] must be one of enqueued"),
        (JobSpec, {"id": "a", "task": "b", "policy": 1}, "body.policy must be an object, got int"),
        (JobSpec, {"id": "a"}, "body.task is missing"),
    ],
)
def test_value_of_another_form_is_refused_by_name(cls: type[Any], given: Any, named: str) -> None:
    with pytest.raises(InvalidJobTypeError, match=named):
        read(cls, given)


def refs(schema: Any) -> set[str]:
    if isinstance(schema, dict):
        own = {schema["$ref"].rpartition("/")[2]} if "$ref" in schema else set()
        return own.union(*map(refs, schema.values()))
    return set().union(*map(refs, schema)) if isinstance(schema, list) else set()


def test_description_is_whole() -> None:
    found = described(ROUTES, "/api/v1")
    assert refs(found) == found["components"]["schemas"].keys()
    assert len([row for path in found["paths"].values() for row in path]) == len(ROUTES)
    spec = found["components"]["schemas"]["NewJobSpec"]
    assert spec["required"] == ["id", "task"]
    assert spec["properties"]["id"] == {"type": "string", "minLength": 1, "maxLength": 128}
    assert spec["properties"]["priority"]["enum"] == [1, 2, 3, 4, 5, 9]
    assert not {"parent", "identity", "presence_ms"} & spec["properties"].keys()
    record = found["components"]["schemas"]["JobRecord"]
    assert "token" not in record["properties"]
    assert {"number", "seq"} == record["properties"].keys() - set(record["required"])


async def test_application_handles_lifespan_events_and_own_errors() -> None:
    sched = Scheduler()
    app = make_app(sched, auth=lambda _: Access())
    said: list[Any] = []
    todo = iter([{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}])

    async def receive() -> Any:
        return next(todo)

    async def send(message: Any) -> None:
        said.append(message["type"])

    await app({"type": "lifespan"}, receive, send)
    assert said == ["lifespan.startup.complete", "lifespan.shutdown.complete"]

    async def broken(_: object) -> Any:
        raise ZeroDivisionError("a secret")

    sched.backend.call = broken  # type: ignore[method-assign,assignment]
    answers: list[Any] = []
    board = WebClient(app, sent=answers)
    with pytest.raises(ZeroDivisionError):
        await board.get("/api/v1/stats")
    assert answers[0]["status"] == 500
    assert b"a secret" not in answers[1]["body"]


def test_package_without_its_extra_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "starlette", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'queuehint\[web\]'"):
        reload(queuehint.web)
