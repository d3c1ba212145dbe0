-- heartbeat.lua: a heartbeat, which keeps the epoch alive and tells which it is.
-- KEYS[1]  the epoch
-- ARGV[1]  now in microseconds; 0: this server's clock
-- ARGV[2]  how long a new epoch takes to settle
-- ARGV[3]  the server's run, as the caller knows it; empty: not known, `?`: to be found out
-- ARGV[4]  the latest epoch that the caller has heard of
-- ARGV[5]  1: something is written in any case, to find out whether the server can
-- Returns  { now, the epoch, until when it settles or 0, the last reset or 0; key and instant of each reset }
-- Atomic:  one key

local now, settle, run = now_of(ARGV[1]), tonumber(ARGV[2]), run_of(ARGV[3])
local epoch = epoch_open(KEYS[1], redis.call("MGET", KEYS[1])[1], now, run, settle, tonumber(ARGV[4]))
epoch_keep(KEYS[1], epoch, now, now, ARGV[5] == "1")
local answer = epoch_answer(epoch, now)
for index = 1, #epoch.resets, 3 do
  answer[#answer + 1], answer[#answer + 2] = epoch.resets[index], epoch.resets[index + 1]
end
return answer
