"""
Lockstep of the engine and a Redis store on one virtual clock.

Every operation goes to both, and every reply, refusal, due time and question is compared. `RedisLockstep` does and
compares; `PayloadGenerator` draws payloads in addition to an `OperationGenerator`: results, errors, logs, and text with
special characters.

Permitted differences are listed in `queuehint.testing.state_machine.agreement`.
"""

from __future__ import annotations

import asyncio
import functools
import re
import struct
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from random import Random
from typing import Any

import attrs
from redis.exceptions import ResponseError

from queuehint import operations as op
from queuehint.backends.base import BackendOptions, Interest
from queuehint.backends.redis import keys
from queuehint.backends.redis.address import parse_url
from queuehint.backends.redis.backend import RedisBackend
from queuehint.backends.redis.codec import codec
from queuehint.backends.redis.scripts import LETTERS, script
from queuehint.backends.redis.session import Session
from queuehint.backends.redis.streams import RequestStream
from queuehint.backends.redis.transport import Redirect, Send, Sleep, Talk
from queuehint.clock import FakeClock
from queuehint.core.engine import EPOCH_BEGIN_S, Engine, EngineOptions
from queuehint.core.structures.job import Job
from queuehint.core.structures.ready_queue import queue_of, releases_of
from queuehint.errors import QueueHintError
from queuehint.testing.invariants import check_cycles, check_empty, undo_marks
from queuehint.testing.state_machine.agreement import Refused, agree
from queuehint.testing.state_machine.generator import OperationGenerator
from queuehint.testing.state_machine.lockstep import RETENTION, filters
from queuehint.testing.state_machine.styles import MINUTE, POOLS, Style
from queuehint.values.event import EventFilter, EventKind
from queuehint.values.hint import Mode, Path, gate_key, key_of
from queuehint.values.limit import Limit
from queuehint.values.outcome import JobError, Outcome, OutcomeKind, Progress
from queuehint.values.policy import Policy
from queuehint.values.record import OVER, JobState
from queuehint.values.record_filter import DEAD_RECORDS
from queuehint.values.schedule import Recurrence
from queuehint.values.spec import JobSpec
from tests.calls import STATE_FORMAT, forget_scripts, script_of
from tests.heads import CROWD, FACTS_MAX, common_facts, crowd_facts, crowd_of, facts_id, names_of_facts, specs_in_heads
from tests.property.beside import FAULTS, Beside
from tests.servers import Server, new_namespace, shared_server

FIXED = {"meta", "seen", "sessions", "receipts", "wake:timer"}
"""
Keys that stay in a namespace without jobs: its counters, the pools asked for in the last minute, the sessions heard of
in the last ten, and a marker for workers that sleep until something is due.
"""
KEPT_MS = 600_000
"""How long ids and sessions are kept."""
GRANTS_FROM = 7
"""Where the heads of what is granted begin in a reply to an exchange."""
_MANY = 1_000_000
_LONGEST_LEASE = (
    STATE_FORMAT
    + """
local state = unpack_state(redis.call('HGET', KEYS[1], 'state'))
return math.max(state[13], state[64])
"""
)
"""How long the leases in force may be stands in two places of the state."""
_EVENTS_BYTES = STATE_FORMAT + "return unpack_state(redis.call('HGET', KEYS[1], 'state'))[76]"
"""How much the events that are kept count together."""


# --- what a shell sends ----------------------------------------------------------------------------------------------


class Wiretap(Session):
    """
    A session that remembers what was sent and what came back.

    ``answer`` is the last one of a script, be it an error; ``receipts`` holds for each stream its last request that was
    done: when, the command and the reply; the newest last.
    """

    answer: Any = None

    def begin(self) -> None:
        super().begin()
        self.receipts: dict[str, tuple[int, tuple[Any, ...], Any]] = {}
        # Several streams from the start, as if several calls had been under way at once.
        self.streams.free.extend(RequestStream() for _ in range(3))

    def execute(self, operation: op.Operation[Any]) -> Generator[Send | Sleep | Redirect, Any, Any]:
        self.streams.free.rotate()
        return self._overheard(super().execute(operation), self._note)

    def direct_call(self, operation: op.Operation[Any], *, waits: bool = False) -> None:
        """Make none: the steps of `execute` are overheard."""

    @staticmethod
    def _overheard(talk: Talk, note: Callable[[Send | Sleep | Redirect, Any], None]) -> Talk:
        """Have each step of a talk noted with its answer."""
        try:
            step = next(talk)
            while True:
                try:
                    answer = yield step
                except BaseException as error:
                    note(step, error)
                    step = talk.throw(error)
                else:
                    note(step, answer)
                    step = talk.send(answer)
        except StopIteration as end:
            return end.value

    def _say(self, info: dict[str, str]) -> None:
        """Log nothing: warnings about durability have tests of their own."""

    def _note(self, step: Send | Sleep | Redirect, answer: Any) -> None:
        if isinstance(step, Send) and (script_of(step.command) or step.command[0] == "EVAL"):
            self.answer = answer
            now_ms, stream = (*arguments_of(step.command), "", "")[:2]
            if stream and not isinstance(answer, BaseException):
                self.receipts.pop(stream, None)
                self.receipts[stream] = now_ms, step.command, answer


def arguments_of(command: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the ARGV of a request: the time, its stream, its number there, and so on."""
    return command[3 + command[2] :]


# --- lockstep --------------------------------------------------------------------------------------------------------


class RedisLockstep:
    """
    An engine and a store in step.

    Args:
        budget: of both.
        start_ms: when the clock starts; the history of tokens begins in that second.
        server: where the store is; the shared one if not given.
        room: how many facts may stand in the hash of facts, beside others that are none of a record.
        ways: by which further stores are asked, see `tests.property.beside`.
    """

    session_class = Wiretap

    def __init__(
        self,
        *,
        budget: int = op.BUDGET,
        start_ms: int = 0,
        server: Server | None = None,
        room: int = FACTS_MAX,
        ways: Sequence[str] = (),
    ) -> None:
        self.room, self.is_crowded = room, room < FACTS_MAX
        self.server = server or shared_server()
        self.namespace = new_namespace("lockstep")
        self.clock = FakeClock(start_ms)
        address = parse_url(self.server.unix_url)
        options = BackendOptions(namespace=self.namespace, clock=self.clock, retention=RETENTION)
        self.backend = RedisBackend(address, options, budget=budget)
        self.session = self.session_class(address, options, budget=budget)
        self.backend.session = self.session
        self.epoch_s = epoch_s(start_ms)
        self.engine = Engine(EngineOptions(budget=budget, retention=RETENTION, epoch_s=self.epoch_s))
        self.beside = [Beside(way, self.clock, budget) for way in ways]
        self.history: list[tuple[int, op.Operation[Any]]] = []
        self.steps = 0
        self.sweeps: set[int] = set()
        """The numbers of sweeps that were cut; their tallies are asked for."""
        self.seen: int | None = None
        """The last event that was followed, and *told* the states that jobs have by these."""
        self.told: dict[str, JobState | None] = {}
        self._runner = asyncio.Runner()
        self._epochs = 0
        self._begin()

    def _begin(self) -> None:
        """Take the first steps."""
        self._crowd(self.namespace)
        self._take_token()

    def _crowd(self, namespace: str) -> None:
        """Leave *room* in the hash of facts."""
        crowd_facts(self.server, namespace, FACTS_MAX - self.room)

    def leave_room(self, room: int) -> None:
        """Leave more room there."""
        client: Any = self.server.client()
        client.hdel(keys.redis_key(self.namespace, "facts"), *list(crowd_of(FACTS_MAX - self.room))[FACTS_MAX - room :])
        self.room = room

    def close(self) -> None:
        """Close all connections and remove the namespace."""
        for each in self.beside:
            each.close()
        client = self.server.client()
        names = self._names()
        if names:
            client.unlink(*names)
        self._runner.run(self.backend.close())
        self._runner.close()

    @property
    def now_ms(self) -> int:
        """The time of both."""
        return self.clock.now_ms()

    def go_to(self, now_ms: int) -> None:
        """Move the clock forward."""
        if now_ms > self.now_ms:
            self.clock.advance(ms=now_ms - self.now_ms)

    # --- one operation -----------------------------------------------------------------------------------------------

    def do(self, operation: op.Operation[Any], *, shell: str = "sync") -> Any:
        """Have both do an operation and compare; return the reply, None if both refused it alike."""
        self.history.append((self.now_ms, operation))
        self.steps += not operation.is_question
        expected = self._try(lambda: self.engine.apply(operation, self.now_ms))
        if shell == "sync":
            actual = self._try(lambda: self.backend.call_sync(operation))
        else:
            actual = self._try(lambda: self._runner.run(self.backend.call(operation)))
        assert agree(expected, actual), f"{operation}\nthe engine: {expected}\nthe store:  {actual}"
        for each in self.beside:
            other = self._try(functools.partial(each.call, operation))
            assert agree(expected, other), f"{operation}\nthe engine: {expected}\n{each}: {other}"
        if isinstance(expected, Refused):
            return None
        if not operation.is_question:
            check_cycles(self.engine)
            times = [(self.engine.now_ms, self.engine.next_ms), codec.clocked(self.session.answer)]
            times += [(each.engine.now_ms, each.engine.next_ms) for each in self.beside]
            assert len(set(times)) == 1, f"{operation}\nnow and next by the engine and the stores: {times}"
        if isinstance(expected, op.SweptPath) and expected.number is not None:
            self.sweeps.add(expected.number)
        if self.sweeps and not self.engine.table.leftovers:
            for number in sorted(self.sweeps):
                self.sweeps.discard(number)
                self.do(op.Pull(op.TALLIES, str(number)))
        return expected

    def limit(self, limit: Limit) -> None:
        """Set a limit."""
        self.do(op.SetLimit(limit))

    @staticmethod
    def _try(act: Any) -> Any:
        try:
            return act()
        except QueueHintError as error:
            return Refused(type(error), {**vars(error), "message": str(error)})

    # --- comparisons -------------------------------------------------------------------------------------------------

    def ask(self, path: Path, *, mode: Any = "exclusive", depth: int = 1) -> None:
        """Ask everything about a path and all there is."""
        known = tuple(self.engine.table.jobs)
        self.do(op.CanDequeue(path, mode))
        self.count()
        self.do(op.ListWeights())
        self.do(op.ListWorkers())
        self.do(op.ListLimits())
        self.do(op.ListPauses())
        self.do(op.Tree(path, depth))
        self.do(op.Tree(path[:-1], depth, path[-1] if path else None, depth or 1))
        self.do(op.ListLines(path, depth or 1))
        self.do(op.ListLines(path[:1], 64, limit=depth or 1, longer_than=1))
        self.do(op.ListLines(path[: depth // 2], depth or 1, limit=depth or 1, longest=True))
        self.do(op.CountPending(path, include_scheduled=depth > 1))
        self.do(op.CountPending(None, include_scheduled=depth > 1))
        self.do(op.Why(None, depth + 1, path))
        self.do(op.List(DEAD_RECORDS, limit=2 * depth))
        self.do(op.ListSchedules(limit=depth or 1))
        self.do(op.DueSchedules())
        self.ask_for_records(path, 2 * depth + 1)
        for first in range(0, len(known), op.IDS_MAX):
            self.do(op.Get(known[first : first + op.IDS_MAX]))
        for job in list(self.engine.table.jobs.values()):
            if job.state not in OVER:
                self.do(op.Why(job.id))
        last = next((job for job in reversed(self.engine.table.jobs.values()) if self.engine.state.find(job.id)), None)
        if last is not None:
            self.do(op.Why(last.id, op.CHAIN_MAX))

    def count(self) -> None:
        """Ask for all counts; those by state add up to the records that are kept."""
        stats = self.do(op.CountJobs())
        kept = sum(not job.gone and not job.is_hidden for job in self.engine.table.jobs.values())
        assert sum(stats.states.values()) == kept

    def follow(self, limit: int) -> None:
        """Read the next events; each begins where the one of this job before has ended."""
        followed = self.do(op.Follow(self.seen, limit))
        if followed.missed:
            self.told.clear()
        first = followed.after - len(followed.events) + 1
        assert [event.at for event in followed.events] == list(range(first, followed.after + 1))
        for event in followed.events:
            assert event.old == self.told.get(event.id, event.old), f"{event} does not follow on {self.told[event.id]}"
            self.told[event.id] = event.new
        self.seen = followed.after
        if not followed.is_more:
            for job_id, state in self.told.items():
                job = self.engine.table.jobs.get(job_id)
                is_seen = job is not None and not job.gone and not job.is_hidden
                assert (job.state if job is not None and is_seen else None) == state

    def ask_for_records(self, path: Path, limit: int) -> None:
        """Ask for the first pages of every kind, and count."""
        self.do(op.Peek())
        self.do(op.ListUsers("s", limit=limit))
        for wanted in filters(path, self.now_ms, list(self.engine.table.jobs.values())):
            self.do(op.CountRecords(wanted))
            for newest_first, by_time in ((False, False), (True, False), (True, True)):
                after = None
                for _ in range(3):
                    after = self.do(op.List(wanted, newest_first, after, limit, by_time)).after
                    if after is None:
                        break

    def compare_all(self) -> None:
        """Compare all that can be seen: every record, count, tree and reason, and what is kept in indexes."""
        claims = [claim.path for job in self.engine.table.jobs.values() for claim in job.spec.claims]
        modes: tuple[Mode, ...] = ("exclusive", "shared")
        gates = {claim[:depth] for claim in claims for depth in range(len(claim) + 1)}
        for path in sorted({(), ("nowhere",)} | gates):
            for mode in modes:
                self.do(op.CanDequeue(path, mode))
            self.do(op.CountPending(path, include_scheduled=True))
            self.do(op.Why(None, op.CHAIN_MAX, path))
        self.ask((), depth=64)
        for job_id in [*self.engine.table.jobs, "nobody"]:
            self.do(op.Why(job_id))
        after: op.Position | None = ("", 0)
        while after is not None:
            after = self.do(op.List(DEAD_RECORDS, after=after, limit=7)).after
        for limit in (1, 100):
            self.do(op.ListShared("n", limit=limit))
        self.recount()

    def recount(self) -> None:
        """Compare how many entries each index has with the jobs that should be in it."""
        table = self.engine.table
        jobs = table.jobs.values()
        sizes: dict[str, int] = {}
        for name, content in self.dump().items():
            prefix = next((key.name for key in keys.KEYS if key.is_prefix and name.startswith(key.name)), name)
            sizes[prefix] = sizes.get(prefix, 0) + len(content)
        kept = [job for job in jobs if (extras := job.extras) is not None and (extras.needs or extras.more_needs)]
        lines = Counter(walk.node for job in jobs for walk in job.walks if walk.node is not None and not walk.granted)
        crowds = dict(self.dump().get("crowds", ()))
        expected_crowds = {
            gate_key(node.path).encode(): size.bit_length() - 1 for node, size in lines.items() if size > 3
        }
        assert crowds == expected_crowds
        in_flows = sum(job.spec.flow is not None and not job.is_start and not job.gone for job in jobs)
        expected = {
            "jobs": len(jobs),
            "specs": self._count_long_specs(),
            "dead": len(table.dead),
            "line:": sum(not walk.granted for job in jobs for walk in job.walks),
            "crowds": len(crowds),
            "closed": len(self.engine.table.closed),
            "pauses": len(table.pauses.by_path),
            "selections": len(table.pauses.by_filter),
            "parked": sum(job.ready is not None and job.parked is not None for job in jobs),
            "limits": len(table.limits.states(0)),
            "gauges:": sum(len(limiter.counters) for limiter in table.limits.limiters.values()),
            "looks": sum(g.look_ms is not None for m in table.limits.limiters.values() for g in m.counters.values()),
            "ready": sum(table.ready.sizes().values()),
            "pools": len({queue_of(job) for job in table.ready.jobs()}),
            "refused": len(table.ready.refused),
            "wake:pool:": len({queue for job in table.ready.jobs() if not releases_of(queue := queue_of(job))}),
            "left": len(table.leftovers),
            # With `key_for_ms` a job that was started keeps its key after its end, until it expires.
            "keyed": sum(job.spec.key is not None and (not job.is_over or job.expiry is not None) for job in jobs),
            "waiting:": sum(table.edges.count(job_id) for job_id in table.edges.awaited()),
            "blocked:": sum(len(job.blocked) for job in jobs),
            "needs": sum(len(job.need_extras().portions) for job in kept if not job.gone or job.need_extras().holds),
            "deferred": len(table.deferred),
            "fallen": sum(job.extras is not None and job.extras.canceled_by is not None for job in jobs),
            "flow_jobs": in_flows,
            "flow_states": in_flows,
            "weights": len(table.ready.weights),
            "users": len({(queue_of(job), job.spec.user) for job in table.ready.jobs()}),
            "shared": len(self.engine.state.shared),
            "shared_ends": len(self.engine.state.shared),
            "shared_names": sum(place[0] != op.TALLIES for place in self.engine.state.shared.values),
            "schedules": len(self.engine.state.timetable),
            "schedule_names": len(self.engine.state.timetable),
            "schedule_dues": self.engine.state.timetable.count_dues(),
            "untold": len(table.undelivered_cancellations),
            "results": sum(not job.gone and job.result not in {None, b"null"} for job in jobs),
        }
        if table.journal.until_ms:
            expected["events"] = len(table.journal.kept)
            stored = int(self.server.call("EVAL", _EVENTS_BYTES, 1, keys.redis_key(self.namespace, "meta")))
            assert stored == table.journal.bytes == sum(table.journal.sizes)
        self.recount_records()
        self._compare_paths("paths", [job for job in jobs if job.state not in OVER], nowhere=[b"\1"])
        self._compare_paths("holds", [job for job in table.dead.values() if job.is_placed])
        self._compare_paths("past", [job for job in jobs if job.block is not None and job.is_over])
        expected["tallies"] = expected["tallied"] = sum(map(len, table.catalog.users.values()))
        expected["timers"] = sum(entry is not None for job in jobs for entry in (job.timer, job.expiry))
        expected["timers"] += sum(pause.timer is not None for pause in table.pauses.all())
        sizes["timers"] = sum(sizes.get(name, 0) for name in ("timers", "leases", "prunes"))
        wrong = {name: (size, sizes.get(name, 0)) for name, size in expected.items() if size != sizes.get(name, 0)}
        assert not wrong, f"by the engine and in the store: {wrong}"

    def _compare_paths(self, name: str, jobs: list[Job], nowhere: Sequence[bytes] = ()) -> None:
        """Compare what a set of paths names with the claims of the jobs that should be in it."""
        expected = [
            b"%b\0%c%d" % (path, 64 + len(str(job.number)), job.number)
            for job in jobs
            for path in [key_of(claim.path).encode() for claim in job.spec.claims] or nowhere
        ]
        stored = [member for member, _ in self.dump().get(name, ())]
        assert stored == sorted(expected), f"{stored} in place of {sorted(expected)}"

    def _count_long_specs(self) -> int:
        """Return how many specs stand in no head, and see that each stands in one place, by its length."""
        in_heads = specs_in_heads(self.server, self.namespace)
        long: dict[bytes, bytes] = self.dump().get("specs", {})
        assert long.keys() == {job_id for job_id, spec in in_heads.items() if not spec}
        assert all(len(spec) <= 128 for spec in in_heads.values())
        assert all(len(spec) > 128 for spec in long.values())
        return len(long)

    def recount_records(self) -> None:
        """Compare the bits of each term with the records that should have it."""
        expected: dict[bytes, set[int]] = {}
        named: dict[bytes, bytes] = {}
        names = names_of_facts(self.server, self.namespace)
        for job in self.engine.table.jobs.values():
            spec, name = job.spec, names[job.id.encode()]
            if job.block is None:
                assert not name
                continue
            terms = [f"t{spec.task}", f"p{spec.pool}"] + [f"v{spec.service}"] * (spec.service is not None)
            said = [b"f" + name[:6]] if name else [term.encode() for term in terms]
            if name:
                common = named[name[:6]] = common_facts(spec)
                assert name == facts_id(common) + "\t".join([spec.user or "", *spec.tags]).encode()
            terms = [f"s{LETTERS[job.state]}"] + [f"u{spec.user}"] * (spec.user is not None)
            terms += [f"g{tag}" for tag in spec.tags] + [f"m{spec.parent}"] * (spec.parent is not None)
            for term in said + [term.encode() for term in terms]:
                expected.setdefault(b"%b\0%d" % (term, job.number // op.RECORDS_PER_BLOCK), set()).add(job.number)
        client: Any = self.server.client()
        facts = client.hgetall(keys.redis_key(self.namespace, "facts"))
        held = {facts_id: text for facts_id, text in facts.items() if not text.startswith(CROWD)}
        assert held == named, f"{held} in place of {named}"
        assert len(named) <= self.room
        assert self.is_crowded or all(names[job.id.encode()] for job in self._listed() if not is_long(job.spec))
        stored = client.hgetall(keys.redis_key(self.namespace, "index"))
        ids = {field: packed for field, packed in stored.items() if field.startswith(b"#")}
        times = {int(field[2:]): struct.unpack(">dd", stored[field]) for field in stored if field.startswith(b"a\0")}
        assert times.keys() == {job.number // op.RECORDS_PER_BLOCK for job in self._listed()}
        for job in self._listed():
            first_ms, last_ms = times[job.number // op.RECORDS_PER_BLOCK]
            assert first_ms <= job.enqueued_ms <= last_ms
        others = (ids.keys(), {field for field in stored if field.startswith(b"a\0")})
        bits = {field: bits_of(field, stored[field]) for field in stored.keys() - set().union(*others)}
        assert bits == expected
        found = {
            int(field[1:]) * 16 + mark[0] - 1: key for field, packed in ids.items() for mark, key in IDS.findall(packed)
        }
        assert sum(map(len, ids.values())) == sum(1 + len(job_id) for job_id in found.values())
        # Those that are hidden too, for the sets of paths name them by number.
        jobs = self.engine.table.jobs.values()
        assert found == {job.number: job.id.encode() for job in jobs if not job.gone}
        blocks = client.zrange(keys.redis_key(self.namespace, "blocks"), 0, -1)
        assert sorted(blocks) == sorted(
            b"%b\0%c%b" % (term, 64 + len(block), block) for term, block in (field.split(b"\0") for field in expected)
        )

    def _listed(self) -> list[Job]:
        return [job for job in self.engine.table.jobs.values() if job.block is not None]

    # --- the namespace as it is --------------------------------------------------------------------------------------

    def _names(self, namespace: str = "") -> list[bytes]:
        return list(self.server.client().scan_iter(f"{keys.root(namespace or self.namespace)}:*", count=1000))

    def dump(self, namespace: str = "") -> dict[str, Any]:
        """Return all that is stored, by key, without the namespace; no key may have a time to live."""
        names = sorted(self._names(namespace))
        asking = self.server.client().pipeline(transaction=False)
        for name in names:
            asking.pttl(name)
            asking.type(name)
        answers = asking.execute()
        reads: dict[bytes, Callable[[bytes], Any]] = {
            b"hash": asking.hgetall,
            b"set": asking.smembers,
            b"zset": lambda name: asking.zrange(name, 0, -1, withscores=True),
            b"list": lambda name: asking.lrange(name, 0, -1),
        }
        for name, ttl, kind in zip(names, answers[::2], answers[1::2], strict=True):
            assert ttl == -1, f"{name!r} has a time to live"
            reads[kind](name)
        begin = len(keys.root(namespace or self.namespace)) + 1
        return {name.decode()[begin:]: content for name, content in zip(names, asking.execute(), strict=True)}

    # --- what a client may do besides --------------------------------------------------------------------------------

    def repeat(self, stream: int = -1) -> None:
        """
        Send the last request of a stream once more: the answer is the same, byte for byte, and nothing has changed.

        But for what was granted so long ago that its record is gone: that is granted no more.

        Args:
            stream: that of the last request, or an older one, which other streams have followed.
        """
        command, answer = self._receipt(stream)
        before = self.dump()
        again = self.send(command)
        if script_of(command) == "exchange":
            answer = self._without_gone(answer)
        assert again == answer, f"{command}\nat first: {answer}\nthen:     {again}"
        self._check_unchanged(before, command)

    def _without_gone(self, answer: list[Any]) -> list[Any]:
        """Return a reply to an exchange without the grants of jobs whose records are gone."""
        count = (len(answer) - GRANTS_FROM) // 2
        heads, specs = answer[GRANTS_FROM : GRANTS_FROM + count], answer[GRANTS_FROM + count :]
        jobs = [self.engine.table.jobs.get(head.split(b"\n", 1)[0].decode()) for head in heads]
        there = [at for at, job in enumerate(jobs) if job is not None and not job.gone]
        return [*answer[:GRANTS_FROM], *(heads[at] for at in there), *(specs[at] for at in there)]

    def repeat_late(self, stream: int = -1) -> None:
        """Send a request that was overtaken by a newer one of its stream: it is refused, and nothing has changed."""
        command, _ = self._receipt(stream)
        before = self.dump()
        arguments = arguments_of(command)
        begin = command[: -len(arguments)]
        late = self.send((*begin, *arguments[:2], arguments[2] - 1, *arguments[3:]))
        assert isinstance(late, ResponseError) and str(late).startswith("STALE_REQUEST "), late
        self._check_unchanged(before, command)

    def _check_unchanged(self, before: dict[str, Any], command: tuple[Any, ...]) -> None:
        after = self.dump()
        changed = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
        assert not changed, f"{command} has changed {changed}"

    def _receipt(self, stream: int) -> tuple[tuple[Any, ...], Any]:
        """Return the last request of a stream, with its reply, that is remembered for sure."""
        receipts = [
            (command, answer)
            for now_ms, command, answer in self.session.receipts.values()
            if now_ms > self.engine.now_ms - KEPT_MS + MINUTE
        ]
        if not receipts:
            self.do(op.Tick())
            return self._receipt(-1)
        return receipts[stream % len(receipts)]

    def send(self, command: tuple[Any, ...]) -> Any:
        """Send a request for a script by a connection of its own; return its reply or error."""
        name = script_of(command)
        text = script(name).text if name else command[1]
        try:
            return self.server.call("EVAL", text, *command[2:])
        except ResponseError as error:
            return error

    def forget_scripts(self) -> None:
        """Have the server forget all scripts."""
        forget_scripts(self.server)

    def cut_connections(self) -> None:
        """Have the server end all connections but the one that asks for it."""
        self.server.call("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")

    def close_pools(self) -> None:
        """Let the backend connect anew, in both shells."""
        links, self.backend._sync, self.backend._sync_waits = (self.backend._sync, self.backend._sync_waits), None, None
        for link in links:
            if link is not None:
                link.close()
        self._runner.run(self._close_loop())

    async def _close_loop(self) -> None:
        loop = self.backend._loops.pop(asyncio.get_running_loop(), None)
        if loop is not None:
            await loop.close()

    def know_of_restart(self) -> None:
        """Tell the engine what a store finds out by itself when its server has started anew."""
        now_ms = max(self.now_ms, self.engine.now_ms)
        lease_ms = int(self.server.call("EVAL", _LONGEST_LEASE, 1, keys.redis_key(self.namespace, "meta")))
        last: Any = self.server.client().zrange(keys.redis_key(self.namespace, "leases"), -1, -1, withscores=True)
        assert all(until_ms <= now_ms + lease_ms for _, until_ms in last)
        self.epoch_s = max(self.epoch_s + 1, epoch_s(self.now_ms))
        self.engine.begin_epoch(self.epoch_s << 32, now_ms + lease_ms)
        self._take_token()

    def _take_token(self) -> None:
        """Let the store look at the time and at its server: it does so for a token."""
        self._epochs += 1
        spec = JobSpec(id=f"epoch{self._epochs}", task="t", presence_ms=1)
        # A walk may have left as many jobs as the namespace takes.
        self.do(op.SetLimit(Limit()))
        self.do(op.Enqueue((spec,)))
        self.do(op.Cancel((spec.id,)))

    def watch(self, job_ids: tuple[str, ...]) -> None:
        """Begin to wait for jobs and leave at once, as a killed process does."""
        self.backend.wait_sync(Interest(jobs=job_ids), 0)
        self.engine.await_ends(job_ids)
        for each in self.beside:
            each.await_ends(job_ids)

    def fail_beside(self, fault: str) -> None:
        """Have a fault happen to each of the further stores."""
        for each in self.beside:
            each.fail(fault)

    # --- the end -----------------------------------------------------------------------------------------------------

    def wind_down(self) -> None:
        """End everything there is, let all records expire, and see that nothing is left on either side."""
        table = self.engine.table
        for operation in undo_marks(self.engine):
            self.do(operation)
        while table.jobs:
            running = [
                Outcome(job_id=job.id, token=job.token or 0, kind=OutcomeKind.FINISHED)
                for job in table.registry.running.values()
            ]
            reply = self.do(op.Exchange("last", settle=tuple(running), pools=(*POOLS, "default"), limit=100))
            if table.jobs and not running and not reply.grants and not reply.more:
                assert self.engine.next_ms is not None, "jobs wait for nothing"
                self.go_to(self.engine.next_ms)
        for worker in sorted(table.undelivered_cancellations):
            self.do(op.Exchange(worker))
        for schedule in self.do(op.ListSchedules()).schedules:
            self.do(op.ChangeSchedule(schedule.name, "drop"))
        for state in self.do(op.ListLimits()).limits:
            self.do(op.SetLimit(state.limit.lifted))
        self.do(op.Tick())
        while (end := self.engine.state.shared.next_ms()) is not None:
            self.go_to(end)
            self.do(op.Tick())
        check_empty(self.engine)
        self.follow(1000)
        self.count()
        self.recount()

    def check_residue(self) -> None:
        """Once the last session is forgotten the namespace holds its fixed keys and nothing else."""
        self.go_to(self.now_ms + KEPT_MS + MINUTE)
        # A tick forgets a hundred sessions; the last one belongs to the tick itself.
        for _ in range(1000):
            self.do(op.Tick())
            left = self.dump()
            if len(left["receipts"]) <= 1 and len(left["sessions"]) <= 1:
                break
        if self.room < FACTS_MAX:
            assert len(left.pop("facts")) == FACTS_MAX - self.room
        assert left.keys() <= FIXED, f"{left.keys() - FIXED} is left"
        assert {"meta", "sessions", "receipts"} <= left.keys()
        assert len(left["receipts"]) == len(left["sessions"]) == 1
        # Each of the pools may have been asked for by itself and for each of three users.
        assert len(left.get("seen", ())) <= 4 * len((*POOLS, "default"))
        assert left["meta"].keys() == {b"state", b"test", b"retention"}


IDS = re.compile(rb"([\x01-\x10])([^\x00-\x1f]+)")
"""The place and the id of a record, in a field of `index` that has ids."""


def is_long(spec: JobSpec) -> bool:
    """Return whether the facts of a job are too long for a name: it stands in the head behind its length, one byte."""
    own, tags = spec.user or "", "".join(f"\t{tag}" for tag in spec.tags)
    return len((own + tags).encode()) > 249 or len(common_facts(spec) + (own + tags).encode()) > 500


def bits_of(field: bytes, packed: bytes) -> set[int]:
    """Return the numbers whose bits a field of `index` holds; none of its ends is a word without any."""
    _, block = field.split(b"\0")
    first, data = packed[0], packed[1:]
    assert len(data) % 4 == 0 and any(data[:4]) and any(data[-4:]) and first * 4 + len(data) <= 128
    begin = int(block) * op.RECORDS_PER_BLOCK + first * 32
    return {begin + at for at in range(8 * len(data)) if data[at // 8] & 128 >> at % 8}


def epoch_s(now_ms: int) -> int:
    """Return the epoch of tokens that begins at a time."""
    return max(0, now_ms // 1000 - EPOCH_BEGIN_S)


# --- generators of steps ---------------------------------------------------------------------------------------------

ALPHABETS = (
    ("a", "b"),
    # Segments that look like a part of a key, or like the root.
    ("root", "a:b"),
    ("a\\", "a:"),
    ("\\root", "root:"),
    # Characters that sort right below and right above a colon.
    ("a", "a!"),
    ("a", "a;"),
    ("{qh}", "*"),
    ("é", "😀"),
)
_TEXTS = ("t", "ü:w\\", '"{}"', "😀", "a b")
RESULTS = (None, None, b"null", b'{"a": [1, 2]}', b'"\xc3\xa9"', b"12345678901234567890")
# A spec is a line end and these: one of up to 128 bytes stands in the head of its job.
_ARGUMENTS = (
    *(b'{"n": 9007199254740993}', b'{"a": "\n\x00"}', b"{}", bytes(range(100)), bytes(range(156, 256))),
    *(bytes(range(256)), b"x" * 127, b"x" * 128),
)
_ERRORS = (
    None,
    JobError(type="ValueError", message="no"),
    JobError(type="Error", message="", traceback=""),
    JobError(type="é", message="line\nline", traceback="  File\n"),
)
_SCHEDULES = ("nightly", "é", "a:b")
_RECURRENCES = (Recurrence(every_ms=MINUTE), Recurrence(cron="* * * * *", timezone="Europe/Berlin", missed="all"))
_NOTES = (Progress(), Progress(1, 2), Progress(0.5, None, "ü\n"), Progress(note=""))
_BEGUN = (EventKind.STARTED, EventKind.PROGRESSED)
_LOGS = ((), ("line",), ("ü", "", "two\nlines"), ("many",) * 700)


class PayloadGenerator(OperationGenerator):
    """
    A player whose jobs carry something: arguments, results, errors, notes, and names of every kind.

    Args:
        alphabet: which two segments paths are made of.
    """

    def __init__(self, engine: Engine, random: Random, style: Style, alphabet: tuple[str, str]) -> None:
        super().__init__(engine, random, style)
        self._names = dict(zip("ab", alphabet, strict=True))

    def path(self) -> Path:
        return tuple(self._names[segment] for segment in super().path())

    def spec(self) -> JobSpec:
        random = self.random
        spec = super().spec()
        changed: dict[str, Any] = {}
        if random.random() < 0.3:
            changed["arguments"] = random.choice(_ARGUMENTS)
        if random.random() < 0.2:
            changed["task"] = random.choice(_TEXTS)
            changed["user"] = random.choice((None, *_TEXTS))
        if random.random() < 0.1:
            changed["policy"] = Policy(timeout_ms=1000, on_dependency_failure="run", on_dead="hold", max_losses=1)
        if random.random() < 0.1:
            changed["id"] = spec.id + random.choice((":*", "😀", "{}", "\\"))
        if not changed:
            return spec
        self.specs[-1] = spec = attrs.evolve(spec, **changed)
        return spec

    def outcome(self, job_id: str, token: int) -> Outcome:
        random = self.random
        outcome = super().outcome(job_id, token)
        if outcome.kind is OutcomeKind.FINISHED:
            return attrs.evolve(outcome, result=random.choice(RESULTS))
        if outcome.kind in {OutcomeKind.FAILED, OutcomeKind.LOST}:
            return attrs.evolve(outcome, error=random.choice(_ERRORS))
        if outcome.kind is OutcomeKind.DISCARDED:
            return attrs.evolve(outcome, reason=random.choice((None, "", "no\nneed")))
        return outcome

    def move(self) -> op.Operation[Any]:
        if self.random.random() < 0.93:
            return super().move()
        return self.random.choice((self.put_schedule, self.change_schedule, self.fire, self.fire))()

    def put_schedule(self) -> op.Operation[Any]:
        random = self.random
        name = random.choice(_SCHEDULES)
        spec = JobSpec(id=name, task=random.choice(_TEXTS[:2]), claims=self.claims(), user=random.choice((None, "u")))
        next_ms = random.choice((None, *[self.engine.now_ms + ms for ms in (0, 1, MINUTE, 3 * MINUTE)]))
        return op.PutSchedule(name, spec, random.choice(_RECURRENCES), next_ms)

    def change_schedule(self) -> op.Operation[Any]:
        random = self.random
        name, version = random.choice(_SCHEDULES), self.engine.state.timetable.versions - random.choice((0, 0, 0, 1))
        operations = (
            op.ChangeSchedule(name, "drop"),
            op.ChangeSchedule(name, "pause"),
            op.ChangeSchedule(name, "resume", version, self.engine.now_ms + 1),
        )
        return random.choice(operations)

    def fire(self) -> op.Operation[Any]:
        random = self.random
        schedules, _ = self.engine.state.timetable.page("", 10)
        due = self.engine.state.timetable.due(self.engine.now_ms, 10) or schedules
        if not due:
            return self.put_schedule()
        schedule = random.choice(due if random.random() < 0.8 else schedules)
        due_ms = schedule.next_ms or self.engine.now_ms
        specs = [
            attrs.evolve(
                schedule.spec, id=f"{schedule.name}@{due_ms + at}", schedule=schedule.name, scheduled_ms=due_ms
            )
            for at in range(random.choice((0, 1, 1, 2)))
        ]
        if random.random() < 0.3:
            specs.append(attrs.evolve(self.spec(), presence_ms=None))
        next_ms = random.choice((None, due_ms + MINUTE, due_ms + MINUTE, self.engine.now_ms + MINUTE))
        version = schedule.version - (random.random() < 0.1)
        return op.Enqueue(tuple(specs), firing=op.Firing(schedule.name, version, due_ms, next_ms))

    def note(self) -> op.Operation[Any]:
        if self.random.random() < 0.2:
            after = self.random.choice((None, 0, self.engine.table.journal.last))
            filters = self.random.choice(((), (EventFilter(user="u"), EventFilter(path=self.path(), kinds=_BEGUN))))
            return op.Follow(after, self.random.choice((1, 1000)), filters)
        operation = super().note()
        assert isinstance(operation, op.Post)
        last = operation.notes[-1]
        if last.progress is not None:
            return attrs.evolve(operation, notes=(attrs.evolve(last, progress=self.random.choice(_NOTES)),))
        if last.token is not None and (len(operation.notes) > 1 or not last.lines):
            last = attrs.evolve(last, result=self.random.choice(RESULTS[2:]))
        if last.lines:
            last = attrs.evolve(last, lines=self.random.choice(_LOGS))
        return op.Post((*operation.notes[:-1], last))

    def delete(self) -> op.Operation[Any]:
        """Now and then only if the records are as they were seen, or not any more."""
        operation = super().delete()
        assert isinstance(operation, op.Delete)
        if self.random.random() < 0.7:
            return operation
        found = [self.engine.table.jobs.get(job_id) for job_id in operation.ids]
        versions = [(job.version if job is not None else 1) - (self.random.random() < 0.2) for job in found]
        return attrs.evolve(operation, versions=tuple(versions))


class PlainGenerator(PayloadGenerator):
    """Mostly jobs that use nothing special, and that finish at once: in all else they meet what the others do."""

    # While there are jobs that a release has refused, no exchange goes the short way.
    releases = ("", "", "", "", "", "", "one")

    def move(self) -> op.Operation[Any]:
        return self.random.choice((self.enqueue, self.exchange, self.exchange, super().move))()

    def spec(self) -> JobSpec:
        spec = super().spec()
        if self.random.random() < 0.15:
            return spec
        kept: dict[str, Any] = {"claims": spec.claims, "pool": spec.pool, "user": spec.user}
        self.specs[-1] = JobSpec(id=spec.id, task=spec.task, arguments=spec.arguments, **kept)
        return self.specs[-1]

    def outcome(self, job_id: str, token: int) -> Outcome:
        if self.random.random() < 0.2:
            return super().outcome(job_id, token)
        return Outcome(
            job_id=job_id, token=token, kind=OutcomeKind.FINISHED, result=self.random.choice((None, b"null", b"1"))
        )


def walk_together(
    lockstep: RedisLockstep, random: Random, style: Style, steps: int, of: type[PayloadGenerator] = PayloadGenerator
) -> None:
    """Let an engine and a store go *steps* steps side by side, with all that may happen on the way."""
    generator = of(lockstep.engine, random, style, random.choice(ALPHABETS))
    # Now and then, in steps; each is dear or changes what is done next by little.
    besides: tuple[tuple[Callable[[], None], int], ...] = (
        *([(lambda: lockstep.fail_beside(random.choice(FAULTS)), 40)] if lockstep.beside else []),
        (lambda: lockstep.repeat(random.randrange(4)), 30),
        (lambda: lockstep.repeat_late(random.randrange(4)), 50),
        (lockstep.forget_scripts, 150),
        (lockstep.cut_connections, 150),
        (lockstep.close_pools, 300),
    )
    last = lockstep.steps + steps
    while lockstep.steps < last:
        lockstep.go_to(generator.pass_time(lockstep.now_ms))
        move = generator.move() if random.random() < 0.85 else op.Tick()
        lockstep.do(move, shell="sync" if random.random() < 0.9 else "async")
        for act, every in besides:
            if random.random() < 1 / every:
                act()
        if random.random() < 0.02 and lockstep.engine.table.jobs:
            lockstep.watch(generator.ids())
        if random.random() < 0.1:
            claim = generator.claim()[0]
            lockstep.ask(claim.path, mode=claim.mode, depth=random.choice((0, 1, 4)))
        if random.random() < 0.15:
            lockstep.follow(random.choice((1, 5, 1000)))
        if random.random() < 0.002:
            lockstep.seen = random.choice((None, 0, 1_000_000))
            lockstep.told.clear()
        if random.random() < 0.02:
            lockstep.recount()
