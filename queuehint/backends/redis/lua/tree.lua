#!lua flags=no-writes,allow-oom
--[[ tree: live counts at a path and some levels below it.
  ARGV[9] path      str  the gate key; ARGV[10] depth int
  Returns for each node, at most 1 000 and the first, its gate key, and started, started below, waiting, granted, passing,
  paused, closed, dead.
  Mirrors core.why ]]
-- @include lib/questions
-- @include lib/structures/paths
-- @include lib/asking/running
local NODES_MAX = 1000 -- @const
args.count(10)
local levels_below = math.min(args.int(10), 64)
local reply, nodes = {}, 0
local here, at_or_below = {}, {}

each_running(function(claim)
  local own = claim.keys[#claim.keys]
  here[own] = (here[own] or 0) + 1
  for _, key in ipairs(claim.keys) do at_or_below[key] = (at_or_below[key] or 0) + 1 end
end)

local has_holds = redis.call('ZCARD', store.holds) > 0

-- How many claims at a place are held by dead jobs.
local function count_dead(key)
  return has_holds and redis.call('ZLEXCOUNT', store.holds, unpack(paths.ranges_at(key))) or 0
end

local function describe(key)
  local gate = gates.of(key)
  for _, value in ipairs({key, here[key] or 0, at_or_below[key] or 0, gate[WAITING], gate[S_MODE] + gate[X_MODE], gate[IS] + gate[IX],
    redis.call('HEXISTS', store.pauses, key), redis.call('HEXISTS', store.closed, key), count_dead(key)}) do
    reply[#reply + 1] = value
  end
end

local function subtree(key, depth)
  describe(key)
  if depth == 0 then return end
  local prefix = key == '' and '' or key .. ':'
  local children = {}
  for _, set in ipairs({store.paths, store.holds}) do
    local looked_at = 0
    local ranges = prefix == '' and {{'[\2', '+'}} or {{'[' .. prefix, '(' .. key .. ';'}}
    local walk = paths.walk(set, ranges, 1, false, 1)
    local member = walk.next()
    local _, level = string.gsub((string.gsub(prefix, '\\.', '')), ':', '')
    while member and looked_at < NODES_MAX * 2 do
      looked_at = looked_at + 1
      local path = paths.split(member)
      local keys = form.claims('x' .. (path == 'root' and '' or path == '\\root' and 'root' or path))[1].keys
      local child = keys[level + 2]
      if child then
        if redis.call('HEXISTS', store.gates, child) == 1 then children[child] = true end
        -- On behind all that is at this child; what is below it comes where ":" sorts.
        if path == form.queue_key(child) then walk.jump(path .. '\1') else walk.jump(child .. ':\255') end
      end
      member = walk.next()
    end
  end
  local sorted = {}
  for child in pairs(children) do sorted[#sorted + 1] = child end
  table.sort(sorted, form.less)
  for _, child in ipairs(sorted) do
    if nodes >= NODES_MAX then return end
    nodes = nodes + 1
    subtree(child, depth - 1)
  end
end

subtree(ARGV[9], levels_below)
return reply
