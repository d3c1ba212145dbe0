-- queue_order.lua: keeps the bookings of one queue in order, and its refusals apart.
--
-- Twin of src/limiter/arithmetic/queue_order.rs. Stored as one MessagePack array of the fields:
--   last        the last booked slot: a new one lies no earlier, unless it takes room that was given back
--   freed_at    the earliest instant of room given back before `last`; `freed_permits`: how many permits of it are left
--   generation  the sum of the generations of the queue's limiters when `last` was booked
--   advised     the instant advised to the next refused caller, unless its slot is later
--   reviewed    when the advised instants were last compared with the callers that came; `expected`: the permits that could
--               have been booked since; `booked`: how many were, less those given back
--   calls       { replica, call, at, answer or "", ... } the last call of each replica; with 0, followed, advised, "" in front: the
--               permits by which callers that were refused alone have moved the advised instant since the review. They stand here
--               because earlier versions know the row by its length, and keep what is in this list until its instant.

local QueueOrder
do
  local function load(key, text)
    local row = Store.read(key, text, 9) or { 0, 0, 0, 0, 0, 0, 0, 0, {} }
    local calls, followed = row[9], 0
    if calls[1] == 0 then
      followed = calls[2]
      for _ = 1, 4 do table.remove(calls, 1) end
    end
    return {
      last = row[1], freed_at = row[2], freed_permits = row[3], generation = row[4], advised = row[5],
      reviewed = row[6], expected = row[7], booked = row[8], followed = followed, calls = calls,
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

  -- Notes booked requests. Nobody stands behind those that did not wait for room. Returns whether they passed by room that a smaller cost
  -- may take.
  local function booked(order, slot, count, cost, has_waited)
    order.booked = order.booked + count * cost
    local searched, has_freed = order.freed_permits >= cost, order.freed_permits > 0
    if searched and slot < order.last then order.freed_permits = order.freed_permits - count * cost end
    if searched and cost == 1 then
      -- Where the smallest cost finds no room there is none.
      order.freed_at = slot
      if slot >= order.last then order.freed_permits = 0 end
    end
    if has_waited then order.last = max(order.last, slot) end
    return has_freed and cost > 1 and slot > order.freed_at
  end

  -- Brings an order to `now`. After a change of the limits the bookings have new places, which keep the order.
  local function open(order, now, states)
    local generation = 0
    for index = 1, #states do generation = generation + states[index].generation end
    if generation ~= order.generation then
      order.last, order.freed_at, order.freed_permits, order.generation = 0, 0, 0, generation
      order.advised, order.reviewed, order.expected, order.booked, order.followed = 0, 0, 0, 0, 0
    end
    if order.last <= now then order.freed_permits = 0 end
    if order.advised > now then
      QueueOrder.review_spread(order, now, states)
    else
      order.reviewed, order.expected, order.booked, order.followed = now, 0, 0, 0
    end
  end

  -- Returns the earliest instant of room before the last slot, and how many permits; 0, 0: there is none.
  local function freed(order)
    if order.freed_permits > 0 and order.freed_at < order.last then return order.freed_at, order.freed_permits end
    return 0, 0
  end

  -- How long an answer is kept for a repeated call.
  local CALL_KEPT = 1000000

  -- Writes an order, and the answer to a call of a replica; the call 0 is not kept.
  local function keep(key, was, order, now, replica, call, answer)
    -- How many bytes of an answer are kept at most.
    local ANSWER_MAX = 8192
    local calls, kept, size = order.calls, {}, 0
    if order.followed > 0 then kept, size = { 0, order.followed, order.advised, "" }, 4 end
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

    -- Returns the longer of a time and that between two reviews under a rule: callers who wait for whole seconds come back unevenly, and
    -- some permits must have come.
    local function reviewed_every(every, rule)
      local REVIEW_MIN, REVIEW_PERMITS = 5000000, 8
      return max(every, REVIEW_MIN, (Rule.span_exact(rule, REVIEW_PERMITS)))
    end

    -- Returns the instant advised to the first of `count` requests of new callers that are refused with that cost, and whether each
    -- further one is advised a later instant. They are a crowd if the call refuses several new callers.
    local function advise(order, now, slot, cost, count, is_crowd, rule)
      -- How far beyond the true delay a refusal may send a caller, unless its window is longer.
      local SPREAD_MIN = 120000000
      local furthest = slot + max(rule.window, SPREAD_MIN)
      local first = min(max(order.advised, slot), furthest)
      local is_vouched_for = order.advised > slot and order.booked >= order.followed + cost
      if count == 0 or not (is_crowd or is_vouched_for) then return first, false end
      order.advised = min(first + rule.algorithm.spacing(rule, count * cost), furthest)
      if not is_crowd then order.followed = order.followed + count * cost end
      -- Nobody can come back before the slot.
      if slot > now + reviewed_every(0, rule) then order.reviewed, order.expected = max(order.reviewed, slot), 0 end
      return first, true
    end

    -- Brings advised instants closer where fewer callers came back than were expected. `states` are the queue's.
    local function review_spread(order, now, states)
      local every = 0
      for _, state in ipairs(states) do
        for _, rule in ipairs(state.rules) do every = reviewed_every(every, rule) end
      end
      if now < order.reviewed + every then return end
      if order.booked + floor(order.booked / 3) < order.expected then
        order.advised = now + floor((order.advised - now) / 1024) * floor(order.booked * 1024 / order.expected)
      end
      local soon, expected = min(order.advised - now, every), nil
      for _, state in ipairs(states) do
        for _, rule in ipairs(state.rules) do
          local permits = floor(soon * rule.rate / rule.window)
          expected = min(expected or permits, permits)
        end
      end
      order.reviewed, order.expected, order.booked, order.followed = now, expected, 0, 0
    end

    -- Lets an order live on that has answered a repeated call. With a write by its own connection `WAIT` speaks of that answer, too.
    local function answered_again(key, order, now)
      Store.renew(key, now, max(order.last, order.advised, now + CALL_KEPT))
    end

    return { given_back = given_back, answered_again = answered_again, advise = advise, review_spread = review_spread }
  end

  QueueOrder = setmetatable({
    load = load, answered = answered, open = open, floor_of = floor_of, count_at = count_at, booked = booked, freed = freed,
    keep = keep, rare = rare,
  }, Lazy)
end
