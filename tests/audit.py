"""
An audit log of a namespace, replayed into the engine.

Test processes load scripts with a few more lines than those of the product: each script appends its request, its time
and its reply, in the order in which the server ran them. Over all processes this is one history of operations, and the
engine must give the same replies.

`begin_audit` enables it for this process, and `environment` for child processes: they import `tests/startup` before
anything else. An operation travels in the form of `operations.wire`, as one more argument that the script removes
before it reads the others.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import attrs
from redis import Redis

from queuehint.backends.redis import keys, scripts, session
from queuehint.backends.redis.codec import codec
from queuehint.backends.redis.functions import calls
from queuehint.backends.redis.functions.library import Library
from queuehint.core.engine import Engine, EngineOptions
from queuehint.core.jobs import archive
from queuehint.errors import QueueHintError
from queuehint.operations import Operation, wire
from queuehint.values.policy import Retention

VARIABLE = "TESTS_AUDITED"
"""The namespaces under audit, for processes that are started."""
STARTUP = Path(__file__).parent / "startup"
_READ_AT_ONCE = 10_000

_AUDITED: set[str] = set()


# --- scripts that put down what they do ------------------------------------------------------------------------------

_TAKE = """
local audit = {asked = table.remove(ARGV), notes = {}}
function audit.note(...) audit.notes[#audit.notes + 1] = string.format(...) end
"""
_WRITE = """
  reply = request.with_specs(reply, specs)
  local entry = {audit.asked, #audit.notes}
  for _, note in ipairs(audit.notes) do entry[#entry + 1] = note end
  entry[#entry + 1], entry[#entry + 2] = string.format('%.0f', NOW), #reply
  for at = 1, #reply do
    entry[#entry + 1] = type(reply[at]) == 'number' and string.format(':%.0f', reply[at]) or '$' .. reply[at]
  end
  local audit_key = 'audit:' .. KEYS[1]
  for from = 1, #entry, 4000 do redis.call('RPUSH', audit_key, unpack(entry, from, math.min(from + 3999, #entry))) end
  return reply
"""
_PRUNED = "    if job[EXPIRY_MS] then job[EXPIRY_MS] = false end\n    archive.prune(job)\n"
_LINES = (
    ("  S[RUN] = run\n", "  S[RUN] = run\n  audit.note('epoch %.0f.%.0f %.0f', S[EPOCH], S[GRANTS], S[REAP_FROM])\n"),
    (_PRUNED, f"{_PRUNED}    audit.note('pruned %s', job.id)\n"),
    ("  return request.with_specs(reply, specs)\n", _WRITE),
)
"""Lines of the product that are looked for, and what takes their place."""


class AuditedScript(scripts.Script):
    """A script of the product that also puts down what it does."""

    def __init__(self, name: str) -> None:
        shebang, _, body = scripts.source(name).partition("\n")
        text = scripts.included(body)
        for line, lines in _LINES:
            assert text.count(line) == 1, f"{name} has {text.count(line)} times {line!r}"
            text = text.replace(line, lines)
        super().__init__(name, scripts.assemble(f"{shebang}\n{_TAKE}{text}"))


@functools.cache
def audited_script(name: str) -> AuditedScript:
    """Return a script of the product that also puts down what it does."""
    return AuditedScript(name)


def _audited(name: str, text: str) -> str:
    """Return a file as it is in the library that puts down what it does."""
    if name == "lib/request/arguments":
        text += _TAKE
    for line, lines in _LINES:
        text = text.replace(line, lines)
    return text


@functools.cache
def audited_library() -> Library:
    """Return the library of the product that also puts down what it does; no doctor takes it for one of ours."""
    made = Library(_audited)
    made.name = f"audited_{made.digest}"
    return made


def install() -> None:
    """Have this process send audited scripts to the namespaces of `begin_audit`, its own and those it was told of."""
    _AUDITED.update(os.environ.get(VARIABLE, "").split())
    ask = session.Session._ask
    if ask.__name__ == "ask_audited":
        return

    def ask_audited(
        client: session.Session, which: scripts.Script, args: tuple[Any, ...], operation: Operation[Any] | None
    ) -> Generator[Any, Any, Any]:
        """Put down a question for jobs whose records are to be kept."""
        if client.namespace in _AUDITED and which.name == "watch":
            which = audited_script(which.name)
            args = (*args, put_down(client, wire.Await(tuple([str(job_id) for job_id in args[10::2]]))))
        return ask(client, which, args, operation)

    def put_down(client: session.Session, entry: Any) -> bytes:
        begin = wire.Begin.of(client._retention or Retention(), epoch_s=None, budget=client._settings[-1], release="")
        return wire.encode(begin) + b"\n" + wire.encode(entry)

    call_of = session.Session.call_of

    def call_of_audited(client: session.Session, operation: Any, encoded: Any = None, now: Any = "") -> calls.Call:
        """Put down a change, however it is sent."""
        call = call_of(client, operation, encoded, now)
        if client.namespace in _AUDITED:
            entry = operation
            if encoded is not None and codec.encode(entry)[1] != encoded[1]:
                # Where jobs may be evicted a session settles and claims nothing.
                entry = attrs.evolve(entry, limit=0)
            call._which = audited_script(call._which.name)
            call._words = (*call._words, put_down(client, entry))
        return call

    session.Session._ask = ask_audited  # type: ignore[method-assign,assignment]
    session.Session.call_of = call_of_audited  # type: ignore[method-assign,assignment]
    of_product = calls.library_of

    def library_of(which: scripts.Script) -> Library:
        return audited_library() if isinstance(which, AuditedScript) else of_product(which)

    calls.library_of = library_of


def environment() -> dict[str, str]:
    """Return what a process needs of its environment to take part."""
    return {VARIABLE: " ".join(_AUDITED), "PYTHONPATH": f"{STARTUP}{os.pathsep}{STARTUP.parents[1]}"}


# --- what they have put down -----------------------------------------------------------------------------------------


def audit_key(namespace: str) -> str:
    """Return the key of an audit: not one of the namespace, and on the same slot."""
    return f"audit:{keys.root(namespace)}"


def begin_audit(namespace: str) -> None:
    """Have everything put down from now on; before the first operation, because the engine begins with nothing."""
    _AUDITED.add(namespace)
    install()


@attrs.frozen
class Entry:
    """One operation as a store ran it."""

    begin: wire.Begin
    operation: Operation[Any]
    notes: tuple[str, ...]
    now_ms: int
    reply: list[Any]

    def answer(self) -> Any:
        """Return what the operation's caller was told."""
        return codec.decode(self.operation, list(self.reply))


def entries(client: Redis, namespace: str) -> Iterator[Entry]:
    """Yield what was put down."""
    words = _words(client, audit_key(namespace))
    for asked in words:
        begin, operation = map(wire.decode, asked.split(b"\n"))
        assert isinstance(begin, wire.Begin)
        notes = tuple([next(words).decode() for _ in range(int(next(words)))])
        now_ms = int(next(words))
        reply = [next(words) for _ in range(int(next(words)))]
        told = [int(word[1:]) if word[:1] == b":" else word[1:] for word in reply]
        yield Entry(begin, operation, notes, now_ms, told)


def check_audit(client: Redis, namespace: str) -> int:
    """Replay the audit and compare every reply; return how many operations there were."""
    engine: Engine | None = None
    count = 0
    for entry in entries(client, namespace):
        if engine is None:
            retention = entry.begin.kept()
            assert retention is not None
            engine = Engine(EngineOptions(budget=entry.begin.budget, retention=retention))
        if isinstance(entry.operation, wire.Await):
            engine.await_ends(entry.operation.job_ids)
            continue
        for note in entry.notes:
            _before(engine, note)
        try:
            expected: Any = engine.apply(entry.operation, entry.now_ms)
        except QueueHintError as error:
            raise AssertionError(f"{count}, {entry.operation}: the engine refused what the store did") from error
        assert entry.answer() == expected, f"operation {count} at {entry.now_ms}: {entry.operation}"
        for note in entry.notes:
            _after(engine, note)
        count += 1
    return count


def _words(client: Redis, key: str) -> Iterator[bytes]:
    begin = 0
    while True:
        words: list[bytes] = client.lrange(key, begin, begin + _READ_AT_ONCE - 1)  # type: ignore[assignment]
        yield from words
        begin += len(words)
        if len(words) < _READ_AT_ONCE:
            return


def _before(engine: Engine, note: str) -> None:
    kind, _, rest = note.partition(" ")
    if kind == "epoch":
        token, reap_from_ms = rest.split()
        engine.begin_epoch(codec.parse_token(token) or 0, int(reap_from_ms))


def _after(engine: Engine, note: str) -> None:
    kind, _, job_id = note.partition(" ")
    if kind == "pruned":
        table = engine.table
        job = table.jobs[job_id]
        if job.is_placed:
            table.free(job)
        table.drop_timer(job)
        archive.prune(table, job)
        engine.lifecycle.pruned += 1
