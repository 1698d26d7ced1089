"""
The short ways of the scripts beside the long ones: a second namespace gets every command, and never takes a short way.
Its scripts remember two texts where others remember a thousand.

`TwoWays` is a `RedisLockstep` whose commands go to both namespaces, byte for byte but for the prefix of the keys. After
each operation the replies are equal, and so is every key: heads, counters, markers, receipts. The library of the
second namespace counts how often a short way would have been taken.
"""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Generator
from random import Random
from typing import Any

from redis.exceptions import ResponseError

from queuehint import operations as op
from queuehint.backends.redis import keys
from queuehint.backends.redis.functions.library import Library
from queuehint.backends.redis.scripts import script
from queuehint.backends.redis.transport import Redirect, Send, Sleep
from queuehint.testing.state_machine.styles import LEASE_MS, MINUTE, Style
from queuehint.values.outcome import Outcome, OutcomeKind
from queuehint.values.policy import ON_DEAD, ON_DEPENDENCY_FAILURE, ON_RETRY, Backoff, Policy
from queuehint.values.spec import JobSpec
from tests.calls import script_of
from tests.property.agreement import ALPHABETS, RESULTS, PayloadGenerator, RedisLockstep, Wiretap
from tests.servers import new_namespace

COUNTER = "short_ways"
"""The key of the second namespace that counts short ways, by their script."""
_COUNT = f"redis.call('HINCRBY', KEYS[1] .. ':{COUNTER}', '%s', '1')"
_IS_DROP = "job.pruned and job.is_plain and job[STATE] == FINISHED"
_OTHERWISE = {
    "lib/plain/enqueue_one": (
        "if ask then return take_in(ask) end\n",
        f"if ask then {_COUNT % 'enqueue'} end\n",
    ),
    "lib/plain/exchange_one": (
        "  local left = size + (follower and 1 or 0)",
        f"  if KEYS[1] then {_COUNT % 'exchange'} return nil end\n  local left = size + (follower and 1 or 0)",
    ),
    "lib/structures/indexes": (
        f"  elseif {_IS_DROP} then\n    return drop_plain(id, job)\n  else\n",
        f"  else\n    if {_IS_DROP} then {_COUNT % 'drop'} end\n",
    ),
    "lib/jobs/lifecycle": ("  if job.is_plain and job[ENDED]", "  if false and job[ENDED]"),
    "lib/jobs/fields": (
        "local TEXTS_KEPT, TEXT_BYTES_MAX, KEYS_BYTES_MAX = 1000,",
        "local TEXTS_KEPT, TEXT_BYTES_MAX, KEYS_BYTES_MAX = 2,",
    ),
}
"""
What stands in a file where its short way begins to write, or says how many texts are remembered, and what stands there
in the second library.
"""
_POPPED = "wake:session:"
"""Markers that a waiter pops by a command of its own."""
_NOT_LOADED = re.compile("Function not found|^NOSCRIPT|No matching script")


def _edit(name: str, text: str) -> str:
    if name not in _OTHERWISE:
        return text
    old, new = _OTHERWISE[name]
    assert text.count(old) == 1, f"{name} has no {old!r}"
    return text.replace(old, new)


def _rest(held: Any, other: Any) -> Any:
    """Return what a key holds, without what another one holds too."""
    if isinstance(held, dict) and isinstance(other, dict):
        return {field: value for field, value in held.items() if other.get(field) != value}
    return [item for item in held if item not in other] if isinstance(held, list) and other else held


@functools.cache
def long_ways() -> Library:
    """Return the library without the short ways, whose tables of texts are full after two."""
    return Library(_edit)


class DoubleTap(Wiretap):
    """A session that has *second* carry out its commands too."""

    second: TwoWays | None = None

    def send(self, *request: Any) -> Generator[Send | Sleep | Redirect, Any, Any]:
        return self._overheard(super().send(*request), self._carry_out)

    def _carry_out(self, step: Send | Sleep | Redirect, answer: Any) -> None:
        if self.second is not None and isinstance(step, Send):
            self.second.send_long(step.command, answer)


class TwoWays(RedisLockstep):
    """An engine, a store, and a second namespace on its server that never takes a short way."""

    session_class = DoubleTap
    session: DoubleTap

    def __init__(self, **options: Any) -> None:
        self.long_namespace = new_namespace("lockstep")
        self.unequal: list[str] = []
        super().__init__(**options)

    def _begin(self) -> None:
        self.session.second = self
        self._crowd(self.long_namespace)
        self.backend._sync_results._session = self.session
        super()._begin()

    def close(self) -> None:
        """Remove both namespaces, and the second library."""
        with contextlib.suppress(ResponseError):
            self.server.call("FUNCTION", "DELETE", long_ways().name)
        if names := self._names(self.long_namespace):
            self.server.client().unlink(*names)
        super().close()

    def do(self, operation: op.Operation[Any], *, shell: str = "sync") -> Any:
        """Have all do an operation and compare."""
        reply = super().do(operation, shell=shell)
        assert not self.unequal, f"{operation}\n" + "\n".join(self.unequal)
        if not operation.is_question:
            short, long = self._stored(self.namespace), self._stored(self.long_namespace)
            wrong = [
                f"{name}: {_rest(held, other)}\nby the long way: {_rest(other, held)}"
                for name in short | long
                for held, other in ((short.get(name), long.get(name)),)
                if held != other
            ]
            assert not wrong, f"{operation}\n" + "\n".join(wrong)
        return reply

    def _stored(self, namespace: str) -> dict[str, Any]:
        found = self.dump(namespace)
        return {name: held for name, held in found.items() if name != COUNTER and not name.startswith(_POPPED)}

    def send_long(self, command: tuple[Any, ...], answer: Any) -> None:
        """Carry out a command in the second namespace, and note a reply of a script that differs."""
        root, name = keys.root(self.namespace), script_of(command)
        is_of_it = any(isinstance(word, str) and word.startswith(root) for word in command[:4])
        if not is_of_it or (isinstance(answer, ResponseError) and _NOT_LOADED.search(str(answer))):
            return
        long_root = keys.root(self.long_namespace)
        words = tuple(word.replace(root, long_root, 1) if isinstance(word, str) else word for word in command)
        if name is None:
            self.server.call(*words)
            return
        reply = self._call_long(
            ("FCALL" if script(name).writes else "FCALL_RO", long_ways().function(name), *words[2:])
        )
        if isinstance(answer, ResponseError):
            answer = str(answer)
        if reply != answer and not isinstance(answer, BaseException):
            self.unequal.append(f"{name} by the short way: {answer}\nby the long one: {reply}")

    def _call_long(self, words: tuple[Any, ...]) -> Any:
        for _ in range(2):
            try:
                return self.server.call(*words)
            except ResponseError as error:
                if "Function not found" not in str(error):
                    return str(error)
            self.server.call("FUNCTION", "LOAD", "REPLACE", long_ways().text)
        raise AssertionError("the second library is loaded, and not found")

    def count_short(self) -> dict[str, int]:
        """Return how often a short way was taken, by its script."""
        counts: Any = self.server.client().hgetall(keys.redis_key(self.long_namespace, COUNTER))
        return {name.decode(): int(count) for name, count in counts.items()}


class FactsGenerator(PayloadGenerator):
    """
    A player who mostly takes short ways: single jobs of at most one claim, and exchanges of one.

    Each draws its facts anew: every field of a policy, service, tags, priority, user and pool.
    """

    def move(self) -> op.Operation[Any]:
        return self.random.choice((*[self.enqueue_one] * 7, *[self.exchange_one] * 12, self.renew, super().move))()

    def enqueue_one(self) -> op.Operation[Any]:
        """Draw an enqueue of one job that asks for nothing special, but for its facts."""
        random = self.random
        if self.specs and random.random() < 0.03:
            return op.Enqueue((random.choice(self.specs[-12:]),))
        spec = self.spec()
        facts = JobSpec(
            id=spec.id,
            task=spec.task,
            claims=spec.claims[:1],
            arguments=spec.arguments,
            priority=random.choice((1, 2, 3, 3, 3, 4, 5, 9)),
            pool=random.choice("ppq"),
            user=spec.user,
            service=random.choice((None, None, "s")),
            tags=random.choice(((), (), ("x",), ("x", "y"))),
            policy=self.policy(),
        )
        self.specs[-1] = facts
        return op.Enqueue((facts,))

    def policy(self) -> Policy:
        """Draw each field of a policy: mostly the default one."""
        random = self.random
        if random.random() < 0.4:
            return Policy()
        return Policy(
            max_attempts=random.choice((1, 2, 5)),
            max_losses=random.choice((1, 1, 2, 3)),
            backoff=Backoff(base=60, factor=1, cap=60, jitter=0),
            timeout_ms=random.choice((None, 1000)),
            on_retry=random.choice(ON_RETRY),
            on_dead=random.choice(ON_DEAD),
            on_dependency_failure=random.choice(ON_DEPENDENCY_FAILURE),
            max_hold_ms=random.choice((0, 2 * MINUTE, 300_000)),
            start_within_ms=random.choice((None, None, None, 6 * MINUTE)),
            retention_ms=random.choice((None, None, 0, 8 * MINUTE)),
            key_for_ms=random.choice((None, None, MINUTE)),
        )

    def exchange_one(self) -> op.Operation[Any]:
        """Draw an exchange that settles at most one job and claims of one pool."""
        random = self.random
        running = [(job.id, job.token or 0) for job in self.engine.table.registry.running.values()]
        settle: tuple[Outcome, ...] = ()
        if running and random.random() < 0.8:
            job_id, token = random.choice(running)
            settle = (Outcome(job_id=job_id, token=token, kind=OutcomeKind.FINISHED, result=random.choice(RESULTS)),)
        # Whoever claims from a pool of its own name does not come back when something is due.
        worker, limit = random.choice("wxxp"), random.choice((0, 1, 1, 1, 2, 100))
        return op.Exchange(worker, settle, (random.choice("ppq"),), limit, LEASE_MS, announces=worker != "w")


def walk_two_ways(lockstep: TwoWays, random: Random, style: Style, steps: int) -> None:
    """Go *steps* steps by both ways, with time that passes."""
    generator = FactsGenerator(lockstep.engine, random, style, random.choice(ALPHABETS))
    last = lockstep.steps + steps
    while lockstep.steps < last:
        if random.random() < 0.3:
            lockstep.go_to(generator.pass_time(lockstep.now_ms))
        lockstep.do(generator.move() if random.random() < 0.9 else op.Tick())
        if random.random() < 0.02:
            lockstep.follow(5)
        if random.random() < 0.01:
            lockstep.repeat(random.randrange(4))
