#!lua flags=allow-oom
--[[ retain: store the retention of this namespace, as set by one of its processes.
  ARGV[9] stated    str  finished, failed, canceled, with a service or "-", ms; name and ms of single services in lines behind them
  ARGV[10] wins     int  1 to replace a stored one, 0 to keep it
  Returns the retention stored before, "" if none.   Cost O(1) ]]
-- @include lib/request/keys
-- @include lib/request/arguments
args.count(10)
local wins = args.flag(10)
local finished, failed, canceled, of_services = string.match(ARGV[9], '^(%d+) (%d+) (%d+) ([%d-].*)$')
for _, text in ipairs({finished or '', failed, canceled}) do args.whole(text, 9) end
args.check_kept(of_services, 9)
local before = redis.call('HGET', store.meta, 'retention') or ''
if before ~= ARGV[9] and (before == '' or wins) then redis.call('HSET', store.meta, 'retention', ARGV[9]) end
return before
