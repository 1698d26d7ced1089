--[[ head_format: how a head is stored. Most jobs are plain: they use nothing special. `plain` alone decides that, at every
  write; any other head is an array (lib/jobs/fields) by cmsgpack. The two formats differ in storage and speed only: both are
  read into the same table.
  A plain head is the letter of its state, numbers, after a start its token and its worker, then a short spec, the name of its
  facts, and the claim; each but the claim has its length before it. No spec there means one in SPECS, as a false SHORT_SPEC of an
  array does. A head is written again at each change of state, so a longer spec stands in SPECS, where it is written once.
  The facts are a text that is the same for many jobs, so that it is parsed once for all of them: the fields that the reply to a
  worker has between losses and claims: priority, pool, user, task, service, key (''), presence (''), policy, a line each.
  Of these, what the code of an application says (priority, pool, task, service, policy) is the common part; the user and the
  tags are the job's own. FACTS holds common parts, each once, by an id that is the beginning of its SHA-1; a name is an id and
  what is the job's own, and the id is a term of the record index, which takes the entry of FACTS away with its last record.
  So only a head of a listed record may have a name. FACTS has FACTS_MAX entries at most: a question looks through them. Any other
  facts stand in the head itself: behind an empty name in a plain one, in their fields in an array, where a name stands at TASK and
  PRIORITY is false. ]]
local NO_DEPTH = 255 -- @const
local QUEUED_FORM, STARTED_FORM, FINISHED_FORM = '>BI6I6I6Bc0Bc0', '>BI6I6I6I7I7Bc0I2c0Bc0Bc0', '>BI6I6I7I7I7Bc0Bc0Bc0Bc0' -- @const
-- The greatest number and place of a plain job, and time of its enqueue.
local PLAIN_MAX = 281474976710655 -- @const
local FACTS_MAX, FACTS_ID_SIZE, NAME_MAX, TEXT_FORM = 256, 6, 255, '>I2c0' -- @const
-- Each change of state writes a head, so 128 bytes there are some 160 more of the append-only file a job, and 74 less of memory.
local SHORT_SPEC_MAX = 128 -- @const
local FACTS_FORM = '^(%d)\n([^\n]*)\n([^\n]*)\n([^\n]*)\n([^\n]*)\n\n\n([^\n]*)\n$' -- @const
local COMMON_FACTS_FORM = '^(%d)\n([^\n]*)\n([^\n]*)\n([^\n]*)\n([^\n]*)$' -- @const
local heads = {}

do
-- Defaults of the fields that are left out at the end of a head. Setting a missing field to none stores nothing.
local function put(job, at, value)
  if value then rawset(job, at, value) end
end
local UNSAID = { -- @once
  __index = {[LOSSES] = 0, [ERRORS] = 0, [LOGS] = 0, [SINCE] = 0, [UNKNOWN_TASKS] = 0, [BLOCKED] = 0, [STEPS] = 0, [STEP_BYTES] = 0},
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
-- Facts by their names, and entries of FACTS by their ids, of the namespace of the call before.
local named_known, named_count = {}, 0 -- @once
local common_parts, common_parts_count = {}, 0 -- @once
local named_in = '' -- @once
if named_in ~= store.facts then named_in, named_known, named_count, common_parts, common_parts_count = store.facts, {}, 0, {}, 0 end
-- The names of facts in the heads that this call writes, by their texts, false for none; and by common parts, whether one is named.
local names_in_step = {}

-- The facts of a text: a metatable by which the jobs that have them answer for them, and what the record index has of them.
function heads.facts(text)
  local facts = facts_known[text]
  if not facts then
    local priority, pool, user, task, service, policy = string.match(text, FACTS_FORM)
    if not priority then corrupt('facts of a job cannot be read') end
    local terms, own_terms, name, tags = {'t' .. task, 'p' .. pool}, {}, service, nil
    if user ~= '' then own_terms[1] = 'u' .. user end
    if service ~= '' then
      name, tags = form.service(service)
      if name ~= '' then terms[3] = 'v' .. name end
      for at = 1, tags and #tags or 0 do own_terms[#own_terms + 1] = 'g' .. tags[at] end
    end
    for at = 1, #own_terms do terms[#terms + 1] = own_terms[at] end
    facts = {
      __index = {
        [PRIORITY] = tonumber(priority), [POOL] = pool, [USER] = user, [TASK] = task, [SERVICE] = service, [POLICY] = policy,
        [LOSSES] = 0, [ERRORS] = 0, [LOGS] = 0, [SINCE] = 0, [UNKNOWN_TASKS] = 0, [BLOCKED] = 0, [STEPS] = 0, [STEP_BYTES] = 0, facts = text, terms = terms,
        common = table.concat({priority, pool, task, name, policy}, '\n'), own = user .. string.sub(service, #name + 1),
        own_terms = own_terms, tally_key = name ~= '' and user ~= '' and name .. '\0' .. user,
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

-- The id of a common part. A term holds no NUL.
function heads.id_of_common(text)
  return (string.gsub(struct.pack('>I6', tonumber(string.sub(redis.sha1hex(text), 1, 2 * FACTS_ID_SIZE), 16)), '%z', '\1'))
end

-- Give facts their name, false if they are too long, and the terms of a record whose head has it; return these.
function heads.give_name(facts)
  local id = heads.id_of_common(facts.common)
  local name, terms, own_terms = id .. facts.own, {'f' .. id}, facts.own_terms
  for at = 1, #own_terms do terms[at + 1] = own_terms[at] end
  facts.id, facts.named_as, facts.named_terms = id, #name <= NAME_MAX and #facts.facts <= TEXT_BYTES_MAX and name, terms
  return terms
end

-- The terms of a plain record, but for its state: by the name of its facts where its head has one. The server may have forgotten
-- these facts since the job was read, and have named others of the same text: each has its own terms then.
function heads.terms(job)
  if not job.name then return job.terms end
  return job.named_terms or heads.give_name(getmetatable(job).__index)
end

local function remember_common(id, text)
  if common_parts_count >= TEXTS_KEPT then common_parts, common_parts_count = {}, 0 end
  common_parts[id], common_parts_count = text, common_parts_count + 1
end

-- The facts of a name.
function heads.named(name)
  local facts = named_known[name]
  if not facts then
    local id = string.sub(name, 1, FACTS_ID_SIZE)
    local common, user, tags = common_parts[id], string.match(name, '^([^\t]*)(.*)$', FACTS_ID_SIZE + 1)
    if not common then
      common = redis.call('HGET', store.facts, id)
      if not common or heads.id_of_common(common) ~= id then corrupt('facts of a job are gone from ' .. store.facts) end
      remember_common(id, common)
    end
    local priority, pool, task, service, policy = string.match(common, COMMON_FACTS_FORM)
    if not priority then corrupt('facts of a job cannot be read') end
    facts = heads.facts(heads.facts_text(priority, pool, user, task, service .. tags, policy))
    if not facts.__index.id then heads.give_name(facts.__index) end
    if named_count >= TEXTS_KEPT then named_known, named_count = {}, 0 end
    named_known[name], named_count = facts, named_count + 1
  end
  return facts
end

-- The name of facts in the head of a listed record, false where they stand in the head; and whether their common part is to be put
-- into FACTS with it. *is_there*: a record of their term is there already.
function heads.name(facts, is_there)
  if not facts.id then heads.give_name(facts) end
  local id, common = facts.id, facts.common
  if not facts.named_as or (is_there and common_parts[id] == common) then return facts.named_as, false end
  local stored = redis.call('HGET', store.facts, id)
  if not stored then return redis.call('HLEN', store.facts) < FACTS_MAX and facts.named_as, true end
  -- Two texts may have one id.
  if stored ~= common then return false, false end
  remember_common(id, common)
  return facts.named_as, false
end

-- The same by a text, where many heads are written: what is to be put into FACTS is put there.
function heads.name_in_step(text)
  local name, is_new = names_in_step[text], false
  if name == nil then
    local facts = heads.facts(text).__index
    name, is_new = heads.name(facts, names_in_step[facts.common])
    if name and is_new then redis.call('HSET', store.facts, facts.id, facts.common) end
    if name then names_in_step[facts.common] = true end
    names_in_step[text] = name
  end
  return name
end

-- The facts of a job, as text; once they are others, by its fields.
function heads.text_of(job)
  return job.facts or heads.facts_text(job[PRIORITY], job[POOL], job[USER], job[TASK], job[SERVICE], job[POLICY])
end

function heads.see_other_facts(job) rawset(job, 'facts', false) end

-- A job that is granted all its gates shares this table: its walks are not written to.
local ALL_GRANTED = {GRANTED}

-- A new job: QUEUED, without a place. Its spec is to be set.
function heads.new(id, number, facts, claims)
  return setmetatable({
    QUEUED, number, 0, 1, 0, false, false, NOW, false, false, false, false, false, false, false,
    [CLAIMS] = claims, [SHORT_SPEC] = false, [ENDED] = false, [RESULT] = false, id = id, packed = false, name = false,
    is_plain = number <= PLAIN_MAX and NOW <= PLAIN_MAX, ready_member = false, is_new_offer = false,
  }, facts)
end

-- The facts of a plain head whose name is not known, and where the claim begins.
local function facts_behind(name, packed, from)
  if name ~= '' then return heads.named(name), from end
  local text, claims_from = struct.unpack(TEXT_FORM, packed, from)
  return heads.facts(text), claims_from
end

-- Read a head; a job knows by `packed` what it was before this step, and by `name` whether its head has its facts by a name.
function heads.read(id, packed)
  local letter = string.byte(packed)
  if letter == 81 then
    local depth, number, seq, enqueued_ms, spec, name, behind = struct.unpack(QUEUED_FORM, packed, 2)
    local facts, from = named_known[name], behind
    if not facts then facts, from = facts_behind(name, packed, behind) end
    local walks = false
    if depth == GRANTED then walks = ALL_GRANTED elseif depth ~= NO_DEPTH then walks = {depth} end
    return setmetatable({
      QUEUED, number, seq, 1, 0, false, false, enqueued_ms, enqueued_ms, false, false, false, false, walks, depth >= GRANTED and 'r',
      [CLAIMS] = string.sub(packed, from), [SHORT_SPEC] = spec ~= '' and spec, [ENDED] = false, [RESULT] = false,
      id = id, packed = packed, name = name ~= '' and name, is_plain = true, ready_member = false, is_new_offer = false,
    }, facts)
  end
  if letter == 82 then
    local depth, number, seq, enqueued_ms, started_ms, until_ms, token, worker, spec, name, behind = struct.unpack(STARTED_FORM, packed, 2)
    local facts, from = named_known[name], behind
    if not facts then facts, from = facts_behind(name, packed, behind) end
    return setmetatable({
      STARTED, number, seq, 2, 1, token, worker, enqueued_ms, enqueued_ms,
      started_ms, started_ms, LEASE, until_ms, depth == GRANTED and ALL_GRANTED, false,
      [CLAIMS] = string.sub(packed, from), [SHORT_SPEC] = spec ~= '' and spec, [ENDED] = false, [RESULT] = false,
      id = id, packed = packed, name = name ~= '' and name, is_plain = true, ready_member = false, is_new_offer = false,
    }, facts)
  end
  if letter == 70 then
    local result, number, enqueued_ms, started_ms, ended_ms, prune_ms, token, worker, spec, name, behind = struct.unpack(FINISHED_FORM, packed, 2)
    local facts, from = named_known[name], behind
    if not facts then facts, from = facts_behind(name, packed, behind) end
    return setmetatable({
      FINISHED, number, 0, 3, 1, token, worker, enqueued_ms, enqueued_ms,
      started_ms, started_ms, PRUNE, prune_ms, false, false,
      [CLAIMS] = string.sub(packed, from), [SHORT_SPEC] = spec ~= '' and spec, [ENDED] = ended_ms, [RESULT] = result > 0 and (result == 1 and 'n' or 's'),
      id = id, packed = packed, name = name ~= '' and name, is_plain = true, ready_member = false, is_new_offer = false,
    }, facts)
  end
  local job = setmetatable(cmsgpack.unpack(packed), UNSAID)
  job.id, job.packed, job.name = id, packed, false
  if job[PRIORITY] == false then
    local facts = heads.named(job[TASK]).__index
    job.name, job.facts = job[TASK], facts.facts
    job[16], job[17], job[18], job[19], job[20], job[21] = facts[16], facts[17], facts[18], facts[19], facts[20], facts[21]
  end
  return job
end

-- Whether a spec stands in its head.
function heads.is_short(spec) return #spec <= SHORT_SPEC_MAX and spec ~= '' end

-- The spec of a job as it is stored.
function heads.spec(job) return job[SHORT_SPEC] or redis.call('HGET', store.specs, job.id) or '' end

-- What a plain head without a name of its facts ends with: these, and its claim.
local function ending(facts_text, claims) return struct.pack(TEXT_FORM, #facts_text, facts_text) .. claims end

-- The plain head of a job that is QUEUED; *spec* is a short one or '', *name* that of its facts or false.
function heads.queued(depth, number, seq, enqueued_ms, spec, name, facts_text, claims)
  local named_as = name or ''
  return 'Q' .. struct.pack(QUEUED_FORM, depth, number, seq, enqueued_ms, #spec, spec, #named_as, named_as) .. (name and claims or ending(facts_text, claims))
end

-- The plain head of a job, nil if it is not plain: it waits for its first start, runs for the first time or has finished at
-- once; it has one claim at most, and no field that is not named here. That it has no other field, and no facts of its own,
-- `put_special` has seen to.
function heads.plain(job)
  local state, walks = job[STATE], job[WALKS]
  if not job.is_plain or job[QUEUED_AT] ~= job[ENQUEUED] or job[STARTED_AT] ~= job[FIRST] or (walks and walks[2]) then return nil end
  local facts, name, claims, token, spec = job.facts, job.name, job[CLAIMS], job[TOKEN], job[SHORT_SPEC] or ''
  local named_as = name or ''
  if #facts > 65535 or (token and #token > 255) then return nil end
  if state == QUEUED then
    local depth = walks and walks[1] or NO_DEPTH
    if job[VERSION] ~= 1 or job[ATTEMPTS] ~= 0 or job[FIRST] or token or job[WORKER] or job[TIMER] or job[SEQ] == 0
      or job[OFFER] ~= (depth >= GRANTED and 'r') or depth > NO_DEPTH or job[ENDED] or job[RESULT] then
      return nil
    end
    return heads.queued(depth, job[NUMBER], job[SEQ], job[ENQUEUED], spec, name, facts, claims)
  end
  if job[ATTEMPTS] ~= 1 or job[OFFER] or not token then return nil end
  if state == STARTED then
    local worker = job[WORKER]
    if job[VERSION] ~= 2 or job[TIMER] ~= LEASE or #worker > 65535 or job[ENDED] or job[RESULT] then return nil end
    return 'R' .. struct.pack(STARTED_FORM, walks and walks[1] or NO_DEPTH, job[NUMBER], job[SEQ],
      job[ENQUEUED], job[STARTED_AT], job[TIMER_MS], #token, token, #worker, worker, #spec, spec, #named_as, named_as)
      .. (name and claims or ending(facts, claims))
  end
  local result, worker = job[RESULT], job[WORKER]
  if state ~= FINISHED or job[VERSION] ~= 3 or job[TIMER] ~= PRUNE or walks or not worker or #worker > 255 then return nil end
  return 'F' .. struct.pack(FINISHED_FORM, result and (result == 'n' and 1 or 2) or 0, job[NUMBER],
    job[ENQUEUED], job[STARTED_AT], job[ENDED], job[TIMER_MS], #token, token, #worker, worker, #spec, spec, #named_as, named_as)
    .. (name and claims or ending(facts, claims))
end

-- The plain head of a job that became a full one and may be plain again, because it has no waiters any more.
local function plain_again(job)
  if job[VERSION] > 3 or job[SEQ] > PLAIN_MAX or string.find(job[CLAIMS], '\n', 1, true) then return nil end
  local copy = heads.new(job.id, job[NUMBER], heads.facts(heads.text_of(job)), job[CLAIMS])
  copy.name = job.name
  for at = 1, OFFER do copy[at] = job[at] end
  copy[SHORT_SPEC], copy[ENDED], copy[RESULT] = job[SHORT_SPEC] or false, job[ENDED] or false, job[RESULT] or false
  return heads.plain(copy)
end

-- The head of a job as an array, without what it does not say at its end; plain if that is all there is to say.
function heads.pack(job)
  local last = math.max(table.maxn(job), SHORT_SPEC)
  -- From STEPS on a number is a count; before, it is a time.
  while last > SHORT_SPEC and (not job[last] or (job[last] == 0 and last >= STEPS)) do last = last - 1 end
  local plain = last <= RESULT and plain_again(job)
  if plain then return plain end
  -- Up to SHORT_SPEC all are said: a constructor makes room for them at once.
  local name, fields = job.name, nil
  if name then
    fields = {
      job[1] or false, job[2] or false, job[3] or false, job[4] or false, job[5] or false, job[6] or false, job[7] or false, job[8] or false,
      job[9] or false, job[10] or false, job[11] or false, job[12] or false, job[13] or false, job[14] or false, job[15] or false,
      false, false, false, name, false, false, job[22] or false, job[23] or false,
    }
  else
    fields = {
      job[1] or false, job[2] or false, job[3] or false, job[4] or false, job[5] or false, job[6] or false, job[7] or false, job[8] or false,
      job[9] or false, job[10] or false, job[11] or false, job[12] or false, job[13] or false, job[14] or false, job[15] or false,
      job[16] or false, job[17] or false, job[18] or false, job[19] or false, job[20] or false, job[21] or false, job[22] or false,
      job[23] or false,
    }
  end
  for at = SHORT_SPEC + 1, last do fields[at] = job[at] or false end
  return cmsgpack.pack(fields)
end
end
