--[[ flow_counts: how many jobs a flow has. FLOW_STATES has a member for each of them: the flow and the state; for a staged job H
  in place of the state, and the id shared by the parts of its submission. ]]
local flow_counts = {}

lazily(flow_counts, function()
local function count(prefix) return redis.call('ZLEXCOUNT', store.flow_states, '[' .. prefix, '(' .. prefix .. '\255') end

-- Counts in the order of the states. Staged jobs count once their submission is committed; submissions are visited one by one.
function flow_counts.by_state(flow)
  local begin, counts = flow .. '\0', {}
  for at, letter in ipairs({SCHEDULED, DEFERRED, QUEUED, STARTED, FINISHED, FAILED, CANCELED}) do counts[at] = count(begin .. letter) end
  local low = '[' .. begin .. 'H'
  while true do
    local member = redis.call('ZRANGEBYLEX', store.flow_states, low, '(' .. begin .. 'I', 'LIMIT', 0, 1)[1]
    if not member then break end
    local staged = string.match(member, '^%Z*%zH(%Z*)%z')
    local start = jobs.of(START_MARK .. staged)
    local of_this = begin .. 'H' .. staged .. '\0'
    if not start or start[STATE] == FINISHED then counts[2] = counts[2] + count(of_this) end
    low = '(' .. of_this .. '\255'
  end
  return counts
end

function flow_counts.visible(flow)
  local all = 0
  for _, of_state in ipairs(flow_counts.by_state(flow)) do all = all + of_state end
  return all
end
end)
