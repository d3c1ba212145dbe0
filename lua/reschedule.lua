-- reschedule.lua: moves bookings after a change: of the limits, by a pause, a reset, or external usage.
--
-- Twin of src/limiter/arithmetic/reschedule.rs. Bookings from `void_from` on are void. The i-th void permit gets the i-th place under the
-- rules in force, and that place stays charged until the holder of the void permit claims it. A state has
--   generation            the number of its last change; `previous_generation`: of the one before, whose slots are void
--   rescheduled           { from, to, permits, ... } of void permits that are not claimed yet, ascending, in pages: a call touches few
--   rescheduled_cell      the cells of the previous generation
--   rescheduled_until     how long they are kept; no other change moves bookings meanwhile
--   timeline.moving       void bookings without a new place; calls give places to a part of them each, and nothing is booked meanwhile

local Reschedule = setmetatable({ rare = function()
  -- Returns the checkpoint of a rule that comes into force: its own from before, or one that lacks as much as the emptiest other at `till`,
  -- because until then permits flowed in under the rules before.
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
        local own = algorithm.lacking(rule, at, permits)
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
  -- How much a call does until it leaves the other bookings to those that follow.
  local MOVING_MAX = 35000
  -- Of so few permits in all states together it leaves none.
  local at_once_left = 240

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

  -- Gives new places to the first void bookings, behind those that have theirs, until the call has done so much, besides the way to the
  -- last place; at least to one.
  local function go_on(state, now, work_max)
    local timeline, pages = state.timeline, state.timeline.moving
    Timeline.compact(timeline)
    local from, limited_by = max(state.void_from, timeline.at[timeline.size] or 0), nil
    local done_before, is_enough = work.done, false
    local search = Search.new(state, from)
    work_max = work_max + work.done - done_before
    while pages[1] and not is_enough do
      local entries, permits, index = pages[1], pages[2], 1
      local left, size = permits[1], #entries
      while index <= size and not is_enough do
        if left > 0 then
          local room, by = Search.earliest(search, 1)
          if by and limited_by and by ~= limited_by then search.keeps_full = false end
          limited_by = by or limited_by
          if search.at > now + SPAN then
            timeline.moving = nil
            return
          end
          local placed = min(left, room)
          Search.charge(search, placed)
          note(state, entries[index], search.at, placed)
          left, is_enough = left - placed, work.done >= work_max
        end
        if left == 0 then
          index = index + 1
          left = permits[index]
        end
      end
      if index > size then
        table.remove(pages, 1)
        table.remove(pages, 1)
      else
        pages[1], pages[2] = { unpack(entries, index) }, { left, unpack(permits, index + 1) }
      end
    end
    if not pages[1] then timeline.moving = nil end
    -- No permit finds room before the last place. A pause may be lifted, and what follows it paced no more.
    from = max(from, state.pause.paced_until)
    if limited_by and search.keeps_full and from < search.at then Timeline.note_full(timeline, from, search.at, limited_by) end
  end

  -- Puts the rules of a text in force and takes out the bookings from an instant on. They are moved to their places under the rules at
  -- once, or in parts by the calls that follow.
  local function start(state, now, from, lease, union)
    local old_cell = state.rules.cell
    -- A cell moves as a whole or not at all.
    local void_from = Rule.cell_from(from, old_cell)
    Timeline.compact(state.timeline)
    local void = Timeline.split_off(state.timeline, void_from)
    put_in_force(state, union, min(now, void_from - 1))
    if state.external_usage then ExternalUsage.heed(state) end
    if now < state.pause.paused_until then state.pause.next = state.pause.paused_until end
    state.rescheduled, state.rescheduled_cell, state.rescheduled_until = {}, old_cell, void_from + lease
    state.previous_generation, state.generation = state.generation, max(now, state.generation + 1)
    state.void_from, state.has_moved = void_from, #void > 0
    if #void == 0 then return end
    state.timeline.moving = void
    local permits = 0
    for page = 2, #void, 2 do
      for index = 1, #void[page] do permits = permits + void[page][index] end
      if permits > at_once_left then return end
    end
    at_once_left = at_once_left - permits
    go_on(state, now, math.huge)
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

  -- Takes back permits of a row. Returns how many.
  local function take_back(state, page, index, permits)
    local moved = state.rescheduled[page]
    local taken = min(moved[index + 2], permits)
    Timeline.uncharge(state.timeline, state.rules, moved[index + 1], taken)
    moved[index + 2] = moved[index + 2] - taken
    return taken
  end

  -- Returns whether permits that were booked under a generation are still there.
  local function knows(state, generation)
    return generation == state.generation or generation == state.previous_generation
  end

  -- Returns a cursor over the permits of a slot that were booked under a generation: they stand in the slot (`is_here`), in the rows from
  -- `index` of `page` on to the last one before `final`, of which `left` are not claimed, or are lost. Its caller passes over them in
  -- ascending order, so that the permits of a queue cost one way through the rows: `passed` lie before the row at `index`, and `taken` of
  -- that row are gone.
  local function cursor(state, slot, generation)
    local is_here = generation == state.generation or (generation == state.previous_generation and slot < state.void_from)
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
    for page = 1, #pages, 2 do
      local entries, counts = pages[page], pages[page + 1]
      local size = #entries
      if entries[size] >= slot then
        local low, high = 1, size
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
      Timeline.uncharge(state.timeline, state.rules, cursor.slot, permits)
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
    MOVING_MAX = MOVING_MAX, put_in_force = put_in_force, start = start, go_on = go_on, knows = knows, cursor = cursor, seek = seek,
    claim = claim, give_back_at = give_back_at,
  }
end }, Lazy)
