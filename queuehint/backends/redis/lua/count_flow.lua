#!lua flags=no-writes,allow-oom
--[[ count_flow: how many jobs a flow has, by state.
  KEYS[1] root      str  namespace root with its hash tag, "{qh:default}"; lib/keys builds every other key from it
  KEYS[2] meta      str  the only key that always exists: see conversation.py
  ARGV[1] now_ms    int  the time, for tests only; "" asks the server
  ARGV[2..8]             not used: as for changes
  ARGV[9] flow      str
  Returns seven numbers, in the order of the states.   Mirrors core.answers   Cost O(log jobs) ]]
-- @include lib/questions
local begin = ARGV[9] .. '\0'
local function count(prefix) return redis.call('ZLEXCOUNT', store.flow_states, '[' .. prefix, '(' .. prefix .. '\255') end
local counts = {}
for at, letter in ipairs({SCHEDULED, DEFERRED, QUEUED, STARTED, FINISHED, FAILED, CANCELED}) do counts[at] = count(begin .. letter) end
-- Those that wait for the commit of their submission, one submission after the other, are there once it has come.
local low = '[' .. begin .. 'H'
while true do
  local member = redis.call('ZRANGEBYLEX', store.flow_states, low, '(' .. begin .. 'I', 'LIMIT', 0, 1)[1]
  if not member then break end
  local staged = string.match(member, '^%Z*%zH(%Z*)%z')
  local start = jobs.of(START_MARK .. staged)
  local of_this = begin .. 'H' .. staged .. '\0'
  if not start or start[STATE] == FINISHED then counts[2] = counts[2] + count(of_this) end
  low = '(' .. of_this .. '\255'
end
return counts
