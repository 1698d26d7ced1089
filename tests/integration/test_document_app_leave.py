"""The example application keeps a version when the last editor leaves."""

from __future__ import annotations

import asyncio
import threading
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from queuehint.testing import on_memory
from tests.schedulers import until

MISSING = [name for name in ("fastapi", "opentelemetry", "pydantic") if find_spec(name) is None]

pytestmark = pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}")

OVER_S = 20.0


@pytest.mark.parametrize("is_due", [False, True])
def test_leave_of_two_editors_waits_for_slow_edits(
    is_due: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from examples.document_app import web
    from examples.document_app.database import Database
    from examples.document_app.jobs import Edit, sched

    gate = threading.Event()
    edit = Database.edit

    def edit_slowly(*arguments: Any) -> int:
        assert gate.wait(OVER_S)
        return edit(*arguments)

    async def leave_twice() -> list[dict[str, int]]:
        async with sched.worker():
            await web.post_edit("doc1", "intro", Edit(insert="Hello"))
            if is_due:
                assert await sched.run_now(["doc1"]) == 1
            both = [asyncio.create_task(web.leave("doc1")) for _ in range(2)]

            async def is_asked() -> bool:
                # A caller that does not wait for the edit is done before it.
                return both[1].done() or (await sched.stats(task="keep_version")).total == 3

            await until(is_asked)
            gate.set()
            versions = await asyncio.gather(*both)
            assert not (await sched.records.count(path=["doc1"], state="SCHEDULED")).total, "none is left for later"
            return versions

    monkeypatch.setattr(Database, "edit", edit_slowly)
    with Database(tmp_path / "documents.db") as database, on_memory(sched, state=database):
        monkeypatch.setattr(web.app.state, "database", database, raising=False)
        try:
            assert asyncio.run(leave_twice()) == [{"version": 1}, {"version": 1}]
        finally:
            gate.set()


def test_version_of_a_document_without_sections_is_not_kept(tmp_path: Path) -> None:
    from examples.document_app.database import Database

    with Database(tmp_path / "documents.db") as database:
        assert database.keep_version("doc1") == 0
        database.edit("job1", "doc1", "intro", "Hello", None, 0)
        assert [database.keep_version("doc1") for _ in range(2)] == [1, 1]
