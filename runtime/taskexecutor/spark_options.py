"""Options of Spark from the configuration: of a worker's drivers, and the limits of its task processes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from conf.configuration import Configuration
from conf.options import (
    CheckpointingOptions,
    ClusterOptions,
    EnvironmentOptions,
    HeartbeatOptions,
    SparkOptions,
    StateBackend,
    TaskManagerOptions,
)
from runtime.environment.directory import EVENT_LOGS
from runtime.spark.driver.launch import WORKER_PYTHON, DriverOptions, is_local, spark_version
from runtime.spark.driver.packages import IVY_DIR, PACKAGES, PackageRequest
from runtime.spark.driver.remote import RemoteOptions, shown_url
from runtime.spark.driver.table_formats import TABLE_FORMAT, with_table_format
from runtime.spark.driver.ui import UI_ENABLED
from runtime.spark.spec import ResourceLimits

CATALOG, _IN_MEMORY = "spark.sql.catalogImplementation", "in-memory"
WAREHOUSE = "spark.sql.warehouse.dir"

_STATE_STORE = "spark.sql.streaming.stateStore"
_PROVIDERS = "org.apache.spark.sql.execution.streaming.state"


def state_backend_properties(backend: StateBackend) -> dict[str, str]:
    """Return Spark's settings for a state backend.

    RocksDB writes changelogs: each batch adds what it has changed, not whole files (Flink's incremental checkpoints).
    """
    if backend is StateBackend.HASHMAP:
        return {f"{_STATE_STORE}.providerClass": f"{_PROVIDERS}.HDFSBackedStateStoreProvider"}
    return {
        f"{_STATE_STORE}.providerClass": f"{_PROVIDERS}.RocksDBStateStoreProvider",
        f"{_STATE_STORE}.rocksdb.changelogCheckpointing.enabled": "true",
    }


def warm_up_queries(configuration: Configuration) -> int:
    """Return the number of queries that warm a new driver: 0 if its cores are not this machine's own."""
    local = configuration.get(SparkOptions.REMOTE) is None and is_local(configuration.get(SparkOptions.MASTER))
    return configuration.get(SparkOptions.WARM_UP_QUERIES) if local else 0


def driver_options(
    configuration: Configuration, work_dir: Path, log_file: Path, jars: Sequence[Path] = ()
) -> DriverOptions:
    """Return the options of a driver, which dies with the process that starts it.

    Args:
        configuration: the cluster's.
        work_dir: the driver's own directory.
        log_file: for Spark's log.
        jars: added to Spark's own.
    """
    get = configuration.get
    java_home = get(EnvironmentOptions.JAVA_HOME)
    options: tuple[str, ...] | None = get(EnvironmentOptions.JAVA_OPTS)
    properties = spark_settings(configuration)
    runtime_dir, master = get(ClusterOptions.RUNTIME_DIR), get(SparkOptions.MASTER)
    return DriverOptions(
        work_dir=work_dir,
        log_file=log_file,
        java_home=None if java_home is None else str(java_home),
        master=master,
        memory=f"{get(SparkOptions.DRIVER_MEMORY) >> 20}m",
        conf={
            **state_backend_properties(get(CheckpointingOptions.STATE_BACKEND)),
            WAREHOUSE: str(_warehouse(runtime_dir)),
            **({UI_ENABLED: "true"} if is_local(master) else {}),  # another master's driver listens beyond loopback
            **properties,
        },
        event_logs=runtime_dir / EVENT_LOGS if get(SparkOptions.EVENT_LOG_ENABLED) else None,
        tables=None if properties.get(CATALOG, _IN_MEMORY) != _IN_MEMORY else runtime_dir / "tables",
        java_options=options or (),
        jars=tuple(jars),
        packages=PackageRequest.of(
            properties, offline=get(SparkOptions.PACKAGES_OFFLINE), timeout_s=get(SparkOptions.PACKAGES_TIMEOUT)
        ),
        archive_dir=get(SparkOptions.CDS_CACHE_DIR) if get(SparkOptions.CDS_ENABLED) else None,
        die_with_parent=True,
        start_timeout=get(SparkOptions.DRIVER_START_TIMEOUT),
        log_max_bytes=get(EnvironmentOptions.LOG_MAX_SIZE),
        log_backups=get(EnvironmentOptions.LOG_MAX),
    )


def _warehouse(runtime_dir: Path) -> Path:
    return runtime_dir / "warehouse"


def spark_settings(configuration: Configuration) -> dict[str, str]:
    """Return Spark's settings of a driver that others of our options stand for, too: its packages, its table format."""
    found = configuration.spark_properties()
    if (packages := configuration.get(SparkOptions.PACKAGES)) is not None:
        found[PACKAGES] = SparkOptions.PACKAGES.value_type.render(packages)
    found[TABLE_FORMAT] = configuration.get(SparkOptions.TABLE_FORMAT) or ""
    found = job_settings(found, configuration.get(ClusterOptions.RUNTIME_DIR))
    if PACKAGES in found:
        found[IVY_DIR] = str(configuration.get(SparkOptions.IVY_DIR))
    return found


def job_settings(settings: Mapping[str, str], runtime_dir: Path) -> dict[str, str]:
    """Return Spark's settings of a job, with those of its table format.

    Args:
        settings: as the job has them.
        runtime_dir: of the cluster.

    Raises:
        ConfigurationError: there is no such table format.
    """
    if TABLE_FORMAT in settings:
        Configuration.from_dict({TABLE_FORMAT: settings[TABLE_FORMAT]}, "the job")
    return with_table_format(settings, spark_version(), settings.get(WAREHOUSE, str(_warehouse(runtime_dir))))


def hive_defaults(runtime_dir: Path) -> dict[str, str]:
    """Return the settings by which jobs with Hive's catalog share tables, in the cluster's directory.

    The metastore is an embedded Derby, which one driver opens at a time. A metastore or warehouse that the job names
    replaces it.
    """
    home = runtime_dir / "hive"
    return {
        WAREHOUSE: str(home / "warehouse"),
        "spark.hadoop.javax.jdo.option.ConnectionURL": f"jdbc:derby:;databaseName={home / 'metastore_db'};create=true",
    }


def remote_options(configuration: Configuration, work_dir: Path, log_file: Path) -> RemoteOptions | None:
    """Return how to watch the Spark Connect endpoint of ``spark.remote``; None if this cluster starts the driver."""
    remote = configuration.get(SparkOptions.REMOTE)
    if remote is None:
        return None
    get = configuration.get
    interval_s, failures = get(HeartbeatOptions.INTERVAL), get(HeartbeatOptions.RPC_FAILURE_THRESHOLD)
    if failures < 1:  # then single failures do not count, only the time
        failures = math.ceil(get(HeartbeatOptions.TIMEOUT) / interval_s)
    return RemoteOptions(work_dir, log_file, remote.reveal(), shown_url(remote.reveal()), interval_s, failures)


def task_environment(configuration: Configuration) -> dict[str, str]:
    """Return environment variables of task processes: the Python of Spark's workers, if it is another one."""
    python = configuration.spark_properties().get(WORKER_PYTHON)
    return {} if python is None else {"PYSPARK_PYTHON": python}


def resolves_paths(configuration: Configuration) -> bool:
    """Return whether a job's relative paths are local ones, by Spark's default file system."""
    if configuration.get(SparkOptions.REMOTE) is not None or configuration.get(SparkOptions.MASTER) == "yarn":
        return False  # another owner's Spark, or Hadoop's own configuration, decides where they lead
    return configuration.spark_properties().get("spark.hadoop.fs.defaultFS", "file:").startswith("file:")


def task_limits(configuration: Configuration) -> ResourceLimits:
    """Return the limits of a task's process."""
    cpu_s = configuration.get(TaskManagerOptions.TASK_CPU_TIME_LIMIT)
    memory_bytes = configuration.get(TaskManagerOptions.TASK_MEMORY_LIMIT)
    return ResourceLimits(memory_bytes, None if cpu_s is None else math.ceil(cpu_s))
