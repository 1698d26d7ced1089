"""Mutants of the connections to a server: which node is asked, how calls share a connection and end with it."""

from tests.mutants.gate import Mutant, tests

LINKS = tests("tests/unit/test_redis_links.py")
CALLERS = "tests/integration/test_redis_callers.py"

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
    Mutant(
        name="A call that waits for a slot has a stream already",
        kind="wire",
        file="backends/redis/functions/calls.py",
        old="        return Send(self._numbered)\n",
        new="        return Send(self._numbered())\n",
        caught_by=(tests(CALLERS, "-k", "burst"),),
    ),
    Mutant(
        name="A call that was not sent keeps its stream while it pauses",
        kind="wire",
        file="backends/redis/session.py",
        old="                if call.stream is not None and not is_unknown:\n",
        new="                if False:\n",
        caught_by=(tests("tests/unit/test_redis_session.py", "-k", "not_sent"),),
    ),
    Mutant(
        name="Calls of a loop that give up keep those behind them waiting",
        kind="wire",
        file="backends/redis/connections/async_link.py",
        old="                if is_answered:\n",
        new="                if True:\n",
        caught_by=(LINKS,),
    ),
    Mutant(
        name="Calls of threads that give up keep those behind them waiting",
        kind="wire",
        file="backends/redis/connections/sync_link.py",
        old="            rest_s = max(begun_s, self._answered_s) + session.patience_s(address) - time.monotonic()\n",
        new="            rest_s = session.patience_s(address)\n",
        caught_by=(tests(CALLERS, "-k", "frozen and threads"),),
    ),
    Mutant(
        name="Each call of a loop asks the sentinels for itself",
        kind="wire",
        file="backends/redis/connections/async_link.py",
        old="        asking = self._asking\n",
        new="        asking = None\n",
        caught_by=(tests(CALLERS, "-k", "one_question and tasks"),),
    ),
    Mutant(
        name="Each thread asks the sentinels for itself",
        kind="wire",
        file="backends/redis/connections/sync_link.py",
        old="            asking = self._asking\n",
        new="            asking = None\n",
        caught_by=(tests(CALLERS, "-k", "one_question and threads"),),
    ),
    Mutant(
        name="A closed link of a loop connects again",
        kind="wire",
        file="backends/redis/connections/async_link.py",
        old="        self._is_closed = True\n",
        new="",
        caught_by=(tests(CALLERS, "-k", "closed_link and tasks"),),
    ),
    Mutant(
        name="A closed link of threads connects again",
        kind="wire",
        file="backends/redis/connections/sync_link.py",
        old="        self._is_closed = True\n",
        new="",
        caught_by=(tests(CALLERS, "-k", "closed_link and threads"),),
    ),
)
