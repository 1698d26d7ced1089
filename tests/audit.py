"""
The audit of a namespace, replayed into the engine.

With the field ``audit`` of its ``meta`` set to 1, every script appends what it was asked, when, and what it answered,
in the order in which the server ran them. Whatever ran in whichever processes, that is one history of operations, and
the engine must give the same answers.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import attrs

from queuehint.backends.redis import keys
from queuehint.backends.redis.codec import codec
from queuehint.backends.redis.codec.requests import REQUESTS
from queuehint.core.engine import Engine, EngineOptions
from queuehint.core.jobs import archive
from queuehint.errors import QueueHintError
from queuehint.operations import (
    ANYONE,
    Amend,
    Cancel,
    CancelFlow,
    CancelPath,
    Delete,
    DropLimit,
    Enqueue,
    Exchange,
    Exchanged,
    Firing,
    Operation,
    Push,
    PutSchedule,
    Redrive,
    Renew,
    Report,
    SetLimit,
    Update,
)
from queuehint.values.hint import parse_gate_key
from queuehint.values.limit import Limit
from queuehint.values.outcome import JobError, Outcome, OutcomeKind, Progress
from queuehint.values.policy import Retention
from queuehint.values.schedule import Recurrence

if TYPE_CHECKING:
    from collections.abc import Iterator

    from redis import Redis

COMMON = 8
"""How many arguments all scripts have in common."""
_READ_AT_ONCE = 10_000


def begin_audit(client: Redis, namespace: str) -> None:
    """Have everything put down from now on; before the first operation, for the engine begins with nothing."""
    client.hset(keys.redis_key(namespace, "meta"), "audit", "1")


def check_audit(client: Redis, namespace: str) -> int:
    """Replay the audit and compare every reply; return how many operations there were."""
    engine: Engine | None = None
    count = 0
    for name, argv, notes, now_ms, reply in entries(client, namespace):
        if engine is None:
            names = ("finished", "failed", "canceled", "service")
            *states, kept = [arg.decode() for arg in argv[3:7]]
            kept, *services = kept.split("\n")
            retention = Retention(
                **{name: int(ms) / 1000 for name, ms in zip(names, (*states, kept), strict=True)},
                services={name: int(ms) / 1000 for name, ms in zip(services[::2], services[1::2], strict=True)},
            )
            engine = Engine(EngineOptions(budget=int(argv[7]), retention=retention))
        if name == "watch":
            engine.await_ends([job_id.decode() for job_id in argv[COMMON + 1 :]])
        operation = parse(name, argv[COMMON:])
        if operation is None:
            continue
        for note in notes:
            _before(engine, note)
        try:
            expected: Any = engine.apply(operation, now_ms)
        except QueueHintError as error:
            raise AssertionError(f"operation {count}, {operation}: the engine refused what the store did") from error
        seen = codec.decode(operation, _with_specs(operation, reply, engine))
        assert _plain(seen) == _plain(expected), f"operation {count} at {now_ms}: {operation}"
        for note in notes:
            _after(engine, note)
        count += 1
    return count


def entries(client: Redis, namespace: str) -> Iterator[tuple[str, list[bytes], list[str], int, list[Any]]]:
    """Yield each entry: the script, its arguments, its notes, the time, the reply."""
    words = _words(client, keys.redis_key(namespace, "audit"))
    for name in words:
        argv = [next(words) for _ in range(int(next(words)))]
        notes = [next(words).decode() for _ in range(int(next(words)))]
        now_ms = int(next(words))
        reply = [next(words) for _ in range(int(next(words)))]
        yield name.decode(), argv, notes, now_ms, [int(word[1:]) if word[:1] == b":" else word[1:] for word in reply]


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


def _with_specs(operation: Operation[Any], reply: list[Any], engine: Engine) -> list[Any]:
    """Put behind the heads of grants the rests of their specs, which an audit does not repeat."""
    if not isinstance(operation, Exchange):
        return reply
    ids = [head.decode().split("\n", 1)[0] for head in reply[7:]]
    return reply + [codec.spec_rest(engine.table.jobs[job_id].spec) for job_id in ids]


def _plain(reply: Any) -> Any:
    """Sort what has no order: which of a worker's jobs it is told to stop first."""
    return reply if not isinstance(reply, Exchanged) else attrs.astuple(reply, recurse=False)


# --- arguments as operations -----------------------------------------------------------------------------------------


def parse(name: str, args: list[bytes]) -> Operation[Any] | None:
    """Return the operation of a script's own arguments; None for what is none."""
    texts = [arg.decode("utf-8", "surrogateescape") for arg in args]
    match name:
        case "enqueue":
            staged, parent, token, firing, flow = texts[:5]
            return Enqueue(
                tuple(
                    codec.parse_head(head.decode(), rest)
                    for head, rest, _ in zip(*(args[at::3] for at in (5, 6, 7)), strict=True)
                ),
                staged or None,
                (parent, codec.parse_token(token) or 0) if parent else None,
                _firing(firing) if firing else None,
                flow or None,
            )
        case "cancel_flow":
            return CancelFlow(texts[0], texts[1])
        case "push":
            namespace, key = texts[0].split("\0")
            return Push(namespace, key, args[1], int(texts[2]))
        case "exchange":
            return _exchange(args)
        case "renew":
            pairs = zip(texts[3::2], texts[4::2], strict=True)
            leases = tuple((job_id, codec.parse_token(token) or 0) for job_id, token in pairs)
            return Renew(leases, int(texts[0]), begun=texts[1] == "1", blocked_ms=int(texts[2]))
        case "cancel":
            return Cancel(tuple(texts[1:]), texts[0])
        case "cancel_path":
            return CancelPath(parse_gate_key(texts[0]), texts[1])
        case "redrive":
            return Redrive(tuple(texts[1:]), texts[0] == "1")
        case "report":
            return Report(texts[0], codec.parse_token(texts[1]) or 0, Progress(*json.loads(texts[2])))
        case "update":
            return Update(texts[0], codec.parse_token(texts[1]) or 0, args[3])
        case "amend":
            return Amend(codec.parse_head(texts[1], args[2]), int(texts[0]))
        case "delete":
            versions = tuple([int(version) for version in texts[1::2] if version])
            return Delete(tuple(texts[::2]), versions or None)
        case "set_limit":
            return SetLimit(_limit(*texts))
        case "drop_limit":
            return DropLimit(None if texts[0] == "-" else parse_gate_key(texts[0][1:]))
        case "put_schedule":
            recurrence = Recurrence(**json.loads(args[4]))
            return PutSchedule(texts[0], codec.parse_head(texts[2], args[3]), recurrence, _number(texts[1]))
        case _:
            return _in_order(name, texts)


_READERS: Final[dict[str, Callable[[str], Any]]] = {
    "int": int,
    "int | None": lambda text: int(text) if text else None,
    "str": str,
    "str | None": lambda text: text or None,
    "Path": parse_gate_key,
}


def _in_order(name: str, texts: list[str]) -> Operation[Any] | None:
    """Return the operation whose fields are a script's arguments; None for a question, and for what is none."""
    kind = next((kind for kind, (script, _) in REQUESTS.items() if script == name), None)
    if kind is None or kind.is_question:
        return None
    values: list[Any] = []
    for field in attrs.fields(kind):
        if field.type == "tuple[str, ...]":
            values.append(tuple(texts[len(values) :]))
        elif field.name == "token":
            values.append(codec.parse_token(texts[len(values)]))
        else:
            values.append(_READERS[field.type](texts[len(values)]))
    operation: Operation[Any] = kind(*values)
    return operation


def _firing(text: str) -> Firing:
    name, version, last_ms, next_ms = text.split("\n")
    return Firing(name, int(version), int(last_ms), _number(next_ms))


def _number(text: str) -> int | None:
    return int(text) if text else None


def _limit(field: str, most: str, tokens: str, per_ms: str, max_pending: str) -> Limit:
    return Limit(
        path=None if field == "-" else parse_gate_key(field[1:]),
        each=field[0] == "/",
        most=_number(most),
        rate=(int(tokens), int(per_ms)) if tokens else None,
        max_pending=_number(max_pending),
    )


def _exchange(args: list[bytes]) -> Exchange:
    worker, lease_ms, limit, users, steal, announces, pool_count = (arg.decode() for arg in args[:7])
    at = 7 + int(pool_count)
    pools = tuple(arg.decode() for arg in args[7:at])
    settle = []
    while at < len(args):
        job_id, token, kind = (arg.decode() for arg in args[at : at + 3])
        size = {"f": 1, "n": 0, "z": 0, "x": 6, "s": 1, "r": 0, "u": 0, "l": 4, "d": 1, "c": 4}[kind]
        settle.append(_outcome(job_id, codec.parse_token(token) or 0, kind, args[at + 3 : at + 3 + size]))
        at += 3 + size
    return Exchange(
        worker,
        tuple(settle),
        pools,
        max(int(limit), 0),
        int(lease_ms),
        users=_users(users),
        steal=ANYONE if steal == ANYONE else _users(steal) or (),
        is_last=limit == "-1",
        announces=announces == "1",
    )


def _users(text: str) -> tuple[str | None, ...] | None:
    return tuple([user or None for user in text[1:].split("\n")]) if text else None


def _outcome(job_id: str, token: int, kind: str, parts: list[bytes]) -> Outcome:
    facts: dict[str, Any] = {}
    match kind:
        case "f" | "n" | "z":
            facts = {"kind": OutcomeKind.FINISHED, "result": parts[0] if parts else b"null" if kind == "n" else None}
        case "x":
            facts = {"kind": OutcomeKind.FAILED, "error": _error(parts), "delay_ms": int(parts[4])}
            facts["final"] = parts[5] == b"1"
        case "s":
            facts = {"kind": OutcomeKind.SNOOZED, "delay_ms": int(parts[0])}
        case "r":
            facts = {"kind": OutcomeKind.RELEASED}
        case "u":
            facts = {"kind": OutcomeKind.UNKNOWN_TASK}
        case "l":
            facts = {"kind": OutcomeKind.LOST, "error": _error(parts)}
        case "c":
            result = {b"f": parts[1], b"n": b"null", b"z": None}[parts[0]]
            children = tuple(parts[3].decode().split("\n")) if parts[3] else ()
            facts = {"kind": OutcomeKind.CHILDREN, "result": result, "children": children}
            facts["on_child_failure"] = "fail" if parts[2] == b"f" else "ignore"
        case _:
            facts = {"kind": OutcomeKind.DISCARDED, "reason": parts[0].decode()}
    return Outcome(job_id=job_id, token=token, **facts)


def _error(parts: list[bytes]) -> JobError | None:
    if parts[0] != b"e":
        return None
    traceback = parts[3].decode()[1:] if parts[3] else None
    return JobError(type=parts[1].decode(), message=parts[2].decode(), traceback=traceback)
