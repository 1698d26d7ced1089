"""
Small parts of operations that print short and collide often.

Paths are over two letters, at most four levels deep, and written as queue keys; jobs have few options.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
from hypothesis import strategies as st

from queuehint.testing.state_machine.styles import FLOWS, LEASE_MS, MINUTE, PATHS, TIMEOUTS_MS
from queuehint.values.hint import COUNTED, Claim, normalise
from queuehint.values.outcome import JobError, OutcomeKind
from queuehint.values.policy import Policy
from queuehint.values.spec import Dependency

if TYPE_CHECKING:
    from queuehint.values.hint import Mode, Path

__all__ = [
    "FOR_CALLERS",
    "KEYED",
    "POLICY",
    "claim_of",
    "claims_of",
    "conditions",
    "delays",
    "edge_of",
    "errors",
    "first_jobs",
    "for_caller",
    "jobs",
    "limits",
    "links",
    "other_ends",
    "path_of",
    "paths",
    "releases",
    "replacing",
    "results",
    "several_jobs",
    "timeouts_ms",
    "times_passed",
    "users",
]

near = st.sampled_from(["a", "a:a", "b", "a:b", "root"])
paths = near | near | st.sampled_from(sorted([":".join(path) or "root" for path in PATHS], key=len))
claims = (
    paths.map(lambda path: [path])
    | near.map(lambda path: [f"~{path}"])
    | st.lists(paths | paths | paths.map("~{}".format), max_size=3)
)
"""Queue keys; shared where one begins with a tilde."""
delays = st.sampled_from([0, 1, MINUTE, 3 * MINUTE])
results = st.sampled_from([None, b"1", b"null", b'"\xc3\xa9"'])
errors = st.sampled_from([None, JobError(type="E", message="no"), JobError(type="é", message="", traceback="\n")])
conditions = st.sampled_from(["success", "success", "success", "data", "failure", "done", "must"])
users = st.sampled_from([None, "u", "v"])
releases = st.sampled_from(["", "one", "two"])
times_passed = st.sampled_from([0, 1, MINUTE, LEASE_MS - 1, LEASE_MS, LEASE_MS + 1, 20 * MINUTE])
_OWN_RULES = {OutcomeKind.FINISHED, OutcomeKind.FAILED, OutcomeKind.CHILDREN}
_UNKNOWN = [OutcomeKind.UNKNOWN_TASK] * 2
other_ends = st.sampled_from([*[kind for kind in OutcomeKind if kind not in _OWN_RULES], *_UNKNOWN])
"""How an attempt ends, in other ways than those with rules of their own; most often its release cannot run it."""

_WISHES: dict[str, st.SearchStrategy[Any]] = {
    "priority": st.sampled_from([9, 1, 5]),
    "user": st.sampled_from(["u", "v"]),
    "pool": st.just("p"),
    "service": st.just("s"),
    "tags": st.sampled_from([("x",), ("x", "y")]),
    "identity": st.sampled_from([("a" * 32,), ("b" * 64, "a" * 32)]),
    "headers": st.sampled_from([(("h", "1"),), (("h", "\t\n"), ("i", ""))]),
    "delay_ms": delays,
    "max_delay_ms": st.sampled_from([2 * MINUTE, MINUTE]),
    "run_in_ms": st.sampled_from([0, -MINUTE, MINUTE]),
    "presence_ms": st.just(3 * MINUTE),
    "permit": st.just(True),
    "key": st.sampled_from("kkl"),
    "on_conflict": st.sampled_from(["replace", "after", "reject"]),
    "flow": st.sampled_from(FLOWS),
    "max_attempts": st.sampled_from([1, 2]),
    "max_losses": st.sampled_from([1, 2]),
    "on_retry": st.just("yield"),
    "on_dead": st.sampled_from(["hold", "cancel_behind"]),
    "on_dependency_failure": st.sampled_from(["cancel", "run"]),
    "max_hold_ms": st.sampled_from([0, 2 * MINUTE]),
    "cost": st.sampled_from([2, 3]),
    "start_within_ms": st.sampled_from([2 * MINUTE, 6 * MINUTE]),
    "key_for_ms": st.sampled_from([MINUTE, 15 * MINUTE]),
    "retention_ms": st.sampled_from([0, 8 * MINUTE, 12 * MINUTE]),
}
wishes = st.lists(st.one_of([st.tuples(st.just(name), wish) for name, wish in _WISHES.items()]), max_size=3).map(dict)
jobs = st.tuples(claims, wishes)
first_jobs = st.lists(jobs, max_size=3)
several_jobs = st.lists(jobs, min_size=1, max_size=3)
timeouts_ms = st.sampled_from(TIMEOUTS_MS)
limits = st.sampled_from(
    [
        {"most": 1},
        {"most": 2},
        {"most": 1, "each": True},
        {"rate": (1, 2 * MINUTE), "each": True},
        {"most": 1, "task": "t", "path": None},
        {"rate": (1, MINUTE), "pool": "p", "path": None},
        {"pool": "p", "path": None},
        {"max_pending": 4, "task": "t", "path": None},
        {"max_pending": 2, "most": 1, "pool": "p", "path": None},
        {"rate": (1, MINUTE)},
        {"rate": (2, 1)},
        {"rate": (2, MINUTE), "burst": 1},
        {"rate": (3, 3 * MINUTE), "most": 1},
        {},
    ]
)
links = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), conditions), max_size=4)

POLICY = {field.name for field in attrs.fields(Policy)}
"""Which wishes are of a policy."""
KEYED = {"key", "max_delay_ms", "key_for_ms"}
"""Which wishes make a job one of a key."""
FOR_CALLERS = {"presence_ms", "permit"}
"""Which wishes make a job one of a caller that waits for it."""


def replacing(wished: dict[str, Any], *, has_edges: bool) -> dict[str, Any]:
    """Return wishes with the fields required by a bound of delays, or without the bound on a conflict."""
    most_ms = wished.get("max_delay_ms")
    if most_ms is None:
        return wished
    if has_edges or {"run_in_ms", *FOR_CALLERS} & wished.keys():
        return {name: wish for name, wish in wished.items() if name != "max_delay_ms"}
    delay_ms = min(wished.get("delay_ms", MINUTE), most_ms)
    return {"key": "k", **wished, "delay_ms": delay_ms, "on_conflict": "replace"}


def claim_of(key: str) -> Claim:
    """
    Return the claim of a queue key, shared if it begins with a tilde.

    >>> claim_of("~a:b")
    Claim(path=('a', 'b'), mode='shared')
    """
    mode: Mode = "shared" if key.startswith("~") else "exclusive"
    return Claim(path_of(key.removeprefix("~")), mode)


def claims_of(keys: list[str], wished: dict[str, Any]) -> tuple[Claim, ...]:
    """Return the claims of queue keys, for a job that waits for no caller."""
    for name in FOR_CALLERS:
        wished.pop(name, None)
    return normalise([claim_of(key) for key in keys])


def for_caller(keys: list[str], wished: dict[str, Any]) -> tuple[Claim, ...]:
    """Return the claims of a job whose caller waits for it. A permit takes no place."""
    is_permit = wished.pop("permit", False)
    for name in ("delay_ms", "run_at_ms", "key"):
        wished.pop(name, None)
    wished["presence_ms"] = 3 * MINUTE
    claims = normalise([claim_of(key) for key in keys])
    return (Claim(claims[0].path, COUNTED),) if is_permit and claims else claims


def path_of(key: str) -> Path:
    """Return the path of a queue key over simple letters."""
    return () if key == "root" else tuple(key.split(":"))


def edge_of(job_id: str, condition: str) -> Dependency:
    """Return an edge. The condition ``"data"`` is success with a needed result."""
    if condition == "data":
        return Dependency(job_id, data=True)
    return Dependency(job_id, when=condition)  # type: ignore[arg-type]
