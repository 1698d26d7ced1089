#!lua flags=no-writes,allow-oom
--[[ list_dead: a page of the dead shelf.
  KEYS[1] root      str  namespace root with its hash tag, "{qh:default}"; lib/request/keys builds every other key from it
  KEYS[2] meta      str  the only key that always exists: see conversation.py
  ARGV[1] now_ms    int  the time, for tests only; "" asks the server
  ARGV[2..8]             not used: as for changes
  ARGV[9] cursor    int  a number; ARGV[10] limit int
  Returns 1 if there are more than fit into 4 MiB, and the records of FAILED jobs above that number, one more than the limit
  if there are more. ]]
-- @include lib/questions
-- @include lib/asking/records
args.count(10)
local reply, cursor, limit = {0}, string.format('(%.0f', args.int(9)), args.int(10)
for _, id in ipairs(redis.call('ZRANGEBYSCORE', store.dead, cursor, '+inf', 'LIMIT', 0, limit + 1)) do
  local record = record_of(id, jobs.known(id, store.dead))
  if not fits(record) and #reply > 1 then
    reply[1] = 1
    break
  end
  reply[#reply + 1] = record
end
return reply
