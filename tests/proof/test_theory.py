"""The proofs agree with their page in the docs, and each planted fault makes one of them fail."""

from __future__ import annotations

import re
import shutil
from importlib import import_module
from itertools import pairwise
from pathlib import Path

import pytest

from tests.proof.programs import PROOF, ROOT, require
from tests.proof.theory import AFTER, BEFORE, FAULTS, Fault, compile_into, try_fault

PAGE = (ROOT / "docs/explanation/proof.md").read_text("utf-8")
SOURCES = sorted([*PROOF.glob("*.v"), *PROOF.glob("edges/*.v")])
MODULES = {
    "trie": "queuehint.core.structures.trie",
    "edges": "queuehint.core.structures.edges",
    "hint": "queuehint.values.hint",
    "table": "queuehint.core.jobs.table",
    "lifecycle": "queuehint.core.jobs.lifecycle",
    "bounds": "queuehint.operations.bounds",
    "state": "queuehint.core.state",
    "working": "queuehint.core.working",
}
NAMED = re.compile(r"^(?:Lemma|Theorem|Corollary|Example|Definition|Fixpoint|Inductive|Record) (\w+)", re.MULTILINE)


def names_in(file: Path) -> set[str]:
    return set(NAMED.findall(file.read_text("utf-8")))


def theorems_of(heading: str) -> set[str]:
    section = PAGE.split(f"## {heading}\n")[1].split("\n## ")[0]
    return set(re.findall(r"^\|.*\| `(\w+)` \|$", section, re.MULTILINE))


@pytest.mark.parametrize(
    "subjects, file", [(("places", "leases"), "Assumptions.v"), (("edges",), "edges/AssumptionsOfJobs.v")]
)
def test_assumptions_of_exactly_the_listed_theorems_are_printed(subjects: tuple[str, ...], file: str) -> None:
    printed = re.findall(r"^Print Assumptions (\w+)\.$", (PROOF / file).read_text("utf-8"), re.MULTILINE)
    assert len(printed) == len(set(printed))
    assert set().union(*[theorems_of(f"What is claimed: {subject}") for subject in subjects]) == set(printed)


def test_each_function_of_the_page_has_a_twin() -> None:
    rows = re.findall(r"^\| `([\w.]+)` \| `(\w+)` in `([\w/]+\.v)` \|$", PAGE, re.MULTILINE)
    assert len(rows) >= 20
    for code, twin, file in rows:
        module, *path = code.split(".")
        found = import_module(MODULES[module])
        for name in path:
            found = getattr(found, name)
        assert twin in names_in(PROOF / file), f"{twin} is not in {file}"


def test_mutating_functions_of_the_trie_are_on_the_page() -> None:
    trie = import_module(MODULES["trie"]).PathTrie
    questions = {"before", "holders", "check", "_child", "_disown"}
    changing = {name for name in vars(trie) if not name.startswith("__")} - questions
    assert changing <= set(re.findall(r"`trie\.PathTrie\.(\w+)`", PAGE))


@pytest.mark.parametrize("file", SOURCES, ids=lambda file: file.name)
def test_each_statement_follows_a_sentence_and_none_is_omitted(file: Path) -> None:
    lines = file.read_text("utf-8").splitlines()
    assert lines[0].startswith("(** ")
    for before, line in pairwise(lines):
        if re.match(r"(Lemma|Theorem|Corollary|Example) ", line):
            assert before.endswith("*)"), line
            assert not before.startswith("(* ---"), line
        assert len(line) <= 120, line
        assert not re.search(r"\b(Admitted|admit|Axiom|Parameter|Conjecture)\b", line), line


def test_all_files_of_the_theory_are_checked() -> None:
    makefile = (PROOF / "Makefile").read_text("utf-8")
    listed = set(re.findall(r"^(?:PLACES|EDGES) = (.*)$", makefile, re.MULTILINE)[0].split())
    listed |= set(re.findall(r"^EDGES = (.*)$", makefile, re.MULTILINE)[0].split())
    apart = {"Extract", "ExtractLeases", "Assumptions", "ExtractJobs", "AssumptionsOfJobs"}
    assert {file.stem for file in SOURCES} == listed | apart


# --- faults in the theory --------------------------------------------------------------------------------------------


def test_faults_have_distinct_names_and_twenty_of_each_kind() -> None:
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)
    for file in AFTER:
        assert sum(fault.file == file for fault in FAULTS) >= 20


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_fault_text_occurs_once_in_its_file(fault: Fault) -> None:
    assert (PROOF / fault.file).read_text("utf-8").count(fault.old) == 1


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what comes before the algorithm and the machine, compiled."""
    require("coqc", "there is no Coq; on Debian or Ubuntu: apt-get install --no-install-recommends coq")
    folder = tmp_path_factory.mktemp("compiled")
    for file in BEFORE:
        shutil.copy(PROOF / file, folder)
    error = compile_into(folder, *BEFORE)
    assert error is None, error
    return folder


@pytest.mark.nightly
@pytest.mark.parametrize("file", AFTER)
def test_without_a_fault_all_proofs_go_through(file: str, compiled: Path, tmp_path: Path) -> None:
    assert try_fault(None, file, compiled, tmp_path) is None


@pytest.mark.nightly
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_stops_a_proof(fault: Fault, compiled: Path, tmp_path: Path) -> None:
    error = try_fault(fault, fault.file, compiled, tmp_path)
    assert error is not None, f"all proofs go through: {fault.name}"
    # A file that does not read stops no proof: that says nothing about the fault.
    assert "Syntax error" not in error, error
    assert "Cannot find a physical path" not in error, error
