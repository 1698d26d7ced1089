--[[ state_format: how the state (lib/request/state) is stored: numbers of eight bytes each, then the run id, which stands at RUN.
  The schema is the first number, and a small one, so that the first byte is zero; the state of an older release is an array by
  cmsgpack, which never begins with that. ]]
local STATE_FORM = '<' .. string.rep('d', STATE_SIZE)

local function unpack_state(packed)
  if string.byte(packed) ~= 0 then return cmsgpack.unpack(packed) end
  local state = {struct.unpack(STATE_FORM, packed)}
  state[RUN], state[STATE_SIZE + 1] = string.sub(packed, state[STATE_SIZE + 1]), nil
  return state
end

local function pack_state(state)
  local run = state[RUN]
  state[RUN] = 0
  local packed = struct.pack(STATE_FORM, unpack(state, 1, STATE_SIZE))
  state[RUN] = run
  return packed .. run
end
