--[[ places: live counts at a place, as twelve values of a flat list: its gate key, started, started below, waiting, granted,
  passing, paused, closed, dead, claims that wait for signals and those at or below, and the cursor of its children, "" for
  none and else behind a "+".
  Cost O(executing jobs) and O(1 000 jobs that wait for others, with 4 000 edges) once, O(1) a place. ]]
-- @include lib/asking/deferred
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
local running, signals = {here = {}, below = {}}, {here = {}, below = {}}
local has_pauses, has_closed = redis.call('HLEN', store.pauses) > 0, redis.call('HLEN', store.closed) > 0

-- Count a claim at its place, and at each place that it is at or below.
local function count(counts, claim)
  local own = claim.keys[#claim.keys]
  counts.here[own] = (counts.here[own] or 0) + 1
  for _, key in ipairs(claim.keys) do counts.below[key] = (counts.below[key] or 0) + 1 end
end

each_running(function(claim) count(running, claim) end)
local waiting = edges.waiting_for_signals()
jobs.prefetch(waiting)
for _, id in ipairs(waiting) do
  for _, claim in ipairs(form.claims(jobs.known(id, store.deferred)[CLAIMS])) do count(signals, claim) end
end

-- Whether claims at or below a place wait for signals.
function places.has_signal_waits(key) return signals.below[key] ~= nil end

-- Whether claims below a place do.
function places.has_signal_waits_below(key) return (signals.below[key] or 0) > (signals.here[key] or 0) end

-- How many claims at a place are held by dead jobs.
local function count_dead(key)
  return has_holds and redis.call('ZLEXCOUNT', store.holds, unpack(paths.ranges_at(key))) or 0
end

-- Describe a place; return where its cursor belongs in the reply.
function places.describe(key)
  local gate, reply = gates.of(key), places.reply
  for _, value in ipairs({key, running.here[key] or 0, running.below[key] or 0, gate[WAITING], gate[S_MODE] + gate[X_MODE], gate[IS] + gate[IX],
    has_pauses and redis.call('HEXISTS', store.pauses, key) or 0, has_closed and redis.call('HEXISTS', store.closed, key) or 0,
    count_dead(key), signals.here[key] or 0, signals.below[key] or 0, ''}) do
    reply[#reply + 1] = value
  end
  return #reply
end
end)
