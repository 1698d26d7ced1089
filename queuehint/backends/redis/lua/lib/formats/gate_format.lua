--[[ gate_format: how a gate (lib/structures/gates) is stored: an array by cmsgpack. ]]
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
  return cmsgpack.pack(gate)
end
