"""Draw the layers of the package from the lint contract, as docs/explanation/architecture.md shows them."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
NAME = "Imports go one way: from the command line down to the errors"


def floors() -> list[list[str]]:
    """Return the packages of each layer, from the command line down."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    contract = next(each for each in project["tool"]["importlinter"]["contracts"] if each["name"] == NAME)
    return [
        [room.strip().removeprefix("queuehint.") for room in re.split("[|:]", layer)] for layer in contract["layers"]
    ]


def drawn() -> str:
    """Return the layers as a picture in text; a package may import from layers below its own only."""
    rows = ["   ".join(rooms) for rooms in floors()]
    width = max(len(row) for row in rows) + 4
    line = "+" + "-" * width + "+"
    return "\n".join([line, *(f"|{row:^{width}}|\n{line}" for row in rows)])


if __name__ == "__main__":
    print(drawn())
