"""Indexes of jobs by path."""

from __future__ import annotations

from queuehint.core.structures.indexes import UNSORTED_AFTER, LatePathIndex, PathIndex
from queuehint.core.structures.job import Job
from queuehint.testing.driver import claim, job
from queuehint.values.hint import is_prefix, queue_key
from queuehint.values.record import JobState
from tests.each import for_each

PATHS: list[tuple[str, ...]] = [
    *[(), ("a",), ("a", "b"), ("a", "b", "c"), ("a", "c"), ("a!",), ("a;",), ("a:b",), ("ab",), ("A",), ("\\",)],
    *[("root",), ("root", "x"), ("root", "x", "y"), ("\\root",), ("rooted",), ("é", "x")],
]


def index(*paths: tuple[str, ...]) -> PathIndex:
    made = PathIndex()
    for number, path in enumerate(paths):
        made.add(Job(job(str(number), list(path)), number, JobState.QUEUED, 0))
    return made


@for_each("path", [*PATHS, ("nowhere",)])
def test_index_of_a_path_is_one_range(path: tuple[str, ...]) -> None:
    below = [each.spec.claims[0].path for each in index(*PATHS).below(path)]
    assert below == sorted((other for other in PATHS if is_prefix(path, other)), key=queue_key)


def test_jobs_on_one_path_come_in_order_of_number() -> None:
    made = index(("a",), ("b",), ("a",), ("a",))
    assert list(made.at("a")) == [0, 2, 3]
    assert [each.number for each in made.below(("a",))] == [0, 2, 3]
    assert made.at("c") == {}


def test_walk_over_the_keys_resumes_from_any_former_key() -> None:
    made = index(("a",), ("a", "b"), ("a", "d"))
    assert made.next_key(("a",), None) == "a"
    assert made.next_key(("a",), "a") == "a:b"
    assert made.next_key(("a",), "a:c") == "a:d"
    assert made.next_key(("a",), "a:d") is None
    assert made.next_key((), "a:c") == "a:d"
    assert made.next_key((), "a:d") is None


@for_each("newest_first", [False, True])
@for_each("path", [*PATHS, ("nowhere",)])
def test_entries_go_on_behind_any_entry_in_either_order(path: tuple[str, ...], newest_first: bool) -> None:
    made = index(*PATHS, *PATHS)
    entries = sorted(
        ((queue_key(other), number) for number, other in enumerate([*PATHS, *PATHS]) if is_prefix(path, other)),
        reverse=newest_first,
    )
    assert [entry[:2] for entry in made.entries(path, newest_first=newest_first)] == entries
    for after in [(queue_key(other), number) for other in [*PATHS, ("zz",)] for number in (-1, 3, 99)]:
        beyond = [entry for entry in entries if (entry < after if newest_first else entry > after)]
        assert [entry[:2] for entry in made.entries(path, after, newest_first=newest_first)] == beyond


def test_order_is_built_per_range_and_dropped_when_unused() -> None:
    made = PathIndex()
    made.check()
    for number in range(3):
        made.add(Job(job(str(number), [f"p{number}"]), number, JobState.QUEUED, 0))
    assert [each.number for each in made.below(())] == [0, 1, 2]
    later = [Job(job(str(number), [f"a{number}"]), number, JobState.QUEUED, 0) for number in range(3, 9)]
    for each in later:
        made.add(each)
        made.check()
    made.remove(later[0])
    made.check()
    assert [each.number for each in made.below(())] == [4, 5, 6, 7, 8, 0, 1, 2]
    for _ in range(UNSORTED_AFTER):
        made.remove(later[-1])
        made.add(later[-1])
    assert made._order is None
    assert [each.number for each in made.below(("a8",))] == [8]


def test_a_job_is_forgotten_at_each_of_its_paths() -> None:
    made = index(("a",))
    several = Job(job("x", claims=(claim("a"), claim("b", "c"))), 7, JobState.QUEUED, 0)
    made.add(several)
    assert len(made) == 2
    assert [each.number for each in made.below(())] == [0, 7, 7]
    made.remove(several)
    assert len(made) == 1
    assert list(made.at("a")) == [0]


def test_an_index_made_late_answers_as_one_made_at_once() -> None:
    late = LatePathIndex()
    jobs = [Job(job(str(number), ["a", str(number)]), number, JobState.FINISHED, 0) for number in range(4)]
    late.add(jobs[0])
    late.add(jobs[1])
    late.remove(jobs[0])
    assert [number for _, number, _ in late.entries(("a",))] == [1]
    late.add(jobs[2])
    late.add(jobs[3])
    assert [each in late for each in jobs] == [False, True, True, True]
    assert [number for _, number, _ in late.entries(("a",), ("a:1", 1))] == [2, 3]
    late.remove(jobs[1])
    late.add(jobs[0])
    assert [number for _, number, _ in late.entries((), newest_first=True)] == [3, 2, 0]
    for each in (jobs[0], jobs[2], jobs[3]):
        assert len(late)
        late.remove(each)
    assert not len(late)


def test_an_index_made_late_is_made_in_steps() -> None:
    late = LatePathIndex()
    for number in range(5):
        late.add(Job(job(str(number), ["a"]), number, JobState.FINISHED, 0))
    assert [late.index_some(2), late.index_some(2), late.index_some(2), late.index_some(2)] == [
        True,
        True,
        False,
        False,
    ]
    assert [number for _, number, _ in late.entries(("a",))] == [0, 1, 2, 3, 4]


def test_entries_added_again_out_of_order_are_counted() -> None:
    made = index(("a",), ("a",), ("a",), ("a",))
    assert made.old_added == 0
    old = [made.at("a")[number] for number in (0, 1)]
    for each in old:
        made.remove(each)
    for each in old:
        made.add(each)
    assert made.old_added == 2
