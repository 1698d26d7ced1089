"""Redaction of URLs: only harmless parts are shown, everywhere."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from queuehint import Scheduler
from queuehint.backends.base import open_backend
from queuehint.backends.masks import hidden_parts, masked
from queuehint.errors import InvalidJobError
from tests.each import for_each
from tests.urls import ODD, SECRET, WITH_SECRETS

SIGNS = st.text(alphabet="/@:?#&=;,[]%. a0*", max_size=6)
SCHEMES = st.sampled_from(["redis", "rediss", "redis+cluster", "redis+sentinel", "unix", "sqlite", "memory", "other"])


@for_each("url", [*WITH_SECRETS, *ODD])
def test_no_password_is_shown(url: str) -> None:
    assert SECRET.casefold() not in masked(url).casefold()
    try:
        said = repr(Scheduler(url))
    except InvalidJobError as error:
        said = str(error)
    assert SECRET not in said


@for_each("url", [*WITH_SECRETS, *ODD])
def test_hidden_part_of_a_url_is_recognised(url: str) -> None:
    assert SECRET.casefold() in {part.casefold() for part in hidden_parts(url)}


@for_each("url", WITH_SECRETS)
def test_a_password_is_in_no_message_of_open_backend(url: str) -> None:
    try:
        shown = repr(open_backend(url))
    except InvalidJobError as error:
        shown = f"{error} {error.__cause__}"
    assert SECRET not in shown


@given(SCHEMES, st.sampled_from([":", ":/", "://"]), SIGNS, SIGNS)
def test_password_before_the_host_is_masked_with_any_characters(
    scheme: str, slashes: str, before: str, after: str
) -> None:
    for userinfo in (f"ann:{before}{SECRET}{after}", f"{before}{SECRET}{after}:pass", f"{before}{SECRET}{after}"):
        assert SECRET not in masked(f"{scheme}{slashes}{userinfo}@db:7/0")


@given(SCHEMES, st.text(alphabet="/@:?#&=;,[]%. a0*\x1bdb", max_size=20) | st.text(max_size=10))
@example("redis", "//ann:x@db:6379/0?password=x&db=1&namespace=a#b")
@example("unix", "/\x1b?")
def test_masking_is_idempotent(scheme: str, rest: str) -> None:
    once = masked(f"{scheme}:{rest}")
    assert masked(once) == once


@for_each(
    "url, shown",
    [
        ("", ""),
        ("memory://", "memory://"),
        ("redis://localhost:6379/0", "redis://localhost:6379/0"),
        ("redis://ann:x@db:6379/2", "redis://***@db:6379/2"),
        ("redis://db/2?db=1&password=x&namespace=n", "redis://db/2?db=1&password=***&namespace=n"),
        ("redis://db/2?db=x&what&namespace=n;x=y", "redis://db/2?db=***&***&namespace=***"),
        ("redis+cluster://a:1,[::1]:2", "redis+cluster://a:1,[::1]:2"),
        ("redis+sentinel://ann:x@a:1,b/main/2", "redis+sentinel://***@a:1,b/main/2"),
        ("unix://:x@/run/redis.sock?db=1", "unix://***@/run/redis.sock?db=1"),
        ("unix:///run/a\x1b.sock", "unix:///***"),
        ("sqlite:///var/jobs.db?durability=full", "sqlite:///var/jobs.db?durability=full"),
        ("sqlite:///var/jobs.db?durability=word", "sqlite:///var/jobs.db?durability=***"),
        ("redis://db?functions=never", "redis://db?functions=never"),
        ("rediss://db?ssl_ca_certs=/etc/x&ssl_cert_reqs=none", "rediss://db?ssl_ca_certs=***&ssl_cert_reqs=none"),
        ("redis://\x1b[31m/0", "redis://***"),
        ("redis://a:b?c@db", "redis://***"),
        ("localhost:6379", "***"),
        ("5", "***"),
    ],
)
def test_harmless_url_is_shown(url: str, shown: str) -> None:
    assert masked(url) == shown
