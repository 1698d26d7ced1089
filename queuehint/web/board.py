"""A board: the stores it shows, who may use it, and `Asker`, by which pages and the API ask and order."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

import attrs

from queuehint.schema.checks import check_choice
from queuehint.schema.compiled import check_of
from queuehint.web.access import Access, Auth
from queuehint.web.problems import Refused
from queuehint.web.routes import BY_NAME, ROUTES, Ask, Route
from queuehint.web.scope import forced, pruned
from queuehint.web.store import BoundedStore

if TYPE_CHECKING:
    from collections.abc import Mapping

    from queuehint.scheduler.scheduler import Scheduler
    from queuehint.schema.compiled import Check

logger = logging.getLogger("queuehint.board")

COLOURS: Final = ("red", "orange", "green", "blue", "grey")


@attrs.frozen(kw_only=True, eq=False)
class Board:
    """
    What a board shows, and how.

    Args:
        stores: by the name of the namespace.
        auth: says who may do what; None for nobody.
        read_only: no order is taken.
        label, colour: which environment it is of.
        hosts: the names by which it may be called; None for any.
    """

    stores: Mapping[str, BoundedStore]
    auth: Auth | None
    read_only: bool
    label: str | None
    colour: str | None
    hosts: frozenset[str] | None
    checks: Mapping[str, Check] = attrs.field(init=False, factory=lambda: {r.name: check_of(r.asks) for r in ROUTES})


@attrs.frozen(kw_only=True, eq=False)
class Asker:
    """
    One user who asks one store: what a page is given.

    Args:
        board: what is set for all.
        namespace: whose jobs.
        access: what the user may do.
    """

    board: Board
    namespace: str
    access: Access

    @property
    def scheduler(self) -> Scheduler:
        """The scheduler of the namespace, for what needs no store."""
        return self.board.stores[self.namespace].scheduler

    @property
    def may_order(self) -> bool:
        """Whether orders are taken of this user."""
        return self.access.write and not self.board.read_only

    def check(self, route: Route) -> None:
        """
        Check that the user may ask or order something.

        Raises:
            Refused: they may not.
        """
        if route.is_order and self.board.read_only:
            raise Refused(403, "read-only", "this board is read-only: it takes no orders")
        if not (self.access.write if route.is_order else self.access.read):
            raise Refused(403, "forbidden", f"you may not {'order' if route.is_order else 'read'} anything here")
        if self.access.scope and not route.is_scoped:
            raise Refused(403, "out-of-scope", f"{route.name} is about the whole namespace, and you are in a scope")

    async def answer(self, name: str, asked: Any) -> Any:
        """
        Return the answer to a question, or carry out an order, by the name of its route.

        Args:
            asked: a value of the class that the route asks.

        Returns:
            A value of the class that the route answers, without what the user may not see.

        Raises:
            Refused: the user may not, or names a path outside their scope.
            QueueHintError: the library or the store refuses it.
        """
        route = BY_NAME[name]
        self.check(route)
        shows = bool(getattr(asked, "arguments", False))
        if shows and not self.access.arguments:
            raise Refused(403, "forbidden", "you may not see arguments here")
        asked = forced(asked, self.access.scope)
        self.board.checks[name](asked)
        found = await self.board.stores[self.namespace].run(
            route.steps(Ask(asked, self.access)), is_order=route.is_order
        )
        return pruned(found, self.access, shows=shows)


def check_colour(value: object) -> str | None:
    """Check the colour of a label: it is part of the name of a class in a style sheet."""
    return None if value is None else check_choice(value, COLOURS, parameter="colour")
