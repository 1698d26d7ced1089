"""URLs of files, read before anything is opened."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from queuehint.backends.base import open_backend
from queuehint.backends.masks import masked
from queuehint.backends.sqlite.address import parse_url
from queuehint.errors import InvalidJobError
from tests.each import for_each

HERE = Path.cwd()


@pytest.mark.parametrize(
    "url, path, durability",
    [
        ("sqlite:///jobs.db", HERE / "jobs.db", "full"),
        ("sqlite:////var/lib/app/jobs.db", Path("/var/lib/app/jobs.db"), "full"),
        ("sqlite:///var/jobs.db?durability=process", HERE / "var/jobs.db", "process"),
        ("sqlite:///jobs.db?durability=full&namespace=docs", HERE / "jobs.db", "full"),
        ("sqlite:///a%20b%3F%23%25.db", HERE / "a b?#%.db", "full"),
        ("sqlite:////tmp/%C3%A9.db", Path("/tmp/é.db"), "full"),
    ],
)
def test_a_url_names_a_file(url: str, path: Path, durability: str) -> None:
    address = parse_url(url)
    assert (address.path, address.durability) == (path, durability)


@for_each(
    "url, said",
    [
        ("sqlite://jobs.db", "names a host: write sqlite:///jobs.db"),
        ("sqlite://localhost/jobs.db", "names a host"),
        ("sqlite:", "names no file; memory:// keeps jobs in memory"),
        ("sqlite://", "names no file"),
        ("sqlite:///", "names no file"),
        ("sqlite:///:memory:", "names no file"),
        ("sqlite:///var/", "names a directory"),
        ("sqlite:///.", "names a directory"),
        ("sqlite:////tmp/..", "names a directory"),
        ("sqlite:/var/jobs.db", "write sqlite:///jobs.db, or sqlite:////var/lib/jobs.db"),
        ("sqlite:///a%00b", "no zero byte"),
        ("sqlite:///a#b", "write %23 for #"),
        ("sqlite:///a?shared=1", "shared must be yes or no"),
        ("sqlite:///a?shared=", "shared must be yes or no"),
        ("sqlite:///a?durability=none", "durability must be full or process"),
        ("sqlite:///a?durability=", "durability must be full or process"),
        ("sqlite:///a?timeout=5&mode=ro", "unknown option 'mode'"),
    ],
)
def test_url_without_file_is_refused_before_any_open(url: str, said: str) -> None:
    with pytest.raises(InvalidJobError, match="url") as caught:
        open_backend(url)
    assert said in str(caught.value)


def test_url_with_shared_is_read_and_shown() -> None:
    found = [parse_url(f"sqlite:///a.db{query}").shared for query in ("", "?shared=no", "?shared=yes")]
    assert found == [False, False, True]
    assert masked("sqlite:///a.db?shared=yes") == "sqlite:///a.db?shared=yes"


def test_a_shared_file_needs_a_sqlite_that_knows_the_statements(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 34, 1))
    assert not parse_url("sqlite:///a.db").shared
    with pytest.raises(InvalidJobError, match=r"url .*: shared requires SQLite 3\.35"):
        parse_url("sqlite:///a.db?shared=yes")


def test_nothing_is_made_before_the_first_call(tmp_path: Path) -> None:
    open_backend(f"sqlite:///{tmp_path}/jobs.db").close_sync()
    assert not list(tmp_path.iterdir())
