-- reserve.lua: give back, exchange and book permits for the requests of one queue, in one step.
-- A script and not MULTI/EXEC: where a slot lies depends on what is read in the same step.
-- KEYS[1..n]   the books of the n limiters that the queue needs, all at once
-- KEYS[n + 1]  the queue's order: { last, hole, generation }
-- ARGV[1]      now in microseconds; 0: this server's clock (anything else is for the test of the twin)
-- ARGV[2]      lease in microseconds
-- ARGV[3]      room: how many requests may be given a slot in the future
-- ARGV[4]      number of holdings to give back
-- ARGV[5]      number of holdings to exchange
-- ARGV[6]      number of runs
-- ARGV[7]      the calling replica, a number
-- ARGV[8..]    for each limiter: its rules as text, the generation known to the caller;
--              then holdings to give back, then to exchange: slot, cost, count;
--              then runs: cost, wait_max, count
-- Returns      { now, for each limiter: number, void_from, the number before, available of each rule;
--              number of exchanges, count, slot, ...;
--              then of the runs: count, code, value, limiter * 256 + limit, ... } integers only;
--              code 0: booked at value; 1: too far, value away; 2: as many wait as may, value away
-- Atomic:      all keys carry one hash tag, so one cluster slot
-- Expiry:      every key when nothing in it can matter any more, never earlier

local limiters = #KEYS - 1
local now, lease, room = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local give_backs, exchanges, runs = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local replica = tonumber(ARGV[7])
local argument = 7
if now == 0 then
  local time = redis.call("TIME")
  now = time[1] * 1000000 + time[2]
end

local function take()
  argument = argument + 1
  return tonumber(ARGV[argument])
end

local stored = redis.call("MGET", unpack(KEYS))
local books, texts, known = {}, {}, {}
for index = 1, limiters do
  texts[index] = ARGV[argument + 1]
  known[index] = tonumber(ARGV[argument + 2])
  argument = argument + 2
  books[index] = book_load(stored[index])
  book_open(books[index], now, texts[index], lease, replica)
end

-- ---- the order of the queue ----

local last, hole, generation = 0, 0, 0
if stored[limiters + 1] then
  last, hole, generation = unpack(cmsgpack.unpack(stored[limiters + 1]))
end
local current = 0
for index = 1, limiters do current = current + books[index].number end
if current ~= generation then
  last, hole, generation = 0, 0, current
end

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
local function fetch(slot, cost)
  local place, indexes = nil, {}
  for index = 1, limiters do
    local to, moved = book_place(books[index], slot, cost, known[index])
    if not to or to < now or (place and place ~= to) then return nil end
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
  for index = 1, limiters do at = math.max(at, searches[index].at) end
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

-- A violated rule by its place among the caller's, the first where it is another caller's.
local function violated_number(limiter, limit)
  local rule = books[limiter].rules[limit]
  for index, own in ipairs(rules_of(texts[limiter])) do
    if own.rate == rule.rate and own.window == rule.window and own.cell == rule.cell then
      return (limiter - 1) * 256 + index - 1
    end
  end
  return (limiter - 1) * 256
end

-- ---- give back ----

for _ = 1, give_backs do
  local slot, cost, count = take(), take(), take()
  slot = give_back(slot, cost * count) or slot
  if hole == 0 or slot < hole then hole = slot end
end

-- ---- exchange: one by one, each at the place that the change kept for it, or no earlier than that ----

local exchanged = {}
for _ = 1, exchanges do
  local slot, cost, count = take(), take(), take()
  for _ = 1, count do
    local at = fetch(slot, cost)
    if not at then
      local place = give_back(slot, cost)
      local searches = searches_new(math.max(now, place or last))
      at = earliest(searches, cost)
      charge(searches, cost)
    end
    last = math.max(last, at)
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
local function outcome(count, code, value, number)
  local size = #outcomes
  outcomes[size + 1], outcomes[size + 2], outcomes[size + 3], outcomes[size + 4] = count, code, value, number
end

if runs > 0 then
  local searches = searches_new(math.max(now, hole > 0 and hole or last))
  -- The search has moved on for a cost that was refused: a smaller one may have room before.
  local refused = 0
  for _ = 1, runs do
    local cost, wait_max, left = take(), take(), take()
    if cost < refused then
      searches = searches_new(math.max(now, hole > 0 and hole or last))
      refused = 0
    end
    while left > 0 do
      local at, free, limiter, limit = earliest(searches, cost)
      local delay = at - now
      if delay > wait_max then
        outcome(left, 1, delay, violated_number(limiter, limit))
        refused = math.max(refused, cost)
        break
      end
      local count = math.max(math.min(left, math.floor(free / cost)), 1)
      if delay > 0 then
        if room == 0 then
          outcome(left, 2, delay, violated_number(limiter, limit))
          refused = math.max(refused, cost)
          break
        end
        count = math.min(count, room)
        room = room - count
      end
      charge(searches, count * cost)
      if hole > 0 then hole = at < last and at or 0 end
      last = math.max(last, at)
      outcome(count, 0, at, 0)
      left = left - count
    end
  end
end

-- ---- store and answer ----

local function store(key, was, text, expires)
  if expires > now then
    redis.call("SET", key, text, "PX", math.ceil((expires - now) / 1000))
  elseif was then
    redis.call("DEL", key)
  end
end

local answer = { now }
for index = 1, limiters do
  local book = books[index]
  store(KEYS[index], stored[index], book_text(book), book_expires(book))
  answer[#answer + 1] = book.number
  answer[#answer + 1] = book.void_from
  answer[#answer + 1] = book.moved_generation
  for _, rule in ipairs(rules_of(texts[index])) do
    answer[#answer + 1] = available(book, now, rule)
  end
end
store(KEYS[limiters + 1], stored[limiters + 1], cmsgpack.pack({ last, hole, generation }), last)

answer[#answer + 1] = #exchanged / 2
for index = 1, #exchanged do answer[#answer + 1] = exchanged[index] end
for index = 1, #outcomes do answer[#answer + 1] = outcomes[index] end
return answer
