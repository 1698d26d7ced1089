#!lua flags=allow-oom
--[[ announce: register a worker with the pools, users and tasks that it serves, or sign it off.
  ARGV[9] worker    str  ARGV[10] info opaque, which list_workers returns; ARGV[11] gone int 1 if it leaves
  ARGV[12] release  str  ARGV[13] version str, "" for none; ARGV[14] users str, as of `exchange`, those it helps among them, ""
  for everyone; ARGV[15..] pools
  Returns more, now, next, D done or U if it leaves and was not known, 1 if it was not known, the newest token.
  Mirrors core.working   Cost O(1), for a new worker O(workers) ]]
-- @include lib/rules
args.count(14, 1)
local name, gone = ARGV[9], args.flag(11)
local known, dropped = workers.of(name), {}
if not known then dropped = workers.to_drop(not gone) end
-- A store that has lost data tells so by its epoch, which begins here if no lease was given since.
epoch.know()
local token = string.format('%d.%d', S[EPOCH], S[GRANTS])
local pools = {unpack(ARGV, 15)}
local told = {ARGV[10], known and known[SINCE_AT] or NOW, NOW, ARGV[12], ARGV[13], ARGV[14], table.concat(pools, '\n')}
if not gone and not (known and known[4] == ARGV[12]) then
  local users = workers.users_of({name, unpack(told)})
  ready_queue.mark_refused(ARGV[12], pools, users and {users} or {})
end
local reply = request.reply({gone and not known and 'U' or 'D', known and 0 or 1, token})
for at = 1, #dropped do redis.call('HDEL', store.workers, dropped[at]) end
if gone then redis.call('HDEL', store.workers, name)
else redis.call('HSET', store.workers, name, cmsgpack.pack(told)) end
return reply
