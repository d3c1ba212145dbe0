-- timeline.lua: bookings by instant, ascending: `at` are the instants, `permits` how many each holds, `size` the number of entries.
--
-- Twin of src/limiter/arithmetic/timeline.rs. Instants of one cell are one entry, kept at the latest of them. Stored as
-- { { at, ... }, { permits, ... } }, where each instant is the difference to the one before, which makes it short. Both arrays are
-- used as they come, for there may be hundreds of entries and a server does nothing else meanwhile. Where there are more, instants are
-- stored as they are, and the first ones, which no rule sees any more, are left until they are half of all: `stale` is their number, the
-- fifth part of the stored form. So a call does nothing with each of thousands. For the same reason entries that hold nothing any more
-- stay until they are half of all, or very many, where no rule keeps a checkpoint (`keeps_empty`): windows see them as if they were not
-- there. `empty` is how many there are at most, the sixth part of the stored form. The last entry always holds something.
--
-- Where thousands wait, a search would pass thousands of full instants. So a timeline also knows `full` stretches of time, the eighth
-- part of the stored form where there are any: { from, until, place of the rule that moved a search there, cost, ... }, the newest first.
-- From `from` on there is no room for `cost` permits before `until`. Bookings take room away. Whatever gives room ends a stretch, or the
-- part of it that can have gained: `uncharge`, `split_off` and whoever changes the rules or forgets bookings. The third part held those
-- of one permit in earlier versions, which leave out the eighth.
--
-- `moving` are bookings that a change has taken out and that have no new place yet (reschedule.lua), in pages: { at, ... } and
-- { permits, ... } by turns; nil if there are none. They are the fourth part of the stored form.

do
  local is_one, insert = Rule.is_one, table.insert

  local function load(stored)
    local entries, stale, at = stored[1], stored[5], 0
    local size = #entries
    for index = 1, stale and 0 or size do
      at = at + entries[index]
      entries[index] = at
    end
    return {
      at = entries, permits = stored[2], size = size, stale = stale or 0, empty = stored[6] or 0, keeps_empty = false,
      full = stored[8] or {}, moving = stored[4] or nil, pages = stored[7] or nil,
    }
  end

  -- Returns the values of an array from one place to another. The most that one step copies is what a stack holds.
  local function slice(values, first, final)
    local AT_ONCE = 7000
    local copy, place = { unpack(values, first, min(final, first + AT_ONCE - 1)) }, AT_ONCE
    for index = first + AT_ONCE, final do
      place = place + 1
      copy[place] = values[index]
    end
    return copy
  end

  -- Removes the entries after the first `size`.
  local function shorten(timeline, size)
    local entries, permits = timeline.at, timeline.permits
    for index = size + 1, timeline.size do
      entries[index] = nil
      permits[index] = nil
    end
    timeline.size = size
    if timeline.pages then Pages.cut(timeline.pages, 0, entries[size] or 0) end
  end

  -- Removes the last entries, which hold nothing any more.
  local function drop_last(timeline)
    -- So many are looked at at once.
    local AT_ONCE = 256
    local permits, size = timeline.permits, timeline.size
    local last = size
    while last >= AT_ONCE and permits[last] == 0 and max(unpack(permits, last - AT_ONCE + 1, last)) == 0 do last = last - AT_ONCE end
    while last > 0 and permits[last] == 0 do last = last - 1 end
    timeline.empty, timeline.stale = max(timeline.empty - (size - last), 0), min(timeline.stale, last)
    if size - last < last then return shorten(timeline, last) end
    timeline.at, timeline.permits, timeline.size = slice(timeline.at, 1, last), slice(permits, 1, last), last
  end

  -- Removes the entries that hold nothing any more, or the last ones of them: before anything is searched for. Of a long timeline some
  -- stay, unless `all` are to go.
  local function compact(timeline, all)
    if timeline.empty == 0 then return end
    local entries, permits, kept, stale, size = timeline.at, timeline.permits, 0, timeline.stale, timeline.size
    -- So many are removed even where they may stay.
    local EMPTY_MAX = 16384
    if not all and ((timeline.keeps_empty and 2 * timeline.empty < size) or (size > Timeline.LONG and timeline.empty < EMPTY_MAX)) then
      return drop_last(timeline)
    end
    for index = 1, size do
      if permits[index] > 0 then
        kept = kept + 1
        entries[kept], permits[kept] = entries[index], permits[index]
      elseif index <= timeline.stale then
        stale = stale - 1
      end
    end
    timeline.stale = stale
    shorten(timeline, kept)
    timeline.empty = 0
  end

  -- Returns the stored form. The timeline cannot be used any more.
  local function pack(timeline)
    compact(timeline)
    local entries, full, moving, before = timeline.at, timeline.full, timeline.moving, 0
    if timeline.size > Timeline.LONG then
      return { entries, timeline.permits, {}, moving or false, timeline.stale, timeline.empty, timeline.pages or false, full }
    end
    for index = 1, timeline.size do
      local at = entries[index]
      entries[index] = at - before
      before = at
    end
    if timeline.empty > 0 or full[1] then
      return { entries, timeline.permits, {}, moving or false, false, timeline.empty, false, full }
    end
    return { entries, timeline.permits, moving and {} or nil, moving }
  end

  -- Returns the index of the first entry at `at` or later.
  local function first_from(timeline, at)
    local entries, low, high = timeline.at, 1, timeline.size + 1
    while low < high do
      local middle = floor((low + high) / 2)
      if entries[middle] < at then low = middle + 1 else high = middle end
    end
    return low
  end

  -- Removes the entries before the one at `first`.
  local function keep_from(timeline, first)
    timeline.stale = 0
    if first == 1 then return end
    local size = timeline.size
    timeline.at, timeline.permits = slice(timeline.at, first, size), slice(timeline.permits, first, size)
    timeline.size = size - first + 1
    timeline.empty = min(timeline.empty, timeline.size)
    if timeline.pages then Pages.cut(timeline.pages, timeline.at[1] or math.huge, math.huge) end
  end

  -- Removes the entries that no rule sees any more.
  local function drop_stale(timeline)
    keep_from(timeline, timeline.stale + 1)
  end

  -- Removes what no rule can see, and merges what only rules with wide cells can still see, and what is in the checkpoints of all that can.
  -- Nothing behind `merged` can be merged: all rules see it, and it was booked under them.
  local function prune(timeline, now, rules, checkpoints, merged)
    timeline.pruned_at = now
    local longest = 0
    for index = 1, #rules do longest = max(longest, rules[index].seen_for) end
    timeline.stale = first_from(timeline, now - longest + 1) - 1
    if timeline.size <= Timeline.LONG or 2 * timeline.stale > timeline.size then drop_stale(timeline) end
    if not rules.merges then return end
    local entries, permits, kept, size = timeline.at, timeline.permits, timeline.stale, timeline.size
    -- The cell of the entries before `till`.
    local cell, till = nil, 0
    for index = kept + 1, size do
      local at, count = entries[index], permits[index]
      if at > merged then
        if kept == index - 1 then return end
        for later = index, size do
          kept = kept + 1
          entries[kept], permits[kept] = entries[later], permits[later]
        end
        break
      end
      if at >= till then
        cell, till = nil, math.huge
        for place = 1, #rules do
          local rule, checkpoint = rules[place], checkpoints[place]
          local seen_from, folded_until, own = now - rule.seen_for + 1, checkpoint and checkpoint[#checkpoint] + 1 or 0, rule.cell
          if at < folded_until then own, till = rule.folded_cell or own, min(till, folded_until) end
          if at < seen_from then
            till = min(till, seen_from)
          elseif not cell or own < cell then
            cell = own
          end
        end
      end
      if count == 0 then
        timeline.empty = max(timeline.empty - 1, 0)
      elseif kept > timeline.stale and is_one(rules, cell or 1, entries[kept], at) then
        entries[kept] = at
        permits[kept] = permits[kept] + count
      else
        kept = kept + 1
        entries[kept], permits[kept] = at, count
      end
    end
    work.done = work.done + 14 * (size - timeline.stale)
    shorten(timeline, kept)
    if timeline.pages then Pages.touch(timeline.pages, 0, merged) end
  end

  -- Books permits at an instant. The cells of the first `after` entries begin there or before. Returns whether they became an
  -- entry of their own.
  local function charge(timeline, rules, after, at, count)
    local entries, permits, cell, place = timeline.at, timeline.permits, rules.cell, after
    if timeline.pages then Pages.touch(timeline.pages, at - at % cell, at + cell) end
    -- Entries stay ascending: one of the same cell may lie behind the end of the calendar window that holds `at`.
    while place > 0 and entries[place] > at and not is_one(rules, cell, at, entries[place]) do place = place - 1 end
    -- Entries of the cell that hold nothing any more are not there.
    local final, before = place, entries[place]
    while place > 0 and permits[place] == 0 and is_one(rules, cell, min(before, at), max(before, at)) do
      place = place - 1
      before = entries[place]
    end
    local is_known = before and is_one(rules, cell, min(before, at), max(before, at))
    if is_known or place < final then
      if not is_known then
        place, timeline.empty = place + 1, max(timeline.empty - 1, 0)
        entries[place] = at
      elseif at > before then
        entries[place] = at
      end
      permits[place] = permits[place] + count
      for later = place + 1, final do entries[later] = max(entries[later], at) end
      return false
    end
    if place == timeline.size then
      entries[place + 1], permits[place + 1] = at, count
    else
      insert(entries, place + 1, at)
      insert(permits, place + 1, count)
    end
    timeline.size = timeline.size + 1
    return true
  end

  -- Returns the permits booked from one instant to another, both included.
  local function held_between(timeline, from, till)
    local held, entries, permits = 0, timeline.at, timeline.permits
    for index = first_from(timeline, from), timeline.size do
      if entries[index] > till then break end
      held = held + permits[index]
    end
    return held
  end

  -- Returns until when an instant's stretch is full for that many permits, and the place of the rule that says so; nil and `index` if it
  -- is in none.
  local function full_until(full, at, cost, index)
    for place = 1, #full, 4 do
      if full[place] <= at and at < full[place + 1] and full[place + 3] <= cost then return full[place + 1], full[place + 2] end
    end
    return nil, index
  end

  local function rare()
    -- Returns the instant of the booking behind so many others that lie at `at` or before; 0 if there is none.
    local function behind(timeline, at, count)
      local permits, place = timeline.permits, first_from(timeline, at + 1) - 1
      if timeline.empty == 0 then return timeline.at[place - count] or 0 end
      while place > 0 and count >= 0 do
        if permits[place] > 0 then count = count - 1 end
        place = place - 1
      end
      return count < 0 and timeline.at[place + 1] or 0
    end

    -- The numbers of the most full stretches that are known at once: eight.
    local FULL_MAX = 8 * 4

    -- Returns whether a further stretch would be kept beside all others.
    local function may_note(full)
      return #full < FULL_MAX
    end

    local function keep_full(kept, from, till, index, cost)
      local size = #kept
      if from >= till or size >= FULL_MAX then return end
      kept[size + 1], kept[size + 2], kept[size + 3], kept[size + 4] = from, till, index, cost
    end

    -- Notes that there is no room for that many permits from one instant until another, and which rule moved a search there. The oldest
    -- stretch makes place.
    local function note_full(timeline, from, till, index, cost)
      local full, kept = timeline.full, { from, till, index, cost }
      for place = 1, #full, 4 do
        local first, last, by, least = full[place], full[place + 1], full[place + 2], full[place + 3]
        if least == cost and first <= till and last >= from then
          kept[1] = min(kept[1], first)
          if last > kept[2] then kept[2], kept[3] = last, by end
        elseif least < cost or first < from or last > till then
          keep_full(kept, first, last, by, least)
        end
      end
      timeline.full = kept
    end

    -- Forgets the full stretches between two instants, both excluded.
    local function forget_full(timeline, from, till)
      local full, kept, is_touched = timeline.full, {}, false
      for place = 1, #full, 4 do is_touched = is_touched or (full[place + 1] > from + 1 and full[place] < till) end
      if not is_touched then return end
      for place = 1, #full, 4 do
        local first, last, by, cost = full[place], full[place + 1], full[place + 2], full[place + 3]
        keep_full(kept, first, min(last, from + 1), by, cost)
        keep_full(kept, max(first, till), last, by, cost)
      end
      timeline.full = kept
    end

    -- The entries of a page of bookings on the move.
    local PAGE = 64

    -- Removes the entries from an instant on, and returns them in pages.
    local function split_off(timeline, at)
      local entries, permits, size = timeline.at, timeline.permits, timeline.size
      local first, pages = first_from(timeline, at), {}
      for start = first, size, PAGE do
        local final, length = min(start + PAGE - 1, size), #pages
        pages[length + 1], pages[length + 2] = { unpack(entries, start, final) }, { unpack(permits, start, final) }
      end
      local kept = first - 1
      while kept > 0 and permits[kept] == 0 do kept = kept - 1 end
      timeline.at, timeline.permits, timeline.size = slice(entries, 1, kept), slice(permits, 1, kept), kept
      timeline.stale, timeline.empty = min(timeline.stale, kept), min(timeline.empty, kept)
      timeline.full = {}
      if timeline.pages then Pages.cut(timeline.pages, 0, timeline.at[kept] or 0) end
      return pages
    end

    -- Returns the width of the cell of a booking that was kept as `prune` does at an instant: of the rules that saw it then.
    local function kept_cell(rules, at, pruned_at)
      if not rules.merges then return rules.cell end
      local cell
      for _, rule in ipairs(rules) do
        if at + rule.seen_for > pruned_at then cell = min(cell or rule.cell, rule.cell) end
      end
      return cell or rules.cell
    end

    -- Takes back up to that many permits of an instant, from the entry with which it is one by `pruned_at`, or else since the timeline was
    -- pruned last. Many come in ascending order, not far from each other.
    local function uncharge(timeline, rules, at, count, pruned_at)
      local entries, permits, size, index = timeline.at, timeline.permits, timeline.size, timeline.next_back or 1
      pruned_at = pruned_at or timeline.pruned_at or 0
      -- No entry behind the widest cell is one with it. That of an instant which no rule sees any more may have been merged into one that some do.
      local cell = rules.cell
      if rules.merges then
        for _, rule in ipairs(rules) do cell = max(cell, rule.cell) end
      end
      local NEAR = 6
      local till = min(index + NEAR, size)
      while index < till and entries[index] < at do index = index + 1 end
      if (entries[index] or 0) < at or (index > 1 and entries[index - 1] >= at) then index = first_from(timeline, at) end
      timeline.next_back = index + 1
      till = at - at % cell + cell
      while index <= size and permits[index] == 0 and entries[index] < till do index = index + 1 end
      if index > size or permits[index] == 0 then return end
      -- A later one that narrower cells still hold apart is of others.
      if not is_one(rules, kept_cell(rules, entries[index], pruned_at), at, entries[index]) then return end
      local left = permits[index] - min(permits[index], count)
      if timeline.full[1] then forget_full(timeline, till - cell - rules.reach, entries[index] + rules.reach) end
      permits[index] = left
      if timeline.pages then Pages.touch(timeline.pages, entries[index], entries[index]) end
      if left == 0 then timeline.empty = timeline.empty + 1 end
    end

    return { split_off = split_off, uncharge = uncharge, note_full = note_full, may_note = may_note, behind = behind }
  end

  Timeline = setmetatable({
    -- A timeline of more entries is long.
    LONG = 512, load = load, pack = pack, compact = compact, first_from = first_from, keep_from = keep_from, drop_stale = drop_stale, prune = prune, charge = charge,
    held_between = held_between, full_until = full_until, rare = rare,
  }, Lazy)
end
