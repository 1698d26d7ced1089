r"""
The tables of the journal in PostgreSQL, as text, and who may do what with them.

All of it lies in one schema, which every statement names: the ``search_path`` of a session changes nothing.

- ``leader`` has a row for each namespace: who leads, until when, and the secret without which nothing is written.
- ``journal`` has the rows of a namespace, numbered without a gap, each with the mark of all rows up to it.
- ``snapshot`` has the parts of snapshots, ``header`` says which of them count.
- ``inbox`` has what was written in the transactions of an application.
- ``mail`` has what processes say to one another that reach one another in no other way. It does not last.
- ``layout`` has one row, the number of this layout.

**The position of a row in the inbox** is drawn at COMMIT, by a deferred constraint trigger: after the transaction's
last wait for a lock, so that positions are in the order of commits wherever a lock orders these. A number drawn by the
INSERT would be older than that wait. Each namespace has a sequence of its own, or the positions of others would be
gaps; the trigger makes it. The function of the trigger belongs to the owner of the schema and runs with its rights,
so a role that writes jobs needs none on positions, and cannot move the jobs of others.

A number of a layout is never used for another one: a change is one more text in `MIGRATIONS`, and tables of a later
number are refused by an earlier release.

>>> print(*ddl("jobs").splitlines()[:3], sep="\n")
BEGIN;
SELECT pg_advisory_xact_lock(...);
CREATE SCHEMA IF NOT EXISTS "jobs";
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

LAYOUT: Final = 3
"""The number of the layout that this release makes and knows."""
OLDEST: Final = 14
"""The oldest release of PostgreSQL with all that the statements need."""

TABLES: Final = ("layout", "leader", "journal", "snapshot", "header", "inbox", "mail")
SEQUENCES: Final = "position_"
"""How the names of the sequences begin; the digest of a namespace follows."""

ROLES: Final = ("worker", "producer", "looker")
"""Roles that ``ddl --roles`` makes, named after the schema: ``queuehint_worker``."""

_DRAW: Final = """\
FUNCTION {schema}.draw_position() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp SET row_security = off SET enable_seqscan = off AS $do$
DECLARE
    digest text := left(encode(sha256(convert_to(NEW.namespace, 'UTF8')), 'hex'), 32);
    sequence text := format('%I.%I', TG_TABLE_SCHEMA, '{sequences}' || digest);
BEGIN
    IF to_regclass(sequence) IS NULL THEN
        LOCK TABLE {schema}.layout IN SHARE ROW EXCLUSIVE MODE;  -- and see what others have made
        IF to_regclass(sequence) IS NULL THEN
            EXECUTE 'CREATE SEQUENCE ' || sequence || ' CACHE 1';
        END IF;
    END IF;
    UPDATE {schema}.inbox SET position = nextval(sequence::regclass) WHERE id = NEW.id;
"""
"""The function of the trigger; how it checks that there was a row follows."""
_DRAW_FIRST: Final = f"""\
{_DRAW}\
    IF NOT FOUND AND EXISTS (SELECT FROM {{schema}}.inbox WHERE id = NEW.id) THEN
        RAISE EXCEPTION 'queuehint: row % of the inbox got no position: another trigger, or a rule, keeps it', NEW.id;
    END IF;
    RETURN NULL;
END $do$;
"""
_DRAW_THIRD: Final = f"""\
{_DRAW}\
    IF NOT FOUND THEN  -- by itself: AND would run the query for each row
        IF EXISTS (SELECT FROM {{schema}}.inbox WHERE id = NEW.id) THEN
            RAISE EXCEPTION 'queuehint: row % of the inbox got no position: another trigger, or a rule, keeps it',
                NEW.id;
        END IF;
    END IF;
    RETURN NULL;
END $do$;
"""
_FIRST: Final = (
    """\
CREATE TABLE {schema}.layout (
    is_only boolean PRIMARY KEY DEFAULT true CHECK (is_only),
    number  integer NOT NULL,
    made_at timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE {schema}.layout IS 'queuehint: the number of the layout of these tables';

CREATE TABLE {schema}.leader (
    namespace       text PRIMARY KEY CHECK (namespace ~ '^[A-Za-z0-9_.-]{{1,64}}$'),
    epoch           bigint NOT NULL,      -- one more for each leader
    secret          text NOT NULL,        -- the fence: after a failover of the server an epoch may come twice
    term            text NOT NULL,        -- what others may know of both
    pid             integer,              -- of the process that leads, on its machine
    address         text,                 -- where it answers others, '' for nowhere
    box             text,                 -- where mail for it goes; who knows it may send to it
    owner           text,                 -- the process that wrote the newest row that named one
    number          bigint NOT NULL,      -- of its newest row in the journal when it last renewed
    expires_at      timestamptz NOT NULL, -- by the clock of the server
    session_pid     integer,              -- its session: another process may lead once that has ended,
    session_at      timestamptz,          -- as long as this is the server
    server_at       timestamptz,          -- that it was on
    standby_until   timestamptz           -- until then another process leads next, which has followed the journal
);
COMMENT ON TABLE {schema}.leader IS 'queuehint: the process that leads each namespace';

CREATE TABLE {schema}.journal (
    namespace text NOT NULL,
    number    bigint NOT NULL,            -- from 1 on, without a gap
    epoch     bigint NOT NULL,
    at_ms     bigint NOT NULL,
    mark      bigint NOT NULL,            -- a digest of all rows up to this one
    data      bytea NOT NULL,
    PRIMARY KEY (namespace, number)
);
COMMENT ON TABLE {schema}.journal IS 'queuehint: groups of operations, in the order in which they were applied';

CREATE TABLE {schema}.snapshot (
    namespace text NOT NULL,
    part      bigint NOT NULL,
    epoch     bigint NOT NULL,
    data      bytea NOT NULL,
    PRIMARY KEY (namespace, part)
);
COMMENT ON TABLE {schema}.snapshot IS 'queuehint: parts of the state after some row of the journal';
ALTER TABLE {schema}.snapshot ALTER COLUMN data SET STORAGE EXTERNAL;

CREATE TABLE {schema}.header (
    namespace text PRIMARY KEY,
    number    bigint NOT NULL,            -- of the last row of the journal that the snapshot covers
    mark      bigint NOT NULL,            -- that of this row
    layout    integer NOT NULL,           -- of the parts
    first     bigint NOT NULL,            -- the number of the first part,
    parts     bigint NOT NULL,            -- and how many there are
    release   text NOT NULL,
    options   text NOT NULL,
    made_at   timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE {schema}.header IS 'queuehint: which parts of the snapshots count';

CREATE TABLE {schema}.inbox (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    namespace  text NOT NULL CHECK (namespace ~ '^[A-Za-z0-9_.-]{{1,64}}$'),
    position   bigint,                    -- drawn at COMMIT
    xid        xid8 NOT NULL DEFAULT pg_current_xact_id(),
    written_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    data       bytea NOT NULL
);
COMMENT ON TABLE {schema}.inbox IS 'queuehint: operations written in transactions, until the leader takes them';
CREATE INDEX inbox_position ON {schema}.inbox (namespace, position) WHERE position IS NOT NULL;

CREATE UNLOGGED TABLE {schema}.mail (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    box        text NOT NULL,             -- of the process that it is for
    written_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    data       bytea NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000);
COMMENT ON TABLE {schema}.mail IS 'queuehint: long messages between processes; nothing of it has to last';
CREATE INDEX mail_box ON {schema}.mail (box, id);

DO $do$ BEGIN
    ALTER TABLE {schema}.journal ALTER COLUMN data SET COMPRESSION lz4;
    ALTER TABLE {schema}.inbox ALTER COLUMN data SET COMPRESSION lz4;
    ALTER TABLE {schema}.mail ALTER COLUMN data SET COMPRESSION lz4;
EXCEPTION WHEN feature_not_supported THEN  -- a server that was built without it
    ALTER TABLE {schema}.journal ALTER COLUMN data SET STORAGE EXTERNAL;
    ALTER TABLE {schema}.inbox ALTER COLUMN data SET STORAGE EXTERNAL;
    ALTER TABLE {schema}.mail ALTER COLUMN data SET STORAGE EXTERNAL;
END $do$;

"""
    f"CREATE {_DRAW_FIRST}"
    """\
REVOKE ALL ON FUNCTION {schema}.draw_position() FROM PUBLIC;
CREATE CONSTRAINT TRIGGER draw_position AFTER INSERT ON {schema}.inbox
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION {schema}.draw_position();
INSERT INTO {schema}.layout (number) VALUES (1);
"""
)
_SECOND: Final = """\
ALTER TABLE {schema}.leader
    ADD COLUMN port        text,          -- the host and port at which guests reach it too; NULL for none
    ADD COLUMN fingerprint text,          -- SHA-256 of the certificate that it has there
    ADD COLUMN port_secret text;          -- what guests say there; who may read it may use the tables
UPDATE {schema}.layout SET number = 2;
"""
_THIRD: Final = f"""\
CREATE OR REPLACE {_DRAW_THIRD}\
UPDATE {{schema}}.layout SET number = 3;
"""
MIGRATIONS: Final[tuple[str, ...]] = (_FIRST, _SECOND, _THIRD)
"""What makes the tables of a layout of those of the layout before it; the first of nothing."""
_FIRST_BACK: Final = """\
DROP TABLE IF EXISTS {tables};
DROP FUNCTION IF EXISTS {schema}.draw_position();
DO $do$ DECLARE
    sequence text;
BEGIN
    FOR sequence IN SELECT relname FROM pg_catalog.pg_class
        WHERE relnamespace = '{schema}'::regnamespace AND relkind = 'S' AND relname::text ^@ '{sequences}'
    LOOP
        EXECUTE format('DROP SEQUENCE {schema}.%I', sequence);
    END LOOP;
    BEGIN
        DROP SCHEMA {schema};
    EXCEPTION WHEN dependent_objects_still_exist OR insufficient_privilege THEN
        NULL;  -- for what else is in it
    END;
END $do$;
"""
_SECOND_BACK: Final = """\
ALTER TABLE {schema}.leader DROP COLUMN port, DROP COLUMN fingerprint, DROP COLUMN port_secret;
UPDATE {schema}.layout SET number = 1;
"""
_THIRD_BACK: Final = f"""\
CREATE OR REPLACE {_DRAW_FIRST}\
UPDATE {{schema}}.layout SET number = 2;
"""
REVERSALS: Final[tuple[str, ...]] = (_FIRST_BACK, _SECOND_BACK, _THIRD_BACK)
"""What makes the tables of the layout before of those of each one; of the first nothing, with all jobs."""

_GRANTS: Final = {
    "worker": """\
GRANT USAGE ON SCHEMA {schema} TO {role};
GRANT SELECT ON {schema}.layout TO {role};
GRANT SELECT, INSERT, UPDATE ON {schema}.leader TO {role};
GRANT SELECT, INSERT, DELETE ON {schema}.journal TO {role};
GRANT SELECT, INSERT, UPDATE, DELETE ON {schema}.snapshot, {schema}.header TO {role};
GRANT SELECT, INSERT (namespace, data), DELETE ON {schema}.inbox TO {role};
GRANT SELECT, INSERT (box, data), DELETE ON {schema}.mail TO {role};
""",
    "producer": """\
GRANT USAGE ON SCHEMA {schema} TO {role};
GRANT INSERT (namespace, data) ON {schema}.inbox TO {role};
""",
    "looker": """\
GRANT USAGE ON SCHEMA {schema} TO {role};
GRANT SELECT ON {schema}.layout, {schema}.journal, {schema}.snapshot, {schema}.header, {schema}.inbox TO {role};
GRANT SELECT (namespace, epoch, term, pid, address, owner, number, expires_at, session_pid, session_at, server_at,
    port, fingerprint) ON {schema}.leader TO {role};
""",
}
_ROLE: Final = """\
DO $do$ BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = '{name}') THEN
        CREATE ROLE {role} NOLOGIN;
    END IF;
END $do$;
"""


def quoted(name: str) -> str:
    """Return a name as statements have it; some are words of SQL."""
    return '"' + name.replace('"', '""') + '"'


def lock_key(schema: str) -> int:
    """Return the key of the advisory lock that is held while the tables of a schema are made."""
    return int.from_bytes(blake2b(schema.encode(), digest_size=8, person=b"queuehint").digest(), "big", signed=True)


def migration(schema: str, number: int) -> str:
    """Return the statements that make a layout of the one before it, without a transaction around them."""
    return MIGRATIONS[number - 1].format(schema=quoted(schema), sequences=SEQUENCES)


def reversal(schema: str, number: int) -> str:
    """Return the statements that undo `migration`."""
    tables = ", ".join([f"{quoted(schema)}.{table}" for table in TABLES])
    return REVERSALS[number - 1].format(schema=quoted(schema), sequences=SEQUENCES, tables=tables)


def upgrade(schema: str, before: int = 0) -> str:
    """Return the statements that make all tables of those of a layout, 0 for none, without a transaction around."""
    lines = [f"SELECT pg_advisory_xact_lock({lock_key(schema)});"]
    if not before:
        lines.append(f"CREATE SCHEMA IF NOT EXISTS {quoted(schema)};")
    lines.extend(migration(schema, number) for number in range(before + 1, LAYOUT + 1))
    return "\n".join(lines)


def downgrade(schema: str, before: int = 0) -> str:
    """Return the statements that undo `upgrade`."""
    lines = [f"SELECT pg_advisory_xact_lock({lock_key(schema)});"]
    lines.extend(reversal(schema, number) for number in range(LAYOUT, before, -1))
    return "\n".join(lines)


def ddl(schema: str, before: int = 0) -> str:
    """Return the statements of `upgrade` as one transaction."""
    return "\n".join(["BEGIN;", upgrade(schema, before), "COMMIT;", ""])


def role_name(schema: str, kind: str) -> str:
    """Return the name that ``ddl --roles`` gives a role; names of PostgreSQL have at most 63 characters."""
    return f"{schema[: 62 - len(kind)]}_{kind}"


def grants(schema: str, kind: str, role: str) -> str:
    """
    Return the statements that give a role what it needs.

    Args:
        kind: ``worker`` leads and runs jobs, ``producer`` writes jobs in its own transactions, ``looker`` reads.
    """
    return _GRANTS[kind].format(schema=quoted(schema), role=quoted(role))


def roles(schema: str) -> str:
    """Return the statements that make a role of each kind, to be granted to those of an application."""
    return "\n".join(
        _ROLE.format(name=name, role=quoted(name)) + grants(schema, kind, name)
        for kind in ROLES
        for name in (role_name(schema, kind),)
    )
