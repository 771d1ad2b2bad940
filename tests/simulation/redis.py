"""A model of Redis below `runtime.ha.connection`: its commands, the semantics of our scripts, and its faults.

`RedisData` is the pure model of one server's data; a contract test holds it to a real redis-server over generated
sequences. `RedisServer` is a server on a simulated host. `RedisDeployment` is what clients reach: one server, or a
master with a replica that lags behind. The client (`SimRedis`, `SimPool`) has the part of redis-py's interface that
`RedisConnection` uses.

Faults: `kill` and `start` (with or without the last writes), `freeze` and `thaw` (a mute server executes afterwards
what arrived meanwhile), `slow_s`, `fail_over` (to a replica that has not seen the last writes), and those of the
network: requests that arrive late, replies that are lost after the effect.
"""

from __future__ import annotations

import asyncio
import copy
from collections import deque
from collections.abc import Callable
from typing import Any

from redis import exceptions as redis_errors

import runtime.ha.connection as connection_module
from runtime.ha import scripts
from tests.simulation.kernel import SECOND, Kernel, SimHost, SimLoop, SimProcess
from tests.simulation.network import Channel, Network
from tests.simulation.patches import Patch, add_patches

Reply = Any
Outcome = str | float | tuple[str, float]
"""Outcome of a request under a fault; see `_Session._execute`."""


class RedisData:
    """The data of one server, and the commands and scripts on them. Pure, except for *milliseconds*.

    Args:
        milliseconds: returns the server's wall clock.
        info: returns the fields of INFO.
        publish: called with channel and message.
    """

    def __init__(
        self,
        milliseconds: Callable[[], int],
        info: Callable[[], dict[str, str]],
        publish: Callable[[str, str], None] = lambda channel, message: None,
    ) -> None:
        self._milliseconds = milliseconds
        self._info = info
        self._publish = publish
        self.values: dict[str, str | dict[str, str]] = {}
        self.expires: dict[str, int] = {}
        self.known_scripts: set[str] = set()
        self._scripts: dict[str, Callable[[list[str], list[str]], Reply]] = {
            scripts.ACQUIRE.sha: self._acquire,
            scripts.RENEW.sha: self._renew,
            scripts.RELEASE.sha: self._release,
            scripts.CONFIRM.sha: self._confirm,
            scripts.LEADERS.sha: self._leaders,
            scripts.FENCED_DEL.sha: self._fenced_del,
            scripts.FENCED_HSET.sha: self._fenced_hset,
            scripts.FENCED_HDEL.sha: self._fenced_hdel,
        }
        self._sources = {
            script.source: script.sha for script in vars(scripts).values() if isinstance(script, scripts.Script)
        }

    # ------------------------------------------------------------------ commands

    def execute(self, *command: str | int) -> Reply:
        """Execute a command, and return what redis-py would; errors are returned, not raised."""
        name, *rest = [str(part) for part in command]
        match name.upper():
            case "PING":
                return True
            case "INFO":
                return self._info()
            case "EVALSHA" | "EVAL":
                return self._run(name.upper(), rest)
            case "HGET":
                return self._hash(rest[0]).get(rest[1])
            case "HGETALL":
                return dict(self._hash(rest[0]))
            case "HKEYS":
                return list(self._hash(rest[0]))
            case "SCAN":
                prefix = rest[2].rstrip("*")
                return ["0", [key for key in self._live() if key.startswith(prefix)]]
            case "UNLINK":
                return sum(self._delete(key) for key in rest)
            case "FLUSHALL":
                self.values.clear()
                self.expires.clear()
                return True
        return redis_errors.ResponseError(f"unknown command {name!r}")

    def _run(self, how: str, rest: list[str]) -> Reply:
        if how == "EVAL":
            sha = self._sources.get(rest[0], "")
            self.known_scripts.add(sha)
        else:
            sha = rest[0]
            if sha not in self.known_scripts:
                return redis_errors.NoScriptError("No matching script. Please use EVAL.")
        count = int(rest[1])
        return self._scripts[sha](rest[2 : 2 + count], rest[2 + count :])

    # ------------------------------------------------------------------ keys

    def _purge(self, key: str) -> None:
        expires = self.expires.get(key)
        if expires is not None and expires <= self._milliseconds():
            self._delete(key)

    def _live(self) -> list[str]:
        for key in list(self.expires):
            self._purge(key)
        return list(self.values)

    def _delete(self, key: str) -> int:
        self.expires.pop(key, None)
        return int(self.values.pop(key, None) is not None)

    def _hash(self, key: str) -> dict[str, str]:
        self._purge(key)
        found = self.values.get(key, {})
        assert isinstance(found, dict), f"{key} is not a hash"
        return found

    def _hset(self, key: str, **fields: str) -> None:
        found = self._hash(key)
        self.values[key] = found
        found.update(fields)

    def ttl(self, key: str) -> int:
        """Return the milliseconds until a key expires: -1 if it does not, -2 if there is none."""
        self._purge(key)
        if key not in self.values:
            return -2
        return self.expires[key] - self._milliseconds() if key in self.expires else -1

    def _expire(self, key: str, milliseconds: int) -> None:
        self.expires[key] = self._milliseconds() + milliseconds

    # ------------------------------------------------------------------ scripts, as in runtime.ha.scripts

    def _holds(self, latch: str, session: str, epoch: str) -> bool:
        held = self._hash(latch)
        return held.get("owner") == session and held.get("epoch") == epoch

    def _acquire(self, keys: list[str], arguments: list[str]) -> Reply:
        latch, counter, incarnation = keys
        session, lease, floor = arguments[0], int(arguments[1]), int(arguments[2])
        held = self._hash(latch)
        if held.get("owner") and (held["owner"] != session or int(held["epoch"]) > floor):
            ttl, own = self.ttl(latch), int(held.get("lease", lease))
            if ttl < 0 or ("lease" in held and ttl > own):
                ttl = own
                self._expire(latch, ttl)
            return [int(held["owner"] == session), int(held["epoch"]), ttl]
        clock = self._milliseconds()
        info = self._info()
        run, replication = info["run_id"], info["master_replid"]
        known = dict(self._hash(incarnation))
        free_from, pause = int(known.get("until", "0")), int(known.get("pause", "0"))
        if known.get("run") != run or known.get("replication") != replication:
            promoted = bool(info["master_replid2"].strip("0"))
            restarted = "run" in known and known["run"] != run
            young = "run" not in known and int(info["uptime_in_seconds"]) * 1000 < lease
            forgets = info["aof_enabled"] != "1"
            if promoted or (forgets and (restarted or young)):
                pause = lease
                free_from = clock + pause
            self._hset(incarnation, run=run, replication=replication, until=str(free_from), pause=str(pause))
        elif pause > 0 and free_from - clock > pause:
            free_from = clock + pause
            self._hset(incarnation, until=str(free_from))
        if clock < free_from:
            return [0, 0, free_from - clock]
        last = self.values.get(counter, "0")
        assert isinstance(last, str)
        epoch = max(int(last) + 1, floor + 1, clock)
        self.values[counter] = str(epoch)
        self._delete(latch)
        self._hset(latch, owner=session, epoch=str(epoch), lease=str(lease))
        self._expire(latch, lease)
        return [1, epoch, lease]

    def _renew(self, keys: list[str], arguments: list[str]) -> Reply:
        if not self._holds(keys[0], arguments[0], arguments[1]):
            return 0
        self._expire(keys[0], int(arguments[2]))
        if len(arguments) > 3:
            is_known = "address" in self._hash(keys[0])
            self._hset(keys[0], address=arguments[5])
            if not is_known:
                self._publish(arguments[3], arguments[4])
        return 1

    def _release(self, keys: list[str], arguments: list[str]) -> Reply:
        if not self._holds(keys[0], arguments[0], arguments[1]):
            return 0
        self._delete(keys[0])
        self._publish(arguments[2], arguments[3])
        return 1

    def _confirm(self, keys: list[str], arguments: list[str]) -> Reply:
        if not self._holds(keys[0], arguments[0], arguments[1]):
            return 0
        self._hset(keys[0], address=arguments[4])
        self._publish(arguments[2], arguments[3])
        return 1

    def _leaders(self, keys: list[str], arguments: list[str]) -> Reply:
        return [[self._hash(key).get(field) for field in ("owner", "epoch", "address")] for key in keys]

    def _refusal(self, latch: str, arguments: list[str]) -> Reply:
        if self._holds(latch, arguments[0], arguments[1]):
            return None
        return [-1, self._hash(latch).get("epoch")]

    def _fenced_del(self, keys: list[str], arguments: list[str]) -> Reply:
        refusal = self._refusal(keys[0], arguments)
        if refusal is None:
            self._purge(keys[1])
            return [self._delete(keys[1])]
        return refusal

    def _compared(self, keys: list[str], arguments: list[str]) -> Reply:
        refusal = self._refusal(keys[0], arguments)
        if refusal is not None:
            return refusal
        _, _, field, demand, expected, *_ = arguments
        found = self._hash(keys[1]).get(field)
        if (demand == "absent" and found is not None) or (demand == "equals" and found != expected):
            return [0, found]
        return None

    def _fenced_hset(self, keys: list[str], arguments: list[str]) -> Reply:
        differs = self._compared(keys, arguments)
        if differs is None:
            self._hset(keys[1], **{arguments[2]: arguments[5]})
            return [1]
        return differs

    def _fenced_hdel(self, keys: list[str], arguments: list[str]) -> Reply:
        differs = self._compared(keys, arguments)
        if differs is None:
            found = self._hash(keys[1])
            found.pop(arguments[2], None)
            if not found:
                self._delete(keys[1])
            return [1]
        return differs

    # ------------------------------------------------------------------ copies

    def snapshot(self) -> tuple[dict[str, Any], dict[str, int]]:
        """Return a copy of the data."""
        return copy.deepcopy(self.values), dict(self.expires)

    def restore(self, snapshot: tuple[dict[str, Any], dict[str, int]]) -> None:
        """Replace the data by a copy; scripts are forgotten, as a restart does."""
        self.values, self.expires = copy.deepcopy(snapshot[0]), dict(snapshot[1])
        self.known_scripts.clear()


class RedisServer:
    """A Redis on a simulated host.

    Args:
        deployment: of which it is a part.
        host: where it runs.
        persistent: whether it has an append-only file that is synced at each write. If not, a restart loses up to the
            last second.
    """

    def __init__(self, deployment: RedisDeployment, host: SimHost, *, persistent: bool) -> None:
        self.kernel = host.kernel
        self.deployment = deployment
        self.host = host
        self.persistent = persistent
        self.up = False
        self.frozen = False
        self.slow_s = 0.0
        self.executed = 0
        self.data = RedisData(self._milliseconds, self.info, self._publish)
        self.sessions: dict[_Session, None] = {}
        self._run = 0
        self.replid, self.replid2 = self._new_id("replid"), "0" * 40
        self._started = self._started_s = 0
        self._waiting: deque[Callable[[], None]] = deque()
        self._saved = self.data.snapshot()
        self._busy_until = 0
        host.on_crash.append(self.kill)
        self.start()

    def _new_id(self, kind: str) -> str:
        return f"{self.kernel.random('redis ids').getrandbits(160):040x}"

    def _milliseconds(self) -> int:
        return self.host.wall(self.kernel.now) // 1_000_000

    def info(self) -> dict[str, str]:
        """Return the fields of INFO."""
        return {
            "redis_version": "7.2.0",
            "run_id": f"{self._run_id}",
            "master_replid": self.replid,
            "master_replid2": self.replid2,
            "uptime_in_seconds": str(self._milliseconds() // 1000 - self._started_s),
            "aof_enabled": str(int(self.persistent)),
            "role": "master",
            "maxmemory_policy": "noeviction",
        }

    def _publish(self, channel: str, message: str) -> None:
        for session in list(self.sessions):
            if session.channel == channel:
                session.push(message)

    # ------------------------------------------------------------------ faults

    def kill(self) -> None:
        """End it; its connections break."""
        if not self.up:
            return
        self.up = False
        self.kernel.trace("redis is killed")
        self._waiting.clear()
        for session in list(self.sessions):
            session.server_ended()
        self.sessions.clear()

    def start(self) -> None:
        """Start it, with what it has kept."""
        if self.up or not self.host.up:
            return
        self.up, self.frozen = True, False
        self._run_id = self._new_id("run")
        self._started, self._started_s = self.kernel.now, self._milliseconds() // 1000
        self.kernel.trace("redis starts")
        if self.persistent:
            self.data.known_scripts.clear()
        else:
            self.data.restore(self._saved)
            self.replid, self.replid2 = self._new_id("replid"), "0" * 40
        self._save()

    def _save(self) -> None:
        """Save a snapshot now and each second, so that a restart loses at most that."""
        if self.up and not self.persistent:
            self._saved = self.data.snapshot()
            started = self._started
            self.kernel.after(1.0, lambda: self._save() if self._started == started else None)

    def freeze(self) -> None:
        """Stop it (SIGSTOP): it takes requests and answers none."""
        self.frozen = True

    def thaw(self) -> None:
        """Let it run again: it executes what came meanwhile."""
        self.frozen = False
        waiting, self._waiting = self._waiting, deque()
        for work in waiting:
            work()

    # ------------------------------------------------------------------ requests

    def arrive(self, work: Callable[[], None]) -> None:
        """Execute a request as soon as the server can."""
        if not self.up:
            return
        if self.frozen:
            self._waiting.append(work)
        elif self.slow_s or self._busy_until > self.kernel.now:
            self._busy_until = max(self._busy_until, self.kernel.now) + int(self.slow_s * SECOND)
            self.kernel.at(self._busy_until, self._late, work)
        else:
            work()

    def _late(self, work: Callable[[], None]) -> None:
        if self.up and not self.frozen:
            work()
        elif self.up:
            self._waiting.append(work)

    def execute(self, who: str, command: tuple[Any, ...]) -> Reply:
        """Execute a command of a client."""
        self.executed += 1
        reply = self.data.execute(*command)
        shown = _shown(command)
        self.kernel.trace("redis", who, shown, type(reply).__name__ if isinstance(reply, Exception) else _brief(reply))
        for watch in self.deployment.watches:
            watch(shown, command, reply)
        return reply


def _shown(command: tuple[Any, ...]) -> str:
    return str(command[0] if command[0] not in ("EVALSHA", "EVAL") else _SCRIPT_NAMES.get(str(command[1]), "eval"))


def _brief(reply: Reply) -> str:
    return str(reply)[:40] if isinstance(reply, (int, list)) else "value"


_SCRIPT_NAMES: dict[str, str] = {
    key: script.name
    for script in vars(scripts).values()
    if isinstance(script, scripts.Script)
    for key in (script.sha, script.source)
}


class RedisDeployment:
    """What clients of one URL reach.

    Args:
        kernel: the world.
        network: reaches the servers.
        host: of the server.
        persistent: see `RedisServer`.
        replica_host: of a replica; None for none.

    Attributes:
        watches: called with the name, the command and the reply of each executed request.
        lost_at: virtual seconds at which acknowledged writes were lost, and since when.
    """

    def __init__(
        self,
        kernel: Kernel,
        network: Network,
        host: SimHost,
        *,
        persistent: bool = True,
        replica_host: SimHost | None = None,
    ) -> None:
        self.kernel = kernel
        self.network = network
        self.watches: list[Callable[[str, tuple[Any, ...], Reply], None]] = []
        self.waiting_faults: list[Callable[[SimProcess, str, tuple[Any, ...]], Outcome]] = []
        """Called before a request is executed, with its process, name and command; see `_Session._execute`."""
        self.lost_at: list[tuple[float, float]] = []
        self.on_loss: list[Callable[[float], object]] = []
        """Called when acknowledged writes are lost, with the virtual second since which they are."""
        self.persistent = persistent
        self.master = RedisServer(self, host, persistent=persistent)
        self._replica_host = replica_host
        self._lag_s = 0.0
        self._log: deque[tuple[int, tuple[dict[str, Any], dict[str, int]]]] = deque()
        if replica_host is not None:
            self._replicate()
        kernel.devices["redis"] = self

    def kill_and_restart(self, after_s: float) -> None:
        """Kill the master, and start it again after a time."""
        server = self.master
        if not server.up:
            return
        if not self.persistent:
            self._lose(self.kernel.seconds - 1.0)
        server.kill()
        self.kernel.after(after_s, server.start)

    def _lose(self, since_s: float) -> None:
        self.lost_at.append((since_s, self.kernel.seconds))
        for callback in self.on_loss:
            callback(since_s)

    def _replicate(self) -> None:
        """Keep states of the last seconds, one of which a promoted replica has."""
        self._log.append((self.kernel.now, self.master.data.snapshot()))
        while len(self._log) > 8:
            self._log.popleft()
        self.kernel.after(0.25, self._replicate)

    def fail_over(self, lag_s: float, after_s: float) -> None:
        """Kill the master, and promote a replica that lags behind; the killed one becomes its replica."""
        old = self.master
        if not old.up or self._replica_host is None:
            return
        wanted = self.kernel.now - int(lag_s * SECOND)
        states = [state for at, state in self._log if at <= wanted] or [self._log[0][1]]
        since = max((at for at, _ in self._log if at <= wanted), default=self._log[0][0])
        self._lose(since / SECOND)
        old.kill()

        def promote() -> None:
            assert self._replica_host is not None
            promoted = RedisServer(self, self._replica_host, persistent=self.persistent)
            promoted.data.restore(states[-1])
            promoted.replid2, promoted.replid = old.replid, promoted.replid
            self.master, self._replica_host = promoted, old.host
            self.kernel.trace("redis fails over")

        self.kernel.after(after_s, promote)


class _Session:
    """A connection of a client, as both ends see it."""

    def __init__(self, deployment: RedisDeployment, process: SimProcess, server: RedisServer) -> None:
        self.deployment = deployment
        self.process = process
        self.server = server
        network = deployment.network
        self.there = Channel(network.link(process.host, server.host))
        self.back = Channel(network.link(server.host, process.host))
        self.broken: BaseException | None = None
        self.waiting: asyncio.Future[Reply] | None = None
        self.channel: str | None = None
        self.messages: deque[str] = deque()
        self.run = server._run_id

    def send(self, command: tuple[Any, ...], future: asyncio.Future[Reply]) -> None:
        """Send a request; its reply, or the end of the connection, settles the future."""
        self.waiting = future
        self.there.send(lambda: self._arrived(command, future), self.process.lag)

    def _arrived(self, command: tuple[Any, ...], future: asyncio.Future[Reply]) -> None:
        server = self.server
        if not server.up or server._run_id != self.run:
            self.back.send(lambda: self._refused(future))
            return
        server.arrive(lambda: self._execute(command, future))

    def _execute(self, command: tuple[Any, ...], future: asyncio.Future[Reply]) -> None:
        """Execute a request, unless a fault loses it (`lose`), and reply.

        A fault may lose the reply, too (`lose reply`), or delay it by some seconds. A request that is late itself
        (`late` and the seconds) arrives again then; meanwhile those of other connections overtake it.
        """
        faults = [fault(self.process, _shown(command), command) for fault in list(self.deployment.waiting_faults)]
        if "lose" in faults:
            return
        for fault in faults:
            if isinstance(fault, tuple):
                self.server.kernel.after(fault[1], self._arrived, command, future)
                return
        if command[0] == "SUBSCRIBE":
            self.channel = str(command[1])
            self.server.sessions[self] = None
            reply: Reply = True
        else:
            reply = self.server.execute(self.process.name, command)
        self.server.sessions[self] = None
        late_s = max((fault for fault in faults if isinstance(fault, float)), default=0.0)
        if late_s:
            self.server.kernel.after(late_s, _settle, self.process, future, reply)
        elif "lose reply" not in faults:
            self.back.send(lambda: _settle(self.process, future, reply))

    def _refused(self, future: asyncio.Future[Reply]) -> None:
        self.broken = redis_errors.ConnectionError("Connection refused")
        _settle(self.process, future, self.broken)

    def push(self, message: str) -> None:
        """Send a published message to the client."""
        self.back.send(lambda: self._pushed(message))

    def _pushed(self, message: str) -> None:
        self.messages.append(message)
        self._wake()

    def _wake(self) -> None:
        if self.waiting is not None:
            _settle(self.process, self.waiting, None)

    def server_ended(self) -> None:
        """Tell the client that the connection is broken."""
        self.back.send(self._ended)

    def _ended(self) -> None:
        self.broken = redis_errors.ConnectionError("Connection closed by server.")
        if self.waiting is not None:
            _settle(self.process, self.waiting, self.broken)

    def close(self) -> None:
        """Forget the connection."""
        self.broken = redis_errors.ConnectionError("closed")
        self.server.sessions.pop(self, None)


def _settle(process: SimProcess, future: asyncio.Future[Reply], reply: Reply) -> None:
    if not process.alive or future.done():
        return
    if isinstance(reply, Exception):
        future.set_exception(type(reply)(*reply.args))
    else:
        future.set_result(reply)


class SimPool:
    """The part of redis-py's blocking pool that `RedisConnection` uses."""

    def __init__(self, *, max_connections: int = 8, timeout: float = 1.0, **settings: Any) -> None:
        self.settings = settings
        self.timeout = timeout
        self.connect_timeout = settings.get("socket_connect_timeout") or timeout
        self.free = asyncio.Semaphore(max_connections)
        self.idle: list[_Session] = []

    @classmethod
    def from_url(cls, url: str, **settings: Any) -> SimPool:
        """Return a pool for a URL."""
        return cls(**settings)

    async def disconnect(self) -> None:
        """Close all idle connections."""
        for session in self.idle:
            session.close()
        self.idle.clear()


class SimRedis:
    """The part of redis-py's asyncio client that `RedisConnection` uses."""

    def __init__(self, *, connection_pool: SimPool) -> None:
        self._pool = connection_pool

    async def execute_command(self, *command: Any) -> Reply:
        """Send a command and return its reply."""
        try:
            async with asyncio.timeout(self._pool.timeout):
                await self._pool.free.acquire()
        except TimeoutError:
            raise redis_errors.ConnectionError("No connection available.") from None
        try:
            session = self._pool.idle.pop() if self._pool.idle else self.connect()
            try:
                reply = await self.request(session, command)
            except BaseException:
                session.close()
                raise
            if session.broken is None:
                self._pool.idle.append(session)
            return reply
        finally:
            self._pool.free.release()

    def connect(self) -> _Session:
        """Open a connection to the present master; what is wrong with it shows at the first request."""
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimLoop)
        deployment: RedisDeployment = loop.kernel.devices["redis"]
        return _Session(deployment, loop.process, deployment.master)

    async def request(self, session: _Session, command: tuple[Any, ...]) -> Reply:
        """Send a request over a connection and wait for the reply."""
        if session.broken is not None:
            raise type(session.broken)(*session.broken.args)
        session.process.effect()
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        session.send(command, future)
        try:
            async with asyncio.timeout(self._pool.connect_timeout):
                reply = await future
        except TimeoutError:
            raise redis_errors.TimeoutError("Timeout reading from socket") from None
        finally:
            session.waiting = None
        return reply

    def pubsub(self) -> SimPubSub:
        """Return a subscription."""
        return SimPubSub(self)

    async def aclose(self) -> None:
        """Close it."""
        await self._pool.disconnect()


class SimPubSub:
    """The part of redis-py's subscriptions that is used."""

    def __init__(self, client: SimRedis) -> None:
        self._client = client
        self._session: _Session | None = None

    async def subscribe(self, channel: str) -> None:
        """Subscribe to a channel."""
        self._session = self._client.connect()
        await self._client.request(self._session, ("SUBSCRIBE", channel))

    async def get_message(self, timeout: float | None = 0.0) -> dict[str, Any] | None:
        """Return the next message; None after *timeout* seconds."""
        session = self._session
        assert session is not None
        loop = asyncio.get_running_loop()
        deadline = None if timeout is None else loop.time() + timeout
        while not session.messages:
            if session.broken is not None:
                raise type(session.broken)(*session.broken.args)
            session.waiting = loop.create_future()
            try:
                async with asyncio.timeout_at(deadline):
                    await session.waiting
            except TimeoutError:
                return None
            finally:
                session.waiting = None
        return {"type": "message", "data": session.messages.popleft()}

    async def aclose(self) -> None:
        """Close it."""
        if self._session is not None:
            self._session.close()


class _Client:
    """Stands for the module ``redis.asyncio`` in `runtime.ha.connection`."""

    Redis = SimRedis
    BlockingConnectionPool = SimPool
    ConnectionPool = SimPool


def _patches(kernel: Kernel) -> list[Patch]:
    return [(connection_module, "aioredis", _Client)]


add_patches(_patches)
