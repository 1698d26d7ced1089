"""
Redaction of all messages that quote arguments of commands, including messages of the parser.

An argument may hold a password in any position: a URL as the name of a command, of an option, as a state. Of a URL
among the words of the command line only the parts known to be harmless are repeated: its scheme, host and database.
Control characters that a terminal would obey are shown as their codes.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from typing import TYPE_CHECKING, Any

import typer
from typer.core import DEFAULT_MARKUP_MODE, TyperGroup

from queuehint.backends.masks import HIDDEN, hidden_parts, masked
from queuehint.shown import plain

if TYPE_CHECKING:
    from collections.abc import Iterator

HINT = "; a store is named by --target"
BOXES_COLUMNS = 70
"""Terminals with fewer columns get help without boxes."""

_LOOKS_LIKE_A_URL = re.compile(r"[a-z][a-z0-9+.-]*:(//|/?[^\s]*@)", re.IGNORECASE)
_IN_A_TEXT = re.compile(r"[a-z][a-z0-9+.-]*:/[^\s'\"]*[@?#;][^\s'\"]*(?<![:.,;)])", re.IGNORECASE)
# The parser may be click, or typer's own copy of it.
_ParserError: Any = typer.BadParameter.__mro__[2]
_BadUsage: Any = typer.BadParameter.__mro__[1]

_typed: list[str] = []
"""The words of the command that runs."""


def said(text: str) -> str:
    r"""
    Return a text as it may be printed: of URLs among the words of the command what is harmless, and nothing obeyed.

    >>> print(said("no such command: redis://ann:secret@db:6379/0 \x1b[31m"))
    no such command: redis://***@db:6379/0 \x1b[31m
    """
    return plain(hidden(text))


def hidden(text: str) -> str:
    """Return a text in which all parts of its URLs are hidden that are not known to be harmless."""
    pieces = _pieces()
    shown = {piece: masked(piece) for piece in pieces}
    # A parser of URLs may quote a part of one.
    parts = {part for piece in pieces for part in hidden_parts(piece)}
    for piece in (*pieces, *sorted(parts, key=len, reverse=True)):
        for form in {piece, repr(piece)[1:-1], plain(piece)}:
            text = re.sub(re.escape(form), lambda _, piece=piece: shown.get(piece, HIDDEN), text, flags=re.IGNORECASE)  # type: ignore[misc]
    return _IN_A_TEXT.sub(lambda found: masked(found[0]), text)


def mentions_url(text: str) -> bool:
    """Return whether a text mentions a URL from the words of the command."""
    folded = text.casefold()
    return any(form.casefold() in folded for piece in _pieces() for form in (piece, repr(piece)[1:-1]))


def _pieces() -> list[str]:
    """Return the URLs among the words of the command, and their parts that a parser may quote."""
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

    def main(self, *args: Any, **extra: Any) -> Any:
        """Run a command, with plain help where boxes would be too narrow to be read."""
        _draw_boxes(self, shutil.get_terminal_size().columns >= BOXES_COLUMNS)
        return super().main(*args, **extra)

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """Store the words of the command."""
        _typed[:] = args
        if self.rich_markup_mode is None:
            extra["terminal_width"] = shutil.get_terminal_size().columns
        with _parser_says():
            return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        with _parser_says():
            return super().invoke(ctx)


def _draw_boxes(command: Any, are_drawn: bool) -> None:
    """Have a command and its subcommands print help and errors in boxes, or not."""
    command.rich_markup_mode = DEFAULT_MARKUP_MODE if are_drawn else None
    for below in getattr(command, "commands", {}).values():
        _draw_boxes(below, are_drawn)


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
