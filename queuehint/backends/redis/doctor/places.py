"""Compare the stored places of all jobs of a namespace with those computed from scratch."""

from __future__ import annotations

from itertools import chain, repeat
from typing import TYPE_CHECKING, Final

from queuehint.backends.redis.codec import codec
from queuehint.backends.redis.doctor.answers import text_of
from queuehint.backends.report import order_finding, place_finding
from queuehint.core.jobs.settled import Standing, compare

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from queuehint.backends.report import Finding
    from queuehint.values.hint import Claim

GRANTED: Final = 128
"""Value in a head for a claim that has passed all its gates; any other value is the number passed."""
PLACES_MAX: Final = 500_000
"""The most jobs that are placed anew: a minute of work, and half a gigabyte of memory."""
TOO_MANY: Final = f"places: more than {PLACES_MAX} jobs have one"
UNREADABLE: Final = "places: the claims of a job cannot be read"


def examine_places(placed: Sequence[bytes], where: str) -> tuple[list[Finding], str | None]:
    """
    Compare the places of jobs with those computed by placing all of them again.

    Args:
        placed: three for each job with claims and a place, as ``heads.lua`` tells them, all of one moment.

    Returns:
        What is wrong, and why nothing was compared, if so.
    """
    if len(placed) > 3 * PLACES_MAX:
        return [], TOO_MANY
    try:
        compared = compare(_standings(placed))
    except (ValueError, IndexError):
        return [], UNREADABLE
    findings = [order_finding(where, job) for job in compared.early]
    # All that move do so by the repairs of one finding: half of them would stand where the others do not expect them.
    repairs = [
        ("place", job.job_id, f"{_walks(job.claims, job.passed)}\n{_walks(job.claims, passed)}")
        for job, passed in compared.moved.items()
        if compared.misplaced
    ]
    for job, passed in compared.misplaced.items():
        findings.append(place_finding(where, job, passed, *repairs))
        repairs = []
    return findings, None


def _standings(flat: Sequence[bytes]) -> Iterator[Standing]:
    for job_id, numbers, claims_text in zip(flat[::3], flat[1::3], flat[2::3], strict=True):
        seq, keeps, *walks = map(int, numbers.split())
        claims = codec.parse_claims_text(text_of(claims_text))
        passed = tuple([_passed(length, walk) for length, walk in zip(_lengths(claims), walks, strict=False)])
        yield Standing(text_of(job_id), seq, claims, passed, keeps == 1)


def _lengths(claims: Sequence[Claim]) -> Iterator[int]:
    """Yield the lengths of the paths of claims, -1 for each walk without one."""
    return chain([len(claim.path) for claim in claims], repeat(-1))


def _passed(length: int, walk: int) -> int:
    """Return how many gates a claim has passed; more than there are for a walk that is none."""
    return length + 1 if walk == GRANTED else walk + (walk > length)


def _walks(claims: Sequence[Claim], passed: Iterable[int]) -> str:
    """Return walks as heads have them."""
    both = zip(_lengths(claims), passed, strict=False)
    return " ".join([str(GRANTED if count == length + 1 else count - (count > length)) for length, count in both])
