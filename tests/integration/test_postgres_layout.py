"""The tables in PostgreSQL: grants of real roles, and positions in the order of commits."""

from __future__ import annotations

import threading
from hashlib import blake2b

import psycopg
import pytest
from psycopg import errors

from queuehint.backends.postgres.layout import LAYOUT, MIGRATIONS, ddl, grants, lock_key, quoted, role_name, roles
from tests.postgres_servers import PostgresServer, until_waiting

PUT = "INSERT INTO queuehint.inbox (namespace, data) VALUES (%s, %s)"
LAYOUTS = ["63873e816113d13d", "13fa7eac2a3a9b96", "30a8f078818a39ce"]
"""The digest of the text of each layout there was."""
INBOX = "SELECT convert_from(data, 'UTF8') FROM queuehint.inbox WHERE namespace = %s ORDER BY position"


@pytest.fixture
def made(postgres_server: PostgresServer, database: str) -> str:
    postgres_server.run(ddl("queuehint"), database=database)
    return database


def connect(server: PostgresServer, database: str, user: str = "postgres") -> psycopg.Connection:
    return psycopg.connect(server.url_of(database, user))


def inbox(server: PostgresServer, database: str, namespace: str = "n") -> list[str]:
    with connect(server, database) as connection:
        return [data for (data,) in connection.execute(INBOX, (namespace,))]


# --- the text ---


def test_text_of_each_layout_is_as_it_was_made() -> None:
    found = [blake2b(text.encode(), digest_size=8).hexdigest() for text in MIGRATIONS]
    assert found == LAYOUTS, "a change of the tables is one more text, and its digest one more line"


def test_ddl_accepts_a_schema_named_by_a_keyword(postgres_server: PostgresServer, database: str) -> None:
    postgres_server.run(ddl("order"), database=database)
    assert postgres_server.run('SELECT number FROM "order".layout', database=database) == [(LAYOUT,)]
    postgres_server.run(
        """INSERT INTO "order".inbox (namespace, data) VALUES ('n', 'x')""", roles("order"), database=database
    )
    assert postgres_server.run('SELECT position FROM "order".inbox', database=database) == [(1,)]
    drop = [f"DROP OWNED BY order_{kind}" for kind in ("worker", "producer", "looker")]
    postgres_server.run(*drop, *[each.replace("OWNED BY", "ROLE") for each in drop], database=database)


def test_names_of_roles_fit_and_schemas_have_different_locks() -> None:
    assert role_name("queuehint", "producer") == "queuehint_producer"
    assert len(role_name("s" * 63, "producer")) == 63
    assert quoted('a"b') == '"a""b"'
    assert lock_key("a") != lock_key("b")


# --- rights ---


def test_a_producer_writes_jobs_and_may_do_nothing_else(postgres_server: PostgresServer, made: str) -> None:
    user = "producer_of_test"
    with role(postgres_server, made, user, "producer"):
        with connect(postgres_server, made, user) as connection:
            connection.execute("SET search_path = pg_temp")
            connection.execute(PUT, ("n", b"one"))
            connection.execute(PUT, ("never-led.before", b"two"))
        assert inbox(postgres_server, made) == ["one"]
        assert inbox(postgres_server, made, "never-led.before") == ["two"]
        for statement in (
            "SELECT data FROM queuehint.inbox",
            "INSERT INTO queuehint.inbox (namespace, data, position) VALUES ('n', 'x', 1)",
            "UPDATE queuehint.inbox SET position = 0",
            "DELETE FROM queuehint.inbox",
            "SELECT secret FROM queuehint.leader",
            "SELECT data FROM queuehint.journal",
            "SELECT data FROM queuehint.mail",
            "INSERT INTO queuehint.mail (box, data) VALUES ('x', 'x')",
            "DELETE FROM queuehint.mail",
            "SELECT box FROM queuehint.leader",
            "SELECT port_secret FROM queuehint.leader",
            "SELECT queuehint.draw_position()",
            "CREATE TABLE queuehint.mine ()",
            "SELECT nextval((SELECT oid FROM pg_class WHERE relname ^@ 'position_' LIMIT 1)::regclass)",
        ):
            with connect(postgres_server, made, user) as connection, pytest.raises(errors.InsufficientPrivilege):
                connection.execute(statement.encode())


def test_read_only_role_reads_all_but_secrets_and_mail(postgres_server: PostgresServer, made: str) -> None:
    with role(postgres_server, made, "looker_of_test", "looker"):
        for statement in (
            "SELECT number FROM queuehint.layout",
            "SELECT namespace, epoch, term, pid, address, number, expires_at, port, fingerprint FROM queuehint.leader",
            "SELECT data FROM queuehint.journal",
            "SELECT data FROM queuehint.snapshot",
            "SELECT * FROM queuehint.header",
            "SELECT * FROM queuehint.inbox",
        ):
            postgres_server.run(statement, database=made, user="looker_of_test")
        for statement in (
            "SELECT secret FROM queuehint.leader",
            "SELECT box FROM queuehint.leader",
            "SELECT port_secret FROM queuehint.leader",
            "SELECT data FROM queuehint.mail",
            "INSERT INTO queuehint.mail (box, data) VALUES ('x', 'x')",
            "SELECT * FROM queuehint.leader",
            "INSERT INTO queuehint.inbox (namespace, data) VALUES ('n', 'x')",
            "DELETE FROM queuehint.journal",
            "UPDATE queuehint.header SET number = 0",
        ):
            with pytest.raises(errors.InsufficientPrivilege):
                postgres_server.run(statement, database=made, user="looker_of_test")


def test_row_level_security_by_namespace_binds_a_producer(postgres_server: PostgresServer, made: str) -> None:
    with role(postgres_server, made, "bound_of_test", "producer"):
        postgres_server.run(
            "ALTER TABLE queuehint.inbox ENABLE ROW LEVEL SECURITY",
            "CREATE POLICY own ON queuehint.inbox FOR INSERT TO bound_of_test WITH CHECK (namespace = 'n')",
            database=made,
        )
        with connect(postgres_server, made, "bound_of_test") as connection:
            connection.execute(PUT, ("n", b"one"))
        with (
            pytest.raises(errors.InsufficientPrivilege),
            connect(postgres_server, made, "bound_of_test") as connection,
        ):
            connection.execute(PUT, ("other", b"two"))
        assert inbox(postgres_server, made) == ["one"]
        postgres_server.run("DROP POLICY own ON queuehint.inbox", database=made)


def test_a_position_that_cannot_be_drawn_fails_the_commit(postgres_server: PostgresServer, made: str) -> None:
    """With forced row level security an owner that is no superuser does not see the row; it must not be silent."""
    postgres_server.run(
        "CREATE ROLE owner_of_test LOGIN",
        f"GRANT CREATE ON DATABASE {made} TO owner_of_test",
        database=made,
    )
    try:
        postgres_server.run(ddl("owned"), database=made, user="owner_of_test")
        put = "INSERT INTO owned.inbox (namespace, data) VALUES ('n', 'x')"
        postgres_server.run(put, database=made, user="owner_of_test")
        postgres_server.run("ALTER TABLE owned.inbox FORCE ROW LEVEL SECURITY", database=made)
        postgres_server.run("ALTER TABLE owned.inbox ENABLE ROW LEVEL SECURITY", database=made)
        with pytest.raises(errors.InsufficientPrivilege, match="row-level security"):
            postgres_server.run(put, database=made)
        postgres_server.run("ALTER TABLE owned.inbox DISABLE ROW LEVEL SECURITY", database=made)
        postgres_server.run(
            "CREATE FUNCTION owned.no() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'",
            "CREATE TRIGGER no BEFORE UPDATE ON owned.inbox FOR EACH ROW EXECUTE FUNCTION owned.no()",
            database=made,
        )
        with pytest.raises(errors.RaiseException, match="got no position"):
            postgres_server.run(put, database=made)
        assert postgres_server.run("SELECT count(*) FROM owned.inbox", database=made) == [(1,)]
    finally:
        postgres_server.run("DROP OWNED BY owner_of_test CASCADE", "DROP ROLE owner_of_test", database=made)


class role:
    """A role of this test's own, with the grants of a kind."""

    def __init__(self, server: PostgresServer, database: str, name: str, kind: str) -> None:
        self.server, self.database, self.name, self.kind = server, database, name, kind

    def __enter__(self) -> None:
        self.server.run(f"CREATE ROLE {self.name} LOGIN", database=self.database)
        self.server.run(grants("queuehint", self.kind, self.name), database=self.database)

    def __exit__(self, *exc: object) -> None:
        self.server.run(f"DROP OWNED BY {self.name}", f"DROP ROLE {self.name}", database=self.database)


# --- positions ---


def test_positions_follow_commits_ordered_by_a_lock(postgres_server: PostgresServer, made: str) -> None:
    postgres_server.run(
        "CREATE TABLE document (id int, text text)", "INSERT INTO document VALUES (1, '')", database=made
    )
    first, second = connect(postgres_server, made), connect(postgres_server, made)
    update = "UPDATE document SET text = text || %s WHERE id = 1"
    with first, second:
        first.execute(PUT, ("n", b"T1"))  # the lower id
        second.execute(update, ("T2 ",))
        second.execute(PUT, ("n", b"T2"))
        waiting = threading.Thread(target=first.execute, args=(update, ("T1 ",)))
        waiting.start()
        until_waiting(postgres_server, database=made)
        second.commit()
        waiting.join()
        first.commit()
    assert postgres_server.run("SELECT text FROM document", database=made) == [("T2 T1 ",)]
    assert inbox(postgres_server, made) == ["T2", "T1"]


def test_a_savepoint_that_is_rolled_back_draws_no_position(postgres_server: PostgresServer, made: str) -> None:
    with connect(postgres_server, made) as connection:
        connection.execute(PUT, ("n", b"kept"))
        connection.execute("SAVEPOINT s")
        connection.execute(PUT, ("n", b"gone"))
        connection.execute("ROLLBACK TO s")
        connection.execute(PUT, ("n", b"last"))
        assert connection.execute("SELECT count(position) FROM queuehint.inbox").fetchone() == (0,)
    with connect(postgres_server, made) as connection:
        connection.execute(PUT, ("n", b"never"))
        connection.rollback()
    assert inbox(postgres_server, made) == ["kept", "last"]
    found = postgres_server.run("SELECT array_agg(position ORDER BY position) FROM queuehint.inbox", database=made)
    assert found == [([1, 2],)]


def test_a_row_that_its_own_transaction_removes_fails_nothing(postgres_server: PostgresServer, made: str) -> None:
    with connect(postgres_server, made) as connection:
        connection.execute(PUT, ("n", b"x"))
        connection.execute("DELETE FROM queuehint.inbox")
    assert inbox(postgres_server, made) == []


def test_each_namespace_has_a_sequence_of_its_own(postgres_server: PostgresServer, made: str) -> None:
    with connect(postgres_server, made) as connection:
        for namespace in ("a", "b", "a", "n" * 64, "b"):
            connection.execute(PUT, (namespace, b"x"))
    found = postgres_server.run(
        "SELECT namespace, array_agg(position ORDER BY id) FROM queuehint.inbox GROUP BY 1 ORDER BY 1", database=made
    )
    assert found == [("a", [1, 2]), ("b", [1, 2]), ("n" * 64, [1])]


def test_two_first_transactions_of_a_namespace_make_one_sequence(postgres_server: PostgresServer, made: str) -> None:
    first, second = connect(postgres_server, made), connect(postgres_server, made)
    with first, second:
        for connection in (first, second):
            connection.execute(PUT, ("n", b"x"))
        first.execute("SET CONSTRAINTS ALL IMMEDIATE")  # it has made the sequence, and has not committed
        waiting = threading.Thread(target=second.commit)
        waiting.start()
        until_waiting(postgres_server, database=made)
        first.commit()
        waiting.join()
    found = postgres_server.run("SELECT count(*), min(position), max(position) FROM queuehint.inbox", database=made)
    assert found == [(2, 1, 2)]


def test_a_namespace_that_cannot_be_is_refused_by_the_table(postgres_server: PostgresServer, made: str) -> None:
    with connect(postgres_server, made) as connection:
        for namespace in ("", "n" * 65, "a b", "a:b"):
            with pytest.raises(errors.CheckViolation):
                connection.execute(PUT, (namespace, b"x"))
            connection.rollback()
