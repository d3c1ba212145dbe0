-- line.lua: the requests that wait for slots which nobody has yet, of all replicas, in flows that share a quota.
--
-- Twin of src/limiter/arithmetic/line.rs. Stored as one MessagePack array:
--   epoch        the epoch in which the slots were dealt: a line of another one is forgotten
--   generations  of each limiter: the generation under which slots were dealt
--   deal         the number of the last deal
--   flows        { { flow, class, weight, tag, runs }, ... } with runs of tickets { replica, origin, costs, first, last, count }, ascending
--                by when the first came. `tag` is how far the flow is ahead of the virtual time of its class
--   slips        { { replica, origin, costs, class, deal, slot, count, generations if they are void }, ... } slots that a replica has not said to have
--   callers      { { replica, when it calls again at the latest, the number of its last call }, ... }
--   spreads      of each class { advised, reviewed, expected, booked, followed }: queue_order.lua

local Line
do
  local SHARE, APART_MAX, PERMITS_MAX = 1048576, 4398046511104, 4294967296
  local CLASSES_MAX, FLOWS_MAX = 4, 64
  local insert, remove = table.insert, table.remove

  local function load(key, text, epoch)
    local row = Store.read(key, text, 7)
    if not row or row[1] ~= epoch then row = { epoch, {}, 0, {}, {}, {}, {} } end
    local line = { epoch = epoch, generations = row[2], deal = row[3], flows = row[4], slips = row[5], callers = row[6], spreads = {}, by_id = {}, own = 0 }
    local flows, by_id, own = line.flows, line.by_id, 0
    for index = 1, #flows do
      local id = flows[index][1]
      by_id[id] = flows[index]
      if id >= CLASSES_MAX then own = own + 1 end
    end
    line.own = own
    for class = 1, CLASSES_MAX do
      local spread = row[7][class]
      if spread then
        line.spreads[class] = { advised = spread[1], reviewed = spread[2], expected = spread[3], booked = spread[4], followed = spread[5] }
      else
        line.spreads[class] = { advised = 0, reviewed = 0, expected = 0, booked = 0, followed = 0 }
      end
    end
    return line
  end

  local function keep(key, was, line, now)
    local IDLE = 60000000
    local expires, spreads, callers = now, {}, line.callers
    for index = 1, #callers do expires = max(expires, callers[index][2]) end
    expires = expires + IDLE
    for class = 1, CLASSES_MAX do
      local spread = line.spreads[class]
      expires = max(expires, spread.advised)
      spreads[class] = { spread.advised, spread.reviewed, spread.expected, spread.booked, spread.followed }
    end
    local row = { line.epoch, line.generations, line.deal, line.flows, line.slips, callers, spreads }
    Store.write(key, was, cmsgpack.pack(row), now, expires)
  end

  -- Returns what a request counts for in the share of its flow: the largest of its costs.
  local function price(costs)
    local most = 1
    for index = 1, #costs do most = max(most, costs[index]) end
    return most
  end

  local function virtual_of(permits, weight)
    return floor(min(permits, PERMITS_MAX) * SHARE / weight)
  end

  local function permits_of(apart, weight)
    return floor(min(apart, APART_MAX) * weight / SHARE)
  end

  -- Returns whether tickets or slots are of a key: replica, origin, costs.
  local function is_of(row, replica, origin, costs)
    if row[1] ~= replica or row[2] ~= origin then return false end
    local own = row[3]
    for index = 1, #costs do
      if own[index] ~= costs[index] then return false end
    end
    return true
  end

  -- Drops the tickets and slots of a replica.
  local function drop_of(line, replica)
    local kept = {}
    for _, flow in ipairs(line.flows) do
      local runs = flow[5]
      for index = #runs, 1, -1 do
        if runs[index][1] == replica then remove(runs, index) end
      end
    end
    for _, slip in ipairs(line.slips) do
      if slip[1] ~= replica then kept[#kept + 1] = slip end
    end
    line.slips = kept
  end

  -- Forgets replicas that have not called for long, and slots that nobody can use any more.
  local function forget(line, now, lease)
    local KEPT = 15000000
    local callers, slips = line.callers, line.slips
    for index = #callers, 1, -1 do
      if callers[index][2] + KEPT <= now then drop_of(line, remove(callers, index)[1]) end
    end
    slips = line.slips
    local kept, size = {}, 0
    for index = 1, #slips do
      if slips[index][6] + lease > now then
        size = size + 1
        kept[size] = slips[index]
      end
    end
    line.slips = kept
  end

  local function caller_of(line, replica)
    local callers = line.callers
    for index = 1, #callers do
      if callers[index][1] == replica then return callers[index] end
    end
  end

  -- Takes in that a replica calls, and which slots it has.
  local function hear(line, now, replica, known, begins, call)
    if begins then drop_of(line, replica) end
    local slips, kept, size = line.slips, {}, 0
    for index = 1, #slips do
      if slips[index][1] ~= replica or slips[index][5] > known then
        size = size + 1
        kept[size] = slips[index]
      end
    end
    line.slips = kept
    line.deal = max(now, line.deal + 1)
    local caller = caller_of(line, replica)
    if not caller then
      caller = { replica, now, call }
      line.callers[#line.callers + 1] = caller
    end
    caller[2], caller[3] = now, call
    return caller
  end

  -- Returns the earliest instant at which a replica can use a slot that is dealt now; nil if it is silent: it has not called by the
  -- instant that it was told, nor within a grace after that.
  local function reach(line, replica, caller, now, grace, lead)
    if replica == caller then return now end
    local known = caller_of(line, replica)
    if known and known[2] + grace > now then return max(known[2], now) + lead end
  end

  -- Returns the flow of a want; it is added if it is not there.
  local function flow_of(line, id, class, weight)
    local flow = line.by_id[id]
    if flow then
      flow[3] = weight
      if flow[2] ~= class then flow[2], flow[4] = class, 0 end
      return flow
    end
    if line.own >= FLOWS_MAX then id, weight = class, 1 else line.own = line.own + 1 end
    flow = line.by_id[id]
    if not flow then
      flow = { id, class, weight, 0, {} }
      line.by_id[id] = flow
      line.flows[#line.flows + 1] = flow
    end
    return flow
  end

  local function count_in(flow, replica, origin, costs)
    local count, runs = 0, flow[5]
    for index = 1, #runs do
      if is_of(runs[index], replica, origin, costs) then count = count + runs[index][6] end
    end
    return count
  end

  -- Returns how many requests of a key have a ticket.
  local function tickets(line, class, replica, origin, costs)
    local own, shared = line.by_id[origin], line.by_id[class]
    return (own and count_in(own, replica, origin, costs) or 0) + (shared and count_in(shared, replica, origin, costs) or 0)
  end

  -- Returns when the last request of a key came.
  local function last_of(flow, replica, origin, costs)
    local last, runs = 0, flow[5]
    for index = 1, #runs do
      if is_of(runs[index], replica, origin, costs) then last = max(last, runs[index][5]) end
    end
    return last
  end

  -- Removes up to so many tickets of a key that came at an instant, or the last ones. Returns how many.
  local function remove_from(flow, since, count, replica, origin, costs)
    local runs = flow[5]
    for index = #runs, 1, -1 do
      local run = runs[index]
      if is_of(run, replica, origin, costs) and (not since or run[4] <= since) then
        local taken = min(count, run[6])
        run[6] = run[6] - taken
        if run[6] == 0 then remove(runs, index) end
        return taken
      end
    end
    return 0
  end

  -- Removes the last tickets of a key.
  local function remove_last(line, class, count, replica, origin, costs)
    local function remove_in(flow)
      while flow and count > 0 do
        local taken = remove_from(flow, nil, count, replica, origin, costs)
        if taken == 0 then return end
        count = count - taken
      end
    end
    remove_in(line.by_id[origin])
    remove_in(line.by_id[class])
  end

  -- Adds tickets that came between two instants. Those of a key that came shortly after others are of their run.
  local function add(flow, first, last, count, near, replica, origin, costs)
    -- The most runs of one replica, flow and cost: within a run requests count as if they had come evenly.
    local RUNS_MAX = 8
    local runs, same, latest, later = flow[5], 0, nil, nil
    for index = 1, #runs do
      local run = runs[index]
      if is_of(run, replica, origin, costs) then
        same, latest = same + 1, run
        if not later and run[5] >= last then later = run end
      end
    end
    if latest then
      if last >= latest[4] and (last - latest[4] <= near or same >= RUNS_MAX) then
        latest[5], latest[6] = max(latest[5], last), latest[6] + count
        return
      end
      if same >= RUNS_MAX and later then
        later[6] = later[6] + count
        return
      end
    end
    local place = #runs + 1
    while place > 1 and runs[place - 1][4] > first do place = place - 1 end
    insert(runs, place, { replica, origin, costs, first, last, count })
  end

  -- Takes the first tickets of a run out.
  local function take(runs, place, count)
    local run = runs[place]
    if run[6] == count then
      remove(runs, place)
      return
    end
    local first = run[4] + floor((run[5] - run[4]) * count / run[6])
    run[4], run[6] = first, run[6] - count
    while runs[place + 1] and runs[place + 1][4] < first do
      runs[place], runs[place + 1] = runs[place + 1], run
      place = place + 1
    end
  end

  -- Brings the tickets of a replica's want to what it says. Returns how many of each group are new.
  local function reconcile(line, now, ahead, replica, want)
    local id, class, weight, costs, waiting, left = unpack(want)
    local flow, total, has, slips = flow_of(line, id, class, weight), 0, tickets(line, class, replica, id, costs), line.slips
    for group = 4, #waiting, 4 do total = total + waiting[group] end
    for index = 1, #slips do
      if is_of(slips[index], replica, id, costs) then has = has + slips[index][7] end
    end
    local new, missing = {}, max(total - has, 0)
    if has > total then
      local surplus = has - total
      for index = 1, #left, 2 do
        for place = 1, 2 do
          local of = line.by_id[place == 1 and id or class]
          if of then surplus = surplus - remove_from(of, now - left[index], min(surplus, left[index + 1]), replica, id, costs) end
        end
      end
      if surplus > 0 then remove_last(line, class, surplus, replica, id, costs) end
    end
    for group = #waiting / 4, 1, -1 do
      new[group] = min(missing, waiting[4 * group])
      missing = missing - new[group]
    end
    for group = 1, #new do
      if new[group] > 0 then
        local oldest, newest = waiting[4 * group - 3], waiting[4 * group - 2]
        add(flow, max(now - oldest, 0), max(now - newest, 0), new[group], ahead, replica, id, costs)
      end
    end
    return new
  end

  -- Takes in that permits which were dealt are not used: their flow was not given them.
  local function take_back(line, origin, class, count, costs)
    local permits, spread, flow = price(costs) * count, line.spreads[class + 1], line.by_id[origin] or line.by_id[class]
    spread.booked = max(spread.booked - permits, 0)
    if flow then flow[4] = max(flow[4] - virtual_of(permits, flow[3]), 0) end
  end

  -- Makes the virtual time of each class zero, and forgets the flows that nothing is known of any more.
  local function settle(line, virtuals)
    local kept, size, flows = {}, 0, line.flows
    for index = 1, #flows do
      local flow = flows[index]
      local tag = flow[4] - virtuals[flow[2] + 1]
      if tag < 0 then tag = 0 end
      flow[4] = tag
      if tag > 0 or flow[5][1] then
        size = size + 1
        kept[size] = flow
      else
        line.by_id[flow[1]] = nil
      end
    end
    line.flows = kept
  end

  Line = {
    CLASSES_MAX = CLASSES_MAX, load = load, keep = keep, price = price, virtual_of = virtual_of, permits_of = permits_of, forget = forget, hear = hear,
    reach = reach, caller_of = caller_of, tickets = tickets, count_in = count_in, is_of = is_of, remove_last = remove_last, take = take, reconcile = reconcile,
    take_back = take_back, settle = settle, last_of = last_of,
  }
end
