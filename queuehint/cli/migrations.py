"""The tables of a store as a migration of an application: a file for Alembic, or for Django."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Final

import attrs
import typer

from queuehint.cli.opening import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

_TOKENS: Final = re.compile(
    r"(?P<body>\$do\$.*?\$do\$|'(?:[^']|'')*'|\"[^\"]*\"|--[^\n]*|[^;'\"$-]+|[$-])|(?P<end>;(?:[ \t]*--[^\n]*)?)",
    re.DOTALL,
)
"""Parts of statements, and where they end: with the comment behind that."""


class Format(StrEnum):
    """The format of the output."""

    SQL = "sql"
    ALEMBIC = "alembic"
    DJANGO = "django"


FormatOption = Annotated[
    Format, typer.Option("--format", help="Statements, or a file for the migrations of Alembic or Django.")
]
AfterOption = Annotated[
    str | None,
    typer.Option(
        metavar="REVISION",
        help="The migration before it: a revision of Alembic, or APP.NAME of Django.",
        show_default=False,
    ),
]


@attrs.frozen(kw_only=True)
class Migration:
    """
    A change of tables, and its reversal.

    Args:
        name: of the revision.
        title: what it makes.
        command: that printed it.
        after: the migration before it, None for none.
    """

    name: str
    title: str
    command: str
    upgrade: Sequence[str]
    downgrade: Sequence[str]
    after: str | None = None


def statements_of(script: str) -> list[str]:
    r"""
    Return the statements of a script, which drivers take one by one.

    >>> statements_of("SELECT ';'; -- one\nDO $do$ BEGIN NULL; END $do$;\n")
    ["SELECT ';'; -- one", 'DO $do$ BEGIN NULL; END $do$;']
    """
    found, parts = [], []
    for token in _TOKENS.finditer(script):
        parts.append(token[0])
        if token["end"] is not None:
            found.append("".join(parts).strip())
            parts = []
    assert not "".join(parts).strip(), "the last statement has an end"
    return found


def printed(form: Format, migration: Migration) -> str:
    """
    Return the text of a file.

    Raises:
        UsageError: the migration before it is not named as the library names one.
    """
    return _alembic(migration) if form is Format.ALEMBIC else _django(migration)


def _alembic(migration: Migration) -> str:
    if migration.after is not None and not re.fullmatch(r"[A-Za-z0-9_]{1,200}", migration.after):
        raise UsageError("--after must be the id of a revision of Alembic, of letters, digits and _")
    return f'''\
"""{migration.title}

Printed by `{migration.command}`.
"""

from alembic import op
from sqlalchemy import text

revision = "{migration.name}"
down_revision = {_quoted(migration.after)}
branch_labels = None
depends_on = None

UPGRADE = {_listed(migration.upgrade, "")}
DOWNGRADE = {_listed(migration.downgrade, "")}


def upgrade() -> None:
    _execute(UPGRADE)


def downgrade() -> None:
    _execute(DOWNGRADE)


def _execute(statements: list[str]) -> None:
    for statement in statements:
        op.execute(text(statement.replace(":", r"\\:")))
'''


def _django(migration: Migration) -> str:
    dependencies = ""
    if migration.after is not None:
        app, dot, name = migration.after.partition(".")
        if not (dot and re.fullmatch(r"[A-Za-z0-9_]{1,200}", app) and re.fullmatch(r"[A-Za-z0-9_]{1,200}", name)):
            raise UsageError("--after must be APP.NAME of a migration of Django, such as app.0007_documents")
        dependencies = f'("{app}", "{name}")'
    return f'''\
"""{migration.title}

Printed by `{migration.command}`.
"""

from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [{dependencies}]
    operations = [
        migrations.RunSQL(
            sql={_listed(migration.upgrade, " " * 12)},
            reverse_sql={_listed(migration.downgrade, " " * 12)},
        ),
    ]
'''


def _listed(statements: Sequence[str], margin: str) -> str:
    """Return a list of texts as code."""
    # Each ends with a semicolon or a comment, never with a quotation mark.
    items = [f'{margin}    r"""\n{statement}""",\n' for statement in statements]
    return f"[\n{''.join(items)}{margin}]"


def _quoted(name: str | None) -> str:
    return "None" if name is None else f'"{name}"'
