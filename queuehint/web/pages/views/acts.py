"""Orders as a page offers them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import attrs

from queuehint.values.hint import parse_key

if TYPE_CHECKING:
    from queuehint.web.access import Access


@attrs.frozen(kw_only=True)
class Act:
    """
    An order that a page offers: a form of one button.

    Args:
        verb: of ``POST /do/{verb}``.
        label: of the button.
        fields: of the form.
        is_danger: something is lost by it.
        asks: it says first what it touches, on ``/confirm/{verb}``.
    """

    verb: str
    label: str
    fields: Mapping[str, object] = attrs.field(factory=dict)
    is_danger: bool = False
    asks: bool = False


def act(verb: str, label: str | None = None, **fields: object) -> Act:
    """
    Return an order that is carried out at once; its label is the verb, if nothing else is said.

    >>> act("redrive", id="a").label
    'Redrive'
    """
    return Act(verb=verb, label=label or verb.capitalize(), fields=fields)


def asked(verb: str, label: str | None = None, **fields: object) -> Act:
    """Return an order that says first what it touches."""
    return attrs.evolve(act(verb, label, **fields), asks=True)


def danger(verb: str, label: str | None = None, **fields: object) -> Act:
    """Return an order by which something is lost; it asks first."""
    return attrs.evolve(act(verb, label, **fields), asks=True, is_danger=True)


def within(some: Sequence[Act], access: Access) -> list[Act]:
    """Return the orders that a scope may give: it resumes no pause above it."""
    return [each for each in some if not access.scope or each.verb != "resume" or _is_own(each, access)]


def _is_own(one: Act, access: Access) -> bool:
    return "path" in one.fields and access.holds(parse_key(str(one.fields["path"])))
