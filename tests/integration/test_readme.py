"""The pages of the docs: lists of pages, and code blocks that run."""

from __future__ import annotations

import ast
import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("section", ["tutorial", "how-to", "explanation", "reference"])
def test_every_page_is_listed_with_its_section(section: str) -> None:
    folder = ROOT / "docs" / section
    index = (folder / "index.md").read_text("utf-8")
    listed = re.findall(r"^- \[(.*?)\]\((.+?)\.md\)", index, re.MULTILINE)
    names = [name for _, name in listed]
    pages = {page.stem for page in folder.glob("*.md")}
    assert sorted(names) == sorted(pages - {"index"})
    if section != "how-to":
        assert [f"# {title}" for title, _ in listed] == [
            (folder / f"{name}.md").read_text("utf-8").splitlines()[0] for name in names
        ]


def test_plain_blocks_that_do_not_run_can_be_compiled() -> None:
    blocks = [
        (page, source)
        for page in (ROOT / "docs").rglob("*.md")
        for source in re.findall(
            r"^<!-- not run: .+ -->\n```python\n(.*?)^```", page.read_text("utf-8"), re.DOTALL | re.MULTILINE
        )
    ]
    assert len(blocks) > 5
    for page, source in blocks:
        compile(source, str(page), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


def test_first_application_of_the_page_on_frameworks_takes_a_job() -> None:
    pytest.importorskip("starlette")
    source = (ROOT / "docs/how-to/web-frameworks.md").read_text("utf-8").split("```")[1].removeprefix("python")
    page: dict[str, Any] = {"__name__": "app"}
    exec(compile(source, "app.py", "exec"), page)
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"Hello"}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    async def post() -> Any:
        scope = {"type": "http", "method": "POST", "path": "/doc1", "headers": [], "query_string": b""}
        await page["app"](scope, receive, send)
        await page["sched"].drain()
        return await page["sched"].handle(json.loads(sent[1]["body"])["job"]).result(timeout=30)

    assert asyncio.run(post()) == len("Hello")
    assert sent[0]["status"] == 202
