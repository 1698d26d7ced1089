"""
Specs and facts on Redis as they are stored.

A short spec stands in the head of its job, any other in a hash of specs. The head of a listed record names its facts
while there is room in the hash of facts; any other has them in itself.
"""

from __future__ import annotations

import hashlib
from typing import Any

from queuehint.backends.redis import keys
from queuehint.backends.redis.codec.specs import policy_line
from queuehint.backends.redis.scripts import assemble
from queuehint.values.spec import JobSpec
from tests.servers import Server

_FORMAT = """#!lua
local store, NOW, corrupt = {jobs = KEYS[1], specs = KEYS[2], facts = KEYS[3]}, 0, error
-- @include lib/jobs/fields
-- @include lib/formats/head_format
"""
_READ = assemble(f"""{_FORMAT}
local told = {{}}
for _, id in ipairs(redis.call('HKEYS', store.jobs)) do
  local job = heads.read(id, redis.call('HGET', store.jobs, id))
  told[#told + 1] = {{id, job[SHORT_SPEC] or '', job.name or ''}}
end
return told
""")
_WRITE = assemble(f"""{_FORMAT}
local id, spec = ARGV[1], ARGV[2]
local job = heads.read(id, redis.call('HGET', store.jobs, id))
job[SHORT_SPEC] = heads.is_short(spec) and spec
redis.call('HSET', store.jobs, id, heads.plain(job) or heads.pack(job))
redis.call('HDEL', store.specs, id)
if not job[SHORT_SPEC] then redis.call('HSET', store.specs, id, spec) end
""")


def specs_in_heads(server: Server, namespace: str) -> dict[bytes, bytes]:
    """Return the specs that stand in heads, by the ids of all jobs; none for a job whose spec stands elsewhere."""
    return {job_id: spec for job_id, spec, _ in _read(server, namespace)}


def names_of_facts(server: Server, namespace: str) -> dict[bytes, bytes]:
    """Return the names by which heads have their facts, by the ids of all jobs; none for a job that has them itself."""
    return {job_id: name for job_id, _, name in _read(server, namespace)}


def common_facts(spec: JobSpec) -> bytes:
    """Return what a spec has in common with others, as the hash of facts holds it."""
    parts = (str(spec.priority), spec.pool, spec.task, spec.service or "", policy_line(spec.policy))
    return "\n".join(parts).encode()


def facts_id(common: bytes) -> bytes:
    """Return the id of what jobs have in common."""
    return hashlib.sha1(common, usedforsecurity=False).digest()[:6].replace(b"\0", b"\1")


FACTS_MAX = 256
"""How many entries the hash of facts has at most."""
CROWD = b"3\nnone\ncrowd-"
"""What entries of `crowd_facts` begin with."""


def crowd_facts(server: Server, namespace: str, count: int) -> None:
    """Put entries into the hash of facts that are none of a record."""
    client: Any = server.client()
    if crowd := crowd_of(count):
        client.hset(keys.redis_key(namespace, "facts"), mapping=crowd)


def crowd_of(count: int) -> dict[bytes, bytes]:
    """Return such entries."""
    texts = [CROWD + b"%d\n\n" % number for number in range(count)]
    return {facts_id(text): text for text in texts}


def _read(server: Server, namespace: str) -> list[list[bytes]]:
    told: Any = server.call("EVAL", _READ, *_keys(namespace))
    return list(told)


def put_spec(server: Server, namespace: str, job_id: str, spec: bytes) -> None:
    """Give a job another spec, as a script would store it."""
    server.call("EVAL", _WRITE, *_keys(namespace), job_id, spec)


def spec_of(server: Server, namespace: str, job_id: str) -> bytes | None:
    """Return the spec of a job as it is stored."""
    stored: Any = server.client().hget(keys.redis_key(namespace, "specs"), job_id)
    return specs_in_heads(server, namespace)[job_id.encode()] or stored


def _keys(namespace: str) -> list[Any]:
    return [3, *[keys.redis_key(namespace, name) for name in ("jobs", "specs", "facts")]]
