"""A namespace of a test's own, damaged by hand and examined by the doctor."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import attrs

from queuehint.backends.base import BackendOptions
from queuehint.backends.redis import keys, scripts
from queuehint.backends.redis.address import parse_url
from queuehint.backends.redis.backend import RedisBackend
from queuehint.backends.redis.doctor.doctor import diagnose
from queuehint.backends.report import Report
from queuehint.cli.app import app
from queuehint.clock import FakeClock
from queuehint.errors import DuplicateJobError
from queuehint.operations import Enqueue, Exchange, ListSchedules
from queuehint.testing.state_machine.styles import POOLS, SIGNALS, Style
from queuehint.values.hint import Claim
from queuehint.values.outcome import Outcome, OutcomeKind
from queuehint.values.schedule import Schedule
from queuehint.values.signal import signal_spec
from queuehint.values.spec import JobSpec
from tests.calls import STATE_FORMAT
from tests.commands import CliRunner
from tests.servers import Server


@attrs.frozen
class Store:
    """A namespace of a test's own, its clock, and what may be done to it by hand."""

    backend: RedisBackend
    clock: FakeClock
    server: Server
    namespace: str

    def key(self, name: str) -> str:
        return keys.redis_key(self.namespace, name)

    def do(self, operation: Any) -> Any:
        return self.backend.call_sync(operation)

    def call(self, *words: Any) -> Any:
        return self.server.call(*words)

    def change_packed(self, name: str, field: str, change: str) -> None:
        """Change a packed value by a line of Lua on `value`."""
        unpack, pack = ("unpack_state", "pack_state") if field == "state" else ("cmsgpack.unpack", "cmsgpack.pack")
        text = f"""{STATE_FORMAT}
            local value = {unpack}(redis.call('HGET', KEYS[1], ARGV[1]))
            {change}
            redis.call('HSET', KEYS[1], ARGV[1], {pack}(value))"""
        self.call("EVAL", text, 1, self.key(name), field)

    def look(self, *, fix: bool = False) -> Report:
        return diagnose(self.backend, fix=fix)

    def kinds(self) -> set[str]:
        return {finding.kind for finding in self.look().errors}

    def is_put_right(self) -> bool:
        """`--fix` finds the errors there are, and none is left."""
        return bool(self.put_right())

    def put_right(self) -> set[str]:
        """Repair what an examination finds, see that nothing is left, and return the kinds of the errors."""
        before = self.look().errors
        # Its last pass comes after the last repair.
        report = self.look(fix=True)
        assert report.is_clean, str(report)
        assert not report.unchecked
        assert set(before) <= set(report.repaired), str(report)
        return {finding.kind for finding in before}

    def drain(self) -> None:
        """Run all there is and let all records expire."""
        drain(self.backend, self.clock, self.server, self.namespace)


def open_store(namespace: str, redis_server: Server) -> Iterator[Store]:
    """Open a store for a test and close it at its end: test modules make it their fixture."""
    clock = FakeClock()
    backend = RedisBackend(parse_url(redis_server.unix_url), BackendOptions(namespace=namespace, clock=clock))
    yield Store(backend, clock, redis_server, namespace)
    backend.close_sync()


def drain(backend: RedisBackend, clock: FakeClock, server: Server, namespace: str) -> None:
    client = server.client()
    grants: tuple[Any, ...] = ()
    for name in SIGNALS:
        with suppress(DuplicateJobError):
            backend.call_sync(Enqueue((signal_spec(name, b"1", 86_400_000),)))
    for _ in range(5_000):
        settled = tuple(Outcome(job_id=g.spec.id, token=g.token, kind=OutcomeKind.FINISHED) for g in grants)
        reply = backend.call_sync(Exchange("last", settle=settled, pools=(*POOLS, "default"), limit=100))
        grants = reply.grants
        if grants or reply.more:
            continue
        if not client.hlen(keys.redis_key(namespace, "jobs")):
            return
        firsts = [
            client.zrange(keys.redis_key(namespace, name), 0, 0, withscores=True)
            for name in ("timers", "leases", "prunes", "looks")
        ]
        next_ms = min((int(first[0][1]) for first in firsts if first), default=None)
        assert next_ms is not None, "there are jobs, and nothing will ever happen to them"
        clock.advance(ms=max(1, next_ms - clock.now_ms()))
    raise AssertionError("it does not drain")


def job(id: str, *segments: str, **more: Any) -> JobSpec:
    return JobSpec(id=id, task="t", claims=(Claim(segments),) if segments else (), **more)


def named(style: Style) -> str:
    return f"shared={style.shared} keyed={style.keyed} jobs={style.unfinished_max}"


def counters(store: Store) -> dict[str, int]:
    flat = store.call(
        "EVAL", scripts.script("doctor/counters").text, *store.backend.session._keys, store.clock.now_ms(), "", *[0] * 6
    )
    named = dict(zip(flat[::2], flat[1::2], strict=True))
    return {name.decode(): int(number) for name, number in zip(*[iter(named[b"counters"])] * 2, strict=True)}


def run(*arguments: str, **environment: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["doctor", *arguments], env=environment)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stdout, result.stderr


def base(name: str) -> str:
    return next((key.name for key in keys.KEYS if key.is_prefix and name.startswith(key.name)), name)


def turns(store: Store) -> list[set[str]]:
    """Run all jobs; return which of them could run at a time."""
    found, ended = list[set[str]](), tuple[Outcome, ...]()
    while grants := store.do(Exchange("w", settle=ended, pools=("default",), limit=9)).grants:
        found.append({grant.spec.id for grant in grants})
        ended = tuple(Outcome(job_id=g.spec.id, token=g.token, kind=OutcomeKind.FINISHED) for g in grants)
    return found


def schedules(store: Store) -> dict[str, Schedule]:
    return {schedule.name: schedule for schedule in store.do(ListSchedules()).schedules}
