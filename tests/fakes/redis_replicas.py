"""Real redis-servers that replicate, the Sentinel that watches them, and a TCP proxy to cut or turn what they say."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from runtime.ha.redis_process import find_redis_server
from tests.waiting import PATIENCE_S

PASSWORD = "redis-s3cret"
SENTINEL_PASSWORD = "sentinel-s3cret"
SERVICE = "mymaster"
TRIES = 5


class Server:
    """A redis-server (or Sentinel) on a port of the loopback, with its log in ``directory``."""

    def __init__(self, directory: Path, settings: list[str], *, sentinel: bool = False) -> None:
        directory.mkdir()
        self.directory = directory
        self._password = SENTINEL_PASSWORD if sentinel else PASSWORD
        for _ in range(TRIES):
            self.port = _free_port()
            lines = [
                *(f"port {self.port}", "bind 127.0.0.1", f"dir {directory}", f"logfile {directory}/log"),
                *(f"requirepass {self._password}", *settings),
            ]
            if not sentinel:
                lines += [f"masterauth {PASSWORD}", 'save ""', "repl-diskless-sync-delay 0"]
            config = directory / "redis.conf"
            config.write_text("\n".join(lines) + "\n")
            command = [find_redis_server(), str(config), *["--sentinel"] * sentinel]
            self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            if self._answers():
                return
        raise AssertionError(f"it does not start: {(directory / 'log').read_text()}")

    def _answers(self, within: float = PATIENCE_S) -> bool:
        deadline = time.monotonic() + within
        while self._process.poll() is None and time.monotonic() < deadline:
            with contextlib.suppress(redis.ConnectionError, redis.TimeoutError):
                # Somebody else may have taken the port.
                return int(self.command("INFO", "server")["process_id"]) == self._process.pid
            time.sleep(0.02)
        self.kill()
        return False

    def command(self, *arguments: str | int) -> Any:
        """One command on a connection of its own."""
        with redis.Redis(
            port=self.port,
            password=self._password,
            decode_responses=True,
            socket_timeout=PATIENCE_S,
            retry=Retry(NoBackoff(), 0),
        ) as client:
            return client.execute_command(*arguments)  # type: ignore[no-untyped-call, unused-ignore]

    def is_master(self) -> bool:
        """Whether it is one by now; one that becomes it closes its connections."""
        with contextlib.suppress(redis.ConnectionError):
            return bool(self.command("ROLE")[0] == "master")
        return False

    def kill(self) -> None:
        """SIGKILL, and wait for the end."""
        if self._process.poll() is None:
            os.kill(self._process.pid, signal.SIGKILL)
        self._process.wait()


class TcpProxy:
    """Passes everything on to ``target`` and back; a port of the loopback."""

    def __init__(self, target: int) -> None:
        self.target = target
        self.port = 0
        self._loses = False
        self._listener: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()

    async def start(self) -> None:
        """Begin to listen."""
        self._listener = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._listener.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Close everything."""
        assert self._listener is not None
        self._listener.close()
        self.cut()

    def lose(self) -> None:
        """From now on nothing arrives any more, in either direction, and nobody is told."""
        self._loses = True

    def cut(self) -> None:
        """Break all connections."""
        for writer in list(self._open):
            writer.close()

    def turn(self, target: int) -> None:
        """Lead to another server from now on."""
        self.target = target
        self.cut()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            back, there = await asyncio.open_connection("127.0.0.1", self.target)
        except OSError:
            writer.close()
            return
        self._open |= {writer, there}
        await asyncio.gather(self._pass(reader, there), self._pass(back, writer))
        self._open -= {writer, there}

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                if not self._loses:
                    writer.write(data)
        writer.close()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Servers:
    """The servers of one test; all are killed at its end."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._started: list[Server] = []

    def redis(self, *settings: str) -> Server:
        """A redis-server, with an append-only file unless the settings say otherwise."""
        return self._keep(Server(self._path("redis"), ["appendonly yes", *settings]))

    def sentinel(self, master: Server, down_after: float = 2.0) -> Server:
        """The one Sentinel of a master; it decides alone, ``down_after`` seconds after the master's last answer."""
        settings = [
            f"sentinel monitor {SERVICE} 127.0.0.1 {master.port} 1",
            f"sentinel auth-pass {SERVICE} {PASSWORD}",
            f"sentinel down-after-milliseconds {SERVICE} {down_after * 1000:.0f}",
            f"sentinel failover-timeout {SERVICE} 10000",
        ]
        return self._keep(Server(self._path("sentinel"), settings, sentinel=True))

    def close(self) -> None:
        """Kill them all."""
        for server in self._started:
            server.kill()

    def _path(self, kind: str) -> Path:
        return self._directory / f"{kind}-{len(self._started)}"

    def _keep(self, server: Server) -> Server:
        self._started.append(server)
        return server


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Servers]:
    """Starts servers."""
    made = Servers(tmp_path)
    yield made
    made.close()
