-- usage.lua: add what a replica has counted to the counts of the fleet, or return those.
-- KEYS[1]  since when the counts are whole: { the instant }
-- KEYS[2]  the counts of a period, and so on: { { replica, the number of its last call, ... }, { name, granted, refused, waited,
--          cancelled, ... } }
-- ARGV[1]  MessagePack values, one after the other; all times in microseconds
--   given_now  0: this server's clock
--   kept_for   how long counts are kept
--   caller     the calling replica
--   number     the number of a call that adds, which is carried out once; 0: nothing is added
--   rows       what each period gets: { name, granted, refused, waited, cancelled, ... }
-- Returns  one MessagePack array: { now, since when the counts are whole, { the rows of each period, if nothing was added } }
-- Atomic:  all keys carry one hash tag
-- Expiry:  kept_for after the last count

local given_now, kept_for, caller, number, rows = cmsgpack.unpack(ARGV[1])
local now, stored = Store.now(given_now), redis.call("MGET", unpack(KEYS))

-- A restarted replica has another number, and many may restart: beyond so many the earliest is forgotten.
local CALLERS_MAX = 500
-- Names come from configurations, which change. Further ones are not counted.
local NAMES_MAX = 10000
local WIDTH = 5

local began = Store.read(KEYS[1], stored[1], 1)
local since = max(began and min(began[1], now) or now, now - kept_for)

-- Notes the call. Returns whether it was carried out before.
local function is_repeated(calls)
  for index = 1, #calls, 2 do
    if calls[index] == caller then
      if calls[index + 1] >= number then return true end
      calls[index + 1] = number
      return false
    end
  end
  if #calls >= 2 * CALLERS_MAX then
    table.remove(calls, 1)
    table.remove(calls, 1)
  end
  calls[#calls + 1], calls[#calls + 2] = caller, number
  return false
end

local function add(counts)
  local places = {}
  for place = 1, #counts, WIDTH do places[counts[place]] = place end
  for row = 1, #rows, WIDTH do
    local place = places[rows[row]]
    if place then
      for column = 1, WIDTH - 1 do counts[place + column] = counts[place + column] + rows[row + column] end
    elseif #counts < WIDTH * NAMES_MAX then
      for column = 0, WIDTH - 1 do counts[#counts + 1] = rows[row + column] end
    end
  end
end

local answer = {}
for index = 2, #KEYS do
  local period = Store.read(KEYS[index], stored[index], 2) or { {}, {} }
  if number == 0 then
    answer[index - 1] = period[2]
  elseif #rows > 0 and not is_repeated(period[1]) then
    add(period[2])
    redis.call("SET", KEYS[index], cmsgpack.pack(period), "PX", ceil(kept_for / 1000))
  end
end
if number > 0 then redis.call("SET", KEYS[1], cmsgpack.pack({ since }), "PX", ceil(kept_for / 1000)) end
return cmsgpack.pack({ now, since, answer })
