"""Every declared option, by area. A new area is a class here and an entry in ``AREAS``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from conf.option import ConfigOption, RemovedOption
from conf.options.autoscaling import AutoscalingOptions
from conf.options.blob import BlobOptions
from conf.options.checkpointing import CheckpointingOptions, StateBackend
from conf.options.cluster import (
    ClusterOptions,
    EnvironmentOptions,
    JobManagerOptions,
    LogFormat,
    SecurityOptions,
    TaskManagerOptions,
)
from conf.options.connect import ConnectOptions
from conf.options.deployment import DeploymentOptions, ExecutionTarget
from conf.options.ha import HighAvailabilityMode, HighAvailabilityOptions
from conf.options.history import HistoryOptions
from conf.options.job import (
    ClientOptions,
    JobOptions,
    JobStoreOptions,
    JobStoreType,
    RestartStrategyOptions,
    RestartStrategyType,
    SparkDriverChoice,
)
from conf.options.kubernetes import ImagePullPolicy, KubernetesOptions
from conf.options.metrics import MetricOptions
from conf.options.oidc import DefaultRole, OidcOptions
from conf.options.queues import QueueOptions
from conf.options.resource_manager import ResourceManagerDriverType, ResourceManagerOptions
from conf.options.rest import RestOptions
from conf.options.rpc import HeartbeatOptions, RpcOptions
from conf.options.spark import SparkOptions
from conf.options.streaming import StreamingOptions
from conf.options.traces import TraceOptions

__all__ = [
    "AREAS",
    "JOB_OPTIONS",
    "REMOVED_OPTIONS",
    "Area",
    "AutoscalingOptions",
    "BlobOptions",
    "CheckpointingOptions",
    "ClientOptions",
    "ClusterOptions",
    "ConnectOptions",
    "DefaultRole",
    "DeploymentOptions",
    "EnvironmentOptions",
    "ExecutionTarget",
    "HeartbeatOptions",
    "HighAvailabilityMode",
    "HighAvailabilityOptions",
    "HistoryOptions",
    "ImagePullPolicy",
    "JobManagerOptions",
    "JobOptions",
    "JobStoreOptions",
    "JobStoreType",
    "KubernetesOptions",
    "LogFormat",
    "MetricOptions",
    "OidcOptions",
    "QueueOptions",
    "ResourceManagerDriverType",
    "ResourceManagerOptions",
    "RestOptions",
    "RestartStrategyOptions",
    "RestartStrategyType",
    "RpcOptions",
    "SecurityOptions",
    "SparkDriverChoice",
    "SparkOptions",
    "StateBackend",
    "StreamingOptions",
    "TaskManagerOptions",
    "TraceOptions",
    "all_options",
]


@dataclass(frozen=True, slots=True)
class Area:
    """A group of options: a heading of the reference.

    Attributes:
        title: the heading.
        options: the class whose attributes are the options.
    """

    title: str
    options: type[object]

    @property
    def description(self) -> str:
        """Description of the area: the class's docstring."""
        return " ".join((self.options.__doc__ or "").split())

    def __iter__(self) -> Iterator[ConfigOption[Any]]:
        return (value for value in vars(self.options).values() if isinstance(value, ConfigOption))


AREAS = (
    Area("Cluster", ClusterOptions),
    Area("Deployment", DeploymentOptions),
    Area("JobManager", JobManagerOptions),
    Area("TaskManager", TaskManagerOptions),
    Area("ResourceManager", ResourceManagerOptions),
    Area("Queues", QueueOptions),
    Area("Kubernetes", KubernetesOptions),
    Area("RPC", RpcOptions),
    Area("Heartbeats", HeartbeatOptions),
    Area("Blob service", BlobOptions),
    Area("High availability", HighAvailabilityOptions),
    Area("Jobs", JobOptions),
    Area("Restart strategies", RestartStrategyOptions),
    Area("Checkpoints and savepoints", CheckpointingOptions),
    Area("Streaming queries", StreamingOptions),
    Area("Automatic rescaling", AutoscalingOptions),
    Area("Job store", JobStoreOptions),
    Area("History", HistoryOptions),
    Area("Spark", SparkOptions),
    Area("REST", RestOptions),
    Area("Spark Connect", ConnectOptions),
    Area("Metrics", MetricOptions),
    Area("Traces", TraceOptions),
    Area("Client", ClientOptions),
    Area("Security", SecurityOptions),
    Area("OpenID Connect", OidcOptions),
    Area("Environment", EnvironmentOptions),
)

JOB_OPTIONS: frozenset[ConfigOption[Any]] = frozenset(
    (
        *Area("", RestartStrategyOptions),
        JobOptions.SPARK_DRIVER,
        JobOptions.QUEUE,
        JobOptions.TASK_MEMORY,
        JobOptions.TASK_CPUS,
        SparkOptions.MASTER,
        SparkOptions.DRIVER_MEMORY,
        SparkOptions.PACKAGES,
        SparkOptions.IVY_DIR,
        SparkOptions.TABLE_FORMAT,
        CheckpointingOptions.INTERVAL,
        CheckpointingOptions.MIN_PAUSE,
        CheckpointingOptions.TIMEOUT,
        CheckpointingOptions.MAX_CONCURRENT,
        CheckpointingOptions.TOLERABLE_FAILURES,
        CheckpointingOptions.NUM_RETAINED,
        CheckpointingOptions.RETENTION,
        AutoscalingOptions.PARTITIONS,
        AutoscalingOptions.PARTITIONS_PER_CORE,
        AutoscalingOptions.DRY_RUN,
        AutoscalingOptions.MAX_LAG,
        AutoscalingOptions.PAUSE_BEFORE_INCREASE,
        AutoscalingOptions.PAUSE_BEFORE_DECREASE,
        AutoscalingOptions.QUIET_TIME,
        StreamingOptions.QUERY_RESTARTS,
        StreamingOptions.QUERY_RESTART_DELAY,
    )
)
"""Options that a job may set for itself, besides Spark's own settings; see `conf.registry.is_job_setting`."""

REMOVED_OPTIONS: tuple[RemovedOption, ...] = ()
"""Options of earlier releases that the present one still accepts, with a warning."""


def all_options() -> Iterator[ConfigOption[Any]]:
    """Yield every declared option, in the order of the reference."""
    for area in AREAS:
        yield from area
