--[[ enqueue_one: fast path for a submission of one new plain job (lib/formats/head_format) in a step without other work, at a
  third of the cost of the general path. It writes what enqueue, `transitions.place` and lib/request/write would write;
  `is_quiet` and `plain_ask` decide whether it applies, everything else takes the general path. It comes before the rules, so
  that their modules need not be initialised. ]]
-- @include lib/plain/quiet
-- @include lib/request/asked
-- @include lib/formats/gate_format
-- @include lib/formats/record_bits
-- @include lib/formats/record_ids
do
-- The request, if it is for one new plain job with at most one claim that passes its level on to no other job; else false.
local function plain_ask()
  if #ARGV ~= 16 or ARGV[9] ~= '' or ARGV[10] ~= '' or ARGV[12] ~= '' or ARGV[13] ~= '' then return false end
  args.setting(8)
  local ask = parse_asked(14)
  if not ask[P_IS_PLAIN] or S[NUMBERS] >= PLAIN_MAX or S[PLACES] >= PLAIN_MAX or NOW > PLAIN_MAX or ask[P_NEEDS] ~= '' or #ask[P_FACTS] > 65535 or string.find(ask[P_CLAIMS], '\n', 1, true) then return false end
  for level = 1, math.min(ask[P_PRIORITY], 6) - 1 do
    if S[LEVELS + level] > 0 then return false end
  end
  return not redis.call('HGET', store.jobs, ask[ID]) and ask
end

-- Pass the gates of a claim; return the fields of GATES that change, the depth at which the job waits, or GRANTED, the key there
-- and how many wait there then.
local function pass(claim)
  local keys, fields, count = claim.keys, {}, 0
  local stored, last = redis.call('HMGET', store.gates, unpack(keys)), #keys
  for at = 1, last do
    local gate, key = gate_format.read(stored[at]), keys[at]
    local is_open = gate[WAITING] == 0 and gate[X_MODE] == 0
    local mode = IX
    if at == last then
      mode = claim.shared and S_MODE or X_MODE
      is_open = is_open and gate[IX] == 0 and (claim.shared or (gate[IS] == 0 and gate[S_MODE] == 0))
    elseif claim.shared then
      mode = IS
    else
      is_open = is_open and gate[S_MODE] == 0
    end
    if not is_open then mode = WAITING end
    gate[mode] = gate[mode] + 1
    fields[count + 1], fields[count + 2], count = key, gate_format.pack(gate), count + 2
    if not is_open then return fields, at - 1, key, gate[WAITING] end
  end
  return fields, GRANTED
end

-- What INDEX holds of the block of a number: fields, of each term and of being QUEUED, then of times and of ids; and their values.
local function look(terms, number)
  local block, count = (number - number % PER_BLOCK) / PER_BLOCK, #terms
  local fields = terms.block == block and terms.fields
  if not fields then
    local text = string.format('\0%d', block)
    fields = {}
    for at = 1, count do fields[at] = terms[at] .. text end
    fields[count + 1], fields[count + 2] = 'sQ' .. text, TIMES .. text
    terms.block, terms.fields = block, fields
  end
  fields[count + 3] = string.format('#%d', (number - number % IDS_PER_FIELD) / IDS_PER_FIELD)
  return fields, redis.call('HMGET', store.index, unpack(fields))
end

-- Find a record by all it is, which is told by its facts, and by being QUEUED.
local function list(facts, terms, fields, stored, number, id)
  local place, values, count, last = number % PER_BLOCK, {}, 0, #terms + 3
  local bits, id_place = {[place] = true}, number % IDS_PER_FIELD
  for at = 1, last - 2 do
    local packed = stored[at]
    values[count + 1], count = fields[at], count + 2
    values[count] = record_bits.changed(packed, bits)
    if not packed then
      redis.call('ZADD', store.blocks, '0', (terms[at] or 'sQ') .. '\0' .. form.sortable((number - place) / PER_BLOCK))
    end
  end
  local times = record_bits.widened(stored[last - 1], NOW, NOW)
  if times ~= stored[last - 1] then values[count + 1], values[count + 2], count = fields[last - 1], times, count + 2 end
  -- A new number: no id is at its place.
  values[count + 1], values[count + 2] = fields[last], (stored[last] or '') .. PLACE_MARKS[id_place] .. id
  redis.call('HSET', store.index, unpack(values))
  if facts.tally_key then
    local count_before = tonumber(redis.call('HGET', store.tallies, facts.tally_key) or nil) or 0
    redis.call('HSET', store.tallies, facts.tally_key, string.format('%d', count_before + 1))
    if count_before == 0 then redis.call('ZADD', store.tallied, '0', facts.tally_key) end
  end
end

-- Offer a job that has all its gates.
local function offer(facts, member)
  local pool, user = facts[POOL], facts[USER]
  local key = pool .. '\0' .. user
  local of_pool, of_user = redis.call('HGET', store.pools, pool), redis.call('HGET', store.users, key)
  of_pool, of_user = of_pool and cmsgpack.unpack(of_pool) or {0, 0}, of_user and cmsgpack.unpack(of_user) or {0, 0}
  -- The first write: a key made by another program may be of another type.
  redis.call('ZADD', store.pool_wake(pool), '0', '1')
  of_pool[1], of_user[1] = of_pool[1] + 1, of_user[1] + 1
  if of_user[1] == 1 then
    S[TURN] = S[TURN] + 1
    of_pool[2], of_user[2] = of_pool[2] + 1, S[TURN]
    redis.call('ZADD', store.turns, '0', pool .. '\0' .. form.sortable(S[TURN]) .. user)
  end
  redis.call('HSET', store.pools, pool, cmsgpack.pack(of_pool))
  redis.call('HSET', store.users, key, cmsgpack.pack(of_user))
  redis.call('ZADD', store.ready, '0', key .. '\0' .. member)
end

-- Take in a job; return the reply.
local function take_in(ask)
  local id, claims, text = ask[ID], ask[P_CLAIMS], ask[P_FACTS]
  local facts = heads.facts(text).__index
  local depth, changed_gates, key, waiting = NO_DEPTH, nil, nil, nil
  if claims ~= '' then changed_gates, depth, key, waiting = pass(form.claims(claims)[1]) end
  local number, seq, level = S[NUMBERS] + 1, S[PLACES] + 1, facts[PRIORITY]
  local terms = facts.named_terms or heads.give_name(facts)
  local fields, stored = look(terms, number)
  local name, is_new = heads.name(facts, stored[1])
  if not name then
    terms = facts.terms
    fields, stored = look(terms, number)
  end
  S[NUMBERS], S[PLACES], S[JOURNAL], S[ENQUEUED_IN_ALL] = number, seq, S[JOURNAL] + 1, S[ENQUEUED_IN_ALL] + 1
  S[CHANGES] = S[CHANGES] + 1
  S[COUNT_OF.Q] = S[COUNT_OF.Q] + 1
  if level < CRITICAL then S[LEVELS + level] = S[LEVELS + level] + 1 end
  local sortable = form.sortable(number)
  if depth < GRANTED then
    -- The first write here, as the marker is where it is offered.
    redis.call('ZADD', store.line(key), string.format('%d', seq), FIRST_CLAIM .. id)
    -- A power of two.
    if waiting > 3 and math.frexp(waiting) == 0.5 then gate_format.note_length(key, waiting - 1, waiting) end
  else
    offer(facts, form.rank_text(form.rank(level, NOW)) .. sortable .. id)
  end
  local path = claims ~= '' and form.queue_key(string.sub(claims, 2)) or NO_PLACE
  redis.call('ZADD', store.paths, '0', path .. '\0' .. sortable)
  local spec = ask[SPEC]
  local is_short = heads.is_short(spec)
  redis.call('HSET', store.jobs, id, heads.queued(depth, number, seq, NOW, is_short and spec or '', name, text, claims))
  if not is_short then redis.call('HSET', store.specs, id, spec) end
  if changed_gates then redis.call('HSET', store.gates, unpack(changed_gates)) end
  if name and is_new then redis.call('HSET', store.facts, facts.id, facts.common) end
  list(facts, terms, fields, stored, number, id)
  local reply = {0, NOW, next_due(false), number, QUEUED}
  redis.call('HSET', store.meta, 'state', pack_state(S))
  return request.told(reply)
end

local ask = is_quiet() and S[WATCHED] == 0 and S[CLOSED_PATHS] == 0 and plain_ask()
if ask then return take_in(ask) end
end
