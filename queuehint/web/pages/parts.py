"""
Small parts of pages, and the text in them made harmless.

Whatever text is written, control and bidi characters in it become codes, as the printer of the commands has them, then
HTML escapes the rest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from markupsafe import Markup, escape

from queuehint.shown import plain

if TYPE_CHECKING:
    from collections.abc import Mapping


def harmless(value: Any) -> Any:
    """Return what a template writes: text without what a page would obey, None and numbers as they are."""
    return plain(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _markup(form: str, *values: Any) -> Markup:
    """Return a part, each ``%s`` of its form a value that is made harmless."""
    return Markup(form % tuple([escape(harmless(value)) for value in values]))  # noqa: S704 - each value is escaped


def text(value: Any) -> Markup:
    """Return a text of an application, which moves nothing beside it if it is written from right to left."""
    return _markup("<bdi>%s</bdi>", value)


def time(when: Mapping[str, Any] | None, what: str = "apart") -> Markup:
    """Return a moment."""
    if not when:
        return Markup("")
    return _markup('<time datetime="%s" title="%s">%s</time>', when["iso"], when["iso"], when[what])


def state(row: Mapping[str, Any]) -> Markup:
    """Return the state of a job."""
    return _markup('<span class="state %s">%s</span>', row["state"], row["state_word"])


def place(view: Mapping[str, Any]) -> Markup:
    """Return a link to a place."""
    mark = _markup(' <small class="mark">%s</small>', view["mark"]) if view["mark"] else ""
    return _markup('<a href="%s"><bdi>%s</bdi></a>%s', view["url"], view["key"], mark)
