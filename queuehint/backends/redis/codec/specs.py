"""
Specs of jobs as text and bytes, and back. No I/O.

A job's spec travels in two parts. The fields that the rules read (priority, pool, claims, ...) are a *head*, lines of
text that a script parses; the rest is opaque to every script: one line of JSON, then the arguments as they are. The
policy's fields that say `RULED` are one line of the head, empty for the default policy. A token is ``epoch.count``.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import attrs

from queuehint.errors import CorruptStateError
from queuehint.schema.annotations import ruled
from queuehint.schema.checks import check_headers, check_identity
from queuehint.schema.kinds import Choice, Optional
from queuehint.values.hint import SEGMENT_BYTES_MAX, Claim, ClaimMode, Path, gate_key, parse_gate_key
from queuehint.values.policy import DEFAULT_POLICY, Backoff, Policy
from queuehint.values.spec import Dependency, JobSpec, OnConflict, new_spec

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_LETTER_OF: Final[Mapping[ClaimMode, str]] = {"exclusive": "x", "shared": "s", "counted": "c"}
_MODE_OF: Final[Mapping[str, ClaimMode]] = {letter: mode for mode, letter in _LETTER_OF.items()}
IDENTITY_MARK: Final = b"\x02"
CACHED_MAX: Final = 512
"""Longer texts are parsed anew each time: caches are bounded in entries, and so in bytes."""

DAMAGE: Final = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""Errors of parsing damaged bytes; our own errors for a wrong value of a user are ValueErrors too."""

# --- small values --------------------------------------------------------------------------------------------------


def token_text(token: object) -> str:
    """Return a token in the form of the scripts. Any other value matches no grant."""
    return f"{token >> 32}.{token & 0xFFFFFFFF}" if type(token) is int else "-"


def parse_token(text: str) -> int | None:
    """Return the token of a script, None for none."""
    epoch, dot, count = text.partition(".")
    return (int(epoch) << 32) + int(count) if dot else None


def claims_text(claims: tuple[Claim, ...]) -> str:
    """Return claims as lines: a letter for the mode (x exclusive, s shared, c counted) and the gate key."""
    if len(claims) == 1:
        claim = claims[0]
        return _claim_text(claim.path, claim.mode)
    return "\n".join([_claim_text(claim.path, claim.mode) for claim in claims])


def _claim_text(path: Path, mode: ClaimMode) -> str:
    # Two segments are never too long, and most places have no more.
    if len(path) <= CACHED_MAX // SEGMENT_BYTES_MAX or sum(map(len, path)) <= CACHED_MAX:
        return _known_claim_text(path, mode)
    return _known_claim_text.__wrapped__(path, mode)


@lru_cache(maxsize=8192)
def _known_claim_text(path: Path, mode: ClaimMode) -> str:
    return _LETTER_OF[mode] + gate_key(path)


def parse_claims_text(text: str) -> tuple[Claim, ...]:
    """Return the claims of `claims_text`."""
    return (_parse_claims_text if len(text) <= CACHED_MAX else _parse_claims_text.__wrapped__)(text)


@lru_cache(maxsize=8192)
def _parse_claims_text(text: str) -> tuple[Claim, ...]:
    return tuple([Claim(parse_gate_key(line[1:]), _MODE_OF[line[0]]) for line in text.split("\n")] if text else ())


_RULED: Final = ruled(Policy)
_RULED_DEFAULTS: Final = [getattr(DEFAULT_POLICY, name) for name in _RULED]
_LEAST: Final = max([place for place, kind in enumerate(_RULED.values(), 1) if not isinstance(kind, Optional)])
_FOR_WORKERS: Final = [field.name for field in attrs.fields(Policy) if field.name not in _RULED]


@lru_cache(maxsize=1024)
def policy_line(policy: Policy) -> str:
    """Return the fields of a policy that the rules read, without those at the end that it does not have."""
    words = [getattr(policy, name) for name in _RULED]
    if words == _RULED_DEFAULTS:
        return ""
    while words[-1] is None:
        words.pop()
    return " ".join(["-" if word is None else str(word) for word in words])


@lru_cache(maxsize=1024)
def _rest_of_policy(policy: Policy) -> dict[str, Any]:
    """Return the fields of a policy for workers only, defaults left out."""
    fields = {name: getattr(policy, name) for name in _FOR_WORKERS}
    rest = {name: value for name, value in fields.items() if value != getattr(DEFAULT_POLICY, name)}
    if "backoff" in rest:
        backoff = policy.backoff
        rest["backoff"] = [backoff.base, backoff.factor, backoff.cap, backoff.jitter, *backoff.waits]
    return rest


def _backoff(numbers: tuple[float, ...]) -> Backoff:
    """Return a back-off by its four numbers, after which come the waits of a list."""
    named: dict[str, Any] = dict(zip(("base", "factor", "cap", "jitter"), numbers, strict=False))
    return Backoff(**named, waits=numbers[4:])


@lru_cache(maxsize=1024)
def _policy(line: str, rest: tuple[tuple[str, Any], ...]) -> Policy:
    """
    Return the policy of a line and a rest.

    Args:
        rest: names and values, a back-off as a tuple of numbers.
    """
    fields = dict(rest)
    if "backoff" in fields:
        fields["backoff"] = _backoff(fields["backoff"])
    words = line.split(" ") if line else []
    if words and not _LEAST <= len(words) <= len(_RULED):
        raise ValueError("not as many fields as a policy has")
    for (name, kind), word in zip(_RULED.items(), words, strict=False):
        if word == "-":
            fields[name] = None
        else:
            fields[name] = word if isinstance(kind, Choice) else int(word)
    policy = Policy(**fields)
    return DEFAULT_POLICY if policy == DEFAULT_POLICY else policy


# --- specs ---------------------------------------------------------------------------------------------------------

_NOTHING_SAID: Final = (None, None, None, None, None, None, None, (), False)
_PLAIN_FACTS: Final = (
    "on_conflict", "delay_ms", "run_at_ms", "max_delay_ms", "name", "flow", "parent", "schedule", "scheduled_ms",
    "templates",
)  # fmt: skip
dump_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), sort_keys=True).encode


def spec_head(spec: JobSpec) -> str:
    """
    Return the fields of a spec that the rules read.

    The line of its service ends in its tags, each behind a tab, that of its delay in the most there may be of it, that
    of its flow in its parent, behind a tab.
    """
    service, flow, delay = spec.service or "", spec.flow or "", ""
    run_at = presence = policy = ""
    if spec.delay_ms is not None:
        delay = str(spec.delay_ms)
    if spec.run_at_ms is not None:
        run_at = str(spec.run_at_ms)
    if spec.presence_ms is not None:
        presence = str(spec.presence_ms)
    if spec.policy is not DEFAULT_POLICY:
        policy = policy_line(spec.policy)
    if spec.max_delay_ms is not None:
        delay += f" {spec.max_delay_ms}"
    if spec.tags:
        service = "\t".join([service, *spec.tags])
    if spec.parent is not None:
        flow = f"{flow}\t{spec.parent}"
    return (
        f"{spec.id}\n{spec.priority}\n{spec.pool}\n{spec.user or ''}\n{spec.task}\n{service}\n"
        f"{spec.key or ''}\n{spec.on_conflict}\n"
        f"{delay}\n{run_at}\n{presence}\n{flow}\n{policy}\n{claims_text(spec.claims)}"
    )


def spec_rest(spec: JobSpec) -> bytes:
    """
    Return the rest of a spec, so that equal specs are equal bytes.

    The digests of its arguments, if it has any, stand before it, between two marks.
    """
    if spec.identity:
        return IDENTITY_MARK + " ".join(spec.identity).encode() + IDENTITY_MARK + _rest(spec)
    return _rest(spec)


def _rest(spec: JobSpec) -> bytes:
    on_conflict = None if spec.on_conflict == "return" else spec.on_conflict
    said_of = (spec.delay_ms, spec.run_at_ms, spec.name, spec.flow, spec.parent, spec.schedule)
    # Headers differ from job to job, and do not tell one from another: they stand behind a tab, which no JSON holds.
    arguments = b"\n" + spec.arguments
    if spec.headers:
        arguments = b"\t" + dump_json(dict(spec.headers)).encode() + arguments
    if spec.policy is DEFAULT_POLICY and (on_conflict, *said_of, spec.depends_on, spec.templates) == _NOTHING_SAID:
        return arguments
    rest = {
        "on_conflict": on_conflict,
        "delay_ms": spec.delay_ms,
        "run_at_ms": spec.run_at_ms,
        "max_delay_ms": spec.max_delay_ms,
        "name": spec.name,
        "flow": spec.flow,
        "parent": spec.parent,
        "schedule": spec.schedule,
        "scheduled_ms": spec.scheduled_ms,
        "depends_on": [_edge(edge) for edge in spec.depends_on] or None,
        "templates": spec.templates or None,
        **_rest_of_policy(spec.policy),
    }
    said = {name: value for name, value in rest.items() if value is not None}
    return (dump_json(said).encode() if said else b"") + arguments


def _edge(edge: Dependency) -> list[Any]:
    """Return an edge as JSON: id, condition, name, whether its result is needed; what is not said left out."""
    said = [edge.id, edge.when, edge.name, edge.data]
    for default in (False, None, "success"):
        if said[-1] != default:
            break
        said.pop()
    return said


class Facts(NamedTuple):
    """Fields of a spec that the first line of its rest and the line of its policy hold."""

    on_conflict: OnConflict = "return"
    delay_ms: int | None = None
    run_at_ms: int | None = None
    max_delay_ms: int | None = None
    depends_on: tuple[Dependency, ...] = ()
    templates: bool | tuple[str, ...] = False
    name: str | None = None
    flow: str | None = None
    parent: str | None = None
    schedule: str | None = None
    scheduled_ms: int | None = None
    policy: Policy = DEFAULT_POLICY


def facts(line: bytes, policy_text: str) -> Facts:
    """Return the facts in the first line of a rest and a policy's line. TypeError for facts unknown to this release."""
    return (_facts if len(line) <= CACHED_MAX else _facts.__wrapped__)(line, policy_text)


@lru_cache(maxsize=4096)
def _facts(line: bytes, policy_text: str) -> Facts:
    said = _checked_facts(json.loads(line)) if line else {}
    if "backoff" in said:
        said["backoff"] = tuple(said["backoff"])
    policy = _policy(policy_text, tuple([(name, said.pop(name)) for name in _FOR_WORKERS if name in said]))
    return Facts(**said, policy=policy)


def _checked_facts(said: Any) -> dict[str, Any]:
    """Check the types of the first line of a rest: `JobSpec` itself checks nothing."""
    if type(said) is not dict:
        raise TypeError("no options")
    if "depends_on" in said:
        said["depends_on"] = tuple([Dependency(*edge) for edge in said["depends_on"]])
    if isinstance(said.get("templates"), list):
        said["templates"] = tuple(said["templates"])
    plain = {name: value for name, value in said.items() if name in _PLAIN_FACTS}
    JobSpec(id="any", task="any", key="any", **plain).check()
    return said


def parse_spec(job_id: str, lines: Sequence[str], rest: bytes) -> JobSpec:
    """
    Return the spec of an id, a head's other lines and a rest.

    Args:
        lines: priority, pool, user, task, service and tags, key, presence, policy, claims.
    """
    priority, pool, user, task, service_line, key, presence, policy, claims = lines
    identity: tuple[str, ...] = ()
    if rest.startswith(IDENTITY_MARK):
        identity, rest = parse_identity(rest)
    line, newline, arguments = rest.partition(b"\n")
    if not newline:
        raise CorruptStateError(f"the spec of job {job_id!r} is missing or damaged; run `queuehint doctor`")
    headers: tuple[tuple[str, str], ...] = ()
    if b"\t" in line:
        line, _, text = line.partition(b"\t")
        headers = check_headers(json.loads(text))
    service, tags = (service_line or None, ()) if "\t" not in service_line else parse_service(service_line)
    said = facts(line, policy)
    return new_spec(
        job_id,
        task,
        parse_claims_text(claims),
        arguments,
        headers,
        int(priority),
        pool,
        user or None,
        service,
        tags,
        key or None,
        said.on_conflict,
        said.delay_ms,
        said.run_at_ms,
        said.max_delay_ms,
        int(presence) if presence else None,
        said.depends_on,
        said.templates,
        said.name,
        said.flow,
        said.parent,
        said.schedule,
        said.scheduled_ms,
        said.policy,
        identity,
    )


def parse_identity(rest: bytes) -> tuple[tuple[str, ...], bytes]:
    """Return the digests that stand before a rest, and the rest itself."""
    _, text, plain = rest.split(IDENTITY_MARK, 2)
    return check_identity(text.decode().split(" ")), plain


def parse_service(line: str) -> tuple[str | None, tuple[str, ...]]:
    """Return the service and the tags of their line."""
    if "\t" not in line:
        return line or None, ()
    service, *tags = line.split("\t")
    return service or None, tuple(tags)


def salvaged(job_id: str, lines: Sequence[str], rest: bytes) -> JobSpec:
    """Return a spec from the readable fields of a damaged one, with defaults for the others."""
    priority, pool, user, task, service_line, key, _, _, claims = lines
    service, tags = parse_service(service_line)
    fields: dict[str, Any] = {"pool": pool, "user": user or None, "service": service, "tags": tags, "key": key or None}
    with contextlib.suppress(*DAMAGE):
        fields |= {"priority": int(priority), "claims": parse_claims_text(claims)}
    with contextlib.suppress(*DAMAGE):
        if rest.startswith(IDENTITY_MARK):
            fields["identity"], rest = parse_identity(rest)
    if may_be_newer(rest):
        line, _, arguments = rest.partition(b"\n")
        line, _, _ = line.partition(b"\t")
        fields["arguments"] = arguments
        said = json.loads(line or b"{}")
        fields |= {name: said[name] for name in ("name", "flow", "parent") if type(said.get(name)) is str}
    return JobSpec(id=job_id, task=task, **fields)


def may_be_newer(rest: bytes) -> bool:
    """Return whether an unreadable rest has the form of one, as written by a later release."""
    try:
        if rest.startswith(IDENTITY_MARK):
            _, rest = parse_identity(rest)
        line, newline, _ = rest.partition(b"\n")
        line, _, _ = line.partition(b"\t")
        return bool(newline) and (not line or type(json.loads(line)) is dict)
    except DAMAGE:
        return False


def known_of(there: JobSpec, asked: JobSpec) -> JobSpec:
    """Return a spec that was read, with the arguments that are asked where a digest of these is kept in their place."""
    digest = b"\x01" + hashlib.sha1(asked.arguments, usedforsecurity=False).hexdigest().encode()
    return attrs.evolve(there, arguments=asked.arguments) if there.arguments == digest else there


def parse_head(head: str, rest: bytes) -> JobSpec:
    """Return the spec of `spec_head` and `spec_rest`."""
    job_id, *kept, _, _, _, presence, _, policy, claims = head.split("\n", 13)
    return parse_spec(job_id, (*kept, presence, policy, claims), rest)


def text_of(number: int | None) -> str:
    """Return a number that may be missing as text, then empty."""
    return "" if number is None else str(number)


def number_of(text: str) -> int | None:
    """Return the number of `text_of`."""
    return int(text) if text else None
