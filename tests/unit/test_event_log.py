"""Event log: fields that events keep, and data that they must not keep."""

from __future__ import annotations

from typing import Any

import pytest

from queuehint import InvalidHintError, InvalidJobError, InvalidJobTypeError, JobState
from queuehint.core.structures.event_log import Journal
from queuehint.core.structures.job import Job
from queuehint.testing.driver import job
from queuehint.values.event import Event, EventFilter, EventKind, FilterIndex
from queuehint.values.hint import Claim, Path
from queuehint.values.outcome import JobError


def test_an_error_is_in_one_event_only() -> None:
    journal = Journal()
    journal.follow(None, 1)
    failing = Job(job("a"), 1, JobState.FAILED, 0)
    journal.error = JobError(type="ValueError", message="no")
    for kind in (EventKind.CANCELED, EventKind.FAILED, EventKind.FAILED):
        journal.note(failing, kind, JobState.QUEUED)
    assert [event.error_type for event in journal.kept] == [None, "ValueError", None]
    assert journal.error is None


def event(*paths: Path, **fields: Any) -> Event:
    claims = tuple([Claim(path) for path in paths])
    kind = fields.pop("kind", EventKind.STARTED)
    return Event(at=1, at_ms=0, kind=kind, id="a", number=1, old=None, new=None, claims=claims, **fields)


def test_an_event_is_for_each_whose_filter_it_passes_once() -> None:
    filters = {
        "all": EventFilter(),
        "ann": EventFilter(user="ann"),
        "ann's start": EventFilter(user="ann", kinds=(EventKind.STARTED,)),
        "doc": EventFilter(path=("doc",)),
        "doc of f": EventFilter(path=("doc",), flow="f"),
        "f": EventFilter(flow="f"),
        "places": EventFilter(path=()),
        "user ann": EventFilter(path=("user", "ann")),
    }
    index: FilterIndex[str] = FilterIndex()
    for name, wanted in filters.items():
        index.add(name, wanted)
    index.add("doc again", filters["doc"])
    assert set(index.filters()) == set(filters.values()) and len(index.filters()) == len(filters)
    for happened, names in {
        event(): "all",
        event(user="ann"): "all, ann, ann's start",
        event(user="ann", kind=EventKind.FAILED): "all, ann",
        event(("doc", "s"), ("doc",)): "all, doc, doc again, places",
        event(("d",), (), flow="f"): "all, f, places",
        event(("x",), ("doc", "s"), flow="f"): "all, doc, doc again, doc of f, f, places",
    }.items():
        found = list(index.passing(happened))
        assert sorted(found) == names.split(", ")
        assert all(filters[name].passes(happened) == (name in found) for name in filters)
    for name in (*filters, "doc again"):
        index.remove(name)
    assert (index.filters(), list(index.passing(event(("doc",))))) == ((), [])


def test_a_filter_is_of_whole_segments_and_whole_paths() -> None:
    wanted = EventFilter(path=("doc", "s"))
    assert [wanted.passes(event(path)) for path in (("doc",), ("doc", "s2"), ("doc", "s"), ("doc", "s", "x"))] == [
        *(False, False, True, True)
    ]


def test_a_filter_is_checked() -> None:
    words: Any = ("started",)
    checked = EventFilter(
        kinds=(EventKind.FAILED, EventKind.STARTED, EventKind.FAILED), path=("a",), user="u", flow="f"
    )
    assert checked.check().kinds == (EventKind.STARTED, EventKind.FAILED)
    for wrong in (EventFilter(kinds=words), EventFilter(path=("",)), EventFilter(user=""), EventFilter(flow="a b")):
        with pytest.raises((InvalidJobError, InvalidJobTypeError, InvalidHintError)):
            wrong.check()
