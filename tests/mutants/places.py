"""Mutants of the gates in the engine: order and exclusion."""

from tests.mutants.catchers import CONFORMANCE, MACHINE, PROVED, PROVED_EDGES, SIMULATION, TRACES
from tests.mutants.gate import Mutant

MUTANTS = (
    # --- reasons ---
    Mutant(
        name="A dead job that only a job further ahead waits for is not named",
        kind="records",
        file="core/asking/blockers.py",
        old="            clashes |= CLASHES[other.wants]\n",
        new="            pass\n",
        caught_by=(CONFORMANCE,),
    ),
    Mutant(
        name="Fewer jobs than ten are named although more hold the place",
        kind="records",
        file="core/asking/blockers.py",
        old="                    if len(holders) == JOBS_NAMED_MAX:\n",
        new="                    if len(holders) == JOBS_NAMED_MAX // 2:\n",
        caught_by=(CONFORMANCE,),
    ),
    # --- order ---
    Mutant(
        name="A line stops to move on after the first that passes",
        kind="order",
        file="core/structures/trie.py",
        old="""\
            if walk.granted:
                arrived.append(walk)
            walk = node.line
""",
        new="""\
            if walk.granted:
                arrived.append(walk)
            break
""",
        caught_by=(CONFORMANCE, SIMULATION, TRACES, PROVED),
    ),
    Mutant(
        name="The last to come stands first in a line",
        kind="order",
        file="core/structures/trie.py",
        old="""\
        last = node.line_end
        if last is None:
            node.line = walk
        else:
            last.after = walk
            walk.before = last
        node.line_end = walk
""",
        new="""\
        first = node.line
        if first is None:
            node.line_end = walk
        else:
            first.before = walk
            walk.after = first
        node.line = walk
""",
        caught_by=(CONFORMANCE, SIMULATION, TRACES, PROVED),
    ),
    Mutant(
        name="A higher priority goes to the front of a line",
        kind="order",
        file="core/structures/trie.py",
        old="""\
        last = node.line_end
        if last is None:
            node.line = walk
""",
        new="""\
        last = node.line_end
        if last is not None and walk.job.spec.priority > last.job.spec.priority:
            walk.after, walk.before, last.before = last, last.before, walk
            if walk.before is None:
                node.line = walk
            else:
                walk.before.after = walk
            node.waiting += 1
            return
        if last is None:
            node.line = walk
""",
        caught_by=(CONFORMANCE, SIMULATION, TRACES),
    ),
    Mutant(
        name="A walk that comes to a gate on the way overtakes the line there",
        kind="order",
        file="core/structures/trie.py",
        old="            if node.line is not None or node.held & clashes:\n",
        new="            if node.held & clashes:\n",
        caught_by=(CONFORMANCE, SIMULATION, TRACES, PROVED),
    ),
    Mutant(
        name="A walk that arrives at its own gate overtakes the line there",
        kind="order",
        file="core/structures/trie.py",
        old="        if node.line is not None or node.held & CLASHES[own]:\n",
        new="        if node.held & CLASHES[own]:\n",
        caught_by=(CONFORMANCE, SIMULATION, TRACES, PROVED),
    ),
    Mutant(
        name="A failed attempt goes to the tail",
        kind="order",
        file="core/jobs/lifecycle.py",
        old='        if policy.on_retry == "yield":\n',
        new="        if True:\n",
        caught_by=(CONFORMANCE,),
    ),
    Mutant(
        name="A failed attempt that yields keeps its place",
        kind="order",
        file="core/jobs/lifecycle.py",
        old='        if policy.on_retry == "yield":\n',
        new="        if False:\n",
        caught_by=(CONFORMANCE,),
    ),
    Mutant(
        name="A released job goes to the tail",
        kind="order",
        file="core/working.py",
        old=("            state.table.put_back(job, None, EventKind.RELEASED)\n"),
        new=("            state.table.postpone(job, state.now_ms, EventKind.RELEASED)\n"),
        caught_by=(CONFORMANCE,),
    ),
    Mutant(
        name="A job that lost its worker goes to the tail",
        kind="order",
        file="core/jobs/lifecycle.py",
        old="""\
        self.table.put_back(job, None, EventKind.LOST, error.type if error is not None else None)
        return 0
""",
        new="        return self.table.postpone(job, self.now_ms, EventKind.LOST)\n",
        caught_by=(CONFORMANCE,),
    ),
    Mutant(
        name="A dead job that held its place is redriven to the tail",
        kind="order",
        file="core/jobs/archive.py",
        old="""\
    if job.walk is not None:
        table.holding -= 1
        job.queued_ms = now_ms
""",
        new="""\
    if job.walk is not None:
        table.holding -= 1
        table.vacate(job)
        table.place(job, now_ms)
    elif False:
""",
        caught_by=(CONFORMANCE, SIMULATION, TRACES),
    ),
    Mutant(
        name="A job that is due later takes its place at once and is offered when it is due",
        kind="order",
        file="core/jobs/table.py",
        old="""\
        left = self.vacate(job)
        self.become(job, SCHEDULED)
        self.journal.note(job, kind, old, cause)
""",
        new="""\
        left = 0
        self.become(job, SCHEDULED)
        self.journal.note(job, kind, old, cause)
""",
        caught_by=(CONFORMANCE, SIMULATION, TRACES, PROVED_EDGES),
    ),
    Mutant(
        name="What another claim of the job covers is kept, and the job waits for itself",
        kind="order",
        file="values/hint.py",
        old="        if kept and is_prefix(kept[-1].path, claim.path):\n",
        new="        if kept and kept[-1].path == claim.path:\n",
        caught_by=(CONFORMANCE, MACHINE, SIMULATION, TRACES, PROVED),
    ),
    Mutant(
        name="A place is left at once, and the line there moves only when another job leaves",
        kind="order",
        file="core/structures/trie.py",
        old="                if not node.to_advance and not node.held & CLASHES[head.wants]:\n",
        new="                if not node.to_advance and not node.held & CLASHES[head.wants] and node.waiting > 1:\n",
        caught_by=(CONFORMANCE, MACHINE, SIMULATION, TRACES),
    ),
    Mutant(
        name="The effects of a settlement wait for the next operation",
        kind="order",
        file="core/working.py",
        old=("    follow(state)\n    _see(state, operation)\n"),
        new=("    _see(state, operation)\n"),
        caught_by=(CONFORMANCE, MACHINE),
    ),
    # --- exclusion ---
    Mutant(
        name="Ancestors are not looked at",
        kind="exclusion",
        file="core/structures/trie.py",
        old="            if node.line is not None or node.held & clashes:\n",
        new="            if node.line is not None:\n",
        caught_by=(CONFORMANCE, MACHINE, SIMULATION, TRACES, PROVED),
    ),
    Mutant(
        name="Descendants are not looked at",
        kind="exclusion",
        file="core/structures/trie.py",
        old="    _MASK[IS] | _MASK[IX] | _MASK[S] | _MASK[X],\n",
        new="    _MASK[S] | _MASK[X],\n",
        caught_by=(CONFORMANCE, SIMULATION, TRACES),
    ),
    Mutant(
        name="The root is no ancestor of any path",
        kind="exclusion",
        file="core/structures/trie.py",
        old="        if node.line is not None or node.held & CLASHES[own]:\n",
        new="        if depth and (node.line is not None or node.held & CLASHES[own]):\n",
        caught_by=(CONFORMANCE, SIMULATION, TRACES),
    ),
    Mutant(
        name="An exclusive job may run below a shared one",
        kind="exclusion",
        file="core/structures/trie.py",
        old="    _MASK[S] | _MASK[X],\n    _MASK[IX]",
        new="    _MASK[X],\n    _MASK[IX]",
        caught_by=(CONFORMANCE, SIMULATION, TRACES, PROVED),
    ),
    Mutant(
        name="A shared job may run above an exclusive one",
        kind="exclusion",
        file="core/structures/trie.py",
        old="    _MASK[IX] | _MASK[X],\n",
        new="    _MASK[X],\n",
        caught_by=(CONFORMANCE, MACHINE, SIMULATION, TRACES, PROVED),
    ),
    Mutant(
        name="A line goes on although its head does not fit",
        kind="exclusion",
        file="core/structures/trie.py",
        old="        while walk is not None and not node.held & CLASHES[walk.wants]:\n",
        new="        while walk is not None:\n",
        caught_by=(CONFORMANCE, SIMULATION, TRACES, PROVED),
    ),
    Mutant(
        name="A job that leaves a place forgets the root",
        kind="exclusion",
        file="core/structures/trie.py",
        old="            node.held -= one\n            left += 1\n",
        new="            node.held -= one if node.parent is not None else 0\n            left += 1\n",
        caught_by=(CONFORMANCE, MACHINE, SIMULATION, TRACES),
    ),
    Mutant(
        name="A job that leaves a line takes back a mark it did not set",
        kind="exclusion",
        file="core/structures/trie.py",
        old="""\
            self._unjoin(walk, node)
        walk.node = None
""",
        new="""\
            self._unjoin(walk, node)
            node.held -= ONE[walk.wants]
        walk.node = None
""",
        caught_by=(CONFORMANCE, MACHINE, SIMULATION, TRACES),
    ),
    Mutant(
        name="A place is free as soon as its running job is asked to stop",
        kind="exclusion",
        file="core/jobs/lifecycle.py",
        old="        if job.state is not STARTED:\n            return self.end(job, CANCELED, cause)\n",
        new="        if job.state is not FINISHED:\n            return self.end(job, CANCELED, cause)\n",
        caught_by=(CONFORMANCE, MACHINE, SIMULATION),
    ),
    Mutant(
        name="A dead job that is to hold its place frees it",
        kind="exclusion",
        file="core/jobs/lifecycle.py",
        old='keep_place=on_dead != "continue")\n',
        new='keep_place=on_dead == "cancel_behind")\n',
        caught_by=(CONFORMANCE, SIMULATION, TRACES),
    ),
    Mutant(
        name="A shared claim above an exclusive one of the same job stays shared",
        kind="exclusion",
        file="values/hint.py",
        old='            if claim.mode == "exclusive" and kept[-1].mode == "shared":\n',
        new="            if False:\n",
        caught_by=(CONFORMANCE, PROVED),
    ),
    Mutant(
        name="Paths are compared as texts: doc1 is above doc10",
        kind="exclusion",
        file="values/hint.py",
        old="    return other[: len(path)] == path\n",
        new='    return "".join(other).startswith("".join(path))\n',
        caught_by=(CONFORMANCE,),
    ),
    Mutant(
        name="Only the first claim of a job is placed",
        kind="exclusion",
        file="core/jobs/table.py",
        old="""\
        for claim in job.spec.claims:
            walk = Walk(job, claim)
""",
        new="""\
        for claim in job.spec.claims[:1]:
            walk = Walk(job, claim)
""",
        caught_by=(CONFORMANCE, MACHINE, SIMULATION, TRACES),
    ),
    Mutant(
        name="A job that runs below a path does not keep one from starting there",
        kind="exclusion",
        file="core/structures/registry.py",
        old="        return not node.active & CLASHES[S if shared else X]\n",
        new="        return not node.active & CLASHES[IS if shared else IX]\n",
        caught_by=(CONFORMANCE,),
    ),
)
