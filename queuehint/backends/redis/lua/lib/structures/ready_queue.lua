--[[ ready_queue: jobs a worker may start now, by pool, user and rank; mirrors core.structures.ready_queue.
  READY is one set in lexical order: pool, user, rank and number, id. POOLS and USERS count what is ready, TURNS is the
  order in which users take turns, with the number of starts that each has used of a turn, if any. Stale members are found by
  reading the heads, and skipped.
  Jobs that releases have refused are in other queues, one for each set of releases; the name of a queue, in place of that of
  its pool, is the pool, a sign and the releases. REFUSED maps a pool to a packed array: the names of its queues of refused
  jobs, in order, and the markers that were set for releases. S[REFUSED_POOLS] counts its pools: while it is 0 nobody looks. ]]
local REFUSED_MARK, QUEUES_MAX, MARKERS_MAX = '\1', 64, 256 -- @const
local ready_queue = {pools = {}, users = {}}

lazily(ready_queue, function()
local function rank_of(job) return form.rank(job[LEVEL] or job[PRIORITY], job[ENQUEUED]) end

-- The prefix of the ready jobs of a user of a pool; the user is '' for jobs without one.
local function ready_prefix(pool, user) return pool .. '\0' .. user .. '\0' end

local rank_texts = {}

-- A rank as text that sorts as ranks do.
local function rank_text(rank)
  local text = rank_texts[rank]
  if not text then
    text = form.rank_text(rank)
    rank_texts[rank] = text
  end
  return text
end

-- The rank of ready jobs, as a number and, with the job's number and id, as text.
ready_queue.rank_of = rank_of
function ready_queue.ranked(job) return rank_text(rank_of(job)) .. form.tag(job) end

-- The name of the queue of the ready jobs of a pool that some releases, in any order, have refused.
local function queue_name(pool, refused_by)
  local releases = {}
  for release in string.gmatch(refused_by, '[^,]+') do releases[#releases + 1] = release end
  table.sort(releases, form.less)
  return pool .. REFUSED_MARK .. table.concat(releases, ',')
end

-- The name of the queue of a ready job.
local function queue_of(job)
  local refused_by = job[REFUSED_BY]
  return refused_by and queue_name(job[POOL], refused_by) or job[POOL]
end

ready_queue.queue_of = queue_of

function ready_queue.member(job) return ready_prefix(job[REFUSED_BY] and queue_of(job) or job[POOL], job[USER]) .. ready_queue.ranked(job) end

local function pool_of(name)
  local pool = ready_queue.pools[name]
  if not pool then
    local stored = redis.call('HGET', store.pools, name)
    pool = {name = name, size = 0, users = 0, turns = {}, at = 1, offset = 0, joined = {}, joined_at = 1}
    if stored then
      local counts = cmsgpack.unpack(stored)
      pool.size, pool.users = counts[1], counts[2]
    end
    pool.was_size, pool.was_users = pool.size, pool.users
    ready_queue.pools[name] = pool
  end
  return pool
end

local function user_of(pool, name)
  local key = pool.name .. '\0' .. name
  local user = ready_queue.users[key]
  if not user then
    local stored = redis.call('HGET', store.users, key)
    user = {key = key, name = name, pool = pool, size = 0, turn = 0, served = 0, stored = {}, at = 1, offset = 0, added = {}, added_at = 1}
    if stored then
      local counts = cmsgpack.unpack(stored)
      user.size, user.turn, user.served = counts[1], counts[2], counts[3] or 0
    end
    user.was_size, user.was_turn, user.was_served = user.size, user.turn, user.served
    ready_queue.users[key] = user
  end
  return user
end

local refused = {}

-- The queues of refused jobs of a pool.
local function refused_of(pool)
  local of = refused[pool]
  if not of then
    local stored = S[REFUSED_POOLS] > 0 and redis.call('HGET', store.refused, pool)
    local kept = stored and cmsgpack.unpack(stored) or {{}, {}}
    of = {names = kept[1], markers = kept[2]}
    refused[pool] = of
  end
  return of
end

local function place_of(list, item)
  for at = 1, #list do
    if list[at] == item then return at end
  end
end

-- A queue of refused jobs of a pool, by its name.
local function refused_queue(pool, name)
  local queue = pool_of(name)
  queue.refused_in = pool
  return queue
end

-- The queue of a ready job.
local function queue_for(job)
  return job[REFUSED_BY] and refused_queue(job[POOL], queue_of(job)) or pool_of(job[POOL])
end

-- Whether a job that these releases have refused has a queue, or can get one.
function ready_queue.has_queue(job, refused_by)
  local names = refused_of(job[POOL]).names
  return #names < QUEUES_MAX or place_of(names, queue_name(job[POOL], refused_by))
end

-- The queue of a refused job that becomes ready; where no more queues may be, the job forgets who refused it.
local function enter(job)
  if not ready_queue.has_queue(job, job[REFUSED_BY]) then
    job[REFUSED_BY] = false
    return pool_of(job[POOL])
  end
  local of, name = refused_of(job[POOL]), queue_of(job)
  if not place_of(of.names, name) then
    of.names[#of.names + 1], of.changed = name, true
    table.sort(of.names, form.less)
    if #of.names == 1 then S[REFUSED_POOLS] = S[REFUSED_POOLS] + 1 end
  end
  return refused_queue(job[POOL], name)
end

-- Note that a queue of refused jobs is empty.
local function leave(queue)
  local of = refused_of(queue.refused_in)
  table.remove(of.names, place_of(of.names, queue.name))
  of.changed = true
  if #of.names == 0 then S[REFUSED_POOLS] = S[REFUSED_POOLS] - 1 end
end

-- Whether a release is among those that have refused the jobs of a queue.
local function has_refused(release, queue, pool)
  return release ~= '' and string.find(',' .. string.sub(queue, #pool + 2) .. ',', ',' .. release .. ',', 1, true)
end

-- The queues of refused jobs of pools, without those that a release has refused.
function ready_queue.open_to(release, pools)
  local found = {}
  if S[REFUSED_POOLS] == 0 then return found end
  for _, pool in ipairs(pools) do
    for _, name in ipairs(refused_of(pool).names) do
      if not has_refused(release, name, pool) then found[#found + 1] = refused_queue(pool, name) end
    end
  end
  return found
end

-- Put a user at the end of the turns.
local function join_turns(user)
  S[TURN] = S[TURN] + 1
  user.turn, user.served = S[TURN], 0
  local joined = user.pool.joined
  joined[#joined + 1] = {user, user.turn}
end

-- Offer a job; a user that had no ready jobs joins the end of the turns.
function ready_queue.add(job)
  local pool = job[REFUSED_BY] and enter(job) or pool_of(job[POOL])
  local user = user_of(pool, job[USER])
  if user.size == 0 then
    pool.users = pool.users + 1
    join_turns(user)
  end
  user.size, pool.size, user.filled, pool.filled = user.size + 1, pool.size + 1, true, true
  job[OFFER], job.is_new_offer = 'r', true
  jobs.dirty[job.id] = job
  user.added[#user.added + 1] = {rank_of(job), job[NUMBER], job}
  user.sorted = false
end

-- Order an offered job by the level it has now, which is a better one, so that the entry it had comes too late; its
-- user's turn stays.
function ready_queue.rerank(job)
  local user = user_of(queue_for(job), job[USER])
  job.is_new_offer, user.sorted = true, false
  user.added[#user.added + 1] = {rank_of(job), job[NUMBER], job}
end

local function count_taken(user)
  local pool = user.pool
  user.size, pool.size = user.size - 1, pool.size - 1
  if user.size == 0 then
    user.turn = 0
    pool.users = pool.users - 1
    if pool.size == 0 and pool.refused_in then leave(pool) end
  end
end

-- Take back an offer.
function ready_queue.remove(job)
  job[OFFER] = false
  jobs.dirty[job.id] = job
  count_taken(user_of(queue_for(job), job[USER]))
end

-- The user whose turn it is in a pool where something is ready.
local function next_user(pool)
  while true do
    if pool.at > #pool.turns and not pool.read then
      local low, high = '[' .. pool.name .. '\0', '(' .. pool.name .. '\1'
      pool.turns = redis.call('ZRANGEBYLEX', store.turns, low, high, 'LIMIT', pool.offset, 16)
      pool.at, pool.offset, pool.read = 1, pool.offset + 16, #pool.turns < 16
    end
    if pool.at <= #pool.turns then
      local turn, name = form.split(pool.turns[pool.at], #pool.name + 2)
      local user = user_of(pool, name)
      if user.turn == turn then return user end
      pool.at = pool.at + 1
    elseif pool.read then
      local entry = pool.joined[pool.joined_at]
      if not entry then corrupt('pool ' .. pool.name .. ' is counted in ' .. store.pools .. ' and nobody in ' .. store.turns .. ' has a turn') end
      if entry[1].turn == entry[2] then return entry[1] end
      pool.joined_at = pool.joined_at + 1
    end
  end
end

local sooner = form.sooner

-- Read at once what a page of a user's ready jobs is about.
local function look_ahead(user)
  if not user.stored[2] then return end
  local ids, claims = {}, {}
  for at, member in ipairs(user.stored) do ids[at] = form.id_behind_rank(member, user.prefix) end
  jobs.prefetch(ids)
  for at, id in ipairs(ids) do
    local job = jobs.all[id]
    claims[at] = job and job[CLAIMS] or ''
  end
  gates.prefetch(claims, true)
end

-- Bring the jobs that were added in this step in order, in which they are mostly.
local function sort_added(user)
  local added, at, last = user.added, user.added_at, #user.added
  user.sorted = true
  while at < last and not sooner(added[at + 1], added[at]) do at = at + 1 end
  if at == last then return end
  local rest = {}
  for from = user.added_at, last do rest[#rest + 1] = added[from] end
  table.sort(rest, sooner)
  user.added, user.added_at = rest, 1
end

-- Take out the first ready job of a user that has one.
local function first_ready(user)
  local stored
  while not stored do
    if user.at > #user.stored and not user.read then
      local prefix = ready_prefix(user.pool.name, user.name)
      local high = '(' .. string.sub(prefix, 1, -2) .. '\1'
      -- The first page has as many as are wanted of each user; the next ones are larger.
      local page = user.offset == 0 and math.ceil(math.min(ready_queue.wanted / math.max(user.pool.users, 1), 64)) or 64
      user.stored = redis.call('ZRANGEBYLEX', store.ready, '[' .. prefix, high, 'LIMIT', user.offset, page)
      user.at, user.offset, user.read, user.prefix = 1, user.offset + page, #user.stored < page, #prefix
      look_ahead(user)
    end
    if user.at > #user.stored then
      if user.read then break end
    else
      local member = user.stored[user.at]
      local job = jobs.known(form.id_behind_rank(member, user.prefix), store.ready)
      if job[OFFER] == 'r' and not job.is_new_offer then
        job.ready_member = member
        stored = job
      else
        user.at = user.at + 1
      end
    end
  end
  local added
  if #user.added >= user.added_at then
    if not user.sorted then
      sort_added(user)
    end
    while user.added[user.added_at] and user.added[user.added_at][3][OFFER] ~= 'r' do user.added_at = user.added_at + 1 end
    added = user.added[user.added_at]
  end
  if stored and (not added or sooner({rank_of(stored), stored[NUMBER]}, added)) then
    user.at = user.at + 1
    return stored
  end
  if not added then corrupt('user ' .. user.name .. ' of pool ' .. user.pool.name .. ' is counted in ' .. store.users .. ' and has no ready job') end
  user.added_at = user.added_at + 1
  return added[3]
end

-- Of some users the one whose turn it is in a pool; nil if none of them has a ready job.
local function next_among(pool, among)
  local some = pool[among]
  if not some then
    some = {}
    for _, name in ipairs(among) do some[#some + 1] = user_of(pool, name) end
    pool[among] = some
  end
  local first
  for _, user in ipairs(some) do
    if user.size > 0 and (not first or user.turn < first.turn) then first = user end
  end
  return first
end

-- How many starts a turn a user has.
local function weight_of(user)
  return S[WEIGHTED] > 0 and tonumber(redis.call('HGET', store.weights, user.name) or nil) or 1
end

-- Take the next job of a pool, or of some of its users: the first of the user whose turn it is; false if none is ready.
-- A user with as many starts in this turn as its weight goes to the end, unless no other user has ready jobs.
function ready_queue.take(pool, among)
  if pool.size == 0 then return false end
  local user
  if among then user = next_among(pool, among) else user = next_user(pool) end
  if not user then return false end
  local job = first_ready(user)
  job[OFFER] = false
  jobs.dirty[job.id] = job
  count_taken(user)
  if user.size > 0 and pool.users > 1 then
    user.served = user.served + 1
    if user.served >= weight_of(user) then join_turns(user) end
  end
  return job
end

-- The pools among *names* that have ready jobs, beginning with another at each call.
function ready_queue.rotate(names)
  local found, count, begin = {}, #names, 0
  if count > 1 then
    begin = S[ROTATION] % count
    S[ROTATION] = S[ROTATION] + 1
  end
  for at = 0, count - 1 do
    local pool = pool_of(names[(begin + at) % count + 1])
    if pool.size > 0 then found[#found + 1] = pool end
  end
  return found
end

-- Set the markers of pools, or of some users of them, again where jobs are left: a worker may have taken a marker and left
-- jobs beyond its limit.
function ready_queue.mark_all(names, among)
  for _, name in ipairs(names) do
    local pool = pool_of(name)
    pool.claimed = true
    if pool.size > 0 then
      for _, users in ipairs(among) do
        for _, user in ipairs(users) do user_of(pool, user).claimed = true end
      end
    end
  end
end

-- --- wake-ups for refused jobs --------------------------------------------------------------------------------------

local markers = nil

-- Wake a release for a queue of refused jobs: those who serve everyone, and those who serve some users.
local function mark(queue, release, users)
  local of, name = refused_of(queue.refused_in), queue.refused_in .. '\0' .. release
  local function add(marker)
    if not place_of(of.markers, marker) then of.markers[#of.markers + 1], of.changed = marker, true end
    if not place_of(markers, marker) then markers[#markers + 1] = marker end
  end
  if not users then return add(name) end
  for _, user in ipairs(users) do
    if user_of(queue, user).size > 0 then add(name .. '\0' .. user) end
  end
end

-- Have workers of a release woken that left refused jobs of pools, or of users of them, which it has not refused.
function ready_queue.mark_refused(release, pools, among)
  if release == '' then return end
  for _, queue in ipairs(ready_queue.open_to(release, pools)) do
    queue.claimed = {release, {false, unpack(among)}}
  end
end

-- The markers to set now for queues that got jobs or were left with some, once for each release that may run them; *workers* is
-- the registry of workers.
function ready_queue.markers(workers)
  if markers then return markers end
  markers = {}
  for name, queue in pairs(ready_queue.pools) do
    if queue.refused_in and queue.size > 0 then
      if queue.claimed then
        for _, users in ipairs(queue.claimed[2]) do mark(queue, queue.claimed[1], users) end
      end
      for _, told in ipairs(queue.filled and workers.releases(queue.refused_in) or {}) do
        if told[1] ~= '' and not has_refused(told[1], name, queue.refused_in) then mark(queue, told[1], told[2]) end
      end
    end
  end
  return markers
end

-- Write the queues of refused jobs, and set markers; those of a pool without such jobs go.
function ready_queue.write_refused()
  for _, marker in ipairs(markers) do redis.call('ZADD', store.release_wake(marker), '0', '1') end
  for pool, of in pairs(refused) do
    while #of.markers > (#of.names == 0 and 0 or MARKERS_MAX) do
      redis.call('UNLINK', store.release_wake(table.remove(of.markers, 1)))
    end
    if of.changed then
      if #of.names == 0 then redis.call('HDEL', store.refused, pool)
      else redis.call('HSET', store.refused, pool, cmsgpack.pack({of.names, of.markers})) end
    end
  end
end
end)
