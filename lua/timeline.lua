-- timeline.lua: the state of a limiter, shared by the scripts that follow it in the same text.
--
-- The twin of src/limiter/{rule,calendar,book}.rs and algorithm/: the same names, the same steps, the same
-- results to the microsecond. Integers only, all below 2^53, which Lua's doubles hold exactly, but for `permits_until`.
--
-- A book is stored as one MessagePack array:
--   { number, void_from, moved_generation, moved_cell, moved_until,
--     { text of rules, seen, by, ... }, text of the union, { from, to, permits, ... },
--     { at, ... }, { permits, ... }, { micros, rest, folded, ... for each bucket of the union },
--     epoch, owed, { replica, the numbers of what it wrote back, ... }, the instant of the last call,
--     the last two instants between which nobody called for long, when it was made, until when callers were told that it
--     lives, the last reset that it has followed, { the numbers of its pause } or 0,
--     { { what others use of a rule: expected, the most heard since an instant, that, the most before,
--         what bookings heed, { a slot that was refused, how much, ... } }, ... for each rule of the union } or 0 }
-- `by` is the only replica that has declared the rules, 0 for several.
-- Instants of the calendar are kept as differences, which makes them short. Both arrays are used as they come, for a
-- calendar may have hundreds of entries and a server does nothing else meanwhile. Rules travel as a text, so that equal
-- rules are equal texts: joined by `;`, each one of
--   S rate window cell          a sliding window
--   B rate window cell burst    a bucket
--   F rate window cell guard start length ...   windows of a calendar, in stretches of equal ones

local DECLARED_MAX = 4

local SPAN_MAX = 4000000000000000
local SPREAD_MIN = 60000000
local FIXED_SPACING = 10000
local RETIMED_MAX = 25 * 3600 * 1000000
local REFUND_PART = 8
local SURE = 1 - 1 / 1099511627776
-- For how much longer a key is kept than it can matter: the server drops keys by a clock that it reads once per command, and a
-- call takes a while to come.
local KEPT_LONGER_MS = 1000
local PACED_MAX = 10000000
local PROBE_MAX = 1000000
local JITTER_MAX = 250000
local MARGIN_PART = 16
local OVERTAKEN_PART = 100
local MOVED_UP_PART = 8

local floor, min, max = math.floor, math.min, math.max
local find, gmatch, match = string.find, string.gmatch, string.match

-- An instant in microseconds as a call gives it; 0: this server's clock.
local function now_of(text)
  local now = tonumber(text)
  if now ~= 0 then return now end
  local time = redis.call("TIME")
  return time[1] * 1000000 + time[2]
end

-- ---- rules ----

local function rule_of(text)
  local kind, rate, window, cell, rest = match(text, "^(%a) (%d+) (%d+) (%d+)(.*)$")
  rate, window = tonumber(rate), tonumber(window)
  -- A permit takes `whole` microseconds and `part` in parts of `rate`.
  local rule = {
    text = text, rate = rate, window = window, cell = tonumber(cell), whole = floor(window / rate), part = window % rate,
  }
  if kind == "B" then
    rule.burst = tonumber(rest)
  elseif kind == "F" then
    local guard, stretches = match(rest, "^ (%d+)(.*)$")
    rule.guard, rule.starts, rule.lengths = tonumber(guard), {}, {}
    for start, length in gmatch(stretches, "(%d+) (%d+)") do
      rule.starts[#rule.starts + 1] = tonumber(start)
      rule.lengths[#rule.lengths + 1] = tonumber(length)
    end
  end
  return rule
end

local function rules_of(text)
  if not find(text, ";", 1, true) then return { rule_of(text) } end
  local rules = {}
  for part in gmatch(text, "[^;]+") do rules[#rules + 1] = rule_of(part) end
  return rules
end

local function cell_start(at, cell)
  return at - at % cell
end

local function cell_from(at, cell)
  return cell_start(at + cell - 1, cell)
end

-- How long a limit takes to allow that many permits: whole microseconds and a rest in parts of `rate`.
-- The product of very many permits may exceed 2^53, so it is taken in two parts, 20 bits and the rest.
local function span_exact(rule, permits)
  local rate, whole, part = rule.rate, rule.whole, rule.part
  if permits * whole > SPAN_MAX then return SPAN_MAX, 0 end
  if permits < 8388608 then
    local product = permits * part
    local rest = product % rate
    local micros = permits * whole + (product - rest) / rate
    if micros > SPAN_MAX then return SPAN_MAX, 0 end
    return micros, rest
  end
  local high, low = floor(permits / 1048576), permits % 1048576
  local product = high * part
  local quotient = floor(product / rate)
  product = product % rate * 1048576 + low * part
  local micros = permits * whole + quotient * 1048576 + floor(product / rate)
  if micros > SPAN_MAX then return SPAN_MAX, 0 end
  return micros, product % rate
end

-- How far apart refused callers of that many permits are sent.
local function spacing(rule, permits)
  local span = span_exact(rule, permits)
  if rule.starts then return min(span, FIXED_SPACING * permits) end
  return span
end

-- The window of a calendar that holds an instant: its start and its end.
local function window_of(rule, at)
  local starts, later = rule.starts, 1
  while later <= #starts and starts[later] <= at do later = later + 1 end
  if later == 1 then return 0, starts[1] or SPAN_MAX end
  local start, length = starts[later - 1], rule.lengths[later - 1]
  start = at - (at - start) % length
  return start, min(start + length, starts[later] or start + length)
end

-- Whether bookings at two instants, the later second, are kept as one.
local function is_one(rules, cell, first, later)
  if first - first % cell ~= later - later % cell then return false end
  if first == later then return true end
  for index = 1, #rules do
    local rule = rules[index]
    if rule.starts and window_of(rule, first) ~= window_of(rule, later) then return false end
  end
  return true
end

-- ---- a bucket: its level is { micros, rest }, the instant at which it will be full again ----

local function level_add(rule, micros, rest, more_micros, more_rest)
  rest = rest + more_rest
  if rest >= rule.rate then return micros + more_micros + 1, rest - rule.rate end
  return micros + more_micros, rest
end

local function level_take(rule, micros, rest, at, permits)
  if micros < at then micros, rest = at, 0 end
  return level_add(rule, micros, rest, span_exact(rule, permits))
end

-- Permits that flow in between a level and a later one, rounded down; where the number is whole it may be one less.
local function permits_until(rule, micros, rest, later_micros, later_rest)
  if later_micros < micros or (later_micros == micros and later_rest <= rest) then return 0 end
  return floor(((later_micros - micros) * rule.rate + later_rest - rest) / rule.window * SURE)
end

local function tolerance(rule, permits)
  local micros, rest = span_exact(rule, max(rule.burst - permits, 0))
  if micros >= rule.cell then return micros, rest end
  return rule.cell, 0
end

-- The index of the first entry at `at` or later.
local function first_from(book, at)
  local low, high = 1, book.size + 1
  while low < high do
    local middle = floor((low + high) / 2)
    if book.at[middle] < at then low = middle + 1 else high = middle end
  end
  return low
end

-- Takes in the bookings of these entries: `level_take` for each, without as many calls.
local function level_take_all(rule, micros, rest, book, first, final)
  local entries, permits, rate, same = book.at, book.permits, rule.rate, nil
  local more_micros, more_rest
  for index = first, final do
    local at, count = entries[index], permits[index]
    if count ~= same then
      more_micros, more_rest = span_exact(rule, count)
      same = count
    end
    if micros < at then micros, rest = at, 0 end
    micros, rest = micros + more_micros, rest + more_rest
    if rest >= rate then micros, rest = micros + 1, rest - rate end
  end
  return micros, rest
end

-- Takes in the bookings up to an instant that the base does not hold yet.
local function fold(book, rule, base, till)
  local folded = base[3]
  if folded >= till then return base end
  local micros, rest =
    level_take_all(rule, base[1], base[2], book, first_from(book, folded + 1), first_from(book, till + 1) - 1)
  return { micros, rest, till }
end

-- What the bucket of another rule remembers that misses as many permits.
local function converted(old, base, new)
  local micros, rest, folded = base[1], base[2], base[3]
  local missing = permits_until(old, folded, 0, micros, rest)
  if micros > folded or (micros == folded and rest > 0) then missing = missing + 1 end
  micros, rest = level_add(new, folded, 0, span_exact(new, missing))
  return { micros, rest, folded }
end

local function finest_cell(rules)
  local finest
  for _, rule in ipairs(rules) do
    if not finest or rule.cell < finest then finest = rule.cell end
  end
  return finest or 1
end

local function longest_window(rules)
  local longest = 0
  for _, rule in ipairs(rules) do
    if rule.window > longest then longest = rule.window end
  end
  return longest
end

-- ---- pauses, the twin of pause.rs ----

-- Of a book that has not been paused: most of them. It is never changed.
local PAUSE_NONE = {
  till = 0, set_at = 0, length = 0, paced_till = 0, spacing = 0, next = 0, probe = 0, by_hand_at = 0, status = 0, named = 0, by = 0,
}

-- A book's pause, to be changed.
local function pause_own(book)
  if book.pause == PAUSE_NONE then
    book.pause = {}
    for name, value in pairs(PAUSE_NONE) do book.pause[name] = value end
  end
  return book.pause
end

-- `status` is that of the answer which refused, 0: by hand; `named` whether it named the instant, `by` the replica that tells.
local function pause_set(book, now, till, probe, status, named, by)
  local shortest
  for _, rule in ipairs(book.rules) do
    if not shortest or rule.window < shortest.window then shortest = rule end
  end
  local pause = pause_own(book)
  pause.till, pause.set_at, pause.next, pause.probe = till, now, till, probe
  pause.status, pause.named, pause.by = status, named, by
  pause.paced_till = till + probe + min(shortest.window, PACED_MAX)
  pause.spacing = shortest.whole + (shortest.part > 0 and 1 or 0)
end

-- The upstream asks for a pause, as a replica has heard. Returns whether anything has changed.
local function pause_ask(book, now, wait, fallback, most, sent_ago, jitter, status, replica)
  local pause, length, named = book.pause, 0, wait and 1 or 0
  if wait then
    wait = min(wait, most)
  else
    if now < pause.till or max(now - sent_ago, 0) <= pause.set_at then return false end
    length = fallback
    if pause.length > 0 then
      local quiet = min(floor((now - pause.till) / pause.length), 60)
      length = max(floor(2 * pause.length / 2 ^ quiet), fallback)
    end
    length = min(length, most)
    wait = length
  end
  local till = now + wait + floor(min(floor(wait / 16), JITTER_MAX) * min(jitter, 1024) / 1024)
  if till <= pause.till then return false end
  pause_own(book).length = length
  pause_set(book, now, till, length > fallback and min(length, PROBE_MAX) or 0, status, named, replica)
  return true
end

-- Follows what was done by hand, over a replica. Returns whether it had not been followed yet.
local function pause_follow(book, now, at, till, replica)
  local pause = book.pause
  if at <= pause.by_hand_at then return false end
  pause = pause_own(book)
  pause.by_hand_at, pause.length = at, 0
  if till > now then
    pause_set(book, now, till, 0, 0, 0, replica)
  else
    pause.status, pause.named, pause.by = 0, 0, 0
    pause.till = min(pause.till, now)
    pause.paced_till = pause.till
  end
  return true
end

local function pause_floor(pause, at)
  at = max(at, pause.till)
  if at < pause.paced_till then return max(at, min(pause.next, pause.paced_till)) end
  return at
end

local function is_paced(pause, at)
  return pause.till <= at and at < pause.paced_till
end

local function pause_booked(pause, at, permits)
  if not is_paced(pause, at) then return end
  local probe = pause.next == pause.till and pause.probe or 0
  pause.next = max(pause.next, at) + probe + min(pause.spacing * permits, pause.paced_till - pause.till)
end

-- ---- what others use, the twin of others.rs ----

local function others_new()
  return { permits = 0, seen = 0, since = 0, before = 0, heeded = 0, refused = {} }
end

-- Hears how much others have in use. Returns by how much more than was expected.
local function others_hear(others, now, window, permits)
  if now >= others.since + window then
    others.permits = max(others.seen, others.before)
    others.before, others.seen, others.since = others.seen, 0, now
  end
  local more = max(permits - others.permits, 0)
  others.seen, others.permits = max(others.seen, permits), max(others.permits, permits)
  return more
end

-- Hears that the upstream refused permits of slots, { slot, how many, ... }, and does not count them.
local function others_refuse(others, now, window, slots)
  local kept, place_of = {}, {}
  if others.since == 0 then others.since = now end
  local function keep(slot, permits)
    local place = place_of[slot]
    if not place then
      place = #kept + 1
      place_of[slot], kept[place], kept[place + 1] = place, slot, 0
    end
    kept[place + 1] = kept[place + 1] + permits
  end
  for index = 1, #others.refused, 2 do
    if others.refused[index] + 2 * window > now then keep(others.refused[index], others.refused[index + 1]) end
  end
  for index = 1, #slots, 2 do keep(slots[index], slots[index + 1]) end
  others.refused = kept
end

-- What was refused of slots between two instants.
local function others_refused(others, from, till)
  local sum = 0
  for index = 1, #others.refused, 2 do
    local slot = others.refused[index]
    if from <= slot and slot <= till then sum = sum + others.refused[index + 1] end
  end
  return sum
end

-- For how long bookings are kept: an answer is compared with the window before its slot, and comes late.
local function compared_for(book, index)
  local window = book.rules[index].window
  return book.others and book.others[index].since > 0 and 2 * window or window
end

local function others_all(book)
  if not book.others then
    book.others = {}
    for index = 1, #book.rules do book.others[index] = others_new() end
  end
  return book.others
end

local function others_forget(book, now)
  if not book.others then return end
  for index, rule in ipairs(book.rules) do
    if now >= max(book.others[index].since, book.pause.till) + 2 * rule.window then
      local heeded = book.others[index].heeded
      book.others[index] = others_new()
      book.others[index].heeded = heeded
    end
  end
end

-- What is left to others in a window.
local function others_permits(others)
  if others.permits == 0 then return 0 end
  return others.permits + floor(others.permits / MARGIN_PART) + 1
end

-- Bookings heed from here on what is left to others now.
local function others_heed(book)
  for index = 1, book.others and #book.rules or 0 do book.others[index].heeded = others_permits(book.others[index]) end
end

-- What a rule leaves to this fleet.
local function rate_left(book, index)
  if not book.others then return book.rules[index].rate end
  return max(book.rules[index].rate - others_permits(book.others[index]), 0)
end

-- ---- a book ----

local function book_new()
  return {
    number = 0, void_from = 0, moved_generation = 0, moved_cell = 1, moved_until = 0,
    declared = {}, union = "", rules = {}, bases = {}, moved = {}, at = {}, permits = {}, size = 0, cell = 1,
    epoch = 0, owed = 0, restored = {}, called = 0, silent_from = 0, silent_till = 0, born = 0, lives_until = 0, reset_at = 0,
    pause = PAUSE_NONE,
  }
end

-- What a key holds, unpacked, of which only `text` has been read; nil if it holds nothing. `size` is how many values it has, if
-- that is always the same. The call ends here, before anything is written, where it holds something else: nobody's data is
-- overwritten, and a limit of which it is not known how much is used does not count as unused. The store knows the error by its
-- first word.
local function stored_at(key, text, size)
  local why = "bytes that cannot be read"
  if text then
    local is_packed, stored = pcall(cmsgpack.unpack, text)
    if is_packed and type(stored) == "table" and #stored == (size or #stored) then return stored end
  else
    -- MGET says of another type that there is nothing.
    local found = redis.pcall("GET", key)
    if type(found) ~= "table" or not find(found.err, "WRONGTYPE", 1, true) then return nil end
    why = "another type: WRONGTYPE"
  end
  error("UNREADABLE the key " .. key .. " holds what weir has not written (" .. why .. "): delete it", 0)
end

local function book_load(key, text, now)
  local book = book_new()
  local stored = stored_at(key, text, 22)
  if not stored then
    book.born = now
    return book
  end
  book.number, book.void_from, book.moved_generation = stored[1], stored[2], stored[3]
  book.moved_cell, book.moved_until = stored[4], stored[5]
  book.declared, book.union, book.moved = stored[6], stored[7], stored[8]
  book.epoch, book.owed, book.restored, book.called = stored[12], stored[13], stored[14], stored[15]
  book.silent_from, book.silent_till = stored[16], stored[17]
  book.born, book.lives_until, book.reset_at = stored[18], stored[19], stored[20]
  if stored[21] ~= 0 then
    local pause = pause_own(book)
    pause.till, pause.set_at, pause.length, pause.paced_till, pause.spacing, pause.next, pause.probe, pause.by_hand_at,
      pause.status, pause.named, pause.by = unpack(stored[21])
  end
  book.rules = rules_of(book.union)
  book.cell = finest_cell(book.rules)
  local others = stored[22]
  if others ~= 0 then
    book.others = {}
    for index = 1, #book.rules do
      local own = others[index]
      book.others[index] = { permits = own[1], seen = own[2], since = own[3], before = own[4], heeded = own[5], refused = own[6] }
    end
  end
  local entries, at = stored[9], 0
  local size = #entries
  for index = 1, size do
    at = at + entries[index]
    entries[index] = at
  end
  book.at, book.permits, book.size = entries, stored[10], size
  local bases, next_base = stored[11], 1
  for index, rule in ipairs(book.rules) do
    if rule.burst then
      book.bases[index] = { bases[next_base], bases[next_base + 1], bases[next_base + 2] }
      next_base = next_base + 3
    end
  end
  return book
end

-- Forgets the entries behind the first `size`.
local function shorten(book, size)
  for index = size + 1, book.size do
    book.at[index] = nil
    book.permits[index] = nil
  end
  book.size = size
end

-- Removes the entries that hold nothing any more, all at once: before anything is searched for.
local function compact(book)
  if not book.has_empty then return end
  local kept = 0
  for index = 1, book.size do
    if book.permits[index] > 0 then
      kept = kept + 1
      book.at[kept], book.permits[kept] = book.at[index], book.permits[index]
    end
  end
  shorten(book, kept)
  book.has_empty = false
end

-- The book as it is stored. Nothing can be asked of it any more.
local function book_text(book)
  compact(book)
  local entries, before, moved = book.at, 0, {}
  for index = 1, #book.moved, 3 do
    if book.moved[index + 2] > 0 then
      local size = #moved
      moved[size + 1], moved[size + 2], moved[size + 3] = book.moved[index], book.moved[index + 1], book.moved[index + 2]
    end
  end
  for index = 1, book.size do
    local at = entries[index]
    entries[index] = at - before
    before = at
  end
  local bases = {}
  for index = 1, #book.rules do
    local base, size = book.bases[index], #bases
    if base then bases[size + 1], bases[size + 2], bases[size + 3] = base[1], base[2], base[3] end
  end
  local pause, others = 0, 0
  if book.pause ~= PAUSE_NONE then
    local own = book.pause
    pause = {
      own.till, own.set_at, own.length, own.paced_till, own.spacing, own.next, own.probe, own.by_hand_at,
      own.status, own.named, own.by,
    }
  end
  if book.others then
    others = {}
    for index = 1, #book.rules do
      local own = book.others[index]
      others[index] = { own.permits, own.seen, own.since, own.before, own.heeded, own.refused }
    end
  end
  return cmsgpack.pack({
    book.number, book.void_from, book.moved_generation, book.moved_cell, book.moved_until,
    book.declared, book.union, moved, entries, book.permits, bases, book.epoch, book.owed, book.restored,
    book.called, book.silent_from, book.silent_till, book.born, book.lives_until, book.reset_at,
    pause, others,
  })
end

-- When nothing in the book can matter any more.
local function book_expires(book)
  compact(book)
  local expires, last = 0, book.at[book.size]
  for index, rule in ipairs(book.rules) do
    if rule.burst then
      local base = book.bases[index]
      if last then base = fold(book, rule, base, last) end
      expires = max(expires, base[1] + (base[2] > 0 and 1 or 0))
    end
    if last then expires = max(expires, last + rule.window) end
  end
  return max(expires, book.pause.paced_till, book.pause.till + 2 * book.pause.length)
end

-- Writes a key for as long as it can matter, or removes it.
local function keep(key, was, text, now, expires)
  if expires > now then
    redis.call("SET", key, text, "PX", math.ceil((expires - now) / 1000) + KEPT_LONGER_MS)
  elseif was then
    redis.call("DEL", key)
  end
end

-- Writes a book, no shorter than callers were told before. Returns until when it is sure to be there.
local function book_keep(key, was, book, now, expires)
  book.lives_until = max(book.lives_until, expires)
  keep(key, was, book_text(book), now, book.lives_until)
  return book.lives_until
end

-- Moves the entries from `first` on to the front.
local function keep_from(book, first)
  if first == 1 then return end
  local entries, permits, size = book.at, book.permits, book.size
  for index = first, size do
    local place = index - first + 1
    entries[place], permits[place] = entries[index], permits[index]
  end
  shorten(book, size - first + 1)
end

-- Drops what no rule can see, and merges what only rules with wide cells can still see.
local function prune(book, now)
  local rules, kept_for, longest = book.rules, {}, 0
  for index, rule in ipairs(rules) do
    kept_for[index] = compared_for(book, index)
    longest = max(longest, kept_for[index])
    if rule.burst then book.bases[index] = fold(book, rule, book.bases[index], now - floor(rule.window / REFUND_PART)) end
  end
  local first = 1
  while first <= book.size and book.at[first] + longest <= now do first = first + 1 end
  keep_from(book, first)
  if #rules < 2 then return end
  local kept = 0
  for index = 1, book.size do
    local at, permits, cell = book.at[index], book.permits[index], nil
    for place, rule in ipairs(rules) do
      if at + kept_for[place] > now and (not cell or rule.cell < cell) then cell = rule.cell end
    end
    cell = cell or 1
    if kept > 0 and is_one(rules, cell, book.at[kept], at) then
      book.at[kept] = at
      book.permits[kept] = book.permits[kept] + permits
    else
      kept = kept + 1
      book.at[kept] = at
      book.permits[kept] = permits
    end
  end
  shorten(book, kept)
end

local function uncharge(book, at, permits)
  local index = first_from(book, at)
  while index <= book.size and book.permits[index] == 0 do index = index + 1 end
  if index > book.size or not is_one(book.rules, book.cell, at, book.at[index]) then return end
  local left = book.permits[index] - min(book.permits[index], permits)
  book.permits[index] = left
  if left == 0 then book.has_empty = true end
end

-- ---- a search: only moves forward, over all rules of a book at once ----
-- A rule sees `held` permits of which the first `left` entries have gone (a sliding window), a level `held`, `rest`
-- (a bucket), or `held` permits in the window of a calendar that ends at `left`.

local function search_advance(search, at)
  local book, rules = search.book, search.book.rules
  if at > search.at then search.at = at end
  at = search.at
  local before, entered, size, cell = search.entered, search.entered, book.size, book.cell
  local left, held, rest = search.left, search.held, search.rest
  local entries, permits = book.at, book.permits
  -- Those of the cell of `at` count.
  local till = at - at % cell + cell
  while entered < size and entries[entered + 1] < till do entered = entered + 1 end
  search.entered = entered
  for index = 1, #rules do
    local rule = rules[index]
    if rule.burst then
      local first = max(before + 1, first_from(book, book.bases[index][3] + 1))
      held[index], rest[index] = level_take_all(rule, held[index], rest[index], book, first, entered)
    elseif rule.starts then
      if at >= left[index] then
        local start, finish = window_of(rule, at)
        local sum, entry = 0, first_from(book, start)
        while entry <= size and entries[entry] < finish do
          sum = sum + permits[entry]
          entry = entry + 1
        end
        left[index], held[index] = finish, sum
      end
    else
      local gone, sum, limit = left[index], held[index], at - rule.window
      for entry = before + 1, entered do sum = sum + permits[entry] end
      while gone < entered and entries[gone + 1] <= limit do
        gone = gone + 1
        sum = sum - permits[gone]
      end
      left[index], held[index] = gone, sum
    end
  end
end

local function search_new(book, from)
  compact(book)
  local search = { book = book, at = 0, entered = 0, left = {}, held = {}, rest = {} }
  for index = 1, #book.rules do
    local base = book.bases[index]
    search.left[index] = 0
    search.held[index] = base and base[1] or 0
    search.rest[index] = base and base[2] or 0
  end
  search_advance(search, from)
  return search
end

-- Room under a sliding window where the search stands; or nil and the next instant worth trying.
local function window_room(search, index, cost)
  local book, rule = search.book, search.book.rules[index]
  local entries, permits = book.at, book.permits
  local left, held, at, window = search.left[index], search.held[index], search.at, rule.window
  local rate = rate_left(book, index)
  local spare = max(rate - cost, 0)
  if held > spare then
    local next_at = at
    while held > spare do
      left = left + 1
      held = held - permits[left]
      next_at = entries[left] + window
    end
    return nil, next_at
  end
  local fullest = held
  for entry = search.entered + 1, book.size do
    local finish = cell_start(entries[entry], book.cell)
    if finish >= at + window then break end
    held = held + permits[entry]
    while left < entry and entries[left + 1] + window <= finish do
      left = left + 1
      held = held - permits[left]
    end
    if held > spare then return nil, finish + 1 end
    if held > fullest then fullest = held end
  end
  return max(rate - fullest, 0)
end

-- The same under a bucket.
local function bucket_room(search, index, cost)
  local book, rule, at = search.book, search.book.rules[index], search.at
  local micros, rest = search.held[index], search.rest[index]
  local beyond, beyond_rest = tolerance(rule, cost)
  local from = max(micros - beyond, 0) + (rest > beyond_rest and 1 or 0)
  if from > at then return nil, cell_from(from, rule.cell) end
  micros, rest = level_take(rule, micros, rest, at, cost)
  local room = cost
  local border, border_rest = level_add(rule, at, 0, beyond, beyond_rest)
  if micros < border or (micros == border and rest <= border_rest) then
    room = room + cost + permits_until(rule, micros, rest, border, border_rest)
  end
  for entry = search.entered + 1, book.size do
    local start = cell_start(book.at[entry], book.cell)
    border, border_rest = level_add(rule, start, 0, tolerance(rule, book.permits[entry]))
    if micros > border or (micros == border and rest > border_rest) then return nil, start + 1 end
    room = min(room, cost + permits_until(rule, micros, rest, border, border_rest))
    if micros < start or (micros == start and rest == 0) then
      -- The bucket is full again before: what follows notices nothing.
      room = min(room, cost + permits_until(rule, micros, rest, start, 0))
      break
    end
    micros, rest = level_take(rule, micros, rest, book.at[entry], book.permits[entry])
  end
  return room
end

local function search_room(search, index, cost)
  local rule = search.book.rules[index]
  if rule.burst then return bucket_room(search, index, cost) end
  if not rule.starts then return window_room(search, index, cost) end
  local finish, held = search.left[index], search.held[index]
  local rate = rate_left(search.book, index)
  if search.at + rule.guard >= finish or held > max(rate - cost, 0) then return nil, finish end
  return max(rate - held, 0)
end

-- Moves to the earliest instant with room for `cost`; returns the room and the rule that moved it, if any.
local function search_earliest(search, cost)
  local rules, pause, limited_by = search.book.rules, search.book.pause, nil
  local index, room = 1, nil
  if search.at < pause.paced_till then search_advance(search, pause_floor(pause, search.at)) end
  while index <= #rules do
    local found, next_at = search_room(search, index, cost)
    if found then
      if not room or found < room then room = found end
      index = index + 1
    else
      limited_by = index
      search_advance(search, next_at)
      index, room = 1, nil
    end
  end
  if is_paced(pause, search.at) then return cost, limited_by end
  return max(room or cost, cost), limited_by
end

local function search_charge(search, permits)
  local book, at, entered = search.book, search.at, search.entered
  local rules, place = book.rules, entered
  -- Entries stay ascending: one of the same cell may lie behind the end of the window of a calendar that holds `at`.
  while place > 0 and book.at[place] > at and not is_one(rules, book.cell, at, book.at[place]) do place = place - 1 end
  local before = book.at[place]
  if before and is_one(rules, book.cell, min(before, at), max(before, at)) then
    if at > before then book.at[place] = at end
    book.permits[place] = book.permits[place] + permits
  else
    table.insert(book.at, place + 1, at)
    table.insert(book.permits, place + 1, permits)
    book.size = book.size + 1
    search.entered = entered + 1
  end
  if at < book.pause.paced_till then pause_booked(book.pause, at, permits) end
  for index = 1, #rules do
    if rules[index].burst then
      search.held[index], search.rest[index] =
        level_take(rules[index], search.held[index], search.rest[index], at, permits)
    else
      search.held[index] = search.held[index] + permits
    end
  end
end

-- Books permits whose place is not in question: they are used there, whether there is room or not, and in a pause, too.
local function charge_at(book, at, permits)
  local pause = book.pause
  local next_after_pause = pause.next
  search_charge(search_new(book, at), permits)
  pause.next = next_after_pause
end

-- ---- whose limits are in force ----

-- Puts rules in force. Bookings stay as they are; a bucket that was not there before misses what the emptiest one missed.
local function put_in_force(book, union)
  local old, old_bases, old_others = book.rules, book.bases, book.others
  book.union = union
  book.rules = rules_of(union)
  book.cell = finest_cell(book.rules)
  book.bases, book.others = {}, old_others and {}
  for index, rule in ipairs(book.rules) do
    if old_others then
      for other, known in ipairs(old) do
        local own = old_others[other]
        if known.text == rule.text and not book.others[index] then
          book.others[index] = {
            permits = own.permits, seen = own.seen, since = own.since, before = own.before, heeded = own.heeded,
            refused = own.refused,
          }
        end
      end
      book.others[index] = book.others[index] or others_new()
    end
    if rule.burst then
      local same, most
      for other, known in ipairs(old) do
        if known.text == rule.text then
          same = same or old_bases[other]
        elseif known.burst then
          local base = converted(known, old_bases[other], rule)
          if not most or base[1] > most[1] or (base[1] == most[1] and base[2] >= most[2]) then most = base end
        end
      end
      book.bases[index] = same or most or { 0, 0, 0 }
    end
  end
end

-- Puts `union` in force and moves the bookings from an instant on to their places under it.
local function retime(book, now, from, lease, union)
  book.moved_cell = book.cell
  local void_from = cell_from(from, book.moved_cell)
  put_in_force(book, union)
  others_heed(book)
  if now < book.pause.till then book.pause.next = book.pause.till end
  local first, void = first_from(book, void_from), {}
  for index = first, book.size do
    void[#void + 1] = { book.at[index], book.permits[index] }
  end
  shorten(book, first - 1)
  local search, moved, is_near = search_new(book, void_from), {}, true
  for _, entry in ipairs(void) do
    local left = entry[2]
    while left > 0 and is_near do
      local room = search_earliest(search, 1)
      is_near = search.at <= now + RETIMED_MAX
      if is_near then
        local permits = min(left, room)
        search_charge(search, permits)
        moved[#moved + 1] = entry[1]
        moved[#moved + 1] = search.at
        moved[#moved + 1] = permits
        left = left - permits
      end
    end
  end
  book.moved = moved
  book.moved_generation = book.number
  book.number = max(now, book.number + 1)
  book.void_from = void_from
  book.moved_until = void_from + lease
end

-- The caller's rules count as declared now; a set that only the caller has declared before is forgotten, and so is
-- one that nobody has declared for a lease.
local function declare(book, now, text, lease, replica)
  local declared = book.declared
  if #declared == 3 then
    if declared[1] == text then
      if declared[3] ~= replica then declared[3] = 0 end
      return
    end
    declared[2] = now
  end
  local known, kept = false, {}
  local function keep(rules, seen, by)
    local size = #kept
    kept[size + 1], kept[size + 2], kept[size + 3] = rules, seen, by
  end
  for index = 1, #declared, 3 do
    local rules, seen, by = declared[index], declared[index + 1], declared[index + 2]
    if rules == text then
      known = true
      keep(rules, now, by == replica and by or 0)
    elseif by ~= replica and seen + lease > now then
      keep(rules, seen, by)
    end
  end
  if not known then keep(text, now, replica) end
  if #kept > 3 * DECLARED_MAX then
    local oldest = 1
    for index = 4, #kept, 3 do
      if kept[index + 1] < kept[oldest + 1] then oldest = index end
    end
    for _ = 1, 3 do table.remove(kept, oldest) end
  end
  book.declared = kept
end

-- Follows a reset: forgets what was used until then. Returns whether it had not been followed yet.
local function book_reset(book, reset_at)
  if reset_at <= book.reset_at then return false end
  book.reset_at = reset_at
  keep_from(book, first_from(book, reset_at + 1))
  for index, rule in ipairs(book.rules) do book.bases[index] = rule.burst and { 0, 0, 0 } or nil end
  return true
end

-- Moves what is booked for the time of a pause, and everything behind it. Nobody may use those slots, so they are void at once.
local function book_follow_pause(book, now, lease)
  if #book.moved > 0 or book.pause.till <= now then return end
  local first = book.at[first_from(book, cell_from(now + 1, book.cell))]
  if first and first < book.pause.till then retime(book, now, now + 1, lease, book.union) end
end

-- Moves what is booked ahead to where it should stand beside what others use, as soon as an earlier change has been followed.
local function book_follow_others(book, now, lease)
  if not book.others or #book.moved > 0 then return end
  local are_unheeded = false
  for index, rule in ipairs(book.rules) do
    local left, before = rate_left(book, index), max(rule.rate - book.others[index].heeded, 0)
    are_unheeded = are_unheeded or left < before or left > before + floor(before / MOVED_UP_PART)
  end
  if not are_unheeded then return end
  compact(book)
  local last = book.at[book.size]
  if last and last > now + lease then retime(book, now, now + lease, lease, book.union) end
  others_heed(book)
end

-- Follows what was done by hand at an instant, over a replica: paused until another one, or no longer paused.
local function book_pause_by_hand(book, now, lease, at, till, replica)
  local is_followed = pause_follow(book, now, at, till, replica)
  book_follow_pause(book, now, lease)
  local last = book.at[book.size]
  if is_followed and till <= now and last and last > now + lease and #book.moved == 0 then
    retime(book, now, now + lease, lease, book.union)
  end
end

-- Brings a book to `now` under the caller's rules, through its last reset and the last pause by hand.
local function book_open(book, now, text, lease, replica, reset_at, paused_at, paused_till, paused_by)
  if book.moved_until <= now then book.moved = {} end
  declare(book, now, text, lease, replica)
  others_forget(book, now)
  local union = book.declared[1]
  for index = 4, #book.declared, 3 do union = union .. ";" .. book.declared[index] end
  if book.union == "" then
    put_in_force(book, union)
  elseif union ~= book.union and #book.moved == 0 then
    retime(book, now, now + lease, lease, union)
  end
  -- What is booked for later moves up, as after a change of the limits.
  if #book.moved == 0 and book_reset(book, reset_at) then retime(book, now, now + lease, lease, union) end
  if paused_at > 0 then
    book_pause_by_hand(book, now, lease, paused_at, paused_till, paused_by)
  else
    book_follow_pause(book, now, lease)
  end
  book_follow_others(book, now, lease)
  prune(book, now)
end

-- Where the void permits begin that were booked in the cell of `slot`.
local function moved_of(book, slot)
  local moved, low, high = book.moved, 0, #book.moved / 3
  while low < high do
    local middle = floor((low + high) / 2)
    if moved[3 * middle + 1] < slot then low = middle + 1 else high = middle end
  end
  return 3 * low + 1
end

-- The index of the first of them that have not been fetched, after so many.
local function first_moved(book, slot, skipped)
  local moved = book.moved
  for index = moved_of(book, slot), #moved, 3 do
    if cell_start(moved[index], book.moved_cell) > slot then return nil end
    local permits = moved[index + 2]
    if permits > 0 and skipped < permits then return index end
    skipped = max(skipped - permits, 0)
  end
end

-- How many of them have not been fetched.
local function unfetched(book, slot)
  local moved, left = book.moved, 0
  for index = moved_of(book, slot), #moved, 3 do
    if cell_start(moved[index], book.moved_cell) > slot then break end
    left = left + moved[index + 2]
  end
  return left
end

-- Takes back permits booked at `slot` under the generation `known`. Returns the place to which a change had
-- moved them, or nil. What was moved and not fetched in time stays charged.
local function book_give_back(book, slot, permits, known)
  if known == book.number or (known == book.moved_generation and slot < book.void_from) then
    uncharge(book, slot, permits)
    return nil
  end
  if known ~= book.moved_generation then return nil end
  local moved, place = book.moved, nil
  while permits > 0 do
    local index = first_moved(book, slot, 0)
    if not index then break end
    local taken = min(moved[index + 2], permits)
    place = moved[index + 1]
    uncharge(book, place, taken)
    moved[index + 2] = moved[index + 2] - taken
    permits = permits - taken
  end
  return place
end

-- Where a change has put permits that were booked at `slot`, after so many others, if all of them lie together: the place, its
-- index.
local function book_place(book, slot, permits, known, skipped)
  if known == book.number or known ~= book.moved_generation or slot < book.void_from then return nil end
  local index = first_moved(book, slot, skipped)
  if not index or book.moved[index + 2] < permits then return nil end
  return book.moved[index + 1], index
end

-- Where the window of a rule, that is no bucket, begins that ends at an instant.
local function window_before(at, rule)
  if rule.starts then return (window_of(rule, at)) end
  return max(at + 1 - rule.window, 0)
end

-- What is booked from an instant to another one.
local function held_between(book, from, till)
  local held, entries, permits = 0, book.at, book.permits
  for index = first_from(book, from), book.size do
    if entries[index] > till then break end
    held = held + permits[index]
  end
  return held
end

-- Permits that could be used at `now` under one rule.
local function available(book, now, rule)
  if rule.burst then
    local base
    for index, known in ipairs(book.rules) do
      if known.text == rule.text then base = base or book.bases[index] end
    end
    base = fold(book, rule, base or { 0, 0, 0 }, now)
    if base[1] < now or (base[1] == now and base[2] == 0) then return rule.burst end
    local missing = ((base[1] - now) * rule.rate + base[2]) / rule.window
    return max(rule.burst - math.ceil(missing * SURE), 0)
  end
  local others = 0
  for index = book.others and #book.rules or 0, 1, -1 do
    if book.rules[index].text == rule.text then others = others_permits(book.others[index]) end
  end
  return max(rule.rate - others - held_between(book, window_before(now, rule), now), 0)
end

-- Hears that the upstream refused permits of slots, and does not count them. They stay booked.
local function book_hear_refused(book, now, slots)
  local others = others_all(book)
  for index, rule in ipairs(book.rules) do
    if not rule.burst then others_refuse(others[index], now, rule.window, slots) end
  end
end

-- Hears how much the upstream left of a rule, in a window of that length, in the answer to the request of a slot, which was
-- there so long after that. Returns how many permits fewer there are by that.
local function book_hear_remaining(book, now, rule, remaining, per, slot, took)
  local place
  for index = #book.rules, 1, -1 do
    if book.rules[index].text == rule.text then place = index end
  end
  if not place then return 0 end
  local apart = min(took, floor(rule.window / OVERTAKEN_PART))
  if rule.burst then
    local drift = max(available(book, min(slot + apart, now), rule) - remaining, 0)
    if drift > 0 then charge_at(book, now, drift) end
    return drift
  end
  -- What it would be compared with is not there any more.
  if slot + rule.window <= now then return 0 end
  local others = others_all(book)[place]
  local from, till = rule.starts and window_before(slot, rule) or max(slot + 1 - per, 0), slot + apart
  from = max(from - apart, 0)
  local own = max(held_between(book, from, till) - others_refused(others, from, till), 0)
  return others_hear(others, now, rule.window, max(max(rule.rate - remaining, 0) - own, 0))
end
