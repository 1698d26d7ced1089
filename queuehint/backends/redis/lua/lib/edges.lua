--[[ edges: who waits for whom, as core.dependencies. waiting:{A} holds who waits for A, by number; blocked:{B} what B
  still waits for. BLOCKED in a head counts the latter. ]]
local edges = {}

lazily(edges, function()
local new_edges, dropped_edges, resolving = {}, {}, {}

function edges.add(job, dependency)
  job[BLOCKED] = job[BLOCKED] + 1
  new_edges[#new_edges + 1] = {job, dependency.id}
  dependency[AWAITED] = true
  jobs.dirty[job.id], jobs.dirty[dependency.id] = job, dependency
end

-- The dependents of a job that is over, least number first, read on as they are taken.
local function dependents_of(id)
  local list = resolving[id]
  if not list then
    list = {stored = {}, at = 1, offset = 0}
    resolving[id] = list
  end
  return list
end

-- The next job that waits for *id*, false if there is none.
function edges.next_dependent(id)
  local list = dependents_of(id)
  while true do
    if list.at > #list.stored then
      if list.read then return false end
      list.stored = redis.call('ZRANGE', store.waiting(id), list.offset, list.offset + 63)
      list.at, list.offset, list.read = 1, list.offset + 64, #list.stored < 64
    else
      local job = jobs.known(list.stored[list.at], store.waiting(id))
      -- One that was dropped in this step waits no more.
      if not OVER[job[STATE]] and not (dropped_edges[job.id] and dropped_edges[job.id][id]) then return job end
      list.at = list.at + 1
    end
  end
end

function edges.drop(job, dependency_id)
  local dropped = dropped_edges[job.id]
  if not dropped then
    dropped = {}
    dropped_edges[job.id] = dropped
  end
  dropped[dependency_id] = true
  job[BLOCKED] = job[BLOCKED] - 1
  jobs.dirty[job.id] = job
end

-- Remove the edges of a job that waits no more.
function edges.drop_all(job)
  for _, dependency_id in ipairs(redis.call('SMEMBERS', store.blocked(job.id))) do
    if not (dropped_edges[job.id] and dropped_edges[job.id][dependency_id]) then edges.drop(job, dependency_id) end
  end
  for _, edge in ipairs(new_edges) do
    if edge[1] == job then edge[1] = false end
  end
  job[BLOCKED] = 0
end

function edges.write()
  for _, edge in ipairs(new_edges) do
    if edge[1] then
      redis.call('ZADD', store.waiting(edge[2]), edge[1][NUMBER], edge[1].id)
      redis.call('SADD', store.blocked(edge[1].id), edge[2])
    end
  end
  for id, dropped in pairs(dropped_edges) do
    for dependency_id in pairs(dropped) do
      redis.call('ZREM', store.waiting(dependency_id), id)
      redis.call('SREM', store.blocked(id), dependency_id)
    end
  end
end

function edges.see_types()
  for _, edge in ipairs(new_edges) do
    if edge[1] then
      redis.call('ZCARD', store.waiting(edge[2]))
      redis.call('SISMEMBER', store.blocked(edge[1].id), '')
    end
  end
end
end)
