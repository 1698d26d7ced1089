"""Handlers: accepted signatures and arguments, and the places of their jobs."""

from __future__ import annotations

import datetime as dt
import decimal
import enum
import functools
import inspect
import logging
import sys
import types
import uuid
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated, Any, Literal, NewType, ParamSpec, TypedDict, TypeVar, Unpack, get_overloads

import attrs
import pytest

from queuehint import (
    Children,
    HandlerError,
    InvalidHintError,
    InvalidHintTypeError,
    InvalidJobError,
    InvalidJobTypeError,
    JobContext,
    JsonCodec,
    PayloadError,
    Scheduler,
    UnknownToReleaseError,
    WouldDeadlockError,
)
from queuehint.client.job import Job
from queuehint.client.options import TASK_OPTIONS
from queuehint.client.options import Options as JobOptions
from queuehint.handlers.handler import USING, Handler
from queuehint.handlers.placement import Placement
from queuehint.handlers.references import Reference, template
from queuehint.values.hint import Claim
from queuehint.values.policy import POLICY_OPTIONS, Policy
from queuehint.values.spec import PAYLOAD_BYTES_MAX
from tests.each import for_each

if TYPE_CHECKING:  # That it is gone when tests run is what is tested.
    from nowhere import OnlyForTypeCheckers  # type: ignore[import-not-found,unused-ignore]

CODEC = JsonCodec()


def handler(function: Callable[..., Any]) -> Handler:
    return Handler(function.__name__, function)


def path(hint: Any, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    it = handler(function)
    return Placement(hint, it).path(it.bind(args, kwargs))


def plain(doc: str, section: str = "all", *, n: int = 0) -> None: ...


async def contextual(ctx: JobContext, doc: str) -> int:
    return 1


def variadic(doc: str, /, *rest: int, flag: bool = False, **more: str) -> None: ...


@attrs.frozen
class Point:
    x: int
    y: int


class Rank(enum.IntEnum):
    HIGH = 2


class Word(enum.StrEnum):
    YES = "yes"


class Rarity(enum.Enum):
    RARE = "rare"


# --- registration ---


def test_an_async_function_and_a_plain_one_are_told_apart() -> None:
    assert handler(contextual).is_async
    assert not handler(plain).is_async
    assert Handler("partial", functools.partial(contextual)).is_async


def test_an_object_with_an_async_call_is_async() -> None:
    class Callable_:
        async def __call__(self, doc: str) -> None: ...

    it = Handler("object", Callable_())
    assert it.is_async
    assert list(it.parameters) == ["doc"]


@pytest.mark.parametrize("thing", [5, None, "x", object()])
def test_non_callable_handler_is_refused(thing: Any) -> None:
    with pytest.raises(HandlerError, match="not callable"):
        Handler("x", thing)


def test_generator_functions_are_refused() -> None:
    def generator() -> Iterator[int]:
        yield 1

    async def agenerator() -> Any:
        yield 1

    for function in (generator, agenerator):
        with pytest.raises(HandlerError, match="generator function"):
            handler(function)


def test_the_context_is_no_argument_of_the_job() -> None:
    it = handler(contextual)
    assert it.wants_context
    assert list(it.parameters) == ["doc"]
    assert it.bind(("d",), {}) == {"doc": "d"}


def test_first_parameter_ctx_is_the_context_unless_annotated_otherwise() -> None:
    def unannotated(ctx, doc): ...  # type: ignore[no-untyped-def]

    def otherwise(ctx: str) -> None: ...

    assert handler(unannotated).wants_context
    assert not handler(otherwise).wants_context


def test_annotations_that_exist_for_type_checkers_only_are_any() -> None:
    def late(ctx: JobContext, thing: OnlyForTypeCheckers, n: int) -> OnlyForTypeCheckers: ...  # type: ignore[no-any-unimported,unused-ignore]

    it = handler(late)
    assert it.wants_context
    assert it.annotations["thing"] is Any


def test_annotation_that_cannot_be_resolved_leaves_the_others() -> None:
    def late(ctx: JobContext, at: dt.datetime, words: list[str], thing: OnlyForTypeCheckers | None = None) -> None: ...  # type: ignore[no-any-unimported,unused-ignore]

    job = Scheduler("memory://").job(late)
    it = job.handler
    assert (it.annotations["at"], it.annotations["words"]) == (dt.datetime, list[str])
    noon = dt.datetime(2024, 5, 17, 12, tzinfo=dt.UTC)
    assert it.loads(CODEC, job.spec(noon, ["a"]).arguments) == ((noon, ["a"], None), {})
    assert it.loads(CODEC, job.spec(noon, ["a"], "x").arguments) == ((noon, ["a"], "x"), {})
    with pytest.raises(InvalidJobTypeError, match=r"words\[0\] must be str, got int"):
        job.spec(noon, [7])
    with pytest.raises(PayloadError) as caught:
        job.spec(noon, [], {1})
    assert str(caught.value) == (
        "$.thing: set is not JSON: its annotation 'OnlyForTypeCheckers | None' cannot be resolved: "
        "define or import OnlyForTypeCheckers in its module, not in a function and not for type checkers alone"
    )


def test_result_that_cannot_be_resolved_is_refused_before_any_work() -> None:
    def report(doc: str) -> OnlyForTypeCheckers: ...  # type: ignore[no-any-unimported,unused-ignore]

    job = Scheduler("memory://").job(report)
    for _ in range(2):
        with pytest.raises(PayloadError, match=r"result of report\(\) has no type: annotation 'OnlyForTypeCheckers'"):
            job.enqueue_sync("doc1")
        with pytest.raises(PayloadError, match="import OnlyForTypeCheckers in its module"):
            job.handler.loads(CODEC, b'{"doc":"doc1"}')


def test_later_defined_name_is_resolved_at_first_use() -> None:
    names: dict[str, Any] = {"attrs": attrs, "dt": dt}
    code = "def work(later: Later, n: int, node: Node | None = None) -> list[Later]: return [later]"
    exec(f"from __future__ import annotations\n{code}", names)
    job = Scheduler("memory://").job(names["work"])
    names["Later"], names["Node"] = dt.date, Point
    day = dt.date(2026, 1, 2)
    assert job.spec(day, 1, Point(1, 2)).arguments == b'{"later":"2026-01-02","n":1,"node":{"x":1,"y":2}}'
    assert job.handler.unresolved == {}
    assert job.handler.load_result(CODEC, job.handler.dump_result(CODEC, [day])) == [day]
    with pytest.raises(InvalidJobTypeError, match="n must be int"):
        job.spec(day, "1")


def test_resolved_annotation_refuses_types_that_were_right_before() -> None:
    names: dict[str, Any] = {}
    exec("from __future__ import annotations\ndef work(later: Later): ...", names)
    job = Scheduler("memory://").job(names["work"])
    job.spec(1)
    names["Later"] = str
    job.handler.resolve()
    for copy in (job, job.using(priority=5)):
        with pytest.raises(InvalidJobTypeError, match="later must be str"):
            copy.spec(1)


def test_class_with_later_defined_field_is_checked_at_first_use(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("later_fields")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    names = vars(module)
    exec('import attrs\n@attrs.frozen\nclass Holder:\n    it: "Later"\ndef work(holder: Holder): ...', names)
    job = Scheduler("memory://").job(names["work"])
    with pytest.raises(PayloadError, match="Holder needs 'Later': define or import Later in its module"):
        job.spec(names["Holder"](1j))
    names["Later"] = complex
    with pytest.raises(PayloadError, match="complex has no JSON"):
        job.spec(names["Holder"](1j))


@for_each(
    "case",
    [
        (dt.datetime | str, "datetime and str cannot be told apart in JSON"),
        (list[Point | str | dt.date], "date and str cannot be told apart"),
        (complex, "complex has no JSON: annotate another type, or register hooks before the job"),
        (Point | complex, "Point and complex cannot be told apart"),
        (complex | None, "complex has no JSON"),
        (dict[bool, int], "bool cannot be the key of a JSON object"),
    ],
)
def test_annotation_that_cannot_travel_is_refused_when_declared(case: tuple[Any, str]) -> None:
    annotation, said = case

    def work(value: Any) -> None: ...

    def give() -> Any: ...

    work.__annotations__["value"] = give.__annotations__["return"] = annotation
    sched = Scheduler("memory://")
    for function, name in ((work, "value"), (give, "result")):
        with pytest.raises(HandlerError) as caught:
            sched.job(function)
        assert f"{function.__name__}(): {name} must have an annotation that travels: {said}" in str(caught.value)
        assert sched.handler(function.__name__) is None


def test_parameter_with_a_default_is_refused_when_it_is_given() -> None:
    def work(doc: str, clock: complex = 1j) -> None: ...

    job = Scheduler("memory://").job(work)
    assert job.handler.loads(CODEC, job.spec("a").arguments)[0][0] == "a"
    with pytest.raises(PayloadError, match=r"\$\.clock: complex has no JSON"):
        job.spec("a", 2j)


# --- calls ---


@pytest.mark.parametrize(
    "args, kwargs, bound",
    [
        (("d",), {}, {"doc": "d"}),
        (("d", "s"), {"n": 2}, {"doc": "d", "section": "s", "n": 2}),
        ((), {"section": "s", "doc": "d"}, {"doc": "d", "section": "s"}),
    ],
)
def test_a_call_is_bound_by_name_without_defaults(args: Any, kwargs: Any, bound: Any) -> None:
    assert handler(plain).bind(args, kwargs) == bound


@pytest.mark.parametrize(
    "args, kwargs", [((), {}), (("a", "b", "c"), {}), (("a",), {"doc": "b"}), (("a",), {"x": 1}), ((), {"n": 1})]
)
def test_mismatched_call_is_refused_naming_the_task(args: Any, kwargs: Any) -> None:
    with pytest.raises(InvalidJobTypeError, match=r"^plain\(\): [^;]*$"):
        handler(plain).bind(args, kwargs)


def test_option_given_as_an_argument_names_its_place() -> None:
    with pytest.raises(InvalidJobTypeError, match=r"'delay'; options go before: plain\.using\(delay=\.\.\.\)$"):
        handler(plain).bind(("a",), {"delay": 5})


def test_signatures_name_every_option_of_declarations_and_calls() -> None:
    assert inspect.signature(Job.using).parameters.keys() - {"self"} == USING
    (declared,) = [each for each in get_overloads(Scheduler.job) if "pool" in inspect.signature(each).parameters]
    of_functions = {"aliases", "claims", "fail_on", "name", "process", "queue_hint", "retry_on", "upgrade", "user"}
    assert inspect.signature(declared).parameters.keys() - {"self", "hint"} == TASK_OPTIONS | of_functions
    for option in POLICY_OPTIONS:
        default = inspect.signature(declared).parameters[option].default
        assert Policy.checked(**{option: default}) == Policy(), option


def test_optional_option_is_reset_by_none() -> None:
    some = JobOptions(id="i", key="k", name="n", service="s", tags=("t",), user="u", delay_ms=5)
    names = ("id", "key", "name", "service", "tags", "user", "delay")
    assert some.changed(**dict.fromkeys(names)) == JobOptions()


@pytest.mark.parametrize(
    "args, kwargs",
    [
        (("d",), {}),
        (("d", 1, 2), {}),
        (("d", 1), {"flag": True, "x": "y"}),
        (("d",), {"doc": "also"}),
    ],
)
def test_any_call_travels_as_it_was(args: Any, kwargs: Any) -> None:
    it = handler(variadic)
    assert it.loads(CODEC, it.dumps(CODEC, it.bind(args, kwargs))) == (args, kwargs)


def test_variadic_argument_travels_by_its_annotation() -> None:
    def work(*days: dt.date, **points: Point) -> None: ...

    day, it = dt.date(2024, 5, 17), handler(work)
    payload = it.dumps(CODEC, it.bind((day, day), {"at": Point(1, 2)}))
    assert it.loads(CODEC, payload) == ((day, day), {"at": Point(1, 2)})
    with pytest.raises(PayloadError, match=r"^\$\.days\[1\]: int cannot be written as date"):
        it.dumps(CODEC, it.bind((day, 7), {}))


def test_variadic_argument_of_a_wrong_plain_type_is_refused() -> None:
    job = Scheduler("memory://").job(variadic)
    with pytest.raises(InvalidJobTypeError, match=r"rest\[1\] must be int, got str"):
        job.spec("d", 1, "2")  # type: ignore[arg-type]
    with pytest.raises(InvalidJobTypeError, match=r"more\['x'\] must be str, got int"):
        job.spec("d", x=1)  # type: ignore[arg-type]


P = ParamSpec("P")
T = TypeVar("T")


class Options(TypedDict):
    n: int


def test_variadic_parameter_of_a_type_parameter_takes_any_json() -> None:
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> None: ...  # type: ignore[valid-type]
    def generic(*args: T) -> None: ...
    def unpacked(**kwargs: Unpack[Options]) -> None: ...
    def untravelling(*args: logging.Logger) -> None: ...

    for function in (wrapped, generic):
        it = Scheduler("memory://").job(name="work")(function).handler
        assert it.loads(CODEC, it.dumps(CODEC, it.bind((1, "a"), {}))) == ((1, "a"), {})
    assert Scheduler("memory://").job(name="work")(unpacked).spec(n=1).arguments == b'{"kwargs":{"n":1}}'
    job = Scheduler("memory://").job(name="work")(untravelling)
    assert job.spec().arguments == b"{}"
    with pytest.raises(PayloadError, match="Logger has no JSON"):
        job.spec(logging.getLogger())


def test_partial_function_uses_annotations_of_its_function() -> None:
    def work(doc: str, day: dt.date) -> dt.date:
        return day

    it = Handler("work", functools.partial(functools.partial(work, "d")))
    day = dt.date(2024, 5, 17)
    assert it.loads(CODEC, it.dumps(CODEC, {"day": day})) == ((day,), {})
    assert it.result_annotations == {"result": dt.date}


def test_upgraded_jobs_leave_nothing_in_the_codec() -> None:
    codec = JsonCodec()
    it = Handler("plain", plain, upgrade=lambda arguments: {"doc": arguments["document"]})
    sizes = set()
    for _ in range(3):
        assert it.loads(codec, b'{"document":"d"}') == (("d", "all"), {})
        sizes.add(len(codec._odd))
    assert len(sizes) == 1


def test_a_default_is_that_of_the_function_that_runs() -> None:
    it = handler(plain)
    assert it.loads(CODEC, b'{"doc":"d","n":3}') == (("d", "all"), {"n": 3})


def test_missing_argument_is_refused_by_name() -> None:
    with pytest.raises(InvalidJobTypeError, match="missing argument 'doc'"):
        handler(plain).loads(CODEC, b"{}")


def rated(
    level: Literal["low", "mid"] | int | None, at: list[Literal[1, 2]] | None = None, when: dt.date | None = None
) -> None: ...


@for_each(
    "case",
    [
        (plain, b'{"doc":"d","x":1}', "$: plain() has no parameter 'x'"),
        (rated, b'{"level":"low","x":1,"when":5}', "$: rated() has no parameter 'x'"),
        (rated, b'{"level":"high"}', "$.level: must be Union[Literal['low', 'mid'], int, NoneType], got another str"),
        (rated, b'{"level":1,"at":[1,3]}', "$.at[1]: must be Literal[1, 2], got another int"),
    ],
)
def test_argument_of_a_later_release_is_unknown_to_this_one(case: tuple[Any, bytes, str]) -> None:
    function, payload, said = case
    with pytest.raises(UnknownToReleaseError) as caught:
        handler(function).loads(CODEC, payload)
    assert str(caught.value).replace("None]", "NoneType]").replace("Optional[Union[", "Union[") == said


@for_each(
    "payload", [b'{"level":[]}', b'{"level":"low","at":["1"]}', b'{"level":"low","at":5}', b'{"level":"low","when":5}']
)
def test_argument_of_a_wrong_type_differs_from_a_later_release(payload: bytes) -> None:
    with pytest.raises(PayloadError) as caught:
        handler(rated).loads(CODEC, payload)
    assert type(caught.value) is PayloadError


def test_arguments_that_fit_a_literal_are_read() -> None:
    assert handler(rated).loads(CODEC, b'{"level":"mid","at":[2,1]}') == (("mid", [2, 1], None), {})
    assert handler(rated).loads(CODEC, b'{"level":null}') == ((None, None, None), {})


def test_upgrade_that_fails_leaves_a_later_release_its_job() -> None:
    it = Handler("plain", plain, upgrade=lambda arguments: {"doc": arguments["document"]})
    with pytest.raises(UnknownToReleaseError, match="has no parameter 'x'"):
        it.loads(CODEC, b'{"doc":"d","x":1}')
    with pytest.raises(KeyError):
        it.loads(CODEC, b"{}")
    assert it.loads(CODEC, b'{"document":"d"}') == (("d", "all"), {})


def test_arguments_over_a_mebibyte_are_refused() -> None:
    it = handler(plain)
    it.dumps(CODEC, {"doc": "x" * ((1 << 20) - 10)})
    with pytest.raises(PayloadError, match="limit 1048576"):
        it.dumps(CODEC, {"doc": "x" * ((1 << 20) - 9)})


def timed(at: dt.datetime, n: int, point: Point | None = None) -> Point | Children:
    return Point(n, n)


def test_templated_arguments_are_stored_unchanged_and_read_by_annotation() -> None:
    it = handler(timed)
    noon = dt.datetime(2024, 5, 17, 12, tzinfo=dt.UTC)
    payload = it.dumps(
        CODEC, {"at": "{{A.at}}", "n": "{{A.n}}", "point": {"x": "{{A.n}}", "y": 2}}, frozenset({"at", "point"})
    )
    assert payload == b'{"at":"{{A.at}}","n":"{{A.n}}","point":{"x":"{{A.n}}","y":2}}'
    filled = payload.replace(b"{{A.at}}", noon.isoformat().encode()).replace(b'"{{A.n}}"', b"1")
    assert it.loads(CODEC, filled) == ((noon, 1, Point(1, 2)), {})
    with pytest.raises(PayloadError, match=r"\$\.at: "):
        it.dumps(CODEC, {"at": "{{A.at}}", "n": 1})


def test_the_other_arguments_are_written_by_their_annotation() -> None:
    it = handler(timed)
    arguments = {"at": "{{A.at}}", "n": 1, "point": Point(1, 2)}
    assert it.dumps(CODEC, arguments, frozenset({"at"})) == b'{"at":"{{A.at}}","n":1,"point":{"x":1,"y":2}}'
    with pytest.raises(PayloadError, match=r"\$\.point: Point is not JSON"):
        it.dumps(CODEC, arguments, frozenset({"at", "point"}))


def test_a_codec_meets_the_same_annotations_for_the_same_names() -> None:
    met: list[Any] = []

    class Codec(JsonCodec):
        def dumps(self, values: Any, annotations: Any, *, bytes_max: int) -> bytes:
            met.append(annotations)
            return super().dumps(values, annotations, bytes_max=bytes_max)

    it, codec = handler(timed), Codec()
    for names in (["at"], ["at", "n"], ["n", "at"], ["at"], []):
        it.dumps(codec, {"n": 1}, frozenset(names))
    assert met[0] is met[3] is not met[1]
    assert met[1] is met[2]
    assert met[4] is it.annotations
    assert met[0] == {**it.annotations, "at": Any}


@pytest.mark.parametrize("mark", [Reference("A", None), template("{{A}}")], ids=repr)
@pytest.mark.parametrize("function", [plain, timed])
def test_a_mark_that_was_not_taken_out_is_no_json(mark: Any, function: Any) -> None:
    it = handler(function)
    for name in it.parameters:
        for value in (mark, [mark], {"a": mark}):
            with pytest.raises(PayloadError):
                it.dumps(CODEC, {name: value})


def test_an_annotation_is_read_without_the_answers() -> None:
    assert handler(timed).result_annotations == {"result": Point}


def test_a_result_travels_and_none_stored_is_none() -> None:
    it = handler(contextual)
    assert it.load_result(CODEC, it.dump_result(CODEC, 5)) == 5
    assert it.load_result(CODEC, None) is None


# --- places ---


@for_each(
    "hint, args, expected",
    [
        (None, ("d",), None),
        ([], ("d",), ()),
        (["doc"], ("d",), ("doc",)),
        (["{doc}"], ("d",), ("d",)),
        (("{doc}", "{section}"), ("d",), ("d", "all")),
        (["{doc}", "{section}"], ("d", "s"), ("d", "s")),
        (["doc-{doc}/{section}!"], ("d", "s"), ("doc-d/s!",)),
        (["{n}"], ("d",), ("0",)),
        (["{{doc}}"], ("d",), ("{doc}",)),
        (["{{{doc}}}"], ("d",), ("{d}",)),
        (["{doc}"], ("{section}",), ("{section}",)),
        (["{doc}"], ("a:b",), ("a:b",)),
        (["{doc}"], (-5,), ("-5",)),
    ],
)
def test_a_template_is_filled_from_the_call(hint: Any, args: Any, expected: Any) -> None:
    assert path(hint, plain, *args) == expected


def test_a_str_subclass_names_a_place_by_its_text() -> None:
    class Liar(str):
        __slots__ = ()

        def __str__(self) -> str:
            return "liar"

    (segment,) = path(["{doc}"], plain, Liar("true"))
    assert (segment, type(segment)) == ("true", str)


@for_each(
    "case",
    [
        (uuid.UUID(int=5), uuid.UUID, "00000000-0000-0000-0000-000000000005"),
        (dt.date(2026, 1, 2), dt.date | None, "2026-01-02"),
        (Rank.HIGH, Rank, "2"),
        (Rank.HIGH, Any, "2"),
        (Word.YES, Word | None, "yes"),
        (7, NewType("Id", int), "7"),
        ("a", Literal["a", b"x"], "a"),
        ("a", Annotated[str, 1], "a"),
    ],
)
def test_place_and_user_use_the_same_text_of_an_argument(case: tuple[Any, Any, str]) -> None:
    value, annotation, text = case

    def work(it: Any) -> None: ...

    work.__annotations__["it"] = annotation
    job = Scheduler("memory://").job(["x", "{it}", "no {it}"], user="u-{it}")(work)
    spec = job.spec(value)
    assert (spec.claims[0].path, spec.user) == (("x", text, f"no {text}"), f"u-{text}")
    again = job.handler.loads(CODEC, spec.arguments)[0][0]
    assert job.spec(again).claims == spec.claims


@for_each(
    "annotation",
    [dt.datetime, bool, float, bytes, Rarity, list[str], dict, Point, None, dt.datetime | None, Literal[b"x"]],
)
def test_parameter_that_names_no_place_is_refused_when_declared(annotation: Any) -> None:
    def work(it: Any) -> None: ...

    work.__annotations__["it"] = annotation
    ways: list[tuple[dict[str, Any], str]] = [
        ({"queue_hint": ["{it}"]}, "pass a callable"),
        ({"user": "{it}"}, "give it by using"),
    ]
    for options, way_out in ways:
        with pytest.raises(HandlerError) as caught:
            Scheduler("memory://").job(**options)(work)
        assert "'it' must be str, int, UUID or date to name a" in str(caught.value)
        assert way_out in str(caught.value)


@pytest.mark.parametrize("value", [1.5, None, True, b"x", ["a"], object()])
def test_an_argument_that_names_no_place_is_refused(value: Any) -> None:
    with pytest.raises(TypeError, match=r"queue_hint: argument 'doc' must be str, int, UUID or date") as caught:
        path(["{doc}"], plain, value)
    assert isinstance(caught.value, InvalidHintError)


@pytest.mark.parametrize("mark", [Reference("A", None).x, template("{{A}}")], ids=repr)
def test_a_result_that_is_not_there_yet_names_no_place(mark: Any) -> None:
    it = handler(plain)
    for hint in (["{doc}"], ["{section}", "{doc}"], ["doc-{doc}"], lambda doc, **_: [doc], lambda doc, **_: doc):
        with pytest.raises(InvalidHintTypeError, match="queue_hint"):
            Placement(hint, it).claims({"doc": mark}, "exclusive")
    with pytest.raises(TypeError):
        Placement(lambda doc, **_: [f"doc-{doc}"], it).claims({"doc": mark}, "exclusive")


@pytest.mark.parametrize("value", ["", "a\nb", "\ud800", "x" * 257, "\u202e"])
def test_an_argument_that_is_no_segment_is_refused(value: str) -> None:
    with pytest.raises(InvalidHintError, match="queue_hint"):
        path(["{doc}"], plain, value)


@for_each(
    "segment, words",
    [
        ("{unknown}", "has no parameter 'unknown'; it has doc, section, n"),
        ("{doc.__class__}", "attributes, indexes and formats"),
        ("{doc[0]}", "attributes, indexes and formats"),
        ("{doc!r}", "attributes, indexes and formats"),
        ("{doc:>5}", "attributes, indexes and formats"),
        ("{0}", "attributes, indexes and formats"),
        ("{}", "attributes, indexes and formats"),
        ("{doc", "expected '}'"),
        ("doc}", "Single '}'"),
        ("{", "Single '{'"),
        ("{doc:{section}}", "attributes, indexes and formats"),
    ],
)
def test_a_template_that_does_not_fit_is_refused_at_import(segment: str, words: str) -> None:
    with pytest.raises(HandlerError, match=r"queue_hint segment") as caught:
        Placement(["x", segment], handler(plain))
    assert words in str(caught.value)


def test_the_context_names_no_place() -> None:
    with pytest.raises(HandlerError, match="no parameter 'ctx'"):
        Placement(["{ctx}"], handler(contextual))


@pytest.mark.parametrize("name", ["rest", "more"])
def test_a_parameter_that_takes_many_values_names_no_place(name: str) -> None:
    with pytest.raises(HandlerError, match=name):
        Placement([f"{{{name}}}"], handler(variadic))


@pytest.mark.parametrize("hint", ["doc", b"doc", {"doc"}, [1], ["a", ""], [None], 5, ["x"] * 65])
def test_malformed_hint_is_refused_at_import(hint: Any) -> None:
    with pytest.raises(InvalidHintError, match="queue_hint"):
        Placement(hint, handler(plain))


def test_a_callable_gets_the_arguments_by_name_defaults_included() -> None:
    seen: dict[str, Any] = {}

    def where(**arguments: Any) -> list[str] | None:
        seen.update(arguments)
        return [arguments["doc"], "x"]

    assert path(where, plain, "d") == ("d", "x")
    assert seen == {"doc": "d", "section": "all", "n": 0}


def test_a_callable_may_say_nowhere_or_the_root() -> None:
    assert path(lambda **_: None, plain, "d") is None
    assert path(lambda **_: [], plain, "d") == ()


@pytest.mark.parametrize("given", ["doc", [1], [""], {"a"}])
def test_a_callable_that_gives_no_hint_is_refused(given: Any) -> None:
    with pytest.raises(InvalidHintError, match="queue_hint"):
        path(lambda **_: given, plain, "d")


def test_a_whole_number_of_too_many_digits_names_no_place() -> None:
    def numbered(n: int) -> None: ...

    assert path(["{n}"], numbered, -(10**254)) == (f"-1{'0' * 254}",)
    for number in (10**256, -(10**5000)):
        with pytest.raises(InvalidHintError, match="'n' is an int of more than 256 digits"):
            path(["{n}"], numbered, number)


def test_lambda_is_refused_as_a_task_without_a_name() -> None:
    sched = Scheduler("memory://")
    with pytest.raises(HandlerError, match="write queue_hint=lambda"):
        sched.job(lambda doc: [doc])
    assert sched.job(queue_hint=lambda doc: [doc])(plain).name == "plain"


def test_codec_of_an_application_writes_and_reads_each_call() -> None:
    class Sealed(JsonCodec):
        def dumps(self, values: Any, annotations: Any, *, bytes_max: int) -> bytes:
            return b"sealed"

        def loads(self, payload: bytes, annotations: Any) -> dict[str, Any]:
            return {"doc": payload.decode()}

    it = handler(plain)
    for codec, written, read in ((JsonCodec(), b'{"doc":"a"}', "a"), (Sealed(), b"sealed", "sealed")) * 2:
        for _ in range(2):
            assert it.dumps(codec, {"doc": "a"}) == written
            assert it.loads(codec, written) == ((read, "all"), {})


def test_complex_annotation_is_used_at_each_encoding() -> None:
    def pay(amount: decimal.Decimal, note: str = "") -> None: ...

    it, codec = handler(pay), JsonCodec()
    for _ in range(2):
        assert it.dumps(codec, {"amount": decimal.Decimal("1.50")}) == b'{"amount":"1.50"}'
        assert it.loads(codec, b'{"amount":"1.50"}') == ((decimal.Decimal("1.50"), ""), {})
        with pytest.raises(PayloadError, match=r"\$\.amount"):
            it.dumps(codec, {"amount": "1.50"})


def test_complex_value_is_refused_each_time_despite_a_plain_annotation() -> None:
    def put(value: Any) -> None: ...

    it, codec = handler(put), JsonCodec()
    for _ in range(2):
        assert it.dumps(codec, {"value": [1, {"a": None}]}) == b'{"value":[1,{"a":null}]}'
        with pytest.raises(PayloadError, match=r"\$\.value"):
            it.dumps(codec, {"value": object()})
        with pytest.raises(PayloadError, match="limit"):
            it.dumps(codec, {"value": "x" * (PAYLOAD_BYTES_MAX + 1)})


@pytest.mark.parametrize("value", ["", "a\nb", "\x7f", "\ud800", "x" * 257, "é" * 129, "\u202e"])
def test_call_that_names_no_segment_is_refused_each_time(value: str) -> None:
    def edit(a: str, b: str) -> None: ...

    place = Placement(["{a}", "{b}"], handler(edit))
    for _ in range(2):
        with pytest.raises(InvalidHintError, match="queue_hint segment 1 "):
            place.claims({"a": "doc", "b": value}, "exclusive")
    assert not place._known.young


@pytest.mark.parametrize("path", [("a", "b"), ("x" * 256, "y" * 256), ("é" * 128, "日本"), ("x" * 128, "y" * 128)])
def test_place_is_worked_out_once(path: tuple[str, str]) -> None:
    def edit(a: str, b: str) -> None: ...

    place = Placement(["{a}", "{b}"], handler(edit))
    arguments = dict(zip("ab", path, strict=True))
    claims = place.claims(arguments, "shared")
    assert claims == (Claim(path, "shared"),)
    assert place.claims(dict(arguments), "shared") is claims
    assert place.claims(arguments, "exclusive") == (Claim(path),)
    known = place._known
    assert known._bytes == 2 * sum(map(len, path))
    known._old, known.young = known.young, {}
    assert place.claims(dict(arguments), "shared") is claims
    assert known.young == {("shared", path): claims}


@pytest.mark.parametrize("size", [120, 250])
def test_places_that_are_remembered_are_bounded_in_bytes(size: int) -> None:
    def edit(a: str, b: str) -> None: ...

    place = Placement(["{a}", "{b}"], handler(edit))
    for number in range(20_000):
        (claim,) = place.claims({"a": f"{number}".ljust(size), "b": "x" * size}, "exclusive")
        assert claim.path[0].startswith(f"{number}")
    known = place._known
    text = sum(len(segment) for kept in (known.young, known._old) for _, path in kept for segment in path)
    assert 768 << 10 <= text <= (2 * 768 << 10) + 1000


# --- whose a job is ---


def users(text: Any, **arguments: Any) -> str | None:
    """Return the user of a call of a task that has this text as its user."""
    sched = Scheduler("memory://", check_arguments=False)

    @sched.job(user=text)
    def edit(author: Any, team: Any = "red") -> None: ...

    return edit.spec(**arguments).user


def test_user_template_is_filled_like_a_place() -> None:
    assert users("{author}", author="ann") == "ann"
    assert users("{team}-{author}", author=7) == "red-7"
    assert users("{{x}}", author="ann") == "{x}"
    assert users("batch", author="ann") == "batch"
    assert users(None, author="ann") is None
    assert users("{author}", author=None) is None


@for_each(
    "case",
    [
        ({"author": 1.5}, "user: argument 'author' must be str, int, UUID or date to name a user, got float"),
        ({"author": True}, "user: argument 'author' must be str, int, UUID or date to name a user, got bool"),
        (
            {"author": None, "team": ""},
            "user: argument 'author' must be str, int, UUID or date to name a user, got NoneType",
        ),
        ({"author": 10**300}, "user: argument 'author' is an int of more than 256 digits"),
        ({"author": "a" * 300}, "user is 30. bytes, limit 256"),
        ({"author": "a\n"}, "user holds a control character"),
    ],
)
def test_malformed_user_template_is_refused_by_parameter(case: tuple[dict[str, Any], str]) -> None:
    arguments, told = case
    with pytest.raises(InvalidJobError, match=told):
        users("{author}{team}", **arguments)


def test_a_user_template_is_checked_against_the_signature() -> None:
    with pytest.raises(HandlerError, match=r"user '\{owner\}': edit has no parameter 'owner'; it has author, team$"):
        users("{owner}", author="ann")
    with pytest.raises(HandlerError, match=r"attributes, indexes and formats are not filled in; give it by using"):
        users("{author.name}", author="ann")
    with pytest.raises(InvalidJobError, match="user is empty"):
        users("", author="ann")
    with pytest.raises(InvalidJobTypeError, match="user must be str, got int"):
        users(5, author="ann")


def test_using_names_a_literal_user_and_keeps_other_templates() -> None:
    sched = Scheduler("memory://")

    @sched.job(user="{author}")
    def edit(author: str) -> None: ...

    assert edit.using(priority=5).spec("ann").user == "ann"
    assert edit.using(user="{author}").spec("ann").user == "{author}"
    assert edit.using(user=None).spec("ann").user is None
    with sched.flow_sync() as flow:
        assert flow.add(edit, "bob").spec.user == "bob"


def test_method_and_misplaced_context_are_refused_at_registration() -> None:
    class Shop:
        def sell(self, item: str) -> None: ...

    def late(item: str, ctx: JobContext) -> None: ...

    with pytest.raises(HandlerError, match="sell is a method, and `self` cannot be enqueued"):
        Handler("sell", Shop.sell)
    with pytest.raises(HandlerError, match="has to be the first parameter, not 'ctx'"):
        Handler("late", late)
    assert list(Handler("sell", Shop().sell).parameters) == ["item"]


def test_deadlock_error_names_the_call_to_write_instead() -> None:
    error = WouldDeadlockError("result_sync()", "a", where="on the thread of the workers' loop")
    assert "write `await result()` instead" in str(error)
    assert "`async with sched.exclusive(...)`" in str(
        WouldDeadlockError("exclusive_sync()", where="on the thread of x")
    )
