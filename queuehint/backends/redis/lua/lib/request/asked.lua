--[[ asked: what is asked of a job, as it is sent and as it is compared. ]]
local ID, SPEC, P_CLAIMS, P_NEEDS, P_PRIORITY, P_POOL, P_USER, P_TASK, P_SERVICE = 1, 2, 3, 4, 5, 6, 7, 8, 9 -- @const
local P_KEY, CONFLICT, P_DELAY, P_RUN_AT, P_PRESENCE, P_POLICY, P_FLOW, P_FACTS = 10, 11, 12, 13, 14, 15, 16, 17 -- @const
local HEAD = '^([^\n]*)\n(' .. string.rep('[^\n]*\n', 12) .. ')(.*)$'
local COMMON_FORM = '^' .. string.rep('([^\n]*)\n', 12) .. '$'
local POLICY_FORM = '^(%d+) (%d+) (%l+) ([%l_]+) (%d+) (%S+) (%S+)$'
local CONFLICTS = {['return'] = true, replace = true, after = true, reject = true}
local RETRIES, DEATHS = {hold = true, ['yield'] = true}, {continue = true, hold = true, cancel_behind = true}

-- See that a text is a policy, whose defaults are "".
local function check_policy(text, at)
  local attempts, losses, on_retry, on_dead, hold_ms, within_ms, kept_ms = string.match(text, POLICY_FORM)
  if not attempts or not RETRIES[on_retry] or not DEATHS[on_dead] then args.refuse(at) end
  for _, word in ipairs({attempts, losses, hold_ms, within_ms ~= '-' and within_ms or '0', kept_ms ~= '-' and kept_ms or '0'}) do
    args.whole(word, at)
  end
end

-- See that a text is claims, each a line that begins with the letter of its mode.
local function check_claims(text, at)
  if not string.find(text, '^[xs]') or (string.find(text, '\n', 1, true) and string.find(text .. '\n', '\n[^xs]')) then args.refuse(at) end
end

-- What jobs have in common that are alike but for their ids, claims, specs and edges, by its text.
local common_known, common_count = {}, 0 -- @once

local function parse_common(text, at)
  local priority, pool, user, task, service, key, conflict, delay_ms, run_at_ms, presence_ms, flow, policy = string.match(text, COMMON_FORM)
  if not string.find(priority, '^[1-59]$') or not CONFLICTS[conflict] then args.refuse(at) end
  if policy ~= '' then check_policy(policy, at) end
  local common = {
    [P_PRIORITY] = tonumber(priority), [P_POOL] = pool, [P_USER] = user, [P_TASK] = task, [P_SERVICE] = service, [P_KEY] = key ~= '' and key,
    [CONFLICT] = conflict, [P_DELAY] = delay_ms ~= '' and args.whole(delay_ms, at) or nil,
    [P_RUN_AT] = run_at_ms ~= '' and args.whole(run_at_ms, at, -INT_MAX) or nil,
    [P_PRESENCE] = presence_ms ~= '' and args.whole(presence_ms, at), [P_POLICY] = policy, [P_FLOW] = flow,
    [P_FACTS] = heads.facts_text(priority, pool, user, task, service, policy),
  }
  return {__index = common}
end

-- A head, a spec, and the policies and ids of what a job depends on: three arguments.
local function parse_asked(at)
  local id, text, claims = string.match(ARGV[at], HEAD)
  -- An id that begins with a space is that of a start.
  if not id or id == '' or string.byte(id) == 32 then args.refuse(at) end
  local common = common_known[text]
  if not common then
    common = parse_common(text, at)
    if common_count >= TEXTS_KEPT then common_known, common_count = {}, 0 end
    common_known[text], common_count = common, common_count + 1
  end
  if claims ~= '' then check_claims(claims, at) end
  return setmetatable({id, ARGV[at + 1], claims, ARGV[at + 2]}, common)
end

-- All that can never be changed of what was asked, the id left out, as one text.
local function lasting_of(ask)
  return table.concat({ask[P_PRIORITY], ask[P_POOL], ask[P_TASK], ask[P_KEY] or '', ask[P_PRESENCE] or '', ask[P_POLICY],
    ask[P_CLAIMS], ask[SPEC]}, '\0')
end

local function lasting_of_job(job)
  return table.concat({job[PRIORITY], job[POOL], job[TASK], job[KEY] or '', job[PRESENCE] or '', job[POLICY],
    job[CLAIMS], plan.specs[job.id] or redis.call('HGET', store.specs, job.id) or ''}, '\0')
end

-- All that was asked, the id left out, as one text.
local function text_of(ask) return ask[P_USER] .. '\0' .. ask[P_SERVICE] .. '\0' .. lasting_of(ask) end
local function asked_of(job) return job[USER] .. '\0' .. job[SERVICE] .. '\0' .. lasting_of_job(job) end

-- Whether a job is asked to be what it was; of one whose record is gone a digest may be all that is left of that.
local function is_asked_again(job, ask)
  local text, asked = text_of(ask), false
  if asked_of(job) == text then return true end
  asked = redis.call('HGET', store.asked, job.id)
  if asked == text then return true end
  if not job[GONE] then return false end
  if asked and asked == jobs.digest(text) then return true end
  local spec = ask[SPEC]
  ask[SPEC] = jobs.digested(spec)
  text, ask[SPEC] = text_of(ask), spec
  return asked_of(job) == text
end

-- Keep what a job was first asked to be, before it is anything else.
local function keep_asked(job)
  if not plan.asked[job.id] and redis.call('HEXISTS', store.asked, job.id) == 0 then plan.asked[job.id] = asked_of(job) end
end
