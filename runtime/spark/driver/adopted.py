"""A driver JVM that belongs to a program (`runtime.spark.embedding`), and that a TaskExecutor adopts.

The TaskExecutor sees the streaming queries of the program's sessions, stops them on request, and locks
checkpointLocations. It never ends other work of the program, nor the JVM.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Mapping
from pathlib import Path

from runtime.jobgraph.job_graph import JobKind
from runtime.spark.driver.api import ActiveQueries, DriverInfo, SparkEndpoint, StoppedQueries, StreamingQueryInfo
from runtime.spark.driver.connection import Connection
from runtime.spark.driver.gateway import DriverGateway
from runtime.spark.driver.local import connect
from runtime.spark.errors import UnsupportedByEndpointError
from runtime.spark.spec import ClassicEndpoint, ConnectEndpoint

logger = logging.getLogger(__name__)


class AdoptedDriver:
    """The `SparkDriver` of another program: it is observed, and never ended."""

    is_ours = False
    has_streaming = True

    def __init__(self, jvm: Connection[DriverGateway]) -> None:
        self.info = jvm.info
        self._jvm = jvm
        self._gateway = jvm.gateway

    @classmethod
    async def adopt(cls, info: DriverInfo | Path) -> AdoptedDriver:
        """Adopt the driver that a program offers; raises `DriverLostError` where it has ended or does not answer."""
        return cls(await connect(info, DriverGateway.attach_program))

    @property
    def loss(self) -> str:
        return self._jvm.loss

    @property
    def alive(self) -> bool:
        return self._jvm.alive

    async def wait_dead(self, timeout: float | None = None) -> bool:
        return await self._jvm.wait_dead(timeout)

    async def ping(self) -> bool:
        return await self._jvm.call(self._gateway.ping)

    async def jvm_figures(self) -> dict[str, int] | None:
        return await self._jvm.call(self._gateway.jvm_figures)

    async def warm_up(self) -> None:
        """Do nothing: the program warms its own driver up."""

    async def reset(self) -> None:
        """Release the locks of a former TaskExecutor; running work belongs to the program and continues."""
        await self._jvm.call(self._gateway.unlock_files)

    def kill(self, why: str = "") -> None:
        """Only log it: the driver belongs to the program."""
        logger.error("the Spark driver (process %d) is a program's own, and is not killed %s", self.info.pid, why)

    async def stop(self, timeout: float = 10.0) -> None:
        """Disconnect from the driver, which belongs to the program."""
        await self._jvm.close()

    async def close(self) -> None:
        await self._jvm.close()

    async def open(
        self, kind: JobKind, name: str, *, output: Path | None = None, isolated: bool = False
    ) -> SparkEndpoint:
        """Share the program's sessions under the attempt's name."""
        if kind is not JobKind.SCRIPT:
            raise UnsupportedByEndpointError("the Spark of an embedded cluster takes no jobs but its program")
        return await self._jvm.call(self._gateway.share_program, name)

    async def open_for_client(self, session_id: str, user_id: str) -> ConnectEndpoint:
        raise UnsupportedByEndpointError("the Spark of an embedded cluster takes no sessions of Spark Connect clients")

    async def start_settings(self, settings: Mapping[str, str]) -> dict[str, bool]:
        return await self._jvm.call(self._gateway.start_settings, settings)

    async def resolve_packages(self, settings: Mapping[str, str]) -> list[Path]:
        return []  # only a driver that is started needs them

    async def load_tables(self) -> None:
        """Do nothing: the catalog belongs to the program."""

    async def save_tables(self) -> None:
        """Do nothing: the catalog belongs to the program."""

    async def configure(self, endpoint: ConnectEndpoint, conf: Mapping[str, str]) -> bool:
        return False

    async def release(self, endpoint: SparkEndpoint, *, interrupted: bool = True, patience: float = math.inf) -> None:
        """Forget the attempt's name."""
        if isinstance(endpoint, ClassicEndpoint):
            await self._jvm.call(self._gateway.unshare_program, endpoint.name)

    async def streaming_queries(self, endpoint: SparkEndpoint) -> list[StreamingQueryInfo]:
        return await self._jvm.call(self._gateway.streaming_queries, endpoint)

    async def active_queries(self, endpoint: SparkEndpoint) -> ActiveQueries:
        return await self._jvm.call(self._gateway.active_queries, endpoint)

    async def stop_streaming_queries(self, queries: ActiveQueries, *, drain: bool, timeout_s: float) -> StoppedQueries:
        return await asyncio.to_thread(self._gateway.stop_at_boundary, queries, drain, timeout_s)

    async def lock_file(self, path: Path, owner: str) -> bool:
        return await self._jvm.call(self._gateway.lock_file, str(path), owner)

    async def unlock_files(self, owner: str) -> None:
        await self._jvm.call(self._gateway.unlock_files, owner)
