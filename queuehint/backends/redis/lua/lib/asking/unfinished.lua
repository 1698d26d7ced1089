--[[ unfinished: count the unfinished jobs under a limit, which its field names (lib/structures/limits), and estimate when there
  will be fewer. ]]
local LEASES_LOOKED_AT_MAX, RETRIES_COUNTED_MAX, AGE_MAX_MS, RETRY_MIN_MS, RETRY_MAX_MS = 100, 1000, 3600000, 100, 300000 -- @const
local unfinished = {}

lazily(unfinished, function()
-- Whether a field is that of a task or a pool.
function unfinished.is_of_selection(field) return string.find(field, '^[tp]') ~= nil end

local function is_of(job, field)
  local name = string.sub(field, 2)
  if unfinished.is_of_selection(field) then return job[string.byte(field) == 116 and TASK or POOL] == name end
  return field == '-' or form.is_at_or_below(job, name)
end

local function count_range(range) return redis.call('ZLEXCOUNT', store.paths, range[1], range[2]) end

-- Count the unfinished jobs at or below the gate of a field, each once for each claim; below it for "/"; in the namespace for "-".
function unfinished.count(field)
  if field == '-' then return S[COUNT_OF.S] + S[COUNT_OF.D] + S[COUNT_OF.Q] + S[COUNT_OF.R] + S[HIDDEN] end
  local count, key = 0, string.sub(field, 2)
  for _, range in ipairs(paths.ranges(key)) do count = count + count_range(range) end
  return string.byte(field) == 47 and count - count_range(paths.ranges_at(key)) or count
end

-- The words, by their place, of the records of a block that have one of some terms, by what INDEX holds of each of these
-- (lib/formats/record_bits), false where nothing is.
local function words_of_any(list)
  local any = {}
  for at = 1, #list do
    local packed = list[at]
    if packed then
      local words, size, before = record_bits.words(packed)
      for place = 1, size do
        local was, word = any[before + place], words[place]
        any[before + place] = was and bit.bor(was, word) % 4294967296 or word
      end
    end
  end
  return any
end

-- How many records have one of some terms and one of others.
local function count_common(some, others)
  local others_there, count = words_of_any(others), 0
  for place, word in pairs(words_of_any(some)) do
    local there = others_there[place]
    if there then count = count + record_bits.ones(word == there and word or bit.band(word, there)) end
  end
  return count
end

local UNFINISHED = {'sS', 'sD', 'sQ', 'sR'}

-- Call a function with each block that has a term.
local function each_block(term, call)
  local low = '[' .. term .. '\0'
  repeat
    local members = redis.call('ZRANGEBYLEX', store.blocks, low, '(' .. term .. '\1', 'LIMIT', 0, 1000)
    for _, member in ipairs(members) do call((form.split(member, #term + 2))) end
    low = '(' .. (members[#members] or '')
  until #members == 0
end

-- How many unfinished jobs the index of records has of a task or a pool, the first letter of which is that of its term;
-- O(blocks that have unfinished jobs, and facts of the task or the pool in each).
function unfinished.count_listed(field)
  local blocks, count, terms = {}, 0, {field}
  for _, term in ipairs(UNFINISHED) do
    each_block(term, function(block) blocks[block] = blocks[block] or {} end)
  end
  local stored = redis.call('HGETALL', store.facts)
  for at = 1, #stored, 2 do
    local _, pool, task = string.match(stored[at + 1], COMMON_FACTS_FORM)
    if field == 't' .. task or field == 'p' .. pool then terms[#terms + 1] = 'f' .. stored[at] end
  end
  for _, term in ipairs(terms) do
    each_block(term, function(block)
      local there = blocks[block]
      if there then there[#there + 1] = term end
    end)
  end
  for block, there in pairs(blocks) do
    local at = string.format('\0%d', block)
    if there[1] then
      for place, term in ipairs(there) do there[place] = term .. at end
      local states = redis.call('HMGET', store.index, 'sS' .. at, 'sD' .. at, 'sQ' .. at, 'sR' .. at)
      count = count + count_common(redis.call('HMGET', store.index, unpack(there)), states)
    end
  end
  return count
end

-- In how many ms so many of the jobs that a field is of are over, estimated from how long those that run have run; nil
-- while none does.
function unfinished.retry_after_ms(field, too_many)
  local ages, running = 0, 0
  local sample = redis.call('ZRANGE', store.leases, 0, LEASES_LOOKED_AT_MAX - 1)
  for _, member in ipairs(sample) do
    local _, id = form.split(member, 2)
    local job = jobs.known(id, store.leases)
    if job[STATE] == STARTED and is_of(job, field) then
      running, ages = running + 1, ages + math.min(math.max(NOW - job[STARTED_AT], 0), AGE_MAX_MS)
    end
  end
  if running == 0 then return nil end
  local spent_ms = math.min(too_many, RETRIES_COUNTED_MAX) * ages * #sample
  local wait_ms = math.ceil(spent_ms / (running * running * redis.call('ZCARD', store.leases)))
  return math.min(math.max(wait_ms, RETRY_MIN_MS), RETRY_MAX_MS)
end
end)
