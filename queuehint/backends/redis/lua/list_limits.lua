#!lua flags=no-writes,allow-oom
--[[ list_limits: all limits, each with its current counts.
  Returns eight for each, in no order: field, most, tokens, per_ms, burst, max_pending, how many run, how many are unfinished; "" for
  none.
  Mirrors core.asking.questions   Cost O(limits and places that have jobs) ]]
-- @include lib/questions
-- @include lib/structures/paths
-- @include lib/structures/limits
args.count(8)
local reply = {}
for _, limiter in ipairs(limits.all()) do
  local started = ''
  if limiter.number > 0 then
    started = 0
    for _, packed in ipairs(redis.call('HVALS', store.gauges(limiter.number))) do started = started + cmsgpack.unpack(packed)[1] end
  end
  for _, value in ipairs({limiter.field, limiter.most or '', limiter.tokens or '', limiter.per_ms or '', limiter.burst or '', limiter.pending or '', started,
    limiter.pending and limits.count_pending(limiter.field) or ''}) do
    reply[#reply + 1] = value
  end
end
return reply
