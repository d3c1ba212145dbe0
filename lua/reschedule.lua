-- reschedule.lua: moves bookings after a change: of the limits, by a pause, a reset, or external usage.
--
-- Twin of src/limiter/arithmetic/reschedule.rs and moving.rs. Bookings from `void_from` on are void. The i-th void permit gets the i-th
-- place under the rules in force, and that place stays charged until the holder of the void permit claims it. A state has
--   generation            the number of its last change; `previous_generation`: of the one before, whose slots are void
--   rescheduled           { from, to, permits, ... } of void permits that are not claimed yet, ascending, in pages: a call touches few
--   rescheduled_cell      the cells of the previous generation
--   rescheduled_until     how long they are kept; no other change moves bookings meanwhile
--   timeline.moving       void bookings without a new place; calls give places to a part of them each, and nothing is booked meanwhile

local Reschedule = setmetatable({ rare = function()
  -- Returns the checkpoint of a rule that comes into force: its own from before, or one that lacks as much as the emptiest other at `till`,
  -- because until then permits flowed in under the rules before. It lacks no more than it can hold: a smaller bucket is empty, and not closed
  -- until it has made up for the larger one.
  local function checkpoint_of(rule, timeline, old_rules, old_checkpoints, till, known_from)
    local algorithm = rule.algorithm
    if algorithm.CHECKPOINT_SIZE == 0 then return nil end
    local known = old_checkpoints[Rule.position(old_rules, rule)]
    if known then return known end
    local emptiest
    for index, old in ipairs(old_rules) do
      local checkpoint = old_checkpoints[index]
      if checkpoint then
        local permits, at = old.algorithm.missing(old, old.algorithm.fold(old, timeline, checkpoint, till))
        local own = algorithm.lacking(rule, at, min(permits, rule.lacking_max))
        if not emptiest or algorithm.is_emptier(own, emptiest) then emptiest = own end
      end
    end
    return emptiest or State.new_checkpoint(rule, known_from)
  end

  -- Puts the rules of a text in force behind an instant. Bookings stay where they are.
  local function put_in_force(state, union, till)
    local old_rules, old_checkpoints = state.rules, state.checkpoints
    -- The new rules may see further back.
    Timeline.drop_stale(state.timeline)
    state.union, state.rules, state.checkpoints = union, Rule.parse_all(union), {}
    if state.external_usage then
      state.external_usage = ExternalUsage.carry_over(state.external_usage, old_rules, state.rules)
    end
    for index, rule in ipairs(state.rules) do
      state.checkpoints[index] = checkpoint_of(rule, state.timeline, old_rules, old_checkpoints, till, state.known_from)
    end
    state.timeline.keeps_empty, state.timeline.pages = next(state.checkpoints) == nil, nil
    Timeline.compact(state.timeline)
  end

  -- How far ahead bookings are moved: later ones would wait for longer than a request may.
  local SPAN = 25 * 3600 * 1000000
  -- How much a call does until it leaves the other bookings to those that follow, and how much besides the ways to the last places at least.
  local MOVING_MAX, MOVING_LEAST = 22000, 14000
  -- Of so few permits in all states together it leaves none.
  local AT_ONCE = 48

  -- Notes void permits and their new place.
  local function note(state, from, to, permits)
    -- The rows of a page, three numbers each.
    local PAGE = 64
    local pages = state.rescheduled
    local page = pages[#pages]
    local size = page and #page or 0
    if not page or size >= 3 * PAGE then
      page, size = {}, 0
      pages[#pages + 1] = page
    end
    page[size + 1], page[size + 2], page[size + 3] = from, to, permits
  end

  -- The void bookings of a state on the way to their places: `left` permits of the first one, at `index` of the first page, have none yet.
  local function way_of(state)
    local timeline = state.timeline
    Timeline.compact(timeline)
    -- They are placed beside the external usage of now.
    if state.external_usage then ExternalUsage.heed(state) end
    local from = max(state.void_from, timeline.at[timeline.size] or 0)
    return {
      state = state, pages = timeline.moving, index = 1, left = timeline.moving[2][1], from = from, search = Search.new(state, from),
      is_full = true, limited_by = nil,
    }
  end

  -- Returns the first void booking whose permits have no place yet; nil if there is none.
  local function first_on(way)
    local pages = way.pages
    while pages[1] and way.left == 0 do
      way.index = way.index + 1
      if way.index > #pages[1] then
        table.remove(pages, 1)
        table.remove(pages, 1)
        way.index = 1
      end
      way.left = pages[1] and pages[2][way.index] or 0
    end
    return pages[1] and pages[1][way.index]
  end

  -- Keeps the void bookings that are left for the next call, and notes what is full.
  local function leave(way)
    local state, pages, search = way.state, way.pages, way.search
    if not first_on(way) then
      state.timeline.moving = nil
    elseif way.index > 1 or way.left ~= pages[2][1] then
      pages[1], pages[2] = { unpack(pages[1], way.index) }, { way.left, unpack(pages[2], way.index + 1) }
    end
    -- No permit finds room before the last place, unless other limiters have moved the search. A pause may be lifted, and what follows it
    -- paced no more.
    local from = max(way.from, state.pause.paced_until)
    if way.is_full and way.limited_by and search.keeps_full and from < search.at then
      Timeline.note_full(state.timeline, from, search.at, way.limited_by, 1)
    end
  end

  -- Returns how many void permits are left on some ways, if these are so few that one call moves all of them; else infinity.
  local function few_of(ways)
    local permits = 0
    for index = 1, #ways do
      local pages = ways[index].pages
      for page = 2, #pages, 2 do
        for entry = 1, #pages[page] do permits = permits + pages[page][entry] end
        if permits > AT_ONCE then return math.huge end
      end
    end
    return permits
  end

  -- Gives new places to the void bookings of a queue's limiters, the first ones first, until the call has done so much, or MOVING_LEAST
  -- besides the ways to the last places; at least to one. Those that were booked at one instant in several states belong to requests that
  -- need all of them, and get a place at which all have room. Returns how many they were, infinity if not few.
  local function go_on(states, now, work_max)
    local ways = {}
    for _, state in ipairs(states) do
      if state.timeline.moving then ways[#ways + 1] = way_of(state) end
    end
    local permits_left = few_of(ways)
    work_max = permits_left < math.huge and math.huge or max(work_max, work.done + min(work_max, MOVING_LEAST))
    local together, searches, firsts = {}, {}, {}
    repeat
      local first
      for index = 1, #ways do
        local at = first_on(ways[index])
        firsts[index] = at
        if at and (not first or at < first) then first = at end
      end
      if not first then break end
      local size, permits = 0, math.huge
      for index = 1, #ways do
        local way, at = ways[index], firsts[index]
        if at and Rule.cell_start(at, way.state.rescheduled_cell) <= first then
          size, permits = size + 1, min(permits, way.left)
          together[size], searches[size] = way, way.search
        end
      end
      for index = #together, size + 1, -1 do together[index], searches[index] = nil, nil end
      local at, room, _, limit = Search.earliest_of(searches, 1)
      if at > now + SPAN then
        for index = 1, size do together[index].pages, together[index].is_full = {}, false end
      else
        permits = min(permits, room)
        for index = 1, size do
          local way = together[index]
          Search.charge(way.search, permits)
          note(way.state, way.pages[1][way.index], at, permits)
          way.left = way.left - permits
          if size > 1 then way.is_full = false end
          if limit and way.limited_by and limit ~= way.limited_by then way.search.keeps_full = false end
          way.limited_by = limit or way.limited_by
        end
      end
      work.done = work.done + 30 * #ways
    until work.done >= work_max
    for index = 1, #ways do leave(ways[index]) end
    return permits_left
  end

  -- Puts the rules of a text in force and takes out the bookings from an instant on. The next calls of queues move them to their places
  -- under the rules.
  local function start(state, now, from, lease, union)
    local old_cell = state.rules.cell
    -- A cell moves as a whole or not at all.
    local void_from = Rule.cell_from(from, old_cell)
    Timeline.compact(state.timeline)
    local void = Timeline.split_off(state.timeline, void_from)
    -- From now on bookings count by the new rules.
    put_in_force(state, union, min(now, void_from) - 1)
    if state.external_usage then ExternalUsage.heed(state) end
    if now < state.pause.paused_until then state.pause.next = state.pause.paused_until end
    state.rescheduled, state.rescheduled_cell, state.rescheduled_until = {}, old_cell, void_from + lease
    state.previous_generation, state.generation = state.generation, max(now, state.generation + 1)
    state.void_from, state.has_moved = void_from, #void > 0
    if #void > 0 then state.timeline.moving = void end
  end

  -- Lets limiters of a queue that have not moved move with the first one that has, from a lease ahead on, if nearly all their bookings are
  -- of the same requests, as the first ones show. Else these would keep places there which they cannot use any more, in the way of those
  -- that they get. Returns whether there were any.
  local function join(states, now, lease)
    -- How many permits are looked at. So many parts of them have to be booked in the other limiter, too.
    local FIRST, SAME, OF = 512, 3, 4
    local first
    for _, state in ipairs(states) do
      -- Bookings that have their places already would stay apart.
      if state.timeline.moving and #state.rescheduled > 0 then return false end
      if state.timeline.moving and not first then first = state end
    end
    local pages, from, permits, till = first.timeline.moving, max(first.void_from, now + lease), 0, 0
    for page = 1, #pages, 2 do
      local entries, counts = pages[page], pages[page + 1]
      for index = entries[#entries] < from and #entries + 1 or 1, #entries do
        if entries[index] >= from and permits < FIRST then permits, till = permits + counts[index], entries[index] end
      end
      if permits >= FIRST then break end
    end
    local has_joined = false
    for _, state in ipairs(states) do
      local held, cell = 0, state.rules.cell
      if not State.is_pending(state) then
        held = Timeline.held_between(state.timeline, Rule.cell_from(from, cell), Rule.cell_start(till, cell) + cell - 1)
      end
      if held > 0 and SAME * held <= OF * permits and OF * held >= SAME * permits then
        start(state, now, from, lease, state.union)
        has_joined = true
      end
    end
    return has_joined
  end

  -- Returns the page and the index of the first void permits that were booked in the cell of a slot.
  local function first_of(state, slot)
    local pages, low, high = state.rescheduled, 1, #state.rescheduled + 1
    while low < high do
      local middle = floor((low + high) / 2)
      local page = pages[middle]
      if page[#page - 2] < slot then low = middle + 1 else high = middle end
    end
    local place, page = low, pages[low]
    if not page then return place, 1 end
    low, high = 0, #page / 3
    while low < high do
      local middle = floor((low + high) / 2)
      if page[3 * middle + 1] < slot then low = middle + 1 else high = middle end
    end
    return place, 3 * low + 1
  end

  -- Returns the row behind another.
  local function next_row(state, page, index)
    if index + 3 <= #state.rescheduled[page] then return page, index + 3 end
    return page + 1, 1
  end

  -- Takes back permits that are booked at an instant. A reset has forgotten those until then, and others may stand in their cell. Those from
  -- before a doubt that is charged stay: no more was charged than they had left, so that they stand for what nobody has reported, too.
  local function uncharge(state, at, permits)
    local doubts = state.doubts
    for index = 2, #doubts, 3 do
      if at <= doubts[index] then return end
    end
    if at > state.reset_at then Timeline.uncharge(state.timeline, state.rules, at, permits) end
  end

  -- Takes back permits of a row. Returns how many.
  local function take_back(state, page, index, permits)
    local moved = state.rescheduled[page]
    local taken = min(moved[index + 2], permits)
    uncharge(state, moved[index + 1], taken)
    moved[index + 2] = moved[index + 2] - taken
    return taken
  end

  -- Returns whether permits that were booked under a generation are still there.
  local function knows(state, generation)
    return generation == state.generation or generation == state.previous_generation
  end

  -- The generation that a caller without an answer yet names.
  local UNKNOWN = 9007199254740990

  -- Returns a cursor over the permits of a slot that were booked under a generation: they stand in the slot (`is_here`), in the rows from
  -- `index` of `page` on to the last one before `final`, of which `left` are not claimed, or are lost. Its caller passes over them in
  -- ascending order, so that the permits of a queue cost one way through the rows: `passed` lie before the row at `index`, and `taken` of
  -- that row are gone. A caller that has had no answer yet gives `UNKNOWN`, and gives back what was used: that stands where it was booked, unless
  -- a change is being followed.
  local function cursor(state, slot, generation)
    local is_unknown = generation == UNKNOWN
    local is_here = generation == state.generation or (is_unknown and not State.is_pending(state))
      or ((is_unknown or generation == state.previous_generation) and slot < state.void_from)
    local cursor = { state = state, slot = slot, is_here = is_here, left = 0, passed = 0, taken = 0 }
    if is_here or generation ~= state.previous_generation then return cursor end
    local pages, cell, page, index = state.rescheduled, state.rescheduled_cell, state.next_page, state.next_row
    -- Most slots come in ascending order: their rows follow those of the slot before.
    if not page or slot < state.next_from or (pages[page] and pages[page][index] < slot) then page, index = first_of(state, slot) end
    cursor.page, cursor.index = page, index
    while pages[page] and Rule.cell_start(pages[page][index], cell) <= slot do
      cursor.left = cursor.left + pages[page][index + 2]
      page, index = next_row(state, page, index)
    end
    cursor.final_page, cursor.final = page, index
    -- Rows before lie in earlier cells than a slot from there on.
    state.next_page, state.next_row, state.next_from = page, index, slot - slot % cell + cell
    return cursor
  end

  -- Returns whether a cursor's row at `index` of `page` is one of its rows.
  local function is_within(cursor, page, index)
    return page < cursor.final_page or (page == cursor.final_page and index < cursor.final)
  end

  -- Moves a cursor on to the next row, behind so many permits more.
  local function move_on(cursor, permits)
    cursor.passed, cursor.taken = cursor.passed + cursor.taken + permits, 0
    cursor.page, cursor.index = next_row(cursor.state, cursor.page, cursor.index)
  end

  -- Moves on to the row of the permit behind so many others that were not claimed at first. Returns its place and the permits left there;
  -- nil if there is none.
  local function seek(cursor, offset)
    local pages = cursor.state.rescheduled
    while cursor.index and is_within(cursor, cursor.page, cursor.index) do
      local moved, index = pages[cursor.page], cursor.index
      if offset < cursor.passed + cursor.taken + moved[index + 2] then return moved[index + 1], moved[index + 2] end
      move_on(cursor, moved[index + 2])
    end
  end

  -- Claims permits where the cursor stands.
  local function claim(cursor, permits)
    local moved, place = cursor.state.rescheduled[cursor.page], cursor.index + 2
    moved[place], cursor.taken = moved[place] - permits, cursor.taken + permits
  end

  -- Takes back permits of a slot that have no new place yet.
  local function take_moving(state, slot, permits)
    local pages, cell = state.timeline.moving or {}, state.rescheduled_cell
    local low, high = 1, #pages / 2 + 1
    while low < high do
      local middle = floor((low + high) / 2)
      local entries = pages[2 * middle - 1]
      if entries[#entries] < slot then low = middle + 1 else high = middle end
    end
    for page = 2 * low - 1, #pages, 2 do
      local entries, counts = pages[page], pages[page + 1]
      local size = #entries
      if entries[size] >= slot then
        low, high = 1, size
        while low < high do
          local middle = floor((low + high) / 2)
          if entries[middle] < slot then low = middle + 1 else high = middle end
        end
        for index = low, size do
          if permits == 0 or Rule.cell_start(entries[index], cell) > slot then return end
          local taken = min(counts[index], permits)
          counts[index], permits = counts[index] - taken, permits - taken
        end
      end
    end
  end

  -- Takes back permits from where the cursor stands, and if none are left there from the first ones. Returns the first place to which
  -- a change had moved them, or nil. Permits that were moved and not claimed in time stay charged.
  local function give_back_at(cursor, permits)
    local state, place = cursor.state, nil
    if cursor.is_here then
      uncharge(state, cursor.slot, permits)
      return nil
    end
    if not cursor.index then return nil end
    local pages = state.rescheduled
    while permits > 0 and is_within(cursor, cursor.page, cursor.index) do
      local page, index = cursor.page, cursor.index
      local taken = take_back(state, page, index, permits)
      permits, cursor.taken = permits - taken, cursor.taken + taken
      if taken > 0 then place = place or pages[page][index + 1] end
      if permits > 0 then move_on(cursor, 0) end
    end
    if permits == 0 then return place end
    local page, index = first_of(state, cursor.slot)
    while permits > 0 and is_within(cursor, page, index) do
      local taken = take_back(state, page, index, permits)
      permits = permits - taken
      if taken > 0 then place = place or pages[page][index + 1] end
      page, index = next_row(state, page, index)
    end
    if permits > 0 then take_moving(state, cursor.slot, permits) end
    return place
  end

  return {
    MOVING_MAX = MOVING_MAX, put_in_force = put_in_force, start = start, join = join, go_on = go_on, knows = knows, cursor = cursor, seek = seek,
    claim = claim, give_back_at = give_back_at,
  }
end }, Lazy)
