--[[ meters: what a job costs, what was spent of a rate, and when there is room again; mirrors core.meters, which explains the
  theory.
  A meter is a limiter or a counter: it has *spent*, *at* and, of a limit without a burst, *log*: times and counts by turns,
  oldest first. ]]
local LOG_MAX, LATE_MAX_MS, COST_MAX = 64, 100, 1000 -- @const
local meters = {}

lazily(meters, function()
-- What a job takes of each limit.
function meters.cost_of(job) return job[POLICY] == '' and 1 or form.policy(job)[COST] end

-- How much a job may cost that is ever to start under a limit.
function meters.costs_max(limiter) return math.min(limiter.most or COST_MAX, limiter.burst or limiter.tokens or COST_MAX) end

-- The parts of tokens that are spent of a bucket by now.
local function parts_of(meter, tokens) return math.max(0, meter.spent - (NOW - meter.at) * tokens) end

-- When so many parts of a token have come back.
local function back_ms(parts, tokens) return parts > 0 and NOW + math.ceil(parts / tokens) or NOW end

-- How long a start counts, for a rate of this time without a burst.
local function counted_ms(per_ms) return per_ms + math.min(math.ceil(per_ms / LOG_MAX), LATE_MAX_MS) end

-- When so many tokens, no more than the rate has, may be spent: now, or later.
function meters.room_ms(meter, limiter, cost)
  if limiter.burst then
    return back_ms(parts_of(meter, limiter.tokens) - (limiter.burst - cost) * limiter.per_ms, limiter.tokens)
  end
  local left, spent, ms, log = limiter.tokens - cost, meter.spent, NOW, meter.log
  for at = 1, log and #log or 0, 2 do
    if spent <= left then break end
    spent = spent - log[at + 1]
    ms = math.max(NOW, log[at] + counted_ms(limiter.per_ms))
  end
  return ms
end

-- When nothing counts any more: now, or later.
function meters.free_ms(meter, limiter)
  if limiter.burst then return back_ms(parts_of(meter, limiter.tokens), limiter.tokens) end
  return meter.log and #meter.log > 0 and math.max(NOW, meter.at + counted_ms(limiter.per_ms)) or NOW
end

local function note(meter, limiter, at, count)
  local part_ms, log = limiter.tokens <= LOG_MAX and 1 or math.ceil(limiter.per_ms / LOG_MAX), meter.log
  local size = #log
  meter.spent, meter.at = meter.spent + count, at
  if size > 0 and math.floor(log[size - 1] / part_ms) == math.floor(at / part_ms) then
    log[size - 1], log[size] = at, log[size] + count
  else
    log[size + 1], log[size + 2] = at, count
  end
end

-- The entries of a log that count still, and their sum.
local function live(meter, per_ms)
  local log, sum, over_ms = {}, 0, NOW - counted_ms(per_ms)
  for at = 1, meter.log and #meter.log or 0, 2 do
    if meter.log[at] > over_ms then
      log[#log + 1], log[#log + 2] = meter.log[at], meter.log[at + 1]
      sum = sum + meter.log[at + 1]
    end
  end
  return log, sum
end

function meters.spend(meter, limiter, cost)
  if limiter.burst then
    meter.spent, meter.at = parts_of(meter, limiter.tokens) + cost * limiter.per_ms, NOW
    return
  end
  local first = meter.log and meter.log[1]
  if not first or first + counted_ms(limiter.per_ms) <= NOW then meter.log, meter.spent = live(meter, limiter.per_ms) end
  note(meter, limiter, NOW, cost)
end

-- Carry over what was spent of the rate of another limiter; a part of a token counts as a whole one. Both meters may be one.
function meters.go_on_from(meter, limiter, was, old)
  local log, sum
  if old.burst then
    sum = math.min(math.ceil(parts_of(was, old.tokens) / old.per_ms), limiter.tokens)
    log = sum > 0 and {NOW, sum} or {}
  else
    log, sum = live(was, old.per_ms)
  end
  if limiter.burst then
    meter.spent, meter.at, meter.log = math.min(sum, limiter.burst) * limiter.per_ms, NOW, nil
    return
  end
  meter.spent, meter.at, meter.log = 0, 0, {}
  for at = 1, #log, 2 do
    if log[at] + counted_ms(limiter.per_ms) > NOW then note(meter, limiter, log[at], log[at + 1]) end
  end
end

-- Let no time of a meter be later than one.
function meters.turn_back(meter, now_ms)
  meter.at = math.min(meter.at, now_ms)
  for at = 1, meter.log and #meter.log or 0, 2 do meter.log[at] = math.min(meter.log[at], now_ms) end
end

-- Whether a meter can be one of a limiter's rate.
function meters.is_sound(meter, limiter)
  local spent, at, log = meter.spent, meter.at, meter.log or {}
  if type(spent) ~= 'number' or type(at) ~= 'number' or spent < 0 or at < 0 then return false end
  if limiter.burst then return not meter.log and spent <= limiter.burst * limiter.per_ms end
  if type(log) ~= 'table' or #log % 2 > 0 or #log > 2 * (LOG_MAX + 3) then return false end
  local sum, last = 0, 0
  for place = 1, #log, 2 do
    if type(log[place]) ~= 'number' or type(log[place + 1]) ~= 'number' or log[place] < last or log[place + 1] < 1 then return false end
    last, sum = log[place], sum + log[place + 1]
  end
  return sum == spent and last <= at
end
end)
