"""
Bitmap index of the kept records, in order of number, for filters.

Numbers are cut into blocks of 1 024. An indexed value of a record (a tag, a user, a task, a pool, a state, …) is a
*term*; the records of a block that have a term are the bits of one int, bit n for the n-th number of the block. A
filter is an AND of such ints, after an OR over states. So the cost of a question grows with its blocks, not with its
records (a bitmap index: O'Neil and Quass, "Improved query performance with variant indexes", 1997); each block stores
its first and last time of enqueue, so that a filter by time skips blocks outside of it, as zone maps do.

Bits are computed on demand and dropped when a record of their block changes: a job that is never listed costs no more
than its entry in its block. A query visits exactly the blocks in which some record has the *driver*, the first term
that the filter names: their number is bounded, and the bound has the same effect on every backend, but that Redis
visits fewer where a service, a task or a pool is that of jobs with many different facts.

Complexity: O(1) to add, move or remove a record.
"""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, TypeVar

import attrs
from sortedcontainers import SortedDict

from queuehint.operations import RECORDS_PER_BLOCK
from queuehint.values.record import OVER, JobState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from queuehint.core.structures.job import Job
    from queuehint.values.record_filter import RecordFilter
    from queuehint.values.spec import JobSpec

Value = TypeVar("Value", str, JobState, str | None)

_NAMED = ("tag", "parent", "user", "service", "task", "pool")
"""The terms that may be drivers, first those that tend to have fewer records."""

_STATE: Callable[[Job], JobState] = attrgetter("state")
_GET: Mapping[str, Callable[[Job], str | None]] = {name: attrgetter(f"spec.{name}") for name in _NAMED[1:]}


class Block:
    """
    The records of up to 1 024 consecutive numbers.

    ``first_ms`` and ``last_ms`` are the earliest and latest time of enqueue that a record here has had.
    """

    __slots__ = ("base", "first_ms", "jobs", "last_ms", "states", "terms")

    def __init__(self, base: int, enqueued_ms: int) -> None:
        self.base = base
        self.jobs: dict[int, Job] = {}
        self.first_ms = self.last_ms = enqueued_ms
        self.terms: dict[str, dict[str | None, int]] = {}
        """The bits of each value of a term; computed on demand, empty after a record was added, removed or changed."""
        self.states: dict[JobState, int] | None = None
        """The bits of each state; computed on demand, None after a record has changed its state."""

    def has(self, name: str, value: str) -> int:
        """Return the bits of the records whose term *name* is *value*."""
        values = self.terms.get(name)
        if values is None:
            values = self.terms[name] = _bits_of(self, name)
        return values.get(value, 0)

    def is_in(self, states: Iterable[JobState]) -> int:
        """Return the bits of the records in one of *states*."""
        bits = 0
        for state in states:
            bits |= self.by_state().get(state, 0)
        return bits

    def by_state(self) -> dict[JobState, int]:
        """Return the bits of the records in each state."""
        if self.states is None:
            self.states = _bits(self, _STATE)
        return self.states


def _bits(block: Block, term: Callable[[Job], Value]) -> dict[Value, int]:
    """Return the bits of each value of a term."""
    base = block.base
    found: dict[Value, int] = {}
    for number, job in block.jobs.items():
        value = term(job)
        found[value] = found.get(value, 0) | 1 << number - base
    return found


def _bits_of(block: Block, name: str) -> dict[str | None, int]:
    """Return the bits of each value of a named term. A job has any number of tags."""
    if name != "tag":
        return _bits(block, _GET[name])
    found: dict[str | None, int] = {}
    for number, job in block.jobs.items():
        for tag in job.spec.tags:
            found[tag] = found.get(tag, 0) | 1 << number - block.base
    return found


class Catalog:
    """
    Jobs whose records are kept and known, by number.

    ``users`` counts, for each service, the records of each user.
    """

    def __init__(self) -> None:
        self._blocks: SortedDict[int, Block] = SortedDict()
        self.users: dict[str, dict[str, int]] = {}

    def __len__(self) -> int:
        return len(self._blocks)

    def find(self, number: int) -> Job | None:
        """Return the job of a number; None for an unknown number or a dropped record."""
        block = self._blocks.get(number // RECORDS_PER_BLOCK)
        return None if block is None else block.jobs.get(number)

    def add(self, job: Job) -> None:
        """Index a newly visible job."""
        number, enqueued_ms, spec = job.number, job.enqueued_ms, job.spec
        at = number // RECORDS_PER_BLOCK
        block = self._blocks.get(at)
        if block is None:
            block = self._blocks[at] = Block(at * RECORDS_PER_BLOCK, enqueued_ms)
        elif enqueued_ms != block.last_ms:
            block.first_ms = min(block.first_ms, enqueued_ms)
            block.last_ms = max(block.last_ms, enqueued_ms)
        block.jobs[number] = job
        job.block = block
        block.states = None
        if block.terms:
            block.terms = {}
        if spec.service is not None and spec.user is not None:
            self._count(spec, 1)

    def remove(self, job: Job) -> None:
        """Remove a job whose record is dropped."""
        block: Block | None = job.block
        spec = job.spec
        assert block is not None
        del block.jobs[job.number]
        job.block = block.states = None
        if block.terms:
            block.terms = {}
        if not block.jobs:
            del self._blocks[block.base // RECORDS_PER_BLOCK]
        if spec.service is not None and spec.user is not None:
            self._count(spec, -1)

    def respec(self, job: Job, spec: JobSpec) -> None:
        """Replace the spec of a job. A staged job is not indexed before its release."""
        block: Block | None = job.block
        old = job.spec
        job.spec = spec
        if block is None:
            return
        block.terms = {}
        if old.service is not None and old.user is not None:
            self._count(old, -1)
        if spec.service is not None and spec.user is not None:
            self._count(spec, 1)

    def _count(self, spec: JobSpec, by: int) -> None:
        assert spec.service is not None
        assert spec.user is not None
        users = self.users.setdefault(spec.service, {})
        count = users.get(spec.user, 0) + by
        if count:
            users[spec.user] = count
            return
        del users[spec.user]
        if not users:
            del self.users[spec.service]

    # --- questions -------------------------------------------------------------------------------------------------

    def blocks(
        self, wanted: RecordFilter, after: int | None = None, *, newest_first: bool = False
    ) -> Iterator[tuple[Block, int]]:
        """
        Yield the blocks with a record of the driver, in order, each with the bits of the candidate records.

        The time of enqueue of each record is left to the caller to check.

        Args:
            after: skip the records up to this number; with *newest_first* those from it on.
        """
        low = high = None
        if after is not None and newest_first:
            high = (after - 1) // RECORDS_PER_BLOCK
        elif after is not None:
            low = (after + 1) // RECORDS_PER_BLOCK
        for at in self._blocks.irange(low, high, reverse=newest_first):
            block = self._blocks[at]
            bits = _driver(block, wanted)
            if bits:
                yield block, bits & _others(block, wanted) & _beyond(block, after, newest_first=newest_first)

    def count_unfinished(self, selection: RecordFilter) -> int:
        """Count the unfinished jobs that a filter without a time selects; O(blocks)."""
        unfinished = attrs.evolve(selection, states=tuple([state for state in JobState if state not in OVER]))
        return sum(bits.bit_count() for _, bits in self.blocks(unfinished))

    def check(self, jobs: Mapping[str, Job]) -> None:
        """Assert that every known record is in exactly its block, without stale bits; for tests."""
        known: dict[int, dict[int, Job]] = {}
        users: dict[str, dict[str, int]] = {}
        for job in jobs.values():
            staged = job.extras is not None and job.extras.start is not None and not job.is_over
            if job.gone or staged or job.is_start:
                assert job.block is None
                continue
            known.setdefault(job.number // RECORDS_PER_BLOCK, {})[job.number] = job
            if job.spec.service is not None and job.spec.user is not None:
                of_service = users.setdefault(job.spec.service, {})
                of_service[job.spec.user] = of_service.get(job.spec.user, 0) + 1
        assert users == self.users
        assert known == {at: block.jobs for at, block in self._blocks.items()}
        for at, block in self._blocks.items():
            fresh = Block(block.base, 0)
            fresh.jobs = block.jobs
            assert block.base == at * RECORDS_PER_BLOCK
            assert block.states is None or block.states == fresh.by_state()
            for name, values in block.terms.items():
                assert values == _bits_of(fresh, name)
            for job in block.jobs.values():
                assert job.block is block
                assert block.first_ms <= job.enqueued_ms <= block.last_ms


def numbers(bits: int, base: int, *, newest_first: bool = False) -> Iterator[int]:
    """
    Yield the numbers of the set bits, in order.

    >>> list(numbers(0b1011, 1024)), list(numbers(0b1011, 0, newest_first=True))
    ([1024, 1025, 1027], [3, 1, 0])
    """
    while bits:
        bit = (bits if newest_first else bits & -bits).bit_length() - 1
        bits ^= 1 << bit
        yield base + bit


def is_in_time(wanted: RecordFilter, enqueued_ms: int) -> bool:
    """Return whether a time of enqueue passes a filter."""
    since_ms, until_ms = wanted.since_ms, wanted.until_ms
    return (since_ms is None or enqueued_ms >= since_ms) and (until_ms is None or enqueued_ms < until_ms)


def passes(wanted: RecordFilter, job: Job) -> bool:
    """Return whether a job passes a filter, apart from its path."""
    if job.block is None or (wanted.states and job.state not in wanted.states):
        return False
    if wanted.tag is not None and wanted.tag not in job.spec.tags:
        return False
    if wanted.waits_for is not None and (
        wanted.waits_for not in job.blocked or wanted.flow not in (None, job.spec.flow)
    ):
        return False
    for name in _NAMED[1:]:
        value = getattr(wanted, name)
        if value is not None and getattr(job.spec, name) != value:
            return False
    return is_in_time(wanted, job.enqueued_ms)


def _driver(block: Block, wanted: RecordFilter) -> int:
    """Return the bits of the first term of a filter; of all records without any term."""
    for name in _NAMED:
        value = getattr(wanted, name)
        if value is not None:
            return block.has(name, value)
    return block.is_in(wanted.states or JobState)


def _others(block: Block, wanted: RecordFilter) -> int:
    """Return the bits of the records with all terms of a filter; 0 in a block of other times."""
    if wanted.since_ms is not None and block.last_ms < wanted.since_ms:
        return 0
    if wanted.until_ms is not None and block.first_ms >= wanted.until_ms:
        return 0
    bits = block.is_in(wanted.states) if wanted.states else -1
    for name in _NAMED:
        value = getattr(wanted, name)
        if value is not None:
            bits &= block.has(name, value)
    return bits


def _beyond(block: Block, after: int | None, *, newest_first: bool) -> int:
    """Return the bits of the numbers after *after*."""
    if after is None:
        return -1
    at = after - block.base
    return (1 << min(at, RECORDS_PER_BLOCK)) - 1 if newest_first else -1 << max(at + 1, 0)
