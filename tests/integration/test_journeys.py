"""Upper limits of the files that a call enters, and of the calls from one file to another."""

from __future__ import annotations

import pytest

from scripts.journeys import JOURNEYS, Trace, enqueue_on_redis
from tests.servers import Server

LIMITS = {
    "enqueue in memory": (26, 32),
    "enqueue on Redis": (24, 39),
    "a worker's turn": (32, 113),
    "a retry": (35, 122),
    "why": (19, 30),
}
"""Of each journey: the files it enters, and the calls from one to another."""


def check(trace: Trace, name: str) -> None:
    """Compare a trace with the limits of its journey."""
    files, steps = LIMITS[name]
    assert len(trace.files) <= files, f"{name}: python -m scripts.journeys -v shows the way"
    assert len(trace.steps) <= steps, f"{name}: python -m scripts.journeys -v shows the way"


@pytest.mark.parametrize("name", JOURNEYS)
def test_memory_call_enters_no_additional_files(name: str) -> None:
    check(JOURNEYS[name](), name)


def test_redis_enqueue_enters_no_additional_files(redis_server: Server, namespace: str) -> None:
    check(enqueue_on_redis(f"{redis_server.url}?namespace={namespace}"), "enqueue on Redis")
