-- search.lua: a search for the earliest instant with room under all rules of a state at once. It only moves forward.
--
-- Twin of src/limiter/arithmetic/algorithm/mod.rs (`Search`). It stands at `at`, where the first `entered` entries count; each rule
-- keeps of them what it needs, its *running* values.

local Search
do
  -- A way over that many entries is long, and so is one of that many moves.
  local FAR, FAR_MOVES = 32, 8

  local function advance(search, at)
    if at <= search.at then return end
    search.at = at
    local timeline, rules, running, before = search.timeline, search.rules, search.running, search.entered
    local entries, entered, size, cell = timeline.at, before, timeline.size, rules.cell
    -- The bookings of the cell of `at` count.
    local till = at - at % cell + cell
    -- A long way is not taken step by step.
    if entered + FAR < size and entries[entered + FAR] < till then entered = Timeline.first_from(timeline, till) - 1 end
    while entered < size and entries[entered + 1] < till do entered = entered + 1 end
    search.entered = entered
    for index = 1, #rules do rules[index].algorithm.advance(running[index], search, before) end
  end

  -- Returns a search that stands at an instant, open or not.
  local function at_instant(state, from)
    local rules, timeline, running = state.rules, state.timeline, {}
    Timeline.compact(timeline)
    for index = 1, #rules do
      local rule = rules[index]
      local rate = state.external_usage and ExternalUsage.rate_left(state, index) or rule.rate
      running[index] = rule.algorithm.start(rule, rate, state.checkpoints[index])
    end
    -- External usage comes and goes, and so does the room beside it.
    local search = {
      rules = rules, timeline = timeline, running = running, pause = state.pause, at = -1, entered = 0,
      keeps_full = not rules.skips_room and not state.external_usage,
    }
    advance(search, from)
    return search
  end

  -- Returns a search for places from an instant on.
  local function new(state, from)
    return at_instant(state, max(from, state.closed_until))
  end

  -- Returns a copy of a search that has not looked for room yet.
  local function copy(search)
    local copied, running = {}, {}
    for name, value in pairs(search) do copied[name] = value end
    for index, original in ipairs(search.running) do
      local own = {}
      for name, value in pairs(original) do own[name] = value end
      running[index] = own
    end
    copied.running = running
    return copied
  end

  -- Moves to the earliest instant with room for `cost`. Returns the room, and the index of the last rule that moved the search. Returns
  -- nil where the call has done enough and the next one can go on from here.
  local function earliest(search, cost)
    local rules, running, pause, limited_by = search.rules, search.running, search.pause, nil
    local index, room, moves, timeline, keeps_full = 1, nil, 0, search.timeline, search.keeps_full
    if search.at < pause.paced_until then advance(search, Pause.open_from(pause, search.at)) end
    local from, passed, full = search.at, search.entered, timeline.full
    work.done = work.done + 100
    while index <= #rules do
      local found, next_at, goes_on
      -- A stretch that is known to be full is passed at once.
      if full[1] and index == 1 and search.entered < timeline.size then
        next_at, index = Timeline.full_until(full, search.at, cost, index)
      end
      if not next_at then found, next_at, goes_on = rules[index].algorithm.room(running[index], search, cost) end
      if found then
        if not room or found < room then room = found end
        index = index + 1
      else
        limited_by, moves = index, moves + 1
        work.done = work.done + 100
        advance(search, next_at)
        if not goes_on then index, room = 1, nil end
        if work.done >= work.max and keeps_full and search.entered > passed + FAR and Timeline.may_note(full) then
          Timeline.note_full(timeline, from, search.at, limited_by, cost)
          return nil
        end
      end
    end
    if keeps_full and (moves > FAR_MOVES or (moves > 0 and search.entered > passed + FAR)) then
      Timeline.note_full(timeline, from, search.at, limited_by, cost)
    end
    if search.at < pause.paced_until and Pause.is_paced(pause, search.at) then return cost, limited_by end
    return max(room or cost, cost), limited_by
  end

  -- Returns the room for `cost` at the instant where some searches stand; nil if there is none.
  local function room_of(searches, cost)
    local room = math.huge
    for place = 1, #searches do
      local search = searches[place]
      local pause, at, rules = search.pause, search.at, search.rules
      work.done = work.done + 100
      if at < pause.paced_until and Pause.open_from(pause, at) > at then return nil end
      for index = 1, #rules do
        local found = rules[index].algorithm.room(search.running[index], search, cost)
        if not found then return nil end
        room = min(room, found)
      end
    end
    return max(room, cost)
  end

  -- Moves searches of several limiters to the earliest instant at which all have room. Returns it, the room, and the limiter and the rule
  -- that moved the searches there last, no rule if none did. Returns nil where the call has done enough and the next one can go on from here.
  local function earliest_of(searches, cost)
    local count = #searches
    if count == 1 then
      local found, limited_by = earliest(searches[1], cost)
      return found and searches[1].at, found, 1, limited_by
    end
    -- They are asked in turn until all `agree`; one that stands where it has found room is not asked again.
    local limiter, limit, at, index, agree, found = 1, nil, 0, 1, 0, {}
    for place = 1, count do at = max(at, searches[place].at) end
    while agree < count do
      local search = searches[index]
      if not found[index] or search.at < at then
        local limited_by
        advance(search, at)
        found[index], limited_by = earliest(search, cost)
        if not found[index] then return nil end
        if limited_by then limiter, limit = index, limited_by end
        if search.at > at then at, agree = search.at, 0 end
      end
      agree, index = agree + 1, index % count + 1
    end
    return at, min(unpack(found)), limiter, limit
  end

  -- Books permits where the search stands.
  local function charge(search, permits)
    local rules, running, at = search.rules, search.running, search.at
    work.done = work.done + 150
    if Timeline.charge(search.timeline, rules, search.entered, at, permits) then search.entered = search.entered + 1 end
    for index = 1, #rules do rules[index].algorithm.take(running[index], search, permits) end
    if at < search.pause.paced_until then Pause.booked(search.pause, at, permits) end
  end

  -- Books permits at an instant, because they are used there: whether there is room or not, and during a pause, too.
  local function charge_at(state, at, permits)
    local search = at_instant(state, at)
    search.pause = Pause.NONE
    charge(search, permits)
  end

  -- Books permits that were used beyond those that had been taken, at the earliest instants with room, so that those who come next leave
  -- them out: as many as have room at the first, the others together. Without windows they are booked at `now`, because a level that is below zero leaves them out by itself, and so they
  -- are during a pause.
  local function charge_excess(state, now, permits)
    -- A window holds no more than its rate. What is left is booked at the last of so many instants.
    local INSTANTS_MAX, rate = 4, nil
    for _, rule in ipairs(state.rules) do
      if rule.algorithm.window_start then rate = min(rate or rule.rate, rule.rate) end
    end
    if not rate or now < state.pause.paused_until then return charge_at(state, now, permits) end
    local search, left = new(state, now), permits
    search.pause = Pause.NONE
    for instant = 1, INSTANTS_MAX do
      local booked = min(left, rate)
      if instant == 1 then
        booked = min(left, (earliest(search, 1)))
      else
        earliest(search, booked)
      end
      if instant == INSTANTS_MAX then booked = left end
      charge(search, booked)
      left = left - booked
      if left == 0 then break end
    end
  end

  Search = {
    new = new, copy = copy, advance = advance, earliest = earliest, earliest_of = earliest_of, room_of = room_of, charge = charge, charge_at = charge_at,
    charge_excess = charge_excess,
  }
end
