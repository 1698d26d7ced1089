--[[ memory: what is done when the server's memory is full. New jobs are refused by the server itself; all else goes on,
  and records of jobs that are over go before their time, those first that would have gone first. ]]
local PRESSED_SHARE, LOOK_EVERY_MS, RELIEF_MAX, RESULT_BYTES_MAX = 0.9, 1000, 500, 65536 -- @const
local memory = {}

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

-- Forget jobs that are over and that nobody waits for, while memory is short; a few at a time.
function memory.relieve()
  if NOW - S[MEMORY_SEEN] < LOOK_EVERY_MS then return end
  S[MEMORY_SEEN] = NOW
  if memory.used_share() < PRESSED_SHARE or work.any_left() then return end
  S[MEMORY_SEEN] = 0
  for _, member in ipairs(redis.call('ZRANGE', store.prunes, 0, RELIEF_MAX - 1)) do
    local _, id = form.split(member, 2)
    local job = jobs.known(id, store.prunes)
    if job[TIMER] == PRUNE and not jobs.dirty[id] and not edges.has_dependents(job) and job[NEEDS] ~= HELD then
      gates.vacate(job)
      timers.drop(job)
      course.forget(job)
      request.notes[#request.notes + 1] = 'pruned ' .. id
    end
  end
end
end)
