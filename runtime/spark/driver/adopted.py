"""A driver JVM that is a program's own (`runtime.spark.embedding`): a TaskExecutor adopts it, and leaves it as it is.

It sees the streaming queries of the program's sessions, stops them when it is asked to, and locks checkpointLocations.
It never ends what the program runs, nor the JVM.
"""

from __future__ import annotations

import logging
import math
from pathlib import Path

from runtime.spark.driver.gateway import TAG_PREFIX, DriverGateway
from runtime.spark.driver.local import SparkDriver
from runtime.spark.errors import DriverCallError, DriverLostError
from runtime.spark.spec import ClassicEndpoint, ConnectEndpoint

OFFERED = "program"
"""Under which name the JVM's registry has the program's sessions."""

_JAVA_SPARK_CONTEXT = "org.apache.spark.api.java.JavaSparkContext"
logger = logging.getLogger(__name__)


class AdoptedGateway(DriverGateway):
    """The TaskExecutor's calls into a JVM that is a program's."""

    def attach(self) -> None:
        registry = self._registry()
        if registry is None:
            raise DriverLostError("the program has taken its driver back")
        self._session = registry.get(OFFERED).get(1).get(0)
        self._context = getattr(self._jvm, _JAVA_SPARK_CONTEXT).fromSparkContext(self._session.sparkContext())

    def share(self, name: str) -> None:
        """Let an attempt see the program's sessions under its own name."""
        registry = self._registry()
        registry.put(name, registry.get(OFFERED))

    def unshare(self, name: str) -> None:
        """Undo `share`."""
        registry = self._registry()
        if registry is not None:  # or the program has taken its driver back
            registry.remove(name)


class AdoptedDriver(SparkDriver):
    """A driver that is another program's: seen, and never ended."""

    _gateway_type = AdoptedGateway
    _gateway: AdoptedGateway

    @property
    def is_ours(self) -> bool:
        """Never: the JVM is the program's."""
        return False

    async def reset(self) -> None:
        """Give up the locks of a former TaskExecutor; what runs is the program's own."""
        await self._call(self._gateway.unlock_files)

    async def open_classic(self, name: str, output: Path | None = None) -> ClassicEndpoint:
        """The program's sessions, under the attempt's name; no server is opened, for nobody would use it."""
        await self._call(self._gateway.share, name)
        return ClassicEndpoint(name, 0, "", TAG_PREFIX + name)

    async def close_classic(
        self, endpoint: ClassicEndpoint, *, interrupted: bool = True, patience: float = math.inf
    ) -> None:
        """Forget the attempt's name."""
        await self._call(self._gateway.unshare, endpoint.name)

    async def open_session(self, *, isolated: bool = False) -> ConnectEndpoint:
        """Refused: the program's driver has no Connect server of ours."""
        raise DriverCallError("the Spark of an embedded cluster is its program's own, and takes no other jobs")

    async def stop(self, timeout: float = 10.0) -> None:
        """Let go of the driver, which is the program's."""
        await self.close()

    def kill(self) -> None:
        """Only said: the driver is the program's."""
        logger.error("the Spark driver (process %d) is a program's own, and is not killed", self.info.pid)
