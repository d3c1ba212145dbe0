-- external_usage.lua: the part of an upstream's quota that callers outside this fleet use, as its answers show. The limit shrinks by it.
--
-- Twin of src/limiter/arithmetic/external_usage.rs. A state has one usage for each rule in force, or none at all (nil), as most have:
--   permits  the expected permits in a window
--   seen     the most permits reported since `since`; `before`: the most of the window before that
--   heeded   the permits that were left to others when the bookings ahead were placed
--   refused  { slot, permits, ... } that the upstream refused and did not count, and that stay booked
-- Members of the fleet that may still go by their shares, `state.away`, count as others for as long as that lasts (Epoch.away). Rust has no
-- twin of this part.

local ExternalUsage = setmetatable({ rare = function()
  local function from_row(row)
    return { permits = row[1], seen = row[2], since = row[3], before = row[4], heeded = row[5], refused = row[6] }
  end

  local function to_row(usage)
    return { usage.permits, usage.seen, usage.since, usage.before, usage.heeded, usage.refused }
  end

  local function new()
    return from_row({ 0, 0, 0, 0, 0, {} })
  end

  -- Returns the usages of a state, to be changed.
  local function of(state)
    if not state.external_usage then
      state.external_usage = {}
      for index = 1, #state.rules do state.external_usage[index] = new() end
    end
    return state.external_usage
  end

  local function load(rows)
    local usages = {}
    for index = 1, #rows do usages[index] = from_row(rows[index]) end
    return usages
  end

  -- Leaves the members that have not come back since the epoch began their shares.
  local function leave_shares(state, epoch, now)
    state.away = Epoch.away(epoch, now)
    if state.away then of(state) end
  end

  -- Returns the rows to be stored; 0 if all are as new.
  local function pack(usages)
    local rows, is_new = {}, true
    for index, usage in ipairs(usages) do
      rows[index] = to_row(usage)
      is_new = is_new and usage.permits == 0 and usage.since == 0 and usage.heeded == 0
    end
    return is_new and 0 or rows
  end

  -- Returns the permits of a window that are left to others: a little more than expected, for they do not come evenly.
  local function left_to_others(usage)
    local MARGIN_PART = 16
    if usage.permits == 0 then return 0 end
    return usage.permits + floor(usage.permits / MARGIN_PART) + 1
  end

  -- Returns the permits of a window that members who go by their shares may use. A limit that is not soon whole again is charged with what
  -- they may have used of it (Recovery), and so is a bucket.
  local function left_to_members(away, rule)
    if not away or not rule.algorithm.window_start or rule.window > Rule.SOON then return 0 end
    return floor(rule.rate / away.of) * away.count + min(away.count, rule.rate % away.of)
  end

  -- Returns the permits of the rule at an index that are left to others.
  local function external(state, index)
    return left_to_others(state.external_usage[index]) + left_to_members(state.away, state.rules[index])
  end

  -- Returns the permits of the rule at an index that are left to this fleet.
  local function rate_left(state, index)
    return max(state.rules[index].rate - external(state, index), 0)
  end

  -- Lets rules see their bookings for longer where reports come: an answer is compared with the window before its slot, and comes late.
  local function compare(state)
    for index, rule in ipairs(state.rules) do
      if state.external_usage[index].since > 0 then rule.seen_for = 2 * rule.window end
    end
  end

  -- Forgets a usage without reports for two windows, not counting pauses, during which no reports come.
  local function forget(state, now)
    local usages = state.external_usage
    for index, rule in ipairs(state.rules) do
      local usage = usages[index]
      if now >= max(usage.since, state.pause.paused_until) + 2 * rule.window then
        usages[index] = new()
        usages[index].heeded = usage.heeded
      end
    end
  end

  -- Notes that the bookings ahead are placed by the present usage.
  local function heed(state)
    for index, usage in ipairs(state.external_usage) do usage.heeded = external(state, index) end
  end

  -- Returns true if the bookings ahead of some rule were placed by a usage that differs too much: it is larger, or this fleet's share has grown by
  -- more than a part.
  local function is_unheeded(state)
    local MOVED_UP_PART = 8
    for index, usage in ipairs(state.external_usage) do
      local left, before = rate_left(state, index), max(state.rules[index].rate - usage.heeded, 0)
      if left < before or left > before + floor(before / MOVED_UP_PART) then return true end
    end
    return false
  end

  -- Returns the place of the rule before whose windows are those of a rule, but for a guard: others use the same in them. A bucket counts no
  -- windows.
  local function predecessor(old_rules, rule)
    local GUARD_PART = 4
    local same = Rule.position(old_rules, rule)
    if same or not rule.algorithm.window_start then return same end
    local found, least = nil, floor(rule.window / GUARD_PART) + 1
    for index, old in ipairs(old_rules) do
      local apart = math.abs(old.window - rule.window)
      if apart < least and old.algorithm.window_start then found, least = index, apart end
    end
    return found
  end

  -- Returns the usages of new rules: each goes on with that of the rule with its windows. What lay between a lower rate and the upstream's own
  -- counted as used by others.
  local function carry_over(usages, old_rules, new_rules)
    local carried = {}
    for index, rule in ipairs(new_rules) do
      local place = predecessor(old_rules, rule)
      local usage = place and from_row(to_row(usages[place])) or new()
      local lowered = place and max(old_rules[place].rate - rule.rate, 0) or 0
      usage.permits, usage.seen, usage.before =
        max(usage.permits - lowered, 0), max(usage.seen - lowered, 0), max(usage.before - lowered, 0)
      carried[index] = usage
    end
    return carried
  end

  return {
    of = of, leave_shares = leave_shares, load = load, pack = pack, external = external, rate_left = rate_left, compare = compare, forget = forget,
    heed = heed, is_unheeded = is_unheeded, carry_over = carry_over,
  }
end }, Lazy)
