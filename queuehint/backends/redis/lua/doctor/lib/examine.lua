--[[ examine: for the doctor, read stored data so that no damage to it makes the script fail. ]]
local examine = {}

do
local NAME_AT = #store.meta - 3

-- The name of a key in its namespace.
function examine.name(redis_key) return string.sub(redis_key, NAME_AT) end

-- Split a name into its prefix, with the colon, and the rest; a fixed key has no rest.
function examine.base(name)
  local from, to = string.find(name, '^wake:%l+:')
  if not from then
    from, to = string.find(name, '^%l+:')
    if name == 'wake:timer' then from = nil end
  end
  if not from then return name, '' end
  return string.sub(name, 1, to), string.sub(name, to + 1)
end

function examine.int(number) return string.format('%.0f', number) end

-- The id of a tag that begins at *from*.
function examine.id_of_tag(member, from)
  local _, id = form.split(member, from)
  return id
end

function examine.pair(packed)
  local is_read, pair = pcall(cmsgpack.unpack, packed or '')
  if is_read and type(pair) == 'table' and type(pair[1]) == 'number' and type(pair[2]) == 'number' then return pair[1], pair[2] end
  return 0, 0
end

-- How many ready jobs a user of a pool has, and a pool; how many users have turns.
function examine.ready_of_user(key) return redis.call('ZLEXCOUNT', store.ready, '[' .. key .. '\0', '(' .. key .. '\1') end
function examine.ready_of_pool(name) return redis.call('ZLEXCOUNT', store.ready, '[' .. name .. '\0', '(' .. name .. '\1') end
function examine.users_of_pool(name) return redis.call('ZLEXCOUNT', store.turns, '[' .. name .. '\0', '(' .. name .. '\1') end

-- The queues of refused jobs that a pool is said to have, and the markers for releases; none where that cannot be read.
function examine.refused(pool)
  local is_read, kept = pcall(cmsgpack.unpack, redis.call('HGET', store.refused, pool) or '')
  if not is_read or type(kept) ~= 'table' or type(kept[1]) ~= 'table' or type(kept[2]) ~= 'table' then return {}, {} end
  for _, list in ipairs({kept[1], kept[2]}) do
    for _, name in ipairs(list) do
      if type(name) ~= 'string' then return {}, {} end
    end
  end
  return kept[1], kept[2]
end

function examine.gate(packed)
  local is_read, gate = pcall(cmsgpack.unpack, packed or '')
  local is_whole = is_read and type(gate) == 'table'
  for at = 1, TO_ADVANCE do is_whole = is_whole and type(gate[at]) == 'number' end
  return is_whole and gate or nil
end

-- A turn as a member of the turns.
function examine.turn(key, turn)
  local pool, user = string.match(key, '^(%Z*)%z(.*)$')
  return pool and pool .. '\0' .. form.sortable(turn) .. user
end

-- A schedule as it is packed; nil if it cannot be read.
function examine.schedule(packed)
  local is_read, schedule = pcall(cmsgpack.unpack, packed or '')
  if not is_read or type(schedule) ~= 'table' or type(schedule[VERSION_OF]) ~= 'number' then return nil end
  for at = ASKED_HEAD, RECURRENCE do
    if type(schedule[at]) ~= 'string' then return nil end
  end
  return schedule
end

-- When a schedule has to come to be due; false for never.
function examine.due_of(schedule) return not schedule[IS_PAUSED] and schedule[NEXT_DUE] end

-- The numbers whose bits a field of INDEX holds, with its term and block; nil if it makes no sense.
function examine.listed(field, packed)
  local term, block = string.match(field, '^([suvtpgmf]%Z*)%z(%d+)$')
  block = tonumber(block)
  local bits = packed
  if not block or #bits < 5 or #bits % 4 ~= 1 or string.byte(bits) * 4 + #bits > 129 then return nil end
  local numbers, from = {}, block * PER_BLOCK + string.byte(bits) * 32 - 16
  for at = 2, #bits do
    local byte = string.byte(bits, at)
    for offset = 0, byte > 0 and 7 or -1 do
      if bit.band(byte, 2 ^ (7 - offset)) > 0 then numbers[#numbers + 1] = from + at * 8 + offset end
    end
  end
  return numbers, term, block
end

-- The ids in a field of INDEX that has ids, by number; nil if it makes no sense.
function examine.ids(field, packed)
  local first = tonumber(string.match(field, '^#(%d+)$') or nil)
  local ids, size = {}, 0
  for mark, id in string.gmatch(packed, '([\1-\16])([^%z\1-\31]+)') do
    if first then ids[first * IDS_PER_FIELD + string.byte(mark) - 1] = id end
    size = size + 1 + #id
  end
  return first and size > 0 and size == #packed and ids or nil
end

-- A limit of a field as it is packed; nil if it cannot be read.
function examine.limit(field, packed)
  local is_read, limit = pcall(cmsgpack.unpack, packed or '')
  if not is_read or type(limit) ~= 'table' or type(limit[1]) ~= 'number' then return nil end
  for at = 2, 8 do
    if type(limit[at]) ~= 'number' and limit[at] ~= false then return nil end
  end
  -- That of the unfinished jobs of a task or a pool counts them.
  local counts = limit[5] and unfinished.is_of_selection(field)
  if #limit ~= (counts and 11 or 9) then return nil end
  if counts and (type(limit[10]) ~= 'number' or type(limit[11]) ~= 'number') then return nil end
  -- A meter belongs to a rate; of one for each child, to the counters of these.
  if limit[8] and not limit[3] or limit[9] and (type(limit[9]) ~= 'table' or not limit[3] or limit[8]) then return nil end
  local meter, limiter = {spent = limit[6], at = limit[7], log = limit[9] or nil}, {tokens = limit[3], per_ms = limit[4], burst = limit[8]}
  if limit[3] and not meters.is_sound(meter, limiter) then return nil end
  return limit
end
end
