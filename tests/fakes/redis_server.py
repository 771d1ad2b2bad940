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

import pytest

from runtime.ha.redis_process import EmbeddedRedis


async def until(condition: Callable[[], object], within: float = 10.0, what: str = "") -> None:
    """Return as soon as ``condition()`` is true; fail when it is not within that many seconds."""
    deadline = time.monotonic() + within
    while not condition():
        assert time.monotonic() < deadline, f"not within {within} s: {what or condition}"
        await asyncio.sleep(0.003)


class RedisServer(EmbeddedRedis):
    """A redis-server that can be hurt."""

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
    """A Unix socket that passes everything to a server and back, or loses it.

    Args:
        lose: called with each piece of a request; where it returns true the request is passed on, its reply is lost,
            and the connection breaks.
    """

    def __init__(self, server: RedisServer, path: Path) -> None:
        self._server = server
        self._path = path
        self._listener: asyncio.AbstractServer | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self.lose: Callable[[bytes], bool] = lambda request: False
        self.hold: Callable[[bytes], bool] = lambda request: False
        self.held: list[Callable[[], None]] = []
        self.lost = 0

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

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        upstream = None
        try:
            up_reader, upstream = await asyncio.open_unix_connection(str(self._server.socket_path))
            losing = asyncio.Event()
            back = asyncio.create_task(self._pass_back(up_reader, writer, losing))
            try:
                while request := await reader.read(65536):
                    if self.hold(request):
                        # The request stays on its way until the test lets it through; nobody waits for its reply.
                        self.held.append(partial(upstream.write, request))
                        upstream = None
                        return
                    if self.lose(request):
                        losing.set()
                    upstream.write(request)
            finally:
                back.cancel()
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            self._connections.discard(task)
            writer.close()
            if upstream is not None:
                upstream.close()

    async def _pass_back(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, losing: asyncio.Event
    ) -> None:
        with suppress(OSError):
            while reply := await reader.read(65536):
                if losing.is_set():
                    self.lost += 1
                    break
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
