#!lua flags=no-writes,allow-oom
--[[ count_edges: statistics of edges: how many, the job that waits longest, edges to jobs that do not exist.
  Returns how many jobs are DEFERRED, how many edges are open, the id of the oldest, when it was enqueued, and the figures of
  lib/asking/deferred: how many it looked at, most blocked, most awaited, behind dead ones; then orphans.
  Mirrors core.asking.why ]]
-- @include lib/questions
-- @include lib/asking/deferred
args.count(8)
local looked_at, most_blocked, most_awaited, behind_dead, orphans = look_at_deferred()
local oldest_id = redis.call('ZRANGE', store.deferred, 0, 0)[1]
local oldest = oldest_id and jobs.known(oldest_id, store.deferred)
return {
  S[COUNT_OF.D], S[OPEN_EDGES], oldest_id or '', oldest and oldest[ENQUEUED] or 0, looked_at, most_blocked, most_awaited,
  behind_dead, orphans,
}
