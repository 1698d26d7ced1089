"""
The statements of an open journal.

Each change is one statement, one transaction and one round trip. It locks the row of the leader until it has
committed, so that nobody takes the lead in between, and changes nothing if epoch and secret are not those of this
process. A statement answers which of its conditions held.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs

from queuehint.backends.postgres.layout import quoted
from queuehint.backends.postgres.sessions.session import Statement, statement, synchronous_commit

if TYPE_CHECKING:
    from queuehint.backends.postgres.address import Address

# Of each statement: the namespace, the epoch, the secret.
_FENCE: Final = (
    "fence AS (SELECT FROM {s}.leader WHERE namespace = $1 AND epoch = $2::bigint AND secret = $3 FOR SHARE)"
)
# For sessions of which none is ours: of this transaction only.
_SETTING: Final = "setting AS MATERIALIZED (SELECT set_config('synchronous_commit', {commit}, true)), "
_QUICKLY: Final = "setting AS MATERIALIZED (SELECT set_config('synchronous_commit', 'off', true)), "
_SET: Final = ", (SELECT count(*) FROM setting)"

# $4 its number, $5 the mark of the row before, $6 its time, $7 its mark, $8 its data. The row before is there, or a
# snapshot up to it: after a failover of the server the end of the journal may be gone.
_BEFORE: Final = """\
before AS (
    SELECT FROM {s}.journal WHERE namespace = $1 AND number = $4::bigint - 1 AND mark = $5::bigint
    UNION ALL SELECT FROM {s}.header WHERE namespace = $1 AND number = $4::bigint - 1 AND mark = $5::bigint
    UNION ALL SELECT WHERE $4::bigint = 1 AND NOT EXISTS (SELECT FROM {s}.header WHERE namespace = $1)
)"""
_PUT: Final = """\
put AS (
    INSERT INTO {s}.journal (namespace, number, epoch, at_ms, mark, data)
    SELECT $1, $4::bigint, $2::bigint, $6::bigint, $7::bigint, $8::bytea FROM fence WHERE EXISTS (SELECT FROM before)
    RETURNING 1
)"""
_APPEND: Final = f"""
WITH {{setting}}{_FENCE}, {_BEFORE}, {_PUT}
SELECT EXISTS (SELECT FROM fence), EXISTS (SELECT FROM put), ''{{set}}
"""
# $9 the new owner, $10 and $11 what was taken from the inbox: ids, and when they were written. After a failover of the
# server an id may be that of another row. One probe of the index for each: by a join the planner would read all rows,
# also those that were taken, and that a long transaction keeps.
_APPEND_TAKEN: Final = f"""
WITH {{setting}}{_FENCE}, {_BEFORE}, {_PUT},
named AS (
    UPDATE {{s}}.leader SET owner = $9 WHERE namespace = $1 AND $9::text IS NOT NULL AND EXISTS (SELECT FROM put)),
gone AS (
    DELETE FROM {{s}}.inbox WHERE EXISTS (SELECT FROM put) AND ctid = ANY (ARRAY (
        SELECT r.ctid FROM unnest($10::bigint[], $11::bigint[]) t (id, written_us) CROSS JOIN LATERAL (
            SELECT i.ctid FROM {{s}}.inbox i
            WHERE i.id = t.id AND i.namespace = $1 AND {{written_us}} = t.written_us LIMIT 1) r))
    RETURNING id
)
SELECT EXISTS (SELECT FROM fence), EXISTS (SELECT FROM put),
    coalesce((SELECT string_agg(id::text, ',') FROM gone), ''){{set}}
"""
_WRITTEN_US: Final = "(extract(epoch FROM i.written_at) * 1000000)::bigint"

_OPEN: Final = """
SELECT l.owner, l.number, j.number, j.mark,
    h.number, h.mark, h.layout, h.first, h.parts, h.release, h.options
FROM {s}.leader l LEFT JOIN {s}.header h ON h.namespace = l.namespace
LEFT JOIN LATERAL (
    SELECT number, mark FROM {s}.journal WHERE namespace = $1 ORDER BY number DESC LIMIT 1) j ON true
WHERE l.namespace = $1 AND l.epoch = $2::bigint AND l.secret = $3
"""
_THERE: Final = """
SELECT EXISTS (SELECT FROM {s}.leader WHERE namespace = $1 AND epoch = $2::bigint AND secret = $3),
    $4::bigint = 0
    OR EXISTS (SELECT FROM {s}.journal WHERE namespace = $1 AND number = $4::bigint AND mark = $5::bigint)
    OR EXISTS (SELECT FROM {s}.header WHERE namespace = $1 AND number = $4::bigint AND mark = $5::bigint)
"""
_MARKS: Final = """
SELECT number, mark, false FROM {s}.journal WHERE namespace = $1 AND number >= $2::bigint
UNION ALL SELECT number, mark, true FROM {s}.header WHERE namespace = $1
"""
_ROWS: Final = """
SELECT number, at_ms, mark, data FROM {s}.journal
WHERE namespace = $1 AND number > $2::bigint ORDER BY number LIMIT $3::bigint
"""

_NEWEST: Final = "SELECT number, mark, layout, first, parts, release, options FROM {s}.header WHERE namespace = $1"

_SIZES: Final = """
SELECT count(*), coalesce(sum(octet_length(data)), 0)::bigint,
    (SELECT data FROM {s}.snapshot WHERE namespace = $1 AND part = $3::bigint - 1)
FROM {s}.snapshot WHERE namespace = $1 AND part >= $2::bigint AND part < $3::bigint
"""
_PARTS: Final = """
SELECT part, data FROM {s}.snapshot
WHERE namespace = $1 AND part >= $2::bigint AND part < $3::bigint ORDER BY part LIMIT $4::bigint
"""
_PUT_PARTS: Final = """\
parts AS (
    INSERT INTO {s}.snapshot (namespace, part, epoch, data)
    SELECT $1, $4::bigint + u.at - 1, $2::bigint, u.data FROM fence, unnest($5::bytea[]) WITH ORDINALITY u (data, at)
    ON CONFLICT (namespace, part) DO UPDATE SET epoch = excluded.epoch, data = excluded.data RETURNING 1
)"""
_PUT_SOME: Final = f"WITH {_QUICKLY}{_FENCE}, {_PUT_PARTS} SELECT EXISTS (SELECT FROM fence){_SET}"
_HEADER: Final = """\
header AS (
    INSERT INTO {s}.header (namespace, number, mark, layout, first, parts, release, options)
    SELECT $1, $6::bigint, m.mark, $7::integer, $4::bigint, $8::bigint, $9, $10 FROM fence, (
        SELECT mark FROM {s}.journal WHERE namespace = $1 AND number = $6::bigint
        UNION ALL SELECT mark FROM {s}.header WHERE namespace = $1 AND number = $6::bigint
        UNION ALL SELECT 0 WHERE $6::bigint = 0 LIMIT 1) m
    WHERE {condition}
    ON CONFLICT (namespace) DO UPDATE SET number = excluded.number, mark = excluded.mark, layout = excluded.layout,
        first = excluded.first, parts = excluded.parts, release = excluded.release, options = excluded.options,
        made_at = now()
    RETURNING mark
)"""
_ALL_THERE: Final = """\
(SELECT count(*) = $8::bigint AND sum(octet_length(data)) = $5::bigint FROM {s}.snapshot WHERE namespace = $1
    AND part >= $4::bigint AND part < $4::bigint + $8::bigint AND epoch = $2::bigint)"""
_HEADER_IF_ALL_THERE: Final = _HEADER.replace("{condition}", _ALL_THERE)
_HEADER_AT_ONCE: Final = _HEADER.replace("{condition}", "true")
# $4 the first part, $5 how many bytes all have, $6 and so on the header. What a failover has lost of the parts is
# missed here, before the rows that they replace are removed.
_SWITCH: Final = f"""
WITH {{setting}}{_FENCE}, {_HEADER_IF_ALL_THERE}
SELECT EXISTS (SELECT FROM fence), (SELECT mark FROM header){{set}}
"""
_REPLACE: Final = f"""
WITH {{setting}}{_FENCE}, {_PUT_PARTS}, {_HEADER_AT_ONCE},
old_parts AS (DELETE FROM {{s}}.snapshot WHERE namespace = $1 AND EXISTS (SELECT FROM header)
    AND (part < $4::bigint OR part >= $4::bigint + $8::bigint)),
old_rows AS (DELETE FROM {{s}}.journal WHERE namespace = $1 AND number <= $6::bigint AND EXISTS (SELECT FROM header))
SELECT EXISTS (SELECT FROM fence), (SELECT mark FROM header){{set}}
"""
# $4 and $5 how many parts and rows at most; $6 and $7 below which there are none. What is removed follows from the
# header that is there: the one that this process knows may have been lost.
_CLEAR: Final = f"""
WITH {_QUICKLY}{_FENCE},
current AS (SELECT number, first, first + parts AS last FROM {{s}}.header WHERE namespace = $1),
old_rows AS (
    DELETE FROM {{s}}.journal WHERE namespace = $1 AND EXISTS (SELECT FROM fence) AND number = ANY (ARRAY (
        SELECT j.number FROM {{s}}.journal j WHERE j.namespace = $1 AND j.number > $7::bigint
            AND j.number <= (SELECT number FROM current) ORDER BY j.number LIMIT $5::bigint))
    RETURNING number
),
old_parts AS (
    DELETE FROM {{s}}.snapshot WHERE namespace = $1 AND EXISTS (SELECT FROM fence) AND part = ANY (ARRAY (
        (SELECT p.part FROM {{s}}.snapshot p WHERE p.namespace = $1 AND p.part > $6::bigint
            AND p.part < (SELECT first FROM current) ORDER BY p.part LIMIT $4::bigint)
        UNION ALL
        (SELECT p.part FROM {{s}}.snapshot p WHERE p.namespace = $1
            AND p.part >= (SELECT last FROM current) ORDER BY p.part LIMIT $4::bigint)
        LIMIT $4::bigint))
    RETURNING part
)
SELECT EXISTS (SELECT FROM fence), (SELECT count(*) FROM old_rows) + (SELECT count(*) FROM old_parts),
    (SELECT max(part) FROM old_parts, current WHERE part < first), (SELECT max(number) FROM old_rows){_SET}
"""

# $2 above which position, $3 how many, $4 and $5 the number and the mark of the newest row of the journal. The last row
# says whether that is there: if it is not, rows that were taken may be in the inbox again. One and the same snapshot of
# the database shows all of it.
_ABOVE: Final = """\
SELECT i.id, i.position, {written_us}, i.data, NULL::bigint, NULL::bigint, NULL::boolean FROM {s}.inbox i
WHERE i.namespace = $1 AND i.position > $2::bigint ORDER BY i.position LIMIT $3::bigint"""
_SEEN: Final = """\
SELECT NULL, NULL, NULL, NULL, pg_snapshot_xmin(c)::text::bigint, pg_snapshot_xmax(c)::text::bigint, $4::bigint = 0
    OR EXISTS (SELECT FROM {s}.journal WHERE namespace = $1 AND number = $4::bigint AND mark = $5::bigint)
    OR EXISTS (SELECT FROM {s}.header WHERE namespace = $1 AND number = $4::bigint AND mark = $5::bigint)
FROM pg_current_snapshot() c"""
_INBOX: Final = f"({_ABOVE}) UNION ALL {_SEEN}"
# $6 and $7 the gaps. One probe of the index for each: in a list of positions the planner would read all.
_INBOX_AND_GAPS: Final = f"""
({_ABOVE}) UNION ALL
SELECT i.*, NULL, NULL, NULL FROM unnest($6::bigint[], $7::bigint[]) g (first, last) CROSS JOIN LATERAL (
    SELECT i.id, i.position, {{written_us}}, i.data FROM {{s}}.inbox i
    WHERE i.namespace = $1 AND i.position >= g.first AND i.position <= g.last
    ORDER BY i.position LIMIT $3::bigint) i
UNION ALL {_SEEN}
"""


@attrs.frozen(kw_only=True)
class Statements:
    """Those of one schema."""

    append: Statement
    append_taken: Statement
    open: Statement
    there: Statement
    marks: Statement
    rows: Statement
    header: Statement
    sizes: Statement
    parts: Statement
    put: Statement
    switch: Statement
    replace: Statement
    clear: Statement
    inbox: Statement
    inbox_and_gaps: Statement


def statements_of(address: Address, *, is_pooled: bool) -> Statements:
    """Return the statements for an address; those that wait for the disk say so themselves where a pooler is."""
    setting = _SETTING.format(commit=synchronous_commit(address)) if is_pooled else ""

    def of(name: str, text: str) -> Statement:
        return statement(
            name,
            text.format(
                s=quoted(address.schema),
                setting=setting,
                set=_SET if is_pooled else "",
                written_us=_WRITTEN_US,
            ),
        )

    return Statements(
        append=of("append", _APPEND),
        append_taken=of("append_taken", _APPEND_TAKEN),
        open=of("open", _OPEN),
        there=of("there", _THERE),
        marks=of("marks", _MARKS),
        rows=of("rows", _ROWS),
        header=of("header", _NEWEST),
        sizes=of("sizes", _SIZES),
        parts=of("parts", _PARTS),
        put=of("put", _PUT_SOME),
        switch=of("switch", _SWITCH),
        replace=of("replace", _REPLACE),
        clear=of("clear", _CLEAR),
        inbox=of("inbox", _INBOX),
        inbox_and_gaps=of("inbox_and_gaps", _INBOX_AND_GAPS),
    )
