"""Reports of the doctors of all stores: findings and repairs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal

import attrs

from queuehint.values.hint import queue_key

if TYPE_CHECKING:
    from collections.abc import Sequence

    from queuehint.core.jobs.settled import Standing
    from queuehint.values.hint import Claim

Level = Literal["error", "warning"]
Repair = tuple[str, str, str]
"""Kind, key or counter, item; see ``redis/lua/doctor/repair.lua``."""
PASSES: Final = 3
"""How often sums over many heads are read again because something changed."""
CYCLES_MAX: Final = 100
"""The most cycles that one examination reports."""
CYCLE_NAMED_MAX: Final = 10
"""The most jobs of a cycle that are named."""
MORE_CYCLES: Final = f"jobs that wait for one another: more than {CYCLES_MAX} cycles; repair these and examine again"


def _printable(text: str) -> str:
    """Return text of the store so that it can neither move a terminal's cursor nor break a line."""
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape", "surrogatepass").decode() for letter in text
    )


@attrs.frozen(kw_only=True)
class Finding:
    """
    One fault found by a doctor.

    Args:
        kind: `setting`, `schema`, `type`, `ttl`, `foreign`, `key`, `retention`, `state`, `counter`, `gate`, `place`,
            `order`, `job`, `conflict`, `cycle`, `wait`, `unawaited`, `library`, `payload`, or what is wrong with a job
            or an entry.
        level: a warning does not affect `Report.is_clean`.
        where: a setting, or a key.
        what: a description for people.
        is_repairable: ``--fix`` repairs it; lost data stays lost, but no longer causes errors.
        job_id: the job concerned, if there is one.
    """

    kind: str
    level: Level = "error"
    where: str = attrs.field(converter=_printable)
    what: str = attrs.field(converter=_printable)
    is_repairable: bool = False
    job_id: str | None = None
    repairs: tuple[Repair, ...] = attrs.field(default=(), repr=False, eq=False)

    def as_dict(self) -> dict[str, Any]:
        """Return the finding as a dict for JSON."""
        return {
            "kind": self.kind,
            "level": self.level,
            "where": self.where,
            "what": self.what,
            "repairable": self.is_repairable,
            "job_id": None if self.job_id is None else _printable(self.job_id),
        }


@attrs.frozen(kw_only=True)
class Report:
    """
    Report of a doctor.

    Args:
        facts: version and settings of the server; name -> value.
        findings: present problems.
        repaired: problems that were repaired.
        unchecked: omitted checks and repairs, with the reasons.
        was_quiet: nothing changed during the last pass.
    """

    store: str
    namespace: str
    facts: dict[str, str | int | float]
    findings: tuple[Finding, ...]
    repaired: tuple[Finding, ...] = ()
    unchecked: tuple[str, ...] = ()
    was_quiet: bool = True

    @property
    def errors(self) -> tuple[Finding, ...]:
        """The findings without the warnings."""
        return tuple(finding for finding in self.findings if finding.level == "error")

    @property
    def warnings(self) -> tuple[Finding, ...]:
        """The findings that are only warnings."""
        return tuple(finding for finding in self.findings if finding.level == "warning")

    @property
    def is_clean(self) -> bool:
        """Whether the report has no findings except warnings."""
        return not self.errors

    def as_dict(self) -> dict[str, Any]:
        """Return the report as a dict for JSON."""
        return {
            "store": self.store,
            "namespace": self.namespace,
            "clean": self.is_clean,
            "quiet": self.was_quiet,
            "facts": self.facts,
            "findings": [finding.as_dict() for finding in self.findings],
            "repaired": [finding.as_dict() for finding in self.repaired],
            "unchecked": list(self.unchecked),
        }

    def __str__(self) -> str:
        lines = [f"{finding.level}: {finding.where}: {finding.what}" for finding in self.findings]
        return "\n".join([*lines, *(f"not checked: {text}" for text in self.unchecked)] or ["nothing is wrong"])


def cycle_finding(where: str, cycle: Sequence[str]) -> Finding:
    """Return the finding that jobs wait for one another, each for the next."""
    named = ", ".join(cycle[:CYCLE_NAMED_MAX])
    more = f" and {len(cycle) - CYCLE_NAMED_MAX} more" if len(cycle) > CYCLE_NAMED_MAX else ""
    what = f"jobs {named}{more} wait for one another for ever; cancel one: `queuehint cancel {cycle[0]}`"
    return Finding(kind="cycle", where=where, what=what, job_id=cycle[0])


def lost_wait_finding(where: str, job_id: str, wait: str, *repairs: Repair) -> Finding:
    """Return the finding that a job waits for a signal by a wait without a record, and is stalled."""
    what = f"job {job_id} waits for a signal for ever: the record of its wait, {wait}, is not there"
    return Finding(kind="wait", where=where, what=what, is_repairable=True, job_id=job_id, repairs=repairs)


def unawaited_finding(where: str, wait: str, *repairs: Repair) -> Finding:
    """Return the finding that no job waits by a wait for a signal, which takes up neither a worker nor a place."""
    what = f"{wait} waits for a signal, and no job waits for it"
    return Finding(
        kind="unawaited", level="warning", where=where, what=what, is_repairable=True, job_id=wait, repairs=repairs
    )


def place_finding(where: str, job: Standing, passed: tuple[int, ...], *repairs: Repair) -> Finding:
    """
    Return the finding that a job is at another gate than its claims require.

    Args:
        passed: how many gates its claims pass then.
    """
    what = f"job {job.job_id} counts other gates than its claims pass"
    if job.is_possible:
        both = zip(job.claims, job.passed, passed, strict=True)
        claim, is_now, right = next(each for each in both if each[1] != each[2])
        what = f"job {job.job_id} {_standing(claim, is_now)}, but {_standing(claim, right)} if all jobs are placed anew"
    return Finding(kind="place", where=where, what=what, is_repairable=True, job_id=job.job_id, repairs=repairs)


def order_finding(where: str, job: Standing) -> Finding:
    """Return the finding that a job has started before an earlier conflicting one."""
    what = f"job {job.job_id} has started before its turn: an unfinished job with which it conflicts comes before it"
    return Finding(kind="order", where=where, what=what, job_id=job.job_id)


def _standing(claim: Claim, passed: int) -> str:
    key = queue_key(claim.path[:passed])
    return f"has {key}" if passed > len(claim.path) else f"waits at {key}"
