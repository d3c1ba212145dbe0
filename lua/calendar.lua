-- calendar.lua: the state of a limiter, shared by the scripts that follow it in the same text.
--
-- The twin of src/limiter/{calendar,book}.rs and algorithm/sliding_window.rs: the same names, the same steps, the
-- same results to the microsecond. Integers only, all below 2^53, which Lua's doubles hold exactly.
--
-- A book is stored as one MessagePack array:
--   { number, void_from, moved_generation, moved_cell, moved_until,
--     { text of rules, seen, by, ... }, text of the union, { from, to, permits, ... }, { at, permits, ... } }
-- `by` is the only replica that has declared the rules, 0 for several.
-- Instants of the calendar are kept as differences, which makes them short. Rules travel as a text
-- of decimal numbers, `rate window cell` for each, so that equal rules are equal texts.

local DECLARED_MAX = 4

local function rules_of(text)
  local rules = {}
  for rate, window, cell in string.gmatch(text, "(%d+) (%d+) (%d+)") do
    rules[#rules + 1] = { rate = tonumber(rate), window = tonumber(window), cell = tonumber(cell) }
  end
  return rules
end

local function cell_start(at, cell)
  return at - at % cell
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

-- ---- a book ----

local function book_new()
  return {
    number = 0, void_from = 0, moved_generation = 0, moved_cell = 1, moved_until = 0,
    declared = {}, union = "", rules = {}, moved = {}, at = {}, permits = {}, size = 0, cell = 1,
  }
end

local function book_load(text)
  local book = book_new()
  if not text then return book end
  local stored = cmsgpack.unpack(text)
  book.number, book.void_from, book.moved_generation = stored[1], stored[2], stored[3]
  book.moved_cell, book.moved_until = stored[4], stored[5]
  book.declared, book.union, book.moved = stored[6], stored[7], stored[8]
  book.rules = rules_of(book.union)
  book.cell = finest_cell(book.rules)
  local entries, at, size = stored[9], 0, 0
  for index = 1, #entries, 2 do
    size = size + 1
    at = at + entries[index]
    book.at[size] = at
    book.permits[size] = entries[index + 1]
  end
  book.size = size
  return book
end

local function book_text(book)
  local entries, before, moved = {}, 0, {}
  for index = 1, #book.moved, 3 do
    if book.moved[index + 2] > 0 then
      local size = #moved
      moved[size + 1], moved[size + 2], moved[size + 3] = book.moved[index], book.moved[index + 1], book.moved[index + 2]
    end
  end
  for index = 1, book.size do
    entries[2 * index - 1] = book.at[index] - before
    entries[2 * index] = book.permits[index]
    before = book.at[index]
  end
  return cmsgpack.pack({
    book.number, book.void_from, book.moved_generation, book.moved_cell, book.moved_until,
    book.declared, book.union, moved, entries,
  })
end

-- When nothing in the book can matter any more.
local function book_expires(book)
  if book.size == 0 then return 0 end
  return book.at[book.size] + longest_window(book.rules)
end

-- Moves the entries from `first` on to the front; `count` of them stay.
local function keep_from(book, first)
  if first == 1 then return end
  local size = book.size
  for index = first, size do
    book.at[index - first + 1] = book.at[index]
    book.permits[index - first + 1] = book.permits[index]
  end
  for index = size - first + 2, size do
    book.at[index] = nil
    book.permits[index] = nil
  end
  book.size = size - first + 1
end

-- Drops what no rule can see, and merges what only rules with wide cells can still see.
local function prune(book, now)
  local rules, longest = book.rules, longest_window(book.rules)
  local first = 1
  while first <= book.size and book.at[first] + longest <= now do first = first + 1 end
  keep_from(book, first)
  if #rules < 2 then return end
  local kept = 0
  for index = 1, book.size do
    local at, permits, cell = book.at[index], book.permits[index], nil
    for _, rule in ipairs(rules) do
      if at + rule.window > now and (not cell or rule.cell < cell) then cell = rule.cell end
    end
    cell = cell or 1
    if kept > 0 and cell_start(book.at[kept], cell) == cell_start(at, cell) then
      book.at[kept] = at
      book.permits[kept] = book.permits[kept] + permits
    else
      kept = kept + 1
      book.at[kept] = at
      book.permits[kept] = permits
    end
  end
  for index = kept + 1, book.size do
    book.at[index] = nil
    book.permits[index] = nil
  end
  book.size = kept
end

-- The index of the first entry at `at` or later.
local function first_from(book, at)
  local low, high = 1, book.size + 1
  while low < high do
    local middle = math.floor((low + high) / 2)
    if book.at[middle] < at then low = middle + 1 else high = middle end
  end
  return low
end

local function uncharge(book, at, permits)
  local index = first_from(book, at)
  if index > book.size or cell_start(book.at[index], book.cell) > at then return end
  local left = book.permits[index] - math.min(book.permits[index], permits)
  if left == 0 then
    table.remove(book.at, index)
    table.remove(book.permits, index)
    book.size = book.size - 1
  else
    book.permits[index] = left
  end
end

-- ---- a search: only moves forward, over all rules of a book at once ----

local function search_advance(search, at)
  local book = search.book
  if at > search.at then search.at = at end
  at = search.at
  local entered, size, cell, held = search.entered, book.size, book.cell, search.held
  local entries, permits = book.at, book.permits
  while entered < size and entries[entered + 1] - entries[entered + 1] % cell <= at do
    entered = entered + 1
    for index = 1, #held do held[index] = held[index] + permits[entered] end
  end
  search.entered = entered
  for index, rule in ipairs(book.rules) do
    local left = search.left[index]
    while left < entered and entries[left + 1] + rule.window <= at do
      left = left + 1
      held[index] = held[index] - permits[left]
    end
    search.left[index] = left
  end
end

local function search_new(book, from)
  local search = { book = book, at = 0, entered = 0, left = {}, held = {} }
  for index = 1, #book.rules do
    search.left[index] = 0
    search.held[index] = 0
  end
  search_advance(search, from)
  return search
end

-- Room under one rule where the search stands; or nil and the next instant worth trying.
local function search_room(search, index, cost)
  local book, rule = search.book, search.book.rules[index]
  local entries, permits = book.at, book.permits
  local left, held, at, window = search.left[index], search.held[index], search.at, rule.window
  local spare = math.max(rule.rate - cost, 0)
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
  return math.max(rule.rate - fullest, 0)
end

-- Moves to the earliest instant with room for `cost`; returns the room and the rule that moved it, if any.
local function search_earliest(search, cost)
  local rules, limited_by = search.book.rules, nil
  local index, room = 1, nil
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
  return math.max(room or cost, cost), limited_by
end

local function search_charge(search, permits)
  local book, at, entered = search.book, search.at, search.entered
  if entered > 0 and cell_start(book.at[entered], book.cell) == cell_start(at, book.cell) then
    if at > book.at[entered] then book.at[entered] = at end
    book.permits[entered] = book.permits[entered] + permits
  else
    table.insert(book.at, entered + 1, at)
    table.insert(book.permits, entered + 1, permits)
    book.size = book.size + 1
    search.entered = entered + 1
  end
  for index = 1, #search.held do search.held[index] = search.held[index] + permits end
end

-- ---- whose limits are in force ----

local function put_in_force(book, union)
  book.union = union
  book.rules = rules_of(union)
  book.cell = finest_cell(book.rules)
end

-- Puts `union` in force and moves the bookings from one lease ahead on to their places under it.
local function retime(book, now, lease, union)
  local void_from = now + lease
  book.moved_cell = book.cell
  put_in_force(book, union)
  local first, void = first_from(book, void_from), {}
  for index = first, book.size do
    void[#void + 1] = { book.at[index], book.permits[index] }
    book.at[index] = nil
    book.permits[index] = nil
  end
  book.size = first - 1
  local search, moved = search_new(book, void_from), {}
  for _, entry in ipairs(void) do
    local left = entry[2]
    while left > 0 do
      local room = search_earliest(search, 1)
      local permits = math.min(left, room)
      search_charge(search, permits)
      moved[#moved + 1] = entry[1]
      moved[#moved + 1] = search.at
      moved[#moved + 1] = permits
      left = left - permits
    end
  end
  book.moved = moved
  book.moved_generation = book.number
  book.number = math.max(now, book.number + 1)
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
    for _ = 1, 3 do table.remove(kept, 1) end
  end
  book.declared = kept
end

-- Brings a book to `now` under the caller's rules.
local function book_open(book, now, text, lease, replica)
  if book.moved_until <= now then book.moved = {} end
  declare(book, now, text, lease, replica)
  local union = book.declared[1]
  for index = 4, #book.declared, 3 do union = union .. " " .. book.declared[index] end
  if book.union == "" then
    put_in_force(book, union)
  elseif union ~= book.union and #book.moved == 0 then
    retime(book, now, lease, union)
  end
  prune(book, now)
end

-- The index of the first void permits that were booked in the cell of `slot` and have not been fetched.
local function first_moved(book, slot)
  local moved, low, high = book.moved, 0, #book.moved / 3
  while low < high do
    local middle = math.floor((low + high) / 2)
    if moved[3 * middle + 1] < slot then low = middle + 1 else high = middle end
  end
  for index = 3 * low + 1, #moved, 3 do
    if cell_start(moved[index], book.moved_cell) > slot then return nil end
    if moved[index + 2] > 0 then return index end
  end
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
    local index = first_moved(book, slot)
    if not index then break end
    local taken = math.min(moved[index + 2], permits)
    place = moved[index + 1]
    uncharge(book, place, taken)
    moved[index + 2] = moved[index + 2] - taken
    permits = permits - taken
  end
  return place
end

-- Where a change has put permits that were booked at `slot`, if all of them lie together: the place, its index.
local function book_place(book, slot, permits, known)
  if known == book.number or known ~= book.moved_generation or slot < book.void_from then return nil end
  local index = first_moved(book, slot)
  if not index or book.moved[index + 2] < permits then return nil end
  return book.moved[index + 1], index
end

-- Permits that could be used at `now` under one rule.
local function available(book, now, rule)
  local held = 0
  for index = 1, book.size do
    local at = book.at[index]
    if at > now then break end
    if at + rule.window > now then held = held + book.permits[index] end
  end
  return math.max(rule.rate - held, 0)
end
