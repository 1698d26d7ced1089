"""
Operations of producers, workers, operators and the clock, as rules of a Hypothesis state machine.

`OperationMachine` builds the operations from the small parts that `parts` draws. A subclass does them.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import attrs
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, multiple, rule

from queuehint import operations as op
from queuehint.testing.state_machine.parts import (
    FOR_CALLERS,
    KEYED,
    POLICY,
    claim_of,
    claims_of,
    conditions,
    delays,
    edge_of,
    errors,
    for_caller,
    jobs,
    limits,
    links,
    other_ends,
    path_of,
    paths,
    releases,
    replacing,
    results,
    several_jobs,
    timeouts_ms,
    times_passed,
    users,
)
from queuehint.testing.state_machine.styles import (
    FLOWS,
    LEASE_MS,
    MINUTE,
    PARTS,
    PLAIN,
    POOLS,
    SENT,
    SHARED_KEYS,
    SIGNALS,
    WAITS_MS,
    wait_of,
)
from queuehint.testing.strategies.vocabulary import operations
from queuehint.values.hint import Claim
from queuehint.values.limit import Limit
from queuehint.values.outcome import ON_CHILD_FAILURE, JobError, Outcome, OutcomeKind, Progress, Step
from queuehint.values.policy import DEFAULT_POLICY, Policy
from queuehint.values.record_filter import RecordFilter
from queuehint.values.schedule import Recurrence
from queuehint.values.signal import signal_id, signal_spec, wait_id
from queuehint.values.spec import Dependency, JobSpec

__all__ = ["OperationMachine"]

MAKE_DUE = partial(op.Redrive, waiting=True)
Reply = TypeVar("Reply")
Held = tuple[str, int]
"""A job, and the token of a grant of it."""

FINISHED, FAILED, CHILDREN = OutcomeKind.FINISHED, OutcomeKind.FAILED, OutcomeKind.CHILDREN


class OperationMachine(RuleBasedStateMachine):
    """A machine that draws operations. A subclass applies them in `do`."""

    # Each holds something from the start: a rule whose bundle is empty, deep inside an argument, ends its history.
    ids: Bundle[str] = Bundle("ids")
    live: Bundle[Held] = Bundle("live")
    grants: Bundle[Held] = Bundle("grants")
    """Live ones, and all there ever were."""

    def __init__(self) -> None:
        super().__init__()
        self._specs: dict[str, JobSpec] = {}
        self._submissions: list[op.Enqueue] = []
        self._needed: dict[str, set[str]] = {}
        """The declared dependencies of jobs that have had more of them added; each is declared once."""
        self._running: dict[str, int] = {}

    commit_of: Callable[[str], op.Commit]  # the commit of all that is there of a submission in parts

    def begin_with(self, jobs: list[Any]) -> Any:
        """Enqueue the first jobs. Return their ids."""
        return self.submit([self.spec(keys, wished) for keys, wished in jobs]) if jobs else multiple()

    @abstractmethod
    def do(self, operation: op.Operation[Reply]) -> Reply | None:
        """Apply an operation. Return None after a refusal."""

    @property
    @abstractmethod
    def now_ms(self) -> int:
        """The time of the clock that all share."""

    @abstractmethod
    def go_to(self, now_ms: int) -> None:
        """Move the clock forward, to a time that may be past."""

    @abstractmethod
    def next_ms(self) -> int | None:
        """When something is due."""

    @abstractmethod
    def ask_everything(self, claim: Claim) -> None:
        """Send every query."""

    @initialize(target=ids)
    def nobody(self) -> str:
        return "nobody"

    @initialize(target=grants)
    def no_grant(self) -> Held:
        return ("nobody", 0)

    # --- parts -------------------------------------------------------------------------------------------------------

    def spec(self, keys: list[str], wished: dict[str, Any], **fields: Any) -> JobSpec:
        """Draw a job. Later wishes in conflict with earlier ones are left out."""
        wished = dict(wished)
        if "key_for_ms" in wished and "presence_ms" not in wished:
            wished.setdefault("key", "k")
        policy = {name: wished.pop(name) for name in list(wished) if name in POLICY}
        wished = replacing(wished, has_edges=bool(fields.get("depends_on")))
        if "run_in_ms" in wished:
            wished["run_at_ms"] = self.now_ms + wished.pop("run_in_ms")
            wished.pop("delay_ms", None)
        claims = for_caller(keys, wished) if FOR_CALLERS & wished.keys() and not fields else claims_of(keys, wished)
        if fields.get("depends_on") and wished.get("on_conflict") == "replace":
            del wished["on_conflict"]
        spec = JobSpec(
            id=str(len(self._specs) + 1),
            task="t",
            claims=claims,
            policy=Policy(**policy) if policy else DEFAULT_POLICY,
            **{**wished, **fields},
        )
        self._specs[spec.id] = spec
        return spec

    def woven(self, made: list[Any], links: list[Any], known: list[str], **fields: Any) -> list[JobSpec]:
        """Draw jobs that depend on each other and on known ones, in any direction, in cycles too."""
        first = len(self._specs) + 1
        every = [*[str(first + at) for at in range(len(made))], *known]
        specs = []
        for at, (keys, wished) in enumerate(made):
            edges: dict[str, Dependency] = {}
            for one, other, condition in links:
                needed = every[other % len(every)]
                if one % len(made) == at and needed != every[at]:
                    edges[needed] = edge_of(needed, condition)
            specs.append(self.spec(keys, wished, depends_on=tuple(edges.values()), **fields))
        return specs

    def submit(self, specs: list[JobSpec], **fields: Any) -> Any:
        """Enqueue jobs. Return the ids known from now on."""
        self._submissions.append(op.Enqueue(tuple(specs), **fields))
        reply = self.do(self._submissions[-1])
        if reply is None:
            return multiple()
        self._running.update({job.id: job.presence_token for job in reply.jobs if job.presence_token is not None})
        return multiple(*[job.id for job in reply.jobs])

    # --- producers ---------------------------------------------------------------------------------------------------

    @rule(target=ids, jobs=several_jobs)
    def enqueue(self, jobs: list[Any]) -> Any:
        return self.submit([self.spec(keys, wished) for keys, wished in jobs])

    @rule(target=ids, job=jobs, needs=st.lists(st.tuples(ids, conditions), min_size=1, max_size=3))
    def enqueue_a_dependent(self, job: Any, needs: list[Any]) -> Any:
        edges = {job_id: edge_of(job_id, condition) for job_id, condition in needs}
        return self.submit([self.spec(*job, depends_on=tuple(edges.values()))])

    @rule(target=ids, jobs=st.lists(jobs, min_size=2, max_size=4), links=links, known=st.lists(ids, max_size=1))
    def enqueue_a_graph(self, jobs: list[Any], links: list[Any], known: list[str]) -> Any:
        return self.submit(self.woven(jobs, links, known))

    @rule(part=st.sampled_from(SENT), jobs=st.lists(jobs, max_size=3), links=links, known=st.lists(ids, max_size=1))
    def enqueue_a_part(self, part: dict[str, Any], jobs: list[Any], links: list[Any], known: list[str]) -> None:
        fitting = [(keys, {k: w for k, w in wished.items() if k not in {*KEYED, "flow"}}) for keys, wished in jobs]
        self.submit(self.woven(fitting, links, known), **part)

    @rule(
        staged=st.sampled_from(PARTS),
        at=st.integers(0, 5),
        portion=st.sampled_from([1, 1, 1, 2]),
        needs=st.lists(st.tuples(ids, conditions), min_size=1, max_size=3),
    )
    def add_dependencies(self, staged: str, at: int, portion: int, needs: list[Any]) -> None:
        made = [spec for part in self._submissions if part.staged == staged for spec in part.jobs]
        if made:
            spec = made[at % len(made)]
            known = self._needed.setdefault(spec.id, {edge.id for edge in spec.depends_on})
            edges = {job_id: edge_of(job_id, condition) for job_id, condition in needs if job_id not in known}
            known.update(edges)
            self.do(op.Depend(staged, spec.id, portion, tuple(edges.values()), spec.policy.on_dependency_failure))

    @rule(
        target=ids, staged=st.sampled_from(PARTS), kind=st.sampled_from([op.Commit, op.Commit, op.Commit, op.Withdraw])
    )
    def end_parts(self, staged: str, kind: type[op.Commit | op.Withdraw]) -> Any:
        if (
            self.do(op.Withdraw(staged) if kind is op.Withdraw else self.commit_of(staged)) is None
            or kind is op.Withdraw
        ):
            return multiple()
        return multiple(*[spec.id for part in self._submissions if part.staged == staged for spec in part.jobs])

    @rule(target=ids, flow=st.sampled_from(FLOWS), jobs=several_jobs, timeout_ms=timeouts_ms)
    def enqueue_a_flow(self, flow: str, jobs: list[Any], timeout_ms: int | None) -> Any:
        return self.submit([self.spec(k, {**w, "flow": flow}) for k, w in jobs], flow=flow, flow_timeout_ms=timeout_ms)

    @rule(target=ids, parent=grants, jobs=several_jobs, links=links, known=st.lists(ids, max_size=1))
    def enqueue_children(self, parent: Held, jobs: list[Any], links: list[Any], known: list[str]) -> Any:
        return self.submit(self.woven(jobs, links, known, parent=parent[0]), parent=parent)

    @rule(job_id=ids, task=st.sampled_from(["t", "other"]))
    def enqueue_an_id_again(self, job_id: str, task: str) -> None:
        if job_id in self._specs:
            self.do(op.Enqueue((attrs.evolve(self._specs[job_id], task=task),)))

    @rule(back=st.integers(1, 5))
    def enqueue_a_submission_again(self, back: int) -> None:
        if self._submissions:
            self.do(self._submissions[-min(back, len(self._submissions))])

    # --- workers -----------------------------------------------------------------------------------------------------

    def exchange(self, worker: str = "w", settle: list[Outcome] | None = None, **fields: Any) -> Any:
        """Settle and claim. Return the grants."""
        reply = self.do(op.Exchange(worker, settle=tuple(settle or ()), lease_ms=LEASE_MS, **fields))
        assert reply is not None, "nobody refuses a worker"
        granted = [(grant.spec.id, grant.token) for grant in reply.grants]
        self._running.update(granted)
        return multiple(*granted)

    @rule(limit=st.integers(1, 5))
    def work(self, limit: int) -> None:
        """Claim, and finish all that runs."""
        self.claim_all(limit)
        self.exchange(settle=self.ended(("nobody", 0), FINISHED, others=True))

    def claim_all(self, limit: int) -> Any:
        """Claim from all pools."""
        return self.exchange(pools=("default", *POOLS), limit=limit)

    def ended(self, grant: Held, kind: OutcomeKind, *, others: bool = False, **fields: Any) -> list[Outcome]:
        """Return the end of a job, or of all that run."""
        ending = {**self._running, grant[0]: grant[1]} if others else {grant[0]: grant[1]}
        for job_id, token in ending.items():
            if self._running.get(job_id) == token:
                del self._running[job_id]
        return [Outcome(job_id=job_id, token=token, kind=kind, **fields) for job_id, token in ending.items()]

    @rule(targets=(live, grants), limit=st.integers(1, 5), worker=st.sampled_from("wx"), release=releases)
    def claim(self, limit: int, worker: str, release: str) -> Any:
        pools = ("default", *POOLS)
        return self.exchange(worker, pools=pools, limit=limit, announces=worker == "x", release=release)

    @rule(
        targets=(live, grants),
        limit=st.integers(1, 3),
        pools=st.sampled_from([("default",), ("p", "default"), ()]),
        users=st.lists(users, min_size=1, max_size=2, unique=True),
        steal=st.sampled_from([(), "*", ("v",)]),
    )
    def claim_for_users(self, limit: int, pools: tuple[str, ...], users: list[str | None], steal: Any) -> Any:
        return self.exchange("x", pools=pools, limit=limit, users=tuple(users), steal=steal)

    @rule(
        targets=(live, grants),
        grant=consumes(live),
        others=st.booleans(),
        limit=st.sampled_from([0, 1, 3]),
        result=results,
    )
    def finish(self, grant: Held, others: bool, limit: int, result: bytes | None) -> Any:
        return self.exchange(settle=self.ended(grant, FINISHED, others=others, result=result), limit=limit)

    @rule(
        targets=(live, grants),
        grant=consumes(live),
        others=st.booleans(),
        limit=st.sampled_from([0, 1, 3]),
        error=errors,
        delay_ms=delays,
        final=st.booleans(),
    )
    def fail(self, grant: Held, others: bool, limit: int, error: JobError | None, delay_ms: int, final: bool) -> Any:
        outcomes = self.ended(grant, FAILED, others=others, error=error, delay_ms=delay_ms, final=final)
        return self.exchange(settle=outcomes, limit=limit)

    @rule(targets=(live, grants), grant=consumes(live), kind=other_ends, delay_ms=delays, release=releases)
    def settle_otherwise(self, grant: Held, kind: OutcomeKind, delay_ms: int, release: str) -> Any:
        """Settle a job by a worker of a release, which claims again if the job was due at once."""
        settle = self.ended(grant, kind, delay_ms=delay_ms, reason="why" if delay_ms else None)
        return self.exchange(settle=settle, release=release, limit=0 if delay_ms else 2)

    @rule(grant=consumes(live), children=st.lists(ids, max_size=3), on_child_failure=st.sampled_from(ON_CHILD_FAILURE))
    def settle_with_children(self, grant: Held, children: list[str], on_child_failure: Any) -> None:
        fields = {"result": b"1", "children": tuple(children), "on_child_failure": on_child_failure}
        self.exchange(settle=self.ended(grant, CHILDREN, **fields))

    # --- signals -----------------------------------------------------------------------------------------------------

    @rule(
        name=st.sampled_from(SIGNALS),
        data=st.sampled_from([b"1", b"2"]),
        kept_ms=st.sampled_from([0, MINUTE, 12 * MINUTE]),
    )
    def give(self, name: str, data: bytes, kept_ms: int) -> None:
        self.do(op.Enqueue((signal_spec(name, data, kept_ms),)))

    @rule(
        target=ids, job=jobs, name=st.sampled_from(SIGNALS), condition=conditions, timeout_ms=st.sampled_from(WAITS_MS)
    )
    def enqueue_a_wait(self, job: Any, name: str, condition: str, timeout_ms: int | None) -> Any:
        wait = wait_of(name, str(len(self._specs) + 1), timeout_ms)
        waiting = self.spec(*job, depends_on=(edge_of(wait.id, condition),))
        return self.submit([wait, waiting])

    @rule(target=ids, job=jobs, name=st.sampled_from(SIGNALS))
    def enqueue_for_a_signal(self, job: Any, name: str) -> Any:
        return self.submit([self.spec(*job, depends_on=(Dependency(signal_id(name)),))])

    @rule(grant=live, name=st.sampled_from(SIGNALS), timeout_ms=st.sampled_from(WAITS_MS))
    def begin_a_wait(self, grant: Held, name: str, timeout_ms: int | None) -> None:
        """Begin a wait, as a handler does before it leaves."""
        self.submit([wait_of(name, grant[0], timeout_ms)], parent=grant)

    @rule(grant=consumes(live), name=st.sampled_from(SIGNALS), others=st.lists(ids, max_size=1))
    def leave(self, grant: Held, name: str, others: list[str]) -> None:
        awaited = tuple(dict.fromkeys([wait_id(name, grant[0]), *others]))
        self.exchange(settle=self.ended(grant, CHILDREN, children=awaited, again=True))

    @rule(grant=grants, kind=st.sampled_from(OutcomeKind))
    def settle_again(self, grant: Held, kind: OutcomeKind) -> None:
        """With a token that is held, or was."""
        self.exchange(settle=self.ended(grant, kind, delay_ms=1))

    @rule(grant=live, kind=st.sampled_from(OutcomeKind), more=st.sampled_from([1, -1, 2**40]))
    def settle_with_a_wrong_token(self, grant: Held, kind: OutcomeKind, more: int) -> None:
        self.exchange(settle=self.ended((grant[0], grant[1] + more), kind, delay_ms=1))

    @rule(
        leases=st.lists(grants, min_size=1, max_size=3),
        lease_ms=st.sampled_from([LEASE_MS, MINUTE]),
        begun=st.booleans(),
        blocked_ms=st.sampled_from([0, 7_000]),
    )
    def renew(self, leases: list[Held], lease_ms: int, *, begun: bool, blocked_ms: int) -> None:
        self.do(op.Renew(tuple(leases), lease_ms, begun=begun, blocked_ms=blocked_ms))

    @rule(lease_ms=st.sampled_from([LEASE_MS, MINUTE]))
    def renew_all(self, lease_ms: int) -> None:
        """Renew all leases, and those of waiting callers."""
        self.do(op.Renew(tuple(self._running.items()), lease_ms))

    @rule(grant=grants, what=st.sampled_from(["log", "log as anybody", "report", "update", "steps", "fetch"]))
    def write(self, grant: Held, what: str) -> None:
        job_id, token = grant
        spec = self._specs.get(job_id)
        needed = [] if spec is None else [edge.id for edge in spec.depends_on]
        notes: dict[str, op.Operation[Any]] = {
            "log": op.Post((op.Note(job_id, token, ("a", "", "é\n")),)),
            "log as anybody": op.Post((op.Note(job_id, None, ("line",)),)),
            "report": op.Post((op.Note(job_id, token, progress=Progress(1, 9, "é")),)),
            "update": op.Post((op.Note(job_id, token, result=b"3"),)),
            "steps": op.Post(tuple([op.Note(job_id, token, step=Step(name, name.encode())) for name in "aéa"])),
            "fetch": op.Fetch(job_id, token, (*needed, "nobody"), 1),
        }
        self.do(notes[what])

    # --- people ------------------------------------------------------------------------------------------------------

    @rule(some=st.lists(ids, min_size=1, max_size=3), reason=st.sampled_from([None, "why"]))
    def cancel(self, some: list[str], reason: str | None) -> None:
        self.do(op.Cancel(tuple(some), reason))

    @rule(path=paths, reason=st.sampled_from([None, "why"]))
    def cancel_path(self, path: str, reason: str | None) -> None:
        self.do(op.CancelPath(path_of(path), reason))

    @rule(flow=st.sampled_from(FLOWS))
    def cancel_flow(self, flow: str) -> None:
        self.do(op.CancelFlow(flow))

    @rule(some=st.lists(ids, min_size=1, max_size=4), over=st.booleans(), how=st.tuples(st.booleans(), st.booleans()))
    def redrive(self, some: list[str], over: bool, how: tuple[bool, bool]) -> None:
        got = self.do(op.Get(tuple(some))) if over else None
        again = () if got is None else tuple([0 if each is None else each.version for each in got.records])
        self.do(op.Redrive(tuple(some), how[0], drop_steps=how[1], again=again))

    @rule(some=st.lists(ids, min_size=1, max_size=3), what=st.sampled_from([op.Discard, op.Delete, MAKE_DUE]))
    def discard(self, some: list[str], what: Any) -> None:
        self.do(what(tuple(some)))

    @rule(job_id=ids, user=users, service=st.sampled_from([None, "s"]), stale=st.booleans())
    def amend(self, job_id: str, user: str | None, service: str | None, stale: bool) -> None:
        got = self.do(op.Get((job_id,)))
        record = None if got is None else got.records[0]
        if record is not None:
            changed = attrs.evolve(record.spec, user=user, service=service)
            self.do(op.Amend(changed, 0 if stale else record.version))

    @rule(path=paths, reopen=st.booleans())
    def close(self, path: str, reopen: bool) -> None:
        self.do(op.Close(path_of(path), reopen))

    @rule(
        selected=st.sampled_from([{}, {}, {"user": "u"}, {"task": "t"}, {"pool": "p"}, {"service": "s"}, {"tag": "x"}]),
        path=paths,
        is_below=st.booleans(),
        for_ms=st.sampled_from([None, None, 1, MINUTE]),
        resumes=st.booleans(),
    )
    def pause(self, selected: dict[str, Any], path: str, is_below: bool, for_ms: int | None, resumes: bool) -> None:
        wanted = RecordFilter(**selected, path=path_of(path) if is_below or not selected else None)
        self.do(op.Resume(wanted) if resumes else op.Pause(wanted, for_ms))

    @rule(target=ids, path=paths, job=jobs, waiting=st.sampled_from(op.BEFORE_LAST))
    def close_with_a_last_job(self, path: str, job: Any, waiting: op.BeforeLast) -> Any:
        wished = {name: wish for name, wish in job[1].items() if name not in {*KEYED, *FOR_CALLERS}}
        return self.submit([self.spec([path], wished)], closing=op.Closing(path_of(path), waiting))

    @rule(path=paths, limit=limits)
    def limit(self, path: str, limit: dict[str, Any]) -> None:
        self.do(op.SetLimit(Limit(**{"path": path_of(path), **limit})))

    @rule(path=st.none() | paths, most=st.none() | st.integers(1, 8), each=st.booleans())
    def limit_pending(self, path: str | None, most: int | None, each: bool) -> None:
        """No number, no limits any more."""
        place = None if path is None else path_of(path)
        limit = Limit(path=place, max_pending=most, each=each and place is not None)
        self.do(op.SetLimit(limit))

    @rule(change=operations(kinds=PLAIN, hints=paths.map(lambda path: list(path_of(path)))))
    def change(self, change: op.Operation[Any]) -> None:
        self.do(change)

    @rule(key=st.sampled_from(SHARED_KEYS), value=st.sampled_from([b"1", b""]), ttl_ms=st.sampled_from([MINUTE, 1, 0]))
    def push(self, key: str, value: bytes, ttl_ms: int) -> None:
        self.do(op.Push("n", key, value, ttl_ms))
        self.do(op.Draw(len(value)))

    @rule(name=st.sampled_from("mn"), next_in_ms=st.none() | delays, every_ms=st.sampled_from([MINUTE, 2 * MINUTE]))
    def put_schedule(self, name: str, next_in_ms: int | None, every_ms: int) -> None:
        spec = JobSpec(id=name, task="t", claims=(Claim(("a",)),))
        next_ms = None if next_in_ms is None else self.now_ms + next_in_ms
        self.do(op.PutSchedule(name, spec, Recurrence(every_ms=every_ms), next_ms))

    @rule(name=st.sampled_from("mn"), what=st.sampled_from(["fire", "pause", "resume", "drop"]), late=st.booleans())
    def change_schedule(self, name: str, what: str, late: bool) -> None:
        """Fire a schedule, or change it. *late* passes the version before its last change."""
        found = self.do(op.ListSchedules())
        known = {schedule.name: schedule for schedule in (() if found is None else found.schedules)}
        schedule = known.get(name)
        version = 1 if schedule is None else schedule.version - late
        if what == "pause":
            self.do(op.ChangeSchedule(name, "pause"))
        elif what == "resume":
            self.do(op.ChangeSchedule(name, "resume", version, self.now_ms + MINUTE))
        elif what == "drop":
            self.do(op.ChangeSchedule(name, "drop"))
        elif schedule is not None and schedule.next_ms is not None:
            due_ms = schedule.next_ms
            spec = attrs.evolve(schedule.spec, id=f"{name}@{due_ms}", schedule=name, scheduled_ms=due_ms)
            self.do(op.Enqueue((spec,), firing=op.Firing(name, version, due_ms, due_ms + MINUTE)))

    # --- time --------------------------------------------------------------------------------------------------------

    @rule(passed_ms=times_passed, ticks=st.booleans())
    def pass_time(self, passed_ms: int, ticks: bool) -> None:
        self.go_to(self.now_ms + passed_ms)
        if ticks:
            self.do(op.Tick())

    @rule()
    def pass_time_until_something_is_due(self) -> None:
        self.go_to(self.next_ms() or 0)
        self.do(op.Tick())

    @rule(claim=paths | paths.map("~{}".format))
    def ask(self, claim: str) -> None:
        self.ask_everything(claim_of(claim))
