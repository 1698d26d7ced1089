--[[ at_path: what waits at a path or below it, and what stands in its way; mirrors core.asking.at_path.
  Cost O(log(n)) and 500 entries of PATHS with their heads, and the reasons of the jobs that are named. ]]
local ENDS_LOOKED_AT_MAX = 250 -- @const
local at_path = {}

lazily(at_path, function()
-- The first entries of PATHS in some ranges, or the last ones, backwards.
local function entries_of(ranges, backwards)
  local found = {}
  for at = 1, #ranges do
    local range, left = ranges[backwards and #ranges + 1 - at or at], ENDS_LOOKED_AT_MAX - #found
    if left > 0 then
      local members = backwards and redis.call('ZREVRANGEBYLEX', store.paths, range[2], range[1], 'LIMIT', 0, left)
        or redis.call('ZRANGEBYLEX', store.paths, range[1], range[2], 'LIMIT', 0, left)
      for place = 1, #members do found[#found + 1] = members[place] end
    end
  end
  return found
end

local function by_number(left, right) return left[NUMBER] < right[NUMBER] end

-- The jobs that wait at a path or below it and those that run there, in order of number; the ids of the first; and whether all
-- entries there were looked at.
local function waiting_at(path)
  local ranges, members, seen = paths.ranges(path), {}, {}
  for _, backwards in ipairs({false, true}) do
    for _, member in ipairs(entries_of(ranges, backwards)) do
      if not seen[member] then seen[member], members[#members + 1] = true, member end
    end
  end
  local ids, waiting, running, is_known = #members > 0 and paths.ids(members) or {}, {}, {}, {}
  for at = 1, #members do paths.known_id(members[at], ids[at], store.paths) end
  jobs.prefetch(ids)
  for at = 1, #members do
    local job = jobs.known(ids[at], store.paths)
    local some = job[STATE] == STARTED and running or waiting
    if not is_known[job.id] and not jobs.is_hidden(job) then some[#some + 1] = job end
    is_known[job.id] = true
  end
  local is_waiting = {}
  for _, job in ipairs(waiting) do is_waiting[job.id] = true end
  table.sort(waiting, by_number)
  table.sort(running, by_number)
  return waiting, running, is_waiting, #members < 2 * ENDS_LOOKED_AT_MAX
end

-- Up to ten jobs that hold a place against an exclusive claim that would come now, and how many claims hold the first gate on
-- its way that it does not pass.
local function holders_against(path)
  local keys = form.claims('x' .. path)[1].keys
  for depth = 0, #keys - 1 do
    local key, wants = keys[depth + 1], {[depth == #keys - 1 and X_MODE or IX] = true}
    local holding = clashing(gates.of(key), wants)
    if holding > 0 then
      local dead = dead_at(key, depth, wants)
      if #dead > 0 then return dead, holding end
      local found = {unpack(holders_of(key, depth, wants))}
      table.sort(found, by_place)
      return found, holding
    end
  end
  return {}, 0
end

-- The claim of a job at a path, below it or above it, else its first; and how many it has.
local function claim_at(job, path)
  local first, met, count = '', nil, 0
  for claim_text in string.gmatch(job[CLAIMS], '[^\n]+') do
    local key = string.sub(claim_text, 2)
    local meets = key == path or key == '' or path == '' or string.sub(key, 1, #path + 1) == path .. ':'
      or string.sub(path, 1, #key + 1) == key .. ':'
    first, met, count = count == 0 and claim_text or first, met or meets and claim_text or nil, count + 1
  end
  return met or first, count
end

-- How many jobs wait, whether all were looked at, how many others are ahead of them, and how many claims hold the place; how many
-- of the jobs behind are the oldest and how many the newest; then each job: its task, user, claim, number of claims, when it was
-- enqueued, and its reason.
function at_path.reasons(path, limit)
  local waiting, running, is_waiting, is_whole = waiting_at(path)
  local reply, ahead, is_ahead, is_limited = {#waiting, is_whole and 1 or 0, 0, 0, 0, 0}, {}, {}, false
  local function tell(job, reason)
    local claim_text, count = claim_at(job, path)
    reply[#reply + 1] = {job[TASK], job[USER], claim_text, count, text_of_ms(job[ENQUEUED]), reply_of(job, reason)}
  end
  local function put_ahead(job)
    if job and not is_waiting[job.id] and not is_ahead[job.id] then is_ahead[job.id], ahead[#ahead + 1] = true, job end
  end
  local function tell_waiting(job)
    local reason = reason_of(job)
    is_limited = is_limited or reason.kind == 'limit'
    tell(job, reason)
    for _, other in ipairs(reason.jobs or {}) do put_ahead(jobs.find(other.id)) end
  end
  local oldest = math.min(limit, #waiting)
  local newest = math.min(limit, #waiting - oldest)
  for at = 1, oldest do tell_waiting(waiting[at]) end
  for at = #waiting, #waiting - newest + 1, -1 do tell_waiting(waiting[at]) end
  -- A permit takes no place, and is in the way of those alone that wait for a limit.
  for _, job in ipairs(running) do put_ahead((is_limited or not form.is_counted(job[CLAIMS])) and job) end
  local holding, holders = holders_against(path)
  for _, job in ipairs(holding) do put_ahead(job) end
  for at = 1, math.min(#ahead, JOBS_NAMED_MAX) do tell(ahead[at], reason_of(ahead[at])) end
  reply[3], reply[4], reply[5], reply[6] = math.max(0, #ahead - JOBS_NAMED_MAX), holders, oldest, newest
  return reply
end
end)
