"""Mutants of modes, walks and advances that differ from the program extracted from the proof."""

from tests.mutants.catchers import PROVED
from tests.mutants.gate import Mutant

MUTANTS = (
    Mutant(
        name="A walk ignores what is held at its own gate",
        kind="twin",
        file="core/structures/trie.py",
        old="        if node.line is not None or node.held & CLASHES[own]:\n",
        new="        if node.line is not None:\n",
        caught_by=(PROVED,),
    ),
    Mutant(
        name="X fits IS",
        kind="twin",
        file="core/structures/trie.py",
        old="    _MASK[IS] | _MASK[IX] | _MASK[S] | _MASK[X],\n",
        new="    _MASK[IX] | _MASK[S] | _MASK[X],\n",
        caught_by=(PROVED,),
    ),
    Mutant(
        name="X fits S",
        kind="twin",
        file="core/structures/trie.py",
        old="    _MASK[IS] | _MASK[IX] | _MASK[S] | _MASK[X],\n",
        new="    _MASK[IS] | _MASK[IX] | _MASK[X],\n",
        caught_by=(PROVED,),
    ),
    Mutant(
        name="X fits X",
        kind="twin",
        file="core/structures/trie.py",
        old="    _MASK[IS] | _MASK[IX] | _MASK[S] | _MASK[X],\n",
        new="    _MASK[IS] | _MASK[IX] | _MASK[S],\n",
        caught_by=(PROVED,),
    ),
    Mutant(
        name="IS fits X",
        kind="twin",
        file="core/structures/trie.py",
        old="CLASHES = (\n    _MASK[X],",
        new="CLASHES = (\n    0,",
        caught_by=(PROVED,),
    ),
    Mutant(
        name="IS does not fit S",
        kind="twin",
        file="core/structures/trie.py",
        old="CLASHES = (\n    _MASK[X],",
        new="CLASHES = (\n    _MASK[S] | _MASK[X],",
        caught_by=(PROVED,),
    ),
    Mutant(
        name="S does not fit S",
        kind="twin",
        file="core/structures/trie.py",
        old="    _MASK[IX] | _MASK[X],\n    _MASK[IS]",
        new="    _MASK[IX] | _MASK[S] | _MASK[X],\n    _MASK[IS]",
        caught_by=(PROVED,),
    ),
    Mutant(
        name="IX does not fit IS",
        kind="twin",
        file="core/structures/trie.py",
        old="    _MASK[S] | _MASK[X],\n    _MASK[IX]",
        new="    _MASK[IS] | _MASK[S] | _MASK[X],\n    _MASK[IX]",
        caught_by=(PROVED,),
    ),
    Mutant(
        name="A count has two bits",
        kind="twin",
        file="core/structures/trie.py",
        old="_BITS = 32\n",
        new="_BITS = 2\n",
        caught_by=(PROVED,),
    ),
    Mutant(
        name="Shared claims have the intention of exclusive ones",
        kind="twin",
        file="core/structures/trie.py",
        old="        intention = IS if walk.shared else IX\n",
        new="        intention = IX\n",
        caught_by=(PROVED,),
    ),
    Mutant(
        name="Exclusive claims have the intention of shared ones",
        kind="twin",
        file="core/structures/trie.py",
        old="        intention = IS if walk.shared else IX\n",
        new="        intention = IS\n",
        caught_by=(PROVED,),
    ),
    Mutant(
        name="A shared claim is exclusive at its own gate",
        kind="twin",
        file="core/structures/trie.py",
        old="        own = S if walk.shared else X\n",
        new="        own = X\n",
        caught_by=(PROVED,),
    ),
    Mutant(
        name="A walk that passes is not counted",
        kind="twin",
        file="core/structures/trie.py",
        old="            node.held += one\n",
        new="",
        caught_by=(PROVED,),
    ),
    Mutant(
        name="A walk that is granted is not counted",
        kind="twin",
        file="core/structures/trie.py",
        old="""\
        walk.granted = True
        node.held += ONE[mode]
""",
        new="        walk.granted = True\n",
        caught_by=(PROVED,),
    ),
    Mutant(
        name="A walk that passes from a line is not counted",
        kind="twin",
        file="core/structures/trie.py",
        old="                node.held += ONE[walk.wants]\n",
        new="",
        caught_by=(PROVED,),
    ),
    Mutant(
        name="An advance is cut one walk late",
        kind="twin",
        file="core/structures/trie.py",
        old="            if used >= budget:\n",
        new="            if used > budget:\n",
        caught_by=(PROVED,),
    ),
    Mutant(
        name="A line that was cut does not wait to be advanced",
        kind="twin",
        file="core/structures/trie.py",
        old="                return used, True\n",
        new="""\
                node.to_advance = False
                return used, True
""",
        caught_by=(PROVED,),
    ),
    Mutant(
        name="A cut advance says that it is done",
        kind="twin",
        file="core/structures/trie.py",
        old="                return used, True\n",
        new="                return used, False\n",
        caught_by=(PROVED,),
    ),
    Mutant(
        name="A line that was advanced waits to be advanced still",
        kind="twin",
        file="core/structures/trie.py",
        old="""\
        node.to_advance = False
        return used, False
""",
        new="        return used, False\n",
        caught_by=(PROVED,),
    ),
    Mutant(
        name="A walk that arrives is not reported",
        kind="twin",
        file="core/structures/trie.py",
        old="""\
            if walk.granted:
                arrived.append(walk)
""",
        new="",
        caught_by=(PROVED,),
    ),
    Mutant(
        name="A walk that stops again is reported as arrived",
        kind="twin",
        file="core/structures/trie.py",
        old="""\
            if walk.granted:
                arrived.append(walk)
""",
        new="            arrived.append(walk)\n",
        caught_by=(PROVED,),
    ),
    Mutant(
        name="A grant from a line costs nothing",
        kind="twin",
        file="core/structures/trie.py",
        old="                used += 1\n            else",
        new="                used += 0\n            else",
        caught_by=(PROVED,),
    ),
    Mutant(
        name="Passing from a line costs one gate less",
        kind="twin",
        file="core/structures/trie.py",
        old="used += 1 + self._walk_on",
        new="used += self._walk_on",
        caught_by=(PROVED,),
    ),
    Mutant(
        name="A walk from a line begins at the root",
        kind="twin",
        file="core/structures/trie.py",
        old="self._walk_on(walk, self._child(node, walk.path[depth]), depth + 1)",
        new="self._walk_on(walk, self.root, 0)",
        caught_by=(PROVED,),
    ),
    Mutant(
        name="A walk from a line skips a gate",
        kind="twin",
        file="core/structures/trie.py",
        old="            if depth == len(walk.path):\n",
        new="            if depth >= len(walk.path) - 1:\n",
        caught_by=(PROVED,),
    ),
)
