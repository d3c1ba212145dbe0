-- sliding_window.lua: every interval of a rule's window holds at most its rate.
--
-- Twin of src/limiter/arithmetic/algorithm/sliding_window.rs. While it runs, it counts `held` permits in the window that ends where the
-- search stands; the first `gone` entries have left it.

function Algorithm.S()
  local cell_start, held_between, first_from = Rule.cell_start, Timeline.held_between, Timeline.first_from

  -- The most bookings that one move of a search passes.
  local WAY_MAX = 1000

  local function window_start(_, at, length)
    return max(at + 1 - length, 0)
  end

  local function advance(running, search, before)
    local entries, permits, entered = search.timeline.at, search.timeline.permits, search.entered
    local gone, held, limit = running.gone, running.held, search.at - running.rule.window
    if gone <= before and entered > before and entries[before + 1] <= limit then
      -- A search that moves by more than a window forgets what it has seen.
      gone = first_from(search.timeline, limit + 1) - 1
      before, held = gone, 0
    end
    if entered > before then work.done = work.done + 15 * (entered - before) end
    for entry = before + 1, entered do held = held + permits[entry] end
    while gone < entered and entries[gone + 1] <= limit do
      gone = gone + 1
      held = held - permits[gone]
    end
    running.gone, running.held = gone, held
  end

  -- Returns the permits in the fullest of the windows that end at later bookings within reach of a search. Each booking is looked at once
  -- in a search: `ahead` has looked at those until `entry`, where the window holds `held` permits and the first `gone` entries have left
  -- it. `behind` and `fullest` name the bookings, ascending, whose window is fuller than that of each later one, by their place from the
  -- end. Permits booked since are in all of these windows: `more`. Entries that were made since lie before: `size` is the number that
  -- there were.
  local function fullest_ahead(running, search)
    local timeline, entered, window, cell = search.timeline, search.entered, running.rule.window, search.rules.cell
    local entries, permits, size, ahead = timeline.at, timeline.permits, timeline.size, running.ahead
    if not ahead or ahead.entry + size - ahead.size < entered then
      ahead = { entry = entered, gone = running.gone, held = running.held, behind = {}, fullest = {}, first = 1, last = 0, more = 0, size = size }
      running.ahead = ahead
    end
    local behind, fullest, first, last = ahead.behind, ahead.fullest, ahead.first, ahead.last
    local seen = ahead.entry + size - ahead.size
    ahead.size = size
    while first <= last and behind[first] >= size - entered do first = first + 1 end
    local gone, held, more, till = ahead.gone, ahead.held, ahead.more, search.at + window
    local leaves, least = entries[gone + 1], first <= last and fullest[last] or nil
    local entry = seen
    while entry < size do
      local finish = entries[entry + 1]
      finish = finish - finish % cell
      if finish >= till then break end
      entry = entry + 1
      held = held + permits[entry]
      local limit = finish - window
      while leaves <= limit do
        gone = gone + 1
        held, leaves = held - permits[gone], entries[gone + 1]
      end
      local fullness = held - more
      if fullness ~= least then
        while least and least <= fullness do
          last = last - 1
          least = first <= last and fullest[last] or nil
        end
        last, least = last + 1, fullness
        fullest[last] = fullness
      end
      behind[last] = size - entry
    end
    work.done = work.done + 60 + 25 * (entry - seen)
    ahead.entry, ahead.gone, ahead.held, ahead.first, ahead.last = entry, gone, held, first, last
    return first <= last and fullest[first] + more or 0
  end

  -- Returns the instant right behind the first later booking whose window has no room.
  local function behind_full(running, search, spare)
    local timeline, cell = search.timeline, search.rules.cell
    local entries, permits, gone, held, window = timeline.at, timeline.permits, running.gone, running.held, running.rule.window
    for entry = search.entered + 1, timeline.size do
      local finish = cell_start(entries[entry], cell)
      held = held + permits[entry]
      while gone < entry and entries[gone + 1] + window <= finish do
        gone = gone + 1
        held = held - permits[gone]
      end
      if held > spare then
        work.done = work.done + 20 * (entry - search.entered)
        return finish + 1
      end
    end
  end

  -- Returns the instant at which enough has left the window that ends where a search stands, which has no room: bookings enter it on the
  -- way there. Where very many do it returns an instant on the way, and true.
  local function behind_held(running, search, spare)
    local timeline, cell, window = search.timeline, search.rules.cell, running.rule.window
    local entries, permits, size = timeline.at, timeline.permits, timeline.size
    local gone, held, entered, at = running.gone, running.held, search.entered, nil
    local final = entered + WAY_MAX
    repeat
      while held > spare do
        gone = gone + 1
        held = held - permits[gone]
      end
      at = entries[gone] + window
      local till = at - at % cell + cell
      while entered < size and entries[entered + 1] < till do
        entered = entered + 1
        held = held + permits[entered]
      end
    until held <= spare or entered > final
    work.done = work.done + 24 * (entered - search.entered)
    return at, held > spare
  end

  -- A booking between others needs room in the windows that reach back from it and in those that end at later bookings.
  local function room(running, search, cost)
    local held, rate = running.held, running.rate
    local spare = max(rate - cost, 0)
    if held > spare then
      local at, goes_on = behind_held(running, search, spare)
      return nil, at, goes_on
    end
    if search.entered < search.timeline.size then
      held = max(held, fullest_ahead(running, search))
      if held > spare then return nil, behind_full(running, search, spare) end
    end
    return max(rate - held, 0)
  end

  local function take(running, _, permits)
    local ahead = running.ahead
    running.held = running.held + permits
    if ahead then ahead.held, ahead.more = ahead.held + permits, ahead.more + permits end
  end

  return {
    CHECKPOINT_SIZE = 0,
    parse = function(rule) rule.reach = rule.window end,
    spacing = Rule.span_exact,
    window_start = window_start,
    start = function(rule, rate) return { rule = rule, rate = rate, gone = 0, held = 0 } end,
    advance = advance,
    room = room,
    take = take,
    available = function(rule, timeline, now, _, external)
      return max(rule.rate - external - held_between(timeline, window_start(rule, now, rule.window), now), 0)
    end,
    expires = function(rule, timeline)
      local last = timeline.at[timeline.size]
      return last and last + rule.window or 0
    end,
  }
end

-- A rule of a newer version of weir counts as a sliding window.
Algorithm.unknown = Algorithm.S
