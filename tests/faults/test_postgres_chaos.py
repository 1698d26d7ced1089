"""Leader, standby, guests, server and pooler are killed and stopped: no job is lost, doubled or out of order."""

from __future__ import annotations

import random
from contextlib import closing
from pathlib import Path

import pytest

from tests.faults.postgres_chaos import Chaos

pytestmark = [pytest.mark.slow, pytest.mark.heavy, pytest.mark.usefixtures("postgres_server")]

QUICK = ("kill_leader", "end_sessions", "cut", "kill_pooler", "crash_server")
SLOW = ("kill_standby", "kill_worker", "freeze_leader", "freeze_worker", "stop_server", "freeze_pooler", "split")
KILLS = 20


@pytest.fixture
def seed() -> int:
    found = random.randrange(2**32)
    print(f"seed {found}")
    return found


def test_jobs_agree_with_commits_while_each_process_fails(tmp_path: Path, seed: int) -> None:
    with closing(Chaos(tmp_path, seed, 3)) as chaos:
        for fault in QUICK:
            chaos.more(5)
            getattr(chaos, fault)()
        chaos.more(10)
        chaos.stop_writing()
        chaos.judge()


@pytest.mark.nightly
def test_it_is_while_the_leader_is_killed_twenty_times(tmp_path: Path, seed: int) -> None:
    with closing(Chaos(tmp_path, seed, 8)) as chaos:
        for _ in range(KILLS):
            chaos.more(20)
            chaos.kill_leader()
        chaos.more(20)
        chaos.stop_writing()
        chaos.judge()


@pytest.mark.nightly
@pytest.mark.parametrize("has_port", [False, True])
@pytest.mark.parametrize("number", range(3))
def test_it_is_while_anything_fails_at_random(tmp_path: Path, seed: int, number: int, *, has_port: bool) -> None:
    with closing(Chaos(tmp_path, seed, 8, has_port=has_port)) as chaos:
        faults = [*QUICK, *SLOW]
        chaos.rng.shuffle(faults)
        for fault in faults:
            chaos.more(chaos.rng.randrange(1, 20))
            getattr(chaos, fault)()
        chaos.more(20)
        chaos.stop_writing()
        chaos.judge()
