--[[ asked: the fields of a submitted job, parsed from the request and checked. ]]
local ID, SPEC, P_CLAIMS, P_NEEDS, P_PRIORITY, P_POOL, P_USER, P_TASK, P_SERVICE = 1, 2, 3, 4, 5, 6, 7, 8, 9 -- @const
local P_KEY, CONFLICT, P_DELAY, P_RUN_AT, P_PRESENCE, P_POLICY, P_FLOW, P_FACTS, P_IS_PLAIN, P_MAX_DELAY, P_PARENT = 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20 -- @const
local COMMON_LINES = 12 -- @const
local COMMON_FORM = '^' .. string.rep('([^\n]*)\n', COMMON_LINES) .. '$'
local CONFLICTS = {['return'] = true, replace = true, after = true, reject = true}

-- Check that a text is a policy, with "" for defaults; return whether a job that has it has to start within some time.
local function check_policy(text, at)
  local count, is_bounded = 0, false
  for word in string.gmatch(text .. ' ', '([^ ]*) ') do
    count = count + 1
    local may_be = POLICY_WORDS[count] or args.refuse(at)
    if not may_be[word] then
      if may_be[0] then args.refuse(at) end
      args.whole(word, at)
      is_bounded = is_bounded or count == START_WITHIN
    end
  end
  if count < POLICY_LEAST then args.refuse(at) end
  return is_bounded
end

-- Check that a text is claims, each a line that begins with the letter of its mode; a counted one stands alone.
local function check_claims(text, at)
  local mode = string.byte(text)
  if mode == 99 and not string.find(text, '\n', 1, true) then return end
  if (mode ~= 120 and mode ~= 115) or (string.find(text, '\n', 1, true) and string.find(text .. '\n', '\n[^xs]')) then args.refuse(at) end
end

-- Parsed common parts of jobs that differ only in id, claims, spec and edges, by their text; and the last one.
local common_known, common_count = {}, 0 -- @once
local last_text, last_common = '', false -- @once

local function parse_common(text, at)
  local priority, pool, user, task, service, key, conflict, delay_ms, run_at_ms, presence_ms, flow, policy = string.match(text, COMMON_FORM)
  if not string.find(priority, '^[1-59]$') or not CONFLICTS[conflict] then args.refuse(at) end
  local within_ms = policy ~= '' and check_policy(policy, at)
  local wait_ms, most_ms = string.match(delay_ms, '^(%d+) (%d+)$')
  -- The parent stands behind the flow.
  local tab = string.find(flow, '\t', 1, true)
  local common = {
    [P_PRIORITY] = tonumber(priority), [P_POOL] = pool, [P_USER] = user, [P_TASK] = task, [P_SERVICE] = service, [P_KEY] = key ~= '' and key,
    [CONFLICT] = conflict, [P_DELAY] = delay_ms ~= '' and args.whole(wait_ms or delay_ms, at) or nil,
    [P_MAX_DELAY] = most_ms and args.whole(most_ms, at),
    [P_RUN_AT] = run_at_ms ~= '' and args.whole(run_at_ms, at, -INT_MAX) or nil,
    [P_PRESENCE] = presence_ms ~= '' and args.whole(presence_ms, at), [P_POLICY] = policy,
    [P_FLOW] = tab and string.sub(flow, 1, tab - 1) or flow, [P_PARENT] = tab and string.sub(flow, tab + 1) or false,
    [P_FACTS] = heads.facts_text(priority, pool, user, task, service, policy),
    [P_IS_PLAIN] = key == '' and delay_ms == '' and run_at_ms == '' and presence_ms == '' and flow == '' and not within_ms
      and task ~= SIGNAL_TASK,
  }
  return {__index = common}
end

-- A head, a spec, and the policies and ids of what a job depends on: three arguments.
local function parse_asked(at)
  local head = ARGV[at]
  local from = string.find(head, '\n', 1, true) or args.refuse(at)
  local id, last = string.sub(head, 1, from - 1), from + #last_text
  -- An id that begins with a space is that of a start.
  if id == '' or string.byte(id) == 32 then args.refuse(at) end
  -- Nearly all have the same in common as the one before.
  if last == from or string.sub(head, from + 1, last) ~= last_text then
    last = from
    for _ = 1, COMMON_LINES do last = string.find(head, '\n', last + 1, true) or args.refuse(at) end
    local text = string.sub(head, from + 1, last)
    local known = common_known[text]
    if not known then
      known = parse_common(text, at)
      if #text <= TEXT_BYTES_MAX then
        if common_count >= TEXTS_KEPT then common_known, common_count = {}, 0 end
        common_known[text], common_count = known, common_count + 1
      end
    end
    last_text, last_common = text, known
  end
  local claims = string.sub(head, last + 1)
  if claims ~= '' then check_claims(claims, at) end
  return setmetatable({id, ARGV[at + 1], claims, ARGV[at + 2]}, last_common)
end
