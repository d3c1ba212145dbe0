-- reserve.lua: give back, exchange and book permits for the requests of one queue, in one step.
-- A script and not MULTI/EXEC: where a slot lies depends on what is read in the same step.
-- KEYS[1..n]   the books of the n limiters that the queue needs, all at once
-- KEYS[n + 1]  the queue's order: { last, room_at, room_permits, generation, told, reviewed, expected, booked,
--              { replica, call, at, answer or "", ... } the last call of each replica }
-- KEYS[n + 2]  the epoch
-- ARGV[1]      now in microseconds; 0: this server's clock (anything else is for the test of the twin)
-- ARGV[2]      lease in microseconds
-- ARGV[3]      room: how many requests may be given a slot in the future
-- ARGV[4]      number of holdings to give back
-- ARGV[5]      number of holdings to exchange
-- ARGV[6]      number of runs
-- ARGV[7]      the calling replica, a number
-- ARGV[8]      the longest wait for a place of what is exchanged
-- ARGV[9]      how many requests like the first that is refused the caller may refuse without asking
-- ARGV[10]     the channel on which room is announced that was given back; none if empty
-- ARGV[11]     the number of this call among those of the replica; 0: it is not repeated
-- ARGV[12]     the server's run, as the caller knows it; empty: not known, `?`: to be found out
-- ARGV[13]     how long a new epoch takes to settle; 0: there are no epochs
-- ARGV[14]     the latest epoch that the caller has heard of
-- ARGV[15..]   for each limiter: its rules as text, the generation known to the caller, when the caller last saw its book that
--              should still be there, 0 if it need not;
--              then holdings to give back, then to exchange: slot, cost, count;
--              then runs: cost, wait_max, count
-- Returns      { now, the epoch, until when it settles or 0, the last reset or 0; for each limiter: number, void_from, the number
--              before, available of each rule, until when it is paused or 0, until when its book is there;
--              the last instant that is booked, 0 if none; where room was given back before the last slot, how many permits, 0 if none;
--              number of exchanges, count, slot (0: none within the wait), ...;
--              then of the runs: count, 0, slot: booked; or count, code, delay, delay told, limiter * 256 + limit:
--              code 1: too far, 2: as many wait as may } integers only, as one MessagePack array: a reply of as many elements takes
--              longer to write, to read and to remember
--              While an epoch settles nothing is exchanged or booked, and the answer ends before the number of exchanges.
--              A call that is repeated under its number is answered again and not carried out twice.
-- Atomic:      all keys carry one hash tag, so one cluster slot
-- Expiry:      every key when nothing in it can matter any more, never earlier

local limiters = #KEYS - 2
local now, lease, room = now_of(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local give_backs, exchanges, runs = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local replica, exchange_wait, spare = tonumber(ARGV[7]), tonumber(ARGV[8]), tonumber(ARGV[9])
local channel = ARGV[10]
local call, run, settle = tonumber(ARGV[11]), run_of(ARGV[12]), tonumber(ARGV[13])
local argument = 14

local function take()
  argument = argument + 1
  return tonumber(ARGV[argument])
end

local stored = redis.call("MGET", unpack(KEYS))
-- A server that is asked by nobody for so long may have been away.
local SILENT_MIN = 100000

-- For how long a shorter silence does not take the place of a longer one: by then all have said what they granted meanwhile.
local SILENCE_KEPT = 1000000

local epoch = epoch_open(KEYS[limiters + 2], stored[limiters + 2], now, run, settle, tonumber(ARGV[14]))
local books, texts, known, is_lost = {}, {}, {}, false
for index = 1, limiters do
  texts[index] = ARGV[argument + 1]
  known[index] = tonumber(ARGV[argument + 2])
  books[index] = book_load(KEYS[index], stored[index], now)
  is_lost = is_lost or book_is_lost(books[index], tonumber(ARGV[argument + 3]), epoch, now)
  argument = argument + 3
end
-- One key alone may go, deleted or evicted: whoever holds what it held is to write that back.
if is_lost then epoch = epoch_begin(now, epoch.id, epoch.run, settle, epoch.resets, epoch.pauses) end
local settles = now < epoch.settled_at
for index = 1, limiters do
  local book = books[index]
  book_enter(book, epoch, now)
  local silence = now - book.called
  local is_longer = silence > book.silent_till - book.silent_from or now > book.silent_till + SILENCE_KEPT
  if silence > SILENT_MIN and is_longer then book.silent_from, book.silent_till = book.called, now end
  book.called = max(book.called, now)
  book_open(book, now, texts[index], lease, replica, reset_of(epoch, KEYS[index]), pause_of(epoch, KEYS[index]))
end

-- ---- the order of the queue, the twin of order.rs ----

local REVIEW_MAX = 5000000
local REVIEW_PERMITS = 8

-- How long an answer is kept for the same call, and how many bytes of it at most.
local CALL_KEPT = 1000000
local ANSWER_MAX = 8192

local last, room_at, room_permits, generation, told, reviewed, expected, booked = 0, 0, 0, 0, 0, 0, 0, 0
local calls = {}
local order = stored_at(KEYS[limiters + 1], stored[limiters + 1], 9)
if order then
  last, room_at, room_permits, generation, told, reviewed, expected, booked, calls = unpack(order)
end
for index = 1, #calls, 4 do
  if call > 0 and calls[index] == replica and calls[index + 1] == call then
    if calls[index + 3] == "" then return redis.error_reply("REPEATED the call was carried out before") end
    return calls[index + 3]
  end
end
local current = 0
for index = 1, limiters do current = current + books[index].number end
if current ~= generation then
  last, room_at, room_permits, generation, told, reviewed, expected, booked = 0, 0, 0, current, 0, 0, 0, 0
end
if last <= now then room_permits = 0 end

-- The earliest place for a new request of that cost, as far as the order goes.
local function order_floor(cost)
  if room_permits >= cost then return room_at end
  return last
end

local function order_given_back(slot, permits)
  if slot < last and last > now then
    room_at = room_permits == 0 and slot or min(room_at, slot)
    room_permits = room_permits + permits
  end
end

-- Keeps the order after requests were booked. Returns whether they passed by room that a smaller cost may take.
local function order_booked(slot, count, cost)
  booked = booked + count * cost
  local searched = room_permits >= cost
  if searched and slot < last then room_permits = room_permits - count * cost end
  if searched and cost == 1 then
    room_at = slot
    if slot >= last then room_permits = 0 end
  end
  last = max(last, slot)
  return searched and cost > 1 and slot > room_at
end

-- The instant that the first of some refused callers is told, who need that many permits together.
local function tell(slot, permits, rule)
  local spread_max = max(rule.window, SPREAD_MIN)
  local first = told > slot + spread_max and slot or max(told, slot)
  told = slot + (first - slot + spacing(rule, permits)) % spread_max
  return first
end

-- Pulls the spread in where the callers it was for did not come.
local function review_spread()
  if told <= now then
    reviewed, expected, booked = now, 0, 0
    return
  end
  local shortest, some = nil, 0
  for index = 1, limiters do
    for _, rule in ipairs(books[index].rules) do
      shortest = min(shortest or rule.window, rule.window)
      some = max(some, (span_exact(rule, REVIEW_PERMITS)))
    end
  end
  local every = min(3 * shortest, max(REVIEW_MAX, some))
  if now < reviewed + every then return end
  local ahead = told - now
  if booked + floor(booked / 8) < expected then told = now + floor(ahead / 1024) * floor(booked * 1024 / expected) end
  local soon = min(told - now, every)
  expected = nil
  for index = 1, limiters do
    for _, rule in ipairs(books[index].rules) do
      local permits = floor(soon * rule.rate / rule.window)
      expected = min(expected or permits, permits)
    end
  end
  reviewed, booked = now, 0
end

review_spread()

-- ---- steps over all limiters of the queue ----

local function give_back(slot, permits)
  local place
  for index = 1, limiters do
    local moved = book_give_back(books[index], slot, permits, known[index])
    if moved and (not place or moved > place) then place = moved end
  end
  return place
end

-- Hands a void permit's place to its holder, where every limiter has put it at the same one.
local function fetch(slot, cost, skipped)
  local place, indexes = nil, {}
  for index = 1, limiters do
    local to, moved = book_place(books[index], slot, cost, known[index], skipped)
    if not to or to < now or to - now > exchange_wait or (place and place ~= to) then return nil end
    place, indexes[index] = to, moved
  end
  for index, moved in ipairs(indexes) do
    books[index].moved[moved + 2] = books[index].moved[moved + 2] - cost
  end
  return place
end

local function searches_new(from)
  local searches = {}
  for index = 1, limiters do searches[index] = search_new(books[index], from) end
  return searches
end

local function charge(searches, permits)
  for index = 1, limiters do search_charge(searches[index], permits) end
end

-- The earliest instant at which every limiter has room; returns it, the room, and who moved it.
local function earliest(searches, cost)
  local violated_limiter, violated_limit, at = 1, 1, 0
  for index = 1, limiters do at = max(at, searches[index].at) end
  while true do
    local least, moved = nil, false
    for index = 1, limiters do
      local search = searches[index]
      search_advance(search, at)
      local found, limited_by = search_earliest(search, cost)
      if limited_by then violated_limiter, violated_limit = index, limited_by end
      if search.at > at then
        moved = true
        at = search.at
      end
      if not least or found < least then least = found end
    end
    if not moved then return at, least, violated_limiter, violated_limit end
  end
end

-- The caller's own rules for a limiter; mostly they are those in force.
local function own_rules(limiter)
  local book = books[limiter]
  return book.union == texts[limiter] and book.rules or rules_of(texts[limiter])
end

-- A violated rule by its place among the caller's, the first where it is another caller's.
local function violated_number(limiter, limit)
  local rule = books[limiter].rules[limit]
  for index, own in ipairs(own_rules(limiter)) do
    if own.text == rule.text then return (limiter - 1) * 256 + index - 1 end
  end
  return (limiter - 1) * 256
end

-- ---- give back ----

for _ = 1, give_backs do
  local slot, cost, count = take(), take(), take()
  order_given_back(give_back(slot, cost * count) or slot, cost * count)
end

-- ---- exchange: one by one, each at the place that the change kept for it, or no earlier than that ----

local exchanged = {}
for _ = 1, settles and 0 or exchanges do
  local slot, cost, count = take(), take(), take()
  local left
  for index = 1, limiters do left = min(left or SPAN_MAX, unfetched(books[index], slot)) end
  for index = 0, count - 1 do
    -- Several replicas hold permits of one slot: where those lie apart now, each takes some from the whole stretch.
    local at = fetch(slot, cost, max(floor((2 * index + 1) * left / (2 * count)) - index * cost, 0))
    if not at then
      local place = give_back(slot, cost)
      local searches = searches_new(max(now, place or last))
      at = earliest(searches, cost)
      if at - now <= exchange_wait then charge(searches, cost) else at = 0 end
    end
    last = max(last, at)
    if exchanged[#exchanged] == at then
      exchanged[#exchanged - 1] = exchanged[#exchanged - 1] + 1
    else
      exchanged[#exchanged + 1] = 1
      exchanged[#exchanged + 1] = at
    end
  end
end

-- ---- book ----

local outcomes = {}

local function refused(count, code, at, cost, limiter, limit)
  local size = #outcomes
  outcomes[size + 1], outcomes[size + 2], outcomes[size + 3] = count, code, at - now
  outcomes[size + 4] = tell(at, (count + spare) * cost, books[limiter].rules[limit]) - now
  spare = 0
  outcomes[size + 5] = violated_number(limiter, limit)
end

if runs > 0 and not settles then
  local searches = searches_new(now)
  -- The search has moved on for a cost that found nothing where it stood: a smaller one may have room before.
  local passed = 0
  for _ = 1, runs do
    local cost, wait_max, left = take(), take(), take()
    if cost < passed then
      searches = searches_new(now)
      passed = 0
    end
    while left > 0 do
      local from = order_floor(cost)
      for index = 1, limiters do search_advance(searches[index], from) end
      local at, free, limiter, limit = earliest(searches, cost)
      local code = at - now > wait_max and 1 or at > now and room == 0 and 2 or 0
      if code > 0 then
        refused(left, code, at, cost, limiter, limit)
        passed = max(passed, cost)
        break
      end
      local count = min(left, floor(free / cost))
      if at < last then count = min(count, floor(room_permits / cost)) end
      count = max(count, 1)
      if at > now then
        count = min(count, room)
        room = room - count
      end
      charge(searches, count * cost)
      if order_booked(at, count, cost) then passed = max(passed, cost) end
      local size = #outcomes
      outcomes[size + 1], outcomes[size + 2], outcomes[size + 3] = count, 0, at
      left = left - count
    end
  end
end

-- ---- store and answer ----

local answer = epoch_answer(epoch, now)
local lives_until, last_booked = now, 0
for index = 1, limiters do
  local book = books[index]
  answer[#answer + 1] = book.number
  answer[#answer + 1] = book.void_from
  answer[#answer + 1] = book.moved_generation
  for _, rule in ipairs(own_rules(index)) do
    answer[#answer + 1] = available(book, now, rule)
  end
  local expires = book_expires(book)
  last_booked = max(last_booked, book.at[book.size] or 0)
  if settles and (book.owed > 0 or #book.restored > 0) then expires = max(expires, epoch.settled_at + longest_window(book.rules)) end
  local lives = book_keep(KEYS[index], stored[index], book, now, expires)
  lives_until = max(lives_until, lives)
  answer[#answer + 1] = book.pause.till > now and book.pause.till or 0
  answer[#answer + 1] = lives
end
answer[#answer + 1] = last_booked
local has_room = room_permits > 0 and room_at < last
answer[#answer + 1] = has_room and room_at or 0
answer[#answer + 1] = has_room and room_permits or 0
if has_room and give_backs > 0 and channel ~= "" then
  -- Replicas that hold later slots trade them for it. Who does not hear of it loses nothing but time.
  redis.pcall("PUBLISH", channel, string.format("%s %.0f %.0f", KEYS[limiters + 1], room_at, room_permits))
end

if not settles then
  answer[#answer + 1] = #exchanged / 2
  for index = 1, #exchanged do answer[#answer + 1] = exchanged[index] end
  for index = 1, #outcomes do answer[#answer + 1] = outcomes[index] end
end

local text, kept = cmsgpack.pack(answer), {}
local function remember(...)
  for _, value in ipairs({ ... }) do kept[#kept + 1] = value end
end
for index = 1, #calls, 4 do
  if calls[index] ~= replica and calls[index + 2] + CALL_KEPT > now then
    remember(calls[index], calls[index + 1], calls[index + 2], calls[index + 3])
  end
end
if call > 0 then remember(replica, call, now, #text <= ANSWER_MAX and text or "") end
keep(
  KEYS[limiters + 1], stored[limiters + 1],
  cmsgpack.pack({ last, room_at, room_permits, generation, told, reviewed, expected, booked, kept }), now,
  max(last, told, call > 0 and now + CALL_KEPT or 0)
)
if settle > 0 then epoch_keep(KEYS[limiters + 2], epoch, now, lives_until) end
return text
