"""Arguments are checked against plain annotations where a job is enqueued."""

from __future__ import annotations

import datetime as dt
import enum
import uuid
from collections import defaultdict
from collections.abc import Sequence
from typing import Annotated, Any, Literal, NewType, Optional, Union

import pytest

from queuehint import InvalidJobTypeError, Scheduler, template
from queuehint.handlers.arguments import check_of
from tests.each import for_each

Name = NewType("Name", str)


class Colour(enum.StrEnum):
    RED = "red"


class Level(enum.IntEnum):
    LOW = 1


FITS: list[tuple[Any, list[Any]]] = [
    (str, ["", "a", Colour.RED]),
    (int, [0, -1, 10**30, True, Level.LOW]),
    (float, [0.5, 1, True]),
    (bool, [True, False]),
    (None, [None]),
    (list, [[], [1, "a"], (1,)]),
    (tuple, [(), [1]]),
    (dict, [{}, {"a": 1}, defaultdict(int)]),
    (list[str], [[], ["a"], ("a", "b")]),
    (list[int], [[1, True]]),
    (list[float], [[1, 0.5]]),
    (list[Any], [[], [{}, None, set()]]),
    (dict[str, int], [{}, {"a": 1}, {Colour.RED: True}]),
    (dict[str, object], [{"a": set()}]),
    (dict[int, str], [{1: "a"}, {Level.LOW: "b"}]),
    (tuple[int, ...], [(), (1, 2), [1]]),
    (tuple[int, str], [(1, "a"), [1, "a"]]),
    (tuple[()], [()]),
    (str | None, ["a", None]),
    (Optional[int], [1, None]),  # noqa: UP045 - the older way to write it
    (Union[str, list[int]], ["a", [1], []]),  # noqa: UP007 - the older way to write it
    (Literal["a", 1] | None, ["a", 1, None]),
    (Literal["red"], [Colour.RED]),
    (list[dict[str, list[int | None]]], [[], [{"a": [1, None]}, {}]]),
]
MISFITS: list[tuple[Any, Any, str]] = [
    (str, 7, "x must be str, got int"),
    (str, None, "x must be str, got NoneType"),
    (str, b"a", "x must be str, got bytes"),
    (str, uuid.UUID(int=1), "x must be str, got UUID"),
    (int, "3", "x must be int, got str"),
    (int, 3.0, "x must be int, got float"),
    (float, "0.5", "x must be float, got str"),
    (bool, 1, "x must be bool, got int"),
    (bool, "yes", "x must be bool, got str"),
    (None, 0, "x must be None, got int"),
    (list, "abc", "x must be list, got str"),
    (list, {1}, "x must be list, got set"),
    (dict, [], "x must be dict, got list"),
    (list[str], "abc", "x must be list[str], got str"),
    (list[str], ["a", 1], "x[1] must be str, got int"),
    (list[list[int]], [[], [1, 2, None]], "x[1][2] must be int, got NoneType"),
    (dict[str, int], {"a": "b"}, "x['a'] must be int, got str"),
    (dict[str, int], {1: 1}, "x's key 1 must be str, got int"),
    (dict[int, str], {"1": "a"}, "x's key '1' must be int, got str"),
    (dict[str, list[int]], {"a": [1], "b": [1, "c"]}, "x['b'][1] must be int, got str"),
    (tuple[int, ...], (1, "a"), "x[1] must be int, got str"),
    (tuple[int, str], (1, 2), "x[1] must be str, got int"),
    (tuple[int, str], (1, "a", 2), "x must be tuple[int, str], got 3 items"),
    (str | None, 5, "x must be str | None, got int"),
    (list[str] | None, ["a", 5], "x[1] must be str, got int"),
    (Literal["a", "b"], "c", "x must be Literal['a', 'b'], got another str"),
    (Literal["a", 1], True, "x must be Literal['a', 1], got bool"),
    (Literal["a"], 5, "x must be Literal['a'], got int"),
]
OTHER = [
    Any, object, dt.datetime, uuid.UUID, Colour, Name, Annotated[str, "short"], Sequence[str], list[dt.date], set[str],
    dict[uuid.UUID, int], dict[str, dt.date], tuple[dt.date, ...], tuple[int, dt.date], str | dt.date,
    Literal[Colour.RED], bytes, complex, type, "unresolved",
]  # fmt: skip


@for_each("case", FITS)
def test_values_of_their_annotation_fit(case: tuple[Any, list[Any]]) -> None:
    annotation, values = case
    check = check_of(annotation)
    assert check is not None
    assert all(type(value) in check.sure or check.fits(value) for value in values)
    assert not any(type(value) in check.sure for value in (set(), b"", object()))


@for_each("case", MISFITS)
def test_a_misfit_is_refused_by_parameter_place_and_type(case: tuple[Any, Any, str]) -> None:
    annotation, value, told = case
    sched = Scheduler("memory://")

    def work(x: Any) -> None: ...

    work.__annotations__["x"] = annotation
    job = sched.job(work)
    with pytest.raises(InvalidJobTypeError) as caught:
        job.enqueue_sync(value)
    assert str(caught.value) == f"work(): {told}"
    assert sched.stats_sync().enqueued == 0


@for_each("annotation", OTHER)
def test_check_of_complex_annotations_is_none(annotation: Any) -> None:
    assert check_of(annotation) is None


sched = Scheduler("memory://")


@sched.job(queue_hint=["{doc}"])
def edit(doc: str, words: str = "", n: int = None, odd: int = "none", *rest: int, **more: int) -> None:  # type: ignore[assignment]  # noqa: RUF013
    """Take what its annotations do not say, too."""


def test_defaults_are_right_whatever_the_annotation() -> None:
    edit.spec("d", n=None)  # type: ignore[arg-type]
    edit.spec("d", odd="any")  # type: ignore[arg-type]
    edit.spec("d", "w", 1, 2, 3, more=4)
    with pytest.raises(InvalidJobTypeError, match=r"edit\(\): rest\[0\] must be int, got str"):
        edit.spec("d", "w", 1, 2, "rest")  # type: ignore[arg-type]
    with pytest.raises(InvalidJobTypeError, match=r"edit\(\): n must be (int \| None|Optional\[int\]), got str"):
        edit.spec("d", n="1")  # type: ignore[arg-type]


def test_each_way_to_enqueue_checks() -> None:
    calls: list[Any] = [("d",), {"doc": "d", "words": 7}]
    with pytest.raises(InvalidJobTypeError, match=r"^calls\[1\]: edit\(\): words must be str, got int$"):
        edit.enqueue_many_sync(calls)
    with pytest.raises(InvalidJobTypeError, match="words must be str"), sched.flow_sync() as flow:
        flow.add(edit, "d", 7)  # type: ignore[arg-type]
    with pytest.raises(InvalidJobTypeError, match="doc must be str"):
        sched.run_sync(edit, doc=7)
    with pytest.raises(InvalidJobTypeError, match="doc must be str"):
        sched.schedule_sync("s", edit, every=60, args=[7])
    assert sched.stats_sync().enqueued == 0


def test_reference_and_template_arguments_are_not_checked() -> None:
    with sched.flow_sync() as flow:
        node = flow.add(edit, "d")
        flow.add(edit, "d", node.out)  # type: ignore[arg-type]
        flow.add(edit.using(after=[node]), "d", words=template("{{edit}}"))


def test_check_can_be_disabled_by_scheduler_task_or_call() -> None:
    lax = Scheduler("memory://", check_arguments=False)

    @lax.job
    def loose(words: str) -> None: ...

    @lax.job(check_arguments=True)
    def strict(words: str) -> None: ...

    loose.spec(7)  # type: ignore[arg-type]
    with pytest.raises(InvalidJobTypeError, match=r"strict\(\): words must be str, got int"):
        strict.spec(7)  # type: ignore[arg-type]
    strict.using(check_arguments=False).using(priority=5).spec(7)  # type: ignore[arg-type]
    with pytest.raises(InvalidJobTypeError, match="check_arguments must be"):
        Scheduler("memory://", check_arguments="no")  # type: ignore[arg-type]
    with pytest.raises(InvalidJobTypeError, match="check_arguments must be"):
        loose.using(check_arguments=None)  # type: ignore[arg-type]


def test_each_value_is_checked_despite_valid_values_of_its_type() -> None:
    sched = Scheduler("memory://")

    @sched.job()
    def paint(colour: Literal["red", "blue"], times: int = 1) -> None: ...

    paint.spec("red", 2)
    paint.spec("blue", 2)
    with pytest.raises(InvalidJobTypeError, match="colour must be Literal"):
        paint.spec("green", 2)  # type: ignore[arg-type]
    with pytest.raises(InvalidJobTypeError, match="times must be int"):
        paint.spec("red", "2")  # type: ignore[arg-type]
