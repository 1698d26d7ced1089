"""The commands on tables in PostgreSQL."""

from __future__ import annotations

import re

import pytest
from typer.testing import Result

from queuehint.backends.postgres.layout import LAYOUT
from queuehint.cli.app import app
from queuehint.cli.postgres import SHOWN
from tests.commands import CliRunner
from tests.postgres_store import Place, header


def run(*arguments: str, input: str | None = None) -> Result:
    return CliRunner().invoke(app, ["postgres", *arguments], input=input)


def ok(*arguments: str) -> str:
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_ddl_prints_table_statements_without_connecting() -> None:
    text = ok("ddl", "postgresql://nobody:secret@no.such.host/app?schema=jobs")
    assert text.startswith("BEGIN;\n")
    assert 'CREATE TABLE "jobs".journal' in text
    assert text.endswith("COMMIT;\n")
    assert "CREATE ROLE" not in text


def test_ddl_with_roles_is_accepted_by_a_server(place: Place) -> None:
    schema = f"jobs_{place.database}"
    text = ok("ddl", place.url(f"schema={schema}"), "--roles")
    place.run(text)
    try:
        lead, journal = place.open(f"schema={schema}")
        journal.append(0, b"x")
        lead.release()
        names = place.run(f"SELECT rolname FROM pg_roles WHERE rolname ^@ '{schema}' ORDER BY 1")
        assert names == [(f"{schema}_{kind}",) for kind in ("looker", "producer", "worker")]
        place.run(re.sub(r"^BEGIN;.*?^COMMIT;", "", text, flags=re.DOTALL | re.MULTILINE))  # roles may be there
    finally:
        place.close()
        for kind in ("looker", "producer", "worker"):
            place.run(f"DROP OWNED BY {schema}_{kind}", f"DROP ROLE {schema}_{kind}")


def test_migrate_makes_the_tables_once(place: Place) -> None:
    assert ok("migrate", place.url()) == f"made layout {LAYOUT} in schema queuehint\n"
    assert ok("migrate", place.url()) == f"schema queuehint has layout {LAYOUT} already\n"
    place.journal().append(0, b"x")


def test_migrate_moves_older_tables_on(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    from queuehint.backends.postgres import layout, making

    ok("migrate", place.url())
    now, later = layout.LAYOUT, layout.LAYOUT + 1
    more = f"ALTER TABLE {{schema}}.journal ADD COLUMN more text; UPDATE {{schema}}.layout SET number = {later};"
    monkeypatch.setattr(layout, "MIGRATIONS", (*layout.MIGRATIONS, more))
    monkeypatch.setattr(making, "LAYOUT", later)
    assert ok("migrate", place.url()) == f"schema queuehint had layout {now} and has layout {later}\n"
    assert place.run("SELECT more FROM queuehint.journal") == []
    monkeypatch.undo()
    refused = run("migrate", place.url())
    assert (refused.exit_code, f"knows {now}" in refused.stderr) == (3, True)


def test_first_layout_is_migrated_with_its_rows(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    from queuehint.backends.postgres import layout

    with monkeypatch.context() as patch:
        patch.setattr(layout, "LAYOUT", 1)
        place.run(layout.ddl("queuehint"))
    place.put("waits")
    place.run(
        "INSERT INTO queuehint.leader (namespace, epoch, secret, term, address, number, expires_at) "
        "VALUES ('n', 7, 's', '7.x', 'here', 0, '-infinity')"
    )
    lead = place.lead("bind=127.0.0.1:0")  # the first process of this release that asks for anything
    assert lead.epoch == 8
    assert place.run("SELECT number FROM queuehint.layout") == [(layout.LAYOUT,)]
    assert place.run("SELECT port, fingerprint, port_secret FROM queuehint.leader") == [(None, None, None)]
    assert place.waiting() == ["waits"]
    made = "SELECT table_name, column_name, data_type FROM information_schema.columns WHERE table_schema = '{}'"
    place.run(layout.ddl("anew"))
    assert sorted(place.run(made.format("queuehint"))) == sorted(place.run(made.format("anew")))


@pytest.mark.slow
def test_a_migration_does_not_wait_for_long_behind_a_dump(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who waits for a lock on the row of the leader keeps it from being renewed."""
    from queuehint.backends.postgres import layout

    with monkeypatch.context() as patch:
        patch.setattr(layout, "LAYOUT", 1)
        place.run(layout.ddl("queuehint"))
    dump = place.connect()
    dump.execute("LOCK TABLE queuehint.leader IN ACCESS SHARE MODE")
    refused = run("migrate", place.url())
    assert (refused.exit_code, "lock timeout" in refused.stderr) == (3, True)
    dump.rollback()
    assert ok("migrate", place.url()) == f"schema queuehint had layout 1 and has layout {layout.LAYOUT}\n"


def test_drop_names_lost_data_and_asks(place: Place) -> None:
    lead, journal = place.open(namespace="docs")
    journal.append(0, b"x")
    journal.append(0, b"y")
    journal.replace([b"p", b"q"], header(1))
    place.put("waits", namespace="other")
    no_terminal = run("drop", place.url())
    assert (no_terminal.exit_code, "pass --yes" in no_terminal.stderr) == (2, True)
    assert place.stored("docs") == ["y"]
    said = ok("drop", place.url(), "--yes")
    assert re.sub(r"process \d+", "process 1", said).splitlines() == [
        (
            "namespace docs: 1 rows of the journal, 2 parts of snapshots, 0 rows of the inbox; "
            "process 1 leads it: stop it first"
        ),
        "namespace other: 0 rows of the journal, 0 parts of snapshots, 1 rows of the inbox",
        "removed the tables in schema queuehint, with all jobs of 2 namespaces",
    ]
    assert place.run("SELECT count(*) FROM pg_namespace WHERE nspname = 'queuehint'") == [(0,)]
    lead.release()
    again = run("drop", place.url(), "--yes")
    assert (again.exit_code, again.stderr) == (1, "queuehint: schema queuehint has no tables of queuehint\n")


def test_drop_removes_tables_in_which_no_transaction_has_written(place: Place) -> None:
    ok("migrate", place.url())
    assert ok("drop", place.url(), "--yes") == "removed the tables in schema queuehint, with all jobs of 0 namespaces\n"


def test_drop_keeps_foreign_objects_of_the_schema(place: Place) -> None:
    for number in range(SHOWN + 2):
        place.lead(namespace=f"n{number:02}").release()
    place.put("x", namespace="n00")
    place.run("CREATE TABLE queuehint.of_others ()", "CREATE SEQUENCE queuehint.positions_of_others")
    said = ok("drop", place.url(), "--yes").splitlines()
    assert said[SHOWN:] == [
        "and 2 more namespaces",
        (
            f"removed the tables in schema queuehint, with all jobs of {SHOWN + 2} namespaces; "
            "the schema stays, for what else is in it"
        ),
    ]
    left = "SELECT relname FROM pg_class WHERE relnamespace = 'queuehint'::regnamespace ORDER BY 1"
    assert place.run(left) == [("of_others",), ("positions_of_others",)]
    place.lead()


@pytest.mark.parametrize("command", ["ddl", "migrate", "drop"])
def test_malformed_url_is_a_usage_error_without_its_password(command: str) -> None:
    refused = run(command, "postgresql://ann:secret@db/app?schema=Jobs")
    assert refused.exit_code == 2
    assert "schema must be" in refused.stderr
    assert "secret" not in refused.output


def test_unreachable_server_exits_with_3(place: Place) -> None:
    refused = run("migrate", place.server.url_of("no_such_database"))
    assert (refused.exit_code, "does not exist" in refused.stderr) == (3, True)
