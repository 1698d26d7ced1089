--[[ reply: commit a plan, put down its receipt, and answer. ]]
local SESSION_SEEN_MS, SESSION_KEPT_MS = 60000, 600000 -- @const

-- Put down what a request is repeated from, and what an audit compares.
local function conclude(name, reply, granted)
  if LANE ~= '' then
    local seen_ms = receipt_seen_ms
    if not seen_ms or NOW - seen_ms >= SESSION_SEEN_MS then
      seen_ms = NOW
      redis.call('ZADD', SESSIONS, NOW, LANE)
    end
    redis.call('HSET', RECEIPTS, LANE, string.format('%.0f %.0f ', REQUEST, seen_ms) .. cmsgpack.pack({reply, granted}))
  end
  if AUDITED then
    local entry = {name, #ARGV}
    for at = 1, #ARGV do entry[#entry + 1] = ARGV[at] end
    entry[#entry + 1] = string.format('%.0f', NOW)
    entry[#entry + 1] = #reply
    for at = 1, #reply do
      entry[#entry + 1] = type(reply[at]) == 'number' and string.format(':%.0f', reply[at]) or '$' .. reply[at]
    end
    for from = 1, #entry, 4000 do redis.call('RPUSH', AUDIT, unpack(entry, from, math.min(from + 3999, #entry))) end
  end
  return with_specs(reply, granted)
end

-- Commit a plan and reply: whether anything is left over, the time, when something is due next (-1 never), and the rest.
local function reply_with(name, rest, granted)
  local more, left_over = is_more(), any_leftovers()
  local next_ms = commit(name == 'exchange' or name == 'tick')
  if left_over then next_ms = NOW end
  local reply = {more and 1 or 0, NOW, next_ms}
  for at = 1, #rest do reply[#reply + 1] = rest[at] end
  return conclude(name, reply, granted)
end

-- Forget the sessions that have not been heard of for long, a few at a time.
local function forget_sessions()
  local gone = redis.call('ZRANGEBYSCORE', SESSIONS, '-inf', string.format('(%.0f', NOW - SESSION_KEPT_MS), 'LIMIT', 0, 100)
  for _, session in ipairs(gone) do
    redis.call('EXISTS', session_wake_key(session))
    redis.call('UNLINK', session_wake_key(session))
    redis.call('HDEL', RECEIPTS, session)
    redis.call('ZREM', SESSIONS, session)
  end
end
