"""The rules of filters of events."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import pytest

from queuehint import Claim, EventKind, InvalidJobError, Progress
from queuehint.operations import Follow
from queuehint.testing.driver import job
from queuehint.values.event import EventFilter

if TYPE_CHECKING:
    from collections.abc import Callable

    from queuehint.testing.contract.store import Store

MINUTE = 60_000


class FilteredEvents:
    """A subscriber receives the events that pass one of its filters. Other events are passed over once."""

    @pytest.fixture
    def events(self, store: Store) -> Callable[..., list[str]]:
        """Return the events of a few jobs that pass some filters."""
        store.apply(Follow())
        pair = (Claim(("doc", "s1", "x")), Claim(("other",), "shared"))
        store.enqueue(
            job("in", ["doc", "s1"], user="ann"),
            job("root", [], user="bob"),
            job("beside", ["doc1", "s1"], user="ann", flow="f"),
            attrs.evolve(job("pair", flow="f"), claims=pair),
            job("nowhere", user="doc:s1"),
        )
        store.start(limit=1)
        store.say("in", store.grants["in"].token, progress=Progress(1))

        def passing(*filters: EventFilter) -> list[str]:
            followed = store.apply(Follow(0, filters=filters))
            assert (followed.after, followed.missed, followed.is_more) == (7, 0, False)
            return [f"{event.kind} {event.id}" for event in followed.events]

        return passing

    def test_all_pass_where_there_is_no_filter(self, events: Callable[..., list[str]]) -> None:
        enqueued = [f"enqueued {each}" for each in ("in", "root", "beside", "pair", "nowhere")]
        for filters in ((), (EventFilter(),), (EventFilter(user="zoe"), EventFilter())):
            assert events(*filters) == [*enqueued, "started in", "progressed in"]

    def test_path_filter_passes_events_at_or_below_the_path(self, events: Callable[..., list[str]]) -> None:
        kinds = (EventKind.ENQUEUED,)
        for path, ids in {
            ("doc",): "in pair",
            ("doc", "s1"): "in pair",
            ("doc", "s1", "x"): "pair",
            ("other",): "pair",
            ("doc", "s"): "",
            ("doc:s1",): "",
            (): "in root beside pair",
        }.items():
            assert events(EventFilter(path=path, kinds=kinds)) == [f"enqueued {each}" for each in ids.split()], path

    def test_user_and_flow_filters_pass_their_own_events(self, events: Callable[..., list[str]]) -> None:
        assert events(EventFilter(user="ann")) == ["enqueued in", "enqueued beside", "started in", "progressed in"]
        assert events(EventFilter(flow="f")) == ["enqueued beside", "enqueued pair"]
        assert events(EventFilter(flow="g"), EventFilter(user="f")) == []

    def test_all_conditions_of_a_filter_hold(self, events: Callable[..., list[str]]) -> None:
        assert events(EventFilter(flow="f", user="ann")) == ["enqueued beside"]
        assert events(EventFilter(path=("doc",), user="bob")) == []
        assert events(EventFilter(path=(), flow="f", user="ann", kinds=(EventKind.STARTED,))) == []
        assert events(EventFilter(path=("doc",), flow="f")) == ["enqueued pair"]

    def test_event_that_passes_several_filters_is_read_once(self, events: Callable[..., list[str]]) -> None:
        filters = (
            EventFilter(flow="f"),
            EventFilter(path=("doc",)),
            EventFilter(path=("other",)),
            EventFilter(flow="f"),
        )
        kinds = (EventKind.STARTED, EventKind.PROGRESSED)
        assert events(*filters) == ["enqueued in", "enqueued beside", "enqueued pair", "started in", "progressed in"]
        assert events(EventFilter(kinds=kinds), EventFilter(user="ann", kinds=kinds[:1])) == [
            "started in",
            "progressed in",
        ]

    def test_a_page_ends_with_the_last_that_passes(self, store: Store) -> None:
        store.apply(Follow())
        store.enqueue(*[job(f"j{number}", user="ann" if number % 3 == 2 else "bob") for number in range(9)])
        wanted = (EventFilter(user="ann"),)
        after, pages = 0, []
        for _ in range(4):
            followed = store.apply(Follow(after, 1, wanted))
            after = followed.after
            pages.append(([event.id for event in followed.events], after, followed.is_more))
        assert pages == [(["j2"], 3, True), (["j5"], 6, True), (["j8"], 9, False), ([], 9, False)]

    def test_two_thousand_are_looked_at_at_once(self, store: Store) -> None:
        store.apply(Follow())
        for part in range(3):
            store.enqueue(*[job(f"{part}-{number}") for number in range(999)], job(f"{part}-x", user="ann"))
        wanted = (EventFilter(user="ann"),)
        first = store.apply(Follow(0, filters=wanted))
        assert ([event.id for event in first.events], first.after, first.is_more) == (["0-x", "1-x"], 2000, True)
        second = store.apply(Follow(first.after, filters=wanted))
        assert ([event.at for event in second.events], second.after, second.is_more) == ([3000], 3000, False)

    def test_missed_count_ignores_filters(self, store: Store) -> None:
        store.apply(Follow())
        store.enqueue(job("a"))
        store.wait(MINUTE + 1)
        store.enqueue(job("b"))
        followed = store.apply(Follow(0, filters=(EventFilter(user="ann"),)))
        assert (followed.missed, followed.after) == (2, 2)

    def test_more_than_a_thousand_filters_are_refused(self, store: Store) -> None:
        many = tuple([EventFilter(user=f"u{number}") for number in range(1000)])
        assert store.apply(Follow(0, filters=many)).events == ()
        with pytest.raises(InvalidJobError, match="filters"):
            store.apply(Follow(0, filters=(*many, EventFilter())))
