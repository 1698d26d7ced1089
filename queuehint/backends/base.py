"""The one interface of every store, and how a URL becomes one."""

from __future__ import annotations

import logging
import re
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from urllib.parse import parse_qsl, urlsplit

import attrs

from queuehint.checks import check_instance
from queuehint.clock import Clock, SystemClock
from queuehint.errors import InvalidJobError, InvalidJobTypeError, shown
from queuehint.policy import Retention

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Hashable, Sequence
    from urllib.parse import SplitResult

    from queuehint.operations import Operation

Reply = TypeVar("Reply")

ENTRY_POINTS = "queuehint.backends"
HIDDEN = "***"
"""Stands where something of a URL is not shown."""
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{0,31}")
_SERVED = ("memory", "sqlite", "redis", "rediss", "unix", "redis+cluster", "rediss+cluster", "redis+sentinel")
"""Schemes that are shown without slashes behind them too: what else begins so may be a user, or a password."""
_OF_FILES = ("sqlite", "unix")
_HOST = re.compile(r"(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{0,5})?")
_DATABASE = re.compile(r"[0-9]{0,5}")
_NAME = re.compile(r"[A-Za-z0-9._-]{0,64}")
_OPTION = re.compile(r"[a-z_]{1,32}")
_NAMESPACE = re.compile(r"[A-Za-z0-9_.-]{1,64}")


@attrs.frozen(kw_only=True)
class Interest:
    """
    What somebody waits for.

    Args:
        pools: until one of these may have a ready job, or something is due.
        users: only if it is a job of one of these (None for jobs without a user); by default anyone's.
        worker: until this worker has to be told to stop a job.
        jobs: until one of these is over.
        version: until the one of *jobs* has another version than this, too; a store that cannot tell returns soon.
        kept: nothing is waited for here: the records of these, up to 1 000, are to be there for a minute after their
            ends, for they will be read together. Of *jobs* they are in any case.
    """

    pools: Collection[str] = ()
    users: Collection[str | None] | None = None
    worker: str | None = None
    jobs: Collection[str] = ()
    version: int | None = None
    kept: Collection[str] = ()


class Backend(Protocol):
    """
    Where jobs are remembered.

    All calls may be made from any thread; `call` and `wait` from any running loop. Errors that an operation names
    have changed nothing; a `BackendError` says what is wrong with the store.
    """

    async def call(self, operation: Operation[Reply]) -> Reply:
        """Do one operation."""

    def call_sync(self, operation: Operation[Reply]) -> Reply:
        """Do one operation, for code without a loop."""

    async def wait(self, interest: Interest, timeout_s: float) -> None:
        """Return once what is waited for may be there, or after *timeout_s*; returning too early is allowed."""

    def wait_sync(self, interest: Interest, timeout_s: float) -> None:
        """Like `wait`, for code without a loop."""

    def adopt(
        self, leases: Callable[[], Sequence[tuple[str, int]]], blocked_ms: Callable[[], int] = int
    ) -> Callable[[], None]:
        """
        Learn of live code in this process that holds leases, given as job ids and tokens; return how to forget it.

        A backend in this process renews them itself, so that a stalled loop never loses its own work.

        Args:
            leases: may be called from any thread.
            blocked_ms: how long code has blocked the event loop that runs them, 0 if none does; what `Renew` tells a
                backend elsewhere. From any thread, too.
        """

    async def close(self) -> None:
        """Let go of everything; further calls raise `BackendUnavailableError`."""

    def close_sync(self) -> None:
        """Like `close`, for code without a loop."""

    @property
    def is_local(self) -> bool:
        """True when only this process can use the store: it renews the leases of this process by itself."""

    @property
    def is_durable(self) -> bool:
        """True when jobs outlive this process."""
        return not self.is_local

    @property
    def identity(self) -> Hashable:
        """
        What this store is known by: equal for two backends whose jobs are the same, by all that can be told unasked.

        By default a store is the one of this very backend.
        """
        return id(self)


@attrs.frozen(kw_only=True)
class BackendOptions:
    """What a scheduler tells the store it opens."""

    namespace: str = "default"
    retention: Retention | None = None
    clock: Clock = attrs.field(factory=SystemClock)


def open_backend(url: str, options: BackendOptions | None = None) -> Backend:
    """
    Open the store that a URL names.

    Args:
        url: ``memory://``, or a scheme for which an installed package has an entry point in the group
            ``queuehint.backends``: a callable that takes the URL and the options. ``?namespace=`` in the URL
            overrides the options'.

    Raises:
        InvalidJobError: no backend serves the scheme, or the namespace is not ``[A-Za-z0-9_.-]{1,64}``.
    """
    if not isinstance(url, str):
        raise InvalidJobTypeError(f"url must be str, got {type(url).__name__}: {shown(url)}")
    url = str.__str__(url)
    options = BackendOptions() if options is None else check_instance(options, BackendOptions, parameter="options")
    try:
        parts = urlsplit(url)
    except ValueError:
        # What it says may hold the password.
        raise InvalidJobError(f"url {masked(url)!r} is not a URL") from None
    options = attrs.evolve(options, namespace=_namespace_of(parts, options.namespace))
    found = entry_points(group=ENTRY_POINTS, name=parts.scheme)
    if not found:
        known = sorted({entry.name for entry in entry_points(group=ENTRY_POINTS)})
        said = masked(url)
        scheme = said.partition(":")[0]
        raise InvalidJobError(f"url {said!r}: no backend serves {scheme!r}; known are {', '.join(known)}")
    factory: Callable[[str, BackendOptions], Any] = next(iter(found)).load()
    backend: Backend = factory(url, options)
    return backend


def namespace_of(url: str, otherwise: str) -> str:
    """
    Return the namespace that a URL says; *otherwise* if it says none, or is no URL.

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
        # Not shown: what follows in the URL may have ended up in it.
        raise InvalidJobError("the namespace in the url must be 1 to 64 of A-Z a-z 0-9 _ . -")
    return said


def say_retention_changed(logger: logging.Logger, kind: str, store: str, before: object, now: object) -> None:
    """Warn that a namespace keeps its records for other times from now on, because this process was told so."""
    logger.warning(
        "the retention of %s was (%s) and is now (%s), as this process was told; the newest one that says so counts",
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


def masked(url: str) -> str:
    """
    Return of a URL what is known to be harmless: scheme, hosts, ports, database, file, names of options.

    It is taken apart; whatever is not one of these, or stands where a password may have ended up, is ``***``.

    >>> masked("redis://ann:secret@db:6379/0?password=other")
    'redis://***@db:6379/0?password=***'
    >>> masked("redis://ann:sec/ret@db:6379/0")
    'redis://***'
    """
    scheme, colon, rest = url.partition(":")
    if not url or not colon or not _SCHEME.fullmatch(scheme):
        return url and HIDDEN
    if not rest.startswith("//"):
        if scheme not in _SERVED:
            return HIDDEN
        return f"{scheme}:{_masked_tail(scheme, rest) if rest[:1] in {'', '/'} and '@' not in rest else HIDDEN}"
    size = min((at for mark in "/?#" if (at := rest.find(mark, 2)) >= 0), default=len(rest))
    userinfo, _, hosts = rest[2:size].rpartition("@")
    tail = rest[size:]
    # A password may hold an unquoted slash: then the hosts come later, and what looks like them is a part of it.
    if "@" in tail or not all(_HOST.fullmatch(host) for host in hosts.split(",") if host):
        return f"{scheme}://{HIDDEN}"
    return f"{scheme}://{HIDDEN + '@' if userinfo else ''}{hosts}{_masked_tail(scheme, tail)}"


def _masked_tail(scheme: str, tail: str) -> str:
    """Return what may be shown of what follows the hosts: path, query and fragment."""
    tail, hash_sign, _ = tail.partition("#")
    path, question, query = tail.partition("?")
    if scheme not in _OF_FILES:
        segments = path.split("/")
        # The name of a service comes first where there is one.
        known = [_NAME if at == 1 and scheme.endswith("+sentinel") else _DATABASE for at in range(len(segments))]
        path = "/".join(
            segment if pattern.fullmatch(segment) else HIDDEN for pattern, segment in zip(known, segments, strict=True)
        )
    elif not path.isprintable():
        path = HIDDEN
    options = "&".join(map(_masked_option, query.split("&"))) if query else ""
    return f"{path}{question}{options}{hash_sign and '#' + HIDDEN}"


def _masked_option(option: str) -> str:
    name, is_sign, value = option.partition("=")
    if not is_sign:
        return HIDDEN
    return f"{masked_name(name)}={value if name == 'db' and _DATABASE.fullmatch(value) else HIDDEN}"


def masked_name(name: str) -> str:
    """Return the name of an option, unless it looks like none: what was to be quoted may stand there."""
    return name if _OPTION.fullmatch(name) else HIDDEN
