"""
Scenarios: the steps of a run, drawn from a seed and a plan of faults.

Events lie in a heap, by virtual time: a client acts, a request or an answer arrives, a fault ends. Each choice is drawn
when its turn comes, so the same seed makes the same run.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from random import Random
from typing import Any

import attrs

from queuehint import operations as op
from queuehint.testing.commits import commit_of
from queuehint.testing.simulation.faults import FaultPlan
from queuehint.testing.simulation.store import BEGIN_MS
from queuehint.values.hint import Claim, normalise
from queuehint.values.limit import Limit
from queuehint.values.outcome import OutcomeKind
from queuehint.values.policy import Backoff, Policy
from queuehint.values.record import JobState
from queuehint.values.record_filter import RecordFilter
from queuehint.values.spec import Dependency, JobSpec
from tests.simulation.world import LEASE_MS, Client, Step, World

FAILED = JobState.FAILED
WORKERS = 3
PRODUCERS = 2
UNFINISHED_MAX = 12
QUICK_MS = 20
"""How long a message takes that is not delayed."""
ANSWER_MS = 1_000
"""How long a client waits for an answer before it asks again."""

_back_off = Backoff(base=5, factor=2, cap=20, jitter=0)
POLICIES = (
    Policy(backoff=_back_off),
    Policy(backoff=_back_off),
    Policy(backoff=_back_off, max_attempts=2, max_losses=2),
    Policy(backoff=_back_off, on_retry="yield"),
    Policy(backoff=_back_off, max_attempts=1, on_dead="hold"),
    Policy(backoff=_back_off, max_attempts=1, on_dead="cancel_behind"),
    Policy(backoff=_back_off, max_attempts=1, on_dependency_failure="cancel"),
    Policy(backoff=_back_off, on_dependency_failure="run", start_within_ms=120_000),
)
KEY_POLICIES = (Policy(backoff=_back_off), Policy(backoff=_back_off, key_for_ms=20_000))
FILTERS: tuple[dict[str, Any], ...] = (
    {"task": "u"},
    {"user": "v"},
    {"service": "s"},
    {"pool": "default"},
    {"tag": "x"},
    {"tag": "x", "path": ("a",)},
)
RATES = ((1, 1_000), (2, 5_000), (3, 20_000))
PATHS = ((), ("a",), ("b",), ("a", "a"), ("a", "b"), ("b", "a"), ("a", "a", "a"), ("c",))
_EXCLUSIVE = tuple((Claim(path),) for path in PATHS)
_SHARED = tuple((Claim(path, "shared"),) for path in PATHS)
_OUTCOMES = (
    *[OutcomeKind.FINISHED] * 12,
    *[OutcomeKind.FAILED] * 5,
    *[OutcomeKind.SNOOZED] * 1,
    *[OutcomeKind.RELEASED] * 2,
    *[OutcomeKind.CHILDREN] * 2,
    OutcomeKind.DISCARDED,
    OutcomeKind.UNKNOWN_TASK,
)


class Driver:
    """
    Makes up the steps of one story and has a world do them.

    Args:
        taken: where each step is written down before it is done; None to record nothing.
    """

    def __init__(self, seed: int, plan: FaultPlan, world: World, taken: list[Step] | None = None) -> None:
        self._random = random = Random(seed)
        self._plan = plan
        self._world = world
        self._taken = taken
        self._heap: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []
        self._order = 0
        self._keys = 0
        self._made = 0
        self._submissions = 0
        """How many submissions in parts were begun."""
        self._at_ms = 0
        self._down_until_ms = 0
        self._unfinished_max = 3 + random.randrange(UNFINISHED_MAX - 2)
        self._shares = random.random() < 0.4
        self._has_timeouts = seed % 4 == 1
        """Some submissions are flows with a timeout."""
        self._has_labels = seed % 2 == 0
        """Jobs differ in task, user, service and tags, and pauses are by these too."""
        self._has_limits = seed % 3 == 1
        self._has_keys = seed % 4 == 3
        """Some jobs have keys, whose bursts are one job, put off or kept for a time after its end."""
        self._is_journal = seed % 5 == 2
        """In place of a restart another process leads."""
        self._pace_ms = random.choice((800, 3_000, 8_000))
        for client in world.clients:
            self._later(random.randrange(1_000), self._act, client, client.life)

    def run(self, steps: int) -> None:
        """Do so many steps."""
        world, heap = self._world, self._heap
        while world.steps < steps and heap:
            self._at_ms, _, event, args = heappop(heap)
            event(*args)

    def _later(self, in_ms: int, event: Callable[..., None], *args: Any) -> None:
        self._order += 1
        heappush(self._heap, (self._at_ms + in_ms, self._order, event, args))

    def _step(self, *step: Any) -> bool:
        taken = (self._at_ms, *step)
        if self._taken is not None:
            self._taken.append(taken)
        return self._world.do(taken)

    # --- clients -----------------------------------------------------------------------------------------------------

    def _act(self, client: Client, life: int) -> None:
        """Draw the next action of a client, unless it waits for an answer, is paused or has died."""
        if client.life != life or client.is_paused or client.request is not None:
            return
        self._keys += 1
        key = self._keys
        what = self._work(client) if client.place < WORKERS else self._produce()
        if what is not None and self._step("send", key, client.place, *what):
            self._transmit(key)
            self._hurt(client)
        else:
            self._later(self._pace_ms, self._act, client, life)

    def _work(self, client: Client) -> tuple[Any, ...] | None:
        """Draw an action of a worker: settle, renew or claim; seldom anything when it has no work."""
        random, now_ms = self._random, self._at_ms
        held = client.held
        until_ms = min([holding.until_ms for holding in held.values()], default=0)
        ended = []
        for job_id, holding in held.items():
            if holding.done_ms is None:
                holding.done_ms = now_ms + random.choice((0, 0, 1_000, 5_000, 20_000))
            if holding.done_ms <= now_ms:
                kind = random.choice(_OUTCOMES)
                if kind is OutcomeKind.CHILDREN:
                    ended.append((job_id, kind, 0, *self._children()))
                else:
                    delay_ms = 0 if kind is OutcomeKind.FINISHED else random.choice((0, 1_000, 10_000))
                    ended.append((job_id, kind, delay_ms))
        if held and not ended and until_ms - BEGIN_MS - now_ms < 2 * LEASE_MS // 3:
            return ("renew",)
        room = 3 - len(held) + len(ended)
        if not ended and not (room and self._world.store.engine.table.ready.sizes()) and random.random() < 0.8:
            return None
        return ("exchange", random.randint(1, room) if room else 0, tuple(ended))

    def _children(self) -> list[str]:
        """Return the children that a job waits for: some of the newest jobs, which may wait for it."""
        last = range(max(1, self._made - 6), self._made + 1)
        return [str(number) for number in self._random.sample(last, min(self._random.choice((1, 1, 2)), len(last)))]

    def _produce(self) -> tuple[Any, ...] | None:
        """Draw an action of a producer: mostly an enqueue, as long as there is room for more."""
        operation = self._order_of()
        return None if operation is None else ("do", operation)

    def _order_of(self) -> op.Operation[Any] | None:
        random = self._random
        promises = self._world.store.promises
        over = sum([promises.counts[state] for state in (JobState.FINISHED, FAILED, JobState.CANCELED)])
        has_room = len(promises.books) - over < self._unfinished_max
        if self._has_limits and random.random() < 0.1:
            return self._limit()
        roll = random.random()
        if roll < 0.75:
            if not has_room:
                return None
            specs = tuple([self._spec() for _ in range(random.choice((1, 1, 1, 2, 3)))])
            if roll < 0.1 and self._has_timeouts:
                flow = f"f{self._made}"
                specs = tuple([attrs.evolve(spec, flow=flow) for spec in specs])
                return op.Enqueue(specs, flow=flow, flow_timeout_ms=random.choice((500, 5_000, 60_000)))
            if random.random() < 0.2:
                begun = self._submissions
                staged = self._submission()
                return op.Enqueue(specs, staged=staged, is_further=self._submissions == begun)
            if self._has_keys and random.random() < 0.5:
                specs = tuple([self._keyed(spec) for spec in specs])
            return op.Enqueue(specs)
        if roll < 0.8:
            some = (str(random.randint(max(1, self._made - 12), max(1, self._made))),)
            # The same random numbers as ever, so that a seed stands for the same history.
            return op.Redrive(some, waiting=True) if roll >= 0.79 else op.Cancel(some)
        if roll < 0.82:
            return op.CancelPath(random.choice(PATHS[1:]))
        if roll < 0.9 and promises.counts[FAILED]:
            dead = [book.id for book in promises.books.values() if book.state is FAILED]
            return op.Redrive(tuple(dead[-2:]), random.random() < 0.5) if roll < 0.88 else op.Discard((dead[0],))
        if roll < 0.94:
            return self._pause_or_resume()
        if roll < 0.98 and self._submissions:
            staged = f"s{random.randint(max(1, self._submissions - 1), self._submissions)}"
            return op.Withdraw(staged) if random.random() < 0.25 else commit_of(self._world.store.engine, staged)
        return op.Tick()

    def _pause_or_resume(self) -> op.Operation[Any]:
        random = self._random
        paused = [pause.filter for pause in self._world.store.engine.table.pauses.all()]
        if paused and (len(paused) > 1 or random.random() < 0.6):
            return op.Resume(random.choice(paused))
        for_ms = random.choice((None, None, 1_000, 30_000))
        if self._has_labels and random.random() < 0.6:
            return op.Pause(RecordFilter(**random.choice(FILTERS)), for_ms)
        return op.Pause(RecordFilter(path=random.choice(PATHS[1:])), for_ms)

    def _limit(self) -> op.Operation[Any]:
        """Draw a limit of a place, of each child of it, of a task, the pool or the namespace, or drop one."""
        random = self._random
        known = list(self._world.store.promises.starts.limits.values())
        if known and random.random() < 0.3:
            return op.SetLimit(random.choice(known).lifted)
        roll, most, rate = random.random(), random.choice((1, 1, 2)), random.choice(RATES)
        if roll < 0.2:
            whose: dict[str, Any] = random.choice(
                ({"path": None}, {"path": ()}, {"path": ("a",)}, {"task": "t"}, {"task": "u"}, {"pool": "default"})
            )
            return op.SetLimit(Limit(max_pending=random.choice((2, 4, 8)), **whose))
        if roll < 0.35:
            return op.SetLimit(Limit(path=random.choice(((), ("a",))), each=True, max_pending=random.choice((2, 4))))
        of: dict[str, Any] = random.choice(
            ({"path": random.choice(PATHS)}, {"path": random.choice(((), ("a",))), "each": True}, {"task": "t"},
             {"task": "u"}, {"pool": "default"})
        )  # fmt: skip
        if random.random() < 0.5:
            return op.SetLimit(Limit(most=most, **of))
        return op.SetLimit(Limit(most=random.choice((None, most)), rate=rate, **of))

    def _keyed(self, spec: JobSpec) -> JobSpec:
        """Give a job the key of its place, so that a replacement claims the same; none if it waits for others."""
        if spec.depends_on:
            return spec
        random = self._random
        key = "/".join(["+".join((*claim.path, claim.mode)) for claim in spec.claims])
        policy = random.choice(KEY_POLICIES)
        if random.random() < 0.5:
            on_conflict: Any = random.choice(("return", "after"))
            return attrs.evolve(spec, key=key or "free", on_conflict=on_conflict, policy=policy)
        delay_ms = random.choice((None, 1_000, 10_000))
        most_ms = None if delay_ms is None else random.choice((None, delay_ms, 15_000))
        return attrs.evolve(
            spec, key=key or "free", on_conflict="replace", delay_ms=delay_ms, max_delay_ms=most_ms, policy=policy
        )

    def _submission(self) -> str:
        """Return a submission in parts: a new one, or the last, which may be committed by now."""
        if not self._submissions or self._random.random() < 0.5:
            self._submissions += 1
        return f"s{self._submissions}"

    def _spec(self) -> JobSpec:
        random = self._random
        self._made += 1
        made, roll = self._made, random.random()
        place = random.randrange(len(PATHS))
        claims: tuple[Claim, ...] = _SHARED[place] if self._shares and roll < 0.4 else _EXCLUSIVE[place]
        if roll > 0.94:
            claims = normalise(claims + random.choice(_EXCLUSIVE))
        elif roll > 0.9:
            claims = ()
        after: tuple[Dependency, ...] = ()
        if random.random() < 0.2 and made > 1:
            last = range(max(1, made - 6), made)
            several = random.sample(last, min(random.choice((1, 1, 2, 3)), len(last)))
            after = tuple([Dependency(str(number)) for number in several])
        delay_ms = random.choice((500, 5_000, 60_000)) if random.random() < 0.15 else None
        labels: dict[str, Any] = {}
        if self._has_labels:
            labels = {
                "user": random.choice((None, None, "v")),
                "service": random.choice((None, None, "s")),
                "tags": random.choice(((), (), ("x",))),
                "headers": random.choice(((), (("h", "1"),))),
            }
        return JobSpec(
            id=str(made),
            task="u" if self._has_labels and made % 3 == 0 else "t",
            claims=claims,
            **labels,
            depends_on=after,
            delay_ms=delay_ms,
            priority=random.choice((3, 3, 1, 5, 9)),
            policy=random.choice(POLICIES),
        )

    # --- the wire ----------------------------------------------------------------------------------------------------

    def _transmit(self, key: int) -> None:
        """Send a request, or send it again: it arrives, or not; and its sender waits."""
        random, plan = self._random, self._plan
        self._later(ANSWER_MS + random.randrange(ANSWER_MS), self._miss, key)
        if plan.lose_request and random.random() < plan.lose_request:
            return
        self._later(self._latency_ms(), self._arrive, key, True)
        if plan.double_request and random.random() < plan.double_request:
            self._later(self._latency_ms() + random.randrange(1, plan.delay_ms + 1), self._arrive, key, False)

    def _latency_ms(self) -> int:
        random, plan = self._random, self._plan
        if plan.delay and random.random() < plan.delay:
            return random.randrange(1, plan.delay_ms + 1)
        return random.randrange(1, QUICK_MS)

    def _arrive(self, key: int, is_answered: bool) -> None:
        if self._at_ms < self._down_until_ms:
            return
        self._step("deliver", key)
        if is_answered and not (self._plan.lose_reply and self._random.random() < self._plan.lose_reply):
            self._later(self._latency_ms(), self._learn, key)

    def _learn(self, key: int) -> None:
        request = self._world.requests[key]
        client = request.client
        if client.request is not request or request.stream != client.name:
            return
        if client.is_paused:
            # It is there when the client goes on.
            self._later(500, self._learn, key)
            return
        if self._step("answer", key):
            more = getattr(request.answer, "more", False)
            self._later(1 if more else self._random.randrange(1, self._pace_ms), self._act, client, client.life)

    def _miss(self, key: int) -> None:
        """Ask again what was not answered in time."""
        request = self._world.requests[key]
        client = request.client
        if client.request is not request or request.stream != client.name:
            return
        if client.is_paused:
            self._later(ANSWER_MS, self._miss, key)
        else:
            self._transmit(key)

    # --- faults ------------------------------------------------------------------------------------------------------

    def _hurt(self, client: Client) -> None:
        """Draw what befalls a client, the store or its clock once a request is on its way."""
        random, plan = self._random, self._plan
        if plan.crash and random.random() < plan.crash:
            self._later(random.randrange(1, 3_000), self._crash, client, client.life)
        if plan.pause and random.random() < plan.pause:
            self._later(random.randrange(1, 1_000), self._pause, client, random.randrange(1, plan.pause_ms + 1))
        if plan.clog and random.random() < plan.clog:
            some = random.sample(self._world.clients, random.randint(2, len(self._world.clients)))
            begins, ends = 0, [random.randrange(1, plan.pause_ms + 1) for _ in some]
            for each, for_ms in zip(some, ends, strict=True):
                begins += random.randrange(1, 500)
                self._later(begins, self._pause, each, for_ms)
        if plan.step_clock and random.random() < plan.step_clock:
            self._later(random.randrange(1, 1_000), self._set_clock, random.randint(-plan.step_ms, plan.step_ms))
        if plan.restart and random.random() < plan.restart * (5 if self._is_journal else 1):
            self._later(random.randrange(1, 1_000), self._restart, random.choice((0, 1, 2, 5, plan.rollback)))

    def _crash(self, client: Client, life: int) -> None:
        if client.life == life and self._step("crash", client.place):
            self._later(self._random.randrange(1, self._plan.down_ms + 1), self._act, client, client.life)

    def _pause(self, client: Client, for_ms: int) -> None:
        if self._step("pause", client.place):
            self._later(for_ms, self._wake, client)

    def _wake(self, client: Client) -> None:
        if self._step("wake", client.place):
            self._later(1, self._act, client, client.life)

    def _set_clock(self, ahead_ms: int) -> None:
        self._step("clock", ahead_ms)

    def _restart(self, lost: int) -> None:
        if self._is_journal:
            self._step("take_over", lost > 1)
        else:
            self._step("restart", min(lost, self._plan.rollback))
        self._down_until_ms = self._at_ms + self._random.randrange(1, self._plan.down_ms + 1)
