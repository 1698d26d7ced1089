"""The files that browsers load, each at an address with its digest: there it never changes, and is kept for a year."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Final

from starlette.staticfiles import StaticFiles

if TYPE_CHECKING:
    from starlette.responses import Response
    from starlette.types import Scope

STATIC: Final = FilePath(__file__).parents[1] / "static"
FOREVER: Final = "public, max-age=31536000, immutable"
ASKS: Final = "no-cache"
"""A browser keeps the file, and asks each time whether it is still the same."""


def _digests() -> Mapping[str, str]:
    """Return a part of the digest of each file, by its path."""
    return {
        path.relative_to(STATIC).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()[:12]
        for path in STATIC.rglob("*")
        if path.is_file()
    }


digests: Final[Callable[[], Mapping[str, str]]] = cache(_digests)


def query_of(name: str) -> str:
    """Return the query of the address of a file."""
    return f"v={digests()[name]}"


class Files(StaticFiles):
    """The files, with the time for which browsers and proxies keep them."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        """Return a file. At the address of another release it is kept for no time: another process may have that."""
        response = await super().get_response(path, scope)
        name = FilePath(path).as_posix()
        is_own = name in digests() and scope["query_string"] == query_of(name).encode()
        response.headers["Cache-Control"] = FOREVER if is_own else ASKS
        return response
