"""The statements about the tables of a journal in a file, see `queuehint.backends.sqlite.layout`."""

from __future__ import annotations


class Statements:
    """
    What is asked of a file, and how it is changed.

    Args:
        prefix: of the names of the tables.
    """

    def __init__(self, prefix: str) -> None:
        def named(statement: str) -> str:
            return statement.format(prefix=prefix)

        self.facts = named("SELECT name, value FROM {prefix}meta")
        self.set_fact = named("INSERT OR REPLACE INTO {prefix}meta VALUES (?, ?)")
        self.header = named("SELECT value FROM {prefix}meta WHERE name = 'snapshot'")
        self.layout = named("SELECT CAST(value AS INTEGER) FROM {prefix}meta WHERE name = 'layout'")

        self.append = named("INSERT INTO {prefix}journal VALUES (?, ?, ?)")
        self.newest = named("SELECT max(number) FROM {prefix}journal")
        self.extent = named("SELECT min(number), max(number), count(*) FROM {prefix}journal WHERE number > ?")
        self.rows = named(
            "SELECT number, at_ms, operations FROM {prefix}journal WHERE number > ? ORDER BY number LIMIT ?"
        )
        self.drop_rows = named("DELETE FROM {prefix}journal WHERE number <= ?")
        self.clear_rows = named(
            "DELETE FROM {prefix}journal WHERE number IN (SELECT number FROM {prefix}journal WHERE number <= ? LIMIT ?)"
        )

        self.put_part = named("INSERT OR REPLACE INTO {prefix}snapshot VALUES (?, ?)")
        self.part = named("SELECT data FROM {prefix}snapshot WHERE part = ?")
        self.parts = named("SELECT data FROM {prefix}snapshot WHERE part >= ? AND part < ? ORDER BY part")
        self.sizes = named("SELECT count(*), total(length(data)) FROM {prefix}snapshot WHERE part >= ? AND part < ?")
        self.drop_parts = named("DELETE FROM {prefix}snapshot")
        self.clear_parts = named(
            "DELETE FROM {prefix}snapshot WHERE part IN "
            "(SELECT part FROM {prefix}snapshot WHERE part < ? OR part >= ? LIMIT ?)"
        )

        self.inbox = named("SELECT number, data FROM {prefix}inbox ORDER BY number LIMIT ?")
        self.take = named("DELETE FROM {prefix}inbox WHERE number BETWEEN ? AND ?")
