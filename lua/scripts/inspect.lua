-- inspect.lua: what a limiter has left, without changing anything.
-- KEYS[1]  the limiter's book
-- KEYS[2]  the epoch
-- ARGV[1]  now in microseconds; 0: this server's clock
-- ARGV[2]  the caller's rules as text
-- Returns  { now, the last booked slot or 0, until when it is paused or 0, the status of the answer that refused or 0,
--            whether that named the instant, the replica that heard it or over which it was paused by hand or 0,
--            available of each rule } integers only
-- Atomic:  a single server, or keys of one hash tag

local now, stored = now_of(ARGV[1]), redis.call("MGET", KEYS[1], KEYS[2])
local book = book_load(KEYS[1], stored[1], now)
local epoch = epoch_open(KEYS[2], stored[2], now, "", 1, 0)
book_reset(book, reset_of(epoch, KEYS[1]))
local pause = book.pause
local at, till, replica = pause_of(epoch, KEYS[1])
if at > pause.by_hand_at then pause = { till = till, status = 0, named = 0, by = replica } end
if pause.till <= now then pause = PAUSE_NONE end
local answer = { now, book.at[book.size] or 0, pause.till, pause.status, pause.named, pause.by }
for _, rule in ipairs(rules_of(ARGV[2])) do
  answer[#answer + 1] = available(book, now, rule)
end
return answer
