#!lua flags=no-writes,allow-oom
--[[ list: a page of the records that pass a filter.
  ARGV[9] user      str  "" for any, as ARGV[10] service, ARGV[11] task, ARGV[12] pool; ARGV[13] states, their letters, "" for any
  ARGV[14] path     str  "/" and a gate key, "" for none; ARGV[15] since_ms, ARGV[16] until_ms int, "" for none; ARGV[17] flow, ARGV[18] tag, ARGV[19] parent, ARGV[20] waits_for str, "" for any
  ARGV[21] newest   int  1 for the newest first; ARGV[22] limit int
  ARGV[23] key      str  and ARGV[24] number int, the position after which to continue; the number is "" for the first page
  ARGV[25] by_time  int  1 for the order of numbers below a path too
  Returns 1 if there may be more, 2 if no more fit into 4 MiB, the key and number after which to continue, and records.
  Mirrors core.asking.questions   Cost O(blocks) or O(entries of the flow, below the path or of dependents), bounded ]]
-- @include lib/questions
-- @include lib/asking/records
-- @include lib/asking/filter
args.count(25)
local newest_first, limit, after, by_time = args.flag(21), args.int(22), args.int_or_none(24), args.flag(25)
local records = {}

local function page(more, key, number)
  return {more, key, string.format('%.0f', number), unpack(records)}
end

local function page_by_number()
  local looked_at, edge, place = 0, 0, 0
  for block in filter.blocks(after, newest_first) do
    if place == filter.blocks_max or #records == limit then return page(1, '', edge) end
    local words = filter.bits(block, after, newest_first)
    for number in filter.numbers(words, block, newest_first) do
      if looked_at == LOOKED_AT_MAX or #records == limit then return page(1, '', edge) end
      local job = filter.job(number)
      if filter.is_in_time(job[ENQUEUED]) and filter.is_there(job) then
        local record = record_of(job.id, job)
        if not fits(record) and #records > 0 then return page(2, '', edge) end
        records[#records + 1] = record
      end
      looked_at, edge = looked_at + 1, number
    end
    edge, place = newest_first and block * PER_BLOCK or (block + 1) * PER_BLOCK - 1, place + 1
  end
  return page(0, '', 0)
end

local function page_by_entry()
  local looked_at, last_key, last_number = 0, '', 0
  for key, number, job in filter.entries(after and ARGV[23], after, newest_first) do
    if looked_at == LOOKED_AT_MAX or #records == limit then return page(1, last_key, last_number) end
    if filter.passes(job) and filter.is_first(key, job) then
      local record = record_of(job.id, job)
      if not fits(record) and #records > 0 then return page(2, last_key, last_number) end
      records[#records + 1] = record
    end
    looked_at, last_key, last_number = looked_at + 1, key, number
  end
  return page(0, '', 0)
end

-- Those below a path in order of number: few are sorted, of many all records are read.
local function page_by_time()
  if filter.count_entries() > LOOKED_AT_MAX then return page_by_number() end
  local found, seen = {}, {}
  for _, number, job in filter.entries(false, nil, false) do
    local is_behind = not after or newest_first and number < after or not newest_first and number > after
    if is_behind and not seen[number] and filter.passes(job) then seen[number], found[#found + 1] = true, job end
  end
  table.sort(found, function(left, right)
    if newest_first then return left[NUMBER] > right[NUMBER] end
    return left[NUMBER] < right[NUMBER]
  end)
  for at, job in ipairs(found) do
    local edge = at > 1 and found[at - 1][NUMBER]
    if at > limit then return page(1, '', edge) end
    local record = record_of(job.id, job)
    if not fits(record) and edge then return page(2, '', edge) end
    records[at] = record
  end
  return page(0, '', 0)
end

if by_time and filter.is_by_path then return page_by_time() end
return (filter.is_by_entry or filter.is_dead_alone) and page_by_entry() or page_by_number()
