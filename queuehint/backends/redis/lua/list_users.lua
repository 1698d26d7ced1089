#!lua flags=no-writes,allow-oom
--[[ list_users: a page of the users that have records of a service.
  ARGV[9] service   str  ARGV[10] after str, the user after which to continue, "" for none; ARGV[11] limit int
  Returns 1 if there are more, and users, each with the number of records.
  Mirrors core.asking.questions ]]
-- @include lib/questions
args.count(11)
local service, limit = ARGV[9], args.int(11)
local low = ARGV[10] == '' and '[' .. service .. '\0' or '(' .. service .. '\0' .. ARGV[10]
local keys_found = redis.call('ZRANGEBYLEX', store.tallied, low, '(' .. service .. '\1', 'LIMIT', 0, limit + 1)
local reply = {#keys_found > limit and 1 or 0}
for at = 1, math.min(#keys_found, limit) do
  reply[#reply + 1] = string.sub(keys_found[at], #service + 2)
  reply[#reply + 1] = tonumber(redis.call('HGET', store.tallies, keys_found[at]) or nil) or 0
end
return reply
