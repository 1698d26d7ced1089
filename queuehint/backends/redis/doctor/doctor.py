"""
Examination and repair of a namespace and its server: ``queuehint doctor``.

All data of a namespace derive from the heads of its jobs (``lib/structures/indexes.lua``), so the doctor reads the
heads in batches and compares. One script checks atomically that a head has its entries and an entry its head; this is
exact under concurrent work. Sums over many heads (gates, counters) are exact only if nothing changed while they were
read, or if the heads fit into one script: else they are read again, and in the end listed as not checked. A change
between two reads is never reported as a finding.

Repairs are conditional on the state: the server's clock is in it, so it changes with every operation. A repair script
that comes after any other change does nothing; else it is done whole.
"""

from __future__ import annotations

import re
from itertools import count, pairwise
from typing import TYPE_CHECKING, Any, Final

from queuehint.backends.redis.codec import codec
from queuehint.backends.redis.connections.sync_link import SyncLink, run
from queuehint.backends.redis.doctor.answers import (
    batches,
    by_name,
    bytes_of,
    numbers_of,
    problems_in,
    text_of,
    texts_of,
    waits_of,
)
from queuehint.backends.redis.doctor.findings import first_repairs, problem, repairable
from queuehint.backends.redis.doctor.keyspace import BATCH, SCAN_COUNT, Keyspace, key_of
from queuehint.backends.redis.doctor.server import Checkup
from queuehint.backends.redis.doctor.sums import Pass, State, Sums
from queuehint.backends.redis.examination import CLOCK_LATE_MS
from queuehint.backends.redis.transport import Sleep
from queuehint.backends.report import CYCLES_MAX, MORE_CYCLES, PASSES, Finding, Report, cycle_finding
from queuehint.core.structures.edges import cycles
from queuehint.errors import BackendError
from queuehint.values.hint import conflict, gate_key

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from queuehint.backends.redis.backend import RedisBackend
    from queuehint.backends.redis.session import Session
    from queuehint.backends.redis.transport import Talk
    from queuehint.backends.report import Repair

ROUNDS_MAX: Final = 1000
"""How often repairs may follow upon repairs."""
OF_INDEX: Final = 4
"""Entries of `index` that one script looks at: each may hold 1 024 records."""
ENTRIES: Final = 500
"""Entries that one script looks at in small keys."""
WHOLE_MAX: Final = 250
"""So many jobs are looked at by one script, which makes their sums exact."""
REPAIRS: Final = 100
_SCHEMA: Final = re.compile(r"BAD_SCHEMA (\S+)")
_OF_KEYS: Final = frozenset({"type", "ttl", "foreign", "key", "setting", "retention"})
"""Findings that need not be looked for again in a second pass."""
_IN_USE: Final = "repairs: the namespace is in use; stop its workers and producers first"
_INDEXES: Final = (
    "paths", "holds", "past", "timers", "leases", "prunes", "ready", "dead", "keyed", "deferred", "fallen",
    "flow_jobs", "flow_states",
)  # fmt: skip
_BY_NUMBER: Final = frozenset({"paths", "holds", "past"})
"""Keys that name jobs by their numbers."""
_BY_JOB: Final = ("specs", "results", "progress", "asked", "needs")
_SMALL: Final = (
    "parked", "gates", "users", "turns", "pools", "untold", "receipts", "pauses", "selections", "left", "shared",
    "shared_ends", "shared_names", "schedules", "schedule_names", "schedule_dues",
    "weights", "limits", "looks", "crowds",
    "index", "blocks", "facts", "tallies", "tallied",
)  # fmt: skip


def diagnose(backend: RedisBackend, *, fix: bool = False, passes: int = PASSES) -> Report:
    """
    Examine a namespace and its server over a connection of its own.

    Args:
        fix: repair findings, as long as nothing else changes the namespace meanwhile.
        passes: how often to read sums again that are exact only without changes.

    Raises:
        BackendUnavailableError, BackendDeniedError: the server cannot be asked.
    """
    session = backend.session
    link = SyncLink(session.address)
    try:
        report: Report = run(link, _Doctor(session, passes).examine(fix=fix))
    finally:
        link.close()
    return report


# --- the doctor ------------------------------------------------------------------------------------------------------


class _Doctor:
    def __init__(self, session: Session, passes: int) -> None:
        self._session = session
        self._passes = max(1, passes)
        self._checkup = Checkup(session)
        self._keyspace = Keyspace(session, self._checkup.facts)
        self._key = self._keyspace.name
        self._sums = Sums(self._key, self._checkup.facts)

    def examine(self, *, fix: bool) -> Talk:
        """Examine everything, and repair on request."""
        yield from self._checkup.look()
        if not self._checkup.runs_scripts:
            this = Pass()
            this.unchecked.append("the jobs: this server cannot run our scripts")
            return self._report(this)
        if fix:
            return (yield from self._fix())
        return self._report((yield from self._read()))

    def _fix(self) -> Talk:
        """Read and repair by turns, because some repairs can be worked out only after others."""
        found: dict[tuple[str, str, str], Finding] = {}
        failures = 0
        before: list[Repair] = []
        deleted, reasons = (yield from self._checkup.delete_libraries()) if self._checkup.is_primary else ([], [])
        last: Pass = yield from self._read()
        if last.clock is not None and self._checkup.is_primary:
            found |= last.findings
            yield from self._session.execute_script("doctor/turn_back", ())
            last = yield from self._read()
        for _ in range(ROUNDS_MAX):
            found |= last.findings
            repairs = first_repairs(last.findings.values())
            if not repairs or repairs == before:
                break
            if not self._checkup.is_primary:
                last.notes.append("repairs: this server is a replica")
                break
            if last.is_quiet and (yield from self._repair(last.packed, repairs)):
                before = repairs
            else:
                failures += 1
            if failures == self._passes:
                last.notes.append(_IN_USE)
                break
            last = yield from self._read()
        repaired = {key: each for key, each in found.items() if each.is_repairable and key not in last.findings}
        last.notes += reasons
        return self._report(last, (*deleted, *repaired.values()))

    def _report(self, last: Pass, repaired: tuple[Finding, ...] = ()) -> Report:
        return Report(
            store=self._session.address.shown,
            namespace=self._session.namespace,
            facts=self._checkup.facts,
            findings=(*self._checkup.findings, *last.findings.values()),
            repaired=repaired,
            unchecked=(*last.unchecked, *last.notes),
            was_quiet=last.is_quiet,
        )

    # --- asking ------------------------------------------------------------------------------------------------------

    def _plain(self, *command: Any) -> Talk:
        return (yield from self._session.plain(*command))

    # --- one pass ----------------------------------------------------------------------------------------------------

    def _read(self) -> Talk:
        """Read everything, and inexact sums again. Return the pass."""
        this = Pass()
        yield from self._keyspace.check_types(this)
        if not this.unchecked and (yield from self._is_our_schema(this)):
            yield from self._keyspace.check(this)
            yield from self._keyspace.check_retention(this)
        for attempt in range(0 if this.unchecked else self._passes):
            if attempt:
                # Findings about one job or entry were true; they are found again if they still are.
                this.findings = {key: each for key, each in this.findings.items() if each.kind in _OF_KEYS}
            this.begin_sums()
            before: State = yield from self._settled(this)
            yield from self._look_at_heads(this, before)
            yield from self._look_at_entries(this, before)
            after: State = yield from self._state()
            this.packed = after.packed
            this.is_quiet = before.is_same_as(after) and self._is_settled(before)
            if this.is_quiet or this.is_whole or attempt == self._passes - 1:
                self._sums.look_at_state(this, after)
                self._sums.look_at_sums(this, after)
                yield from self._look_at_conflicts(this)
                yield from self._look_at_cycles(this)
                break
        return this

    def _state(self) -> Talk:
        said = by_name((yield from self._session.execute_script("doctor/counters", ())))
        return State(
            packed=said["packed"],
            kind=text_of(said["is"]),
            now_ms=int(said["now"]),
            clock_ms=int(said["clock"]),
            changes=int(said["changes"]),
            counters=numbers_of(said["counters"]),
            sizes=numbers_of(said["sizes"]),
        )

    def _is_our_schema(self, this: Pass) -> Talk:
        try:
            yield from self._state()
        except BackendError as error:
            refusal = _SCHEMA.search(str(error))
            if refusal is None:
                raise
            what = f"the namespace has schema {refusal[1]}, this version of queuehint knows schema {codec.SCHEMA}"
            this.add(Finding(kind="schema", where=self._key("meta"), what=what))
            this.unchecked.append("the jobs: this version does not know their record format")
            return False
        return True

    def _settled(self, this: Pass) -> Talk:
        """Return the state once the server's clock is past the time in it: any later change makes another one."""
        while True:
            state: State = yield from self._state()
            if self._is_settled(state):
                return state
            late_ms = state.clock_ms - state.now_ms
            if late_ms > CLOCK_LATE_MS:
                what = (
                    f"is {late_ms / 1000:.1f} s behind what it was; until it is there again time stands still, "
                    "unless --fix sets it back"
                )
                this.clock = Finding(
                    kind="setting", level="warning", where="the server's clock", what=what, is_repairable=True
                )
                this.add(this.clock)
                return state
            yield Sleep(0.001)

    def _is_settled(self, state: State) -> bool:
        return state.now_ms > state.clock_ms or not self._session.has_own_time

    # --- jobs and entries --------------------------------------------------------------------------------------------

    def _look_at_heads(self, this: Pass, before: State) -> Talk:
        """Read all heads, each once."""
        seen: set[bytes] = set()
        waiting: list[bytes] = []
        cursor: Any = b"0"
        size = WHOLE_MAX if before.sizes["jobs"] <= WHOLE_MAX else BATCH
        while True:
            cursor, flat = yield from self._plain("HSCAN", self._key("jobs"), cursor, "COUNT", SCAN_COUNT)
            for job_id in flat[::2]:
                if job_id not in seen:
                    seen.add(job_id)
                    waiting.append(job_id)
            is_end = int(cursor) == 0
            while len(waiting) >= size or (is_end and waiting):
                yield from self._look_at_jobs(this, waiting[:size])
                del waiting[:size]
            if is_end:
                break
        self._checkup.facts["jobs"] = len(seen)
        if not seen:
            yield from self._look_at_jobs(this, [])

    def _look_at_jobs(self, this: Pass, ids: list[bytes]) -> Talk:
        said = by_name((yield from self._session.execute_script("doctor/heads", tuple(ids))))
        self._add_problems(this, said["problems"])
        this.counted.update(numbers_of(said["counted"]))
        this.entries.update(numbers_of(said["entries"]))
        this.see(numbers_of(said["greatest"]))
        for key, counts in zip(said["gates"][::2], said["gates"][1::2], strict=True):
            held = this.gates.setdefault(text_of(key), [0] * 5)
            for at, number in enumerate(counts.split()):
                held[at] += int(number)
        this.placed += said["placed"]
        this.tallies.update(numbers_of(said["tallies"]))
        this.running.update(numbers_of(said["running"]))
        for job_id, claims in zip(said["started"][::2], said["started"][1::2], strict=True):
            this.started[text_of(job_id)] = text_of(claims)
        this.waits.update((yield from self._waits(said)))
        this.is_whole = said["whole"] == 1
        if this.is_whole:
            this.stored_gates = texts_of(said["stored"])
            this.stored_tallies = texts_of(said["counts"])
            this.stored_counters = numbers_of(said["counters"])

    def _look_at_entries(self, this: Pass, before: State) -> Talk:
        """Check that every entry belongs to something, unless the counts prove that."""
        after = yield from self._state()
        is_quiet = before.is_same_as(after)
        for name in _INDEXES:
            # All that have to be there are, and there are no more.
            if not is_quiet or after.sizes[name] != this.entries[name] or this.findings:
                yield from self._scan(this, name)
        for name in _BY_JOB:
            is_known = name == "specs" and is_quiet and not this.findings
            if not is_known or after.sizes["specs"] != this.entries["specs"]:
                yield from self._scan(this, name)
        for name in _SMALL:
            yield from self._scan(this, name)
        for prefix in ("line:", "waiting:", "blocked:", "gauges:"):
            yield from self._scan_keys(this, this.by_prefix.get(prefix, []))
        yield from self._look_at_unsure(this)

    def _scan(self, this: Pass, name: str) -> Talk:
        """Look at all entries of a key."""
        cursor = b"0"
        while True:
            size = OF_INDEX if name == "index" else BATCH
            said = yield from self._entries(this, name, cursor, size)
            rest = said["rest"]
            while rest:
                rest = (yield from self._entries(this, name, b"0", size, *rest))["rest"]
            cursor = said["cursor"]
            if cursor == b"0":
                return

    def _entries(self, this: Pass, name: str, cursor: bytes, size: int, *items: bytes) -> Talk:
        key = key_of(name)
        assert key is not None
        args = (bytes_of(name), key.type, cursor, size, *items)
        said = by_name((yield from self._session.execute_script("doctor/entries", args)))
        self._add_entries(this, said)
        return said

    def _scan_keys(self, this: Pass, names: list[str]) -> Talk:
        """Look at all entries of keys of one type, of many small ones by one script."""
        at = 0
        while at < len(names):
            key = key_of(names[at])
            assert key is not None
            args = (key.type, ENTRIES, *map(bytes_of, names[at : at + BATCH]))
            said = by_name((yield from self._session.execute_script("doctor/small_keys", args)))
            self._add_entries(this, said)
            for name in said["large"]:
                yield from self._scan(this, text_of(name))
            at += said["done"]

    def _add_entries(self, this: Pass, said: dict[str, Any]) -> None:
        self._add_problems(this, said["problems"])
        this.see(numbers_of(said["greatest"]))
        for name, field, place, started in zip(*[iter(said["running"])] * 4, strict=True):
            this.stored_running[text_of(place)] = text_of(name), text_of(field), int(started)
        if not this.is_whole:
            this.stored_gates |= texts_of(said["gates"])
            this.stored_tallies |= texts_of(said["tallies"])

    def _look_at_unsure(self, this: Pass) -> Talk:
        """
        Check that dependents named too many dependencies to be looked through for each of them.

        They are read once here. Only a dependency that is not among them is looked for by a script, which is exact.
        """
        for dependent_id, names in this.unsure.items():
            told: set[str] = set()
            for portion in count():
                field = f"{dependent_id}\n{portion}" if portion else dependent_id
                text = yield from self._plain("HGET", self._key("needs"), bytes_of(field))
                if text is None:
                    break
                told.update(line[5:] for line in text_of(text).split("\n"))
            for name in names:
                if name.removeprefix("waiting:") not in told:
                    yield from self._entries(this, name, b"0", BATCH, bytes_of(dependent_id))
        this.unsure.clear()

    def _add_problems(self, this: Pass, flat: Sequence[bytes]) -> None:
        for kind, name, item, about, found in problems_in(flat):
            if kind == "behind":
                continue  # told by the greatest number seen
            if kind == "unsure":
                this.unsure.setdefault(item, []).append(name)
                continue
            if kind == "strays" or (name in _BY_NUMBER and kind in {"stray", "lost"}):
                # What a number leads to is known once no job is missing from the index of records.
                if any(finding.kind == "bit" for finding in this.findings.values()):
                    continue
            if kind == "lost":
                what = f"job {about} is lost: it has no head, and its leftovers are in the way"
                this.add(repairable("job", self._key("jobs"), what, job_id=about), about)
            this.add(problem(kind, name, self._key(name), item, about, found), item or about)

    # --- running together, waiting in cycles ------------------------------------------------------------------------

    def _look_at_conflicts(self, this: Pass) -> Talk:
        """Check that no two running jobs conflict."""
        for pair in _conflicts(this.started):
            # They need not have run at one time: ask for both at once.
            said = by_name((yield from self._session.execute_script("doctor/heads", tuple(map(bytes_of, pair)))))
            started = dict(texts_of(said["started"]))
            if started.keys() == set(pair) and list(_conflicts(started)):
                what = f"jobs {pair[0]} and {pair[1]} run at once, and their claims conflict"
                this.add(Finding(kind="conflict", where=self._key("jobs"), what=what, job_id=pair[0]), pair[1])

    def _waits(self, said: dict[str, Any]) -> Talk:
        """Return which jobs wait for which; read the many that some wait for in pages."""
        waits = waits_of(said)
        for job_id in said["wide"]:
            others: dict[str, None] = {}
            cursor: Any = b"0"
            while True:
                name = bytes_of(self._key(f"blocked:{text_of(job_id)}"))
                cursor, flat = yield from self._plain("HSCAN", name, cursor, "COUNT", SCAN_COUNT)
                others.update(dict.fromkeys(map(text_of, flat[::2])))
                if int(cursor) == 0:
                    break
            waits[text_of(job_id)] = [*others]
        return waits

    def _look_at_cycles(self, this: Pass) -> Talk:
        """Check that open edges form no cycle, in which no job would ever run."""
        waits = {job_id: others for job_id, others in this.waits.items() if not this.waits.keys().isdisjoint(others)}
        for found, cycle in enumerate(cycles(waits)):
            if found == CYCLES_MAX:
                this.notes.append(MORE_CYCLES)
                return
            # They were not all read at one time; what is a cycle stays one.
            now: dict[str, list[str]] = {}
            for batch in batches(cycle, BATCH):
                said = by_name((yield from self._session.execute_script("doctor/heads", tuple(map(bytes_of, batch)))))
                now |= yield from self._waits(said)
            if all(other in now.get(job_id, ()) for job_id, other in pairwise([*cycle, cycle[0]])):
                this.add(cycle_finding(self._key("deferred"), cycle), cycle[0])

    # --- repairs -----------------------------------------------------------------------------------------------------

    def _repair(self, packed: bytes, repairs: list[Repair]) -> Talk:
        """Carry out repairs in batches while nothing else changes. Return whether all were done."""
        for batch in batches(repairs, REPAIRS):
            flat = [bytes_of(part) for repair in batch for part in repair]
            done, packed = yield from self._session.execute_script("doctor/repair", (packed, *flat))
            if done != b"DONE":
                return False
        return True


def _conflicts(started: dict[str, str]) -> Iterator[tuple[str, str]]:
    """Yield pairs of jobs whose claims conflict. Each claim looks only at its own path and its ancestors."""
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
