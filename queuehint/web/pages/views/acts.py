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
    An order on a page: a form with one button.

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
    Return an order without confirmation. Its label is the verb by default.

    >>> act("redrive", id="a").label
    'Redrive'
    """
    return Act(verb=verb, label=label or verb.capitalize(), fields=fields)


def asked(verb: str, label: str | None = None, **fields: object) -> Act:
    """Return an order that shows its effect before confirmation."""
    return attrs.evolve(act(verb, label, **fields), asks=True)


def danger(verb: str, label: str | None = None, **fields: object) -> Act:
    """Return a destructive order, which requires confirmation."""
    return attrs.evolve(act(verb, label, **fields), asks=True, is_danger=True)


def within(some: Sequence[Act], access: Access) -> list[Act]:
    """Return the orders allowed in a scope, without the resume of a pause above it."""
    return [each for each in some if not access.scope or each.verb != "resume" or _is_own(each, access)]


def _is_own(one: Act, access: Access) -> bool:
    return "path" in one.fields and access.holds(parse_key(str(one.fields["path"])))
