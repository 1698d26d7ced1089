"""Places in a declaration: `claims=` of `Scheduler.job`, filled from the arguments of a call."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

from queuehint import Claim, HandlerError, InvalidHintError, InvalidJobTypeError, JobContext, Scheduler
from queuehint.client.job import Job
from queuehint.handlers.handler import Handler
from queuehint.handlers.placement import SeveralPlaces
from queuehint.values.hint import CLAIMS_MAX
from tests.each import for_each

FOLDERS = [["folders", "{source}"], ["folders", "{target}"]]
SOURCE, TARGET = Claim(("folders", "a")), Claim(("folders", "b"))


def move(source: str, target: str = "trash", *, n: int = 0) -> None: ...


def declared(claims: Any = FOLDERS, **options: Any) -> Job[..., Any]:
    job: Job[..., Any] = Scheduler("memory://").job(claims=claims, **options)(move)
    return job


# --- what they are ---------------------------------------------------------------------------------------------------


def test_each_place_is_filled_from_the_arguments() -> None:
    assert declared().spec("a", "b").claims == (SOURCE, TARGET)
    assert declared().spec(target="b", source="a").claims == (SOURCE, TARGET)
    assert declared().spec("a").claims == (SOURCE, Claim(("folders", "trash")))


def test_each_place_has_its_own_mode() -> None:
    job = declared([(["folders", "{source}"], "shared"), Claim(("docs", "{target}-{n}"), "shared"), ["all"]])
    assert job.spec("a", "b", n=2).claims == (
        Claim(("all",)),
        Claim(("docs", "b-2"), "shared"),
        Claim(("folders", "a"), "shared"),
    )


def test_places_that_turn_out_to_be_one_are_one_claim() -> None:
    assert declared().spec("a", "a").claims == (SOURCE,)
    job = declared([(["{source}"], "shared"), ["{source}", "{target}"]])
    assert job.spec("a", "b").claims == (Claim(("a",)),)


def test_places_without_placeholders_are_worked_out_at_the_declaration() -> None:
    job = declared([["{{b}}"], (["a"], "shared")])
    assert job.spec("x").claims == (Claim(("a",), "shared"), Claim(("{b}",)))
    assert job.spec("x").claims is job.spec("y").claims


def test_no_places_are_none() -> None:
    assert declared([]).spec("a").claims == ()
    assert declared(None).spec("a").claims == ()


def test_callable_gives_as_many_places_as_it_wants() -> None:
    sched = Scheduler("memory://")

    @sched.job(claims=lambda docs, mode: [(["docs", doc], mode) for doc in docs] or None)
    def tag_all(docs: list[str], mode: str = "shared") -> None: ...

    assert tag_all.spec(["b", "a"]).claims == (Claim(("docs", "a"), "shared"), Claim(("docs", "b"), "shared"))
    assert tag_all.spec([]).claims == ()
    with pytest.raises(InvalidHintError, match=r"^claims holds 65 claims, limit 64"):
        tag_all.spec([str(number) for number in range(CLAIMS_MAX + 1)])
    with pytest.raises(InvalidHintError, match=r"^claims\[0\] mode must be one of"):
        tag_all.spec(["a"], "both")
    with pytest.raises(InvalidHintError, match=r"^claims\[1\] segment 1 is empty"):
        tag_all.spec(["a", ""])


# --- who has them ----------------------------------------------------------------------------------------------------


def test_every_call_path_uses_the_declared_places() -> None:
    sched = Scheduler("memory://")
    job: Job[..., Any] = sched.job(claims=FOLDERS)(move)
    made = [
        job.spec("a", "b"),
        job.spec_of(("a",), {"target": "b"}),
        *job.specs_of([("a", "b"), {"source": "a", "target": "b"}, job.call("a", "b")]),
        job.as_child_of(("parent", 1)).spec("a", "b"),
        job.using(key="k", on_conflict="replace", delay=5).spec("a", "b"),
        sched.jobs["move"].spec("a", "b"),
    ]
    kept = (job.using(name="n").using(priority=5), job.using(claims=[["x"]]).using(claims=None))
    for spec in [*made, *[each.spec("a", "b") for each in kept]]:
        assert spec.claims == (SOURCE, TARGET)
    schedule = sched.schedule_sync("nightly", job, every=3600, args=("a", "b"))
    assert schedule.spec.claims == (SOURCE, TARGET)
    with sched.flow_sync() as flow:
        flow.add(job, "a", "b")
    (record,) = sched.records.list_sync(flow=flow.id)
    assert record.spec.claims == (SOURCE, TARGET)
    handles = [job.enqueue_sync("a", "b"), *job.enqueue_many_sync([("a", "b")])]
    records = [*[handle.record_sync() for handle in handles], *sched.run_sync(job, source="a").jobs_sync()]
    assert [record.spec.claims[0] for record in records] == [SOURCE] * 3


def test_places_of_a_call_replace_declared_places() -> None:
    job = declared()
    assert job.using(claims=[["x"]]).spec("a", "b").claims == (Claim(("x",)),)
    assert job.using(claims=[["{source}"]]).spec("a", "b").claims == (Claim(("{source}",)),)
    assert job.using(claims=[]).spec("a", "b").claims == ()
    assert job.using(queue_hint=["x"], mode="shared").spec("a", "b").claims == (Claim(("x",), "shared"),)
    assert job.using(queue_hint=None).spec("a", "b").claims == ()
    assert job.using(queue_hint=["x"]).using(claims=None).spec("a", "b").claims == (SOURCE, TARGET)
    assert job.using(queue_hint=["x"], claims=None).spec("a", "b").claims == (Claim(("x",)),)


def test_context_is_no_argument_of_the_places() -> None:
    sched = Scheduler("memory://")

    @sched.job(claims=lambda source: [[source]])
    async def work(ctx: JobContext, source: str) -> None: ...

    assert work.spec("a").claims == (Claim(("a",)),)


# --- what is refused -------------------------------------------------------------------------------------------------


@for_each(
    "claims, words",
    [
        ([["folders", "{source}"], ["{unknown}"]], "claims[1] segment '{unknown}': move has no parameter 'unknown'"),
        ([(["{source.name}"], "shared")], "claims[0] segment '{source.name}': write {name} for an argument"),
        ([["{source"]], "claims[0] segment '{source': expected '}'"),
        ([Claim(("{n!r}",))], "claims[0] segment '{n!r}'"),
    ],
)
def test_template_that_misfits_the_signature_is_refused_by_name(claims: Any, words: str) -> None:
    sched = Scheduler("memory://")
    with pytest.raises(HandlerError) as caught:
        sched.job(claims=claims)(move)
    assert str(caught.value).startswith(words)
    assert not sched.jobs


def test_placeless_parameter_is_refused_with_the_right_syntax() -> None:
    def work(at: dt.datetime) -> None: ...

    with pytest.raises(HandlerError, match=r"claims\[0\] segment .*is annotated datetime; pass a callable, such as cl"):
        Scheduler("memory://").job(claims=[["{at}"]])(work)


@for_each(
    "claims, words",
    [
        ([["a"]] * (CLAIMS_MAX + 1), "claims holds 65 claims, limit 64"),
        ("folders", "claims must be a list of claims, got str"),
        ({"a"}, "claims must be a list of claims, got set"),
        (["folders"], "claims[0] must be a list of segments, got str; did you mean ['folders']?"),
        ([["a"], None], "claims[1] must be a list of segments, got None"),
        ([["a", 5]], "claims[0] segment 1 must be str, got int"),
        ([["a"], ["b", ""]], "claims[1] segment 1 is empty"),
        ([(["a"], "both")], "claims[0] mode must be one of exclusive, shared"),
        ([Claim(("a",), "counted")], "claims[0] mode must be one of exclusive, shared, got 'counted'"),
        ([["a"] * 65], "claims[0] has 65 segments, limit 64"),
        ([lambda source: [source]], "claims[0] must be a list of segments, got function"),
    ],
)
def test_claims_that_are_none_are_refused_at_the_declaration(claims: Any, words: str) -> None:
    sched = Scheduler("memory://")
    with pytest.raises(InvalidHintError) as caught:
        sched.job(claims=claims)(move)
    assert str(caught.value).startswith(words)
    assert not sched.jobs


@for_each("hint", [{"queue_hint": ["{source}"]}, {"queue_hint": lambda source: [source]}, {"queue_hint": []}])
def test_hint_and_claims_in_one_declaration_are_refused(hint: Any) -> None:
    with pytest.raises(InvalidJobTypeError, match="give queue_hint or claims, not both"):
        declared(**hint)
    with pytest.raises(InvalidJobTypeError, match="give queue_hint or claims, not both"):
        declared([], **hint)


def test_positional_hint_and_claims_are_refused() -> None:
    with pytest.raises(InvalidJobTypeError, match="give queue_hint or claims, not both"):
        Scheduler("memory://").job(["{source}"], claims=FOLDERS)(move)


def test_mode_that_no_claim_would_have_is_refused() -> None:
    sched = Scheduler("memory://")
    refused = r"mode is that of queue_hint, each of claims has its own: \(\[\.\.\.\], 'shared'\)"
    with pytest.raises(InvalidJobTypeError, match=refused):
        sched.job(claims=FOLDERS, mode="shared")(move)
    plain: Job[..., Any] = sched.job(["{source}"], mode="shared")(move)
    several: Job[..., Any] = sched.job(name="several", claims=FOLDERS)(move)
    calls: list[tuple[Job[..., Any], dict[str, Any]]] = [
        (several, {"mode": "exclusive"}),
        (several, {"claims": [["x"]], "mode": "shared"}),
        (plain, {"claims": [["x"]], "mode": "shared"}),
        (plain.using(claims=[["x"]]), {"mode": "shared"}),
    ]
    for job, options in calls:
        with pytest.raises(InvalidJobTypeError, match=refused):
            job.using(**options)
    assert plain.using(claims=[["x"]]).spec("a").claims == (Claim(("x",)),)
    assert several.using(queue_hint=["x"]).using(mode="shared").spec("a").claims == (Claim(("x",), "shared"),)


@for_each("value", [1.5, None, True, b"x", ["a"]])
def test_placeless_argument_is_refused_at_the_call_by_claim(value: Any) -> None:
    job: Job[..., Any] = Scheduler("memory://", check_arguments=False).job(claims=FOLDERS)(move)
    with pytest.raises(TypeError, match=r"^claims\[1\]: argument 'target' must be str, int, UUID or date") as caught:
        job.spec("a", value)
    assert isinstance(caught.value, InvalidHintError)


@for_each("value", ["", "a\nb", "x" * 257, "é" * 129, "\u202e"])
def test_malformed_segment_argument_is_refused_at_each_call_by_claim(value: str) -> None:
    job = declared()
    for _ in range(2):
        with pytest.raises(InvalidHintError, match=r"^claims\[1\] segment 1 "):
            job.spec("a", value)
    with pytest.raises(InvalidHintError, match=r"^calls\[1\]: claims\[0\] segment 1 "):
        job.specs_of([("a",), (value,)])


def test_number_of_too_many_digits_names_no_place() -> None:
    with pytest.raises(InvalidHintError, match=r"^claims\[0\]: argument 'n' is an int of more than 256 digits"):
        declared([["{n}"]]).spec("a", n=10**300)


def test_nothing_is_kept_of_the_places_of_calls() -> None:
    places = SeveralPlaces([["{source}"]], Handler("move", move))
    before = dict(vars(places))
    for number in range(100):
        places.claims({"source": str(number)}, "exclusive")
    assert vars(places) == before
