"""
Print the targets of one or two runs as a table in Markdown: `python -m benchmarks.table NOW.json [BEFORE.json]`.

The files are those of ``python -m benchmarks ... --json FILE``.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator


def lines(now: dict[str, Any], before: dict[str, Any] | None = None) -> Iterator[str]:
    """Yield the lines: for each target the wanted figure, the measured one, and whether it is reached."""
    earlier = {target["name"]: target["value"] for target in (before or {}).get("targets", ())}
    heads = ["", "wanted", *(["before"] if before else []), "now", ""]
    yield f"| {' | '.join(heads)} |"
    yield f"|{'---|' * len(heads)}"
    for target in now["targets"]:
        wanted = f"{'at most' if target['at_most'] else 'at least'} {_number(target['limit'])}"
        was = [_number(earlier[target["name"]]) if target["name"] in earlier else ""] if before else []
        cells = [
            target["name"],
            wanted,
            *was,
            _number(target["value"]),
            "reached" if target["reached"] else "**missed**",
        ]
        yield f"| {' | '.join(cells)} |"
    for figure in now["figures"]:
        if figure["name"].startswith("yardstick"):
            cells = [figure["name"], "", *([""] if before else []), f"{_number(figure['median'])} {figure['unit']}", ""]
            yield f"| {' | '.join(cells)} |"
    if now["not_installed"]:
        yield f"\nNot measured: {', '.join(now['not_installed'])}."
    load = f"load {now['load_before']} before and {now['load_after']} after"
    yield f"\nPython {now['python']}, {load}, {now['seconds']:.0f} s."


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def main() -> None:
    files = [json.loads(Path(name).read_text("utf-8")) for name in sys.argv[1:3]]
    if not files:
        raise SystemExit(__doc__)
    print("\n".join(lines(*files)))


if __name__ == "__main__":
    main()
