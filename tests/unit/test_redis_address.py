"""Addresses of stores on Redis: what a URL names, which ones are refused, and what is never shown."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from queuehint.backends.base import BackendOptions, open_backend
from queuehint.backends.redis.address import SCHEMES, Address, parse_url
from queuehint.backends.redis.backend import RedisBackend
from queuehint.backends.redis.codec.failures import Failures
from queuehint.backends.redis.keys import root
from queuehint.backends.redis.session import Session
from queuehint.backends.redis.transport import NotSent, Unanswered
from queuehint.errors import BackendError, InvalidJobError
from queuehint.operations import Tick
from queuehint.scheduler.scheduler import Scheduler
from tests.each import for_each
from tests.urls import SECRET, WITH_SECRETS


def refused(url: str) -> str:
    """Return the message of a URL that is refused."""
    with pytest.raises(InvalidJobError) as refusal:
        parse_url(url)
    assert isinstance(refusal.value, ValueError)
    return str(refusal.value)


def address_or_message(url: str) -> Address | str:
    """Return the address that a URL names, or all that is said when it is refused."""
    try:
        return parse_url(url)
    except InvalidJobError as error:
        return f"{error}" if error.__cause__ is None else f"{error} {error.__cause__}"


# --- what a URL names ------------------------------------------------------------------------------------------------


@for_each(
    "url, node, options",
    [
        ("redis://", ("localhost", 6379), {}),
        ("redis://db", ("db", 6379), {}),
        ("redis://db:7000", ("db", 7000), {}),
        ("redis://db:", ("db", 6379), {}),
        ("redis://db:7000/2", ("db", 7000), {"db": 2}),
        ("redis:///3", ("localhost", 6379), {"db": 3}),
        ("redis://db?db=4", ("db", 6379), {"db": 4}),
        ("redis://[::1]:7000/1", ("::1", 7000), {"db": 1}),
        ("redis://:secret@db", ("db", 6379), {"password": "secret"}),
        ("redis://ann@db", ("db", 6379), {"username": "ann"}),
        ("redis://ann:secret@db", ("db", 6379), {"username": "ann", "password": "secret"}),
        ("redis://a%40b:s%2Fe%23c%3Ar@db", ("db", 6379), {"username": "a@b", "password": "s/e#c:r"}),
        ("redis://ann:se:cr@et@db", ("db", 6379), {"username": "ann", "password": "se:cr@et"}),
        ("redis://db?username=ann&password=s%26t", ("db", 6379), {"username": "ann", "password": "s&t"}),
        ("redis://ann:old@db?password=new", ("db", 6379), {"username": "ann", "password": "new"}),
        ("redis://db?namespace=docs", ("db", 6379), {}),
    ],
)
def test_a_url_names_a_server_a_database_and_a_user(url: str, node: tuple[str, int], options: dict[str, Any]) -> None:
    address = parse_url(url)
    assert (address.kind, address.nodes, address.path, address.is_tls) == ("plain", (node,), None, False)
    assert address.options == {"db": 0, **options}


@pytest.mark.parametrize(
    "url, path, options",
    [
        ("unix:///run/redis.sock", "/run/redis.sock", {}),
        ("unix:///run/redis.sock?db=2", "/run/redis.sock", {"db": 2}),
        ("unix://:secret@/run/redis.sock", "/run/redis.sock", {"password": "secret"}),
        ("unix://ann:secret@/run/a%20b.sock?db=1", "/run/a b.sock", {"db": 1, "username": "ann", "password": "secret"}),
    ],
)
def test_a_url_names_a_socket(url: str, path: str, options: dict[str, Any]) -> None:
    address = parse_url(url)
    assert (address.kind, address.nodes, address.path) == ("plain", (), path)
    assert address.options == {"db": 0, **options}


@pytest.mark.parametrize(
    "query, options",
    [
        ("", {"ssl_check_hostname": True}),
        ("?ssl_cert_reqs=required", {"ssl_cert_reqs": "required", "ssl_check_hostname": True}),
        ("?ssl_cert_reqs=none", {"ssl_cert_reqs": "none", "ssl_check_hostname": False}),
        ("?ssl_check_hostname=False", {"ssl_check_hostname": False}),
        ("?ssl_ca_certs=/ca.pem&ssl_check_hostname=1", {"ssl_ca_certs": "/ca.pem", "ssl_check_hostname": True}),
        (
            "?ssl_certfile=/c&ssl_keyfile=/k",
            {"ssl_certfile": "/c", "ssl_keyfile": "/k", "ssl_check_hostname": True},
        ),
    ],
)
def test_with_tls_certificates_and_names_are_checked_unless_told_otherwise(query: str, options: dict[str, Any]) -> None:
    address = parse_url(f"rediss://db{query}")
    assert address.is_tls
    assert address.options == {"db": 0, **options}


def test_a_cluster_is_named_by_some_of_its_nodes() -> None:
    address = parse_url("redis+cluster://ann:secret@a:1,b:2,c")
    assert (address.kind, address.nodes) == ("cluster", (("a", 1), ("b", 2), ("c", 6379)))
    assert address.options == {"db": 0, "username": "ann", "password": "secret"}
    assert parse_url("rediss+cluster://a/0").is_tls


def test_sentinels_are_named_with_service_and_their_own_users() -> None:
    address = parse_url("redis+sentinel://ann:secret@a,b:5/main/2?sentinel_username=eve&sentinel_password=other")
    assert (address.kind, address.service) == ("sentinel", "main")
    assert address.nodes == (("a", 26379), ("b", 5))
    assert address.options == {"db": 2, "username": "ann", "password": "secret"}
    assert address.sentinel_options == {"username": "eve", "password": "other"}
    assert parse_url("rediss+sentinel://a/main").is_tls


@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_scheme_opens_this_backend(scheme: str) -> None:
    kind, _ = SCHEMES[scheme]
    where = "/run/redis.sock" if scheme == "unix" else "db/main" if kind == "sentinel" else "db"
    backend = open_backend(f"{scheme}://{where}?namespace=docs.1")
    assert isinstance(backend, RedisBackend)
    assert not backend.is_local
    assert backend.session.root == "{qh:docs.1}" == root("docs.1")


@for_each(
    "url, expected",
    [
        ("redis://localhost", False),
        ("redis://127.0.0.1", False),
        ("redis://127.1.2.3:7000", False),
        ("redis://[::1]", False),
        ("unix:///run/redis.sock", False),
        ("rediss://db", False),
        ("redis://db", True),
        ("redis://10.0.0.1", True),
        ("redis+cluster://127.0.0.1,db", True),
        ("redis+sentinel://db/main", True),
        ("redis://localhost.evil.com", True),
        ("redis://127.evil.com", True),
        ("redis://[::1234]", True),
    ],
)
def test_remote_plaintext_url_is_recognised(url: str, expected: bool) -> None:
    assert parse_url(url).is_remote_plaintext is expected


# --- what is refused -------------------------------------------------------------------------------------------------


@for_each(
    "url, problem",
    [
        ("redis://db/abc", "the database must be a number"),
        ("redis://db/-1", "the database must be a number"),
        ("redis://db/1.5", "the database must be a number"),
        ("redis://db/\u0663", "the database must be a number"),
        ("redis://db/1/2", "the database must be a number"),
        ("redis://db?db=", "the database must be a number"),
        ("redis://db?db=x", "the database must be a number"),
        ("redis://db:port", "host 1 is not a host and port"),
        ("redis://db:-1", "host 1 is not a host and port"),
        ("redis://db:0", "host 1 is not a host and port"),
        ("redis://db:65536", "host 1 is not a host and port"),
        ("redis://[::1/1", "is not a URL"),
        ("redis://a,b", "names several hosts; use redis+cluster:// or redis+sentinel://"),
        ("redis+cluster://a,b:port", "host 2 is not a host and port"),
        ("redis+cluster://a/1", "a cluster has no database but 0"),
        ("redis+sentinel://a", "names no service: redis+sentinel://host:26379/service"),
        ("redis+sentinel://a/main/2/3", "the database must be a number"),
        ("unix://", "names no socket: unix:///run/redis.sock"),
        ("unix://relative/redis.sock", "unix:///run/redis.sock"),
        ("rediss://db?ssl_cert_reqs=optional", "ssl_cert_reqs must be required or none"),
        ("rediss://db?ssl_check_hostname=perhaps", "ssl_check_hostname must be true or false"),
    ],
)
def test_a_wrong_url_is_refused_and_the_part_is_named(url: str, problem: str) -> None:
    message = refused(url)
    assert message.startswith("url ")
    assert problem in message


@for_each(
    "url, option",
    [
        ("redis://db?foo=1", "foo"),
        ("redis://db?ssl_ca_certs=/ca.pem", "ssl_ca_certs"),
        ("redis://db?socket_timeout=1", "socket_timeout"),
        ("redis://db?retry_on_timeout=1", "retry_on_timeout"),
        ("redis://db?decode_responses=True", "decode_responses"),
        ("redis://db?protocol=3", "protocol"),
        ("redis://db?health_check_interval=1", "health_check_interval"),
        ("redis://db?sentinel_password=x", "sentinel_password"),
        ("rediss://db?ssl_foo=1", "ssl_foo"),
        ("redis+cluster://a?sentinel_username=x", "sentinel_username"),
    ],
)
def test_unknown_or_misplaced_option_is_refused(url: str, option: str) -> None:
    assert f"unknown option {option!r}" in refused(url)


@pytest.mark.parametrize("url", ["redis://db/0#1", "redis://db#x"])
def test_url_fragment_is_refused_as_a_possible_password_part(url: str) -> None:
    refused(url)


@for_each("scheme", SCHEMES)
@for_each("namespace", ["", "*", "%7Bb%7D", "a%20b", "x" * 65, "a:b", "%C3%A9"])
def test_namespace_that_could_move_a_key_is_refused(scheme: str, namespace: str) -> None:
    if not namespace:
        with pytest.raises(InvalidJobError, match="namespace"):
            open_backend(f"{scheme}://db/0", BackendOptions(namespace=namespace))
        return
    with pytest.raises(InvalidJobError, match="namespace"):
        open_backend(f"{scheme}://db/0?namespace={namespace}")


@given(
    st.sampled_from(sorted(SCHEMES)),
    st.text(alphabet="abz019:/@?#[]%,=&. \\é\x00-", max_size=20) | st.text(max_size=10),
)
@example("redis", "//[")
@example("redis", "//a:b@[::1")
@example("redis+cluster", "//,,")
@example("redis", "//\u2100")
@example("unix", "///a?db=1&db=2")
def test_any_text_is_an_address_or_is_refused(scheme: str, rest: str) -> None:
    answer = address_or_message(f"{scheme}:{rest}")
    if isinstance(answer, str):
        assert answer.startswith("url ")
    else:
        assert all(0 < port < 65_536 for _, port in answer.nodes)
        assert bool(answer.nodes) != (answer.path is not None)


# --- what is never shown ---------------------------------------------------------------------------------------------


@for_each("url", WITH_SECRETS)
def test_password_is_in_no_message_or_repr_of_an_address(url: str) -> None:
    if url.partition(":")[0] in SCHEMES:
        answer = address_or_message(url)
        assert SECRET not in repr(answer)
        assert SECRET not in (answer.shown if isinstance(answer, Address) else answer)


@for_each("url", WITH_SECRETS)
@for_each("failure", [NotSent, Unanswered])
def test_password_is_in_no_error_of_an_unavailable_store(url: str, failure: type[Exception]) -> None:
    answer = address_or_message(url) if url.partition(":")[0] in SCHEMES else ""
    if isinstance(answer, str):
        return
    error = Failures(answer.shown, "{qh:n}").gave_up(failure(), None, 10.0, is_unknown=failure is Unanswered)
    assert isinstance(error, BackendError)
    assert SECRET not in str(error)
    assert SECRET not in repr(error)


@given(
    st.sampled_from(sorted(SCHEMES)),
    st.text(alphabet="/@:?#&=;,[]%. a0", max_size=6),
    st.text(alphabet="/@:?#&=;,[]%. a0", max_size=6),
)
def test_password_before_the_host_is_masked_with_any_characters(scheme: str, before: str, after: str) -> None:
    for userinfo in (f"ann:{before}{SECRET}{after}", f"{before}{SECRET}{after}:pass", f"{before}{SECRET}{after}"):
        url = f"{scheme}://{userinfo}@db:7/0"
        assert SECRET not in str(address_or_message(url))


def test_a_password_reaches_the_connection_and_nothing_that_is_printed() -> None:
    address = parse_url(f"redis+sentinel://ann:{SECRET}@a/main?sentinel_password={SECRET}")
    assert address.options["password"] == address.sentinel_options["password"] == SECRET
    shown = {field.name for field in attrs.fields(Address) if field.repr}
    assert shown == {"kind", "shown", "is_tls", "functions", "patience_s"}
    assert SECRET not in repr(next(Session(address, BackendOptions()).execute(Tick())))


def test_how_long_a_store_is_tried_may_be_said() -> None:
    assert parse_url("redis://db").patience_s is None
    assert parse_url("redis://db?patience=2.5").patience_s == 2.5
    assert parse_url("redis://db?patience=0").patience_s == 0.1
    assert parse_url("redis://db?patience=2.5").shown == "redis://db?patience=2.5"
    for wrong in ("", "-1", "soon", "1e3", "nan"):
        assert "patience must be seconds" in refused(f"redis://db?patience={wrong}")
    options = BackendOptions(patience_s=3.0)
    assert RedisBackend.from_url("redis://db", options).session.address.patience_s == 3.0
    assert RedisBackend.from_url("redis://db?patience=2", options).session.address.patience_s == 2.0
    with pytest.raises(InvalidJobError, match="patience"):
        Scheduler("redis://db", patience=0)
