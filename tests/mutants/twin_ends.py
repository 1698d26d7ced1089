"""Mutants of leaving, of lines and of normalise that differ from the program extracted from the proof."""

from tests.mutants.catchers import PROVED
from tests.mutants.gate import Mutant

MUTANTS = (
    Mutant(
        name="A job that leaves keeps its count at its own gate",
        kind="twin",
        file="core/structures/trie.py",
        old="            node.held -= ONE[walk.wants]\n",
        new="",
        caught_by=(PROVED,),
    ),
    Mutant(
        name="A job that leaves keeps its counts above its own gate",
        kind="twin",
        file="core/structures/trie.py",
        old="""\
            node.held -= one
            left += 1
""",
        new="            left += 1\n",
        caught_by=(PROVED,),
    ),
    Mutant(
        name="A job that leaves a line takes a count away",
        kind="twin",
        file="core/structures/trie.py",
        old="            self._unjoin(walk, node)\n        walk.node",
        new="""\
            self._unjoin(walk, node)
            node.held -= ONE[walk.wants] if node.held >= ONE[walk.wants] else 0
        walk.node\
""",
        caught_by=(PROVED,),
    ),
    Mutant(
        name="An exclusive claim leaves as a shared one",
        kind="twin",
        file="core/structures/trie.py",
        old="        one = ONE[IS if walk.shared else IX]\n        while",
        new="        one = ONE[IS]\n        while",
        caught_by=(PROVED,),
    ),
    Mutant(
        name="A job that leaves looks at no line",
        kind="twin",
        file="core/structures/trie.py",
        old="                if not node.to_advance and not node.held & CLASHES[head.wants]:\n",
        new="                if False:\n",
        caught_by=(PROVED,),
    ),
    Mutant(
        name="A line waits to be advanced though its head does not fit",
        kind="twin",
        file="core/structures/trie.py",
        old="                if not node.to_advance and not node.held & CLASHES[head.wants]:\n",
        new="                if not node.to_advance:\n",
        caught_by=(PROVED,),
    ),
    Mutant(
        name="A line is among the leftovers twice",
        kind="twin",
        file="core/structures/trie.py",
        old="                if not node.to_advance and not node.held & CLASHES[head.wants]:\n",
        new="                if not node.held & CLASHES[head.wants]:\n",
        caught_by=(PROVED,),
    ),
    Mutant(
        name="The walk that leaves is asked whether it fits",
        kind="twin",
        file="core/structures/trie.py",
        old="                if not node.to_advance and not node.held & CLASHES[head.wants]:\n",
        new="                if not node.to_advance and not node.held & CLASHES[walk.wants]:\n",
        caught_by=(PROVED,),
    ),
    Mutant(
        name="A job that leaves looks at the lowest line only",
        kind="twin",
        file="core/structures/trie.py",
        old="                if not node.to_advance and not node.held & CLASHES[head.wants]:\n",
        new="                if left == 1 and not node.to_advance and not node.held & CLASHES[head.wants]:\n",
        caught_by=(PROVED,),
    ),
    Mutant(
        name="A job that leaves does not look at the line of the root",
        kind="twin",
        file="core/structures/trie.py",
        old="                if not node.to_advance and not node.held & CLASHES[head.wants]:\n",
        new="                if parent is not None and not node.to_advance and not node.held & CLASHES[head.wants]:\n",
        caught_by=(PROVED,),
    ),
    Mutant(
        name="A line does not know that it waits to be advanced",
        kind="twin",
        file="core/structures/trie.py",
        old="                    node.to_advance = True\n",
        new="",
        caught_by=(PROVED,),
    ),
    Mutant(
        name="Empty nodes stay",
        kind="twin",
        file="core/structures/trie.py",
        old="            elif parent is not None and not node.held and not node.children:\n",
        new="            elif False:\n",
        caught_by=(PROVED,),
    ),
    Mutant(
        name="Nodes that are held are deleted",
        kind="twin",
        file="core/structures/trie.py",
        old="            elif parent is not None and not node.held and not node.children:\n",
        new="            elif parent is not None and not node.children:\n",
        caught_by=(PROVED,),
    ),
    Mutant(
        name="A deleted node is counted",
        kind="twin",
        file="core/structures/trie.py",
        old="""\
                del children[node.segment]
                self.nodes -= 1
""",
        new="                del children[node.segment]\n",
        caught_by=(PROVED,),
    ),
    Mutant(
        name="Shared claims overtake a line",
        kind="twin",
        file="core/structures/trie.py",
        old="            if node.line is not None or node.held & clashes:\n",
        new="            if (node.line is not None and not walk.shared) or node.held & clashes:\n",
        caught_by=(PROVED,),
    ),
    Mutant(
        name="A line loses its end",
        kind="twin",
        file="core/structures/trie.py",
        old="""\
            node.line_end = before
        else:
            after.before\
""",
        new="""\
            pass
        else:
            after.before\
""",
        caught_by=(PROVED,),
    ),
    Mutant(
        name="A job that leaves a line takes those behind along",
        kind="twin",
        file="core/structures/trie.py",
        old="""\
            before.after = after
            walk.before = None
        if after is None:
            node.line_end = before\
""",
        new="""\
            before.after = None
            walk.before = None
        if after is None:
            node.line_end = before\
""",
        caught_by=(PROVED,),
    ),
    Mutant(
        name="A job that leaves the head of a line stays",
        kind="twin",
        file="core/structures/trie.py",
        old="""\
        if before is None:
            node.line = after
        else:
            before.after = after
            walk.before = None
        if after is None:
            node.line_end\
""",
        new="""\
        if before is not None:
            before.after = after
            walk.before = None
        if after is None:
            node.line_end\
""",
        caught_by=(PROVED,),
    ),
    Mutant(
        name="A walk that waits is counted twice",
        kind="twin",
        file="core/structures/trie.py",
        old="        node.waiting += 1\n",
        new="        node.waiting += 2\n",
        caught_by=(PROVED,),
    ),
    Mutant(
        name="Claims are not sorted",
        kind="twin",
        file="values/hint.py",
        old="    for claim in sorted(claims, key=lambda claim: claim.path):\n",
        new="    for claim in claims:\n",
        caught_by=(PROVED,),
    ),
    Mutant(
        name="A shared claim above an exclusive one stays shared",
        kind="twin",
        file="values/hint.py",
        old="                kept[-1] = Claim(kept[-1].path)\n",
        new="                pass\n",
        caught_by=(PROVED,),
    ),
    Mutant(
        name="A shared claim that covers another becomes exclusive",
        kind="twin",
        file="values/hint.py",
        old='            if claim.mode == "exclusive" and kept[-1].mode == "shared":\n',
        new="            if True:\n",
        caught_by=(PROVED,),
    ),
    Mutant(
        name="Only the first claim is kept",
        kind="twin",
        file="values/hint.py",
        old="            kept.append(claim)\n    return",
        new="            kept = kept or [claim]\n    return",
        caught_by=(PROVED,),
    ),
    Mutant(
        name="A sibling is taken for a descendant",
        kind="twin",
        file="values/hint.py",
        old="    return other[: len(path)] == path\n",
        new="    return other[: len(path) - 1] == path[:-1]\n",
        caught_by=(PROVED,),
    ),
)
