#!lua flags=no-writes,allow-oom
--[[ list_limits: all limits, and what counts towards them now.
  Returns seven for each, in no order: field, most, tokens, per_ms, max_pending, how many run, how many are unfinished; "" for
  none.
  Mirrors core.questions   Cost O(limits and places that have jobs) ]]
-- @include lib/questions
-- @include lib/structures/paths
-- @include lib/structures/limits
args.count(8)
local reply = {}
for _, meter in ipairs(limits.all()) do
  local started = ''
  if meter.number > 0 then
    started = 0
    for _, packed in ipairs(redis.call('HVALS', store.gauges(meter.number))) do started = started + cmsgpack.unpack(packed)[1] end
  end
  for _, value in ipairs({meter.field, meter.most or '', meter.tokens or '', meter.per_ms or '', meter.pending or '', started,
    meter.pending and limits.count_pending(meter.field) or ''}) do
    reply[#reply + 1] = value
  end
end
return reply
