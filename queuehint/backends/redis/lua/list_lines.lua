#!lua flags=no-writes,allow-oom
--[[ list_lines: one page of the places below a path where claims wait, the longest lines of the page first.
  ARGV[9] path      str  the gate key; ARGV[10] depth int, levels below it
  ARGV[11] after    str  the cursor of the page before, "" for the first; ARGV[12] limit int
  ARGV[13] longer_than int  only lines of more claims than this
  ARGV[14] longest  int  1 for one page of the longest lines of all: of the first of CROWDS, and where these are too few, of
                    the first paths
  Returns the cursor, "" for none, and twelve values for each place (lib/asking/places).
  Mirrors core.asking.places   Cost O(1 000 lines), O(1 000 paths of jobs with places, of deep ones 6 000 gates), and
  O(executing jobs) if there are such lines ]]
-- @include lib/questions
-- @include lib/structures/paths
-- @include lib/asking/running
-- @include lib/asking/places
local LOOKED_AT_MAX, GATES_MAX = 1000, 6000 -- @const
args.count(14)
local key, limit, longer_than = ARGV[9], args.int(12, 1), args.int(13)
local levels = #form.claims('x' .. key)[1].keys - 1
local deepest = levels + args.int(10, 1)

-- The gates that a path in the index passes.
local function gates_on(path)
  if path == 'root' then return {''} end
  return form.claims('x' .. (path == '\\root' and 'root' or path))[1].keys
end

-- Where the index goes on behind a path, or behind all that is below the deepest place that it passes.
local function behind(path)
  local keys = path == 'root' and {''} or form.claims('x' .. path)[1].keys
  return #keys > deepest + 1 and keys[deepest + 1] .. ';' or path .. '\1'
end

local lines, seen, wanted, passed = {}, {}, {}, 0

local function want(gate_key)
  if not seen[gate_key] then
    seen[gate_key] = true
    wanted[#wanted + 1] = gate_key
  end
end

-- Look at the lengths of the lines wanted.
local function look()
  for from = 1, #wanted, LOADED_AT_ONCE do
    local to = math.min(from + LOADED_AT_ONCE - 1, #wanted)
    for at, packed in ipairs(redis.call('HMGET', store.gates, unpack(wanted, from, to))) do
      local waiting = gate_format.read(packed)[WAITING]
      if waiting > longer_than then lines[#lines + 1] = {waiting, wanted[from + at - 1]} end
    end
  end
  wanted = {}
end

local is_longest = args.flag(14)
if is_longest then
  if ARGV[11] ~= '' then args.refuse(11) end
  local below = key == '' and '' or key .. ':'
  for _, gate_key in ipairs(redis.call('ZRANGE', store.crowds, 0, LOOKED_AT_MAX - 1, 'REV')) do
    local depth = #form.claims('x' .. gate_key)[1].keys - 1
    if depth > levels and depth <= deepest and string.sub(gate_key, 1, #below) == below then want(gate_key) end
  end
  look()
end

local position = ARGV[11] ~= '' and behind(ARGV[11]) or key == '' and '\2' or key .. ':'
local last = key == '' and '' or key .. ';'
local cursor = ARGV[11]
for looked_at = 1, is_longest and #lines >= limit and 0 or LOOKED_AT_MAX + 1 do
  local path = places.seek(position, last)
  if not path then
    cursor = ''
    break
  end
  if looked_at > LOOKED_AT_MAX or passed >= GATES_MAX then break end
  cursor = path
  local keys = gates_on(cursor)
  passed = passed + #keys
  for level = levels + 2, math.min(#keys, deepest + 1) do
    want(keys[level])
  end
  position = behind(cursor)
end

look()
table.sort(lines, function(one, other)
  if one[1] ~= other[1] then return one[1] > other[1] end
  return form.less(form.queue_key(one[2]), form.queue_key(other[2]))
end)
local reply = places.reply
reply[1] = is_longest and '' or cursor
for at = 1, math.min(limit, #lines) do places.describe(lines[at][2]) end
return reply
