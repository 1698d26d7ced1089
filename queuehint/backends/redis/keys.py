"""
Every Redis key of a namespace.

All begin with one hash tag, so that a namespace lies in one slot of a cluster. Text of users is only ever a field, a
member, a value, or the part after the fixed prefix of a key. No key has a time to live: the script that ends a job,
session or limit deletes its entries. ``lua/lib/request/keys.lua`` builds the same names; a test compares them.
"""

from __future__ import annotations

from typing import Final

import attrs


@attrs.frozen
class Key:
    """One key or prefix of keys: its content, and the script that deletes an entry."""

    name: str
    type: str
    holds: str
    deleted: str
    is_prefix: bool = False


KEYS: Final = (
    Key(
        "meta",
        "hash",
        "`state`: the counters of the namespace, packed; `retention`, if it was set; `test`: for tests",
        "never",
    ),
    Key(
        "jobs",
        "hash",
        "id -> head: all that changes of a job, the workers of its attempts, and a spec of up to 128 bytes, packed",
        "prune",
    ),
    Key(
        "specs",
        "hash",
        "id -> a longer spec: the immutable rest of what was asked, packed by the producer, behind the digests of its "
        "arguments if its codec makes any; for a record that is gone, a digest of large arguments",
        "prune",
    ),
    Key("results", "hash", "id -> result, unless it is null", "end of retention"),
    Key("progress", "hash", "id -> progress, packed by the worker", "end of retention"),
    Key(
        "needs",
        "hash",
        "id -> what a job was told to depend on: policies of edges and ids; of more than 1 000 the others in fields of "
        "their own, the id, a line end and a number",
        "end of retention",
    ),
    Key("asked", "hash", "id -> what a job was first asked to be, once its key gave it other content", "prune"),
    Key("gates", "hash", "gate -> what is held there, waits there and executes there", "the last job that leaves"),
    Key("crowds", "zset", "power of two -> gates in whose lines at least so many wait, from four on", "a shorter line"),
    Key("paths", "zset", "queue key and number of each unfinished job, once a claim, in lexical order", "end"),
    Key("holds", "zset", "the same for dead jobs that hold their places", "redrive, discard, end of retention"),
    Key("past", "zset", "the same for jobs that are over and have claims", "redrive, end of retention"),
    Key(
        "index",
        "hash",
        "term (a state, user, tag or parent, an id of facts, or a service, task or pool) and block of numbers"
        " -> bits of the records that have it; block -> its times; 16 numbers in a row -> ids of their jobs",
        "the last record",
    ),
    Key(
        "facts",
        "hash",
        "id, of six bytes -> priority, pool, task, service and policy, which the heads of jobs name by it; 256 at most",
        "the last record",
    ),
    Key("blocks", "zset", "term and block of each entry of `index`, in lexical order", "the last record"),
    Key("tallies", "hash", "service and user -> how many records they have", "the last record"),
    Key("tallied", "zset", "service and user, in lexical order", "the last record"),
    Key("closed", "hash", "gate of a closed path -> id of its last job, if it was closed with one", "reopen"),
    Key("timers", "zset", "ms -> due times and expiries of jobs, ends of pauses", "claim, resume, when due"),
    Key("leases", "zset", "ms -> leases of STARTED jobs, presences of callers that wait", "settle, when due"),
    Key("prunes", "zset", "ms -> ends of records, then of ids", "prune, redrive"),
    Key("left", "list", "work that was cut: lines to advance, sweeps", "when done"),
    Key("ready", "zset", "jobs a worker may start: pool, user, rank and id, in lexical order", "claim, end"),
    Key("pools", "hash", "pool -> how many jobs are ready, of how many users", "the last ready job"),
    Key(
        "users",
        "hash",
        "pool and user -> how many jobs are ready, the user's turn, starts of it that were had",
        "the last ready job",
    ),
    Key(
        "refused",
        "hash",
        "pool -> its queues of ready jobs that releases have refused, and the markers set for releases",
        "the last such job",
    ),
    Key("weights", "hash", "user, empty for jobs without one -> starts a turn, if that is not one", "weight 1"),
    Key("turns", "zset", "pool, turn and user, in lexical order", "the last ready job"),
    Key("parked", "zset", "ready jobs parked by a pause or a limit", "resume, when there is room, end"),
    Key(
        "pauses",
        "hash",
        "gate of a paused path -> number of the pause, when and after how long it ends",
        "resume, its end",
    ),
    Key("selections", "hash", "filter of paused jobs -> the same of the pause", "resume, its end"),
    Key("limits", "hash", "path, or each child of it, task or pool -> its limit, packed", "unlimit"),
    Key("looks", "zset", "ms -> places where jobs wait for a limit, to be looked at again", "room, when due"),
    Key("deferred", "zset", "number -> id of jobs that wait for others", "the last edge, end"),
    Key("fallen", "zset", "a job, and number and id of one canceled because of it, in lexical order", "redrive, prune"),
    Key("flow_jobs", "zset", "flow, number and id of each job, in lexical order", "end of retention"),
    Key("flow_states", "zset", "flow, state, number and id of each job, in lexical order", "end of retention"),
    Key(
        "shared",
        "hash",
        "namespace and key -> a value of `xcom`, or the tally of a cancellation, and until when",
        "its end",
    ),
    Key("shared_ends", "zset", "ms -> namespace and key", "its end"),
    Key("shared_names", "zset", "namespace and key of values of `xcom`, in lexical order", "its end"),
    Key("schedules", "hash", "name -> a schedule: when it is due, what it fires and has fired last, packed", "removal"),
    Key("schedule_names", "zset", "names of schedules, in lexical order", "removal"),
    Key("schedule_dues", "zset", "ms -> names of schedules that are due then", "removal, pause, their end"),
    Key("dead", "zset", "number -> id of FAILED jobs", "redrive, discard, end of retention"),
    Key(
        "keyed",
        "zset",
        "key, number and id of jobs that have a `key` (within `key_for` of their end too), in lexical order",
        "end, or `key_for` after it",
    ),
    Key("events", "list", "the last moves of jobs, while there is a subscriber", "a minute after its last question"),
    Key("seen", "zset", "ms -> pools, or pools and users, that workers asked for lately", "after a minute"),
    Key(
        "workers",
        "hash",
        "worker -> what it says of itself, since when it is known and when it said so last, packed",
        "its leave, the end of a lease of its, the next new one after a minute",
    ),
    Key("sessions", "zset", "ms -> sessions of clients that were heard of lately", "after ten minutes"),
    Key("receipts", "hash", "session -> its last request and the reply", "after ten minutes"),
    Key("untold", "hash", "worker -> ids of its jobs that it has to be told to stop", "exchange, renewal, end"),
    Key("wake:timer", "zset", "a marker: something is due earlier than sleeping workers know", "the worker that wakes"),
    Key("line:", "zset", "place -> claims that wait at this gate", "claims that move on", is_prefix=True),
    Key("log:", "list", "the last log lines of this job", "end of retention", is_prefix=True),
    Key("errors:", "list", "the last errors of this job", "end of retention", is_prefix=True),
    Key(
        "steps:",
        "hash",
        "of this job: n and the number of a step -> when its result was stored, and its name; = and the name -> the "
        "result",
        "redrive, end of retention",
        is_prefix=True,
    ),
    Key(
        "waiting:",
        "zset",
        "number -> jobs that depend on this job or signal and may still run",
        "their end",
        is_prefix=True,
    ),
    Key("blocked:", "hash", "job this job still waits for -> policy of the edge", "their end, its end", is_prefix=True),
    Key(
        "gauges:",
        "hash",
        "gate -> what the jobs that run there cost and how many wait by this limit, the meter of its rate, and the job "
        "that is called in order",
        "their end, that of the time that its rate counts",
        is_prefix=True,
    ),
    Key(
        "wake:pool:",
        "zset",
        "a marker: this pool has ready jobs",
        "the worker that wakes, the last claim",
        is_prefix=True,
    ),
    Key("wake:user:", "zset", "a marker: this user of a pool has ready jobs", "as that of a pool", is_prefix=True),
    Key(
        "wake:release:",
        "zset",
        "a marker: this pool, or a user of it, has ready jobs that this release has not refused and others have",
        "the worker that wakes, the last such job of the pool",
        is_prefix=True,
    ),
    Key(
        "wake:session:",
        "zset",
        "what this session waits for",
        "the session that wakes, after ten minutes",
        is_prefix=True,
    ),
)
"""All of them, in the order of ``lua/lib/request/keys.lua``."""


def root(namespace: str) -> str:
    """
    Return the common prefix of a namespace's keys, without the last colon.

    >>> root("docs")
    '{qh:docs}'
    """
    return f"{{qh:{namespace}}}"


def redis_key(namespace: str, name: str, rest: str = "") -> str:
    """
    Return one key.

    >>> redis_key("docs", "line:", "doc1:intro")
    '{qh:docs}:line:doc1:intro'
    """
    return f"{root(namespace)}:{name}{rest}"
