"""Random operations for a walk, drawn from the state of an engine."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import attrs

from queuehint import operations as op
from queuehint.core.structures.job import START_MARK
from queuehint.schema.compiled import kinds_of
from queuehint.schema.kinds import Kind, PathOf
from queuehint.testing.state_machine.styles import (
    FLOWS,
    KEYLESS,
    LEASE_MS,
    MINUTE,
    OUTCOMES,
    PARTS,
    PATHS_BY_DEPTH,
    PLAIN,
    POLICIES,
    SHARED_KEYS,
    SHARED_MS,
    SIGNALS,
    WAITS_MS,
    WOVEN_POLICIES,
    Style,
    as_flow,
    conflict,
    end_of_parts,
    for_workers,
    labels,
    limit_of,
    one_claim,
    pause_of,
    resume_of,
    signal_of,
    values_of,
    wait_of,
)
from queuehint.values.hint import COUNTED, Claim, normalise
from queuehint.values.limit import Limit
from queuehint.values.outcome import ON_CHILD_FAILURE, Outcome, OutcomeKind, Progress, Step
from queuehint.values.record import JobState
from queuehint.values.record_filter import RecordFilter
from queuehint.values.signal import signal_id
from queuehint.values.spec import SIGNAL_MARK, SIGNAL_TASK, WHEN, Dependency, JobSpec

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from queuehint.core.engine import Engine
    from queuehint.values.hint import Mode, Path

SCHEDULED, DEFERRED, QUEUED, STARTED, FINISHED, FAILED, CANCELED = JobState


class OperationGenerator:
    """Draws operations for a world seen through the engine. *random* makes every choice."""

    releases: tuple[str, ...] = ("", "one", "two", "one")

    def __init__(self, engine: Engine, random: Random, style: Style) -> None:
        self.engine = engine
        self.random = random
        self.style = style
        self.grants: list[tuple[str, int]] = []
        self.made = 0
        self.specs: list[JobSpec] = []
        others = [partial(self.plain, kind) for kind in PLAIN]
        self._moves: tuple[Callable[[], op.Operation[Any]], ...] = (
            *[self.exchange] * 40,
            *[self.enqueue] * 34,
            *[self.renew] * 4,
            *[self.cancel] * 3,
            *[self.cancel_path] * 2,
            *[self.redrive] * 5,
            *[self.discard] * 2,
            *[self.pause] * 2,
            *[self.resume] * 3,
            *[self.close] * 1,
            *[self.reopen] * 2,
            *[self.note] * 2,
            *others * 2,
            *[self.delete] * 2,
            *[self.amend] * 2,
        )
        if style.edges:
            signals: list[Callable[[], op.Operation[Any]]] = [partial(signal_of, random)] * 2
            besides = (*[self.redrive] * 5, *[self.push] * 2, *[self.question] * 4, self.cancel_flow, *signals)
            parts = round(34 * style.parts)
            self._moves += (*besides, *[self.part] * parts, *[self.commit] * (parts // 2))
        if style.limited:
            self._moves += (*[self.limit] * 6, self.unlimit)
        meddles: list[Callable[[], op.Operation[Any]]] = [
            *[self.amend] * 3,
            self.delete,
            *others,
            self.pause,
            *[self.resume] * 2,
        ]
        self._moves += tuple(meddles) * (style.meddled - 1)

    def move(self) -> op.Operation[Any]:
        return self.random.choice(self._moves)()

    def pass_time(self, now_ms: int) -> int:
        """Mostly keep the time, sometimes jump to the next due time, sometimes far beyond it."""
        roll = self.random.random()
        if roll < 0.8:
            return now_ms
        if roll < 0.9:
            return max(now_ms, self.engine.next_ms or 0)
        if roll < 0.995:
            return now_ms + self.random.choice((1, MINUTE, MINUTE, 3 * MINUTE, LEASE_MS + 1))
        return now_ms + 20 * MINUTE

    # --- parts -------------------------------------------------------------------------------------------------------

    def path(self) -> Path:
        random = self.random
        return random.choice(PATHS_BY_DEPTH[random.choices(range(5), self.style.depth_weights)[0]])

    def region(self) -> Path:
        """Draw a path to cancel, pause or close, seldom the root."""
        return self.path() or (self.path() if self.random.random() < 0.5 else ("a", "b"))

    def claim(self) -> tuple[Claim, ...]:
        mode: Mode = "shared" if self.random.random() < self.style.shared else "exclusive"
        return one_claim(self.path(), mode)

    def claims(self) -> tuple[Claim, ...]:
        roll = self.random.random()
        if roll < 0.75:
            return self.claim()
        if roll < 0.8:
            return ()
        return normalise(self.claim() + self.claim() + (self.claim() if roll > 0.93 else ()))

    def spec(self) -> JobSpec:
        random, self.made = self.random, self.made + 1
        delay_ms = run_at_ms = key = presence_ms = None
        roll = random.random()
        if roll < 0.12:
            delay_ms = random.choice((1, MINUTE, 5 * MINUTE))
        elif roll < 0.16:
            run_at_ms = self.engine.now_ms + random.choice((-MINUTE, 0, MINUTE))
        elif roll < 0.2:
            presence_ms = 3 * MINUTE
        if presence_ms is None and random.random() < self.style.keyed:
            key = random.choice("kkkl")
        policies = WOVEN_POLICIES if self.style.edges else POLICIES if self.style.due_within else POLICIES[:-1]
        spec = JobSpec(
            id=str(self.made),
            task="t",
            claims=self.claims() if presence_ms is None or roll < 0.18 else (Claim(self.path(), COUNTED),),
            priority=random.choice((3, 3, 3, 1, 5, 9)),
            pool=random.choice("ppq"),
            user=random.choice((None, None, "u", "v")),
            **labels(random),
            key=key,
            **conflict(random, key, delay_ms),
            delay_ms=delay_ms,
            run_at_ms=run_at_ms,
            presence_ms=presence_ms,
            flow=random.choice((None, *FLOWS)) if self.style.edges else None,
            policy=random.choice(policies),
        )
        self.specs.append(spec)
        return spec

    def ids(self) -> tuple[str, ...]:
        random = self.random
        known = [job.id for job in self.engine.table.jobs.values() if not job.is_start]
        some = random.sample(known, min(len(known), random.choice((1, 1, 2, 3))))
        return tuple(some) if random.random() < 0.95 else (*some, "nobody", *some)

    def outcome(self, job_id: str, token: int) -> Outcome:
        random = self.random
        kind = random.choice(OUTCOMES)
        delays = (0, 1, MINUTE, 3 * MINUTE) if self.style.due_within else (1, MINUTE, 3 * MINUTE)
        delay_ms, final = random.choice(delays), random.random() < 0.1
        if not self.style.edges:
            return Outcome(job_id=job_id, token=token, kind=kind, delay_ms=delay_ms, final=final)
        children = None
        if random.random() < 0.15:
            kind, children = OutcomeKind.CHILDREN, self.children(job_id)
        return Outcome(
            job_id=job_id,
            token=token,
            kind=kind,
            result=random.choice((None, b"1", b'{"result":2}')),
            delay_ms=delay_ms,
            final=final,
            children=children or (),
            on_child_failure=random.choice(ON_CHILD_FAILURE),
            again=children is not None and random.random() < 0.4,
        )

    def children(self, job_id: str) -> tuple[str, ...]:
        """Draw children: mostly jobs made by this one, sometimes itself, or none."""
        random = self.random
        roll = random.random()
        made = [job.id for job in self.engine.table.jobs.values() if job.spec.parent == job_id]
        if roll < 0.03:
            return (random.choice((job_id, "nobody", *made)),)
        if made and roll < 0.7:
            return tuple(random.sample(made, random.randint(1, len(made))))
        return tuple(self.dependency() for _ in range(random.choice((0, 1, 1, 2))))

    # --- edges -------------------------------------------------------------------------------------------------------

    def dependency(self) -> str:
        """Draw ids of dependencies: mostly unfinished jobs, ended ones too, and now and then hidden ones."""
        roll = self.random.random()
        if roll < 0.08:
            return signal_id(self.random.choice(SIGNALS))
        jobs = [job for job in self.engine.table.jobs.values() if not job.is_start]
        known = [job for job in jobs if not (job.is_hidden or job.gone)]
        some = [job.id for job in known if job.is_over == (roll > 0.6)]
        if roll > 0.98 or not some:
            some = [*[job.id for job in known or jobs], "nobody"] if roll > 0.98 else [job.id for job in known]
        return self.random.choice(some or ["nobody"])

    def edge(self, job_id: str) -> Dependency:
        when = self.random.choice(("success", "success", *WHEN))
        if when == "failure" and job_id.startswith(SIGNAL_MARK):
            when = "done"
        return Dependency(job_id, when=when, data=when != "failure" and self.random.random() < 0.15)

    def weave(self, specs: list[JobSpec], known: list[str]) -> list[JobSpec]:
        """Add dependencies to some of the new jobs: on jobs of their submission, on *known* ones, or on any."""
        random = self.random
        woven: list[JobSpec] = []
        for spec in specs:
            takes_edges = spec.presence_ms is None and (spec.key is None or spec.on_conflict != "replace")
            if takes_edges and random.random() < self.style.edges:
                peers = [each.id for each in woven] if random.random() < 0.5 else [each.id for each in specs]
                peers = [*known, *[job_id for job_id in peers if job_id != spec.id]]
                ids = [
                    random.choice(peers) if peers and random.random() < 0.5 else self.dependency()
                    for _ in range(random.choice((1, 1, 1, 2, 2, 3)))
                ]
                edges = tuple([self.edge(job_id) for job_id in dict.fromkeys(ids) if job_id != spec.id])
                spec = attrs.evolve(spec, depends_on=edges)
            woven.append(spec)
        by_id = {spec.id: spec for spec in woven}
        for spec in woven:
            # A refused submission tests little: most are made valid.
            keyed = [edge.id for edge in spec.depends_on if edge.id in by_id and by_id[edge.id].key is not None]
            if keyed and random.random() < 0.95:
                by_id.update({job_id: attrs.evolve(by_id[job_id], **KEYLESS) for job_id in keyed})
        woven = list(by_id.values())
        self.specs[-len(woven) :] = woven
        random.shuffle(woven)
        return woven

    def await_signal(self, specs: list[JobSpec]) -> list[JobSpec]:
        """Have one of some jobs wait for a signal, now and then, or begin such a wait for whoever makes them."""
        random = self.random
        if random.random() >= 0.15:
            return specs
        at = random.randrange(len(specs))
        spec = specs[at]
        wait = wait_of(random.choice(SIGNALS), spec.id, random.choice(WAITS_MS))
        if spec.presence_ms is None and (spec.key is None or spec.on_conflict != "replace") and random.random() < 0.8:
            specs[at] = attrs.evolve(spec, depends_on=(*spec.depends_on, self.edge(wait.id)))
        specs.insert(random.randint(0, len(specs)), attrs.evolve(wait, flow=spec.flow))
        return specs

    # --- moves -------------------------------------------------------------------------------------------------------

    def enqueue(self) -> op.Operation[Any]:
        random = self.random
        count_of = self.engine.table.counts
        if sum(count_of[state] for state in (SCHEDULED, DEFERRED, QUEUED, STARTED)) >= self.style.unfinished_max:
            return self.exchange()
        specs = [self.spec() for _ in range(random.choice((1, 1, 1, 2, 3)))]
        parent = None
        if self.style.edges:
            running = [(job.id, job.token or 0) for job in self.engine.table.registry.running.values()]
            if running and random.random() < 0.25:
                parent = random.choice(running if random.random() < 0.95 else [*running, *self.grants])
                specs = [attrs.evolve(spec, parent=parent[0]) for spec in specs]
            specs = self.await_signal(self.weave(specs, []))
        self._repeat(specs)
        operation = op.Enqueue(tuple(specs), parent=parent)
        return as_flow(random, operation) if self.style.edges else operation

    def _repeat(self, specs: list[JobSpec]) -> None:
        """Repeat a submission now and then."""
        random = self.random
        if random.random() < 0.08:
            again = random.choice(self.specs[-12:])
            if len(again.identity) > 1:
                # As a codec may write it the next time, under other keys.
                again = attrs.evolve(again, arguments=again.arguments + b" ", identity=again.identity[1:])
            specs.append(again if random.random() < 0.8 else attrs.evolve(again, task="other"))
            if len({spec.id for spec in specs}) < len(specs):
                del specs[-1]

    def part(self) -> op.Operation[Any]:
        """Send a part of a submission, or a step towards the commit of a large enough one."""
        random = self.random
        staged = random.choice(PARTS)
        hidden = [job for job in self.engine.table.jobs.values() if job.is_hidden and not job.is_start]
        if len(hidden) >= 8:
            return self.commit()
        specs = [self.spec() for _ in range(random.choice((0, 1, 2, 2, 3)))]
        if random.random() < 0.97:
            start = self.engine.table.jobs.get(START_MARK + staged)
            flow = start.spec.flow if start is not None else specs[0].flow if specs else None
            specs = [attrs.evolve(for_workers(spec), **KEYLESS, flow=flow) for spec in specs]
        if (mine := [job.id for job in hidden if START_MARK + staged in job.blocked]) and random.random() < 0.25:
            return self._portion(staged, mine)
        others = [job.spec for job in hidden if job.id not in mine and job.spec.task != SIGNAL_TASK]
        if others and random.random() < 0.25:
            specs.append(attrs.evolve(random.choice(others), flow=specs[0].flow if specs else None, depends_on=()))
        specs = self.await_signal(self.weave(specs, mine)) if specs else specs
        if self.specs:
            self._repeat(specs)
        return op.Enqueue(tuple(specs), staged=staged, is_further=random.random() < 0.3)

    def _portion(self, staged: str, mine: list[str]) -> op.Operation[Any]:
        """Add dependencies to a hidden job of a submission, mostly on earlier jobs."""
        random, jobs = self.random, self.engine.table.jobs
        job = jobs[random.choice(mine)]
        known = {job.id, *[job_id for job_id, _ in job.need_extras().all_needs()]}
        peers = [each for each in mine if jobs[each].number < job.number or random.random() < 0.05]
        ids = [random.choice(peers) if peers and random.random() < 0.4 else self.dependency() for _ in range(2)]
        edges = [self.edge(job_id) for job_id in dict.fromkeys(ids) if job_id not in known]
        portion = len(job.need_extras().more_needs) + 1 if random.random() < 0.95 else 1
        return op.Depend(staged, job.id, portion, tuple(edges), job.spec.policy.on_dependency_failure)

    def commit(self) -> op.Operation[Any]:
        return end_of_parts(self.random, self.engine)

    def exchange(self) -> op.Operation[Any]:
        random = self.random
        running = [(job.id, job.token or 0) for job in self.engine.table.registry.running.values()]
        self.grants = [grant for grant in self.grants if random.random() < 0.9] + running
        settle = [self.outcome(*grant) for grant in running if random.random() < 0.6]
        if self.grants and random.random() < 0.15:
            settle.append(self.outcome(*random.choice(self.grants)))
        limit = random.choice((0, 1, 2, 2, 100, 100))
        pools = random.choice((*[("p", "q")] * 6, ("q", "p"), ("p",), ("q",), ()))
        users: tuple[str | None, ...] | None = None
        steal: tuple[str | None, ...] | Literal["*"] = ()
        if random.random() < 0.2:
            users = random.choice((("u",), ("v", "u"), (None, "v")))
            steal = random.choice(((), ("v",), (None, "u"), op.ANYONE))
        worker = random.choice("wx")
        release = self.releases[(len(settle) + limit + self.engine.state.settled) % len(self.releases)]
        served = (pools, limit, LEASE_MS, users, steal)
        return op.Exchange(worker, tuple(settle), *served, announces=worker == "x", release=release)

    def renew(self) -> op.Operation[Any]:
        random = self.random
        jobs = self.engine.table.jobs.values()
        leases = [(job.id, job.token) for job in jobs if job.token is not None and random.random() < 0.5]
        if self.grants:
            leases.append(random.choice(self.grants))
        # The same random numbers as ever, so that a seed stands for the same history.
        lease_ms = random.choice((MINUTE, LEASE_MS))
        return op.Renew(tuple(leases), lease_ms, begun=lease_ms == MINUTE)

    def cancel(self) -> op.Operation[Any]:
        return op.Cancel(self.ids())

    def cancel_path(self) -> op.Operation[Any]:
        return op.CancelPath(self.region())

    def cancel_flow(self) -> op.Operation[Any]:
        return op.CancelFlow(self.random.choice(FLOWS))

    def redrive(self) -> op.Operation[Any]:  # draws the same random numbers as ever: a seed stands for the same choices
        ids, table, jobs = self._dead(), self.engine.table, self.engine.table.jobs
        downstream = bool(self.style.edges) and self.random.random() < 0.7
        waiting = not downstream and not any(job.id in ids for job in table.dead.values())
        again = [jobs[each].version if each in jobs else 0 for each in ids] if waiting and table.last_number % 2 else []
        return op.Redrive(ids, downstream=downstream, waiting=waiting and not again, again=tuple(again))

    def discard(self) -> op.Operation[Any]:
        return op.Discard(self._dead())

    def _dead(self) -> tuple[str, ...]:
        dead = [job.id for job in self.engine.table.dead.values()]
        if dead and self.random.random() < 0.9:
            return tuple(self.random.sample(dead, self.random.randint(1, min(2, len(dead)))))
        return self.ids()

    def pause(self) -> op.Operation[Any]:
        return pause_of(self.random, self.region())

    def resume(self) -> op.Operation[Any]:
        return resume_of(self.random, [pause.filter for pause in self.engine.table.pauses.all()], self.path())

    def limit(self) -> op.Operation[Any]:
        known = [state.limit for state in self.engine.table.limits.states(0)]
        return op.SetLimit(limit_of(self.random, known, self.path(), self.style.unfinished_max))

    def unlimit(self) -> op.Operation[Any]:
        known = [state.limit for state in self.engine.table.limits.states(0)]
        if not known or self.random.random() < 0.05:
            return op.SetLimit(Limit(path=self.path()))
        return op.SetLimit(self.random.choice(known).lifted)

    def close(self) -> op.Operation[Any]:
        """Close a path, or make a job the last one there, now and then the present last one."""
        random, path = self.random, self.region()
        if random.random() < 0.4:
            return op.Close(path)
        # As it was asked for: of one whose record is gone the engine keeps a digest of the arguments.
        last_id = self.engine.table.closed.get(path)
        known = next((spec for spec in reversed(self.specs) if spec.id == last_id), None)
        if known is not None and random.random() < 0.5:
            return op.Enqueue((known,), closing=op.Closing(path))
        last = attrs.evolve(self.spec(), claims=one_claim(path, "exclusive"), **KEYLESS, presence_ms=None)
        self.specs[-1] = last
        return op.Enqueue((last,), closing=op.Closing(path, random.choice(op.BEFORE_LAST)))

    def reopen(self) -> op.Operation[Any]:
        marked = sorted(self.engine.table.closed)
        return op.Close(self.random.choice(marked) if marked else self.path(), reopen=True)

    def plain(self, kind: type[Any]) -> op.Operation[Any]:
        """Make up a change that no other move makes, field by field."""
        of_kinds = kinds_of(kind)
        change: op.Operation[Any] = kind(*[self._value(field, of_kinds[field.name]) for field in attrs.fields(kind)])
        return change

    def _value(self, field: attrs.Attribute[Any], kind: Kind) -> Any:
        if isinstance(kind, PathOf):
            return self.region()
        values = values_of(kind)
        return self.random.choice(values) if values else field.default

    def note(self) -> op.Operation[Any]:
        if not self.grants or self.random.random() < 0.2:
            return op.Post((op.Note((*self.ids(), "nobody")[0], None, ("line",)),))
        grant = self.random.choice(self.grants)
        roll = self.random.random()
        if roll < 0.1:
            # One name or two, now and then twice in one operation.
            steps = [Step(name, b"%f" % roll) for name in "abaab"[int(roll * 50) :]]
            return op.Post(tuple([op.Note(*grant, step=step) for step in steps]))
        if roll < 0.3:
            return op.Post((op.Note(*grant, ("line",)),))
        if roll < 0.5:
            said = [
                op.Note(*each, ("line",) * (at % 2), Progress(at, 9), b"4") for at, each in enumerate(self.grants[:3])
            ]
            return op.Post((*said, op.Note(*grant, ("last",))))
        return op.Post((op.Note(*grant, result=b"3") if roll < 0.8 else op.Note(*grant, progress=Progress(1, 2)),))

    def delete(self) -> op.Operation[Any]:
        over = [job.id for job in self.engine.table.jobs.values() if job.is_over and not job.gone and not job.is_start]
        if over and self.random.random() < 0.9:
            return op.Delete(tuple(self.random.sample(over, self.random.randint(1, min(2, len(over))))))
        return op.Delete(self.ids())

    def amend(self) -> op.Operation[Any]:
        """Change a record, now and then an unknown one, too many fields, or another version."""
        random = self.random
        job = self.engine.table.jobs.get(random.choice((*self.ids(), "nobody")))
        if job is None:
            return op.Amend(JobSpec(id="nobody", task="t"), 1)
        changed: dict[str, Any] = {"user": random.choice((None, "u", "v")), "service": random.choice((None, None, "s"))}
        if random.random() < 0.05:
            changed["task"] = "changed"
        return op.Amend(attrs.evolve(job.spec, **changed), job.version if random.random() < 0.95 else 0)

    # --- values and questions ----------------------------------------------------------------------------------------

    def push(self) -> op.Operation[Any]:
        random = self.random
        ttl_ms = random.choice((0, 1, MINUTE, SHARED_MS))
        return op.Push("n", random.choice(SHARED_KEYS), random.choice((b"1", b"{}", b"")), ttl_ms)

    def question(self) -> op.Operation[Any]:
        random = self.random
        if self.grants and random.random() < 0.4:
            job_id, token = random.choice(self.grants)
            job = self.engine.table.jobs.get(job_id)
            needs = [edge.id for edge in job.spec.depends_on] if job is not None else []
            return op.Fetch(job_id, token, (*needs, self.dependency()))
        flow = RecordFilter(flow=random.choice(FLOWS))
        return random.choice(
            (
                op.Pull("n", random.choice(SHARED_KEYS)),
                op.CountRecords(flow),
                op.List(flow, after=("", random.choice((0, self.engine.table.last_number // 2))), limit=2),
                op.CountEdges(),
                op.Why(random.choice((*self.ids(), "nobody"))),
                op.Why(random.choice((*self.ids(), "nobody")), op.CHAIN_MAX),
            )
        )
