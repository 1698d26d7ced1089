"""URLs of PostgreSQL, read before anything is opened."""

from __future__ import annotations

from typing import Any

import pytest

from queuehint.backends.masks import masked
from queuehint.backends.postgres.address import PortOptions, parse_url
from queuehint.errors import InvalidJobError
from tests.each import for_each

U = "postgresql://db/app"


@for_each(
    "url, parameters",
    [
        ("postgresql://", {}),
        ("postgres:///", {}),
        ("postgresql://db", {"host": "db"}),
        ("postgresql://ann@/app", {"user": "ann", "dbname": "app"}),
        (
            "postgres://ann:secret@db:5433/app",
            {"user": "ann", "password": "secret", "host": "db", "port": "5433", "dbname": "app"},
        ),
        (
            "postgresql+psycopg://a%40n:s%2Fe%3Fc%23@db/a%2Fb",
            {"user": "a@n", "password": "s/e?c#", "host": "db", "dbname": "a/b"},
        ),
        ("postgresql+asyncpg://db/app?ssl=require", {"host": "db", "dbname": "app", "sslmode": "require"}),
        ("postgresql://one:1,two:2/app", {"host": "one,two", "port": "1,2", "dbname": "app"}),
        ("postgresql://one,two:2/app", {"host": "one,two", "port": ",2", "dbname": "app"}),
        ("postgresql://one,two/app", {"host": "one,two", "dbname": "app"}),
        ("postgresql://[::1]:5433/app", {"host": "::1", "port": "5433", "dbname": "app"}),
        ("postgresql://[::1]/app", {"host": "::1", "dbname": "app"}),
        ("postgresql://%2Frun%2Fpg/app", {"host": "/run/pg", "dbname": "app"}),
        ("postgresql:///app?host=/run/pg&port=5433", {"host": "/run/pg", "port": "5433", "dbname": "app"}),
        ("postgresql+psycopg:///app?host=one:1&host=two:2", {"host": "one,two", "port": "1,2", "dbname": "app"}),
        ("postgresql:///app?host=one&host=two", {"host": "one,two", "dbname": "app"}),
        ("postgresql://db/app?options=-c%20a%3Db+c", {"host": "db", "dbname": "app", "options": "-c a=b+c"}),
        ("postgresql+psycopg2://db/app?options=-c+a%3Db", {"host": "db", "dbname": "app", "options": "-c a=b"}),
        ("postgresql://db?user=ann&password=p&dbname=x", {"host": "db", "user": "ann", "password": "p", "dbname": "x"}),
        (
            "postgresql:///?service=jobs&connect_timeout=3&target_session_attrs=primary&application_name=me",
            {"service": "jobs", "connect_timeout": "3", "target_session_attrs": "primary", "application_name": "me"},
        ),
    ],
)
def test_a_url_has_the_parameters_that_libpq_or_sqlalchemy_reads(url: str, parameters: dict[str, str]) -> None:
    assert parse_url(url).parameters == parameters


@for_each(
    "option, name, value",
    [
        ("namespace=docs", "schema", "queuehint"),
        ("schema=jobs_2", "schema", "jobs_2"),
        ("schema=" + "s" * 63, "schema", "s" * 63),
        ("lead=yes", "may_lead", True),
        ("lead=no", "may_lead", False),
        ("durability=full", "durability", "full"),
        ("durability=process", "durability", "process"),
        ("pooled=0", "is_pooled", False),
        ("pooled=1", "is_pooled", True),
        ("bind=10.0.0.1:0", "port", PortOptions(bind=("10.0.0.1", 0))),
        ("bind=[::1]:7777", "port", PortOptions(bind=("::1", 7777))),
        ("bind=%5B%3A%3A1%5D%3A7777&lead=no", "port", PortOptions(bind=("::1", 7777))),
        (
            "bind=0.0.0.0:7777&advertise=leader.example.org:443",
            "port",
            PortOptions(bind=("0.0.0.0", 7777), advertise=("leader.example.org", 443)),
        ),
        (
            "bind=a_b:65535&certificate=/a%20b/c.pem&key=k.pem",
            "port",
            PortOptions(bind=("a_b", 65535), certificate="/a b/c.pem", key="k.pem"),
        ),
        (
            "pooled=1&direct=postgresql%3A%2F%2Fdb%3A5433%2Fapp",
            "straight",
            {"host": "db", "port": "5433", "dbname": "app"},
        ),
    ],
)
def test_own_option_is_read_and_libpq_parameters_are_refused(option: str, name: str, value: Any) -> None:
    address = parse_url(f"{U}?{option}")
    assert getattr(address, name) == value
    assert address.parameters == {"host": "db", "dbname": "app"}


def test_the_address_for_leading_is_past_the_pooler() -> None:
    pooled = parse_url(U + "?pooled=1&direct=postgresql%3A%2F%2Fstraight%2Fapp&durability=process")
    assert pooled.for_leading.parameters == {"host": "straight", "dbname": "app"}
    assert (pooled.for_leading.is_pooled, pooled.for_leading.durability) == (False, "process")
    only = parse_url(U + "?pooled=1")
    assert only.for_leading is only


def test_place_of_a_store_names_server_database_and_schema() -> None:
    place = parse_url("postgres://ann:secret@db:5433/app?schema=jobs").place
    assert place == parse_url("postgresql+psycopg://bob@db:5433/app?schema=jobs&durability=process").place
    assert place != parse_url("postgres://ann:secret@db:5433/app").place
    assert "secret" not in repr(place)


@for_each(
    "url, said",
    [
        ("postgresql:db", "two slashes follow the scheme"),
        ("postgresql:/db/app", "two slashes follow the scheme"),
        ("mysql://db/app", "the scheme must be postgresql, postgres,"),
        ("postgresql+pg8000://db/app", "the scheme must be"),
        ("postgresql://[::1/app", "is not a URL"),
        ("postgresql://db:0/app", "host 1 is not a host and port; a port is 1 to 65535"),
        ("postgresql://db:65536/app", "host 1 is not a host and port"),
        ("postgresql://db:x/app", "host 1 is not a host and port"),
        ("postgresql://db:5432,two:y/app", "host 2 is not a host and port"),
        ("postgresql://a:b:c/app", "host 1 is not a host and port"),
        ("postgresql://[::1]x/app", "host 1 is not a host and port"),
        ("postgresql:///app?host=one:x", "host 1 is not a host and port"),
        ("postgresql://db/app/more", "one database follows the host, %2F stands for a slash"),
        ("postgresql://db/app#x", "write %2F, %3F, %23 and %40"),
        ("postgresql://ann:se/cret@db/app", "write %2F, %3F, %23 and %40"),
        ("postgresql://ann:se?cret@db/app", "write %2F, %3F, %23 and %40"),
        ("postgresql://db/a%00b", "no zero byte"),
        (U + "?schema", "has a name and a value"),
        (U + "?schema=", "schema must be 1 to 63 of a-z 0-9 _"),
        (U + "?schema=Jobs", "schema must be"),
        (U + "?schema=1jobs", "schema must be"),
        (U + "?schema=pg_jobs", "schema must be"),
        (U + "?schema=a-b", "schema must be"),
        (U + "?schema=" + "s" * 64, "schema must be"),
        (U + "?schema=a&schema=b", "schema must be given once"),
        (U + "?lead=only", "lead must be yes or no"),
        (U + "?durability=none", "durability must be full or process"),
        (U + "?pooled=true", "pooled must be 0 or 1"),
        (U + "?bind=7777", "bind must be host:port"),
        (U + "?bind=host", "bind must be host:port"),
        (U + "?bind=host:", "bind must be host:port"),
        (U + "?bind=host:-1", "bind must be host:port"),
        (U + "?bind=host:70000", "bind must be host:port, or [address]:port of IPv6; a port is 0 to 65535, 0 for a"),
        (U + "?bind=::1:7777", "bind must be host:port"),
        (U + "?bind=[x]:7777", "bind must be host:port"),
        (U + "?bind=[127.0.0.1]:7777", "bind must be host:port"),
        (U + "?bind=:7777", "bind must be host:port"),
        (U + "?bind=a%20b:7777", "bind must be host:port"),
        (U + "?bind=" + "h" * 254 + ":1", "bind must be host:port"),
        (U + "?bind=", "bind must be host:port"),
        (U + "?bind=a:1&bind=b:1", "bind must be given once"),
        (U + "?bind=0.0.0.0:7777", "bind=0.0.0.0 requires advertise, the address that guests connect to"),
        (U + "?bind=[::]:7777", "bind=:: requires advertise"),
        (U + "?bind=h:1&advertise=h:0", "advertise must be host:port, or [address]:port of IPv6; a port is 1 to 65535"),
        (U + "?bind=h:1&advertise=0.0.0.0:1", "advertise must be an address that guests can connect to"),
        (U + "?advertise=h:1", "advertise requires bind"),
        (U + "?certificate=c&key=k", "certificate requires bind"),
        (U + "?bind=h:1&certificate=c", "certificate and key must be given together"),
        (U + "?bind=h:1&key=k", "certificate and key must be given together"),
        (U + "?bind=h:1&certificate=&key=k", "certificate must be the path of a file, of 1 to 4096 characters"),
        (U + "?bind=h:1&certificate=c&key=" + "k" * 4097, "key must be the path of a file"),
        (U + "?pooled=1&direct=postgresql%3A%2F%2Fdb%3Fbind%3Dh:1", "bind belongs to the URL around it"),
        (U + "?direct=postgresql%3A%2F%2Fdb", "direct requires pooled=1"),
        (U + "?pooled=1&direct=redis%3A%2F%2Fdb", "direct must be a URL like postgresql://user@host:5432/database"),
        (U + "?pooled=1&direct=postgresql%3A%2F%2Fdb%3Fschema%3Dx", "schema belongs to the URL around it"),
        (U + "?pooled=1&direct=", "direct must be a URL"),
        (U + "?connect_timeout=soon", "connect_timeout must be a number, 0 to 999999999"),
        (U + "?keepalives_idle=-1", "keepalives_idle must be a number"),
        (U + "?sslmode=maybe", "sslmode must be disable, allow, prefer, require, verify-ca or verify-full"),
        ("postgresql+asyncpg://db/app?ssl=true", "sslmode must be"),
        (U + "?target_session_attrs=leader", "target_session_attrs must be"),
        ("postgresql:///app?port=x", "port must be 1 to 65535"),
        ("postgresql:///app?host=a,b,c&port=1,2", "one port, or one for each host"),
        (U + "?client_encoding=latin1", "unknown option 'client_encoding'"),
        (U + "?timeout=5", "unknown option 'timeout'"),
        (U + "?user=a&user=b", "user must be given once"),
    ],
)
def test_a_wrong_url_is_refused_before_anything_is_opened(url: str, said: str) -> None:
    with pytest.raises(InvalidJobError, match="url") as caught:
        parse_url(url)
    assert said in str(caught.value)


@for_each(
    "url, shown",
    [
        ("postgresql://ann:secret@db:5433/app", "postgresql://***@db:5433/app"),
        ("postgresql+asyncpg://ann:secret@db/my-app.2", "postgresql+asyncpg://***@db/my-app.2"),
        ("postgres://ann:sec/ret@db/app", "postgres://***"),
        ("postgres://ann:p@sec/ret/app", "postgres://***@sec/***"),
        ("postgres:secret", "***"),
        (U + "?password=secret&schema=jobs&lead=no", U + "?password=***&schema=jobs&lead=no"),
        (U + "?pooled=1&direct=postgresql%3A%2F%2Fann%3Asecret%40db", U + "?pooled=1&direct=***"),
        (U + "?bind=10.0.0.1:7777&advertise=[::1]:443", U + "?bind=10.0.0.1:7777&advertise=[::1]:443"),
        (U + "?bind=secret", U + "?bind=***"),
        (U + "?bind=h:1&certificate=/run/a&key=/run/b", U + "?bind=h:1&certificate=***&key=***"),
        (U + "?sslmode=require&sslpassword=secret&schema=SECRET", U + "?sslmode=require&sslpassword=***&schema=***"),
    ],
)
def test_a_password_is_shown_nowhere(url: str, shown: str) -> None:
    assert masked(url) == shown
    try:
        text = repr(parse_url(url))
    except InvalidJobError as error:
        text = str(error)
    assert "secret" not in text.lower()


def test_password_of_a_direct_url_is_masked_in_errors() -> None:
    inner = "postgresql%3A%2F%2Fann%3Asecret%40db%3A0"
    with pytest.raises(InvalidJobError) as caught:
        parse_url(f"{U}?pooled=1&direct={inner}")
    assert "host 1 is not a host and port" in str(caught.value)
    assert "secret" not in str(caught.value)
