"""Tags and headers, from enqueue to a handler and its children."""

from __future__ import annotations

from typing import Any

import pytest

from queuehint import FakeClock, InvalidJobError, InvalidJobTypeError, JobContext, JobSpec, Scheduler
from tests.each import for_each

OF_TASK = {"app": "docs", "request": "none"}


def shop() -> Scheduler:
    sched = Scheduler(clock=FakeClock())

    @sched.job(tags=["eu", "bulk"], headers=OF_TASK)
    async def render(doc: str) -> None: ...

    @sched.job
    async def index(ctx: JobContext, doc: str) -> list[str]:
        await ctx.enqueue(render, doc)
        await ctx.enqueue_many(render.using(headers={"request": "mine"}), [(doc,)])
        await render.using(id="apart").enqueue(doc)
        return [*ctx.headers.values(), *ctx.tags]

    return sched


def job(sched: Scheduler, name: str) -> Any:
    return sched._jobs[name]


async def test_headers_go_on_to_the_children_of_a_job() -> None:
    sched = shop()
    handle = await job(sched, "index").using(id="a", headers={"request": "7", "lang": "de"}, tags=["x"]).enqueue("d")
    await sched.drain()
    assert await handle.result() == ["de", "7", "x"]
    of = {record.id: record for record in await sched.records.list(task="render")}
    assert of["a.1"].headers == {"request": "none", "lang": "de", "app": "docs"}, "its own go first"
    assert of["a.2"].headers == {"request": "mine", "lang": "de"}
    assert of["apart"].headers == OF_TASK, "no child"
    assert {record.tags for record in of.values()} == {("bulk", "eu")}
    for parent in (handle, "a"):
        assert [record.id for record in await sched.records.list(parent=parent)] == ["a.1", "a.2"]
    assert [record.id for record in await sched.records.list(parent=handle, newest_first=True, limit=1)] == ["a.2"]
    assert [record.id for record in await sched.records.list(tag="x")] == ["a"]
    assert (await sched.records.count(tag="bulk", path=None)).total == 3


async def test_tags_and_headers_are_options_of_calls_flows_and_schedules() -> None:
    sched = shop()
    render = job(sched, "render")
    other = render.using(tags={"b", "a"}, headers={"é": ""})
    assert (render.options.tags, other.spec("d").tags) == (("bulk", "eu"), ("a", "b"))
    assert other.using(tags=None, headers=None).spec("d").headers == ()
    async with sched.flow() as flow:
        flow.add(other, "d")
    await other.enqueue_many([("d",), ("e",)])
    schedule = await sched.schedule("nightly", other, every=60, args=["d"])
    await sched.schedules.run_now("nightly")
    records = await sched.records.list(tag="a")
    assert [record.headers for record in records] == [{"é": ""}] * 4
    assert (schedule.spec.tags, schedule.spec.headers) == (("a", "b"), (("é", ""),))


async def test_headers_of_the_moment_are_asked_for_at_each_enqueue() -> None:
    sched = shop()
    asked: list[str] = []

    @sched.headers_from
    def of_now(task: Any) -> dict[str, str] | None:
        asked.append(task.name)
        return {"n": str(len(asked)), "app": "never"} if len(asked) < 4 else None

    render = job(sched, "render").using(headers={"app": "docs"})
    await render.using(id="a").enqueue("d")
    await render.enqueue_many([("d",)])
    async with sched.flow() as flow:
        flow.add(render, "d")
    await sched.schedule("nightly", render, every=60, args=["d"])
    assert asked == ["render"] * 3, "a schedule is of no moment"
    records = await sched.records.list()
    assert [record.headers for record in records] == [{"app": "docs", "n": n} for n in "123"]
    again = await render.using(id="a").enqueue("d")
    assert not again.created
    assert (await again.record()).headers["n"] == "1"


@for_each(
    "options, error, said",
    [
        ({"tags": "urgent"}, InvalidJobTypeError, r"tags must be a list, got str: 'urgent'; did you mean"),
        ({"tags": [7]}, InvalidJobTypeError, r"tags\[0\] must be str, got int: 7"),
        ({"tags": [""]}, InvalidJobError, r"tags\[0\] is empty; it must be 1 to 64 bytes"),
        ({"tags": ["ok", "x" * 65]}, InvalidJobError, r"tags\[1\] is 65 bytes, limit 64"),
        ({"tags": ["a\tb"]}, InvalidJobError, r"tags\[0\] holds a control character"),
        ({"tags": list("abcdefghi")}, InvalidJobError, r"tags: 9 in one call, limit 8"),
        ({"headers": "a=b"}, InvalidJobTypeError, "headers must be a mapping of str to str, got str"),
        ({"headers": [("a", "b")]}, InvalidJobTypeError, "headers must be a mapping of str to str, got list"),
        ({"headers": ("ab",)}, InvalidJobTypeError, "headers must be pairs of str, got str"),
        ({"headers": {"a": 7}}, InvalidJobTypeError, r"headers\['a'\] must be str, got int"),
        ({"headers": {"": "x"}}, InvalidJobError, "the name of a header is empty"),
        ({"headers": {7: "x"}}, InvalidJobTypeError, "the name of a header must be str, got int"),
        ({"headers": {"a": "\ud800"}}, InvalidJobError, r"headers\['a'\] is not encodable as UTF-8"),
        ({"headers": {"a": "x" * 4096}}, InvalidJobError, "headers are at least 4097 bytes, names and values"),
        ({"headers": {"a": "é" * 2048}}, InvalidJobError, "the limit is 4096"),
        ({"headers": (("a", "1"), ("a", "2"))}, InvalidJobError, "headers names 'a' twice"),
    ],
)
def test_malformed_label_is_named_before_any_request(options: Any, error: Any, said: str) -> None:
    sched = shop()
    with pytest.raises(error, match=said):
        job(sched, "render").using(**options)
    with pytest.raises(error, match=said):
        sched.job(name="other", **options)(lambda: None)
    if options["tags" if "tags" in options else "headers"] != [("a", "b")]:
        with pytest.raises(error, match=said):
            JobSpec(id="a", task="t", **options).check()
    assert sched._backend is None


async def test_labels_of_a_child_are_bounded_with_inherited_ones() -> None:
    sched = shop()
    sched.headers_from(lambda _: {"a": "x" * 4000})
    with pytest.raises(InvalidJobError, match="the limit is 4096"):
        await job(sched, "render").using(headers={"b": "x" * 100}).enqueue("d")
    with pytest.raises(InvalidJobError, match=r"tag is 65 bytes, limit 64"):
        await sched.records.list(tag="x" * 65)


def test_the_limits_themselves_fit() -> None:
    spec = JobSpec(id="a", task="t", tags=tuple("x" * 63 + at for at in "abcdefgh"), headers=(("é", "x" * 4094),))
    assert spec.check() == spec
    assert JobSpec(id="a", task="t", tags=("b", "a", "b")).check().tags == ("a", "b")
    assert "x" * 9 not in repr(attrs_free(spec))


def attrs_free(spec: JobSpec) -> JobSpec:
    return JobSpec(id=spec.id, task=spec.task, headers=spec.headers)
