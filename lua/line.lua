-- line.lua: the requests that wait for slots which nobody has yet, of all replicas, in flows that share a quota.
--
-- Twin of src/limiter/arithmetic/line.rs. Stored as one MessagePack array:
--   epoch        the epoch in which the slots were dealt: a line of another one is forgotten, but for the numbers of its calls
--   generations  of each limiter: the generation under which slots were dealt
--   deal         the number of the last deal
--   flows        { { flow, class, weight, tag, runs }, ... } with runs of tickets { replica, origin, costs, first, last, count }, ascending
--                by when the first came. `tag` is how far the flow is ahead of the virtual time of its class
--   dealt_slots  { { replica, origin, costs, class, deal, slot, count, generations if they are void }, ... } slots that a replica has not said to have
--   callers      { { replica, when it calls again at the latest, the number of its last call, the deal with which it was added, 0: not since the
--                epoch began }, ... }
--   spreads      of each class { advised, reviewed, expected, booked, followed }: queue_order.lua

local Line
do
  local SHARE, APART_MAX, PERMITS_MAX = 1048576, 4398046511104, 4294967296
  local CLASSES_MAX, FLOWS_MAX = 4, 64
  local concat, insert, remove = table.concat, table.insert, table.remove

  local function load(key, text, epoch, caller)
    local row = Store.read(key, text, 7)
    if not row or row[1] ~= epoch then
      -- The calls are remembered: one that was carried out before the epoch began may be repeated.
      local callers = row and row[6] or {}
      for index = 1, #callers do callers[index][4] = 0 end
      row = { epoch, {}, 0, {}, {}, callers, {} }
    end
    local line = {
      epoch = epoch, generations = row[2], deal = row[3], flows = row[4], dealt_slots = row[5], callers = row[6], spreads = {}, by_id = {}, own = 0,
      caller = caller, runs = {},
    }
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
    local row = { line.epoch, line.generations, line.deal, line.flows, line.dealt_slots, callers, spreads }
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

  local function share_of(weight)
    return weight / SHARE
  end

  -- Returns the entry of some costs in a table by origin and costs; it is added if it is not there.
  local function entry_of(entries, origin, costs)
    local by_costs, name = entries[origin], concat(costs, " ")
    if not by_costs then
      by_costs = {}
      entries[origin] = by_costs
    end
    local entry = by_costs[name]
    if not entry then
      entry = {}
      by_costs[name] = entry
    end
    return entry
  end

  -- Returns the calling replica's runs in a flow that are of a want, in order. They are found by their costs: a call with many different
  -- costs would else pass all runs for each of them.
  local function runs_of(line, flow, want)
    local entries = line.runs[flow]
    if not entries then
      entries = {}
      for _, run in ipairs(flow[5]) do
        if run[1] == line.caller then insert(entry_of(entries, run[2], run[3]), run) end
      end
      line.runs[flow] = entries
    end
    return entry_of(entries, want[1], want[4])
  end

  -- Returns how many slots lie ready for requests of a want.
  local function dealt_of(line, want)
    if not line.dealt then
      line.dealt = {}
      for _, dealt in ipairs(line.dealt_slots) do
        if dealt[1] == line.caller then
          local entry = entry_of(line.dealt, dealt[2], dealt[3])
          entry[1] = (entry[1] or 0) + dealt[7]
        end
      end
    end
    return entry_of(line.dealt, want[1], want[4])[1] or 0
  end

  -- Returns whether slots are of a key: replica, origin, costs.
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
    for _, dealt in ipairs(line.dealt_slots) do
      if dealt[1] ~= replica then kept[#kept + 1] = dealt end
    end
    line.dealt_slots = kept
  end

  -- Forgets replicas that have not called for long, and slots that nobody can use any more.
  local function forget(line, now, lease)
    local KEPT = 15000000
    local callers = line.callers
    for index = #callers, 1, -1 do
      if callers[index][2] + KEPT <= now then drop_of(line, remove(callers, index)[1]) end
    end
    local dealt_slots, kept, size = line.dealt_slots, {}, 0
    for index = 1, #dealt_slots do
      if dealt_slots[index][6] + lease > now then
        size = size + 1
        kept[size] = dealt_slots[index]
      end
    end
    line.dealt_slots = kept
  end

  local function caller_of(line, replica)
    local callers = line.callers
    for index = 1, #callers do
      if callers[index][1] == replica then return callers[index] end
    end
  end

  -- Takes in that the calling replica calls, and which slots it has.
  local function hear(line, now, known, begins, call)
    local replica = line.caller
    if begins then drop_of(line, replica) end
    local dealt_slots, kept, size = line.dealt_slots, {}, 0
    for index = 1, #dealt_slots do
      if dealt_slots[index][1] ~= replica or dealt_slots[index][5] > known then
        size = size + 1
        kept[size] = dealt_slots[index]
      end
    end
    line.dealt_slots = kept
    line.deal = max(now, line.deal + 1)
    local caller = caller_of(line, replica)
    if caller then
      caller[2], caller[3] = now, call
      if caller[4] == 0 then caller[4] = line.deal end
    else
      caller = { replica, now, call, line.deal }
      line.callers[#line.callers + 1] = caller
    end
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

  -- Returns how many requests of a want have a ticket in a flow.
  local function count_in(line, flow, want)
    local count = 0
    for _, run in ipairs(runs_of(line, flow, want)) do count = count + run[6] end
    return count
  end

  -- Returns the flows that may hold tickets of a want: its own, and that of its class.
  local function flows_of(line, want)
    local own, shared = line.by_id[want[1]], line.by_id[want[2]]
    if own then return { own, shared } end
    return { shared }
  end

  -- Returns how many requests of a want have a ticket.
  local function tickets(line, want)
    local count = 0
    for _, flow in ipairs(flows_of(line, want)) do count = count + count_in(line, flow, want) end
    return count
  end

  -- Returns the flow that holds tickets of a want; nil if none does.
  local function flow_with(line, want)
    for _, flow in ipairs(flows_of(line, want)) do
      if count_in(line, flow, want) > 0 then return flow end
    end
  end

  -- Returns when the last request of a want came.
  local function last_of(line, flow, want)
    local last = 0
    for _, run in ipairs(runs_of(line, flow, want)) do last = max(last, run[5]) end
    return last
  end

  -- Returns how many requests of a want came after an instant.
  local function later_than(line, flow, came, want)
    local count = 0
    for _, run in ipairs(runs_of(line, flow, want)) do
      if run[4] > came then count = count + run[6] end
    end
    return count
  end

  -- Removes up to so many tickets of a want that came by an instant, the last ones first.
  local function remove_from(line, flow, since, count, want)
    local own, runs = runs_of(line, flow, want), flow[5]
    for index = #own, 1, -1 do
      local run = own[index]
      if not since or run[4] <= since then
        local taken = min(count, run[6])
        run[6] = run[6] - taken
        if run[6] == 0 then
          remove(own, index)
          local place = #runs
          while runs[place] ~= run do place = place - 1 end
          remove(runs, place)
        end
        return taken
      end
    end
    return 0
  end

  -- Removes the last tickets of a want. Returns how many of each flow.
  local function remove_last(line, count, want)
    local removed = {}
    for _, flow in ipairs(flows_of(line, want)) do
      local taken = count
      while count > 0 and taken > 0 do
        taken = remove_from(line, flow, nil, count, want)
        count = count - taken
        removed[flow] = (removed[flow] or 0) + taken
      end
    end
    return removed
  end

  -- Adds tickets that came between two instants. Those of a key that came shortly after others are of their run.
  local function add(line, flow, first, last, count, near, want)
    -- The most runs of one replica, flow and cost: within a run requests count as if they had come evenly. Beyond so many flows each has fewer, so
    -- that a call has no more of them to look at.
    local RUNS_MAX, RUNS_LEAST, FLOWS_WITH_MOST = 8, 2, 16
    local runs_max = max(min(RUNS_MAX, floor(RUNS_MAX * FLOWS_WITH_MOST / #line.flows)), RUNS_LEAST)
    local runs, own = flow[5], runs_of(line, flow, want)
    local same = #own
    local latest = own[same]
    if latest then
      if last >= latest[4] and (last - latest[4] <= near or same >= runs_max) then
        latest[5], latest[6] = max(latest[5], last), latest[6] + count
        return
      end
      if same >= runs_max then
        for _, run in ipairs(own) do
          if run[5] >= last then
            run[6] = run[6] + count
            return
          end
        end
      end
    end
    local run = { line.caller, want[1], want[4], first, last, count }
    local place, own_place = #runs + 1, same + 1
    while place > 1 and runs[place - 1][4] > first do place = place - 1 end
    while own_place > 1 and own[own_place - 1][4] > first do own_place = own_place - 1 end
    insert(runs, place, run)
    insert(own, own_place, run)
  end

  -- Takes the first tickets of a run out.
  local function take(line, flow, place, count)
    local runs = flow[5]
    local run = runs[place]
    line.runs[flow] = nil
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

  -- Brings the tickets of a want of the calling replica to what it says. Returns how many of each group are new.
  local function reconcile(line, now, ahead, want)
    work.done = work.done + 200
    local id, class, weight, _, waiting, left = unpack(want)
    local flow, total, has = flow_of(line, id, class, weight), 0, tickets(line, want) + dealt_of(line, want)
    for group = 4, #waiting, 4 do total = total + waiting[group] end
    local new, missing = {}, max(total - has, 0)
    if has > total then
      local surplus = has - total
      for index = 1, #left, 2 do
        for _, of in ipairs(flows_of(line, want)) do
          surplus = surplus - remove_from(line, of, now - left[index], min(surplus, left[index + 1]), want)
        end
      end
      if surplus > 0 then remove_last(line, surplus, want) end
    end
    for group = #waiting / 4, 1, -1 do
      new[group] = min(missing, waiting[4 * group])
      missing = missing - new[group]
    end
    for group = 1, #new do
      if new[group] > 0 then
        local oldest, newest = waiting[4 * group - 3], waiting[4 * group - 2]
        add(line, flow, max(now - oldest, 0), max(now - newest, 0), new[group], ahead, want)
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

  -- Returns { slot, count, costs } of slots to give back, where those with the same costs that follow each other in one slot are one.
  local function together(unused)
    local slots, last, name = {}, nil, nil
    for _, own in ipairs(unused) do
      local costs = concat(own[5], " ")
      if last and last[1] == own[3] and name == costs then
        last[2] = last[2] + own[4]
      else
        last, name = { own[3], own[4], own[5] }, costs
        insert(slots, last)
      end
    end
    return slots
  end

  -- Returns how many permits of each limiter the requests of a flow are for, of replicas that are alive: up to each of its runs.
  local function sums_of(flow, books, is_alive)
    local sums, runs, counts = {}, flow[5], {}
    local size = #runs
    work.done = work.done + 30 * size
    for index = 1, size do
      local run = runs[index]
      counts[index] = is_alive[run[1]] and run[6] or 0
    end
    for book = 1, books do
      local sum, own = 0, { [0] = 0 }
      for index = 1, size do
        sum = sum + runs[index][3][book] * counts[index]
        own[index] = sum
      end
      sums[book] = own
    end
    return sums
  end

  -- Returns how many permits of each limiter all requests of a flow are for, of replicas that are alive. Most runs of a flow have the same
  -- costs: their requests are counted together.
  local function total_of(flow, books, is_alive)
    local sums, runs, counts, costs_of = {}, flow[5], {}, {}
    work.done = work.done + 80 + 20 * #runs
    for index = 1, #runs do
      local run = runs[index]
      if is_alive[run[1]] then
        local name = concat(run[3], " ")
        local count = counts[name]
        if count then
          counts[name] = count + run[6]
        else
          counts[name], costs_of[name] = run[6], run[3]
        end
      end
    end
    for book = 1, books do sums[book] = 0 end
    for name, costs in pairs(costs_of) do
      local count = counts[name]
      for book = 1, books do sums[book] = sums[book] + costs[book] * count end
    end
    return sums
  end

  -- Returns how many of a flow's runs came by an instant.
  local function runs_by(flow, came)
    local runs, low, high = flow[5], 0, #flow[5]
    while low < high do
      local middle = ceil((low + high) / 2)
      if runs[middle][4] <= came then low = middle else high = middle - 1 end
    end
    return low
  end

  -- Returns whether requests of the calling replica have tickets.
  local function has_tickets(line)
    for _, flow in ipairs(line.flows) do
      for _, run in ipairs(flow[5]) do
        if run[1] == line.caller then return true end
      end
    end
    return false
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
    CLASSES_MAX = CLASSES_MAX, load = load, keep = keep, price = price, virtual_of = virtual_of, permits_of = permits_of, share_of = share_of, forget = forget, hear = hear,
    reach = reach, caller_of = caller_of, tickets = tickets, flow_with = flow_with, flows_of = flows_of, is_of = is_of, remove_last = remove_last, take = take,
    reconcile = reconcile, take_back = take_back, settle = settle, last_of = last_of, later_than = later_than, sums_of = sums_of, total_of = total_of, runs_by = runs_by,
    has_tickets = has_tickets, together = together,
  }
end
