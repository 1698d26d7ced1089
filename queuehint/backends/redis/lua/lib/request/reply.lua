--[[ reply: commit a plan, put down its receipt, and answer. ]]
local SESSION_SEEN_MS, SESSION_KEPT_MS = 60000, 600000 -- @const

-- Put down what a request is repeated from.
local function keep_receipt(reply, granted)
  local seen_ms = request.seen_ms
  if not seen_ms or NOW - seen_ms >= SESSION_SEEN_MS then
    seen_ms = NOW
    redis.call('ZADD', store.sessions, NOW, request.lane)
  end
  redis.call('HSET', store.receipts, request.lane, string.format('%.0f %.0f ', request.number, seen_ms) .. cmsgpack.pack({reply, granted}))
end

-- Commit a plan and reply: whether anything is left over, the time, when something is due next (-1 never), and the rest.
-- Only a worker that claims sleeps until something is due; who ticks may be a producer on its way.
function request.reply(rest, granted, specs, sleeps)
  local more, left_over = work.more(), work.any_left()
  local next_ms = plan.commit(sleeps)
  if left_over then
    next_ms = NOW
    if request.leaves_work then redis.call('ZADD', store['wake:timer'], '0', '1') end
  end
  local reply = {more and 1 or 0, NOW, next_ms}
  for at = 1, #rest do reply[#reply + 1] = rest[at] end
  if request.lane ~= '' then keep_receipt(reply, granted) end
  return request.with_specs(reply, granted, specs)
end

-- Forget the sessions that have not been heard of for long, a few at a time.
function request.forget()
  local gone = redis.call('ZRANGEBYSCORE', store.sessions, '-inf', string.format('(%.0f', NOW - SESSION_KEPT_MS), 'LIMIT', 0, 100)
  for _, session in ipairs(gone) do
    redis.call('UNLINK', store.session_wake(session))
    redis.call('HDEL', store.receipts, session)
    redis.call('ZREM', store.sessions, session)
  end
end
