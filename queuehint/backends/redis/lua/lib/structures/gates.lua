--[[ gates: FIFO gates on a path trie; mirrors core.structures.trie and core.structures.registry, which explain the theory.
  A gate is one field of GATES: what is held in the modes IS IX S X, how many stand in its line, and the mark by which
  that line waits among the leftovers to be advanced. It exists while any of that is not zero. A line is a sorted set by
  place; its members are a character for the claim, "1" for the first, and the job's id. Both follow from the heads, but are kept beside them
  so that no step reads more than it passes. ]]
local BEFORE_CLAIM = 48 -- @const
local gates = {dirty = {}, lines = {}}

lazily(gates, function()
local cached = {}

function gates.of(key)
  local gate = cached[key]
  if not gate then
    gate = gate_format.read(redis.call('HGET', store.gates, key))
    cached[key] = gate
  end
  return gate
end

-- Read the gates of some claims at once: all that each claim passes, or with *own* the last of each.
function gates.prefetch(some, own)
  local wanted = {}
  local function want(key)
    if not cached[key] then
      cached[key] = true
      wanted[#wanted + 1] = key
    end
  end
  for at = 1, #some do
    if own and not string.find(some[at], '\n', 1, true) then
      if some[at] ~= '' then want(string.sub(some[at], 2)) end
    else
      local claims = form.claims(some[at])
      for index = 1, #claims do
        local keys = claims[index].keys
        for depth = own and #keys or 1, #keys do want(keys[depth]) end
      end
    end
  end
  for from = 1, #wanted, LOADED_AT_ONCE do
    local last = math.min(from + LOADED_AT_ONCE - 1, #wanted)
    local packed = redis.call('HMGET', store.gates, unpack(wanted, from, last))
    for at = from, last do cached[wanted[at]] = gate_format.read(packed[at - from + 1]) end
  end
end

-- Whether there are gates of these keys: a list of booleans. Those that are there are read.
function gates.known(keys)
  local packed = redis.call('HMGET', store.gates, unpack(keys))
  for at = 1, #keys do
    if packed[at] then cached[keys[at]] = gate_format.read(packed[at]) end
  end
  return packed
end

-- Whether a mode fits what is held.
function gates.fits(gate, mode)
  if gate[X_MODE] > 0 then return false end
  if mode == IS then return true end
  if mode == IX then return gate[S_MODE] == 0 end
  if mode == S_MODE then return gate[IX] == 0 end
  return gate[IS] == 0 and gate[IX] == 0 and gate[S_MODE] == 0
end

function gates.mode_at(claim, depth)
  if depth == #claim.keys - 1 then return claim.shared and S_MODE or X_MODE end
  return claim.shared and IS or IX
end

local function line_of(key)
  local line = gates.lines[key]
  if not line then
    line = {key = key, stored = {}, at = 1, offset = 0, joined = {}, joined_at = 1}
    gates.lines[key] = line
  end
  return line
end

local function stands_at(job, index, seq, key)
  local walks = job and job[SEQ] == seq and job[WALKS]
  local depth = walks and walks[index]
  return depth and depth < GRANTED and form.claims(job[CLAIMS])[index].keys[depth + 1] == key
end

-- The job that stands in a line right before a walk that waits there; nil if none does.
function gates.before(job, index, key)
  local seq, depth = job[SEQ], job[WALKS][index]
  for other = index - 1, 1, -1 do
    if job[WALKS][other] == depth and form.claims(job[CLAIMS])[other].keys[depth + 1] == key then return job end
  end
  local joined = gates.lines[key] and gates.lines[key].joined or {}
  for at = #joined, 1, -1 do
    local entry = joined[at]
    if entry[3] < seq and stands_at(entry[1], entry[2], entry[3], key) then return entry[1] end
  end
  local offset = 0
  while true do
    local stored = redis.call('ZRANGE', store.line(key), string.format('(%d', seq), '-inf', 'BYSCORE', 'REV', 'LIMIT', offset, 8, 'WITHSCORES')
    for at = 1, #stored, 2 do
      local other = jobs.known(string.sub(stored[at], 2), store.line(key))
      if stands_at(other, string.byte(stored[at]) - BEFORE_CLAIM, tonumber(stored[at + 1]), key) then return other end
    end
    if #stored < 16 then return nil end
    offset = offset + 8
  end
end

-- The first walks in a line, as pairs of a job and a place, ahead of a place.
function gates.ahead(key, seq, limit)
  local found = {}
  local stored = redis.call('ZRANGEBYSCORE', store.line(key), '-inf', string.format('(%d', seq), 'WITHSCORES', 'LIMIT', 0, limit)
  for at = 1, #stored, 2 do
    local job = jobs.known(string.sub(stored[at], 2), store.line(key))
    if stands_at(job, string.byte(stored[at]) - BEFORE_CLAIM, tonumber(stored[at + 1]), key) then found[#found + 1] = job end
  end
  for _, entry in ipairs(gates.lines[key] and gates.lines[key].joined or {}) do
    if #found >= limit then break end
    if entry[3] < seq and stands_at(entry[1], entry[2], entry[3], key) then found[#found + 1] = entry[1] end
  end
  return found
end

-- The job and the claim at the head of a line, which is not empty. It is the one that was there last while that stands there.
local function line_head(key)
  local line = line_of(key)
  if line.head and stands_at(line.head, line.index, line.seq, key) then return line.head, line.index end
  while true do
    if line.at > #line.stored and not line.read then
      local count = line.offset == 0 and 1 or 64
      line.stored = redis.call('ZRANGE', store.line(key), line.offset, line.offset + count - 1, 'WITHSCORES')
      line.at, line.offset = 1, line.offset + count
      line.read = #line.stored < 2 * count
    end
    if line.at <= #line.stored then
      local member, seq = line.stored[line.at], tonumber(line.stored[line.at + 1])
      local index = string.byte(member) - BEFORE_CLAIM
      local job = jobs.known(string.sub(member, 2), store.line(key))
      if stands_at(job, index, seq, key) then
        line.head, line.index, line.seq = job, index, seq
        return job, index
      end
      line.at = line.at + 2
    elseif line.read then
      local entry = line.joined[line.joined_at]
      if not entry then corrupt('the line at ' .. form.queue_key(key) .. ' is counted in ' .. store.gates .. ' and empty') end
      if stands_at(entry[1], entry[2], entry[3], key) then return entry[1], entry[2] end
      line.joined_at = line.joined_at + 1
    end
  end
end

-- Read at once the heads of the lines at gates that single claims hold, and are about to leave.
function gates.read_lines(claims)
  local ids = {}
  for at = 1, #claims do
    local key = string.sub(claims[at], 2)
    local gate = cached[key]
    if gate and gate[WAITING] > 0 and not gates.lines[key] then
      local line = line_of(key)
      line.stored, line.offset = redis.call('ZRANGE', store.line(key), 0, 0, 'WITHSCORES'), 1
      line.read = not line.stored[1]
      if line.stored[1] then ids[#ids + 1] = string.sub(line.stored[1], 2) end
    end
  end
  if ids[2] then jobs.prefetch(ids) end
end

-- Change how many wait in a line; `was` is how many did before this step.
local function count_line(gate, change)
  gate.was = gate.was or gate[WAITING]
  gate[WAITING] = gate[WAITING] + change
end

local function join_line(job, index, key, gate, depth)
  count_line(gate, 1)
  gates.dirty[key] = gate
  job[WALKS][index] = depth
  local joined = line_of(key).joined
  joined[#joined + 1] = {job, index, job[SEQ]}
end

-- Walk from the gate at *depth*, which has yet to be passed, to where the walk stops; return the gates visited.
local function walk_on(job, index, claim, depth)
  local keys = claim.keys
  local last, visited = #keys - 1, 1
  local intention = claim.shared and IS or IX
  while depth < last do
    local key = keys[depth + 1]
    local gate = gates.of(key)
    if gate[WAITING] > 0 or not gates.fits(gate, intention) then
      join_line(job, index, key, gate, depth)
      return visited
    end
    gate[intention] = gate[intention] + 1
    gates.dirty[key] = gate
    depth, visited = depth + 1, visited + 1
  end
  local key, own = keys[last + 1], claim.shared and S_MODE or X_MODE
  local gate = gates.of(key)
  if gate[WAITING] > 0 or not gates.fits(gate, own) then
    join_line(job, index, key, gate, last)
  else
    gate[own] = gate[own] + 1
    gates.dirty[key] = gate
    job[WALKS][index] = GRANTED
  end
  return visited
end

function gates.has_all(job)
  local walks = job[WALKS]
  if walks then
    for index = 1, #walks do
      if walks[index] ~= GRANTED then return false end
    end
  end
  return true
end

-- Let the line of a gate move on while its head fits; return the units used and whether it may still move.
function gates.advance(key, mark, budget, arrive)
  local gate, used = gates.of(key), 0
  if gate[TO_ADVANCE] ~= mark then return 0, false end
  gates.dirty[key] = gate
  -- A gate that is held exclusively lets nobody in: who comes next is not read.
  while gate[WAITING] > 0 and gate[X_MODE] == 0 do
    local job, index = line_head(key)
    local claim, depth = form.claims(job[CLAIMS])[index], job[WALKS][index]
    local mode = gates.mode_at(claim, depth)
    if not gates.fits(gate, mode) then break end
    if used >= budget then return used, true end
    count_line(gate, -1)
    gate[mode] = gate[mode] + 1
    job[WALKS][index] = GRANTED
    jobs.dirty[job.id] = job
    used = used + 1
    if depth < #claim.keys - 1 then used = used + walk_on(job, index, claim, depth + 1) end
    if gates.has_all(job) then arrive(job) end
  end
  gate[TO_ADVANCE] = 0
  return used, false
end

-- Put a line whose head fits now among the leftovers, with a mark: a gate that goes away meanwhile and comes again is
-- another one. The root never goes away.
local function look_at_line(key, gate)
  if gate[WAITING] == 0 then
    if key ~= '' and gate[IS] + gate[IX] + gate[S_MODE] + gate[X_MODE] == 0 then gate[TO_ADVANCE] = 0 end
    return
  end
  if gate[TO_ADVANCE] > 0 or gate[X_MODE] > 0 then return end
  local job, index = line_head(key)
  local claim = form.claims(job[CLAIMS])[index]
  if gates.fits(gate, gates.mode_at(claim, job[WALKS][index])) then
    S[MARKS] = S[MARKS] + 1
    gate[TO_ADVANCE] = S[MARKS]
    work.push({'g', key, S[MARKS]})
  end
end

-- Take a walk out, from where it stands up to the root; return the gates it left.
local function leave(claim, depth)
  local keys, left = claim.keys, 1
  local intention = claim.shared and IS or IX
  local gate
  if depth == GRANTED then
    depth = #keys - 1
    gate = gates.of(keys[depth + 1])
    local own = claim.shared and S_MODE or X_MODE
    gate[own] = gate[own] - 1
  else
    gate = gates.of(keys[depth + 1])
    count_line(gate, -1)
    line_of(keys[depth + 1])
  end
  gates.dirty[keys[depth + 1]] = gate
  look_at_line(keys[depth + 1], gate)
  while depth > 0 do
    depth, left = depth - 1, left + 1
    local key = keys[depth + 1]
    gate = gates.of(key)
    gate[intention] = gate[intention] - 1
    gates.dirty[key] = gate
    -- While others hold the gate in this mode, the head of its line fits no better than before.
    if gate[intention] == 0 then look_at_line(key, gate) end
  end
  return left
end

-- Give a job's claims their gates; return the gates visited. That of a permit has none.
function gates.place(job)
  local claims, visited = job[CLAIMS] ~= '' and form.claims(job[CLAIMS]), 0
  if not claims or claims[1].is_counted then
    job[WALKS] = false
    return 0
  end
  job[WALKS] = {}
  for index = 1, #claims do visited = visited + walk_on(job, index, claims[index], 0) end
  return visited
end

-- Give up a job's place, if it has one; return the gates left.
function gates.vacate(job)
  if job[SEQ] == 0 then return 0 end
  jobs.dirty[job.id] = job
  local walks, left = job[WALKS], 0
  if walks then
    local claims = form.claims(job[CLAIMS])
    for index = 1, #claims do
      local depth = walks[index]
      -- Its other walks may stand in the same line, and do until they leave it.
      if depth < GRANTED then walks[index] = LEFT_BEHIND end
      left = left + leave(claims[index], depth)
    end
  end
  job[SEQ], job[WALKS] = 0, false
  if not job.is_plain then job[LEVEL] = false end
  return left
end

local function check_claim(job, claim_text)
  local mode = string.byte(claim_text)
  if mode == 99 then return end
  local gate = gates.of(string.sub(claim_text, 2))
  local others = gate[IX] + gate[X_MODE] - 1
  if mode == 115 then others = gate[IX] + gate[X_MODE] + math.min(gate[S_MODE], 1) - 1
  else others = others + gate[IS] + gate[S_MODE] end
  if others ~= 0 then
    corrupt('job ' .. job.id .. ' was let through the gate of ' .. form.queue_key(string.sub(claim_text, 2)) .. ', which others hold')
  end
end

-- Check a second time that no other job holds the gates that a starting job was granted.
function gates.check(job)
  local claims = job[CLAIMS]
  if not string.find(claims, '\n', 1, true) then return claims == '' or check_claim(job, claims) end
  for claim_text in string.gmatch(claims, '[^\n]+') do check_claim(job, claim_text) end
end
end)
