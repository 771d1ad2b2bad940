"""The services that the tasks of a TaskExecutor share, made from the configuration."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from blob.cache import BlobCache
from blob.client import BlobClient
from blob.stores import create_blob_store
from conf.configuration import Configuration
from conf.options import (
    BlobOptions,
    CheckpointingOptions,
    ClusterOptions,
    JobOptions,
    SparkDriverChoice,
    StreamingOptions,
    TaskManagerOptions,
)
from runtime.environment.context import blob_store_url
from runtime.librarycache.builder import EnvironmentBuilder
from runtime.librarycache.manager import LibraryCacheManager
from runtime.spark.driver.api import SparkDriver
from runtime.spark.driver.launch import DriverOptions
from runtime.spark.spec import ResourceLimits, TaskSpec
from runtime.spark.task.zygote_client import TaskProcess
from runtime.taskexecutor.control_groups import ControlGroups, control_groups
from runtime.taskexecutor.driver_health import DriverWatch
from runtime.taskexecutor.driver_sharing import FairPools
from runtime.taskexecutor.spark_options import driver_options, task_environment, task_limits
from runtime.taskexecutor.task_pool import TaskPool


class TaskHost(Protocol):
    """Where the processes of tasks come from: a zygote, or the program that an embedded cluster is part of."""

    @property
    def pid(self) -> int:
        """Process without which no task can run."""

    async def fork(self, spec: TaskSpec) -> TaskProcess:
        """Return a process that runs a task; raises `ZygoteError` where there can be none."""

    async def stop(self) -> None:
        """End what the host has started."""


@dataclass(frozen=True, slots=True)
class TaskServices:
    """Services and settings that tasks are run with.

    Args:
        driver: the Spark driver that tasks share.
        own_driver: how a driver for one task alone is started, in a directory and with jars.
        spark_driver: which driver scripts run on, where a job says nothing.
        watch: sees whether the shared driver runs jobs; None where the driver is somebody else's.
        task_host: gives each task its process.
        pool: task processes that are ready.
        fair_pools: the jobs' pools in Spark's fair scheduler.
        blobs: the job's files.
        libraries: the jobs' Python environments.
        cancellation_timeout_s: seconds that a cancelled process may take before it is killed, and what has ended to
            leave Spark before the driver is.
        limits: what a task's process may take.
        checkpoints_dir: where the jobs' checkpoints are.
        query_failure_grace_s: see `runtime.spark.task.streaming`.
        task_env: in the environment of task processes.
        no_progress_timeout_s: seconds that a streaming query may be in one batch; None for any time.
        host: the address of this machine.
        groups: makes the tasks' control groups, where they have some.
    """

    driver: SparkDriver
    own_driver: Callable[[Path, Sequence[Path]], DriverOptions]
    spark_driver: SparkDriverChoice
    watch: DriverWatch | None
    task_host: TaskHost
    pool: TaskPool
    fair_pools: FairPools
    blobs: BlobCache
    libraries: LibraryCacheManager
    cancellation_timeout_s: float
    limits: ResourceLimits
    checkpoints_dir: Path
    query_failure_grace_s: float
    task_env: dict[str, str]
    no_progress_timeout_s: float | None
    host: str
    groups: ControlGroups | None


def create_services(
    configuration: Configuration,
    directory: Path,
    driver: SparkDriver,
    task_host: TaskHost,
    pool: TaskPool,
    watch: DriverWatch | None,
    new_blob_client: Callable[[], BlobClient],
) -> TaskServices:
    """Make them.

    Args:
        configuration: the cluster's.
        directory: the worker's own directory.
        driver: the Spark driver.
        task_host: gives each task its process.
        pool: task processes that are ready.
        watch: see `TaskServices`.
        new_blob_client: makes clients of the BlobServer.
    """
    get = configuration.get

    def own_driver(directory: Path, jars: Sequence[Path]) -> DriverOptions:
        return driver_options(configuration, directory, directory / "spark.log", jars)

    cache = BlobCache(
        directory / "blob",
        new_blob_client,
        create_blob_store(blob_store_url(configuration).reveal()),
        max_bytes=get(BlobOptions.CACHE_MAX_SIZE),
    )
    pip_options = get(TaskManagerOptions.PIP_OPTIONS)
    libraries = LibraryCacheManager(
        directory / "environments",
        EnvironmentBuilder(pip_options, get(TaskManagerOptions.INSTALL_TIMEOUT)),
        get(TaskManagerOptions.ENVIRONMENT_RETENTION),
    )
    return TaskServices(
        driver,
        own_driver,
        get(JobOptions.SPARK_DRIVER),
        watch,
        task_host,
        pool,
        FairPools(),
        cache,
        libraries,
        get(JobOptions.CANCELLATION_TIMEOUT),
        task_limits(configuration),
        get(CheckpointingOptions.CHECKPOINTS_DIR),
        get(StreamingOptions.FAILURE_GRACE),
        task_environment(configuration),
        get(StreamingOptions.NO_PROGRESS_TIMEOUT),
        get(ClusterOptions.HOST),
        control_groups(configuration, owner=str(directory)),
    )
