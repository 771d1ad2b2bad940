"""Traces of real runs against a real redis-server, and their replay against the simulator's model of it.

`Recorder` stands between clients and a server. Like Redis, it executes one command at a time. So it knows the order in
which the server has executed them, whichever process has sent them. `record` lets the real services of high
availability run over it. `replay` gives the same commands to `RedisData`, and compares each reply.

Replies are compared as they are, but for what the clocks of two servers decide:

- The server has executed a command between its arrival and its reply. Any millisecond of that time is tried as the
  model's clock. So an epoch that is a clock's reading is compared exactly.
- When a lease ends is known as exactly. Near its end both are tried, that it has ended and that it has not. What is
  left of a lease may differ by both inaccuracies together.
- The order of the keys that SCAN returns is Redis' own.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import itertools
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import redis.asyncio as aioredis
from redis import exceptions as redis_errors

from runtime.ha import scripts
from runtime.ha.election import DefaultLeaderElectionService
from runtime.ha.errors import LeadershipLostError
from runtime.ha.services import RedisHaServices
from runtime.protocol.leader import DISPATCHER, LeaderInformation, LeaderTerm, job_master
from tests.fakes.redis_server import RedisServer, until
from tests.fakes.resp import RespParser, Value
from tests.simulation.redis import RedisData
from tests.waiting import PATIENCE_S

CLUSTER = "c1"
LEASE_S = 30.0
KILLED_LEASE_S = 8.0
"""Lease in seconds of the leader that is killed; the test waits for its end."""
JOB = "a" * 32
_UNRECORDED = frozenset({"AUTH", "SELECT", "CLIENT", "HELLO"})
"""Commands of redis-py itself, below the level of the model."""
_NAMES = {
    key: script.name
    for script in vars(scripts).values()
    if isinstance(script, scripts.Script)
    for key in (script.sha, script.source)
}
_LEASE_REPLY = 3
"""Length of a reply to an acquisition: whether granted, epoch, and what is left of the lease."""


@dataclass(frozen=True, slots=True)
class Executed:
    """One command that the server has executed.

    Args:
        command: its words.
        reply: as redis-py returns it; an error as ``-ERR ...``.
        from_ms: server's wall clock when it had not begun.
        until_ms: server's wall clock when it had ended.
    """

    command: tuple[str, ...]
    reply: Any
    from_ms: int
    until_ms: int

    @property
    def name(self) -> str:
        """Name of the script, or of the command."""
        return _NAMES[self.command[1]] if self.command[0] in ("EVALSHA", "EVAL") else self.command[0]


@dataclass(frozen=True, slots=True)
class Started:
    """The server has started, with these fields of INFO; it has kept its data."""

    info: dict[str, str]


@dataclass
class Trace:
    """The record of a server, in its order.

    Args:
        steps: commands and starts.
        published: channels and messages that it has published.
    """

    steps: list[Executed | Started] = field(default_factory=list)
    published: list[tuple[str, str]] = field(default_factory=list)

    @property
    def executed(self) -> list[Executed]:
        """The commands."""
        return [step for step in self.steps if isinstance(step, Executed)]


# ------------------------------------------------------------------ recording


class Recorder:
    """Passes commands to a server one at a time, and records them.

    Args:
        server: a running one.
        path: of the socket for clients.
    """

    def __init__(self, server: RedisServer, path: Path) -> None:
        self.trace = Trace()
        self._server = server
        self._path = path
        self._one_at_a_time = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        """The URL for clients."""
        return self._server.url.replace(quote(str(self._server.socket_path)), quote(str(self._path)))

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Record while the block runs."""
        await self._started()
        listener = await asyncio.start_unix_server(self._serve, str(self._path))
        try:
            yield
        finally:
            listener.close()
            for task in list(self._tasks):
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def restart(self) -> None:
        """Kill the server between two commands, and start it again with its data."""
        async with self._one_at_a_time:
            await self.settle()
            await asyncio.to_thread(self._server.kill)
            await asyncio.to_thread(self._server.start)
            await self._started()

    async def _started(self) -> None:
        async with aioredis.Redis.from_url(self._server.url, decode_responses=True) as client:
            info: dict[str, Any] = await client.info()
        self.trace.steps.append(Started({name: str(value) for name, value in info.items()}))
        following: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._keep(asyncio.create_task(self._follow(following)))
        await following

    def _keep(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _follow(self, following: asyncio.Future[None]) -> None:
        """Record what the server publishes, until it ends."""
        with contextlib.suppress(redis_errors.ConnectionError):
            async with (
                aioredis.Redis.from_url(self._server.url, decode_responses=True) as client,
                client.pubsub() as subscription,
            ):
                await subscription.psubscribe("*")
                async for message in subscription.listen():
                    if message["type"] == "psubscribe":
                        following.set_result(None)
                    else:
                        self.trace.published.append((message["channel"], message["data"]))

    async def settle(self) -> None:
        """Return when all messages that the server has published are recorded."""
        last = ("recorder", "last")
        async with aioredis.Redis.from_url(self._server.url) as client:
            await client.publish(*last)
        await until(lambda: last in self.trace.published, PATIENCE_S, "the messages of the server")
        self.trace.published.remove(last)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._keep(task)
        try:
            from_server, to_server = await asyncio.open_unix_connection(str(self._server.socket_path))
            try:
                await self._pass_on(reader, writer, from_server, to_server)
            finally:
                to_server.close()
        except OSError:
            pass  # the client, or the server, has gone
        finally:
            writer.close()

    async def _pass_on(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        from_server: asyncio.StreamReader,
        to_server: asyncio.StreamWriter,
    ) -> None:
        commands = RespParser()
        while data := await reader.read(65536):
            for value in commands.feed(data):
                assert isinstance(value, list)
                words = tuple(part.decode() for part in value if isinstance(part, bytes))
                if words[0].upper() == "SUBSCRIBE":
                    to_server.write(data)
                    while pushed := await from_server.read(65536):
                        writer.write(pushed)
                    return
                reply = await self._execute(words, from_server, to_server)
                if not reply:
                    return
                writer.write(reply)

    async def _execute(
        self, words: tuple[str, ...], from_server: asyncio.StreamReader, to_server: asyncio.StreamWriter
    ) -> bytes:
        """Return the reply of the server; nothing if it has gone."""
        replies, raw, found = RespParser(), b"", list[Value]()
        async with self._one_at_a_time:
            began = time.time_ns() // 1_000_000
            to_server.write(_encoded(words))
            while not found:
                data = await from_server.read(65536)
                if not data:
                    return b""
                raw += data
                found = replies.feed(data)
            if words[0].upper() not in _UNRECORDED:
                reply = _as_client(words[0].upper(), found[0])
                self.trace.steps.append(Executed(words, reply, began, time.time_ns() // 1_000_000))
        return raw


def _encoded(words: Sequence[str]) -> bytes:
    parts = [word.encode() for word in words]
    return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%b\r\n" % (len(part), part) for part in parts)


def _as_client(name: str, value: Value) -> Any:
    """Return a reply as redis-py does."""
    if isinstance(value, list):
        items = [_as_client("", item) for item in value]
        return dict(zip(items[::2], items[1::2], strict=True)) if name == "HGETALL" else items
    text = value.decode() if isinstance(value, bytes) else value
    return True if (name, text) in (("PING", "PONG"), ("FLUSHALL", "OK")) else text


# ------------------------------------------------------------------ real runs


class Contender:
    """Contends for the leadership of the Dispatcher, and remembers its present term."""

    def __init__(self, election: DefaultLeaderElectionService) -> None:
        self.election = election
        self.term: LeaderTerm | None = None

    def grant_leadership(self, term: LeaderTerm) -> None:
        self.term = term

    def revoke_leadership(self) -> None:
        self.term = None

    def handle_error(self, error: Exception) -> None:
        raise error


class Listener:
    """Remembers who leads."""

    def __init__(self) -> None:
        self.leader: LeaderInformation | None = None

    def notify_leader_address(self, leader: LeaderInformation | None) -> None:
        self.leader = leader

    def handle_error(self, error: Exception) -> None:
        raise error

    def follows(self, address: str) -> bool:
        """Return whether the leader is at an address."""
        return self.leader is not None and self.leader.address == address


async def contend(services: RedisHaServices) -> Contender:
    """Start a contender."""
    contender = Contender(services.leader_election(DISPATCHER))
    await contender.election.start(contender)
    return contender


async def lead_until_killed(url: str, storage: Path) -> None:
    """Lead, accept a job, say so, and wait to be killed."""
    services = RedisHaServices(url, CLUSTER, storage, lease=KILLED_LEASE_S, timeout=PATIENCE_S)
    leader = await contend(services)
    await until(lambda: leader.term)
    assert leader.term is not None
    await services.job_graph_store().put("first", b"graph of the first", leader.term)
    await services.running_jobs_registry().set_running("first", leader.term)
    await leader.election.confirm_leadership(leader.term, "akka://killed")
    sys.stdout.write("leads\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


async def record(directory: Path) -> Trace:
    """Run contenders, listeners and stores on a real server, with the kills of a leader and of the server.

    Args:
        directory: for files.

    Returns:
        what the server has done.
    """
    server = RedisServer(directory / "redis")
    await server.start_async()
    recorder = Recorder(server, directory / "recorder.sock")
    opened: list[RedisHaServices] = []
    try:
        async with recorder.running():
            opened += [
                RedisHaServices(recorder.url, CLUSTER, directory / "ha", lease=LEASE_S, timeout=PATIENCE_S)
                for _ in range(4)
            ]
            await _run(recorder, opened, directory / "ha")
            for services in opened:
                await services.close()
            await opened[-1].cleanup()
            await recorder.settle()
    finally:
        for services in opened:
            await services.close()
        await server.stop_async()
    return recorder.trace


async def _run(recorder: Recorder, opened: Sequence[RedisHaServices], storage: Path) -> None:
    first, second, third, after_restart = opened
    command = (sys.executable, "-m", "tests.contract.redis_traces", recorder.url, str(storage))
    child = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    try:
        assert child.stdout is not None
        assert await asyncio.wait_for(child.stdout.readline(), PATIENCE_S) == b"leads\n"
        listener = Listener()
        await third.leader_retrieval(DISPATCHER).start(listener)
        await until(lambda: listener.leader)
        contenders = [await contend(first), await contend(second)]
    finally:
        child.kill()
        await child.wait()
    await until(lambda: any(each.term for each in contenders))
    leader = await _dispatch(contenders, listener, first)
    await _keep_checkpoints(first)
    await recorder.restart()
    await after_restart.start()
    await after_restart.warm_up()
    await _hand_over(contenders, leader, listener, after_restart)


async def _dispatch(contenders: Sequence[Contender], listener: Listener, services: RedisHaServices) -> Contender:
    """Take over the job of the leader that was killed, and run others."""
    leader = next(each for each in contenders if each.term)
    term = leader.term
    assert term is not None
    await leader.election.confirm_leadership(term, "akka://first")
    await until(lambda: listener.follows("akka://first"))
    graphs, jobs, progress = services.job_graph_store(), services.running_jobs_registry(), services.execution_store()
    assert await graphs.get_all() == {"first": b"graph of the first"}
    await jobs.set_done("first", {"state": "FINISHED"}, term)
    await graphs.put("large", b"x" * 20_000, term)
    await jobs.set_pending("large", term)
    await progress.put("large", b"one", term)
    await progress.put("large", b"two", term)
    assert await progress.find("large") == b"two"
    assert await progress.find("none") is None
    assert await jobs.dirty_results() == {"first": {"state": "FINISHED"}}
    await jobs.mark_clean("first", term)
    await graphs.remove("first", term)
    return leader


async def _keep_checkpoints(services: RedisHaServices) -> None:
    """Complete checkpoints of a job, also as a JobMaster that was deposed."""
    latch = services.latch(job_master(JOB))
    reply = await latch.acquire("session", 0)
    term = LeaderTerm(job_master(JOB), reply.epoch, "session")
    assert await latch.renew(term, PATIENCE_S)
    assert await latch.acquire("another", 0) != reply
    factory = services.checkpoint_recovery_factory()
    counter, store = factory.checkpoint_id_counter(JOB), factory.completed_checkpoint_store(JOB, 2)
    await store.recover(term)
    for _ in range(4):
        number = await counter.get_and_increment(term)
        await store.add(number, b"checkpoint %d" % number, term)
    await store.replace(number, b"again", term)
    await store.release(number, term)
    assert len(await factory.completed_checkpoint_store(JOB, 2).get_all()) == 1
    await services.depose(job_master(JOB), term)
    try:
        await counter.get_and_increment(term)
    except LeadershipLostError:
        await factory.clean_up(JOB, LeaderTerm(job_master(JOB), (await latch.acquire("third", 0)).epoch, "third"))
    else:
        raise AssertionError("one that was deposed has written")


async def _hand_over(
    contenders: Sequence[Contender], leader: Contender, listener: Listener, services: RedisHaServices
) -> None:
    """Stop the leader; the other one finds what it has left."""
    await leader.election.stop()
    (other,) = (each for each in contenders if each is not leader)
    await until(lambda: other.term)
    assert other.term is not None
    await other.election.confirm_leadership(other.term, "akka://second")
    await until(lambda: listener.follows("akka://second"))
    jobs = services.running_jobs_registry()
    assert set(await services.job_graph_store().get_all()) == {"large"}
    await jobs.withdraw("large", other.term)
    await jobs.forget("first", other.term)
    await services.execution_store().remove("large", other.term)
    await services.execution_store().sweep(other.term)
    assert await services.current_leader(DISPATCHER) == listener.leader


# ------------------------------------------------------------------ replay


class Difference(AssertionError):
    """The model does not do what the server has done."""


def replay(trace: Trace) -> RedisData:
    """Give the commands of a trace to the model, and compare its replies and messages.

    Returns:
        the model.

    Raises:
        Difference: it is another.
    """
    now, info, published = 0, dict[str, str](), list[tuple[str, str]]()
    model = RedisData(lambda: now, lambda: info, lambda *what: published.append(what))
    inexact = 0
    for number, step in enumerate(trace.steps):
        if isinstance(step, Started):
            info = step.info
            model.known_scripts.clear()
            continue
        width = step.until_ms - step.from_ms
        before = copy.deepcopy(model.values), dict(model.expires), set(model.known_scripts), len(published)
        tried = []
        for now, ended in itertools.product(_clocks(step), (None, True, False)):
            model.values, model.expires = copy.deepcopy(before[0]), dict(before[1])
            if ended is not None:
                near = {key: at for key, at in model.expires.items() if abs(at - now) <= inexact}
                model.expires.update(dict.fromkeys(near, now if ended else now + 1))
            model.known_scripts = set(before[2])
            del published[before[3] :]
            reply = _as_redis_py(model.execute(*step.command))
            if _is_same(step, reply, width + inexact):
                break
            tried.append(reply)
        else:
            raise Difference(f"step {number}: {step} on the server, {tried[0]!r} on the model")
        inexact = max(inexact, width + 1)
    if published != trace.published:
        raise Difference(f"published {trace.published} on the server, {published} on the model")
    return model


def _clocks(step: Executed) -> Iterator[int]:
    """Yield the times at which the server may have executed a command, likely ones first."""
    yield step.until_ms
    if step.name == "acquire" and isinstance(step.reply, list) and step.from_ms <= step.reply[1] <= step.until_ms:
        yield step.reply[1]
    yield from range(step.from_ms, step.until_ms + 1)


def _as_redis_py(reply: Any) -> Any:
    """Return a reply of the model as the recorder returns that of the server."""
    if isinstance(reply, redis_errors.NoScriptError):
        return "-NOSCRIPT"
    return f"-ERR {reply}" if isinstance(reply, Exception) else reply


def _is_same(step: Executed, model: Any, slack_ms: int) -> bool:
    server = step.reply
    if step.command[0] == "INFO":
        return True  # the model shows what the server has shown
    if isinstance(server, str) and server.startswith("-NOSCRIPT"):
        return bool(model == "-NOSCRIPT")
    if step.command[0] == "SCAN":
        return bool([model[0], sorted(model[1])] == [server[0], sorted(server[1])])
    if step.name == "acquire" and len(server) == _LEASE_REPLY == len(model):
        return bool(server[:2] == model[:2] and abs(server[2] - model[2]) <= slack_ms)
    return bool(server == model)


if __name__ == "__main__":
    asyncio.run(lead_until_killed(sys.argv[1], Path(sys.argv[2])))
