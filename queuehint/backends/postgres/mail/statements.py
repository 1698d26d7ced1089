"""The statements of a carrier of mail; none needs anything of its session, so that a pooler may give it any."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs

from queuehint.backends.postgres.layout import quoted
from queuehint.backends.postgres.lead import IS_FREE
from queuehint.backends.postgres.sessions.session import Statement, statement

if TYPE_CHECKING:
    from queuehint.backends.postgres.address import Address

FETCHED_MAX: Final = 64
"""How many rows are fetched at a time."""
MAIL_S: Final = 60
"""After so long nobody fetches a row any more."""

_NOTIFY: Final = "SELECT pg_notify(m.c, m.p) FROM unnest($1::text[], $2::text[]) m (c, p)"
_SEND: Final = """
WITH rows AS (INSERT INTO {s}.mail (box, data) SELECT * FROM unnest($3::text[], $4::bytea[]))
SELECT pg_notify(m.c, m.p) FROM unnest($1::text[], $2::text[]) m (c, p)
"""
_FETCH: Final = f"""
DELETE FROM {{s}}.mail WHERE id = ANY (ARRAY (
    SELECT id FROM {{s}}.mail WHERE box = $1 AND id > $2::bigint ORDER BY id LIMIT {FETCHED_MAX})) RETURNING id, data
"""
_LEADS: Final = f"""
SELECT EXISTS (SELECT FROM {{s}}.leader l WHERE l.namespace = $1 AND l.term = $2 AND {IS_FREE} IS NOT TRUE)
"""
# Also what was sent to leaders before, and by them: their streams have ended.
_CLEAR: Final = "DELETE FROM {s}.mail WHERE left(box, length($1)) = $1 AND box <> $2"
_PRUNE: Final = f"DELETE FROM {{s}}.mail WHERE written_at < clock_timestamp() - interval '{MAIL_S} s'"


@attrs.frozen(kw_only=True)
class MailStatements:
    """The statements for a schema."""

    notify: Statement
    send: Statement
    fetch: Statement
    leads: Statement
    clear: Statement
    prune: Statement


def mail_statements(address: Address) -> MailStatements:
    """Return the statements for the schema of an address."""
    texts = {"notify": _NOTIFY, "send": _SEND, "fetch": _FETCH, "leads": _LEADS, "clear": _CLEAR, "prune": _PRUNE}
    schema = quoted(address.schema)
    return MailStatements(**{name: statement(f"mail_{name}", text.format(s=schema)) for name, text in texts.items()})
