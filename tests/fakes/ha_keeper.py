"""Who keeps latches and handles, to be hurt: a real redis-server, or a master in a process of its own.

A test module imports the fixtures that it uses by name.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from actors.address import ActorAddress
from actors.rpc.config import RpcConfig
from actors.rpc.service import RpcService
from runtime.ha.connection import RedisConnection
from runtime.ha.fenced import FencedMaps, FencedWriter
from runtime.ha.keys import ClusterKeys
from runtime.ha.latch import LatchTiming, LeaderLatch, RedisLeaderLatch
from runtime.ha.services import LatchedHaServices, RedisHaServices, StandaloneHaServices
from runtime.ha.standalone_client import MasterConnection, MasterLeaderLatch, MasterMaps
from runtime.ha.standalone_endpoint import StandaloneHa
from runtime.ha.user_store import UserFile
from tests.fakes.redis_server import RedisServer
from tests.fakes.sshd import unused_port
from tests.waiting import PATIENCE_S

CLUSTER = "c1"
LONG_LEASE = 36.0
"""In seconds: a leader keeps its latch on a machine that stands still for 20 s, and one that steps down contends again
after 6 s."""
SECRET = b"s" * 32


class Keeper(ABC):
    """A process of either kind, and clients of it.

    Args:
        directory: for files.
    """

    def __init__(self, directory: Path) -> None:
        self.storage = directory / "ha"
        self._closing: list[Callable[[], Awaitable[None]]] = []

    @abstractmethod
    def start(self) -> None:
        """Start the process, again if need be; returns when it answers."""

    @abstractmethod
    def stop(self) -> None:
        """End it, whatever state it is in."""

    @abstractmethod
    def signal(self, number: signal.Signals) -> None:
        """Send a signal to it."""

    @abstractmethod
    def _open(self, lease: float) -> LatchedHaServices: ...

    @abstractmethod
    def latch(self, component: str, lease: float) -> LeaderLatch:
        """A latch, with nothing that renews it."""

    @abstractmethod
    def maps(self) -> FencedMaps:
        """The maps of handles."""

    @abstractmethod
    async def restart(self, *, loses: bool) -> None:
        """SIGKILL, and a start; it loses what it held if it is told to, or cannot do otherwise."""

    def open(self, lease: float = LONG_LEASE) -> LatchedHaServices:
        """The services of one process."""
        services = self._open(lease)
        self._closing.insert(0, services.close)
        return services

    def pause(self) -> None:
        """SIGSTOP."""
        self.signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        self.signal(signal.SIGCONT)

    async def close(self) -> None:
        """Close all clients."""
        for closing in self._closing:
            await closing()


class RedisKeeper(Keeper):
    """A real redis-server."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._server = RedisServer(directory / "redis")

    def start(self) -> None:
        self._server.start()

    def stop(self) -> None:
        self._server.stop()

    def signal(self, number: signal.Signals) -> None:
        self._server.signal(number)

    def _open(self, lease: float) -> RedisHaServices:
        timeout = PATIENCE_S if lease >= LONG_LEASE else None
        return RedisHaServices(self._server.url, CLUSTER, self.storage, lease=lease, timeout=timeout)

    def _connection(self) -> RedisConnection:
        connection = RedisConnection(self._server.url, timeout=PATIENCE_S)
        self._closing.append(connection.close)
        return connection

    def latch(self, component: str, lease: float) -> LeaderLatch:
        return RedisLeaderLatch(self._connection(), ClusterKeys(CLUSTER), component, lease)

    def maps(self) -> FencedMaps:
        return FencedWriter(self._connection(), ClusterKeys(CLUSTER))

    async def restart(self, *, loses: bool) -> None:
        if loses:
            await self._connection().command("FLUSHALL")
        self._server.kill()
        self._server.start()


class MasterKeeper(Keeper):
    """The endpoint of a master that has no Redis, in a process of its own, at one port."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._child: subprocess.Popen[bytes] | None = None
        self._port = unused_port()  # for the restarts too: nobody else is given it meanwhile

    def start(self) -> None:
        command = [sys.executable, "-m", "tests.fakes.ha_keeper", str(self._port), str(self.storage.parent)]
        self._child = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=Path(__file__).parents[2])
        assert self._child.stdout is not None
        self._port = int(self._child.stdout.readline())

    def stop(self) -> None:
        if self._child is not None:
            self._child.kill()
            self._child.communicate()
            self._child = None

    def signal(self, number: signal.Signals) -> None:
        assert self._child is not None
        os.kill(self._child.pid, number)

    def _service(self) -> tuple[RpcService, ActorAddress]:
        config = RpcConfig(ask_timeout_s=PATIENCE_S, connect_timeout_s=PATIENCE_S)
        service = RpcService(asyncio.get_running_loop(), SECRET, config)
        self._closing.append(service.close)
        return service, ActorAddress("understudy", "127.0.0.1", self._port, "/user/master")

    def _open(self, lease: float) -> StandaloneHaServices:
        with pytest.MonkeyPatch.context() as patch:
            if lease >= LONG_LEASE:
                patch.setattr(LatchTiming, "call_timeout", PATIENCE_S)
            return StandaloneHaServices(*self._service(), CLUSTER, self.storage, lease=lease)

    def latch(self, component: str, lease: float) -> LeaderLatch:
        return MasterLeaderLatch(MasterConnection(*self._service(), PATIENCE_S), component, lease)

    def maps(self) -> FencedMaps:
        return MasterMaps(MasterConnection(*self._service(), PATIENCE_S))

    async def restart(self, *, loses: bool) -> None:
        self.stop()
        self.start()


@pytest.fixture(params=[RedisKeeper, MasterKeeper], ids=["redis", "master"])
async def keeper(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Keeper]:
    """A running keeper of either kind."""
    made: Keeper = request.param(tmp_path)
    made.start()
    yield made
    await made.close()
    made.stop()


async def _serve(port: int, directory: Path) -> None:
    service = RpcService(asyncio.get_running_loop(), SECRET, RpcConfig(port=port))
    await service.listen()
    await service.start_server(StandaloneHa(service, ClusterKeys(CLUSTER), UserFile(directory / "users.json")))
    sys.stdout.write(f"{service.port}\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_serve(int(sys.argv[1]), Path(sys.argv[2])))
