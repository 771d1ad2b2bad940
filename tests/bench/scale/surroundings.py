"""What a component needs around it to run for real: a runtime directory, a Redis, a receptionist, processes."""

from __future__ import annotations

import asyncio
import secrets
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import psutil

from actors.process.host import HostSpec
from actors.process.system import HostedActor, ProcessActorSystem
from actors.receptionist import Listing, Receptionist, receptionist_of
from actors.rpc.service import RpcService
from blob.gateway import NAME as BLOB_SERVER
from blob.gateway import BlobAddress, BlobServerGateway
from conf.configuration import Configuration
from conf.options import ClusterOptions, EnvironmentOptions, ExecutionTarget, HighAvailabilityOptions, SecurityOptions
from conf.options.cluster import LogLevel
from conf.secret import SecretStr
from runtime.cluster.master import ENTRYPOINTS, ComponentSpecs
from runtime.environment.context import ComponentContext, rpc_config
from runtime.environment.directory import ClusterDirectory
from runtime.ha.connection import RedisConnection
from runtime.ha.redis_process import EmbeddedRedis
from runtime.ha.services import RedisHaServices

PATIENCE_S = 600.0
LEASE_S = 30.0
"""Ten times the default: what is measured shares its two cores with those who ask it, and with other work."""


class Surroundings:
    """A cluster without a master: this process has the receptionist, and starts what is measured.

    A context; `serve` runs on a loop.

    Attributes:
        service: the RPC service of this process.
        ha: high-availability services of this process.
        context: of the components.
    """

    def __init__(self) -> None:
        self._scratch = tempfile.TemporaryDirectory(prefix="us-scale-")
        directory = ClusterDirectory(Path(self._scratch.name) / "c")
        directory.create()
        self.secret = secrets.token_hex(32).encode()
        directory.secret.write_bytes(self.secret)
        directory.secret.chmod(0o600)
        self._redis = EmbeddedRedis(directory.redis)
        self._redis.start()
        self.redis_url = self._redis.url
        configuration = (
            Configuration.from_dict({})
            .set(ClusterOptions.RUNTIME_DIR, directory.root)
            .set(SecurityOptions.SECRET_FILE, directory.secret)
            .set(HighAvailabilityOptions.STORAGE_DIR, directory.ha)
            .set(HighAvailabilityOptions.REDIS_URL, SecretStr(self.redis_url, "the embedded Redis"))
            .set(EnvironmentOptions.LOG_LEVEL, LogLevel.WARNING)
            .set(HighAvailabilityOptions.LEASE, LEASE_S)
        )
        self._system = ProcessActorSystem()
        self._configuration, self.directory = configuration, directory
        self._blob = BlobAddress("127.0.0.1", 1)  # where nobody listens, until there is a BlobServer
        self.service: RpcService
        self.ha: RedisHaServices
        self.context: ComponentContext
        self._specs: ComponentSpecs

    def __enter__(self) -> Surroundings:
        return self

    def __exit__(self, *exc_info: object) -> None:
        try:
            self._system.shutdown()
        finally:
            self._redis.stop()
            self._scratch.cleanup()

    async def serve(self, measure: Callable[[Surroundings], Awaitable[dict[str, float]]]) -> dict[str, float]:
        """Have the receptionist serve while *measure* runs; returns its figures."""
        self.service = service = RpcService(
            asyncio.get_running_loop(), self.secret, rpc_config(self._configuration, self.directory)
        )
        await service.listen()
        self._receptionist = Receptionist(service)
        await service.start_server(self._receptionist)
        self.receptionist = receptionist_of(service, self._receptionist.address)
        self.configure({})
        self.cluster_id = self._configuration.get(ClusterOptions.ID)
        self.ha = RedisHaServices(self.redis_url, self.cluster_id, self.directory.ha, lease=LEASE_S, timeout=LEASE_S)
        self.redis = RedisConnection(self.redis_url)
        try:
            return await measure(self)
        finally:
            await self.ha.close()
            await self.redis.close()
            await service.close()

    def configure(self, values: dict[str, str]) -> None:
        """Set options, for what is started from now on."""
        self._configuration = self._configuration.overlaid(values, "the benchmark")
        self._configuration.write(self.directory.configuration_file)
        self.context = ComponentContext(self._configuration, self.directory, self._receptionist.address)
        self._specs = ComponentSpecs(self.context, "")
        self._specs.blob = self._blob

    async def blob_server(self) -> tuple[Component, BlobAddress]:
        """Start a BlobServer; those started later know of it."""
        component = await self._start(ComponentSpecs(self.context, "").blob_server())
        self.enter(f"/user/{BLOB_SERVER}", component)
        self._blob = await self.service.gateway(component.actor.address, BlobServerGateway).request_address()
        self._specs.blob = self._blob
        return component, self._blob

    async def resource_manager(self) -> Component:
        """Start a ResourceManager."""
        return await self._start(self._specs.resource_manager())

    async def dispatcher(self, master: str) -> Component:
        """Start a Dispatcher whose master is at that address."""
        return await self._start(self._specs.dispatcher(ENTRYPOINTS[ExecutionTarget.SESSION].dispatcher, master))

    def enter(self, path: str, component: Component) -> None:
        """Enter a component that does not do it itself."""
        self._receptionist.enter(Listing(path, str(component.actor.address), component.actor.pid))

    async def host(self, name: str, factory: str, **arguments: Any) -> Component:
        """Start an endpoint of the benchmark's own in a process of its own."""
        return await self._start(self.context.host_spec(name, factory, **arguments))

    async def _start(self, spec: HostSpec) -> Component:
        return Component(await asyncio.to_thread(self._system.start, spec))

    async def stop(self, component: Component) -> None:
        """End a component's process."""
        await asyncio.to_thread(self._system.stop, component.actor)

    async def redis_commands(self) -> Counter[str]:
        """How often each command was executed since the server began, those in scripts too."""
        stats = await self.redis.command("INFO", "commandstats")
        return Counter({name.removeprefix("cmdstat_"): int(values["calls"]) for name, values in stats.items()})

    async def redis_keys(self) -> int:
        """How many keys there are."""
        return int(await self.redis.command("DBSIZE"))

    async def redis_bytes(self) -> int:
        """What the data take of Redis's memory."""
        return int((await self.redis.command("INFO", "memory"))["used_memory_dataset"])


class Component:
    """A process that is measured."""

    def __init__(self, actor: HostedActor) -> None:
        self.actor = actor
        self._process = psutil.Process(actor.pid)

    def cpu_s(self) -> float:
        """Processor seconds that it has taken so far."""
        times = self._process.cpu_times()
        return float(times.user + times.system)

    def kill(self) -> None:
        """SIGKILL it."""
        self._process.kill()

    def resident_bytes(self) -> int:
        """Its resident memory."""
        return int(self._process.memory_info().rss)


async def until(condition: Callable[[], object], what: str, pause_s: float = 0.02) -> None:
    """Wait until *condition* holds; raises RuntimeError when it does not within `PATIENCE_S`."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError(f"not within {PATIENCE_S:g} s: {what}")
        await asyncio.sleep(pause_s)


def progress(line: str) -> None:
    """Tell whoever waits how far it is."""
    print(line, file=sys.stderr, flush=True)
