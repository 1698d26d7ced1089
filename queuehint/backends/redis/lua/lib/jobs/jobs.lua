--[[ jobs: the heads of jobs, each read once and changed in a table. lib/request/write deletes those in `buried`, whose ids are
  used again, then writes those in `dirty`, with all derived data, and `specs` into SPECS. Of those in `forgotten`, whose records
  are dropped, it keeps the submitted spec, or a digest if the spec is longer than the limit stored there. ]]
local DIGEST_FROM, DIGEST_MARK, IDENTITY_MARK, LOADED_AT_ONCE = 256, '\1', 2, 1000 -- @const
local jobs = {all = {}, dirty = {}, buried = {}, forgotten = {}, specs = {}}
-- What is written beside the heads (lib/request/write).
local plan = {results = {}, progress = {}, asked = {}, logs = {}}
-- The head of a job, with its id at .id; false where there is none.
function jobs.of(id)
  local job = jobs.all[id]
  if job == nil then
    local packed = redis.call('HGET', store.jobs, id)
    job = packed and heads.read(id, packed)
    jobs.all[id] = job
  end
  return job
end

-- Read the heads of some jobs at once.
function jobs.prefetch(ids)
  local wanted, all = {}, jobs.all
  for at = 1, #ids do
    local id = ids[at]
    if all[id] == nil then wanted[#wanted + 1] = id end
  end
  for from = 1, #wanted, LOADED_AT_ONCE do
    local last = math.min(from + LOADED_AT_ONCE - 1, #wanted)
    local packed = redis.call('HMGET', store.jobs, unpack(wanted, from, last))
    for at = from, last do
      local head = packed[at - from + 1]
      all[wanted[at]] = head and heads.read(wanted[at], head)
    end
  end
end

-- A job as it was before this step, nil if it is new.
function jobs.was(job) return job.packed and heads.read(job.id, job.packed) or nil end

-- Give a job its spec, in its head or in SPECS: from where it was it goes with the head that is written (lib/structures/indexes).
function jobs.set_spec(job, spec)
  local is_short = heads.is_short(spec)
  job[SHORT_SPEC] = is_short and spec
  jobs.specs[job.id] = not is_short and spec or nil
end

-- The head of a job that an index names; what was forgotten in this step is named there still.
function jobs.known(id, index)
  local job = jobs.of(id) or jobs.dirty[id]
  if not job then corrupt('job ' .. id .. ' is named in ' .. index .. ' and has no head in ' .. store.jobs) end
  return job
end

-- The head of a job that people may ask for: its record is still kept.
function jobs.find(id)
  local job = jobs.of(id)
  return job and not job[GONE] and not jobs.is_hidden(job) and job or false
end

-- The digests of arguments before a text, between two marks, and the text behind them; nil for a text without.
function jobs.identity(text)
  if string.byte(text) ~= IDENTITY_MARK then return nil end
  return string.match(text, '^\2([^\2]*)\2(.*)$')
end

-- The digest kept in place of a text: enough to recognise the same request. Digests of arguments stay before it.
function jobs.digest(text)
  local digests, rest = jobs.identity(text)
  return (digests and '\2' .. digests .. '\2' or '') .. DIGEST_MARK .. redis.sha1hex(rest or text)
end

-- A spec without its headers, which stand at the end of its first line, behind a tab.
function jobs.without_headers(spec)
  local newline = string.find(spec, '\n', 1, true)
  local tab = newline and string.find(string.sub(spec, 1, newline), '\t', 1, true)
  return tab and string.sub(spec, 1, tab - 1) .. string.sub(spec, newline) or spec
end

-- Whether two lists of digests have one in common.
function jobs.is_identical(digests, others)
  for digest in string.gmatch(digests, '%S+') do
    if string.find(' ' .. others .. ' ', ' ' .. digest .. ' ', 1, true) then return true end
  end
  return false
end

-- The first line of a spec, for the arguments of which digests stand.
function jobs.first_line(spec) return string.match(spec, '^[^\n]*') end

-- A spec with a digest in place of its arguments, which stand behind its first line; without headers.
function jobs.digested(spec)
  spec = jobs.without_headers(spec)
  local newline = string.find(spec, '\n', 1, true)
  return string.sub(spec, 1, newline or 0) .. DIGEST_MARK .. redis.sha1hex(string.sub(spec, (newline or 0) + 1))
end

-- Whether a head is no job but what a submission in parts waits for, or the deadline of a flow.
function jobs.is_start(id) return string.byte(id) == 32 end

-- Whether an id is that of a signal: one that is given is over, any other may be given yet.
function jobs.is_signal(id) return string.sub(id, 1, 7) == 'signal:' end

-- Whether an id is that of a job's wait for a signal.
function jobs.is_wait(id) return string.sub(id, 1, 12) == 'signal-wait:' end

-- Whether a job belongs to a submission in parts that is not committed, or is the start of one.
function jobs.is_hidden(job)
  if not job[STAGED] then return jobs.is_start(job.id) end
  -- One that was committed may be over before it is let go; what is dropped is gone.
  if OVER[job[STATE]] and not job[GONE] then return false end
  local start = jobs.of(START_MARK .. job[STAGED])
  return start and start[STATE] ~= FINISHED
end

function jobs.is_fresh(job) return not job[FIRST] and not OVER[job[STATE]] end

-- Whether a job has the key it was given: it is unfinished, or keeps the key for a time.
function jobs.has_key(job) return not OVER[job[STATE]] or (job[EXPIRY_MS] or 0) > NOW end

-- Whether a further job of its key is the one that has it.
function jobs.stands_for_key(job) return not job[FIRST] or form.policy(job)[KEY_FOR] end
