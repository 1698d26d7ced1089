"""The protocol of every backend, its options, and the registry of URL schemes."""

from __future__ import annotations

import logging
import re
from functools import cache, lru_cache
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar
from urllib.parse import SplitResult, parse_qsl, urlsplit

import attrs

from queuehint.backends.masks import masked
from queuehint.clock import Clock, SystemClock
from queuehint.errors import InvalidJobError, InvalidJobTypeError, shown
from queuehint.schema.checks import check_instance
from queuehint.values.policy import Retention

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Hashable, Sequence
    from pathlib import Path
    from urllib.parse import SplitResult

    from queuehint.operations import CountPending, Operation

Reply = TypeVar("Reply")

ENTRY_POINTS = "queuehint.backends"
_POSTGRES = "queuehint.backends.postgres.backend:PostgresBackend.from_url"
_REDIS = "queuehint.backends.redis.backend:RedisBackend.from_url"
OWN = {
    "memory": "queuehint.backends.memory:MemoryBackend.from_url",
    "sqlite": "queuehint.backends.sqlite.backend:SqliteBackend.from_url",
    **dict.fromkeys(("redis", "rediss", "unix", "redis+cluster", "rediss+cluster"), _REDIS),
    **dict.fromkeys(("redis+sentinel", "rediss+sentinel"), _REDIS),
    **dict.fromkeys(("postgresql", "postgres"), _POSTGRES),
    **dict.fromkeys([f"postgresql+{driver}" for driver in ("psycopg", "psycopg2", "asyncpg")], _POSTGRES),
}
"""Our own backends by scheme: frozen applications and zip files have no metadata of packages to find them by."""
COUNT_HALF = 1 << 31
_NAMESPACE = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_LOCAL = re.compile(r"(localhost|[0-9]{1,3}(\.[0-9]{1,3}){3})(:[0-9]{1,5}(/[0-9]{1,2})?)?")
_HOST_AND_PORT = re.compile(r"[A-Za-z0-9.-]+:[0-9]{1,5}(/[0-9]{1,2})?")


@attrs.frozen(kw_only=True)
class Interest:
    """
    Topics of a wait.

    Args:
        pools: until one of these may have a ready job, or something is due.
        users: only if it is a job of one of these (None for jobs without a user); by default anyone's.
        worker: until this worker has to stop a job.
        jobs: until one of these is over.
        version: until the one of *jobs* has another version than this, too; a store that cannot tell returns soon.
        pending: until nothing of this is left; only for a store of this process, others wait the whole time.
        kept: nothing is waited for here: the records of these, up to 1 000, are to be there for a minute after their
            ends, because they will be read together. Of *jobs* they are in any case.
        release: of the worker that waits, as of `Exchange`: it waits for jobs too that only other releases have
            refused.
    """

    pools: Collection[str] = ()
    users: Collection[str | None] | None = None
    worker: str | None = None
    jobs: Collection[str] = ()
    version: int | None = None
    pending: CountPending | None = None
    kept: Collection[str] = ()
    release: str = ""


@attrs.frozen(kw_only=True)
class FileInbox:
    """
    An inbox for jobs written in a producer's transaction: a file of SQLite.

    Args:
        namespace: of the jobs.
        path: of the file; None where that is not known: then no connection is refused because it leads to another one.
    """

    kind: ClassVar = "sqlite"
    namespace: str
    path: Path | None = None


@attrs.frozen(kw_only=True)
class InboxAddress:
    """
    An inbox for jobs written in a producer's transaction: a database of PostgreSQL.

    Args:
        namespace: of the jobs.
        schema: in which the table ``inbox`` is.
        database: the database, as `WHICH_DATABASE` asked there answers it; None where that is not known: then no
            connection is refused because it leads to another one.
    """

    kind: ClassVar = "postgresql"
    namespace: str
    schema: str
    database: str | None = None


WHICH_DATABASE = "SELECT system_identifier || '/' || current_database() FROM pg_control_system()"
"""
Asks a PostgreSQL which database it is: the same behind each address, pooler and replica, and another one after a dump
was restored elsewhere. Any role may ask, unless an administrator has revoked it.
"""


class Backend(Protocol):
    """
    Where jobs are remembered.

    All calls may be made from any thread; `call` and `wait` from any running loop. Errors that an operation names
    have changed nothing; a `BackendError` says what is wrong with the store.
    """

    async def call(self, operation: Operation[Reply]) -> Reply:
        """Carry out one operation."""

    def call_sync(self, operation: Operation[Reply]) -> Reply:
        """Carry out one operation, for code without a loop."""

    def prepare(self, operation: Operation[Any]) -> None:
        """Encode the request of the next `call` during another one; never waits, never raises."""
        return

    async def wait(self, interest: Interest, timeout_s: float) -> None:
        """
        Return when a topic may have news, at once if there are some, at the latest after *timeout_s*.

        Returning too early is allowed. Callers look only then: after the whole time they wait again.
        """

    async def wait_and_call(
        self, interest: Interest, timeout_s: float, operation: Operation[Reply], take: Callable[[Reply], None]
    ) -> bool:
        """
        Wait like `wait`, and carry out an operation in the same round trip if possible. Return True if carried out.

        For the operation of a worker that finds work: as it is sent before the wait, its arguments are those of then.
        By default the store only waits.

        Args:
            take: called with the reply before this returns True. A call that is canceled takes the operation back; it
                is called then too, with what the operation has given if it was carried out before.

        Raises:
            OutcomeUnknownError: no answer came; the same operation object may be called with again. It is raised in
                place of a cancellation, too, if the store does not answer when the operation is taken back.
            BackendError: the store cannot serve the operation. If it may have been carried out before, the same
                operation object may be called with again.
        """
        await self.wait(interest, timeout_s)
        return False

    def wait_sync(self, interest: Interest, timeout_s: float) -> None:
        """Like `wait`, for code without a loop."""

    def adopt(
        self, leases: Callable[[], Sequence[tuple[str, int]]], blocked_ms: Callable[[], int] = int
    ) -> Callable[[], None]:
        """
        Register live code in this process that holds leases, as job ids and tokens. Return a function to unregister.

        A backend in this process renews them itself, so that a stalled loop never loses its own work.

        Args:
            leases: may be called from any thread.
            blocked_ms: how long code has blocked the event loop that runs them, 0 if none does; what `Renew` tells a
                backend elsewhere. From any thread, too.
        """

    async def close(self) -> None:
        """Close all resources. Further calls raise `BackendUnavailableError`."""

    def close_sync(self) -> None:
        """Like `close`, for code without a loop."""

    @property
    def is_local(self) -> bool:
        """True when the jobs live in this process, which then runs them by default."""

    @property
    def keeps_leases(self) -> bool:
        """True when the store renews the leases of this process, because no other process can use the store."""
        return self.is_local

    def owes_turn(self, operation: Operation[Any]) -> bool:
        """
        Return whether others on a caller's loop have to have their turn after a call.

        The calls of a store of this process never suspend: a caller in a loop would starve the workers on it.
        """
        return self.is_local

    @property
    def is_durable(self) -> bool:
        """True when jobs outlive this process."""
        return not self.is_local

    @property
    def inbox(self) -> InboxAddress | FileInbox | None:
        """The inbox for jobs written in a transaction of the application, None without support. No I/O."""
        return None

    async def find_inbox(self) -> InboxAddress | FileInbox | None:
        """Return `inbox` with its database, found by one request."""
        return self.inbox

    def find_inbox_sync(self) -> InboxAddress | FileInbox | None:
        """Like `find_inbox`, for code without a loop."""
        return self.inbox

    def order_behind(self, transaction: int) -> None:
        """
        Order further calls behind the jobs of a transaction that has ended by then; never waits, never raises.

        It is called once more after the commit, where the library of the connection reports that.

        Args:
            transaction: of PostgreSQL, as ``pg_current_xact_id()`` numbers it; a row was written in it by this process.
        """
        return

    @property
    def identity(self) -> Hashable:
        """
        Identity of the store: equal for two backends of the same jobs, as far as known without I/O.

        By default a store is the one of this very backend.
        """
        return id(self)


@attrs.frozen(kw_only=True)
class BackendOptions:
    """Options of a backend."""

    namespace: str = "default"
    retention: Retention | None = None
    patience_s: float | None = None
    """How long a store that does not answer is tried; None for its usual time, and what a URL says goes before it."""
    clock: Clock = attrs.field(factory=SystemClock)
    leaves_lead: bool = False
    """Of a journal: a process of its own leads for this one, and has the lead whenever it can."""


def open_backend(url: str, options: BackendOptions | None = None) -> Backend:
    """
    Open the store that a URL names.

    Args:
        url: ``memory://``, ``sqlite:///…``, ``redis://…`` and its like, or a scheme for which an installed package has
            an entry point in the group ``queuehint.backends``: a callable that takes the URL and the options.
            ``?namespace=`` in the URL overrides the options'.

    Raises:
        InvalidJobError: no backend serves the scheme, or the namespace is not ``[A-Za-z0-9_.-]{1,64}``.
    """
    if not isinstance(url, str):
        raise InvalidJobTypeError(f"url must be str, got {type(url).__name__}: {shown(url)}")
    url = str.__str__(url)
    options = BackendOptions() if options is None else check_instance(options, BackendOptions, parameter="options")
    parts, found = _served(url)
    options = attrs.evolve(options, namespace=_namespace_of(parts, options.namespace))
    factory: Callable[[str, BackendOptions], Any] = resolve_name(found)
    backend: Backend = factory(url, options)
    return backend


def check_scheme(url: str) -> None:
    """
    Check the scheme of a URL before it is opened.

    Raises:
        InvalidJobError: no backend serves it, or this is no URL.
    """
    _served(url)


def _served(url: str) -> tuple[SplitResult, str]:
    """Return the parts of a URL, and its backend as ``module:name``."""
    try:
        parts = urlsplit(url)
    except ValueError:
        # Its message may hold the password.
        raise InvalidJobError(f"url {masked(url)!r} is not a URL") from None
    try:
        return parts, _backend_of(parts.scheme)
    except LookupError as error:
        raise _unserved(url, error) from None


def _unserved(url: str, known: LookupError) -> InvalidJobError:
    said = masked(url)
    hint = f"known are {known}"
    # Of the text itself only what cannot be a password is shown.
    if url.lower() == "memory":
        said, hint = url, "did you mean memory://?"
    elif _LOCAL.fullmatch(url):
        said, hint = url, f"did you mean redis://{url}?"
    elif "//" not in url and _HOST_AND_PORT.fullmatch(url):
        hint = "did you mean redis://host:port?"
    elif "//" not in url and url.endswith((".db", ".sqlite", ".sqlite3")):
        hint = "did you mean sqlite:///file?"
    return InvalidJobError(f"url {said!r}: no backend serves {said.partition(':')[0]!r}; {hint}")


@cache
def release() -> str:
    """Return the running version of queuehint, ``"unknown"`` without installed metadata."""
    # Once: it parses a file, and each request to the process that owns a file names the version.
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("queuehint")
    except PackageNotFoundError:
        return "unknown"


@lru_cache(maxsize=32)
def _backend_of(scheme: str) -> str:
    """
    Return the backend of a scheme, as ``module:name``.

    It is looked for once: that reads the metadata of all installed packages, but for our own backends.

    Raises:
        LookupError: nothing does; the message has the schemes for which there is a backend. The next call looks again.
    """
    if scheme in OWN:
        return OWN[scheme]
    from importlib.metadata import entry_points  # here: it takes a tenth of the time to import a scheduler

    found = entry_points(group=ENTRY_POINTS)
    for entry in found.select(name=scheme):
        return entry.value
    raise LookupError(", ".join(sorted({*OWN, *(entry.name for entry in found)})))


def namespace_of(url: str, otherwise: str) -> str:
    """
    Return the namespace of a URL, *otherwise* for a URL without one or any other text.

    Raises:
        InvalidJobError: it is not valid.
    """
    try:
        return _namespace_of(urlsplit(url), otherwise)
    except InvalidJobError:
        raise
    except ValueError:
        return otherwise


def _namespace_of(parts: SplitResult, otherwise: str) -> str:
    said = dict(parse_qsl(parts.query)).get("namespace")
    if said is None:
        return check_namespace(otherwise)
    if not _NAMESPACE.fullmatch(said):
        # Not shown: the rest of the URL may have ended up in it.
        raise InvalidJobError("the namespace in the url must be 1 to 64 of A-Z a-z 0-9 _ . -")
    return said


def begins_history(before: int, token: int) -> bool:
    """
    Return whether a token shows that the store lost data since an earlier token.

    At the end of a count the next epoch begins, and nothing is lost; a history begins in the lower half of a count.

    >>> begins_history(7 << 32, (7 << 32) + 5), begins_history(7 << 32, 8 << 32), begins_history((8 << 32) - 1, 8 << 32)
    (False, True, False)
    """
    epoch, before_epoch = token >> 32, before >> 32
    is_carried = epoch == before_epoch + 1 and before & COUNT_HALF
    return epoch != before_epoch and not is_carried


def say_retention_changed(logger: logging.Logger, kind: str, store: str, before: object, now: object) -> None:
    """Warn that this process has changed the retention of a namespace."""
    logger.warning(
        "the retention of %s was (%s) and is now (%s) as set by this process; the newest setting counts",
        store,
        before,
        now,
        extra={"event": f"{kind}.retention_changed", "before": str(before), "now": str(now)},
    )


def check_namespace(namespace: object) -> str:
    """Check a namespace: 1 to 64 letters, digits, ``_``, ``.`` or ``-``."""
    if not isinstance(namespace, str):
        raise InvalidJobTypeError(f"namespace must be str, got {type(namespace).__name__}: {shown(namespace)}")
    text = str.__str__(namespace)
    if not _NAMESPACE.fullmatch(text):
        raise InvalidJobError(f"namespace must be 1 to 64 of A-Z a-z 0-9 _ . -, got {shown(text)}")
    return text
