"""What the tasks of a TaskExecutor are run with, made from the configuration."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from blob.cache import BlobCache
from blob.client import BlobClient
from blob.stores import create_blob_store
from conf.configuration import Configuration
from conf.options import BlobOptions, CheckpointingOptions, JobOptions, TaskManagerOptions
from runtime.environment.context import blob_store_url
from runtime.librarycache.builder import EnvironmentBuilder
from runtime.librarycache.manager import LibraryCacheManager
from runtime.spark import SparkDriver, Zygote
from runtime.taskexecutor.fair_pools import FairPools
from runtime.taskexecutor.spark_options import driver_options, task_limits
from runtime.taskexecutor.task import TaskServices
from runtime.taskexecutor.task_pool import TaskPool


def create_services(
    configuration: Configuration,
    directory: Path,
    driver: SparkDriver,
    zygote: Zygote,
    pool: TaskPool,
    new_blob_client: Callable[[], BlobClient],
) -> TaskServices:
    """Make them.

    Args:
        configuration: the cluster's.
        directory: the worker's own directory.
        driver: the Spark driver.
        zygote: forks task processes.
        pool: task processes that are ready.
        new_blob_client: makes clients of the BlobServer.
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
    return TaskServices(
        driver,
        lambda directory, jars: driver_options(configuration, directory, directory / "spark.log", jars),
        zygote,
        pool,
        FairPools(),
        cache,
        libraries,
        get(JobOptions.CANCELLATION_TIMEOUT),
        task_limits(configuration),
        get(CheckpointingOptions.CHECKPOINTS_DIR),
    )
