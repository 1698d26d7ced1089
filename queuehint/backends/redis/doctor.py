"""
What is wrong with a namespace and its server, and how it is put right: ``queuehint doctor``.

Everything a namespace holds follows from the heads of its jobs (``lua/lib/commit.lua``), so the doctor reads the heads
in batches and compares. Whether a head has its entries, and an entry its head, a script answers for one moment, so that
is exact whatever else goes on. What is summed over many heads (gates, counters) is exact only if nothing changed while
they were read, or if they are few enough for one script: else it is read again, and at last listed as not checked.
Nothing is ever reported that may have been a change between two reads.

Repairs are conditional on the state: the server's clock is in it, so it changes with every operation. A script of
repairs that comes after any other change does nothing, and what a script does it does whole.
"""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING, Any, Final, Literal

import attrs

from queuehint.clock import SystemClock
from queuehint.errors import BackendDeniedError, BackendError, CorruptStateError
from queuehint.hint import conflict, gate_key

from . import codec, keys
from .backend import _hold
from .conversation import Sleep, durability_class, parse_info, what_is_wrong
from .links import SyncLink

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator, Sequence

    from .backend import RedisBackend
    from .conversation import Ask, Desk, Move

    Talk = Generator[Ask | Sleep | Move, Any, Any]

Level = Literal["error", "warning"]

PASSES: Final = 3
"""How often sums over many heads are read again because something changed."""
ROUNDS: Final = 12
"""How often repairs may follow upon repairs."""
BATCH: Final = 200
"""Jobs or entries that one script looks at."""
WHOLE_MAX: Final = 500
"""So many jobs are looked at by one script, which makes their sums exact."""
SCAN_COUNT: Final = 500
REPAIRS: Final = 100
MARGIN: Final = 1_000_000
"""How far above the greatest number seen a lost counter begins anew."""
FINDINGS_MAX: Final = 10_000
"""Findings of a pass that are kept; the rest is found once these are put right."""

LUA_FIXES: Final[dict[str, dict[tuple[int, int], int]]] = {
    # CVE-2025-49844, -46817, -46818, -46819 (https://redis.io/blog/security-advisory-cve-2025-49844/).
    "redis": {(7, 2): 11, (7, 4): 6, (8, 0): 4, (8, 2): 2},
    # These, and CVE-2026-23631 (release notes of 8.0.8, 8.1.7 and 9.0.4).
    "valkey": {(7, 2): 11, (8, 0): 8, (8, 1): 7, (9, 0): 4},
}
"""The first release of each series without known faults of its Lua; newer series have none, older ones keep theirs."""

_TEXTS: Final = {
    "entry": "{about} should be there and is not",
    "lost": "names {about}, which has no head",
    "stray": "holds an entry that nothing leads to",
    "damaged": "the head of {about} cannot be read: the job is lost",
    "spec": "{about} has no spec: what it should do is lost, and it can never run",
    "user": "the ready jobs or the turn of a user are miscounted",
    "pool": "the ready jobs of a pool are miscounted",
    "edge": "one end of an edge of {about} is missing",
    "edges": "{about} counts other edges than it has",
    "unresolved": "{about} is over or lost, and others wait for it for ever",
    "unparked": "{about} was put aside by a pause that is no more",
    "unswept": "what is behind the dead {about} should be canceled, and nobody does it",
    "stalled": "the head of the line may move on, and nobody moves it",
    "waiting": "the gate {about!r} counts others than stand in its line",
    "untold": "a worker is to be told to stop {about}, which it does not run",
    "session": "a receipt of a session that nobody will forget",
    "head": "{about} {found}",
}
_REPAIR_OF: Final = {
    "lost": "drop",
    "stray": "drop",
    "damaged": "drop",
    "spec": "remove",
    "edges": "amend",
    "note": "amend",
}
"""The repair of a problem where that has another name."""
_ORDER: Final = (
    # Alone and first: where the state is lost, nothing may be written before its counters are far enough.
    ("counter",),
    ("persist", "key", "drop", "entry", "edge", "gate", "session", "untold"),
    ("user",),
    ("pool",),
    ("amend",),
    ("remove",),
    ("unresolved", "unparked", "unswept", "stalled"),
)
"""Which repairs have to be done before others can be worked out."""
_ORDER_OF: Final = {kind: order for order, kinds in enumerate(_ORDER) for kind in kinds}
_LOST_DATA: Final = frozenset({"lost", "damaged", "spec", "note", "edges"})
"""Problems after whose repair something is gone for good."""
_INDEXES: Final = ("paths", "holds", "timers", "leases", "prunes", "ready", "parked", "dead", "keyed")
_BY_JOB: Final = ("specs", "results", "progress", "asked")
_ALWAYS: Final = ("gates", "users", "turns", "pools", "untold", "receipts", "pauses", "left")

Repair = tuple[str, str, str]


@attrs.frozen(kw_only=True)
class Finding:
    """
    One thing that is wrong.

    Args:
        kind: `setting`, `schema`, `type`, `ttl`, `foreign`, `counter`, `gate`, `conflict`, or what is wrong with a
            job or an entry.
        level: a warning makes no difference to `Report.is_clean`.
        where: a setting, or a key.
        what: for people.
        is_repairable: ``--fix`` puts it right; what is lost stays lost, but nothing trips over it any more.
        job_id: which job it is about, if it is about one.
    """

    kind: str
    level: Level = "error"
    where: str
    what: str
    is_repairable: bool = False
    job_id: str | None = None
    repair: Repair | None = attrs.field(default=None, repr=False, eq=False)

    def as_dict(self) -> dict[str, Any]:
        """Return it for JSON."""
        return {
            "kind": self.kind,
            "level": self.level,
            "where": self.where,
            "what": self.what,
            "repairable": self.is_repairable,
            "job_id": self.job_id,
        }


@attrs.frozen(kw_only=True)
class Report:
    """
    What a doctor found.

    Args:
        facts: what the server is and how it is set; name -> value.
        findings: what is wrong now.
        repaired: what was wrong and is put right.
        unchecked: what could not be looked at, and why.
        was_quiet: nothing changed during the last pass.
    """

    store: str
    namespace: str
    facts: dict[str, str | int | float]
    findings: tuple[Finding, ...]
    repaired: tuple[Finding, ...] = ()
    unchecked: tuple[str, ...] = ()
    was_quiet: bool = True

    @property
    def is_clean(self) -> bool:
        """Nothing is wrong; there may be warnings."""
        return not self.errors

    @property
    def errors(self) -> tuple[Finding, ...]:
        """What is wrong, without the warnings."""
        return tuple(finding for finding in self.findings if finding.level == "error")

    def as_dict(self) -> dict[str, Any]:
        """Return it for JSON."""
        return {
            "store": self.store,
            "namespace": self.namespace,
            "clean": self.is_clean,
            "quiet": self.was_quiet,
            "facts": self.facts,
            "findings": [finding.as_dict() for finding in self.findings],
            "repaired": [finding.as_dict() for finding in self.repaired],
            "unchecked": list(self.unchecked),
        }

    def __str__(self) -> str:
        lines = [f"{finding.level}: {finding.where}: {finding.what}" for finding in self.findings]
        return "\n".join([*lines, *(f"not checked: {text}" for text in self.unchecked)] or ["nothing is wrong"])


def diagnose(backend: RedisBackend, *, fix: bool = False, passes: int = PASSES) -> Report:
    """
    Look at a namespace and its server, by a connection of its own.

    Args:
        fix: put right what can be, as long as nothing else changes the namespace meanwhile.
        passes: how often to read again what is exact only if nothing changes.

    Raises:
        BackendUnavailableError, BackendDeniedError: the server cannot be asked.
    """
    desk = backend.desk
    link = SyncLink(desk.address)
    try:
        report: Report = _hold(link, _Doctor(desk, passes).examine(fix=fix))
    finally:
        link.close()
    return report


# --- what scripts say ------------------------------------------------------------------------------------------------


def _text(value: bytes) -> str:
    """Return text of the store for people and for going back: what is no UTF-8 survives both ways."""
    return value.decode("utf-8", "surrogateescape")


def _bytes(value: str) -> bytes:
    return value.encode("utf-8", "surrogateescape")


def _named(reply: Sequence[Any]) -> dict[str, Any]:
    return {_text(name): value for name, value in zip(reply[::2], reply[1::2], strict=True)}


def _numbers(flat: Sequence[bytes]) -> dict[str, int]:
    return {_text(name): int(number) for name, number in zip(flat[::2], flat[1::2], strict=True)}


def _in_fives(flat: Sequence[bytes]) -> Iterator[tuple[str, str, str, str, str]]:
    for at in range(0, len(flat), 5):
        kind, name, item, about, found = [_text(part) for part in flat[at : at + 5]]
        yield kind, name, item, about, found


def _batches(items: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    for at in range(0, len(items), size):
        yield items[at : at + size]


@attrs.frozen(kw_only=True)
class _State:
    """The state of a namespace at one moment."""

    packed: bytes
    kind: str
    """`kept`, `none` (a new namespace), `lost` or `damaged`."""
    now_ms: int
    clock_ms: int
    counters: dict[str, int]
    sizes: dict[str, int]


class _Pass:
    """One time that everything is read."""

    def __init__(self) -> None:
        self.findings: dict[tuple[str, str, str], Finding] = {}
        self.unchecked: list[str] = []
        self.is_quiet = False
        self.packed = b""
        self.by_prefix: dict[str, list[str]] = {}
        self.jobs_seen = 0
        self.begin_sums()

    def begin_sums(self) -> None:
        self.counted: Counter[str] = Counter()
        self.entries: Counter[str] = Counter()
        self.gates: dict[str, list[int]] = {}
        self.started: dict[str, str] = {}
        self.greatest: dict[str, int] = {}
        self.is_whole = False
        self.stored_gates: dict[str, str] = {}
        self.stored_counters: dict[str, int] = {}

    def add(self, finding: Finding, item: str = "") -> None:
        key = (finding.kind, finding.where, item)
        if key in self.findings or len(self.findings) < FINDINGS_MAX:
            self.findings.setdefault(key, finding)

    def see(self, greatest: dict[str, int]) -> None:
        for name, number in greatest.items():
            self.greatest[name] = max(number, self.greatest.get(name, number))


# --- the doctor ------------------------------------------------------------------------------------------------------


class _Doctor:
    def __init__(self, desk: Desk, passes: int) -> None:
        self._desk = desk
        self._passes = max(1, passes)
        self._settings: list[Finding] = []
        self._facts: dict[str, str | int | float] = {}
        self._is_primary = True
        self._uses_scripts = True

    def examine(self, *, fix: bool) -> Talk:
        """Look at everything, and put it right if that is asked for."""
        yield from self._look_at_server()
        if not self._uses_scripts:
            return self._report(_Pass(), (), ("the jobs: this server cannot run our scripts",))
        if not fix:
            last = yield from self._read()
            return self._report(last, (), ())
        return (yield from self._fix())

    def _fix(self) -> Talk:
        found: dict[tuple[str, str, str], Finding] = {}
        changes = 0
        notes: list[str] = []
        for _ in range(ROUNDS):
            last: _Pass = yield from self._read()
            found |= last.findings
            repairs = _first(last.findings.values())
            if not repairs:
                break
            if not self._is_primary:
                notes.append("repairs: this server is a replica")
                break
            if not last.is_quiet:
                notes.append("repairs: the namespace is in use; stop its workers and producers first")
                break
            is_done = yield from self._repair(last.packed, repairs)
            changes += not is_done
            if changes == PASSES:
                notes.append("repairs: the namespace is in use; stop its workers and producers first")
                last = yield from self._read()
                break
        repaired = tuple(
            finding for key, finding in found.items() if finding.is_repairable and key not in last.findings
        )
        return self._report(last, repaired, tuple(notes))

    def _report(self, last: _Pass, repaired: tuple[Finding, ...], notes: tuple[str, ...]) -> Report:
        return Report(
            store=self._desk.address.shown,
            namespace=self._desk.namespace,
            facts=self._facts,
            findings=(*self._settings, *last.findings.values()),
            repaired=repaired,
            unchecked=(*last.unchecked, *notes),
            was_quiet=last.is_quiet,
        )

    # --- asking ------------------------------------------------------------------------------------------------------

    def _plain(self, *command: Any) -> Talk:
        return (yield from self._desk._plain(*command))  # noqa: SLF001 - one conversation, told in two modules

    def _key(self, name: str) -> str:
        return keys.redis_key(self._desk.namespace, name)

    # --- the server --------------------------------------------------------------------------------------------------

    def _setting(self, where: str, what: str, level: Level = "error") -> None:
        self._settings.append(Finding(kind="setting", level=level, where=where, what=what))

    def _look_at_server(self) -> Talk:
        info = parse_info((yield from self._plain("INFO", "everything")))
        is_valkey = "valkey_version" in info
        version = info.get("valkey_version") or info.get("redis_version", "0")
        name = "valkey" if is_valkey else "redis"
        self._is_primary = info.get("role", "master") == "master"
        self._facts |= {
            "server": f"{name} {version}",
            "role": info.get("role", "?"),
            "maxmemory_policy": info.get("maxmemory_policy", "?"),
        }
        for setting in ("redis_version", "maxmemory_policy", "role"):
            problem = what_is_wrong({"redis_version": "99", setting: info.get(setting, "master")})
            if problem is not None:
                self._setting(setting, problem)
                self._uses_scripts = self._uses_scripts and setting != "redis_version"
        if lacks_lua_fixes(name, version):
            self._setting(
                "redis_version",
                f"{name} {version} has known faults of its Lua engine (CVE-2025-49844 and others), unless your "
                "distribution has repaired them; they serve whoever may run scripts",
                "warning",
            )
        yield from self._look_at_durability(info)
        self._look_at_memory(info)
        self._facts["latency_ms"] = yield from self._latency_ms()
        if self._desk.address.is_remote_plaintext:
            self._setting("tls", "what is sent can be read on the way; use rediss://", "warning")

    def _look_at_durability(self, info: dict[str, str]) -> Talk:
        appendfsync = yield from self._config("appendfsync")
        save = yield from self._config("save")
        has_aof = info.get("aof_enabled") == "1"
        if has_aof and appendfsync is not None:
            self._facts["durability"] = {"always": "D2", "everysec": "D1"}.get(appendfsync, "D0")
            self._facts["appendfsync"] = appendfsync
        else:
            self._facts["durability"] = "D1 or D2" if has_aof else "D0"
        replicas = int(info.get("connected_slaves", 0))
        self._facts["replicas"] = replicas
        if not self._is_primary:
            return
        if has_aof and appendfsync == "no":
            self._setting(
                "appendfsync", "appendfsync is no: a power loss takes what the system had not written", "warning"
            )
        if not has_aof:
            if replicas and not save:
                self._setting(
                    "appendonly",
                    f"{replicas} replicas of a server without persistence: when it restarts, empty, so do they",
                    "warning",
                )
            else:
                self._setting("appendonly", durability_class(info).partition(": ")[2], "warning")

    def _config(self, name: str) -> Talk:
        """Return a setting, None if it may not be read."""
        try:
            found = yield from self._plain("CONFIG", "GET", name)
        except BackendError:
            return None
        if isinstance(found, dict):
            found = [part for pair in found.items() for part in pair]
        return _text(found[1]) if len(found) == 2 else None

    def _look_at_memory(self, info: dict[str, str]) -> None:
        used, most = int(info.get("used_memory", 0)), int(info.get("maxmemory", 0))
        self._facts["used_memory"] = used
        self._facts["maxmemory"] = most
        if most and used >= 0.9 * most:
            self._setting(
                "maxmemory", f"{100 * used // most} % of it is used; when it is full, enqueue is refused", "warning"
            )

    def _latency_ms(self) -> Talk:
        times = []
        for _ in range(20):
            begun_s = time.perf_counter()
            yield from self._plain("PING")
            times.append(time.perf_counter() - begun_s)
        return round(1000 * sorted(times)[len(times) // 2], 3)

    # --- one pass ----------------------------------------------------------------------------------------------------

    def _read(self) -> Talk:
        """Read everything, sums again if they were not exact; return the pass."""
        this = _Pass()
        if not (yield from self._look_at_fixed_keys(this)):
            this.unchecked.append("the jobs: as long as a key is of the wrong type no script can run")
            return this
        before = yield from self._settled(this)
        if before is None:
            return this
        yield from self._look_at_keys(this)
        if any(finding.kind == "type" for finding in this.findings.values()):
            this.unchecked.append("the jobs: as long as a key is of the wrong type no script can run")
            return this
        for attempt in range(self._passes):
            if attempt:
                before = yield from self._settled(this)
                if before is None:
                    return this
                # What was found about one job or entry was true; it is found again if it still is.
                this.findings = {key: finding for key, finding in this.findings.items() if finding.kind in _OF_KEYS}
                this.begin_sums()
            yield from self._look_at_heads(this, before)
            yield from self._look_at_entries(this, before)
            after = yield from self._state()
            this.packed = after.packed
            this.is_quiet = before.packed == after.packed
            if this.is_quiet or this.is_whole:
                break
        self._look_at_state(this, after)
        self._look_at_sums(this, after)
        yield from self._look_at_conflicts(this)
        return this

    def _state(self) -> Talk:
        said = _named((yield from self._desk.converse_script("counters", ())))
        return _State(
            packed=said["packed"],
            kind=_text(said["is"]),
            now_ms=int(said["now"]),
            clock_ms=int(said["clock"]),
            counters=_numbers(said["counters"]),
            sizes=_numbers(said["sizes"]),
        )

    def _settled(self, this: _Pass) -> Talk:
        """
        Return the state once the server's clock is past the time in it, so that any later change makes another one;
        None if it is of another schema.
        """
        state: _State | None = None
        for _ in range(20):
            try:
                state = yield from self._state()
            except (BackendError, CorruptStateError) as error:
                message = str(error)
                if "BAD_SCHEMA" not in message:
                    raise
                number = message.partition("BAD_SCHEMA ")[2].split()[0]
                what = f"the namespace has schema {number}, this version of queuehint knows schema 1"
                this.add(Finding(kind="schema", where=self._key("meta"), what=what))
                this.unchecked.append("the jobs: this version does not know what their records mean")
                return None
            if state.now_ms > state.clock_ms or self._has_clock_of_tests:
                return state
            if state.clock_ms - state.now_ms > 1000:
                break
            yield Sleep(0.001)
        assert state is not None
        if state.clock_ms - state.now_ms > 1000:
            late_s = (state.clock_ms - state.now_ms) / 1000
            what = f"the server's clock is {late_s:.1f} s behind what it was; until it is there again time stands still"
            this.add(Finding(kind="setting", level="warning", where="clock", what=what))
        return state

    @property
    def _has_clock_of_tests(self) -> bool:
        clock = self._desk._clock  # noqa: SLF001 - as above
        return clock is not None and not isinstance(clock, SystemClock)

    # --- keys --------------------------------------------------------------------------------------------------------

    def _look_at_fixed_keys(self, this: _Pass) -> Talk:
        """See that fixed keys are of their types; return whether they are."""
        are_right = True
        for key in keys.KEYS:
            if not key.is_prefix:
                kind = _text((yield from self._plain("TYPE", self._key(key.name))))
                if kind not in {"none", key.type}:
                    are_right = False
                    self._add_wrong_type(this, key.name, kind, key.type)
        return are_right

    def _add_wrong_type(self, this: _Pass, name: str, kind: str, right: str) -> None:
        what = f"is a {kind} and should be a {right}: not ours? Rename it or delete it"
        this.add(Finding(kind="type", where=self._key(name), what=what))

    def _look_at_keys(self, this: _Pass) -> Talk:
        """See of every key of the namespace that it is one of ours, without a time to live, and has a reason."""
        begin = len(keys.root(self._desk.namespace)) + 1
        found: set[str] = set()
        cursor: Any = b"0"
        try:
            while True:
                # The pattern is our own root, in which nothing has a meaning to SCAN.
                cursor, page = yield from self._plain("SCAN", cursor, "MATCH", self._key("*"), "COUNT", 1000)
                found |= {_text(name)[begin:] for name in page}
                if int(cursor) == 0:
                    break
        except BackendDeniedError:
            this.unchecked.append("keys outside the schema: this user may not SCAN")
            found = {key.name for key in keys.KEYS if not key.is_prefix}
        ours: dict[str, keys.Key] = {}
        for name in sorted(found):
            key = _key_of(name)
            if key is None:
                what = "is in the namespace and none of our keys; rename it or delete it"
                this.add(Finding(kind="foreign", where=self._key(name), what=what))
            else:
                ours[name] = key
                if key.is_prefix:
                    this.by_prefix.setdefault(key.name, []).append(name)
        kinds: dict[str, str] = {}
        for names in _batches(list(ours), SCAN_COUNT):
            said = yield from self._desk.converse_script("kinds", (0, *map(_bytes, names)))
            for name, kind, ttl_ms in zip(names, said[::3], said[1::3], strict=True):
                kinds[name] = _text(kind)
                if kinds[name] not in {"none", ours[name].type}:
                    self._add_wrong_type(this, name, kinds[name], ours[name].type)
                elif ttl_ms >= 0:
                    where, what = self._key(name), f"has a time to live: it will be gone in {ttl_ms / 1000:.0f} s"
                    this.add(
                        Finding(kind="ttl", where=where, what=what, is_repairable=True, repair=("persist", name, ""))
                    )
        if any(finding.kind == "type" for finding in this.findings.values()):
            return
        for names in _batches([name for name, key in ours.items() if key.is_prefix], BATCH):
            said = yield from self._desk.converse_script("kinds", (1, *map(_bytes, names)))
            for name, is_stray in zip(names, said[2::3], strict=True):
                if is_stray:
                    where, what = self._key(name), "is about something that is no more"
                    this.add(Finding(kind="key", where=where, what=what, is_repairable=True, repair=("key", name, "")))

    # --- jobs and entries --------------------------------------------------------------------------------------------

    def _look_at_heads(self, this: _Pass, before: _State) -> Talk:
        """Read all heads, each once."""
        seen: set[bytes] = set()
        waiting: list[bytes] = []
        cursor: Any = b"0"
        size = WHOLE_MAX if before.sizes["jobs"] <= WHOLE_MAX else BATCH
        while True:
            cursor, flat = yield from self._plain("HSCAN", self._key("jobs"), cursor, "COUNT", SCAN_COUNT)
            # Some servers read it as a dictionary.
            page = list(flat) if isinstance(flat, dict) else flat[::2]
            for job_id in page:
                if job_id not in seen:
                    seen.add(job_id)
                    waiting.append(job_id)
            is_end = int(cursor) == 0
            while len(waiting) >= size or (is_end and waiting):
                yield from self._look_at_jobs(this, waiting[:size])
                del waiting[:size]
            if is_end:
                break
        this.jobs_seen = len(seen)
        self._facts["jobs"] = len(seen)
        if not seen:
            yield from self._look_at_jobs(this, [])

    def _look_at_jobs(self, this: _Pass, ids: list[bytes]) -> Talk:
        said = _named((yield from self._desk.converse_script("heads", tuple(ids))))
        self._add_problems(this, said["problems"])
        this.counted.update(_numbers(said["counted"]))
        this.entries.update(_numbers(said["entries"]))
        this.see(_numbers(said["greatest"]))
        for key, counts in zip(said["gates"][::2], said["gates"][1::2], strict=True):
            held = this.gates.setdefault(_text(key), [0] * 5)
            for at, count in enumerate(counts.split()):
                held[at] += int(count)
        for job_id, claims in zip(said["started"][::2], said["started"][1::2], strict=True):
            this.started[_text(job_id)] = _text(claims)
        this.is_whole = said["whole"] == 1
        if this.is_whole:
            this.stored_gates = _texts(said["stored"])
            this.stored_counters = _numbers(said["counters"])

    def _look_at_entries(self, this: _Pass, before: _State) -> Talk:
        """See of every entry that it has a reason to be there, unless counting has shown it."""
        after = yield from self._state()
        is_quiet = before.packed == after.packed
        for name in _INDEXES:
            # All that have to be there are, and there are no more.
            if not is_quiet or after.sizes[name] != this.entries[name] or this.findings:
                yield from self._scan(this, name)
        for name in _BY_JOB:
            is_known = name == "specs" and is_quiet and not this.findings
            if not is_known or after.sizes["specs"] != after.sizes["jobs"]:
                yield from self._scan(this, name)
        for name in _ALWAYS:
            yield from self._scan(this, name)
        for prefix in ("line:", "waiting:", "blocked:"):
            for name in this.by_prefix.get(prefix, ()):
                yield from self._scan(this, name)

    def _scan(self, this: _Pass, name: str) -> Talk:
        cursor = b"0"
        key = _key_of(name)
        assert key is not None
        while True:
            args = (_bytes(name), key.type, cursor, BATCH)
            said = _named((yield from self._desk.converse_script("entries", args)))
            self._add_problems(this, said["problems"])
            this.see(_numbers(said["greatest"]))
            if not this.is_whole:
                this.stored_gates |= _texts(said["gates"])
            cursor = said["cursor"]
            if cursor == b"0":
                return

    def _add_problems(self, this: _Pass, flat: Sequence[bytes]) -> None:
        for kind, name, item, about, found in _in_fives(flat):
            where = self._key(name)
            if kind == "behind":
                continue  # told by the greatest number seen
            if kind == "waiting":
                # The recount mends it.
                this.add(_repairable("line", where, _TEXTS["waiting"].format(about=about), None, None), about)
                continue
            if kind == "note":
                what = (
                    f"job {about} has {_note(name)} that is lost"
                    if found in {"", "0"}
                    else (f"job {about} counts {_note(name)} otherwise than there is")
                )
                this.add(_repairable(kind, where, what, about, ("amend", name, about)), about)
                continue
            if kind == "head":
                what = f"job {about} {found}"
                this.add(Finding(kind=kind, where=where, what=what, job_id=about), about)
                continue
            is_job = kind not in {"user", "pool", "stalled", "session"} and bool(about)
            what = _TEXTS[kind].format(about=f"job {about}" if is_job else about)
            if kind == "entry":
                what += "" if not found else f" (it has score {found})"
            if kind in {"user", "pool", "stalled"}:
                what += f": {about!r}"
            if kind == "lost":
                text = f"job {about} is lost: its head is gone, and its leftovers are in the way"
                this.add(_repairable("job", self._key("jobs"), text, about, None), about)
            this.add(
                _repairable(kind, where, what, about if is_job else None, _repair_for(kind, name, item, about)), item
            )

    # --- sums --------------------------------------------------------------------------------------------------------

    def _look_at_state(self, this: _Pass, after: _State) -> None:
        """Compare counters with what can be counted at once, and with the greatest numbers seen."""
        meta, counters, sizes = self._key("meta"), after.counters, after.sizes
        if after.kind in {"lost", "damaged"}:
            what = f"the state is {after.kind}: its counters begin anew, far above all that is seen"
            for name, number in self._new_state(this, after).items():
                this.add(_counter(meta, what, name, counters[name], number), name)
            return
        if after.kind == "none":
            return
        for name, size in (("paused", "pauses"), ("closed", "closed")):
            if counters[name] != sizes[size]:
                what = f"{counters[name]} paths are {name} by the state, {sizes[size]} in {self._key(size)}: what is missing is lost"
                this.add(_counter(meta, what, name, counters[name], sizes[size]), name)
        there = sizes["jobs"] + counters["pruned"]
        if counters["enqueued"] > there:
            what = (
                f"{counters['enqueued']} jobs were enqueued, {counters['pruned']} pruned and {sizes['jobs']} are there: "
                f"{counters['enqueued'] - there} are lost"
            )
            pruned = counters["enqueued"] - sizes["jobs"]
            this.add(_counter(meta, what, "pruned", counters["pruned"], pruned), "enqueued")
        elif counters["enqueued"] < there:
            what = f"there are {there - counters['enqueued']} more jobs than were enqueued"
            this.add(_counter(meta, what, "enqueued", counters["enqueued"], there), "enqueued")
        for name, number in this.greatest.items():
            if number > counters[name]:
                what = f"the counter {name} is at {counters[name]}, and {number} is taken"
                this.add(_counter(meta, what, name, counters[name], number), name)

    def _new_state(self, this: _Pass, after: _State) -> dict[str, int]:
        """Return the counters of a state that has to be made anew."""
        made = {name: this.greatest.get(name, 0) + MARGIN for name in ("numbers", "places", "turn", "marks", "drawn")}
        made["pause"] = this.greatest.get("pause", 0) + MARGIN
        # Ids that were drawn are numbers of this counter, so jobs number no fewer than ids.
        made["drawn"] = made["numbers"]
        made["epoch"] = this.greatest.get("epoch", 0)
        made |= {name: this.counted[name] for name in _COUNTED}
        made |= {"paused": after.sizes["pauses"], "closed": after.sizes["closed"], "enqueued": after.sizes["jobs"]}
        return made

    def _look_at_sums(self, this: _Pass, after: _State) -> None:
        """Compare gates and counters with the recount, if that is of one moment."""
        if after.kind in {"lost", "damaged", "none"} and not this.is_quiet:
            return
        if not this.is_quiet and not this.is_whole:
            this.unchecked.append(
                "sums over all jobs (gates, counters): the namespace changed while they were read; "
                "look again when it is less busy"
            )
            return
        if any(finding.kind == "damaged" for finding in this.findings.values()):
            return
        counters = this.stored_counters if this.is_whole else after.counters
        if after.kind == "kept":
            for name in _COUNTED:
                if counters[name] != this.counted[name]:
                    what = (
                        f"{counters[name]} jobs are {_COUNTED[name]} by the state, {this.counted[name]} by their heads"
                    )
                    this.add(_counter(self._key("meta"), what, name, counters[name], this.counted[name]), name)
        for key in this.gates.keys() | this.stored_gates.keys():
            stored, held = this.stored_gates.get(key, ""), this.gates.get(key, [0] * 5)
            if stored.split() != [str(count) for count in held]:
                now = " ".join(map(str, held))
                path = f"gate {key!r}" if key else "the root's gate"
                what = f"{path} holds IS IX S X waiting {now} by the heads, and says {stored or 'nothing'}"
                repair = ("gate", key, f"{stored}\n{now}")
                this.add(_repairable("gate", self._key("gates"), what, None, repair), key)

    def _look_at_conflicts(self, this: _Pass) -> Talk:
        """See that no two jobs run whose claims conflict."""
        for pair in _conflicts(this.started):
            # They need not have run at one time: ask for both at once.
            said = _named((yield from self._desk.converse_script("heads", tuple(map(_bytes, pair)))))
            started = dict(_texts(said["started"]))
            if started.keys() == set(pair) and list(_conflicts(started)):
                what = f"jobs {pair[0]} and {pair[1]} run at once, and their claims conflict"
                this.add(Finding(kind="conflict", where=self._key("jobs"), what=what, job_id=pair[0]), pair[1])

    # --- repairs -----------------------------------------------------------------------------------------------------

    def _repair(self, packed: bytes, repairs: list[Repair]) -> Talk:
        """Do repairs in batches, as long as nobody else changes anything; return whether all were done."""
        for batch in _batches(repairs, REPAIRS):
            flat = [_bytes(part) for repair in batch for part in repair]
            done, packed = yield from self._desk.converse_script("repair", (packed, *flat))
            if done != b"DONE":
                return False
        return True


_OF_KEYS: Final = frozenset({"type", "ttl", "foreign", "key", "setting", "schema"})
_COUNTED: Final = {
    "scheduled": "SCHEDULED",
    "deferred": "DEFERRED",
    "queued": "QUEUED",
    "started": "STARTED",
    "finished": "FINISHED",
    "failed": "FAILED",
    "canceled": "CANCELED",
    "holding": "dead and hold their places",
    "strangers": "of unknown tasks",
    "backing_off": "backing off",
}
"""Counters of the state that are sums over all heads, and what they count."""


def _texts(flat: Sequence[bytes]) -> dict[str, str]:
    return {_text(name): _text(value) for name, value in zip(flat[::2], flat[1::2], strict=True)}


def _key_of(name: str) -> keys.Key | None:
    """Return which of our keys this is, None if it is none of them."""
    for key in keys.KEYS:
        if name == key.name if not key.is_prefix else name.startswith(key.name):
            return key
    return None


def _note(name: str) -> str:
    return {"results": "a result", "progress": "progress", "log": "log lines", "errors": "errors"}[
        name.partition(":")[0]
    ]


def _repairable(kind: str, where: str, what: str, job_id: str | None, repair: Repair | None) -> Finding:
    return Finding(kind=kind, where=where, what=what, is_repairable=True, job_id=job_id, repair=repair)


def _counter(where: str, what: str, name: str, was: int, now: int) -> Finding:
    return _repairable("counter", where, what, None, ("counter", name, f"{was}\n{now}"))


def _repair_for(kind: str, name: str, item: str, about: str) -> Repair:
    """Return the repair of a problem; see ``lua/repair.lua``."""
    repair = _REPAIR_OF.get(kind, kind)
    if repair == "drop":
        return repair, name, item
    if repair == "edge":
        # The one who waits, and for whom.
        owner = name.partition(":")[2]
        return (repair, owner, item) if name.startswith("blocked:") else (repair, item, owner)
    if kind == "lost" and name.startswith("waiting:"):
        return "drop", name, item
    return repair, name, item if kind == "untold" else about


def _first(findings: Iterable[Finding]) -> list[Repair]:
    """Return the repairs that have to be done before all others."""
    repairs = dict.fromkeys(finding.repair for finding in findings if finding.repair is not None)
    if not repairs:
        return []
    first = min(_ORDER_OF[kind] for kind, _, _ in repairs)
    return [repair for repair in repairs if _ORDER_OF[repair[0]] == first]


def _conflicts(started: dict[str, str]) -> Iterator[tuple[str, str]]:
    """Yield pairs of jobs whose claims conflict; each claim looks only at its own path and those above."""
    claims_of = {job_id: codec.parse_claims_text(text) for job_id, text in started.items()}
    at: dict[str, list[str]] = {}
    for job_id, claims in claims_of.items():
        for claim in claims:
            at.setdefault(gate_key(claim.path), []).append(job_id)
    pairs: set[tuple[str, str]] = set()
    for job_id, claims in claims_of.items():
        for claim in claims:
            for depth in range(len(claim.path) + 1):
                for other in at.get(gate_key(claim.path[:depth]), ()):
                    pair = (min(job_id, other), max(job_id, other))
                    if other != job_id and pair not in pairs and conflict(claims, claims_of[other]):
                        pairs.add(pair)
                        yield pair


def lacks_lua_fixes(name: str, version: str) -> bool:
    """
    Say whether a release has known faults of its Lua engine, going by its number.

    >>> lacks_lua_fixes("redis", "7.2.10"), lacks_lua_fixes("redis", "7.2.11"), lacks_lua_fixes("redis", "8.4.0")
    (True, False, False)
    """
    numbers = [int(part) if part.isdigit() else 0 for part in [*version.split("."), "0", "0"][:3]]
    series, fixes = (numbers[0], numbers[1]), LUA_FIXES[name]
    if series in fixes:
        return numbers[2] < fixes[series]
    return series < max(fixes)
