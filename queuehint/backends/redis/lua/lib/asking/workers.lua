--[[ workers: the registry of workers, filled by their announcements; mirrors State.workers of core.state.
  WORKERS maps a name to a packed array: its last announcement, the time of the first one, the time of the last one, and
  what scripts read of it: its release, what the application calls that, '' for no name, its users as a request names them,
  '' for everyone's, and its pools, a line each. A silent worker stays there until a new one announces itself. ]]
local WORKER_SEEN_MS, WORKERS_MAX = 60000, 1000 -- @const
local SINCE_AT, SEEN_AT = 2, 3 -- @const
-- In an array with the name before them, as `live` returns it.
local RELEASE_AT, VERSION_AT, USERS_AT, POOLS_AT = 5, 6, 7, 8 -- @const
local workers = {}

lazily(workers, function()
local function is_live(worker) return worker[SEEN_AT] >= NOW - WORKER_SEEN_MS end

-- A worker that was heard of lately, by its name; false if there is none.
function workers.of(name)
  local packed = redis.call('HGET', store.workers, name)
  local worker = packed and cmsgpack.unpack(packed)
  return worker and is_live(worker) and worker
end

local found = nil

-- Return for each live worker its name and what is stored of it, in order of name; read once.
function workers.live()
  if found then return found end
  local live, stored = {}, redis.call('HGETALL', store.workers)
  for at = 1, #stored, 2 do
    local worker = cmsgpack.unpack(stored[at + 1])
    if is_live(worker) then live[#live + 1] = {stored[at], unpack(worker)} end
  end
  table.sort(live, function(left, right) return form.less(left[1], right[1]) end)
  found = live
  return live
end

local WORKERS_NAMED_MAX = 3 -- @const
local told_of = nil

-- How many workers there are, and of the first few what is known; read once.
function workers.told()
  if not told_of then
    local live = workers.live()
    told_of = {#live}
    for at = 1, math.min(#live, WORKERS_NAMED_MAX) do
      for part = 1, RELEASE_AT do told_of[#told_of + 1] = live[at][part] end
    end
  end
  return told_of
end

-- For each live worker of a pool its release, and the users whose jobs it runs, false for everyone's.
function workers.releases(pool)
  local told = {}
  for _, worker in ipairs(workers.live()) do
    if workers.serves(worker, pool) then told[#told + 1] = {worker[RELEASE_AT], workers.users_of(worker)} end
  end
  return told
end

-- Whether a worker serves a pool.
function workers.serves(worker, pool) return string.find('\n' .. worker[POOLS_AT] .. '\n', '\n' .. pool .. '\n', 1, true) end

-- The users whose jobs a worker runs, false for everyone's.
function workers.users_of(worker)
  if worker[USERS_AT] == '' then return false end
  local users = {}
  for name in string.gmatch(string.sub(worker[USERS_AT], 2) .. '\n', '([^\n]*)\n') do users[#users + 1] = name end
  return users
end

-- The names to forget when a worker comes that is not known: of those silent for long, and of one more if it stays and
-- there is no room for it.
function workers.to_drop(stays)
  local names, first, count, stored = {}, nil, 0, redis.call('HGETALL', store.workers)
  for at = 1, #stored, 2 do
    local name, worker = stored[at], cmsgpack.unpack(stored[at + 1])
    if is_live(worker) then
      local seen_ms = worker[SEEN_AT]
      count = count + 1
      if not first or seen_ms < first[1] or (seen_ms == first[1] and form.less(name, first[2])) then first = {seen_ms, name} end
    else
      names[#names + 1] = name
    end
  end
  if stays and count >= WORKERS_MAX then names[#names + 1] = first[2] end
  return names
end
end)
