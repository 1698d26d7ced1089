#!lua
--[[ push: store a value under a key of a namespace, for a time.
  ARGV[9] place     str  namespace, NUL and key; ARGV[10] value opaque; ARGV[11] ttl_ms int
  Returns more, now, next, 1 if a value was replaced.
  Mirrors core.producing   Cost O(log values) ]]
-- @include lib/rules
args.count(11)
local place, until_ms = ARGV[9], NOW + args.int(11)
work.follow()
local stored = redis.call('HGET', store.shared, place)
local replaced = stored and tonumber(string.match(stored, '^%d+')) > NOW
for at, gone in ipairs(work.shared_gone) do
  if gone == place then
    -- The key was dropped a moment ago, by this step: put it there again.
    table.remove(work.shared_gone, at)
    S[SHARED_VALUES] = S[SHARED_VALUES] + 1
    break
  end
end
if not stored then S[SHARED_VALUES] = S[SHARED_VALUES] + 1 end
work.shared_put[#work.shared_put + 1] = {place, string.format('%.0f ', until_ms) .. ARGV[10], string.format('%.0f', until_ms)}
return request.reply({replaced and 1 or 0})
