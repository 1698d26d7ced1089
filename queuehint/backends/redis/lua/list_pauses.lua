#!lua flags=no-writes,allow-oom
--[[ list_pauses: all pauses, and how many ready jobs each has parked.
  Returns four for each, in no order: number, its name (lib/structures/pauses), until_ms, "" for no end, how many.
  Mirrors core.asking.questions   Cost O(pauses) ]]
-- @include lib/questions
-- @include lib/structures/pauses
args.count(8)
local reply = {}
for name, pause in pairs(pauses.all()) do
  for _, value in ipairs({pause.number, name, pause.until_ms or '', pauses.count(pause)}) do reply[#reply + 1] = value end
end
return reply
