-- pages.lua: sums over pages of a long timeline, for a rule that looks at all bookings (algorithm/bucket.lua, algorithm/warm_up.lua).
--
-- They only spare work, so the Rust twin, which passes a booking in nanoseconds, has none. `pages` of a timeline, the seventh part of its
-- stored form, are { starts, rows, ... }: the first instants of the pages, ascending, and for each rule in force one row for each page, or 0
-- where a booking of the page has changed since. The last page is open, and has no row. A row has, in microseconds and parts of the rate,
--   span, rest            how long the limit takes to allow all permits of the page
--   late, late_rest       the arrival time behind the page of a bucket that was full before
--   idle, idle_rest       the earliest arrival time before the page with which none of its bookings finds the bucket full
--   border, border_rest   the latest one with which each of its bookings has room
-- and behind these what else a rule keeps of the page.

-- The two know each other.
local Pages, Timeline
do
  local PAGE = 64

  local function rare()
    local span_exact = Rule.span_exact

    -- Returns the page that holds an instant; 0 for an instant before the first one.
    local function find(starts, at)
      local low, high = 1, #starts + 1
      while low < high do
        local middle = floor((low + high) / 2)
        if starts[middle] <= at then low = middle + 1 else high = middle end
      end
      return low - 1
    end

    -- Notes that bookings between two instants, both included, have changed. The sums of their pages will be made anew.
    local function touch(pages, from, till)
      local SUMMED = 16 * PAGE
      local starts = pages[1]
      -- Most bookings are made at the end.
      if not starts[2] or from >= starts[#starts] then return end
      local first = max(find(starts, from), 1)
      local final = till < starts[first + 1] and first or find(starts, till)
      for place = 2, #pages do
        local rows = pages[place]
        for page = first, min(final, #rows) do
          if rows[page] ~= 0 then work.done = work.done + SUMMED end
          rows[page] = 0
        end
      end
    end

    -- Keeps the pages between two instants.
    local function cut(pages, from, till)
      local starts = pages[1]
      local first, final = max(find(starts, from), 1), find(starts, till)
      for place = 1, #pages do
        local kept = { unpack(pages[place], first, min(final, #pages[place])) }
        if place > 1 and kept[1] then kept[1], kept[#kept] = 0, 0 end
        pages[place] = kept
      end
    end

    -- Returns starts and rows of a long timeline for a rule in force.
    local function of(timeline, rules, rule)
      local entries, size, pages = timeline.at, timeline.size, timeline.pages
      if not pages then
        pages = { {} }
        timeline.pages = pages
      end
      local starts = pages[1]
      for place = #pages + 1, #rules + 1 do pages[place] = {} end
      -- How long the last page is, is looked at when it may have grown by as much as a page.
      if size > 0 and (not starts[1] or size >= (timeline.paged or 0) + PAGE) then
        local last = starts[1] and Timeline.first_from(timeline, starts[#starts]) or 1
        if not starts[1] then starts[1] = entries[1] end
        while size - last >= 2 * PAGE do
          last = last + PAGE
          if entries[last] > starts[#starts] then starts[#starts + 1] = entries[last] end
        end
        timeline.paged = size
      end
      local rows = pages[rule.place + 1]
      for page = #rows + 1, #starts - 1 do rows[page] = 0 end
      return starts, rows
    end

    -- The idle time of a row without sums: none is later.
    local UNKNOWN = 4 * Rule.SPAN_MAX

    -- Returns a row for what a rule keeps behind the sums, which are made when they are asked for.
    local function without_sums()
      return { 0, 0, 0, 0, UNKNOWN, 0, 0, 0 }
    end

    -- Returns the row of a page. `beyond_of` returns how far the arrival time may lie ahead of the cell of so many permits.
    local function sum(timeline, rules, rule, starts, rows, page, beyond_of)
      local row = rows[page]
      if row ~= 0 and row[5] ~= UNKNOWN then return row end
      local entries, permits, rate, cell = timeline.at, timeline.permits, rule.rate, rules.cell
      local span, rest, late, late_rest, idle, idle_rest = 0, 0, 0, 0, 0, 0
      local border, border_rest, final = math.huge, 0, starts[page + 1]
      local index, same, more, more_rest, beyond, beyond_rest = Timeline.first_from(timeline, starts[page]), 0, nil, nil, nil, nil
      local from = index
      local at = entries[index]
      while at < final do
        local count = permits[index]
        if count > 0 then
          if count ~= same then
            more, more_rest = span_exact(rule, count)
            beyond, beyond_rest = beyond_of(rule, count)
            same = count
          end
          local micros, parts = at - span, -rest
          if parts < 0 then micros, parts = micros - 1, parts + rate end
          if micros > idle or (micros == idle and parts > idle_rest) then idle, idle_rest = micros, parts end
          micros, parts = at - at % cell + beyond - span, beyond_rest - rest
          if parts < 0 then micros, parts = micros - 1, parts + rate end
          if micros < border or (micros == border and parts < border_rest) then border, border_rest = micros, parts end
          if late < at then late, late_rest = at, 0 end
          late, late_rest = late + more, late_rest + more_rest
          if late_rest >= rate then late, late_rest = late + 1, late_rest - rate end
          span, rest = span + more, rest + more_rest
          if rest >= rate then span, rest = span + 1, rest - rate end
        end
        index = index + 1
        at = entries[index]
      end
      if border == math.huge then border = 2 * Rule.SPAN_MAX end
      work.done = work.done + 40 * (index - from)
      row = { span, rest, late, late_rest, idle, idle_rest, border, border_rest }
      rows[page] = row
      return row
    end

    -- Returns how much a call does at its end that looks once more at all bookings.
    local function work_of(pages)
      local PASSED, SUMMED, passed, summed = 25, 30 * PAGE, 0, 0
      for place = 2, #pages do
        local rows = pages[place]
        passed = passed + #rows
        for page = 1, #rows do
          if rows[page] == 0 then summed = summed + 1 end
        end
      end
      return PASSED * passed + SUMMED * summed
    end

    return { find = find, touch = touch, cut = cut, of = of, sum = sum, without_sums = without_sums, work = work_of }
  end

  Pages = setmetatable({ FAR = 2 * PAGE, rare = rare }, Lazy)
end
