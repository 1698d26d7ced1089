--[[ follow: what follows from an operation, bounded by an exact budget; mirrors core.engine.
  Leftovers first in first out, then due timers, each timer's own leftovers before the next timer. LEFT keeps those that
  were cut: a line to advance (g), a sweep that cancels (c), offers again (u), or resolves edges (r). ]]
local BUDGET = tonumber(ARGV[8])
local ID_KEPT_MS = 600000 -- @const
local units, cut = BUDGET, false
local left_stored, left_at, left_taken, left_read = {}, 1, 0, false
local left_added, left_added_at = {}, 1

function push_leftover(item) left_added[#left_added + 1] = item end

local function pop_leftover()
  if left_at > #left_stored and not left_read then
    left_stored = redis.call('LRANGE', LEFT, left_taken, left_taken + 31)
    left_at, left_read = 1, #left_stored < 32
  end
  if left_at <= #left_stored then
    left_at, left_taken = left_at + 1, left_taken + 1
    return cmsgpack.unpack(left_stored[left_at - 1])
  end
  local item = left_added[left_added_at]
  if item then left_added_at = left_added_at + 1 end
  return item
end

local function any_leftovers()
  return left_added_at <= #left_added or left_at <= #left_stored
    or (not left_read and redis.call('LLEN', LEFT) > left_taken)
end

function end_with_cause(job, state, cause) return end_job(job, state, cause, false) end
function free_place(job) return vacate(job) end

-- End a job FAILED and do with its place what it asked for; return the gates left.
local function die(job, cause)
  local on_dead = policy_of(job)[ON_DEAD]
  local left = end_job(job, FAILED, cause, on_dead ~= 'continue')
  if on_dead == 'cancel_behind' and job[WALKS] then
    S[NUMBERS] = S[NUMBERS] + 1
    local gate_keys = {}
    for _, claim in ipairs(parse_claims(job[CLAIMS])) do gate_keys[#gate_keys + 1] = claim.keys[#claim.keys] end
    push_leftover(cancel_sweep(gate_keys, S[NUMBERS], 'behind the dead job ' .. job.id, job))
  end
  return left
end

-- Count a loss; the job is ready again at its old place, or dead.
local function lose(job, kind, message, traceback)
  record_error(job, kind, message, traceback)
  job[ATTEMPTS], job[LOSSES] = job[ATTEMPTS] - 1, job[LOSSES] + 1
  S[LOST_IN_ALL] = S[LOST_IN_ALL] + 1
  if job[LOSSES] >= policy_of(job)[MAX_LOSSES] then return die(job, 'worker_lost') end
  put_back(job, false)
  return 0
end

-- Let a job wait for its next attempt, on its place or off it.
local function back_off(job, delay_ms)
  local policy = policy_of(job)
  if policy[ON_RETRY] == 'yield' then
    postpone(job, NOW + delay_ms)
  elseif delay_ms <= 0 then
    put_back(job, false)
  else
    put_back(job, NOW + delay_ms)
    if delay_ms > policy[MAX_HOLD] then set_timer(job, DUE, NOW + policy[MAX_HOLD]) end
  end
end

-- Take up a job whose time has come, or whose back-off has held its place long enough.
local function promote(job)
  if job[STATE] == QUEUED then
    if job[DUE_AT] and job[DUE_AT] > NOW then return postpone(job, job[DUE_AT]) end
    offer(job)
    return 0
  end
  if job[BLOCKED] > 0 then
    become(job, DEFERRED)
    job[DUE_AT] = false
    return 0
  end
  return queue(job)
end

-- Take a job from a worker that did not renew its lease.
local function reap(job)
  know_epoch()
  if S[REAP_FROM] > NOW then
    set_timer(job, LEASE, S[REAP_FROM])
    return 0
  end
  if job[PRESENCE] then return end_job(job, CANCELED, 'waiter_lost', false) end
  if job[CANCEL] then
    S[LOST_IN_ALL] = S[LOST_IN_ALL] + 1
    return end_job(job, CANCELED, job[CANCEL], false)
  end
  return lose(job, 'worker_lost', 'worker ' .. job[WORKER] .. ' did not renew its lease', false)
end

-- Drop all that is known of a job that is over.
local function forget_job(job)
  job.pruned = true
  jobs[job.id] = false
  dirty[job.id] = job
  S[PRUNED_IN_ALL] = S[PRUNED_IN_ALL] + 1
end

-- Drop a record that was kept long enough, free a place it held; its id is kept for ten minutes at least.
local function prune(job)
  local left = vacate(job)
  if job[ENDED] + ID_KEPT_MS > NOW then
    job[GONE], job[RESULT], job[ERRORS], job[LOGS], job[REPORTED] = true, false, 0, 0, false
    set_timer(job, PRUNE, job[ENDED] + ID_KEPT_MS)
  else
    forget_job(job)
  end
  return left
end

local function come_up(kind, job)
  if kind == EXPIRY then return end_job(job, CANCELED, 'expired', false) end
  if kind == LEASE then return reap(job) end
  if kind == PRUNE then return prune(job) end
  return promote(job)
end

local function step(item, budget)
  local kind = item[1]
  if kind == 'g' then return advance(item[2], item[3], budget, offer_ready) end
  if kind == 'c' then return step_cancel(item, budget) end
  if kind == 'u' then return step_unpark(item, budget) end
  return step_resolve(item, budget)
end

-- Do leftovers, then due timers, until nothing is left or the budget is used.
local function follow()
  while units > 0 do
    local item = pop_leftover()
    if item then
      local used, again = step(item, units)
      units = units - used
      if again then push_leftover(item) end
    else
      local kind, job = pop_due()
      if not kind then break end
      units = units - 1 - come_up(kind, job)
    end
  end
end

-- Whether work is left over.
local function is_more() return any_leftovers() or cut or first_due() ~= nil end
