--[[ exchange_one: fast path for an exchange that settles at most one job and grants at most one, both plain
  (lib/formats/head_format), in a step without other work; the granted job may be the next in the line of the settled one.
  It writes what exchange, its rules and lib/request/write would write. Everything is read before the first write, and what is
  not as expected takes the general path, which also reports errors. ]]
-- @include lib/plain/quiet
-- @include lib/formats/gate_format
-- @include lib/formats/record_bits
-- @include lib/formats/record_ids
-- @include lib/request/retention
do
local WORDS = {f = 4, n = 3, z = 3}

-- Read a plain job in a state (its head begins with the letter of the state); false if it is not one.
local function plain_job(id, state)
  local packed = redis.call('HGET', store.jobs, id)
  return packed and string.sub(packed, 1, 1) == state and heads.read(id, packed)
end

local function is_free(gate) return gate[IS] == 0 and gate[IX] == 0 and gate[S_MODE] == 0 and gate[X_MODE] == 0 end

-- Take a claim out of its gates. False, for the general path, if the line of a gate has to advance: one that is marked so, or
-- one above the claim's own path where the last job in this mode leaves.
local function leave(claim, gates_of)
  local keys = claim.keys
  local stored, last = redis.call('HMGET', store.gates, unpack(keys)), #keys
  for at = 1, last do
    local gate = gate_format.read(stored[at])
    local mode = claim.shared and IS or IX
    if at == last then mode = claim.shared and S_MODE or X_MODE end
    gate[mode] = gate[mode] - 1
    if gate[mode] < 0 or gate[TO_ADVANCE] > 0 or (gate[mode] == 0 and gate[WAITING] > 0 and at < last) then return false end
    gates_of[keys[at]] = gate
  end
  return true
end

-- The job at the head of a line, if it waits there for the gate of its own path alone; else false.
local function next_in_line(key, depth, pool)
  local first = redis.call('ZRANGE', store.line(key), 0, 0, 'WITHSCORES')
  if not first[1] or string.sub(first[1], 1, 1) ~= FIRST_CLAIM then return false end
  local job = plain_job(string.sub(first[1], 2), QUEUED)
  if not job or job[SEQ] ~= tonumber(first[2]) or job[POOL] ~= pool or not job[WALKS] or job[WALKS][1] ~= depth then return false end
  local claim = form.claims(job[CLAIMS])[1]
  return not claim.shared and #claim.keys == depth + 1 and claim.keys[depth + 1] == key and job
end

-- Whether a job that is ready holds its gate alone, see gates.check.
local function is_alone(job, gates_of)
  local claims = job[CLAIMS]
  if claims == '' then return true end
  local key = string.sub(claims, 2)
  local gate = gates_of[key] or gate_format.read(redis.call('HGET', store.gates, key))
  if string.byte(claims) == 115 then return gate[IX] + gate[X_MODE] + math.min(gate[S_MODE], 1) == 1 end
  return gate[IX] + gate[X_MODE] == 1 and gate[IS] + gate[S_MODE] == 0
end

-- The first ready job of a pool that one user has jobs in, with the user and the members that name them; nil if it is not so.
local function first_ready(pool, gates_of)
  local turn_member = redis.call('ZRANGEBYLEX', store.turns, '[' .. pool .. '\0', '(' .. pool .. '\1', 'LIMIT', 0, 1)[1]
  if not turn_member then return nil end
  local turn, name = form.split(turn_member, #pool + 2)
  local key = pool .. '\0' .. name
  local stored = redis.call('HGET', store.users, key)
  local user = stored and cmsgpack.unpack(stored)
  if not user or user[2] ~= turn then return nil end
  local member = redis.call('ZRANGEBYLEX', store.ready, '[' .. key .. '\0', '(' .. key .. '\1', 'LIMIT', 0, 1)[1]
  local job = member and plain_job(form.id_behind_rank(member, #key + 1), QUEUED)
  if not job or job[OFFER] ~= 'r' or job[POOL] ~= pool or job[USER] ~= name or not is_alone(job, gates_of) then return nil end
  return job, user, key, member, turn_member
end

local function rank_of(job) return form.rank(job[PRIORITY], job[ENQUEUED]) end

-- Whether a ready job comes before another one of its user.
local function is_sooner(job, other)
  local rank, other_rank = rank_of(job), rank_of(other)
  return rank < other_rank or (rank == other_rank and job[NUMBER] < other[NUMBER])
end

-- The token of a new lease, if nothing about leases and tokens begins anew; else false.
local function new_token(lease_ms)
  local longest_ms = math.max(S[LEASE_MAX], S[LEASE_MAX_BEFORE], lease_ms)
  if S[RUN] ~= server_run() or S[GRANTS] + 1 >= COUNT_END or NOW - S[LEASES_SINCE] >= longest_ms then return false end
  return string.format('%d.%d', S[EPOCH], S[GRANTS] + 1)
end

-- Move a record to another state in the index of records.
local function move(changes, number, was_state, state)
  local place = number % PER_BLOCK
  local block = (number - place) / PER_BLOCK
  for at = 1, 2 do
    local term = 's' .. (at == 1 and was_state or state)
    local field = term .. string.format('\0%d', block)
    local change = changes[field] or {bits = {}, member = term .. '\0' .. form.sortable(block)}
    change.bits[place], changes[field] = at == 2, change
  end
end

local function write_bits(changes)
  local fields = {}
  for field in pairs(changes) do fields[#fields + 1] = field end
  if #fields == 0 then return end
  local stored, set = redis.call('HMGET', store.index, unpack(fields)), {}
  for at = 1, #fields do
    local packed, change = stored[at], changes[fields[at]]
    local now = record_bits.changed(packed, change.bits)
    if now then
      local size = #set
      set[size + 1], set[size + 2] = fields[at], now
      if not packed then redis.call('ZADD', store.blocks, '0', change.member) end
    elseif packed then
      redis.call('HDEL', store.index, fields[at])
      redis.call('ZREM', store.blocks, change.member)
    end
  end
  if #set > 0 then redis.call('HSET', store.index, unpack(set)) end
end

local function write_gates(gates_of)
  local kept = {}
  for key, gate in pairs(gates_of) do
    if is_free(gate) and gate[WAITING] == 0 then
      redis.call('HDEL', store.gates, key)
    else
      local size = #kept
      kept[size + 1], kept[size + 2] = key, gate_format.pack(gate)
    end
  end
  if #kept > 0 then redis.call('HSET', store.gates, unpack(kept)) end
end

local function see_first(at, time_ms)
  if time_ms < S[at] or S[at] < 0 then S[at] = time_ms end
end

-- Make a job FINISHED; return its head, nil if that is not plain.
local function end_job(job, kind, prune_ms)
  job[STATE], job[VERSION], job[WALKS], job[SEQ] = FINISHED, job[VERSION] + 1, false, 0
  job[TIMER], job[TIMER_MS], job[ENDED] = PRUNE, prune_ms, NOW
  if kind ~= 'z' then job[RESULT] = kind == 'f' and 's' or 'n' end
  return heads.plain(job)
end

-- Make a job STARTED; return its head, nil if that is not plain.
local function start_job(job, worker, token, until_ms, announces)
  job[STATE], job[VERSION], job[ATTEMPTS], job[TOKEN], job[WORKER] = STARTED, job[VERSION] + 1, job[ATTEMPTS] + 1, token, worker
  job[TIMER], job[TIMER_MS], job[OFFER], job[STARTED_AT], job[FIRST] = LEASE, until_ms, false, NOW, NOW
  if job[WALKS] then job[WALKS] = {GRANTED} end
  -- On its last life it is not plain until its worker has reported that its code begins: see transitions.start.
  if job[POLICY] ~= '' and form.policy(job)[MAX_LOSSES] == 1 then job[TO_BEGIN] = announces end
  return heads.plain(job)
end

local function write_ended(job, lease_ms, result)
  local sortable, claims, level = form.sortable(job[NUMBER]), job[CLAIMS], job[PRIORITY]
  local tag = sortable .. job.id
  local path = (claims ~= '' and form.queue_key(string.sub(claims, 2)) or NO_PLACE) .. '\0' .. sortable
  redis.call('ZREM', store.leases, LEASE .. tag)
  redis.call('ZADD', store.prunes, string.format('%d', job[TIMER_MS]), PRUNE .. tag)
  redis.call('ZREM', store.paths, path)
  if claims ~= '' then redis.call('ZADD', store.past, '0', path) end
  if result then redis.call('HSET', store.results, job.id, result) end
  S[SETTLED_IN_ALL], S[TOTAL_OF.finished], S[JOURNAL] = S[SETTLED_IN_ALL] + 1, S[TOTAL_OF.finished] + 1, S[JOURNAL] + 1
  S[COUNT_OF.R], S[COUNT_OF.F] = S[COUNT_OF.R] - 1, S[COUNT_OF.F] + 1
  if level < CRITICAL then S[LEVELS + level] = S[LEVELS + level] - 1 end
  see_first(NEXT_PRUNE, job[TIMER_MS])
end

local function write_started(job, lease_ms)
  redis.call('ZADD', store.leases, string.format('%d', job[TIMER_MS]), LEASE .. form.tag(job))
  S[GRANTS], S[STARTED_IN_ALL], S[JOURNAL] = S[GRANTS] + 1, S[STARTED_IN_ALL] + 1, S[JOURNAL] + 1
  S[COUNT_OF.Q], S[COUNT_OF.R] = S[COUNT_OF.Q] - 1, S[COUNT_OF.R] + 1
  if lease_ms > S[LEASE_MAX] then S[LEASE_MAX] = lease_ms end
  see_first(NEXT_LEASE, job[TIMER_MS])
end

-- Do the exchange and return its reply; nil where it has to go the general way, with nothing written.
local function exchange_one()
  if ARGV[12] ~= '' or ARGV[13] ~= '' or ARGV[15] ~= '1' then return nil end
  local from = 17
  local worker, pool, id, kind = ARGV[9], ARGV[from - 1], ARGV[from], ARGV[from + 2]
  if #ARGV ~= from - 1 and (not WORDS[kind] or #ARGV ~= from - 1 + WORDS[kind]) then return nil end
  local announces = args.flag_and_text(14)
  local lease_ms, limit, result = args.int(10), args.int(11, -1), kind == 'f' and ARGV[from + 3]
  -- With a budget of one what follows may take several steps.
  if args.setting(8) < 2 or lease_ms == 0 or limit < 0 or (result and #result > RESULT_BYTES_MAX) then return nil end
  local ended = id and plain_job(id, STARTED)
  if id and (not ended or ended[TOKEN] ~= ARGV[from + 1]) then return nil end
  if redis.call('HGET', store.untold, worker) then return nil end

  local gates_of, changes, lease_was_ms = {}, {}, nil
  local stored = redis.call('HGET', store.pools, pool)
  local of_pool = stored and cmsgpack.unpack(stored) or {0, 0}
  local size, follower, line_key = of_pool[1], false, nil
  local granted, user, user_key, member, turn_member = false, nil, nil, nil, nil
  if ended then
    lease_was_ms = ended[TIMER_MS]
    local kept = kept_ms(ended, FINISHED)
    local claim = kept > 0 and form.claims(ended[CLAIMS])[1]
    if kept == 0 or (claim and not leave(claim, gates_of)) then return nil end
    local key = claim and claim.keys[#claim.keys]
    local gate = claim and gates_of[key]
    if gate and gate[WAITING] > 0 then
      follower = limit > 0 and is_free(gate) and next_in_line(key, #claim.keys - 1, pool)
      if not follower then return nil end
      gate[WAITING], gate[X_MODE], line_key = gate[WAITING] - 1, 1, key
    end
    ended.head = end_job(ended, kind, NOW + kept)
    if not ended.head then return nil end
  end
  if size > 0 and limit > 0 then
    if of_pool[2] ~= 1 or (limit > 1 and (size > 1 or follower)) then return nil end
    granted, user, user_key, member, turn_member = first_ready(pool, gates_of)
    if not granted or (follower and follower[USER] ~= granted[USER]) then return nil end
  end
  if follower and (not granted or is_sooner(follower, granted)) then granted, member = follower, nil end
  local token, spec = nil, nil
  if granted then
    token, spec = new_token(lease_ms), granted[SHORT_SPEC] or redis.call('HGET', store.specs, granted.id)
    granted.head = token and spec and start_job(granted, worker, token, NOW + lease_ms, announces)
    if not granted.head then return nil end
  end

  -- From here on all is written. A key made by another program may be of another type: the only key not read yet comes first.
  local left = size + (follower and 1 or 0) - (granted and 1 or 0)
  if left > 0 then redis.call('ZADD', store.pool_wake(pool), '0', '1') end
  if member then redis.call('ZREM', store.ready, member) end
  if follower then
    redis.call('ZREM', store.line(line_key), FIRST_CLAIM .. follower.id)
    local waiting = gates_of[line_key][WAITING]
    if waiting > 2 and math.frexp(waiting + 1) == 0.5 then gate_format.note_length(line_key, waiting + 1, waiting) end
    S[MARKS] = S[MARKS] + 1
    if size == 0 then
      -- Its user had a turn for a moment.
      S[TURN] = S[TURN] + 1
    elseif member then
      local tag = form.tag(follower)
      redis.call('ZADD', store.ready, '0', user_key .. '\0' .. form.rank_text(rank_of(follower)) .. tag)
      redis.call('HSET', store.jobs, follower.id,
        heads.queued(GRANTED, follower[NUMBER], follower[SEQ], follower[ENQUEUED], follower[SHORT_SPEC] or '', follower.name, follower.facts, follower[CLAIMS]))
    end
  elseif member then
    user[1], of_pool[1] = user[1] - 1, size - 1
    if user[1] == 0 then
      of_pool[2] = 0
      redis.call('HDEL', store.users, user_key)
      redis.call('ZREM', store.turns, turn_member)
    else
      redis.call('HSET', store.users, user_key, cmsgpack.pack(user))
    end
    if of_pool[1] == 0 then
      redis.call('HDEL', store.pools, pool)
      redis.call('UNLINK', store.pool_wake(pool))
    else
      redis.call('HSET', store.pools, pool, cmsgpack.pack(of_pool))
    end
  end
  if ended then
    write_ended(ended, lease_ms, result)
    move(changes, ended[NUMBER], STARTED, FINISHED)
  end
  if granted then
    write_started(granted, lease_ms)
    move(changes, granted[NUMBER], QUEUED, STARTED)
  end
  if ended and granted then redis.call('HSET', store.jobs, ended.id, ended.head, granted.id, granted.head)
  elseif ended or granted then redis.call('HSET', store.jobs, (ended or granted).id, (ended or granted).head) end
  if ended or granted then S[CHANGES] = S[CHANGES] + 1 end
  write_bits(changes)
  write_gates(gates_of)
  -- The lease that ended may have been the first to run out.
  if ended and lease_was_ms <= S[NEXT_LEASE] then
    S[NEXT_LEASE] = tonumber(redis.call('ZRANGE', store.leases, 0, 0, 'WITHSCORES')[2]) or -1
  end
  local reply = {0, NOW, next_due(limit > 0 and pool ~= worker), ended and 'D' or '', '', 0, 0}
  if granted then reply[8] = granted.id .. '\n' .. token .. '\n1\n0\n' .. granted.facts .. granted[CLAIMS] end
  redis.call('HSET', store.meta, 'state', pack_state(S))
  redis.call('ZADD', store.seen, NOW, pool)
  return request.told(reply, granted and {granted.id} or {}, {spec})
end

local answer = is_quiet() and S[PAUSED] == 0 and S[REFUSED_POOLS] == 0 and NOW - S[MEMORY_SEEN] < LOOK_EVERY_MS and exchange_one()
if answer then return answer end
end
