--[[ reply: commit a plan, store the receipt of the request, and return the reply. ]]
local SESSION_KEPT_MS, POOL_SEEN_MS = 600000, 60000 -- @const
local FORGET_EVERY_MS, FORGOTTEN_AT_ONCE = 1000, 100 -- @const

-- The first of the sessions that have been silent for long; the next request reads on.
local function silent_sessions()
  local silent = redis.call('ZRANGEBYSCORE', store.sessions, '-inf', string.format('(%d', NOW - SESSION_KEPT_MS), 'LIMIT', 0, FORGOTTEN_AT_ONCE)
  if #silent < FORGOTTEN_AT_ONCE then S[FORGOTTEN_AT] = NOW end
  return silent
end

-- At most so many pools and users are forgotten at once where users have markers.
local SEEN_MAX = 1000

-- Forget sessions, and pools and users that no worker has asked for lately, with the markers of these users.
local function forget(sessions, has_users)
  for _, session in ipairs(sessions) do
    -- The session of this request is not silent any more.
    if session ~= request.stream then
      redis.call('UNLINK', store.session_wake(session))
      redis.call('HDEL', store.receipts, session)
      redis.call('ZREM', store.sessions, session)
    end
  end
  local before = string.format('(%d', NOW - POOL_SEEN_MS)
  if has_users then
    for _, served in ipairs(redis.call('ZRANGEBYSCORE', store.seen, '-inf', before, 'LIMIT', 0, SEEN_MAX)) do
      if string.find(served, '\0', 1, true) then redis.call('UNLINK', store.user_wake(served)) end
      redis.call('ZREM', store.seen, served)
    end
  else
    redis.call('ZREMRANGEBYSCORE', store.seen, '-inf', before)
  end
end

-- Commit a plan and reply: whether anything is left over, the time, when something is due next (-1 never), and the rest.
-- Only a worker that claims sleeps until something is due; a tick may come from a producer that leaves.
function request.reply(rest, granted, specs, sleeps)
  local more, left_over = work.more(), work.any_left()
  local silent, has_users = NOW - S[FORGOTTEN_AT] >= FORGET_EVERY_MS and silent_sessions(), S[USERS_SEEN] > 0
  -- The last of them is forgotten now: from here on no marker of a user is left.
  if silent and has_users and S[USERS_SEEN] < NOW - POOL_SEEN_MS and redis.call('ZCARD', store.seen) <= SEEN_MAX then
    S[USERS_SEEN] = 0
  end
  local next_ms = plan.commit(sleeps)
  if left_over then
    next_ms = NOW
    if request.leaves_work then redis.call('ZADD', store['wake:timer'], '0', '1') end
  end
  local reply = {more and 1 or 0, NOW, next_ms}
  for at = 1, #rest do reply[#reply + 1] = rest[at] end
  if silent then forget(silent, has_users) end
  return request.told(reply, granted, specs)
end

