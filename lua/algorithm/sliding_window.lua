-- sliding_window.lua: every interval of a rule's window holds at most its rate.
--
-- Twin of src/limiter/arithmetic/algorithm/sliding_window.rs. A sight counts `held` permits in the window that ends where the search
-- stands; the first `gone` entries have left it.

function Algorithm.S()
  local cell_start, held_between = Rule.cell_start, Timeline.held_between

  local function window_start(_, at, length)
    return max(at + 1 - length, 0)
  end

  local function advance(sight, search, before)
    local entries, permits, entered = search.timeline.at, search.timeline.permits, search.entered
    local gone, held, limit = sight.gone, sight.held, search.at - sight.rule.window
    for entry = before + 1, entered do held = held + permits[entry] end
    while gone < entered and entries[gone + 1] <= limit do
      gone = gone + 1
      held = held - permits[gone]
    end
    sight.gone, sight.held = gone, held
  end

  -- A booking between others needs room in the windows that reach back from it and in those that end at later bookings.
  local function room(sight, search, cost)
    local timeline, at, cell = search.timeline, search.at, search.rules.cell
    local entries, permits = timeline.at, timeline.permits
    local gone, held, window, rate = sight.gone, sight.held, sight.rule.window, sight.rate
    local spare = max(rate - cost, 0)
    if held > spare then
      local next_at = at
      while held > spare do
        gone = gone + 1
        held = held - permits[gone]
        next_at = entries[gone] + window
      end
      return nil, next_at
    end
    local fullest = held
    for entry = search.entered + 1, timeline.size do
      local finish = cell_start(entries[entry], cell)
      if finish >= at + window then break end
      held = held + permits[entry]
      while gone < entry and entries[gone + 1] + window <= finish do
        gone = gone + 1
        held = held - permits[gone]
      end
      if held > spare then return nil, finish + 1 end
      if held > fullest then fullest = held end
    end
    return max(rate - fullest, 0)
  end

  return {
    CHECKPOINT_SIZE = 0,
    parse = function() end,
    spacing = Rule.span_exact,
    window_start = window_start,
    sight = function(rule, rate) return { rule = rule, rate = rate, gone = 0, held = 0 } end,
    advance = advance,
    room = room,
    take = function(sight, _, permits) sight.held = sight.held + permits end,
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
