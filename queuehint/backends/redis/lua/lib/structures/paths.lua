--[[ paths: unfinished jobs by path: PATHS holds queue key, NUL and sortable number, in lexical order; what has no place
  lies under NO_PLACE. HOLDS holds the same for dead jobs that hold their places, PAST for what has a place and is
  over, while its record is kept. From a number to the id leads INDEX (lib/formats/record_ids). ]]
local NO_PLACE = '\1' -- @const
local paths = {}

lazily(paths, function()
-- The member of a job with a sortable number.
function paths.member(gate_key, sortable)
  return (gate_key and form.queue_key(gate_key) or NO_PLACE) .. '\0' .. sortable
end

-- The range of PATHS at a path itself.
function paths.ranges_at(gate_key)
  local key = form.queue_key(gate_key)
  return {'[' .. key .. '\0', '(' .. key .. '\1'}
end

-- The ranges of PATHS at and below a path.
function paths.ranges(gate_key)
  if gate_key == '' then return {{'[\2', '+'}} end
  return {paths.ranges_at(gate_key), {'[' .. gate_key .. ':', '(' .. gate_key .. ';'}}
end

-- The queue key and the number of a member. Nothing stands behind its digits.
function paths.split(member)
  local nul = string.find(member, '\0', 1, true)
  return string.sub(member, 1, nul - 1), tonumber(string.sub(member, nul + 2))
end

local function number_of(member) return tonumber(string.sub(member, string.find(member, '\0', 1, true) + 2)) end

-- The ids of the jobs of some members, false where a number leads to none. Each field of INDEX is read once.
function paths.ids(members)
  local fields, at_of, places, ids = {}, {}, {}, {}
  for at = 1, #members do
    local number = number_of(members[at])
    local place = number % IDS_PER_FIELD
    local field = (number - place) / IDS_PER_FIELD
    if not at_of[field] then
      fields[#fields + 1] = record_ids.name(field)
      at_of[field] = #fields
    end
    places[at], ids[at] = place, at_of[field]
  end
  local stored = redis.call('HMGET', store.index, unpack(fields))
  for at = 1, #members do ids[at] = record_ids.at(stored[ids[at]], places[at]) or false end
  return ids
end

-- The id of a member of a set, where its number leads to one.
function paths.known_id(member, id, set)
  if not id then
    corrupt('number ' .. string.format('%d', number_of(member)) .. ' is named in ' .. set .. ' and has no id in ' .. store.index)
  end
  return id
end

-- Entries of a set in lexical order: (a function that returns) the next member of some ranges, after a cursor.
function paths.walk(set, ranges, at, cursor, chunk)
  local members, position, ids = {}, 1, nil
  local walk = {at = at, cursor = cursor}
  function walk.next()
    while true do
      if position <= #members then
        walk.cursor = members[position]
        position = position + 1
        return walk.cursor
      end
      local range = ranges[walk.at]
      if not range then return nil end
      local low = walk.cursor and '(' .. walk.cursor or range[1]
      members = redis.call('ZRANGEBYLEX', set, low, range[2], 'LIMIT', 0, chunk)
      position, ids = 1, nil
      if #members == 0 then
        walk.at, walk.cursor = walk.at + 1, false
      end
    end
  end
  -- The id that the number of the last member leads to, false for none; and its job.
  function walk.id()
    ids = ids or paths.ids(members)
    return ids[position - 1]
  end
  function walk.job() return jobs.known(paths.known_id(walk.cursor, walk.id(), set), set) end
  -- Go on behind a member that need not be there.
  function walk.jump(to)
    walk.cursor = to
    members, position = {}, 1
  end
  return walk
end
end)
