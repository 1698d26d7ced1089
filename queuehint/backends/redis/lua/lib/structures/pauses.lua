--[[ pauses: pauses, which hold back ready jobs until they are resumed, or until a time; mirrors core.jobs.pauses.
  PAUSES maps the gate key of a paused path to the number of its pause and, if it ends by itself, behind spaces to the time of
  its end and its length, in ms.
  SELECTIONS holds the same for filters: service, user, task, pool and tag, each behind a line end and empty for any, then
  behind another one "/" and a gate key, or nothing. The name of a pause is its field in the one or the other.
  Of a pause that ends by itself TIMERS has an entry: RESUME, the sortable number, the name. PAUSED of the state counts all. ]]
local PAUSES_MAX, SELECTIONS_MAX = 10000, 100 -- @const
local pauses = {}

lazily(pauses, function()
local known, changed = {}, {}
pauses.SELECTION = '^\n([^\n]*)\n([^\n]*)\n([^\n]*)\n([^\n]*)\n([^\n]*)\n(/?[^\n]*)$'

local function is_selection(name) return string.byte(name) == 10 end

-- The name of a pause that is an argument.
function pauses.named(at) return is_selection(ARGV[at]) and args.like(at, pauses.SELECTION) or ARGV[at] end

-- The key in which a pause is, by its name.
function pauses.key_of(name) return is_selection(name) and store.selections or store.pauses end

-- A pause as it is stored; nil if it cannot be read.
function pauses.read(stored)
  local number, until_ms, for_ms = string.match(stored, '^(%d+) ?(%d*) ?(%d*)$')
  return number and {number = tonumber(number), until_ms = tonumber(until_ms) or false, for_ms = tonumber(for_ms) or 0}
end

-- The pause of a name; false if there is none.
function pauses.of(name)
  local pause = known[name]
  if pause == nil then
    local stored = redis.call('HGET', pauses.key_of(name), name)
    pause = stored and pauses.read(stored) or false
    known[name] = pause
  end
  return pause
end

-- The entry of TIMERS of a pause that ends by itself.
function pauses.timer_member(name, number) return RESUME .. form.sortable(number) .. name end

-- Whether an entry of TIMERS is that of a pause as it is now.
function pauses.is_timed(name, number, until_ms)
  local pause = pauses.of(name)
  return pause and pause.number == number and pause.until_ms == until_ms
end

local function change(name, pause)
  if changed[name] == nil then changed[name] = pauses.of(name) end
  known[name] = pause
end

-- Pause for a while, false for no end; return whether that changed anything, nil if there are too many pauses.
function pauses.begin(name, for_ms)
  local pause, until_ms = pauses.of(name), for_ms and NOW + for_ms
  if not pause then
    local is_full = is_selection(name) and redis.call('HLEN', store.selections) >= SELECTIONS_MAX
    if is_full or S[PAUSED] >= PAUSES_MAX then return nil end
    S[PAUSE], S[PAUSED] = S[PAUSE] + 1, S[PAUSED] + 1
  elseif pause.until_ms == until_ms then
    return false
  end
  change(name, {number = pause and pause.number or S[PAUSE], until_ms = until_ms, for_ms = for_ms or 0})
  return true
end

-- End a pause: what it has parked is offered again. Return whether there was one.
function pauses.resume(name)
  local pause = pauses.of(name)
  if not pause then return false end
  S[PAUSED] = S[PAUSED] - 1
  change(name, false)
  work.push({'u', pause.number})
  return true
end

-- Let a pause that was begun by a clock that was ahead end by the time that is right; return whether it was.
function pauses.turn_back(name, ahead_ms, now_ms)
  local pause = pauses.of(name)
  if not pause or not pause.until_ms or pause.until_ms - pause.for_ms <= now_ms then return false end
  change(name, {number = pause.number, until_ms = math.max(now_ms, pause.until_ms - ahead_ms), for_ms = pause.for_ms})
  return true
end

local selections

-- The pauses by filter there were when this step began, in order of number.
local function all_selections()
  if selections then return selections end
  selections = {}
  local stored = redis.call('HGETALL', store.selections)
  for at = 1, #stored, 2 do
    local name, pause = stored[at], pauses.read(stored[at + 1])
    if pause then
      if known[name] == nil then known[name] = pause end
      local service, user, task, pool, tag, path = string.match(name, pauses.SELECTION)
      selections[#selections + 1] = {name = name, number = pause.number, service = service, user = user, task = task, pool = pool,
        tag = tag, key = path ~= '' and string.sub(path, 2)}
    end
  end
  table.sort(selections, function(left, right) return left.number < right.number end)
  return selections
end

local function has_tag(job, wanted)
  local _, tags = form.service(job[SERVICE])
  for _, tag in ipairs(tags or {}) do
    if tag == wanted then return true end
  end
  return false
end

local function selects(one, job)
  return (one.task == '' or one.task == job[TASK]) and (one.user == '' or one.user == job[USER])
    and (one.pool == '' or one.pool == job[POOL]) and (one.service == '' or one.service == (form.service(job[SERVICE])))
    and (one.tag == '' or has_tag(job, one.tag)) and (not one.key or form.is_at_or_below(job, one.key))
end

-- The pause that holds a job, and its name: of the highest path at or above one of its claims, else the first by filter;
-- nil if there is none.
function pauses.holding(job)
  for _, claim in ipairs(form.claims(job[CLAIMS])) do
    for _, key in ipairs(claim.keys) do
      local pause = pauses.of(key)
      if pause then return pause, key end
    end
  end
  for _, one in ipairs(all_selections()) do
    if known[one.name] and selects(one, job) then return known[one.name], one.name end
  end
end

-- How many jobs are parked by a pause.
function pauses.count(pause)
  local prefix = form.sortable(pause.number)
  return redis.call('ZLEXCOUNT', store.parked, '[' .. prefix, '(' .. prefix .. '\255')
end

-- All pauses that can be read, by name.
function pauses.all()
  local found = {}
  for _, stored in ipairs({redis.call('HGETALL', store.pauses), redis.call('HGETALL', store.selections)}) do
    for at = 1, #stored, 2 do found[stored[at]] = pauses.read(stored[at + 1]) end
  end
  return found
end

-- How many jobs are parked by pauses that do not end by themselves, or by those that do.
function pauses.count_parked(endless)
  local count = 0
  for _, pause in pairs(pauses.all()) do
    if not pause.until_ms == endless then count = count + pauses.count(pause) end
  end
  return count
end

-- Write what has changed; *timers* are given, because they know of pauses and begin later.
function pauses.write(timers)
  for name, was in pairs(changed) do
    local pause = known[name]
    if was and was.until_ms then
      redis.call('ZREM', store.timers, pauses.timer_member(name, was.number))
      timers.see_taken(NEXT_TIMER, was.until_ms)
    end
    if pause then
      local until_text = pause.until_ms and string.format(' %d %d', pause.until_ms, pause.for_ms) or ''
      redis.call('HSET', pauses.key_of(name), name, string.format('%d', pause.number) .. until_text)
      if pause.until_ms then
        redis.call('ZADD', store.timers, string.format('%d', pause.until_ms), pauses.timer_member(name, pause.number))
        timers.see_put(NEXT_TIMER, pause.until_ms)
      end
    else
      redis.call('HDEL', pauses.key_of(name), name)
    end
  end
end
end)
