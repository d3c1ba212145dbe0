-- report_upstream.lua: what an upstream says of its quota, for one limiter.
-- KEYS[1]     the epoch
-- KEYS[2]     the limiter's book
-- ARGV[1]     now in microseconds; 0: this server's clock
-- ARGV[2]     how long a new epoch takes to settle
-- ARGV[3]     the server's run, as the caller knows it; empty: not known, `?`: to be found out
-- ARGV[4]     the latest epoch that the caller has heard of
-- ARGV[5]     lease in microseconds
-- ARGV[6]     the calling replica, a number
-- ARGV[7]     the caller's rules as text
-- ARGV[8]     the channel on which a pause is announced; none if empty
-- ARGV[9]     how long the first pause is for which no instant is named
-- ARGV[10]    how long the upstream asks to be left alone; 0: it names no instant
-- ARGV[11]    the longest pause
-- ARGV[12]    how long ago the request was sent that was refused
-- ARGV[13]    by how much the pause may be longer, in parts of 1024
-- ARGV[14]    the status of the answer that asks for a pause; 0: none is asked for
-- ARGV[15]    permits that a request has cost beyond what it had taken
-- ARGV[16]    how many slots follow whose permits it refused, where it matters what the upstream counts
-- ARGV[17..]  each of these slots, how many permits; then for some of the caller's rules: which, from 1 on; how much of it the
--             upstream left, in a window of which length, in the answer to the request of which slot, and how long after that
--             it was there
-- Returns     { now, the epoch, until when it settles or 0, the last reset or 0, until when it is paused or 0, how many permits
--             fewer there are because the upstream leaves less } integers only
-- Atomic:     a single server, or keys of one hash tag
-- Expiry:     every key when nothing in it can matter any more, never earlier

local now, settle, run, lease = now_of(ARGV[1]), tonumber(ARGV[2]), run_of(ARGV[3]), tonumber(ARGV[5])
local replica, text, channel, fallback = tonumber(ARGV[6]), ARGV[7], ARGV[8], tonumber(ARGV[9])
local wait, most, sent_ago = tonumber(ARGV[10]), tonumber(ARGV[11]), tonumber(ARGV[12])
local jitter, status, cost, refused_till = tonumber(ARGV[13]), tonumber(ARGV[14]), tonumber(ARGV[15]), 16 + 2 * tonumber(ARGV[16])

local stored = redis.call("MGET", KEYS[1], KEYS[2])
local epoch = epoch_open(KEYS[1], stored[1], now, run, settle, tonumber(ARGV[4]))
local book = book_load(KEYS[2], stored[2], now)
book_enter(book, epoch, now)
book_open(book, now, text, lease, replica, reset_of(epoch, KEYS[2]), pause_of(epoch, KEYS[2]))

if cost > 0 then charge_at(book, now, cost) end
local refused = {}
for argument = 17, refused_till do refused[#refused + 1] = tonumber(ARGV[argument]) end
if #refused > 0 then book_hear_refused(book, now, refused) end
local drift = 0
local rules = rules_of(text)
for argument = refused_till + 1, #ARGV, 5 do
  local rule, remaining = rules[tonumber(ARGV[argument])], tonumber(ARGV[argument + 1])
  local per, slot, took = tonumber(ARGV[argument + 2]), tonumber(ARGV[argument + 3]), tonumber(ARGV[argument + 4])
  if rule then drift = drift + book_hear_remaining(book, now, rule, remaining, per, slot, took) end
end
-- What is moved by the pause heeds the others, too.
if status > 0 then
  local has_changed = pause_ask(book, now, wait > 0 and wait or nil, fallback, most, sent_ago, jitter, status, replica)
  book_follow_pause(book, now, lease)
  if has_changed and channel ~= "" then
    -- Who does not hear of it hears of it with its next call.
    local pause = book.pause
    redis.pcall("PUBLISH", channel, string.format("pause %s %.0f %.0f %.0f %.0f %.0f",
      KEYS[2], now, pause.till, pause.status, pause.named, pause.by))
  end
end
book_follow_others(book, now, lease)

local answer = epoch_answer(epoch, now)
answer[#answer + 1] = book.pause.till > now and book.pause.till or 0
answer[#answer + 1] = drift
local expires = book_expires(book)
if now < epoch.settled_at then expires = max(expires, epoch.settled_at + longest_window(book.rules)) end
local lives = book_keep(KEYS[2], stored[2], book, now, expires)
if settle > 0 then epoch_keep(KEYS[1], epoch, now, lives) end
return answer
