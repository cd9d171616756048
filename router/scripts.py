"""What runs inside of the shared state: scripts that write, remove and read records, keep answers, tell latencies."""

from __future__ import annotations

WRITE_LUA = """
-- KEYS: endpoint hash, revision, index.  ARGV: id, epoch, ttl_ms, channel, schema version, then field/value pairs.
-- Sets the changed fields, refreshes the TTL, bumps the revision and publishes the delta. 'crev' is the revision at
-- which a field last changed: by it a reader knows what it has. A whole record is told by its field 'addr', which never
-- changes within an epoch. Where the hash had expired or belongs to another epoch, anything less than a whole record
-- changes nothing and returns -1: the writer must send everything.
local epoch = redis.call('HGET', KEYS[1], 'epoch')
local whole = false
for i = 6, #ARGV, 2 do
  if ARGV[i] == 'addr' then whole = true end
end
if not whole and epoch ~= ARGV[2] then return -1 end
if epoch and epoch ~= ARGV[2] then redis.call('DEL', KEYS[1]) end
local rev = redis.call('INCR', KEYS[2])
local fields = {}
redis.call('HSET', KEYS[1], 'v', ARGV[5], 'epoch', ARGV[2], 'rev', rev)
for i = 6, #ARGV, 2 do
  redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 1])
  fields[ARGV[i]] = ARGV[i + 1]
end
redis.call('PEXPIRE', KEYS[1], ARGV[3])
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
redis.call('ZADD', KEYS[3], now + ARGV[3], ARGV[1])
local kind = 'set'
if #ARGV == 5 then kind = 'beat' else redis.call('HSET', KEYS[1], 'crev', rev) end
local msg = {v = tonumber(ARGV[5]), id = ARGV[1], epoch = ARGV[2], rev = rev, kind = kind}
if kind == 'set' then msg.f = fields end
redis.call('PUBLISH', ARGV[4], cjson.encode(msg))
return rev
"""

REMOVE_LUA = """
-- KEYS: endpoint hash, revision, index.  ARGV: id, epoch, channel, schema version.
-- Removes an endpoint's record, if it is still this epoch's, and says so.
local epoch = redis.call('HGET', KEYS[1], 'epoch')
if epoch and epoch ~= ARGV[2] then return -1 end
redis.call('DEL', KEYS[1])
redis.call('ZREM', KEYS[3], ARGV[1])
local rev = redis.call('INCR', KEYS[2])
local msg = {v = tonumber(ARGV[4]), id = ARGV[1], epoch = ARGV[2], rev = rev, kind = 'del'}
redis.call('PUBLISH', ARGV[3], cjson.encode(msg))
return rev
"""

READ_LUA = """
-- KEYS: revision, index.  ARGV: prefix of endpoint keys, then id and 'crev' of each endpoint that the reader has.
-- Returns the revision, then id and flat hash of each live endpoint, or id and revision where the reader has the rest,
-- or id and an error where its key is no hash; drops index entries whose hash expired.
local function wrong(told) return type(told) == 'table' and told.err and string.find(told.err, 'WRONGTYPE', 1, true) end
local revision = redis.pcall('GET', KEYS[1])
if wrong(revision) then return redis.error_reply('ERR ' .. KEYS[1] .. ' is no number: delete that key') end
if type(revision) == 'table' then return revision end
local ids = redis.pcall('ZRANGE', KEYS[2], 0, -1)
if wrong(ids) then return redis.error_reply('ERR ' .. KEYS[2] .. ' is no sorted set: delete that key') end
if ids.err then return ids end
local out = {tonumber(revision or '0') or 'none'}
local has = {}
for i = 2, #ARGV, 2 do has[ARGV[i]] = ARGV[i + 1] end
for _, id in ipairs(ids) do
  local key = ARGV[1] .. id
  local told = redis.pcall('HMGET', key, 'rev', 'crev')
  if wrong(told) then
    out[#out + 1] = id
    out[#out + 1] = key .. ' is no hash: delete that key'
  elseif told.err then return told
  elseif not told[1] then redis.call('ZREM', KEYS[2], id)
  else
    local rev = tonumber(told[1])
    out[#out + 1] = id
    if rev and told[2] and has[id] == told[2] then out[#out + 1] = rev
    else out[#out + 1] = redis.call('HGETALL', key) end
  end
end
return out
"""

KEEP_LUA = """
-- KEYS: answers by expiry, their sizes, bytes of all.  ARGV: prefix, id, value, ttl_ms, entries, bytes.
-- Keeps one answer; those that expire first make room for it.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local size = #ARGV[3] + 128
local function forget(id)
  redis.call('DEL', ARGV[1] .. id)
  redis.call('ZREM', KEYS[1], id)
  redis.call('DECRBY', KEYS[3], tonumber(redis.call('HGET', KEYS[2], id) or '0'))
  redis.call('HDEL', KEYS[2], id)
end
if size > tonumber(ARGV[6]) then return 0 end
if redis.call('ZSCORE', KEYS[1], ARGV[2]) then forget(ARGV[2]) end
for _, id in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now, 'LIMIT', 0, 100)) do forget(id) end
while redis.call('ZCARD', KEYS[1]) >= tonumber(ARGV[5])
    or tonumber(redis.call('GET', KEYS[3]) or '0') + size > tonumber(ARGV[6]) do
  local first = redis.call('ZRANGE', KEYS[1], 0, 0)[1]
  if not first then redis.call('SET', KEYS[3], '0') break end
  forget(first)
end
redis.call('SET', ARGV[1] .. ARGV[2], ARGV[3], 'PX', ARGV[4])
redis.call('ZADD', KEYS[1], now + ARGV[4], ARGV[2])
redis.call('HSET', KEYS[2], ARGV[2], size)
redis.call('INCRBY', KEYS[3], size)
return 1
"""

SKETCHES_LUA = """
-- KEYS: sidecar's hash, index.  ARGV: sidecar, ttl_ms, channel, schema version, form, then field/sketch pairs.
-- Sets the rows, takes back those with an empty sketch, refreshes the TTL and publishes them. A hash of another form is
-- begun anew. Index entries whose time is over are dropped.
if redis.call('HGET', KEYS[1], 'form') ~= ARGV[5] then
  redis.call('DEL', KEYS[1])
  redis.call('HSET', KEYS[1], 'form', ARGV[5])
end
local rows = {}
for i = 6, #ARGV, 2 do
  if ARGV[i + 1] == '' then redis.call('HDEL', KEYS[1], ARGV[i])
  else redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 1]) end
  rows[ARGV[i]] = ARGV[i + 1]
end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', now)
redis.call('ZADD', KEYS[2], now + ARGV[2], ARGV[1])
redis.call('PUBLISH', ARGV[3], cjson.encode({v = tonumber(ARGV[4]), from = ARGV[1], form = ARGV[5], rows = rows}))
return #ARGV
"""
