"""Catchers of mutants: the parts of the kit, each bound to a backend of ours."""

from tests.mutants.gate import Catcher
from tests.servers import find_redis

CONFORMANCE = Catcher("conformance", ("tests/contract/test_memory.py",), is_kit=True)
"""`BackendConformance` on the memory backend, whose engine is `queuehint/core`."""
ON_REDIS = "(valkey-sync or valkey-async)" if isinstance(find_redis(), str) else "(redis-sync or redis-async)"
CONFORMANCE_ON_REDIS = Catcher("conformance on redis", ("tests/contract/test_redis.py", "-k", ON_REDIS), is_kit=True)
"""The same on the Redis backend, each rule through one of its shells."""
RESTARTS_ON_REDIS = Catcher("restarts on redis", ("tests/contract/test_redis.py", "-k", "Restarts"), is_kit=True)
"""`Restarts` on a server that is killed."""
TOKENS_ON_REDIS = Catcher(
    "tokens on redis", ("tests/contract/test_redis.py", "-k", f"Tokens and {ON_REDIS}"), is_kit=True
)
"""`Tokens` on the Redis backend."""
MACHINE = Catcher("machine", ("tests/property/test_backend_machine.py::TestMemory",), is_kit=True)
"""`BackendStateMachine` on the memory backend; it checks fewer facts than the rules do, but combinations of them."""
MACHINE_ON_REDIS = Catcher("machine on redis", ("tests/property/test_backend_machine.py::TestRedis",), is_kit=True)
"""The same on the Redis backend."""
SIMULATION = Catcher("simulation", ("tests/property/test_simulation_engine.py", "-k", "promises and not for_long"))
"""A few hundred seeds of the simulated world on the engine."""
TRACES = Catcher("traces", ("tests/property/test_traces.py", "-k", "every_history_of_the_engine"), is_kit=True)
"""`check_trace` on histories of the engine."""
PROVED = Catcher("proof", ("tests/proof/test_tries.py",), needs="ocamlopt")
"""Short histories of the trie, all of them, and random ones, beside the program made from the proof."""
PROVED_EDGES = Catcher("proof of edges", ("tests/proof/test_transitions.py",), needs="ocamlopt")
"""Each transition of random crowds of jobs beside the machine made from the proof."""
PROVED_LEASES = Catcher("proof of leases", ("tests/proof/test_leases.py",), needs="ocamlopt")
"""Settlements and renewals of random histories beside the program made from the proof."""
PROVED_STORES = Catcher(
    "proof beside redis", ("tests/proof/test_stores.py", "-k", "redis and not long"), needs="ocamlopt"
)
"""The gates in Redis after each operation of random histories, beside the program made from the proof."""
