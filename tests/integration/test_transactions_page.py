"""The programs of the page *Enqueue in your transaction*, on a server, as they stand there."""

from __future__ import annotations

import json
import re
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from queuehint.operations import Operation
from tests.inbox_doors import django_alias, jobs_of, make_tables, rows
from tests.postgres_servers import PostgresServer

PAGE = Path(__file__).parents[2] / "docs/how-to/transactions.md"
BLOCK = re.compile(
    r"^<!-- not run: tests/integration/\w+.py runs it, on a server -->\n```python\n(.*?)^```$", re.MULTILINE | re.DOTALL
)
WRITTEN = [
    ["doc1 2", "doc1 3", "cancel"],
    ["doc1 4"],
    ["doc1 5"],
    ["doc1 6"],
    ["doc1 7"],
    ["doc2 1", "doc3 1", "index 7", "cancel"],
]
"""What each program but the first commits."""


def test_programs_of_the_page_write_their_shown_output(
    postgres_server: PostgresServer, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_tables(postgres_server, database)
    url = postgres_server.url_of(database)
    first, *programs = [
        block.replace("//app@localhost/app", url.removeprefix("postgresql:"))
        for block in BLOCK.findall(PAGE.read_text())
    ]
    jobs = types.ModuleType("app.jobs")
    monkeypatch.setitem(sys.modules, "app", types.ModuleType("app"))
    monkeypatch.setitem(sys.modules, "app.jobs", jobs)
    exec(first, vars(jobs))
    assert len(programs) == len(WRITTEN)
    for program, written in zip(programs, WRITTEN, strict=True):
        if "django" in program:
            alias = django_alias(url)
            program = program.replace("atomic()", f"atomic({alias!r})").replace(
                "from django.db import connection,", "from django.db import"
            )
            program = (
                f"from django.db import connections\nconnection = connections[{alias!r}]\n{program}\nconnection.close()"
            )
        exec(compile(program, PAGE.name, "exec"), {})
        found = rows(postgres_server, database, namespace="default")
        assert [said for _, asked in found for operation in asked for said in shown(operation)] == written
        postgres_server.run("TRUNCATE queuehint.inbox", database=database)
    jobs.sched.close_sync()


def shown(operation: Operation[Any]) -> list[str]:
    """Return the arguments of each job, or that some are canceled."""
    jobs = jobs_of([operation])
    return [" ".join(map(str, json.loads(spec.arguments).values())) for spec in jobs] or ["cancel"]
