--[[ record_index: bitmap index of records by filter term; core.structures.record_index describes its purpose.
  Numbers are cut into blocks of 1 024. A term is a letter and a value: s a state, u a user, g a tag, m the parent; f the id of
  facts (lib/formats/head_format) where the head names them, else v a service, t a task, p a pool. INDEX holds, for each term and
  block in which some record has it, the bits of these (lib/formats/record_bits). BLOCKS names these entries: term, NUL,
  sortable block, in lexical order. From a block to the times in it leads another field of INDEX. From a number to the id lead
  others (lib/formats/record_ids), for each job that is not gone: by numbers the sets of lib/structures/paths name hidden jobs
  too. TALLIES counts the records of a service, NUL, user; TALLIED names them in lexical order. ]]
local FACTS_LETTER = 102 -- @const
local STATES = {'S', 'D', 'Q', 'R', 'F', 'X', 'C'}
local record_index = {}

lazily(record_index, function()
local changed, times, shrunk, numbered, tallied = {}, {}, {}, {}, {}

-- Return whether listings include a record: one of a submission in parts only once it is released or has ended.
function record_index.lists(job)
  return job and not job[GONE] and not (job[STAGED] and job[STATE] == DEFERRED) and not jobs.is_start(job.id)
end

-- Return whether the number of a job leads to its id.
function record_index.has_id(job) return job and not job[GONE] or false end

-- The name in INDEX of a term of a block.
function record_index.field(term, block) return term .. '\0' .. string.format('%d', block) end

-- Return the terms of a record: what follows from its facts, its state and its parent.
function record_index.terms(job)
  local facts, terms = heads.facts(heads.text_of(job)).__index, {}
  if job.name then
    terms = {'f' .. string.sub(job.name, 1, FACTS_ID_SIZE), unpack(facts.own_terms)}
  else
    terms = {unpack(facts.terms)}
  end
  terms[#terms + 1] = 's' .. job[STATE]
  if job[MADE_BY] then terms[#terms + 1] = 'm' .. job[MADE_BY] end
  return terms
end

-- The service and the user a record counts for, false if it has not both.
function record_index.tally_key(job)
  local service = job and job[USER] ~= '' and form.service(job[SERVICE]) or ''
  return service ~= '' and service .. '\0' .. job[USER]
end

-- The terms that change in the block of a number.
local function terms_of(block)
  local terms = changed[block]
  if not terms then
    terms = {}
    changed[block] = terms
  end
  return terms
end

local function set_bit(terms, term, place, is_there)
  local bits = terms[term]
  if bits then bits[place] = is_there else terms[term] = {[place] = is_there} end
end

-- Add a term to a record, or remove it.
function record_index.change(term, number, is_there)
  local place = number % PER_BLOCK
  set_bit(terms_of((number - place) / PER_BLOCK), term, place, is_there)
end

local function change_all(job, is_there)
  local place = job[NUMBER] % PER_BLOCK
  local block, all = (job[NUMBER] - place) / PER_BLOCK, record_index.terms(job)
  local terms = terms_of(block)
  if not is_there then shrunk[block] = true end
  for at = 1, #all do set_bit(terms, all[at], place, is_there) end
end

-- Note a time of enqueue in its block.
local function see_time(job)
  local number, at_ms = job[NUMBER], job[ENQUEUED]
  local block = (number - number % PER_BLOCK) / PER_BLOCK
  local seen = times[block]
  if not seen then
    times[block] = {at_ms, at_ms}
  else
    seen[1], seen[2] = math.min(seen[1], at_ms), math.max(seen[2], at_ms)
  end
end

local function count(key, by)
  if key then tallied[key] = (tallied[key] or 0) + by end
end

-- Change only the state term of a record.
function record_index.move(was_state, state, number)
  local place = number % PER_BLOCK
  local terms = terms_of((number - place) / PER_BLOCK)
  set_bit(terms, 's' .. was_state, place, false)
  set_bit(terms, 's' .. state, place, true)
end

-- Note the id of a number; false if it has none any more.
local function put_id(number, id)
  local place = number % IDS_PER_FIELD
  local field = (number - place) / IDS_PER_FIELD
  local ids = numbered[field]
  if ids then ids[place] = id else numbered[field] = {[place] = id} end
end
record_index.put_id = put_id

-- The id of the record of a number; nil if there is none.
function record_index.id_of(number)
  local place = number % IDS_PER_FIELD
  return record_ids.at(redis.call('HGET', store.index, record_ids.name((number - place) / IDS_PER_FIELD)), place)
end

local function change_plain(job, is_there)
  local number, all = job[NUMBER], heads.terms(job)
  local place = number % PER_BLOCK
  local block = (number - place) / PER_BLOCK
  local terms = terms_of(block)
  if not is_there then shrunk[block] = true end
  for at = 1, #all do
    local term = all[at]
    local bits = terms[term]
    if bits then bits[place] = is_there else terms[term] = {[place] = is_there} end
  end
  set_bit(terms, 's' .. job[STATE], place, is_there)
end

-- Index a new plain record by all its terms.
function record_index.enter(id, job)
  change_plain(job, true)
  see_time(job)
  put_id(job[NUMBER], id)
  if job.tally_key then count(job.tally_key, 1) end
end

-- Take a plain record out of the index; it is as it was before this step.
function record_index.leave(job)
  change_plain(job, false)
  put_id(job[NUMBER], false)
  if job.tally_key then count(job.tally_key, -1) end
end

-- Index a record by all its terms.
function record_index.list(job)
  change_all(job, true)
  see_time(job)
end

-- Update the index for a head as it was before this step and as it is now, which names its facts, if it is that of a listed
-- record: as it did as long as they stay.
function record_index.write(id, was, job)
  local there, was_there = record_index.lists(job), record_index.lists(was)
  if there and was_there then
    local text = heads.text_of(job)
    local has_same_facts = heads.text_of(was) == text
    if has_same_facts then job.name = was.name else job.name = heads.name_in_step(text) end
    if was[STATE] ~= job[STATE] then
      record_index.change('s' .. was[STATE], job[NUMBER], false)
      record_index.change('s' .. job[STATE], job[NUMBER], true)
    end
    if has_same_facts and (was[MADE_BY] or false) == (job[MADE_BY] or false) then return end
    -- A term that stays is taken away and given again, which changes no bit.
    for _, term in ipairs(record_index.terms(was)) do record_index.change(term, job[NUMBER], false) end
    for _, term in ipairs(record_index.terms(job)) do record_index.change(term, job[NUMBER], true) end
  else
    if there then
      job.name = heads.name_in_step(heads.text_of(job))
      record_index.list(job)
    elseif was_there then
      if job then job.name = false end
      change_all(was, false)
    end
    local has_id = record_index.has_id(job)
    if has_id ~= record_index.has_id(was) then put_id((job or was)[NUMBER], has_id and id) end
  end
  count(was_there and record_index.tally_key(was), -1)
  count(there and record_index.tally_key(job), 1)
end

local MANY = 2000 -- @const

-- Do one thing with any number of arguments: Lua's stack takes a few thousand.
local function in_parts(write, args)
  local count = #args
  if count == 0 then return end
  if count <= MANY then return write(unpack(args)) end
  for from = 1, count, MANY do write(unpack(args, from, math.min(from + MANY - 1, count))) end
end

local function set_index(...) redis.call('HSET', store.index, ...) end
local function drop_index(...) redis.call('HDEL', store.index, ...) end
local function add_blocks(...) redis.call('ZADD', store.blocks, ...) end
local function drop_blocks(...) redis.call('ZREM', store.blocks, ...) end

-- Whether some record of a block is in a state.
function record_index.has_records(block)
  local fields = {}
  for at, letter in ipairs(STATES) do fields[at] = record_index.field('s' .. letter, block) end
  for _, packed in ipairs(redis.call('HMGET', store.index, unpack(fields))) do
    if packed then return true end
  end
  return false
end

-- Take the times of a block away where no record is left.
local function drop_times(block)
  if not record_index.has_records(block) then redis.call('HDEL', store.index, record_index.field(TIMES, block)) end
end

-- Take facts away that no record names any more, by their term.
local function drop_facts(term)
  if redis.call('ZLEXCOUNT', store.blocks, '[' .. term .. '\0', '(' .. term .. '\1') == 0 then
    redis.call('HDEL', store.facts, string.sub(term, 2))
  end
end

local function set_tallies(...) redis.call('HSET', store.tallies, ...) end
local function drop_tallies(...) redis.call('HDEL', store.tallies, ...) end
local function add_tallied(...) redis.call('ZADD', store.tallied, ...) end
local function drop_tallied(...) redis.call('ZREM', store.tallied, ...) end

local function read_in_parts(key, fields)
  if #fields <= MANY then return redis.call('HMGET', key, unpack(fields)) end
  local values = {}
  for from = 1, #fields, MANY do
    for _, value in ipairs(redis.call('HMGET', key, unpack(fields, from, math.min(from + MANY - 1, #fields)))) do
      values[#values + 1] = value
    end
  end
  return values
end

local function push(list, one, other)
  local size = #list
  list[size + 1], list[size + 2] = one, other
end

local function write_index()
  if not next(changed) and not next(numbered) then return end
  local fields, blocks, all, of_term, left = {}, {}, {}, {}, {}
  for block, terms in pairs(changed) do
    local text = string.format('\0%d', block)
    for term, bits in pairs(terms) do
      local at = #fields + 1
      fields[at], blocks[at], all[at], of_term[at] = term .. text, block, bits, term
    end
  end
  for field, ids in pairs(numbered) do
    local at = #fields + 1
    fields[at], all[at], of_term[at] = record_ids.name(field), ids, ID_TERM
  end
  for block, seen in pairs(times) do
    local at = #fields + 1
    fields[at], all[at], of_term[at] = record_index.field(TIMES, block), seen, TIMES
  end
  local stored, set, gone, added, removed = read_in_parts(store.index, fields), {}, {}, {}, {}
  for at = 1, #fields do
    local packed, term, now = stored[at], of_term[at], nil
    if term == ID_TERM then
      now = record_ids.changed(packed, all[at])
    elseif term == TIMES then
      now = record_bits.widened(packed, all[at][1], all[at][2])
    else
      now = record_bits.changed(packed, all[at])
    end
    if now then
      if now ~= packed then push(set, fields[at], now) end
      if not packed and blocks[at] then push(added, '0', term .. '\0' .. form.sortable(blocks[at])) end
    elseif packed then
      gone[#gone + 1] = fields[at]
      if blocks[at] then removed[#removed + 1] = term .. '\0' .. form.sortable(blocks[at]) end
    end
    -- A record that came and went in one step has left no bit.
    if not now and string.byte(term) == FACTS_LETTER then left[term] = true end
  end
  in_parts(set_index, set)
  in_parts(drop_index, gone)
  in_parts(add_blocks, added)
  in_parts(drop_blocks, removed)
  for block in pairs(shrunk) do drop_times(block) end
  for term in pairs(left) do drop_facts(term) end
end

local function write_tallies()
  if not next(tallied) then return end
  local keys = {}
  for key, by in pairs(tallied) do
    if by ~= 0 then keys[#keys + 1] = key end
  end
  if #keys == 0 then return end
  local stored, set, gone, added = read_in_parts(store.tallies, keys), {}, {}, {}
  for at, key in ipairs(keys) do
    local was = tonumber(stored[at] or nil) or 0
    local now = was + tallied[key]
    if now > 0 then
      push(set, key, string.format('%d', now))
      if was == 0 then push(added, '0', key) end
    else
      gone[#gone + 1] = key
    end
  end
  in_parts(set_tallies, set)
  in_parts(drop_tallies, gone)
  in_parts(add_tallied, added)
  in_parts(drop_tallied, gone)
end

-- Write all that was changed.
function record_index.flush()
  write_index()
  write_tallies()
end
end)
