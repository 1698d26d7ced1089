"""
What commands say of what they were told: one door, for every text and those of the parser too.

What was typed may hold a password, wherever it was typed: a URL as the name of a command, of an option, as a state. Of
a URL among the words of the command line only what is known to be harmless is said again: its scheme, and where it
leads. And nothing is left that a terminal would obey.
"""

from __future__ import annotations

import contextlib
import os
import re
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperGroup

from queuehint.cli.show import plain

if TYPE_CHECKING:
    from collections.abc import Iterator

SECRET_MIN = 3
"""Shorter parts would stand in every text."""
HARMLESS = frozenset(
    {
        "namespace",
        "db",
        "durability",
        "ssl_ca_certs",
        "ssl_certfile",
        "ssl_keyfile",
        "ssl_check_hostname",
        "ssl_cert_reqs",
    }
)
"""The options of URLs that are no secrets."""
HINT = "; a store is named by --target"

_URL = re.compile(r"([a-z][a-z0-9+.-]*):(/*)(.*)", re.IGNORECASE | re.DOTALL)
_LOOKS_LIKE_A_URL = re.compile(r"[a-z][a-z0-9+.-]*:(//|/?[^\s]*@)", re.IGNORECASE)
_WITH_MORE = re.compile(r"[a-z][a-z0-9+.-]*:/[^\s'\"]*[@?#;][^\s'\"]*", re.IGNORECASE)
_MASKED = re.compile(r"(:\*\*\*@[^@?#;]*|=\*\*\*)$")
# The parser may be click, or typer's own copy of it.
_ParserError: Any = typer.BadParameter.__mro__[2]
_BadUsage: Any = typer.BadParameter.__mro__[1]

_typed: list[str] = []
"""The words of the command that runs."""


def said(text: str) -> str:
    r"""
    Return a text as it may be printed: of URLs among the words of the command what is harmless, and nothing obeyed.

    >>> print(said("no such command: redis://ann:secret@db:6379/0\x1b[31m"))
    no such command: redis://***@db:6379/0\x1b[31m
    """
    return plain(hidden(text))


def hidden(text: str) -> str:
    """Return a text with what is not known to be harmless in its URLs hidden."""
    pieces = _pieces()
    shown = {piece: harmless(piece) for piece in pieces}
    # Who takes a URL apart may quote a part of it.
    parts = {part for piece in pieces for part in _secrets(piece)}
    for piece in (*pieces, *sorted(parts, key=len, reverse=True)):
        for form in {piece, repr(piece)[1:-1], plain(piece)}:
            text = re.sub(re.escape(form), lambda _, piece=piece: shown.get(piece, "***"), text, flags=re.IGNORECASE)  # type: ignore[misc]
    return _WITH_MORE.sub(lambda found: found[0] if _MASKED.search(found[0]) else harmless(found[0]), text)


def harmless(url: str) -> str:
    """
    Return what of a URL is known to be no secret: its scheme, and the rest if it can be told from a password.

    >>> harmless("redis://ann:secret@db:6379/0?password=x"), harmless("redis://db/0?password=a@b")
    ('redis://***@db:6379/0?***', 'redis://***')
    """
    found = _URL.match(url)
    if found is None:
        return "***"
    scheme, slashes, rest = found.groups()
    # Up to where options begin; an @ behind that may stand in a password before it, or in one of the options.
    place, sign, options = _apart(rest)
    if "@" in options:
        return f"{scheme}:{slashes}***"
    _, at, host = place.rpartition("@")
    if any(name not in HARMLESS for name, _ in _options(options)):
        options = "***"
    return f"{scheme}:{slashes}{'***' if at else ''}{at}{host}{sign}{options}"


def _apart(rest: str) -> tuple[str, str, str]:
    """Return what stands before the first sign that may begin options, the sign, and what stands behind it."""
    begin = next((found.start() for found in re.finditer(r"[?#;]", rest)), len(rest))
    return rest[:begin], rest[begin : begin + 1], rest[begin + 1 :]


def _options(text: str) -> list[tuple[str, str]]:
    words = [word.partition("=") for word in re.split("[&;]", text) if word]
    return [(name, value) for name, _, value in words]


def _secrets(url: str) -> Iterator[str]:
    """Yield the parts of a URL that may be secret, or hold such a part, if they are long enough to be told apart."""
    found = _URL.match(url)
    rest = "" if found is None else found[3]
    user, at, _ = rest.rpartition("@")
    options = _apart(rest)[2]
    parts = []
    if at:
        parts += [rest, user, user.partition(":")[2], *user.lstrip("/").split(":")[1:], *user.split("@")[1:]]
        parts += [] if ":" in user else [user.lstrip("/")]
    for name, value in _options(options):
        if name not in HARMLESS:
            parts += [rest, options, value, *value.split("@")]
    yield from [part for part in parts if len(part) >= SECRET_MIN]


def mentions_url(text: str) -> bool:
    """Say whether a text mentions a URL that stands among the words of the command."""
    folded = text.casefold()
    return any(form.casefold() in folded for piece in _pieces() for form in (piece, repr(piece)[1:-1]))


def _pieces() -> list[str]:
    """Return what looks like a URL among the words of the command, and the parts of it that a parser may quote."""
    pieces: dict[str, None] = {}
    told = [value for name, value in os.environ.items() if name.startswith("QUEUEHINT_")]
    for word in (*_typed, *told):
        bare = word.lstrip("-")
        # Of an option the parser may quote what is before its value, and what reads a list, an item of it.
        quoted = (word, bare, *bare.split(","), *(bare.split("=", 1) if bare != word else ()))
        for piece in quoted:
            if _LOOKS_LIKE_A_URL.match(piece):
                pieces[piece] = None
    return sorted(pieces, key=len, reverse=True)


class Commands(TyperGroup):
    """All commands; what the parser says of their words is said by us."""

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """Take note of the words of the command."""
        _typed[:] = args
        with _parser_says():
            return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        with _parser_says():
            return super().invoke(ctx)


@contextlib.contextmanager
def _parser_says() -> Iterator[None]:
    try:
        yield
    except _ParserError as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # it says nothing
            raise
        message = error.format_message()
        told = _BadUsage(said(message) + (HINT if mentions_url(message) else ""), ctx=getattr(error, "ctx", None))
        told.exit_code = error.exit_code
        raise told from None
