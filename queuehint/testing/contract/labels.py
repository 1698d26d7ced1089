"""The rules of tags, by which records are found, and of headers, which travel with a job."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import pytest

from queuehint import DuplicateJobError, InvalidJobError, JobState, OutcomeKind
from queuehint import operations as op
from queuehint.testing.contract.listing import counted, listed, paged
from queuehint.testing.contract.schedules import EVERY_MINUTE, get
from queuehint.testing.contract.store import DAY_MS
from queuehint.testing.driver import job

if TYPE_CHECKING:
    from queuehint.testing.contract.store import Store

QUEUED, FINISHED = JobState.QUEUED, JobState.FINISHED


class Tags:
    """Records are found by a tag, beside all else they are found by."""

    def test_records_by_tag_combine_with_other_filters(self, store: Store) -> None:
        store.enqueue(
            job("a", ["x"], tags=("eu", "urgent"), user="ann", service="docs"),
            job("b", ["y"], tags=("urgent",), flow="f"),
            job("c", ["x"], user="ann"),
            job("d", ["z"], tags=("docs", "eu:x"), pool="p"),
        )
        assert (listed(store, tag="urgent"), listed(store, tag="eu"), listed(store, tag="docs")) == ("a b", "a", "d")
        assert listed(store, tag="urgent", newest_first=True) == "b a"
        assert paged(store, 1, tag="urgent") == ["a", "b"]
        assert listed(store, tag="urgent", user="ann") == listed(store, tag="urgent", path=("x",)) == "a"
        assert listed(store, tag="urgent", flow="f") == "b"
        assert listed(store, service="docs") == "a", "a service is not a tag"
        assert listed(store, tag="u") == listed(store, tag="eu", pool="p") == listed(store, tag="ann") == ""
        store.run()
        assert counted(store, tag="urgent") == {FINISHED: 2}
        assert counted(store, tag="urgent", path=("y",)) == {FINISHED: 1}
        assert listed(store, tag="eu", states=(QUEUED,)) == ""
        store.apply(op.Delete(("a",)))
        assert (listed(store, tag="urgent"), listed(store, tag="eu")) == ("b", "")

    def test_a_job_has_its_tags_wherever_it_is_told_of(self, store: Store) -> None:
        spec = job("a", ["x"], tags=("eu", "urgent"), headers=(("h", "1"),))
        last = store.apply(op.Follow(None)).after
        store.enqueue(spec, attrs.evolve(spec, id="b", service="docs"))
        assert store.record("a").spec == spec
        assert store.record("b").tags == ("eu", "urgent")
        assert [grant.spec for grant in store.exchange(limit=9).grants[:1]] == [spec]
        assert {event.tags for event in store.apply(op.Follow(last)).events} == {("eu", "urgent")}

    def test_tags_tell_one_job_from_another(self, store: Store) -> None:
        store.enqueue(job("a", tags=("x",)))
        assert not store.enqueue(job("a", tags=("x",))).jobs[0].created
        with pytest.raises(DuplicateJobError, match="tags"):
            store.enqueue(job("a", tags=("x", "y")))
        with pytest.raises(DuplicateJobError, match="tags"):
            store.enqueue(job("a"))

    def test_replaced_job_is_found_by_the_tags_of_its_replacement(self, store: Store) -> None:
        store.enqueue(job("a", ["x"], key="k", tags=("x", "y"), service="s", on_conflict="replace"))
        store.enqueue(job("b", ["x"], key="k", tags=("y", "z"), on_conflict="replace"))
        found = [listed(store, tag=tag) for tag in "xyz"]
        assert (found, listed(store, service="s")) == (["", "a", "a"], "")

    def test_an_owner_is_changed_and_tags_are_not(self, store: Store) -> None:
        store.enqueue(job("a", tags=("x",), service="s", user="u", headers=(("h", "1"),)))
        record = store.record("a")
        amended = attrs.evolve(record.spec, service="t")
        assert store.apply(op.Amend(amended, record.version)).verdict is op.Verdict.DONE
        assert store.record("a").spec == amended
        assert (listed(store, tag="x", service="t"), listed(store, service="s")) == ("a", "")
        for fields in ({"tags": ()}, {"tags": ("x", "y")}, {"headers": ()}, {"headers": (("h", "2"),)}):
            with pytest.raises(InvalidJobError, match="only the service and the user"):
                store.apply(op.Amend(attrs.evolve(amended, **fields), record.version + 1))

    def test_tags_and_a_service_do_not_keep_a_record_longer(self, store: Store) -> None:
        store.enqueue(
            job("a", tags=("docs",)), job("b", tags=("docs",), service="docs"), job("c", service="docs"), job("d")
        )
        store.run()
        store.wait(DAY_MS - 1)
        assert listed(store) == "a b c d"
        store.wait(1)
        assert (store.find("a"), listed(store)) == (None, "")

    def test_tags_survive_discard_and_delay(self, store: Store) -> None:
        store.enqueue(job("a", ["x"], tags=("x",), max_attempts=1), job("b", tags=("y",), delay_ms=5))
        store.start()
        store.settle("a", OutcomeKind.FAILED)
        store.apply(op.Discard(("a",)))
        store.wait(5)
        store.run()
        assert (listed(store, tag="x"), listed(store, tag="y")) == ("a", "b")
        assert (store.record("a").tags, store.record("b").tags) == (("x",), ("y",))


class Headers:
    """Headers travel with a job and mean nothing to a store."""

    def test_any_text_comes_back(self, store: Store) -> None:
        headers = (("a", ""), ("b c", '\t\n\r\0"\\'), ("traceparent", "00-4bf9-01"), ("é", "🙂" * 100))
        specs = (job("a", headers=headers), job("b", headers=headers, delay_ms=5, arguments=b"\t\n"))
        store.enqueue(*specs)
        assert [store.record(job_id).spec for job_id in "ab"] == list(specs)
        assert [grant.spec for grant in store.exchange(limit=9).grants] == [specs[0]]

    def test_they_do_not_tell_one_job_from_another(self, store: Store) -> None:
        """A request that is sent again has another trace, and asks for the same job."""
        store.enqueue(job("a", headers=(("h", "1"),), arguments=b"[" + b"1" * 300 + b"]"), job("b"))
        for headers in ((("h", "1"),), (("h", "2"), ("i", "3")), ()):
            again = store.enqueue(
                job("a", headers=headers, arguments=b"[" + b"1" * 300 + b"]"), job("b", headers=headers)
            ).jobs
            assert [made.created for made in again] == [False, False]
        assert store.record("a").headers == {"h": "1"}, "the first ones stay"
        with pytest.raises(DuplicateJobError) as refused:
            store.enqueue(job("a", headers=(("h", "2"),), priority=5))
        assert "headers" not in str(refused.value)
        store.run()
        store.apply(op.Delete(("a", "b")))
        assert not store.enqueue(job("b", headers=(("h", "4"),))).jobs[0].created, "its id is still taken"

    def test_replacement_by_key_brings_its_headers(self, store: Store) -> None:
        store.enqueue(job("a", key="k", on_conflict="replace", headers=(("h", "1"),)))
        store.enqueue(job("b", key="k", on_conflict="replace", headers=(("h", "2"),)))
        store.enqueue(job("c", key="k", headers=(("h", "3"),)))
        assert store.record("a").headers == {"h": "2"}
        assert not store.enqueue(job("a", key="k", on_conflict="replace", headers=(("h", "5"),))).jobs[0].created

    def test_a_schedule_keeps_tags_and_headers_for_its_jobs(self, store: Store) -> None:
        spec = job("s", tags=("x",), headers=(("h", "1"),))
        due_ms = store.clock.now_ms() + 60_000
        changes = [
            store.apply(op.PutSchedule("s", each, EVERY_MINUTE, due_ms)).changed
            for each in (spec, spec, attrs.evolve(spec, headers=(("h", "2"),)))
        ]
        schedule = get(store, "s")
        assert changes == [True, False, True]
        assert schedule is not None
        assert (schedule.spec.tags, schedule.spec.headers) == (("x",), (("h", "2"),))

    def test_oversized_labels_are_refused_before_any_write(self, store: Store) -> None:
        with pytest.raises(InvalidJobError, match="tags"):
            store.apply(op.Enqueue((job("c"), job("a", tags=("x" * 65,)))))
        with pytest.raises(InvalidJobError, match="headers"):
            store.apply(op.Enqueue((job("c"), job("a", headers=(("h", "x" * 4096),)))))
        assert store.stats().enqueued == 0
