--[[ stand_in: a proxy of the server for the doctor, which also works on states that the rules refuse.
  A state that is gone or cannot be read is replaced by a new one: `state` says so, `packed` is what was there.
  While `noted` is a list, writes of the rules are recorded there and not made. ]]
-- @include lib/formats/state_format
local server = redis
local stand_in = {noted = false, state = 'kept', packed = '', clock = 0}

local WRITES = {HDEL = true, HSET = true, LTRIM = true, RPUSH = true, SADD = true, SREM = true, UNLINK = true, ZADD = true, ZREM = true}

-- Look at the state before the rules do.
local function look_at_state(answer)
  if not answer[1] then
    stand_in.state = 'none'
    return answer
  end
  stand_in.packed = answer[1]
  local is_read, state = pcall(unpack_state, answer[1])
  local is_whole = is_read and type(state) == 'table' and type(state[SCHEMA]) == 'number'
  -- A newer schema may hold anything: it is refused by its number.
  if is_whole and state[SCHEMA] == SCHEMA_VERSION then
    for at = 1, STATE_SIZE do
      is_whole = is_whole and (at == RUN and type(state[at]) == 'string' or type(state[at]) == 'number' and state[at] % 1 == 0)
    end
  end
  if is_whole then
    stand_in.clock = tonumber(state[CLOCK]) or 0
  else
    stand_in.state, answer[1] = 'damaged', false
  end
  return answer
end

local redis = setmetatable({call = function(...)
  local command, key = ...
  if stand_in.noted and WRITES[command] then
    stand_in.noted[#stand_in.noted + 1] = {...}
    return 0
  end
  if command == 'HMGET' and key == store.meta then return look_at_state(server.call(...)) end
  -- The only question of this form is whether there are jobs where there is no state.
  if command == 'EXISTS' and key == store.jobs and select('#', ...) == 2 and stand_in.state ~= 'kept' then
    if stand_in.state == 'none' and server.call(...) == 1 then stand_in.state = 'lost' end
    return 0
  end
  return server.call(...)
end}, {__index = server})
