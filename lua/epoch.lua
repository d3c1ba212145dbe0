-- epoch.lua: which memory of the server a state belongs to; shared by the scripts that follow it in the same text.
--
-- A server can lose what it held: flushed, restarted with less or with nothing, replaced by a replica that lagged. An epoch is
-- the time between two such losses. Its key lives longer than any state under it, so that a state which is missing has
-- expired while the epoch lives; and it names the server's run. An epoch that is missing, or of another run, means loss: a
-- new one begins, and until it has settled nothing is granted and replicas write back what they were granted.
--
-- Stored as one MessagePack array:
--   { id, run, settled_at, kept_until, { key, at, until, ... }, { key, at, paused until, until, replica, ... } }
-- `id` is the instant of its beginning, or more, so that no epoch comes twice. The array inside holds the resets that there have
-- been, ascending: the key of a limiter's book, or what the keys of all its partitions' books begin with; and until when a book
-- may hold what was before. The other one holds in the same way what was paused by hand, until when (0: no longer), and over
-- which replica.

-- For how many times as long as it takes at least an epoch settles at most, while something is still being written back.
local SETTLES_MAX = 4

-- How long its key outlives every state, at most; half as long at least.
local EPOCH_KEPT = 30000000

-- The server's run, as the caller knows it; `?` from one that is connected to many and cannot know which of them answers.
local function run_of(run)
  if run ~= "?" then return run end
  return match(redis.call("INFO", "server"), "run_id:(%x+)") or ""
end

local function epoch_begin(now, heard, run, settle, resets, pauses)
  return {
    id = max(now, heard + 1), run = run, settled_at = now + settle, kept_until = 0, resets = resets, pauses = pauses,
  }
end

-- The epoch as of now for a caller whose server calls itself `run` (empty: not known) and who has heard of no later one than
-- `heard`. `settle` is how long a new one takes to settle; 0: there are no epochs.
local function epoch_open(key, text, now, run, settle, heard)
  if settle == 0 then return { id = 0, settled_at = 0, kept_until = SPAN_MAX, resets = {}, pauses = {} } end
  local stored, kept, kept_pauses = stored_at(key, text, 6), {}, {}
  if stored then
    local id, of, settled_at, kept_until, resets, pauses = unpack(stored)
    local epoch = {
      id = id, run = of == "" and run or of, settled_at = settled_at, kept_until = kept_until, resets = resets, pauses = pauses,
    }
    -- An epoch before one that was heard of comes from an old copy; a clock that stands before its beginning was set back.
    if id >= heard and now >= settled_at - SETTLES_MAX * settle and (run == "" or run == epoch.run) then return epoch end
    heard = max(heard, id)
    if (resets[#resets - 1] or 0) <= now then kept = resets end
    if (pauses[#pauses - 3] or 0) <= now then kept_pauses = pauses end
  end
  return epoch_begin(now, heard, run, settle, kept, kept_pauses)
end

-- Keeps the epoch for longer than a state that expires then; written now and then, not with each call, unless that is asked for.
local function epoch_keep(key, epoch, now, expires, always)
  local until_least = max(now, expires, epoch.settled_at) + EPOCH_KEPT / 2
  if epoch.kept_until < until_least then
    epoch.kept_until = until_least + EPOCH_KEPT / 2
  elseif not always then
    return
  end
  local text = cmsgpack.pack({ epoch.id, epoch.run, epoch.settled_at, epoch.kept_until, epoch.resets, epoch.pauses })
  redis.call("SET", key, text, "PX", math.ceil((epoch.kept_until - now) / 1000))
end

-- What a caller is told of it: now, which it is, until when it settles or 0, the instant of the last reset or 0.
local function epoch_answer(epoch, now)
  local resets = epoch.resets
  return { now, epoch.id, now < epoch.settled_at and epoch.settled_at or 0, resets[#resets - 1] or 0 }
end

-- Whether what is reset under `whole` is, or holds, the book with that key.
local function is_part(whole, key)
  return key == whole or key:sub(1, #whole + 1) == whole .. ":"
end

-- The last reset of a book; 0: none.
local function reset_of(epoch, key)
  local at = 0
  for index = 1, #epoch.resets, 3 do
    if is_part(epoch.resets[index], key) then at = epoch.resets[index + 1] end
  end
  return at
end

-- The last time that a book was paused by hand, or let go on, until when, and over which replica; 0, 0, 0: never.
local function pause_of(epoch, key)
  local at, till, replica = 0, 0, 0
  local pauses = epoch.pauses
  for index = 1, #pauses, 5 do
    if is_part(pauses[index], key) then at, till, replica = pauses[index + 1], pauses[index + 2], pauses[index + 4] end
  end
  return at, till, replica
end

-- Whether a book has gone, or is an older copy, that a caller saw at an instant of this epoch and that should have lived until now.
local function book_is_lost(book, seen, epoch, now)
  return epoch.id < seen and seen <= now and (book.born > seen or book.called < seen)
end

-- How much of a book's tightest rule is in use.
local function book_used(book, now)
  local used = 0
  for _, rule in ipairs(book.rules) do used = max(used, (rule.burst or rule.rate) - available(book, now, rule)) end
  return used
end

-- Brings a book into an epoch. What is left of it from before is forgotten but for how much was in use: whoever holds the
-- permits writes them back, and what nobody wrote back is charged once the epoch has settled.
local function book_enter(book, epoch, now)
  if book.epoch ~= epoch.id then
    book.owed = max(book.owed, book_used(book, now))
    book.number, book.epoch = max(epoch.id, book.number + 1), epoch.id
    book.called, book.lives_until, book.reset_at = min(book.called, now), 0, min(book.reset_at, now)
    book.void_from, book.moved_generation, book.moved, book.moved_until = 0, 0, {}, 0
    book.at, book.permits, book.size, book.restored = {}, {}, 0, {}
    for index, rule in ipairs(book.rules) do book.bases[index] = rule.burst and { 0, 0, 0 } or nil end
  end
  if book.owed > 0 and now >= epoch.settled_at then
    local missing = book.owed - book_used(book, now)
    book.owed = 0
    if missing > 0 then charge_at(book, now, missing) end
  end
end
