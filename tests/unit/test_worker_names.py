"""Pools and users that a worker serves, as arguments and as options of the command line."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuehint import InvalidJobError, Scheduler
from queuehint.cli.worker import _listed, _names


@pytest.mark.parametrize(
    "options, says",
    [
        ({"pools": ["a", "b", "a"]}, "pools names 'a' twice"),
        ({"users": ["ann", "bob", "ann"]}, "users names 'ann' twice"),
        ({"users": [None, None]}, "users names None twice"),
        ({"users": ["ann"], "steal": ["bob", "bob"]}, "steal names 'bob' twice"),
        ({"users": ["ann", "bob"], "steal": ["cy", "bob"]}, "steal names 'bob', which is among users"),
        ({"users": ["ann", None], "steal": [None]}, "steal names None, which is among users"),
    ],
)
def test_a_user_named_twice_is_refused(options: dict[str, Any], says: str) -> None:
    sched = Scheduler("memory://")
    with pytest.raises(InvalidJobError, match=says):
        sched.make_worker(**options)
    with pytest.raises(InvalidJobError, match=says), sched.worker_sync(**options):
        pass
    sched.close_sync()


@pytest.mark.parametrize(
    "text, names",
    [
        (None, None),
        ("", []),
        ("ann", ["ann"]),
        ("ann,bob,", ["ann", "bob"]),
        (",,ann", ["ann"]),
        (r"Smith\, Ann,bob", ["Smith, Ann", "bob"]),
        (r"a\\,b", ["a\\", "b"]),
        (r"DOMAIN\ann,b", [r"DOMAIN\ann", "b"]),
        ("ann\\", ["ann\\"]),
    ],
)
def test_a_list_on_a_command_line_can_name_any_user(text: str | None, names: list[str] | None) -> None:
    assert _names(text) == names


@given(names=st.lists(st.text(st.sampled_from("a,\\ \n*"), min_size=1)))
def test_a_child_process_reads_the_names_that_its_parent_has(names: list[str]) -> None:
    assert _names(_listed(names)) == names
