"""What a worker tells the process that leads for it, and what it does when there can be none."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

import pytest

from queuehint import FakeClock, Retention, Scheduler
from queuehint.backends.base import BackendOptions
from queuehint.backends.journal.backend import JournalBackend
from queuehint.backends.journal.lead.standing import Standby
from queuehint.cli import leader
from queuehint.cli.leader import LeaderProcess, lead_while_heard, leader_for, read_told, tell
from queuehint.worker.companion import Companion
from tests.folders import quick_folder
from tests.support import until_sync

RETENTION = Retention(finished=0.5, failed=timedelta(days=3), services={"docs": 60})


@pytest.mark.parametrize(
    "url, options",
    [
        ("memory://", {}),
        ("redis://localhost:1/0", {}),
        ("sqlite:///jobs.db", {"clock": FakeClock()}),
        ("postgresql://localhost:1/app?lead=no", {}),
    ],
)
def test_nothing_leads_for_a_store_that_nothing_can_lead_for(url: str, options: Any) -> None:
    assert leader_for(Scheduler(url, **options), None, None) is None


def test_leader_keeps_records_by_the_retention_of_the_application(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[JournalBackend] = []
    monkeypatch.setattr(leader, "set_up", lambda *_: None)
    monkeypatch.setattr(Standby, "run", lambda standby, _: made.append(standby._backend))
    for retention in (None, RETENTION):
        config = leader_for(Scheduler("sqlite:///jobs.db", namespace="docs", retention=retention), None, None)
        here, there = os.pipe()
        tell(there, config)
        lead_while_heard([[line] for line in os.read(here, 1 << 16).decode().splitlines()])
        os.close(here)
        found = made[-1].engine_options.retention
        assert (found and found.in_ms()) == (retention and retention.in_ms())
        assert made[-1].namespace == "docs"


def test_leader_reads_worker_configs_and_drops_malformed_lines() -> None:
    here, there = os.pipe()
    os.set_blocking(here, False)
    assert read_told(here) == []
    for config in ({"url": "a"}, None, {"url": "b"}):
        tell(os.dup(there), config)
    os.write(there, b"{cut off\n")
    assert read_told(here) == [{"url": "a"}, {"url": "b"}]
    os.close(here)
    tell(there, {"url": "nobody reads it"})


@pytest.mark.slow
def test_leader_that_ends_at_once_is_restarted_with_backoff(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(leader, "PAUSE_MIN_S", 0.01)
    monkeypatch.setattr(leader, "PAUSE_MAX_S", 0.02)
    made = LeaderProcess({"no": "config"})
    made.start()
    until_sync(lambda: len(caplog.records) >= 4, "it was started again and again", 60)
    made.end()
    pauses = [each.pause_s for each in caplog.records]  # type: ignore[attr-defined]
    assert pauses[:4] == [0.0, 0.01, 0.02, 0.02]
    assert made.pid is None


def test_a_system_without_a_process_is_asked_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: Any) -> None:
        raise BlockingIOError("no process")

    monkeypatch.setattr(leader, "PAUSE_MIN_S", 0.01)
    monkeypatch.setattr(Companion, "begin", fail)
    made = LeaderProcess({})
    made.start()
    until_sync(lambda: len(caplog.records) >= 3, "it was tried again")
    made.end()
    assert {each.event for each in caplog.records} == {"leader.not_started"}  # type: ignore[attr-defined]


def test_store_of_a_process_knows_whether_it_leads() -> None:
    with quick_folder() as folder:
        options = BackendOptions(leaves_lead=True)
        backend = Scheduler(f"sqlite:///{folder}/jobs.db").backend
        assert isinstance(backend, JournalBackend)
        assert not backend.leaves_lead
        assert type(backend).from_url(f"sqlite:///{folder}/jobs.db", options).leaves_lead  # type: ignore[attr-defined]
