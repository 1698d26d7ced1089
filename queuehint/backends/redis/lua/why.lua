#!lua flags=no-writes,allow-oom
--[[ why: reasons why a job waits.
  ARGV[9] id
  Returns a reason (lib/asking/reasons), nothing if there is no such job.
  Mirrors core.why ]]
-- @include lib/questions
-- @include lib/asking/reasons
args.count(9)

-- A circle of open edges through a job, from the job on; nil where there is none. None is ever closed; one in a store may be
-- of an earlier release. Breadth first.
local function circle_of(job)
  local before, todo, looked_at, at = {[job.id] = false}, {job.id}, 0, 1
  while at <= #todo do
    local id = todo[at]
    local here = jobs.of(id)
    if here and not OVER[here[STATE]] and here[BLOCKED] > 0 then
      local ids = redis.call('HKEYS', store.blocked(id))
      looked_at = looked_at + #ids
      if looked_at > CIRCLE_EDGES_MAX then return nil end
      table.sort(ids, form.less)
      for _, other in ipairs(ids) do
        if other == job.id then
          local circle = {}
          while id do
            table.insert(circle, 1, id)
            id = before[id]
          end
          return circle
        end
        if before[other] == nil then
          before[other] = id
          todo[#todo + 1] = other
        end
      end
    end
    at = at + 1
  end
end

local job = jobs.find(ARGV[9])
if not job then return {} end
local reason = reason_of(job)
local circle = reason.kind == 'dependency' and circle_of(job)
if circle then
  reason.stuck, reason.detail = true, circle_text(circle, job.id)
end
return reply_of(job, reason)
