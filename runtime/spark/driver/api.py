"""`SparkDriver`: the interface of the runtime to each kind of Spark driver, and the values that it returns."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Protocol

from conf.files import write_private
from runtime.jobgraph.job_graph import JobKind
from runtime.protocol.descriptor import EndedSparkJob
from runtime.spark.driver.launch import SHIPPED, is_local
from runtime.spark.errors import DriverLostError
from runtime.spark.spec import ClassicEndpoint, ConnectEndpoint


@dataclass(frozen=True, slots=True)
class DriverInfo:
    """A running driver JVM.

    Args:
        pid: of the JVM.
        start_time: of that process, in clock ticks since boot: with the pid it names the process.
        spark_version: version of Spark.
        master: Spark's master URL.
        work_dir: the driver's directory: Spark's local directories, warehouse, temporary files.
        log_file: Spark's log.
        gateway_port, gateway_secret: of its Py4J server on the loopback address; 0 and empty for none.
        connect_port, connect_token: of its Spark Connect server on the loopback address; 0 and empty for none.
        java_home, java_version: the Java that it runs; empty where that is not known.
        tables: the record of the cluster's tables, see `runtime.spark.driver.tables`; empty where it keeps none.
        class_list: file in which the JVM records the classes it loads, for a class-data-sharing archive; empty where it
            runs from an archive already.
        remote: connection string of an external endpoint, which the process only watches.
        application: id of its Spark application; empty where that is not known.
        ui_port, ui_key: of Spark's own UI, see `runtime.spark.driver.ui`; 0 and empty where it serves none.
    """

    pid: int
    start_time: int
    spark_version: str
    master: str
    work_dir: str
    log_file: str
    gateway_port: int = 0
    gateway_secret: str = field(default="", repr=False)
    connect_port: int = 0
    connect_token: str = field(default="", repr=False)
    java_home: str = ""
    java_version: str = ""
    class_list: str = ""
    tables: str = ""
    remote: str = field(default="", repr=False)
    application: str = ""
    ui_port: int = 0
    ui_key: str = field(default="", repr=False)

    @property
    def file(self) -> Path:
        """Return the file that holds these values."""
        return info_file(Path(self.work_dir))

    @property
    def role(self) -> str:
        """Return a description of the process."""
        return f"monitor of the Spark Connect endpoint {self.master}" if self.remote else "Spark driver"

    @property
    def loss(self) -> str:
        """Return the text that reports its loss."""
        if self.remote:
            return f"the Spark Connect endpoint {self.master} does not answer any more"
        return f"the Spark driver (process {self.pid}) has ended"

    @property
    def shipping_dir(self) -> str:
        """Return the directory of archives for executors on other machines; empty where there are none.

        It is kept while the driver lives.
        """
        return "" if is_local(self.master) else str(Path(self.work_dir) / SHIPPED)

    def write(self) -> None:
        """Write the file atomically, with mode 0600."""
        write_private(self.file, json.dumps(asdict(self), indent=1).encode())

    @classmethod
    def read(cls, path: Path) -> DriverInfo:
        """Read a driver's file. Raises `DriverLostError` where there is none, or where its content is invalid."""
        try:
            values = json.loads(path.read_text())
            # a driver of an earlier release has not written the later fields, which have defaults
            given = (item for item in fields(cls) if item.name in values or item.default is MISSING)
            return cls(**{item.name: values[item.name] for item in given})
        except FileNotFoundError:
            raise DriverLostError(f"no Spark driver to adopt: {path} does not exist") from None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DriverLostError(f"no Spark driver to adopt: {path} cannot be read ({error!r})") from error


def info_file(work_dir: Path) -> Path:
    """Return the `driver.json` of a driver's directory."""
    return work_dir / "driver.json"


@dataclass(frozen=True, slots=True)
class StreamingQueryInfo:
    """A running streaming query; `id` outlives restarts from its checkpoint, `run_id` does not.

    `batch` is the number of the last batch that it has reported, None before the first; `progress` is that report,
    Spark's JSON. `trigger_interval_ms` is 0 where each batch starts when the one before ends, and None where the
    trigger has no interval. `trigger_active` is true while the query runs a batch or looks for data. `earlier` are
    reports of batches between the last look of this process and this one, the oldest first, as far as they are known.
    """

    id: str
    run_id: str
    name: str | None
    active: bool
    batch: int | None = None
    progress: str | None = None
    trigger_interval_ms: int | None = None
    trigger_active: bool = False
    earlier: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class QueryFailure:
    """A streaming query that had failed before it was stopped: its run, its name, and its error on one line."""

    run_id: str
    name: str
    error: str


@dataclass(frozen=True, slots=True)
class StoppedQueries:
    """Result of a stop of streaming queries.

    Args:
        failures: those that failed before they could be stopped.
        undrained: names of those that did not process in time what their sources have.
        forced: names of those that were interrupted in a batch.
    """

    failures: tuple[QueryFailure, ...] = ()
    undrained: tuple[str, ...] = ()
    forced: tuple[str, ...] = ()


ActiveQueries = list[Any]
"""The JVM's objects of streaming queries; only `SparkDriver.stop_streaming_queries` accepts them."""

SparkEndpoint = ClassicEndpoint | ConnectEndpoint
"""A task's way into Spark."""


class SparkDriver(Protocol):
    """A Spark that runs the work of tasks: the cluster's own driver JVM, a program's, or a Spark Connect endpoint.

    Make all calls from one asyncio loop. Those that call the driver raise `DriverLostError` where it has ended, and
    `DriverCallError` where it rejects the call.
    """

    info: DriverInfo

    @property
    def is_ours(self) -> bool:
        """Return whether it was started for a cluster's jobs: the cluster may end it and start another one."""

    @property
    def has_streaming(self) -> bool:
        """Return whether tasks may start streaming queries on it, which the runtime then looks after."""

    # --- life

    @property
    def alive(self) -> bool:
        """Return whether its process lives."""

    @property
    def loss(self) -> str:
        """Reason shown when the driver is lost."""

    async def wait_dead(self, timeout: float | None = None) -> bool:
        """Wait until its process has ended; False where `timeout` seconds passed first."""

    async def ping(self) -> bool:
        """Return whether it answers and its SparkContext is not stopped."""

    async def jvm_figures(self) -> dict[str, int] | None:
        """Return the JVM's figures, see `DriverGateway.jvm_figures`; None for a driver that offers none."""

    async def cores(self) -> int | None:
        """Return how many tasks of Spark it can run at once, see `DriverGateway.cores`; None if that is not known."""

    async def warm_up(self) -> None:
        """Load into the driver what every job needs."""

    async def reset(self, kept: Collection[SparkEndpoint] = ()) -> None:
        """End the work that a former owner's tasks left in it, except that of the *kept* ones, which still run."""

    def kill(self, why: str = "") -> None:
        """End it at once if `is_ours`; *why* becomes part of the reason of its loss."""

    async def stop(self, timeout: float = 10.0) -> None:
        """Disconnect from it, and end it if `is_ours`: by force after `timeout` seconds."""

    async def close(self) -> None:
        """Disconnect from the driver, which keeps running and may be adopted."""

    # --- tasks

    async def open(
        self, kind: JobKind, name: str, *, output: Path | None = None, isolated: bool = False
    ) -> SparkEndpoint:
        """Open an endpoint of Spark for a task: classic for a script, a Connect session for a pipeline.

        Args:
            kind: of the task.
            name: the attempt's id.
            output: file to which Spark's own output for a script is appended.
            isolated: whether a pipeline brings py-files or jars. It then has its own session and its own Python
                workers, whose start costs the first Python function 1 to 2 s. Other sessions share warm workers.

        Raises:
            UnsupportedByEndpointError: this Spark runs no tasks of this *kind*.
        """

    async def open_for_client(self, session_id: str, user_id: str) -> ConnectEndpoint:
        """Open a Connect session of a client's choice, isolated: the client may add py-files and jars to it.

        Args:
            session_id: its id, a UUID.
            user_id: its user in Spark.

        Raises:
            UnsupportedByEndpointError: this Spark opens no sessions for clients.
        """

    async def start_settings(self, settings: Mapping[str, str]) -> dict[str, bool]:
        """Return the keys of settings that Spark reads only at its start, and whether this driver has their values."""

    async def load_tables(self) -> None:
        """Load tables that other drivers of the cluster have changed into its catalog; call it before a task starts."""

    async def save_tables(self) -> None:
        """Publish the tables that its tasks have changed to other drivers and to its own successor."""

    async def configure(self, endpoint: ConnectEndpoint, conf: Mapping[str, str]) -> bool:
        """Set configuration of a session (1 ms; a task would take 8 ms); return whether that was possible."""

    async def ended_jobs(self, endpoint: ConnectEndpoint, most: int) -> list[EndedSparkJob]:
        """Return the Spark jobs of a session that have ended, the oldest first; at most the last *most* ones.

        A Spark that the runtime sees only through Spark Connect tells of none.
        """

    async def release(self, endpoint: SparkEndpoint, *, interrupted: bool = True, patience: float = math.inf) -> None:
        """End the work that a task left running in Spark, and close its endpoint.

        Call it whenever the task's process has ended. Returns when nothing of the task runs any more.

        Args:
            endpoint: of the task; it cannot be used again.
            interrupted: False where the task's code ended by itself, for which a shorter check is enough.
            patience: seconds that leftover work may take to end, from when it is first seen to run.

        Raises:
            StillRunningError: something still runs after that time.
        """

    # --- streaming queries and locks

    async def streaming_queries(self, endpoint: SparkEndpoint) -> list[StreamingQueryInfo]:
        """Return the running streaming queries of a task."""

    async def active_queries(self, endpoint: SparkEndpoint) -> ActiveQueries:
        """Return the running streaming queries of a task, to pass to `stop_streaming_queries`."""

    async def stop_streaming_queries(self, queries: ActiveQueries, *, drain: bool, timeout_s: float) -> StoppedQueries:
        """Stop the streaming queries of a task between two batches, and return the outcome; see `stop_at_boundary`."""

    async def lock_file(self, path: Path, owner: str) -> bool:
        """Lock a file for a task until `unlock_files` or the driver's end; return whether the task has the lock now."""

    async def unlock_files(self, owner: str) -> None:
        """Release the locks of a task."""
