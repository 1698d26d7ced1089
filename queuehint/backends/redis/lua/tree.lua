#!lua flags=no-writes,allow-oom
--[[ tree: live counts at a path and some levels below it.
  ARGV[9] path      str  the gate key; ARGV[10] depth int
  ARGV[11] after    str  the name after which the children of the path begin, as a path key writes it, "" for the first
  ARGV[12] limit    int  of these children
  Returns twelve values for each node (lib/asking/places), at most 1 000 and the first. It looks at 2 500 entries of indexes at
  most; what is cut has a cursor.
  Mirrors core.asking.places ]]
-- @include lib/questions
-- @include lib/structures/paths
-- @include lib/asking/running
-- @include lib/asking/places
local NODES_MAX, LOOKED_AT_MAX = 1000, 2500 -- @const
args.count(12)
local levels_below = math.min(args.int(10), 64)
local nodes, looked_at = 0, 0

-- Return an iterator over the names of the children of a place that have gates, or jobs that wait for signals, in order, after
-- *done*. `next` returns nil at the end, and false once LOOKED_AT_MAX entries were read. The index sorts by queue key, where other
-- names may stand between a place and its children ("a", "a!", "a:b"), so the gates of all prefixes that may come first are read
-- too.
local function names_below(key, level, done)
  local prefix = key == '' and '' or key .. ':'
  local last = key == '' and '' or key .. ';'
  local position = prefix .. (done ~= '' and done .. '\1' or key == '' and '\2' or '')
  local names = {done = done}
  local live, at, upto, is_over = {}, 1, done, false

  -- The names up to one that have gates or such jobs. The gate of the name "root" is not where the index has it.
  local function find(name)
    local from = 1
    while from <= #name and string.byte(name, from) == string.byte(names.done, from) do from = from + 1 end
    local some, wanted = {}, {}
    for length = from, #name - 1 do
      if string.byte(name, length + 1) < 58 then some[#some + 1] = string.sub(name, 1, length) end
    end
    some[#some + 1] = name
    if key == '' and form.less(names.done, 'root') and form.less('root', name) then
      some[#some + 1] = 'root'
      table.sort(some, form.less)
    end
    for index = 1, #some do wanted[index] = prefix .. some[index] end
    local found = gates.known(wanted)
    live, at, upto = {}, 1, name
    for index = 1, #some do
      if (found[index] or places.has_signal_waits(wanted[index])) and some[index] ~= some[index - 1] then live[#live + 1] = some[index] end
    end
  end

  function names.next()
    while true do
      if at <= #live then
        names.done, at = live[at], at + 1
        return names.done
      end
      names.done = upto
      if is_over then return nil end
      if looked_at >= LOOKED_AT_MAX then return false end
      looked_at = looked_at + 1
      local path = places.seek(position, last)
      if not path then
        is_over = true
        if key == '' and form.less(names.done, 'root') then find('root') end
      else
        local child = path ~= 'root' and form.claims('x' .. path)[1].keys[level + 2] or path
        position = child == path and path .. '\1' or child .. ';'
        local name = string.sub(child, #prefix + 1)
        if path ~= '\\root' and path ~= 'root' and form.less(names.done, name) then find(name) end
      end
    end
  end
  return names
end

local function subtree(key, level, depth, after, limit)
  local cursor = places.describe(key)
  local gate = gates.of(key)
  -- A gate that no claim has passed has none below.
  if depth == 0 or (gate[IS] + gate[IX] == 0 and not places.has_signal_waits_below(key)) then return end
  local names = names_below(key, level, after)
  local children, done = 0, after
  local name = names.next()
  while name and children < limit and nodes < NODES_MAX do
    children, nodes, done = children + 1, nodes + 1, name
    subtree(key == '' and name or key .. ':' .. name, level + 1, depth - 1, '', NODES_MAX)
    name = names.next()
  end
  if name == false then done = names.done end
  if name ~= nil then places.reply[cursor] = '+' .. done end
end

local keys = form.claims('x' .. ARGV[9])[1].keys
subtree(ARGV[9], #keys - 1, levels_below, ARGV[11], args.int(12, 1))
return places.reply
