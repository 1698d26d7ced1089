"""RESP2: our packing and reading agree with hiredis."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import hiredis
import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis import exceptions as driver

from queuehint.backends.redis.connections import resp

NUMBERS = st.integers(-(2**63), 2**63 - 1)
REPLIES = st.recursive(
    st.none() | NUMBERS | st.binary(max_size=20) | st.just(b"\r\n$3\r\n"),
    lambda replies: st.lists(replies, max_size=4),
    max_leaves=12,
)
WORDS = st.text(st.characters(codec="utf-8"), max_size=8) | st.binary(max_size=8) | NUMBERS


def encoded(reply: Any) -> bytes:
    """Return a reply as a server sends it."""
    if reply is None:
        return b"$-1\r\n"
    if isinstance(reply, int):
        return b":%d\r\n" % reply
    if isinstance(reply, bytes):
        return b"$%d\r\n%b\r\n" % (len(reply), reply)
    return b"*%d\r\n%b" % (len(reply), b"".join(map(encoded, reply)))


def hiredis_reader() -> resp.ReplyReader:
    return hiredis.Reader(replyError=resp.parse_refusal, protocolError=driver.InvalidResponse)


READERS = pytest.mark.parametrize("make", [resp.Reader, hiredis_reader], ids=["python", "hiredis"])


@READERS
@given(replies=st.lists(REPLIES, min_size=1, max_size=5), cuts=st.lists(st.integers(0, 200), max_size=8))
def test_replies_are_read_whole_wherever_they_are_cut(
    make: Callable[[], resp.ReplyReader], replies: list[Any], cuts: list[int]
) -> None:
    reader, data, read = make(), b"".join(map(encoded, replies)), []
    places = sorted({0, *(cut for cut in cuts if cut < len(data)), len(data)})
    for begin, end in itertools.pairwise(places):
        reader.feed(data[begin:end])
        while (reply := reader.gets()) is not False:
            read.append(reply)
    assert read == replies
    assert reader.gets() is False


@READERS
def test_a_null_list_and_a_status_are_read(make: Callable[[], resp.ReplyReader]) -> None:
    reader = make()
    reader.feed(b"*-1\r\n+OK\r\n*2\r\n*-1\r\n+QUEUED\r\n")
    assert [reader.gets() for _ in range(3)] == [None, b"OK", [None, b"QUEUED"]]


@READERS
def test_malformed_reply_raises_an_error(make: Callable[[], resp.ReplyReader]) -> None:
    reader = make()
    reader.feed(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    with pytest.raises(driver.InvalidResponse):
        reader.gets()


@pytest.mark.parametrize(
    "text, kind, message",
    [
        ("ERR no such key", driver.ResponseError, "no such key"),
        ("ERR max number of clients reached", driver.ConnectionError, "max number of clients reached"),
        ("WRONGTYPE not a hash", driver.ResponseError, "WRONGTYPE not a hash"),
        ("NOSCRIPT No matching script.", driver.NoScriptError, "No matching script."),
        ("READONLY You can't write", driver.ReadOnlyError, "You can't write"),
        ("OOM command not allowed", driver.OutOfMemoryError, "command not allowed"),
        ("NOAUTH Authentication required.", driver.NoPermissionError, "Authentication required."),
        ("WRONGPASS invalid", driver.NoPermissionError, "invalid"),
        ("LOADING Redis is loading", driver.BusyLoadingError, "Redis is loading"),
        ("BUSY Redis is busy", driver.ResponseError, "BUSY Redis is busy"),
        ("CLUSTERDOWN Hash slot not served", driver.ClusterDownError, "Hash slot not served"),
    ],
)
@READERS
def test_refusal_is_raised_as_the_exception_of_the_driver(
    make: Callable[[], resp.ReplyReader], text: str, kind: type[Exception], message: str
) -> None:
    reader = make()
    reader.feed(b"*2\r\n:1\r\n-%b\r\n" % text.encode())
    [number, refusal] = reader.gets()
    assert number == 1
    assert type(refusal) is kind
    assert str(refusal) == message


@pytest.mark.parametrize("code, kind", [("MOVED", driver.MovedError), ("ASK", driver.AskError)])
def test_a_redirection_names_the_node(code: str, kind: type[driver.AskError]) -> None:
    refusal = resp.parse_refusal(f"{code} 3999 127.0.0.1:6381")
    assert isinstance(refusal, kind)
    assert (refusal.host, refusal.port) == ("127.0.0.1", 6381)


@given(words=st.lists(WORDS, min_size=1, max_size=6).map(tuple))
def test_requests_are_packed_as_hiredis_packs_them(words: tuple[Any, ...]) -> None:
    assert resp.pack_words(words) == hiredis.pack_command(words)
