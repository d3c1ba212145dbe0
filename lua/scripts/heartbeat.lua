-- heartbeat.lua: keep the epoch alive, and return which it is and what was reset.
-- KEYS[1]  the epoch
-- ARGV[1]  MessagePack values, one after the other; all times in microseconds
--   given_now    0: this server's clock
--   known_epoch  the latest epoch that the caller knows
--   run          the server's run as the caller knows it; empty: unknown; `?`: to be found out
--   settle       how long a new epoch takes to settle
--   is_probe     whether to write in any case: a server that is no primary, or is full, can still read
-- Returns  one MessagePack array:
--          { { now, epoch, until when it settles or 0, last reset or 0 }, { { key, instant } of each reset, ascending } }
-- Atomic:  one key

local epoch_key = KEYS[1]
local given_now, known_epoch, run, settle, is_probe = cmsgpack.unpack(ARGV[1])
local now = Store.now(given_now)

local epoch = Epoch.open(epoch_key, redis.call("MGET", epoch_key)[1], now, known_epoch, run, settle)
Epoch.keep(epoch_key, epoch, now, now, is_probe)
local resets = {}
for index = 1, #epoch.resets, 3 do resets[#resets + 1] = { epoch.resets[index], epoch.resets[index + 1] } end
return cmsgpack.pack({ Epoch.answer(epoch, now), resets })
