-- external_usage.lua: the part of an upstream's quota that callers outside this fleet use, as its answers show. The limit shrinks by it.
--
-- Twin of src/limiter/arithmetic/external_usage.rs. A state has one usage for each rule in force, or none at all (nil):
--   permits  the expected permits in a window
--   seen     the most permits reported since `since`; `before`: the most of the window before that
--   heeded   the permits that were left to others when the bookings ahead were placed
--   refused  { slot, permits, ... } that the upstream refused and did not count, and that stay booked

local ExternalUsage
do
  local FIELDS = { "permits", "seen", "since", "before", "heeded", "refused" }

  local function new()
    return { permits = 0, seen = 0, since = 0, before = 0, heeded = 0, refused = {} }
  end

  local function load(rows)
    if rows == 0 then return nil end
    local usages = {}
    for index = 1, #rows do usages[index] = Store.from_row(new(), FIELDS, rows[index]) end
    return usages
  end

  local function pack(usages)
    if not usages then return 0 end
    local rows = {}
    for index = 1, #usages do rows[index] = Store.to_row(usages[index], FIELDS, {}) end
    return rows
  end

  -- Returns the permits of a window that are left to others: a little more than expected, for they do not come evenly.
  local function left_to_others(usage)
    local MARGIN_PART = 16
    if usage.permits == 0 then return 0 end
    return usage.permits + floor(usage.permits / MARGIN_PART) + 1
  end

  -- Returns the permits of the rule at an index that are left to others.
  local function external(state, index)
    local usages = state.external_usage
    return usages and usages[index] and left_to_others(usages[index]) or 0
  end

  -- Returns the permits of the rule at an index that are left to this fleet.
  local function rate_left(state, index)
    return max(state.rules[index].rate - external(state, index), 0)
  end

  -- Returns how long bookings are kept: an answer is compared with the window before its slot, and comes late.
  local function compared_for(state, index)
    local window, usages = state.rules[index].window, state.external_usage
    return usages and usages[index].since > 0 and 2 * window or window
  end

  -- Forgets a usage without reports for two windows, not counting pauses, during which no reports come.
  local function forget(state, now)
    local usages = state.external_usage
    if not usages then return end
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
    for _, usage in ipairs(state.external_usage or {}) do usage.heeded = left_to_others(usage) end
  end

  -- Returns true if the bookings ahead of some rule were placed by a usage that differs too much: it is larger, or this fleet's share has grown by
  -- more than a part.
  local function is_unheeded(state)
    local MOVED_UP_PART = 8
    for index, usage in ipairs(state.external_usage or {}) do
      local left, before = rate_left(state, index), max(state.rules[index].rate - usage.heeded, 0)
      if left < before or left > before + floor(before / MOVED_UP_PART) then return true end
    end
    return false
  end

  -- Returns the usages of new rules: a rule that was in force before keeps its own.
  local function carry_over(usages, old_rules, new_rules)
    if not usages then return nil end
    local carried = {}
    for index, rule in ipairs(new_rules) do
      local known = usages[Rule.position(old_rules, rule)]
      carried[index] = known and Store.from_row(new(), FIELDS, Store.to_row(known, FIELDS, {})) or new()
    end
    return carried
  end

  ExternalUsage = {
    new = new, load = load, pack = pack, external = external, rate_left = rate_left, compared_for = compared_for, forget = forget,
    heed = heed, is_unheeded = is_unheeded, carry_over = carry_over,
  }
end
