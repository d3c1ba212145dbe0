-- inspect.lua: what a limiter has left, without changing anything.
-- KEYS[1]  the limiter's book
-- ARGV[1]  now in microseconds; 0: this server's clock
-- ARGV[2]  the caller's rules as text
-- Returns  { now, the last booked slot or 0, available of each rule } integers only
-- Atomic:  one key

local now = now_of(ARGV[1])
local book = book_load(KEYS[1], redis.call("MGET", KEYS[1])[1])
local answer = { now, book.at[book.size] or 0 }
for _, rule in ipairs(rules_of(ARGV[2])) do
  answer[#answer + 1] = available(book, now, rule)
end
return answer
