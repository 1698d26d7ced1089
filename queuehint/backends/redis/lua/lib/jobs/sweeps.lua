--[[ sweeps: steps of leftovers: cancel, discard, offer again; mirrors core.jobs.sweeps. One unit for each entry looked at, two for
  one canceled or offered again, one more for each gate. ]]
local sweeps = {}

lazily(sweeps, function()
local TALLY_MS = 600000 -- @const

local function store_tally(item)
  item[13] = true
  if not item[12] then return end
  -- The key has a namespace that no user can name, and the number of the sweep, so it is new.
  S[SHARED_VALUES] = S[SHARED_VALUES] + 1
  local until_ms = string.format('%.0f', NOW + TALLY_MS)
  work.shared_put[#work.shared_put + 1] = {'\0' .. string.format('%.0f', item[3]), until_ms .. string.format(' %.0f', item[11]), until_ms}
end

local walks_of_sweeps = {}

local function next_swept(item)
  local sweep = walks_of_sweeps[item]
  while true do
    local gate_key = item[2][item[8]]
    if not gate_key then return nil end
    if not sweep then
      sweep = paths.walk(store.paths, paths.ranges(gate_key), item[9], item[10], 32)
      walks_of_sweeps[item] = sweep
    end
    local member = sweep.next()
    item[9], item[10] = sweep.at, sweep.cursor
    if member then
      local job, key, number = sweep.job(), paths.split(member)
      if not OVER[job[STATE]] then return job, key, number, sweep end
    else
      item[8], item[9], item[10] = item[8] + 1, 1, false
      sweep = nil
    end
  end
end

function sweeps.cancel_paths(item, budget)
  local before, cause, behind_id, behind_seq, last_seq = item[3], item[4], item[5], item[6], item[7]
  local used = 0
  while used < budget do
    local job, key, number, sweep = next_swept(item)
    if not job then
      store_tally(item)
      local behind = behind_id and jobs.of(behind_id)
      if behind and behind[STATE] == FAILED and behind[SEQ] == behind_seq then used = used + gates.vacate(behind) end
      return used, false
    end
    used = used + 1
    if number >= before then
      sweep.jump(key .. '\1')
      item[10] = sweep.cursor
    else
      local since = job[SINCE] > 0 and job[SINCE] or job[NUMBER]
      local seq = job[SEQ]
      if since < before and not jobs.is_hidden(job) and (not behind_id or (job[STATE] == QUEUED and behind_seq < seq and seq <= last_seq)) then
        -- One with two claims below the path is met twice while it runs.
        if job[STATE] ~= STARTED or not job[CANCEL] then item[11] = item[11] + 1 end
        used = used + 1 + lifecycle.cancel(job, cause)
      end
    end
  end
  return used, true
end

-- Discard the dead jobs that hold places at or below a path. A sweep: its gate key, the number it covers up to, where it is.
function sweeps.discard(item, budget)
  local walk = paths.walk(store.holds, paths.ranges(item[2]), item[4], item[5], 32)
  local used = 0
  while used < budget do
    local member = walk.next()
    item[4], item[5] = walk.at, walk.cursor
    if not member then return used, false end
    local job, _, number = walk.job(), paths.split(member)
    -- One that was discarded or brought back in this step has its entries still.
    if job[STATE] == FAILED and job[WALKS] then
      used = used + 1
      -- One without a timer is redriven by this very operation.
      if (job[SINCE] > 0 and job[SINCE] or number) < item[3] and job[TIMER] then used = used + lifecycle.discard(job) end
    end
  end
  return used, true
end

-- Those parked by a pause stand in order of number, those by a limit in order of rank.
function sweeps.parked_member(job, offer)
  if form.is_place(offer) then return offer .. '\0' .. ready_queue.ranked(job) end
  return form.sortable(offer) .. form.tag(job)
end

local unparking = {}

-- The next job parked by a pause, or by the limit whose number is given below zero.
function sweeps.next_parked(by)
  local walk = unparking[by]
  if not walk then
    local prefix = form.sortable(math.abs(by))
    walk = paths.walk(store.parked, {{'[' .. prefix, '(' .. prefix .. '\255'}}, 1, false, 64)
    walk.prefix = prefix
    unparking[by] = walk
  end
  while true do
    local member = walk.ahead or walk.next()
    walk.ahead = member
    if not member then return nil end
    local id
    if by < 0 then id = limits.id_of(member) else id = select(2, form.split(member, #walk.prefix + 1)) end
    local job = jobs.known(id, store.parked)
    local offer = job[OFFER]
    if offer == by or (by < 0 and form.is_place(offer) and string.sub(offer, 1, #walk.prefix) == walk.prefix) then return job end
    walk.ahead = nil
  end
end

-- Offer again what was parked by a pause or a limit that no longer exists.
function sweeps.unpark(item, budget)
  local used = 0
  local job = sweeps.next_parked(item[2])
  while job and used < budget do
    job[OFFER] = false
    ready_queue.add(job)
    used = used + 2
    job = sweeps.next_parked(item[2])
  end
  return used, job ~= nil
end

-- Cancel the jobs of a flow, the last first, so that what waits for others is canceled before these. A sweep: its flow,
-- the number it covers up to, the number it has come to, why.
function sweeps.cancel_flow(item, budget)
  local flow, used = item[2], 0
  local members, position = {}, 1
  while true do
    if position > #members then
      members = redis.call('ZREVRANGEBYLEX', store.flow_jobs, '(' .. flow .. '\0' .. form.sortable(item[4]), '[' .. flow .. '\0', 'LIMIT', 0, 32)
      position = 1
      if #members == 0 then return used, false end
    end
    local number, id = form.split(members[position], #flow + 2)
    local job = jobs.known(id, store.flow_jobs)
    -- A job dropped in this step still has its entry.
    if not job.pruned and not job[GONE] then
      if used >= budget then return used, true end
      used = used + 1
      local since = job[SINCE] > 0 and job[SINCE] or number
      if not OVER[job[STATE]] and not jobs.is_hidden(job) and since < item[3] then
        used = used + 1 + lifecycle.cancel(job, item[5])
      end
    end
    item[4], position = number, position + 1
  end
end
end)
