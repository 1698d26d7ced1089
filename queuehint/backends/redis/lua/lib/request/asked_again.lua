--[[ asked_again: idempotent enqueue: whether a submitted job is identical to the stored job with its id. ]]
-- @include lib/request/asked
-- Return the fields of a submitted job that never change, without the id and the spec, as one text.
local function lasting_of(ask)
  return table.concat({ask[P_PRIORITY], ask[P_POOL], ask[P_TASK], ask[P_KEY] or '', ask[P_PRESENCE] or '', ask[P_POLICY], ask[P_CLAIMS]}, '\0')
end

local function spec_of(job) return jobs.specs[job.id] or heads.spec(job) end

local function lasting_of_job(job)
  return table.concat({job[PRIORITY], job[POOL], job[TASK], job[KEY] or '', job[PRESENCE] or '', job[POLICY], job[CLAIMS]}, '\0')
end

-- Return all fields of a job, without the id and the headers, as one text; digests of the arguments, if there are any, stand
-- before it, between two marks, and in place of the arguments.
local function text_of(user, service, lasting, spec)
  local digests, plain = jobs.identity(spec)
  if not digests then return table.concat({user, service, lasting, jobs.without_headers(spec)}, '\0') end
  return '\2' .. digests .. '\2' .. table.concat({user, service, lasting, jobs.first_line(jobs.without_headers(plain))}, '\0')
end

local function text_of_ask(ask) return text_of(ask[P_USER], ask[P_SERVICE], lasting_of(ask), ask[SPEC]) end
local function text_of_job(job) return text_of(job[USER], job[SERVICE], lasting_of_job(job), spec_of(job)) end

-- Return whether two texts are of the same job: equal, or but for digests of which they share one.
local function is_same(text, other)
  if text == other then return true end
  local digests, rest = jobs.identity(text)
  local others, other_rest = jobs.identity(other)
  return digests and others and rest == other_rest and jobs.is_identical(digests, others)
end

-- Return whether a submitted job equals the stored one as first submitted; of a deleted record only a digest may be left.
local function is_asked_again(job, ask)
  local text, asked = text_of_ask(ask), false
  if is_same(text_of_job(job), text) then return true end
  asked = redis.call('HGET', store.asked, job.id)
  if asked and is_same(asked, text) then return true end
  if not job[GONE] then return false end
  if asked and is_same(asked, jobs.digest(text)) then return true end
  local spec = ask[SPEC]
  ask[SPEC] = jobs.digested(spec)
  text, ask[SPEC] = text_of_ask(ask), spec
  return text_of_job(job) == text
end

-- Store a job as first submitted, before its first change.
local function keep_asked(job)
  if not plan.asked[job.id] and redis.call('HEXISTS', store.asked, job.id) == 0 then plan.asked[job.id] = text_of_job(job) end
end
