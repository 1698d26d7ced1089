"""Specs on Redis as they are stored: a short one stands in the head of its job, any other in a hash of specs."""

from __future__ import annotations

from typing import Any

from queuehint.backends.redis import keys
from queuehint.backends.redis.scripts import assemble
from tests.servers import Server

_FORMAT = """#!lua
local store, NOW, corrupt = {jobs = KEYS[1], specs = KEYS[2]}, 0, error
-- @include lib/jobs/fields
-- @include lib/formats/head_format
"""
_READ = assemble(f"""{_FORMAT}
local told = {{}}
for _, id in ipairs(redis.call('HKEYS', store.jobs)) do
  told[#told + 1] = id
  told[#told + 1] = heads.read(id, redis.call('HGET', store.jobs, id))[SHORT_SPEC] or ''
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
    told: Any = server.call("EVAL", _READ, *_keys(namespace))
    return dict(zip(told[::2], told[1::2], strict=True))


def put_spec(server: Server, namespace: str, job_id: str, spec: bytes) -> None:
    """Give a job another spec, as a script would store it."""
    server.call("EVAL", _WRITE, *_keys(namespace), job_id, spec)


def spec_of(server: Server, namespace: str, job_id: str) -> bytes | None:
    """Return the spec of a job as it is stored."""
    stored: Any = server.client().hget(keys.redis_key(namespace, "specs"), job_id)
    return specs_in_heads(server, namespace)[job_id.encode()] or stored


def _keys(namespace: str) -> tuple[int, str, str]:
    return 2, keys.redis_key(namespace, "jobs"), keys.redis_key(namespace, "specs")
