-- prelude.lua: names that every include uses.

local ceil, floor, max, min = math.ceil, math.floor, math.max, math.min
