"""The services that the tasks of a TaskExecutor share, made from the configuration, and their pools in its driver."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from blob.cache import BlobCache
from blob.client import BlobClient
from blob.stores import create_blob_store
from conf.configuration import Configuration
from conf.options import BlobOptions, ClusterOptions, TaskManagerOptions
from runtime.environment.context import blob_store_url
from runtime.ids import ExecutionAttemptID, JobID
from runtime.librarycache.builder import EnvironmentBuilder
from runtime.librarycache.manager import LibraryCacheManager
from runtime.spark.driver.api import SparkDriver
from runtime.spark.driver.launch import DriverOptions
from runtime.spark.spec import TaskSpec
from runtime.spark.task.zygote_client import TaskProcess
from runtime.taskexecutor.control_groups import ControlGroups, control_groups
from runtime.taskexecutor.driver_health import DriverWatch
from runtime.taskexecutor.spark_options import CATALOG, WAREHOUSE, driver_options, hive_defaults
from runtime.taskexecutor.task_pool import TaskPool

_POOL = "job-"


class FairPools:
    """Pools of the jobs in the fair scheduler of one driver: as many as the most jobs that ever ran at once.

    Jobs that share a driver share its cores evenly when each has its own pool. Spark never removes a pool, and sorts
    all of them at every offer of a core; so a new job reuses the name of a pool that has become free.
    """

    def __init__(self) -> None:
        self._numbers: dict[JobID, int] = {}
        self._tasks: dict[JobID, int] = {}

    def enter(self, job_id: JobID, adopted: str = "") -> str:
        """Count a task of the job as started; return the name of the job's pool, the same for all of its tasks.

        Args:
            job_id: of the job.
            adopted: the pool in which an adopted task runs; empty for another task.
        """
        if adopted:
            self._numbers[job_id] = int(adopted.removeprefix(_POOL))
        elif job_id not in self._numbers:
            taken = set(self._numbers.values())
            self._numbers[job_id] = next(number for number in range(len(taken) + 1) if number not in taken)
        self._tasks[job_id] = self._tasks.get(job_id, 0) + 1
        return f"{_POOL}{self._numbers[job_id]}"

    def leave(self, job_id: JobID) -> None:
        """Count a task of the job as ended, when nothing of it runs in Spark any more."""
        self._tasks[job_id] -= 1
        if not self._tasks[job_id]:
            del self._tasks[job_id], self._numbers[job_id]


class TaskHost(Protocol):
    """Source of task processes: a zygote, or the program that an embedded cluster is part of."""

    @property
    def pid(self) -> int:
        """Process without which no task can run."""

    async def fork(self, spec: TaskSpec) -> TaskProcess:
        """Return a process that runs a task; raises `ZygoteError` if none can be started."""

    async def stop(self) -> None:
        """End what the host has started."""


@dataclass(frozen=True, slots=True)
class TaskServices:
    """Services that tasks are run with.

    Args:
        configuration: the cluster's.
        driver: the Spark driver that tasks share.
        watch: checks whether the shared driver runs jobs; None if the driver belongs to another owner.
        task_host: gives each task its process.
        pool: task processes that are ready.
        fair_pools: the jobs' pools in Spark's fair scheduler.
        blobs: the job's files.
        libraries: the jobs' Python environments.
        groups: makes the tasks' control groups; None if they have none.
    """

    configuration: Configuration
    driver: SparkDriver
    watch: DriverWatch | None
    task_host: TaskHost
    pool: TaskPool
    fair_pools: FairPools
    blobs: BlobCache
    libraries: LibraryCacheManager
    groups: ControlGroups | None

    def own_driver(self, directory: Path, jars: Sequence[Path], settings: Mapping[str, str]) -> DriverOptions:
        """Return the options of a driver for one task alone, in a directory, with jars and its own settings.

        A driver with its own warehouse or catalog does not see the cluster's tables.

        Raises:
            ConfigurationError: a setting is not valid.
        """
        if settings.get(CATALOG) == "hive":
            settings = {**hive_defaults(self.configuration.get(ClusterOptions.RUNTIME_DIR)), **settings}
        configuration = self.configuration.overlaid(settings, "the job")
        options = driver_options(configuration, directory, directory / "spark.log", jars)
        return replace(options, tables=None) if WAREHOUSE in settings else options


def create_services(
    configuration: Configuration,
    directory: Path,
    driver: SparkDriver,
    task_host: TaskHost,
    pool: TaskPool,
    watch: DriverWatch | None,
    new_blob_client: Callable[[], BlobClient],
    adopted: Collection[ExecutionAttemptID] = (),
) -> TaskServices:
    """Make the services that tasks share.

    Args:
        configuration: the cluster's.
        directory: the worker's own directory.
        driver: the Spark driver.
        task_host: gives each task its process.
        pool: task processes that are ready.
        watch: see `TaskServices`.
        new_blob_client: makes clients of the BlobServer.
        adopted: attempts that run already.
    """
    get = configuration.get
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
    groups = control_groups(configuration, owner=str(directory), adopted=adopted)
    return TaskServices(configuration, driver, watch, task_host, pool, FairPools(), cache, libraries, groups)
