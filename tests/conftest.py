"""What all tests share: Hypothesis profiles, readable asserts, doctests in Markdown, cheap coverage."""

import doctest
import os
import re

import pytest
from hypothesis import HealthCheck, settings

# The contract suite and its friends are shipped in the package: pytest has to be told that they assert.
pytest.register_assert_rewrite("queuehint.testing")

# No deadlines: how long something takes is for the benchmarks to say, not for a busy machine.
settings.register_profile("dev", deadline=None)
# The same examples at every run: a change is judged by its own faults. Fresh examples are for dev and nightly.
settings.register_profile(
    "ci",
    parent=settings.get_profile("dev"),
    derandomize=True,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile(
    "nightly",
    parent=settings.get_profile("dev"),
    max_examples=2_000,
    stateful_step_count=200,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if os.environ.get("CI") else "dev"))


def pytest_configure() -> None:
    """Let the output expected by a doctest end at the fence that closes a block of Markdown."""
    example_re: re.Pattern[str] = vars(doctest.DocTestParser)["_EXAMPLE_RE"]
    prompt = "(?![ ]*>>>)"
    assert prompt in example_re.pattern
    pattern = example_re.pattern.replace(prompt, prompt + "(?![ ]*```)")
    setattr(doctest.DocTestParser, "_EXAMPLE_RE", re.compile(pattern, example_re.flags))  # noqa: B010


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Measure no coverage in heavy tests: they would take twice as long and cover nothing new."""
    for item in items:
        if item.get_closest_marker("heavy"):
            item.add_marker("no_cover")
