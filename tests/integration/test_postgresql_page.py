"""The programs and commands of the page *Keep jobs in PostgreSQL*, on a server, as they stand there."""

from __future__ import annotations

import re
import sys
import types
from pathlib import Path

import pytest
from typer.testing import CliRunner

from queuehint.backends.postgres.layout import LAYOUT
from queuehint.cli.app import app
from tests.inbox_doors import django_alias
from tests.postgres_servers import PostgresServer

PAGE = Path(__file__).parents[2] / "docs/how-to/postgresql.md"
BLOCK = re.compile(
    r"^<!-- not run: tests/integration/\w+.py runs it, on a server -->\n"
    r"```python\n(.*?)^```$(?:\n\n```text\n(.*?)^```$)?",
    re.MULTILINE | re.DOTALL,
)
GREP = "| grep -vx -e 'BEGIN;' -e 'COMMIT;' > queuehint.sql"
NUMBER = "SELECT number FROM queuehint.layout"


def programs(url: str) -> list[tuple[str, str]]:
    """Return the programs, on a server of ours, and what they print."""
    return [
        (code.replace("//app@localhost/app", url.removeprefix("postgresql:")), printed)
        for code, printed in BLOCK.findall(PAGE.read_text("utf-8"))
    ]


def without_transaction(url: str) -> str:
    """Return what the command of the page for migrations prints."""
    assert GREP in PAGE.read_text("utf-8")
    printed = CliRunner().invoke(app, ["postgres", "ddl", url]).stdout
    return "".join(line for line in printed.splitlines(keepends=True) if line not in {"BEGIN;\n", "COMMIT;\n"})


def test_first_program_creates_the_tables_and_finds_its_job(
    postgres_server: PostgresServer, database: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (first, printed), *rest = programs(postgres_server.url_of(database))
    assert (printed, len(rest)) == ("QUEUED\n", 2)
    exec(compile(first, PAGE.name, "exec"), {"__name__": "app"})
    assert capsys.readouterr().out == printed
    again = CliRunner().invoke(app, ["postgres", "migrate", postgres_server.url_of(database)]).stdout
    assert again == f"schema queuehint has layout {LAYOUT} already\n"


def test_a_migration_of_alembic_makes_the_tables(
    postgres_server: PostgresServer, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sqlalchemy = pytest.importorskip("sqlalchemy")
    url = postgres_server.url_of(database)
    (tmp_path / "queuehint.sql").write_text(without_transaction(url))
    monkeypatch.chdir(tmp_path)
    engine = sqlalchemy.create_engine(url.replace("postgresql:", "postgresql+psycopg:"))
    with engine.begin() as connection:
        # What `op.execute` of Alembic does with a text.
        op = types.SimpleNamespace(execute=lambda text: connection.execute(sqlalchemy.text(text)))
        monkeypatch.setitem(sys.modules, "alembic", types.SimpleNamespace(op=op))
        page: dict[str, object] = {}
        exec(compile(programs(url)[1][0], PAGE.name, "exec"), page)
        page["upgrade"]()  # type: ignore[operator]
    engine.dispose()
    assert postgres_server.run(NUMBER, database=database) == [(LAYOUT,)]


def test_a_migration_of_django_makes_the_tables_and_removes_them(
    postgres_server: PostgresServer, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("django")
    from django.db import connections
    from django.db.migrations.state import ProjectState

    url = postgres_server.url_of(database)
    (tmp_path / "queuehint.sql").write_text(without_transaction(url))
    monkeypatch.chdir(tmp_path)
    connection = connections[django_alias(url)]
    page: dict[str, object] = {"__name__": "migration"}
    exec(compile(programs(url)[2][0], PAGE.name, "exec"), page)
    [operation] = page["Migration"].operations  # type: ignore[attr-defined]
    with connection.schema_editor() as editor:
        operation.database_forwards("app", editor, ProjectState(), ProjectState())
    assert postgres_server.run(NUMBER, database=database) == [(LAYOUT,)]
    with connection.schema_editor() as editor:
        operation.database_backwards("app", editor, ProjectState(), ProjectState())
    connection.close()
    assert postgres_server.run("SELECT to_regnamespace('queuehint')", database=database) == [(None,)]
