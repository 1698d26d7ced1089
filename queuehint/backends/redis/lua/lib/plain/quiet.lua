--[[ quiet: whether a step has no work besides its request, so that it needs no plans and modules. ]]
-- @include lib/request/begin
-- Return whether nothing is due or left over, and there are no subscribers, no limits and no users with workers of their own.
local function is_quiet()
  return S[LEFT_STORED] == 0 and S[LIMITS] == 0 and S[FOLLOWED] == 0 and S[USERS_SEEN] == 0
    and NOW - S[FORGOTTEN_AT] < FORGET_EVERY_MS
    and (S[NEXT_TIMER] > NOW or S[NEXT_TIMER] < 0) and (S[NEXT_LEASE] > NOW or S[NEXT_LEASE] < 0)
    and (S[NEXT_PRUNE] > NOW or S[NEXT_PRUNE] < 0) and (S[NEXT_SCHEDULE] > NOW or S[NEXT_SCHEDULE] < 0)
    and (S[NEXT_SHARED] > NOW or S[NEXT_SHARED] < 0)
end

local DUES = {NEXT_TIMER, NEXT_LEASE, NEXT_PRUNE, NEXT_SCHEDULE}

-- Return when something is due next, -1 for never; wake workers that sleep until a later time, as at the end of `plan.commit`.
local function next_due(tells)
  local next_ms = -1
  for at = 1, #DUES do
    local time_ms = S[DUES[at]]
    if time_ms >= 0 and (next_ms < 0 or time_ms < next_ms) then next_ms = time_ms end
  end
  local news_ms, told_ms = next_ms, S[TOLD_NEXT]
  if tells then news_ms = S[NEXT_TIMER] end
  if news_ms >= 0 and (told_ms < 0 or news_ms < told_ms or told_ms < NOW - (tells and COMES_WITHIN_MS or 0)) then
    redis.call('ZADD', store['wake:timer'], '0', '1')
    tells = true
  end
  if tells then S[TOLD_NEXT] = next_ms end
  return next_ms
end
