-- queue_order.lua: keeps the bookings of one queue in order, and its refusals apart.
--
-- Twin of src/limiter/arithmetic/queue_order.rs. Stored as one MessagePack array of the fields:
--   last        the last booked slot: a new one lies no earlier, unless it takes room that was given back
--   freed_at    the earliest instant of room given back before `last`; `freed_permits`: how many permits of it are left
--   generation  the sum of the generations of the queue's limiters when `last` was booked
--   advised     the instant advised to the next refused caller, unless its slot is later
--   reviewed    when the advised instants were last compared with the callers that came; `expected`: the permits that could
--               have been booked since; `booked`: how many were, less those given back
--   calls       { replica, call, at, answer or "", ... } the last call of each replica

local QueueOrder
do
  local function load(key, text)
    local row = Store.read(key, text, 9) or { 0, 0, 0, 0, 0, 0, 0, 0, {} }
    return {
      last = row[1], freed_at = row[2], freed_permits = row[3], generation = row[4], advised = row[5],
      reviewed = row[6], expected = row[7], booked = row[8], calls = row[9],
    }
  end

  -- Returns the answer to a call of a replica that was carried out before, "" if it was too long to be kept, or a later one was carried
  -- out since; nil for a new call.
  local function answered(order, replica, call)
    local calls = order.calls
    for index = 1, #calls, 4 do
      if call > 0 and calls[index] == replica and calls[index + 1] >= call then
        return calls[index + 1] == call and calls[index + 3] or ""
      end
    end
  end

  -- Returns the earliest place for a new request of that cost as far as the order goes.
  local function floor_of(order, cost)
    if order.freed_permits >= cost then return order.freed_at end
    return order.last
  end

  -- Returns how many requests of that cost may be booked at a slot, at most `count`.
  local function count_at(order, slot, cost, count)
    if slot < order.last then return min(count, floor(order.freed_permits / cost)) end
    return count
  end

  -- Notes booked requests. Returns whether they passed by room that a smaller cost may take.
  local function booked(order, slot, count, cost)
    order.booked = order.booked + count * cost
    local searched = order.freed_permits >= cost
    if searched and slot < order.last then order.freed_permits = order.freed_permits - count * cost end
    if searched and cost == 1 then
      -- Where the smallest cost finds no room there is none.
      order.freed_at = slot
      if slot >= order.last then order.freed_permits = 0 end
    end
    order.last = max(order.last, slot)
    return searched and cost > 1 and slot > order.freed_at
  end

  -- Brings an order to `now`. After a change of the limits the bookings have new places, which keep the order.
  local function open(order, now, states)
    local generation = 0
    for index = 1, #states do generation = generation + states[index].generation end
    if generation ~= order.generation then
      order.last, order.freed_at, order.freed_permits, order.generation = 0, 0, 0, generation
      order.advised, order.reviewed, order.expected, order.booked = 0, 0, 0, 0
    end
    if order.last <= now then order.freed_permits = 0 end
    if order.advised > now then
      QueueOrder.review_spread(order, now, states)
    else
      order.reviewed, order.expected, order.booked = now, 0, 0
    end
  end

  -- Returns the earliest instant of room before the last slot, and how many permits; 0, 0: there is none.
  local function freed(order)
    if order.freed_permits > 0 and order.freed_at < order.last then return order.freed_at, order.freed_permits end
    return 0, 0
  end

  -- Writes an order, and the answer to a call of a replica; the call 0 is not kept.
  local function keep(key, was, order, now, replica, call, answer)
    -- How long an answer is kept for a repeated call, and how many bytes of it at most.
    local CALL_KEPT, ANSWER_MAX = 1000000, 8192
    local calls, kept, size = order.calls, {}, 0
    for index = 1, #calls, 4 do
      if calls[index] ~= replica and calls[index + 2] + CALL_KEPT > now then
        for part = 0, 3 do kept[size + part + 1] = calls[index + part] end
        size = size + 4
      end
    end
    if call > 0 then
      kept[size + 1], kept[size + 2], kept[size + 3] = replica, call, now
      kept[size + 4] = #answer <= ANSWER_MAX and answer or ""
    end
    local row = {
      order.last, order.freed_at, order.freed_permits, order.generation, order.advised, order.reviewed, order.expected,
      order.booked, kept,
    }
    local expires = max(order.last, order.advised, call > 0 and now + CALL_KEPT or 0)
    Store.write(key, was, cmsgpack.pack(row), now, expires)
  end

  local function rare()
    -- Notes permits given back at a slot. They do not count as booked: a late slot that is exchanged for another is one permit.
    local function given_back(order, now, slot, permits)
      order.booked = max(order.booked - permits, 0)
      if slot < order.last and order.last > now then
        order.freed_at = order.freed_permits == 0 and slot or min(order.freed_at, slot)
        order.freed_permits = order.freed_permits + permits
      end
    end

    -- Returns the instant advised to the first of some refused callers, who need that many permits together.
    local function advise(order, slot, permits, rule)
      -- How far beyond the true delay a refusal may send a caller, unless its window is longer.
      local SPREAD_MIN = 60000000
      local spread_max = max(rule.window, SPREAD_MIN)
      local first = order.advised > slot + spread_max and slot or max(order.advised, slot)
      order.advised = slot + (first - slot + rule.algorithm.spacing(rule, permits)) % spread_max
      return first
    end

    -- Brings advised instants closer where fewer callers came back than were expected. `states` are the queue's.
    local function review_spread(order, now, states)
      -- A review comes after three windows, or after this time, but not before some permits could have been booked.
      local REVIEW_MAX, REVIEW_PERMITS = 5000000, 8
      local shortest, some = nil, 0
      for _, state in ipairs(states) do
        for _, rule in ipairs(state.rules) do
          shortest = min(shortest or rule.window, rule.window)
          some = max(some, (Rule.span_exact(rule, REVIEW_PERMITS)))
        end
      end
      local every = min(3 * shortest, max(REVIEW_MAX, some))
      if now < order.reviewed + every then return end
      if order.booked + floor(order.booked / 8) < order.expected then
        order.advised = now + floor((order.advised - now) / 1024) * floor(order.booked * 1024 / order.expected)
      end
      local soon, expected = min(order.advised - now, every), nil
      for _, state in ipairs(states) do
        for _, rule in ipairs(state.rules) do
          local permits = floor(soon * rule.rate / rule.window)
          expected = min(expected or permits, permits)
        end
      end
      order.reviewed, order.expected, order.booked = now, expected, 0
    end

    return { given_back = given_back, advise = advise, review_spread = review_spread }
  end

  QueueOrder = setmetatable({
    load = load, answered = answered, open = open, floor_of = floor_of, count_at = count_at, booked = booked, freed = freed,
    keep = keep, rare = rare,
  }, Lazy)
end
