-- pause.lua: pause a limiter, or one of its partitions, by hand, or lift its pause.
-- KEYS[1]  the epoch
-- KEYS[2]  the state of the limiter; of a limiter with partitions: what the keys of all their states begin with, or one of them
-- KEYS[3]  until when each state lives
-- ARGV[1]  MessagePack values, one after the other; all times in microseconds
--   given_now    0: this server's clock
--   known_epoch  the latest epoch that the caller knows
--   run          the server's run as the caller knows it; empty: unknown; `?`: to be found out
--   settle       how long a new epoch takes to open
--   lasting      for how long the limiter is paused from now on; 0 lifts the pause
--   ago          how long ago the operator acted: a replica tells what it has kept to by itself; 0: now
--   longest      the longest pause there is: a lifted pause is remembered for so long
--   channel      the channel on which it is announced; none if empty
--   replica      the replica that was asked for it
-- Returns  one MessagePack array: { { now, epoch, when it opens or 0, last reset or 0, memory }, paused until or 0, 0 }, where the pause is
--          the one that is in force then: a later action by hand stays
-- Atomic:  a single server, or keys of one hash tag
-- A state follows its pause in the next call for it.

local epoch_key, state_key, live_key = unpack(KEYS)
local given_now, known_epoch, run, settle, lasting, ago, longest, channel, replica = cmsgpack.unpack(ARGV[1])
local now = Store.now(given_now)

local PAUSES_MAX = 64

local epoch = Epoch.open(epoch_key, redis.call("MGET", epoch_key)[1], now, known_epoch, run, settle, nil, live_key)
local known, before = epoch.pauses, 0
for index = 1, #known, 5 do before = max(before, known[index + 1]) end
local at, till = max(now, before + 1), lasting > 0 and now + lasting or 0
if ago > 0 then at = max(now - ago, 1) end

local pauses, place, is_outdated = {}, nil, false
for index = 1, #known, 5 do
  local key, known_at, known_till, kept_until, by = unpack(known, index, index + 4)
  if known_at > at then
    place = place or #pauses
    is_outdated = is_outdated or Epoch.is_part(key, state_key)
  end
  if kept_until > now and (known_at > at or not Epoch.is_part(state_key, key)) then
    for _, value in ipairs({ key, known_at, known_till, kept_until, by }) do pauses[#pauses + 1] = value end
  end
end
if not is_outdated then
  if #pauses >= 5 * PAUSES_MAX then
    return redis.error_reply("PAUSES " .. PAUSES_MAX .. " pauses are kept already: pause a limiter as a whole, not each partition")
  end
  local kept_until = now + max(lasting, longest)
  local first = place or #pauses
  for index, value in ipairs({ state_key, at, till, kept_until, replica }) do table.insert(pauses, first + index, value) end
  epoch.pauses = pauses
  Epoch.keep(epoch_key, epoch, now, kept_until, true)
Epoch.keep_live(live_key, epoch, now, now)
  if channel ~= "" then
    redis.pcall("PUBLISH", channel, string.format("pause %s %.0f %.0f 0 0 %.0f", state_key, at, till, replica))
  end
end
local _, paused_until = Epoch.pause_of(epoch, state_key)
return cmsgpack.pack({ Epoch.answer(epoch, now), paused_until, 0 })
