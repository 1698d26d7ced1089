"""`queuehint worker --reload`: a worker process is restarted when source files of its application change."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import pytest
import typer

import queuehint
from queuehint import JobState, Scheduler
from queuehint.cli import reload, worker
from queuehint.cli.loading import TargetError, load_scheduler
from queuehint.cli.processes import EXIT_USAGE
from queuehint.cli.reload import SourceWatch
from tests.prefork import start
from tests.probes import until
from tests.remote_memory import ROOT
from tests.servers import Server, new_namespace

APP = """
import asyncio
from pathlib import Path
from queuehint import Scheduler
import rates

sched = Scheduler()

@sched.job
async def rate() -> int:
    return rates.RATE

@sched.job
async def wait() -> str:
    Path("waits").touch()
    while not Path("go").exists():
        await asyncio.sleep(0.01)
    return "ended by itself"
"""


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="signals")
@pytest.mark.parametrize("is_repaired", [False, pytest.param(True, marks=pytest.mark.nightly)])
def test_reloading_worker_finishes_jobs_and_survives_import_errors(
    redis_server: Server, tmp_path: Path, is_repaired: bool
) -> None:
    rates, log = tmp_path / "rates.py", tmp_path / "log"
    (tmp_path / "app.py").write_text(APP)
    rates.write_text("RATE = 1\n")
    url = f"{redis_server.url}?namespace={new_namespace()}"
    sched = Scheduler(url)

    @sched.job
    def rate() -> int:
        raise AssertionError("this runs in the worker")

    @sched.job
    def wait() -> str:
        raise AssertionError("this runs in the worker")

    def events() -> list[str]:
        return [json.loads(line)["event"] for line in log.read_text().splitlines() if line.startswith("{")]

    with log.open("ab") as file:
        process = start(
            "queuehint",
            *("worker", "app:sched", "--reload", "--log-format=json"),
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": ROOT, "QUEUEHINT_URL": url},
            stderr=file,
        )
    try:
        running = wait.enqueue_sync()
        until((tmp_path / "waits").exists)
        rates.write_text("RATE = (1 +\n")  # another length: compiled files are told apart by seconds and length
        until(lambda: "worker.stopping" in events())
        behind = rate.enqueue_sync()
        assert running.state_sync() is JobState.STARTED
        (tmp_path / "go").touch()
        assert running.result_sync(60) == "ended by itself"
        until(lambda: "worker.import_failed" in events())
        assert "'(' was never closed" in log.read_text()
        assert behind.state_sync() is JobState.QUEUED
        if is_repaired:
            rates.write_text("RATE = 202\n")
            assert behind.result_sync(60) == 202
            assert [attempt.outcome for attempt in behind.record_sync().history] == ["finished"]
        assert [attempt.outcome for attempt in running.record_sync().history] == ["finished"]
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        known = [event for event in events() if event.startswith(("worker.", "process."))]
        whole = ["worker.started", "worker.stopping", "worker.ended"]
        end = whole if is_repaired else []
        assert known == ["worker.started", "worker.reload", *whole[1:], "worker.import_failed", *end]
    finally:
        sched.close_sync()
        if process.poll() is None:
            process.kill()
        process.wait()


# --- which files, and what is a change ---------------------------------------------------------------------------


def module(file: str | Path | None) -> ModuleType:
    made = ModuleType("made")
    made.__file__ = None if file is None else str(file)
    return made


def test_only_source_files_of_the_application_are_watched(tmp_path: Path) -> None:
    ours, installed = tmp_path / "ours.py", tmp_path / "site-packages" / "theirs.py"
    installed.parent.mkdir()
    for file in (ours, installed, tmp_path / "ours.so"):
        file.touch()
    files: list[Path | str | None] = [
        ours,
        installed,
        tmp_path / "ours.so",
        tmp_path / "gone.py",
        threading.__file__,
        queuehint.__file__,
        None,
    ]
    watch = SourceWatch({str(number): module(file) for number, file in enumerate(files)})
    assert watch.take()
    assert watch.files == {str(ours)}
    assert not SourceWatch({"threading": threading}).take()


@contextmanager
def waiting(watch: SourceWatch) -> Iterator[threading.Thread]:
    """Let a watch wait in a thread of its own, until the block ends."""
    told = threading.Event()
    thread = threading.Thread(target=watch.wait, args=(told,))
    thread.start()
    try:
        yield thread
    finally:
        told.set()
        thread.join()


def change_until_seen(change: Callable[[], object], thread: threading.Thread) -> None:
    """Change a file again and again: the first times, the watch may not have begun."""

    def is_seen() -> bool:
        change()
        return not thread.is_alive()

    until(is_seen)


def replace(file: Path) -> None:
    (draft := file.with_suffix(".draft")).write_text("longer")
    draft.replace(file)


@pytest.mark.parametrize("change", [lambda file: file.write_text("longer"), os.utime, replace])
def test_a_file_that_is_written_touched_or_replaced_has_changed(
    tmp_path: Path, change: Callable[[Path], object]
) -> None:
    (file := tmp_path / "ours.py").touch()
    watch = SourceWatch({"ours": module(file)})
    assert watch.take()
    with waiting(watch) as thread:
        change_until_seen(lambda: change(file), thread)
    assert watch.changed == str(file)


def test_removed_file_has_changed_once_it_returns(tmp_path: Path) -> None:
    (file := tmp_path / "ours.py").touch()
    watch = SourceWatch({"ours": module(file)})
    watch.take()
    file.unlink()
    assert watch.find([file]) is None
    assert watch.find([]) is None
    file.touch()
    assert watch.find([]) == str(file)


def test_file_written_between_import_and_watch_has_changed(tmp_path: Path) -> None:
    (file := tmp_path / "ours.py").touch()
    os.utime(file, (1, 1))
    watch = SourceWatch({"ours": module(file)})
    watch.take()
    os.utime(file, (time.time(), time.time()))
    assert watch.find([]) == str(file)
    assert watch.find([]) is None


@pytest.mark.parametrize("written_s", [1, 1 << 40])
def test_file_written_before_import_or_in_the_future_is_unchanged(tmp_path: Path, written_s: int) -> None:
    (file := tmp_path / "ours.py").touch()
    os.utime(file, (written_s, written_s))
    watch = SourceWatch({"ours": module(file)})
    watch.take()
    assert watch.find([]) is None


def test_another_file_of_a_watched_folder_is_no_change(tmp_path: Path) -> None:
    (file := tmp_path / "ours.py").touch()
    (other := tmp_path / "other.py").touch()
    watch = SourceWatch({"ours": module(file)})
    watch.take()
    assert watch.find([other]) is None
    assert watch.find([other, file]) == str(file)


def test_a_module_that_is_imported_later_is_watched_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reload, "EVERY_MS", 50)
    modules: dict[str, ModuleType] = {}
    watch = SourceWatch(modules)
    assert not watch.take()
    (file := tmp_path / "ours.py").touch()
    os.utime(file, (1, 1))
    with waiting(watch) as thread:
        modules["ours"] = module(file)
        change_until_seen(lambda: file.write_text("longer"), thread)
    assert watch.changed == str(file)


def test_file_in_a_linked_folder_is_watched_by_both_names(tmp_path: Path) -> None:
    (folder := tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(folder)
    (file := folder / "ours.py").touch()
    watch = SourceWatch({"ours": module(tmp_path / "link" / "ours.py")})
    watch.take()
    assert watch.files == {str(tmp_path / "link" / "ours.py")}
    assert watch.find([file]) == watch.find([tmp_path / "link" / "ours.py"]) == str(tmp_path / "link" / "ours.py")


def test_missing_reload_library_names_the_extra_before_any_start(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(reload, "find_spec", lambda _name: None)
    with pytest.raises(typer.Exit) as ended:
        worker.worker("no_such_module:sched", reload=True)
    assert ended.value.exit_code == EXIT_USAGE
    assert capsys.readouterr().err == (
        "queuehint worker: restarts on changes of source files need an extra: pip install 'queuehint[reload]'\n"
    )


@pytest.mark.parametrize("text", ["import", "1 / 0", "try:\n    1 / 0\nfinally:\n    int('a')"])
def test_files_of_a_failed_import_are_watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "outer_of_failed.py").write_text("import inner_of_failed")
    (tmp_path / "inner_of_failed.py").write_text(text)
    watch = SourceWatch({})
    with pytest.raises((SyntaxError, ZeroDivisionError, ValueError)) as caught:
        load_scheduler("outer_of_failed:sched")
    assert watch.take(caught.value)
    names = {Path(file).name for file in watch.files}
    assert names - {Path(__file__).name} == {"outer_of_failed.py", "inner_of_failed.py"}


def test_wait_for_a_change_ends_on_request(tmp_path: Path) -> None:
    (file := tmp_path / "ours.py").touch()
    watch = SourceWatch({"ours": module(file)})
    watch.take()
    with waiting(watch):
        pass
    assert watch.changed is None


def test_watch_thread_ends_with_its_watch(tmp_path: Path) -> None:
    (file := tmp_path / "ours.py").touch()
    watch = SourceWatch({"ours": module(file)})
    watch.start(lambda _file: None)
    watch.end()
    assert [thread.name for thread in threading.enumerate() if thread.name == "queuehint-reload"] == []


def test_repaired_file_ends_the_process_that_failed_to_import(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (file := tmp_path / "ours.py").touch()
    watch = SourceWatch({"ours": module(file)})
    watch.take()
    codes: list[int] = []
    reads, writes = os.pipe()
    with os.fdopen(reads) as parent, os.fdopen(writes, "w"):
        monkeypatch.setattr("sys.stdin", parent)
        error = TargetError("app has no 'sched'")
        thread = threading.Thread(target=lambda: codes.append(worker._wait_for_repair(error, watch)))
        thread.start()
        change_until_seen(lambda: file.write_text("longer"), thread)
        thread.join()
    assert codes == [reload.EXIT_RELOAD]
    assert capsys.readouterr().err == "queuehint worker: app has no 'sched'\n"
