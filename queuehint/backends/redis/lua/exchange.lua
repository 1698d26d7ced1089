#!lua flags=allow-oom
--[[ exchange: settle a batch of started jobs and claim the next.
  ARGV[9] worker    str  unique to this incarnation; ARGV[10] lease_ms int; ARGV[11] limit int, -1 for the last
                    exchange of a worker, which passes on the wake-ups that only it received
  ARGV[12] users    str  "" for everyone, else "=" and the users that the worker serves, one a line, "" for jobs without one
  ARGV[13] steal    str  the same of the users it helps; "" for none, "*" for anyone
  ARGV[14] announces str  1 if the worker reports by `renew` when the code of a job begins that one more loss would make FAILED, else
                    0; and its release behind that, "" for none
  ARGV[15] count    int  how many pools follow
  ARGV[16..]        pools, then for each outcome its id, token and kind: f finished, result; n finished, null;
                    z finished, none; x failed, error, delay_ms, final; s snoozed, delay_ms; r released; u unknown
                    task; l lost, error; d discarded, reason; c children: f, n or z and a result as above, whether a child
                    that fails fails it (f) or not (i), or it is run again then (a), and their ids, one a line. An error is "" or "e", type, message, and the traceback,
                    "" for none, else with "t" before it
  Returns more, now, next, verdicts (D done, L lost), ids asked to stop, 1 if schedules are due, how many records were
    dropped before their time, a head for each grant, then a spec for each.
  A head is id, token, attempts, losses (and behind a space, if there are any, how many results of its steps are stored), priority, pool, user, task, service, key, presence, policy, claims, one a line.
  Mirrors core.working   Cost O(depth) a job, and what follows ]]
-- @include lib/plain/exchange_one
-- @include lib/rules
local UNKNOWN_TASK_PAUSE_MS, UNKNOWN_TASK_PAUSE_MAX_MS, RELEASES_KEPT = 5000, 300000, 8 -- @const
args.count(15, 1)
local worker, lease_ms, limit, pool_count = ARGV[9], args.int(10), args.int(11, -1), args.int(15)
local announces, release = args.flag_and_text(14)
args.count(15 + pool_count, 1)
local at = 16
local names = {}
for _ = 1, pool_count do
  names[#names + 1] = ARGV[at]
  at = at + 1
end

-- The users of an argument; false for everyone.
local function users_of(index)
  local text = ARGV[index]
  if text == '' or text == '*' then return false end
  if string.byte(text) ~= 61 then args.refuse(index) end
  local users = {}
  for name in string.gmatch(string.sub(text, 2) .. '\n', '([^\n]*)\n') do users[#users + 1] = name end
  return users
end

local PARTS = {f = 1, n = 0, z = 0, x = 6, s = 1, r = 0, u = 0, l = 4, d = 1, c = 4}

-- An error's type (false if there is none), message and traceback (false if there is none).
local function error_at(first)
  local traceback = ARGV[first + 3]
  if traceback ~= '' then args.like(first + 3, '^t') end
  args.like(first, '^e?$')
  return ARGV[first] == 'e' and ARGV[first + 1], ARGV[first + 2], traceback ~= '' and string.sub(traceback, 2)
end

-- Keep a result: f for one that is stored, n for null, z for what the job has so far; false if there is no room for it.
local function keep_result(job, kind, result)
  if kind == 'f' and memory.is_refused(result) then
    lifecycle.fail(job, 'store_full', 'the result takes ' .. #result .. ' bytes and the store is full')
    return false
  end
  if kind == 'f' then plan.results[job.id] = result end
  if kind ~= 'z' then job[RESULT] = kind == 'f' and 's' or 'n' end
  return true
end

-- Give a job back that the release of its worker does not know: ready at once, for other releases. With a growing pause if
-- nothing would keep the same release from it.
local function refuse(job)
  local before = job[REFUSED_BY] or ''
  if release ~= '' and not string.find(',' .. before .. ',', ',' .. release .. ',', 1, true) then
    local refused_by = before == '' and release or before .. ',' .. release
    local _, commas = string.gsub(refused_by, ',', '')
    if commas >= RELEASES_KEPT then refused_by = string.sub(refused_by, string.find(refused_by, ',', 1, true) + 1) end
    if ready_queue.has_queue(job, refused_by) then
      job[REFUSED_BY] = refused_by
      return transitions.put_back(job, false, 'released', 'unknown_task')
    end
  end
  local unknown_task_count = job[UNKNOWN_TASKS]
  local pause_ms = math.min(UNKNOWN_TASK_PAUSE_MS * 2 ^ math.min(unknown_task_count, 16), UNKNOWN_TASK_PAUSE_MAX_MS)
  transitions.put_back(job, NOW + pause_ms, 'released', 'unknown_task')
  job[UNKNOWN_TASKS] = unknown_task_count + 1
end

local function give_back(job, kind, first)
  if job[PRESENCE] then
    -- Only its caller could start it again, and the caller has left.
    lifecycle.finish(job, CANCELED, 'waiter_lost', false)
  elseif kind == 'l' then
    lifecycle.lose(job, error_at(first))
  elseif kind == 'c' then
    if keep_result(job, ARGV[first], ARGV[first + 1]) then lifecycle.await_children(job, ARGV[first + 3], ARGV[first + 2]) end
  else
    job[ATTEMPTS] = job[ATTEMPTS] - 1
    if kind == 's' then
      lifecycle.back_off(job, args.int(first), 'snoozed')
    elseif kind == 'r' then
      transitions.put_back(job, false, 'released')
    else
      refuse(job)
    end
  end
end

local function settle(job, kind, first)
  if kind == 'f' or kind == 'n' or kind == 'z' then
    if keep_result(job, kind, ARGV[first]) then lifecycle.finish(job, FINISHED, false, false) end
  elseif job[CANCEL] then
    lifecycle.finish(job, CANCELED, job[CANCEL], false)
  elseif kind == 'x' then
    lifecycle.record_error(job, error_at(first))
    if args.flag(first + 5) or job[ATTEMPTS] >= form.policy(job)[MAX_ATTEMPTS] or job[PRESENCE] then
      lifecycle.die(job, 'failed')
    else
      lifecycle.back_off(job, args.int(first + 4), 'retried', error_at(first))
    end
  elseif kind == 'd' then
    lifecycle.finish(job, CANCELED, ARGV[first], false)
  else
    give_back(job, kind, first)
  end
end

-- Read at once what the outcomes are about.
local function look_ahead()
  local ids, claims, from = {}, {}, at
  while PARTS[ARGV[from + 2]] do
    ids[#ids + 1] = ARGV[from]
    from = from + 3 + PARTS[ARGV[from + 2]]
  end
  if not ids[2] then return end
  jobs.prefetch(ids)
  for index = 1, #ids do
    local job = jobs.all[ids[index]]
    if job then claims[#claims + 1] = job[CLAIMS] end
  end
  gates.prefetch(claims)
  gates.read_lines(claims)
end

look_ahead()
local verdicts = {}
while at <= #ARGV do
  local job, token, kind = jobs.of(ARGV[at]), ARGV[at + 1], ARGV[at + 2]
  local parts = PARTS[kind] or args.refuse(at + 2)
  args.count(at + 2 + parts, 1)
  if kind == 'c' and not (string.find(ARGV[at + 3], '^[fnz]$') and string.find(ARGV[at + 5], '^[fia]$')) then args.refuse(at + 3) end
  if job and job[STATE] == STARTED and job[TOKEN] == token then
    S[SETTLED_IN_ALL] = S[SETTLED_IN_ALL] + 1
    settle(job, kind, at + 3)
    verdicts[#verdicts + 1] = 'D'
  else
    verdicts[#verdicts + 1] = 'L'
  end
  at = at + 3 + parts
end
work.follow()
memory.relieve()

local told_heads, granted, specs, long = {}, {}, {}, {}

-- Grant a ready job, and say what its worker has to know of it.
local function grant(job)
  local token = epoch.next_token()
  transitions.start(job, worker, token, NOW + lease_ms, announces)
  local at = #granted + 1
  granted[at], specs[at] = job.id, job[SHORT_SPEC] or false
  if not job[SHORT_SPEC] then long[#long + 1] = job.id end
  if job.is_plain then
    told_heads[#told_heads + 1] = job.id .. '\n' .. token .. '\n' .. job[ATTEMPTS] .. '\n0\n' .. job.facts .. job[CLAIMS]
    return
  end
  local losses = job[LOSSES]
  if job[STEPS] > 0 then losses = losses .. ' ' .. job[STEPS] end
  told_heads[#told_heads + 1] = table.concat({job.id, token, job[ATTEMPTS], losses, job[PRIORITY], job[POOL], job[USER],
    job[TASK], job[SERVICE], job[KEY] or '', job[PRESENCE] or '', job[POLICY], job[CLAIMS]}, '\n')
end

-- Take jobs of some users, or of all, from pools in rotation until the limit, or the budget of jobs that are parked,
-- is used.
local function claim_of(among, found)
  local turn = 0
  while #found > 0 and #granted < limit do
    local pool = found[turn % #found + 1]
    local job = ready_queue.take(pool, among)
    if not job then
      table.remove(found, turn % #found + 1)
    else
      turn = turn + 1
      local pause = S[PAUSED] > 0 and pauses.holding(job)
      local counter = not pause and S[LIMITS] > 0 and limits.stops(job)
      if not pause and not counter then
        grant(job)
      else
        if pause then
          job[OFFER] = pause.number
          if S[LIMITS] > 0 then limits.job_left(job) end
        else
          limits.park(job, counter)
        end
        work.units = work.units - 2
        if work.units <= 0 then
          work.cut = true
          return
        end
      end
    end
  end
end

-- Read the specs of the jobs granted that stand in SPECS.
local function read_specs()
  local stored, last = redis.call('HMGET', store.specs, unpack(long)), #long
  for index = #granted, 1, -1 do
    if not specs[index] then
      specs[index], last = stored[last], last - 1
    end
    if not specs[index] then
      -- Without its spec it can never run, and it must not keep the others of this batch from running.
      local job = jobs.of(granted[index])
      lifecycle.record_error(job, 'store_damaged', 'its arguments are gone', false)
      lifecycle.die(job, 'failed')
      table.remove(granted, index)
      table.remove(specs, index)
      table.remove(told_heads, index)
    end
  end
end

local users, steal = users_of(12), users_of(13)
local is_last = limit < 0
-- A caller that claims from its own pool, or claims nothing, does not come back when something is due.
local sleeps = limit > 0 and names[1] ~= worker

-- Claim jobs of those the worker is there for, then of those it helps; each time first what other releases have refused.
local function claim()
  local found = ready_queue.rotate(names)
  if S[REFUSED_POOLS] > 0 then claim_of(users, ready_queue.open_to(release, names)) end
  if not work.cut then claim_of(users, {unpack(found)}) end
  if ARGV[13] ~= '' and not work.cut then
    if S[REFUSED_POOLS] > 0 then claim_of(steal, ready_queue.open_to(release, names)) end
    if not work.cut then claim_of(steal, found) end
  end
  if #granted > 0 then
    epoch.see_lease(lease_ms)
    if #long > 0 then read_specs() end
  end
end

ready_queue.wanted = limit
if limit > 0 and pool_count > 0 then claim() end
local among = ARGV[13] ~= '*' and {users or {}, steal or {}} or {}
ready_queue.mark_all(names, among)
if S[REFUSED_POOLS] > 0 then ready_queue.mark_refused(release, names, among) end
if is_last then S[TOLD_NEXT] = -1 end
-- The pools, or users of pools, to claim from.
local served = names
if users and ARGV[13] ~= '*' then
  served, S[USERS_SEEN] = {}, NOW
  for _, pool in ipairs(names) do
    for _, some in ipairs({users, steal or {}}) do
      for _, name in ipairs(some) do served[#served + 1] = pool .. '\0' .. name end
    end
  end
end
S[STARTED_IN_ALL] = S[STARTED_IN_ALL] + #granted

local told = transitions.undelivered_of(worker)
local stop_ids = table.concat(told.ids, '\n')
if #told.ids > 0 then told.ids, told.changed, told.wake = {}, true, false end

local is_due = S[NEXT_SCHEDULE] >= 0 and S[NEXT_SCHEDULE] <= NOW
local rest = {table.concat(verdicts), stop_ids, is_due and 1 or 0, memory.dropped}
for index = 1, #told_heads do rest[#rest + 1] = told_heads[index] end
local reply = request.reply(rest, granted, specs, sleeps)
if is_last then redis.call('UNLINK', store.session_wake(worker)) end
-- Which pools are served, or users of them, for `why`.
for _, name in ipairs(served) do redis.call('ZADD', store.seen, NOW, name) end
return reply
