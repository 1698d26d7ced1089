#!lua flags=allow-oom
--[[ follow: read the next events; for a minute after each such question events are kept.
  ARGV[9] after     int  the last event seen, "" to begin now; ARGV[10] limit int
  Returns more, now, next, the number of the last event of all, that of the first of these, how many before it are gone,
  then the events, in lines: kind, time, states before and now ("-" none), number, attempts, ms it took ("" unknown), pool,
  user, id, cause.
  Mirrors core.questions   May be run twice ]]
-- @include lib/rules
args.count(10)
local FOLLOWED_FOR_MS = 60000 -- @const
local after, limit, last = args.int_or_none(9), args.int(10), S[JOURNAL]
local kept = 0
if S[FOLLOWED] >= NOW then kept = redis.call('LLEN', store.events) else event_log.drops = true end
S[FOLLOWED] = NOW + FOLLOWED_FOR_MS
local first, missed, found = last + 1, 0, {}
if after then
  if after > last then after = 0 end
  local oldest = last - kept + 1
  first, missed = math.max(after + 1, oldest), math.max(0, oldest - after - 1)
  if first <= last then found = redis.call('LRANGE', store.events, first - oldest, first - oldest + limit - 1) end
end
local rest = {last, first, missed}
for at = 1, #found do rest[#rest + 1] = found[at] end
return request.reply(rest)
