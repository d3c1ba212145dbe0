-- reserve.lua: give back, reschedule and book permits for the requests of one queue, in one step.
-- Twin of src/limiter/arithmetic/reserve.rs. A script and not MULTI/EXEC: a slot depends on what is read in the same step.
-- KEYS[1..n]   the states of the n limiters that the queue needs, all at once
-- KEYS[n + 1]  the order of the queue
-- KEYS[n + 2]  the epoch
-- KEYS[n + 3]  the epoch of the earlier layout
-- KEYS[n + 4]  until when each state lives
-- KEYS[n + 5]  when bookings of a state were last moved; the states of the n limiters in the earlier layout follow
-- ARGV[1]      MessagePack values, one after the other; all times in microseconds
--   given_now         0: this server's clock; anything else is for tests
--   lease             how long a changed limit leaves its bookings where they are
--   replica           the calling replica
--   call              the number of this call among those of the replica; 0: it is never repeated
--   known_epoch       the latest epoch that the caller knows
--   run               the server's run as the caller knows it; empty: unknown; `?`: to be found out
--   settle            how long a new epoch takes to open; 0: there are no epochs
--   channel           the channel on which freed room is announced; none if empty
--   callers           of each limiter, as the caller knows it: its rules as text and the generation, by turns
--   given_back        permits that are not needed: slot, cost and count by turns
--   reschedule        void permits to be moved to their new places: slot, cost and count by turns, ascending
--   reschedule_wait   the longest wait for a new place
--   runs              new requests in their order: cost, longest wait and count by turns
--   replacing_runs    how many of the first runs ask in place of slots that are lost: those are no new callers
--   prefetching_runs  how many of the last runs are booked in advance: nobody asks for them
--   lead              how far ahead of now they are booked at least, but no further than they wait: the answer takes so long
--   queue_slots_left  how many of them may be given a slot in the future
--   refusal_budget    how many requests like the first refused one that is spread the caller may refuse without asking
--   taken_back_until  until when permits are taken back, 0: at any time. A call that comes later may have been carried out before, longer ago
--                     than is remembered: what it gives back counts as used
-- Returns      one MessagePack array:
--              { { now, epoch, when it opens or 0, last reset or 0, memory },
--                { { generation, void_from, previous generation, { available permits of each rule }, paused until or 0, 1 if replicas
--                declare different limits, the most permits that a rule which spaces them lacks, at once or behind the last booking }
--                of each limiter },
--                the last booked instant or 0, { the earliest freed room before the last slot, its permits } or zeros,
--                { { count, slot or 0 for none within the wait } of the rescheduled permits },
--                { { count, slot } where booked, else { count, 1: too far or 2: queue full, delay, advised delay, 1 if each further
--                one is advised more, limiter, rule } } }
--              Requests for which the call would take too long are left out at the end: they come with the next call.
--              While bookings of a state are being moved nothing is rescheduled or booked: the caller asks again. Nor is before an epoch opens. A repeated call is answered again and not carried out twice.
-- Atomic:      all keys carry one hash tag, so one cluster slot
-- Expiry:      every key when nothing in it can matter any more, never earlier

local given_now, lease, replica, call, known_epoch, run, settle, channel, callers, given_back, reschedule, reschedule_wait, runs,
  replacing_runs, prefetching_runs, lead, queue_slots_left, refusal_budget, taken_back_until = cmsgpack.unpack(ARGV[1])
local limiters = #callers / 2
local order_key, epoch_key, earlier_key, live_key, moved_key = unpack(KEYS, limiters + 1, limiters + 5)
local now, stored = Store.now(given_now), redis.call("MGET", unpack(KEYS, 1, limiters + 3))
if stored[limiters + 3] then Earlier.open(earlier_key, stored[limiters + 3], limiters + 6, 1) end

local epoch = Epoch.open(epoch_key, stored[limiters + 2], now, known_epoch, run, settle, replica > 0 and replica or nil, live_key)

-- ---- load ----

-- Where a call loads several states, each of them is long sooner. What a further one takes in any case.
local STATE_WORK = 3000
if limiters > 1 then
  Timeline.LONG, work.done = floor(Timeline.LONG / limiters), STATE_WORK * (limiters - 1)
end
local done_before = work.done

local states, own_rules, is_moving
states, own_rules, is_moving, epoch = Open.all(stored, epoch, now, callers, lease, replica, settle, live_key)
local settles = now < epoch.opens
if is_moving then
  -- A call that has moved so much does nothing else. It moves fewer where it gives permits back in many places.
  local MOVED_MAX, MOVING_LEAST, BACK = 20000, 5000, 80
  local moving_max = max(Reschedule.MOVING_MAX - BACK * #given_back * limiters, MOVING_LEAST)
  Reschedule.go_on(states, now, Reschedule.join(states, now, lease) and 0 or moving_max)
  is_moving = work.done > done_before + MOVED_MAX
  for index = 1, limiters do is_moving = is_moving or states[index].timeline.moving ~= nil end
end

local order = QueueOrder.load(order_key, stored[limiters + 1])
local answered = QueueOrder.answered(order, replica, call)
if answered == "" then return redis.error_reply("REPEATED the call was carried out before") end
if answered then
  QueueOrder.answered_again(order_key, order, now)
  return answered
end
QueueOrder.open(order, now, states)
if taken_back_until > 0 and now > taken_back_until then given_back = {} end

-- ---- steps over all limiters of the queue ----

-- Takes permits back from every limiter. Returns where they have left room; nil where a limiter still has them booked.
local function give_back(slot, permits)
  local place, is_lost
  for index = 1, limiters do
    local cursor = Reschedule.cursor(states[index], slot, callers[2 * index])
    local moved = Reschedule.give_back_at(cursor, permits)
    if moved and (not place or moved > place) then place = moved end
    if not cursor.is_here and not cursor.index then is_lost = true end
  end
  if is_lost then return nil end
  return place or slot
end

-- Returns searches over all limiters, or over some of them.
local function searches_from(at, chosen)
  local searches = {}
  for index = 1, limiters do
    if not chosen or chosen[index] then searches[#searches + 1] = Search.new(states[index], at) end
  end
  return searches
end

-- Returns the same for permits that have had a place, which the pauses need not space once more.
local function searches_for_moved(at, chosen)
  local searches = searches_from(at, chosen)
  for index = 1, #searches do
    local search = searches[index]
    if search.pause.paced_until > 0 then search.pause = Pause.unpaced(search.pause) end
  end
  return searches
end

local function charge(searches, permits)
  for index = 1, #searches do Search.charge(searches[index], permits) end
end

-- ---- give back ----

-- How many permits the caller exchanges for others, and has no others for yet.
local exchanged = 0

for index = 1, #given_back, 3 do
  local slot, permits = given_back[index], given_back[index + 1] * given_back[index + 2]
  exchanged, work.done = exchanged + permits, work.done + 80 + 120 * limiters
  local place = give_back(slot, permits)
  if place then QueueOrder.given_back(order, now, place, permits) end
end

-- ---- reschedule: at the place that the change kept for a permit, or no earlier than that ----

local rescheduled, is_rescheduled = {}, true

if #reschedule > 0 and not settles and not is_moving then
  local function answer(count, at)
    order.last = max(order.last, at)
    local row = rescheduled[#rescheduled]
    if row and row[2] == at then row[1] = row[1] + count else rescheduled[#rescheduled + 1] = { count, at } end
  end

  -- The limiters that do not have the void permits booked any more, because nothing has moved there and they were given back.
  local bare, has_bare = {}, false
  for index = 1, limiters do
    bare[index] = not Reschedule.knows(states[index], callers[2 * index])
    has_bare = has_bare or bare[index]
  end

  -- Claims the place of a void permit, which lies behind so many others of its slot, and returns it; nil unless every limiter that has
  -- the permit booked has moved it to the same place.
  local function claim(cursors, cost, offset)
    local place, is_common = nil, true
    for index = 1, limiters do
      if not bare[index] then
        local to, permits = Reschedule.seek(cursors[index], offset)
        if not to or permits < cost or to < now or to - now > reschedule_wait or (place and place ~= to) then is_common = false end
        place = to
      end
    end
    if not is_common or not place then return nil end
    for index = 1, limiters do
      if not bare[index] then Reschedule.claim(cursors[index], cost) end
    end
    return place
  end

  -- Takes a void permit back from every limiter. Returns the earliest place for it.
  local function take_back(cursors, cost)
    local place = nil
    for index = 1, limiters do
      local to = Reschedule.give_back_at(cursors[index], cost)
      if to and (not place or to > place) then place = to end
    end
    return place
  end

  -- { count, place, cost, kind } by turns, where equal ones are one.
  local steps, CLAIMED, TAKEN_BACK = nil, 1, 2
  local function note(count, place, cost, kind)
    local size = #steps
    if size > 0 and steps[size] == kind and steps[size - 1] == cost and steps[size - 2] == place then
      steps[size - 3] = steps[size - 3] + count
    else
      steps[size + 1], steps[size + 2], steps[size + 3], steps[size + 4] = count, place, cost, kind
    end
  end

  -- First every permit of a group claims its place, or is taken back. Only then those that were taken back are booked, all in one search,
  -- so that none of them stands in the way of another.
  local function claim_group(group)
    for first = 1, #group, 3 do
      local slot, cost, count = group[first], group[first + 1], group[first + 2]
      local cursors, left = {}, nil
      for index = 1, limiters do
        local cursor = Reschedule.cursor(states[index], slot, callers[2 * index])
        if cursor.index then left = min(left or cursor.left, cursor.left) end
        cursors[index] = cursor
      end
      for index = 0, count - 1 do
        -- Several replicas hold permits of one slot. Where these lie apart now, each replica takes some from the whole stretch.
        local offset = max(floor((2 * index + 1) * (left or 0) / (2 * count)), index * cost)
        local place = claim(cursors, cost, offset)
        if place then
          order.last = max(order.last, place)
          note(1, place, cost, CLAIMED)
        else
          note(1, take_back(cursors, cost) or 0, cost, TAKEN_BACK)
        end
      end
      work.done = work.done + limiters * (150 + 100 * count)
    end
  end

  -- Searches over the bare limiters, for all groups, as long as nothing else changes their bookings.
  local bare_searches

  -- Books claimed permits in the bare limiters, too. Where those have no room at the same instant, they are taken back.
  local function book_in_bare()
    local claimed = steps
    steps = {}
    for first = 1, #claimed, 4 do
      local left, place, cost, kind = claimed[first], claimed[first + 1], claimed[first + 2], claimed[first + 3]
      while left > 0 and kind == CLAIMED do
        if not bare_searches or place < bare_searches[1].at then bare_searches = searches_for_moved(place, bare) end
        local searches = bare_searches
        for index = 1, #searches do Search.advance(searches[index], place) end
        local room = Search.room_of(searches, cost)
        if room then
          local count = max(min(left, floor(room / cost)), 1)
          charge(searches, count * cost)
          note(count, place, cost, CLAIMED)
          left = left - count
        else
          for index = 1, limiters do
            if not bare[index] then Timeline.uncharge(states[index].timeline, states[index].rules, place, left * cost) end
          end
          kind = TAKEN_BACK
        end
      end
      if left > 0 then note(left, place, cost, kind) end
    end
  end

  -- Moves searches to the place of a permit that was taken back. Where several limiters are asked, other permits that are still to be claimed,
  -- and may be moved again then, stand in the way in each of them: one that has no room at once goes behind all others, and from there to
  -- room that others leave. Returns the place and the room.
  local function place_of(searches, cost)
    if limiters > 1 then
      local room, last = Search.room_of(searches, cost), 0
      if room then return searches[1].at, room end
      for index = 1, limiters do last = max(last, states[index].timeline.at[states[index].timeline.size] or 0) end
      for index = 1, limiters do Search.advance(searches[index], last) end
    end
    return Search.earliest_of(searches, cost)
  end

  local function book_group()
    -- `passed` is the largest cost for which the search has passed by room: a smaller one is searched for anew.
    local searches, passed = nil, 0
    for first = 1, #steps, 4 do
      local left, from, cost = steps[first], steps[first + 1], steps[first + 2]
      if steps[first + 3] == CLAIMED then
        answer(left, from)
        left = 0
      end
      from = max(now, from > 0 and from or order.last)
      if left > 0 and (not searches or cost < passed) then searches, passed, bare_searches = searches_for_moved(from), 0, nil end
      while left > 0 do
        for index = 1, limiters do Search.advance(searches[index], from) end
        local at, room = place_of(searches, cost)
        if at > from then passed = max(passed, cost) end
        if at - now > reschedule_wait then
          answer(left, 0)
          break
        end
        local count = max(min(left, floor(room / cost)), 1)
        charge(searches, count * cost)
        answer(count, at)
        left = left - count
      end
    end
  end

  -- The permits of one limiter that go together; of several limiters each takes its part of fewer, and some go together in any case. What a
  -- call leaves once it has done so much goes with the next one.
  local TOGETHER, TOGETHER_OF_SEVERAL, TOGETHER_LEAST, RESCHEDULED_MAX = 32, 20, 2, 40000
  local size, first, of_first = limiters == 1 and TOGETHER or max(floor(TOGETHER_OF_SEVERAL / limiters), TOGETHER_LEAST), 1, 0
  while first <= #reschedule and is_rescheduled do
    local group, space, largest = {}, size, 0
    while space > 0 and first <= #reschedule do
      -- A cost that is smaller than one before is searched for anew: those are few.
      if reschedule[first + 1] < largest then space = floor(space / 2) end
      if space == 0 then break end
      largest = max(largest, reschedule[first + 1])
      local count, length = min(reschedule[first + 2] - of_first, space), #group
      group[length + 1], group[length + 2], group[length + 3] = reschedule[first], reschedule[first + 1], count
      space, of_first = space - count, of_first + count
      if of_first == reschedule[first + 2] then first, of_first = first + 3, 0 end
    end
    steps = {}
    claim_group(group)
    if has_bare then book_in_bare() end
    book_group()
    is_rescheduled = first > #reschedule or work.done < RESCHEDULED_MAX
  end
  is_rescheduled = first > #reschedule
end

-- ---- book ----

local outcomes = {}

if #runs > 0 and not settles and not is_moving and is_rescheduled then
  local TOO_FAR, QUEUE_FULL = 1, 2
  -- How much a call does. What it leaves goes with the next one, so that other calls come between. Permits that the caller exchanges are
  -- booked at once, unless that takes far too long: others may take those that are left.
  local WORK_MAX, WORK_MAX_EXCHANGED = 50000, 65000
  local is_cut = false
  work.max = exchanged > 0 and WORK_MAX_EXCHANGED or WORK_MAX
  local function has_done_enough()
    return is_cut or (outcomes[1] and work.done >= work.max)
  end
  local searches, started = searches_from(now), now
  -- The largest cost for which the search has passed by room: a smaller one may be booked before.
  local passed = 0
  -- How many requests of new callers are refused.
  local refused = 0
  for first = 1, #runs, 3 do
    if has_done_enough() then break end
    local cost, wait_max, left = runs[first], runs[first + 1], runs[first + 2]
    local start = now + min(lead, wait_max)
    if cost < passed or start < started then searches, passed = searches_from(start), 0 end
    started = start
    local booked_at
    while left > 0 and not has_done_enough() do
      local from = max(start, QueueOrder.floor_of(order, cost))
      for limiter = 1, limiters do Search.advance(searches[limiter], from) end
      local at, free, limiter, limit = Search.earliest_of(searches, cost)
      is_cut = not at
      if is_cut then break end
      limit = limit or 1
      local code = at > now and (at - now > wait_max and TOO_FAR or queue_slots_left == 0 and QUEUE_FULL) or nil
      if code then
        local rules = states[limiter].rules
        if #rules > 1 then
          -- The rule that has no room right before. Which one moved a search last depends on where that began. Where all have room, the state
          -- is closed until its shortest rule is whole.
          local search = Search.new(states[limiter], at - 1)
          limit = Rule.shortest(rules)
          for place = #rules, 1, -1 do
            if not rules[place].algorithm.room(search.running[place], search, cost) then limit = place end
          end
        end
        local rule = rules[limit]
        local is_new = first > 3 * replacing_runs and first <= #runs - 3 * prefetching_runs
        if is_new then refused = refused + left end
        local advised, is_spread =
          QueueOrder.advise(order, now, at, cost, is_new and left + refusal_budget or 0, refused > 1, rule)
        if is_spread then refusal_budget = 0 end
        local own = Rule.position(own_rules[limiter], rule) or 1
        outcomes[#outcomes + 1] = { left, code, at - now, advised - now, is_spread and 1 or 0, limiter - 1, own - 1 }
        passed = max(passed, cost)
        break
      end
      local count = max(QueueOrder.count_at(order, at, cost, min(left, floor(free / cost))), 1)
      if at > now then
        count = min(count, queue_slots_left)
        queue_slots_left = queue_slots_left - count
      end
      charge(searches, count * cost)
      -- One that is only booked as far ahead as its answer takes is in nobody's way where there is room before.
      if QueueOrder.booked(order, at, count, cost, at > start) then passed = max(passed, cost) end
      if booked_at == at then
        outcomes[#outcomes][1] = outcomes[#outcomes][1] + count
      else
        outcomes[#outcomes + 1] = { count, at }
        booked_at = at
      end
      left, exchanged, work.done = left - count, exchanged - count * cost, work.done + 100
      if exchanged <= 0 then work.max = WORK_MAX end
    end
  end
end

-- ---- store and answer ----

local rows, last_booked, lives_until = State.keep_all(states, own_rules, stored, now, live_key, moved_key, epoch)
local freed_at, freed_permits = QueueOrder.freed(order)
if freed_permits > 0 and #given_back > 0 and channel ~= "" then
  -- Replicas that hold later slots give them back and book the freed permits. A replica that misses the announcement loses only time.
  redis.pcall("PUBLISH", channel, string.format("%s %.0f %.0f", order_key, freed_at, freed_permits))
end
local answer = cmsgpack.pack({
  Epoch.answer(epoch, now), rows, last_booked, { freed_at, freed_permits }, rescheduled, outcomes,
})
QueueOrder.keep(order_key, stored[limiters + 1], order, now, replica, call, answer)
if settle > 0 then Epoch.keep(epoch_key, epoch, now, lives_until) end
return answer
