--[[ gate_format: how a gate (lib/structures/gates) is stored: an array by cmsgpack. And its place in CROWDS, by which the longest
  lines are found: the exponent of the greatest power of two that is not more than the length of its line, from four on. It is
  written only when that changes, so that short and long lines cost next to nothing. ]]
local IS, IX, S_MODE, X_MODE, WAITING, TO_ADVANCE = 1, 2, 3, 4, 5, 6 -- @const
local gate_format = {}

-- Unpack a gate. cmsgpack writes a small number, as nearly all are, as one byte.
function gate_format.read(packed)
  if not packed then return {0, 0, 0, 0, 0, 0} end
  if #packed == 7 then return {string.byte(packed, 2, 7)} end
  return cmsgpack.unpack(packed)
end

function gate_format.pack(gate)
  local is, ix, s, x, waiting, mark = gate[IS], gate[IX], gate[S_MODE], gate[X_MODE], gate[WAITING], gate[TO_ADVANCE]
  if is < 128 and ix < 128 and s < 128 and x < 128 and waiting < 128 and mark < 128 then
    return string.char(150, is, ix, s, x, waiting, mark)
  end
  -- What a step notes at a gate is not stored.
  return cmsgpack.pack({is, ix, s, x, waiting, mark})
end

-- The place of a line in CROWDS, 0 for one that is not there.
function gate_format.crowd(waiting)
  if waiting < 4 then return 0 end
  local _, exponent = math.frexp(waiting)
  return exponent - 1
end

-- Note that the length of a line has changed.
function gate_format.note_length(key, was, now)
  local crowd = gate_format.crowd(now)
  if gate_format.crowd(was) == crowd then return end
  if crowd == 0 then redis.call('ZREM', store.crowds, key) else redis.call('ZADD', store.crowds, string.format('%d', crowd), key) end
end
