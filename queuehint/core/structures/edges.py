"""
Dependency edges between jobs, and the policy that applies when a dependency ends.

An edge is stored at both ends. ``waiting`` holds, for each job, its dependents; a job's own ``blocked`` set holds its
open dependencies, each with the *policy* of its edge. Both change in one step. An edge is open while it is in
``blocked``. One from ``depends_on`` stays in ``waiting`` after that, until the dependent cannot run any more: until
then the dependency's result is kept. Others (a child's, a key's) leave ``waiting`` when they close.

The policy of an edge is four letters: the action on the dependent when the dependency is FINISHED, FAILED and
CANCELED, and whether the edge is kept when it closes.

Source: FairQueue's dependency sets; failed dependencies follow the table of the documentation.
"""

from __future__ import annotations

from graphlib import CycleError as GraphCycleError
from graphlib import TopologicalSorter
from typing import TYPE_CHECKING, Final

from sortedcontainers import SortedDict

from queuehint.core.structures.job import START_MARK
from queuehint.values.record import JobState
from queuehint.values.spec import PORTION_MAX, SIGNAL_MARK

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

    from queuehint.core.structures.job import Job, Needs
    from queuehint.core.structures.leftovers import DependentsSweep
    from queuehint.values.outcome import OnChildFailure
    from queuehint.values.policy import OnDependencyFailure
    from queuehint.values.spec import Dependency, JobSpec

DROP: Final = "d"
"""The edge is resolved."""
WAIT: Final = "w"
"""The dependent keeps waiting, for a redrive."""
CANCEL: Final = "c"
"""The dependent is canceled."""
NOTE: Final = "n"
"""The edge is resolved, and the parent records that its child has failed."""
FAIL: Final = "f"
"""The dependent is FAILED."""
KEPT: Final = "k"
ENDS_DEPENDENT: Final = frozenset({CANCEL, FAIL})

AFTER: Final = "ddd-"
"""The edge of `on_conflict="after"`."""
START: Final = "ddds"
"""The edge to the start of a submission in parts."""
OF_AWAITED: Final = "dddk"
"""The edge to what a job waits for that is run again then."""
OF_CHILD: Final[Mapping[OnChildFailure, str]] = {"fail": "dnn-", "ignore": "ddd-"}
REACH_MAX: Final = 1000
SORTED_MAX: Final = 4000
"""Of a job with more open edges only those of one portion are named."""

_AT: Final = {JobState.FINISHED: 0, JobState.FAILED: 1, JobState.CANCELED: 2}
_ENDED: Final = {JobState.FINISHED: "has finished", JobState.FAILED: "has failed", JobState.CANCELED: "was canceled"}


def edge_policy(edge: Dependency, on_failure: OnDependencyFailure) -> str:
    """
    Return the policy of an edge.

    >>> from queuehint.values.spec import Dependency
    >>> edge_policy(Dependency("a"), "wait"), edge_policy(Dependency("a", when="done"), "wait")
    ('dwdk', 'dddk')
    """
    if edge.when == "failure":
        return CANCEL + DROP + CANCEL + KEPT
    if edge.when == "must":
        return DROP + FAIL + FAIL + KEPT
    # A dependent that needs the result cannot run without it.
    drop = CANCEL if edge.data else DROP
    if edge.when == "done" or on_failure == "run":
        return DROP + drop + drop + KEPT
    if on_failure == "cancel":
        return DROP + CANCEL + CANCEL + KEPT
    return DROP + WAIT + drop + KEPT


def needs_of(spec: JobSpec) -> Needs:
    """Return the dependencies of a spec, with the policies of their edges: up to 1 000, `Depend` adds the others."""
    return portion_of(spec.depends_on[:PORTION_MAX], spec.policy.on_dependency_failure)


def portion_of(edges: Iterable[Dependency], on_failure: OnDependencyFailure) -> Needs:
    """Return some dependencies of a job, with the policies of their edges."""
    return tuple([(edge.id, edge_policy(edge, on_failure)) for edge in edges])


def edge_action(edge: str, state: JobState) -> str:
    """Return the action of an edge when its dependency ends in *state*."""
    return edge[_AT[state]]


def evaluate(
    jobs: Mapping[str, Job], needs: Needs, coming: Collection[str] = (), is_late: Callable[[Job], bool] | None = None
) -> tuple[Needs, tuple[str, Job | None] | None]:
    """
    Evaluate the dependencies of a job by their present states.

    Args:
        coming: ids of jobs that are enqueued by the same operation.
        is_late: return whether a job took its id too late to be the one meant, whose record then has expired.

    Returns:
        The dependencies to wait for, and the first one that ends the job: its id, and the job or, if its record has
        expired, None.
    """
    blocked = []
    for need in needs:
        job = jobs.get(need[0])
        if need[0].startswith(SIGNAL_MARK):
            # One that was given, at any time, is over for good; any other may be given yet.
            if job is None or job.gone:
                blocked.append(need)
            continue
        if job is None or job.gone or job.is_hidden or (is_late is not None and is_late(job)):
            if job is not None or need[0] not in coming:
                return (), (need[0], None)
        elif job.is_over:
            what = edge_action(need[1], job.state)
            if what in ENDS_DEPENDENT:
                return (), (need[0], job)
            if what != WAIT:
                continue
        blocked.append(need)
    return tuple(blocked), None


def cause_of(job_id: str, state: JobState | None) -> str:
    """Return the cause of a dependent's cancellation. *state* is the dependency's end, None for an expired record."""
    return f"dependency {job_id} {'has expired' if state is None else _ENDED[state]}"


def is_late(job: Job, other: Job) -> bool:
    """
    Return whether *other* took the id of a dependency of *job* too late to be the intended job.

    Args:
        job: a staged job that is not released yet.
        other: late if a later commit or enqueue made it visible, or if a later part of the same submission had it.
    """
    return other.came > job.came or (other.came == job.came and other.number > job.need_extras().came)


class DependencySets:
    """
    The edges of one namespace.

    ``open`` counts the open edges except those to starts. ``canceled`` holds, for each job, the dependents that its end
    canceled.
    """

    def __init__(self) -> None:
        self._waiting: dict[str, dict[str, tuple[int, Job]]] = {}
        self._canceled_by: dict[str, SortedDict[int, Job]] = {}
        self._awaited: set[str] = set()
        """The ids of jobs that have dependents; an id is removed when its job is pruned."""
        self._resolving: set[int] = set()
        """The numbers of jobs that are over and whose edges are still being resolved."""
        self._sweeps: dict[str, list[DependentsSweep]] = {}
        """The sweeps that have listed a job's dependents, for those that are added out of order."""
        self.open = 0

    # --- edges ---------------------------------------------------------------------------------------------------

    def add(self, job: Job, dependency_id: str, edge: str) -> None:
        """Add an open edge: *job* waits for the dependency."""
        self.keep(job, dependency_id)
        blocked = job.need_extras().blocked
        self.open += dependency_id not in blocked and edge != START
        blocked[dependency_id] = edge

    def keep(self, job: Job, dependency_id: str) -> None:
        """Add a closed edge: the result of the dependency is kept for *job*."""
        self._waiting.setdefault(dependency_id, {})[job.id] = (job.since, job)
        self._awaited.add(dependency_id)

    def hold(self, job: Job, needs: Needs) -> None:
        """Keep the present and future results of other jobs for a job, as long as the job can run."""
        extras = job.need_extras()
        known = {dependency_id for dependency_id, _ in extras.all_needs()}
        extras.needs += tuple([need for need in needs if need[0] not in known])
        for dependency_id, _ in needs if extras.holds else extras.all_needs():
            self.keep(job, dependency_id)
        extras.holds = True

    def close(self, job: Job, dependency_id: str) -> None:
        """Close an open edge. Remove the edge unless its result is kept."""
        edge = job.blocked.pop(dependency_id)
        self.open -= edge != START
        if edge[-1] != KEPT:
            self._remove(job, dependency_id)

    def release(self, job: Job) -> int:
        """Remove all edges of a job that cannot run any more, of portions the rest. Return their number."""
        extras = job.need_extras()
        is_whole = extras.holds and not extras.more_needs
        ids = [dependency_id for dependency_id, _ in extras.needs] if is_whole else []
        ids += [dependency_id for dependency_id, edge in extras.blocked.items() if edge[-1] != KEPT]
        for dependency_id in ids:
            # One that was given up between two slices is not bound to all.
            if self.depends(job, dependency_id):
                self._remove(job, dependency_id)
        self.open -= sum(edge != START for edge in extras.blocked.values())
        extras.blocked.clear()
        extras.holds = False
        return len(ids)

    def release_portion(self, job: Job, needs: Needs) -> int:
        """Remove the edges of one portion of a job that cannot run any more. Return their number."""
        blocked = job.blocked
        for dependency_id, _ in needs:
            if dependency_id in blocked:
                del blocked[dependency_id]
                self.open -= 1
            # It may have ended before it was bound.
            if self.depends(job, dependency_id):
                self._remove(job, dependency_id)
        return len(needs)

    def some_open(self, job: Job) -> list[str]:
        """
        Return the open dependency ids in order; of more than 4 000, the first portion with an open one.

        The edge to the start of its submission is left out.
        """
        ids: Iterable[str] = job.blocked
        if len(job.blocked) > SORTED_MAX:
            open_ids = ([need[0] for need in needs if need[0] in job.blocked] for needs in job.need_extras().portions)
            ids = next(filter(None, open_ids), ids)
        return sorted([job_id for job_id in ids if job_id[0] != START_MARK])

    def _remove(self, job: Job, dependency_id: str) -> None:
        dependents = self._waiting[dependency_id]
        del dependents[job.id]
        if not dependents:
            del self._waiting[dependency_id]
            # There may be no record that would be pruned.
            self._awaited.discard(dependency_id)

    def has_dependents(self, job_id: str) -> bool:
        """Return whether the job has dependents that can still run."""
        return job_id in self._awaited and job_id in self._waiting

    def forget(self, job_id: str) -> None:
        """Remove the id of a pruned job from the set of dependency ids."""
        self._awaited.discard(job_id)

    def dependents(self, job_id: str) -> list[tuple[int, Job]]:
        """Return the dependents of a job with their numbers (or those of their redrives), in this order."""
        return sorted(self._waiting.get(job_id, {}).values(), key=_order)

    def begin_sweep(self, sweep: DependentsSweep) -> list[tuple[int, Job]]:
        """List the dependents that a sweep has to visit, last first. Later ones are inserted until `end_sweep`."""
        job_id = sweep.dependency.id
        self._sweeps.setdefault(job_id, []).append(sweep)
        return [entry for entry in reversed(self.dependents(job_id)) if sweep.at < entry[0] <= sweep.before]

    def end_sweep(self, sweep: DependentsSweep) -> None:
        """Insert no more dependents into a sweep."""
        sweep.left = None
        sweeps = self._sweeps[sweep.dependency.id]
        sweeps.remove(sweep)
        if not sweeps:
            del self._sweeps[sweep.dependency.id]

    def insert_late(self, job: Job, dependency_ids: Iterable[str]) -> None:
        """Insert a job with edges later than its enqueue into the sweeps of its dependencies."""
        if self._sweeps:
            for dependency_id in dependency_ids:
                for sweep in self._sweeps.get(dependency_id, ()):
                    sweep.insert((job.since, job))

    def begin_resolving(self, job: Job) -> None:
        """Record that a sweep resolves the edges to an ended job."""
        self._resolving.add(job.number)

    def end_resolving(self, job: Job) -> None:
        """Record that no edges to a job are left to resolve."""
        self._resolving.discard(job.number)

    def is_resolving(self, job: Job) -> bool:
        """Return whether the edges to an ended job are still being resolved."""
        return job.number in self._resolving

    def is_since(self, job: Job, dependency_id: str, number: int) -> bool:
        """Return whether *job* depends on the other job since that number."""
        entry = self._waiting.get(dependency_id, {}).get(job.id)
        return entry is not None and entry[0] == number

    def count(self, job_id: str) -> int:
        """Return the number of dependents of a job."""
        return len(self._waiting.get(job_id, ()))

    def awaited(self) -> list[str]:
        """Return the ids of all dependencies; for tests."""
        return list(self._waiting)

    def depends(self, job: Job, dependency_id: str) -> bool:
        """Return whether *job* depends on the other job."""
        return job.id in self._waiting.get(dependency_id, ())

    # --- those canceled because of another -------------------------------------------------------------------------

    def set_canceled_by(self, job: Job, dependency_id: str) -> None:
        """Record that a dependency caused the cancellation of *job*."""
        self.clear_canceled_by(job)
        job.need_extras().canceled_by = dependency_id
        self._canceled_by.setdefault(dependency_id, SortedDict())[job.number] = job

    def clear_canceled_by(self, job: Job) -> None:
        """Clear the record that a dependency caused the cancellation of *job*."""
        if job.extras is None or job.extras.canceled_by is None:
            return
        canceled = self._canceled_by[job.extras.canceled_by]
        del canceled[job.number]
        if not canceled:
            del self._canceled_by[job.extras.canceled_by]
        job.extras.canceled_by = None

    def first_canceled_by(self, job_id: str, after: int = 0) -> Job | None:
        """Return the first dependent after number *after* canceled by the end of this job."""
        canceled = self._canceled_by.get(job_id)
        if canceled is None:
            return None
        number = next(canceled.irange(after, inclusive=(False, True)), None)
        return None if number is None else canceled[number]

    # --- cycles -------------------------------------------------------------------------------------------------

    @staticmethod
    def reaches(jobs: Mapping[str, Job], ids: Iterable[str], targets: Collection[str], seen: set[str]) -> bool | None:
        """
        Return whether a job of *ids* is in *targets* or waits for one, directly or not; None if the search is too long.

        Args:
            seen: ids that were visited before; at most 1 000 in all are visited, breadth first, and none beyond a job
                that waits for more.
        """
        todo = [job_id for job_id in ids if job_id not in seen]
        for job_id in todo:
            if job_id in targets:
                return True
            if job_id in seen:
                continue
            if len(seen) >= REACH_MAX:
                return None
            seen.add(job_id)
            job = jobs.get(job_id)
            if job is not None and not job.is_over:
                # A committed job that is not released yet will wait for its dependencies.
                is_staged = job.extras is not None and job.extras.start is not None
                above = _meant(job, jobs) if is_staged else job.blocked
                if len(above) > REACH_MAX:
                    return None
                todo += sorted(above)
        return False

    def is_awaited_by(self, job_id: str, ids: Collection[str]) -> bool | None:
        """
        Return whether a job of *ids* waits for a job along open edges: `reaches` from the other end.

        None if the search is too long: at most 1 000 entries are visited, breadth first. Staged jobs that are not
        released yet are not found.
        """
        seen, looked_at = {job_id}, 0
        todo = [job_id]
        for each in todo:
            looked_at += self.count(each)
            if looked_at > REACH_MAX:
                return None
            for _, job in self.dependents(each):
                if job.id in seen or job.is_over or each not in job.blocked:
                    continue
                if job.id in ids:
                    return True
                seen.add(job.id)
                todo.append(job.id)
        return False

    def is_cycle(self, jobs: Mapping[str, Job], job: Job, children: list[str], committing: int) -> bool | None:
        """
        Return whether a child waits for a job; None if the search is too long.

        Search the dependencies of the children first and, if there are too many, the dependents of the job: one of both
        sets is small, as a rule.
        """
        found = self.reaches(jobs, children, {job.id}, set())
        if found is None and not committing:
            found = self.is_awaited_by(job.id, frozenset(children))
        return found

    # --- invariants ----------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._waiting) + len(self._canceled_by)

    def check(self, jobs: Mapping[str, Job], resolving: set[int]) -> None:
        """
        Assert that every edge has both its ends; for tests.

        Args:
            resolving: the numbers of jobs whose dependents a sweep goes through.
        """
        assert self._resolving == resolving
        open_edges = 0
        for job in jobs.values():
            extras = job.extras
            if extras is None:
                continue
            open_edges += sum(edge != START for edge in extras.blocked.values())
            for dependency_id in extras.blocked:
                assert self.depends(job, dependency_id), f"{dependency_id} does not know of {job.id}"
            if extras.holds and (not extras.more_needs or not (job.is_over or extras.start is not None)):
                assert all(self.depends(job, dependency_id) for dependency_id, _ in extras.all_needs())
            if extras.canceled_by is not None:
                assert job.state is JobState.CANCELED
                assert self._canceled_by[extras.canceled_by][job.number] is job
        assert open_edges == self.open
        assert self._awaited <= self._waiting.keys()
        needed: dict[str, dict[str, str]] = {}
        for dependency_id, dependents in self._waiting.items():
            assert dependents
            for job_id, (_, job) in dependents.items():
                extras = job.need_extras()
                if job_id not in needed:
                    needed[job_id] = dict(extras.all_needs())
                kept = extras.holds and dependency_id in needed[job_id]
                assert jobs.get(job_id) is job
                assert dependency_id in extras.blocked or kept, f"{job_id} does not know of {dependency_id}"
        assert sum(map(len, self._canceled_by.values())) == sum(
            job.extras is not None and job.extras.canceled_by is not None for job in jobs.values()
        )


def cycles(waits: Mapping[str, Collection[str]]) -> Iterator[list[str]]:
    """
    Yield cycles of jobs, each waiting for the next. Remove one job of each cycle before the next search.

    Args:
        waits: the dependencies of each job.

    Complexity: O(V + E) a cycle.

    >>> list(cycles({"a": ["b"], "b": ["a", "c"], "c": []}))
    [['a', 'b']]
    """
    left = dict(waits)
    while True:
        try:
            TopologicalSorter(left).prepare()
        except GraphCycleError as error:
            # From a job to its dependent, with the first once more at the end.
            cycle = error.args[1][:0:-1]
        else:
            return
        del left[cycle[0]]
        yield cycle


def _order(entry: tuple[int, Job]) -> int:
    return entry[0]


def _meant(job: Job, jobs: Mapping[str, Job]) -> list[str]:
    """Return the dependency ids of a staged job of a committed submission after its release."""
    others = [jobs[need[0]] for need in job.need_extras().all_needs() if need[0] in jobs]
    return [other.id for other in others if not other.is_hidden and not is_late(job, other)]
