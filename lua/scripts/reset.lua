-- reset.lua: forget what was used of a limiter, or of one of its partitions, until now.
-- KEYS[1]  the epoch
-- KEYS[2]  the limiter's book; of a limiter that has partitions: what the keys of all their books begin with, or one of them
-- ARGV[1]  now in microseconds; 0: this server's clock
-- ARGV[2]  how long a new epoch takes to settle
-- ARGV[3]  the server's run, as the caller knows it; empty: not known, `?`: to be found out
-- ARGV[4]  the latest epoch that the caller has heard of
-- ARGV[5]  for how long a book may hold what was booked before, in microseconds
-- Returns  { now, the epoch, until when it settles or 0, the last reset or 0 } integers only
-- Atomic:  a single server, or keys of one hash tag
-- A book follows when it is asked for next. What replicas hold of before they forget when they hear of it.

-- What was reset and may still be asked for under its old state is kept with the epoch.
local RESETS_MAX = 64

local now, settle, run, span = now_of(ARGV[1]), tonumber(ARGV[2]), run_of(ARGV[3]), tonumber(ARGV[5])
local epoch = epoch_open(KEYS[1], redis.call("MGET", KEYS[1])[1], now, run, settle, tonumber(ARGV[4]))
local resets, before = {}, 0
for index = 1, #epoch.resets, 3 do
  local key, at, till = epoch.resets[index], epoch.resets[index + 1], epoch.resets[index + 2]
  before = max(before, at)
  if till > now and not is_part(KEYS[2], key) then
    resets[#resets + 1], resets[#resets + 2], resets[#resets + 3] = key, at, till
  end
end
if #resets >= 3 * RESETS_MAX then
  return redis.error_reply("RESETS " .. RESETS_MAX .. " resets are kept already: reset a limiter as a whole, not each partition")
end
local at = max(now, before + 1)
resets[#resets + 1], resets[#resets + 2], resets[#resets + 3] = KEYS[2], at, at + span
epoch.resets = resets
epoch_keep(KEYS[1], epoch, now, at + span, true)
return epoch_answer(epoch, now)
