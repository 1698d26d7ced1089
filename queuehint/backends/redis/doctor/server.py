"""Server checks of ``queuehint doctor``: settings that endanger jobs, and libraries of other releases."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from queuehint.backends.redis import keys
from queuehint.backends.redis.examination import durability_class, parse_info, wrong_policy, wrong_role, wrong_version
from queuehint.backends.redis.functions.library import PREFIX, library
from queuehint.backends.report import Finding, Level
from queuehint.errors import BackendDeniedError, BackendError

if TYPE_CHECKING:
    from queuehint.backends.redis.session import Session
    from queuehint.backends.redis.transport import Talk

_PROBLEMS: Final = {"redis_version": wrong_version, "maxmemory_policy": wrong_policy, "role": wrong_role}
PINGS: Final = 20
MEMORY_SHARE: Final = 0.9

LUA_FIXES: Final[dict[str, dict[tuple[int, int], int]]] = {
    # CVE-2025-49844, -46817, -46818, -46819 (https://redis.io/blog/security-advisory-cve-2025-49844/).
    "redis": {(7, 2): 11, (7, 4): 6, (8, 0): 4, (8, 2): 2},
    # These, and CVE-2026-23631 (release notes of 8.0.8, 8.1.7 and 9.0.4).
    "valkey": {(7, 2): 11, (8, 0): 8, (8, 1): 7, (9, 0): 4},
}
"""The first release of each series without known faults of its Lua; newer series have none, older ones keep theirs."""


def lacks_lua_fixes(name: str, version: str) -> bool:
    """
    Return whether a release has known faults of its Lua engine, going by its number.

    >>> lacks_lua_fixes("redis", "7.2.10"), lacks_lua_fixes("redis", "7.2.11"), lacks_lua_fixes("redis", "8.4.0")
    (True, False, False)
    """
    numbers = [int(part) if part.isdigit() else 0 for part in [*version.split("."), "0", "0"][:3]]
    series, fixes = (numbers[0], numbers[1]), LUA_FIXES[name]
    if series in fixes:
        return numbers[2] < fixes[series]
    return series < max(fixes)


class Checkup:
    """
    Facts and findings about a server.

    Args:
        session: by which it is asked.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self.facts: dict[str, str | int | float] = {}
        self.findings: list[Finding] = []
        self.is_primary = True
        self.runs_scripts = True

    def look(self) -> Talk:
        """Query the server, on a cluster the node of the namespace."""
        yield from self._ask("EXISTS", keys.redis_key(self._session.namespace, "meta"))
        info = parse_info((yield from self._ask("INFO", "everything")))
        name = "valkey" if "valkey_version" in info else "redis"
        version = info.get(f"{name}_version", "0")
        self.is_primary = info.get("role", "master") == "master"
        self.facts |= {
            "server": f"{name} {version}",
            "role": info.get("role", "?"),
            "maxmemory_policy": info.get("maxmemory_policy", "?"),
        }
        for setting, problem_of in _PROBLEMS.items():
            if setting in info and (wrong := problem_of(info)) is not None:
                self._find(setting, wrong, "error")
                self.runs_scripts = self.runs_scripts and setting != "redis_version"
        if lacks_lua_fixes(name, version):
            self._find(
                "redis_version",
                f"{name} {version} has known faults of its Lua engine (CVE-2025-49844 and others), unless your "
                "distribution has repaired them; any user who may run scripts may use them",
            )
        yield from self._look_at_durability(info)
        self._look_at_memory(info)
        yield from self._look_at_libraries()
        self.facts["latency_ms"] = yield from self._latency_ms()
        if self._session.address.is_remote_plaintext:
            self._find("tls", "the traffic is not encrypted; use rediss://")

    def delete_libraries(self) -> Talk:
        """Delete the libraries of other releases. Return those found, and the reason why any of them stay."""
        deleted, reasons = [], []
        for finding in [each for each in self.findings if each.kind == "library"]:
            try:
                yield from self._ask("FUNCTION", "DELETE", finding.where)
            except BackendDeniedError as error:
                reasons.append(f"libraries of other releases: {error}")
                break
            except BackendError as error:
                if "not found" not in str(error):  # else another process was faster
                    raise
            self.findings.remove(finding)
            deleted.append(finding)
        return deleted, reasons

    def _look_at_libraries(self) -> Talk:
        """List our libraries that this release does not call and other releases load again."""
        try:
            listed = yield from self._ask("FUNCTION", "LIST", "LIBRARYNAME", f"{PREFIX}*")
        except BackendError:
            return
        for name in sorted(each[1].decode() for each in listed):
            if name != library().name:
                what = (
                    "holds the functions of another release, about 1 MB; --fix deletes it, and a process of that "
                    "release that still runs loads it again"
                )
                self.findings.append(
                    Finding(kind="library", level="warning", where=name, what=what, is_repairable=True)
                )

    def _ask(self, *command: str) -> Talk:
        return (yield from self._session.plain(*command))

    def _find(self, where: str, what: str, level: Level = "warning") -> None:
        self.findings.append(Finding(kind="setting", level=level, where=where, what=what))

    def _look_at_durability(self, info: dict[str, str]) -> Talk:
        appendfsync = yield from self._setting("appendfsync")
        save = yield from self._setting("save")
        has_aof = info.get("aof_enabled") == "1"
        if not has_aof:
            durability = "D0"
        elif appendfsync is None:
            durability = "D1 or D2"
        else:
            durability = {"always": "D2", "everysec": "D1"}.get(appendfsync, "D0")
            self.facts["appendfsync"] = appendfsync
        replicas = int(info.get("connected_slaves", 0))
        self.facts |= {"durability": durability, "replicas": replicas}
        if not self.is_primary:
            return
        delayed = int(info.get("aof_delayed_fsync", 0))
        if has_aof and delayed and durability != "D2":
            what = (
                f"the disk was too slow {delayed} times: the server put off writing what it had acknowledged, "
                "and its death alone would have lost up to 2 seconds of it"
            )
            self._find("aof_delayed_fsync", what)
        if has_aof and appendfsync == "no":
            self._find("appendfsync", "appendfsync is no: a power loss takes all that the system has not written yet")
        elif not has_aof and replicas and not save:
            what = f"{replicas} replicas of a server without persistence: when it restarts, empty, they are emptied too"
            self._find("appendonly", what)
        elif not has_aof:
            self._find("appendonly", durability_class(info).partition(": ")[2])

    def _setting(self, name: str) -> Talk:
        """Return a setting, None without permission to read it."""
        try:
            found = yield from self._ask("CONFIG", "GET", name)
        except BackendError:
            return None
        return found[1].decode() if len(found) == 2 else None

    def _look_at_memory(self, info: dict[str, str]) -> None:
        used, most = int(info.get("used_memory", 0)), int(info.get("maxmemory", 0))
        self.facts |= {"used_memory": used, "maxmemory": most}
        if most and used >= MEMORY_SHARE * most:
            self._find("maxmemory", f"{100 * used // most} % of it is used; once it is full, enqueue is refused")

    def _latency_ms(self) -> Talk:
        times_s = []
        for _ in range(PINGS):
            begun_s = time.perf_counter()
            yield from self._ask("PING")
            times_s.append(time.perf_counter() - begun_s)
        return round(1000 * sorted(times_s)[PINGS // 2], 3)
