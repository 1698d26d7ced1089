"""``python -m tests.web.pictures``: take the pictures of the board for the documentation, light and dark."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Any

from tests.web.served import Served, browser, why_no_browser
from tests.web.world import World, pass_time, seed

FOLDER = Path(__file__).parents[2] / "docs/pictures"
SIZE = {"width": 1120, "height": 840}
BYTES_MAX = 150_000


async def seeded() -> World:
    return await seed(World())


def main() -> None:
    if why := why_no_browser():
        sys.exit(f"no pictures: {why}")
    with browser() as opened:
        for scheme in ("light", "dark"):
            with Served(seeded, label="staging", colour="orange") as served:
                _take(served, opened, scheme)


def _take(served: Served, opened: Any, scheme: str) -> None:
    context = opened.new_context(base_url=served.url, viewport=SIZE, color_scheme=scheme)
    page = context.new_page()
    for step in range(13):
        page.goto("/")
        served.run(partial(pass_time, steps=step))
    page.goto("/")
    page.locator("#live.is-on").wait_for()
    path = FOLDER / f"board-{scheme}.png"
    page.screenshot(path=path)
    assert path.stat().st_size < BYTES_MAX, path
    context.close()


if __name__ == "__main__":
    main()
