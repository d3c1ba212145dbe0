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

  -- The most bookings that one move of a search passes.
  local WAY_MAX = 500

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
  local function take_each(rule, tat, rest, timeline, first, final)
    local entries, permits, rate, same = timeline.at, timeline.permits, rule.rate, nil
    local more, more_rest
    work.done = work.done + 17 * max(final - first + 1, 0)
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

  -- Returns `tat` and `rest` with the bookings of some entries taken in, page by page where they are many. The rule is in force.
  local function take_all(rule, tat, rest, timeline, rules, first, final)
    if final - first < Pages.FAR or timeline.size <= Timeline.LONG then return take_each(rule, tat, rest, timeline, first, final) end
    local last, rate = timeline.at[final], rule.rate
    local starts, rows = Pages.of(timeline, rules, rule)
    local page = max(Pages.find(starts, timeline.at[first]), 1)
    if starts[page + 1] and starts[page + 1] <= last then
      tat, rest = take_each(rule, tat, rest, timeline, first, first_from(timeline, starts[page + 1]) - 1)
      page = page + 1
      while starts[page + 1] and starts[page + 1] <= last do
        local row = rows[page]
        if row == 0 then row = Pages.sum(timeline, rules, rule, starts, rows, page, tolerance) end
        tat, rest = tat + row[1], rest + row[2]
        if rest >= rate then tat, rest = tat + 1, rest - rate end
        if tat < row[3] or (tat == row[3] and rest < row[4]) then tat, rest = row[3], row[4] end
        page = page + 1
      end
      work.done = work.done + 25 * page
      first = first_from(timeline, starts[page])
    end
    return take_each(rule, tat, rest, timeline, first, final)
  end

  local function fold(rule, timeline, checkpoint, till)
    local folded = checkpoint[3]
    if folded >= till then return checkpoint end
    local first, final = first_from(timeline, folded + 1), first_from(timeline, till + 1) - 1
    local tat, rest = take_each(rule, checkpoint[1], checkpoint[2], timeline, first, final)
    return { tat, rest, till }
  end

  local function available(rule, timeline, now, checkpoint)
    checkpoint = fold(rule, timeline, checkpoint or { 0, 0, 0 }, now)
    local tat, rest = checkpoint[1], checkpoint[2]
    if tat < now or (tat == now and rest == 0) then return rule.capacity end
    local lacks = ((tat - now) * rule.rate + rest) / rule.window
    return max(rule.capacity - ceil(lacks * SURE), 0)
  end

  local function expires(rule, timeline, checkpoint, rules, now)
    local last, tat, rest = timeline.at[timeline.size], checkpoint[1], checkpoint[2]
    if last then
      local first = first_from(timeline, checkpoint[3] + 1)
      tat, rest = take_all(rule, tat, rest, timeline, rules, first, timeline.size)
    end
    local full, from = tat + (rest > 0 and 1 or 0), max(now, last or 0)
    local lacking = full > from and permits_until(rule, from, 0, tat, rest) + 1 or 0
    return last and max(full, last + rule.window) or full, lacking
  end

  local function advance(running, search, before)
    local entered = search.entered
    if entered == before then return end
    local timeline, first = search.timeline, before + 1
    if timeline.at[first] <= running.folded then first = first_from(timeline, running.folded + 1) end
    running.tat, running.rest = take_all(running.rule, running.tat, running.rest, timeline, search.rules, first, entered)
  end

  -- A way over that many later bookings is worth remembering.
  local FAR = 16

  -- Notes how late the bucket may be full again at each of some later bookings. Whoever leaves it as late there keeps all of them: from
  -- then on an arrival time that is later by a span makes no other one later by more. `way` is what a way over them saw: instants, arrival
  -- times and borders; `spare` is what it left at its end.
  local function note_latest(rule, running, way, spare, spare_rest)
    local latest, latest_rest, rate = running.latest or {}, running.latest_rest or {}, rule.rate
    running.latest, running.latest_rest = latest, latest_rest
    work.done = work.done + 8 * #way
    for place = #way - 4, 1, -5 do
      local at, tat, rest = way[place], way[place + 1], way[place + 2]
      local micros, parts = way[place + 3] - tat, way[place + 4] - rest
      if parts < 0 then micros, parts = micros - 1, parts + rate end
      if not spare or micros < spare or (micros == spare and parts < spare_rest) then spare, spare_rest = micros, parts end
      latest[at], latest_rest[at] = add(rule, tat, rest, spare, spare_rest)
    end
  end

  -- Returns the room beside the later bookings, of which there are some, with the bucket as it is after `cost` was taken; or nil and the
  -- next instant worth trying. Bookings that a search makes lie before the later ones, so that what it has seen of those stays true:
  -- `latest` has an arrival time for bookings by their instant. Where all bookings of a page have room, and the bucket is not full before
  -- any of them, they are passed at once.
  local function room_among_later(running, search, cost, found, tat, rest)
    local rule, timeline, rules = running.rule, search.timeline, search.rules
    local entries, permits, size, cell, first = timeline.at, timeline.permits, timeline.size, rules.cell, search.entered + 1
    local rate, same, beyond, beyond_rest, span, span_rest = rule.rate, nil, nil, nil, nil, nil
    local latest, latest_rest, way, seen, spare, spare_rest = running.latest, running.latest_rest, {}, 0, nil, nil
    local starts, rows, page, edge = nil, nil, nil, nil
    if size - first >= Pages.FAR and size > Timeline.LONG then
      starts, rows = Pages.of(timeline, rules, rule)
      page = max(Pages.find(starts, entries[first]), 1)
      edge = starts[page + 1]
    end
    local entry = first
    while entry <= size do
      local at = entries[entry]
      -- At the beginning of a page, pages are passed.
      while edge and at >= edge do
        page = page + 1
        local next_edge = starts[page + 1]
        local till = latest and latest[edge]
        if not next_edge or (till and (tat < till or (tat == till and rest <= latest_rest[edge]))) then
          edge, at = next_edge, till and edge or at
          break
        end
        local row = rows[page]
        if row == 0 then row = Pages.sum(timeline, rules, rule, starts, rows, page, tolerance) end
        local border, border_rest = row[7], row[8]
        if tat < row[5] or (tat == row[5] and rest <= row[6]) or tat > border or (tat == border and rest > border_rest) then
          entry = first_from(timeline, edge)
          edge, at = next_edge, entries[entry]
          break
        end
        if found > cost then found = min(found, cost + permits_until(rule, tat, rest, border, border_rest)) end
        way[seen + 1], way[seen + 2], way[seen + 3], way[seen + 4], way[seen + 5] = edge, tat, rest, border, border_rest
        seen = seen + 5
        tat, rest = tat + row[1], rest + row[2]
        if rest >= rate then tat, rest = tat + 1, rest - rate end
        edge, at = next_edge, next_edge
        entry = nil
      end
      entry = entry or first_from(timeline, at)
      if latest then
        local till = latest[at]
        if till and (tat < till or (tat == till and rest <= latest_rest[at])) then
          found, spare, spare_rest = cost, till - tat, latest_rest[at] - rest
          if spare_rest < 0 then spare, spare_rest = spare - 1, spare_rest + rate end
          break
        end
      end
      at = entries[entry]
      local start, count = at - at % cell, permits[entry]
      if count > 0 then
        if count ~= same then
          same = count
          beyond, beyond_rest = tolerance(rule, count)
          span, span_rest = span_exact(rule, count)
        end
        local border = start + beyond
        if tat > border or (tat == border and rest > beyond_rest) then
          work.done = work.done + 12 * seen
          return nil, start + 1
        end
        if found > cost then found = min(found, cost + permits_until(rule, tat, rest, border, beyond_rest)) end
        way[seen + 1], way[seen + 2], way[seen + 3], way[seen + 4], way[seen + 5] = at, tat, rest, border, beyond_rest
        seen = seen + 5
        if tat < start or (tat == start and rest == 0) then
          -- The bucket is full again before: later bookings do not depend on this one.
          if found > cost then found = min(found, cost + permits_until(rule, tat, rest, start, 0)) end
          spare, spare_rest = start - tat, -rest
          if spare_rest < 0 then spare, spare_rest = spare - 1, spare_rest + rate end
          break
        end
        if tat < at then tat, rest = at, 0 end
        tat, rest = tat + span, rest + span_rest
        if rest >= rate then tat, rest = tat + 1, rest - rate end
      end
      entry = entry + 1
    end
    work.done = work.done + 12 * seen
    if seen > 5 * FAR then note_latest(rule, running, way, spare, spare_rest) end
    return found
  end

  -- Returns the first instant from `at` on at which neither the bucket nor the next booking is in the way of `cost`, or an earlier one if
  -- that is far. There is no room before. A request of several permits may pass hundreds of bookings that are too near to each other.
  local function next_gap(running, search, cost, at)
    local rule, timeline, cell, entered = running.rule, search.timeline, search.rules.cell, search.entered
    local final = min(entered + WAY_MAX, timeline.size)
    if entered == final then return at end
    local entries, permits, folded, rate = timeline.at, timeline.permits, running.folded, rule.rate
    local tat, rest, same = running.tat, running.rest, nil
    local beyond, beyond_rest = tolerance(rule, cost)
    local span, span_rest = span_exact(rule, cost)
    local more, more_rest, later, later_rest
    while true do
      local till = at - at % cell + cell
      while entered < final and entries[entered + 1] < till do
        entered = entered + 1
        local entry, count = entries[entered], permits[entered]
        if entry > folded then
          if count ~= same then
            more, more_rest = span_exact(rule, count)
            later, later_rest = tolerance(rule, count)
            same = count
          end
          if tat < entry then tat, rest = entry, 0 end
          tat, rest = tat + more, rest + more_rest
          if rest >= rate then tat, rest = tat + 1, rest - rate end
        end
      end
      local from = max(tat - beyond, 0) + (rest > beyond_rest and 1 or 0)
      if from > at then
        at = cell_from(from, rule.cell)
        if entered == final then break end
      else
        local count = permits[entered + 1]
        if entered == final or count == 0 then break end
        if count ~= same then
          more, more_rest = span_exact(rule, count)
          later, later_rest = tolerance(rule, count)
          same = count
        end
        local after, after_rest, start = max(tat, at) + span, span_rest + (tat < at and 0 or rest), entries[entered + 1]
        if after_rest >= rate then after, after_rest = after + 1, after_rest - rate end
        start = start - start % cell
        if after < start + later or (after == start + later and after_rest <= later_rest) then break end
        at = start + 1
      end
    end
    work.done = work.done + 40 + 20 * (entered - search.entered)
    return at
  end

  local function room(running, search, cost)
    local rule, timeline, at = running.rule, search.timeline, search.at
    local tat, rest = running.tat, running.rest
    local beyond, beyond_rest = tolerance(rule, cost)
    local from = max(tat - beyond, 0) + (rest > beyond_rest and 1 or 0)
    if from > at then return nil, next_gap(running, search, cost, cell_from(from, rule.cell)) end
    tat, rest = take(rule, tat, rest, at, cost)
    local found = cost
    local border, border_rest = add(rule, at, 0, beyond, beyond_rest)
    if tat < border or (tat == border and rest <= border_rest) then
      found = found + cost + permits_until(rule, tat, rest, border, border_rest)
    end
    if search.entered == timeline.size then return found end
    local free, next_at = room_among_later(running, search, cost, found, tat, rest)
    if free then return free end
    return nil, next_gap(running, search, cost, next_at)
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
    start = function(rule, _, checkpoint)
      return { rule = rule, tat = checkpoint[1], rest = checkpoint[2], folded = checkpoint[3] }
    end,
    advance = advance,
    room = room,
    take = function(running, search, permits)
      running.tat, running.rest = take(running.rule, running.tat, running.rest, search.at, permits)
    end,
    available = available,
    expires = expires,
    fold = fold,
    rare = rare,
  }, Lazy)
end
