-- fixed_window.lua: each calendar window holds at most the rule's rate.
--
-- Twin of src/limiter/arithmetic/algorithm/fixed_window.rs. The text of a rule goes on with the guard, and start and length of each
-- stretch of equal windows. While it runs, it counts `held` permits in the window that ends at `finish`.

function Algorithm.F()
  local SPAN_MAX, span_exact = Rule.SPAN_MAX, Rule.span_exact
  local first_from, held_between = Timeline.first_from, Timeline.held_between

  -- The distance between refused callers where the permits of a window come back at one instant, in microseconds a permit.
  local SPACING = 10000

  local function parse(rule, text)
    local guard, stretches = string.match(text, "^ (%d+)(.*)$")
    rule.guard, rule.starts, rule.lengths = tonumber(guard), {}, {}
    for start, length in string.gmatch(stretches, "(%d+) (%d+)") do
      rule.starts[#rule.starts + 1] = tonumber(start)
      rule.lengths[#rule.lengths + 1] = tonumber(length)
    end
  end

  -- Returns start and end of the window that holds an instant.
  local function window_of(rule, at)
    local starts, later = rule.starts, 1
    while later <= #starts and starts[later] <= at do later = later + 1 end
    if later == 1 then return 0, starts[1] or SPAN_MAX end
    local start, length = starts[later - 1], rule.lengths[later - 1]
    start = at - (at - start) % length
    return start, min(start + length, starts[later] or start + length)
  end

  local function advance(running, search)
    local at = search.at
    if at < running.finish then return end
    local timeline = search.timeline
    local entries, permits, size = timeline.at, timeline.permits, timeline.size
    local start, finish = window_of(running.rule, at)
    local held, entry = 0, first_from(timeline, start)
    while entry <= size and entries[entry] < finish do
      held = held + permits[entry]
      entry = entry + 1
    end
    running.finish, running.held = finish, held
  end

  -- The last guard of a window stays empty: a permit booked there might be sent in the next window.
  local function room(running, search, cost)
    local finish, held, rate = running.finish, running.held, running.rate
    if search.at + running.rule.guard >= finish or held > max(rate - cost, 0) then return nil, finish end
    return max(rate - held, 0)
  end

  return {
    CHECKPOINT_SIZE = 0,
    parse = parse,
    spacing = function(rule, permits) return min(span_exact(rule, permits), SPACING * permits) end,
    separates = function(rule, first, later) return window_of(rule, first) ~= window_of(rule, later) end,
    window_start = function(rule, at) return (window_of(rule, at)) end,
    start = function(rule, rate) return { rule = rule, rate = rate, finish = 0, held = 0 } end,
    advance = advance,
    room = room,
    take = function(running, _, permits) running.held = running.held + permits end,
    available = function(rule, timeline, now, _, external)
      return max(rule.rate - external - held_between(timeline, (window_of(rule, now)), now), 0)
    end,
    expires = function(rule, timeline)
      local last = timeline.at[timeline.size]
      return last and last + rule.window or 0
    end,
  }
end
