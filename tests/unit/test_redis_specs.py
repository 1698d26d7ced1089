"""Specs, tokens and claims encoded for Redis: round trips, and different values encode differently."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from queuehint.backends.redis.codec import codec, specs
from queuehint.testing import strategies
from queuehint.values.hint import Claim, normalise
from queuehint.values.policy import DEFAULT_POLICY, Backoff, Policy
from queuehint.values.spec import ON_CONFLICT, Dependency, JobSpec

# --- everything a job may ask for ------------------------------------------------------------------------------------

# Texts that look like a part of a key, a line, a word or a number.
TRICKY = ["root", "\\root", "a:b", "\\", "\\\\:", "-", "0", "é", "😀", "{x}", "*", "None", "null", '"', "'", "%s", "~"]
letters = st.characters(exclude_categories=("C", "Z"))
words = st.sampled_from(TRICKY) | st.text(letters, min_size=1, max_size=8)
names = words | st.tuples(words, words).map(" ".join)
segments = words | st.text(alphabet="ab\\:;/9 ", min_size=1, max_size=3)
paths = st.lists(segments, max_size=4).map(tuple)
claims = st.lists(st.builds(Claim, paths, st.sampled_from(["exclusive", "shared"])), max_size=4).map(normalise)
ms = st.integers(0, 315_360_000_000)
backoffs = st.builds(
    lambda base, more, factor, jitter, waits: Backoff(base, factor, base + more, jitter, waits),
    st.floats(0.001, 1e6),
    st.floats(0, 1e6),
    st.floats(1, 100),
    st.floats(0, 1),
    st.lists(st.floats(0, 1e6), max_size=3),
)
policies = st.just(DEFAULT_POLICY) | st.builds(
    lambda policy, backoff, max_hold_ms: attrs.evolve(policy, backoff=backoff, max_hold_ms=max_hold_ms),
    strategies.policies(),
    st.just(Backoff()) | backoffs,
    st.just(300_000) | ms,
)


templates: st.SearchStrategy[bool | tuple[str, ...]] = st.sampled_from(
    [False, True, ("/a",), ("/a/0", "/é~1"), ("/",)],
)
dependencies = st.lists(
    st.builds(
        lambda job_id, when, name, data: Dependency(job_id, when, name, data and when != "failure"),
        words.map("d{}".format),
        st.sampled_from(["success", "failure", "done"]),
        st.none() | words,
        st.booleans(),
    ),
    max_size=3,
    unique_by=lambda edge: edge.id,
).map(tuple)


identities = st.lists(st.sampled_from(["a" * 32, "b" * 64, "0123456789abcdef" * 2]), max_size=4).map(tuple)


@st.composite
def some_specs(draw: st.DrawFn) -> JobSpec:
    """A spec that passes its own checks."""
    delay_ms = run_at_ms = presence_ms = key = None
    kind = draw(st.sampled_from(["now", "later", "then", "caller"]))
    if kind == "later":
        delay_ms = draw(ms)
    elif kind == "then":
        run_at_ms = draw(st.integers(-(2**53), 2**47))
    elif kind == "caller":
        presence_ms = draw(ms)
    if kind != "caller":
        key = draw(st.none() | names)
    on_conflict = draw(st.sampled_from(ON_CONFLICT))
    max_delay_ms = None
    if delay_ms is not None and key is not None and on_conflict == "replace":
        max_delay_ms = draw(st.none() | st.integers(delay_ms, 315_360_000_000))
    has_edges = kind != "caller" and not (key is not None and on_conflict == "replace")
    return JobSpec(
        id=draw(words),
        task=draw(names),
        claims=draw(claims),
        arguments=draw(st.sampled_from([b"{}", b"", b"\n", b'{"a": "\n"}']) | st.binary(max_size=30)),
        priority=draw(st.sampled_from([1, 2, 3, 4, 5, 9])),
        pool=draw(st.just("default") | names),
        user=draw(st.none() | names),
        service=draw(st.none() | names),
        key=key,
        on_conflict=on_conflict,
        depends_on=draw(dependencies) if has_edges else (),
        templates=draw(templates),
        name=draw(st.none() | words.filter(lambda word: word != "~").map("n{}".format)),
        flow=draw(st.none() | words),
        parent=draw(st.none() | words),
        delay_ms=delay_ms,
        run_at_ms=run_at_ms,
        max_delay_ms=max_delay_ms,
        presence_ms=presence_ms,
        policy=draw(policies),
        identity=draw(identities),
    ).check()


def lines_of(spec: JobSpec) -> tuple[str, ...]:
    """Return the lines of a head that a script keeps, as it tells them: priority, pool, user, task, ..., claims."""
    _, *kept, _, _, _, presence, _, policy, claims_text = specs.spec_head(spec).split("\n", 13)
    return (*kept, presence, policy, claims_text)


def read_back(spec: JobSpec) -> JobSpec:
    """Take a head and a rest apart as scripts do, and make a spec of them."""
    return specs.parse_spec(spec.id, lines_of(spec), specs.spec_rest(spec))


def content(spec: JobSpec) -> tuple[str, bytes]:
    """Return what scripts compare of a spec: all but its id, and not how a time was turned into ms."""
    return "\0".join(lines_of(spec)), specs.spec_rest(spec)


@given(some_specs())
def test_a_spec_comes_back_as_it_was_sent(spec: JobSpec) -> None:
    assert read_back(spec) == spec
    assert type(read_back(spec).priority) is int


@given(some_specs())
def test_a_spec_comes_back_through_the_script_that_tells_it(spec: JobSpec) -> None:
    reply: list[Any] = [text.encode() for text in lines_of(spec)]
    assert codec.decode_spec(spec.id, [*reply, specs.spec_rest(spec)]) == spec
    assert codec.decode_spec(spec.id, []) is None


@given(some_specs())
def test_a_head_has_thirteen_lines_and_its_claims(spec: JobSpec) -> None:
    lines = specs.spec_head(spec).split("\n")
    assert len(lines) == 13 + max(1, len(spec.claims))
    assert "\0" not in specs.spec_head(spec)


def test_digests_are_read_of_a_spec_of_a_later_release() -> None:
    spec = JobSpec(id="a", task="t", arguments=b"\x02{}", flow="f", identity=("a" * 32, "b" * 32))
    rest = specs.spec_rest(spec).replace(b'"flow"', b'"news":1,"flow"')
    with pytest.raises(TypeError):
        specs.parse_spec("a", lines_of(spec), rest)
    assert specs.may_be_newer(rest)
    assert specs.salvaged("a", lines_of(spec), rest) == spec


def test_damaged_digests_are_no_spec_of_a_later_release() -> None:
    spec = JobSpec(id="a", task="t", identity=("a" * 32,))
    for damaged in (b"\x02", b"\x02{}\n", specs.spec_rest(spec).replace(b"aa", b"a?", 1)):
        with pytest.raises(specs.DAMAGE):
            specs.parse_spec("a", lines_of(spec), damaged)
        assert not specs.may_be_newer(damaged)
        assert specs.salvaged("a", lines_of(spec), damaged).identity == ()


def remade(value: Any) -> Any:
    """Return an equal value of which no part is the same object."""
    if attrs.has(type(value)):
        fields = {field.name: remade(getattr(value, field.name)) for field in attrs.fields(type(value)) if field.init}
        return type(value)(**fields)
    if isinstance(value, tuple):
        return tuple([remade(item) for item in value])
    if isinstance(value, str):
        return "".join(list(value))
    return value


@given(some_specs())
def test_equal_specs_are_equal_bytes(spec: JobSpec) -> None:
    again = remade(spec)
    assert again == spec
    assert (specs.spec_head(again), specs.spec_rest(again)) == (specs.spec_head(spec), specs.spec_rest(spec))


def test_a_zero_with_a_sign_is_the_same_zero() -> None:
    plain, signed = (JobSpec(id="a", task="t", policy=Policy(backoff=Backoff(jitter=zero))) for zero in (0.0, -0.0))
    assert plain == signed
    specs._rest_of_policy.cache_clear()
    rest = specs.spec_rest(signed)
    specs._rest_of_policy.cache_clear()
    assert rest == specs.spec_rest(plain)


@given(some_specs(), some_specs())
def test_specs_that_differ_beyond_ids_differ_in_bytes(spec: JobSpec, other: JobSpec) -> None:
    other = attrs.evolve(other, id=spec.id)
    assert (content(spec) == content(other)) == (spec == other)


@given(
    some_specs(), some_specs(), st.sampled_from([field.name for field in attrs.fields(JobSpec) if field.name != "id"])
)
def test_each_field_alone_makes_a_difference(spec: JobSpec, other: JobSpec, name: str) -> None:
    changed = attrs.evolve(spec, **{name: getattr(other, name)})
    assert (content(spec) == content(changed)) == (spec == changed)


@given(some_specs(), some_specs(), st.sampled_from([field.name for field in attrs.fields(Policy)]))
def test_each_field_of_a_policy_alone_makes_a_difference(spec: JobSpec, other: JobSpec, name: str) -> None:
    changed = attrs.evolve(spec, policy=attrs.evolve(spec.policy, **{name: getattr(other.policy, name)}))
    assert (content(spec) == content(changed)) == (spec == changed)
    assert read_back(changed) == changed


def test_the_default_policy_takes_no_room() -> None:
    assert specs.policy_line(DEFAULT_POLICY) == ""
    assert specs.policy_line(Policy(timeout_ms=5)) == ""
    assert specs.spec_rest(JobSpec(id="a", task="t")) == b"\n{}"
    assert read_back(JobSpec(id="a", task="t")).policy is DEFAULT_POLICY


def test_a_policy_ends_with_the_last_thing_said() -> None:
    assert specs.policy_line(Policy(max_attempts=2)) == "2 3 hold continue 300000 1"
    assert specs.policy_line(Policy(retention_ms=5)) == "5 3 hold continue 300000 1 - 5"


@pytest.mark.parametrize(
    "line", ["2 3 hold continue", "2 3 hold continue 5 - - - -", "2 3 drop continue 5", "2 - hold x 5"]
)
def test_a_damaged_policy_is_refused(line: str) -> None:
    lines = lines_of(JobSpec(id="a", task="t"))
    with pytest.raises(specs.DAMAGE):
        specs.parse_spec("a", (*lines[:-2], line, lines[-1]), b"\n{}")


# --- tokens and claims -----------------------------------------------------------------------------------------------


@given(st.integers(1, 2**63 - 1))
@example(2**53 - 1)
@example(2**53)
@example(2**53 + 1)
@example(2**32)
@example(2**63 - 1)
def test_a_token_comes_back_exactly(token: int) -> None:
    text = specs.token_text(token)
    assert specs.parse_token(text) == token
    assert all(int(part) < 2**53 for part in text.split("."))


@given(st.integers(), st.integers())
def test_no_two_tokens_have_one_text(token: int, other: int) -> None:
    assert (specs.token_text(token) == specs.token_text(other)) == (token == other)


@pytest.mark.parametrize("value", [None, 1.0, "1", "0.1", b"0.1", True, [1], 2.0**53])
def test_malformed_token_is_written_as_none(value: object) -> None:
    assert specs.token_text(value) == "-"
    assert specs.parse_token("-") is specs.parse_token("") is None


@given(claims)
def test_claims_come_back_as_they_were_sent(some: tuple[Claim, ...]) -> None:
    text = specs.claims_text(some)
    assert specs.parse_claims_text(text) == some
    assert text.count("\n") == max(0, len(some) - 1)


@given(claims, claims)
def test_no_two_claims_have_one_text(some: tuple[Claim, ...], others: tuple[Claim, ...]) -> None:
    assert (specs.claims_text(some) == specs.claims_text(others)) == (some == others)


def test_the_root_and_a_place_called_root_are_told_apart() -> None:
    root, called_root = (Claim(()),), (Claim(("root",)),)
    assert (specs.claims_text(root), specs.claims_text(called_root), specs.claims_text(())) == ("x", "xroot", "")


def test_long_spec_is_parsed_correctly_and_not_cached() -> None:
    caches = (specs._known_claim_text, specs._parse_claims_text, specs._facts)
    for cache in caches:
        cache.cache_clear()
    for segment, edges, kept in (("x" * 200, 1000, (0, 0, 0)), ("x", 1, (1, 1, 1))):
        spec = JobSpec(
            id="a",
            task="t",
            claims=(Claim((segment, segment, segment)),),
            depends_on=tuple(Dependency(f"job-{number}") for number in range(edges)),
        )
        assert specs.parse_head(specs.spec_head(spec), specs.spec_rest(spec)) == spec
        assert tuple(cache.cache_info().currsize for cache in caches) == kept
