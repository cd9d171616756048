-- One inference request of about 1 KB, every head different: the last field is a counter. With "new" as second argument
-- no two heads have the same shape: a field that nobody knows has an ever new value.
local head, id, tail
local new = false
local count = 0

function init(args)
  local body = '{"id":"bench","inputs":[{"name":"bytes","shape":[1,256],"datatype":"INT32","data":['
  local filler = {}
  for i = 1, 256 do filler[i] = tostring(100 + i % 100) end
  body = body .. table.concat(filler, ",") .. "]}]}"
  head = "POST " .. wrk.path .. " HTTP/1.1\r\nHost: " .. wrk.headers["Host"] ..
    "\r\nUser-Agent: warmroute-bench\r\nAccept: application/json\r\nContent-Type: application/json\r\nContent-Length: " ..
    #body
  id = "\r\nX-Request-Id: " .. (args[1] or "0") .. "-"
  new = args[2] == "new"
  tail = "\r\n\r\n" .. body
end

function request()
  count = count + 1
  local field = new and string.format("\r\nX-Nonce: %012d", count) or ""
  return head .. field .. id .. string.format("%012d", count) .. tail
end

function done(summary, latency, requests)
  local e = summary.errors
  io.write(string.format(
    'RESULT {"requests": %d, "duration_us": %d, "errors": %d, "refused": %d, "p50_us": %d, "p99_us": %d}\n',
    summary.requests, summary.duration, e.connect + e.read + e.write + e.timeout, e.status,
    latency:percentile(50), latency:percentile(99)))
end
