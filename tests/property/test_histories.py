"""Exhaustive histories: all interleavings of enqueue, claim and end of a few jobs on all short paths."""

from collections.abc import Iterator
from itertools import islice, product
from typing import Any

import pytest

from queuehint import operations as op
from queuehint.core.engine import Engine
from queuehint.testing.model.places import clash
from queuehint.testing.state_machine.styles import one_claim, paths
from queuehint.values.hint import Path
from queuehint.values.outcome import Outcome, OutcomeKind
from queuehint.values.record import JobState
from queuehint.values.spec import JobSpec

PATHS = paths(2)
# An event is what happens to one job: it is enqueued, or it is ended, by the worker that runs it or by a cancellation.
ENQUEUE, FINISH, CANCEL = "EFC"
Event = tuple[str, int]


def places(count: int) -> Iterator[tuple[int, ...]]:
    """All ways to put *count* jobs on paths, up to renaming the letters below each node: first come, first called a."""
    for chosen in product(range(len(PATHS)), repeat=count):
        first: dict[Path, str] = {}
        if all(
            first.setdefault(PATHS[index][:depth], letter) == "a"
            for index in chosen
            for depth, letter in enumerate(PATHS[index])
        ):
            yield chosen


class Plain:
    """The plain definition over jobs that conflict as a table says, in order of enqueue."""

    def __init__(self, chosen: tuple[int, ...]) -> None:
        claims = [one_claim(PATHS[index], "exclusive") for index in chosen]
        self.before = [{i for i in range(j) if clash(claims[i], claims[j])} for j in range(len(claims))]

    def ready(self, alive: frozenset[int]) -> set[int]:
        return {job for job in alive if not self.before[job] & alive}


def histories(plain: Plain, count: int, *, cancel_ready: bool) -> Iterator[list[Event]]:
    """
    All histories that end every job, depth first, each as one list.

    Without *cancel_ready* what is ready is finished and only what waits is canceled.
    """

    def go(history: list[Event], enqueued: int, alive: frozenset[int]) -> Iterator[list[Event]]:
        if enqueued == count and not alive:
            yield history
        if enqueued < count:
            yield from go([*history, (ENQUEUE, enqueued)], enqueued + 1, alive | {enqueued})
        ready = plain.ready(alive)
        for job in sorted(alive):
            if job in ready:
                yield from go([*history, (FINISH, job)], enqueued, alive - {job})
            if job not in ready or cancel_ready:
                yield from go([*history, (CANCEL, job)], enqueued, alive - {job})

    return go([], 0, frozenset())


SPECS = [
    [JobSpec(id=str(job), task="t", claims=one_claim(path, "exclusive"), pool=str(job)) for path in PATHS]
    for job in range(5)
]
POOLS = tuple(str(job) for job in range(5))


def replay(chosen: tuple[int, ...], plain: Plain, history: list[Event], same: int, *, eager: bool) -> None:
    """
    Do one history and compare after every event that is not among the first *same*, compared before.

    Args:
        eager: start every job as soon as it is ready; else only to finish it.
    """
    engine = Engine()
    alive: frozenset[int] = frozenset()
    tokens: dict[int, int] = {}
    for step, (what, job) in enumerate(history):
        if what == ENQUEUE:
            engine.apply(op.Enqueue((SPECS[job][chosen[job]],)), 0)
            alive |= {job}
        elif what == CANCEL and job not in tokens:
            engine.apply(op.Cancel((str(job),)), 0)
            alive -= {job}
        else:
            if not eager:
                tokens[job] = engine.apply(op.Exchange("w", pools=(str(job),), limit=1), 0).grants[0].token
            if what == CANCEL:
                engine.apply(op.Cancel((str(job),)), 0)
            kind = OutcomeKind.FINISHED if what == FINISH else OutcomeKind.RELEASED
            engine.apply(op.Exchange("w", settle=(Outcome(job_id=str(job), token=tokens[job], kind=kind),)), 0)
            alive -= {job}
        if eager:
            for grant in engine.apply(op.Exchange("w", pools=POOLS, limit=5), 0).grants:
                tokens[int(grant.spec.id)] = grant.token
        if step >= same:
            may_run = JobState.STARTED if eager else JobState.QUEUED
            found = {
                int(each.id)
                for each in engine.table.jobs.values()
                if each.state is may_run and (eager or each.ready is not None)
            }
            assert found == plain.ready(alive), history[: step + 1]
            assert {int(j.id) for j in engine.table.jobs.values() if not j.is_over} == alive
    assert engine.table.trie.nodes == 0
    assert not engine.apply(op.Tick(), 0).more
    engine.table.trie.check()


def compare_all(count: int, *, cancel_ready: bool, eager: bool, share: int = 0, shares: int = 1) -> int:
    """Compare every history of *count* jobs, or a share of those at each choice of places; return how many."""
    total = 0
    for chosen in places(count):
        plain = Plain(chosen)
        last: list[Event] = []
        for history in islice(histories(plain, count, cancel_ready=cancel_ready), share, None, shares):
            same = next((step for step, pair in enumerate(zip(last, history, strict=False)) if pair[0] != pair[1]), 0)
            replay(chosen, plain, history, same, eager=eager)
            last = history
            total += 1
    return total


def first_of(shares: int) -> list[Any]:
    """The parameters of a test: one in so many histories is compared at every run, all of them every night."""
    return [(0, shares), *[pytest.param(share, 16, marks=pytest.mark.nightly) for share in range(16)]]


def test_letters_are_renamed_without_losing_a_case() -> None:
    def all_names(chosen: tuple[int, ...]) -> set[tuple[int, ...]]:
        """All renamings: the letters at the top, and those below each of the two letters."""
        flip = str.maketrans("ab", "ba")
        renamed = set()
        for top, below_a, below_b in product([False, True], repeat=3):
            names = []
            for index in chosen:
                path = PATHS[index]
                flips = (top, below_b if path[:1] == ("b",) else below_a)
                renaming = [letter.translate(flip) if flips[depth] else letter for depth, letter in enumerate(path)]
                names.append(PATHS.index(tuple(renaming)))
            renamed.add(tuple(names))
        return renamed

    for count in (1, 2, 3):
        assert set().union(*map(all_names, places(count))) == set(product(range(len(PATHS)), repeat=count))


@pytest.mark.parametrize("eager", [False, True])
@pytest.mark.parametrize("count", [1, 2])
def test_histories_of_up_to_two_jobs_follow_the_definition(count: int, eager: bool) -> None:
    assert compare_all(count, cancel_ready=True, eager=eager) == (6, 150)[count - 1]


# The number of shares is prime, so that what is left out differs from one choice of places to the next.


@pytest.mark.slow
@pytest.mark.parametrize("eager", [False, True])
@pytest.mark.parametrize("share, shares", first_of(11))
def test_all_histories_of_three_jobs_go_by_the_plain_definition(share: int, shares: int, eager: bool) -> None:
    assert compare_all(3, cancel_ready=True, eager=eager, share=share, shares=shares) > 300


@pytest.mark.slow
@pytest.mark.heavy
@pytest.mark.parametrize("share, shares", first_of(1_009))
def test_all_histories_of_four_jobs_go_by_the_plain_definition(share: int, shares: int) -> None:
    assert compare_all(4, cancel_ready=True, eager=False, share=share, shares=shares) > 300


@pytest.mark.heavy
def test_sampled_histories_of_four_eager_jobs_follow_the_definition() -> None:
    """The test below goes through all of them, and more, every night."""
    assert compare_all(4, cancel_ready=False, eager=True, shares=113) > 300


@pytest.mark.nightly
@pytest.mark.heavy
@pytest.mark.parametrize("share", range(8))
def test_histories_of_four_eager_jobs_with_cancellations_follow_the_definition(share: int) -> None:
    compare_all(4, cancel_ready=True, eager=True, share=share, shares=8)


@pytest.mark.nightly
@pytest.mark.heavy
@pytest.mark.parametrize("share", range(16))
def test_all_histories_of_five_jobs_go_by_the_plain_definition(share: int) -> None:
    compare_all(5, cancel_ready=False, eager=False, share=share, shares=16)
