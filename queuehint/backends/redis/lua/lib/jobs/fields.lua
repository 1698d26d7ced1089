--[[ fields: the fields of a job's head (lib/formats/head_format describes how it is stored). `false` is "none". Fields that
  most jobs never use come from ENDED on: at the end of a packed head they are left out, and nil means none too (0 for counts).
  A head is packed up to its last field, so those come first that many jobs have or that are written often.
  SHORT_SPEC: the spec, if it is one that stands in the head (jobs.set_spec); false while it stands in SPECS.
  KIND of TIMER: DUE, LEASE, EXPIRY and PRUNE are '0' to '3', the order in which timers of one time come up; RESUME is of a pause.
  WALKS: for each claim the depth at which it stands in line, or GRANTED; false while the job has no place.
  OFFER: false, 'r' in the ready queue, the number of the pause it is parked by, or the place of the limit (lib/structures/limits).
  EXPIRY_MS: when it is canceled, if it is not started before; of one that is over, until when it keeps its KEY.
  RESULT: false, 'n' for JSON null, 's' for one stored in RESULTS. POLICY: see codec/specs.py; '' is the default.
  HISTORY: the last 20 attempts that have ended, a line each: start, end, outcome, worker; none if the first attempt finished it.
  WORKER: the worker that runs it while it is STARTED; kept if the first attempt finished it, because there is no HISTORY then.
  USER, SERVICE: '' is none; behind the service stand the tags, each behind a tab (form.service).
  AWAITED: other jobs have waited for this one; RESOLVING: it has ended, and the sweep over its dependents has not.
  SINCE: the number of its last redrive or revival; 0 without one.
  STAGED: the id shared by the parts of the submission that has not released it yet; DELAYED and RUN_AT are kept for the release.
  CAME: before the release its number, or the newest of its part if a job there depends on a later one; after it the number
  of the commit that made it visible. The start has that number as SINCE.
  NEEDS: HELD while it is in WAITING of all its declared dependencies, KNOWN after that. PORTIONS: how many portions of these
  there are besides the first; each is bound and released in a step of its own; of the start those of all its jobs. CANCELED_BY: the job whose end
  canceled it. PARENT: it has run and waits for its children; CHILD_FAILED: state and id of the first that failed.
  LEVEL: its inherited priority, if a job behind it has a better one than its PRIORITY.
  TO_BEGIN: granted when one more loss makes it FAILED, and its worker has not reported yet that its code begins.
  LOOP_BLOCKED: since when code has blocked the event loop of the worker that runs it.
  MADE_BY: the id of its parent. TOLD: how many dependencies it was told of, of one with PORTIONS.
  REFUSED_BY: the releases that gave it back as unknown to them, the newest last, with commas between; false or nil for none.
  STEPS: how many results of its steps are stored, STEP_BYTES: the bytes of their names and results. ]]
local STATE, NUMBER, SEQ, VERSION, ATTEMPTS, TOKEN, WORKER, ENQUEUED, QUEUED_AT, FIRST = 1, 2, 3, 4, 5, 6, 7, 8, 9, 10 -- @const
local STARTED_AT, TIMER, TIMER_MS, WALKS, OFFER, PRIORITY, POOL, USER, TASK, SERVICE = 11, 12, 13, 14, 15, 16, 17, 18, 19, 20 -- @const
local POLICY, CLAIMS, SHORT_SPEC = 21, 22, 23 -- @const
local ENDED, RESULT, KEY, DUE_AT, EXPIRY_MS, STEPS, STEP_BYTES, WATCHERS, GONE = 24, 25, 26, 27, 28, 29, 30, 31, 32 -- @const
local REPORTED, LOSSES, CANCEL, CAUSE, ERRORS, BACKING_OFF, PRESENCE, LOGS, SINCE = 33, 34, 35, 36, 37, 38, 39, 40, 41 -- @const
local UNKNOWN_TASKS, BLOCKED, AWAITED, FLOW, STAGED, NEEDS, CANCELED_BY, PARENT = 42, 43, 44, 45, 46, 47, 48, 49 -- @const
local CHILD_FAILED, DELAYED, RUN_AT, LEVEL, TO_BEGIN, CAME, LOOP_BLOCKED, PORTIONS = 50, 51, 52, 53, 54, 55, 56, 57 -- @const
local HISTORY, MADE_BY, TOLD, REFUSED_BY = 58, 59, 60, 61 -- @const
local HELD, KNOWN, RESOLVING, START_MARK, START_TASK, START_SPEC = 'h', 'k', 't', ' ', 'start', '\n{}' -- @const
local DEADLINE_MARK = '  ' -- @const
-- The task of signals that were given and of waits for one: records that take no place and need no worker.
local SIGNAL_TASK = 'queuehint.signal' -- @const

local SCHEDULED, DEFERRED, QUEUED, STARTED, FINISHED, FAILED, CANCELED = 'S', 'D', 'Q', 'R', 'F', 'X', 'C' -- @const
local OVER = {F = true, X = true, C = true}
local DUE, LEASE, EXPIRY, PRUNE, RESUME = '0', '1', '2', '3', '4' -- @const
local GRANTED, LEFT_BEHIND = 128, 129 -- @const
local HEAD_START_MS, CRITICAL = 60000, 9 -- @const

local form = {}

-- Numbers in members sort as numbers: the count of their digits goes first. What is whole is written by %d, at a tenth of the
-- cost of %.0f; a number is never text by itself, which ends at 14 digits.
function form.sortable(number)
  local digits = string.format('%d', number)
  return string.char(64 + #digits) .. digits
end

-- The rank, by which ready jobs of a level are ordered; below, the same as text.
function form.rank(level, enqueued_ms)
  if level == CRITICAL then return -2 ^ 62 end
  return enqueued_ms - HEAD_START_MS * (level - 1)
end

function form.rank_text(rank) return rank == -2 ^ 62 and '0' or string.format('1%015d', rank + 1e14) end

-- Whether one of two items of a rank and a number comes before the other.
function form.sooner(left, right)
  if left[1] ~= right[1] then return left[1] < right[1] end
  return left[2] < right[2]
end

-- The id in a member of READY, behind a prefix of some length and a rank.
function form.id_behind_rank(member, prefix)
  local from = prefix + (string.byte(member, prefix + 1) == 49 and 17 or 2)
  return string.sub(member, from + string.byte(member, from) - 63)
end

-- The service of a line, '' for none, and its tags, nil for none.
function form.service(line)
  local tab = string.find(line, '\t', 1, true)
  if not tab then return line end
  local found = {}
  for tag in string.gmatch(string.sub(line, tab), '[^\t]+') do found[#found + 1] = tag end
  return string.sub(line, 1, tab - 1), found
end

-- Whether an offer is a place: its job is parked by a limit.
function form.is_place(offer) return type(offer) == 'string' and offer ~= 'r' end

local tags = {}

-- A job's sortable number and id: the end of a member.
function form.tag(job)
  -- By the head: an id may be taken again, with another number, in the step in which it is pruned.
  local tag = tags[job]
  if not tag then
    tag = form.sortable(job[NUMBER]) .. job.id
    tags[job] = tag
  end
  return tag
end

-- The sortable number and the id of a tag that begins at *from*.
function form.split(member, from)
  local last = from + string.byte(member, from) - 64
  return tonumber(string.sub(member, from + 1, last)), string.sub(member, last + 1)
end

-- The session of one that waits, whose name begins with a "~" if it waits for each change.
function form.session(watcher) return (string.gsub(watcher, '^~', '')) end

-- Order by bytes: Lua's own `<` goes by the server's locale.
function form.less(left, right)
  local at, last = 1, math.min(#left, #right) - 31
  while at <= last and string.sub(left, at, at + 31) == string.sub(right, at, at + 31) do at = at + 32 end
  while true do
    local a, b, c, d, e, f = string.byte(left, at, at + 5)
    local u, v, w, x, y, z = string.byte(right, at, at + 5)
    if a ~= u then return (a or -1) < (u or -1) end
    if b ~= v then return (b or -1) < (v or -1) end
    if c ~= w then return (c or -1) < (w or -1) end
    if d ~= x then return (d or -1) < (x or -1) end
    if e ~= y then return (e or -1) < (y or -1) end
    if f ~= z then return (f or -1) < (z or -1) end
    if not f then return false end
    at = at + 6
  end
end

-- What texts mean is the same in every call, so it is remembered: at most so many texts in a table, each of so many bytes. A table
-- that is full begins anew. docs/reference/limits.md lists all of them.
local TEXTS_KEPT, TEXT_BYTES_MAX, KEYS_BYTES_MAX = 1000, 512, 1048576 -- @const
-- Claims that were taken apart, the number of their texts, and more than the bytes of their keys; and those of this call that are longer.
local claims_parsed, claims_count, claims_bytes = {}, 0, 0 -- @once
local claims_of_call = {}

-- A claim with `shared`, `is_counted` if it is that of a permit, and the gates it passes: keys[depth + 1], the root's is ''.
local function parse_claim(claim_text)
  local key, keys = string.sub(claim_text, 2), {''}
  if key ~= '' then
    if string.find(key, '\\', 1, true) then
      local skip = false
      for at = 1, #key do
        local byte = string.byte(key, at)
        if skip then skip = false
        elseif byte == 92 then skip = true
        elseif byte == 58 then keys[#keys + 1] = string.sub(key, 1, at - 1)
        end
      end
    else
      local colon = string.find(key, ':', 1, true)
      while colon do
        keys[#keys + 1] = string.sub(key, 1, colon - 1)
        colon = string.find(key, ':', colon + 1, true)
      end
    end
    keys[#keys + 1] = key
  end
  local mode = string.byte(claim_text)
  return {shared = mode == 115, is_counted = mode == 99 or nil, keys = keys}
end

-- Whether the claims of a text are those of a permit: one, which takes no place.
function form.is_counted(claims_text) return string.byte(claims_text) == 99 end

-- The claims of a text.
function form.claims(claims_text)
  local claims = claims_parsed[claims_text] or claims_of_call[claims_text]
  if not claims then
    claims = {}
    if string.find(claims_text, '\n', 1, true) then
      for claim_text in string.gmatch(claims_text, '[^\n]+') do claims[#claims + 1] = parse_claim(claim_text) end
    elseif claims_text ~= '' then
      claims[1] = parse_claim(claims_text)
    end
    if #claims_text > TEXT_BYTES_MAX then
      claims_of_call[claims_text] = claims
      return claims
    end
    local bytes = claims_bytes
    for at = 1, #claims do bytes = bytes + #claims_text * #claims[at].keys end
    if claims_count >= TEXTS_KEPT or bytes > KEYS_BYTES_MAX then claims_parsed, claims_count, bytes = {}, 0, bytes - claims_bytes end
    claims_parsed[claims_text], claims_count, claims_bytes = claims, claims_count + 1, bytes
  end
  return claims
end

-- Whether a job has a claim at or below the place of a gate key.
function form.is_at_or_below(job, gate_key)
  for _, claim in ipairs(form.claims(job[CLAIMS])) do
    for _, key in ipairs(claim.keys) do
      if key == gate_key then return true end
    end
  end
  return false
end

-- The queue key, as people see it, of a gate's key.
function form.queue_key(gate_key)
  if gate_key == '' then return 'root' end
  if gate_key == 'root' then return '\\root' end
  return gate_key
end

-- @include lib/jobs/policies
local policies, policies_count = {[''] = DEFAULT_POLICY}, 0 -- @once

function form.policy(job)
  local policy = policies[job[POLICY]]
  if not policy then
    policy = {}
    for word in string.gmatch(job[POLICY], '[^ ]+') do
      policy[#policy + 1] = tonumber(word) or (word ~= '-' and word)
    end
    if #job[POLICY] > TEXT_BYTES_MAX then return policy end
    if policies_count >= TEXTS_KEPT then policies, policies_count = {[''] = DEFAULT_POLICY}, 0 end
    policies[job[POLICY]], policies_count = policy, policies_count + 1
  end
  return policy
end
