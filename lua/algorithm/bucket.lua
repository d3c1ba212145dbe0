-- bucket.lua: token and leaky bucket: `burst` permits at once, then `rate` in a window. A leaky bucket has a burst of one.
--
-- Twin of src/limiter/arithmetic/algorithm/bucket.rs. The text of a rule goes on with the burst, its capacity. A bucket is the instant
-- at which it will be full again (GCRA's theoretical arrival time): `tat` in whole microseconds and `rest` in parts of the rule's rate.
-- Its checkpoint is { tat, rest, folded }: the bookings until `folded` are in it.

function Algorithm.B()
  local cell_start, cell_from, span_exact = Rule.cell_start, Rule.cell_from, Rule.span_exact
  local first_from = Timeline.first_from

  -- The part of a quotient of floating point numbers that is sure.
  local SURE = 1 - 1 / 1099511627776

  local function add(rule, tat, rest, more, more_rest)
    rest = rest + more_rest
    if rest >= rule.rate then return tat + more + 1, rest - rule.rate end
    return tat + more, rest
  end

  local function take(rule, tat, rest, at, permits)
    if tat < at then tat, rest = at, 0 end
    return add(rule, tat, rest, span_exact(rule, permits))
  end

  -- Returns `tat` and `rest` with the bookings of some entries taken in: `take` for each, without as many calls.
  local function take_all(rule, tat, rest, timeline, first, final)
    local entries, permits, rate, same = timeline.at, timeline.permits, rule.rate, nil
    local more, more_rest
    for index = first, final do
      local at, count = entries[index], permits[index]
      if count ~= same then
        more, more_rest = span_exact(rule, count)
        same = count
      end
      if tat < at then tat, rest = at, 0 end
      tat, rest = tat + more, rest + more_rest
      if rest >= rate then tat, rest = tat + 1, rest - rate end
    end
    return tat, rest
  end

  -- Returns the permits that flow in until a later `tat`, rounded down; where that is a whole number it may be one less.
  local function permits_until(rule, tat, rest, later, later_rest)
    if later < tat or (later == tat and later_rest <= rest) then return 0 end
    return floor(((later - tat) * rule.rate + later_rest - rest) / rule.window * SURE)
  end

  -- Returns how far `tat` may lie ahead of an instant for permits to be booked there.
  local function tolerance(rule, permits)
    local micros, rest = span_exact(rule, max(rule.capacity - permits, 0))
    if micros >= rule.cell then return micros, rest end
    return rule.cell, 0
  end

  local function fold(rule, timeline, checkpoint, till)
    local folded = checkpoint[3]
    if folded >= till then return checkpoint end
    local first, final = first_from(timeline, folded + 1), first_from(timeline, till + 1) - 1
    local tat, rest = take_all(rule, checkpoint[1], checkpoint[2], timeline, first, final)
    return { tat, rest, till }
  end

  local function available(rule, timeline, now, checkpoint)
    checkpoint = fold(rule, timeline, checkpoint or { 0, 0, 0 }, now)
    local tat, rest = checkpoint[1], checkpoint[2]
    if tat < now or (tat == now and rest == 0) then return rule.capacity end
    local lacks = ((tat - now) * rule.rate + rest) / rule.window
    return max(rule.capacity - ceil(lacks * SURE), 0)
  end

  local function expires(rule, timeline, checkpoint)
    local last = timeline.at[timeline.size]
    if last then checkpoint = fold(rule, timeline, checkpoint, last) end
    local full = checkpoint[1] + (checkpoint[2] > 0 and 1 or 0)
    return last and max(full, last + rule.window) or full
  end

  local function advance(sight, search, before)
    local entered = search.entered
    if entered == before then return end
    local timeline = search.timeline
    local first = max(before + 1, first_from(timeline, sight.folded + 1))
    sight.tat, sight.rest = take_all(sight.rule, sight.tat, sight.rest, timeline, first, entered)
  end

  local function room(sight, search, cost)
    local rule, timeline, at, cell = sight.rule, search.timeline, search.at, search.rules.cell
    local entries, permits = timeline.at, timeline.permits
    local tat, rest = sight.tat, sight.rest
    local beyond, beyond_rest = tolerance(rule, cost)
    local from = max(tat - beyond, 0) + (rest > beyond_rest and 1 or 0)
    if from > at then return nil, cell_from(from, rule.cell) end
    tat, rest = take(rule, tat, rest, at, cost)
    local found = cost
    local border, border_rest = add(rule, at, 0, beyond, beyond_rest)
    if tat < border or (tat == border and rest <= border_rest) then
      found = found + cost + permits_until(rule, tat, rest, border, border_rest)
    end
    for entry = search.entered + 1, timeline.size do
      local start, count = cell_start(entries[entry], cell), permits[entry]
      border, border_rest = add(rule, start, 0, tolerance(rule, count))
      if tat > border or (tat == border and rest > border_rest) then return nil, start + 1 end
      found = min(found, cost + permits_until(rule, tat, rest, border, border_rest))
      if tat < start or (tat == start and rest == 0) then
        -- The bucket is full again before: later bookings do not depend on this one.
        found = min(found, cost + permits_until(rule, tat, rest, start, 0))
        break
      end
      tat, rest = take(rule, tat, rest, entries[entry], count)
    end
    return found
  end

  local function rare()
    local function take_late(rule, checkpoint, at, permits)
      local folded = checkpoint[3]
      if at > folded then return checkpoint end
      local tat, rest = take(rule, checkpoint[1], checkpoint[2], at, permits)
      return { tat, rest, folded }
    end

    local function missing(rule, checkpoint)
      local tat, rest, folded = checkpoint[1], checkpoint[2], checkpoint[3]
      local permits = permits_until(rule, folded, 0, tat, rest)
      if tat > folded or (tat == folded and rest > 0) then permits = permits + 1 end
      return permits, folded
    end

    local function lacking(rule, at, permits)
      local tat, rest = add(rule, at, 0, span_exact(rule, permits))
      return { tat, rest, at }
    end

    return {
      take_late = take_late,
      missing = missing,
      lacking = lacking,
      is_emptier = function(one, other) return one[1] > other[1] or (one[1] == other[1] and one[2] >= other[2]) end,
    }
  end

  return setmetatable({
    CHECKPOINT_SIZE = 3,
    parse = function(rule, text)
      -- A search moves on to the next cell, though an instant before may have room.
      rule.capacity, rule.skips_room = tonumber(text), rule.cell > 1
    end,
    spacing = span_exact,
    separates = false,
    sight = function(rule, _, checkpoint)
      return { rule = rule, tat = checkpoint[1], rest = checkpoint[2], folded = checkpoint[3] }
    end,
    advance = advance,
    room = room,
    take = function(sight, search, permits)
      sight.tat, sight.rest = take(sight.rule, sight.tat, sight.rest, search.at, permits)
    end,
    available = available,
    expires = expires,
    fold = fold,
    rare = rare,
  }, Lazy)
end
