"""The same scenario on all stores: equal lists, orders, misses and expiries."""

from __future__ import annotations

import random
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from queuehint import (
    InvalidTransitionError,
    JobNotFoundError,
    JobRecord,
    JobState,
    Outcome,
    OutcomeKind,
    Policy,
    Retention,
    Scheduler,
    StaleRecordError,
)
from queuehint.operations import Exchange
from tests.manual_jobs import ids, on, spec, tidy
from tests.servers import new_namespace, shared_server
from tests.support import slow_after

STEPS = 30


@pytest.mark.redis
@pytest.mark.parametrize(
    "seed", [*slow_after(1, range(3)), *[pytest.param(seed, marks=pytest.mark.nightly) for seed in range(3, 60)]]
)
def test_the_same_scenario_gives_the_same_answers_on_all_stores(seed: int, tmp_path: Path) -> None:
    answers = []
    in_file = f"sqlite:///{tmp_path}/jobs.db?durability=process"
    for url in ("memory://", in_file, f"{shared_server().url}?namespace={new_namespace('records')}"):
        told: list[Any] = []

        async def main(sched: Scheduler, told: list[Any] = told) -> None:
            await scenario(sched, random.Random(seed), told)

        on(url, main, retention=Retention(canceled=0))
        answers.append(told)
    assert answers[0] == answers[1] == answers[2]
    assert len(answers[0]) > 100


async def scenario(sched: Scheduler, chance: random.Random, told: list[Any]) -> None:
    """Make, run, amend and delete jobs by chance, and note whatever can be asked."""
    store, names = sched.records, ["ann", "ben", "a:user:b", None]
    made: list[str] = []

    def facts(record: JobRecord) -> tuple[Any, ...]:
        return (record.id, record.number, record.version, record.state, record.spec, record.logs, record.result)

    async def attempt(call: Coroutine[Any, Any, Any]) -> None:
        try:
            told.append(await call)
        except (JobNotFoundError, InvalidTransitionError, StaleRecordError) as error:
            told.append((type(error), str(error)))

    for step in range(STEPS):
        fresh = [
            spec(
                f"{step}.{n}",
                *chance.choice([(), ("doc1",), ("doc1", "x"), ("doc2", "x:y"), ("doc10",)]),
                service=chance.choice(["docs", "mail", None]),
                user=chance.choice(names),
                task=chance.choice(["one", "two"]),
                policy=Policy(retention_ms=chance.choice([None, 0])),
            )
            for n in range(chance.randrange(6))
        ]
        made += [job.id for job in fresh]
        await sched.submit(fresh)
        some = chance.sample(made, min(len(made), 3))
        match chance.randrange(5):
            case 0 | 1:
                grants = (await sched.backend.call(Exchange("w", limit=chance.randrange(1, 6)))).grants
                kinds = [chance.choice([OutcomeKind.FINISHED, OutcomeKind.FAILED]) for _ in grants]
                outcomes = [
                    Outcome(job_id=grant.spec.id, token=grant.token, kind=kind, final=True)
                    for grant, kind in zip(grants, kinds, strict=True)
                ]
                await sched.backend.call(Exchange("w", tuple(outcomes)))
            case 2:
                told.append(await sched.cancel(some))
            case 3:
                for job_id in some:
                    await attempt(store.amend(job_id, user=chance.choice(names)))
                    await attempt(store.append_log(job_id, f"at {step}"))
            case 4:
                await attempt(store.delete(some))
        await tidy(sched)
        asked: list[dict[str, Any]] = [
            {},
            {"user": chance.choice(names[:3])},
            {"service": "docs", "user": chance.choice(names[:3])},
            {"state": chance.sample(list(JobState), 2), "task": "one"},
            {"path": chance.choice([[], ["doc1"], ["doc2", "x:y"]]), "service": "docs"},
        ]
        newest_first = chance.random() < 0.5
        for question in asked:
            page = await store.list(limit=chance.randrange(1, 20), newest_first=newest_first, **question)
            told.append((question, page.cursor, list(map(facts, page))))
            if page.cursor is not None:
                rest = await store.list(cursor=page.cursor, newest_first=newest_first, **question)
                told.append((rest.cursor, ids(rest)))
            told.append(await store.count(**question))
        told.append([user async for user in store.users("docs")])
        told.append([await store.peek_id(), ids(await store.list_by_ids(some))])
