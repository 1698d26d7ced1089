"""What tests on both stores share."""

from __future__ import annotations

import pytest

from tests.servers import new_namespace, shared_server


@pytest.fixture(params=["memory", pytest.param("redis", marks=pytest.mark.redis)])
def url(request: pytest.FixtureRequest) -> str:
    """Where a scheduler finds each store, with nothing in it."""
    if request.param == "memory":
        return "memory://"
    return f"{shared_server().url}?namespace={new_namespace(request.node.name)}"
