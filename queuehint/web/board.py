"""A board: its stores, its permissions, and `Asker`, through which pages and the API use a store."""

from __future__ import annotations

import logging
from collections import deque
from typing import TYPE_CHECKING, Any, Final

import attrs

from queuehint import operations as op
from queuehint.errors import QueueFullError, shown
from queuehint.schema.checks import check_choice
from queuehint.schema.compiled import check_of
from queuehint.values.hint import Path, parse_key
from queuehint.web.access import Access, Auth
from queuehint.web.flows import FLOWS
from queuehint.web.fragments import Fragments
from queuehint.web.orders import DONE, ORDERS, RunAgain, Submitted
from queuehint.web.problems import Refused
from queuehint.web.pulse import Pulse
from queuehint.web.questions import QUESTIONS
from queuehint.web.scope import Seal, forced, pruned
from queuehint.web.store import BoundedStore
from queuehint.web.table import Ask, Route

if TYPE_CHECKING:
    from collections.abc import Mapping

    from queuehint.scheduler.scheduler import Scheduler
    from queuehint.schema.compiled import Check

logger = logging.getLogger("queuehint.board")

ROUTES: Final[tuple[Route, ...]] = (*QUESTIONS, *FLOWS, *ORDERS)
"""The table of all questions and orders."""
BY_NAME: Final = {route.name: route for route in ROUTES}
COLOURS: Final = ("red", "orange", "green", "blue", "grey")


@attrs.define(kw_only=True, eq=False)
class Board:
    """
    The stores, permissions and settings of a board.

    Args:
        stores: by the name of the namespace.
        auth: says who may do what; None for nobody.
        read_only: no order is taken.
        label, colour: which environment it is of.
        hosts: the names by which it may be called; None for any.
        seal: hides positions from users in a scope.
    """

    stores: Mapping[str, BoundedStore]
    auth: Auth | None
    read_only: bool
    label: str | None
    colour: str | None
    hosts: frozenset[str] | None
    seal: Seal
    streams: int = attrs.field(init=False, default=0)
    """How many streams of events are open."""
    redrives: dict[tuple[str, Path], Any] = attrs.field(init=False, factory=dict)
    """The guarded redrives of pages, by namespace and scope: one each."""
    pulses: Mapping[str, Pulse] = attrs.field(init=False)
    """The pulses of the stores, by namespace."""
    fragments: Mapping[str, Fragments] = attrs.field(init=False)
    """The fragments of pages that readers share, by namespace."""
    seen: dict[tuple[str, Path], deque[tuple[int, dict[str, int]]]] = attrs.field(init=False, factory=dict)
    """The numbers that the page Now has shown lately, by namespace and scope; see `queuehint.web.pages.history`."""
    checks: Mapping[str, Check] = attrs.field(init=False, factory=lambda: {r.name: check_of(r.asks) for r in ROUTES})

    def __attrs_post_init__(self) -> None:
        self.pulses = {name: Pulse(store.scheduler) for name, store in self.stores.items()}
        self.fragments = {name: Fragments(pulse) for name, pulse in self.pulses.items()}


@attrs.frozen(kw_only=True, eq=False)
class Asker:
    """
    One user with access to one store, passed to every page.

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
        """The scheduler of the namespace, for calls without I/O."""
        return self.board.stores[self.namespace].scheduler

    @property
    def pulse(self) -> Pulse:
        """The pulse of the store."""
        return self.board.pulses[self.namespace]

    @property
    def may_order(self) -> bool:
        """Whether orders are taken of this user."""
        return self.access.write and not self.board.read_only

    def check_read(self) -> None:
        """
        Check that the user may read.

        Raises:
            Refused: they may not.
        """
        if not self.access.read:
            raise Refused(403, "forbidden", "you may not read anything here")

    def check(self, route: Route) -> None:
        """
        Check that the user may send a query or an order.

        Raises:
            Refused: they may not.
        """
        if route.is_order and self.board.read_only:
            raise Refused(403, "read-only", "this board is read-only: it takes no orders")
        if route.is_order and not self.access.write:
            raise Refused(403, "forbidden", "you may not order anything here")
        if not route.is_order:
            self.check_read()
        if self.access.scope and not route.is_scoped:
            raise Refused(403, "out-of-scope", f"{route.name} is about the whole namespace, and you are in a scope")

    async def answer(self, name: str, asked: Any) -> Any:
        """
        Answer a query, or carry out an order, by the name of its route.

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
        asked = forced(asked.check() if hasattr(asked, "check") else asked, self.access.scope)
        self.board.checks[name](asked)
        ask = Ask(asked, self.access, self.scheduler, self.board.seal)
        try:
            found = await self.board.stores[self.namespace].run(route.find(ask), is_order=route.is_order)
        except QueueFullError as error:
            self._hide_limit(error)
            raise
        if route.is_order:
            self._log(route, asked, found)
        return pruned(found, self.access, shows=shows, own=ask.own)

    def _hide_limit(self, error: QueueFullError) -> None:
        """
        Hide from a user in a scope how full a place above the scope is.

        Raises:
            Refused: it is above.
        """
        key = error.path_key
        if self.access.scope and (key is None or not self.access.holds(parse_key(key))):
            raise Refused(429, "QueueFullError", "a limit above this scope is reached; nothing was enqueued") from error

    def _log(self, route: Route, asked: Any, found: Any) -> None:
        """Log the user of an order, and the number of jobs or settings it changed."""
        who = self.access.name or "an operator"
        facts: dict[str, Any] = {"event": "board.order", "who": who, "order": route.name, "namespace": self.namespace}
        facts |= {"what": target_of(asked), "count": count_of(asked, found)}
        logger.info("an order of the board was carried out", extra=facts)


def check_colour(value: object) -> str | None:
    """Check the colour of a label, which is part of a class name in a style sheet."""
    return None if value is None else check_choice(value, COLOURS, parameter="colour")


def target_of(asked: Any) -> str:
    """
    Return the target of an order as text for the log: ids, a path or a filter.

    >>> target_of(op.Cancel(("a", "b"))), target_of(op.Close(("doc1",)))
    ("ids ('a', 'b')", "path ('doc1',)")
    """
    name = next(
        name for name in ("ids", "path", "filter", "limit", "user", "name", "jobs", "job") if hasattr(asked, name)
    )
    found = getattr(asked, name)
    return f"{name} {shown([spec.id for spec in found] if name == 'jobs' else found)}"


def count_of(asked: Any, found: Any) -> int:
    """
    Return the number of jobs or settings that an order has changed, a repeated id counted once.

    >>> done = (op.Verdict.DONE, None)
    >>> count_of(op.Cancel(("a", "b", "a")), op.Judged((done, (op.Verdict.UNKNOWN, None), done), more=False))
    1
    >>> count_of(op.CancelPath(("doc1",)), op.SweptPath(False, 7))
    7
    """
    if isinstance(found, op.SweptPath):
        return found.reached
    if isinstance(found, op.Judged):
        return len({job_id for job_id, (verdict, _) in zip(asked.ids, found.verdicts, strict=True) if verdict in DONE})
    if isinstance(found, Submitted):
        return sum(job.created for job in found.jobs)
    if isinstance(found, RunAgain):
        return found.count
    return int(getattr(found, "changed", True))
