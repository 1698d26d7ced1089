#!lua flags=no-writes,allow-oom
--[[ count_records: how many records pass a filter.
  ARGV[9] user      str  "" for any, as ARGV[10] service, ARGV[11] task, ARGV[12] pool; ARGV[13] states, their letters, "" for any
  ARGV[14] path     str  "/" and a gate key, "" for none; ARGV[15] since_ms, ARGV[16] until_ms int, "" for none; ARGV[17] flow, ARGV[18] tag, ARGV[19] parent, ARGV[20] waits_for str, "" for any
  ARGV[21] key      str  and ARGV[22] number int, the position after which to continue; the number is "" for the first page
  Returns 1 if there may be more, the key and number after which to continue, and how many are SCHEDULED, DEFERRED, QUEUED, STARTED, FINISHED, FAILED, CANCELED.
  Mirrors core.asking.questions   Cost O(blocks) or O(entries of the flow, below the path or of dependents), bounded;
  of a flow alone O(log jobs) ]]
-- @include lib/questions
-- @include lib/asking/filter
-- @include lib/structures/flow_counts
local LETTERS = {'S', 'D', 'Q', 'R', 'F', 'X', 'C'}
local counts = {S = 0, D = 0, Q = 0, R = 0, F = 0, X = 0, C = 0}
args.count(22)
local after = args.int_or_none(22)

local function counted(has_more, key, number)
  local reply = {has_more and 1 or 0, key, string.format('%.0f', number)}
  for _, letter in ipairs(LETTERS) do reply[#reply + 1] = counts[letter] end
  return reply
end

local function add(job) counts[job[STATE]] = counts[job[STATE]] + 1 end

local function count_by_entry()
  local looked_at, last_key, last_number = 0, '', 0
  for key, number, job in filter.entries(after and ARGV[21], after, false) do
    if looked_at == COUNTED_MAX then return counted(true, last_key, last_number) end
    looked_at, last_key, last_number = looked_at + 1, key, number
    if filter.passes(job) and filter.is_first(key, job) then add(job) end
  end
  return counted(false, '', 0)
end

local STATE_TERMS = {}
for at, letter in ipairs(LETTERS) do STATE_TERMS[at] = 's' .. letter end

local function count_by_number()
  local left, edge = math.min(COUNTED_MAX, BLOCK_COUNTS_AS * filter.blocks_max), 0
  for block in filter.blocks(after, false) do
    if left < BLOCK_COUNTS_AS then return counted(true, '', edge) end
    left = left - BLOCK_COUNTS_AS
    local words, packed = filter.bits(block, after, false, STATE_TERMS)
    if filter.is_wholly_in_time(packed) then
      local is_whole = not after or after < block * PER_BLOCK
      for term, count in pairs(filter.counts(words, packed, STATE_TERMS, is_whole)) do
        local letter = string.sub(term, 2)
        counts[letter] = counts[letter] + count
      end
    else
      for number in filter.numbers(words, block, false) do
        if left == 0 then return counted(true, '', edge) end
        left, edge = left - 1, number
        local job = filter.job(number)
        if filter.is_in_time(job[ENQUEUED]) then add(job) end
      end
    end
    edge = (block + 1) * PER_BLOCK - 1
  end
  return counted(false, '', 0)
end

if filter.is_flow_alone and not after then
  for at, count in ipairs(flow_counts.by_state(filter.flow)) do counts[LETTERS[at]] = count end
  return counted(false, '', 0)
end
return filter.is_by_entry and count_by_entry() or count_by_number()
