"""Drawings of flows, and names that try to be more than a label."""

from __future__ import annotations

import json
import re
from typing import Any

import attrs
import pytest

from queuehint import InvalidJobError, InvalidJobTypeError
from queuehint.cli.graph import _jobs
from queuehint.client.flows.graph import FlowEdge, FlowGraph, FlowNode, draw
from queuehint.testing.driver import Queue, job
from queuehint.values.record import JobState
from queuehint.values.spec import CHILDREN_TASK, Dependency, JobSpec
from tests.each import for_each

EVIL = [
    '"]; click n0 "javascript:alert(1)"',
    "a]-->b",
    "x;y",
    "%%{init: {}}%%",
    "#quot;",
    "<script>alert(1)</script>",
    "`md`",
    'a"b',
    "a\\",
    "\\N\\G\\l",
    "&lt;b&gt;",
    "a\u2028b",
    "end",
    "}",
    "subgraph",
    "—é中",
]


def small() -> FlowGraph:
    return FlowGraph(
        "f1",
        (
            FlowNode("1", "extract", "extract", JobState.FINISHED),
            FlowNode("2", "load-2", "load", JobState.DEFERRED),
            FlowNode("x", "x"),
        ),
        (FlowEdge("1", "2", data=True), FlowEdge("x", "2", "failure")),
    )


def test_a_flow_is_drawn_for_mermaid() -> None:
    assert small().mermaid().splitlines() == [
        "flowchart LR",
        '    n0["extract<br>FINISHED"]:::FINISHED',
        '    n1["load-2<br>load<br>DEFERRED"]:::DEFERRED',
        '    n2["x"]:::elsewhere',
        "    n0 ==> n1",
        "    n2 -->|failure| n1",
        "    classDef FINISHED fill:#d3f2d3",
        "    classDef DEFERRED fill:#e8e8e8",
        "    classDef elsewhere fill:#ffffff,stroke-dasharray:4",
    ]


def test_a_flow_is_drawn_for_graphviz() -> None:
    assert small().dot().splitlines() == [
        'digraph "f1" {',
        "    rankdir=LR;",
        "    node [shape=box];",
        '    n0 [label="extract\\nFINISHED", style=filled, fillcolor="#d3f2d3"];',
        '    n1 [label="load-2\\nload\\nDEFERRED", style=filled, fillcolor="#e8e8e8"];',
        '    n2 [label="x", style=dashed];',
        "    n0 -> n1 [penwidth=2];",
        '    n2 -> n1 [label="failure"];',
        "}",
    ]


def test_a_flow_is_told_as_json() -> None:
    told = json.loads(small().json())
    assert told["flow"] == "f1"
    assert told["nodes"][1] == {"id": "2", "name": "load-2", "task": "load", "state": "DEFERRED"}
    assert told["nodes"][2] == {"id": "x", "name": "x", "task": None, "state": None}
    assert told["edges"] == [
        {"source": "1", "target": "2", "when": "success", "data": True},
        {"source": "x", "target": "2", "when": "failure", "data": False},
    ]


def test_children_are_drawn_below_the_jobs_that_made_them() -> None:
    queue = Queue(job("a", flow="f", name="split"), job("b", flow="f", after="a"))
    queue.start()
    made_by_a = [*[job(f"a.{n}") for n in range(3)], job("last", after=["a.0"]), job("same", flow="f"), job("all")]
    tasks = {"all": CHILDREN_TASK, "last": "sum"}
    queue.enqueue_from("a", *[attrs.evolve(spec, task=tasks.get(spec.id, "part"), parent="a") for spec in made_by_a])
    records = [queue.record(each) for each in ("a", "b", "same")]
    children = [queue.record(each) for each in ("a.0", "a.1", "a.2", "last", "all")]
    graph = draw("f", records, children, is_whole=False)
    assert [node.id for node in graph.nodes] == ["a", "b", "same", "a.0", "a.1", "a.2", "last"]
    made = [FlowEdge("a", each, child=True) for each in ("same", "a.0", "a.1", "a.2", "last")]
    assert sorted(graph.edges, key=str) == sorted([FlowEdge("a", "b"), FlowEdge("a.0", "last"), *made], key=str)
    assert "n0 -.->|child| n3" in graph.mermaid()
    assert 'n0 -> n3 [style=dotted, label="child"];' in graph.dot()
    told = json.loads(graph.json())
    assert told["is_whole"] is False
    assert {"source": "a", "target": "a.1", "when": "success", "data": False, "child": True} in told["edges"]
    assert "child" not in next(edge for edge in told["edges"] if edge["target"] == "b")
    assert (1, "a.1  QUEUED  part  child") in [(depth, text.plain) for depth, text in _jobs(graph, 1)]
    grouped = graph.grouped(1)
    assert not grouped.is_whole
    assert {node.name for node in grouped.nodes} >= {"part x 3"}


def test_dependents_and_children_of_a_task_are_drawn_apart() -> None:
    nodes = tuple([FlowNode(name, name, "t", JobState.QUEUED) for name in ("b", "c", "d", "e")])
    head = FlowNode("a", "a", "head", JobState.FINISHED)
    edges = (*[FlowEdge("a", each) for each in "bc"], *[FlowEdge("a", each, child=True) for each in "de"])
    assert [node.name for node in FlowGraph("f", (head, *nodes), edges).grouped(1).nodes] == ["a", "t x 2", "t x 2"]


def test_equal_jobs_are_drawn_as_one() -> None:
    loads = [FlowNode(f"l{n}", f"l{n}", "load", JobState.FAILED if 2 < n < 5 else JobState.FINISHED) for n in range(14)]
    odd = FlowNode("odd", "odd", "load", JobState.FINISHED)
    nodes = (FlowNode("head", "head", "read"), *loads, odd, FlowNode("sum", "sum", "sum", JobState.DEFERRED))
    edges = [edge for load in loads for edge in (FlowEdge("head", load.id), FlowEdge(load.id, "sum"))]
    graph = FlowGraph("f", nodes, (*edges, FlowEdge("odd", "sum", "done")))

    grouped = graph.grouped()

    assert [node.name for node in grouped.nodes] == ["head", "load x 14", "odd", "sum"]
    assert [(edge.source, edge.target) for edge in grouped.edges] == [("head", "l0"), ("l0", "sum"), ("odd", "sum")]
    assert grouped.nodes[1].states == {JobState.FAILED: 2, JobState.FINISHED: 12}
    assert 'n1["load x 14<br>2 FAILED, 12 FINISHED"]:::FAILED' in grouped.mermaid()
    assert 'label="load x 14\\n2 FAILED, 12 FINISHED"' in grouped.dot()
    assert json.loads(grouped.json())["nodes"][1]["states"] == {"FAILED": 2, "FINISHED": 12}
    assert graph.grouped(14) == graph


@pytest.mark.slow
def test_import_of_40_001_jobs_is_drawn_on_a_page() -> None:
    rows = range(20_000)
    states = {n: JobState.FAILED if n % 2_000 == 7 else JobState.FINISHED for n in rows}
    nodes = [FlowNode(f"c{n}", f"c{n}", "check", JobState.FINISHED) for n in rows]
    nodes += [FlowNode(f"l{n}", f"l{n}", "load", states[n]) for n in rows]
    edges = [edge for n in rows for edge in (FlowEdge(f"c{n}", f"l{n}", data=True), FlowEdge(f"l{n}", "sum", "done"))]
    graph = FlowGraph("f", (*nodes, FlowNode("sum", "sum", "sum", JobState.QUEUED)), tuple(edges))

    grouped = graph.grouped()

    assert [(node.name, dict(node.states)) for node in grouped.nodes] == [
        ("check x 20000", {JobState.FINISHED: 20_000}),
        ("load x 20000", {JobState.FINISHED: 19_990, JobState.FAILED: 10}),
        ("sum", {}),
    ]
    assert grouped.edges == (FlowEdge("c0", "l0", "success", True), FlowEdge("l0", "sum", "done"))
    assert len(grouped.mermaid().splitlines()) < 12


def chain(tasks: list[str]) -> FlowGraph:
    nodes = [FlowNode(f"j{n}", f"j{n}", task, JobState.QUEUED) for n, task in enumerate(tasks)]
    return FlowGraph("f", tuple(nodes), tuple([FlowEdge(f"j{n}", f"j{n + 1}") for n in range(len(tasks) - 1)]))


@pytest.mark.slow
def test_sequential_jobs_are_merged_only_in_a_large_flow() -> None:
    tasks = ["first", *["step"] * 30, "between", *["step"] * 30, "last"]
    grouped = chain(tasks).grouped()
    assert [node.name for node in grouped.nodes] == ["j0", "step x 30", "j31", "step x 30", "j62"]
    assert [edge.target for edge in grouped.edges] == ["j1", "j31", "j32", "j62"]
    assert chain(tasks).grouped(nodes=63) == chain(tasks)
    assert len(chain(["step"] * 40_001).grouped().nodes) == 1


def test_a_page_is_a_page_whatever_the_flow_is() -> None:
    for tasks, names in (
        (["a", "b"] * 40, 10),
        ([f"t{n}" for n in range(300)], 50),
        ([f"t{n}" for n in range(50)], 50),
        ([f"t{n % 60}" for n in range(600)], 50),
    ):
        graph = chain(tasks)
        grouped = graph.grouped()
        assert len(grouped.nodes) == names
        assert sum(node.count for node in grouped.nodes) == len(tasks)
        assert all(sum(node.states.values()) == node.count for node in grouped.nodes if node.count > 1)
        assert all(edge.source != edge.target for edge in grouped.edges)
        assert {edge.source for edge in grouped.edges} <= {node.id for node in grouped.nodes}
        assert len(graph.grouped(nodes=1).nodes) == 1
    assert grouped.nodes[0].name == "t0 x 10"
    assert chain([f"t{n}" for n in range(300)]).grouped().nodes[-1].name == "other jobs x 251"


def test_rows_of_documents_of_any_size_are_drawn_alike() -> None:
    nodes, edges = [], []
    for doc in range(30):
        pages = [FlowNode(f"p{doc}.{n}", "p", "page", JobState.QUEUED) for n in range(1 + doc)]
        nodes += [FlowNode(f"s{doc}", "s", "split", JobState.FINISHED), *pages, FlowNode(f"j{doc}", "j", "join")]
        edges += [edge for page in pages for edge in (FlowEdge(f"s{doc}", page.id), FlowEdge(page.id, f"j{doc}"))]
    nodes += [FlowNode(f"p{n}", "p", "page", JobState.QUEUED) for n in range(20)]
    grouped = FlowGraph("f", tuple(nodes), tuple(edges)).grouped()
    assert [node.name for node in grouped.nodes] == ["split x 30", "page x 465", "join x 30", "page x 20"]
    assert len(grouped.edges) == 2


@pytest.mark.parametrize(
    "most, nodes, named", [(0, 50, "most"), (10, 0, "nodes"), ("10", 50, "most"), (1, 2.0, "nodes")]
)
def test_bounds_of_a_drawing_are_checked(most: Any, nodes: Any, named: str) -> None:
    with pytest.raises((InvalidJobError, InvalidJobTypeError), match=named):
        small().grouped(most, nodes)


def test_nodes_that_wait_for_one_another_are_printed_each() -> None:
    nodes = tuple([FlowNode(name, name, name, JobState.QUEUED) for name in "abcd"])
    graph = FlowGraph("f", nodes, (FlowEdge("a", "b"), FlowEdge("b", "a"), FlowEdge("b", "d"), FlowEdge("c", "d")))
    assert [(depth, text.plain) for depth, text in _jobs(graph, 20)] == [
        (0, "c  QUEUED"),
        (1, "d  QUEUED"),
        (0, "a  QUEUED"),
        (1, "b  QUEUED"),
        (2, "a  QUEUED  see above"),
        (2, "d  QUEUED"),
    ]


def test_every_state_has_a_color() -> None:
    graph = FlowGraph("f", tuple(FlowNode(state, state, "t", state) for state in JobState), ())
    assert graph.mermaid().count("classDef") == len(JobState)
    assert graph.dot().count("fillcolor") == len(JobState)


@for_each("text", EVIL)
def test_a_name_is_never_more_than_a_label(text: str) -> None:
    def drawn(name: str) -> FlowGraph:
        return FlowGraph(
            name, (FlowNode(name, name, name, JobState.QUEUED), FlowNode("b", "b")), (FlowEdge("b", name),)
        )

    quoted = r'"(?:[^"\\]|\\.)*"'
    assert re.sub(quoted, "", drawn(text).dot()) == re.sub(quoted, "", drawn("plain").dot())
    assert re.sub(r'"[^"]*"', "", drawn(text).mermaid()) == re.sub(r'"[^"]*"', "", drawn("plain").mermaid())
    label = drawn(text).mermaid().splitlines()[1].split('"')[1].split("<br>")[0]
    assert re.fullmatch(r"(?:[\w _\-.,/()]|#\d+;)*", label)
    assert re.sub(r"#(\d+);", lambda code: chr(int(code[1])), label) == text
    told = drawn(text).json()
    assert json.loads(told)["nodes"][0]["name"] == text
    assert not set("<>&\u2028") & set(told)


def test_the_dot_label_reads_back_as_the_name() -> None:
    for text in EVIL:
        line = FlowGraph("f", (FlowNode("a", text),), ()).dot().splitlines()[3]
        label = re.fullmatch(r'    n0 \[label="(.*)", style=dashed\];', line)
        assert label is not None
        plain = re.sub(r"\\(.)", r"\1", label[1])
        assert re.sub(r"&#(\d+);", lambda code: chr(int(code[1])), plain) == text


def test_a_flow_is_drawn_from_its_records() -> None:
    def spec(job_id: str, *after: Any, **fields: Any) -> JobSpec:
        return job(job_id, flow="f", depends_on=tuple(after), **fields)

    queue = Queue(job("outside"))
    queue.enqueue(
        spec("1", name="extract"),
        spec("2", Dependency("1", "done"), Dependency("outside", data=True), name="load"),
        spec("3", Dependency("outside")),
    )
    records = [queue.record(job_id) for job_id in "123"]
    graph = draw("f", records)
    assert [(node.id, node.name, node.state) for node in graph.nodes] == [
        ("1", "extract", JobState.QUEUED),
        ("2", "load", JobState.DEFERRED),
        ("3", "3", JobState.DEFERRED),
        ("outside", "outside", None),
    ]
    assert graph.edges == (
        FlowEdge("1", "2", "done", False),
        FlowEdge("outside", "2", "success", True),
        FlowEdge("outside", "3"),
    )
