#!lua flags=no-writes,allow-oom
--[[ list_flow: a page of a flow's jobs.
  ARGV[9] flow      str  ARGV[10] cursor int, a number; ARGV[11] limit int
  Returns the number after which to continue, 0 at the end, below 0 if no more fit into 4 MiB, and records in order of number.
  Mirrors core.asking.questions ]]
-- @include lib/questions
-- @include lib/asking/records
args.count(11)
local flow, limit = ARGV[9], args.int(11)
local from = flow .. '\0' .. form.sortable(args.int(10)) .. '\255'
local members = redis.call('ZRANGEBYLEX', store.flow_jobs, '(' .. from, '(' .. flow .. '\1', 'LIMIT', 0, limit + 1)
local reply, last = {0}, 0
for at = 1, math.min(#members, limit) do
  local number, id = form.split(members[at], #flow + 2)
  local job = jobs.known(id, store.flow_jobs)
  if not jobs.is_hidden(job) then
    local record = record_of(id, job)
    if not fits(record) and #reply > 1 then
      reply[1] = -last
      break
    end
    reply[#reply + 1] = record
  end
  last = number
  if at == limit and #members > limit then reply[1] = number end
end
return reply
