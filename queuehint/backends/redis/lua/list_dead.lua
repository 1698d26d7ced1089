#!lua flags=no-writes,allow-oom
--[[ list_dead: a page of the dead shelf.
  ARGV[9] cursor    int  a number; ARGV[10] limit int
  Returns 1 if there are more than fit into 4 MiB, and the records of FAILED jobs above that number, one more than the limit
  if there are more.
  Mirrors core.asking.questions ]]
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
