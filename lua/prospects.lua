-- prospects.lua: how many permits go before a request of a line. Knows no instants: how long that takes is the search's part.
--
-- Twin of src/limiter/arithmetic/prospects.rs (`Estimates::before`). A call asks for many requests, so what it learns of the flows is kept until
-- tickets are removed:
--   sums    of a flow: how many permits of each limiter its requests are for, up to each of its runs
--   totals  of a flow: the same of all its runs
--   peers   of a class: each of its flows
--   below   of a class: the totals of all classes before it
--   available  of a limiter: the permits that could be used now, under each of its rules

local Prospects
do
  local concat = table.concat

  local function new(line, books, is_alive)
    return { line = line, books = books, is_alive = is_alive, sums = {}, totals = {}, peers = {}, below = {}, available = {} }
  end

  -- Returns what is known of a flow; `learn` of the line finds it out.
  local function known_of(prospects, known, learn, flow)
    local found = known[flow]
    if not found then
      found = learn(flow, prospects.books, prospects.is_alive)
      known[flow] = found
    end
    return found
  end

  local function sums_of(prospects, flow) return known_of(prospects, prospects.sums, Line.sums_of, flow) end

  local function total_of(prospects, flow) return known_of(prospects, prospects.totals, Line.total_of, flow) end

  -- Notes in the row of a flow how many permits of each limiter it is for.
  local function fill(peer, permits, weight, books)
    -- The permits that any flow gets however far another one is ahead.
    local MOST_LEAST = Line.permits_of(math.huge, 1)
    for book = 1, books do
      local sum = permits[book]
      if sum > MOST_LEAST then sum = min(sum, Line.permits_of(math.huge, weight)) end
      peer[3 + book] = sum
    end
  end

  -- Returns each flow of a class: how far it is ahead, the permits that it gets while another one gets its own by one unit, itself, and how
  -- many permits of each limiter it is for. `same[book]` is the first limiter of which all are for as many as of this one, and `of[flow]` the
  -- row of a flow.
  local function peers_of(prospects, class)
    local found, books = prospects.peers[class], prospects.books
    if found then return found end
    found = { same = {}, of = {} }
    work.done = work.done + 50 * #prospects.line.flows
    local columns, known = {}, {}
    for book = 1, books do columns[book] = {} end
    for _, flow in ipairs(prospects.line.flows) do
      if flow[2] == class then
        local peer, place = { flow[4], Line.share_of(flow[3]), flow }, #found + 1
        fill(peer, total_of(prospects, flow), flow[3], books)
        for book = 1, books do columns[book][place] = peer[3 + book] end
        found[place], found.of[flow] = peer, peer
      end
    end
    for book = 1, books do
      local name = concat(columns[book], " ")
      known[name] = known[name] or book
      found.same[book] = known[name]
    end
    prospects.peers[class] = found
    return found
  end

  local function below_of(prospects, class)
    local found, books = prospects.below[class], prospects.books
    if found then return found end
    found = {}
    for book = 1, books do found[book] = 0 end
    for _, flow in ipairs(prospects.line.flows) do
      if flow[2] < class then
        local permits = total_of(prospects, flow)
        for book = 1, books do found[book] = found[book] + permits[book] end
      end
    end
    prospects.below[class] = found
    return found
  end

  -- Returns how many permits of a limiter the others of a class get until one of its flows has got as far as `finish`.
  local function until_finish(peers, flow, finish, book)
    local permits, column, own = 0, 3 + book, peers.of[flow]
    work.done = work.done + 14 * #peers
    for index = 1, #peers do
      local peer = peers[index]
      local apart = finish - peer[1]
      if apart > 0 then
        local most, sum = apart * peer[2], peer[column]
        if most >= sum then permits = permits + sum else permits = permits + most - most % 1 end
      end
    end
    -- It is one of them.
    local most = max(finish - own[1], 0) * own[2]
    return permits - min(most - most % 1, own[column])
  end

  -- Returns how many permits of each limiter that a want needs go before its last requests but for `behind` of them, and including it. Of
  -- others in its flow those go before that came by `came`.
  local function before(prospects, flow, want, behind, came)
    local costs, class, books = want[4], flow[2], prospects.books
    work.done = work.done + 150
    local sums, size, peers, below =
      sums_of(prospects, flow), Line.runs_by(flow, came), peers_of(prospects, class), below_of(prospects, class)
    local later, own, ahead_of, of_others = Line.later_than(prospects.line, flow, came, want) - behind, 0, {}, {}
    for book = 1, books do
      ahead_of[book] = max(sums[book][size] + later * costs[book], 0)
      own = max(own, ahead_of[book])
    end
    local finish = flow[4] + Line.virtual_of(own, flow[3])
    for book = 1, books do
      if costs[book] > 0 then
        local same = peers.same[book]
        of_others[same] = of_others[same] or until_finish(peers, flow, finish, same)
        ahead_of[book] = ahead_of[book] + below[book] + of_others[same]
      else
        ahead_of[book] = 0
      end
    end
    return ahead_of
  end

  -- Returns how many permits of each limiter are looked for at once on behalf of who has so many ahead: no more than a limit ever has.
  local function at_once(ahead_of, costs, states)
    local permits = {}
    for book = 1, #states do
      local most = math.huge
      for _, rule in ipairs(states[book].rules) do most = min(most, rule.capacity) end
      permits[book] = costs[book] == 0 and 0 or max(min(ahead_of[book], most), costs[book])
    end
    return permits
  end

  -- Returns the permits of a limiter that could be used now, under each of its rules.
  local function available(prospects, states, now, book)
    local found, state = prospects.available[book], states[book]
    if found then return found end
    found = {}
    for place, rule in ipairs(state.rules) do found[place] = State.available(state, now, rule) end
    prospects.available[book] = found
    return found
  end

  -- Removes the last tickets of a want. Those of the calling replica count wherever anything was learnt of their flow.
  local function remove_last(prospects, count, want)
    local costs, books = want[4], prospects.books
    for flow, removed in pairs(Line.remove_last(prospects.line, count, want)) do
      local total, peers = prospects.totals[flow], prospects.peers[flow[2]]
      prospects.sums[flow] = nil
      if total then
        for book = 1, books do total[book] = total[book] - removed * costs[book] end
      end
      if total and peers then
        local peer, same = peers.of[flow], peers.same
        fill(peer, total, flow[3], books)
        for book = 1, books do
          if peer[3 + book] ~= peer[3 + same[book]] then same[book] = book end
        end
      end
      for class, below in pairs(prospects.below) do
        if class > flow[2] then
          for book = 1, books do below[book] = below[book] - removed * costs[book] end
        end
      end
    end
  end

  -- Returns for how many numbers of requests one call estimates how long they wait, and of how many wants without newcomers it tells: of fewer
  -- among many flows, as it looks at all of them for each. The rest comes with the next call.
  local function budgets(line)
    local LOOKS_MAX, ESTIMATES_MAX, ESTIMATES_LEAST, LASTS_LEAST = 256, 16, 8, 4
    local looked_at = floor(LOOKS_MAX / max(#line.flows, 1))
    return max(min(ESTIMATES_MAX, looked_at), ESTIMATES_LEAST), max(looked_at, LASTS_LEAST)
  end

  Prospects = { budgets = budgets, new = new, before = before, at_once = at_once, available = available, remove_last = remove_last }
end
