--[[ asked_again: idempotent enqueue: whether a submitted job is identical to the stored job with its id. ]]
-- @include lib/request/asked
-- Return the fields of a submitted job that never change, without the id and the headers, as one text.
local function lasting_of(ask)
  return table.concat({ask[P_PRIORITY], ask[P_POOL], ask[P_TASK], ask[P_KEY] or '', ask[P_PRESENCE] or '', ask[P_POLICY],
    ask[P_CLAIMS], jobs.without_headers(ask[SPEC])}, '\0')
end

local function spec_of(job) return plan.specs[job.id] or redis.call('HGET', store.specs, job.id) or '' end

local function lasting_of_job(job)
  return table.concat({job[PRIORITY], job[POOL], job[TASK], job[KEY] or '', job[PRESENCE] or '', job[POLICY],
    job[CLAIMS], jobs.without_headers(spec_of(job))}, '\0')
end

-- Return all fields of a submitted job, without the id, as one text.
local function text_of(ask) return ask[P_USER] .. '\0' .. ask[P_SERVICE] .. '\0' .. lasting_of(ask) end
local function asked_of(job) return job[USER] .. '\0' .. job[SERVICE] .. '\0' .. lasting_of_job(job) end

-- Return whether a submitted job equals the stored one as first submitted; of a deleted record only a digest may be left.
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

-- Store a job as first submitted, before its first change.
local function keep_asked(job)
  if not plan.asked[job.id] and redis.call('HEXISTS', store.asked, job.id) == 0 then plan.asked[job.id] = asked_of(job) end
end
