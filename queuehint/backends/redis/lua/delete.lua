#!lua flags=allow-oom
--[[ delete: drop records before they expire.
  ARGV[9..]         ids, each with the version its record must have, "" for any
  Returns more, now, next, and for each id its verdict (D done, R refused, U unknown, T of another version) and state
    ("-" none).
  Mirrors core.operating   Cost O(depth) a job, and what follows ]]
-- @include lib/rules
args.count(8, 2)
local verdicts = {}
for at = 9, #ARGV, 2 do
  local job, version = jobs.find(ARGV[at]), args.int_or_none(at + 1)
  local verdict = 'U-'
  if job then
    if version and version ~= job[VERSION] then verdict = 'T' .. job[STATE]
    elseif lifecycle.delete(job) then verdict = 'D-'
    else verdict = 'R' .. job[STATE] end
  end
  verdicts[#verdicts + 1] = verdict
end
work.follow()
return request.reply({table.concat(verdicts)})
