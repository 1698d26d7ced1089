"""The search for the smallest history that breaks a rule."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, TypeVar

from hypothesis import HealthCheck, Phase, Verbosity, given, settings
from hypothesis import seed as seeded

from queuehint.testing.histories.history import History

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

    from queuehint.testing.trace import Rule

Plan = TypeVar("Plan")
Played = TypeVar("Played", bound=History)


def search(
    plans: SearchStrategy[Plan],
    play: Callable[[Plan], Played],
    *,
    rules: Collection[Rule],
    seed: int | None,
    max_examples: int,
) -> Played | None:
    """Return the smallest history of these plans that breaks a rule, None if none was found."""
    found: list[Played] = []

    @settings(
        max_examples=max_examples,
        phases=(Phase.generate, Phase.shrink),
        database=None,
        deadline=None,
        derandomize=False,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
        verbosity=Verbosity.quiet,
    )
    @given(plans)
    def convict(plan: Plan) -> None:
        story = play(plan)
        if story.breaks(rules):
            found[:] = [story]
            raise _Convicted

    try:
        (convict if seed is None else seeded(seed)(convict))()
    except _Convicted:
        return found[0]
    return None


class _Convicted(Exception):  # noqa: N818 - no error, but a way out
    """Ends one history. Internal."""
