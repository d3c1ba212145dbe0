-- pause.lua: pause a limiter by hand, or let it go on; or one of its partitions.
-- KEYS[1]  the epoch
-- KEYS[2]  the limiter's book; of a limiter that has partitions: what the keys of all their books begin with, or one of them
-- ARGV[1]  now in microseconds; 0: this server's clock
-- ARGV[2]  how long a new epoch takes to settle
-- ARGV[3]  the server's run, as the caller knows it; empty: not known, `?`: to be found out
-- ARGV[4]  the latest epoch that the caller has heard of
-- ARGV[5]  for how long; 0: it is to go on
-- ARGV[6]  the longest time for which a book may be paused, so long it is remembered that it was let go on
-- ARGV[7]  the channel on which it is announced; none if empty
-- ARGV[8]  the replica over which it is done, a number
-- Returns  { now, the epoch, until when it settles or 0, the last reset or 0, until when it is paused or 0 } integers only
-- Atomic:  a single server, or keys of one hash tag
-- A book follows when it is asked for next.

-- What was done by hand and may still have to be followed is kept with the epoch.
local PAUSES_MAX = 64

local now, settle, run = now_of(ARGV[1]), tonumber(ARGV[2]), run_of(ARGV[3])
local lasting, longest, channel, replica = tonumber(ARGV[5]), tonumber(ARGV[6]), ARGV[7], tonumber(ARGV[8])
local epoch = epoch_open(KEYS[1], redis.call("MGET", KEYS[1])[1], now, run, settle, tonumber(ARGV[4]))
local pauses, before = {}, 0
local function keep_pause(...)
  for _, value in ipairs({ ... }) do pauses[#pauses + 1] = value end
end
for index = 1, #epoch.pauses, 5 do
  local key, at, till, kept_till, by = unpack(epoch.pauses, index, index + 4)
  before = max(before, at)
  if kept_till > now and not is_part(KEYS[2], key) then keep_pause(key, at, till, kept_till, by) end
end
if #pauses >= 5 * PAUSES_MAX then
  return redis.error_reply("PAUSES " .. PAUSES_MAX .. " pauses are kept already: pause a limiter as a whole, not each partition")
end
local till = lasting > 0 and now + lasting or 0
keep_pause(KEYS[2], max(now, before + 1), till, now + max(lasting, longest), replica)
epoch.pauses = pauses
epoch_keep(KEYS[1], epoch, now, now + max(lasting, longest), true)
if channel ~= "" then redis.pcall("PUBLISH", channel, string.format("pause %s %.0f %.0f 0 0 %.0f", KEYS[2], now, till, replica)) end
local answer = epoch_answer(epoch, now)
answer[#answer + 1] = till
return answer
