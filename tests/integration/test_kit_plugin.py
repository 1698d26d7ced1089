"""The plugin as pytest loads it, and the conformance suite inherited by a third-party backend."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from queuehint import FakeClock, JobContext, JobRecord, JobState, Scheduler
from queuehint.testing import assert_enqueued_sync

app = Scheduler("redis://nowhere.invalid:1/0")


@app.job(queue_hint=["{doc}"])
def render(ctx: JobContext[str], doc: str) -> str:
    return f"{ctx.state} {doc.upper()}"


@pytest.fixture
def queuehint_app() -> Scheduler:
    return app


@pytest.fixture
def queuehint_state() -> str:
    return "fake"


def test_application_scheduler_uses_a_store_of_the_test(
    queuehint_sched: Scheduler, queuehint_clock: FakeClock, drain_sync: Callable[..., list[JobRecord]]
) -> None:
    assert queuehint_sched is app
    began = queuehint_clock.now_ms()
    render.using(id="a", delay=3600).enqueue_sync("doc1")
    assert_enqueued_sync(app, render, args=["doc1"], delay=3600)
    (record,) = drain_sync()
    assert (record.state, app.records.result_of(record)) == (JobState.FINISHED, "fake DOC1")
    assert queuehint_clock.now_ms() - began == 3_600_000


async def test_the_next_test_finds_nothing_of_the_last(
    queuehint_sched: Scheduler, drain: Callable[..., Coroutine[Any, Any, list[JobRecord]]]
) -> None:
    assert await drain() == []
    await render.enqueue("doc2")
    assert [record.state for record in await drain(raise_errors=True)] == [JobState.FINISHED]


@pytest.mark.slow
def test_the_plugin_brings_nothing_that_its_fixtures_need() -> None:
    heavy = [
        "hypothesis",
        "redis",
        "queuehint.testing.draining",
        "queuehint.testing.contract",
        "queuehint.testing.driver",
    ]
    code = f"import sys, queuehint.testing.plugin; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240, check=True)
    assert done.stdout == "[]\n"


def run_pytest(folder: Path, source: str, *options: str) -> tuple[int, str]:
    """Run a module of tests as a user's, with the plugin and nothing of ours."""
    (folder / "test_it.py").write_text(dedent(source))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "queuehint.testing.plugin", "-p", "no:cacheprovider", *options],
        cwd=folder,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def test_user_test_has_its_own_scheduler(tmp_path: Path) -> None:
    code, told = run_pytest(
        tmp_path,
        """
        def test_it(queuehint_sched, drain_sync):
            seen = []

            @queuehint_sched.job(queue_hint=["{doc}"])
            def render(doc: str):
                seen.append(doc)

            render.using(delay=60).enqueue_sync("doc1")
            drain_sync()
            assert seen == ["doc1"]

        def test_again(queuehint_sched, drain_sync):
            assert drain_sync() == []
        """,
    )
    assert (code, "2 passed" in told) == (0, True), told


@pytest.mark.slow
def test_backend_that_breaks_a_rule_is_convicted_with_its_values(tmp_path: Path) -> None:
    code, told = run_pytest(
        tmp_path,
        """
        import attrs
        from queuehint.backends.base import BackendOptions
        from queuehint.backends.memory import MemoryBackend
        from queuehint.operations import Enqueue
        from queuehint.testing.contract import BackendConformance

        class FlatBackend(MemoryBackend):
            '''Knows no places.'''

            def call_sync(self, operation):
                if isinstance(operation, Enqueue):
                    jobs = tuple(attrs.evolve(job, claims=()) for job in operation.jobs)
                    operation = attrs.evolve(operation, jobs=jobs)
                return super().call_sync(operation)

        class TestFlat(BackendConformance):
            def open(self, clock):
                return FlatBackend(BackendOptions(clock=clock))
        """,
        "-k",
        "test_jobs_of_one_path_run_one_at_a_time or test_siblings_run_side_by_side",
    )
    assert code == 1
    assert "FAILED test_it.py::TestFlat::test_jobs_of_one_path_run_one_at_a_time[sync]" in told
    assert "assert ['a', 'b', 'c'] == ['a']" in told
    assert "2 failed, 2 passed" in told
