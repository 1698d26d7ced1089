"""
Race detection for handlers: every order allowed by the rules has to leave the state of some serial order.

The handlers run unchanged, on a loop that lets one job at a time make a step, from one ``await`` to the next. The
engine decides by places and edges which jobs may run side by side. All orders of steps are tried, those with few
switches first, until there are too many; then some are drawn at random.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import attrs

from queuehint.errors import InvalidJobTypeError, shown
from queuehint.scheduler.scheduler import Scheduler
from queuehint.schema.checks import check_int
from queuehint.testing.arguments import check_function, off_the_loop
from queuehint.testing.interleaving.explore import Explorer, go_on
from queuehint.testing.interleaving.jobs import JobLike, Part, Rules, build_parts
from queuehint.testing.interleaving.narration import narrate
from queuehint.testing.interleaving.play import Choose, Played, play

S = TypeVar("S")

_SHRINK_RUNS_MIN = 200


@attrs.frozen
class SerialEquivalence:
    """
    The search of a check that found no race.

    Args:
        orders: how many orders of steps.
        is_exhaustive: these were all that the rules allow.

    .. versionadded:: 1.0.0
    """

    orders: int
    is_exhaustive: bool


@attrs.frozen
class _End:
    """Result of a run: the observed state, and the errors of jobs by their numbers."""

    state: Any
    errors: dict[int, type[BaseException]]


@attrs.frozen
class _Finding:
    """A failing order: the jobs, the choices that repeat it, the number of runs, and the fault."""

    parts: Sequence[Part]
    choices: tuple[int, ...]
    runs: int
    headline: str
    serial: _End
    cause: BaseException | None


def check_serial_equivalence(
    handlers: Scheduler | Mapping[str, Callable[..., Any]],
    jobs: Iterable[JobLike],
    state: Callable[[], S],
    *,
    view: Callable[[S], Any] | None = None,
    expected: type[Exception] | tuple[type[Exception], ...] = (),
    any_order: bool = False,
    orders_max: int = 1_000,
    seed: int = 0,
) -> SerialEquivalence:
    """
    Prove that handlers leave the same state in every order of steps that the rules allow as one after the other.

    The jobs run one by one first, in order of enqueue. Then every order is tried in which their steps may follow one
    another: a step is what a handler does from one ``await`` to the next, a plain function is one step. Jobs that
    conflict never overlap, and dependents come after what they depend on; all others may. A sleep may take any time,
    a time-out strikes where nothing else can go on. Retries, delays and results play no part.

    Args:
        handlers: by task: functions, async or plain, that take the state and the job's arguments. Or a scheduler: its
            handlers take their own arguments, and the state as `JobContext.state`, or find it where *state* has put it.
        jobs: in order of enqueue, each a `JobSpec`, as `Job.spec` returns it, or a tuple of task, hint and arguments:
            ``("add", ["doc1"], (5,))``, ``("add", None, {"amount": 5})``. The arguments of a spec are read by the
            annotations of its handler.
        state: makes a fresh state, anew for each order, and for handlers of a module puts it where they find it.
        view: what of a state is compared, such as ``lambda db: db.rows()``; by default the state itself, by ``==``.
        expected: exceptions that a handler may raise; its job is FAILED then. In all orders the same jobs have to
            raise the same. Any other exception is a finding, or, one by one, an error.
        any_order: take the state of any order of whole jobs; by default jobs that do not conflict have to leave the
            same state whichever comes first.
        orders_max: how many orders are tried at most. If there are more, half are those with the fewest switches and
            half are drawn by chance.
        seed: of chance.

    Returns:
        How many orders were tried, and whether these were all.

    Raises:
        AssertionError: an order leaves another state, or raises, or comes to a stand. The message shows the fewest
            jobs that do, their steps, and both states.
        ValueError: a job has no handler or has templates; two fresh states differ, or are one object without a
            *view* that copies; there are more orders of whole jobs than *orders_max*.
        InvalidJobTypeError: a parameter is of the wrong type, a job is no tuple of a task, a hint and arguments.
        HandlerError: a handler is a generator function.
        InvalidJobError, InvalidHintError, CycleError, UnknownDependencyError: as `Scheduler.submit`.

    >>> import asyncio
    >>> async def add(account, amount):
    ...     balance = account["balance"]
    ...     await asyncio.sleep(0)
    ...     account["balance"] = balance + amount
    >>> deposits = [("add", ["account1"], (5,)), ("add", ["account1"], (7,))]
    >>> check_serial_equivalence({"add": add}, deposits, lambda: {"balance": 0})
    SerialEquivalence(orders=1, is_exhaustive=True)

    .. versionadded:: 1.0.0
    """
    check_int(orders_max, parameter="orders_max", least=1, most=10**9)
    check_function(state, parameter="state")
    if view is not None:
        check_function(view, parameter="view")
    kinds: tuple[object, ...] = expected if isinstance(expected, tuple) else (expected,)
    for kind in kinds:
        if not isinstance(kind, type) or not issubclass(kind, Exception):
            raise InvalidJobTypeError(f"expected must be exceptions, got {type(kind).__name__}: {shown(kind)}")
    parts = build_parts(handlers, jobs)
    check = _Check(state, view, expected if isinstance(expected, tuple) else (expected,), any_order, seed)
    return off_the_loop(lambda: check(parts, orders_max))


class _Check:
    def __init__(
        self,
        state: Callable[[], Any],
        view: Callable[[Any], Any] | None,
        expected: tuple[type[Exception], ...],
        any_order: bool,
        seed: int,
    ) -> None:
        self.make = state
        self.view = view or (lambda state: state)
        self.expected = expected
        self.any_order = any_order
        self.seed = seed
        if view is None and state() is state():
            raise ValueError("state() returns one object twice: make a new one, or give the compared value by view=")
        if self.view(state()) != self.view(state()):
            raise ValueError("two fresh states differ: give them an __eq__, or give the compared value by view=")

    def __call__(self, parts: Sequence[Part], orders_max: int) -> SerialEquivalence:
        finding, explorer = self.find(parts, orders_max)
        if finding is None:
            return SerialEquivalence(explorer.runs, explorer.is_exhaustive)
        raise AssertionError(self.tell(self.shrink(finding), len(parts))) from finding.cause

    # --- to find ---

    def find(self, parts: Sequence[Part], orders_max: int) -> tuple[_Finding | None, Explorer]:
        """Return a failing order, if there is one."""
        rules = Rules(parts)

        def run(choose: Choose, **options: bool) -> Played[Any]:
            return play(parts, rules, self.make(), choose, **options)

        def whole(choose: Choose) -> Played[Any]:
            return run(choose, one_by_one=True)

        serial = self.one_by_one(parts, whole)
        allowed = [serial]
        if self.any_order:
            orders = Explorer(whole, orders_max, self.seed)
            allowed += [self.end(played) for played in orders.without_preemption()]
            if not orders.is_exhaustive:
                raise ValueError(f"the jobs may run in more than orders_max={orders_max} orders: give fewer jobs")
        explorer = Explorer(run, orders_max, self.seed)
        for played in explorer.all():
            wrong = self.find_fault(parts, played, allowed)
            if wrong is not None:
                headline, cause = wrong
                return _Finding(parts, played.choices, explorer.runs, headline, serial, cause), explorer
        return None, explorer

    def one_by_one(self, parts: Sequence[Part], run: Callable[[Choose], Played[Any]]) -> _End:
        """Run the jobs one by one, twice."""
        ends = []
        for _ in range(2):
            played = run(go_on)
            for number, error in played.errors.items():
                if not isinstance(error, self.expected):
                    error.add_note(f"raised by job {number}, {_named(parts, number)}, while jobs ran one by one")
                    raise error
            for number, where in played.stuck.items():
                raise AssertionError(
                    f"one by one the jobs do not end: job {number}, {_named(parts, number)}, waits for what is not "
                    f"done before it has ended{_at(where)}"
                )
            ends.append(self.end(played))
        if ends[0].state is ends[1].state and not _is_hashable(ends[0].state):
            raise ValueError("view= returns one object twice, which later orders change: return a copy")
        if ends[0] != ends[1]:
            raise AssertionError(
                f"one by one the jobs leave another state each time: {ends[0].state!r}, then {ends[1].state!r}; what "
                "they do follows from something besides state and arguments"
            )
        return ends[0]

    def end(self, played: Played[Any]) -> _End:
        return _End(self.view(played.state), {number: type(error) for number, error in played.errors.items()})

    def find_fault(
        self, parts: Sequence[Part], played: Played[Any], allowed: Sequence[_End]
    ) -> tuple[str, BaseException | None] | None:
        """Describe the fault of a run, and the errors that were raised."""
        for number, error in sorted(played.errors.items()):
            if not isinstance(error, self.expected):
                return f"Job {number}, {_named(parts, number)}, raises {error!r}; one by one it does not.", error
        if played.stuck:
            return f"{_jobs(len(played.stuck))} wait for one another for ever; one by one all end.", None
        end = self.end(played)
        if end in allowed:
            return None
        if end.errors not in [other.errors for other in allowed]:
            return "What jobs raise depends on the order of their steps.", None
        if played.is_one_by_one:
            return f"What {_jobs(len(parts))} leave depends on their order, and the rules allow another.", None
        return f"Side by side {_jobs(len(parts))} leave another state than one by one, and the rules allow it.", None

    # --- to tell ---

    def shrink(self, finding: _Finding) -> _Finding:
        """Leave out jobs as long as something goes wrong without them."""
        orders_max = max(_SHRINK_RUNS_MIN, 4 * finding.runs)
        number = 0
        while number < len(finding.parts) and len(finding.parts) > 1:
            left_out = finding.parts[-1 - number]
            try:
                smaller, _ = self.find(_without(left_out, finding.parts), orders_max)
            except Exception:  # noqa: BLE001 - without it the others do not even run one by one
                smaller = None
            if smaller is None:
                number += 1
            else:
                finding, number = smaller, 0
        return finding

    def tell(self, finding: _Finding, count: int) -> str:
        choices = iter(finding.choices)
        played = play(
            finding.parts, Rules(finding.parts), self.make(), lambda options, current: next(choices), telling=True
        )
        states = {"this order leaves": self.view(played.state), "one by one they leave": finding.serial.state}
        found = f"Found as number {finding.runs} of the orders tried"
        footnote = f"{found}; {len(finding.parts)} of {count} jobs are enough." if count > 1 else f"{found}."
        return narrate(finding.headline, finding.parts, played, states, footnote)


def _without(part: Part, parts: Sequence[Part]) -> list[Part]:
    """Return the other parts, without their dependencies on this one."""
    others = []
    for other in parts:
        if other is not part:
            edges = tuple([edge for edge in other.spec.depends_on if edge.id != part.spec.id])
            others.append(attrs.evolve(other, spec=attrs.evolve(other.spec, depends_on=edges)))
    return others


def _is_hashable(value: Any) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True


def _named(parts: Sequence[Part], number: int) -> str:
    return next(str(part) for part in parts if part.number == number)


def _jobs(count: int) -> str:
    return "1 job" if count == 1 else f"{count} jobs"


def _at(where: str | None) -> str:
    return f" at: {where}" if where else ""
