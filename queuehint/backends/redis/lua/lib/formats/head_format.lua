--[[ head_format: how a head is stored. Most jobs are plain: they use nothing special. `plain` alone decides that, at every
  write; any other head is an array (lib/jobs/fields) by cmsgpack. The two formats differ in storage and speed only: both are
  read into the same table.
  A plain head is the letter of its state, numbers, after a start its token and its worker, then a short spec, the facts, and the
  claim; each but the claim has its length before it. No spec there means one in SPECS, as a false SHORT_SPEC of an array does.
  A head is written again at each change of state, so a longer spec stands in SPECS, where it is written once.
  The facts are a text that is written once and is the same for many jobs, so that it is parsed once for all of them: the
  fields that the reply to a worker has between losses and claims: priority, pool, user, task, service, key (''),
  presence (''), policy, a line each. ]]
local NO_DEPTH = 255 -- @const
local QUEUED_FORM, STARTED_FORM, FINISHED_FORM = '>BI7I7I7Bc0I2c0', '>BI7I7I7I7I7Bc0I2c0Bc0I2c0', '>BI7I7I7I7I7Bc0Bc0Bc0I2c0' -- @const
-- Each change of state writes a head, so 128 bytes there are some 160 more of the append-only file a job, and 74 less of memory.
local SHORT_SPEC_MAX = 128 -- @const
local FACTS_FORM = '^(%d)\n([^\n]*)\n([^\n]*)\n([^\n]*)\n([^\n]*)\n\n\n([^\n]*)\n$' -- @const
local heads = {}

do
-- Defaults of the fields that are left out at the end of a head. Setting a missing field to none stores nothing.
local function put(job, at, value)
  if value then rawset(job, at, value) end
end
local UNSAID = { -- @once
  __index = {[LOSSES] = 0, [ERRORS] = 0, [LOGS] = 0, [SINCE] = 0, [UNKNOWN_TASKS] = 0, [BLOCKED] = 0},
  __newindex = put,
}

-- A field that no plain head has, or facts of its own: from here on the job is like any other.
local function put_special(job, at, value)
  if not value then return end
  if type(at) == 'number' then job.is_plain = false end
  rawset(job, at, value)
end

-- Facts that were taken apart, as in lib/jobs/fields.
local facts_known, facts_count = {}, 0 -- @once

-- The facts of a text: a metatable by which the jobs that have them answer for them, and what the record index has of them.
function heads.facts(text)
  local facts = facts_known[text]
  if not facts then
    local priority, pool, user, task, service, policy = string.match(text, FACTS_FORM)
    if not priority then corrupt('facts of a job cannot be read') end
    local terms = {'a', 't' .. task, 'p' .. pool}
    if user ~= '' then terms[#terms + 1] = 'u' .. user end
    local name = service
    if service ~= '' then
      local tags
      name, tags = form.service(service)
      if name ~= '' then terms[#terms + 1] = 'v' .. name end
      for at = 1, tags and #tags or 0 do terms[#terms + 1] = 'g' .. tags[at] end
    end
    facts = {
      __index = {
        [PRIORITY] = tonumber(priority), [POOL] = pool, [USER] = user, [TASK] = task, [SERVICE] = service, [POLICY] = policy,
        [LOSSES] = 0, [ERRORS] = 0, [LOGS] = 0, [SINCE] = 0, [UNKNOWN_TASKS] = 0, [BLOCKED] = 0, facts = text, terms = terms,
        tally_key = name ~= '' and user ~= '' and name .. '\0' .. user,
      },
      __newindex = put_special,
    }
    if #text <= TEXT_BYTES_MAX then
      if facts_count >= TEXTS_KEPT then facts_known, facts_count = {}, 0 end
      facts_known[text], facts_count = facts, facts_count + 1
    end
  end
  return facts
end

-- The facts of what is asked, as text.
function heads.facts_text(priority, pool, user, task, service, policy)
  return table.concat({priority, pool, user, task, service, '', '', policy, ''}, '\n')
end

-- A job that is granted all its gates shares this table: its walks are not written to.
local ALL_GRANTED = {GRANTED}

-- A new job: QUEUED, without a place. Its spec is to be set.
function heads.new(id, number, facts, claims)
  return setmetatable({
    QUEUED, number, 0, 1, 0, false, false, NOW, false, false, false, false, false, false, false,
    [CLAIMS] = claims, [SHORT_SPEC] = false, [ENDED] = false, [RESULT] = false, id = id, packed = false, is_plain = true, ready_member = false, is_new_offer = false,
  }, facts)
end

-- Read a head; a job knows by `packed` what it was before this step.
function heads.read(id, packed)
  local letter = string.byte(packed)
  if letter == 81 then
    local depth, number, seq, enqueued_ms, spec, facts, from = struct.unpack(QUEUED_FORM, packed, 2)
    local walks = false
    if depth == GRANTED then walks = ALL_GRANTED elseif depth ~= NO_DEPTH then walks = {depth} end
    return setmetatable({
      QUEUED, number, seq, 1, 0, false, false, enqueued_ms, enqueued_ms, false, false, false, false, walks, depth >= GRANTED and 'r',
      [CLAIMS] = string.sub(packed, from), [SHORT_SPEC] = spec ~= '' and spec, [ENDED] = false, [RESULT] = false,
      id = id, packed = packed, is_plain = true, ready_member = false, is_new_offer = false,
    }, heads.facts(facts))
  end
  if letter == 82 then
    local depth, number, seq, enqueued_ms, started_ms, until_ms, token, worker, spec, facts, from = struct.unpack(STARTED_FORM, packed, 2)
    return setmetatable({
      STARTED, number, seq, 2, 1, token, worker, enqueued_ms, enqueued_ms,
      started_ms, started_ms, LEASE, until_ms, depth == GRANTED and ALL_GRANTED, false,
      [CLAIMS] = string.sub(packed, from), [SHORT_SPEC] = spec ~= '' and spec, [ENDED] = false, [RESULT] = false,
      id = id, packed = packed, is_plain = true, ready_member = false, is_new_offer = false,
    }, heads.facts(facts))
  end
  if letter == 70 then
    local result, number, enqueued_ms, started_ms, ended_ms, prune_ms, token, worker, spec, facts, from = struct.unpack(FINISHED_FORM, packed, 2)
    return setmetatable({
      FINISHED, number, 0, 3, 1, token, worker, enqueued_ms, enqueued_ms,
      started_ms, started_ms, PRUNE, prune_ms, false, false,
      [CLAIMS] = string.sub(packed, from), [SHORT_SPEC] = spec ~= '' and spec, [ENDED] = ended_ms, [RESULT] = result > 0 and (result == 1 and 'n' or 's'),
      id = id, packed = packed, is_plain = true, ready_member = false, is_new_offer = false,
    }, heads.facts(facts))
  end
  local job = setmetatable(cmsgpack.unpack(packed), UNSAID)
  job.id, job.packed = id, packed
  return job
end

-- Whether a spec stands in its head.
function heads.is_short(spec) return #spec <= SHORT_SPEC_MAX and spec ~= '' end

-- The spec of a job as it is stored.
function heads.spec(job) return job[SHORT_SPEC] or redis.call('HGET', store.specs, job.id) or '' end

-- The plain head of a job that is QUEUED; *spec* is a short one or ''.
function heads.queued(depth, number, seq, enqueued_ms, spec, facts_text, claims)
  return 'Q' .. struct.pack(QUEUED_FORM, depth, number, seq, enqueued_ms, #spec, spec, #facts_text, facts_text) .. claims
end

-- The plain head of a job, nil if it is not plain: it waits for its first start, runs for the first time or has finished at
-- once; it has one claim at most, and no field that is not named here. That it has no other field, and no facts of its own,
-- `put_special` has seen to.
function heads.plain(job)
  local state, walks = job[STATE], job[WALKS]
  if not job.is_plain or job[QUEUED_AT] ~= job[ENQUEUED] or job[STARTED_AT] ~= job[FIRST] or (walks and walks[2]) then return nil end
  local facts, claims, token, spec = job.facts, job[CLAIMS], job[TOKEN], job[SHORT_SPEC] or ''
  if #facts > 65535 or (token and #token > 255) then return nil end
  if state == QUEUED then
    local depth = walks and walks[1] or NO_DEPTH
    if job[VERSION] ~= 1 or job[ATTEMPTS] ~= 0 or job[FIRST] or token or job[WORKER] or job[TIMER] or job[SEQ] == 0
      or job[OFFER] ~= (depth >= GRANTED and 'r') or depth > NO_DEPTH or job[ENDED] or job[RESULT] then
      return nil
    end
    return heads.queued(depth, job[NUMBER], job[SEQ], job[ENQUEUED], spec, facts, claims)
  end
  if job[ATTEMPTS] ~= 1 or job[OFFER] or not token then return nil end
  if state == STARTED then
    local worker = job[WORKER]
    if job[VERSION] ~= 2 or job[TIMER] ~= LEASE or #worker > 65535 or job[ENDED] or job[RESULT] then return nil end
    return 'R' .. struct.pack(STARTED_FORM, walks and walks[1] or NO_DEPTH, job[NUMBER], job[SEQ],
      job[ENQUEUED], job[STARTED_AT], job[TIMER_MS], #token, token, #worker, worker, #spec, spec, #facts, facts) .. claims
  end
  local result, worker = job[RESULT], job[WORKER]
  if state ~= FINISHED or job[VERSION] ~= 3 or job[TIMER] ~= PRUNE or walks or not worker or #worker > 255 then return nil end
  return 'F' .. struct.pack(FINISHED_FORM, result and (result == 'n' and 1 or 2) or 0, job[NUMBER],
    job[ENQUEUED], job[STARTED_AT], job[ENDED], job[TIMER_MS], #token, token, #worker, worker, #spec, spec, #facts, facts) .. claims
end

-- The plain head of a job that became a full one and may be plain again, because it has no waiters any more.
local function plain_again(job)
  if job[VERSION] > 3 or string.find(job[CLAIMS], '\n', 1, true) then return nil end
  local copy = heads.new(job.id, job[NUMBER], heads.facts(heads.facts_text(job[PRIORITY], job[POOL], job[USER], job[TASK], job[SERVICE], job[POLICY])), job[CLAIMS])
  for at = 1, OFFER do copy[at] = job[at] end
  copy[SHORT_SPEC], copy[ENDED], copy[RESULT] = job[SHORT_SPEC] or false, job[ENDED] or false, job[RESULT] or false
  return heads.plain(copy)
end

-- The head of a job as an array, without what it does not say at its end; plain if that is all there is to say.
function heads.pack(job)
  local last = math.max(table.maxn(job), SHORT_SPEC)
  -- From LOSSES on a number is a count; before, it is a time.
  while last > SHORT_SPEC and (not job[last] or (job[last] == 0 and last >= LOSSES)) do last = last - 1 end
  local plain = last <= RESULT and plain_again(job)
  if plain then return plain end
  -- Up to SHORT_SPEC all are said: a constructor makes room for them at once.
  local fields = {
    job[1] or false, job[2] or false, job[3] or false, job[4] or false, job[5] or false, job[6] or false, job[7] or false, job[8] or false,
    job[9] or false, job[10] or false, job[11] or false, job[12] or false, job[13] or false, job[14] or false, job[15] or false,
    job[16] or false, job[17] or false, job[18] or false, job[19] or false, job[20] or false, job[21] or false, job[22] or false,
    job[23] or false,
  }
  for at = SHORT_SPEC + 1, last do fields[at] = job[at] or false end
  return cmsgpack.pack(fields)
end
end
