--[[ schedules: due times of schedules, and optimistic locking of their firings; mirrors core.schedules.
  SCHEDULES holds a packed array a name, SCHEDULE_NAMES the names in lexical order, SCHEDULE_DUES the due times in ms of those
  that are not paused and will be due. NEXT_SCHEDULE of the state is the first of these times, -1 for none, so that operations
  that do not concern schedules pay nothing for them. ]]
local VERSION_OF, NEXT_DUE, IS_PAUSED, LAST_DUE, LAST_FIRED, ASKED_HEAD, ASKED_SPEC, RECURRENCE = 1, 2, 3, 4, 5, 6, 7, 8 -- @const
local schedules = {}

lazily(schedules, function()
-- A schedule by its name; false if there is none.
function schedules.of(name)
  local packed = redis.call('HGET', store.schedules, name)
  return packed and cmsgpack.unpack(packed)
end

local changed, is_news = {}, false

-- Mark a schedule to be written by the commit; false deletes it.
function schedules.change(name, schedule)
  changed[name] = schedule
  if schedule then
    S[SCHEDULE_VERSIONS] = S[SCHEDULE_VERSIONS] + 1
    schedule[VERSION_OF] = S[SCHEDULE_VERSIONS]
  end
end

-- Set when a schedule is due; if that time has come already, wake a sleeping worker.
function schedules.set(name, schedule, next_ms)
  schedule[NEXT_DUE] = next_ms
  is_news = not schedule[IS_PAUSED] and next_ms and next_ms <= NOW
  schedules.change(name, schedule)
end

-- Parse a firing, a line each: the schedule's name, the version it was computed from, the due time of the last job, and when
-- it is due next; nil if the schedule has another version.
function schedules.firing(text)
  local name, version, last_ms, next_ms = string.match(text, '^(.-)\n(.-)\n(.-)\n(.*)$')
  version, last_ms = args.whole(version, 'firing'), args.whole(last_ms, 'firing', -INT_MAX)
  next_ms = next_ms ~= '' and args.whole(next_ms, 'firing', -INT_MAX)
  local schedule = schedules.of(name)
  if not schedule or schedule[VERSION_OF] ~= version then return nil end
  return {name, schedule, last_ms, next_ms}
end

function schedules.fire(firing, last_id)
  local schedule = firing[2]
  schedule[NEXT_DUE] = firing[4]
  if last_id then schedule[LAST_DUE], schedule[LAST_FIRED] = firing[3], last_id end
  schedules.change(firing[1], schedule)
end

function schedules.write()
  if not is_news and not next(changed) then return end
  for name, schedule in pairs(changed) do
    local next_ms = schedule and not schedule[IS_PAUSED] and schedule[NEXT_DUE]
    if schedule then
      if redis.call('HSET', store.schedules, name, cmsgpack.pack(schedule)) == 1 then
        S[SCHEDULES] = S[SCHEDULES] + 1
        redis.call('ZADD', store.schedule_names, '0', name)
      end
    else
      S[SCHEDULES] = S[SCHEDULES] - redis.call('HDEL', store.schedules, name)
      redis.call('ZREM', store.schedule_names, name)
    end
    if next_ms then redis.call('ZADD', store.schedule_dues, string.format('%.0f', next_ms), name)
    else redis.call('ZREM', store.schedule_dues, name) end
  end
  if is_news then redis.call('ZADD', store['wake:timer'], '0', '1') end
  S[NEXT_SCHEDULE] = tonumber(redis.call('ZRANGE', store.schedule_dues, 0, 0, 'WITHSCORES')[2]) or -1
end

-- When the next schedule comes to be due, false if none does; one that is due already waits for nothing.
function schedules.next_ms()
  if S[NEXT_SCHEDULE] > NOW then return S[NEXT_SCHEDULE] end
  local above = string.format('(%.0f', NOW)
  return tonumber(redis.call('ZRANGEBYSCORE', store.schedule_dues, above, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)[2]) or false
end

-- Describe a schedule: name, version, next, whether it is paused, last due time, last fired, head, spec, recurrence.
function schedules.told(name)
  local schedule = schedules.of(name)
  if not schedule then corrupt('schedule ' .. name .. ' is not in ' .. store.schedules) end
  local function text(number) return number and string.format('%.0f', number) or '' end
  return {
    name, text(schedule[VERSION_OF]), text(schedule[NEXT_DUE]), schedule[IS_PAUSED] and '1' or '0', text(schedule[LAST_DUE]),
    schedule[LAST_FIRED] or '', schedule[ASKED_HEAD], schedule[ASKED_SPEC], schedule[RECURRENCE],
  }
end
end)
