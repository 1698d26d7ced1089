#!lua flags=no-writes,allow-oom
--[[ entries: for the doctor, check that each of some entries of a key follows from a head.
  ARGV[9] name      str  of the key in the namespace; ARGV[10] type; ARGV[11] cursor, "0" to begin; ARGV[12] count
  Returns names, each with its value: cursor, "0" at the end; problems, five for each: kind, key, item, subject (an id), stored value;
    gates, for the key of that name: keys and stored counts, IS IX S X WAITING; tallies, for that key: stored counts; greatest, names of
    counters, each with the greatest number in these entries. ]]
-- @include doctor/lib/rules
-- @include doctor/lib/examine_keys
args.count(12)
local name, kind = ARGV[9], args.one_of(10, {hash = true, zset = true, set = true, list = true})
-- Any number of 64 bits.
local CURSOR_MAX = '18446744073709551615' -- @const
local cursor, count = args.like(11, '^%d+$'), args.int(12, 1)
if #cursor > #CURSOR_MAX or #cursor == #CURSOR_MAX and form.less(CURSOR_MAX, cursor) then args.refuse(11) end
local items, values = {}, {}
if kind == 'hash' or kind == 'zset' then
  local page
  if kind == 'hash' then page = redis.call('HSCAN', store[name], cursor, 'COUNT', count)
  else page = redis.call('ZSCAN', store[name], cursor, 'COUNT', count) end
  cursor = page[1]
  for at = 1, #page[2], 2 do items[#items + 1], values[#values + 1] = page[2][at], page[2][at + 1] end
elseif kind == 'set' then
  local page = redis.call('SSCAN', store[name], cursor, 'COUNT', count)
  cursor, items = page[1], page[2]
else
  local from = tonumber(cursor)
  items = redis.call('LRANGE', store[name], from, from + count - 1)
  cursor = #items < count and '0' or examine.int(from + #items)
end

local problems, stored_gates, stored_tallies, greatest = {}, {}, {}, {}
local function see(counter, number)
  if number and number > (greatest[counter] or -1) then greatest[counter] = number end
end

for at = 1, #items do
  local item, value = items[at], values[at]
  local problem, about = examine.check(name, item, value)
  if problem then
    for _, part in ipairs({problem, name, item, about or '', ''}) do problems[#problems + 1] = part end
  end
  if name == 'gates' then
    local gate = examine.gate(value)
    stored_gates[#stored_gates + 1] = item
    stored_gates[#stored_gates + 1] = gate and table.concat(gate, ' ', 1, WAITING) or ''
    see('marks', gate and gate[TO_ADVANCE])
  elseif name == 'tallies' then
    stored_tallies[#stored_tallies + 1] = item
    stored_tallies[#stored_tallies + 1] = value
  elseif name == 'users' then
    local _, turn = examine.pair(value)
    see('turn', turn)
  elseif name == 'schedules' then
    local schedule = examine.schedule(value)
    see('schedule_versions', schedule and schedule[VERSION_OF])
  elseif name == 'limits' then
    local limit = examine.limit(item, value)
    see('pause', limit and limit[1])
  elseif name == 'pauses' or name == 'selections' then
    local pause = pauses.read(value)
    see('pause', pause and pause.number)
  end
end
local seen = {}
for counter, number in pairs(greatest) do
  seen[#seen + 1] = counter
  seen[#seen + 1] = examine.int(number)
end
return {'cursor', cursor, 'problems', problems, 'gates', stored_gates, 'tallies', stored_tallies, 'greatest', seen}
