--[[ examine_entries: for the doctor, look at entries of keys, and collect what is wrong and what is stored there. ]]
-- @include doctor/lib/examine_keys
do
local problems, stored_gates, stored_tallies, greatest, running = {}, {}, {}, {}, {}

local function see(counter, number)
  if number and number > (greatest[counter] or -1) then greatest[counter] = number end
end

-- Note a problem: its kind, key, item, subject (an id) and the stored value.
function examine.report(...)
  for _, part in ipairs({...}) do problems[#problems + 1] = part end
end

-- Note how many jobs run at a place of a limit by its counter, which stands in a field of a key.
function examine.tell_running(name, field, place, started)
  for _, part in ipairs({name, field, place, examine.int(started)}) do running[#running + 1] = part end
end

-- Look at one entry of a key.
function examine.look(name, item, value)
  local problem, about = examine.check(name, item, value)
  if problem then examine.report(problem, name, item, about or '', '') end
  if name == 'gates' then
    local gate = examine.gate(value)
    stored_gates[#stored_gates + 1] = item
    stored_gates[#stored_gates + 1] = gate and table.concat(gate, ' ', 1, WAITING) or ''
    see('marks', gate and gate[TO_ADVANCE])
  elseif name == 'tallies' then
    stored_tallies[#stored_tallies + 1] = item
    stored_tallies[#stored_tallies + 1] = value
  elseif name == 'users' then
    local _, turn = examine.pair(value)
    see('turn', turn)
  elseif name == 'schedules' then
    local schedule = examine.schedule(value)
    see('schedule_versions', schedule and schedule[VERSION_OF])
  elseif name == 'limits' then
    local limit = examine.limit(item, value)
    see('pause', limit and limit[1])
  elseif name == 'pauses' or name == 'selections' then
    local pause = pauses.read(value)
    see('pause', pause and pause.number)
  end
end

-- The reply of a script that looks at entries: its own parts, then those of each entry.
function examine.told(...)
  local seen = {}
  for counter, number in pairs(greatest) do
    seen[#seen + 1] = counter
    seen[#seen + 1] = examine.int(number)
  end
  local reply = {...}
  for _, part in ipairs({'problems', problems, 'gates', stored_gates, 'tallies', stored_tallies, 'running', running, 'greatest', seen}) do
    reply[#reply + 1] = part
  end
  return reply
end
end
