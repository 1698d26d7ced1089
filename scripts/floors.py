"""Draw the floors of the house from the lint contract, as docs/explanation/architecture.md has them."""

import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
NAME = "Imports go one way: from the door down to the errors"


def floors() -> list[list[str]]:
    """Return the rooms on each floor, from the door down."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    contract = next(each for each in project["tool"]["importlinter"]["contracts"] if each["name"] == NAME)
    return [[room.strip().removeprefix("queuehint.") for room in layer.split("|")] for layer in contract["layers"]]


def drawn() -> str:
    """Return the floors as a picture in text; a room may import what stands below it, and nothing beside or above."""
    rows = ["   ".join(rooms) for rooms in floors()]
    width = max(len(row) for row in rows) + 4
    line = "+" + "-" * width + "+"
    return "\n".join([line, *(f"|{row:^{width}}|\n{line}" for row in rows)])


if __name__ == "__main__":
    print(drawn())
