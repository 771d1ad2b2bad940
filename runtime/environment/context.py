"""What every component of the cluster is made with: configuration, directory, high-availability services."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from actors.address import ActorAddress
from actors.process.logs import LogConfig
from actors.receptionist import PATH as RECEPTIONIST_PATH
from actors.rpc.service import RpcConfig, RpcService
from actors.rpc.tls import TlsConfig
from blob.client import BlobClient
from blob.gateway import BlobAddress
from blob.rpc_offload import BlobOffloader
from conf.configuration import Configuration
from conf.files import private_file
from conf.options import (
    BlobOptions,
    ClusterOptions,
    EnvironmentOptions,
    HighAvailabilityMode,
    HighAvailabilityOptions,
    LogFormat,
    RpcOptions,
    SecurityOptions,
)
from conf.secret import SecretStr
from runtime.environment.directory import ClusterDirectory

if TYPE_CHECKING:  # a client has no use for Thespian and Redis, whose import is a third of its start
    from actors.process.host import HostSpec
    from runtime.ha.services import HighAvailabilityServices, RedisHaServices

OUTPUTS_INTERVAL_S = 10.0

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ComponentContext:
    """The surroundings of a component.

    Args:
        configuration: the cluster's effective configuration.
        directory: its runtime directory.
        system: address of the system's receptionist.
    """

    configuration: Configuration
    directory: ClusterDirectory
    system: ActorAddress

    @classmethod
    def read(cls, runtime_dir: str, system: str) -> ComponentContext:
        """From what a component is told at its start: the runtime directory and the system's address."""
        directory = ClusterDirectory(Path(runtime_dir))
        return cls(Configuration.read(directory.configuration_file), directory, ActorAddress.parse(system))

    @property
    def results(self) -> Path:
        """Where jobs materialise their results: every TaskExecutor reads there."""
        return self.configuration.get(ClusterOptions.SHARED_DIR) / "jobs"

    @property
    def archive(self) -> Path:
        """Where finished jobs are kept: every Dispatcher reads there."""
        return self.configuration.get(ClusterOptions.SHARED_DIR) / "archive"

    def arguments(self) -> dict[str, Any]:
        """What `read` needs, as plain arguments of a component's factory."""
        return {"runtime_dir": str(self.directory.root), "system": str(self.system)}

    async def ha_services(self, service: RpcService) -> HighAvailabilityServices:
        """Open the high-availability services, with the RPC *service* of the process; the caller closes them."""
        if not has_redis(self.configuration):
            from runtime.ha.services import StandaloneHaServices

            return StandaloneHaServices(
                service,
                self.system,
                self.configuration.get(ClusterOptions.ID),
                self.configuration.get(HighAvailabilityOptions.STORAGE_DIR),
                lease=self.configuration.get(HighAvailabilityOptions.LEASE),
                memory_threshold=self.configuration.get(HighAvailabilityOptions.MEMORY_THRESHOLD),
            )
        return open_redis_services(self.configuration)

    def offload_large_calls(self, service: RpcService, blob: BlobAddress) -> None:
        """See `offload_large_calls`; *blob* is where this master's BlobServer listens."""
        offload_large_calls(service, self.configuration, lambda: (blob.host, blob.port))

    def host_spec(self, name: str, factory: str, **arguments: Any) -> HostSpec:
        """How to host an actor of this cluster in a process of its own."""
        from actors.process.host import HostSpec

        return HostSpec(
            name=name,
            factory=factory,
            arguments={**self.arguments(), **arguments},
            rpc=rpc_config(self.configuration, self.directory),
            secret_file=self.configuration.get(SecurityOptions.SECRET_FILE),
            log=log_config(self.configuration, self.directory, name),
        )


def has_redis(configuration: Configuration) -> bool:
    """Whether Redis keeps the latches and handles, not the master (``high-availability.type``)."""
    return configuration.get(HighAvailabilityOptions.TYPE) is HighAvailabilityMode.REDIS


def open_redis_services(configuration: Configuration) -> RedisHaServices:
    """The high-availability services on Redis (its URL must be set by now)."""
    from runtime.ha.services import RedisHaServices

    url = configuration.get(HighAvailabilityOptions.REDIS_URL)
    if url is None:
        raise RuntimeError("high-availability.redis.url is not set: the master sets it when it starts its own Redis")
    return RedisHaServices(
        url.reveal(),
        configuration.get(ClusterOptions.ID),
        configuration.get(HighAvailabilityOptions.STORAGE_DIR),
        lease=configuration.get(HighAvailabilityOptions.LEASE),
        memory_threshold=configuration.get(HighAvailabilityOptions.MEMORY_THRESHOLD),
    )


def log_config(configuration: Configuration, directory: ClusterDirectory, name: str) -> LogConfig:
    """How the process *name* logs."""
    return LogConfig(
        directory.log / f"{name}.log",
        configuration.get(EnvironmentOptions.LOG_LEVEL).value,
        configuration.get(EnvironmentOptions.LOG_MAX_SIZE),
        configuration.get(EnvironmentOptions.LOG_MAX),
        as_json=configuration.get(EnvironmentOptions.LOG_FORMAT) is LogFormat.JSON,
        component=name,
    )


async def bound_outputs(context: ComponentContext, interval_s: float = OUTPUTS_INTERVAL_S) -> None:
    """Keep what the processes of this machine print (``log/*.out``) from filling the disk, as long as the task runs.

    The processes have the files open and append to them, so a file is cut, not replaced: beyond `env.log.max-size` its
    end goes to a file beside it, ``NAME.out.1``, and it begins anew. What is printed at that moment may be lost.
    """
    largest = context.configuration.get(EnvironmentOptions.LOG_MAX_SIZE)
    while True:
        await asyncio.sleep(interval_s)
        try:
            cut = await asyncio.to_thread(cut_outputs, context.directory.log, largest)
        except OSError as error:
            logger.warning("what processes print is not kept within env.log.max-size: %s", error)
            continue
        for name in cut:
            logger.info("%s was longer than env.log.max-size: its end was put aside as %s.1", name, name)


def cut_outputs(directory: Path, largest: int) -> list[str]:
    """Put aside the end of each ``.out`` file of more than *largest* bytes, and empty it; return their names."""
    cut = []
    for path in directory.glob("*.out"):
        with contextlib.suppress(FileNotFoundError, BlockingIOError):  # another process of this machine is at it
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                size = os.fstat(descriptor).st_size
                if size > largest:
                    offset = size - largest
                    with private_file(path.with_name(f"{path.name}.1"), durable=False) as aside:
                        while sent := os.sendfile(aside.fileno(), descriptor, offset, size - offset):
                            offset += sent
                    os.truncate(descriptor, 0)
                    cut.append(path.name)
            finally:
                os.close(descriptor)
    return sorted(cut)


def rpc_config(configuration: Configuration, directory: ClusterDirectory, *, port: int = 0) -> RpcConfig:
    """Settings of the RPC service of a process."""
    return RpcConfig(
        bind_host=configuration.get(ClusterOptions.HOST),
        port=port,
        socket_dir=directory.socket_dir(),
        # Of several hosts one machine may have both roles, each with a directory of its own at the same address.
        shares_host=configuration.is_set(ClusterOptions.HOST),
        frame_size=configuration.get(RpcOptions.FRAME_SIZE),
        ask_timeout_s=configuration.get(RpcOptions.ASK_TIMEOUT),
        connect_timeout_s=configuration.get(RpcOptions.CONNECT_TIMEOUT),
        tls=tls_config(configuration),
    )


def tls_config(configuration: Configuration) -> TlsConfig | None:
    """The certificates for TLS between processes; None where it is off."""
    certificate = configuration.get(SecurityOptions.SSL_CERTIFICATE)
    key = configuration.get(SecurityOptions.SSL_KEY)
    ca = configuration.get(SecurityOptions.SSL_CA)
    if not configuration.get(SecurityOptions.SSL_ENABLED) or certificate is None or key is None or ca is None:
        return None  # on without its files it cannot be: the configuration does not allow that
    return TlsConfig(certificate, key, ca)


def blob_store_url(configuration: Configuration) -> SecretStr:
    """Where permanent blobs are kept beside the BlobServer: a URL, or a path."""
    get = configuration.get
    path = get(HighAvailabilityOptions.STORAGE_DIR) / get(ClusterOptions.ID) / "blob"
    return get(BlobOptions.STORE_URL) or SecretStr(str(path), str(path))


def blob_client(
    configuration: Configuration, address: BlobAddress | Callable[[], tuple[str, int]], secret: bytes
) -> BlobClient:
    """A client of the cluster's BlobServer, with the patience that the configuration gives it."""
    tls = tls_config(configuration)
    return BlobClient(
        (address.host, address.port) if isinstance(address, BlobAddress) else address,
        secret,
        timeout=configuration.get(BlobOptions.SOCKET_TIMEOUT),
        retries=configuration.get(BlobOptions.FETCH_RETRIES),
        tls=None if tls is None else tls.contexts()[1],
    )


def offload_large_calls(
    service: RpcService, configuration: Configuration, address: Callable[[], tuple[str, int]]
) -> None:
    """Let a component's arguments and results over `rpc.frame-size` travel by the BlobServer; before its first call."""
    service.use_offloader(
        BlobOffloader(
            lambda location: blob_client(configuration, BlobAddress(*location), service.secret),
            address,
            # A value is fetched at once; what a killed process has put goes with the server's time to live.
            lifetime_s=max(1.0, min(configuration.get(BlobOptions.CLEANUP_TTL), 3600.0)),
        )
    )


def system_address(configuration: Configuration, port: int) -> ActorAddress:
    """The address by which users know the system: that of its receptionist."""
    return ActorAddress("understudy", configuration.get(ClusterOptions.HOST), port, RECEPTIONIST_PATH)


async def wait_for_process(pid: int) -> None:
    """Wait until a process has ended, by pidfd; it may be anybody's child."""
    try:
        descriptor = os.pidfd_open(pid)
    except (ProcessLookupError, FileNotFoundError):  # newer kernels say the latter while it is reaped
        return
    try:
        await wait_readable(descriptor)
    finally:
        os.close(descriptor)


async def wait_readable(descriptor: int) -> None:
    """Wait until a descriptor (a pidfd: until its process has ended) is readable."""
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(descriptor, ready.set)
    try:
        await ready.wait()
    finally:
        with contextlib.suppress(ValueError):
            loop.remove_reader(descriptor)
