-- reschedule.lua: moves bookings after a change: of the limits, by a pause, a reset, or external usage.
--
-- Twin of src/limiter/arithmetic/reschedule.rs. Bookings from `void_from` on are void. The i-th void permit gets the i-th place under the
-- rules in force, and that place stays charged until the holder of the void permit claims it. A state has
--   generation            the number of its last change; `previous_generation`: of the one before, whose slots are void
--   rescheduled           { from, to, permits, ... } of void permits that are not claimed yet, ascending
--   rescheduled_cell      the cells of the previous generation
--   rescheduled_until     how long they are kept; no other change moves bookings meanwhile
--   timeline.moving       void bookings without a new place; calls give places to a part of them each, and nothing is booked meanwhile

local Reschedule = setmetatable({ rare = function()
  -- Returns the checkpoint of a rule that comes into force: its own from before, or one that lacks as much as the emptiest other.
  local function checkpoint_of(rule, old_rules, old_checkpoints, known_from)
    local algorithm = rule.algorithm
    if algorithm.CHECKPOINT_SIZE == 0 then return nil end
    local known = old_checkpoints[Rule.position(old_rules, rule)]
    if known then return known end
    local emptiest
    for index, old in ipairs(old_rules) do
      local checkpoint = old_checkpoints[index]
      if checkpoint then
        local permits, at = old.algorithm.missing(old, checkpoint)
        local own = algorithm.lacking(rule, at, permits)
        if not emptiest or algorithm.is_emptier(own, emptiest) then emptiest = own end
      end
    end
    return emptiest or State.new_checkpoint(rule, known_from)
  end

  -- Puts the rules of a text in force. Bookings stay where they are.
  local function put_in_force(state, union)
    local old_rules, old_checkpoints = state.rules, state.checkpoints
    -- The new rules may see further back.
    Timeline.drop_stale(state.timeline)
    state.union, state.rules, state.checkpoints = union, Rule.parse_all(union), {}
    if state.external_usage then
      state.external_usage = ExternalUsage.carry_over(state.external_usage, old_rules, state.rules)
    end
    for index, rule in ipairs(state.rules) do state.checkpoints[index] = checkpoint_of(rule, old_rules, old_checkpoints, state.known_from) end
  end

  -- How far ahead bookings are moved: later ones would wait for longer than a request may.
  local SPAN = 25 * 3600 * 1000000
  -- The bookings of so many instants are moved at once.
  local AT_ONCE = 200

  -- Gives new places to the first void bookings, in so many steps at most, behind those that have theirs.
  local function go_on(state, now, steps)
    local timeline, moved, pages = state.timeline, state.rescheduled, state.timeline.moving
    Timeline.compact(timeline)
    local from, limited_by = max(state.void_from, timeline.at[timeline.size] or 0), nil
    local search = Search.new(state, from)
    while pages[1] and steps > 0 do
      local entries, permits, index = pages[1], pages[2], 1
      local left, size = permits[1], #entries
      while index <= size and steps > 0 do
        if left > 0 then
          local room, by = Search.earliest(search, 1)
          if by and limited_by and by ~= limited_by then search.keeps_full = false end
          limited_by = by or limited_by
          if search.at > now + SPAN then
            timeline.moving = nil
            return
          end
          local placed, row = min(left, room), #moved
          Search.charge(search, placed)
          moved[row + 1], moved[row + 2], moved[row + 3] = entries[index], search.at, placed
          left, steps = left - placed, steps - 1
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
    put_in_force(state, union)
    if state.external_usage then ExternalUsage.heed(state) end
    if now < state.pause.paused_until then state.pause.next = state.pause.paused_until end
    Timeline.compact(state.timeline)
    local void = Timeline.split_off(state.timeline, void_from)
    state.rescheduled, state.rescheduled_cell, state.rescheduled_until = {}, old_cell, void_from + lease
    state.previous_generation, state.generation = state.generation, max(now, state.generation + 1)
    state.void_from, state.has_moved = void_from, #void > 0
    if #void == 0 then return end
    state.timeline.moving = void
    local instants = 0
    for page = 1, #void, 2 do instants = instants + #void[page] end
    if instants <= AT_ONCE then go_on(state, now, math.huge) end
  end

  -- Returns the index of the first void permits that were booked in the cell of a slot.
  local function first_of(state, slot)
    local moved, low, high = state.rescheduled, 0, #state.rescheduled / 3
    while low < high do
      local middle = floor((low + high) / 2)
      if moved[3 * middle + 1] < slot then low = middle + 1 else high = middle end
    end
    return 3 * low + 1
  end

  -- Takes back permits of a row. Returns how many.
  local function take_back(state, index, permits)
    local moved = state.rescheduled
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
  -- `index` on, of which `left` are not claimed, or are lost. Its caller passes over them in ascending order, so that the permits of a queue
  -- cost one way through the rows: `passed` lie before the row at `index`, and `taken` of that row are gone.
  local function cursor(state, slot, generation)
    local is_here = generation == state.generation or (generation == state.previous_generation and slot < state.void_from)
    local cursor = { state = state, slot = slot, is_here = is_here, left = 0, passed = 0, taken = 0 }
    if is_here or generation ~= state.previous_generation then return cursor end
    local moved, cell, index = state.rescheduled, state.rescheduled_cell, first_of(state, slot)
    cursor.index, cursor.final = index, index - 1
    while moved[index] and Rule.cell_start(moved[index], cell) <= slot do
      cursor.left = cursor.left + moved[index + 2]
      index = index + 3
      cursor.final = index - 1
    end
    return cursor
  end

  -- Moves on to the row of the permit behind so many others that were not claimed at first. Returns its place and the permits left there;
  -- nil if there is none.
  local function seek(cursor, offset)
    local moved = cursor.state.rescheduled
    while cursor.index and cursor.index < cursor.final do
      local passed = cursor.passed + cursor.taken + moved[cursor.index + 2]
      if offset < passed then return moved[cursor.index + 1], moved[cursor.index + 2] end
      cursor.passed, cursor.taken, cursor.index = passed, 0, cursor.index + 3
    end
  end

  -- Claims permits where the cursor stands.
  local function claim(cursor, permits)
    local moved, place = cursor.state.rescheduled, cursor.index + 2
    moved[place], cursor.taken = moved[place] - permits, cursor.taken + permits
  end

  -- Takes back permits of a slot that have no new place yet.
  local function take_moving(state, slot, permits)
    local pages, cell = state.timeline.moving or {}, state.rescheduled_cell
    for page = 1, #pages, 2 do
      local entries, counts = pages[page], pages[page + 1]
      if entries[#entries] >= slot then
        for index = 1, #entries do
          if permits == 0 or Rule.cell_start(entries[index], cell) > slot then return end
          if entries[index] >= slot then
            local taken = min(counts[index], permits)
            counts[index], permits = counts[index] - taken, permits - taken
          end
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
    local moved = state.rescheduled
    while permits > 0 and cursor.index < cursor.final do
      local index = cursor.index
      local taken = take_back(state, index, permits)
      permits, cursor.taken = permits - taken, cursor.taken + taken
      if taken > 0 then place = place or moved[index + 1] end
      if permits > 0 then cursor.passed, cursor.taken, cursor.index = cursor.passed + cursor.taken, 0, index + 3 end
    end
    if permits == 0 then return place end
    for index = first_of(state, cursor.slot), cursor.final, 3 do
      local taken = take_back(state, index, permits)
      permits = permits - taken
      if taken > 0 then place = place or moved[index + 1] end
    end
    if permits > 0 then take_moving(state, cursor.slot, permits) end
    return place
  end

  return {
    put_in_force = put_in_force, start = start, go_on = go_on, knows = knows, cursor = cursor, seek = seek, claim = claim, give_back_at = give_back_at,
  }
end }, Lazy)
