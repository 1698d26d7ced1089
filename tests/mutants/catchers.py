"""Who is to notice mutants: the parts of the kit, each bound to a backend of ours, and tests of our own beside them."""

from tests.mutants.gate import Catcher, tests

CONFORMANCE = Catcher("conformance", ("tests/contract/test_memory.py", "-k", "not async"), is_kit=True)
"""`queuehint.testing.BackendConformance` on the memory backend, whose engine is `queuehint/core`."""
CONFORMANCE_ON_REDIS = Catcher(
    "conformance on redis", ("tests/contract/test_redis.py", "-k", "redis-sync"), is_kit=True
)
"""The same on the Redis backend, through its synchronous shell."""
RESTARTS_ON_REDIS = Catcher(
    "restarts on redis", ("tests/contract/test_redis.py", "-k", "Restarts and not async"), is_kit=True
)
MACHINE = Catcher("machine", ("tests/property/test_engine_machine.py",), is_kit=True)
MACHINE_ON_REDIS = Catcher("machine on redis", ("tests/property/test_agreement.py::TestAgreement",), is_kit=True)
SIMULATION = Catcher(
    "simulation", ("tests/property/test_simulation_engine.py", "-k", "promises and not for_long"), is_kit=True
)
WALKS = Catcher("walks", ("tests/property/test_engine_random.py",))

__all__ = [
    "CONFORMANCE",
    "CONFORMANCE_ON_REDIS",
    "MACHINE",
    "MACHINE_ON_REDIS",
    "RESTARTS_ON_REDIS",
    "SIMULATION",
    "WALKS",
    "tests",
]
