"""Ids made by producers."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from queuehint.schema.checks import check_id
from queuehint.values import ids


def test_ids_are_unique_over_threads() -> None:
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda _: [ids.new_id() for _ in range(500)], range(8)))
    assert len({one for part in made for one in part}) == 4_000


def test_ids_of_one_process_sort_in_order_of_their_making() -> None:
    made = [ids.new_id() for _ in range(2_000)]
    assert made == sorted(made)


def test_an_id_is_valid_and_21_characters_long() -> None:
    made = ids.new_id()
    assert check_id(made) == made
    assert len(made) == 21


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # forking beside threads
def test_fork_marks_its_ids_as_its_own() -> None:
    parent, process = ids.new_id()[-6:], ids.this_process.mark
    read, write = os.pipe()
    if (pid := os.fork()) == 0:
        os.write(write, f"{ids.new_id()[-6:]} {ids.this_process.mark is process}".encode())
        os._exit(0)
    os.waitpid(pid, 0)
    child, is_same = os.read(read, 100).decode().split()
    os.close(read)
    os.close(write)
    assert child != parent
    assert is_same == "False"
    assert ids.new_id()[-6:] == parent
    assert ids.this_process.mark is process


def test_ids_may_be_made_otherwise_for_a_while() -> None:
    with ids.ids_from(iter("abc").__next__):
        assert (ids.new_id(), ids.new_id()) == ("a", "b")
    assert len(ids.new_id()) == 21
