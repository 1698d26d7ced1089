"""
The load of a chaos run: recorded histories, over and over, as jobs at the places and in the order of the record.

Each file that a commit of a git history changed is a job at the file's place; a check of the whole tree, at the root
of the places, is a barrier among them, and a report without a place depends on the check. Each edit of a recorded
document is a job at the document's place. The sources take turns. A producer asks again, with the same id, until each
job is acknowledged: then it enqueues the next.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import attrs

from examples import replay_history, replay_trace
from queuehint.errors import (
    BackendFullError,
    BackendUnavailableError,
    OutcomeUnknownError,
    QueueHintError,
    UnknownDependencyError,
)
from queuehint.testing.trace import TraceJob
from tests.faults import app

CHECK_EVERY = 4
PATIENCE_S = 3
BACKLOG_MAX = 120
COUNT_EVERY_S = 0.5
LOSSES_MAX = 1_000


@attrs.frozen
class Call:
    """One job to enqueue: its id, its place, what it depends on, and how long its code takes."""

    id: str
    hint: tuple[str, ...] | None
    after: str | None
    ms: float

    def described(self) -> TraceJob:
        return TraceJob.of(self.id, self.hint, after=[self.after] if self.after else ())


@attrs.frozen
class Load:
    """The recordings: git histories and documents."""

    histories: Sequence[replay_history.History]
    documents: Sequence[replay_trace.Trace] = ()

    @classmethod
    def read(cls, *, repo: Path | None = None, history: Path | None = None, edits: Sequence[Path] = ()) -> Load:
        """
        Read the records.

        Args:
            repo: a git repository; without one and without *history*, what `make demo` replays.
            history: a history as `replay_history.load_recorded` reads it.
            edits: recorded documents as `replay_trace.load` reads them.

        Raises:
            HistoryError, TraceError: a record cannot be read.
        """
        if repo is not None:
            histories = [replay_history.load_git(repo)]
        elif history is not None:
            histories = [replay_history.load_recorded(history)]
        else:
            histories = replay_history.default_histories(limit=None, every=None)
        return cls(histories, [replay_trace.load(file) for file in edits])

    def described(self) -> dict[str, Any]:
        """Return what it is, for the figures."""
        return {
            "histories": [
                {
                    "repository": history.repository,
                    "commits": len(history.commits),
                    "changes": sum(len(commit.changes) for commit in history.commits),
                }
                for history in self.histories
            ],
            "documents": [{"name": each.name, "edits": len(each.transactions)} for each in self.documents],
        }

    def calls(self, seed: int) -> Iterator[Call]:
        """Yield the jobs of all rounds, a source after the other; how long their code takes follows from the seed."""
        sources = [_tree_calls(self.histories, random.Random(seed))]
        sources += [
            _edit_calls(number, document.name, random.Random(f"{seed} {number}"))
            for number, document in enumerate(self.documents, 1)
        ]
        for source in itertools.cycle(sources):
            yield next(source)


def _tree_calls(histories: Sequence[replay_history.History], rng: random.Random) -> Iterator[Call]:
    numbers = itertools.count(1)
    for history in itertools.cycle(histories):
        for number, commit in enumerate(history.commits, 1):
            for path, _ in replay_history.deletions_first(commit.changes):
                place = tuple(replay_history.place(history.repository, path))
                yield Call(f"f{next(numbers)}", place, None, rng.uniform(5, 60))
            if number % CHECK_EVERY == 0:
                check = Call(f"c{next(numbers)}", (history.repository,), None, rng.uniform(5, 30))
                yield check
                yield Call(f"r{next(numbers)}", None, check.id, rng.uniform(5, 30))


def _edit_calls(number: int, name: str, rng: random.Random) -> Iterator[Call]:
    for edit in itertools.count(1):
        yield Call(f"d{number}-{edit}", (name,), None, rng.uniform(5, 60))


@attrs.define
class Asked:
    """One enqueue by a producer, and its answer; times are those of `time.monotonic`."""

    call: Call
    sent_s: float | None = None
    """When the request that was acknowledged was begun."""
    acknowledged_s: float | None = None


class Producer:
    """Enqueues the load in a thread, at a rate and with up to `BACKLOG_MAX` jobs unfinished, until the block ends."""

    def __init__(self, url: str, namespace: str, calls: Iterator[Call], rate: float) -> None:
        self.asked: dict[str, Asked] = {}
        self.answers: Counter[str] = Counter()
        self.error: BaseException | None = None
        self._app = app.make(f"{url}?patience={PATIENCE_S}", namespace=namespace)
        self._calls = calls
        self._rate = rate
        self._unfinished, self._counted_s = 0, 0.0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="producer", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._app.sched.close_sync()

    def stop(self) -> None:
        """Enqueue no more; what is being asked for is asked until it is answered."""
        self._done.set()
        self._thread.join(120)
        assert not self._thread.is_alive(), "the producer does not end"

    def _run(self) -> None:
        try:
            due_s = time.monotonic()
            for call in self._calls:
                due_s = max(due_s + 1 / self._rate, time.monotonic() - 1)
                while time.monotonic() < due_s or self._backlog() >= BACKLOG_MAX:
                    if self._done.wait(0.01):
                        return
                self._ask(call)
        except BaseException as error:
            self.error = error
            raise

    def _backlog(self) -> int:
        """Return how many jobs are not over, as counted half a second ago at most."""
        if time.monotonic() > self._counted_s + COUNT_EVERY_S:
            with contextlib.suppress(QueueHintError):
                self._unfinished = self._app.sched.stats_sync().unfinished
            self._counted_s = time.monotonic()
        return self._unfinished

    def _ask(self, call: Call) -> None:
        """Enqueue a job; ask again until it is acknowledged."""
        asked = self.asked.setdefault(call.id, Asked(call))
        after = [call.after] if call.after else []
        job = self._app.work.using(
            id=call.id, queue_hint=call.hint, after=after, max_losses=LOSSES_MAX, max_attempts=LOSSES_MAX
        )
        while True:
            asked.sent_s = time.monotonic()
            try:
                job.enqueue_sync(call.ms)
            except UnknownDependencyError:
                # A failover has lost it: this is a new job of the same id.
                self.answers["dependency lost"] += 1
                assert call.after is not None
                self._ask(self.asked[call.after].call)
            except QueueHintError as error:
                self.answers[_kind(error)] += 1
                if not isinstance(error, BackendUnavailableError | OutcomeUnknownError | BackendFullError):
                    raise
                time.sleep(0.05)
            else:
                asked.acknowledged_s = time.monotonic()
                self.answers["acknowledged"] += 1
                return


def _kind(error: QueueHintError) -> str:
    if isinstance(error, BackendFullError):
        return "refused, memory full"
    return "outcome unknown" if isinstance(error, OutcomeUnknownError) else "unavailable"
