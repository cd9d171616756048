-- One inference request of about 1 KB, every head different: the last field is a counter.
local head, tail
local count = 0

function init(args)
  local body = '{"id":"bench","inputs":[{"name":"bytes","shape":[1,256],"datatype":"INT32","data":['
  local filler = {}
  for i = 1, 256 do filler[i] = tostring(100 + i % 100) end
  body = body .. table.concat(filler, ",") .. "]}]}"
  head = "POST " .. wrk.path .. " HTTP/1.1\r\nHost: " .. wrk.headers["Host"] ..
    "\r\nUser-Agent: warmroute-bench\r\nAccept: application/json\r\nContent-Type: application/json\r\nContent-Length: " ..
    #body .. "\r\nX-Request-Id: " .. (args[1] or "0") .. "-"
  tail = "\r\n\r\n" .. body
end

function request()
  count = count + 1
  return head .. string.format("%012d", count) .. tail
end

function done(summary, latency, requests)
  local e = summary.errors
  io.write(string.format(
    'RESULT {"requests": %d, "duration_us": %d, "errors": %d, "refused": %d, "p50_us": %d, "p99_us": %d}\n',
    summary.requests, summary.duration, e.connect + e.read + e.write + e.timeout, e.status,
    latency:percentile(50), latency:percentile(99)))
end
