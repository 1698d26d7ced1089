--[[ record_index: which records have what may be asked for, as bits; core.structures.record_index tells what for.
  Numbers are cut into blocks of 1 024. A term is a letter and a value: a for every record, s a state, u a user, v a service,
  t a task, p a pool. INDEX holds, for each term and block in which some record has it, the bits of these: the place of the
  first word of 32 bits that is not zero, one byte, and from there the words up to the last; of the term a first the
  earliest and the latest time of enqueue that was seen in the block, two doubles. BLOCKS names what is in INDEX: term, NUL,
  sortable block, in lexical order. NUMBERS leads from a number to the id. TALLIES counts the records of a service, NUL,
  user; TALLIED names them in lexical order. ]]
local PER_BLOCK, TIMES_SIZE = 1024, 16 -- @const
local record_index = {}

lazily(record_index, function()
local changed, times, numbered, tallied = {}, {}, {}, {}

-- Whether a record is there for those who ask: what is sent in parts from when it is let go, or over.
function record_index.lists(job)
  return job and not job[GONE] and not (job[STAGED] and job[STATE] == DEFERRED) and not jobs.is_start(job.id)
end

-- The name in INDEX of a term of a block.
function record_index.field(term, block) return term .. '\0' .. string.format('%.0f', block) end

-- The terms of a record.
function record_index.terms(job)
  local terms = {'a', 's' .. job[STATE], 't' .. job[TASK], 'p' .. job[POOL]}
  if job[USER] ~= '' then terms[#terms + 1] = 'u' .. job[USER] end
  if job[SERVICE] ~= '' then terms[#terms + 1] = 'v' .. job[SERVICE] end
  return terms
end

-- The service and the user a record counts for, false if it has not both.
function record_index.tally_key(job)
  return job and job[SERVICE] ~= '' and job[USER] ~= '' and job[SERVICE] .. '\0' .. job[USER]
end

-- Have a record have a term, or have it no more.
function record_index.change(term, number, is_there)
  local blocks = changed[term]
  if not blocks then
    blocks = {}
    changed[term] = blocks
  end
  local block = math.floor(number / PER_BLOCK)
  local bits = blocks[block]
  if not bits then
    bits = {}
    blocks[block] = bits
  end
  bits[number % PER_BLOCK] = is_there
end

local function change_all(job, is_there)
  for _, term in ipairs(record_index.terms(job)) do record_index.change(term, job[NUMBER], is_there) end
end

-- Have a block know a time of enqueue.
local function see_time(job)
  local block, at_ms = math.floor(job[NUMBER] / PER_BLOCK), job[ENQUEUED]
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

-- Have a record that is the same but for its state have that.
function record_index.move(was_state, state, number)
  record_index.change('s' .. was_state, number, false)
  record_index.change('s' .. state, number, true)
end

-- Have a new record be found by all it is.
function record_index.enter(id, job)
  record_index.list(id, job)
  count(record_index.tally_key(job), 1)
end

-- Have a record be found by all it is.
function record_index.list(id, job)
  change_all(job, true)
  see_time(job)
  numbered[job[NUMBER]] = id
end

-- What follows from a head for those who ask: what it said before this step, and says now.
function record_index.write(id, was, job)
  local there, was_there = record_index.lists(job), record_index.lists(was)
  if there and was_there then
    if was[STATE] ~= job[STATE] then
      record_index.change('s' .. was[STATE], job[NUMBER], false)
      record_index.change('s' .. job[STATE], job[NUMBER], true)
    end
    if was[USER] == job[USER] and was[SERVICE] == job[SERVICE] and was[TASK] == job[TASK] and was[POOL] == job[POOL] then return end
    for at, letter in pairs({[USER] = 'u', [SERVICE] = 'v', [TASK] = 't', [POOL] = 'p'}) do
      if was[at] ~= job[at] then
        if was[at] ~= '' then record_index.change(letter .. was[at], job[NUMBER], false) end
        if job[at] ~= '' then record_index.change(letter .. job[at], job[NUMBER], true) end
      end
    end
  elseif there then
    record_index.list(id, job)
  elseif was_there then
    change_all(was, false)
    numbered[was[NUMBER]] = false
  end
  count(was_there and record_index.tally_key(was), -1)
  count(there and record_index.tally_key(job), 1)
end

local MASKS = {[0] = 128, 64, 32, 16, 8, 4, 2, 1}

-- Bits with some of them changed, nil if none is left.
local function with_changes(packed, bits)
  local first, data = 0, ''
  if packed and #packed > 4 then first, data = string.byte(packed) * 4, string.sub(packed, 2) end
  local low, high, bytes = 128, -1, {}
  for offset, is_there in pairs(bits) do
    local place = offset % 8
    local at = (offset - place) / 8
    local byte, mask = bytes[at] or (at >= first and string.byte(data, at - first + 1)) or 0, MASKS[place]
    if (byte % (2 * mask) >= mask) ~= is_there then byte = is_there and byte + mask or byte - mask end
    bytes[at] = byte
    if at < low then low = at end
    if at > high then high = at end
  end
  if data == '' then first = low - low % 4 end
  local from, to = math.min(first, low - low % 4), math.max(first + #data, high - high % 4 + 4)
  if from < first or to > first + #data then
    data = string.rep('\0', first - from) .. data .. string.rep('\0', to - first - #data)
    first = from
  end
  local middle = {}
  for at = low, high do middle[#middle + 1] = bytes[at] or string.byte(data, at - first + 1) end
  data = string.sub(data, 1, low - first) .. string.char(unpack(middle)) .. string.sub(data, high - first + 2)
  local begin, finish = string.find(data, '%Z'), #data
  if not begin then return nil end
  while string.byte(data, finish) == 0 do finish = finish - 1 end
  begin, finish = begin - (begin - 1) % 4, finish + -finish % 4
  return string.char((first + begin - 1) / 4) .. string.sub(data, begin, finish)
end

-- The times of a block, and its bits.
function record_index.split(packed)
  if not packed or #packed <= TIMES_SIZE then return false, false, false end
  local first_ms, last_ms = struct.unpack('>dd', packed)
  return first_ms, last_ms, string.sub(packed, TIMES_SIZE + 1)
end

local function with_times(block, packed, bits)
  local first_ms, last_ms, data = record_index.split(packed)
  local seen = times[block]
  if seen then
    first_ms, last_ms = math.min(first_ms or seen[1], seen[1]), math.max(last_ms or seen[2], seen[2])
  end
  data = with_changes(data, bits)
  return data and struct.pack('>dd', first_ms or 0, last_ms or 2 ^ 52) .. data
end

local MANY = 2000 -- @const

-- Write many arguments in several commands.
local function in_parts(write, args)
  for from = 1, #args, MANY do write(unpack(args, from, math.min(from + MANY - 1, #args))) end
end

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

local function push(list, ...)
  for _, item in ipairs({...}) do list[#list + 1] = item end
end

local function write_bits()
  local fields, members, sources = {}, {}, {}
  for term, blocks in pairs(changed) do
    for block, bits in pairs(blocks) do
      fields[#fields + 1] = record_index.field(term, block)
      members[#members + 1] = term .. '\0' .. form.sortable(block)
      sources[#sources + 1] = {term == 'a' and block, bits}
    end
  end
  if #fields == 0 then return end
  local stored, set, gone, added, removed = read_in_parts(store.index, fields), {}, {}, {}, {}
  for at, source in ipairs(sources) do
    local packed, now = stored[at], nil
    if source[1] then now = with_times(source[1], packed, source[2]) else now = with_changes(packed, source[2]) end
    if now then
      if now ~= packed then push(set, fields[at], now) end
      if not packed then push(added, '0', members[at]) end
    elseif packed then
      push(gone, fields[at])
      push(removed, members[at])
    end
  end
  in_parts(function(...) redis.call('HSET', store.index, ...) end, set)
  in_parts(function(...) redis.call('HDEL', store.index, ...) end, gone)
  in_parts(function(...) redis.call('ZADD', store.blocks, ...) end, added)
  in_parts(function(...) redis.call('ZREM', store.blocks, ...) end, removed)
end

local function write_numbers()
  local set, gone = {}, {}
  for number, id in pairs(numbered) do
    if id then
      local size = #set
      set[size + 1], set[size + 2] = string.format('%.0f', number), id
    else
      gone[#gone + 1] = string.format('%.0f', number)
    end
  end
  in_parts(function(...) redis.call('HSET', store.numbers, ...) end, set)
  in_parts(function(...) redis.call('HDEL', store.numbers, ...) end, gone)
end

local function write_tallies()
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
      push(set, key, string.format('%.0f', now))
      if was == 0 then push(added, '0', key) end
    else
      push(gone, key)
    end
  end
  in_parts(function(...) redis.call('HSET', store.tallies, ...) end, set)
  in_parts(function(...) redis.call('HDEL', store.tallies, ...) end, gone)
  in_parts(function(...) redis.call('ZADD', store.tallied, ...) end, added)
  in_parts(function(...) redis.call('ZREM', store.tallied, ...) end, gone)
end

-- Write all that was changed.
function record_index.flush()
  write_bits()
  write_numbers()
  write_tallies()
end
end)
