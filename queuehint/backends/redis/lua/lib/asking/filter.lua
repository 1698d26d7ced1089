--[[ filter: which records pass a filter, found by the bits of lib/structures/record_index or along paths; mirrors core.structures.record_index.
  A script that includes this takes the filter in ARGV[9..20]. A block's bits are 32 words, the first number's bit is the
  highest of the first. Records of a service, a task and a pool are those that have the terms of these, and those of the facts in
  FACTS that have them (lib/formats/head_format): so many terms of facts are read in a block as there are such facts. ]]
-- @include lib/structures/paths
-- @include lib/structures/record_index
local PER_BLOCK, BLOCKS_MAX, LOOKED_AT_MAX, COUNTED_MAX, BLOCK_COUNTS_AS = 1024, 2048, 4000, 1024, 8 -- @const
local WORDS, READ_AT_ONCE, FACTS_FIELDS_MAX = 32, 64, 4096 -- @const
local filter = {}
args.count(20, 1)

do
-- Terms that each record has to have; those of which it has to have one; and service, task and pool: their terms, and those of
-- the facts that have all of them, of which a block may have the present ones.
local terms, state_terms, driver, common_terms, facts_terms = {}, {}, nil, {}, {}
local passes_by, present = {}, facts_terms
local tag = ARGV[18] ~= '' and ARGV[18]
if tag then terms[1] = 'g' .. tag end
local parent = ARGV[19] ~= '' and ARGV[19]
if parent then terms[#terms + 1] = 'm' .. parent end
if ARGV[9] ~= '' then terms[#terms + 1] = 'u' .. ARGV[9] end
for letter in string.gmatch(args.like(13, '^[SDQRFXC]*$'), '%u') do state_terms[#state_terms + 1] = 's' .. letter end
-- The first term that is named, where facts may have it, with these; else all states that are named; else all there are.
driver = terms[1] and {terms[1]} or false
do
  local first = false
  for at, letter in ipairs({'v', 't', 'p'}) do
    if ARGV[9 + at] ~= '' then common_terms[#common_terms + 1], first = letter .. ARGV[9 + at], first or at + 1 end
  end
  if first then
    local drives = not driver
    if drives then driver = {common_terms[1]} end
    local stored = redis.call('HGETALL', store.facts)
    for at = 1, #stored, 2 do
      local _, pool, task, service = string.match(stored[at + 1], COMMON_FACTS_FORM)
      local values, passes = {'', service, task, pool}, true
      for place = 2, 4 do passes = passes and (ARGV[8 + place] == '' or ARGV[8 + place] == values[place]) end
      local term = 'f' .. stored[at]
      if passes then facts_terms[#facts_terms + 1], passes_by[term] = term, true end
      if drives and values[first] == ARGV[8 + first] then driver[#driver + 1] = term end
    end
    if drives then present = {} end
  end
end
if not driver and not state_terms[1] then
  for at, letter in ipairs(STATES) do state_terms[at] = 's' .. letter end
end
driver = driver or state_terms
-- How many blocks a call looks at: fewer where more than two facts pass.
filter.blocks_max = math.min(BLOCKS_MAX, math.ceil(FACTS_FIELDS_MAX / math.max(#facts_terms, 1)))
filter.path, filter.flow = args.path(14, '') or false, ARGV[17] ~= '' and ARGV[17]
filter.waits_for = ARGV[20] ~= '' and ARGV[20]
-- No other condition: the first twelve arguments are all of this filter.
local said = table.concat(ARGV, '', 9, 20)
filter.is_flow_alone, filter.is_dead_alone = said == filter.flow, said == FAILED and ARGV[13] == FAILED
filter.is_by_entry = filter.path or filter.flow or filter.waits_for
filter.is_by_path = filter.path and not filter.flow and not filter.waits_for
local since_ms, until_ms = args.int_or_none(15, -INT_MAX), args.int_or_none(16, -INT_MAX)
local asked_terms = {unpack(terms)}
for _, list in ipairs({state_terms, common_terms}) do
  for _, term in ipairs(list) do asked_terms[#asked_terms + 1] = term end
end
if since_ms or until_ms then asked_terms[#asked_terms + 1] = TIMES end

function filter.is_in_time(at_ms) return (not since_ms or at_ms >= since_ms) and (not until_ms or at_ms < until_ms) end

-- The members of a sorted set between two bounds, in lexical order: a function that returns the next, nil at the end.
local function members_between(set, low, high, newest_first, at_once)
  local members, position = {}, 1
  return function()
    if position > #members then
      if newest_first then members = redis.call('ZREVRANGEBYLEX', set, high, low, 'LIMIT', 0, at_once)
      else members = redis.call('ZRANGEBYLEX', set, low, high, 'LIMIT', 0, at_once) end
      position = 1
      if #members == 0 then return nil end
      if newest_first then high = '(' .. members[#members] else low = '(' .. members[#members] end
    end
    position = position + 1
    return members[position - 1]
  end
end

-- The blocks in which some record has a term, in order, from one on: a function that returns the next, nil at the end.
local function blocks_of(term, from, newest_first)
  local low, high = '[' .. term .. '\0', '(' .. term .. '\1'
  if from and newest_first then high = '[' .. term .. '\0' .. form.sortable(from)
  elseif from then low = '[' .. term .. '\0' .. form.sortable(from) end
  local at_once = math.max(math.floor(READ_AT_ONCE / #driver), 4)
  local next_member, skip = members_between(store.blocks, low, high, newest_first, at_once), #term + 2
  return function()
    local member = next_member()
    return member and (form.split(member, skip))
  end
end

-- The blocks in which some record has the driver, in order, beginning with that of the first number behind *after*.
function filter.blocks(after, newest_first)
  local from = after and math.floor((newest_first and after - 1 or after + 1) / PER_BLOCK)
  if from and from < 0 and newest_first then return function() return nil end end
  local streams, fronts = {}, {}
  for at, term in ipairs(driver) do
    streams[at] = blocks_of(term, from and math.max(from, 0), newest_first)
    fronts[at] = streams[at]()
  end
  if #streams == 1 then
    local first = fronts[1]
    return function()
      local block = first or streams[1]()
      first = nil
      return block
    end
  end
  return function()
    local nearest = nil
    for at = 1, #streams do
      local block = fronts[at]
      if block and (not nearest or (newest_first and block > nearest) or (not newest_first and block < nearest)) then
        nearest = block
      end
    end
    if present ~= facts_terms then present = {} end
    for at = 1, #streams do
      if nearest and fronts[at] == nearest then
        fronts[at] = streams[at]()
        if passes_by[driver[at]] then present[#present + 1] = driver[at] end
      end
    end
    return nearest
  end
end

-- The words of packed bits; nil if there are none.
local function words_of(packed)
  if not packed or #packed < 5 then return nil end
  local words, stored, size, before = {}, record_bits.words(packed)
  for at = 1, WORDS do words[at] = at > before and at <= before + size and stored[at - before] or 0 end
  return words
end

-- Read the entries of INDEX for a block and some terms at once; return them by term.
local function read(block, ...)
  local fields, names, count, text = {}, {}, 0, record_index.field('', block)
  for _, list in ipairs({...}) do
    for at = 1, #list do
      count = count + 1
      fields[count], names[count] = list[at] .. text, list[at]
    end
  end
  local stored, packed = redis.call('HMGET', store.index, unpack(fields)), {}
  for at, term in ipairs(names) do packed[term] = stored[at] end
  packed.first_ms, packed.last_ms = record_bits.times(packed[TIMES])
  return packed
end

-- Keep of words what others have too; nil if nothing is left.
local function common(words, others)
  if not others then return nil end
  local any = false
  for at = 1, WORDS do
    if words[at] ~= 0 then
      words[at] = bit.band(words[at], others[at])
      any = any or words[at] ~= 0
    end
  end
  return any and words or nil
end

local function any_of(asked, packed)
  local all = nil
  for _, term in ipairs(asked) do
    local bits = packed[term]
    if not all then
      all = words_of(bits)
    elseif bits and #bits > 4 then
      local stored, size, before = record_bits.words(bits)
      for at = 1, size do
        local word = stored[at]
        if word ~= 0 then all[before + at] = bit.bor(all[before + at], word) end
      end
    end
  end
  return all
end

-- The records of a service, a task and a pool.
local function of_common_terms(packed)
  local words, others = words_of(packed[common_terms[1]]), any_of(present, packed)
  for at = 2, #common_terms do words = words and common(words, words_of(packed[common_terms[at]])) end
  if not words or not others then return words or others end
  for at = 1, WORDS do words[at] = bit.bor(words[at], others[at]) end
  return words
end

-- Leave out the numbers up to one; from it on with *newest_first*.
local function cut(words, offset, newest_first)
  for at = 1, WORDS do
    local inside = offset - (at - 1) * 32
    local before = inside <= 0 and 0 or inside >= 32 and -1 or bit.bnot(bit.rshift(-1, inside))
    words[at] = bit.band(words[at], newest_first and before or bit.bnot(before))
  end
end

-- Return the records of a block after *after* that may pass, before the time of each is checked, nil if there are none; and
-- the entries of INDEX for the block: those read for this, and those of *more* terms.
function filter.bits(block, after, newest_first, more)
  local packed = read(block, asked_terms, present, more or {})
  local first_ms, last_ms = packed.first_ms or 0, packed.last_ms or 2 ^ 52
  if (since_ms and last_ms < since_ms) or (until_ms and first_ms >= until_ms) then return nil, packed end
  local words
  if terms[1] then
    words = words_of(packed[terms[1]])
    for at = 2, #terms do words = words and common(words, words_of(packed[terms[at]])) end
    if words and common_terms[1] then words = common(words, of_common_terms(packed)) end
  elseif common_terms[1] then
    words = of_common_terms(packed)
  else
    words = any_of(driver, packed)
  end
  if words and state_terms[1] and (terms[1] or common_terms[1]) then words = common(words, any_of(state_terms, packed)) end
  if words and after then
    local offset = after - block * PER_BLOCK + (newest_first and 0 or 1)
    if offset > 0 and offset < PER_BLOCK then cut(words, offset, newest_first) end
  end
  return words, packed
end

-- Whether all records of a block are of a time that passes.
function filter.is_wholly_in_time(packed)
  return (not since_ms and not until_ms)
    or (filter.is_in_time(packed.first_ms or 0) and filter.is_in_time(packed.last_ms or 2 ^ 52))
end

-- The numbers that bits stand for, in order.
function filter.numbers(words, block, newest_first)
  local step = newest_first and -1 or 1
  local offset = newest_first and PER_BLOCK or -1
  return function()
    if not words then return nil end
    offset = offset + step
    while offset >= 0 and offset < PER_BLOCK do
      local inside = offset % 32
      local word = words[(offset - inside) / 32 + 1]
      if word == 0 then
        offset = offset + (newest_first and -inside - 1 or 32 - inside)
      elseif bit.band(word, bit.rshift(-2147483648, inside)) ~= 0 then
        return block * PER_BLOCK + offset
      else
        offset = offset + step
      end
    end
    return nil
  end
end


local function ones_in(words)
  local ones = 0
  for at = 1, WORDS do
    local word = words[at]
    if word ~= 0 then ones = ones + record_bits.ones(word) end
  end
  return ones
end

local function ones_of(packed)
  local ones, of_byte = 0, record_bits.ones_of_bytes()
  for _, byte in ipairs({string.byte(packed, 2, -1)}) do ones = ones + of_byte[byte] end
  return ones
end

-- How many of what may pass in a block are in each state, by the state's term; *is_whole* if no number was left out.
function filter.counts(words, packed, states, is_whole)
  local counts, there = {}, {}
  for _, term in ipairs(states) do
    counts[term] = 0
    if packed[term] then there[#there + 1] = term end
  end
  for _, term in ipairs(words and there or {}) do
    -- Packed bits are counted fastest without unpacking.
    if is_whole and #terms == 0 and #common_terms == 0 then
      if ARGV[13] == '' or string.find(ARGV[13], string.sub(term, 2), 1, true) then counts[term] = ones_of(packed[term]) end
    elseif #there == 1 then
      counts[term] = ones_in(words)
    else
      local found = common({unpack(words)}, words_of(packed[term]))
      counts[term] = found and ones_in(found) or 0
    end
  end
  return counts
end

-- A head that is read and not changed.
local function head_of(id, index)
  local packed = redis.call('HGET', store.jobs, id)
  if not packed then return jobs.known(id, index) end
  return heads.read(id, packed)
end

function filter.job(number)
  local id = record_index.id_of(number)
  if not id then corrupt('record ' .. string.format('%.0f', number) .. ' has terms and no id in ' .. store.index) end
  return head_of(id, store.index)
end

-- Whether a job passes, its path left aside.
function filter.passes(job)
  if not record_index.lists(job) or (ARGV[13] ~= '' and not string.find(ARGV[13], job[STATE], 1, true)) then return false end
  local service, tags = form.service(job[SERVICE])
  for at, value in ipairs({job[USER], service, job[TASK], job[POOL]}) do
    if ARGV[8 + at] ~= '' and ARGV[8 + at] ~= value then return false end
  end
  local has_tag = not tag
  for _, each in ipairs(tags or {}) do has_tag = has_tag or each == tag end
  if not has_tag or (parent and job[MADE_BY] ~= parent) then return false end
  if filter.waits_for and ((filter.flow and job[FLOW] ~= filter.flow)
    or redis.call('HEXISTS', store.blocked(job.id), filter.waits_for) == 0) then
    return false
  end
  return filter.is_in_time(job[ENQUEUED])
end

-- Whether a gate is at or below the path.
local function is_below(gate_key)
  local below = filter.path .. ':'
  return filter.path == '' or gate_key == filter.path or string.sub(gate_key, 1, #below) == below
end

-- Whether a job has a claim at or below the path, if there is one.
function filter.is_there(job)
  if not filter.path then return true end
  for claim_text in string.gmatch(job[CLAIMS], '[^\n]+') do
    if is_below(string.sub(claim_text, 2)) then return true end
  end
  return false
end

-- Whether a key is the first of a job's claims at or below the path; without keys, whether any claim is there.
function filter.is_first(key, job)
  if not filter.is_by_path then return filter.is_there(job) end
  if not string.find(job[CLAIMS], '\n', 1, true) then return true end
  for claim_text in string.gmatch(job[CLAIMS], '[^\n]+') do
    local gate_key = string.sub(claim_text, 2)
    if is_below(gate_key) and form.less(form.queue_key(gate_key), key) then return false end
  end
  return true
end

-- The members of a set at or below the path, in order, behind one, and the ids of their jobs: a function that returns the next,
-- nil at the end.
local function members_of(set, after, newest_first)
  local ranges, at, members, position, ids = paths.ranges(filter.path), 1, {}, 1, {}
  if newest_first then ranges = {ranges[2] or ranges[1], ranges[2] and ranges[1]} end
  local cursor = false
  return function()
    while position > #members do
      local range = ranges[at]
      if not range then return nil end
      local low, high = range[1], range[2]
      if newest_first then
        if cursor then high = '(' .. cursor
        elseif after and (high == '+' or form.less(after, string.sub(high, 2))) then high = '(' .. after end
        members = redis.call('ZREVRANGEBYLEX', set, high, low, 'LIMIT', 0, READ_AT_ONCE)
      else
        if cursor then low = '(' .. cursor
        elseif after and form.less(string.sub(low, 2), after) then low = '(' .. after end
        members = redis.call('ZRANGEBYLEX', set, low, high, 'LIMIT', 0, READ_AT_ONCE)
      end
      position, cursor = 1, members[#members] or false
      if cursor then ids = paths.ids(members) else at = at + 1 end
    end
    position = position + 1
    return members[position - 1], ids[position - 1]
  end
end

-- Number and job of each job of the flow, in order, behind a number; the key is ''.
local function entries_of_flow(after_number, newest_first)
  local low, high = '(' .. filter.flow .. '\0', '(' .. filter.flow .. '\1'
  if after_number and newest_first then high = low .. form.sortable(after_number)
  elseif after_number then low = low .. form.sortable(after_number) .. '\255' end
  local next_member = members_between(store.flow_jobs, low, high, newest_first, READ_AT_ONCE)
  return function()
    local member = next_member()
    if not member then return nil end
    local number, id = form.split(member, #filter.flow + 2)
    return '', number, head_of(id, store.flow_jobs)
  end
end

-- The numbers in a set, those since which jobs wait or those of dead jobs, and these jobs, in order, behind a number; the
-- key is ''.
local function entries_by_number(set, after_number, newest_first)
  local low, high, members, position = '-inf', '+inf', {}, 1
  if after_number and newest_first then high = string.format('(%.0f', after_number)
  elseif after_number then low = string.format('(%.0f', after_number) end
  return function()
    if position > #members then
      if newest_first then members = redis.call('ZRANGE', set, high, low, 'BYSCORE', 'REV', 'LIMIT', 0, READ_AT_ONCE, 'WITHSCORES')
      else members = redis.call('ZRANGEBYSCORE', set, low, high, 'WITHSCORES', 'LIMIT', 0, READ_AT_ONCE) end
      position = 1
      if #members == 0 then return nil end
      if newest_first then high = '(' .. members[#members] else low = '(' .. members[#members] end
    end
    local id, number = members[position], tonumber(members[position + 1])
    position = position + 2
    return '', number, head_of(id, set)
  end
end

-- The sets with the claims of jobs in states that may pass.
local function sets_of_claims()
  local sets = {}
  if ARGV[13] == '' or string.find(ARGV[13], '[SDQR]') then sets[1] = store.paths end
  if ARGV[13] == '' or string.find(ARGV[13], '[FXC]') then sets[#sets + 1] = store.past end
  return sets
end

-- How many claims at or below the path jobs in such states have.
function filter.count_entries()
  local count = 0
  for _, set in ipairs(sets_of_claims()) do
    for _, range in ipairs(paths.ranges(filter.path)) do count = count + redis.call('ZLEXCOUNT', set, range[1], range[2]) end
  end
  return count
end

-- Queue key, number and job of each claim at or below the path of jobs in states that may pass, in order, behind a key
-- and a number; the jobs that wait for one, with a flow its jobs, or without a path the dead ones.
function filter.entries(after_key, after_number, newest_first)
  if filter.waits_for then return entries_by_number(store.waiting(filter.waits_for), after_number, newest_first) end
  if filter.flow then return entries_of_flow(after_number, newest_first) end
  if not filter.path then return entries_by_number(store.dead, after_number, newest_first) end
  local after = after_key and after_key .. '\0' .. form.sortable(after_number)
  local sets, streams, fronts, ids = sets_of_claims(), {}, {}, {}
  for at, set in ipairs(sets) do
    streams[at] = members_of(set, after, newest_first)
    fronts[at], ids[at] = streams[at]()
  end
  return function()
    local at = 1
    if fronts[2] and (not fronts[1] or form.less(fronts[2], fronts[1]) ~= newest_first) then at = 2 end
    local member, id = fronts[at], ids[at]
    if not member then return nil end
    fronts[at], ids[at] = streams[at]()
    local key, number = paths.split(member)
    return key, number, head_of(paths.known_id(member, id, sets[at]), sets[at])
  end
end
end
