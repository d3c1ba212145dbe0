-- limit.lua: what is commonly built with nginx and Lua to limit a fleet. Each request makes one call of a script in
-- Redis, over a connection that is kept. Not as exact as weir's window, and it knows no queue: a sliding window
-- counter, which weighs the previous window by the part of it that still counts.
local redis = require "nginx.redis"

local LIMIT, WINDOW_SECONDS = 1000000, 1
local TIMEOUT_MS, IDLE_MS, CONNECTIONS = 1000, 60000, 256

-- KEYS[1]   the counter of this window
-- KEYS[2]   the counter of the previous one
-- ARGV[1]   the limit
-- ARGV[2]   the part of the previous window that still counts
-- ARGV[3]   seconds after which a counter no longer matters
-- Returns   1 if the request may pass, otherwise 0
local SCRIPT = [[
    local current = tonumber(redis.call('GET', KEYS[1]) or 0)
    local previous = tonumber(redis.call('GET', KEYS[2]) or 0)
    if current + previous * tonumber(ARGV[2]) >= tonumber(ARGV[1]) then
        return 0
    end
    if redis.call('INCR', KEYS[1]) == 1 then
        redis.call('EXPIRE', KEYS[1], ARGV[3])
    end
    return 1
]]

-- Known once the script has been loaded.
local digest

local function ask()
    local connection = redis:new()
    connection:set_timeout(TIMEOUT_MS)
    local ok, problem = connection:connect("@redis_host@", @redis_port@)
    if not ok then
        return nil, problem
    end
    if not digest then
        digest, problem = connection:script("LOAD", SCRIPT)
        if not digest then
            return nil, problem
        end
    end
    local windows = ngx.now() / WINDOW_SECONDS
    local window = math.floor(windows)
    local passes
    passes, problem = connection:evalsha(
        digest, 2, "limit:" .. window, "limit:" .. window - 1, LIMIT, window + 1 - windows, 2 * WINDOW_SECONDS
    )
    connection:set_keepalive(IDLE_MS, CONNECTIONS)
    return passes, problem
end

local function check()
    local passes, problem = ask()
    if not passes then
        ngx.log(ngx.CRIT, "the limit is not known: ", problem)
        return ngx.exit(503)
    end
    if passes == 0 then
        return ngx.exit(429)
    end
end

return { check = check }
