#!lua flags=allow-oom
--[[ turn_back: for the doctor, set the time of a namespace back to the server's, whose clock was ahead and was put right.
  Returns by how much time was set back, ms, 0 if it was not ahead, and how many jobs come due earlier.
  Times computed by the clock that was ahead would come due too late. So a lease ends no later than the longest one granted
  now would, and a delay or a pause that was counted from that clock is counted from now. A time that was named (run_at) stays.
  Pools and users that were asked for by that clock were asked for now, so that they are forgotten a minute from now.
  Cost O(leases, timers that are not due, and pools and users) ]]
-- @include lib/rules
args.count(8)
local now_ms = tonumber(ARGV[1])
if not now_ms then
  local time = redis.call('TIME')
  now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
end
local ahead_ms = NOW - now_ms
if ahead_ms <= 0 then return {0, 0} end
local moved = 0

local function each_after(key, from_ms, call)
  local offset = 0
  repeat
    local page = redis.call('ZRANGEBYSCORE', key, string.format('(%.0f', from_ms), '+inf', 'LIMIT', offset, 1000)
    for _, member in ipairs(page) do
      local _, id = form.split(member, 2)
      local kind = string.sub(member, 1, 1)
      if kind == RESUME then pauses.turn_back(id, ahead_ms, now_ms)
      elseif call(jobs.known(id, key), kind) then moved = moved + 1 end
    end
    offset = offset + #page
  until #page == 0
end

-- A time that was named stands in the first line of a spec.
local function is_named(job)
  return string.find(string.match(heads.spec(job), '^[^\n]*'), '"run_at_ms":', 1, true)
end

-- Whether a job's timer was worked out by a clock that was ahead: of an attempt, or of an enqueue.
local function is_ahead(job)
  if job[STARTED_AT] then return job[STARTED_AT] > now_ms end
  return job[ENQUEUED] > now_ms
end

local function earlier(time_ms) return math.max(now_ms, time_ms - ahead_ms) end

local until_ms = now_ms + math.max(S[LEASE_MAX], S[LEASE_MAX_BEFORE])
each_after(store.leases, now_ms, function(job)
  if job[TIMER] ~= LEASE then return false end
  local end_ms = is_ahead(job) and earlier(job[TIMER_MS]) or math.min(job[TIMER_MS], until_ms)
  if end_ms >= job[TIMER_MS] then return false end
  timers.set(job, LEASE, end_ms)
  return true
end)

each_after(store.timers, now_ms, function(job, kind)
  if not is_ahead(job) then return false end
  if kind == EXPIRY then
    if not job[EXPIRY_MS] or job[EXPIRY_MS] <= now_ms then return false end
    timers.set_expiry(job, earlier(job[EXPIRY_MS]))
  else
    if job[TIMER] ~= DUE or job[TIMER_MS] <= now_ms or not job[STARTED_AT] and is_named(job) then return false end
    if job[DUE_AT] then job[DUE_AT] = earlier(job[DUE_AT]) end
    timers.set(job, DUE, earlier(job[TIMER_MS]))
  end
  return true
end)
repeat
  local seen = redis.call('ZRANGEBYSCORE', store.seen, string.format('(%.0f', now_ms), '+inf', 'LIMIT', 0, 1000)
  for _, served in ipairs(seen) do redis.call('ZADD', store.seen, now_ms, served) end
until #seen == 0
if S[LIMITS] > 0 then limits.turn_back(now_ms) end
S[CLOCK], S[MEMORY_SEEN], S[FORGOTTEN_AT], S[TOLD_NEXT] = now_ms, 0, 0, -1
S[REAP_FROM], S[LEASES_SINCE] = math.min(S[REAP_FROM], until_ms), math.min(S[LEASES_SINCE], now_ms)
S[USERS_SEEN] = math.min(S[USERS_SEEN], now_ms)
plan.commit()
return {ahead_ms, moved}
