"""A real redis-server for a test, and a proxy before it that loses what it is told to lose.

A test module imports the fixtures that it uses by name.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from urllib.parse import quote

import psutil
import pytest

from runtime.ha.redis_process import EmbeddedRedis, find_redis_server
from tests.fakes.resp import Exchange, Exchanges
from tests.waiting import PATIENCE_S


async def until(condition: Callable[[], object], within: float = PATIENCE_S, what: str = "") -> None:
    """Return as soon as ``condition()`` is true; fail when it is not within that many seconds."""
    deadline = time.monotonic() + within
    while not condition():
        assert time.monotonic() < deadline, f"not within {within} s: {what or condition}"
        await asyncio.sleep(0.003)


class RedisServer(EmbeddedRedis):
    """A redis-server that can be hurt."""

    def start(self, timeout: float = PATIENCE_S) -> None:
        super().start(timeout)

    async def start_async(self, timeout: float = PATIENCE_S) -> None:
        await super().start_async(timeout)

    def signal(self, number: signal.Signals) -> None:
        pid = self.pid
        assert pid is not None
        os.kill(pid, number)

    def pause(self) -> None:
        self.signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.signal(signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL, and wait for the end."""
        self.signal(signal.SIGKILL)
        assert self._child is not None
        self._child.wait()


class RedisProxy:
    """A Unix socket that passes everything to a server and back, or harms it on the way.

    Args:
        upstream: the server's socket, where it is not the one that the server was told.

    Attributes:
        lose: called with each piece of a request; where it returns true the request is passed on, its reply is lost,
            and the connection breaks.
        hold: called likewise; where it returns true the request is kept in `held` and the connection breaks.
        delay: seconds that every piece waits, each way.
        mute: requests are passed on, replies are not, and nothing tells that they are lost.
        swallow: nothing is passed on any more over a connection that is used meanwhile, nor is it ever again.
        refuse: whoever connects is cut off at once.
        cut: nothing is passed on while it is not set; all of it is when it is set again, as after a network's outage.
        on_exchange: called with every command that was answered, whether or not its reply is passed on.
    """

    def __init__(self, server: EmbeddedRedis, path: Path, upstream: Path | None = None) -> None:
        self._server = server
        self._path = path
        self._upstream = upstream or server.socket_path
        self._listener: asyncio.AbstractServer | None = None
        self._connections: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self.lose: Callable[[bytes], bool] = lambda request: False
        self.hold: Callable[[bytes], bool] = lambda request: False
        self.held: list[Callable[[], None]] = []
        self.lost = 0
        self.delay = 0.0
        self.mute = self.swallow = self.refuse = False
        self.cut = asyncio.Event()
        self.cut.set()
        self.on_exchange: Callable[[Exchange], None] = lambda exchange: None

    @property
    def url(self) -> str:
        return self._server.url.replace(quote(str(self._server.socket_path)), quote(str(self._path)))

    async def start(self) -> None:
        self._listener = await asyncio.start_unix_server(self._serve, str(self._path))

    async def stop(self) -> None:
        assert self._listener is not None
        self._listener.close()
        for task in self._connections:
            task.cancel()
        if self._connections:
            await asyncio.wait(self._connections)

    def reset(self) -> None:
        """Break every connection, whatever is on its way."""
        for writer in self._connections.values():
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        if self.refuse:
            writer.transport.abort()
            return
        self._connections[task] = writer
        upstream = None
        try:
            up_reader, upstream = await asyncio.open_unix_connection(str(self._upstream))
            losing, swallowed, exchanges = asyncio.Event(), asyncio.Event(), Exchanges()
            back = asyncio.create_task(self._pass_back(up_reader, writer, losing, swallowed, exchanges))
            try:
                while request := await reader.read(65536):
                    await self._pass_slowly()
                    if self.hold(request):
                        # The request stays on its way until the test lets it through; nobody waits for its reply.
                        self.held.append(partial(upstream.write, request))
                        upstream = None
                        return
                    if self.swallow:
                        swallowed.set()
                    if swallowed.is_set():
                        continue
                    if self.lose(request):
                        losing.set()
                    exchanges.sent(request, time.monotonic())
                    upstream.write(request)
            finally:
                back.cancel()
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            del self._connections[task]
            writer.close()
            if upstream is not None:
                upstream.close()

    async def _pass_slowly(self) -> None:
        await self.cut.wait()
        if self.delay:
            await asyncio.sleep(self.delay)

    async def _pass_back(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        losing: asyncio.Event,
        swallowed: asyncio.Event,
        exchanges: Exchanges,
    ) -> None:
        with suppress(OSError):
            while reply := await reader.read(65536):
                for exchange in exchanges.replied(reply, time.monotonic()):
                    self.on_exchange(exchange)
                await self._pass_slowly()
                if losing.is_set():
                    self.lost += 1
                    break
                if self.mute or self.swallow:
                    self.lost += 1
                    swallowed.set()
                if not swallowed.is_set():
                    writer.write(reply)
            writer.close()


@pytest.fixture
def redis_server(tmp_path: Path) -> Iterator[RedisServer]:
    """A running redis-server on a Unix socket in ``tmp_path``."""
    server = RedisServer(tmp_path / "redis")
    server.start()
    yield server
    if server.pid is not None:
        server.resume()
    server.stop()


@pytest.fixture
async def redis_proxy(redis_server: RedisServer, tmp_path: Path) -> AsyncIterator[RedisProxy]:
    """A proxy before `redis_server`."""
    proxy = RedisProxy(redis_server, tmp_path / "proxy.sock")
    await proxy.start()
    yield proxy
    await proxy.stop()


def slow_redis(directory: Path) -> Path:
    """A redis-server that begins once a file ``go`` is in the directory."""
    script = directory / "redis-server"
    script.write_text(
        f"#!/bin/sh\n[ $1 = --version ] || until [ -e {directory}/go ]; do sleep 0.01; done\n"
        f'exec {find_redis_server()} "$@"\n'
    )
    script.chmod(0o755)
    return script


def is_begun(directory: Path) -> bool:
    """Whether a redis-server was started in a directory and lives, however far it has come."""
    for process in psutil.process_iter(["cwd", "name"]):
        if process.info["cwd"] == str(directory) and process.info["name"] in ("redis-server", "sh"):
            return True
    return False
