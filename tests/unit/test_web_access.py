"""Who may use a board: closed by default, hosts, rights, headers."""

from __future__ import annotations

from base64 import b64encode
from typing import Any

import pytest

from queuehint import Scheduler
from queuehint.errors import InvalidHintTypeError, InvalidJobError, InvalidJobTypeError
from queuehint.web import Access, BasicAuth, beside, make_app
from queuehint.web.app import HEADERS
from tests.web_client import WebClient


def board(access: Access | None = None, **options: Any) -> WebClient:
    return WebClient(make_app(Scheduler(), auth=lambda _: access, **options))


async def test_board_without_auth_is_closed() -> None:
    answer = await WebClient(make_app(Scheduler())).get("/")
    assert answer.status == 403
    assert "auth=lambda request: Access(" in answer.json["detail"]


async def test_health_needs_no_auth() -> None:
    client = WebClient(make_app(Scheduler()))
    assert (await client.get("/healthz")).text == "ok\n"
    assert "Disallow: /" in (await client.get("/robots.txt")).text


@pytest.mark.slow
async def test_every_answer_has_the_headers_of_security() -> None:
    for target in ("/", "/healthz", "/api/v1/stats", "/api/v1/jobs/gone", "/nothing", "/static/nothing"):
        answer = await board(Access()).get(target)
        assert HEADERS.items() <= {name.title(): value for name, value in answer.headers.items()}.items(), target


async def test_auth_that_returns_none_refuses() -> None:
    answer = await board(None).get("/")
    assert (answer.status, answer.json["error"]) == (403, "forbidden")


async def test_asynchronous_auth_is_awaited() -> None:
    async def auth(_: object) -> Access:
        return Access()

    assert (await WebClient(make_app(Scheduler(), auth=auth)).get("/")).status == 200


async def test_auth_that_returns_something_else_is_refused() -> None:
    client = WebClient(make_app(Scheduler(), auth=lambda _: True))  # type: ignore[arg-type,return-value]
    assert (await client.get("/")).json["detail"] == "auth must return Access or None, got bool: True"


async def test_access_without_read_sees_nothing() -> None:
    answer = await board(Access(read=False, write=True)).get("/api/v1/stats")
    assert (answer.status, answer.json["error"]) == (403, "forbidden")


async def test_arguments_are_refused_without_the_right() -> None:
    answer = await board(Access()).get("/api/v1/jobs/a?arguments=1")
    assert (answer.status, answer.json["detail"]) == (403, "you may not see arguments here")


@pytest.mark.parametrize(
    "given, status",
    [
        (None, 401),
        (b"ann:secret", 200),
        (b"ann:other", 401),
        (b"ben:secret", 401),
        (b"", 401),
    ],
)
async def test_basic_auth_asks_for_user_and_password(given: bytes | None, status: int) -> None:
    client = WebClient(make_app(Scheduler(), auth=BasicAuth("ann", "secret", Access())))
    headers = {} if given is None else {"authorization": f"Basic {b64encode(given).decode()}"}
    answer = await client.get("/", **headers)
    assert answer.status == status
    assert (answer.headers.get("www-authenticate") is None) == (status == 200)


async def test_basic_auth_with_malformed_base64_is_refused() -> None:
    client = WebClient(make_app(Scheduler(), auth=BasicAuth("ann", "secret", Access())))
    assert (await client.get("/", authorization="Basic é")).status == 401
    assert (await client.get("/", authorization=f"Bearer {b64encode(b'ann:secret').decode()}")).status == 401


@pytest.mark.parametrize(
    "host, status",
    [
        ("localhost:8400", 200),
        ("LOCALHOST", 200),
        ("[::1]:8400", 200),
        ("[0:0:0:0:0:0:0:1]", 200),
        ("board.example.com", 200),
        ("evil.test", 421),
        ("", 421),
        ("[", 421),
    ],
)
async def test_board_of_some_hosts_refuses_others(host: str, status: int) -> None:
    client = board(Access(), hosts=["localhost", "[0:0::1]", "Board.Example.com"])
    assert (await client.get("/", host=host)).status == status


async def test_several_namespaces_are_below_their_names() -> None:
    schedulers = [Scheduler(namespace="one"), Scheduler(namespace="two")]
    client = WebClient(make_app(*schedulers, auth=lambda _: Access()))
    assert 'href="/two/"' in (await client.get("/")).text
    assert (await client.get("/two/api/v1/stats")).status == 200
    assert (await client.get("/api/v1/stats")).status == 404


async def test_links_and_routes_are_below_the_root_of_a_mount() -> None:
    client = WebClient(make_app(Scheduler(), auth=lambda _: Access()), root="/queue hint")
    assert 'href="/queue%20hint/jobs"' in (await client.get("/")).text
    assert (await client.get("/api/v1/stats")).status == 200


@pytest.mark.parametrize("root", ["", "/site"])
async def test_board_is_beside_an_application_that_mounts_none(root: str) -> None:
    async def app(scope: Any, _receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": f"other {scope['path']}".encode()})

    client = WebClient(beside(app, make_app(Scheduler(), auth=lambda _: Access()), at="/the board"), root=root)
    for other in ("/", "/the%20boards", "/api/v1/stats"):
        assert (await client.get(other)).text.startswith("other "), other
    assert (await client.get("/the%20board/api/v1/jobs/a%2Fb")).json["facts"] == {"job_id": "a/b"}
    assert f'href="{root}/the%20board/' in (await client.get("/the%20board/")).text
    redirect = await client.get("/the%20board")
    assert (redirect.status, redirect.headers["location"]) == (307, f"http://board{root}/the%20board/")


def test_board_beside_an_application_needs_a_path() -> None:
    for at in ("queuehint", "/queuehint/", "", "/"):
        with pytest.raises(InvalidJobError, match="at must begin with a slash"):
            beside(make_app(Scheduler()), make_app(Scheduler()), at=at)


async def test_label_is_in_the_title() -> None:
    assert "production" in (await board(Access(), label="production", colour="red").get("/")).text


@pytest.mark.parametrize(
    "schedulers, options, named",
    [
        ([], {}, "requires a scheduler"),
        ([Scheduler(), Scheduler()], {}, "two of them have the namespace 'default'"),
        (["redis://"], {}, "schedulers must be"),
        ([Scheduler()], {"auth": 1}, "auth must be callable"),
        ([Scheduler()], {"read_only": 1}, "read_only must be"),
        ([Scheduler()], {"label": ""}, "label is empty"),
        ([Scheduler()], {"colour": "pink"}, "colour must be one of red"),
        ([Scheduler()], {"hosts": "board.example.com"}, "hosts must be a list, got str"),
        ([Scheduler()], {"hosts": []}, "hosts is empty"),
        ([Scheduler()], {"hosts": ["a.test", 7]}, r"hosts\[1\] must be str, got int: 7"),
        ([Scheduler()], {"hosts": ["a.test:8400"]}, r"hosts\[0\] must be .* without scheme and port, .*'a.test:8400'"),
        ([Scheduler()], {"hosts": ["https://a.test"]}, "hosts.* got 'https://a.test'"),
        ([Scheduler()], {"hosts": ["*"]}, r"hosts.* got '\*'"),
        ([Scheduler()], {"hosts": [""]}, "hosts.* got ''"),
        ([Scheduler()], {"hosts": ["a" * 254]}, "hosts.* must be the name"),
    ],
)
def test_bad_option_of_a_board_is_refused_by_name(schedulers: list[Any], options: Any, named: str) -> None:
    with pytest.raises((InvalidJobError, InvalidJobTypeError), match=named):
        make_app(*schedulers, **options)


@pytest.mark.parametrize(
    "options, named",
    [({"scope": "t1"}, "scope must be"), ({"read": 1}, "read must be"), ({"name": 1}, "name must be")],
)
def test_bad_access_is_refused_by_name(options: Any, named: str) -> None:
    with pytest.raises((InvalidJobTypeError, InvalidHintTypeError), match=named):
        Access(**options)
