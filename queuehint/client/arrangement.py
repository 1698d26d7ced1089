"""
Arrange checked job specs in parts: resolve names, sort specs, cut parts within the limits. No store is queried.

Specs that depend on one another, and those of a flow, take effect atomically: in one `Enqueue` if they fit, else in
parts that stay hidden until their `Commit`. Any others are several submissions in order, as many as it takes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import attrs

from queuehint.errors import (
    CycleError,
    DuplicateJobError,
    InvalidJobError,
    TemplateError,
    shown,
)
from queuehint.handlers.conversion.plain_json import decode_json
from queuehint.handlers.templates import find
from queuehint.operations import (
    BYTES_PER_SUBMISSION_MAX,
    EDGES_PER_SUBMISSION_MAX,
    FLOW_JOBS_MAX,
    GATES_PER_SUBMISSION_MAX,
    JOBS_PER_SUBMISSION_MAX,
    Depend,
)
from queuehint.operations.bounds import topological
from queuehint.values.ids import new_id
from queuehint.values.signal import with_waits
from queuehint.values.spec import PORTION_MAX, Dependency, JobSpec, check_dependencies, evolved

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from queuehint.handlers.codec import Codec

T = TypeVar("T")

LISTED_MAX = 10
WHOLE_JOBS = 500
"""How many jobs that do not depend on one another are one submission: as many as hold up no server for 20 ms."""
WHOLE_GATES = 6_000
"""How many gates these have at most, for the same reason; one job has at most 4 160."""
ONE_STEP_JOBS, ONE_STEP_GATES, ONE_STEP_EDGES = 300, 3_000, 500
"""The limits of those that take effect at once and cannot be sent in parts: beside a million jobs, too, they hold up no
server for 20 ms."""
PART_JOBS = 200
"""How many jobs go to a server at a time where there are more than one submission: it serves others in between."""
PART_BYTES = 1 << 20
PART_GATES = 2_500
"""How many gates these have at most: jobs of a flow at depth 16 take a server three times as long as at depth 1."""
PART_EDGES = 400
"""How many dependencies these have at most, unless one job has more."""
EDGE_BYTES = 64
"""About how much a dependency of a job with more than 1 000 adds to the size of its spec."""


@attrs.define(eq=False)
class Arranged:
    """
    Specs as they are sent.

    Args:
        parts: each within the limits of one submission.
        order: the index of the spec that stands at each place; None if they are in the order they were given in.
        is_one: the parts take effect all at once.
        stand_ins: the ids of those whose own are not drawn yet, in the order they were given in; empty if that is no
            matter, because no edge names one.
        is_wide: one depends on more jobs than are told to a store at once.
        given_count: how many were given; the others are waits of theirs for signals.
    """

    parts: list[tuple[JobSpec, ...]]
    order: Sequence[int] | None = None
    is_one: bool = False
    stand_ins: tuple[str, ...] = ()
    is_wide: bool = False
    given_count: int | None = None

    def as_given(self, items: list[T]) -> list[T]:
        """Return the outcomes of the given specs, in their order."""
        if self.order is None:
            return items
        given = items.copy()
        for place, index in enumerate(self.order):
            given[index] = items[place]
        return given[: self.given_count]

    def numbered(self, firsts: Sequence[int]) -> list[tuple[JobSpec, ...]]:
        """Return the parts with the numbers drawn for jobs without an id: up to 1 000 from each of *firsts* on."""
        numbers = (str(first + offset) for first in firsts for offset in range(JOBS_PER_SUBMISSION_MAX))
        if self.stand_ins:
            drawn = dict(zip(self.stand_ins, numbers, strict=False))
            return [tuple([_renumbered(spec, drawn) for spec in part]) for part in self.parts]
        return [tuple([spec if spec.id else evolved(spec, id=next(numbers)) for spec in part]) for part in self.parts]


def arrange(
    specs: list[JobSpec],
    *,
    codec: Codec | None = None,
    whole: bool = False,
    small_parts: bool = False,
    at_once: bool = False,
) -> Arranged:
    """
    Resolve the names by which checked specs call each other, put them in order and cut them into parts.

    What others depend on comes before them; of those that could come next, always the one that was given first.

    Args:
        codec: reads the templates among arguments; JSON without one.
        whole: they take effect all at once, also if none depends on another.
        small_parts: those that are too many for one step are cut into parts of at most `PART_JOBS`, `PART_GATES` and
            `PART_EDGES`.
        at_once: those that are too many for one submission take effect all at once, too.

    Those that need not take effect at once are cut at `WHOLE_JOBS` and `WHOLE_GATES`, others as `Enqueue` takes them;
    these go in small parts unless one has a key, waits for its caller, or is of another flow: then they are within
    `ONE_STEP_JOBS`, `ONE_STEP_GATES` and `ONE_STEP_EDGES`.

    Raises:
        InvalidJobError: two have one name; others depend on one whose key may make it another job, or it is in a flow;
            there are too many to take effect at once, or one that is not for parts.
        DuplicateJobError: two that take effect at once have one id.
        CycleError: the edges close a cycle; it names just the jobs on it.
        TemplateError: a template names what is no dependency.
        PayloadError: the codec cannot read arguments with templates.

    Complexity: O(V log V + E), and O(V + E) for specs that are in order already; not recursive.
    """
    order: Sequence[int] | None = None
    given_count = len(specs)
    stand_ins: list[str] = []
    is_one, is_wide = whole, False
    if any(spec.depends_on or spec.templates or spec.name for spec in specs):
        specs = specs.copy()
        for index, spec in enumerate(specs):
            if not spec.id:
                stand_ins.append(new_id())
                specs[index] = evolved(spec, id=stand_ins[-1])
        specs += with_waits(specs)
        before = _resolve(specs, codec)
        if any(before):
            is_one = True
            given = specs
            order = topological(before, lambda index: given[index].name or given[index].id)
            specs = [given[index] for index in order]
        is_wide = any(len(spec.depends_on) > PORTION_MAX for spec in specs)
        if small_parts and not is_wide:
            is_wide = any(len(spec.depends_on) > PART_EDGES for spec in specs) and _may_be_parts(specs)
        is_one = is_one or is_wide
    is_one = is_one or (at_once and not _are_whole(specs))
    if is_one:
        _check_ids(specs)
    if whole:
        _check_keys(specs)
    if is_one:
        parts = list(submissions(specs))
        if is_wide or len(parts) > 1 or not (_may_be_parts(specs) or _are_one_step(specs)):
            _check_parts(specs)
    else:
        edges_max = PART_EDGES if small_parts else EDGES_PER_SUBMISSION_MAX
        parts = list(submissions(specs, jobs_max=WHOLE_JOBS, gates_max=WHOLE_GATES, edges_max=edges_max))
    if small_parts and (len(parts) > 1 or (is_one and _may_be_parts(specs))):
        parts = list(
            submissions(specs, jobs_max=PART_JOBS, bytes_max=PART_BYTES, gates_max=PART_GATES, edges_max=PART_EDGES)
        )
    return Arranged(parts, order, is_one, tuple(stand_ins), is_wide, given_count)


def _resolve(specs: list[JobSpec], codec: Codec | None) -> list[list[int]]:
    """Resolve all edges to ids of jobs, in place. Return the indexes of the specs that each spec depends on."""
    names: dict[str, int] = {}
    ids = {}
    for index, spec in enumerate(specs):
        ids[spec.id] = index
        if spec.name is not None and names.setdefault(spec.name, index) != index:
            raise InvalidJobError(f"specs[{index}]: the name {shown(spec.name)} is used by specs[{names[spec.name]}]")
    before: list[list[int]] = []
    for index, spec in enumerate(specs):
        inner: list[int] = []
        before.append(inner)
        if not spec.depends_on and not spec.templates:
            continue
        try:
            edges = []
            for edge in spec.depends_on:
                target = names.get(edge.id)
                if target is not None:
                    edge = _renamed(edge, specs[target].id)
                else:
                    target = ids.get(edge.id)
                edges.append(edge)
                if target is not None:
                    inner.append(target)
            depends_on = _with_data(spec, check_dependencies(edges) if len(edges) > 1 else tuple(edges), codec)
            _check_edges(spec, depends_on)
            for target in inner:
                _check_key(specs[target])
        except CycleError:
            raise
        except ValueError as error:
            error.args = (f"{_label(spec, index)}: {error}",)
            raise
        if depends_on != spec.depends_on:
            specs[index] = evolved(spec, depends_on=depends_on)
    return before


def _renamed(edge: Dependency, job_id: str) -> Dependency:
    """Return an edge with its name resolved to the id of a job, and the name kept."""
    if edge.id == job_id and edge.name is not None:
        return edge
    # All four were checked: checking them again would take as long as all the rest.
    renamed = object.__new__(Dependency)
    for field, value in (("id", job_id), ("when", edge.when), ("name", edge.name or edge.id), ("data", edge.data)):
        object.__setattr__(renamed, field, value)
    return renamed


def _label(spec: JobSpec, index: int) -> str:
    return f"specs[{index}]" if spec.name is None else shown(spec.name)


def _with_data(spec: JobSpec, edges: tuple[Dependency, ...], codec: Codec | None) -> tuple[Dependency, ...]:
    """Return the edges of a spec. Mark the edges that its templates name as carrying data."""
    if not spec.templates:
        return edges
    places = {edge.id: place for place, edge in enumerate(edges)}
    places |= {edge.name: place for place, edge in enumerate(edges) if edge.name is not None}
    marked = list(edges)
    arguments = decode_json(spec.arguments) if codec is None else codec.loads(spec.arguments, {})
    for name in find(arguments, spec.templates):
        place = places.get(name)
        if place is None:
            known = [edge.name or edge.id for edge in edges[:LISTED_MAX]]
            more = ["…"] if len(edges) > LISTED_MAX else []
            raise TemplateError(
                f"a template names {shown(name)}, which is not among its dependencies: "
                f"{', '.join([*map(shown, known), *more]) or 'there are none'}"
            )
        marked[place] = attrs.evolve(marked[place], data=True)
    return tuple(marked)


def _check_edges(spec: JobSpec, edges: tuple[Dependency, ...]) -> None:
    if edges and spec.key is not None and spec.on_conflict == "replace":
        raise InvalidJobError(
            'on_conflict="replace" gives a job new arguments, not new edges: after= and depends_on must be empty'
        )
    called: dict[str, str] = {}
    for edge in edges:
        if edge.name is not None and called.setdefault(edge.name, edge.id) != edge.id:
            raise InvalidJobError(f"depends_on calls two jobs {shown(edge.name)}: give one another name")
        if spec.parent is not None and edge.id == spec.parent:
            raise CycleError([spec.name or spec.id, spec.parent])


def _check_key(spec: JobSpec) -> None:
    if spec.key is not None and spec.on_conflict != "reject":
        raise InvalidJobError(
            f"it depends on {shown(spec.name or spec.id)}, whose key {shown(spec.key)} may resolve to another job: "
            'give it no key, or on_conflict="reject"'
        )


def _check_ids(specs: list[JobSpec]) -> None:
    seen: set[str] = set()
    for spec in specs:
        if spec.id in seen and spec.id:
            raise DuplicateJobError(spec.id)
        seen.add(spec.id)


def _check_keys(specs: list[JobSpec]) -> None:
    """Refuse an id in a flow that may turn out to be a job outside it."""
    for index, spec in enumerate(specs):
        if spec.key is not None and spec.on_conflict != "reject":
            raise InvalidJobError(
                f"{_label(spec, index)}: its key {shown(spec.key)} may make it a job outside its flow; "
                'give it no key, or on_conflict="reject"'
            )


def _check_parts(specs: list[JobSpec]) -> None:
    """Refuse specs that must be atomic but do not fit into one submission."""
    if len(specs) > FLOW_JOBS_MAX:
        raise InvalidJobError(f"{len(specs)} jobs would take effect at once, limit {FLOW_JOBS_MAX}")
    for index, spec in enumerate(specs):
        if spec.flow != specs[0].flow:
            raise InvalidJobError(
                f"{_label(spec, index)}: flow is {shown(spec.flow)}, that of the first {shown(specs[0].flow)}; jobs "
                "of an atomic submission of this size must belong to one flow, or all to none"
            )
        for parameter in ("key", "presence_ms"):
            if getattr(spec, parameter) is not None:
                raise InvalidJobError(
                    f"{_label(spec, index)}: {parameter} is not supported in an atomic submission of this size; "
                    f"at most {ONE_STEP_JOBS} jobs, {ONE_STEP_GATES} gates, {ONE_STEP_EDGES} edges ({PORTION_MAX} of "
                    f"one job) and {BYTES_PER_SUBMISSION_MAX} bytes of arguments are one step"
                )


def _are_one_step(specs: list[JobSpec]) -> bool:
    """Return whether specs are few enough for one step."""
    whole = submissions(specs, jobs_max=ONE_STEP_JOBS, gates_max=ONE_STEP_GATES, edges_max=ONE_STEP_EDGES)
    return sum(1 for _ in whole) <= 1


def _are_whole(specs: list[JobSpec]) -> bool:
    """Return whether specs of which none depends on another are few enough for one submission."""
    whole = submissions(specs, jobs_max=WHOLE_JOBS, gates_max=WHOLE_GATES)
    return sum(1 for _ in whole) <= 1


def _may_be_parts(specs: list[JobSpec]) -> bool:
    """Return whether specs that must be atomic may be more than one submission."""
    return len(specs) <= FLOW_JOBS_MAX and all(
        spec.flow == specs[0].flow and spec.key is None and spec.presence_ms is None for spec in specs
    )


def _renumbered(spec: JobSpec, drawn: dict[str, str]) -> JobSpec:
    """Replace placeholders by ids."""
    changes: dict[str, Any] = {}
    if spec.id in drawn:
        changes["id"] = drawn[spec.id]
    if any(edge.id in drawn for edge in spec.depends_on):
        changes["depends_on"] = tuple(
            [attrs.evolve(edge, id=drawn[edge.id]) if edge.id in drawn else edge for edge in spec.depends_on]
        )
    return evolved(spec, **changes) if changes else spec


def submissions(
    specs: list[JobSpec],
    *,
    jobs_max: int = JOBS_PER_SUBMISSION_MAX,
    bytes_max: int = BYTES_PER_SUBMISSION_MAX,
    gates_max: int = GATES_PER_SUBMISSION_MAX,
    edges_max: int = EDGES_PER_SUBMISSION_MAX,
) -> Iterator[tuple[JobSpec, ...]]:
    """Cut specs into submissions within the limits, in order."""
    at = 0
    while chunk := specs[at : at + jobs_max]:
        size = sum([len(spec.arguments) for spec in chunk])
        gates = sum([len(claim.path) + 1 for spec in chunk for claim in spec.claims])
        if size > bytes_max or gates > gates_max or any(spec.depends_on for spec in chunk):
            break
        yield tuple(chunk)
        at += jobs_max
    part: list[JobSpec] = []
    gates = edges = size = 0
    for spec in specs[at:]:
        more_gates, more_edges, more_size = 0, len(spec.depends_on), len(spec.arguments)
        for claim in spec.claims:
            more_gates += len(claim.path) + 1
        if more_edges > PORTION_MAX:
            # Its spec names them all, and the other portions are sent by themselves.
            more_size += EDGE_BYTES * more_edges
            more_edges = PORTION_MAX
        if (
            len(part) == jobs_max
            or gates + more_gates > gates_max
            or (edges + more_edges > edges_max and part)
            or (size + more_size > bytes_max and part)
        ):
            yield tuple(part)
            part, gates, edges, size = [], 0, 0, 0
        part.append(spec)
        size += more_size
        gates += more_gates
        edges += more_edges
    if part:
        yield tuple(part)


def portions(specs: Iterable[JobSpec], staged: str) -> Iterator[Depend]:
    """Yield the operations that add the dependencies of some jobs of a part beyond their first 1 000."""
    for spec in specs:
        for at in range(PORTION_MAX, len(spec.depends_on), PORTION_MAX):
            edges = spec.depends_on[at : at + PORTION_MAX]
            yield Depend(staged, spec.id, at // PORTION_MAX, edges, spec.policy.on_dependency_failure)
