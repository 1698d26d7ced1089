"""Files of blobs: their rights, what survives a crash, and what two do to one of them at once."""

from __future__ import annotations

import hashlib
import itertools
import os
import random
import secrets
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from queuehint import DirectoryStore
from queuehint.handlers.codecs import directory
from tests.support import thorough

DATA = b"card 4242" * 1000
NAME = hashlib.sha256(DATA).hexdigest()
AGE_S = 50
"""Older files are pruned."""
OLDER_S, OLD_S = 100, 2 * directory.REWRITTEN_AFTER_S
"""Of an age to be pruned: looked at by `put`, and written anew by it."""


def file_of(folder: Path) -> Path:
    return folder / NAME[:2] / NAME


def make_old(file: Path, age_s: float = OLDER_S) -> None:
    os.utime(file, (time.time() - age_s,) * 2)


def kept(folder: Path, age_s: float = OLDER_S) -> DirectoryStore:
    """Return a store with a blob of some age."""
    store = DirectoryStore(folder)
    store.put(NAME, DATA)
    make_old(file_of(folder), age_s)
    return store


# --- rights and crashes ----------------------------------------------------------------------------------------------


@pytest.fixture
def _usual_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def rights(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.usefixtures("_usual_umask")
def test_blobs_are_for_their_user_alone(tmp_path: Path) -> None:
    folder = tmp_path / "srv" / "blobs"
    DirectoryStore(folder).put(NAME, DATA)
    assert rights(file_of(folder)) == 0o600
    assert {rights(path) for path in (tmp_path / "srv", folder, folder / NAME[:2])} == {0o700}


@pytest.mark.usefixtures("_usual_umask")
@pytest.mark.parametrize(
    "mode, of_files, of_folders", [(0o755, 0o600, 0o700), (0o770, 0o660, 0o770), (0o2775, 0o660, 0o2770)]
)
def test_group_that_may_write_the_directory_may_read_blobs(
    tmp_path: Path, mode: int, of_files: int, of_folders: int
) -> None:
    tmp_path.chmod(mode)
    DirectoryStore(tmp_path).put(NAME, DATA)
    assert (rights(file_of(tmp_path)), rights(tmp_path / NAME[:2])) == (of_files, of_folders)


def test_names_are_synced_once_they_are_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "srv" / "blobs"
    steps: list[int | str] = []
    fsync, replace = os.fsync, Path.replace

    def note_sync(number: int) -> None:
        steps.append(os.fstat(number).st_ino)
        fsync(number)

    def note_replace(draft: Path, file: Path) -> Path:
        steps.append("replaced")
        return replace(draft, file)

    def put(store: DirectoryStore) -> list[str]:
        steps.clear()
        store.put(NAME, DATA)
        names = {path.stat().st_ino: path.name for path in (tmp_path, *tmp_path.rglob("*"))}
        return [step if isinstance(step, str) else names[step] for step in steps]

    monkeypatch.setattr(os, "fsync", note_sync)
    monkeypatch.setattr(Path, "replace", note_replace)
    shard = NAME[:2]
    up = [shard, "blobs", "srv"]
    assert put(DirectoryStore(folder)) == [tmp_path.name, "srv", "blobs", NAME, "replaced", *up]
    # Another process has written the file, and may not have come as far as to sync its folder.
    store = DirectoryStore(folder)
    assert put(store) == up
    assert put(store) == [shard]


@pytest.mark.parametrize("age_s", [0, OLD_S])
@pytest.mark.parametrize("damaged", [bytes(len(DATA)), DATA[:-1], DATA + b"?", b""])
def test_damaged_blob_is_repaired_by_put(tmp_path: Path, damaged: bytes, age_s: int) -> None:
    store = kept(tmp_path)
    file_of(tmp_path).write_bytes(damaged)
    make_old(file_of(tmp_path), age_s)
    store.put(NAME, DATA)
    assert store.get(NAME) == DATA


def test_damage_behind_the_first_part_is_found(tmp_path: Path) -> None:
    data = bytes(3 * directory.READ_BYTES + 5)
    store = DirectoryStore(tmp_path)
    store.put(NAME, data)
    for at in (directory.READ_BYTES, len(data) - 1):
        file_of(tmp_path).write_bytes(data[:at] + b"?" + data[at + 1 :])
        store.put(NAME, data)
        assert store.get(NAME) == data


def test_equal_blob_is_written_once_an_hour(tmp_path: Path) -> None:
    store = kept(tmp_path)
    first = file_of(tmp_path).stat().st_ino
    store.put(NAME, DATA)
    assert file_of(tmp_path).stat().st_ino == first
    make_old(file_of(tmp_path), OLD_S)
    reader = file_of(tmp_path).open("rb")
    store.put(NAME, DATA)
    assert file_of(tmp_path).stat().st_ino != first
    with reader:
        assert reader.read() == DATA


# --- leftovers of processes that died ---------------------------------------------------------------------------------


def test_blob_moved_by_a_dead_process_is_read_and_restored(tmp_path: Path) -> None:
    store = kept(tmp_path, age_s=0)
    file = file_of(tmp_path)
    away = file.with_name(f"{directory.OLD}0123.{NAME}")
    file.rename(away)
    assert store.get(NAME) == DATA
    assert store.prune(AGE_S) == 0
    assert [*tmp_path.glob("*/*")] == [file]
    file.rename(away)
    make_old(away)
    assert store.prune(AGE_S) == 1
    assert [*tmp_path.glob("*/*")] == []
    with pytest.raises(LookupError):
        store.get(NAME)


def test_old_draft_of_a_dead_process_is_deleted(tmp_path: Path) -> None:
    store = kept(tmp_path, age_s=0)
    draft = file_of(tmp_path).with_name(f"{directory.NEW}0123.{NAME}")
    draft.write_bytes(DATA[:100])
    for age_s, is_there in ((OLDER_S, True), (OLD_S, False)):
        make_old(draft, age_s)
        assert store.prune(AGE_S) == 0
        assert draft.exists() is is_there


def test_file_system_without_links_keeps_a_young_blob(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "link", refuse)
    store = kept(tmp_path)
    rename = Path.rename

    def put_first(file: Path, away: Path) -> Path:
        store.put(NAME, DATA)
        return rename(file, away)

    monkeypatch.setattr(Path, "rename", put_first)
    assert store.prune(AGE_S) == 0
    assert [*tmp_path.glob("*/*")] == [file_of(tmp_path)]


# --- put and prune at once -------------------------------------------------------------------------------------------

GATED = ((Path, "rename"), (Path, "replace"), (Path, "open"), (Path, "unlink"), (Path, "mkdir"))
GATED_TOO = ((os, "utime"), (os, "link"), (directory, "_age_s"), (directory, "_holds"))


class Stage:
    """Threads of which one goes on at a time, up to its next step on files, in an order that is given."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._turn = threading.Condition()
        self._waiting: dict[int, bool] = {}
        """By number of the actors that are not done: whether one is at a gate."""
        self._granted: int | None = None
        self._numbers: dict[int, int] = {}
        for owner, name in (*GATED, *GATED_TOO):
            monkeypatch.setattr(owner, name, self._gated(getattr(owner, name)))
        monkeypatch.setattr(os, "fsync", lambda _: None)
        # The same order again is the same steps again.
        glob, tokens = Path.glob, map(str, itertools.count())
        monkeypatch.setattr(Path, "glob", lambda path, pattern: sorted(glob(path, pattern)))
        monkeypatch.setattr(secrets, "token_hex", lambda _: next(tokens).rjust(9, "0"))

    def _gated(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def gated(*args: Any, **kwargs: Any) -> Any:
            self._pass()
            return function(*args, **kwargs)

        return gated

    def _pass(self) -> None:
        number = self._numbers.get(threading.get_ident())
        if number is None:
            return
        with self._turn:
            self._waiting[number] = True
            self._turn.notify_all()
            assert self._turn.wait_for(lambda: self._granted == number, 60)
            self._granted = None

    def play(self, actors: Sequence[Callable[[], None]], choose: Callable[[int], int]) -> None:
        """Run actors to their ends; *choose* says which of so many goes on."""
        failures: list[BaseException] = []

        def run(number: int, act: Callable[[], None]) -> None:
            self._numbers[threading.get_ident()] = number
            try:
                self._pass()
                act()
            except BaseException as error:
                failures.append(error)
            del self._numbers[threading.get_ident()]
            with self._turn:
                del self._waiting[number]
                self._turn.notify_all()

        self._waiting = dict.fromkeys(range(len(actors)), False)
        threads = [threading.Thread(target=run, args=each) for each in enumerate(actors)]
        for thread in threads:
            thread.start()
        with self._turn:
            while True:
                assert self._turn.wait_for(lambda: all(self._waiting.values()), 60)
                if not self._waiting:
                    break
                number = sorted(self._waiting)[choose(len(self._waiting))]
                self._waiting[number], self._granted = False, number
                self._turn.notify_all()
        for thread in threads:
            thread.join()
        if failures:
            raise failures[0]


def all_orders(play: Callable[[Callable[[int], int]], None]) -> int:
    """Play in all orders there are, and return how many."""
    left: list[list[int]] = [[]]
    count = 0
    while left:
        known = left.pop()
        taken: list[int] = []

        def choose(options: int, known: list[int] = known, taken: list[int] = taken) -> int:
            if len(taken) >= len(known):
                left.extend([*taken, other] for other in range(1, options))
            taken.append(known[len(taken)] if len(taken) < len(known) else 0)
            return taken[-1]

        play(choose)
        count += 1
    return count


def put_and_get(store: DirectoryStore) -> None:
    store.put(NAME, DATA)
    assert store.get(NAME) == DATA


def prune(store: DirectoryStore, age_s: int = AGE_S) -> None:
    assert store.prune(age_s) <= 1


@pytest.mark.slow
@pytest.mark.parametrize("age_s", [OLDER_S, OLD_S])
def test_blob_just_put_is_never_pruned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, age_s: int) -> None:
    stage = Stage(monkeypatch)

    def play(choose: Callable[[int], int]) -> None:
        store = kept(tmp_path, age_s)
        stage.play([partial(put_and_get, store), partial(prune, store)], choose)
        assert store.get(NAME) == DATA
        assert [*tmp_path.glob("*/*")] == [file_of(tmp_path)]

    assert all_orders(play) > 50


def test_blob_just_put_survives_two_prunes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(monkeypatch)
    for seed in range(thorough(2000, quick=60)):
        chance = random.Random(seed)
        store = kept(tmp_path, chance.choice((OLDER_S, OLD_S)))
        prunes = [partial(prune, store, age_s) for age_s in (AGE_S, AGE_S + 10)]
        stage.play([partial(put_and_get, store), *prunes], chance.randrange)
        assert store.get(NAME) == DATA, seed
        assert [*tmp_path.glob("*/*")] == [file_of(tmp_path)]


def test_blob_put_by_two_at_once_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(monkeypatch)
    for seed in range(thorough(2000, quick=60)):
        chance = random.Random(seed)
        store = kept(tmp_path, age_s=0)
        file_of(tmp_path).unlink()
        if seed % 2:
            file_of(tmp_path).write_bytes(bytes(len(DATA)))
        else:
            file_of(tmp_path).parent.rmdir()
        stage.play([partial(put_and_get, store), partial(put_and_get, DirectoryStore(tmp_path))], chance.randrange)
        assert [*tmp_path.glob("*/*")] == [file_of(tmp_path)], seed


PRUNES = """
import os, sys
from pathlib import Path
from queuehint import DirectoryStore

def stopping(name, function):
    def stop(*args, **kwargs):
        print(name, flush=True)
        sys.stdin.readline()
        return function(*args, **kwargs)
    return stop

for owner, name in ((Path, "rename"), (Path, "open"), (Path, "unlink"), (os, "link")):
    setattr(owner, name, stopping(name, getattr(owner, name)))
for line in sys.stdin:
    print("pruned", DirectoryStore(sys.argv[1]).prune(float(line)), flush=True)
"""


@pytest.mark.parametrize("age_s", [OLDER_S, OLD_S])
def test_blob_put_while_another_process_prunes_is_kept(tmp_path: Path, age_s: int) -> None:
    pruning = subprocess.Popen(
        [sys.executable, "-c", PRUNES, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert pruning.stdin is not None
    assert pruning.stdout is not None
    seen = []
    with pruning:
        for put_at in ("rename", "open", "unlink", "pruned"):
            store = kept(tmp_path, age_s)
            pruning.stdin.write(f"{AGE_S}\n")
            pruning.stdin.flush()
            is_put = False
            for line in pruning.stdout:
                step, _, count = line.strip().partition(" ")
                seen.append(step)
                if step == put_at:
                    store.put(NAME, DATA)
                    is_put = True
                assert not is_put or store.get(NAME) == DATA
                if count:
                    break
                pruning.stdin.write("\n")
                pruning.stdin.flush()
            assert store.get(NAME) == DATA
        pruning.stdin.close()
    assert {"rename", "open", "unlink", "link"} <= {*seen}
