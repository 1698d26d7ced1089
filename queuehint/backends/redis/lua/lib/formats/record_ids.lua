--[[ record_ids: how the record index (lib/structures/record_index) stores the ids of records: a field holds those of 16 numbers
  that follow one another, in no order, each behind a byte from 1 to 16, its place among them. No id holds a byte below 32. ]]
local IDS_PER_FIELD, ID_TERM = 16, '#' -- @const
local PLACE_MARKS = {[0] = '\1', '\2', '\3', '\4', '\5', '\6', '\7', '\8', '\9', '\10', '\11', '\12', '\13', '\14', '\15', '\16'}
local record_ids = {}

-- The name in INDEX of the ids of a field by its number.
function record_ids.name(field) return string.format('#%d', field) end

-- The id at a place; nil if there is none. A mark is looked for as it is: a pattern would be tried at each byte before it.
function record_ids.at(packed, place)
  local from = packed and string.find(packed, PLACE_MARKS[place], 1, true)
  return from and string.match(packed, '[^%z\1-\31]+', from + 1) or nil
end

-- Return packed ids with some added, and those removed whose value is false; nil if none is left.
function record_ids.changed(packed, ids)
  local parts, size = {packed or ''}, 1
  for place, id in pairs(ids) do
    local mark = PLACE_MARKS[place]
    if packed and string.find(parts[1], mark, 1, true) then parts[1] = string.gsub(parts[1], mark .. '[^%z\1-\31]*', '') end
    if id then size = size + 1; parts[size] = mark .. id end
  end
  local now = table.concat(parts)
  return now ~= '' and now or nil
end
