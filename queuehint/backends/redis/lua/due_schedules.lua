#!lua flags=no-writes,allow-oom
--[[ due_schedules: read schedules that are due, those due first first.
  KEYS[1] root      str  namespace root with its hash tag, "{qh:default}"; lib/keys builds every other key from it
  KEYS[2] meta      str  the only key that always exists: see conversation.py
  ARGV[1] now_ms    int  the time, for tests only; "" asks the server
  ARGV[2..8]             not used: as for changes
  ARGV[9] limit     int
  Returns now, "", and the schedules (lib/schedules).   Mirrors core.timetable ]]
-- @include lib/questions
-- @include lib/schedules
local reply = {NOW, ''}
for _, name in ipairs(redis.call('ZRANGEBYSCORE', store.schedule_dues, '-inf', string.format('%.0f', NOW), 'LIMIT', 0, ARGV[9])) do
  reply[#reply + 1] = schedules.told(name)
end
return reply
