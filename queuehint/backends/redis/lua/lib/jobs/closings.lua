--[[ closings: closed paths, and the last job of each that was closed with one; mirrors core.jobs.closings.
  CLOSED maps the gate key of a path to the id of its last job, '' for none. ]]
local closings = {}

lazily(closings, function()
local changed = {}

-- The last job of a closed path, '' if it has none; nil if the path is open.
function closings.last_at(gate_key)
  local last = changed[gate_key]
  if last == nil then last = redis.call('HGET', store.closed, gate_key) end
  return last or nil
end

-- The last job of a path at or above a claim of a job; false if there is none, or it is the job itself.
function closings.last_above(job)
  local found = false
  for _, claim in ipairs(form.claims(job[CLAIMS])) do
    for _, gate_key in ipairs(claim.keys) do
      local last = closings.last_at(gate_key)
      if last == job.id then return false end
      if last ~= '' then found = found or last end
    end
  end
  return found
end

-- Close a path, with a job as its last or with none; the commit writes it.
function closings.close(gate_key, last)
  if not closings.last_at(gate_key) then S[CLOSED_PATHS] = S[CLOSED_PATHS] + 1 end
  changed[gate_key] = last
end

function closings.reopen(gate_key)
  S[CLOSED_PATHS] = S[CLOSED_PATHS] - 1
  changed[gate_key] = false
end

-- Parse the closing of a submission: whether jobs at or below the path are canceled (c) or run before (r), and the gate key.
function closings.asked(text)
  local how, gate_key = string.match(text, '^\n([cr])\n(.*)$')
  if not how then args.refuse('closing') end
  return {gate_key = gate_key, cancels = how == 'c'}
end

-- Close a path with a job that comes next as its last, and begin to cancel what is to be canceled there.
function closings.begin(closing, last)
  closings.close(closing.gate_key, last)
  if not closing.cancels then return end
  S[NUMBERS] = S[NUMBERS] + 1
  work.push(work.cancel_sweep({closing.gate_key}, S[NUMBERS], closings.cause_of_closing(last), false))
  work.push({'d', closing.gate_key, S[NUMBERS], 1, false})
end

function closings.cause_of_closing(last) return 'closed with ' .. last .. ' as the last job' end

function closings.write()
  for gate_key, last in pairs(changed) do
    if last then redis.call('HSET', store.closed, gate_key, last) else redis.call('HDEL', store.closed, gate_key) end
  end
end
end)
