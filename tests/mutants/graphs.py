"""Mutants of the edges in the engine: what waits for what, and what an end means for those that wait."""

from tests.mutants.catchers import CONFORMANCE, SIMULATION
from tests.mutants.gate import Mutant

MUTANTS = (
    Mutant(
        name="A fan-in takes its place with the first that ends",
        kind="edges",
        file="core/course.py",
        old="""\
        self.ledger.edges.close(job, dependency.id)
        if job.blocked:
            return 0
""",
        new="""\
        self.ledger.edges.close(job, dependency.id)
""",
        caught_by=(CONFORMANCE, SIMULATION),
    ),
    Mutant(
        name="Only a success is told to those that wait",
        kind="edges",
        file="core/course.py",
        old="        self._tell_dependents(job)\n        notes = job.notes\n",
        new="        if state is FINISHED:\n            self._tell_dependents(job)\n        notes = job.notes\n",
        caught_by=(CONFORMANCE, SIMULATION),
    ),
    Mutant(
        name="What is to run after a failure runs after a success",
        kind="edges",
        file="core/dependencies.py",
        old="        return CANCEL + DROP + CANCEL + KEPT\n",
        new="        return DROP + DROP + CANCEL + KEPT\n",
        caught_by=(CONFORMANCE,),
    ),
    Mutant(
        name="What is to wait for a redrive runs after a failure",
        kind="edges",
        file="core/dependencies.py",
        old="    return DROP + WAIT + drop + KEPT\n",
        new="    return DROP + drop + drop + KEPT\n",
        caught_by=(CONFORMANCE,),
    ),
    Mutant(
        name="What needs the data of a canceled job runs without it",
        kind="edges",
        file="core/dependencies.py",
        old="    drop = CANCEL if edge.data else DROP\n",
        new="    drop = DROP\n",
        caught_by=(CONFORMANCE,),
    ),
    Mutant(
        name="A canceled job stays among those that wait for others",
        kind="edges",
        file="core/course.py",
        old="(notes.holds and state is not FAILED)):\n",
        new="(notes.holds and state is FINISHED)):\n",
        caught_by=(CONFORMANCE, SIMULATION),
    ),
    Mutant(
        name="A dependency that is not there is taken for one that has ended",
        kind="edges",
        file="core/admission.py",
        old="                raise UnknownDependencyError(spec.id, edge.id)\n",
        new="                continue\n",
        caught_by=(CONFORMANCE,),
    ),
    Mutant(
        name="A dependency that has finished is waited for",
        kind="edges",
        file="core/course.py",
        old="                if what != WAIT:\n                    continue\n",
        new="                if what != WAIT and job.state is not FINISHED:\n                    continue\n",
        caught_by=(CONFORMANCE, SIMULATION),
    ),
    Mutant(
        name="Those that wait for one job take their places the last first",
        kind="edges",
        file="core/sweeps.py",
        old="self._at < entry[0] <= self._before][::-1]\n",
        new="self._at < entry[0] <= self._before]\n",
        caught_by=(CONFORMANCE,),
    ),
    Mutant(
        name="Nobody is told that a dead job was discarded",
        kind="edges",
        file="core/course.py",
        old="        self.ledger.discard(job, self.now_ms)\n        self._tell_dependents(job)\n",
        new="        self.ledger.discard(job, self.now_ms)\n",
        caught_by=(CONFORMANCE, SIMULATION),
    ),
    Mutant(
        name="Nobody is told that a dead job's record has expired",
        kind="edges",
        file="core/course.py",
        old="        if is_told:\n            self._tell_dependents(job)\n",
        new="        if is_told:\n",
        caught_by=(CONFORMANCE, SIMULATION),
    ),
    Mutant(
        name="A child that failed is no concern of its parent's",
        kind="edges",
        file="core/course.py",
        old="        if what == NOTE and job.note().child_failed is None:\n",
        new="        if False:\n",
        caught_by=(CONFORMANCE,),
    ),
    Mutant(
        name="A parent keeps its place while it waits for its children",
        kind="edges",
        file="core/ledger.py",
        old="        self._stop(job)\n        self.vacate(job)\n        self._become(job, DEFERRED)\n",
        new="        self._stop(job)\n        self._become(job, DEFERRED)\n",
        caught_by=(CONFORMANCE,),
    ),
    Mutant(
        name="A due job does not look at what else it waits for",
        kind="edges",
        file="core/course.py",
        old="        if job.blocked:\n            ledger.defer(job)\n            return 0\n",
        new="",
        caught_by=(CONFORMANCE, SIMULATION),
    ),
    Mutant(
        name="A result goes although somebody may still read it",
        kind="edges",
        file="core/course.py",
        old="        return job.state is FINISHED and not job.gone and self.ledger.edges.has_dependents(job.id)\n",
        new="        return False\n",
        caught_by=(CONFORMANCE,),
    ),
    Mutant(
        name="A job may wait for its own parent",
        kind="edges",
        file="core/admission.py",
        old="                raise CycleError([parent_id, spec.id])\n",
        new="                return\n",
        caught_by=(CONFORMANCE,),
    ),
    Mutant(
        name="What fell with a job that is redriven downstream comes back although another job felled it too",
        kind="edges",
        file="core/course.py",
        old="        blocked, felled_by = self.judge(needs)\n        if felled_by is not None:\n            dependency",
        new="        blocked, felled_by = self.judge(needs)\n        if False:\n            dependency",
        caught_by=(CONFORMANCE,),
    ),
    Mutant(
        name="What is left over when the budget is used is forgotten",
        kind="edges",
        file="core/engine.py",
        old="                if again:\n                    leftovers.append(item)\n",
        new="",
        caught_by=(CONFORMANCE, SIMULATION),
    ),
)
