-- Lua's tables and strings: a cache of records that are made, changed and dropped, strings cut and joined, closures,
-- coroutines. Each table, string and closure is a malloc of its own. Argument: rounds (default 40).
local rounds = tonumber(arg and arg[1]) or 40
local state = 12345
local function below(n)
  state = (state * 1103515245 + 12345) & 0x7fffffff
  return (state >> 8) % n
end

local function record(key)
  local fields = {}
  for i = 1, 4 + below(12) do fields[#fields + 1] = "field" .. key .. "." .. i end
  return {key = key, name = "record " .. key, fields = fields, at = {x = below(100), y = below(100)}}
end

local function text_work(records)
  local lines = {}
  for _, r in pairs(records) do lines[#lines + 1] = r.name .. ":" .. table.concat(r.fields, ",") end
  table.sort(lines)
  local joined, words = table.concat(lines, "\n"), {}
  for word in joined:gmatch("[%w.]+") do words[word] = (words[word] or 0) + 1 end
  return #joined:gsub("field", "<f>"), words
end

local function pipeline(count)
  local source = coroutine.wrap(function() for i = 1, count do coroutine.yield({i, tostring(i)}) end end)
  local sum = 0
  for pair in source do
    local add = function(n) return n + pair[1] + #pair[2] end
    sum = add(sum)
  end
  return sum
end

local cache, total = {}, 0
for round = 1, rounds do
  for _ = 1, 3000 do
    local key = below(4000)
    if below(3) == 0 then cache[key] = nil else cache[key] = record(key) end
  end
  local size, words = text_work(cache)
  assert(size > 0 and next(words), "the text is empty")
  assert(pipeline(2000) == 2000 * 2001 // 2 + 9 + 90 * 2 + 900 * 3 + 1001 * 4, "the sum is wrong")
  total = total + size
end
local live = 0
for key, r in pairs(cache) do
  assert(r.key == key and r.name == "record " .. key, "a record is damaged")
  live = live + 1
end
print(live, total)
