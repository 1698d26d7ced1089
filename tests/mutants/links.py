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
    Mutant(
        name="A refusal after an attempt without an answer says that nothing was changed",
        kind="wire",
        file="backends/redis/codec/failures.py",
        old="        if is_unknown and not (",
        new="        if False and not (",
        caught_by=(tests("tests/unit/test_redis_session.py", "-k", "lost_reply"),),
    ),
    Mutant(
        name="A refusal that comes before the receipt was read counts as an answer",
        kind="wire",
        file="backends/redis/codec/refusals.py",
        old="    return refusal(operation, message) is not None and not message.startswith(_RECEIPT_UNREAD)\n",
        new="    return refusal(operation, message) is not None\n",
        caught_by=(tests("tests/unit/test_redis_session.py", "-k", "lost_reply"),),
    ),
    Mutant(
        name="Certificates are read by the event loop",
        kind="wire",
        file="backends/redis/connections/async_link.py",
        old="await asyncio.get_running_loop().run_in_executor(reader, connection.ssl_context.get)",
        new="connection.ssl_context.get()",
        caught_by=(tests("tests/faults/test_certificates.py"),),
    ),
)
