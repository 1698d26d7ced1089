#!lua flags=no-writes,allow-oom
--[[ list_workers: the workers that were heard of lately.
  Returns now, and for each its name, what it says (opaque), since when it is known and when it was heard of last.
  Mirrors core.questions   Cost O(workers) ]]
-- @include lib/questions
-- @include lib/asking/workers
args.count(8)
local reply = {NOW}
for _, worker in ipairs(workers.live()) do
  for at = 1, #worker do reply[#reply + 1] = worker[at] end
end
return reply
