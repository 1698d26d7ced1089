"""``python -m tests.web.pictures``: take the pictures of the board for the documentation, light and dark."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Any

from tests.web.served import Served, browser, why_no_browser
from tests.web.world import World, pass_time, seed

FOLDER = Path(__file__).parents[2] / "docs/pictures"
TEXT = "board.txt"
"""What the pages say that were taken: a test compares it, for pixels depend on the fonts of a machine."""
SIZE = {"width": 1120, "height": 840}
BYTES_MAX = 150_000
SCHEMES = ("light", "dark")


async def seeded() -> World:
    return await seed(World())


def main() -> None:
    if why := why_no_browser():
        sys.exit(f"no pictures: {why}")
    with browser() as opened:
        take(opened, FOLDER)


def take(opened: Any, folder: Path) -> None:
    """Take all pictures into a folder."""
    for scheme in SCHEMES:
        with Served(seeded, label="staging", colour="orange") as served:
            text = _take(served, opened, scheme, folder)
        (folder / TEXT).write_text(text, "utf-8")


def _take(served: Served, opened: Any, scheme: str, folder: Path) -> str:
    """Take the picture of a color scheme, and return the text of the page."""
    context = opened.new_context(base_url=served.url, viewport=SIZE, color_scheme=scheme)
    page = context.new_page()
    for step in range(13):
        # A page that follows events would note numbers in the middle of a step.
        page.goto("/?live=off")
        served.run(partial(pass_time, steps=step))
    page.goto("/")
    page.locator("#live.is-on").wait_for()
    path = folder / f"board-{scheme}.png"
    page.screenshot(path=path)
    assert path.stat().st_size < BYTES_MAX, path
    lines = [line.strip() for line in page.inner_text("body").splitlines()]
    context.close()
    return "".join([f"{line}\n" for line in lines if line])


if __name__ == "__main__":
    main()
