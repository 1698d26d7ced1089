#!lua flags=no-writes,allow-oom
--[[ entries: for the doctor, check that each of some entries of a key follows from a head.
  ARGV[9] name      str  of the key in the namespace; ARGV[10] type; ARGV[11] cursor, "0" to begin; ARGV[12] count
  ARGV[13..]        items to look at, in place of those at the cursor; of a dependent, all its portions are looked through
  Returns names, each with its value: cursor, "0" at the end; rest, items that were not looked at, because others took long;
    problems, five for each: kind, key, item, subject (an id), stored value;
    gates, for the key of that name: keys and stored counts, IS IX S X WAITING; tallies, for that key: stored counts; running, four for
    each counter of a limit: key, field, place and how many run there; greatest, names of counters, each with the greatest number in these entries. ]]
-- @include doctor/lib/rules
-- @include doctor/lib/examine_entries
args.count(12, 1)
local name, kind = ARGV[9], args.one_of(10, {hash = true, zset = true, set = true, list = true})
-- Any number of 64 bits.
local CURSOR_MAX = '18446744073709551615' -- @const
local cursor, count = args.like(11, '^%d+$'), args.int(12, 1)
if #cursor > #CURSOR_MAX or #cursor == #CURSOR_MAX and form.less(CURSOR_MAX, cursor) then args.refuse(11) end
local items, values = {}, {}
if #ARGV > 12 then
  examine.looks_through, cursor = true, '0'
  for at = 13, #ARGV do items[#items + 1] = ARGV[at] end
elseif kind == 'hash' or kind == 'zset' then
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

-- An item that was named may have gone.
local function value_of(at)
  if values[at] or #ARGV == 12 then return values[at] or '' end
  if kind == 'hash' then return redis.call('HGET', store[name], items[at]) end
  return kind ~= 'zset' or redis.call('ZSCORE', store[name], items[at])
end

local rest = {}
for at = 1, #items do
  if examine.units > 0 then
    local value = value_of(at)
    if value then examine.look(name, items[at], value) end
  else
    rest[#rest + 1] = items[at]
  end
end
return examine.told('cursor', cursor, 'rest', rest)
