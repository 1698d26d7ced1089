#!lua flags=no-writes,allow-oom
--[[ list_pauses: all pauses, and how many ready jobs each has put aside.
  Returns four for each, in no order: number, the gate key, until_ms, "" for no end, how many.
  Mirrors core.questions   Cost O(pauses) ]]
-- @include lib/questions
-- @include lib/structures/pauses
args.count(8)
local reply, stored = {}, redis.call('HGETALL', store.pauses)
for at = 1, #stored, 2 do
  local pause = pauses.read(stored[at + 1])
  if pause then
    for _, value in ipairs({pause.number, stored[at], pause.until_ms or '', pauses.count(pause)}) do reply[#reply + 1] = value end
  end
end
return reply
