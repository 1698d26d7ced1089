"""Tables and pictures of the pages say what the code does; lists of the pages name what there is."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import queuehint
from queuehint import Dependency, DrainStalledError, Fail, FakeClock, Retry, Scheduler, Snooze, template
from queuehint.backends.redis.keys import KEYS
from queuehint.backends.redis.scripts import names
from queuehint.core.jobs.states import diagram
from scripts.floors import drawn

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"


def text_of(page: str) -> str:
    return (DOCS / page).read_text("utf-8")


def rows_of(page: str, heading: str) -> list[list[str]]:
    """Return the cells of the first table below a heading, without its head."""
    section = text_of(page).partition(f"\n{heading}\n")[2]
    table = section.partition("\n|")[2].partition("\n\n")[0]
    return [re.split(r"\s*(?<!\\)\|\s*", row)[1:-1] for row in table.splitlines()[2:]]


def test_picture_of_moves_is_drawn_from_code() -> None:
    assert diagram() in text_of("explanation/lifecycle.md")


def test_picture_of_floors_is_drawn_from_the_lint_contract() -> None:
    assert drawn() in text_of("explanation/architecture.md")


def test_table_of_keys_is_written_from_code() -> None:
    rows = [f"| `{key.name}{'…' * key.is_prefix}` | {key.type} | {key.holds} | {key.deleted} |" for key in KEYS]
    assert "\n".join(rows) in text_of("reference/redis-keys.md")


def test_page_of_keys_names_every_script() -> None:
    page = text_of("reference/redis-keys.md")
    assert [name for name in names() if f"`{name}`" not in page] == []


def tree_of(error: type[BaseException], depth: int = 0) -> Iterator[str]:
    """Yield a line for each public error, with the built-ins that it also is."""
    builtins = [base.__name__ for base in error.__bases__ if base.__module__ == "builtins"]
    yield "  " * depth + error.__name__ + (f" ({', '.join(builtins)})" if builtins and depth else "")
    for child in sorted(error.__subclasses__(), key=lambda child: child.__name__):
        if child.__name__ in queuehint.__all__:
            yield from tree_of(child, depth + 1)


def test_tree_of_errors_is_that_of_code() -> None:
    tree = "\n".join(tree_of(queuehint.QueueHintError))
    assert f"```text\n{tree}\n```\n" in text_of("reference/errors.md")


def test_promises_are_numbered_and_name_existing_tests() -> None:
    page = text_of("reference/promises.md")
    assert sorted(map(int, re.findall(r"^\*\*P(\d+) ", page, re.MULTILINE))) == list(range(1, 23))
    named = re.findall(r"`(tests/[\w/]+\.py)`", page)
    assert len(named) > 50
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_every_line_of_the_checklist_has_a_link() -> None:
    lines = re.findall(r"^- \[ \] (.*)$", text_of("how-to/production.md"), re.MULTILINE)
    assert len(lines) > 40
    assert [line for line in lines if "](" not in line] == []


HANDLERS = {row[0]: row[1:] for row in rows_of("reference/what-happens-when.md", "## A handler ends")}
DEAD = {row[0]: row[1:] for row in rows_of("reference/what-happens-when.md", "## A dead job")}
FAILS = "raises, with attempts left"
ENDINGS: dict[str, tuple[Any, dict[str, Any]]] = {
    "returns a value that is JSON": (1, {}),
    FAILS: (ValueError(), {}),
    'raises, with attempts left, `on_retry="yield"`': (ValueError(), {"on_retry": "yield"}),
    "raises on the last attempt": (ValueError(), {"max_attempts": 1}),
    "raises what its task's `fail_on` names, or `retry_on` does not": (ValueError(), {"fail_on": ValueError}),
    "returns or raises `Retry()` or `Retry(after)`": (Retry(7), {}),
    "returns or raises `Snooze(delay)`": (Snooze(5), {}),
    "runs over its `timeout`": (lambda: asyncio.sleep(600), {"timeout": 0.01}),
    "the same, on its loss number `max_losses` (3)": (SystemExit(), {"max_losses": 1}),
    "returns what is not JSON, or over 1 MiB": ({1, 2}, {}),
    "returns a coroutine or a generator": ((n for n in (1, 2)), {}),
}
"""By the first cell of a row on handlers, what the handler does, and the options of its task."""
WITH_CAUSE = {row: match[1] for row in HANDLERS if (match := re.match(r'returns or raises `(\w+)\("why"\)`', row))}
"""By the first cell, the name of an answer that has a cause."""
ENDINGS |= {row: (getattr(queuehint, name)("why"), {}) for row, name in WITH_CAUSE.items()}


async def attempt(ending: Any, **options: Any) -> tuple[str, bool, int, int, str, str]:
    """Return state, whether the place is kept, attempts, losses, reason and cause after one attempt."""
    sched = Scheduler(clock=FakeClock())
    ended = asyncio.Event()
    sched.after_job(lambda _context, _outcome: ended.set())

    @sched.job(queue_hint=["doc1"], **options)
    async def handler() -> Any:
        if isinstance(ending, BaseException):
            raise ending
        return await ending() if callable(ending) else ending

    async with asyncio.timeout(60), sched.worker():
        job = await handler.enqueue()
        await ended.wait()
    # A worker that has stopped has settled what it ran.
    record, reason = await job.record(), await job.why()
    await sched.cancel([job])
    return record.state, bool(record.seq), record.attempts, record.losses, reason.kind.value, record.cause or ""


COUNTED = {"attempt": (1, 0), "loss": (0, 1), "nothing": (0, 0)}


@pytest.mark.parametrize("row", ENDINGS)
def test_handler_ends_as_its_row_says(row: str) -> None:
    ending, options = ENDINGS[row]
    cells = HANDLERS[row]
    if cells[0].startswith("as if it had raised"):
        cells = HANDLERS[FAILS]
    state, place, counted, why = (cell.partition(";")[0] for cell in cells)
    found = asyncio.run(attempt(ending, **options))
    assert f"`{found[0]}`" in state
    assert found[1] == (place == "kept")
    assert found[2:4] == COUNTED[counted]
    assert f"`{found[4]}`" in why
    causes = re.findall(r"\(`(\w+)`\)", state)
    assert causes in ([], [found[5]])


def test_both_answers_with_a_cause_are_tried() -> None:
    assert len(WITH_CAUSE) == 2


def test_dead_job_keeps_its_place_if_it_holds() -> None:
    held, free = DEAD['`on_dead="hold"`'], DEAD['`on_dead="continue"`, the default']
    assert held[0] == free[0] == "`FAILED`"
    assert (held[1].partition(" ")[0], free[1]) == ("kept", "free")
    for how, is_kept in (("hold", True), ("continue", False)):
        state, is_placed, *_ = asyncio.run(attempt(Fail("a bad input"), on_dead=how))
        assert (state, is_placed) == ("FAILED", is_kept)


ENDS = ("FINISHED", "FAILED", "CANCELED")


async def becomes(how: str, *, when: str, takes_result: bool, **options: Any) -> str:
    """Return what an end does to a job that waits for it, in the words of the page."""
    sched = Scheduler()

    @sched.job(max_attempts=1)
    async def first(how: str) -> None:
        if how == "FAILED":
            raise ValueError

    @sched.job
    async def second(value: Any = None) -> None: ...

    job = await first.enqueue(how)
    then = second.using(after=[Dependency(job.id, when, "first")], **options)  # type: ignore[arg-type]
    dependent = await then.enqueue(template("{{first}}") if takes_result else None)
    if how == "CANCELED":
        await job.cancel()
    try:
        await sched.drain(timeout=60)
    except DrainStalledError as error:
        return {"dead_dependency": "waits for a redrive"}[error.reasons[0].kind.value]
    return {"FINISHED": "goes on", "CANCELED": "is canceled"}[await dependent.state()]


EDGES = rows_of("explanation/edges.md", "## What an end does")


@pytest.mark.parametrize("row", EDGES, ids=" ".join)
def test_end_does_to_dependents_as_its_row_says(row: list[str]) -> None:
    when, policy, *cells = (cell.replace(" (default)", "").strip('`"') for cell in row)
    options: dict[str, Any] = {"on_dependency_failure": policy} if policy else {}

    async def found(takes_result: bool) -> list[str]:
        return [await becomes(how, when=when, takes_result=takes_result, **options) for how in ENDS]

    assert asyncio.run(found(False)) == cells
    if when != "failure":
        # A job that takes the result is canceled where another one would go on without it.
        data = [cells[0], *("is canceled" if cell == "goes on" else cell for cell in cells[1:])]
        assert asyncio.run(found(True)) == data


def test_table_of_ends_has_every_choice() -> None:
    assert len(EDGES) == 5
