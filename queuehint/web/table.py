"""
The form of the table of queries and orders: their requests, replies and limits in a scope.

A row names a class of what is asked, an operation mostly, from whose fields follow the parameters of a question and the
body of an order; and the class of the answer. Most rows are one operation each.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import attrs

from queuehint.backends.steps import Steps
from queuehint.schema.annotations import kind_of
from queuehint.schema.kinds import Many, PathOf, Value, bare
from queuehint.values.hint import parse_key
from queuehint.web.forms import fields_of

if TYPE_CHECKING:
    from queuehint.scheduler.scheduler import Scheduler
    from queuehint.values.hint import Path
    from queuehint.web.access import Access
    from queuehint.web.scope import Seal


@attrs.frozen
class Ask:
    """
    A request to a store, with its user.

    Args:
        asked: a value of the class that the route names, each of its paths in the scope.
        access: of the one who asks.
        scheduler: of the namespace.
        seal: hides positions.
        own: ids of jobs that were read and are of the scope; in a scope no others are named, unless they begin as those
            that are made there.
    """

    asked: Any
    access: Access
    scheduler: Scheduler
    seal: Seal
    own: set[str] = attrs.field(factory=set)

    @property
    def scope(self) -> Path:
        """The path below which all is."""
        return self.access.scope

    def hide(self, position: bytes, *, parameter: str) -> str:
        """Return a position as an opaque text, valid for this parameter and scope alone."""
        return self.seal.hide(position, parameter=parameter, scope=self.scope)

    def reveal(self, text: str, *, parameter: str) -> bytes:
        """
        Return the position that `hide` has made a text of.

        Raises:
            InvalidJobError: it has made none of this text.
        """
        return self.seal.reveal(text, parameter=parameter, scope=self.scope)


Answering: TypeAlias = Steps[Any] | Coroutine[Any, Any, Any]


def one(ask: Ask) -> Steps[Any]:
    """Apply one operation, and return its reply."""
    return (yield ask.asked)


@attrs.frozen(kw_only=True)
class Route:
    """
    A row of the table.

    Args:
        name: unique, for programs and pages.
        method: ``"GET"`` for a question, ``"POST"`` for an order.
        path: below ``/api/v1``, with parameters in braces.
        asks: the class of what is asked.
        answers: the class of the answer.
        summary: a sentence.
        find: finds the answer, by steps on the store or by a call of the scheduler.
        bind: which parameter of the path is which field.
        fixed: fields that are always the same.
        most: how many operations it takes at most.
        is_scoped: whether it may be asked in a scope.
    """

    name: str
    method: Literal["GET", "POST"] = "GET"
    path: str
    asks: type[Any]
    answers: Any
    summary: str
    find: Callable[[Ask], Answering] = one
    bind: Mapping[str, str] = attrs.field(factory=dict)
    fixed: Mapping[str, Any] = attrs.field(factory=dict)
    most: int = 1
    is_scoped: bool = True

    def bound(self, parameters: Mapping[str, str]) -> dict[str, Any]:
        """
        Return the fields set by the parameters of a path.

        Raises:
            InvalidHintError: one should be a queue key, and is none.
        """
        hints = fields_of(self.asks)
        said = {self.bind[name]: text for name, text in parameters.items()}
        return {**self.fixed, **{field: _bound(hints[field], text) for field, text in said.items()}}

    @property
    def is_order(self) -> bool:
        """Whether the row is an order."""
        return self.method == "POST"


def _bound(hint: Any, text: str) -> Any:
    """Return a parameter of a path in the form of a field: a filter by a path, a path, the only one of several."""
    kind = bare(kind_of(hint))
    if isinstance(kind, Value):
        return kind.cls(path=parse_key(text))
    if isinstance(kind, PathOf):
        return parse_key(text)
    return (text,) if isinstance(kind, Many) else text
