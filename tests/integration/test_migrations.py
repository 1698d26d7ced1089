"""Printed migrations, run by Alembic and by Django on real databases."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from queuehint import Scheduler
from queuehint.backends.postgres.layout import LAYOUT, migration
from queuehint.backends.sqlite.layout import statements
from queuehint.cli.app import app
from queuehint.cli.migrations import Format, Migration, statements_of
from queuehint.cli.migrations import printed as to_text
from tests.commands import CliRunner
from tests.postgres_store import Place

ROOT = Path(__file__).parents[2]
NAME = f"queuehint_{LAYOUT}"

# What there is in a schema, whatever made it.
DESCRIBED = (
    """SELECT c.relname, c.relkind, c.relpersistence, c.reloptions, c.relacl::text, obj_description(c.oid, 'pg_class')
    FROM pg_class c WHERE relnamespace = 'queuehint'::regnamespace ORDER BY 1""",
    """SELECT c.relname, a.attname, row_number() OVER (PARTITION BY c.oid ORDER BY a.attnum),
        format_type(a.atttypid, a.atttypmod), a.attnotnull, a.attidentity,
        a.attstorage, a.attcompression, pg_get_expr(d.adbin, d.adrelid)
    FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
    LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
    WHERE c.relnamespace = 'queuehint'::regnamespace AND a.attnum > 0 AND NOT a.attisdropped ORDER BY 1, 3""",
    """SELECT conname, pg_get_constraintdef(oid) FROM pg_constraint
    WHERE connamespace = 'queuehint'::regnamespace ORDER BY 1""",
    "SELECT indexdef FROM pg_indexes WHERE schemaname = 'queuehint' ORDER BY 1",
    """SELECT tgname, pg_get_triggerdef(t.oid) FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid
    WHERE c.relnamespace = 'queuehint'::regnamespace ORDER BY 1""",
    "SELECT pg_get_functiondef(oid), proacl::text FROM pg_proc WHERE pronamespace = 'queuehint'::regnamespace",
    "SELECT number FROM queuehint.layout",
)


def described(place: Place) -> list[list[Any]]:
    """Return what is in the schema of the tables."""
    return [place.run(statement) for statement in DESCRIBED]


def printed(*arguments: str) -> str:
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


def run(folder: Path, *words: str, **environment: str) -> str:
    """Run a module of Python in a folder; return what it prints."""
    paths = os.pathsep.join([str(folder), str(ROOT)])
    result = subprocess.run(
        [sys.executable, "-m", *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": paths, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


class Alembic:
    """A project whose migrations Alembic runs."""

    form = "alembic"
    first = "app_1"

    def __init__(self, folder: Path, url: str) -> None:
        self.folder = folder
        self.url = url.replace("postgresql://", "postgresql+psycopg://")
        (folder / "versions").mkdir()
        (folder / "alembic.ini").write_text(f"[alembic]\nscript_location = {folder}\nsqlalchemy.url = {self.url}\n")
        (folder / "env.py").write_text(
            "from alembic import context\n"
            "from sqlalchemy import create_engine\n"
            "url = context.config.get_main_option('sqlalchemy.url')\n"
            "if context.is_offline_mode():\n"
            "    context.configure(url=url, literal_binds=True, dialect_opts={'paramstyle': 'named'})\n"
            "    with context.begin_transaction():\n"
            "        context.run_migrations()\n"
            "else:\n"
            "    with create_engine(url).connect() as connection:\n"
            "        context.configure(connection=connection)\n"
            "        with context.begin_transaction():\n"
            "            context.run_migrations()\n"
        )
        self.put(
            self.first,
            "import sqlalchemy as sa\nfrom alembic import op\nrevision, down_revision = 'app_1', None\n"
            "def upgrade(): op.create_table('document', sa.Column('id', sa.Text))\n"
            "def downgrade(): op.drop_table('document')\n",
        )

    def put(self, name: str, text: str) -> None:
        """Put a file among the migrations."""
        (self.folder / "versions" / f"{name}.py").write_text(text)

    def upgrade(self) -> None:
        run(self.folder, "alembic", "upgrade", "head")

    def downgrade(self, to: str = first) -> None:
        run(self.folder, "alembic", "downgrade", to)


class Django:
    """A project whose migrations Django runs."""

    form = "django"
    first = "app.app_1"

    def __init__(self, folder: Path, url: str) -> None:
        self.folder = folder
        (folder / "app" / "migrations").mkdir(parents=True)
        for each in ("app", "app/migrations"):
            (folder / each / "__init__.py").touch()
        if url.startswith("sqlite"):
            engine, name, more = "sqlite3", url.removeprefix("sqlite:///"), {}
        else:
            where, _, name = url.removeprefix("postgresql://").rpartition("/")
            user, _, host = where.partition("@")
            engine, more = "postgresql", {"USER": user, "HOST": host.partition(":")[0], "PORT": host.partition(":")[2]}
        database = {"ENGINE": f"django.db.backends.{engine}", "NAME": name, **more}
        (folder / "settings.py").write_text(f"INSTALLED_APPS = ['app']\nDATABASES = {{'default': {database!r}}}\n")
        self.put(
            "app_1",
            "from django.db import migrations\nclass Migration(migrations.Migration):\n"
            "    operations = [migrations.RunSQL('CREATE TABLE document (id TEXT)', 'DROP TABLE document')]\n",
        )

    def put(self, name: str, text: str) -> None:
        """Put a file among the migrations."""
        (self.folder / "app" / "migrations" / f"{name}.py").write_text(text)

    def upgrade(self) -> None:
        self._migrate("app")

    def downgrade(self, to: str = first) -> None:
        self._migrate(*to.split("."))

    def _migrate(self, *what: str) -> None:
        run(self.folder, "django", "migrate", *what, DJANGO_SETTINGS_MODULE="settings")


LIBRARIES = pytest.mark.parametrize("library", [Alembic, Django], ids=lambda library: library.form)


@pytest.fixture
def migrated(place: Place) -> list[list[Any]]:
    """What `queuehint postgres migrate` makes, and removes again."""
    printed("postgres", "migrate", place.url())
    found = described(place)
    printed("postgres", "drop", place.url(), "--yes")
    return found


@pytest.mark.slow
@LIBRARIES
def test_printed_migration_creates_and_drops_the_same_tables(
    place: Place, migrated: list[list[Any]], library: type[Any], tmp_path: Path
) -> None:
    project = library(tmp_path, place.url())
    project.put(NAME, printed("postgres", "ddl", place.url(), "--format", library.form, "--after", library.first))
    project.upgrade()
    assert described(place) == migrated
    assert place.run("SELECT count(*) FROM pg_class WHERE relname = 'document'") == [(1,)]
    place.put("x", namespace="n")
    assert place.run("SELECT position FROM queuehint.inbox") == [(1,)], "its trigger draws a position"
    project.downgrade()
    assert place.run("SELECT count(*) FROM pg_namespace WHERE nspname = 'queuehint'") == [(0,)]
    assert place.run("SELECT count(*) FROM pg_class WHERE relname = 'document'") == [(1,)]
    project.upgrade()
    assert described(place) == migrated


@pytest.mark.slow
@LIBRARIES
def test_a_printed_migration_moves_older_tables_on_and_back(
    place: Place, migrated: list[list[Any]], library: type[Any], tmp_path: Path
) -> None:
    place.run("CREATE SCHEMA queuehint", *statements_of("".join(migration("queuehint", n) for n in range(1, LAYOUT))))
    before = described(place)
    project = library(tmp_path, place.url())
    ddl = "postgres", "ddl", place.url(), "--format", library.form, "--after", library.first
    project.put(NAME, printed(*ddl, "--from", str(LAYOUT - 1)))
    project.upgrade()
    assert described(place) == migrated
    project.downgrade()
    assert described(place) == before
    printed("postgres", "migrate", place.url())
    assert described(place) == migrated


def test_printed_migration_upgrades_older_tables(place: Place, migrated: list[list[Any]]) -> None:
    place.run("CREATE SCHEMA queuehint", *statements_of("".join(migration("queuehint", n) for n in range(1, LAYOUT))))
    place.run(printed("postgres", "ddl", place.url(), "--from", str(LAYOUT - 1)))
    assert described(place) == migrated


@pytest.mark.slow
def test_alembic_prints_the_statements_itself(place: Place, migrated: list[list[Any]], tmp_path: Path) -> None:
    project = Alembic(tmp_path, place.url())
    project.put(NAME, printed("postgres", "ddl", place.url(), "--format", "alembic", "--after", project.first))
    place.run(run(tmp_path, "alembic", "upgrade", "head", "--sql"))
    assert described(place) == migrated


@pytest.mark.slow
@LIBRARIES
def test_a_printed_migration_makes_the_tables_in_a_file(library: type[Any], tmp_path: Path) -> None:
    path, folder = tmp_path / "app.db", tmp_path / "project"
    folder.mkdir()
    project = library(folder, f"sqlite:///{path}")
    project.put("queuehint_2", printed("sqlite", "ddl", "--format", library.form, "--after", library.first))
    project.upgrade()
    with closing(sqlite3.connect(":memory:")) as db:
        for statement in statements(shared=True):
            db.execute(statement)
        wanted = tables_of(db)
    with closing(sqlite3.connect(path)) as db:
        assert tables_of(db) == wanted
    sched = Scheduler(f"sqlite:///{path}?shared=yes")
    assert sched.stats_sync().unfinished == 0
    sched.close_sync()
    project.downgrade()
    with closing(sqlite3.connect(path)) as db:
        assert tables_of(db) == []
        assert db.execute("SELECT count(*) FROM document").fetchall() == [(0,)]


@pytest.mark.slow
@LIBRARIES
def test_a_statement_is_executed_as_it_is(library: type[Any], tmp_path: Path) -> None:
    path, folder = tmp_path / "app.db", tmp_path / "project"
    folder.mkdir()
    project = library(folder, f"sqlite:///{path}")
    change = Migration(
        name="odd",
        title="Odd.",
        command="x",
        upgrade=["CREATE TABLE queuehint_odd (a DEFAULT ':b %s %(c)s \\');"],
        downgrade=["DROP TABLE queuehint_odd;"],
        after=library.first,
    )
    project.put("odd", to_text(Format(library.form), change))
    project.upgrade()
    with closing(sqlite3.connect(path)) as db:
        assert tables_of(db) == [("queuehint_odd", "CREATE TABLE queuehint_odd (a DEFAULT ':b %s %(c)s \\')")]


def tables_of(db: sqlite3.Connection) -> list[Any]:
    """Return the tables of ours in a file, and their texts."""
    return db.execute("SELECT name, sql FROM sqlite_master WHERE name LIKE 'queuehint%' ORDER BY 1").fetchall()


def test_ddl_of_a_file_is_accepted_by_sqlite() -> None:
    with closing(sqlite3.connect(":memory:")) as db:
        db.executescript(printed("sqlite", "ddl"))
        assert [name for name, _ in tables_of(db)] == [
            f"queuehint_{name}" for name in ("inbox", "journal", "meta", "snapshot")
        ]


def test_names_of_revisions_fit_the_table_of_alembic_and_differ() -> None:
    names = set()
    for schema in ("queuehint", "jobs", "s" * 63, "s" * 62 + "t"):
        text = printed("postgres", "ddl", f"postgresql://h/d?schema={schema}", "--format", "alembic")
        [line] = [line for line in text.splitlines() if line.startswith("revision = ")]
        names.add(line.split('"')[1])
    assert len(names) == 4
    assert max(map(len, names)) <= 32


@pytest.mark.parametrize(
    "arguments, said",
    [
        (("postgres", "ddl", "postgresql://h/d", "--format", "alembic", "--roles"), "--roles requires --format sql"),
        (("postgres", "ddl", "postgresql://h/d", "--after", "a"), "--after requires --format alembic or django"),
        (("postgres", "ddl", "postgresql://h/d", "--from", str(LAYOUT)), "--from"),
        (("postgres", "ddl", "postgresql://h/d", "--from", "-1"), "--from"),
        (("postgres", "ddl", "postgresql://h/d", "--format", "flyway"), "--format"),
        (("postgres", "ddl", "postgresql://h/d", "--format", "alembic", "--after", 'a"b'), "--after must be the id"),
        (("postgres", "ddl", "postgresql://h/d", "--format", "alembic", "--after", ""), "--after must be the id"),
        (("postgres", "ddl", "postgresql://h/d", "--format", "django", "--after", "0001"), "--after must be APP.NAME"),
        (("postgres", "ddl", "postgresql://h/d", "--format", "django", "--after", "a.b\n"), "--after must be APP.NAME"),
        (("postgres", "ddl", "postgresql://h/d", "--format", "django", "--after", "a-b.c"), "--after must be APP.NAME"),
        (("sqlite", "ddl", "--after", "a"), "--after requires --format alembic or django"),
        (("sqlite", "ddl", "--format", "django", "--after", "a"), "--after must be APP.NAME"),
    ],
)
def test_a_wrong_use_is_refused_by_name_and_prints_nothing(arguments: tuple[str, ...], said: str) -> None:
    result = CliRunner().invoke(app, arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert said in result.stderr


def test_each_statement_of_the_layout_is_one() -> None:
    found = statements_of("".join(migration("queuehint", n) for n in range(1, LAYOUT + 1)))
    begins = {statement.lstrip("\n").split()[0] for statement in found}
    assert begins <= {"CREATE", "COMMENT", "ALTER", "DO", "REVOKE", "INSERT", "UPDATE"}
    assert all(statement.count("$do$") in {0, 2} for statement in found)
