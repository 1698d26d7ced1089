"""Drawings of flows, and names that try to be more than a label."""

from __future__ import annotations

import json
import re
from typing import Any

from queuehint.client.flows.graph import FlowEdge, FlowGraph, FlowNode, draw
from queuehint.testing.driver import Queue, job
from queuehint.values.record import JobState
from queuehint.values.spec import Dependency, JobSpec
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


def test_equal_jobs_are_drawn_as_one() -> None:
    loads = [FlowNode(f"l{n}", f"l{n}", "load", JobState.FAILED if n < 2 else JobState.FINISHED) for n in range(14)]
    odd = FlowNode("odd", "odd", "load", JobState.FINISHED)
    nodes = (FlowNode("head", "head", "read"), *loads, odd, FlowNode("sum", "sum", "sum", JobState.DEFERRED))
    edges = [edge for load in loads for edge in (FlowEdge("head", load.id), FlowEdge(load.id, "sum"))]
    graph = FlowGraph("f", nodes, (*edges, FlowEdge("odd", "sum", "done")))

    grouped = graph.grouped()

    assert [node.name for node in grouped.nodes] == ["head", "l0", "l1", "load x 12", "odd", "sum"]
    assert [(edge.source, edge.target) for edge in grouped.edges[4:6]] == [("head", "l2"), ("l2", "sum")]
    assert len(grouped.edges) == 7
    assert "load x 12<br>FINISHED" in grouped.mermaid()
    assert graph.grouped(12) == graph


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
