--[[ retention: how long the record of an ended job is kept. ]]
local keep, kept_by_service = nil, nil

-- The retention stored for the namespace (retain.lua), else that of ARGV.
local function retention()
  if not request.retention then
    return {F = tonumber(ARGV[4]), X = tonumber(ARGV[5]), C = tonumber(ARGV[6]), all = tonumber(string.match(ARGV[7], '^[^\n]*')), named = ARGV[7]}
  end
  local finished, failed, canceled, of_services = string.match(request.retention, '^(%d+) (%d+) (%d+) ([%d-][^\n]*)')
  if not of_services or not (of_services == '-' or tonumber(of_services)) then corrupt('the retention in ' .. store.meta .. ' cannot be read') end
  return {F = tonumber(finished), X = tonumber(failed), C = tonumber(canceled), all = tonumber(of_services), named = request.retention}
end

-- How long records of a service are kept, nil if as their states say; those of single services stand in lines behind all else, name and ms.
local function kept_of(service)
  if not kept_by_service then
    kept_by_service = {}
    for name, ms in string.gmatch(keep.named, '\n([^\n]+)\n(%d+)') do kept_by_service[name] = tonumber(ms) end
  end
  return kept_by_service[service] or keep.all
end

-- How long the record of a job that ends in a state is kept, ms.
local function kept_ms(job, state)
  local policy = form.policy(job)
  if policy[RETENTION] then return policy[RETENTION] end
  keep = keep or retention()
  if job[SERVICE] ~= '' then
    local service = form.service(job[SERVICE])
    local of_service = service ~= '' and kept_of(service)
    if of_service then return of_service end
  end
  return keep[state]
end
