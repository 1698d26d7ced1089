"""All mutants of the gate."""

from tests.mutants import doors, graphs, lives, lua, notes, places, shells

MUTANTS = (
    *places.MUTANTS,
    *graphs.MUTANTS,
    *lives.MUTANTS,
    *lua.MUTANTS,
    *shells.MUTANTS,
    *doors.MUTANTS,
    *notes.MUTANTS,
)
