"""Dependency results: how they are fetched and decoded."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from queuehint import BackendUnavailableError, CorruptStateError, JsonCodec, PayloadError, TemplateError
from queuehint import operations as op
from queuehint.testing.driver import job
from queuehint.values.outcome import Grant
from queuehint.values.record import JobState
from queuehint.values.spec import Dependency
from queuehint.worker import dependency_results as inputs_module
from queuehint.worker.dependency_results import DependencyResults, fetch, filled

FINISHED = JobState.FINISHED

CODEC = JsonCodec()


class Store:
    """Answers `Fetch` from a table of states and results, so many at a time."""

    def __init__(self, table: Mapping[str, Any] | None = None, *, at_once: int = op.FETCH_MAX) -> None:
        self.table = table or {}
        self.at_once = at_once
        self.asked: list[op.Fetch] = []
        self.verdict = op.Verdict.DONE

    async def __call__(self, operation: Any) -> Any:
        assert len(operation.ids) <= op.FETCH_MAX
        self.asked.append(operation)
        if self.verdict is not op.Verdict.DONE:
            return op.Fetched(self.verdict, ())
        return op.Fetched(
            op.Verdict.DONE, tuple([self.table.get(each, (None, None)) for each in operation.ids[: self.at_once]])
        )


def finished(value: str) -> tuple[JobState, bytes]:
    return FINISHED, f'{{"result":{value}}}'.encode()


def get(store: Callable[[Any], Any], *edges: Dependency, all_of_them: bool = True) -> DependencyResults | None:
    grant = Grant(job("j", depends_on=edges), token=3, attempt=1, losses=0, lease_until_ms=0)
    return asyncio.run(fetch(store, grant, CODEC, all_of_them=all_of_them))  # type: ignore[arg-type]


def results(payloads: Mapping[str, bytes | None], *edges: Dependency) -> DependencyResults:
    return DependencyResults(edges, payloads, CODEC)


# --- fetching --------------------------------------------------------------------------------------------------------


def test_results_contain_only_finished_dependencies() -> None:
    table: Any = {
        "a": finished("1"),
        "b": (FINISHED, None),
        "c": (JobState.FAILED, None),
        "d": (JobState.CANCELED, None),
        "e": (None, None),
    }
    store = Store(table)
    found = get(store, *map(Dependency, "abcde"))
    assert found is not None
    assert dict(found) == {"a": 1, "b": None}
    assert store.asked == [op.Fetch("j", 3, ("a", "b", "c", "d", "e"))]


def test_many_results_come_in_pages() -> None:
    ids = [f"d{n}" for n in range(250)]
    store = Store({job_id: finished(f'"{job_id}"') for job_id in ids})
    found = get(store, *map(Dependency, ids))
    assert found is not None
    assert list(found.items()) == [(job_id, job_id) for job_id in ids]
    assert [len(operation.ids) for operation in store.asked] == [100, 100, 50]


def test_rest_of_a_truncated_page_is_fetched() -> None:
    ids = [f"d{n}" for n in range(120)]
    store = Store({job_id: finished("0") for job_id in ids}, at_once=30)
    found = get(store, *map(Dependency, ids))
    assert found is not None
    assert len(found) == 120
    assert [operation.ids[0] for operation in store.asked] == ["d0", "d30", "d60", "d90"]


def test_results_too_large_together_are_refused_on_access(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs_module, "RESULTS_BYTES_MAX", 30)
    store = Store({"a": finished("1"), "b": finished("2")})
    assert get(store, Dependency("a"), Dependency("b")) is not None
    store = Store({"a": finished("1"), "b": finished('"much more"')})
    found = get(store, Dependency("a", name="first"), Dependency("b"))
    assert found is not None
    assert repr(found) == "<DependencyResults of nothing>"
    reads: list[Callable[[], object]] = [
        lambda: found["a"],
        lambda: found["first"],
        lambda: "b" in found,
        lambda: list(found),
        lambda: len(found),
    ]
    for read in reads:
        with pytest.raises(PayloadError, match="more than 30 bytes together"):
            read()
    assert "other" not in found


def test_results_for_the_arguments_are_there_beside_too_large_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs_module, "RESULTS_BYTES_MAX", 30)
    store = Store({"a": finished('"much much more"'), "b": finished("2"), "c": finished('"much more"')})
    found = get(store, Dependency("a"), Dependency("b", data=True))
    assert found is not None
    assert found["b"] == 2
    with pytest.raises(PayloadError):
        found["a"]
    with pytest.raises(PayloadError, match="arguments are made of take more than 30 bytes together"):
        get(store, Dependency("a", data=True), Dependency("c", data=True))
    with pytest.raises(PayloadError, match="arguments are made of take more than 30 bytes together"):
        get(store, Dependency("b"), Dependency("c", data=True), Dependency("a", data=True))


def test_results_without_context_fetch_only_template_dependencies() -> None:
    store = Store({"a": finished("1"), "b": finished("2")})
    found = get(store, Dependency("a"), Dependency("b", data=True), all_of_them=False)
    assert found is not None
    assert dict(found) == {"b": 2}
    assert store.asked[0].ids == ("b",)


def test_without_anything_to_ask_for_nothing_is_asked() -> None:
    store = Store()
    assert get(store, Dependency("a"), all_of_them=False) == {}
    assert store.asked == []


def test_an_attempt_that_has_lost_its_job_gets_nothing(caplog: pytest.LogCaptureFixture) -> None:
    store = Store({"a": finished("1")})
    store.verdict = op.Verdict.LOST
    assert get(store, Dependency("a")) is None
    assert not caplog.records


@pytest.mark.parametrize("error", [BackendUnavailableError("gone"), CorruptStateError("odd")])
def test_unavailable_store_is_left_alone_for_a_while(
    error: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    slept: list[float] = []

    async def sleep(delay_s: float) -> None:
        slept.append(delay_s)

    async def store(operation: Any) -> Any:
        raise error

    monkeypatch.setattr(asyncio, "sleep", sleep)
    with caplog.at_level(logging.WARNING, "queuehint.worker"):
        assert get(store, Dependency("a")) is None
    assert slept == [1.0]
    (line,) = caplog.records
    assert (line.__dict__["event"], line.__dict__["job_id"]) == ("job.no_results", "j")


def test_store_with_empty_answers_is_not_queried_forever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs_module, "PAUSE_S", 0)
    store = Store(at_once=0)
    assert get(store, Dependency("a")) is None
    assert len(store.asked) == 1


# --- reading ---------------------------------------------------------------------------------------------------------


def test_result_is_known_by_name_and_id_and_listed_once() -> None:
    found = results({"a": b'{"result":1}', "b": b'{"result":2}'}, Dependency("a", name="head"), Dependency("b"))
    assert (found["head"], found["a"], found["b"]) == (1, 1, 2)
    assert list(found) == ["head", "b"]
    assert len(found) == 2
    assert dict(found) == {"head": 1, "b": 2}
    assert "a" in found
    assert "c" not in found
    assert found.get("c") is None
    with pytest.raises(KeyError):
        found["c"]


def test_name_takes_precedence_over_an_id_even_without_result() -> None:
    edges = (Dependency("a"), Dependency("b", name="a"))
    found = results({"a": b'{"result":1}', "b": b'{"result":2}'}, *edges)
    assert dict(found) == {"a": 2}
    assert found["b"] == 2
    assert dict(results({"a": b'{"result":1}'}, *edges)) == {}


def test_the_first_of_two_results_with_one_name_has_it() -> None:
    found = results({"a": b'{"result":1}', "b": b'{"result":2}'}, Dependency("a", name="x"), Dependency("b", name="x"))
    assert (found["x"], found["a"], found["b"]) == (1, 1, 2)
    assert list(found) == ["x", "b"]


def test_results_are_read_only_and_say_no_values() -> None:
    found = results({"a": b'{"result":"secret"}'}, Dependency("a", name="head"))
    assert repr(found) == "<DependencyResults of head>"
    assert repr(results({})) == "<DependencyResults of nothing>"
    with pytest.raises(TypeError):
        found["head"] = 1  # type: ignore[index]


def test_result_is_decoded_once_on_first_access() -> None:
    found = results({"a": b"not JSON", "b": b'{"result":[1]}', "c": b"{}", "d": None}, *map(Dependency, "abcd"))
    assert found["b"] is found["b"]
    assert (found["c"], found["d"]) == (None, None)
    with pytest.raises(PayloadError, match="is not JSON"):
        found["a"]


# --- filling ---------------------------------------------------------------------------------------------------------


def test_the_arguments_are_filled_and_written_as_json() -> None:
    spec = job("j", arguments=b'{"n":"{{head.n}}","text":"{{head}}"}', templates=("/n",))
    found = results({"a": b'{"result":{"n":5}}'}, Dependency("a", name="head"))
    assert filled(spec, found, CODEC) == b'{"n":5,"text":"{{head}}"}'


def test_a_result_that_cannot_be_read_is_no_argument() -> None:
    spec = job("j", arguments=b'{"n":"{{a}}"}', templates=True)
    with pytest.raises(PayloadError, match="is not JSON"):
        filled(spec, results({"a": b"?"}, Dependency("a")), CODEC)
    with pytest.raises(TemplateError, match="a has no result; there are results of: nothing"):
        filled(spec, results({}, Dependency("a")), CODEC)


def test_filled_arguments_take_at_most_a_mebibyte() -> None:
    spec = job("j", arguments=b'{"n":"{{a}}"}', templates=True)
    most = b'"' + b"x" * ((1 << 20) - 8) + b'"'
    assert len(filled(spec, results({"a": b'{"result":' + most + b"}"}, Dependency("a")), CODEC)) == 1 << 20
    more = b'"' + b"x" * ((1 << 20) - 7) + b'"'
    with pytest.raises(PayloadError, match="more than 1048576 bytes"):
        filled(spec, results({"a": b'{"result":' + more + b"}"}, Dependency("a")), CODEC)
