"""Health reports of one process and of a parent of several."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from queuehint.backends.base import Backend
from queuehint.backends.memory import MemoryBackend
from queuehint.backends.redis.address import parse_url
from queuehint.backends.redis.backend import RedisBackend
from queuehint.cli.health import AGE_MAX_S
from queuehint.cli.processes import Processes
from queuehint.cli.worker import _known
from queuehint.clock import now_s


def told(
    *, answered_s: float, blocked_s: float = 0.0, is_stuck: bool = False, backend: Backend | None = None
) -> dict[str, Any]:
    worker = SimpleNamespace(
        answered_s=answered_s, blocked_s=blocked_s, is_stuck=is_stuck, name="w", running=3, is_stopping=False
    )
    return _known(cast("Any", worker), backend or MemoryBackend())


@pytest.mark.parametrize("age_s, healthy", [(0, True), (AGE_MAX_S / 4, True), (AGE_MAX_S + 0.1, False)])
def test_health_is_good_while_the_store_has_answered_lately(age_s: float, healthy: bool) -> None:
    known = told(answered_s=now_s() - age_s)
    assert known["healthy"] is healthy
    assert abs(time.time() - age_s - known["last_round_trip"]) < 60
    assert (known["pid"], known["worker"], known["running"], known["stopping"]) == (os.getpid(), "w", 3, False)


def test_health_is_bad_before_the_first_answer() -> None:
    known = told(answered_s=0.0)
    assert (known["healthy"], known["last_round_trip"]) == (False, None)


def test_health_fails_while_code_blocks_the_loop_for_long() -> None:
    assert told(answered_s=now_s(), blocked_s=10)["healthy"]
    known = told(answered_s=now_s(), blocked_s=70.04, is_stuck=True)
    assert (known["healthy"], known["blocked_s"]) == (False, 70.0)


def test_health_reports_how_far_the_store_clock_was_set_back() -> None:
    backend = RedisBackend(parse_url("redis://nowhere"))
    assert told(answered_s=now_s(), backend=backend)["clock_behind_s"] == 0.0
    backend.session._examination.clock_behind_ms = 86_400_500
    assert told(answered_s=now_s(), backend=backend)["clock_behind_s"] == 86_400.5


@pytest.mark.parametrize(
    "ages_s, healthy",
    [((0, 0), True), ((0, AGE_MAX_S / 4), True), ((AGE_MAX_S + 1, 0), False), ((0, None), False), ((None, 0), False)],
)
def test_several_processes_are_healthy_when_all_are(
    tmp_path: Path, ages_s: tuple[float | None, ...], healthy: bool
) -> None:
    def arguments(_file: Path | None) -> list[str]:
        return []

    parent = Processes(arguments, 2, stop_within_s=1, health_file=None, health_port=1, health_host="")
    parent._folder = tmp_path
    for index, age_s in enumerate(ages_s):
        if age_s is not None:
            child = {"healthy": True, "last_round_trip": time.time() - age_s, "running": 2}
            (tmp_path / f"{index}.json").write_text(json.dumps(child))
    known = parent._known()
    assert known["healthy"] is healthy
    assert known["running"] == 2 * sum(age_s is not None for age_s in ages_s)
    assert (known["last_round_trip"] is None) is (None in ages_s)
    assert len(known["processes"]) == 2
