--[[ running: the registry of executing jobs. Each STARTED job has a lease, so LEASES names all of them.
  Cost O(executing jobs). ]]

-- Call *act* with each claim of each executing job that takes a place.
local function each_running(act)
  for _, member in ipairs(redis.call('ZRANGE', store.leases, 0, -1)) do
    local _, id = form.split(member, 2)
    local job = jobs.known(id, store.leases)
    if job[STATE] == STARTED and not form.is_counted(job[CLAIMS]) then
      for _, claim in ipairs(form.claims(job[CLAIMS])) do act(claim) end
    end
  end
end
