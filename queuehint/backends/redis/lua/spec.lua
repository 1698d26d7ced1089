#!lua flags=no-writes,allow-oom
--[[ spec: the spec that a job was submitted with, for as long as its id is known; of a dropped record a long one is a digest (lib/jobs/jobs).
  ARGV[9] id
  Returns priority, pool, user, task, service, key, presence, policy, claims and the rest (opaque); nothing if there is no such id. ]]
-- @include lib/questions
args.count(9)
local job = jobs.of(ARGV[9])
if not job then return {} end
return {
  tostring(job[PRIORITY]), job[POOL], job[USER], job[TASK], job[SERVICE], job[KEY] or '',
  job[PRESENCE] and string.format('%.0f', job[PRESENCE]) or '', job[POLICY], job[CLAIMS], heads.spec(job),
}
