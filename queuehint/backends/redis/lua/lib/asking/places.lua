--[[ places: live counts at a place, as ten values of a flat list: its gate key, started, started below, waiting, granted,
  passing, paused, closed, dead, and the cursor of its children, "" for none and else behind a "+".
  Cost O(executing jobs) once, O(1) a place. ]]
local places = {reply = {}}
local has_holds = redis.call('ZCARD', store.holds) > 0
local indexes_of_gates = has_holds and {store.paths, store.holds} or {store.paths}
local sought, found, found_path = nil, nil, nil

-- Return the first path, as its queue key, at or after a position in the indexes and before *last* ("" for the end), of jobs
-- that are unfinished or dead and hold their places. The last answer is reused for positions between its own and the one asked for.
function places.seek(position, last)
  if not sought or form.less(position, sought) or (found and form.less(found, position)) then
    sought, found, found_path = position, false, false
    for _, set in ipairs(indexes_of_gates) do
      local member = redis.call('ZRANGEBYLEX', set, '[' .. position, '+', 'LIMIT', 0, 1)[1]
      if member and (not found or form.less(member, found)) then found = member end
    end
    if found then found_path = paths.split(found) end
  end
  return found and (last == '' or form.less(found, last)) and found_path or nil
end

lazily(places, function()
local here, at_or_below = {}, {}
local has_pauses, has_closed = redis.call('HLEN', store.pauses) > 0, redis.call('HLEN', store.closed) > 0

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
    has_pauses and redis.call('HEXISTS', store.pauses, key) or 0, has_closed and redis.call('HEXISTS', store.closed, key) or 0,
    count_dead(key), ''}) do
    reply[#reply + 1] = value
  end
  return #reply
end
end)
