--[[ dependents: leftovers that visit the dependents of a job, as core.jobs.sweeps; each costs one unit, and those of its edges
  and gates. ]]
local dependents = {}

lazily(dependents, function()
-- Return the state of the ended job of a sweep, false if it was dropped or lost, and whether it is gone. A sweep may
-- carry both itself, because the id may be reused.
local function end_of(sweep)
  local state = string.match(sweep[5], '^gone(.*)$')
  if state then return state ~= '' and state, true end
  local dependency = jobs.of(sweep[2])
  return dependency and dependency[STATE], not dependency or dependency[GONE]
end

-- By kind of sweep: the action on each dependent, whether it still applies, and the action at the end.
local ACT = {
  r = function(job, sweep)
    local state, gone = end_of(sweep)
    return lifecycle.resolve(job, sweep[2], state, gone, sweep[6] or NOW)
  end,
  k = lifecycle.begin,
  x = lifecycle.drop,
}

local function goes_on(sweep)
  if sweep[1] ~= 'r' or string.sub(sweep[5], 1, 4) == 'gone' then return true end
  -- The job may have been redriven meanwhile.
  local dependency = jobs.of(sweep[2])
  return dependency and transitions.end_of(dependency) == sweep[5]
end

-- Go through the jobs that depended on one when the sweep began, in order of number; those over are passed over.
function dependents.go_through(sweep, budget)
  local used, act = 0, ACT[sweep[1]]
  while goes_on(sweep) do
    local job, order = edges.next_dependent(sweep)
    if not job then break end
    if used >= budget then
      -- Dependents that were passed over are not looked at again, even if they are unfinished by then.
      sweep[3] = order - 1
      return used, true
    end
    sweep[3] = order
    used = used + 1 + act(job, sweep)
    -- Of one that is let go by and by other dependencies come first.
    if sweep[5] == order then sweep[3] = order - 1 end
  end
  local dependency = jobs.of(sweep[2])
  if sweep[1] ~= 'r' then
    if sweep[1] == 'k' then S[COMMITTING] = math.max(S[COMMITTING] - 1, 0) end
    staging.remove(dependency)
  elseif dependency and transitions.end_of(dependency) == sweep[5] then
    edges.end_resolving(dependency)
  end
  return used, false
end

-- Cancel those of some waits for signals that no job waits for any more; return the units used.
local function end_waits(ids)
  local used = 0
  for _, id in ipairs(ids) do
    local wait = jobs.of(id)
    if wait and not jobs.is_hidden(wait) then used = used + lifecycle.end_unawaited(wait) end
  end
  return used
end

local function add_waits(ids, needs)
  for _, need in ipairs(needs) do
    if jobs.is_wait(need[1]) then ids[#ids + 1] = need[1] end
  end
  return ids
end

-- Remove all edges of a job that cannot run any more, of portions one at a time: item[3] of them are removed.
function dependents.release(item)
  local job = jobs.of(item[2])
  local released = item[3] or 0
  if job and job[PORTIONS] and job[NEEDS] == HELD and released <= job[PORTIONS] then
    item[3] = released + 1
    local waits = add_waits({}, edges.portion_of(job, released))
    return edges.release_portion(job, released) + end_waits(waits), true
  end
  if not job then return 0, false end
  local needs = job[NEEDS] == HELD and edges.needs_of(job) or job[NEEDS] and edges.all_needs(job) or {}
  local waits, blocked = add_waits({}, needs), {}
  for id in pairs(edges.open_of(job)) do
    if jobs.is_wait(id) then blocked[#blocked + 1] = id end
  end
  table.sort(blocked, form.less)
  for _, id in ipairs(blocked) do waits[#waits + 1] = id end
  return edges.release(job) + end_waits(waits), false
end

-- Bring back, in order of number, the jobs that were canceled because of one that was brought back itself. One that is
-- canceled anew is not looked at again: item[3] is the last number looked at. Each only once its own end is told to all that
-- wait for it: one that is revived is bound to what it needs without a search, and this closes no cycle because no
-- unfinished job waits for it. Nor will a committed one that is not released yet: commits have their turn first.
function dependents.revive(item, budget)
  local used = 0
  while true do
    local origin = jobs.of(item[2])
    -- One that has failed again meanwhile would cancel them again.
    local job = not (origin and (origin[STATE] == FAILED or origin[STATE] == CANCELED)) and edges.first_canceled_by(item[2], item[3])
    if not job then return used, false end
    if used >= budget then return used, true end
    -- The sweeps of commits and of its end have their turns first.
    if S[COMMITTING] > 0 or job[AWAITED] == RESOLVING then return used + 1, true end
    -- So has the one that releases its dependencies, portion by portion.
    if job[PORTIONS] and job[NEEDS] == HELD then return used + 1, true end
    item[3] = job[NUMBER]
    used = used + 1 + lifecycle.revive(job)
  end
end
end)
