-- register_replica.lua: a replica says that it is there, or that it leaves, and hears who else is.
-- KEYS[1]  the replicas: { replica, the instant at which it was last heard, version, configuration, host name, ... }
-- ARGV[1]  now in microseconds; 0: this server's clock
-- ARGV[2]  for how many microseconds a replica counts that is not heard
-- ARGV[3]  the calling replica, a number
-- ARGV[4]  its version
-- ARGV[5]  the hash of its configuration
-- ARGV[6]  its host name
-- ARGV[7]  1: it leaves
-- Returns  { replica, microseconds since it was last heard, version, configuration, host name, ... } the caller first, if it stays
-- Atomic:  one key
-- Expiry:  when none of them counts any more

local now, counts_for, caller = now_of(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local known = stored_at(KEYS[1], redis.call("MGET", KEYS[1])[1]) or {}
local kept, answer = {}, {}
local function keep(replica, heard, ...)
  for _, value in ipairs({ replica, heard, ... }) do kept[#kept + 1] = value end
  for _, value in ipairs({ replica, now - heard, ... }) do answer[#answer + 1] = value end
end
if ARGV[7] ~= "1" then keep(caller, now, ARGV[4], ARGV[5], ARGV[6]) end
for index = 1, #known, 5 do
  -- One from before the clock was set back is as good as new.
  local heard = math.min(known[index + 1], now)
  if known[index] ~= caller and now - heard < counts_for then keep(known[index], heard, unpack(known, index + 2, index + 4)) end
end
if #kept > 0 then
  redis.call("SET", KEYS[1], cmsgpack.pack(kept), "PX", math.ceil(counts_for / 1000))
else
  redis.call("DEL", KEYS[1])
end
return answer
