"""Questions about records, flows, schedules, limits and events, answered without changing anything."""

from __future__ import annotations

from heapq import merge, nsmallest
from itertools import islice
from operator import itemgetter
from typing import TYPE_CHECKING

from queuehint import operations as op
from queuehint.core.state import handles
from queuehint.core.structures.record_index import is_in_time, numbers, passes
from queuehint.operations import Verdict
from queuehint.values.hint import is_prefix, key_of
from queuehint.values.record import JobState
from queuehint.values.record_filter import DEAD_RECORDS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from queuehint.core.jobs.table import JobTable
    from queuehint.core.state import State
    from queuehint.core.structures.job import Job
    from queuehint.values.record import JobRecord
    from queuehint.values.record_filter import RecordFilter


@handles(op.Get)
def get(state: State, question: op.Get) -> op.Got:
    """Answer `Get`."""
    jobs = state.table.jobs
    found = [jobs.get(job_id) for job_id in question.ids]
    return op.Got(tuple([None if job is None or job.gone or job.is_hidden else job.record() for job in found]))


@handles(op.Fetch)
def fetch(state: State, question: op.Fetch) -> op.Fetched:
    """Answer `Fetch`."""
    jobs = state.table.jobs
    job = jobs.get(question.job_id)
    if job is None or job.state is not JobState.STARTED or (type(question.token), question.token) != (int, job.token):
        return op.Fetched(Verdict.LOST, ())
    extras = job.extras
    if extras is not None and extras.more_needs and extras.holds:
        declared = {job_id for job_id in question.ids if state.table.edges.depends(job, job_id)}
    else:
        declared = {job_id for job_id, _ in extras.all_needs()} if extras is not None else set()
    results: list[tuple[JobState | None, bytes | None]] = []
    size = 0
    for job_id in question.ids:
        found = jobs.get(job_id) if job_id in declared else None
        if found is None or found.gone:
            results.append((None, None))
            continue
        size += len(found.result or b"")
        if results and size > op.FETCH_BYTES_MAX:
            break
        results.append((found.state, found.result))
    steps = () if question.steps_from is None else _steps_behind(job, question.steps_from)
    return op.Fetched(Verdict.DONE, tuple(results), steps)


def _steps_behind(job: Job, first: int) -> tuple[tuple[str, int, bytes], ...]:
    """Return the steps of a job from index *first* on: at least one, as many as fit into a reply."""
    found: list[tuple[str, int, bytes]] = []
    size = 0
    for name, (at_ms, result) in islice(job.steps.items(), first, None):
        size += len(result)
        if found and size > op.FETCH_BYTES_MAX:
            break
        found.append((name, at_ms, result))
    return tuple(found)


@handles(op.List)
def list_records(state: State, question: op.List) -> op.Page:
    """Answer `List`."""
    if question.by_time and question.filter.is_by_path:
        return _page_by_time(state.table, question)
    if question.filter.is_by_entry or question.filter == DEAD_RECORDS:
        return _page_by_entry(state.table, question)
    return _page_by_number(state.table, question)


def _page_by_number(table: JobTable, question: op.List) -> op.Page:
    wanted, newest_first = question.filter, question.newest_first
    after = None if question.after is None else question.after[1]
    records: list[JobRecord] = []
    looked_at = edge = 0
    for place, (block, bits) in enumerate(table.catalog.blocks(wanted, after, newest_first=newest_first)):
        if place == op.BLOCKS_LOOKED_AT_MAX or len(records) == question.limit:
            return op.Page(tuple(records), ("", edge))
        for number in numbers(bits, block.base, newest_first=newest_first):
            if looked_at == op.RECORDS_LOOKED_AT_MAX or len(records) == question.limit:
                return op.Page(tuple(records), ("", edge))
            looked_at, edge = looked_at + 1, number
            job = block.jobs[number]
            if is_in_time(wanted, job.enqueued_ms) and _is_there(wanted, job):
                records.append(job.record())
        edge = block.base if newest_first else block.base + op.RECORDS_PER_BLOCK - 1
    return op.Page(tuple(records), None)


def _page_by_time(table: JobTable, question: op.List) -> op.Page:
    """Return a page of the records below a path in order of number: few are sorted, of many all records are read."""
    wanted, newest_first, limit = question.filter, question.newest_first, question.limit
    entries = list(islice(_entries(table, wanted), op.RECORDS_LOOKED_AT_MAX + 1))
    if len(entries) > op.RECORDS_LOOKED_AT_MAX:
        return _page_by_number(table, question)
    jobs = {number: job for _, number, job in entries if passes(wanted, job)}
    numbers = sorted(jobs, reverse=newest_first)
    if question.after is not None:
        edge = question.after[1]
        numbers = [number for number in numbers if (number < edge if newest_first else number > edge)]
    page = numbers[:limit]
    records = tuple([jobs[number].record() for number in page])
    return op.Page(records, ("", page[-1]) if len(numbers) > limit else None)


def _page_by_entry(table: JobTable, question: op.List) -> op.Page:
    records: list[JobRecord] = []
    place: op.Position = ("", 0)
    wanted = question.filter
    entries = _entries(table, wanted, question.after, newest_first=question.newest_first)
    for looked_at, (key, number, job) in enumerate(entries):
        if looked_at == op.RECORDS_LOOKED_AT_MAX or len(records) == question.limit:
            return op.Page(tuple(records), place)
        place = (key, number)
        if passes(wanted, job) and _is_first(wanted, key, job):
            records.append(job.record())
    return op.Page(tuple(records), None)


def _entries(
    table: JobTable, wanted: RecordFilter, after: op.Position | None = None, *, newest_first: bool = False
) -> Iterator[tuple[str, int, Job]]:
    """
    Yield key, number and job of the entries of an index behind a position.

    They are those of the jobs that wait for one, of a flow, or of the dead-letter queue, with the key ""; of the
    first by the number since which they wait. Else of each claim at or below a path, of jobs in states that pass the
    filter.
    """
    number = None if after is None else after[1]
    if wanted.waits_for is not None:
        dependents = table.edges.dependents(wanted.waits_for)
        for since, job in reversed(dependents) if newest_first else dependents:
            if number is None or (since < number if newest_first else since > number):
                yield "", since, job
        return
    if wanted.flow is not None or wanted.path is None:
        jobs = table.dead if wanted.flow is None else table.flows.of(wanted.flow)
        low, high = (None, number) if newest_first else (number, None)
        for found in jobs.irange(low, high, inclusive=(False, False), reverse=newest_first):
            yield "", found, jobs[found]
        return
    asked = ((table.paths, wanted.is_unfinished), (table.past, wanted.is_over))
    yield from merge(
        *[index.entries(wanted.path, after, newest_first=newest_first) for index, is_asked in asked if is_asked],
        key=itemgetter(0, 1),
        reverse=newest_first,
    )


def _is_first(wanted: RecordFilter, key: str, job: Job) -> bool:
    """Return whether a key is the job's first claim at or below a path; for "", whether there is such a claim."""
    claims, path = job.spec.claims, wanted.path
    if path is None or not wanted.is_by_path:
        return _is_there(wanted, job)
    return len(claims) == 1 or key == min(key_of(claim.path) for claim in claims if is_prefix(path, claim.path))


def _is_there(wanted: RecordFilter, job: Job) -> bool:
    """Return whether a job has a claim at or below the path of a filter, if the filter has a path."""
    path = wanted.path
    return path is None or any(is_prefix(path, claim.path) for claim in job.spec.claims)


@handles(op.CountRecords)
def count_records(state: State, question: op.CountRecords) -> op.Counts:
    """Answer `CountRecords`."""
    states = dict.fromkeys(JobState, 0)
    flow = question.filter.flow_alone
    if flow is not None and question.after is None:
        for job in state.table.flows.of(flow).values():
            if not job.is_hidden:
                states[job.state] += 1
        return op.Counts(states, None)
    if question.filter.is_by_entry:
        return op.Counts(states, _count_by_entry(state.table, question, states))
    return op.Counts(states, _count_by_number(state.table, question, states))


def _count_by_number(table: JobTable, question: op.CountRecords, states: dict[JobState, int]) -> op.Position | None:
    """Count into *states*. Return the position to continue after, None at the end."""
    wanted = question.filter
    after = None if question.after is None else question.after[1]
    left, edge = op.RECORDS_COUNTED_MAX, 0
    for block, bits in table.catalog.blocks(wanted, after):
        if left < op.BLOCK_COUNTS_AS:
            return ("", edge)
        left -= op.BLOCK_COUNTS_AS
        if is_in_time(wanted, block.first_ms) and is_in_time(wanted, block.last_ms):
            for state, those in block.by_state().items():
                states[state] += (those & bits).bit_count()
        else:
            for number in numbers(bits, block.base):
                if left == 0:
                    return ("", edge)
                left, edge = left - 1, number
                states[block.jobs[number].state] += is_in_time(wanted, block.jobs[number].enqueued_ms)
        edge = block.base + op.RECORDS_PER_BLOCK - 1
    return None


def _count_by_entry(table: JobTable, question: op.CountRecords, states: dict[JobState, int]) -> op.Position | None:
    """Count into *states*. Return the position to continue after, None at the end."""
    wanted, place = question.filter, ("", 0)
    for looked_at, (key, number, job) in enumerate(_entries(table, wanted, question.after)):
        if looked_at == op.RECORDS_COUNTED_MAX:
            return place
        place = (key, number)
        states[job.state] += passes(wanted, job) and _is_first(wanted, key, job)
    return None


@handles(op.ListUsers)
def list_users(state: State, question: op.ListUsers) -> op.Users:
    """Answer `ListUsers`."""
    users = state.table.catalog.users.get(question.service, {})
    found = nsmallest(question.limit + 1, [user for user in users if question.after is None or user > question.after])
    page = tuple([(user, users[user]) for user in found[: question.limit]])
    return op.Users(page, page[-1][0] if len(found) > question.limit else None)


@handles(op.ListWeights)
def list_weights(state: State, _question: op.ListWeights) -> op.Weights:
    """Answer `ListWeights`."""
    return op.Weights(tuple(sorted(state.table.ready.weights.items(), key=lambda entry: entry[0] or "")))


@handles(op.ListWorkers)
def list_workers(state: State, _question: op.ListWorkers) -> op.Workers:
    """Answer `ListWorkers`."""
    return op.Workers(tuple(state.live_workers()), state.now_ms)


@handles(op.ListPauses)
def list_pauses(state: State, _question: op.ListPauses) -> op.Pauses:
    """Answer `ListPauses`."""
    return op.Pauses(state.table.pauses.states())


@handles(op.ListLimits)
def list_limits(state: State, _question: op.ListLimits) -> op.Limits:
    """Answer `ListLimits`."""
    return op.Limits(state.table.limits.states(state.table.unfinished))


@handles(op.ListSchedules)
def list_schedules(state: State, operation: op.ListSchedules) -> op.Schedules:
    """Answer `ListSchedules`."""
    found, following = state.timetable.page(operation.first, operation.limit)
    return op.Schedules(tuple(found), state.now_ms, following)


@handles(op.DueSchedules)
def due_schedules(state: State, operation: op.DueSchedules) -> op.Schedules:
    """Answer `DueSchedules`."""
    found = state.timetable.due(state.now_ms, operation.limit, operation.after)
    behind = None
    if len(found) == operation.limit:
        assert found[-1].next_ms is not None
        behind = found[-1].next_ms, found[-1].name
    return op.Schedules(tuple(found), state.now_ms, behind=behind)


@handles(op.Follow)
def follow_events(state: State, operation: op.Follow) -> op.Followed:
    """Answer `Follow`."""
    journal = state.table.journal
    events, after, missed = journal.follow(operation.after, operation.limit, operation.filters)
    return op.Followed(events, after, missed, after < journal.last)
