-- reset.lua: forget what was used of a limiter, or of one of its partitions, until now.
-- KEYS[1]  the epoch
-- KEYS[2]  the state of the limiter; of a limiter with partitions: what the keys of all their states begin with, or one of them
-- KEYS[3]  until when each state lives
-- ARGV[1]  MessagePack values, one after the other; all times in microseconds
--   given_now    0: this server's clock
--   known_epoch  the latest epoch that the caller knows
--   run          the server's run as the caller knows it; empty: unknown; `?`: to be found out
--   settle       how long a new epoch takes to open
--   span         how long a state may hold bookings from before the reset
-- Returns  one MessagePack array: { now, epoch, when it opens or 0, last reset or 0, memory }
-- Atomic:  a single server, or keys of one hash tag
-- A state follows its reset in the next call for it. Replicas forget their own grants when they hear of it.

local epoch_key, state_key, live_key = unpack(KEYS)
local given_now, known_epoch, run, settle, span = cmsgpack.unpack(ARGV[1])
local now = Store.now(given_now)

local RESETS_MAX = 64

local epoch = Epoch.open(epoch_key, redis.call("MGET", epoch_key)[1], now, known_epoch, run, settle, nil, live_key)
local resets, before = {}, 0
local function add(key, at, kept_until)
  local size = #resets
  resets[size + 1], resets[size + 2], resets[size + 3] = key, at, kept_until
end
for index = 1, #epoch.resets, 3 do
  local key, at, kept_until = unpack(epoch.resets, index, index + 2)
  before = max(before, at)
  if kept_until > now and not Epoch.is_part(state_key, key) then add(key, at, kept_until) end
end
if #resets >= 3 * RESETS_MAX then
  return redis.error_reply("RESETS " .. RESETS_MAX .. " resets are kept already: reset a limiter as a whole, not each partition")
end
local at = max(now, before + 1)
add(state_key, at, at + span)
epoch.resets = resets
Epoch.keep(epoch_key, epoch, now, at + span, true)
Epoch.keep_live(live_key, epoch, now, now)
return cmsgpack.pack(Epoch.answer(epoch, now))
