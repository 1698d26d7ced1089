--[[ tick_idle: fast path for a tick without work. ]]
-- @include lib/plain/quiet
if #ARGV == 8 and is_quiet() and NOW - S[MEMORY_SEEN] < LOOK_EVERY_MS then
  args.setting(8)
  local reply = {0, NOW, next_due(false), 0}
  redis.call('HSET', store.meta, 'state', pack_state(S))
  return request.told(reply)
end
