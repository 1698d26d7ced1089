--[[ memory: drop records early when the server's memory is full. The server itself refuses new jobs; all else goes on, and
  records of ended jobs are dropped, those first that would expire first. From PRESSED_SHARE on only records that have no
  dependents, waiters or places and ended some time ago. From FULL_SHARE on memory counts as full: the server refuses a large
  submission already when there is no room for its arguments. ]]
local PRESSED_SHARE, FULL_SHARE, LOOK_EVERY_MS, RELIEF_MAX, RESULT_BYTES_MAX = 0.9, 0.98, 1000, 250, 65536 -- @const
-- For this long after its end a job that has waiters is kept: they are about to read the result.
local READ_WITHIN_MS = 10000 -- @const
local memory = {dropped = 0}

lazily(memory, function()
local memory_share = false

-- How much of the server's memory is used: 0 where there is no limit.
function memory.used_share()
  if not memory_share then
    local info = redis.call('INFO', 'memory')
    local used, most = string.match(info, 'used_memory:(%d+)'), string.match(info, '\nmaxmemory:(%d+)')
    memory_share = tonumber(most) > 0 and tonumber(used) / tonumber(most) or 0
  end
  return memory_share
end

function memory.is_refused(result) return #result > RESULT_BYTES_MAX and memory.used_share() >= 1 end

-- Rank the loss of a record: 1 if nothing refers to it, 2 if it ended a moment ago, 3 if it had waiters, holds a place or keeps its key;
-- false if it must be kept, as a signal must, which was given to whoever comes to wait for it.
local function loss_of(job)
  if job[TIMER] ~= PRUNE or jobs.dirty[job.id] or jobs.is_signal(job.id) or job[NEEDS] == HELD or edges.has_dependents(job) then return false end
  local is_late = job[ENDED] + ID_KEPT_MS <= NOW
  if job[WATCHERS] and job[ENDED] + READ_WITHIN_MS > NOW then return false end
  if job[WALKS] or job[EXPIRY_MS] or (job[WATCHERS] and not is_late) then return 3 end
  return is_late and 1 or 2
end

-- Drop records while memory is short, a few at a time: those of loss 1. Only where memory is full others too, of each page
-- those of the least loss.
function memory.relieve()
  if NOW - S[MEMORY_SEEN] < LOOK_EVERY_MS then return end
  S[MEMORY_SEEN] = NOW
  if memory.used_share() < PRESSED_SHARE or work.any_left() then return end
  local losses = {{}, {}, {}}
  local page = redis.call('ZRANGE', store.prunes, S[RELIEF_AT], S[RELIEF_AT] + RELIEF_MAX - 1)
  local ids = {}
  for at = 1, #page do ids[at] = select(2, form.split(page[at], 2)) end
  jobs.prefetch(ids)
  for at = 1, #ids do
    local job = jobs.known(ids[at], store.prunes)
    local loss = loss_of(job)
    if loss then table.insert(losses[loss], job) end
  end
  local dropped = losses[1]
  if memory.used_share() >= FULL_SHARE then
    if #dropped == 0 then dropped = losses[2] end
    if #dropped == 0 then dropped = losses[3] end
  end
  for _, job in ipairs(dropped) do
    gates.vacate(job)
    timers.drop(job)
    if job[EXPIRY_MS] then job[EXPIRY_MS] = false end
    archive.prune(job)
  end
  memory.dropped = #dropped
  S[DROPPED_IN_ALL] = S[DROPPED_IN_ALL] + #dropped
  S[RELIEF_AT] = #page == RELIEF_MAX and S[RELIEF_AT] + #page - #dropped or 0
  if #dropped > 0 then S[MEMORY_SEEN] = 0 end
end
end)
