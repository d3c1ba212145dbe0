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

  -- Returns the index of the first of them that are not claimed, after skipping so many permits; nil if there are none.
  local function first_unclaimed(state, slot, skipped)
    local moved = state.rescheduled
    for index = first_of(state, slot), #moved, 3 do
      if Rule.cell_start(moved[index], state.rescheduled_cell) > slot then return nil end
      local permits = moved[index + 2]
      if permits > 0 and skipped < permits then return index end
      skipped = max(skipped - permits, 0)
    end
  end

  -- Returns how many of them are not claimed.
  local function unclaimed(state, slot)
    local moved, left = state.rescheduled, 0
    for index = first_of(state, slot), #moved, 3 do
      if Rule.cell_start(moved[index], state.rescheduled_cell) > slot then break end
      left = left + moved[index + 2]
    end
    return left
  end

  local function claim(state, index, permits)
    state.rescheduled[index + 2] = state.rescheduled[index + 2] - permits
  end

  -- Takes back permits booked at a slot under a generation. Returns the place to which a change had moved them, or nil. Permits that
  -- were moved and not claimed in time stay charged.
  local function give_back(state, slot, permits, generation)
    local timeline, rules = state.timeline, state.rules
    if generation == state.generation or (generation == state.previous_generation and slot < state.void_from) then
      Timeline.uncharge(timeline, rules, slot, permits)
      return nil
    end
    if generation ~= state.previous_generation then return nil end
    local place
    while permits > 0 do
      local index = first_unclaimed(state, slot, 0)
      if not index then break end
      local taken = min(state.rescheduled[index + 2], permits)
      place = state.rescheduled[index + 1]
      Timeline.uncharge(timeline, rules, place, taken)
      claim(state, index, taken)
      permits = permits - taken
    end
    return place
  end

  -- Returns the place of permits booked at a slot under a generation, after skipping so many others, and the index to claim them by;
  -- nil if a change has not moved them together.
  local function place_of(state, slot, permits, generation, skipped)
    if generation == state.generation or generation ~= state.previous_generation or slot < state.void_from then return nil end
    local index = first_unclaimed(state, slot, skipped)
    if not index or state.rescheduled[index + 2] < permits then return nil end
    return state.rescheduled[index + 1], index
  end

  return {
    put_in_force = put_in_force, start = start, unclaimed = unclaimed, claim = claim, give_back = give_back,
    place_of = place_of,
  }
end }, Lazy)
