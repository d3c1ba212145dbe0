-- reschedule.lua: moves bookings after a change: of the limits, by a pause, a reset, or external usage.
--
-- Twin of src/limiter/arithmetic/reschedule.rs. Bookings from `void_from` on are void. The i-th void permit gets the i-th place under the
-- rules in force, and that place stays charged until the holder of the void permit claims it. A state has
--   generation            the number of its last change; `previous_generation`: of the one before, whose slots are void
--   rescheduled           { from, to, permits, ... } of void permits that are not claimed yet, ascending
--   rescheduled_cell      the cells of the previous generation
--   rescheduled_until     how long they are kept; no other change moves bookings meanwhile

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
    state.union, state.rules, state.checkpoints = union, Rule.parse_all(union), {}
    if state.external_usage then
      state.external_usage = ExternalUsage.carry_over(state.external_usage, old_rules, state.rules)
    end
    for index, rule in ipairs(state.rules) do state.checkpoints[index] = checkpoint_of(rule, old_rules, old_checkpoints, state.known_from) end
  end

  -- Puts the rules of a text in force and moves the bookings from an instant on to their places under them.
  local function start(state, now, from, lease, union)
    -- How far ahead bookings are moved: later ones would wait for longer than a request may.
    local SPAN = 25 * 3600 * 1000000
    local old_cell = state.rules.cell
    -- A cell moves as a whole or not at all.
    local void_from = Rule.cell_from(from, old_cell)
    put_in_force(state, union)
    if state.external_usage then ExternalUsage.heed(state) end
    if now < state.pause.paused_until then state.pause.next = state.pause.paused_until end
    local void, moved, is_near = Timeline.split_off(state.timeline, void_from), {}, true
    local search = Search.new(state, void_from)
    for index = 1, #void, 2 do
      local left = void[index + 1]
      while left > 0 and is_near do
        local room = Search.earliest(search, 1)
        is_near = search.at <= now + SPAN
        if is_near then
          local permits, size = min(left, room), #moved
          Search.charge(search, permits)
          moved[size + 1], moved[size + 2], moved[size + 3] = void[index], search.at, permits
          left = left - permits
        end
      end
    end
    state.rescheduled, state.rescheduled_cell, state.rescheduled_until = moved, old_cell, void_from + lease
    state.previous_generation, state.generation = state.generation, max(now, state.generation + 1)
    state.void_from, state.has_moved = void_from, #void > 0
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
    return place
  end

  return {
    put_in_force = put_in_force, start = start, knows = knows, cursor = cursor, seek = seek, claim = claim, give_back_at = give_back_at,
  }
end }, Lazy)
