"""The Lua scripts of high availability. They run on Redis 6.2 and later; each script is one atomic step.

A term is valid as long as the latch hash holds its owner and epoch. The latch expires by itself with the lease. If
there is no latch, every write is refused.

Epochs come from one counter of the cluster that is never behind the server's clock in milliseconds. A Redis may lose
its last writes: a lagging replica is promoted, an append-only file is truncated, or the database is flushed. Even then
it grants an epoch above all epochs that were granted before.

Such a server may have forgotten a leader whose lease still runs. So the first request for a latch begins a pause of one
lease, in which the server grants none. The script recognises such a server by its run id and replication id, which
change when it is restarted or promoted. A restart with an append-only file needs no pause: it lost no write that was
answered.

Redis measures leases by its wall clock. If that is set back, a latch would last for as much longer, though its leader
is lost. So a latch holds its lease, and the next request of a contender shortens what is left to that. The pause is
shortened in the same way. The leader loses nothing: its lease began earlier.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Script:
    """A Lua script and its digest for EVALSHA."""

    name: str
    source: str
    sha: str = field(init=False)

    def __post_init__(self) -> None:
        # EVALSHA identifies scripts by SHA-1; security does not depend on it.
        object.__setattr__(self, "sha", hashlib.sha1(self.source.encode(), usedforsecurity=False).hexdigest())


# KEYS: latch, epoch counter, incarnation. ARGV: session, lease in ms, floor.
# Reply: {granted, epoch, ms until the latch expires}; epoch 0 in the pause after a loss.
# A session that already holds the latch gets the same epoch and the rest of its lease: the reply to its first request
# was lost. It gets no new lease, since a contender that receives no replies must not hold the latch for ever.
ACQUIRE = Script(
    "acquire",
    """
local held = redis.call('HMGET', KEYS[1], 'owner', 'epoch', 'lease')
local floor = tonumber(ARGV[3])
if held[1] and (held[1] ~= ARGV[1] or tonumber(held[2]) > floor) then
  local ttl, lease = redis.call('PTTL', KEYS[1]), tonumber(held[3] or ARGV[2])
  if ttl < 0 or (held[3] and ttl > lease) then
    ttl = lease
    redis.call('PEXPIRE', KEYS[1], ttl)
  end
  return {held[1] == ARGV[1] and 1 or 0, tonumber(held[2]), ttl}
end
local time = redis.call('TIME')
local clock = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local function info(section, name)
  return string.match(redis.call('INFO', section), name .. ':([^\\r\\n]*)') or ''
end
local run, replication = info('server', 'run_id'), info('replication', 'master_replid')
local known = redis.call('HMGET', KEYS[3], 'run', 'replication', 'until', 'pause')
local free_from, pause = tonumber(known[3] or '0'), tonumber(known[4] or '0')
if known[1] ~= run or known[2] ~= replication then
  local promoted = string.find(info('replication', 'master_replid2'), '[^0]')
  local restarted = known[1] and known[1] ~= run
  local young = not known[1] and tonumber(info('server', 'uptime_in_seconds')) * 1000 < tonumber(ARGV[2])
  local forgets = info('persistence', 'aof_enabled') ~= '1'
  if promoted or (forgets and (restarted or young)) then
    pause = tonumber(ARGV[2])
    free_from = clock + pause
  end
  redis.call('HSET', KEYS[3], 'run', run, 'replication', replication)
  redis.call('HSET', KEYS[3], 'until', string.format('%.0f', free_from), 'pause', pause)
elseif pause > 0 and free_from - clock > pause then
  free_from = clock + pause
  redis.call('HSET', KEYS[3], 'until', string.format('%.0f', free_from))
end
if clock < free_from then
  return {0, 0, free_from - clock}
end
local last = tonumber(redis.call('GET', KEYS[2]) or '0')
local epoch = math.max(last + 1, floor + 1, clock)
local text = string.format('%.0f', epoch)
redis.call('SET', KEYS[2], text)
redis.call('DEL', KEYS[1])
redis.call('HSET', KEYS[1], 'owner', ARGV[1], 'epoch', text, 'lease', ARGV[2])
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return {1, epoch, tonumber(ARGV[2])}
""",
)

_IF_NOT_LEADER = """
local held = redis.call('HMGET', KEYS[1], 'owner', 'epoch')
if held[1] ~= ARGV[1] or held[2] ~= ARGV[2] then
"""

_RESTORE_ADDRESS = """
if ARGV[6] and redis.call('HSET', KEYS[1], 'address', ARGV[6]) == 1 then
  redis.call('PUBLISH', ARGV[4], ARGV[5])
end
"""

# KEYS: latch. ARGV: session, epoch, lease in ms; then, of a leader that has confirmed, channel, component, address.
# Reply: 1 renewed, 0 the session no longer holds the latch.
# A promoted replica may have the latch without its confirmation: the renewal restores it.
RENEW = Script(
    "renew",
    f"""{_IF_NOT_LEADER}
  return 0
end
redis.call('PEXPIRE', KEYS[1], ARGV[3]){_RESTORE_ADDRESS}return 1
""",
)

# KEYS: latch. ARGV: session, epoch, channel, component. Reply: 1 released, 0 the session did not hold it.
RELEASE = Script(
    "release",
    f"""{_IF_NOT_LEADER}
  return 0
end
redis.call('DEL', KEYS[1])
redis.call('PUBLISH', ARGV[3], ARGV[4])
return 1
""",
)

# KEYS: latch. ARGV: session, epoch, channel, component, address. Reply: 1 published, 0 not the leader.
CONFIRM = Script(
    "confirm",
    f"""{_IF_NOT_LEADER}
  return 0
end
redis.call('HSET', KEYS[1], 'address', ARGV[5])
redis.call('PUBLISH', ARGV[3], ARGV[4])
return 1
""",
)

# KEYS: latches. Reply: {owner, epoch, address} of each; nil for a field that is absent.
LEADERS = Script(
    "leaders",
    """
local found = {}
for number, latch in ipairs(KEYS) do
  found[number] = redis.call('HMGET', latch, 'owner', 'epoch', 'address')
end
return found
""",
)

_FENCED = f"""{_IF_NOT_LEADER}
  return {{-1, held[2] or false}}
end
"""

# KEYS: latch, key. ARGV: session, epoch. Reply: {1} deleted, {0} was absent, {-1, epoch of the leader} refused.
FENCED_DEL = Script(
    "fenced del",
    f"""{_FENCED}
return {{redis.call('DEL', KEYS[2])}}
""",
)

# The comparison shared by the two writes to a hash. ARGV[3] is the field, ARGV[4] the condition ('any', 'absent' or
# 'equals'), and ARGV[5] the value for 'equals'. Reply if the condition does not hold: {0, value found}.
_COMPARED = f"""{_FENCED}
local found = redis.call('HGET', KEYS[2], ARGV[3])
if (ARGV[4] == 'absent' and found) or (ARGV[4] == 'equals' and found ~= ARGV[5]) then
  return {{0, found}}
end
"""

# KEYS: latch, hash. ARGV: session, epoch, field, demand, expected, value.
FENCED_HSET = Script(
    "fenced hset",
    f"""{_COMPARED}
redis.call('HSET', KEYS[2], ARGV[3], ARGV[6])
return {{1}}
""",
)

# KEYS: latch, hash. ARGV: session, epoch, field, demand, expected.
FENCED_HDEL = Script(
    "fenced hdel",
    f"""{_COMPARED}
redis.call('HDEL', KEYS[2], ARGV[3])
return {{1}}
""",
)
