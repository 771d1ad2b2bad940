"""A driver JVM that is a program's own: offered by the program, and adopted by a TaskExecutor that leaves it as it is.

The program opens a Py4J server beside its own one, on the loopback address and with a secret of its own, and writes
where it is into a `driver.json`. Through it the TaskExecutor sees the streaming queries of the program's sessions,
stops them when it is asked to, and locks checkpointLocations. It never ends what the program runs, nor the JVM.
"""

from __future__ import annotations

import contextlib
import logging
import math
import secrets
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError

from runtime.spark.driver import SparkDriver
from runtime.spark.errors import DriverCallError, DriverLostError, DriverStartError
from runtime.spark.gateway import TAG_PREFIX, DriverGateway
from runtime.spark.handles import REGISTRY_KEY, JvmHandles
from runtime.spark.info import DriverInfo
from runtime.spark.location_locks import unlock_files
from runtime.spark.process import start_time
from runtime.spark.spec import ClassicEndpoint, ConnectEndpoint

OFFERED = "program"
"""Under which name the JVM's registry has the program's sessions."""

_JAVA_SPARK_CONTEXT = "org.apache.spark.api.java.JavaSparkContext"
logger = logging.getLogger(__name__)


class OfferedDriver:
    """The program's side: offers the JVM of its session.

    Args:
        spark: a classic `pyspark.sql.SparkSession`.
        work_dir: where `driver.json` is written.
        log_file: to be named as Spark's log.

    Raises:
        DriverStartError: the session is none of this process's own JVM.
    """

    def __init__(self, spark: Any, work_dir: Path, log_file: Path) -> None:
        if ".connect." in type(spark).__module__:
            raise DriverStartError(
                "the session is one of Spark Connect, whose driver is another process: embed in the program that has "
                "the driver, with SparkSession.builder.master(...)"
            )
        self._jvm: Any = spark._jvm
        self._handles = JvmHandles(self._jvm)
        self._properties = self._handles.properties
        if self._properties.get(REGISTRY_KEY) is not None:
            raise DriverStartError("the driver of this session belongs to a cluster already: stop() that one first")
        secret = secrets.token_hex(32)
        self._sessions = self._jvm.java.util.Vector()
        self.add(spark)
        loopback = self._jvm.java.net.InetAddress.getByName("127.0.0.1")
        builder = getattr(self._jvm, "py4j.ClientServer$ClientServerBuilder")(self._sessions)
        builder.authToken(secret).javaPort(0).javaAddress(loopback)
        self._server = builder.build()
        registry = self._jvm.java.util.concurrent.ConcurrentHashMap()
        entry = self._jvm.java.util.ArrayList()
        for item in (self._server, self._sessions):
            entry.add(item)
        registry.put(OFFERED, entry)
        self._properties.put(REGISTRY_KEY, registry)
        self._info(spark, work_dir, log_file, secret).write()

    def add(self, spark: Any) -> None:
        """One more session of the program's, whose queries are seen."""
        if not self._sessions.contains(spark._jsparkSession):
            self._sessions.add(spark._jsparkSession)

    def stop_queries(self) -> None:
        """Stop the streaming queries of the program's sessions."""
        for index in range(self._sessions.size()):
            for query in list(self._sessions.get(index).streams().active()):
                query.stop()

    def withdraw(self) -> None:
        """Take the offer back; the JVM goes on. One that is gone is no error."""
        with contextlib.suppress(Py4JError, OSError):
            self._properties.remove(REGISTRY_KEY)
            self._server.shutdown()
            unlock_files(self._handles)

    def _info(self, spark: Any, work_dir: Path, log_file: Path, secret: str) -> DriverInfo:
        pid = int(self._jvm.java.lang.ProcessHandle.current().pid())
        started = start_time(pid)
        if started is None:
            raise DriverStartError(f"the driver's JVM (process {pid} where it runs) is not on this machine")
        system = self._jvm.java.lang.System
        return DriverInfo(
            pid=pid,
            start_time=started,
            gateway_port=int(self._server.getJavaServer().getListeningPort()),
            gateway_secret=secret,
            connect_port=0,
            connect_token="",
            java_home=str(system.getProperty("java.home")),
            java_version=str(system.getProperty("java.version")),
            spark_version=str(spark.version),
            master=str(spark.sparkContext.master),
            work_dir=str(work_dir),
            log_file=str(log_file),
        )


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
