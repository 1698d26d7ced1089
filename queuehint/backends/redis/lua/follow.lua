#!lua flags=allow-oom
--[[ follow: read the next events that pass one of some filters; for a minute after each such question events are kept.
  ARGV[9] after     int  the last event seen, "" to begin now; ARGV[10] limit int
  ARGV[11..]        four for each filter, "" for no condition: kinds, in words; "/" and a gate key; user; flow
  Returns more, now, next, the number of the last event of all, that of the last one looked at, how many before these
  are gone, then two for each event: its number and its entry, written by lib/structures/event_log.
  Mirrors core.asking.questions   May be run twice   Cost O(events looked at and filters) ]]
-- @include lib/rules
args.count(10, 4)
local FOLLOWED_FOR_MS, EVENTS_LOOKED_AT_MAX = 60000, 2000 -- @const
local after, limit, last = args.int_or_none(9), args.int(10), S[JOURNAL]
-- Filters by one of their conditions, so that an event is compared only with those that it may pass.
local by_condition, is_filtered = {}, #ARGV > 10

local function add(at)
  local path, user, flow, kinds = args.path(at + 1, ''), ARGV[at + 2], ARGV[at + 3], false
  for kind in string.gmatch(args.like(at, '^[%l ]*$'), '%l+') do
    kinds = kinds or {}
    kinds[kind] = true
  end
  local condition = path and 'p' .. path or flow ~= '' and 'f' .. flow or user ~= '' and 'u' .. user or ''
  local filters = by_condition[condition] or {}
  by_condition[condition] = filters
  filters[#filters + 1] = {kinds = kinds, user = user ~= '' and user, flow = flow ~= '' and flow}
end

for at = 11, #ARGV, 4 do add(at) end

local function passes_one_of(filters, kind, user, flow)
  for _, filter in ipairs(filters or {}) do
    if (not filter.kinds or filter.kinds[kind]) and (not filter.user or filter.user == user) and (not filter.flow or filter.flow == flow) then
      return true
    end
  end
  return false
end

local function passes(text)
  local kind, claims, user, flow = string.match(text, '^%d+\n([^\n]*)\n([^\n]*)\n([^\n]*)\n([^\n]*)\n')
  if passes_one_of(by_condition[''], kind, user, flow) or passes_one_of(by_condition['u' .. user], kind, user, flow)
    or passes_one_of(by_condition['f' .. flow], kind, user, flow) then
    return true
  end
  for _, claim in ipairs(form.claims((string.gsub(claims, '\t', '\n')))) do
    for _, key in ipairs(claim.keys) do
      if passes_one_of(by_condition['p' .. key], kind, user, flow) then return true end
    end
  end
  return false
end

local kept = 0
if S[FOLLOWED] >= NOW then kept = redis.call('LLEN', store.events) else event_log.drops = true end
S[FOLLOWED] = NOW + FOLLOWED_FOR_MS
local rest = {last, last, 0}
if after then
  if after > last then after = 0 end
  local oldest = last - kept + 1
  local first = math.max(after + 1, oldest)
  rest[3] = math.max(0, oldest - after - 1)
  if first <= last then
    local from = first - oldest
    local found = redis.call('LRANGE', store.events, from, from + (is_filtered and EVENTS_LOOKED_AT_MAX or limit) - 1)
    rest[2] = first + #found - 1
    for index, text in ipairs(found) do
      if not is_filtered or passes(text) then
        local size = #rest
        if size == 3 + 2 * limit then
          rest[2] = rest[size - 1]
          break
        end
        rest[size + 1], rest[size + 2] = first + index - 1, text
      end
    end
  end
end
return request.reply(rest)
