#!lua flags=allow-oom
--[[ drop_schedule: forget a schedule.
  KEYS[1] root      str  namespace root with its hash tag, "{qh:default}"; lib/request/keys builds every other key from it
  KEYS[2] meta      str  the only key that always exists: see conversation.py
  ARGV[1] now_ms    int  the time, for tests only; "" asks the server
  ARGV[2] lane      str  the session the request belongs to, "" for none; ARGV[3] request int, its number there
  ARGV[4..7]        int  how long records are kept: finished, failed, canceled, with a service; ms
  ARGV[8] budget    int  units of following work
  ARGV[9] name      str
  Returns more, now, next, 1 if this changed anything.   Mirrors core.schedules ]]
-- @include lib/rules
args.count(9)
local is_there = redis.call('HEXISTS', store.schedules, ARGV[9])
if is_there == 1 then schedules.change(ARGV[9], false) end
work.follow()
return request.reply('drop_schedule', {is_there})
