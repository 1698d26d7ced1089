--[[ follow: what follows from an operation, bounded by an exact budget; mirrors core.engine.
  Leftovers first in first out, then due timers, each timer's own leftovers before the next timer. LEFT keeps those that
  were cut: a line to advance (g), a sweep that cancels (c), offers again (u), or resolves edges (r). ]]
local BUDGET = tonumber(ARGV[8])
local ID_KEPT_MS = 600000 -- @const
work.units, work.cut, work.left_taken, work.left_added, work.left_added_at = BUDGET, false, 0, {}, 1
local left_stored, left_at, left_read = {}, 1, false

function work.push(item) work.left_added[#work.left_added + 1] = item end

function work.pop_leftover()
  if left_at > #left_stored and not left_read then
    left_stored = redis.call('LRANGE', store.left, work.left_taken, work.left_taken + 31)
    left_at, left_read = 1, #left_stored < 32
  end
  if left_at <= #left_stored then
    left_at, work.left_taken = left_at + 1, work.left_taken + 1
    return cmsgpack.unpack(left_stored[left_at - 1])
  end
  local item = work.left_added[work.left_added_at]
  if item then work.left_added_at = work.left_added_at + 1 end
  return item
end

function work.any_left()
  return work.left_added_at <= #work.left_added or left_at <= #left_stored
    or (not left_read and redis.call('LLEN', store.left) > work.left_taken)
end

function work.end_with_cause(job, state, cause) return ledger.finish(job, state, cause, false) end
function work.free_place(job) return gates.vacate(job) end

-- End a job FAILED and do with its place what it asked for; return the gates left.
function work.die(job, cause)
  local on_dead = form.policy(job)[ON_DEAD]
  local left = ledger.finish(job, FAILED, cause, on_dead ~= 'continue')
  if on_dead == 'cancel_behind' and job[WALKS] then
    S[NUMBERS] = S[NUMBERS] + 1
    local gate_keys = {}
    for _, claim in ipairs(form.claims(job[CLAIMS])) do gate_keys[#gate_keys + 1] = claim.keys[#claim.keys] end
    work.push(sweeps.cancel(gate_keys, S[NUMBERS], 'behind the dead job ' .. job.id, job))
  end
  return left
end

-- Count a loss; the job is ready again at its old place, or dead.
function work.lose(job, kind, message, traceback)
  ledger.record_error(job, kind, message, traceback)
  job[ATTEMPTS], job[LOSSES] = job[ATTEMPTS] - 1, job[LOSSES] + 1
  S[LOST_IN_ALL] = S[LOST_IN_ALL] + 1
  if job[LOSSES] >= form.policy(job)[MAX_LOSSES] then return work.die(job, 'worker_lost') end
  ledger.put_back(job, false)
  return 0
end

-- Let a job wait for its next attempt, on its place or off it.
function work.back_off(job, delay_ms)
  local policy = form.policy(job)
  if policy[ON_RETRY] == 'yield' then
    ledger.postpone(job, NOW + delay_ms)
  elseif delay_ms <= 0 then
    ledger.put_back(job, false)
  else
    ledger.put_back(job, NOW + delay_ms)
    if delay_ms > policy[MAX_HOLD] then timers.set(job, DUE, NOW + policy[MAX_HOLD]) end
  end
end

-- Take up a job whose time has come, or whose back-off has held its place long enough.
function work.promote(job)
  if job[STATE] == QUEUED then
    if job[DUE_AT] and job[DUE_AT] > NOW then return ledger.postpone(job, job[DUE_AT]) end
    ledger.offer(job)
    return 0
  end
  if job[BLOCKED] > 0 then
    ledger.become(job, DEFERRED)
    job[DUE_AT] = false
    return 0
  end
  return ledger.queue(job)
end

-- Take a job from a worker that did not renew its lease.
function work.reap(job)
  epoch.know()
  if S[REAP_FROM] > NOW then
    timers.set(job, LEASE, S[REAP_FROM])
    return 0
  end
  if job[PRESENCE] then return ledger.finish(job, CANCELED, 'waiter_lost', false) end
  if job[CANCEL] then
    S[LOST_IN_ALL] = S[LOST_IN_ALL] + 1
    return ledger.finish(job, CANCELED, job[CANCEL], false)
  end
  return work.lose(job, 'worker_lost', 'worker ' .. job[WORKER] .. ' did not renew its lease', false)
end

-- Drop all that is known of a job that is over.
function work.forget_job(job)
  job.pruned = true
  jobs.all[job.id] = false
  jobs.dirty[job.id] = job
  S[PRUNED_IN_ALL] = S[PRUNED_IN_ALL] + 1
end

-- Drop a record that was kept long enough, free a place it held; its id is kept for ten minutes at least.
function work.prune(job)
  local left = gates.vacate(job)
  if job[ENDED] + ID_KEPT_MS > NOW then
    job[GONE], job[RESULT], job[ERRORS], job[LOGS], job[REPORTED] = true, false, 0, 0, false
    timers.set(job, PRUNE, job[ENDED] + ID_KEPT_MS)
  else
    work.forget_job(job)
  end
  return left
end

function work.come_up(kind, job)
  if kind == EXPIRY then return ledger.finish(job, CANCELED, 'expired', false) end
  if kind == LEASE then return work.reap(job) end
  if kind == PRUNE then return work.prune(job) end
  return work.promote(job)
end

function work.step(item, budget)
  local kind = item[1]
  if kind == 'g' then return gates.advance(item[2], item[3], budget, ready.offer) end
  if kind == 'c' then return sweeps.step_cancel(item, budget) end
  if kind == 'u' then return sweeps.step_unpark(item, budget) end
  return sweeps.step_resolve(item, budget)
end

-- Do leftovers, then due timers, until nothing is left or the budget is used.
function work.follow()
  while work.units > 0 do
    local item = work.pop_leftover()
    if item then
      local used, again = work.step(item, work.units)
      work.units = work.units - used
      if again then work.push(item) end
    else
      local kind, job = timers.pop_due()
      if not kind then break end
      work.units = work.units - 1 - work.come_up(kind, job)
    end
  end
end

-- Whether work is left over.
function work.is_more() return work.any_left() or work.cut or timers.first_due() ~= nil end
