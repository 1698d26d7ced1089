"""Edges under concurrent processes: a fan-in is queued once however its parents end, on a real server."""

from __future__ import annotations

import multiprocessing
import time
from multiprocessing.synchronize import Barrier

import pytest

from queuehint import Dependency, JobSpec, JobState, Outcome, OutcomeKind, open_backend
from queuehint import operations as op
from tests.servers import new_namespace, shared_server
from tests.support import LIMIT_S, thorough

ROUNDS = thorough(1000, quick=200)
PARENTS = 3
AT_ONCE = 100


def end_parents(url: str, parent: int, barrier: Barrier) -> None:
    """End one parent of every round, each at the same instant as the others of the round."""
    backend = open_backend(url)
    for begin in range(0, ROUNDS, AT_ONCE):
        grants = backend.call_sync(op.Exchange(f"w{parent}", pools=(f"p{parent}",), limit=AT_ONCE)).grants
        assert [grant.spec.id for grant in grants] == [f"{number}-{parent}" for number in range(begin, begin + AT_ONCE)]
        for grant in grants:
            barrier.wait(LIMIT_S)
            outcome = Outcome(job_id=grant.spec.id, token=grant.token, kind=OutcomeKind.FINISHED, result=b"1")
            backend.call_sync(op.Exchange(f"w{parent}", settle=(outcome,), pools=(f"p{parent}",)))
    backend.close_sync()


@pytest.mark.slow
@pytest.mark.heavy
def test_fan_in_is_queued_once_at_simultaneous_ends_across_processes() -> None:
    url = f"{shared_server().url}?namespace={new_namespace('fan-in')}"
    backend = open_backend(url)
    for number in range(ROUNDS):
        parents = [JobSpec(id=f"{number}-{parent}", task="t", pool=f"p{parent}") for parent in range(PARENTS)]
        needs = tuple(Dependency(spec.id) for spec in parents)
        backend.call_sync(op.Enqueue((JobSpec(id=f"{number}", task="t", depends_on=needs), *parents)))
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(PARENTS)
    processes = [context.Process(target=end_parents, args=(url, parent, barrier)) for parent in range(PARENTS)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(LIMIT_S)
        assert process.exitcode == 0
    end_s = time.monotonic() + LIMIT_S
    while backend.call_sync(op.Tick()).more:
        assert time.monotonic() < end_s
    records = backend.call_sync(op.Get(tuple(str(number) for number in range(ROUNDS)))).records
    assert {record.state for record in records if record is not None} == {JobState.QUEUED}
    # Enqueued, then queued: there was no other move.
    assert {record.version for record in records if record is not None} == {2}
    assert len({record.seq for record in records if record is not None}) == ROUNDS
    assert backend.call_sync(op.CountJobs()).ready == {"default": ROUNDS}
    edges = backend.call_sync(op.CountEdges())
    assert (edges.deferred, edges.open_edges, edges.orphans) == (0, 0, ())
    backend.close_sync()


@pytest.mark.heavy
def test_fan_out_continues_after_its_process_died() -> None:
    """F-33: leftover work of a long release lies in the store, and the next caller continues it."""
    url = f"{shared_server().url}?namespace={new_namespace('fan-out')}"
    width = 5_000
    first = open_backend(url)
    first.call_sync(op.Enqueue((JobSpec(id="parent", task="t", pool="parent"),)))
    needs = (Dependency("parent"),)
    for begin in range(0, width, 1_000):
        specs = [JobSpec(id=f"{number}", task="t", depends_on=needs) for number in range(begin, begin + 1_000)]
        first.call_sync(op.Enqueue(tuple(specs)))
    (grant,) = first.call_sync(op.Exchange("w", pools=("parent",), limit=1)).grants
    settled = Outcome(job_id="parent", token=grant.token, kind=OutcomeKind.FINISHED, result=b"1")
    assert first.call_sync(op.Exchange("w", settle=(settled,), pools=("parent",))).more
    first.close_sync()  # and never ticks
    second = open_backend(url)
    ran: list[str] = []
    settle: tuple[Outcome, ...] = ()
    end_s = time.monotonic() + LIMIT_S
    while len(ran) < width or settle:
        assert time.monotonic() < end_s
        grants = second.call_sync(op.Exchange("x", settle=settle, limit=500)).grants
        ran += [each.spec.id for each in grants]
        settle = tuple([Outcome(job_id=each.spec.id, token=each.token, kind=OutcomeKind.FINISHED) for each in grants])
    assert ran == [str(number) for number in range(width)], "each once, in the order of enqueue"
    assert second.call_sync(op.CountEdges()).open_edges == 0
    second.close_sync()
