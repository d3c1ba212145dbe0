-- write_back.lua: charge what a replica was granted before the server lost it, or while it was away.
-- KEYS[1]     the epoch
-- KEYS[2]     the limiter's book
-- ARGV[1]     now in microseconds; 0: this server's clock
-- ARGV[2]     how long a new epoch takes to settle
-- ARGV[3]     the server's run, as the caller knows it; empty: not known, `?`: to be found out
-- ARGV[4]     lease in microseconds
-- ARGV[5]     the calling replica, a number
-- ARGV[6]     the number of this write among those of its kind and the replica: one that is repeated is carried out once
-- ARGV[7]     how much of the limiter the caller has seen in use; what of it nobody writes back is charged, too
-- ARGV[8]     the caller's rules as text
-- ARGV[9]     the latest epoch that the caller has heard of
-- ARGV[10]    its kind: 1: what was granted before the server lost it, 2: what was granted while it was away
-- ARGV[11]    of the second kind: how many microseconds ago the caller may have granted something first, by it or not
-- ARGV[12]    what this clock showed when it was sent, as far as the caller knows; 0: it does not know
-- ARGV[13..]  permits, ascending: microseconds before it was sent, count
-- Returns     { now, the epoch, until when it settles or 0, the last reset or 0 } integers only
-- Atomic:     a single server, or keys of one hash tag
-- Expiry:     every key when nothing in it can matter any more, never earlier

local now, settle, run, lease = now_of(ARGV[1]), tonumber(ARGV[2]), run_of(ARGV[3]), tonumber(ARGV[4])
local replica, number, seen, text = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7]), ARGV[8]

-- A call that was sent to a server that stood still is carried out late; one from another clock seems sent long ago, or not yet.
local DELAY_MAX = 60000000
local sent = tonumber(ARGV[12])
if sent > now or now - sent > DELAY_MAX then sent = now end

local stored = redis.call("MGET", KEYS[1], KEYS[2])
local epoch = epoch_open(KEYS[1], stored[1], now, run, settle, tonumber(ARGV[9]))
local book = book_load(KEYS[2], stored[2], now)
book_enter(book, epoch, now)
book_open(book, now, text, lease, replica, reset_of(epoch, KEYS[2]), pause_of(epoch, KEYS[2]))

local place
for index = 1, #book.restored, 3 do
  if book.restored[index] == replica then place = index end
end
if not place then
  place = #book.restored + 1
  book.restored[place], book.restored[place + 1], book.restored[place + 2] = replica, 0, 0
end
place = place + tonumber(ARGV[10])
if book.restored[place] < number then
  book.restored[place] = number
  -- If nobody has called meanwhile, the server was away for all, and others may have granted as much: they have a moment
  -- to say so.
  -- Calls that had been sent before may be carried out when it is back, so the last call alone tells nothing.
  local first = sent - tonumber(ARGV[11])
  local was_silent = book.called < first or (book.silent_from <= first and first <= book.silent_till)
  if ARGV[10] == "2" and now >= epoch.settled_at and was_silent then
    epoch.settled_at, epoch.kept_until = now + settle, 0
  end
  if now < epoch.settled_at then
    book.owed = max(book.owed, seen)
    -- There may be more to come.
    local more = min(now + settle / 2, epoch.id + SETTLES_MAX * settle)
    if more > epoch.settled_at then epoch.settled_at, epoch.kept_until = more, 0 end
  end
  -- Two ascending rows become one.
  local at, permits, size, known = {}, {}, 0, 1
  local function put(instant, count)
    if size > 0 and is_one(book.rules, book.cell, at[size], instant) then
      at[size], permits[size] = instant, permits[size] + count
    else
      size = size + 1
      at[size], permits[size] = instant, count
    end
  end
  for argument = 13, #ARGV, 2 do
    local instant, count = sent - tonumber(ARGV[argument]), tonumber(ARGV[argument + 1])
    while known <= book.size and book.at[known] <= instant do
      put(book.at[known], book.permits[known])
      known = known + 1
    end
    -- What was before a reset no longer counts.
    if instant > book.reset_at then
      put(instant, count)
      -- A bucket that has taken in that instant takes this in, too.
      for index, rule in ipairs(book.rules) do
        local base = book.bases[index]
        if rule.burst and instant <= base[3] then
          local micros, rest = level_take(rule, base[1], base[2], instant, count)
          book.bases[index] = { micros, rest, base[3] }
        end
      end
    end
  end
  while known <= book.size do
    put(book.at[known], book.permits[known])
    known = known + 1
  end
  book.at, book.permits, book.size = at, permits, size
end

local expires = max(book_expires(book), epoch.settled_at + longest_window(book.rules))
epoch_keep(KEYS[1], epoch, now, book_keep(KEYS[2], stored[2], book, now, expires))
return epoch_answer(epoch, now)
