"""A world to look at: documents with sections, a barrier, dead jobs, stuck waits, limits, users, on a fake clock."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from queuehint import FakeClock, JobHandle, JobSpec, Outcome, OutcomeKind, Scheduler, Signal
from queuehint.operations.working import Announce, Exchange, Note, Post, Tick
from queuehint.values.outcome import Grant, JobError, Progress

BEGAN_MS = 1_790_000_000_000
TRACEBACK = """Traceback (most recent call last):
  File "/app/publish.py", line 41, in publish
    reply = await session.post(url, json=body)
  File "/app/http.py", line 88, in post
    raise ConnectError(f"{host}:{port} refused the connection")
ConnectError: cdn.example.com:443 refused the connection
"""


class World:
    """
    A scheduler with tasks, and workers that are played by hand.

    Args:
        url: of the store.
        clock: by which all happens.
    """

    def __init__(self, url: str = "memory://", clock: FakeClock | None = None, **options: Any) -> None:
        self.clock = clock or FakeClock(BEGAN_MS)
        self.sched = Scheduler(url, clock=self.clock, **options)
        self._count = 0

        @self.sched.job(["{document}", "{section}"], max_attempts=3)
        def edit(
            document: str, section: str, text: str, mode: Literal["insert", "replace"] = "insert", notify: bool = False
        ) -> int:
            """Change a section of a document."""
            return len(text)

        @self.sched.job(["{document}"], max_attempts=5)
        def snapshot(document: str) -> str:
            """Store a document as it is."""
            return document

        @self.sched.job(["{document}"], max_attempts=1, on_dead="hold")
        def publish(document: str, channel: str = "web", retries: int = 3) -> None:
            """Bring a document to its readers."""

        @self.sched.job(max_attempts=4, pool="mail")
        def send_mail(to: str, subject: str, headers: dict[str, str] | None = None) -> None:
            """Send a message."""

        @self.sched.job(["{document}", "pages"], pool="gpu")
        def render(document: str, page: int, scale: float = 1.0) -> bytes:
            """Draw a page."""
            return b""

        self.edit, self.snapshot, self.publish, self.send_mail, self.render = edit, snapshot, publish, send_mail, render

    def id(self, name: str) -> str:
        """Return an id, the same in every run."""
        self._count += 1
        return f"{name}-{self._count:04}"

    async def enqueue(self, job: Any, *args: Any, **options: Any) -> JobHandle[Any]:
        """Enqueue a job with an id of its own."""
        named = {"id": self.id(job.name.partition("_")[0]), **options}
        handle: JobHandle[Any] = await job.using(**named).enqueue(*args)
        return handle

    async def submit(self, *specs: JobSpec) -> None:
        """Enqueue jobs by their specs."""
        await self.sched.submit(list(specs))

    async def claim(
        self, worker: str, limit: int, pools: Sequence[str] = ("default",), user: str | None = None
    ) -> tuple[Grant, ...]:
        """Have a worker start jobs, of one user if one is named."""
        users = None if user is None else (user,)
        asked = Exchange(worker, pools=tuple(pools), limit=limit, lease_ms=86_400_000, users=users)
        return (await self.sched.backend.call(asked)).grants

    async def settle(self, worker: str, *outcomes: Outcome) -> None:
        """Have a worker end jobs."""
        await self.sched.backend.call(Exchange(worker, outcomes))
        await self.tidy()

    async def tidy(self) -> None:
        """Do what is due or left over."""
        while (await self.sched.backend.call(Tick())).more:
            pass

    async def announce(self, worker: str, running: int, slots: int = 8, **options: Any) -> None:
        """Have a worker say what it is."""
        asked = Announce(worker=worker, host=f"{worker}.example.com", pid=4000, slots=slots, running=running, **options)
        await self.sched.backend.call(asked)

    async def say(self, grant: Grant, done: float, total: float, note: str, *lines: str) -> None:
        """Report progress of a running job."""
        note_ = Note(grant.spec.id, grant.token, lines, Progress(done, total, note))
        await self.sched.backend.call(Post((note_,)))


def finished(grant: Grant, result: bytes = b'{"result":null}') -> Outcome:
    return Outcome(job_id=grant.spec.id, token=grant.token, kind=OutcomeKind.FINISHED, result=result)


def failed(grant: Grant, kind: str, message: str, traceback: str | None = None, *, final: bool = True) -> Outcome:
    error = JobError(type=kind, message=message, traceback=traceback)
    return Outcome(job_id=grant.spec.id, token=grant.token, kind=OutcomeKind.FAILED, error=error, final=final)


async def seed(world: World) -> World:
    """Fill a world."""
    sched, clock = world.sched, world.clock
    # What has been: a history of finished and dead jobs.
    for number in range(12):
        await world.enqueue(world.edit, f"doc{number % 4 + 1}", f"section{number % 3 + 1}", "text", user="ann")
    for grant in await world.claim("worker-1", 8):
        clock.advance(seconds=2)
        await world.settle("worker-1", finished(grant))
    for grant in await world.claim("worker-1", 8):
        await world.settle("worker-1", finished(grant))
    for number in range(9):
        await world.enqueue(world.send_mail, f"reader{number}@example.com", "News", user="newsletter", tags=["digest"])
    for number, grant in enumerate(await world.claim("worker-3", 9, ["mail"])):
        clock.advance(seconds=70 + 13 * number)
        if number < 6:
            text = f"mail{number % 3}.example.com:25 refused the connection after {300 + number} ms"
            await world.settle("worker-3", failed(grant, "smtplib.SMTPConnectError", text))
        else:
            await world.settle("worker-3", failed(grant, "ValueError", f"no address in row {number}"))
    # A dead job that holds its place, and what waits behind it.
    await world.enqueue(world.publish, "doc2", user="ben")
    (grant,) = await world.claim("worker-2", 1)
    clock.advance(seconds=31)
    await world.settle(
        "worker-2", failed(grant, "ConnectError", "cdn.example.com:443 refused the connection", TRACEBACK)
    )
    for section in range(1, 6):
        await world.enqueue(world.edit, "doc2", f"section{section}", "text", user="ben")
    await world.enqueue(world.snapshot, "doc2")
    # A barrier: edits run, a snapshot of the whole document waits for them, later edits for the snapshot.
    for section in range(1, 5):
        await world.enqueue(world.edit, "doc1", f"section{section}", "text", user="ann")
    running = await world.claim("worker-1", 4)
    clock.advance(seconds=12)
    await world.enqueue(world.snapshot, "doc1", user="ann")
    for number in range(14):
        await world.enqueue(world.edit, "doc1", f"section{number % 6 + 1}", "text", user="cy", tags=["bulk"])
    await world.say(running[0], 640, 1000, "paragraphs", "read the section", "checked 640 paragraphs")
    # A limit that is reached, a pause, no worker for a pool, a signal that is not given, times.
    await sched.limit(["doc3"], 2, max_pending=200)
    await sched.limit(["tenants"], 4, each=True)
    await sched.limit(task="send_mail", rate=(100, 60), burst=20)
    for section in range(1, 7):
        await world.enqueue(world.edit, "doc3", f"section{section}", "text", user="cy")
    await world.claim("worker-2", 2)
    await sched.pause(["doc4"], for_=3600)
    for section in range(1, 4):
        await world.enqueue(world.edit, "doc4", f"section{section}", "text", user="ben")
    for page in range(5):
        await world.enqueue(world.render, "doc5", page, user="ann")
    await world.enqueue(world.publish, "doc6", after=[Signal("approved-doc6")], user="ben")
    first = await world.enqueue(world.snapshot, "doc7")
    await world.enqueue(world.publish, "doc7", after=[first])
    await world.enqueue(world.send_mail, "ann@example.com", "Reminder", delay=7200, user="newsletter")
    await world.enqueue(world.send_mail, "ben@example.com", "Reminder", delay=86_400, user="newsletter")
    await sched.set_weight("ann", 3)
    await sched.set_weight("newsletter", 10)
    await sched.schedule("nightly-snapshot", world.snapshot, cron="0 3 * * *", args=["doc1"])
    await sched.schedule(
        "digest", world.send_mail, cron="30 7 * * 1-5", timezone="Europe/Berlin", args=["all", "Digest"]
    )
    await sched.schedule("heartbeat", world.send_mail, every=300, args=["ops", "alive"])
    await sched.schedules.pause("digest")
    await world.tidy()
    await announce(world)
    clock.advance(seconds=28)
    return world


async def announce(world: World) -> None:
    """Have the workers say that they are there."""
    await world.announce("worker-1", 4, version_name="2026.11.2", release="a1b2c3d4e5f6")
    await world.announce("worker-2", 2, slots=4, version_name="2026.11.2", release="a1b2c3d4e5f6")
    await world.announce(
        "worker-3", 0, slots=16, pools=("mail", "default"), version_name="2026.11.1", release="0f9e8d7c6b5a"
    )


async def pass_time(world: World, steps: int) -> None:
    """Let 45 seconds pass: edits come in waves, and workers are not always as quick."""
    world.clock.advance(seconds=45)
    for section in range((0, 5, 9, 4, 1)[steps % 5]):
        await world.enqueue(world.edit, "doc8", f"section{section}", "text", user="ann")
    grants = await world.claim("worker-3", (2, 3, 6, 5, 4)[steps % 5], user="ann")
    await world.settle("worker-3", *[finished(grant) for grant in grants[: len(grants) - steps % 2]])
    await announce(world)
