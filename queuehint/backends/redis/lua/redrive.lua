#!lua flags=allow-oom
--[[ redrive: requeue dead jobs.
  ARGV[9] downstream int 1 to revive jobs canceled because of these too
  ARGV[10..]        ids
  Returns more, now, next, and for each id its verdict (D done, R refused, U unknown) and state ("-" none).
  Mirrors core.operating   Cost O(depth) a job, and what follows ]]
-- @include lib/rules
args.count(9, 1)
local downstream = args.flag(9)
local dead, verdicts = lifecycle.sort_out(QUEUED, 10)
work.follow()
table.sort(dead, function(left, right) return left[NUMBER] < right[NUMBER] end)
for _, job in ipairs(dead) do
  archive.redrive(job)
  if downstream then lifecycle.revive_dependents(job) end
end
return request.reply({verdicts})
