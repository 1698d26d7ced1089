#!lua
--[[ amend: change the service and the user of a record.
  ARGV[9] version   int  that its record must have; ARGV[10] a head, ARGV[11] a spec and ARGV[12] edges, as for enqueue
  Returns more, now, next, D done, T of another version or U unknown.
  Refuses OTHER_SPEC, when more would be changed
  Mirrors core.operating ]]
-- @include lib/request/begin
-- @include lib/request/asked
-- @include lib/rules
-- @include lib/request/asked_again
args.count(12)
local version = args.int(9)
local ask = parse_asked(10)
local job = jobs.find(ask[ID])
if not job then return request.reply({'U'}) end
-- The tags stand behind the service.
local function tags_of(line) return string.match(line, '\t.*') end
if lasting_of(ask) ~= lasting_of_job(job) or ask[SPEC] ~= spec_of(job) or tags_of(ask[P_SERVICE]) ~= tags_of(job[SERVICE]) then
  return redis.error_reply('OTHER_SPEC')
end
if version ~= job[VERSION] then return request.reply({'T'}) end
if job[USER] == ask[P_USER] and job[SERVICE] == ask[P_SERVICE] then return request.reply({'D'}) end

keep_asked(job)
-- A ready job joins the end of its new user's turns; one that is over is kept as long as its new service says.
-- One that a pause has parked is offered again: another may hold it now, or none, as the next claim finds out.
local is_put_aside = type(job[OFFER]) == 'number'
local is_offered = job[OFFER] == 'r' and job[USER] ~= ask[P_USER]
local is_kept_anew = OVER[job[STATE]] and job[SERVICE] ~= ask[P_SERVICE]
if is_offered then ready_queue.remove(job) end
job[USER], job[SERVICE], job[VERSION] = ask[P_USER], ask[P_SERVICE], job[VERSION] + 1
heads.see_other_facts(job)
jobs.dirty[job.id] = job
if is_put_aside then job[OFFER] = false end
if is_offered or is_put_aside then ready_queue.add(job) end
if is_kept_anew then timers.set(job, PRUNE, job[ENDED] + transitions.kept_ms(job, job[STATE])) end
return request.reply({'D'})
