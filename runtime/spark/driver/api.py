"""What the runtime asks of a Spark driver, whichever kind it is, and the values that it answers with."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from conf.files import write_private
from runtime.spark.driver.launch import SHIPPED, is_local
from runtime.spark.errors import DriverLostError


@dataclass(frozen=True, slots=True)
class DriverInfo:
    """A running driver JVM.

    Args:
        pid: of the JVM.
        start_time: of that process, in clock ticks since boot: with the pid it names the process.
        gateway_port, gateway_secret: of its Py4J server on the loopback address.
        connect_port, connect_token: of its Spark Connect server on the loopback address.
        java_home, java_version, spark_version: what it runs.
        master: Spark's master URL.
        work_dir: the driver's directory: Spark's local directories, warehouse, temporary files.
        log_file: Spark's log.
        class_list: where the JVM records the classes it loads for a class-data-sharing archive; empty where it runs
            from an archive already.
        remote: connection string of an endpoint of somebody else's, which the process only watches.
    """

    pid: int
    start_time: int
    gateway_port: int
    gateway_secret: str = field(repr=False)
    connect_port: int
    connect_token: str = field(repr=False)
    java_home: str
    java_version: str
    spark_version: str
    master: str
    work_dir: str
    log_file: str
    class_list: str = ""
    remote: str = field(default="", repr=False)

    @property
    def file(self) -> Path:
        """Where this is kept."""
        return info_file(Path(self.work_dir))

    @property
    def role(self) -> str:
        """What the process is, in words."""
        return f"monitor of the Spark Connect endpoint {self.master}" if self.remote else "Spark driver"

    @property
    def loss(self) -> str:
        """That it has ended, in words."""
        if self.remote:
            return f"the Spark Connect endpoint {self.master} does not answer any more"
        return f"the Spark driver (process {self.pid}) has ended"

    @property
    def shipping_dir(self) -> str:
        """Where archives for executors on other machines are kept, for as long as the driver lives; empty for none."""
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
    """What became of queries that were stopped.

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
