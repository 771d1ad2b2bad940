"""`SparkDriver`: what the runtime asks of a Spark driver, of whichever kind, and the values that it answers with."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Protocol

from conf.files import write_private
from runtime.jobgraph.job_graph import JobKind
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
        class_list: where the JVM records the classes it loads for a class-data-sharing archive; empty where it runs
            from an archive already.
        remote: connection string of an endpoint of somebody else's, which the process only watches.
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

    @property
    def file(self) -> Path:
        """The file in which this is kept."""
        return info_file(Path(self.work_dir))

    @property
    def role(self) -> str:
        """Words for the process."""
        return f"monitor of the Spark Connect endpoint {self.master}" if self.remote else "Spark driver"

    @property
    def loss(self) -> str:
        """Words for its end."""
        if self.remote:
            return f"the Spark Connect endpoint {self.master} does not answer any more"
        return f"the Spark driver (process {self.pid}) has ended"

    @property
    def shipping_dir(self) -> str:
        """Directory of archives for executors on other machines, kept while the driver lives; empty for none."""
        return "" if is_local(self.master) else str(Path(self.work_dir) / SHIPPED)

    def write(self) -> None:
        """Write the file, mode 0600, at once or not at all."""
        write_private(self.file, json.dumps(asdict(self), indent=1).encode())

    @classmethod
    def read(cls, path: Path) -> DriverInfo:
        """Read a driver's file. Raises `DriverLostError` where there is none, or where it is not one."""
        try:
            values = json.loads(path.read_text())
            return cls(**{item.name: values[item.name] for item in fields(cls)})
        except FileNotFoundError:
            raise DriverLostError(f"no Spark driver to adopt: {path} does not exist") from None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DriverLostError(f"no Spark driver to adopt: {path} cannot be read ({error!r})") from error


def info_file(work_dir: Path) -> Path:
    """The `driver.json` of a driver's directory."""
    return work_dir / "driver.json"


@dataclass(frozen=True, slots=True)
class StreamingQueryInfo:
    """A running streaming query; `id` outlives restarts from its checkpoint, `run_id` does not.

    `batch` is the number of the last batch that it has reported, None before the first; `progress` is that report,
    Spark's JSON. `trigger_interval_ms` is 0 where one batch follows the other, None where the trigger has no interval.
    `trigger_active` says whether a batch is under way, or data are looked for.
    """

    id: str
    run_id: str
    name: str | None
    active: bool
    batch: int | None = None
    progress: str | None = None
    trigger_interval_ms: int | None = None
    trigger_active: bool = False


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
        undrained: names of those that had not worked off in time what their sources have.
        forced: names of those that were interrupted in a batch.
    """

    failures: tuple[QueryFailure, ...] = ()
    undrained: tuple[str, ...] = ()
    forced: tuple[str, ...] = ()


ActiveQueries = list[Any]
"""Streaming queries as the JVM has them; only good for `SparkDriver.stop_streaming_queries`."""

SparkEndpoint = ClassicEndpoint | ConnectEndpoint
"""A task's way into Spark."""


class SparkDriver(Protocol):
    """A Spark that runs the work of tasks: a driver JVM of our own, one of a program's, or a Spark Connect endpoint.

    All calls are for one asyncio loop. Those that ask the driver raise `DriverLostError` where it is gone, and
    `DriverCallError` where it refuses.
    """

    info: DriverInfo

    @property
    def is_ours(self) -> bool:
        """Whether it was started for a cluster's jobs: it may be ended, and another one takes its place."""

    @property
    def has_streaming(self) -> bool:
        """Whether tasks may start streaming queries on it, which are looked after then."""

    # --- life

    @property
    def alive(self) -> bool:
        """Whether its process lives."""

    @property
    def loss(self) -> str:
        """Reason shown when the driver is lost."""

    async def wait_dead(self, timeout: float | None = None) -> bool:
        """Wait until its process has ended; False where `timeout` seconds passed first."""

    async def ping(self) -> bool:
        """Whether it answers and its SparkContext is not stopped."""

    async def jvm_figures(self) -> dict[str, int] | None:
        """Return the JVM's figures of itself, see `DriverGateway.jvm_figures`; None where it cannot be asked."""

    async def warm_up(self) -> None:
        """Have it load what every job needs."""

    async def reset(self) -> None:
        """End what a former owner's tasks left in it."""

    def kill(self, why: str = "") -> None:
        """End it at once where it is ours to end; *why* becomes part of the reason of its loss."""

    async def stop(self, timeout: float = 10.0) -> None:
        """End it where it is ours to end, by force after `timeout` seconds, and let go of it."""

    async def close(self) -> None:
        """Let go of the driver, which goes on, and may be adopted."""

    # --- tasks

    async def open(
        self, kind: JobKind, name: str, *, output: Path | None = None, isolated: bool = False
    ) -> SparkEndpoint:
        """Open a way into Spark for a task: classic for a script, a Connect session for a pipeline.

        Args:
            kind: of the task.
            name: the attempt's id.
            output: file to which what Spark itself prints for a script is appended.
            isolated: whether a pipeline brings py-files or jars: its session and its Python workers are its own then,
                whose start costs the first Python function 1 to 2 s. The other sessions share warm workers.

        Raises:
            UnsupportedByEndpointError: this Spark takes no tasks of that kind.
        """

    async def start_settings(self, settings: Mapping[str, str]) -> dict[str, bool]:
        """Return the keys of those settings that Spark takes only at its start, and whether this driver has them."""

    async def resolve_packages(self, settings: Mapping[str, str]) -> list[Path]:
        """Return the jars that settings name for a driver's start: those of ``spark.jars.packages``, fetched by Ivy.

        Raises:
            DriverCallError: one cannot be had.
        """

    async def load_tables(self) -> None:
        """Take into its catalog the tables that other drivers of the cluster have changed; before a task begins."""

    async def save_tables(self) -> None:
        """Let other drivers, and the next in its place, see the tables that its tasks have changed."""

    async def configure(self, endpoint: ConnectEndpoint, conf: Mapping[str, str]) -> bool:
        """Set configuration of a session from here, which takes 1 ms, and a task 8; whether that was possible."""

    async def release(self, endpoint: SparkEndpoint, *, interrupted: bool = True, patience: float = math.inf) -> None:
        """End what a task left running in Spark, and its way in.

        To be called whenever the task's process has ended. Returns when nothing of it runs any more.

        Args:
            endpoint: of the task; it cannot be used again.
            interrupted: False where the task's code came to its own end, for which a shorter look is enough.
            patience: seconds, from when something is first seen to run, that it may take to end.

        Raises:
            StillRunningError: something still runs after that time.
        """

    # --- streaming queries and locks

    async def streaming_queries(self, endpoint: SparkEndpoint) -> list[StreamingQueryInfo]:
        """The running streaming queries of a task."""

    async def active_queries(self, endpoint: SparkEndpoint) -> ActiveQueries:
        """The running streaming queries of a task, to be given to `stop_streaming_queries`."""

    async def stop_streaming_queries(self, queries: ActiveQueries, *, drain: bool, timeout_s: float) -> StoppedQueries:
        """Stop the streaming queries of a task between two batches, see `stop_at_boundary`; what became of them."""

    async def lock_file(self, path: Path, owner: str) -> bool:
        """Lock a file for a task, until `unlock_files` or the driver's end; whether it has the lock now."""

    async def unlock_files(self, owner: str) -> None:
        """Give up what was locked for a task."""
