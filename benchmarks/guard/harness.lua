--[[ harness: runs scripts as Redis does, and counts the instructions of the interpreter.
  Given the libraries, `redis.call` and `redis.sha1hex`; returns functions that take tables of texts. ]]
local libraries, call, sha1 = ...
local sethook, loadstring, setfenv = debug.sethook, loadstring, setfenv
local count, functions, known = 0, {}, {}
local function step() count = count + 1 end

-- The globals of scripts; the interpreter's own globals stay as they are.
local seen = {redis = {call = call, pcall = call, sha1hex = sha1, LOG_WARNING = 3}}
function seen.redis.error_reply(text) return {err = text} end
function seen.redis.status_reply(text) return {ok = text} end
function seen.redis.log() end
function seen.redis.register_function(first, callback)
  if type(first) == 'table' then first, callback = first.function_name, first.callback end
  functions[first] = callback
end
for _, name in ipairs({'assert', 'collectgarbage', 'error', 'getmetatable', 'ipairs', 'loadstring', 'math', 'next',
  'pairs', 'pcall', 'rawequal', 'rawget', 'rawset', 'select', 'setmetatable', 'string', 'table', 'tonumber', 'tostring',
  'type', 'unpack', 'xpcall', '_VERSION'}) do seen[name] = _G[name] end
for name, library in pairs(libraries) do seen[name] = library end
seen._G = seen
setmetatable(seen, {
  __index = function(_, name) error('Script attempted to access nonexistent global variable ' .. tostring(name)) end,
  __newindex = function(_, name) error('Attempt to modify a readonly table: ' .. tostring(name)) end,
})

local function loaded(text, name) return setfenv(assert(loadstring(text, name)), seen) end

local function counted(what, keys, argv)
  count = 0
  sethook(step, '', 1)
  local is_done, reply = pcall(what, keys, argv)
  sethook()
  -- Nothing that is counted fails.
  if not is_done then error(reply, 0) end
  return reply, count
end

local harness = {}
function harness.script(sha, text, keys, argv)
  if not known[sha] then known[sha] = loaded(text, '@user_script') end
  rawset(seen, 'KEYS', keys)
  rawset(seen, 'ARGV', argv)
  local reply, steps = counted(known[sha], keys, argv)
  rawset(seen, 'KEYS', nil)
  rawset(seen, 'ARGV', nil)
  return reply, steps
end
function harness.load(text) loaded(text, '@user_function')() end
function harness.has(name) return functions[name] ~= nil end
function harness.call(name, keys, argv) return counted(functions[name], keys, argv) end
return harness
