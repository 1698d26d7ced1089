#!lua flags=no-writes,allow-oom
--[[ due_schedules: read schedules that are due, in order of due time.
  ARGV[9] limit     int
  ARGV[10] after_ms int  the due time of the schedule after which to begin, "" to begin with the first; ARGV[11] after str its name
  Returns now, "", and the schedules (lib/structures/schedules).
  Mirrors core.asking.questions ]]
-- @include lib/questions
-- @include lib/structures/schedules
args.count(11)
local reply, left, after = {NOW, ''}, args.int(9), ARGV[10]

local function tell(least, most, offset)
  for _, name in ipairs(redis.call('ZRANGEBYSCORE', store.schedule_dues, least, most, 'LIMIT', offset, left)) do
    reply[#reply + 1] = schedules.told(name)
    left = left - 1
  end
end

local now, least = string.format('%.0f', NOW), '-inf'
local after_ms = args.int_or_none(10, -INT_MAX)
if after_ms and after_ms <= NOW then
  -- Those due at once stand in order of name: halve to the first one behind the place.
  local first, last = 0, S[SCHEDULES]
  while first < last do
    local middle = math.floor((first + last) / 2)
    local name = redis.call('ZRANGEBYSCORE', store.schedule_dues, after, after, 'LIMIT', middle, 1)[1]
    if not name or form.less(ARGV[11], name) then last = middle else first = middle + 1 end
  end
  tell(after, after, first)
end
if after ~= '' then least = '(' .. after end
tell(least, now, 0)
return reply
