-- deal.lua: take in the requests of a line, and deal slots to those who are next, in one step.
-- Twin of src/limiter/arithmetic/deal.rs. A script and not MULTI/EXEC: a slot depends on what is read in the same step.
-- KEYS[1..n]   the states of the n limiters that the queue needs, all at once; ceilings come last
-- KEYS[n + 1]  the line of the queue
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
--   callers           of each limiter, as the caller knows it: its rules as text and the generation, by turns
--   ceilings          how many of the last limiters are ceilings
--   ahead             how far ahead of now slots are dealt at most
--   known             the number of the last deal that the caller has taken in
--   begins            whether what the line has for the caller is dropped
--   places            how many more requests of each class may wait than those that are known
--   unused            slots that are not needed: { flow, class, slot, count, costs } of each
--   wants             all requests without a slot: { flow, class, weight, costs, { how long ago the first and the last of a group came, longest
--                     wait, count, by turns }, { how long ago those came that have left, count, by turns }, how many of the groups are known:
--                     the caller has told of them before, and they are refused no more } of each flow and cost
--   own_lead          how far ahead of now the caller's own slots begin at least, up to half of `ahead`: its answer takes so long
--   refusal_budget    how many requests like the first refused one that is spread the caller may refuse without asking
--   expected          the part of its cost that a request turns out to use of each limiter, in millionths; empty: all of it
-- Returns      one MessagePack array:
--              { { now, epoch, when it opens or 0, last reset or 0, memory },
--                { { generation, void_from, previous generation, { available permits of each rule }, paused until or 0, 1 if replicas
--                declare different limits, the most permits that a rule which spaces them lacks, at once or behind the last booking }
--                of each limiter },
--                the last booked instant or 0, the number of the last deal, when to call again or 0,
--                { { flow, class, slot, count, costs } of each slot that was dealt to the caller since the known deal },
--                { { place of the want, place of the group, count, 1: too far or 2: queue full, delay, advised delay, 1 if each further one is
--                advised more, limiter, rule } of requests that may not wait },
--                { how many permits go until the last request of each want has its own, and how long that waits at most, by turns; negative where the
--                call has looked at enough flows }, 1 if the line has forgotten the caller since the known deal, who tells of its other wants again, else 0 }
--              A repeated call is answered again and not carried out twice. Requests that it does not know are taken in by the next call.
-- Atomic:      all keys carry one hash tag, so one cluster slot
-- Expiry:      every key when nothing in it can matter any more, never earlier

local given_now, lease, replica, call, known_epoch, run, settle, callers, ceilings, ahead, known, begins, places, unused, wants,
  own_lead, refusal_budget, expected = cmsgpack.unpack(ARGV[1])
local books = #callers / 2
local limiters = books - ceilings
local line_key, epoch_key, earlier_key, live_key, moved_key = unpack(KEYS, books + 1, books + 5)
local now, stored = Store.now(given_now), redis.call("MGET", unpack(KEYS, 1, books + 3))
if stored[books + 3] then Earlier.open(earlier_key, stored[books + 3], books + 6, 1) end

local epoch = Epoch.open(epoch_key, stored[books + 2], now, known_epoch, run, settle, replica, live_key)

-- ---- load ----

-- How many permits and slots are moved or given back, in all limiters.
local taken_in = #unused * books
local states, own_rules, is_moving
states, own_rules, is_moving, epoch = Open.all(stored, epoch, now, callers, lease, replica, settle, live_key)
if is_moving then
  -- Fewer are moved where the call gives slots back, and takes in many flows.
  local MOVING_LEAST, BACK, TOLD = 5000, 250, 250
  taken_in = taken_in + Reschedule.go_on(states, now, max(Reschedule.MOVING_MAX - BACK * taken_in - TOLD * #wants, MOVING_LEAST))
  is_moving = false
  for index = 1, books do is_moving = is_moving or states[index].timeline.moving ~= nil end
end
-- Behind the beginning of an epoch all replicas have so long to name the requests that wait, of which the oldest go first.
local opens = epoch.opens
do
  local GATHERING = 60000
  if #epoch.members > Epoch.SIZE then opens = opens + GATHERING end
end
local is_closed = now < opens or is_moving

local line = Line.load(line_key, stored[books + 1], epoch.id, replica)
Line.forget(line, now, lease)
local before = Line.caller_of(line, replica)
local is_repeated = call > 0 and before ~= nil and before[3] == call
if call > 0 and before and before[3] > call then return redis.error_reply("REPEATED a later call was carried out before") end
local last_deal = line.deal
local caller = is_repeated and before or Line.hear(line, now, known, begins, call)

-- Takes the permits of a slot back from every limiter. `generations` are those under which they were dealt.
local function give_back(slot, count, costs, generation_of)
  work.done = work.done + 400 * books
  for index = 1, books do
    if costs[index] > 0 then
      Reschedule.give_back_at(Reschedule.cursor(states[index], slot, generation_of(index)), costs[index] * count)
    end
  end
end

-- Slots that lie ready and that a change of the limits has voided. Whether their replicas have heard of them only these know: who has not
-- said so when it calls has not, and its requests have no slot then; the others give theirs back themselves. A change that was missed came
-- behind the last call.
do
  local void_from
  for index = 1, books do
    local state, generation = states[index], line.generations[index]
    if generation and generation ~= state.generation then
      void_from = min(void_from or Rule.SPAN_MAX, generation == state.previous_generation and state.void_from or last_deal + lease)
    end
  end
  local known, kept = { unpack(line.generations) }, {}
  for _, dealt in ipairs(line.dealt_slots) do
    if void_from and not dealt[8] and dealt[6] >= void_from then dealt[8] = known end
    if dealt[8] and dealt[1] == replica then
      give_back(dealt[6], dealt[7], dealt[3], function(index) return dealt[8][index] or -1 end)
    else
      kept[#kept + 1] = dealt
    end
  end
  line.dealt_slots = kept
end

for class = 1, Line.CLASSES_MAX do
  local spread = line.spreads[class]
  if spread.advised > now then
    QueueOrder.review_spread(spread, now, states)
  else
    spread.reviewed, spread.expected, spread.booked, spread.followed = now, 0, 0, 0
  end
end

local new = {}
if not is_repeated then
  for _, slot in ipairs(unused) do Line.take_back(line, slot[1], slot[2], slot[4], slot[5]) end
  -- A caller whose calls are not remembered may repeat one that was carried out before the epoch began.
  local function generation_of(index)
    local generation = callers[2 * index]
    return (before or generation >= epoch.id) and generation or -1
  end
  for _, slot in ipairs(Line.together(unused)) do give_back(slot[1], slot[2], slot[3], generation_of) end
  for index = 1, #wants do new[index] = Line.reconcile(line, now, ahead, wants[index]) end
end

-- ---- searches ----

local function searches_from(at)
  local searches = {}
  for index = 1, books do searches[index] = Search.new(states[index], at) end
  return searches
end

-- Moves the searches of the limiters that a request needs to the earliest instant at which all have room. Returns it, for how many
-- requests, and the limiter and rule that moved the search there last.
local function earliest(searches, costs)
  local limiter, limit, at = 1, 1, 0
  for index = 1, books do
    if costs[index] > 0 and searches[index].at > at then at = searches[index].at end
  end
  while true do
    local count, has_moved = nil, false
    for index = 1, books do
      local cost = costs[index]
      if cost > 0 then
        local search = searches[index]
        if search.at < at then Search.advance(search, at) end
        local room, limited_by = Search.earliest(search, cost)
        if limited_by then limiter, limit = index, limited_by end
        if search.at > at then has_moved, at = true, search.at end
        local fits = floor(room / cost)
        if not count or fits < count then count = fits end
      end
    end
    if not has_moved or books == 1 then return at, max(count, 1), limiter, limit end
  end
end

-- ---- deal ----

-- How long a replica may be late with its call before it is passed over. It costs a replica that lives its turn, until it calls, and one
-- that has died what the line deals to it meanwhile.
local grace
do
  local GRACE_MIN = 100000
  grace = min(max(GRACE_MIN, floor(ahead / 2)), lease)
end

-- The earliest instant at which there is room for who is next, and the limiter and rule that it waits for; nil if nobody was turned away.
local next_at, next_violated

if not is_closed and not is_repeated and line.flows[1] then
  -- A call that has done so much deals nothing more.
  local DEALT_MAX = 35000
  local till, lead, quantum = now + ahead, nil, nil
  do
    -- A turn takes that part of what the limits grant within the time that slots are dealt ahead, one permit at least: a call takes some
    -- tens of turns at any rate, and shares are off by no more than a turn.
    local TURNS = 32
    -- How long another replica than the caller takes to hear of a slot after it has called.
    local LEAD_MAX = 30000
    lead = min(LEAD_MAX, floor(ahead / 4))
    for index = 1, limiters do
      for _, rule in ipairs(states[index].rules) do
        local granted = floor(ahead * rule.rate / rule.window)
        quantum = min(quantum or granted, granted)
      end
    end
    quantum = max(floor(quantum / TURNS), 1)
  end
  local flows, deals_left, searches_left = line.flows, nil, nil
  do
    -- The most instants at which one call deals; one less for each three flows, which cost a call something, too. The rest comes with the next one.
    local DEALS_MAX, DEALS_LEAST = 32, 12
    -- How often one call looks for room from now on again, because another replica hears of its slots sooner.
    local SEARCHES_MAX = 12
    deals_left, searches_left = max(DEALS_MAX - floor(#flows / 3), DEALS_LEAST), SEARCHES_MAX
  end
  local reaches, is_full, virtuals, heads, tags, turns = {}, {}, { 0, 0, 0, 0 }, {}, {}, nil
  local searches, stood = searches_from(now), now

  -- Returns the first run of a flow whose replica can use a slot; false if there is none, or a ceiling is in its way.
  local function head_of(flow)
    local runs = flow[5]
    for place = 1, #runs do
      local run = runs[place]
      local of = run[1]
      local reach = reaches[of]
      if reach == nil then
        reach = of == replica and now + min(own_lead, floor(ahead / 2)) or Line.reach(line, of, replica, now, grace, lead)
        if not reach or reach > till then reach = false end
        reaches[of] = reach
      end
      if reach then
        for index = limiters + 1, books do
          if is_full[index] and run[3][index] > 0 then return false end
        end
        return place
      end
    end
    return false
  end

  -- Puts a flow that may go into the order of turns of its class: who has had least goes first. None that may go is behind the virtual time of its class,
  -- which is the start of a turn of the first of them.
  local function line_up(index)
    heads[index] = head_of(flows[index])
    if not heads[index] then return end
    local own, tag = turns[flows[index][2] + 1], flows[index][4]
    local low, high = 1, #own + 1
    while low < high do
      local middle = floor((low + high) / 2)
      local other = own[middle]
      local apart = tags[other] - tag
      if apart < 0 or (apart == 0 and other < index) then low = middle + 1 else high = middle end
    end
    tags[index] = tag
    table.insert(own, low, index)
  end

  local function line_up_all()
    turns = { {}, {}, {}, {} }
    work.done = work.done + 110 * #flows
    for index = 1, #flows do line_up(index) end
  end

  -- Returns the flow whose turn it is, which leaves the order, and how far the one is ahead whose turn comes next.
  local function turn()
    for class = 1, Line.CLASSES_MAX do
      local own = turns[class]
      if own[1] then return table.remove(own, 1), own[1] and tags[own[1]] end
    end
  end

  -- Returns where a request finds room, no earlier than its replica can use it, and for how many; or nil, where it finds room, the limiter and
  -- rule that are in its way, and the ceiling if it is one.
  local function place(costs, from)
    while true do
      for index = limiters + 1, books do
        if costs[index] > 0 then
          local _, limited_by = Search.earliest(searches[index], costs[index])
          if searches[index].at > till then return nil, searches[index].at, index, limited_by or 1, index end
        end
      end
      local at, count, limiter, limit = earliest(searches, costs)
      if at >= from then
        if at > till then return nil, at, limiter, limit end
        return at, count
      end
      for index = 1, books do Search.advance(searches[index], from) end
      stood = from
    end
  end

  line_up_all()
  while true do
    local index, second = turn()
    if not index then break end
    local flow, head = flows[index], heads[index]
    local start, row = flow[4], flow[5][head]
    local to, costs, most = row[1], row[3], row[6]
    local from, price, class = reaches[to], Line.price(costs), flow[2]
    if stood > from then
      searches, stood, searches_left = searches_from(now), now, searches_left - 1
      if searches_left == 0 then deals_left = 0 end
    end
    local few = max(floor(quantum / price), 1)
    if second then most = min(most, max(floor(Line.permits_of(second - start, flow[3]) / price) + 1, few)) end
    -- Of several runs of a flow none goes for longer, so that those who came at the same time go together.
    if flow[5][2] then most = min(most, few) end
    local left, far, ceiling, far_limiter, far_limit = most, nil, nil, nil, nil
    local dealt_slots, spread = line.dealt_slots, line.spreads[class + 1]
    while left > 0 and not far do
      local at, count, limiter, limit, by
      if deals_left > 0 then at, count, limiter, limit, by = place(costs, from) end
      if deals_left == 0 then
        far = now
      elseif not at then
        far, far_limiter, far_limit, ceiling = count, limiter, limit, by
      else
        count = min(count, left)
        for book = 1, books do
          if costs[book] > 0 then Search.charge(searches[book], count * costs[book]) end
        end
        spread.booked = spread.booked + count * price
        local last = dealt_slots[#dealt_slots]
        if last and last[6] == at and last[5] == line.deal and Line.is_of(last, to, row[2], costs) then
          last[7] = last[7] + count
        else
          dealt_slots[#dealt_slots + 1] = { to, row[2], costs, class, line.deal, at, count }
        end
        left, deals_left = left - count, work.done > DEALT_MAX and 0 or deals_left - 1
      end
    end
    virtuals[class + 1] = start
    if most > left then
      flow[4] = start + Line.virtual_of((most - left) * price, flow[3])
      Line.take(line, flow, head, most - left)
    end
    if far then
      if not next_at or far < next_at then next_at, next_violated = far, far_limiter and { far_limiter, far_limit } end
      if not ceiling then break end
      is_full[ceiling] = true
      line_up_all()
    else
      line_up(index)
    end
  end
  Line.settle(line, virtuals)
end

-- ---- refuse ----

local not_taken, last_ones, is_cut = {}, {}, false

if not is_repeated and #wants > 0 then
  local TOO_FAR, QUEUE_FULL = 1, 2
  local estimates_left, lasts_left = Prospects.budgets(line)
  -- A call that has done so much looks at no further flows.
  local WORK_MAX = 55000
  -- One that takes more in leaves it to the next call, which is at once, to tell how long requests wait.
  local TAKEN_IN_MAX = 20
  if taken_in > TAKEN_IN_MAX then estimates_left, lasts_left = 0, 0 end
  local refused, is_alive, searches, found_at = { 0, 0, 0, 0 }, {}, nil, {}
  -- None of the requests that are left finds room before.
  local begin = max(now, next_at or now)
  for _, known in ipairs(line.callers) do
    is_alive[known[1]] = Line.reach(line, known[1], replica, now, grace, 0) ~= nil
  end
  local prospects, has_estimate = Prospects.new(line, books, is_alive), {}

  -- Returns how long the request waits behind which so many of its want wait, and the limiter and rule that it waits for.
  local function estimate(flow, want, behind, came)
    estimates_left = max(estimates_left - 1, 0)
    local ahead_of, costs = Prospects.before(prospects, flow, want, behind, came), want[4]
    for book = 1, min(#expected, books) do ahead_of[book] = ceil(ahead_of[book] * expected[book] / 1000000) end
    local at_once = Prospects.at_once(ahead_of, costs, states)
    -- Behind many others all wait for as much as there is room for at once.
    local name = table.concat(at_once, " ")
    local found = found_at[name]
    if not found then
      searches = searches or searches_from(begin)
      local own = {}
      for book = 1, books do own[book] = Search.copy(searches[book]) end
      local at, _, limiter, limit = earliest(own, at_once)
      found = { at, limiter, limit }
      found_at[name] = found
    end
    local at, limiter, limit = unpack(found)
    if at == next_at and next_violated then limiter, limit = unpack(next_violated) end
    local more = 0
    for book = 1, books do
      if costs[book] > 0 and ahead_of[book] > at_once[book] then
        local available = Prospects.available(prospects, states, now, book)
        for place, rule in ipairs(states[book].rules) do
          local span = Rule.span_exact(rule, max(ahead_of[book] - max(available[place], at_once[book]), 0))
          if span > more then more, limiter, limit = span, book, place end
        end
      end
    end
    if work.done > WORK_MAX then estimates_left = 0 end
    return at - now + more, limiter, limit
  end

  for index, want in ipairs(wants) do
    local _, class, _, costs, groups = unpack(want)
    local all, counts = 0, new[index]
    for group = 1, #counts do all = all + counts[group] end
    local waits = all > 0 and min(all, Line.tickets(line, want)) or 0
    -- The first of them have a slot.
    local dealt = all - waits
    for group = 1, #counts do
      local left = counts[group] - min(dealt, counts[group])
      dealt = dealt - counts[group] + left
      local flow = left > 0 and group > want[7] and Line.flow_with(line, want)
      if left > 0 then waits = waits - left end
      if flow and estimates_left == 0 then
        is_cut = true
        Prospects.remove_last(prospects, left, want)
      elseif flow then
        has_estimate[index] = true
        local came, wait_max = max(now - groups[4 * group - 2], 0), groups[4 * group - 1]
        local delay, limiter, limit = estimate(flow, want, waits, came)
        local fits, is_far = left, delay > wait_max
        if is_far then
          -- The first that does not fit.
          local beyond = left
          fits = 0
          while fits + 1 < beyond do
            local middle = floor((fits + beyond) / 2)
            local found, by, rule = estimate(flow, want, waits + left - middle, came)
            if found <= wait_max then fits = middle else beyond, delay, limiter, limit = middle, found, by, rule end
          end
        end
        local taken = min(fits, places[class + 1])
        places[class + 1] = places[class + 1] - taken
        local count = left - taken
        if count > 0 then
          refused[class + 1] = refused[class + 1] + count
          if taken < fits or not is_far then delay, limiter, limit = estimate(flow, want, waits + count - 1, came) end
          Prospects.remove_last(prospects, count, want)
          local rule = states[limiter].rules[limit]
          local advised, is_spread =
            QueueOrder.advise(line.spreads[class + 1], now, now + delay, Line.price(costs), count + refusal_budget, refused[class + 1] > 1, rule)
          if is_spread then refusal_budget = 0 end
          local own = Rule.position(own_rules[limiter], rule) or 1
          not_taken[#not_taken + 1] = {
            index - 1, group - 1, count, taken < fits and QUEUE_FULL or TOO_FAR, delay, advised - now, is_spread and 1 or 0, limiter - 1, own - 1,
          }
        end
      end
    end
  end
  -- Only now, as the number of requests that wait does not change any more. One call tells of some wants without newcomers.
  for index, want in ipairs(wants) do
    local has_new, flow, costs, most, longest = has_estimate[index], Line.flow_with(line, want), want[4], 0, 0
    if not has_new and lasts_left == 0 then
      most, longest = -1, -1
    elseif flow then
      local ahead_of = Prospects.before(prospects, flow, want, 0, Line.last_of(line, flow, want))
      for book = 1, books do
        most = max(most, ahead_of[book])
        if costs[book] > 0 then
          for _, rule in ipairs(states[book].rules) do longest = max(longest, (Rule.span_exact(rule, ahead_of[book]))) end
        end
      end
    end
    if not has_new then lasts_left = work.done > WORK_MAX and 0 or max(lasts_left - 1, 0) end
    last_ones[2 * index - 1], last_ones[2 * index] = most, longest
  end
end

-- ---- store and answer ----

local again = 0
if is_cut or Line.has_tickets(line) then
  -- A replica calls again within this part of the time that slots are dealt ahead (2/5), if any can be dealt then.
  local soon = now + floor(ahead * 2 / 5)
  if is_cut or (next_at and next_at <= now) then
    again = now
  elseif is_closed then
    again = max(opens, now + 1000)
  else
    again = next_at and max(soon, next_at - ahead) or soon
  end
  caller[2] = again
end
for index = 1, books do line.generations[index] = states[index].generation end
local rows, last_booked, lives_until = State.keep_all(states, own_rules, stored, now, live_key, moved_key, epoch)
local dealt = {}
for _, own in ipairs(line.dealt_slots) do
  if own[1] == replica then dealt[#dealt + 1] = { own[2], own[4], own[6], own[7], own[3] } end
end
local answer = cmsgpack.pack({
  Epoch.answer(epoch, now), rows, last_booked, line.deal, again, dealt, not_taken, last_ones,
  known > 0 and known < (caller[4] or 0) and 1 or 0,
})
Line.keep(line_key, stored[books + 1], line, now)
if settle > 0 then Epoch.keep(epoch_key, epoch, now, lives_until) end
return answer
