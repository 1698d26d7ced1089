"""
Fault schedule: the faults of each request, derived from the seed.

The faults of a request are drawn when it is sent, from the seed, the sender and its count of requests: so one fault can
be left out and all others stay the same.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, NamedTuple

import attrs

from queuehint.errors import InvalidJobTypeError, shown
from queuehint.schema.checks import check_choice, check_int, check_number

if TYPE_CHECKING:
    from collections.abc import Iterable

ROLLBACK_MAX = 50
"""How many of its last steps a restarted store may have lost at most."""
DELAY_MAX_MS = 60_000
PAUSE_MAX_MS = 24 * 3600 * 1000
QUICK_MS = 20
"""How long a message takes that is not delayed."""
CRASH_MAX_MS = 2_000
"""How long after the request with which it is drawn a crash comes at most."""

KINDS = (
    "lose_request",
    "lose_reply",
    "double_request",
    "delay",
    "crash",
    "pause",
    "clog",
    "step_clock",
    "restart",
)
"""The faults there are, each with its probability; a seed's story hangs on their order."""
PLANS = ("none", "crashes", "wire", "chaos")
"""The plans that have names."""


@attrs.frozen(kw_only=True)
class FaultPlan:
    """
    The faults of a simulation, as probabilities from 0 to 1 for each request of a client.

    Args:
        lose_request: it never arrives; its sender waits in vain and sends it again.
        lose_reply: it is carried out, and its sender does not learn of it.
        double_request: it arrives a second time, later.
        delay: it is on its way for up to *delay_ms*, instead of a few ms.
        crash: its sender dies, and is started anew up to *down_ms* later. It dies before the request leaves in a third
            of all cases, so that what a handler did is done and not told; within 20 ms in another; or within 2 s.
        pause: its sender stands still for up to *pause_ms* and then goes on as if nothing had been (a zombie, if its
            leases have ended meanwhile).
        clog: some clients are paused one by one, and go on in another order.
        step_clock: the clock of the store is set forwards or backwards, by up to *step_ms*.
        restart: the store is started anew, is away for up to *down_ms*, and has lost up to *rollback* of its last
            steps.
        delay_ms: 1 to 60 000.
        pause_ms: several leases make zombies; 1 to 86 400 000.
        step_ms: 1 to 86 400 000.
        down_ms: 1 to 86 400 000.
        rollback: 0 to 50.

    Raises:
        InvalidJobError, InvalidJobTypeError: naming the field.

    >>> FaultPlan.named("crashes").crash
    0.02
    >>> FaultPlan().is_calm
    True

    .. versionadded:: 1.0.0
    """

    lose_request: float = 0.0
    lose_reply: float = 0.0
    double_request: float = 0.0
    delay: float = 0.0
    crash: float = 0.0
    pause: float = 0.0
    clog: float = 0.0
    step_clock: float = 0.0
    restart: float = 0.0
    delay_ms: int = 2_000
    pause_ms: int = 90_000
    step_ms: int = 60_000
    down_ms: int = 5_000
    rollback: int = 0

    def __attrs_post_init__(self) -> None:
        for name in KINDS:
            object.__setattr__(self, name, check_number(getattr(self, name), parameter=name, least=0, most=1))
        for name, most in (
            ("delay_ms", DELAY_MAX_MS),
            *((f"{name}_ms", PAUSE_MAX_MS) for name in ("pause", "step", "down")),
        ):
            check_int(getattr(self, name), parameter=name, least=1, most=most)
        check_int(self.rollback, parameter="rollback", least=0, most=ROLLBACK_MAX)

    @property
    def is_calm(self) -> bool:
        """Nothing goes wrong."""
        return not any(getattr(self, name) for name in KINDS)

    @classmethod
    def none(cls) -> FaultPlan:
        """Return a plan without faults, whose order of events is still random."""
        return cls()

    @classmethod
    def crashes(cls) -> FaultPlan:
        """Return a plan by which workers die, or stand still beyond their leases."""
        return cls(crash=0.02, pause=0.02, clog=0.005)

    @classmethod
    def wire(cls) -> FaultPlan:
        """Return a plan by which requests and replies are lost, doubled and delayed."""
        return cls(lose_request=0.05, lose_reply=0.05, double_request=0.05, delay=0.1)

    @classmethod
    def chaos(cls) -> FaultPlan:
        """Return a plan by which everything goes wrong, the clock and the memory of the store too."""
        return cls(
            lose_request=0.04,
            lose_reply=0.04,
            double_request=0.04,
            delay=0.08,
            crash=0.015,
            pause=0.015,
            clog=0.005,
            step_clock=0.01,
            restart=0.008,
            rollback=ROLLBACK_MAX,
        )

    @classmethod
    def named(cls, name: str) -> FaultPlan:
        """
        Return a plan by its name: none, crashes, wire or chaos.

        Raises:
            InvalidJobError, InvalidJobTypeError: there is no such plan.
        """
        plan: FaultPlan = getattr(cls, check_choice(name, PLANS, parameter="faults"))()
        return plan

    @classmethod
    def read(cls, value: object) -> FaultPlan:
        """
        Return a plan, given as such or by its name.

        Raises:
            InvalidJobError, InvalidJobTypeError: it is none.
        """
        if isinstance(value, cls):
            return value
        if not isinstance(value, str):
            raise InvalidJobTypeError(
                f"faults must be a FaultPlan or the name of one, got {type(value).__name__}: {shown(value)}"
            )
        return cls.named(value)


def check_seed(seed: object, *, steps: object = 1) -> None:
    """Check a seed, any whole number of 64 bits, and its number of steps."""
    check_int(seed, parameter="seed", least=-(1 << 63), most=(1 << 63) - 1)
    check_int(steps, parameter="steps", least=1, most=10**9)


class Fault(NamedTuple):
    """A fault that occurred: its process, and the number of the preceding request."""

    kind: str
    sender: str
    request: int


class FaultSchedule:
    """
    The faults of one world, and the requests and processes that they hit.

    Args:
        only: the faults that may happen; None for all that are drawn.
    """

    def __init__(self, seed: int, plan: FaultPlan, only: Iterable[Fault] | None) -> None:
        self._seed = seed
        self.plan = plan
        self.only = None if only is None else frozenset(only)
        self.faults: list[Fault] = []
        """Kind of the fault."""

    def of(self, sender: str, request: int) -> RequestFaults:
        """Draw for a request."""
        return RequestFaults(self, sender, request, Random(f"{self._seed}/{sender}/{request}"))


class RequestFaults:
    """Faults of one request, all drawn unconditionally, so that the removal of one changes no other."""

    def __init__(self, schedule: FaultSchedule, sender: str, request: int, random: Random) -> None:
        self._schedule = schedule
        self._sender = sender
        self._request = request
        self.there_ms = random.randrange(1, QUICK_MS)
        self.back_ms = random.randrange(1, QUICK_MS)
        self._rolls = {kind: random.random() for kind in KINDS}
        self.sizes = {kind: random.random() for kind in KINDS}
        """How much of each there is, from 0 to below 1."""

    def has(self, kind: str) -> bool:
        """Return whether a fault happens, and record a happening one."""
        schedule = self._schedule
        if self._rolls[kind] >= getattr(schedule.plan, kind):
            return False
        fault = Fault(kind, self._sender, self._request)
        if schedule.only is not None and fault not in schedule.only:
            return False
        schedule.faults.append(fault)
        return True

    @property
    def crash_after_ms(self) -> int:
        """The time of a crash, 0 before the request leaves."""
        third, within = divmod(3 * self.sizes["crash"], 1)
        return 0 if third == 0 else 1 + int(within * (QUICK_MS if third == 1 else CRASH_MAX_MS))

    def part(self, kind: str, most: int) -> int:
        """Return as much of *most* as there is of a fault, below it."""
        return int(self.sizes[kind] * most)
