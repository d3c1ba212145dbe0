-- pause.lua: pause a limiter, or one of its partitions, by hand, or lift its pause.
-- KEYS[1]  the epoch
-- KEYS[2]  the state of the limiter; of a limiter with partitions: what the keys of all their states begin with, or one of them
-- ARGV[1]  MessagePack values, one after the other; all times in microseconds
--   given_now    0: this server's clock
--   known_epoch  the latest epoch that the caller knows
--   run          the server's run as the caller knows it; empty: unknown; `?`: to be found out
--   settle       how long a new epoch takes to open
--   lasting      the length of the pause; 0 lifts it
--   longest      the longest pause there is: a lifted pause is remembered for so long
--   channel      the channel on which it is announced; none if empty
--   replica      the replica that was asked for it
-- Returns  one MessagePack array: { { now, epoch, when it opens or 0, last reset or 0, memory }, paused until or 0, 0 }
-- Atomic:  a single server, or keys of one hash tag
-- A state follows its pause in the next call for it.

local epoch_key, state_key = KEYS[1], KEYS[2]
local given_now, known_epoch, run, settle, lasting, longest, channel, replica = cmsgpack.unpack(ARGV[1])
local now = Store.now(given_now)

local PAUSES_MAX = 64

local epoch = Epoch.open(epoch_key, redis.call("MGET", epoch_key)[1], now, known_epoch, run, settle)
local pauses, before = {}, 0
local function add(...)
  for _, value in ipairs({ ... }) do pauses[#pauses + 1] = value end
end
for index = 1, #epoch.pauses, 5 do
  local key, at, till, kept_until, by = unpack(epoch.pauses, index, index + 4)
  before = max(before, at)
  if kept_until > now and not Epoch.is_part(state_key, key) then add(key, at, till, kept_until, by) end
end
if #pauses >= 5 * PAUSES_MAX then
  return redis.error_reply("PAUSES " .. PAUSES_MAX .. " pauses are kept already: pause a limiter as a whole, not each partition")
end
local till, kept_until = lasting > 0 and now + lasting or 0, now + max(lasting, longest)
add(state_key, max(now, before + 1), till, kept_until, replica)
epoch.pauses = pauses
Epoch.keep(epoch_key, epoch, now, kept_until, true)
if channel ~= "" then
  redis.pcall("PUBLISH", channel, string.format("pause %s %.0f %.0f 0 0 %.0f", state_key, now, till, replica))
end
return cmsgpack.pack({ Epoch.answer(epoch, now), till, 0 })
