"""The programs and commands of the page *Keep jobs in PostgreSQL*, on a server, as they stand there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from queuehint.backends.postgres.layout import LAYOUT
from queuehint.cli.app import app
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
    assert (printed, rest) == ("QUEUED\n", [])
    exec(compile(first, PAGE.name, "exec"), {"__name__": "app"})
    assert capsys.readouterr().out == printed
    again = CliRunner().invoke(app, ["postgres", "migrate", postgres_server.url_of(database)]).stdout
    assert again == f"schema queuehint has layout {LAYOUT} already\n"


def test_statements_without_transaction_make_the_tables_in_another(
    postgres_server: PostgresServer, database: str
) -> None:
    statements = without_transaction(postgres_server.url_of(database))
    postgres_server.run(f"DO $outer$ BEGIN EXECUTE $inner$ {statements} $inner$; END $outer$", database=database)
    assert postgres_server.run(NUMBER, database=database) == [(LAYOUT,)]
