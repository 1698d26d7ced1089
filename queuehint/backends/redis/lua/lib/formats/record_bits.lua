--[[ record_bits: how the record index (lib/structures/record_index) stores which records of a block have a term: the place of the
  first word of 32 bits that is not zero, one byte, then the words from there up to the last that is not zero. The field "a" of a
  block is the earliest and the latest time of enqueue in it, two doubles. ]]
local PER_BLOCK, TIMES, TIMES_SIZE, TIMES_FORM = 1024, 'a', 16, '>dd' -- @const
local MASKS = {[0] = 128, 64, 32, 16, 8, 4, 2, 1}
local record_bits = {}
local word_forms, ones_of_byte = {}, nil

-- Change one bit of packed words; nil where the first or last word may become zero, or a word before the first is needed.
local function with_one(packed, offset, is_there)
  local place, size = offset % 8, #packed
  local at, mask = (offset - place) / 8 - string.byte(packed) * 4 + 2, MASKS[place]
  if at < 2 or at > size + 4 then return nil end
  if at > size then
    return is_there and packed .. string.rep('\0', at - size - 1) .. string.char(mask) .. string.rep('\0', (size - at) % 4)
  end
  local byte = string.byte(packed, at)
  if (byte % (2 * mask) >= mask) == is_there then return packed end
  byte = is_there and byte + mask or byte - mask
  if byte == 0 and (at < 6 or at > size - 4) then return nil end
  return string.sub(packed, 1, at - 1) .. string.char(byte) .. string.sub(packed, at + 1)
end

-- Bits with some of them changed, nil if none is left.
function record_bits.changed(packed, bits)
  local offset, is_there = next(bits)
  local one = packed and #packed > 4 and not next(bits, offset) and with_one(packed, offset, is_there)
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

-- The words of packed bits, how many there are, and how many stand before the first.
function record_bits.words(packed)
  local size = (#packed - 1) / 4
  local words_form = word_forms[size]
  if not words_form then
    words_form = '>' .. string.rep('I4', size)
    word_forms[size] = words_form
  end
  return {struct.unpack(words_form, packed, 2)}, size, string.byte(packed)
end

-- How many records there are by each byte of packed bits.
function record_bits.ones_of_bytes()
  if not ones_of_byte then
    ones_of_byte = {[0] = 0}
    for byte = 1, 255 do ones_of_byte[byte] = ones_of_byte[math.floor(byte / 2)] + byte % 2 end
  end
  return ones_of_byte
end

-- How many bits of a word are set, which may be below zero; arithmetic costs less here than calls of functions do.
function record_bits.ones(word)
  local ones, low = ones_of_byte or record_bits.ones_of_bytes(), word % 65536
  local high = (word - low) / 65536 % 65536
  local first, third = low % 256, high % 256
  return ones[first] + ones[(low - first) / 256] + ones[third] + ones[(high - third) / 256]
end

-- The times of a block; nil where there are none.
function record_bits.times(packed)
  if not packed or #packed ~= TIMES_SIZE then return nil end
  return struct.unpack(TIMES_FORM, packed)
end

-- The same with times from *from_ms* to *to_ms* seen too.
function record_bits.widened(packed, from_ms, to_ms)
  local first_ms, last_ms = record_bits.times(packed)
  if first_ms and first_ms <= from_ms and to_ms <= last_ms then return packed end
  return struct.pack(TIMES_FORM, math.min(first_ms or from_ms, from_ms), math.max(last_ms or to_ms, to_ms))
end
