#!lua flags=no-writes,allow-oom
--[[ count_records: how many records pass a filter.
  KEYS[1] root      str  namespace root with its hash tag, "{qh:default}"; lib/keys builds every other key from it
  KEYS[2] meta      str  the only key that always exists: see conversation.py
  ARGV[1] now_ms    int  the time, for tests only; "" asks the server
  ARGV[2..8]             not used: as for changes
  ARGV[9] user      str  "" for any, as ARGV[10] service, ARGV[11] task, ARGV[12] pool; ARGV[13] states, their letters, "" for any
  ARGV[14] path     str  "/" and a gate key, "" for none; ARGV[15] since_ms, ARGV[16] until_ms int, "" for none
  Returns 1 if all was looked at, and how many are SCHEDULED, DEFERRED, QUEUED, STARTED, FINISHED, FAILED, CANCELED.
  Mirrors core.answers   Cost O(blocks) or O(entries below the path), bounded ]]
-- @include lib/questions
-- @include lib/filter
local LETTERS = {'S', 'D', 'Q', 'R', 'F', 'X', 'C'}
local counts = {S = 0, D = 0, Q = 0, R = 0, F = 0, X = 0, C = 0}

local function add(job) counts[job[STATE]] = counts[job[STATE]] + 1 end

local function count_by_path()
  local looked_at = 0
  for key, _, job in filter.entries(false, false, false) do
    if looked_at == COUNTED_MAX then return false end
    looked_at = looked_at + 1
    if filter.passes(job) and filter.is_first(key, job) then add(job) end
  end
  return true
end

local STATE_TERMS = {}
for at, letter in ipairs(LETTERS) do STATE_TERMS[at] = 's' .. letter end

local function count_by_number()
  local looked_at, place = 0, 0
  for block in filter.blocks(false, false) do
    if place == BLOCKS_MAX then return false end
    place = place + 1
    local words, packed = filter.bits(block, false, false, STATE_TERMS)
    if filter.is_wholly_in_time(packed) then
      for term, count in pairs(filter.counts(words, packed, STATE_TERMS)) do
        local letter = string.sub(term, 2)
        counts[letter] = counts[letter] + count
      end
    else
      for number in filter.numbers(words, block, false) do
        if looked_at == COUNTED_MAX then return false end
        looked_at = looked_at + 1
        local job = filter.job(number)
        if filter.is_in_time(job[ENQUEUED]) then add(job) end
      end
    end
  end
  return true
end

local is_complete
if filter.path then is_complete = count_by_path() else is_complete = count_by_number() end
return {is_complete and 1 or 0, counts.S, counts.D, counts.Q, counts.R, counts.F, counts.X, counts.C}
