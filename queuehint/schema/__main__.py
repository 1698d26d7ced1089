"""
Print the code compiled for a class: ``python -m queuehint.schema Exchange``.

Without a name, the names of the classes.
"""

from __future__ import annotations

import sys
from importlib import import_module

from attrs import has

from queuehint.schema.compiled import source_of

ROOMS = ("operations", "values.event", "values.limit", "values.policy", "values.record_filter", "values.schedule")


def _classes() -> dict[str, type]:
    # Looked up, not imported: this room is below those of the classes that it compiles.
    found: dict[str, type] = {}
    for room in ROOMS:
        members = vars(import_module(f"queuehint.{room}"))
        found |= {name: each for name, each in members.items() if isinstance(each, type) and has(each)}
    return found


def main(names: list[str]) -> int:
    """Print the code of some classes. Return the exit status."""
    classes = _classes()
    for name in names:
        if name not in classes:
            sys.stderr.write(f"no class of operations or values is called {name}\n")
            return 2
        sys.stdout.write(source_of(classes[name]))
    if not names:
        sys.stdout.write("".join([f"{name}\n" for name in sorted(classes)]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
