"""A job of a declaration with `claims=` is the job of a call with ``using(claims=...)``, valid or refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
from hypothesis import event, given
from hypothesis import strategies as st

from queuehint import Scheduler
from queuehint.errors import InvalidHintError
from queuehint.testing import hints
from queuehint.values.hint import MODES
from queuehint.values.spec import JobSpec

Part = tuple[str, str | None]
"""A text and the name of the argument after it."""

some_text = st.text(alphabet="ab{}:\\é\n", max_size=2)
some_segment = hints(hostile=True, max_depth=1, allow_none=False).map(lambda hint: hint[0] if hint else "")
parts = st.lists(st.tuples(some_text, st.sampled_from(["doc", "n", None])), min_size=1, max_size=2)
segments = st.one_of(st.sampled_from(["a", "b"]).map(lambda text: [(text, None)]), parts)
places = st.lists(segments, max_size=3)
declarations = st.lists(st.tuples(places, st.sampled_from(MODES)), max_size=4)


def template(segment: list[Part]) -> str:
    escaped = [(text.replace("{", "{{").replace("}", "}}"), name) for text, name in segment]
    return "".join(text + ("" if name is None else f"{{{name}}}") for text, name in escaped)


def filled(segment: list[Part], arguments: dict[str, Any]) -> str:
    return "".join(text + ("" if name is None else str(arguments[name])) for text, name in segment)


def made(make: Callable[[], JobSpec]) -> JobSpec | str:
    """Return a spec without its id, or why there is none."""
    try:
        return attrs.evolve(make(), id="")
    except InvalidHintError as error:
        return str(error)


@given(declarations, st.one_of(st.sampled_from(["a", "b"]), some_segment), st.integers(-2, 10**20))
def test_a_declared_claim_is_that_of_a_call(declared: Any, doc: str, n: int) -> None:
    def work(doc: str, n: int = 3) -> None: ...

    sched = Scheduler("memory://")
    plain = sched.job(name="work")(work)
    arguments: dict[str, Any] = {"doc": doc} if n == 3 else {"doc": doc, "n": n}
    literal = [([filled(each, {"doc": doc, "n": n}) for each in place], mode) for place, mode in declared]
    of_call = made(lambda: plain.using(claims=literal).spec(**arguments))
    templates: Any = [([template(each) for each in place], mode) for place, mode in declared]
    of_declaration = made(lambda: sched.job(name="work", claims=templates)(work).spec(**arguments))
    event("refused" if isinstance(of_call, str) else f"{len(of_call.claims)} claims")
    if isinstance(of_call, str):
        assert isinstance(of_declaration, str)
        # What is wrong with the template itself is said at the declaration already, and of the first of these.
        assert of_call.partition("[")[0] == of_declaration.partition("[")[0] == "claims"
        return
    assert of_declaration == of_call
    of_callable = sched.job(name="work", claims=lambda doc, n: literal)(work)
    assert made(lambda: of_callable.spec(**arguments)) == of_call
