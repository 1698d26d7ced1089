#!lua flags=no-writes,allow-oom
--[[ list_dead: a page of the dead shelf.
  KEYS[1] root      str  namespace root with its hash tag, "{qh:default}"; lib/keys builds every other key from it
  KEYS[2] meta      str  the only key that always exists: see conversation.py
  ARGV[1] now_ms    int  the time, for tests only; "" asks the server
  ARGV[2..9]             not used: as for changes
  ARGV[10] cursor    int  a number; ARGV[11] limit int
  Returns the records of FAILED jobs above that number, one more than the limit if there are more. ]]
-- @include lib/questions
-- @include lib/records
local reply = {}
for _, id in ipairs(redis.call('ZRANGEBYSCORE', store.dead, '(' .. ARGV[10], '+inf', 'LIMIT', 0, tonumber(ARGV[11]) + 1)) do
  reply[#reply + 1] = record_of(id, jobs.known(id, store.dead))
end
return reply
