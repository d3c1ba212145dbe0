-- earlier_state.lua: brings into a state what replicas of the earlier layout have done with it.

-- Goes on from the state as replicas of the earlier layout left it. They go on from this layout's bookings if it has marked the state.
-- Otherwise both have booked by themselves, and all of it counts.
function Earlier.adopt(state, key, now)
  -- Adds the bookings of `state` to those of `other`, under the rules of `other`.
  local function add_bookings(other, state, now)
    local timeline, rules = state.timeline, other.rules
    Timeline.compact(timeline, true)
    for index = 1, timeline.size do
      local at, permits = timeline.at[index], timeline.permits[index]
      local after = Timeline.first_from(other.timeline, Rule.cell_start(at, rules.cell) + rules.cell) - 1
      Timeline.charge(other.timeline, rules, after, at, permits)
      for place, checkpoint in pairs(other.checkpoints) do
        other.checkpoints[place] = rules[place].algorithm.take_late(rules[place], checkpoint, at, permits)
      end
    end
    -- Permits that are seen no more one by one are charged as if they were used now.
    local used = 0
    state.timeline = Timeline.load({ {}, {} })
    for index, rule in ipairs(state.rules) do
      if state.checkpoints[index] then used = max(used, rule.capacity - State.available(state, now, rule)) end
    end
    if used > 0 then Search.charge_at(other, now, used) end
  end

  local row = Earlier.read(key)
  if not row then return end
  local known = { unpack(row, 1, 10) }
  known[11], known[12], known[13], known[14] = 0, {}, {}, 0
  for index = 15, 17 do known[index] = row[index + 4] end
  local other = State.load(Earlier.keys[key], cmsgpack.pack(known), now)
  if not Earlier.is_marked(row) then add_bookings(other, state, now) end
  for _, field in ipairs({
    "generation", "void_from", "previous_generation", "rescheduled_cell", "rescheduled_until", "rescheduled", "declared", "rules", "union",
    "timeline", "checkpoints", "pause", "external_usage",
  }) do
    state[field] = other[field]
  end
  state.reset_at = max(state.reset_at, other.reset_at)
end
