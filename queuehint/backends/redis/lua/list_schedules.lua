#!lua flags=no-writes,allow-oom
--[[ list_schedules: read a page of schedules, in order of name.
  ARGV[9] first     str  the name from which the page begins; ARGV[10] limit int
  Returns now, the name from which the next page begins, "" at the end, and the schedules (lib/structures/schedules).
  Mirrors core.asking.questions ]]
-- @include lib/questions
-- @include lib/structures/schedules
args.count(10)
local limit = args.int(10)
local names = redis.call('ZRANGEBYLEX', store.schedule_names, '[' .. ARGV[9], '+', 'LIMIT', 0, limit + 1)
local reply = {NOW, names[limit + 1] or ''}
for at = 1, math.min(#names, limit) do reply[#reply + 1] = schedules.told(names[at]) end
return reply
