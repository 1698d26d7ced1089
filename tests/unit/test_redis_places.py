"""Places stored in the heads of Redis, compared with those of all jobs placed anew."""

from __future__ import annotations

import pytest

from queuehint.backends.redis.doctor import places
from queuehint.backends.redis.doctor.places import examine_places


def placed(*jobs: tuple[str, str, str]) -> list[bytes]:
    return [part.encode() for job in jobs for part in job]


def test_one_finding_repairs_all_jobs_at_wrong_places() -> None:
    """Jobs whose lines wait to be advanced are included."""
    jobs = placed(("a", "1 0 1", "xd"), ("b", "2 0 128", "xd"), ("c", "3 0 0 128", "xd\nxe:f"), ("d", "4 1 128", "xg"))
    findings, unchecked = examine_places(jobs, "jobs")
    assert unchecked is None
    assert [(each.job_id, each.what.partition(" if ")[0]) for each in findings] == [
        ("a", "job a waits at d, but has d"),
        ("b", "job b has d, but waits at d"),
        ("c", "job c waits at root, but waits at d"),
    ]
    assert findings[0].repairs == (("place", "a", "1\n128"), ("place", "b", "128\n1"), ("place", "c", "0 128\n1 128"))
    assert not findings[1].repairs


def test_jobs_whose_lines_wait_move_with_one_that_is_misplaced() -> None:
    jobs = placed(("a", "1 0 1", "xd"), ("b", "2 0 128", "xe"), ("c", "3 0 128", "xe"))
    findings, _ = examine_places(jobs, "jobs")
    assert [each.job_id for each in findings] == ["c"]
    assert findings[0].repairs == (("place", "a", "1\n128"), ("place", "c", "128\n1"))
    assert examine_places(jobs[:6], "jobs") == ([], None)


@pytest.mark.parametrize("walks", ["", " 7", " 129", " 2", " 128 128", " 0 128", " 128 3"])
def test_impossible_walks_are_replaced_as_stored(walks: str) -> None:
    findings, _ = examine_places(placed(("a", "1 0" + walks, "xd")), "jobs")
    assert [each.what for each in findings] == ["job a counts other gates than its claims pass"]
    assert findings[0].repairs == (("place", "a", f"{walks[1:]}\n128"),)


def test_unreadable_or_excess_places_are_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    assert examine_places(placed(("a", "1 0 1.5", "xd")), "jobs") == ([], places.UNREADABLE)
    assert examine_places(placed(("a", "1 0 1", "xd\n")), "jobs") == ([], places.UNREADABLE)
    monkeypatch.setattr(places, "PLACES_MAX", 1)
    one = ("a", "1 0 128", "xd")
    assert examine_places(placed(one), "jobs") == ([], None)
    assert examine_places(placed(one, ("b", "2 0 1", "xd")), "jobs") == ([], places.TOO_MANY)
