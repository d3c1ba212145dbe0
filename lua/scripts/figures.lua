-- figures.lua: tell the fleet the figures of a replica, and return those of all replicas.
-- KEYS[1]  the figures: { replica, the instant of its last call, its figures, ... }
-- ARGV[1]  MessagePack values, one after the other; all times in microseconds
--   given_now   0: this server's clock
--   counts_for  how long a silent replica is counted
--   caller      the calling replica
--   figures     its figures as text, which only replicas read
--   leaves      whether it is removed
-- Returns  one MessagePack array: { now, { { replica, time since its last call, figures }, ... } }
-- Atomic:  one key
-- Expiry:  when no replica counts any more

local figures_key = KEYS[1]
local given_now, counts_for, caller, figures, leaves = cmsgpack.unpack(ARGV[1])
local now = Store.now(given_now)

local known = Store.read(figures_key, redis.call("MGET", figures_key)[1]) or {}
local kept, answer = {}, {}
local function keep(replica, at, told)
  local size = #kept
  kept[size + 1], kept[size + 2], kept[size + 3] = replica, at, told
  answer[#answer + 1] = { replica, now - at, told }
end
if not leaves then keep(caller, now, figures) end
for index = 1, #known, 3 do
  -- A call from before the clock was set back is as recent as one of now.
  local at = min(known[index + 1], now)
  if known[index] ~= caller and now - at < counts_for then keep(known[index], at, known[index + 2]) end
end
if #kept > 0 then
  redis.call("SET", figures_key, cmsgpack.pack(kept), "PX", ceil(counts_for / 1000))
else
  redis.call("DEL", figures_key)
end
return cmsgpack.pack({ now, answer })
