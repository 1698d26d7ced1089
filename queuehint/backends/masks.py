"""
Redaction of URLs, in one place for errors, logs, reprs and the command line.

A URL is parsed, and only parts known to be harmless are shown: a list of allowed parts, no search for secrets.
"""

from __future__ import annotations

import re

HIDDEN = "***"
"""Placeholder for hidden parts of a URL."""
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{0,31}")
_SERVED = ("memory", "sqlite", "redis", "rediss", "unix", "redis+cluster", "rediss+cluster", "redis+sentinel")
"""Schemes that are shown even without slashes behind them; another text before a colon may be a user or a password."""
_OF_FILES = ("sqlite", "unix")
_OF_POSTGRES = ("postgresql", "postgres")
_HOST = re.compile(r"(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{0,5})?")
_DATABASE = re.compile(r"[0-9]{0,5}")
_NAME = re.compile(r"[A-Za-z0-9._-]{0,64}")
_OPTION = re.compile(r"[a-z_]{1,32}")
_ONE_DATABASE = re.compile(r"/[A-Za-z0-9._-]{0,64}|")
"""The path of PostgreSQL: the name of one database, and nothing that a slash in a password has made of it."""
_HOST_AND_PORT = re.compile(r"(?:[A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{1,45}\]):[0-9]{1,5}")
_VALUES = {
    "advertise": _HOST_AND_PORT,
    "bind": _HOST_AND_PORT,
    "db": _DATABASE,
    "namespace": re.compile(r"[A-Za-z0-9_.-]{1,64}"),
    "durability": re.compile(r"full|process"),
    "functions": re.compile(r"auto|always|never"),
    "lead": re.compile(r"yes|no"),
    "patience": re.compile(r"[0-9]{1,5}(\.[0-9]{1,6})?"),
    "pooled": re.compile(r"0|1"),
    "schema": re.compile(r"[a-z_][a-z0-9_]{0,62}"),
    "shared": re.compile(r"yes|no"),
    "ssl_cert_reqs": re.compile(r"required|none"),
    "ssl_check_hostname": re.compile(r"true|false|1|0"),
    "sslmode": re.compile(r"disable|allow|prefer|require|verify-ca|verify-full"),
}
"""Options whose values are no secrets, and how these look."""
SECRET_MIN = 3
"""Shorter parts would stand in every text."""
_PARTS_MAX = 12
_BETWEEN = re.compile(r"([:/@?#&;=,]+)")


def masked(url: str) -> str:
    """
    Return the harmless parts of a URL: scheme, hosts, ports, database, file, names of options, namespace.

    It is taken apart; whatever is not one of these, or stands where a password may have ended up, is ``***``.

    >>> masked("redis://ann:secret@db:6379/0?password=other")
    'redis://***@db:6379/0?password=***'
    >>> masked("redis://ann:sec/ret@db:6379/0")
    'redis://***'

    Masking twice changes nothing.
    """
    scheme, colon, rest = url.partition(":")
    if not url or not colon or not _SCHEME.fullmatch(scheme):
        return url and HIDDEN
    if not rest.startswith("//"):
        if scheme not in _SERVED:
            return HIDDEN
        return f"{scheme}:{_masked_tail(scheme, rest) if rest[:1] in {'', '/'} and '@' not in rest else HIDDEN}"
    size = min((at for mark in "/?#" if (at := rest.find(mark, 2)) >= 0), default=len(rest))
    userinfo, _, hosts = rest[2:size].rpartition("@")
    tail = rest[size:]
    # A password may hold an unquoted slash: then the hosts come later, and what looks like them is a part of it.
    if "@" in tail or not all(_HOST.fullmatch(host) for host in hosts.split(",") if host):
        return f"{scheme}://{HIDDEN}"
    return f"{scheme}://{HIDDEN + '@' if userinfo else ''}{hosts}{_masked_tail(scheme, tail)}"


def _masked_tail(scheme: str, tail: str) -> str:
    """Return the harmless parts behind the hosts: path, query and fragment."""
    tail, hash_sign, _ = tail.partition("#")
    path, question, query = tail.partition("?")
    if scheme.partition("+")[0] in _OF_POSTGRES:
        path = path if _ONE_DATABASE.fullmatch(path) else f"/{HIDDEN}"
    elif scheme not in _OF_FILES:
        segments = path.split("/")
        # The name of a service comes first where there is one.
        known = [_NAME if at == 1 and scheme.endswith("+sentinel") else _DATABASE for at in range(len(segments))]
        path = "/".join(
            segment if pattern.fullmatch(segment) else HIDDEN for pattern, segment in zip(known, segments, strict=True)
        )
    elif not path.isprintable():
        path = f"/{HIDDEN}" if path.startswith("/") else HIDDEN
    options = "&".join(map(_masked_option, query.split("&"))) if query else ""
    return f"{path}{question}{options}{hash_sign and '#' + HIDDEN}"


def _masked_option(option: str) -> str:
    name, is_sign, value = option.partition("=")
    if not is_sign:
        return HIDDEN
    known = _VALUES.get(name)
    return f"{masked_name(name)}={value if known and known.fullmatch(value) else HIDDEN}"


def masked_name(name: str) -> str:
    """Return the name of an option, masked unless it has the form of one."""
    return name if _OPTION.fullmatch(name) else HIDDEN


def hidden_parts(url: str) -> set[str]:
    """
    Return the parts of a URL that `masked` does not show, for texts of others that quote one of them.

    Parts lie between signs, up to 12 of them together. The name of a user is none: it may be any word.

    >>> sorted(hidden_parts("redis://ann:se:cret@db/0"))
    ['ann:se', 'ann:se:cret', 'ann:se:cret@db', 'ann:se:cret@db/0', 'cret', 'cret@db', 'cret@db/0', 'se:cret', \
'se:cret@db', 'se:cret@db/0']
    """
    shown = masked(url)
    rest = (url if shown == HIDDEN else url.partition(":")[2]).lstrip("/")
    words = _BETWEEN.split(rest)
    places = range(0, len(words), 2)
    parts = {"".join(words[at : to + 1]) for at in places for to in range(at, min(at + 2 * _PARTS_MAX, len(words)), 2)}
    user, colon, _ = rest.partition("@")[0].partition(":")
    known = user if colon and shown != HIDDEN else ""
    return {part for part in parts if len(part) >= SECRET_MIN and part not in shown and part != known}
