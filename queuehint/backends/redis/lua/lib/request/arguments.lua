--[[ arguments: check the arguments that all scripts have before anything is changed: Redis keeps what a script wrote before it
  failed, and a malformed number would be stored. Clients refuse the same values earlier (operations.fields).
  KEYS[1] root      str  namespace root with its hash tag, "{qh:default}"; lib/request/keys builds every other key from it
  KEYS[2] meta      str  the only key that always exists: see session.py
  ARGV[1] now_ms    int  the time, for tests only; "" asks the server
  ARGV[2] stream    str  the stream of requests it belongs to, "" for none; ARGV[3] request int, its number there
  ARGV[4..7]        int  how long records are kept: finished, failed, canceled, with a service or "-" (lib/request/retention); ms
  ARGV[8] budget    int  units of follow-up work
  A question uses the time alone. The arguments of a script's own begin at ARGV[9]; its header describes them. ]]
local INT_MAX, SETTINGS_KEPT, SETTING_BYTES_MAX = 9007199254740992, 100, 32 -- @const

local function refuse_argument(what) error('BAD_ARGUMENT ' .. what, 0) end

-- Parse a whole number from *least* (default 0) to 2^53.
local function whole(text, what, least)
  local number = tonumber(text)
  if number and number >= (least or 0) and number <= INT_MAX and number % 1 == 0 then return number end
  refuse_argument(what)
end

-- Settings are the same in nearly every call: numbers that were seen, by their texts.
local numbers_known, numbers_count = {}, 0 -- @once

local args = {
  refuse = refuse_argument,
  whole = whole,

  -- The whole number of an argument that is a setting.
  setting = function(at)
    local text = ARGV[at]
    local number = numbers_known[text or '']
    if not number then
      number = whole(text, at)
      if #text > SETTING_BYTES_MAX then return number end
      if numbers_count >= SETTINGS_KEPT then numbers_known, numbers_count = {}, 0 end
      numbers_known[text], numbers_count = number, numbers_count + 1
    end
    return number
  end,

  -- The whole number of an argument.
  int = function(at, least) return whole(ARGV[at], at, least) end,

  -- The whole number of an argument, false where it is empty.
  int_or_none = function(at, least) return ARGV[at] ~= '' and whole(ARGV[at], at, least) end,

  -- Whether an argument that is 1 or 0 is 1.
  flag = function(at)
    if ARGV[at] ~= '0' and ARGV[at] ~= '1' then refuse_argument(at) end
    return ARGV[at] == '1'
  end,

  -- A flag, and the letters and digits behind it.
  flag_and_text = function(at)
    local text = ARGV[at]
    local first = string.byte(text)
    if first ~= 48 and first ~= 49 or #text > 1 and string.find(text, '%W') then refuse_argument(at) end
    return first == 49, string.sub(text, 2)
  end,

  -- The gate key behind a "/", nil where the argument is *none*.
  path = function(at, none)
    if ARGV[at] == none then return nil end
    if string.byte(ARGV[at]) ~= 47 then refuse_argument(at) end
    return string.sub(ARGV[at], 2)
  end,

  -- An argument that is a key of a table.
  one_of = function(at, choices)
    if not choices[ARGV[at]] then refuse_argument(at) end
    return ARGV[at]
  end,

  -- An argument of a form.
  like = function(at, form_of_it)
    if not string.find(ARGV[at], form_of_it) then refuse_argument(at) end
    return ARGV[at]
  end,

  -- See that a text is how long records are kept, ms, or "-", and in two lines for each single service its name and how long, ms.
  check_kept = function(text, what)
    if text == '-' then return end
    if tonumber(text) then return whole(text, what) end
    local of_all, services = string.match(text or '', '^([^\n]*)\n(.+)$')
    if of_all ~= '-' then whole(of_all, what) end
    local rest = string.gsub(services .. '\n', '[^\n]+\n([^\n]*)\n', function(kept_ms) return whole(kept_ms, what) and '' end)
    if rest ~= '' then refuse_argument(what) end
  end,

  -- See that there are so many arguments, and behind them any number of groups of *each*.
  count = function(least, each)
    local more = #ARGV - least
    if more < 0 or (each and more % each or more) > 0 then refuse_argument(#ARGV + 1) end
  end,
}
