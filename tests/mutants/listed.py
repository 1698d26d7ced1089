"""All mutants of the gate."""

from tests.mutants import (
    doors,
    events,
    flows,
    graphs,
    limits,
    lives,
    lua,
    notes,
    places,
    promises,
    shells,
    trees,
    twin_edges,
    twin_ends,
    twin_lua,
    twins,
)

MUTANTS = (
    *places.MUTANTS,
    *graphs.MUTANTS,
    *lives.MUTANTS,
    *limits.MUTANTS,
    *flows.MUTANTS,
    *lua.MUTANTS,
    *shells.MUTANTS,
    *trees.MUTANTS,
    *doors.MUTANTS,
    *notes.MUTANTS,
    *events.MUTANTS,
    *promises.MUTANTS,
    *twins.MUTANTS,
    *twin_ends.MUTANTS,
    *twin_edges.MUTANTS,
    *twin_lua.MUTANTS,
)
