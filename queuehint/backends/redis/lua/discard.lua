#!lua flags=allow-oom
--[[ discard: cancel dead jobs and free the places they hold.
  ARGV[9..]         ids
  Returns more, now, next, and for each id its verdict (D done, R refused, U unknown) and state ("-" none).
  Mirrors core.operating   Cost O(depth) a job, and what follows ]]
-- @include lib/rules
args.count(8, 1)
local dead, verdicts = lifecycle.sort_out(CANCELED, 9)
for _, job in ipairs(dead) do lifecycle.discard(job) end
work.follow()
return request.reply({verdicts})
