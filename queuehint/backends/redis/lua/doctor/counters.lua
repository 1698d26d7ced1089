#!lua flags=no-writes,allow-oom
--[[ counters: the state of the namespace, and figures that the doctor compares with it.
  Returns names, each with its value:
    packed, the state as it is stored; is, one of kept, none, lost and damaged, said of the state; now, the server's time;
    clock, the state's time;
    changes, how many steps have changed a job; counters, names and values; a limit on unfinished jobs has one named "unfinished:" and its
    field;
    sizes, names of keys with the number of their entries; next_schedule, next_timer, next_lease, next_prune and next_shared, the
    first due times of their keys; limits, the number of limits on starts and of those that count jobs of a task or a pool;
    watched, the number of limits on unfinished jobs; users_seen, when a worker last asked for jobs at all, 0 if none did lately. ]]
-- @include doctor/lib/rules
-- @include doctor/lib/examine_heads
args.count(8)
local counters, sizes = {}, {}
local function add(list, name, number)
  list[#list + 1] = name
  list[#list + 1] = examine.int(number)
end
for name, at in pairs(examine.counted) do add(counters, name, S[at]) end
for name, at in pairs(examine.others) do add(counters, name, S[at]) end
examine.each_count(function(name, number) add(counters, name, number) end)
for _, name in ipairs({'jobs', 'specs', 'results', 'progress', 'needs', 'shared', 'schedules'}) do
  add(sizes, name, redis.call('HLEN', store[name]))
end
add(sizes, 'next_schedule', redis.call('ZRANGE', store.schedule_dues, 0, 0, 'WITHSCORES')[2] or -1)
for name, key in pairs({next_timer = store.timers, next_lease = store.leases, next_prune = store.prunes, next_shared = store.shared_ends}) do
  add(sizes, name, redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')[2] or -1)
end
local holding_back, watched = examine.count_limits()
add(sizes, 'limits', holding_back)
add(sizes, 'watched', watched)
add(sizes, 'pauses', redis.call('HLEN', store.pauses) + redis.call('HLEN', store.selections))
add(sizes, 'weights', redis.call('HLEN', store.weights))
add(sizes, 'closed', redis.call('HLEN', store.closed))
add(sizes, 'refused', redis.call('HLEN', store.refused))
add(sizes, 'users_seen', redis.call('ZRANGE', store.seen, -1, -1, 'WITHSCORES')[2] or 0)
add(sizes, 'left', redis.call('LLEN', store.left))
add(sizes, 'gates', redis.call('HLEN', store.gates))
for _, name in ipairs({'paths', 'holds', 'past', 'timers', 'leases', 'prunes', 'ready', 'parked', 'dead', 'keyed', 'deferred', 'fallen', 'flow_jobs',
  'flow_states'}) do
  add(sizes, name, redis.call('ZCARD', store[name]))
end
-- The rules' time never goes back; the server's may.
local now_ms = NOW
if ARGV[1] == '' then
  local time = redis.call('TIME')
  now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
end
return {
  'packed', stand_in.packed, 'is', stand_in.state, 'now', examine.int(now_ms), 'clock', examine.int(stand_in.clock),
  'changes', examine.int(S[CHANGES]),
  'counters', counters, 'sizes', sizes,
}
