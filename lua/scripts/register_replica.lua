-- register_replica.lua: register a replica, or remove it, and return all replicas.
-- KEYS[1]  the replicas: { replica, the instant of its last call, version, configuration, host name, ... }
-- ARGV[1]  MessagePack values, one after the other; all times in microseconds
--   given_now      0: this server's clock
--   counts_for     how long a silent replica is counted
--   caller         the calling replica
--   version        its version
--   configuration  the hash of its configuration
--   host           its host name
--   leaves         whether it is removed
-- Returns  one MessagePack array: { { replica, time since its last call, version, configuration, host name }, ... }, the caller first
-- Atomic:  one key
-- Expiry:  when no replica counts any more

local replicas_key = KEYS[1]
local given_now, counts_for, caller, version, configuration, host, leaves = cmsgpack.unpack(ARGV[1])
local now = Store.now(given_now)

local known = Store.read(replicas_key, redis.call("MGET", replicas_key)[1]) or {}
local kept, answer = {}, {}
local function keep(replica, at, ...)
  for _, value in ipairs({ replica, at, ... }) do kept[#kept + 1] = value end
  answer[#answer + 1] = { replica, now - at, ... }
end
if not leaves then keep(caller, now, version, configuration, host) end
for index = 1, #known, 5 do
  -- A call from before the clock was set back is as recent as one of now.
  local at = min(known[index + 1], now)
  if known[index] ~= caller and now - at < counts_for then keep(known[index], at, unpack(known, index + 2, index + 4)) end
end
if #kept > 0 then
  redis.call("SET", replicas_key, cmsgpack.pack(kept), "PX", ceil(counts_for / 1000))
else
  redis.call("DEL", replicas_key)
end
return cmsgpack.pack(answer)
