#!lua flags=no-writes,allow-oom
--[[ list_workers: the workers with a recent announcement.
  Returns now, and for each its name, its last announcement (opaque), the time of the first one and of the last one, and its
  release.
  Mirrors core.asking.questions   Cost O(workers) ]]
-- @include lib/questions
-- @include lib/asking/workers
args.count(8)
local reply = {NOW}
for _, worker in ipairs(workers.live()) do
  for at = 1, RELEASE_AT do reply[#reply + 1] = worker[at] end
end
return reply
