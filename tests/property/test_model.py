"""The reference model by itself: it checks the replies of a store, without its state, and accepts its own replies."""

from __future__ import annotations

from random import Random

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuehint import operations as op
from queuehint.core.engine import Engine, EngineOptions
from queuehint.testing import ReferenceModel
from queuehint.testing.model.places import Waiting, clash, conflict, ready, shape
from queuehint.testing.state_machine.generator import OperationGenerator
from queuehint.testing.state_machine.lockstep import RETENTION
from queuehint.testing.state_machine.styles import ALL_AT_ONCE, PATHS, STYLES, Style
from queuehint.values.hint import Claim, normalise
from queuehint.values.outcome import Grant, Outcome, OutcomeKind
from queuehint.values.policy import Policy
from queuehint.values.record import JobState
from queuehint.values.spec import JobSpec

claims = st.lists(st.builds(Claim, st.sampled_from(PATHS), st.sampled_from(["exclusive", "shared"])), max_size=3).map(
    normalise
)


@pytest.mark.slow
@pytest.mark.parametrize("style", [*STYLES, ALL_AT_ONCE], ids=lambda style: f"{style.shared}-{style.edges}")
@pytest.mark.parametrize("seed", [None, 24], ids=["own", "24"])  # by 24 a level is passed on within a line
def test_a_model_that_sees_replies_alone_follows_an_engine(style: Style, seed: int | None) -> None:
    engine, model = Engine(EngineOptions(retention=RETENTION)), ReferenceModel(RETENTION)
    generator = OperationGenerator(engine, Random(seed or style.unfinished_max), style)
    now_ms = 0
    for _ in range(300):
        now_ms = generator.pass_time(now_ms)
        move = generator.move()
        model.now_ms = now_ms
        if type(move) is op.Announce:  # of the workers that are there the model knows nothing
            engine.apply(move, now_ms)
            continue
        refusal = model.refuses(move)
        if refusal is not None:
            with pytest.raises(refusal):
                engine.apply(move, now_ms)
        else:
            model.follow(move, engine.apply(move, now_ms))
            model.follow(op.Tick(), engine.apply(op.Tick(), now_ms))


@given(st.lists(st.tuples(claims, st.sampled_from([1, 3, 9])), max_size=8), st.randoms(use_true_random=False))
def test_model_accepts_the_answers_of_a_model(wanted: list[tuple[tuple[Claim, ...], int]], random: Random) -> None:
    speaker, judge = ReferenceModel(), ReferenceModel()
    jobs = [
        JobSpec(id=str(at), task="t", claims=each, priority=level, policy=Policy(max_attempts=2))
        for at, (each, level) in enumerate(wanted)
    ]
    operations = [op.Enqueue(tuple(jobs[:4])), op.Enqueue(tuple(jobs[4:]))]
    running: list[Grant] = []
    for now_ms in range(100):
        ending = [grant for grant in running if random.random() < 0.5]
        running = [grant for grant in running if grant not in ending]
        settle = [Outcome(job_id=g.spec.id, token=g.token, kind=random.choice(list(OutcomeKind)[:2])) for g in ending]
        reply = speaker.apply(op.Exchange("w", settle=tuple(settle), limit=2), now_ms * 1_000)
        judge.follow(op.Exchange("w", settle=tuple(settle), limit=2), reply, now_ms=now_ms * 1_000)
        running += reply.grants
        if operations:
            operation = operations.pop()
            judge.follow(operation, speaker.apply(operation))
    assert all(job.is_over for job in judge.jobs.values())
    assert not judge.placed


def enqueued(model: ReferenceModel, *specs: JobSpec) -> ReferenceModel:
    model.apply(op.Enqueue(specs))
    return model


def claim_of(*segments: str) -> tuple[Claim, ...]:
    return (Claim(segments),)


A = JobSpec(id="A", task="t", claims=claim_of("x"))
B = JobSpec(id="B", task="t", claims=claim_of("x", "y"))


def test_a_wrong_reply_is_told_beside_the_right_one() -> None:
    right = op.EnqueuedJob("A", 1, JobState.QUEUED, created=True)
    wrong = op.Enqueued((attrs.evolve(right, number=2),), more=False)
    with pytest.raises(AssertionError, match=r"(?s)expected:\n.*number=1.*but the reply was:\n.*number=2"):
        ReferenceModel().follow(op.Enqueue((A,)), wrong)


def test_answer_to_an_invalid_operation_is_wrong() -> None:
    with pytest.raises(AssertionError, match="must be refused with DuplicateJobError"):
        enqueued(ReferenceModel(), A).follow(op.Enqueue((attrs.evolve(A, task="u"),)), op.Enqueued((), more=False))


def test_a_job_that_is_left_is_named() -> None:
    with pytest.raises(AssertionError, match=r"\[<A QUEUED x>\] could have been granted"):
        enqueued(ReferenceModel(), A).follow(op.Exchange("w", limit=1), op.Exchanged((), (), (), more=False))


def test_a_token_that_was_there_before_is_wrong() -> None:
    model, apart = ReferenceModel(), attrs.evolve(B, claims=claim_of("z"))
    grant = enqueued(model, A, apart).apply(op.Exchange("w", limit=1)).grants[0]
    again = attrs.evolve(grant, spec=apart)
    with pytest.raises(AssertionError, match="expected:"):
        model.follow(op.Exchange("w", limit=1), op.Exchanged((), (again,), (), more=False))


def test_a_job_that_is_started_twice_is_wrong() -> None:
    model = ReferenceModel()
    grant = enqueued(model, A).apply(op.Exchange("w", limit=1)).grants[0]
    again = op.Exchanged((), (attrs.evolve(grant, token=grant.token + 1),), (), more=False)
    with pytest.raises(AssertionError, match="A was started while it runs"):
        model.follow(op.Exchange("x", limit=1), again)


def test_model_refuses_invalid_operations() -> None:
    with pytest.raises(ValueError, match="must be refused with JobNotFoundError"):
        ReferenceModel().apply(op.Why("nobody"))


def test_model_raises_on_unsupported_operations() -> None:
    with pytest.raises(NotImplementedError):
        ReferenceModel().apply(op.ListSchedules())
    with pytest.raises(NotImplementedError):
        enqueued(ReferenceModel(), A).apply(op.Why("A"))
    assert ReferenceModel().apply(op.Fetch("nobody", 1, ())).verdict == "lost"


@given(claims, claims)
def test_conflict_is_clash_remembered(one: tuple[Claim, ...], other: tuple[Claim, ...]) -> None:
    assert conflict(one, other) == conflict(shape(one), shape(other)) == clash(one, other) == clash(other, one)


def test_a_holder_that_never_waited_blocks_others() -> None:
    dead = Waiting("dead", claim_of("x"), is_waiting=False)
    assert ready([dead, Waiting("behind", claim_of("x", "y"))]) == []
