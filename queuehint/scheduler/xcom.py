"""A small store that jobs and their producers share: JSON values by key, each with a time to live."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from queuehint.backends.steps import Steps, run_steps, run_steps_sync
from queuehint.handlers.conversion.plain_json import check_json, decode_json, encode_json
from queuehint.operations import SHARED_LIST_MAX, ListShared, Pull, Pulled, Push, SharedKeys
from queuehint.schema.checks import TEN_YEARS_MS, check_duration, check_int, check_name
from queuehint.values.outcome import RESULT_BYTES_MAX

if TYPE_CHECKING:
    from datetime import timedelta

    from queuehint.client.handle import Client

TTL_S = 86_400


class XCom:
    """Values of one scheduler's store. A key belongs to the namespace given with it."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def push(
        self, key: str, value: Any, *, namespace: str = "default", ttl: float | timedelta | None = TTL_S
    ) -> bool:
        """
        Store a value under a key, replacing the old one.

        Args:
            key, namespace: 1–256 UTF-8 bytes, printable.
            value: JSON of at most 1 MiB.
            ttl: how long it is kept, a timedelta or seconds, 1 ms to 10 years; None until it is deleted, which is
                10 years at most.

        Returns:
            True if it replaced a value.

        Raises:
            InvalidJobError, InvalidJobTypeError, PayloadError: naming the parameter, the value and the limit.
        """
        return (await self._client.backend.call(_push(key, value, namespace, ttl))).replaced

    def push_sync(
        self, key: str, value: Any, *, namespace: str = "default", ttl: float | timedelta | None = TTL_S
    ) -> bool:
        """Like `push`, for code without a loop."""
        return self._client.backend.call_sync(_push(key, value, namespace, ttl)).replaced

    async def pull(self, key: str, *, namespace: str = "default", default: Any = None) -> Any:
        """
        Return the value under a key, or *default* if there is none or it has expired.

        Raises:
            InvalidJobError, InvalidJobTypeError: naming the parameter, the value and the limit.
        """
        return _value(await self._client.backend.call(_pull(key, namespace)), default)

    def pull_sync(self, key: str, *, namespace: str = "default", default: Any = None) -> Any:
        """Like `pull`, for code without a loop."""
        return _value(self._client.backend.call_sync(_pull(key, namespace)), default)

    async def list(
        self, prefix: str = "", *, namespace: str = "default", after: str | None = None, limit: int = 100
    ) -> tuple[str, ...]:
        """
        Return the keys with values, a page in order of their UTF-8 bytes. Expired keys are left out.

        Args:
            prefix: what they begin with; ``""`` for all.
            after: a key, the last of the page before; it need not be there any more.
            limit: 1 to 1 000. A page that is shorter is the last.

        Raises:
            InvalidJobError, InvalidJobTypeError: naming the parameter, the value and the limit.
        """
        return await run_steps(self._client.backend, _list(prefix, namespace, after, limit))

    def list_sync(
        self, prefix: str = "", *, namespace: str = "default", after: str | None = None, limit: int = 100
    ) -> tuple[str, ...]:
        """Like `list`, for code without a loop."""
        return run_steps_sync(self._client.backend, _list(prefix, namespace, after, limit))

    async def delete(self, key: str, *, namespace: str = "default") -> bool:
        """
        Delete the value under a key. Return whether there was a value.

        Raises:
            InvalidJobError, InvalidJobTypeError: naming the parameter, the value and the limit.
        """
        return (await self._client.backend.call(_delete(key, namespace))).replaced

    def delete_sync(self, key: str, *, namespace: str = "default") -> bool:
        """Like `delete`, for code without a loop."""
        return self._client.backend.call_sync(_delete(key, namespace)).replaced


def _push(key: Any, value: Any, namespace: Any, ttl: Any) -> Push:
    namespace, key = check_name(namespace, parameter="namespace"), check_name(key, parameter="key")
    ttl_ms = TEN_YEARS_MS if ttl is None else check_duration(ttl, parameter="ttl", least_ms=1)
    check_json(value, "value", RESULT_BYTES_MAX)
    return Push(namespace, key, encode_json(value, bytes_max=RESULT_BYTES_MAX), ttl_ms)


def _list(prefix: Any, namespace: Any, after: Any, limit: Any) -> Steps[tuple[str, ...]]:
    namespace = check_name(namespace, parameter="namespace")
    prefix = "" if isinstance(prefix, str) and prefix == "" else check_name(prefix, parameter="prefix")
    after = None if after is None else check_name(after, parameter="after")
    limit = check_int(limit, parameter="limit", least=1, most=SHARED_LIST_MAX)
    found: tuple[str, ...] = ()
    while True:
        page: SharedKeys = yield ListShared(namespace, prefix, after, limit - len(found))
        found += page.keys
        after = page.after
        if after is None or len(found) == limit:
            return found


def _delete(key: Any, namespace: Any) -> Push:
    return Push(check_name(namespace, parameter="namespace"), check_name(key, parameter="key"), b"", 0)


def _pull(key: Any, namespace: Any) -> Pull:
    return Pull(check_name(namespace, parameter="namespace"), check_name(key, parameter="key"))


def _value(reply: Pulled, default: Any) -> Any:
    return default if reply.value is None else decode_json(reply.value)
