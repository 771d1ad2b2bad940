"""A driver JVM that belongs to a program (`runtime.spark.embedding`), and that a TaskExecutor adopts.

The TaskExecutor sees the streaming queries of the program's sessions, stops them on request, and locks
checkpointLocations. It never ends other work of the program, nor the JVM.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Mapping
from pathlib import Path

from runtime.jobgraph.job_graph import JobKind
from runtime.spark.driver.api import DriverInfo, SparkEndpoint
from runtime.spark.driver.gateway import DriverGateway
from runtime.spark.driver.jvm_driver import JvmDriver
from runtime.spark.driver.local import connect
from runtime.spark.errors import UnsupportedByEndpointError
from runtime.spark.spec import ClassicEndpoint, ConnectEndpoint

logger = logging.getLogger(__name__)


class AdoptedDriver(JvmDriver):
    """The `SparkDriver` of another program: it is observed, and never ended."""

    is_ours = False

    @classmethod
    async def adopt(cls, info: DriverInfo | Path) -> AdoptedDriver:
        """Adopt the driver that a program offers; raises `DriverLostError` where it has ended or does not answer."""
        return cls(await connect(info, DriverGateway.attach_program))

    async def warm_up(self) -> None:
        """Do nothing: the program warms its own driver up."""

    async def reset(self, kept: Collection[SparkEndpoint] = ()) -> None:
        """Release the locks of a former TaskExecutor; running work belongs to the program and continues."""
        await self._jvm.call(self._gateway.unlock_files)

    def kill(self, why: str = "") -> None:
        """Only log it: the driver belongs to the program."""
        logger.error("the Spark driver (process %d) is a program's own, and is not killed %s", self.info.pid, why)

    async def stop(self, timeout: float = 10.0) -> None:
        """Disconnect from the driver, which belongs to the program."""
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
