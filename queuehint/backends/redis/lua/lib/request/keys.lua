--[[ keys: every Redis key of a namespace; keys.py describes the content of each and the script that deletes it.
  KEYS[1] is the namespace's root with its hash tag, "{qh:default}"; all other keys are on the same slot.
  A fixed key is store.name, made when it is first used; a library of functions keeps it for the next call. ]]
local ROOT = '' -- @once
local store = setmetatable({}, {__index = function(keys, name)
  local redis_key = ROOT .. name
  keys[name] = redis_key
  return redis_key
end})

if ROOT ~= KEYS[1] .. ':' then
  ROOT = KEYS[1] .. ':'
  for name, redis_key in pairs(store) do
    if type(redis_key) == 'string' then store[name] = nil end
  end
end

function store.line(gate_key) return ROOT .. 'line:' .. gate_key end
function store.log(id) return ROOT .. 'log:' .. id end
function store.errors(id) return ROOT .. 'errors:' .. id end
function store.steps(id) return ROOT .. 'steps:' .. id end
function store.waiting(id) return ROOT .. 'waiting:' .. id end
function store.blocked(id) return ROOT .. 'blocked:' .. id end
function store.gauges(number) return ROOT .. 'gauges:' .. string.format('%.0f', number) end
function store.pool_wake(pool) return ROOT .. 'wake:pool:' .. pool end
function store.user_wake(served) return ROOT .. 'wake:user:' .. served end
function store.release_wake(marker) return ROOT .. 'wake:release:' .. marker end
function store.session_wake(session) return ROOT .. 'wake:session:' .. session end

-- A module whose functions are made when one of them is first asked for: most scripts need few, and a function costs
-- time to make at every call.
local function lazily(module, make)
  return setmetatable(module, {__index = function(_, name)
    setmetatable(module, nil)
    make()
    return module[name]
  end})
end
