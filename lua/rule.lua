-- rule.lua: a limit in the form in which it is searched: whole microseconds, widened by the guard.
--
-- Twin of src/limiter/arithmetic/rule.rs: the same steps, the same results to the microsecond. All numbers are integers below 2^53,
-- which Lua's doubles hold exactly.
--
-- Rules travel as a text, so that equal rules are equal texts: joined by `;`, each one
--   LETTER rate window cell ...
-- with the letter of its algorithm and what the algorithm adds.

local Rule
do
  -- Over a hundred years: sums of two spans stay below 2^53.
  local SPAN_MAX = 4000000000000000

  -- A limit that is whole again within this time is so soon. Twin of `SOON` in rule.rs.
  local SOON = 6000000

  local function parse(rules, text)
    local letter, rate, window, cell, rest = string.match(text, "^(%a) (%d+) (%d+) (%d+)(.*)$")
    rate, window = tonumber(rate), tonumber(window)
    local algorithm = Algorithm[letter] or Algorithm.unknown
    -- An algorithm is made when the first rule names it.
    if type(algorithm) == "function" then
      algorithm = algorithm()
      Algorithm[letter] = algorithm
    end
    -- A permit takes `whole` microseconds and `part` in parts of `rate`. Bookings are seen for `seen_for`, and take room away for
    -- `reach` before and behind them. A search that the rule moves on may pass by room if it `skips_room`.
    local rule = {
      text = text, rate = rate, window = window, cell = tonumber(cell), algorithm = algorithm, capacity = rate,
      whole = floor(window / rate), part = window % rate, seen_for = window, reach = math.huge, skips_room = false, place = #rules + 1,
    }
    algorithm.parse(rule, rest)
    -- Where permits are spaced, a request of several is granted as soon as one is: the rule lacks up to all that it grants in a window.
    rule.is_spaced = rule.capacity == 1 and algorithm.CHECKPOINT_SIZE > 0
    rule.lacking_max = rule.is_spaced and rate or rule.capacity
    -- Bookings that are in a checkpoint are kept in wider cells: only a change of the limits reads them.
    local FOLDED_CELLS = 512
    rule.folded_cell = rule.cell
    if rule.cell > 1 and algorithm.CHECKPOINT_SIZE > 0 then
      rule.folded_cell = max(rule.cell, floor(window / FOLDED_CELLS))
    end
    -- Where all rules need instants kept apart in the same way, whatever they see, none become one later.
    if rule.folded_cell > rule.cell or (#rules > 0 and rule.cell ~= rules.cell) then rules.merges = true end
    if #rules == 0 or rule.cell < rules.cell then rules.cell = rule.cell end
    rules.reach = max(rules.reach, rule.reach)
    if rule.skips_room then rules.skips_room = true end
    if algorithm.separates then table.insert(rules.separating, rule) end
    rules[#rules + 1] = rule
  end

  -- Returns the rules of a text, with `cell`, the finest cell of all, `separating`, the rules that keep instants apart, and the
  -- greatest `reach` and any `skips_room` of them, and whether any can do with `merges` of instants that others need apart.
  local function parse_all(text)
    local rules = { cell = 1, separating = {}, reach = 0, skips_room = false, merges = false }
    if string.find(text, ";", 1, true) then
      for part in string.gmatch(text, "[^;]+") do parse(rules, part) end
    elseif text ~= "" then
      parse(rules, text)
    end
    return rules
  end

  -- Returns the first instant of the cell that holds `at`.
  local function cell_start(at, cell)
    return at - at % cell
  end

  -- Returns the first instant at or after `at` that begins a cell.
  local function cell_from(at, cell)
    return cell_start(at + cell - 1, cell)
  end

  -- Returns how long a limit takes to allow that many permits: whole microseconds and a rest in parts of `rate`.
  -- The product of very many permits may exceed 2^53, so it is taken in two parts, 20 bits and the rest.
  local function span_exact(rule, permits)
    local rate, whole, part = rule.rate, rule.whole, rule.part
    if permits * whole > SPAN_MAX then return SPAN_MAX, 0 end
    if permits < 8388608 then
      local product = permits * part
      local rest = product % rate
      local micros = permits * whole + (product - rest) / rate
      if micros > SPAN_MAX then return SPAN_MAX, 0 end
      return micros, rest
    end
    local high, low = floor(permits / 1048576), permits % 1048576
    local product = high * part
    local quotient = floor(product / rate)
    product = product % rate * 1048576 + low * part
    local micros = permits * whole + quotient * 1048576 + floor(product / rate)
    if micros > SPAN_MAX then return SPAN_MAX, 0 end
    return micros, product % rate
  end

  -- Returns true if bookings at two instants, the second no earlier, are kept as one entry.
  local function is_one(rules, cell, first, later)
    if first - first % cell ~= later - later % cell then return false end
    if first == later then return true end
    local separating = rules.separating
    for index = 1, #separating do
      local rule = separating[index]
      if rule.algorithm.separates(rule, first, later) then return false end
    end
    return true
  end

  -- Returns the rules of a caller's text. Where they are the rules in force, nothing is parsed.
  local function parse_own(text, state)
    return text == state.union and state.rules or parse_all(text)
  end

  -- Returns the place of a rule among others, the first one if it stands there twice; nil if it is not among them.
  local function position(rules, rule)
    for index = 1, #rules do
      if rules[index].text == rule.text then return index end
    end
  end

  -- Returns the place of the rule with the shortest window, the first of these.
  local function shortest(rules)
    local place = 1
    for index = 2, #rules do
      if rules[index].window < rules[place].window then place = index end
    end
    return place
  end

  local function longest_window(rules)
    local longest = 0
    for index = 1, #rules do longest = max(longest, rules[index].window) end
    return longest
  end

  Rule = {
    SPAN_MAX = SPAN_MAX, SOON = SOON, parse_all = parse_all, parse_own = parse_own, cell_start = cell_start, cell_from = cell_from,
    span_exact = span_exact, is_one = is_one, position = position, shortest = shortest,
    longest_window = longest_window,
  }
end
