--[[ record_bits: how the record index (lib/structures/record_index) stores which records of a block have a term: the place of the
  first word of 32 bits that is not zero, one byte, then the words from there up to the last that is not zero. In the entry of the
  term "a" (every record) the earliest and the latest time of enqueue in the block stand before that, two doubles. ]]
local PER_BLOCK, TIMES_SIZE = 1024, 16 -- @const
local MASKS = {[0] = 128, 64, 32, 16, 8, 4, 2, 1}
local record_bits = {}

-- Change one bit of the words packed behind *times* bytes; nil where the first or last word may become zero, or a word before
-- the first is needed.
local function with_one(packed, times, offset, is_there)
  local place, size = offset % 8, #packed
  local at, mask = (offset - place) / 8 - string.byte(packed, times + 1) * 4 + times + 2, MASKS[place]
  if at < times + 2 or at > size + 4 then return nil end
  if at > size then
    return is_there and packed .. string.rep('\0', at - size - 1) .. string.char(mask) .. string.rep('\0', (size - at) % 4)
  end
  local byte = string.byte(packed, at)
  if (byte % (2 * mask) >= mask) == is_there then return packed end
  byte = is_there and byte + mask or byte - mask
  if byte == 0 and (at < times + 6 or at > size - 4) then return nil end
  return string.sub(packed, 1, at - 1) .. string.char(byte) .. string.sub(packed, at + 1)
end

-- Bits with some of them changed, nil if none is left.
function record_bits.changed(packed, bits)
  local offset, is_there = next(bits)
  local one = packed and #packed > 4 and not next(bits, offset) and with_one(packed, 0, offset, is_there)
  if one then return one end
  local first, data = 0, ''
  if packed and #packed > 4 then first, data = string.byte(packed) * 4, string.sub(packed, 2) end
  local low, high, bytes = 128, -1, {}
  for number, has_it in pairs(bits) do
    local place = number % 8
    local at = (number - place) / 8
    local byte, mask = bytes[at] or (at >= first and string.byte(data, at - first + 1)) or 0, MASKS[place]
    if (byte % (2 * mask) >= mask) ~= has_it then byte = has_it and byte + mask or byte - mask end
    bytes[at] = byte
    if at < low then low = at end
    if at > high then high = at end
  end
  if data == '' then first = low - low % 4 end
  local from, to = math.min(first, low - low % 4), math.max(first + #data, high - high % 4 + 4)
  if from < first or to > first + #data then
    data = string.rep('\0', first - from) .. data .. string.rep('\0', to - first - #data)
    first = from
  end
  local middle = {}
  for at = low, high do middle[#middle + 1] = bytes[at] or string.byte(data, at - first + 1) end
  data = string.sub(data, 1, low - first) .. string.char(unpack(middle)) .. string.sub(data, high - first + 2)
  local begin, finish = string.find(data, '%Z'), #data
  if not begin then return nil end
  while string.byte(data, finish) == 0 do finish = finish - 1 end
  begin, finish = begin - (begin - 1) % 4, finish + -finish % 4
  return string.char((first + begin - 1) / 4) .. string.sub(data, begin, finish)
end

-- The times of a block, and its bits.
function record_bits.split(packed)
  if not packed or #packed <= TIMES_SIZE then return false, false, false end
  local first_ms, last_ms = struct.unpack('>dd', packed)
  return first_ms, last_ms, string.sub(packed, TIMES_SIZE + 1)
end

-- The same of the term of every record, where times from *from_ms* to *to_ms* were seen, false if none.
function record_bits.timed(packed, from_ms, to_ms, bits)
  local first_ms, last_ms, data = record_bits.split(packed)
  local was_first_ms, was_last_ms = first_ms, last_ms
  if from_ms then first_ms, last_ms = math.min(first_ms or from_ms, from_ms), math.max(last_ms or to_ms, to_ms) end
  local offset, is_there = next(bits)
  local one = data and #data > 4 and not next(bits, offset) and with_one(packed, TIMES_SIZE, offset, is_there)
  if one and first_ms == was_first_ms and last_ms == was_last_ms then return one end
  data = one and string.sub(one, TIMES_SIZE + 1) or record_bits.changed(data, bits)
  return data and struct.pack('>dd', first_ms or 0, last_ms or 2 ^ 52) .. data
end
