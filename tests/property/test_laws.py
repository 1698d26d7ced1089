"""Properties of the small parts: paths and their keys, claims, heaps, back-off, turns."""

from bisect import insort
from collections import Counter
from fractions import Fraction
from random import Random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from queuehint.core.jobs.table import JobTable
from queuehint.core.structures.heap import LazyHeap
from queuehint.core.structures.indexes import PathIndex
from queuehint.core.structures.job import Job
from queuehint.core.structures.ready_queue import ReadyQueue, rank
from queuehint.testing import backoffs, claims, hints
from queuehint.testing.model.places import clash
from queuehint.testing.state_machine.lockstep import RETENTION
from queuehint.values.hint import (
    ROOT_KEY,
    SEGMENT_BYTES_MAX,
    Claim,
    Path,
    conflict,
    is_prefix,
    keys_below,
    meet,
    normalise,
    parse_hint,
    parse_key,
    queue_key,
)
from queuehint.values.policy import Backoff
from queuehint.values.record import JobState
from queuehint.values.spec import JobSpec

any_path = hints(hostile=True, max_depth=3, allow_none=False).map(tuple)
short_hint = hints(max_depth=3, allow_none=False)
short_path = short_hint.map(tuple)
claim_lists = st.lists(claims(hints=short_hint), max_size=5)


# --- keys ------------------------------------------------------------------------------------------------------------


@given(any_path)
def test_path_key_round_trips(path: Path) -> None:
    assert parse_key(queue_key(path)) == path
    assert parse_hint(list(path)) == path


@given(any_path, any_path)
def test_no_two_paths_share_a_key(path: Path, other: Path) -> None:
    assert (queue_key(path) == queue_key(other)) == (path == other)


@given(any_path.filter(lambda path: path and len(path[-1].encode()) < SEGMENT_BYTES_MAX), any_path)
def test_keys_below_a_path_are_exactly_its_descendants(path: Path, other: Path) -> None:
    low, high = keys_below(path)
    # Segments that sort right below and right above a colon have neighbouring keys.
    alike = [(*path[:-1], path[-1] + letter, *other) for letter in "\\/9:;"]
    for candidate in (other, path + other, path[:-1] + other, *alike):
        is_descendant = is_prefix(path, candidate) and candidate != path
        assert (low < queue_key(candidate) < high) == is_descendant


@given(any_path, st.lists(any_path, max_size=12))
def test_index_finds_each_claim_below_a_path_in_order(path: Path, others: list[Path]) -> None:
    index = PathIndex()
    jobs = [
        Job(JobSpec(id=str(number), task="t", claims=(Claim(other),)), number, JobState.QUEUED, 0)
        for number, other in enumerate([path, *[path + other for other in others], *others])
    ]
    for job in jobs:
        index.add(job)
    found = [(queue_key(job.spec.claims[0].path), job.number) for job in index.below(path)]
    there = [job for job in jobs if is_prefix(path, job.spec.claims[0].path)]
    assert found == sorted((queue_key(job.spec.claims[0].path), job.number) for job in there)
    for job in jobs:
        index.remove(job)
    assert len(index) == 0


def test_the_root_has_a_key_of_its_own() -> None:
    assert queue_key(()) == ROOT_KEY
    assert queue_key(("root",)) != ROOT_KEY


# --- the prefix relation ---------------------------------------------------------------------------------------------


@given(any_path, any_path, any_path)
def test_prefix_relation_is_a_partial_order_below_the_root(a: Path, b: Path, c: Path) -> None:
    assert is_prefix((), a)
    assert is_prefix(a, a)
    assert is_prefix(a, a + b)
    assert not (is_prefix(a, b) and is_prefix(b, a)) or a == b
    assert not (is_prefix(a, b) and is_prefix(b, c)) or is_prefix(a, c)
    assert is_prefix(a, b) == (b[: len(a)] == a)


@given(any_path, any_path)
def test_two_paths_meet_if_one_prefixes_the_other(a: Path, b: Path) -> None:
    assert meet(a, b) == meet(b, a) == (is_prefix(a, b) or is_prefix(b, a))


@given(claim_lists, claim_lists)
def test_to_conflict_is_symmetric_and_the_plain_definition(ours: list[Claim], theirs: list[Claim]) -> None:
    assert conflict(ours, theirs) == conflict(theirs, ours) == clash(tuple(ours), tuple(theirs))


# --- claims ----------------------------------------------------------------------------------------------------------


@given(claim_lists)
def test_normalised_claims_are_stable_ordered_and_disjoint(claims: list[Claim]) -> None:
    normal = normalise(claims)
    assert normalise(normal) == normal == normalise(reversed(claims))
    assert list(normal) == sorted(normal, key=lambda claim: claim.path)
    assert not any(meet(a.path, b.path) for a in normal for b in normal if a is not b)


@given(claim_lists, short_path)
def test_normalised_claims_conflict_like_the_original_claims(claims: list[Claim], path: Path) -> None:
    normal = normalise(claims)
    probe = (Claim(path, "exclusive"),)
    assert conflict(normal, probe) == conflict(claims, probe)
    reader = (Claim(path, "shared"),)
    # A shared claim above an exclusive one becomes exclusive, so a reader may conflict with more, never with less.
    assert conflict(normal, reader) >= conflict(claims, reader)
    nested = any(
        a.mode == "shared" and b.mode == "exclusive" and is_prefix(a.path, b.path) for a in claims for b in claims
    )
    assert nested or conflict(normal, reader) == conflict(claims, reader)


@given(claim_lists)
def test_a_job_never_waits_for_itself(claims: list[Claim]) -> None:
    table = JobTable(RETENTION)
    job = table.admit(JobSpec(id="j", task="t", claims=normalise(claims)), 0)
    assert job.ready is not None
    assert not job.missing


# --- heap ------------------------------------------------------------------------------------------------------------


@given(st.integers(0, 10**9), st.integers(1, 400))
def test_lazy_heap_agrees_with_a_sorted_list(seed: int, steps: int) -> None:
    random = Random(seed)
    heap: LazyHeap[str] = LazyHeap()
    plain: list[tuple[int, int, int, str]] = []
    entries: dict[str, Any] = {}
    keep = random.choice((0.3, 0.5, 0.8))
    for step in range(steps):
        roll = random.random()
        if roll < keep or not plain:
            ranked, number, name = random.randrange(4), random.randrange(4), str(step)
            entries[name] = heap.push(ranked, number, name)
            insort(plain, (ranked, number, step, name))
        elif roll < keep + 0.1:
            name = plain.pop(0)[3]
            assert heap.pop() == name
            del entries[name]
        else:
            name = plain.pop(random.randrange(len(plain)))[3]
            heap.discard(entries.pop(name))
        assert len(heap) == len(plain)
        first = heap.first()
        assert (first is None) == (not plain)
        assert first is None or first[3] == plain[0][3]
        assert len(heap._heap) <= 2 * len(plain) + 66
    assert heap.items() == [name for *_, name in plain]


# --- back-off --------------------------------------------------------------------------------------------------------

fractions = st.floats(0, 1, exclude_max=True)
growing = backoffs().filter(lambda backoff: not backoff.waits)
listed = backoffs().filter(lambda backoff: bool(backoff.waits))


@given(growing, st.integers(1, 1000), fractions)
def test_a_back_off_lies_between_its_bounds(backoff: Backoff, attempt: int, random: float) -> None:
    wait_ms = backoff.delay_ms(attempt, random)
    # Attempts beyond the cap give the cap: no need to raise a fraction to the thousandth power.
    plain = Fraction(backoff.base_ms)
    for _ in range(attempt - 1):
        plain *= Fraction(backoff.factor)
        if plain >= backoff.cap_ms or backoff.factor == 1:
            break
    plain = min(plain, Fraction(backoff.cap_ms))
    most = float(plain)
    assert 0 <= wait_ms <= backoff.cap_ms
    assert most * (1 - backoff.jitter) * (1 - 1e-9) - 1 <= wait_ms <= most * (1 + 1e-9)


@given(listed, st.integers(1, 1000), fractions)
def test_list_of_waits_is_followed_apart_from_jitter(backoff: Backoff, attempt: int, random: float) -> None:
    most = backoff.waits[min(attempt, len(backoff.waits)) - 1] * 1000
    assert most * (1 - backoff.jitter) - 1 <= backoff.delay_ms(attempt, random) <= most + 1


@given(growing, st.integers(1, 100), fractions)
def test_backoff_never_shrinks_between_attempts(backoff: Backoff, attempt: int, random: float) -> None:
    assert backoff.delay_ms(attempt, random) <= backoff.delay_ms(attempt + 1, random)


# --- turns -----------------------------------------------------------------------------------------------------------

priorities = st.sampled_from([1, 2, 3, 4, 5, 9])


def ready_job(number: int, user: str | None, priority: int = 3, enqueued_ms: int = 0, pool: str = "p") -> Job:
    spec = JobSpec(id=str(number), task="t", user=user, priority=priority, pool=pool)
    return Job(spec, number, JobState.QUEUED, enqueued_ms)


@given(st.lists(st.tuples(st.integers(0, 4), priorities), min_size=1, max_size=30))
def test_users_with_ready_jobs_take_turns(wanted: list[tuple[int, int]]) -> None:
    queue = ReadyQueue()
    users = sorted({user for user, _ in wanted})
    numbers = iter(range(1, 10_000))
    for user, priority in wanted:
        queue.add(ready_job(next(numbers), str(user), priority))
    last_turn: dict[str, int] = {}
    for turn in range(5 * len(users)):
        job = queue.take("p")
        assert job is not None
        name = str(job.spec.user)
        # The user's next job is ready before its next turn; a user that is alone has its turn at once.
        queue.add(ready_job(next(numbers), name, job.spec.priority))
        assert turn - last_turn.get(name, turn - len(users)) <= len(users)
        last_turn[name] = turn
    assert len(last_turn) == len(users)


@given(st.lists(st.tuples(priorities, st.integers(0, 300_000)), min_size=1, max_size=30))
def test_critical_jobs_of_a_user_precede_levels_by_age(wanted: list[tuple[int, int]]) -> None:
    queue = ReadyQueue()
    jobs = [ready_job(number, None, priority, at) for number, (priority, at) in enumerate(wanted)]
    for job in jobs:
        queue.add(job)

    def plain(job: Job) -> tuple[int, int, int]:
        if job.spec.priority == 9:
            return (0, 0, job.number)
        return (1, job.enqueued_ms - 60_000 * (job.spec.priority - 1), job.number)

    assert [queue.take("p") for _ in jobs] == sorted(jobs, key=plain)
    assert queue.take("p") is None
    assert queue.sizes() == {}


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=20))
def test_single_user_and_level_is_first_in_first_out(pauses: list[int]) -> None:
    queue = ReadyQueue()
    jobs = []
    now_ms = 0
    for number, pause in enumerate(pauses):
        now_ms += pause
        jobs.append(ready_job(number, "u", 3, now_ms))
    for job in reversed(jobs):
        queue.add(job)
    assert [queue.take("p") for _ in jobs] == jobs


@given(st.integers(0, 10**9))
def test_ready_queue_holds_added_jobs_until_taken(seed: int) -> None:
    random = Random(seed)
    queue = ReadyQueue()
    held: dict[int, Job] = {}
    for number in range(random.randrange(60)):
        if random.random() < 0.6 or not held:
            job = ready_job(number, random.choice((None, "u", "v")), random.choice((1, 3, 9)), 0, random.choice("pq"))
            queue.add(job)
            held[number] = job
        elif random.random() < 0.5:
            queue.remove(held.pop(random.choice(sorted(held))))
        elif (taken := queue.take(random.choice("pq"))) is not None:
            del held[taken.number]
        assert {job.number for job in queue.jobs()} == set(held)
        assert queue.sizes() == dict(Counter(sorted(job.spec.pool for job in held.values())))
        assert set(queue.rotate(("p", "q"))) == {job.spec.pool for job in held.values()}
    for job in held.values():
        queue.remove(job)
    assert queue.sizes() == {}


@given(st.integers(1, 4), st.integers(0, 10**6))
def test_a_level_is_worth_a_minute_of_waiting(level: int, at: int) -> None:
    assert rank(level + 1, at + 60_000) == rank(level, at)
    assert rank(9, at) < rank(5, 0)
