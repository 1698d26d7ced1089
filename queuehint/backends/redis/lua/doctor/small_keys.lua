#!lua flags=no-writes,allow-oom
--[[ small_keys: for the doctor, check the entries of several keys of one type, as entries does of one.
  ARGV[9] type; ARGV[10] count, of entries that are looked at; ARGV[11..] names of keys, by their prefixes
  Returns names, each with its value: done, how many keys were passed, in their order; large, of these the names of those that have more
    entries than *count*: they were not looked at; and problems, gates, tallies, running and greatest as entries does. ]]
-- @include doctor/lib/rules
-- @include doctor/lib/examine_entries
args.count(10, 1)
local kind, count = args.one_of(9, {hash = true, zset = true}), args.int(10, 1)
local large, done, looked_at = {}, 0, 0
for at = 11, #ARGV do
  local name = ARGV[at]
  local size
  if kind == 'hash' then size = redis.call('HLEN', store[name]) else size = redis.call('ZCARD', store[name]) end
  if size > count then
    large[#large + 1] = name
  else
    if looked_at + size > count then break end
    local stored
    if kind == 'hash' then stored = redis.call('HGETALL', store[name])
    else stored = redis.call('ZRANGE', store[name], 0, count - 1, 'WITHSCORES') end
    for item = 1, #stored, 2 do examine.look(name, stored[item], stored[item + 1]) end
    looked_at = looked_at + size
  end
  done = done + 1
end
return examine.told('done', done, 'large', large)
