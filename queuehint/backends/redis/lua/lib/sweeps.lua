--[[ sweeps: leftovers that are not lines, as core.sweeps; one unit for each entry looked at, one more for each gate. ]]
local end_with_cause, free_place

-- Cancel an unfinished job at once, or ask the one that runs to stop; return the gates left.
local function cancel_job(job, cause)
  if job[STATE] ~= STARTED then return end_with_cause(job, CANCELED, cause) end
  if not job[CANCEL] then ask_to_stop(job, cause) end
  return 0
end

-- A sweep that cancels: its paths' gate keys, the number it covers up to, why, and the dead job it is behind, if any.
local function cancel_sweep(gate_keys, before, cause, behind)
  return {'c', gate_keys, before, cause, behind and behind.id, behind and behind[SEQ] or 0, S[PLACES], 1, 1, false}
end

local walks_of_sweeps = {}

local function next_swept(item)
  local sweep = walks_of_sweeps[item]
  while true do
    local gate_key = item[2][item[8]]
    if not gate_key then return nil end
    if not sweep then
      sweep = lexical_walk(PATHS, path_ranges(gate_key), item[9], item[10], 32)
      walks_of_sweeps[item] = sweep
    end
    local member = sweep.next()
    item[9], item[10] = sweep.at, sweep.cursor
    if member then
      local key, number, id = split_path_member(member)
      local job = known_job(id, PATHS)
      if not OVER[job[STATE]] then return job, key, number, sweep end
    else
      item[8], item[9], item[10] = item[8] + 1, 1, false
      sweep = nil
    end
  end
end

local function step_cancel(item, budget)
  local before, cause, behind_id, behind_seq, last_seq = item[3], item[4], item[5], item[6], item[7]
  local used = 0
  while used < budget do
    local job, key, number, sweep = next_swept(item)
    if not job then
      local behind = behind_id and job_of(behind_id)
      if behind and behind[STATE] == FAILED and behind[SEQ] == behind_seq then used = used + free_place(behind) end
      return used, false
    end
    used = used + 1
    if number >= before then
      sweep.jump(key .. '\1')
      item[10] = sweep.cursor
    else
      local since = job[SINCE] > 0 and job[SINCE] or job[NUMBER]
      local seq = job[SEQ]
      if since < before and (not behind_id or (job[STATE] == QUEUED and behind_seq < seq and seq <= last_seq)) then
        used = used + cancel_job(job, cause)
      end
    end
  end
  return used, true
end

local function parked_member(job, pause) return sortable(pause) .. tag_of(job) end

local unparking = {}

-- The next job put aside by a pause.
local function next_parked(pause)
  local walk = unparking[pause]
  if not walk then
    local prefix = sortable(pause)
    walk = lexical_walk(PARKED, {{'[' .. prefix, '(' .. prefix .. '\255'}}, 1, false, 64)
    walk.skip = #prefix
    unparking[pause] = walk
  end
  while true do
    local member = walk.ahead or walk.next()
    walk.ahead = member
    if not member then return nil end
    local _, id = split_member(member, walk.skip + 1)
    local job = known_job(id, PARKED)
    if job[OFFER] == pause then return job end
    walk.ahead = nil
  end
end

-- Offer again what was ready below a path that was paused, in order of number.
local function step_unpark(item, budget)
  local used = 0
  local job = next_parked(item[2])
  while job and used < budget do
    job[OFFER] = false
    offer_ready(job)
    used = used + 1
    job = next_parked(item[2])
  end
  return used, job ~= nil
end

-- Remove the edges to a job that is over, in order of number; what waits for nothing else takes its place.
local function step_resolve(item, budget)
  local used = 0
  while used < budget do
    local job = next_dependent(item[2])
    if not job then return used, false end
    drop_edge(job, item[2])
    used = used + 1
    if job[BLOCKED] == 0 and job[STATE] == DEFERRED then used = used + queue(job) end
  end
  return used, next_dependent(item[2]) ~= false
end
