"""
A script with invalid arguments changes nothing: it checks them before its first write.

Questions change nothing in any case: they refuse with the same error codes, and never fail in the middle.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import attrs
import pytest
from redis.exceptions import ResponseError

from queuehint import FakeClock
from queuehint import operations as op
from queuehint.backends.base import BackendOptions
from queuehint.backends.redis.address import parse_url
from queuehint.backends.redis.backend import RedisBackend
from queuehint.backends.redis.doctor.doctor import diagnose
from queuehint.backends.redis.scripts import names, script
from queuehint.backends.redis.session import Session
from queuehint.backends.redis.transport import Send
from queuehint.testing.driver import job
from queuehint.values.limit import Limit
from queuehint.values.outcome import JobError, Outcome, OutcomeKind, Progress
from queuehint.values.record import JobState
from queuehint.values.record_filter import RecordFilter
from queuehint.values.schedule import Recurrence
from tests.calls import script_of
from tests.conftest import StartServer
from tests.examples import example
from tests.servers import Server
from tests.unit.test_redis_scripts import EXAMPLES, MORE_EXAMPLES, QUESTIONS, refusals

pytestmark = pytest.mark.redis

WORDS = refusals()
"""With which of them a refusal begins."""
WRONG = ("nan", "inf", "-inf", "1.5", "9" * 20, "text")
"""Texts that are no whole number."""
NUMBER = re.compile(r"-?\d+")
LANE = 1
"""Where the name of a stream of requests stands: a random text, and now and then one of digits only."""
COMMON = 8
OUTCOME = COMMON + 8
"""Where the first outcome stands in an exchange with one pool."""
FORMS = (
    (r"(\w+)\n(.*)", r" \1\n\2"),  # an id like that of a start
    (r"(.*)\n2 3 hold (.*)", r"\1\nnan 3 hold \2"),
    (r"(.*)\n2 3 hold (.*)", r"\1\ntext\n"),
    (r"dwdk (\w+)", r"qwdk \1"),
    (r"dwdk (\w+)", r"\1"),
    (r"((?:[^\n]*\n){7})return(\n.*)", r"\1\2"),
    (r"((?:[^\n]*\n){7})return(\n.*)", r"\1keep\2"),
    (r"((?:[^\n]*\n){13})x(\w+)", r"\1q\2"),
    (r"((?:[^\n]*\n){13})x(\w+)", r"\1x\2\n"),
    (r"((?:[^\n]*\n){13})x(\w+)", r"\1x\2\nq\2"),
    (r"(.*)\n2 3 hold (.*)", rf"\g<1>\n{'9' * 20} 3 hold \2"),
    (r"(.*)\n2 3 hold (.*)", r"\1\n2 3 drop \2"),
    (r"(.*)\n2 3 hold continue (.*)", r"\1\n2 3 hold drop \2"),
    (r"(.*)\n2 3 hold continue (\d+)([^\n]*)\n(.*)", r"\1\n2 3 hold continue\n\4"),
    (r"(.*)\n2 3 hold continue (\d+)([^\n]*)\n(.*)", r"\1\n2 3 hold continue \2 x\n\4"),
    (r"(.*)\n2 3 hold continue (\d+)([^\n]*)\n(.*)", r"\1\n2 3 hold continue \2 - - - -\n\4"),
    (r"every\n(.*)\n\d+", r"every\n\1"),
)
"""Texts that a script takes apart, and what it is not."""
WRONG_KEPT = ("", "text", "--", "-5", "-\ns", "-\ns\n-", "1\ns", "1\ns\ntext", "1\ns\n1.5", "1\n\n1", "1\ns\n1\n")
"""Malformed retentions of records with a service, and of single services."""
KINDS_WRONG = {
    "enqueue": (COMMON, ("parts\nnan", "parts\nnan\n")),
    "can_dequeue": (COMMON + 1, ("", "q", "shared")),
    "count_pending": (COMMON, ("", "q")),
    "change_schedule": (COMMON + 1, ("", "p", "stop")),
    "redrive": (COMMON, ("", "1", "all")),
    "doctor/entries": (COMMON + 1, ("", "text")),
    "list": (COMMON + 4, ("q", "S,D")),
    "count_records": (COMMON + 5, ("q",)),
}
"""Where a letter, a word or a path stands in the arguments of a script, and what is none."""
FLAGS = {
    "close": COMMON + 1,
    "list": COMMON + 12,
    "count_pending": COMMON + 1,
    "doctor/kinds": COMMON,
}
"""Where a 1 or a 0 stands."""


class Shop:
    """A namespace with a job in each state, whose scripts are asked by hand."""

    def __init__(self, server: Server, namespace: str) -> None:
        self.server = server
        self.client = server.client()
        self.seen: bytes | None = None
        options = BackendOptions(namespace=namespace, clock=FakeClock())
        self.store = RedisBackend(parse_url(server.url), options)
        self.shas = {name: self.client.script_load(script(name).text) for name in names()}
        self.session = Session(parse_url(server.url), options)
        self.session._checked_s = float("inf")
        self.session._may_write = True
        self.apply(op.SetLimit(Limit(path=("x",), most=5)))
        self.apply(op.PutSchedule("every", job("every"), Recurrence(every_ms=1000), 1000))
        self.apply(op.Enqueue(tuple([job(f"r{number}", [f"r{number}"], max_attempts=99) for number in range(8)])))
        self.tokens = {
            grant.spec.id: grant.token for grant in self.apply(op.Exchange("w", lease_ms=600_000, limit=8)).grants
        }
        self.apply(op.Enqueue((job("dead", ["d"], on_dead="hold"), job("over"))))
        for grant in self.apply(op.Exchange("w", lease_ms=600_000, limit=2)).grants:
            kind = OutcomeKind.FAILED if grant.spec.id == "dead" else OutcomeKind.FINISHED
            outcome = Outcome(job_id=grant.spec.id, token=grant.token, kind=kind, final=kind is OutcomeKind.FAILED)
            self.apply(op.Exchange("w", (outcome,), lease_ms=600_000))
        self.apply(op.Enqueue((job("waits", after=["r0"]), job("part", ["p"])), staged="parts"))
        self.apply(op.Enqueue((job("queued", ["r0"], user="ann", service="s"), job("later", delay_ms=600_000))))

    def apply(self, operation: op.Operation[Any]) -> Any:
        return self.store.call_sync(operation)

    def outcome(self, job_id: str, kind: OutcomeKind, **fields: Any) -> Outcome:
        return Outcome(job_id=job_id, token=self.tokens[job_id], kind=kind, **fields)

    def operations(self) -> Iterator[op.Operation[Any]]:
        """Yield what each script is asked that changes something."""
        seen = set()
        for operation in self._to_do():
            seen.add(type(operation))
            yield operation
        yield from [example(kind) for kind in op.KINDS if not kind.is_question and kind not in seen]

    def _to_do(self) -> Iterator[op.Operation[Any]]:
        """Yield operations for which there is something to do here."""
        fails = JobError(type="E", message="no", traceback="lines")
        after = job("e2", ["e"], after=["r0"], delay_ms=1, max_attempts=2, key="k", user="ann")
        yield op.Enqueue((job("e1", ["e"], presence_ms=60_000), after))
        yield op.Enqueue((job("e3", run_at_ms=10, flow="f"),), flow="f", parent=("r0", self.tokens["r0"]))
        yield op.Enqueue((job("e4", ["e"]),), firing=op.Firing("every", 1, 1000, 2000))
        yield op.Enqueue((job("e5", ["e"]),), staged="parts")
        yield op.Enqueue((job("e7", ["e"]),), staged="parts", is_further=True)
        yield op.Enqueue((job("e6", ["e6"]),), closing=op.Closing(("e6",)))
        yield op.Exchange(
            "w", (self.outcome("r1", OutcomeKind.FAILED, error=fails, delay_ms=9000),), lease_ms=600_000, limit=1
        )
        yield op.Exchange("w", (self.outcome("r2", OutcomeKind.SNOOZED, delay_ms=60_000),), lease_ms=600_000, limit=1)
        yield op.Exchange("w", (self.outcome("r3", OutcomeKind.CHILDREN, children=("r0",)),), lease_ms=600_000, limit=1)
        yield op.Exchange("w", (self.outcome("r4", OutcomeKind.LOST, error=fails),), lease_ms=600_000, limit=1)
        yield op.Exchange("w", (self.outcome("r5", OutcomeKind.FINISHED, result=b"1"),), lease_ms=600_000, limit=1)
        yield op.Exchange("w", (self.outcome("r6", OutcomeKind.DISCARDED, reason="no"),), lease_ms=600_000, limit=1)
        yield op.Renew((("r0", self.tokens["r0"]),), 600_000)
        yield op.Post((op.Note("r0", self.tokens["r0"], progress=Progress(1.0, 2.0, "note")),))
        yield op.Post((op.Note("r0", self.tokens["r0"], result=b"1"),))
        yield op.Post((op.Note("r0", self.tokens["r0"], ("line",)),))
        held = self.tokens["r0"]
        yield op.Post((op.Note("r0", held, ("a", "b"), Progress(1.0), b"1"), op.Note("r0", held, (), None, b"null")))
        yield op.Amend(job("queued", ["r0"], user="bob", service="s"), 1)
        yield op.Delete(("over",), (self.apply(op.Get(("over",))).records[0].version,))
        yield from (op.Push("n", "k", b"1", 60_000), op.SetLimit(Limit(path=("y",), rate=(5, 1000), burst=3)))
        yield from (
            op.SetLimit(Limit(path=("z",), max_pending=9)),
            op.SetLimit(Limit(path=("y",))),
            op.Draw(2),
            op.Follow(None),
            op.Follow(0),
        )
        wanted = RecordFilter(user="u", path=("q",))
        yield from (op.Pause(wanted, 1_000), op.Resume(wanted))
        yield from (
            op.Pause(RecordFilter(path=("q",)), 1_000),
            op.Resume(RecordFilter(path=("q",))),
            op.Close(("q",)),
            op.Close(("q",), reopen=True),
            op.CancelPath(("q",)),
            op.CancelFlow("q"),
        )
        yield op.PutSchedule("other", job("other", priority=2), Recurrence(every_ms=1000), 10**13)
        yield from (
            op.ChangeSchedule("every", "pause"),
            op.ChangeSchedule("every", "resume", 1, 2000),
            op.ChangeSchedule("other", "drop"),
            op.Tick(),
        )
        yield from (
            op.Commit("parts", 4),
            op.Withdraw("parts"),
            op.Redrive(("dead",), True),
            op.Redrive(("later",), waiting=True),
            op.Discard(("dead",)),
            op.Cancel(("later",)),
        )

    def asked(self) -> Iterator[tuple[str, list[Any]]]:
        """Yield each script that changes something with its arguments."""
        for operation in self.operations():
            yield self.taken(operation)
        for name, args in (
            ("retain", ("1 2 3 4", 1)),
            ("watch", ("s", "", "r0", 1)), ("unwatch", ("s", "r0")), ("doctor/turn_back", ()),
        ):  # fmt: skip
            yield self._taken(next(self.session.execute_script(name, args)))

    def taken(self, operation: op.Operation[Any]) -> tuple[str, list[Any]]:
        """Return the script that is asked to do an operation, with its arguments."""
        return self._taken(next(self.session.execute(operation)))

    def _taken(self, ask: object) -> tuple[str, list[Any]]:
        assert isinstance(ask, Send)
        name = script_of(ask.command)
        assert name
        return name, list(ask.command[3 + ask.command[2] :])

    def questions(self) -> Iterator[tuple[str, list[Any]]]:
        """Yield each script that changes nothing with its arguments."""
        page = RecordFilter(states=(JobState.QUEUED,), path=("r0",), since_ms=1, until_ms=10**13)
        for operation in (
            *[operation for operation in EXAMPLES.values() if operation.is_question],
            op.List(page, after=("r0", 1)), op.CountRecords(page, after=("r0", 1)),
            op.DueSchedules(after=(1000, "every")), op.Fetch("r0", self.tokens["r0"], ("over",)),
            op.Get(("r0", "over")), op.CountPending(("r0",)),
        ):  # fmt: skip
            yield self.taken(operation)
        for name in sorted(QUESTIONS & MORE_EXAMPLES.keys()):
            yield self._taken(next(self.session.execute_script(name, MORE_EXAMPLES[name])))

    def refuses(self, name: str, args: list[Any]) -> bool:
        """Run a script; return whether it was refused, by one of our words, and see that nothing has changed then."""
        # The server lets no question write.
        before = None if name in QUESTIONS else self.seen or self._digest()
        refusal = ""
        try:
            self.client.evalsha(self.shas[name], *self.session._keys, *args)
        except ResponseError as error:
            refusal = str(error)
        if not refusal:
            self.seen = None
            return False
        self.seen = self._digest() if before else None
        assert (refusal.split()[0] in WORDS, self.seen) == (True, before), f"{name} {args}: {refusal}"
        return True

    def _digest(self) -> bytes:
        digest: bytes = self.server.call("DEBUG", "DIGEST")
        return digest


def wrong_numbers(name: str, args: list[Any]) -> Iterator[list[Any]]:
    """Yield arguments with something else where a number belongs: an argument, or a line of one that has several."""
    for at, arg in enumerate(args):
        is_read = at >= COMMON or not (at == LANE or name == "retain" or name in QUESTIONS)
        lines = str(arg).split("\n") if type(arg) in (str, int) and is_read else []
        for line, text in enumerate(lines):
            if NUMBER.fullmatch(text):
                for wrong in WRONG:
                    yield [*args[:at], "\n".join([*lines[:line], wrong, *lines[line + 1 :]]), *args[at + 1 :]]


def wrong_texts(args: list[Any]) -> Iterator[list[Any]]:
    """Yield arguments of which one is something else, one or more are missing, or there is one too many."""
    for at, arg in enumerate(args):
        lines = arg.split("\n") if type(arg) is str else [arg]
        for line in range(len(lines)):
            for wrong in ("", "nan"):
                yield [*args[:at], "\n".join([*lines[:line], wrong, *lines[line + 1 :]]), *args[at + 1 :]]
        yield args[:at]
    yield [*args, "more"]


def wrong_forms(name: str, args: list[Any]) -> Iterator[list[Any]]:
    """Yield arguments that are not put together as the header of a script says."""
    for at, arg in enumerate(args):
        for form, wrong in FORMS:
            if type(arg) is str and re.fullmatch(form, arg, re.DOTALL):
                yield [*args[:at], re.sub(form, wrong, arg, flags=re.DOTALL), *args[at + 1 :]]
    if name == "exchange":
        last = len(args) - 1
        yield from (args[:at] for at in range(OUTCOME + 1, last + 1))
        yield [*args[: OUTCOME + 2], "q", *args[OUTCOME + 3 :]]
        if args[OUTCOME + 2] == "c":
            yield from ([*args[:at], "q", *args[at + 1 :]] for at in (OUTCOME + 3, OUTCOME + 5))
    if name == "set_limit":
        yield [*args[:COMMON], "q", *args[COMMON + 1 :]]
        yield [*args[: COMMON + 2], "", "", "", 3]
    if name == "exchange":
        yield from ([*args[:at], "q", *args[at + 1 :]] for at in (COMMON + 3, COMMON + 4))
        if args[OUTCOME + 2] in {"x", "l"}:
            yield from ([*args[:at], "q", *args[at + 1 :]] for at in (OUTCOME + 3, OUTCOME + 6))
    if name == "retain":
        yield from ([*args[:COMMON], f"1 2 3 {wrong}", args[-1]] for wrong in WRONG_KEPT)
        yield from ([*args[:COMMON], wrong, args[-1]] for wrong in ("", "1 2 3", f"{'9' * 20} 2 3 4"))
    elif name not in QUESTIONS:
        yield from ([*args[:6], wrong, *args[7:]] for wrong in WRONG_KEPT)
    at, texts = KINDS_WRONG.get(name, (0, ()))
    yield from ([*args[:at], text, *args[at + 1 :]] for text in texts)
    if at := FLAGS.get(name, 0):
        yield from ([*args[:at], text, *args[at + 1 :]] for text in ("", 2, "true"))


@pytest.fixture
def shop(start_server: StartServer, namespace: str) -> Iterator[Shop]:
    shop = Shop(start_server(), namespace)
    yield shop
    shop.store.close_sync()


@pytest.mark.slow
def test_malformed_script_arguments_are_refused_and_change_nothing(shop: Shop) -> None:
    asked = list(shop.asked())
    changing = {name for name in names() if name not in QUESTIONS} - {"probe", "doctor/repair", "types"}
    assert {name for name, _ in asked} == changing
    for name, args in asked:
        for wrong in (*wrong_numbers(name, args), *wrong_forms(name, args)):
            assert shop.refuses(name, wrong), f"{name}: {wrong}"


def test_a_flow_whose_name_has_two_lines_is_not_committed(shop: Shop) -> None:
    asked = next(operation for operation in shop.operations() if isinstance(operation, op.Commit))
    name, args = shop.taken(attrs.evolve(asked, jobs=2, flow="f", flow_timeout_ms=5))
    at = args.index("f")
    assert shop.refuses(name, [*args[:at], "f\nnan", *args[at + 1 :]])
    assert not shop.refuses(name, args)


def test_malformed_question_is_refused_before_any_read(shop: Shop) -> None:
    asked = list(shop.questions())
    assert {name for name, _ in asked} == QUESTIONS
    for name, args in asked:
        assert not shop.refuses(name, args), name
        for wrong in (*wrong_numbers(name, args), *wrong_forms(name, args)):
            assert shop.refuses(name, wrong), f"{name}: {wrong}"
        for wrong in wrong_texts(args):
            shop.refuses(name, wrong)
        assert shop.refuses(name, args[: COMMON - 1])


@pytest.mark.slow
def test_random_arguments_leave_a_sound_store_or_change_nothing(shop: Shop) -> None:
    asked = list(shop.asked())
    refused = 0
    for name, (now_ms, _, _, *args) in asked:
        # Without a stream nothing is a repeat.
        for wrong in wrong_texts([now_ms, "", 0, *args]):
            refused += shop.refuses(name, wrong)
    assert refused > 1000
    report = diagnose(shop.store)
    assert [finding for finding in report.findings if finding.level == "error"] == []
