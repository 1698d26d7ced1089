"""Mutants of edges, retries and revivals with transitions that the machine extracted from the proof forbids."""

from tests.mutants.catchers import PROVED_EDGES
from tests.mutants.gate import Mutant

MUTANTS = (
    Mutant(
        name="A job that is not due takes its place when its last edge is resolved",
        kind="twin",
        file="core/jobs/lifecycle.py",
        old="""\
        if job.state is not DEFERRED:
            return 0
        if self.is_shut(job):\
""",
        new="        if self.is_shut(job):",
        caught_by=(PROVED_EDGES,),
    ),
    Mutant(
        name="A job does not wait for a dead dependency",
        kind="twin",
        file="core/jobs/lifecycle.py",
        old="""\
        if what == WAIT:
            return 0
        if what == CANCEL\
""",
        new="        if what == CANCEL",
        caught_by=(PROVED_EDGES,),
    ),
    Mutant(
        name="A failed dependency does not cancel",
        kind="twin",
        file="core/jobs/lifecycle.py",
        old="""\
        if what == CANCEL:
            return self._cancel_because_of(job, dependency)
""",
        new="",
        caught_by=(PROVED_EDGES,),
    ),
    Mutant(
        name="Children are not searched for their parent",
        kind="twin",
        file="core/jobs/lifecycle.py",
        old="        found = edges.reaches(self.table.jobs, children, job.id, set())\n",
        new="        found: bool | None = False\n",
        caught_by=(PROVED_EDGES,),
    ),
    Mutant(
        name="An edge that waits is taken for a resolved one",
        kind="twin",
        file="core/jobs/lifecycle.py",
        old="""\
                if what != WAIT:
                    continue
""",
        new="""\
                if what == WAIT:
                    continue
""",
        caught_by=(PROVED_EDGES,),
    ),
    Mutant(
        name="A dead job always holds its place",
        kind="twin",
        file="core/jobs/lifecycle.py",
        old='keep_place=on_dead != "continue"',
        new="keep_place=True",
        caught_by=(PROVED_EDGES,),
    ),
    Mutant(
        name="A job that is over keeps its place",
        kind="twin",
        file="core/jobs/table.py",
        old="""\
        else:
            left = self.vacate(job)
        if state is FAILED:\
""",
        new="""\
        else:
            left = 0
        if state is FAILED:\
""",
        caught_by=(PROVED_EDGES,),
    ),
    Mutant(
        name="A redriven job that held its place gets a new one",
        kind="twin",
        file="core/jobs/archive.py",
        old="""\
    if job.walk is not None:
        table.holding -= 1
        job.queued_ms = now_ms
        table.holds.remove(job)
        table.ready.add(job)
    else:
        table.place(job, now_ms)
""",
        new="""\
    if job.walk is not None:
        table.holding -= 1
        table.holds.remove(job)
        table.vacate(job)
    table.place(job, now_ms)
""",
        caught_by=(PROVED_EDGES,),
    ),
    Mutant(
        name="A revived job takes its place at once",
        kind="twin",
        file="core/jobs/archive.py",
        old="    return 0 if blocked else table.place(job, now_ms)\n",
        new="    return table.place(job, now_ms)\n",
        caught_by=(PROVED_EDGES,),
    ),
    Mutant(
        name="A job takes its place at enqueue whatever its edges",
        kind="twin",
        file="core/jobs/table.py",
        old="""\
            job.state = DEFERRED
            self.deferred[job.number] = job
        else:
            self.place(job, now_ms)
""",
        new="""\
            job.state = DEFERRED
            self.deferred[job.number] = job
            self.place(job, now_ms)
        else:
            self.place(job, now_ms)
""",
        caught_by=(PROVED_EDGES,),
    ),
    Mutant(
        name="A job waits for a canceled dependency",
        kind="twin",
        file="core/structures/edges.py",
        old="    return DROP + WAIT + drop + KEPT\n",
        new="    return DROP + drop + WAIT + KEPT\n",
        caught_by=(PROVED_EDGES,),
    ),
    Mutant(
        name="Edges to a job that was redriven are resolved as if it were over",
        kind="twin",
        file="core/structures/leftovers.py",
        old="        return job.gone or (job.state is self.state and job.since == self.since)\n",
        new="        return True\n",
        caught_by=(PROVED_EDGES,),
    ),
)
