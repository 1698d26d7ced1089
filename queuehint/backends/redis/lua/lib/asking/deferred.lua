--[[ deferred: statistics of the jobs that wait for others, the oldest first, and of their edges. ]]
-- @include lib/structures/edges
local DEFERRED_LOOKED_AT_MAX, EDGES_LOOKED_AT_MAX, ORPHANS_MAX = 1000, 4000, 100 -- @const

-- Return how many were looked at, the most dependencies of one, the most dependents of one of these dependencies, how many
-- wait for a dead job, and ids of those with an edge to a job that does not exist.
local function look_at_deferred()
  local left, looked_at, most_blocked, most_awaited, behind_dead, orphans = EDGES_LOOKED_AT_MAX, 0, 0, 0, 0, {}
  local ids = redis.call('ZRANGE', store.deferred, 0, DEFERRED_LOOKED_AT_MAX - 1)
  jobs.prefetch(ids)
  for _, id in ipairs(ids) do
    if left <= 0 then break end
    looked_at = looked_at + 1
    local job = jobs.known(id, store.deferred)
    local blocked = edges.some_open(job)
    most_blocked = math.max(most_blocked, job[BLOCKED])
    local is_orphan, is_behind_dead = #blocked == 0, false
    for at = 1, math.min(#blocked, left) do
      local other = jobs.of(blocked[at])
      most_awaited = math.max(most_awaited, redis.call('ZCARD', store.waiting(blocked[at])))
      is_orphan = is_orphan or (not other and not jobs.is_signal(blocked[at])) or not redis.call('ZSCORE', store.waiting(blocked[at]), id)
      is_behind_dead = is_behind_dead or (other and other[STATE] == FAILED)
    end
    left = left - math.min(#blocked, left)
    if is_behind_dead then behind_dead = behind_dead + 1 end
    if is_orphan and #orphans < ORPHANS_MAX then orphans[#orphans + 1] = id end
  end
  return looked_at, most_blocked, most_awaited, behind_dead, orphans
end

-- The ids of those of the first jobs that wait for others which wait for a signal; those with too many edges are left out.
function edges.waiting_for_signals()
  local left, found = EDGES_LOOKED_AT_MAX, {}
  for _, id in ipairs(redis.call('ZRANGE', store.deferred, 0, DEFERRED_LOOKED_AT_MAX - 1)) do
    local size = redis.call('HLEN', store.blocked(id))
    if size <= left then
      left = left - size
      for _, other in ipairs(jobs.is_wait(id) and {} or redis.call('HKEYS', store.blocked(id))) do
        if jobs.is_signal(other) or jobs.is_wait(other) then
          found[#found + 1] = id
          break
        end
      end
    end
  end
  return found
end
