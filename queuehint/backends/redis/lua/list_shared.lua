#!lua flags=no-writes,allow-oom
--[[ list_shared: keys of a namespace that have values, in lexical order.
  ARGV[9] namespace str  ARGV[10] prefix str  of the keys; ARGV[11] after str  the key after which the page begins, "" for none
  ARGV[12] limit    int  of keys
  Returns 1 and the key after which the next page begins, 0 and "" at the end, and the keys.
  Mirrors core.producing   Cost O(keys looked at), expired ones included, which are not listed ]]
-- @include lib/questions
args.count(12)
local LOOKED_AT_MAX = 1000 -- @const
local begin, prefix, after, limit = ARGV[9] .. '\0', ARGV[10], ARGV[11], args.int(12)
local low, high = '[' .. begin .. prefix, '(' .. begin .. prefix .. '\255'
if after ~= '' and after >= prefix then low = '(' .. begin .. after end
local reply, found, looked_at, last = {0, ''}, 0, 0, after
while true do
  -- One more is read than is looked at, to know whether there are more.
  local most = math.min(limit - found, LOOKED_AT_MAX - looked_at)
  local members = redis.call('ZRANGEBYLEX', store.shared_names, low, high, 'LIMIT', 0, most + 1)
  for at = 1, math.min(#members, most) do
    last = string.sub(members[at], #begin + 1)
    if (tonumber(redis.call('ZSCORE', store.shared_ends, members[at]) or nil) or 0) > NOW then
      found = found + 1
      reply[found + 2] = last
    end
  end
  if #members <= most then return reply end
  looked_at, low = looked_at + most, '(' .. begin .. last
  if found == limit or looked_at == LOOKED_AT_MAX then
    reply[1], reply[2] = 1, last
    return reply
  end
end
