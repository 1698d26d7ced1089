#!lua
--[[ enqueue: take in a submission, all or nothing.
  KEYS[1] root      str  namespace root with its hash tag, "{qh:default}"; lib/keys builds every other key from it
  KEYS[2] meta      str  the only key that always exists: see conversation.py
  ARGV[1] now_ms    int  the time, for tests only; "" asks the server
  ARGV[2] lane      str  the session the request belongs to, "" for none; ARGV[3] request int, its number there
  ARGV[4..7]        int  how long records are kept: finished, failed, canceled, with a service; ms
  ARGV[8] budget    int  units of following work
  ARGV[9..]         two for each job: a head (id, priority, pool, user, key, on_conflict, delay_ms, run_at_ms, presence_ms,
                    policy, and claims, one a line, "" for none) and a spec (opaque)
  Returns more, now, next, the first new number, and a line for each job: its state if it is new, with the next number;
  else id, number, state, created, presence token.
  Refuses DUPLICATE_JOB at, KEY_TAKEN at owner, PATH_CLOSED at claim depth; nothing is changed.
  Mirrors core.engine and core.admission   Cost O(depth) a claim, and what follows ]]
-- @include lib/rules
local ID, SPEC, P_PRIORITY, P_POOL, P_USER, P_KEY, CONFLICT, DELAY, RUN_AT, P_PRESENCE, P_POLICY, P_CLAIMS = 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12 -- @const
local HEAD = '^([^\n]*)\n([^\n]*)\n([^\n]*)\n([^\n]*)\n([^\n]*)\n([^\n]*)\n([^\n]*)\n([^\n]*)\n([^\n]*)\n([^\n]*)\n(.*)$'

local asked = {}
for at = 9, #ARGV, 2 do
  local id, priority, pool, user, key, conflict, delay_ms, run_at_ms, presence_ms, policy, claims = string.match(ARGV[at], HEAD)
  asked[#asked + 1] = {id, ARGV[at + 1], tonumber(priority), pool, user, key ~= '' and key, conflict, tonumber(delay_ms),
    tonumber(run_at_ms), tonumber(presence_ms) or false, policy, claims}
end

-- All that was asked of a job, its id left out, as one text.
local function text_of(ask)
  return table.concat({ask[P_PRIORITY], ask[P_POOL], ask[P_USER], ask[P_KEY] or '', ask[P_PRESENCE] or '', ask[P_POLICY],
    ask[P_CLAIMS], ask[SPEC]}, '\0')
end

local function asked_of(job)
  return table.concat({job[PRIORITY], job[POOL], job[USER], job[KEY] or '', job[PRESENCE] or '', job[POLICY],
    job[CLAIMS], plan.specs[job.id] or redis.call('HGET', store.specs, job.id) or ''}, '\0')
end

local keyed = {}

-- The newest unfinished job of a key, false if there is none.
local function newest(key)
  local found = false
  for _, job in ipairs(keyed[key] or {}) do
    if not OVER[job[STATE]] and (not found or job[NUMBER] > found[NUMBER]) then found = job end
  end
  local offset = 0
  while true do
    local member = redis.call('ZREVRANGEBYLEX', store.keyed, '(' .. key .. '\1', '[' .. key .. '\0', 'LIMIT', offset, 1)[1]
    if not member then return found end
    local _, id = form.split(member, #key + 2)
    local job = jobs.known(id, store.keyed)
    if not OVER[job[STATE]] then
      return found and found[NUMBER] > job[NUMBER] and found or job
    end
    offset = offset + 1
  end
end

-- Why the submission cannot be enqueued whole; nil if it can.
local function refusal()
  local new_keys = {}
  for index, ask in ipairs(asked) do
    local existing, key = jobs.of(ask[ID]), ask[P_KEY]
    if existing then
      if asked_of(existing) ~= text_of(ask) and redis.call('HGET', store.asked, existing.id) ~= text_of(ask) then
        return 'DUPLICATE_JOB ' .. index - 1
      end
    else
      if S[CLOSED_PATHS] > 0 then
        for claim_at, claim in ipairs(form.claims(ask[P_CLAIMS])) do
          for depth, gate_key in ipairs(claim.keys) do
            if redis.call('SISMEMBER', store.closed, gate_key) == 1 then
              return 'PATH_CLOSED ' .. index - 1 .. ' ' .. claim_at - 1 .. ' ' .. depth - 1
            end
          end
        end
      end
      if key then
        if ask[CONFLICT] == 'reject' then
          local owner = newest(key)
          local owner_id = owner and owner.id or new_keys[key]
          if owner_id then return 'KEY_TAKEN ' .. index - 1 .. ' ' .. owner_id end
        end
        new_keys[key] = new_keys[key] or ask[ID]
      end
    end
  end
end

-- Take in a new job: SCHEDULED if it is due later, DEFERRED if it waits for *after*, else QUEUED.
local function admit(ask, after)
  S[NUMBERS] = S[NUMBERS] + 1
  local id, key, policy = ask[ID], ask[P_KEY], ask[P_POLICY]
  local job = {
    QUEUED, S[NUMBERS], 0, 1, 0, false, false, NOW, false, false,
    false, false, false, false, false, ask[P_PRIORITY], ask[P_POOL], ask[P_USER], policy, ask[P_CLAIMS],
  }
  setmetatable(job, UNSAID)
  if key then job[KEY] = key end
  if ask[P_PRESENCE] then job[PRESENCE] = ask[P_PRESENCE] end
  job.id = id
  -- An id may be taken again in the very step in which it is pruned.
  if jobs.dirty[id] then job.was, job.reborn = jobs.dirty[id].was, true end
  jobs.all[id], jobs.dirty[id] = job, job
  plan.specs[id] = ask[SPEC]
  if key then
    keyed[key] = keyed[key] or {}
    table.insert(keyed[key], job)
  end
  if after then edges.add(job, after) end
  if ask[DELAY] or ask[RUN_AT] or policy ~= '' then ledger.set_time(job, ask[DELAY], ask[RUN_AT]) end
  if job[DUE_AT] then
    job[STATE] = SCHEDULED
    timers.set(job, DUE, job[DUE_AT])
  elseif after then
    job[STATE] = DEFERRED
  else
    ledger.take_place(job)
  end
  S[ENQUEUED_IN_ALL] = S[ENQUEUED_IN_ALL] + 1
  return job
end

-- Give a fresh job of a key its new content; with equal claims and no new time it keeps its place.
local function respec(job, ask)
  ledger.withdraw(job)
  timers.drop(job)
  if not plan.asked[job.id] and redis.call('HEXISTS', store.asked, job.id) == 0 then plan.asked[job.id] = asked_of(job) end
  if job[CLAIMS] ~= ask[P_CLAIMS] then
    gates.vacate(job)
    job[CLAIMS] = ask[P_CLAIMS]
  end
  job[PRIORITY], job[POOL], job[USER], job[POLICY] = ask[P_PRIORITY], ask[P_POOL], ask[P_USER], ask[P_POLICY]
  plan.specs[job.id] = ask[SPEC]
  ledger.set_time(job, ask[DELAY], ask[RUN_AT])
  job[VERSION] = job[VERSION] + 1
  if job[DUE_AT] then
    gates.vacate(job)
    ledger.become(job, SCHEDULED)
    timers.set(job, DUE, job[DUE_AT])
  elseif job[BLOCKED] > 0 then
    ledger.become(job, DEFERRED)
  elseif job[SEQ] == 0 then
    ledger.queue(job)
  elseif gates.has_all(job) then
    ready.offer(job)
  end
end

local refused = refusal()
if refused then return redis.error_reply(refused) end
work.follow()

local lines_out, first = {}, S[NUMBERS] + 1
for _, ask in ipairs(asked) do
  local existing, after, key = jobs.of(ask[ID]), nil, ask[P_KEY]
  if not existing and key then
    local found = newest(key)
    if found then
      if jobs.is_fresh(found) then
        existing = found
        if ask[CONFLICT] == 'replace' then respec(found, ask) end
      elseif ask[CONFLICT] == 'after' then
        after = found
      end
    end
  end
  local job, token = existing, ''
  if existing then
    token = existing[PRESENCE] and existing[TOKEN] or ''
  else
    job = admit(ask, after)
    if job[PRESENCE] then
      job[TOKEN] = epoch.next_token()
      token = job[TOKEN]
      timers.set(job, LEASE, NOW + job[PRESENCE])
    end
  end
  if existing or token ~= '' then
    lines_out[#lines_out + 1] = string.format('%s %.0f %s %d %s', job.id, job[NUMBER], job[STATE], existing and 0 or 1, token)
  else
    lines_out[#lines_out + 1] = job[STATE]
  end
end
return request.reply('enqueue', {first, table.concat(lines_out, '\n')})
