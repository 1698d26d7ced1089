"""Addresses of pages, below the prefix at which the board is mounted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from urllib.parse import quote, urlencode

import attrs

from queuehint.values.hint import Path, queue_key
from queuehint.web.pages.files import query_of

_MOVES: Final = frozenset({".", "..", "-"})
"""What no segment of a path can be: browsers take the first two for steps upward, and the last stands for these."""


@attrs.frozen
class Links:
    """
    Makes addresses.

    Args:
        root: what goes before each, without a slash at its end.
        files: what goes before those of files.
    """

    root: str = ""
    files: str = ""

    def at(self, page: str, **query: object) -> str:
        """
        Return the address of a page with a query, without parameters that are None or empty.

        >>> Links("/q").at("jobs", state="FAILED", user=None)
        '/q/jobs?state=FAILED'
        """
        return f"{self.root}/{page}{_query(query)}"

    def _of(self, page: str, name: str, value: str, rest: str, query: Mapping[str, object]) -> str:
        """Return the address of one thing: its name is a segment of the path where that can be, else in the query."""
        if value in _MOVES:
            return f"{self.root}/{page}/-{rest}{_query({name: value, **query})}"
        return f"{self.root}/{page}/{quote(value, safe=':')}{rest}{_query(query)}"

    def job(self, job_id: str, **query: object) -> str:
        """
        Return the address of a job.

        >>> Links().job("a-1"), Links().job("a/b"), Links().job("..")
        ('/jobs/a-1', '/jobs/a%2Fb', '/jobs/-?id=..')
        """
        return self._of("jobs", "id", job_id, "", query)

    def why(self, job_id: str) -> str:
        """Return the address of the chain of reasons of a job."""
        return self._of("jobs", "id", job_id, "/why", {})

    def copy(self, job_id: str) -> str:
        """Return the address of the form that enqueues a copy of a job."""
        return self.at("enqueue", copy=job_id)

    def place(self, path: Path, **query: object) -> str:
        """
        Return the address of a place.

        >>> Links().place(()), Links().place(("doc1", "intro")), Links().place(("..",), depth=1)
        ('/places', '/places/doc1:intro', '/places/-?at=..&depth=1')
        """
        if not path:
            return self.at("places", **query)
        return self._of("places", "at", queue_key(path), "", query)

    def jobs(self, **query: object) -> str:
        """Return the address of a list of jobs."""
        return self.at("jobs", **query)

    def static(self, name: str) -> str:
        """Return the address of a file, which changes with it."""
        return f"{self.files}/static/{name}?{query_of(name)}"


def _query(query: Mapping[str, object]) -> str:
    given = [(name, value) for name, value in query.items() if value not in (None, "", ())]
    return f"?{urlencode(given, doseq=True, errors='replace')}" if given else ""
