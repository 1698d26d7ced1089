"""URLs of SQLite stores: the file, its durability setting, and whether it is the database of an application."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Final, Literal, get_args
from urllib.parse import parse_qsl, unquote, urlsplit

import attrs

from queuehint.backends.masks import masked, masked_name
from queuehint.backends.sqlite.layout import OLDEST
from queuehint.errors import InvalidJobError

Durability = Literal["full", "process"]
DURABILITIES: Final[tuple[Durability, ...]] = get_args(Durability)


@attrs.frozen(kw_only=True)
class Address:
    """
    Where a file is.

    Args:
        path: absolute, or relative to where the process is when the address is made.
        durability: what has been answered survives ``"full"`` a loss of power, ``"process"`` the end of this process,
            however sudden, but not that of the machine.
        shared: it is the database of an application, whose transactions may write jobs.
    """

    path: Path
    durability: Durability = "full"
    shared: bool = False


def parse_url(url: str) -> Address:
    """
    Return the address of a URL; reads and writes nothing.

    Args:
        url: ``sqlite:///relative.db`` or ``sqlite:////absolute.db``, ``%`` and two digits for ``? # %`` in it. Behind
            a ``?``: ``namespace``, ``durability`` (``full``, which is the default, or ``process``), ``shared`` (``yes``
            if it is the database of an application, or ``no``).

    Raises:
        InvalidJobError: a part is missing, wrong or unknown.

    >>> parse_url("sqlite:////var/lib/app/jobs.db?durability=process").durability
    'process'
    """
    said, parts = masked(url), urlsplit(url)
    scheme, colon, rest = url.partition(":")
    if colon and rest.startswith("/") and not rest.startswith("//"):
        raise InvalidJobError(f"url {said!r}: write {scheme}:///jobs.db, or {scheme}:////var/lib/jobs.db")
    if parts.netloc:
        raise InvalidJobError(f"url {said!r} names a host: write sqlite:///jobs.db, or sqlite:////var/lib/jobs.db")
    if parts.fragment:
        raise InvalidJobError(f"url {said!r}: write %23 for # in the name of a file")
    name = unquote(parts.path.removeprefix("/"))
    if name in {"", ":memory:"}:
        raise InvalidJobError(f"url {said!r} names no file; memory:// keeps jobs in memory")
    if "\0" in name:
        raise InvalidJobError(f"url {said!r}: a file's name has no zero byte")
    if name.endswith("/") or name.rpartition("/")[2] in {".", ".."}:
        raise InvalidJobError(f"url {said!r} names a directory, not a file")
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    query.pop("namespace", None)
    durability, shared = query.pop("durability", "full"), query.pop("shared", "no")
    if query:
        raise InvalidJobError(f"url {said!r}: unknown option {masked_name(min(query))!r}")
    if shared not in {"yes", "no"}:
        raise InvalidJobError(f"url {said!r}: shared must be yes or no")
    if shared == "yes" and sqlite3.sqlite_version_info < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise InvalidJobError(f"url {said!r}: shared requires SQLite {oldest}, and here is {sqlite3.sqlite_version}")
    for known in DURABILITIES:
        if durability == known:
            return Address(path=Path(name).absolute(), durability=known, shared=shared == "yes")
    raise InvalidJobError(f"url {said!r}: durability must be {' or '.join(DURABILITIES)}")
