--[[ places: live counts at a place, as ten values of a flat list: its gate key, started, started below, waiting, granted,
  passing, paused, closed, dead, and the cursor of its children, "" for none and else behind a "+".
  Cost O(executing jobs) once, O(1) a place. ]]
local places = {reply = {}}
local has_holds = redis.call('ZCARD', store.holds) > 0
local indexes_of_gates = has_holds and {store.paths, store.holds} or {store.paths}

-- The first path, as its queue key, from a position in the indexes on: of jobs that are unfinished or dead and hold their places.
function places.seek(position, last)
  local first
  for _, set in ipairs(indexes_of_gates) do
    local member = redis.call('ZRANGEBYLEX', set, '[' .. position, last, 'LIMIT', 0, 1)[1]
    if member and (not first or form.less(member, first)) then first = member end
  end
  return first and paths.split(first)
end

lazily(places, function()
local here, at_or_below = {}, {}

each_running(function(claim)
  local own = claim.keys[#claim.keys]
  here[own] = (here[own] or 0) + 1
  for _, key in ipairs(claim.keys) do at_or_below[key] = (at_or_below[key] or 0) + 1 end
end)

-- How many claims at a place are held by dead jobs.
local function count_dead(key)
  return has_holds and redis.call('ZLEXCOUNT', store.holds, unpack(paths.ranges_at(key))) or 0
end

-- Describe a place; return where its cursor belongs in the reply.
function places.describe(key)
  local gate, reply = gates.of(key), places.reply
  for _, value in ipairs({key, here[key] or 0, at_or_below[key] or 0, gate[WAITING], gate[S_MODE] + gate[X_MODE], gate[IS] + gate[IX],
    redis.call('HEXISTS', store.pauses, key), redis.call('HEXISTS', store.closed, key), count_dead(key), ''}) do
    reply[#reply + 1] = value
  end
  return #reply
end
end)
