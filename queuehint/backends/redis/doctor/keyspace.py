"""The keys of a namespace: their schema, types and use, without a time to live."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from queuehint.backends.redis import keys
from queuehint.backends.redis.codec import codec
from queuehint.backends.redis.doctor.answers import batches, bytes_of, text_of
from queuehint.backends.redis.doctor.findings import repairable
from queuehint.backends.report import Finding
from queuehint.errors import BackendDeniedError, BackendError, BackendUnavailableError
from queuehint.values.policy import Retention

if TYPE_CHECKING:
    from queuehint.backends.redis.doctor.sums import Pass
    from queuehint.backends.redis.session import Session
    from queuehint.backends.redis.transport import Talk

SCAN_COUNT: Final = 500
BATCH: Final = 100
"""Jobs or entries that one script looks at, in some ms."""
_NO_SCRIPT: Final = "the jobs: as long as a key is of the wrong type no script can run"


def key_of(name: str) -> keys.Key | None:
    """Return the known kind of a key, None for a foreign key."""
    for key in keys.KEYS:
        if name == key.name if not key.is_prefix else name.startswith(key.name):
            return key
    return None


class Keyspace:
    """
    Check the keys of a namespace.

    Args:
        facts: gets what a report says without a finding.
    """

    def __init__(self, session: Session, facts: dict[str, Any]) -> None:
        self._session = session
        self._facts = facts

    def name(self, name: str) -> str:
        """Return the whole name of a key of the namespace."""
        return keys.redis_key(self._session.namespace, name)

    def check_retention(self, this: Pass) -> Talk:
        """Read the stored retention."""
        stored = yield from self._session.plain("HGET", self.name("meta"), "retention")
        if stored is None:
            self._facts["retention"] = f"{Retention()} (the default)"
            return
        try:
            self._facts["retention"] = str(codec.parse_retention(text_of(stored)))
        except ValueError:
            self._facts["retention"] = "unreadable"
            what = "the retention cannot be read, and no job can end; without it, it is what each process was told"
            this.add(repairable("retention", self.name("meta"), what, ("retention", text_of(stored), "")))

    def check_types(self, this: Pass) -> Talk:
        """Check the types of fixed keys: by one script, or one by one where a wrong type lets no script run."""
        fixed = [key for key in keys.KEYS if not key.is_prefix]
        names = [bytes_of(key.name) for key in fixed]
        try:
            kinds = (yield from self._session.execute_script("doctor/kinds", (0, *names)))[::3]
        except (BackendUnavailableError, BackendDeniedError):
            raise
        except BackendError:
            kinds = []
            for key in fixed:
                kinds.append((yield from self._session.plain("TYPE", self.name(key.name))))
        for key, kind in zip(fixed, kinds, strict=True):
            self._check_type(this, key.name, text_of(kind), key.type)

    def _check_type(self, this: Pass, name: str, kind: str, right: str) -> None:
        if kind not in {"none", right}:
            what = f"is a {kind} and should be a {right}: not ours? Rename it or delete it"
            this.add(Finding(kind="type", where=self.name(name), what=what))
            this.unchecked[:] = [_NO_SCRIPT]

    def check(self, this: Pass) -> Talk:
        """Check every key of the namespace: in the schema, without a time to live, and in use."""
        ours: dict[str, keys.Key] = {}
        for name in sorted((yield from self._scan(this))):
            key = key_of(name)
            if key is None:
                what = "is in the namespace and none of our keys: rename it or delete it"
                this.add(Finding(kind="foreign", where=self.name(name), what=what))
                continue
            ours[name] = key
            if key.is_prefix:
                this.by_prefix.setdefault(key.name, []).append(name)
        for names in batches(list(ours), SCAN_COUNT):
            said = yield from self._session.execute_script("doctor/kinds", (0, *map(bytes_of, names)))
            for name, kind, ttl_ms in zip(names, said[::3], said[1::3], strict=True):
                self._check_type(this, name, text_of(kind), ours[name].type)
                if ttl_ms >= 0:
                    what = f"has a time to live: in {ttl_ms / 1000:.0f} s it is gone"
                    this.add(repairable("ttl", self.name(name), what, ("persist", name, "")))
        if _NO_SCRIPT in this.unchecked:
            return
        for names in batches([name for name, key in ours.items() if key.is_prefix or name == "events"], BATCH):
            said = yield from self._session.execute_script("doctor/kinds", (1, *map(bytes_of, names)))
            for name, is_stray in zip(names, said[2::3], strict=True):
                if is_stray:
                    what = "is about something that no longer exists"
                    this.add(repairable("key", self.name(name), what, ("key", name, "")))

    def _scan(self, this: Pass) -> Talk:
        """Return the names of all keys of the namespace."""
        begin = len(self.name(""))
        found: set[str] = set()
        cursor: Any = b"0"
        try:
            while True:
                # The pattern is our own root, in which nothing has a meaning to SCAN.
                scan = ("SCAN", cursor, "MATCH", self.name("*"), "COUNT", SCAN_COUNT)
                cursor, page = yield from self._session.plain(*scan)
                found |= {text_of(name)[begin:] for name in page}
                if int(cursor) == 0:
                    return found
        except BackendDeniedError:
            this.notes.append("keys outside the schema, and leaked keys: this user may not SCAN")
            return {key.name for key in keys.KEYS if not key.is_prefix}
