"""The environment of every component of the cluster: configuration, directory, high-availability services."""

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

if TYPE_CHECKING:  # clients do not need Thespian and Redis, whose import takes a third of their start
    from actors.process.host import HostSpec
    from runtime.ha.services import HighAvailabilityServices, RedisHaServices

OUTPUTS_INTERVAL_S = 10.0

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ComponentContext:
    """The environment of a component.

    Args:
        configuration: the cluster's effective configuration.
        directory: the cluster's runtime directory.
        system: address of the system's receptionist.
    """

    configuration: Configuration
    directory: ClusterDirectory
    system: ActorAddress

    @classmethod
    def read(cls, runtime_dir: str, system: str) -> ComponentContext:
        """Read the environment, given the two arguments of a component's start: runtime directory and address."""
        directory = ClusterDirectory(Path(runtime_dir))
        return cls(Configuration.read(directory.configuration_file), directory, ActorAddress.parse(system))

    @property
    def results(self) -> Path:
        """Directory of the materialised results of jobs, which every TaskExecutor reads."""
        return self.configuration.get(ClusterOptions.SHARED_DIR) / "jobs"

    @property
    def archive(self) -> Path:
        """Directory of finished jobs, which every Dispatcher reads."""
        return self.configuration.get(ClusterOptions.SHARED_DIR) / "archive"

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of `read`, for a component's factory."""
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
        """Call `offload_large_calls` with *blob*, the address of this master's BlobServer."""
        offload_large_calls(service, self.configuration, lambda: (blob.host, blob.port))

    def host_spec(self, name: str, factory: str, **arguments: Any) -> HostSpec:
        """Return the settings of a process that hosts an actor of this cluster."""
        from actors.process.host import HostSpec

        return HostSpec(
            name=name,
            factory=factory,
            arguments={**self.arguments(), **arguments},
            rpc=rpc_config(self.configuration, self.directory),
            secret_file=self.configuration.get(SecurityOptions.SECRET_FILE),
            log=log_config(self.configuration, self.directory, name),
            recorder=("runtime.environment.call_audit:CallAudit", self.directory.audit_log),
        )


def has_redis(configuration: Configuration) -> bool:
    """Return whether Redis keeps the latches and handles, and not the master (``high-availability.type``)."""
    return configuration.get(HighAvailabilityOptions.TYPE) is HighAvailabilityMode.REDIS


def open_redis_services(configuration: Configuration) -> RedisHaServices:
    """Return the high-availability services on Redis. Raises RuntimeError if its URL is not set yet."""
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
    """Return the log settings of the process *name*."""
    return LogConfig(
        directory.log / f"{name}.log",
        configuration.get(EnvironmentOptions.LOG_LEVEL).value,
        configuration.get(EnvironmentOptions.LOG_MAX_SIZE),
        configuration.get(EnvironmentOptions.LOG_MAX),
        as_json=configuration.get(EnvironmentOptions.LOG_FORMAT) is LogFormat.JSON,
        component=name,
    )


async def bound_outputs(context: ComponentContext, interval_s: float = OUTPUTS_INTERVAL_S) -> None:
    """Limit the output files of this machine's processes (``log/*.out``), as long as this task runs.

    The processes have the files open and append to them, so a file cannot be replaced. If it is larger than
    `env.log.max-size`, its end is copied to ``NAME.out.1`` beside it, and the file is emptied. Output that a process
    prints at that moment may be lost.
    """
    largest = context.configuration.get(EnvironmentOptions.LOG_MAX_SIZE)
    while True:
        await asyncio.sleep(interval_s)
        try:
            cut = await asyncio.to_thread(cut_outputs, context.directory.log, largest)
        except OSError as error:
            logger.warning("output files cannot be kept within env.log.max-size: %s", error)
            continue
        for name in cut:
            logger.info("%s was larger than env.log.max-size: its end is now in %s.1", name, name)


def cut_outputs(directory: Path, largest: int) -> list[str]:
    """Copy the end of each ``.out`` file of more than *largest* bytes, and empty the file; return the names."""
    cut = []
    for path in directory.glob("*.out"):
        with contextlib.suppress(FileNotFoundError, BlockingIOError):  # another process of this machine does it
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
    """Return the settings of the RPC service of a process."""
    return RpcConfig(
        bind_host=configuration.get(ClusterOptions.HOST),
        port=port,
        socket_dir=directory.socket_dir(),
        # In a cluster of several hosts, one machine may have both roles, with two directories at one address.
        shares_host=configuration.is_set(ClusterOptions.HOST),
        frame_size=configuration.get(RpcOptions.FRAME_SIZE),
        ask_timeout_s=configuration.get(RpcOptions.ASK_TIMEOUT),
        connect_timeout_s=configuration.get(RpcOptions.CONNECT_TIMEOUT),
        tls=tls_config(configuration),
    )


def tls_config(configuration: Configuration) -> TlsConfig | None:
    """Return the certificates for TLS between processes; None if it is off."""
    certificate = configuration.get(SecurityOptions.SSL_CERTIFICATE)
    key = configuration.get(SecurityOptions.SSL_KEY)
    ca = configuration.get(SecurityOptions.SSL_CA)
    if not configuration.get(SecurityOptions.SSL_ENABLED) or certificate is None or key is None or ca is None:
        return None  # the configuration does not allow TLS without these files
    return TlsConfig(certificate, key, ca)


def blob_store_url(configuration: Configuration) -> SecretStr:
    """Return the URL or path of the store of permanent blobs, which outlives the BlobServer."""
    get = configuration.get
    path = get(HighAvailabilityOptions.STORAGE_DIR) / get(ClusterOptions.ID) / "blob"
    return get(BlobOptions.STORE_URL) or SecretStr(str(path), str(path))


def blob_client(
    configuration: Configuration, address: BlobAddress | Callable[[], tuple[str, int]], secret: bytes
) -> BlobClient:
    """Return a client of the cluster's BlobServer, with timeout and retries by the configuration."""
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
    """Send a component's arguments and results over `rpc.frame-size` by the BlobServer; use before its first call."""
    service.use_offloader(
        BlobOffloader(
            lambda location: blob_client(configuration, BlobAddress(*location), service.secret),
            address,
            # A value is fetched at once; that of a killed process is removed after the server's time to live.
            lifetime_s=max(1.0, min(configuration.get(BlobOptions.CLEANUP_TTL), 3600.0)),
        )
    )


def system_address(configuration: Configuration, port: int) -> ActorAddress:
    """Return the address of the system for users: that of its receptionist."""
    return ActorAddress("understudy", configuration.get(ClusterOptions.HOST), port, RECEPTIONIST_PATH)


async def wait_for_process(pid: int) -> None:
    """Wait by pidfd until a process has ended; it need not be a child of this one."""
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
