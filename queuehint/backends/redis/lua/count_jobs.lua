#!lua flags=no-writes,allow-oom
--[[ count_jobs: counts over the namespace.
  Returns counts by state, totals, what is stuck, ready jobs by pool, delays of resolved edges, and by
  pool when the oldest ready job took its place; six lists.
  Mirrors core.asking.why ]]
-- @include lib/questions
-- @include lib/asking/reasons
-- @include lib/asking/deferred
args.count(8)
local sizes, _, unserved, refused = count_ready()

-- Return when the oldest of the next jobs of a pool's users took its place; only the first users by name are looked at.
local USERS_LOOKED_AT_MAX = 100 -- @const
local function oldest_in(queue, oldest)
  local from = '[' .. queue .. '\0'
  for _ = 1, USERS_LOOKED_AT_MAX do
    local member = redis.call('ZRANGEBYLEX', store.ready, from, '(' .. queue .. '\1', 'LIMIT', 0, 1)[1]
    if not member then break end
    local prefix = string.match(member, '^%Z*%z%Z*%z')
    local _, id = form.split(member, #prefix + (string.byte(member, #prefix + 1) == 49 and 17 or 2))
    local queued_ms = jobs.known(id, store.ready)[QUEUED_AT]
    oldest = math.min(oldest or queued_ms, queued_ms)
    from = '(' .. string.sub(prefix, 1, -2) .. '\1'
  end
  return oldest
end

-- The same of all queues of a pool.
local function oldest_of(pool)
  local stored, oldest = redis.call('HGET', store.refused, pool), oldest_in(pool, nil)
  for _, queue in ipairs(stored and cmsgpack.unpack(stored)[1] or {}) do oldest = oldest_in(queue, oldest) end
  return oldest
end

local oldest = {}
for at = 1, #sizes, 2 do oldest[at], oldest[at + 1] = sizes[at], oldest_of(sizes[at]) end
local parked = pauses.count_parked(true)
local behind_dead = 0
if redis.call('ZCARD', store.dead) > 0 then behind_dead = select(4, look_at_deferred()) end
local nodes = redis.call('HLEN', store.gates) - redis.call('HEXISTS', store.gates, '')
return {
  {S[24], S[25], S[26], S[27], S[28], S[29], S[30]},
  {S[ENQUEUED_IN_ALL], S[STARTED_IN_ALL], S[SETTLED_IN_ALL], S[TOTAL_OF.finished], S[TOTAL_OF.failed],
    S[TOTAL_OF.canceled], S[TOTAL_OF.retried], S[TOTAL_OF.snoozed], S[TOTAL_OF.released], S[LOST_IN_ALL], S[PRUNED_IN_ALL], S[DROPPED_IN_ALL],
    #edges.waiting_for_signals(), redis.call('LLEN', store.left), nodes},
  {parked, S[HOLDING], behind_dead, unserved, S[UNKNOWN_TASKS_NOW] + refused},
  sizes,
  {S[RESOLVED], S[RESOLVED_SUM], S[RESOLVED_MAX]},
  oldest,
}
