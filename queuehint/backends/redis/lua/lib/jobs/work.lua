--[[ work: follow-up work of an operation, bounded by an exact budget; mirrors core.work.
  Leftovers first in first out, then due timers, each timer's own leftovers before the next timer. ]]
function work.step(item, budget)
  local kind = item[1]
  if kind == 'g' then return gates.advance(item[2], item[3], budget, ready_queue.add) end
  if kind == 'c' then return sweeps.cancel_paths(item, budget) end
  if kind == 'u' then return sweeps.unpark(item, budget) end
  if kind == 'p' then return dependents.release(item) end
  if kind == 'v' then return dependents.revive(item, budget) end
  if kind == 'd' then return sweeps.discard(item, budget) end
  if kind == 'f' then return sweeps.cancel_flow(item, budget) end
  return dependents.go_through(item, budget)
end

local EXPIRED_AT_ONCE = 1000 -- @const

-- Drop expired shared values.
function work.expire_shared()
  for _, place in ipairs(redis.call('ZRANGEBYSCORE', store.shared_ends, '-inf', string.format('%.0f', NOW), 'LIMIT', 0, EXPIRED_AT_ONCE)) do
    work.shared_gone[#work.shared_gone + 1] = place
    S[SHARED_VALUES] = S[SHARED_VALUES] - 1
  end
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
      local used
      if kind then used = lifecycle.fire_timer(kind, job) elseif S[LIMITS] > 0 then used = limits.recheck() end
      if not used then break end
      work.units = work.units - 1 - used
    end
  end
  if S[NEXT_SHARED] >= 0 and S[NEXT_SHARED] <= NOW then work.expire_shared() end
end

-- Whether work is left over.
function work.more()
  return work.any_left() or work.cut or timers.first_due() ~= nil or (S[LIMITS] > 0 and limits.is_due())
end
