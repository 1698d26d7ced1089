"""All mutants of the gate."""

from tests.mutants import graphs, lives, lua, places, shells

MUTANTS = (*places.MUTANTS, *graphs.MUTANTS, *lives.MUTANTS, *lua.MUTANTS, *shells.MUTANTS)
