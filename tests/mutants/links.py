"""Mutants of the connections to a server: which node is asked, how calls share a connection and end with it."""

from tests.mutants.gate import Mutant, tests

LINKS = tests("tests/unit/test_redis_links.py")

MUTANTS = (
    Mutant(
        name="Callers that fail together each move the link one node further",
        kind="wire",
        file="backends/redis/connections/link.py",
        old="            if term != self.term:\n",
        new="            if term > self.term:\n",
        caught_by=(LINKS,),
    ),
    Mutant(
        name="A call counts as one of the node before",
        kind="wire",
        file="backends/redis/connections/async_link.py",
        old="            send.term = where.term\n            line =",
        new="            line =",
        caught_by=(tests("tests/faults/test_cluster.py", "-k", "failing_together and tasks and 2"),),
    ),
)
