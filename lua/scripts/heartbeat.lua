-- heartbeat.lua: keep the epoch alive, note that a replica hears the server, and return what a replica must know.
-- KEYS[1]  the epoch
-- KEYS[2]  the epoch of the earlier layout
-- KEYS[3]  until when each state lives
-- KEYS[4]  when bookings of a state were last moved
-- ARGV[1]  MessagePack values, one after the other; all times in microseconds
--   given_now    0: this server's clock
--   known_epoch  the latest epoch that the caller knows
--   run          the server's run as the caller knows it; empty: unknown; `?`: to be found out
--   settle       how long a new epoch takes to open
--   counts_for   how long a silent replica is counted
--   replica      the calling replica; 0: a probe by nobody, that writes in any case: a server that is no primary, or full, can still read
--   heard        the instant of the last answer that the caller has got; 0: none yet
--   matters_for  for how long its permits may matter from now on
--   memory       the memory to which it has reported all it was granted; 0: it is new, and was granted nothing
--   reported     the epoch to which it has reported what it granted without the server
--   version      the version of the members that it knows
--   leaves       whether it ends
--   followed     the instant until which the caller has followed what moved in its known epoch; 0: none
--   known        the other members as it knows them: replica, for how long its permits may matter, whether it is counted, by turns
--   copies       { whether it follows what others were granted, { replica, number of the copy that it has, by turns }, { { replica,
--                number, whether it is final, shift, written, text } of its own and of copies to be restored: copies.lua } }
-- Returns  one MessagePack array:
--          { { now, epoch, when it opens or 0, last reset or 0, memory }, { { key, instant } of each reset, ascending },
--            { version, whether all counted members know it }, { { replica, for how long its permits may matter, whether it is counted },
--            ... }, { whether the next list is complete, whether all members have reported all that matters }, { the key of each state
--            whose bookings may have to be moved, or were, since `followed` }, the epoch of the earlier layout or 0, { the members
--            that have not reported to this memory }, { { replica, number, whether it is final, shift, written, text } of each later
--            copy than the caller has }, { { key, instant, paused until or 0 if it was lifted, replica } of each limiter, or partition, that was
--            paused or resumed by hand, ascending } }
-- Atomic:  a single server, or keys of one hash tag

local epoch_key, earlier_key, live_key, moved_key = unpack(KEYS)
local given_now, known_epoch, run, settle, counts_for, replica, heard, matters_for, memory, reported, version, leaves, followed, known,
  copies = cmsgpack.unpack(ARGV[1])
local now = Store.now(given_now)

local stored = redis.call("MGET", epoch_key, earlier_key)
if stored[2] then Earlier.open(earlier_key, stored[2], #KEYS + 1, 1) end

local epoch = Epoch.open(epoch_key, stored[1], now, known_epoch, run, settle, replica > 0 and replica or nil, live_key)
epoch = Epoch.check_live(epoch, live_key, now, settle)
local SIZE, members = Epoch.SIZE, epoch.members

local function place_of(id)
  for index = 1, #members, SIZE do
    if members[index] == id then return index end
  end
end

-- The most members that are told apart. Further ones that have ended are one, which nobody can report for.
local MEMBERS_MAX = 256
local NOBODY = 0

local function is_full()
  return #members >= (MEMBERS_MAX + (place_of(NOBODY) and 1 or 0)) * SIZE
end

local function add(id, ...)
  if is_full() and not place_of(id) then id = NOBODY end
  local index = place_of(id) or #members + 1
  for place, value in ipairs({ id, ... }) do
    members[index + place - 1] = place == 3 and max(members[index + 2] or 0, value) or value
  end
end

-- Makes room for one more: of those that have ended and owe no report, the one whose permits matter no longer first counts among the further
-- ones. Returns whether there is room.
local function make_room()
  if not is_full() then return true end
  local first
  for index = 1, #members, SIZE do
    local id, last, matters_until = members[index], members[index + 1], members[index + 2]
    local has_ended = last == 0 or now - last >= counts_for and members[index + 4] >= epoch.id
    if id ~= NOBODY and has_ended and (not first or matters_until < members[first + 2]) then first = index end
  end
  if not first then return false end
  -- A restored copy is charged for its replica alone. Of one that counts among the further ones all is charged that nobody knows of.
  local copy = Copies.read(epoch, members[first])
  if copy and copy.is_restored then members[first + 3] = 0 end
  local nobody = place_of(NOBODY)
  if nobody then
    members[nobody + 2] = max(members[nobody + 2], members[first + 2])
    members[nobody + 3] = min(members[nobody + 3], members[first + 3])
    for _ = 1, SIZE do table.remove(members, first) end
  else
    members[first], members[first + 1] = NOBODY, 0
  end
  return true
end

-- A server that has lost its memory learns from those that ask who else there was; one whose clock was set ahead, for how long the permits
-- of those that have ended matter still. Who has reported to this memory knows its members by its answers: one of them that is not there
-- any more has left since, with nothing that matters, and owes no report.
local own = place_of(replica)
local is_told = own and members[own + 3] >= epoch.memory
for index = 1, #known, 3 do
  local id, matters_until, is_counted = known[index], now + known[index + 1], known[index + 2] == 1
  local place = place_of(id)
  if place and known_epoch ~= epoch.id and not is_counted then
    members[place + 2] = max(members[place + 2], matters_until)
  elseif not place and not is_told and matters_until > now then
    add(id, is_counted and epoch.begun or 0, matters_until, 0, 0, 0, 0)
  end
end
if replica > 0 then
  local place = place_of(replica)
  -- A new replica has nothing to report.
  if memory == 0 then memory, reported = epoch.memory, epoch.id end
  local last = max(min(heard, now), place and members[place + 1] or 0)
  if not place and not make_room() then return redis.error_reply("MEMBERS " .. MEMBERS_MAX .. " replicas share this server already") end
  local is_counted = place and members[place + 6] or 0
  add(replica, leaves and 0 or last, leaves and 0 or now + matters_for, memory, reported, version, is_counted)
  if leaves then members[place_of(replica) + 2] = now + matters_for end
end

-- ---- copies of what members were granted ----

if replica > 0 then Copies.adopt_last(epoch, now) end
local follows, has, given = unpack(copies)
for _, row in ipairs(given) do
  local id, place = row[1], place_of(row[1])
  local copy = { number = row[2], is_final = row[3], shift = row[4], written = row[5], text = row[6] }
  if id == replica and memory == epoch.memory then
    Copies.tell(epoch, id, copy, matters_for)
  elseif id ~= replica and place and known_epoch == epoch.id then
    Copies.restore(epoch, place, copy, now)
  end
end

-- The members that have still to report, and the copies that the caller does not have.
local awaited, later, size = {}, {}, 0
if replica > 0 then
  -- The rest comes with the next heartbeat.
  local SIZE_MAX = 65536
  local numbers = {}
  for index = 1, #has, 2 do numbers[has[index]] = has[index + 1] end
  for index = 1, #members, SIZE do
    local id, last = members[index], members[index + 1]
    local matters = id ~= replica and members[index + 2] > now
    if matters and members[index + 3] < epoch.memory then awaited[#awaited + 1] = id end
    -- The copy of one that has left is the last one, with an odd number: it is not read again. That of one that is silent has hardly changed:
    -- it is read now and then.
    local is_silent = last > 0 and members[index + 6] == 0
    local has_last = numbers[id] and (numbers[id] % 2 == 1 or is_silent and floor(now / 200000) % 32 ~= id % 32)
    local copy = follows and matters and not has_last and size < SIZE_MAX and Copies.read(epoch, id)
    if copy and copy.number > (numbers[id] or 0) then
      size = size + #copy.text
      later[#later + 1] = { id, copy.number, copy.is_final and 1 or 0, copy.shift, copy.written, copy.text }
    end
  end
end

-- The members that are counted, and those that matter still. A probe leaves them as they are: behind a long outage it would find none to be
-- counted, and the next replica would take itself to be alone, with nobody whose grants could be in doubt.
local kept, has_changed = {}, false
for index = 1, #members, SIZE do
  local row = { unpack(members, index, index + SIZE - 1) }
  local is_counted = row[2] > 0 and now - row[2] < counts_for and 1 or 0
  if replica == 0 then is_counted = row[7] end
  if is_counted ~= row[7] then has_changed = true end
  row[7] = is_counted
  if replica == 0 or is_counted == 1 or row[3] > now or row[1] == replica and not leaves then
    for place = 1, SIZE do kept[#kept + 1] = row[place] end
  end
end
epoch.members = kept
if has_changed then epoch.version = epoch.version + 1 end
Epoch.keep(epoch_key, epoch, now, now, true)
redis.call("ZREMRANGEBYSCORE", live_key, "-inf", string.format("%.0f", now))
Epoch.keep_live(live_key, epoch, now, now)

local resets, by_hand, rows, is_known = {}, {}, {}, true
for index = 1, #epoch.resets, 3 do resets[#resets + 1] = { epoch.resets[index], epoch.resets[index + 1] } end
for index = 1, #epoch.pauses, 5 do
  local key, at, till, _, by = unpack(epoch.pauses, index, index + 4)
  by_hand[#by_hand + 1] = { key, at, till, by }
end
for index = 1, #kept, SIZE do
  rows[#rows + 1] = { kept[index], max(kept[index + 2] - now, 0), kept[index + 6] }
  if kept[index + 6] == 1 and kept[index + 5] ~= epoch.version then is_known = false end
end

-- How long a move is told, and how many at once. A caller that has missed more looks after all its states.
local TOLD_FOR, TOLD_MAX = 10000000, 1000
local moved_since = replica > 0 and Epoch.moved_since(moved_key, now, now - TOLD_FOR) or now
-- Replicas of the earlier layout do not note what they move.
local is_complete = followed >= moved_since and known_epoch == epoch.id and now - followed < TOLD_FOR and not Earlier.id
local moved = {}
if is_complete then
  moved = redis.call("ZRANGEBYSCORE", moved_key, string.format("%.0f", followed), string.format("%.0f", now), "LIMIT", 0, TOLD_MAX)
  is_complete = #moved < TOLD_MAX
  -- A state follows a pause or a reset by hand in the next call for it.
  for index = 1, #epoch.resets, 3 do
    if epoch.resets[index + 1] >= followed then moved[#moved + 1] = epoch.resets[index] end
  end
  for index = 1, #epoch.pauses, 5 do
    if epoch.pauses[index + 1] >= followed then moved[#moved + 1] = epoch.pauses[index] end
  end
end
-- Where all have reported before the epoch opens, no state is charged with what they have not, and nothing moves up later.
local is_settled = Epoch.knows_all(epoch, now) and Epoch.unreported(epoch) == 0
return cmsgpack.pack({
  Epoch.answer(epoch, now), resets, { epoch.version, is_known and 1 or 0 }, rows, { is_complete and 1 or 0, is_settled and 1 or 0 }, moved,
  Earlier.id or 0, awaited, later, by_hand,
})
