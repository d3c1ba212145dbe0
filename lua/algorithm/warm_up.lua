-- warm_up.lua: a leaky bucket that is slow when it is cold (Guava's SmoothWarmingUp).
--
-- Twin of src/limiter/arithmetic/algorithm/warm_up.rs. The text of a rule goes on with the warm-up and `cold`. A level is the next
-- free instant, `free` in whole microseconds and `rest` in parts of `rate`, and the permits stored there: `stored` in units of
-- 1 / 2(1 + cold) microseconds of spacing and `part` in parts of `rate`. A checkpoint is { free, rest, stored, part, folded }: the
-- bookings until `folded` are in it. All zeros are a cold rule, for the time since zero fills the store.

function Algorithm.W()
  local cell_start, cell_from, span_exact = Rule.cell_start, Rule.cell_from, Rule.span_exact
  local first_from = Timeline.first_from

  -- The part of a quotient of floating point numbers that is sure.
  local SURE = 1 - 1 / 1099511627776

  -- Returns how long stored permits take beyond the spacing, until none is left.
  local function surcharge(rule, stored)
    local above = max(stored - rule.threshold, 0)
    return floor(above / rule.warm_up * above * rule.slope / rule.below)
  end

  -- Returns the level at an instant: idle time stores permits.
  local function level_at(rule, free, rest, stored, part, at)
    if free >= at then return free, rest, stored, part end
    stored = stored + min(at - free, rule.warm_up) * rule.inflow
    if stored >= rule.stored_max then stored, part = rule.stored_max, 0 end
    return at, 0, stored, part
  end

  -- Returns what a time of so many permits uses up of what is stored.
  local function spent_by(rule, span, span_rest)
    if span >= 2 * rule.warm_up then return math.huge, 0 end
    local spent = span_rest * rule.parts
    local spent_part = spent % rule.rate
    return span * rule.parts + (spent - spent_part) / rule.rate, spent_part
  end

  -- Returns the level after permits were taken at an instant.
  local function take(rule, free, rest, stored, part, at, permits)
    local rate, span, span_rest = rule.rate, span_exact(rule, permits)
    free, rest, stored, part = level_at(rule, free, rest, stored, part, at)
    local before, used, used_part = stored, spent_by(rule, span, span_rest)
    stored, part = stored - used, part - used_part
    if part < 0 then stored, part = stored - 1, part + rate end
    if stored < 0 then stored, part = 0, 0 end
    free, rest = free + span + surcharge(rule, before) - surcharge(rule, stored), rest + span_rest
    if rest >= rate then free, rest = free + 1, rest - rate end
    return free, rest, stored, part
  end

  -- Returns the level after the bookings of some entries: `take` for each, without as many calls.
  local function take_each(rule, free, rest, stored, part, timeline, first, final)
    local entries, permits, rate, same, span, span_rest = timeline.at, timeline.permits, rule.rate, nil, nil, nil
    local warm_up, inflow, stored_max, used, used_part = rule.warm_up, rule.inflow, rule.stored_max, nil, nil
    local threshold, slope, below, toll = rule.threshold, rule.slope, rule.below, surcharge(rule, stored)
    work.done = work.done + 45 * max(final - first + 1, 0)
    for index = first, final do
      local at, count = entries[index], permits[index]
      if count ~= same then
        span, span_rest = span_exact(rule, count)
        used, used_part = spent_by(rule, span, span_rest)
        same = count
      end
      if free < at then
        stored = stored + min(at - free, warm_up) * inflow
        if stored >= stored_max then stored, part = stored_max, 0 end
        free, rest, toll = at, 0, surcharge(rule, stored)
      end
      if stored > 0 or part > 0 then
        stored, part = stored - used, part - used_part
        if part < 0 then stored, part = stored - 1, part + rate end
        if stored < 0 then stored, part = 0, 0 end
        free = free + toll
        if stored > threshold then
          local above = stored - threshold
          toll = floor(above / warm_up * above * slope / below)
          free = free - toll
        else
          toll = 0
        end
      end
      free, rest = free + span, rest + span_rest
      if rest >= rate then free, rest = free + 1, rest - rate end
    end
    return free, rest, stored, part
  end

  -- Returns how far behind the cell of a booking the rule may be free for it.
  local function beyond(rule)
    return rule.cell, 0
  end

  -- Returns the level after the bookings of a page. A rule that is busy with nothing stored passes them at once, by the sums of the page's
  -- row; so does one that comes to them with the same level as the last one that passed them one by one, which stands behind the sums.
  local function take_page(rule, free, rest, stored, part, timeline, rules, starts, rows, page)
    local row = rows[page]
    if stored == 0 and part == 0 then
      row = Pages.sum(timeline, rules, rule, starts, rows, page, beyond)
      if free > row[5] then
        free, rest = free + row[1], rest + row[2]
        if rest >= rule.rate then free, rest = free + 1, rest - rule.rate end
        return free, rest, 0, 0
      end
    elseif row == 0 then
      row = Pages.without_sums()
      rows[page] = row
    end
    if row[9] == free and row[10] == rest and row[11] == stored and row[12] == part then return row[13], row[14], row[15], row[16] end
    row[9], row[10], row[11], row[12] = free, rest, stored, part
    local first, final = first_from(timeline, starts[page]), first_from(timeline, starts[page + 1]) - 1
    free, rest, stored, part = take_each(rule, free, rest, stored, part, timeline, first, final)
    row[13], row[14], row[15], row[16] = free, rest, stored, part
    return free, rest, stored, part
  end

  -- Takes the bookings of some entries, page by page where they are many. The rule is in force.
  local function take_all(rule, free, rest, stored, part, timeline, rules, first, final)
    if final - first < Pages.FAR or timeline.size <= Timeline.LONG then
      return take_each(rule, free, rest, stored, part, timeline, first, final)
    end
    local last, starts, rows = timeline.at[final], Pages.of(timeline, rules, rule)
    local page = max(Pages.find(starts, timeline.at[first]), 1)
    if starts[page + 1] and starts[page + 1] <= last then
      -- The rest of this page one by one.
      local till = first_from(timeline, starts[page + 1]) - 1
      free, rest, stored, part = take_each(rule, free, rest, stored, part, timeline, first, till)
      page = page + 1
      local before = page
      while starts[page + 1] and starts[page + 1] <= last do
        free, rest, stored, part = take_page(rule, free, rest, stored, part, timeline, rules, starts, rows, page)
        page = page + 1
      end
      work.done = work.done + 30 * (page - before)
      first = first_from(timeline, starts[page])
    end
    return take_each(rule, free, rest, stored, part, timeline, first, final)
  end

  -- Returns the permits that the rate allows until a later instant, rounded down; where that is a whole number it may be one less.
  local function permits_between(rule, from, from_rest, later, later_rest)
    if later < from or (later == from and later_rest <= from_rest) then return 0 end
    return floor(((later - from) * rule.rate + later_rest - from_rest) / rule.window * SURE)
  end

  -- Returns the most permits that can be taken at an instant with the next one free at `border`.
  local function permits_until(rule, free, rest, stored, part, at, border)
    local function fits(permits)
      local next_free, next_rest = take(rule, free, rest, stored, part, at, permits)
      return next_free < border or (next_free == border and next_rest == 0)
    end
    local most, too_many = 0, permits_between(rule, free, rest, border, 0)
    -- Mostly none does.
    if too_many == 0 or fits(too_many) then return too_many end
    while too_many - most > 1 do
      local middle = floor((most + too_many) / 2)
      if fits(middle) then most = middle else too_many = middle end
    end
    return most
  end

  local function fold(rule, timeline, checkpoint, till)
    local folded = checkpoint[5]
    if folded >= till then return checkpoint end
    local first, final = first_from(timeline, folded + 1), first_from(timeline, till + 1) - 1
    local free, rest, stored, part = checkpoint[1], checkpoint[2], checkpoint[3], checkpoint[4]
    free, rest, stored, part = take_each(rule, free, rest, stored, part, timeline, first, final)
    return { free, rest, stored, part, till }
  end

  local function available(rule, timeline, now, checkpoint)
    checkpoint = fold(rule, timeline, checkpoint or { 0, 0, 0, 0, 0 }, now)
    local free, rest = checkpoint[1], checkpoint[2]
    return (free < now or (free == now and rest == 0)) and 1 or 0
  end

  local function expires(rule, timeline, checkpoint, rules, now)
    local last = timeline.at[timeline.size]
    local free, rest, stored, part = checkpoint[1], checkpoint[2], checkpoint[3], checkpoint[4]
    if last then
      local first = first_from(timeline, checkpoint[5] + 1)
      free, rest, stored = take_all(rule, free, rest, stored, part, timeline, rules, first, timeline.size)
    end
    if free == 0 and rest == 0 then return 0, 0 end
    local cold, from = free + 1 + ceil((rule.stored_max - stored) / rule.inflow), max(now, last or 0)
    local is_free = free < from or (free == from and rest == 0)
    return last and max(cold, last + rule.window) or cold, is_free and 0 or permits_between(rule, from, 0, free, rest) + 1
  end

  local function advance(running, search, before)
    local entered = search.entered
    if entered == before then return end
    local timeline, first = search.timeline, before + 1
    if timeline.at[first] <= running.folded then first = first_from(timeline, running.folded + 1) end
    running.free, running.rest, running.stored, running.part =
      take_all(running.rule, running.free, running.rest, running.stored, running.part, timeline, search.rules, first, entered)
  end

  -- Returns `cost` if none of the later bookings is put off by one that leaves this level; or nil and the next instant worth trying. One
  -- that the rule is free for again before the next booking puts off none: it takes of what is stored, so that each later one finds the rule
  -- warmer than without it. Whether later ones are as far apart as their level wants by itself is no reason. Where permits were given back
  -- they may be nearer, and nothing would have room before them: the rule would stand still until they are used.
  local function room_among_later(rule, free, rest, stored, part, search, cost)
    local timeline, rules, entry, size = search.timeline, search.rules, search.entered + 1, search.timeline.size
    local entries, permits, wide, cell, rate = timeline.at, timeline.permits, rule.cell, search.rules.cell, rule.rate
    local starts, rows, edge, page = nil, nil, nil, nil
    if size - entry >= Pages.FAR and size > Timeline.LONG then
      starts, rows = Pages.of(timeline, rules, rule)
      page = max(Pages.find(starts, entries[entry]), 1)
      edge = starts[page + 1]
    end
    while entry <= size do
      local at = entries[entry]
      if edge and at >= edge then
        page = page + 1
        -- Pages whose bookings all have room behind each other are passed while the rule is busy.
        local before = page
        while starts[page + 1] and stored == 0 and part == 0 do
          local row = Pages.sum(timeline, rules, rule, starts, rows, page, beyond)
          local border, border_rest = row[7], row[8]
          if free <= row[5] or free > border or (free == border and rest > border_rest) then break end
          free, rest = free + row[1], rest + row[2]
          if rest >= rate then free, rest = free + 1, rest - rate end
          page = page + 1
        end
        work.done = work.done + 30 * (page - before)
        if page > before then
          entry = first_from(timeline, starts[page])
          at = entries[entry]
        end
        edge = starts[page + 1]
      end
      local start, border = at - at % cell, at - at % cell + wide
      if permits[entry] > 0 then
        if free < start or (free == start and rest == 0) then return cost end
        work.done = work.done + 60
        if free > border or (free == border and rest > 0) then return nil, start + 1 end
        free, rest, stored, part = take(rule, free, rest, stored, part, at, permits[entry])
      end
      entry = entry + 1
    end
    return cost
  end

  local function room(running, search, cost)
    local rule, at, free, rest = running.rule, search.at, running.free, running.rest
    local from = max(free - rule.cell, 0) + (rest > 0 and 1 or 0)
    if from > at then return nil, cell_from(from, rule.cell) end
    local stored, part
    work.done = work.done + 60
    free, rest, stored, part = take(rule, free, rest, running.stored, running.part, at, cost)
    if search.entered < search.timeline.size then return room_among_later(rule, free, rest, stored, part, search, cost) end
    local border = at + rule.cell
    if free > border or (free == border and rest > 0) then return cost end
    return cost + cost + permits_until(rule, free, rest, stored, part, at, border)
  end

  local function parse(rule, text)
    local warm_up, cold = string.match(text, "(%d+) (%d+)")
    warm_up, cold = tonumber(warm_up), tonumber(cold)
    rule.capacity, rule.warm_up, rule.parts, rule.inflow = 1, warm_up, 2 * (1 + cold), 5 + cold
    rule.threshold, rule.stored_max = warm_up * (1 + cold), warm_up * (5 + cold)
    rule.slope, rule.below = cold - 1, 16 * (1 + cold)
    -- A booking may make later ones cheaper.
    rule.skips_room = true
  end

  local function rare()
    local function take_late(rule, checkpoint, at, permits)
      local folded = checkpoint[5]
      if at > folded then return checkpoint end
      local free, rest, stored, part = take(rule, checkpoint[1], checkpoint[2], checkpoint[3], checkpoint[4], at, permits)
      return { free, rest, stored, part, folded }
    end

    local function missing(rule, checkpoint)
      local free, rest, folded = checkpoint[1], checkpoint[2], checkpoint[5]
      local permits = permits_between(rule, folded, 0, free, rest)
      if free > folded or (free == folded and rest > 0) then permits = permits + 1 end
      return permits, folded
    end

    local function lacking(rule, at, permits)
      local span, rest = span_exact(rule, permits)
      return { at + span, rest, rule.stored_max, 0, at }
    end

    return {
      take_late = take_late,
      missing = missing,
      lacking = lacking,
      is_emptier = function(one, other) return one[1] > other[1] or (one[1] == other[1] and one[2] >= other[2]) end,
    }
  end

  return setmetatable({
    CHECKPOINT_SIZE = 5,
    parse = parse,
    spacing = span_exact,
    separates = false,
    start = function(rule, _, checkpoint)
      return {
        rule = rule, free = checkpoint[1], rest = checkpoint[2], stored = checkpoint[3], part = checkpoint[4], folded = checkpoint[5],
      }
    end,
    advance = advance,
    room = room,
    take = function(running, search, permits)
      work.done = work.done + 60
      running.free, running.rest, running.stored, running.part =
        take(running.rule, running.free, running.rest, running.stored, running.part, search.at, permits)
    end,
    available = available,
    expires = expires,
    fold = fold,
    rare = rare,
  }, Lazy)
end
