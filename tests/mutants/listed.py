"""All mutants of the gate."""

from tests.mutants.gate import ROOT
from tests.mutants.loading import load

MUTANTS = load(ROOT / "tests" / "mutants" / "texts")
