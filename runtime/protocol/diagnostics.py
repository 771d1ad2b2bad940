"""Diagnostics of a TaskExecutor: its logs, its threads, and the resources that it takes of its machine."""

from __future__ import annotations

from dataclasses import dataclass, field

from runtime.ids import ResourceID


@dataclass(frozen=True, slots=True)
class LogInfo:
    """A log that clients may request by its name (Flink's `LogInfo`).

    Args:
        name: ``taskexecutor`` or ``spark``.
        size: its bytes.
        mtime_ms: when it was last written to, in milliseconds since the epoch.
    """

    name: str
    size: int
    mtime_ms: int


@dataclass(frozen=True, slots=True)
class ComponentLog:
    """A log of a TaskExecutor or of its Spark driver, uploaded as a TRANSIENT blob for the requester.

    Args:
        resource_id: the TaskExecutor.
        name: ``taskexecutor`` or ``spark``, its Spark driver's.
        size: bytes of the log.
        blob_key: text of the transient blob's key; the blob of a long log holds its head and its tail.
    """

    resource_id: ResourceID
    name: str
    size: int
    blob_key: str


@dataclass(frozen=True, slots=True)
class ThreadInfo:
    """A Python thread.

    Args:
        name: its name.
        stack: its current stack, as in a traceback.
        state: its state, as of `runtime.threads.thread_states`; empty where that is not known.
    """

    name: str
    stack: str
    state: str = ""


@dataclass(frozen=True, slots=True)
class ThreadDump:
    """All Python threads of one process (Flink's `ThreadDumpInfo`)."""

    pid: int
    threads: tuple[ThreadInfo, ...]


@dataclass(frozen=True, slots=True)
class TaskManagerMetrics:
    """Resources that a TaskExecutor takes of its machine (Flink's `TaskManagerMetricsInfo`).

    Args:
        memory_bytes: resident memory of its process.
        cpu_s: processor seconds that its process has taken.
        threads: of its process.
        open_files: descriptors of its process.
        spark_memory_bytes: resident memory of its Spark driver's process; 0 when there is none.
        spark_cpu_s: processor seconds that its Spark driver has taken.
        tasks: attempts that run now.
        jvm: figures that its Spark driver reports, by the names of Flink's metrics below ``Status.JVM``. They are some
            seconds old; empty where the driver has not answered.
        cores: tasks of Spark that its driver can run at once, some seconds old: the cores of ``local[N]``, or those of
            all executors. None where that is not known, and where Spark adds executors by itself.
        application: id of the Spark application of that driver; empty where *cores* is not known.
    """

    memory_bytes: int
    cpu_s: float
    threads: int
    open_files: int
    spark_memory_bytes: int
    spark_cpu_s: float
    tasks: int
    jvm: dict[str, int | float] = field(default_factory=dict)
    cores: int | None = None
    application: str = ""


@dataclass(frozen=True, slots=True)
class TaskPoolReport:
    """Counts of a TaskExecutor's pool of ready task processes since it started.

    Args:
        size: largest number of processes that are kept ready.
        idle: number of those ready now, by kind of job.
        hits: tasks that got a process of the pool.
        misses: tasks that got none, by reason. ``off``: the pool is off; ``empty``: no process was ready;
            ``other-kind``: none of the job's kind was ready; ``own-environment``: the job brings what its code imports;
            ``died``: the process ended when it was taken.
        died: processes that ended while they waited.
        failed: processes that could not be made ready.
    """

    size: int
    idle: dict[str, int] = field(default_factory=dict)
    hits: int = 0
    misses: dict[str, int] = field(default_factory=dict)
    died: int = 0
    failed: int = 0
