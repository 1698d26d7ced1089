--[[ paths: unfinished jobs by path: PATHS holds queue key, NUL, sortable number and id, in lexical order; what has no
  place lies under NO_PLACE. HOLDS holds the same for dead jobs that hold their places, PAST for what has a place and is
  over, while its record is kept. ]]
local NO_PLACE = '\1' -- @const
local paths = {}

lazily(paths, function()
function paths.member(gate_key, job)
  return (gate_key and form.queue_key(gate_key) or NO_PLACE) .. '\0' .. form.tag(job)
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

function paths.split(member)
  local nul = string.find(member, '\0', 1, true)
  local number, id = form.split(member, nul + 1)
  return string.sub(member, 1, nul - 1), number, id
end

-- Entries of a set in lexical order: (a function that returns) the next member of some ranges, after a cursor.
function paths.walk(set, ranges, at, cursor, chunk)
  local members, position = {}, 1
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
      position = 1
      if #members == 0 then
        walk.at, walk.cursor = walk.at + 1, false
      end
    end
  end
  -- Go on behind a member that need not be there.
  function walk.jump(to)
    walk.cursor = to
    members, position = {}, 1
  end
  return walk
end
end)
