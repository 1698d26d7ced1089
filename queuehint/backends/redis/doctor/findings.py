"""Findings of the doctor of Redis: their texts, the repairs they lead to, and the order of repairs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from queuehint.backends.report import Finding, Repair, lost_wait_finding, unawaited_finding

if TYPE_CHECKING:
    from collections.abc import Iterable

_TEXTS: Final = {
    "bit": "{about} is missing from an index of records",
    "block": "the records of {about!r} are not indexed",
    "crowd": "the line at the gate {about!r} is not among those of its length",
    "damaged": "the head of {about} cannot be read: the job is lost",
    "edge": "one end of an edge of {about} is missing",
    "endless": "the pause of {about!r} would not end when it says",
    "edges": "{about} counts other edges than it has",
    "ending": "the value at {about!r} would be kept for ever",
    "entry": "{about} should be there and is not",
    "gauge": "the jobs that count or wait at {about!r} by its limit are miscounted",
    "head": "{about} {found}",
    "limit": "a limit at {about!r} cannot be read: it is lost",
    "line": "the gate {about!r} does not count the jobs in its line correctly",
    "lost": "names {about}, which has no head",
    "offer": "{about} {found}",
    "pool": "the ready jobs of the pool {about!r} are miscounted",
    "refused": "the pool {about!r} does not know its queues of jobs that releases have refused",
    "schedule": "the schedule {about!r} cannot be read: it is lost",
    "session": "a receipt of the session {about!r}, which would be kept for ever",
    "spec": "{about} has no spec: it can never run",
    "stalled": "the line at the gate {about!r} may move on, and no work is left over to move it",
    "strays": "the records of {about!r} are others than it says",
    "tallied": "the records of {about!r} are counted and not listed",
    "stray": "holds an entry that nothing leads to",
    "nameless": "the value at {about!r} is not listed: an older release has written it, or its entry is lost",
    "unnamed": "no record has the facts {about!r}",
    "unlisted": "the schedule {about!r} is not where its name and its due time belong",
    "unparked": "{about} was put aside by a pause or a limit that no longer exists",
    "unreleased": "{about} is over, and its dependencies are kept for it for ever",
    "unresolved": "{about} is over or lost, and others wait for it for ever",
    "unswept": "jobs behind the dead {about} should be canceled, and no work is left over to do it",
    "untold": "a worker would be asked to stop {about}, which it does not run",
    "user": "the ready jobs or the turn of the user {about!r} are miscounted",
}
_NOTES: Final = {
    "results": "a result",
    "progress": "progress",
    "log": "log lines",
    "errors": "errors",
    "needs": "dependencies",
    "steps": "results of steps",
}
_OF_NO_JOB: Final = frozenset(
    {
        *("block", "crowd", "ending", "endless", "gauge", "limit", "line", "nameless", "pool", "refused", "schedule"),
        *("session", "stalled", "strays", "tallied", "unlisted", "unnamed", "user"),
    }
)
_REPAIR_OF: Final = {
    "lost": "drop",
    "stray": "drop",
    "damaged": "drop",
    "limit": "drop",
    "schedule": "drop",
    "spec": "remove",
    "edges": "amend",
    "note": "amend",
}
"""The repair of a problem where that has another name."""
_UNREPAIRABLE: Final = frozenset({"head"})
_ORDER: Final = (
    # Alone and first: where the state is lost, nothing may be written before its counters are far enough.
    ("counter",),
    # Counts follow from where jobs stand, and from what is offered.
    ("place", "offer"),
    (
        *(
            "persist",
            "key",
            "retention",
            "drop",
            "entry",
            "edge",
            "gate",
            "session",
            "untold",
            "ending",
            "endless",
            "nameless",
            "unlisted",
        ),
        *("bit", "strays", "block", "tally", "tallied"),
    ),
    # Facts are known by the index of records.
    ("user", "gauge", "unfinished", "crowd", "unnamed"),
    ("pool",),
    ("refused",),
    ("amend",),
    ("remove",),
    ("unresolved", "unreleased", "unparked", "unswept", "stalled"),
    # Nobody waits once all edges are as they should be.
    ("unawaited",),
)
"""Which repairs have to be done before others can be worked out."""
_ORDER_OF: Final = {kind: order for order, kinds in enumerate(_ORDER) for kind in kinds}


def repairable(kind: str, where: str, what: str, *repairs: Repair, job_id: str | None = None) -> Finding:
    """Return a finding that repairs put right; with none it goes away with others."""
    return Finding(kind=kind, where=where, what=what, is_repairable=True, job_id=job_id, repairs=repairs)


def miscounted(where: str, what: str, name: str, was: int, now: int) -> Finding:
    """Return the finding that a counter is wrong."""
    return repairable("counter", where, what, ("counter", name, f"{was}\n{now}"))


def problem(kind: str, name: str, where: str, item: str, about: str, found: str) -> Finding:
    """
    Return the finding that a script calls a problem.

    Args:
        name: of the key in its namespace; *where* is the whole key.
        item: of that key.
        about: the id of a job, mostly.
        found: what was there instead.
    """
    if kind == "wait":
        wait = name.partition(":")[2]
        return lost_wait_finding(where, about, wait, ("unresolved", name, wait))
    if kind == "unawaited":
        return unawaited_finding(where, about, (kind, name, about))
    job_id = None if kind in _OF_NO_JOB or not about else about
    if kind == "note":
        has = _NOTES[name.partition(":")[0]]
        what = f"job {about} has {has} that " + ("is lost" if found in {"", "0"} else "is partly lost")
    else:
        shown = about if job_id is None else f"job {about}"
        what = _TEXTS[kind].format(about=shown, found=found)
        if kind == "entry" and found:
            what += f": it has the score {found}"
    repairs = _repairs_of(kind, name, item, about)
    return Finding(
        kind=kind, where=where, what=what, is_repairable=kind not in _UNREPAIRABLE, job_id=job_id, repairs=repairs
    )


def _repairs_of(kind: str, name: str, item: str, about: str) -> tuple[Repair, ...]:
    if kind in _UNREPAIRABLE or kind == "line":
        return ()  # the recount of the gates mends a line's count
    repair = _REPAIR_OF.get(kind, kind)
    if repair == "drop":
        return ((repair, name, item),)
    if repair == "edge":
        # The dependent, and its dependency.
        owner = name.partition(":")[2]
        return ((repair, owner, item),) if name.startswith("blocked:") else ((repair, item, owner),)
    return ((repair, name, item if kind == "untold" else about),)


def first_repairs(findings: Iterable[Finding]) -> list[Repair]:
    """Return the repairs that have to be done before all others can be worked out."""
    repairs = dict.fromkeys(repair for finding in findings for repair in finding.repairs)
    if not repairs:
        return []
    first = min(_ORDER_OF[kind] for kind, _, _ in repairs)
    return [repair for repair in repairs if _ORDER_OF[repair[0]] == first]
