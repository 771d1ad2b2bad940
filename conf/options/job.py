"""Options of jobs: slots, cancellation, restarts, the job store, and the client that submits them."""

from __future__ import annotations

import os
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

from conf.option import computed_option, option
from conf.values import Choice, Duration, FilePath, Integer, MemorySize, Number, Text

if TYPE_CHECKING:
    from conf.configuration import Configuration


def _login_dir(_configuration: Configuration) -> Path:
    configured = os.environ.get("XDG_CONFIG_HOME", "")
    return (Path(configured) if configured.startswith("/") else Path.home() / ".config") / "understudy" / "logins"


class RestartStrategyType(Enum):
    """Reaction to the failure of a task."""

    NONE = "none"
    FIXED_DELAY = "fixed-delay"
    FAILURE_RATE = "failure-rate"
    EXPONENTIAL_DELAY = "exponential-delay"


class SparkDriverChoice(Enum):
    """Spark driver of a script."""

    AUTO = "auto"
    SHARED = "shared"
    OWN = "own"


class JobOptions:
    """Slots, tasks and logs of jobs."""

    JOB_MASTER_STARTS = option(
        "jobmanager.job-masters.concurrent-starts",
        Integer(1, 1000, example="4"),
        "4",
        "Most JobMasters, each a process, that start at the same time, also while many jobs are recovered. If it is "
        "more than 1, recovered jobs leave one start to newly submitted jobs.",
    )
    QUEUE = option(
        "job.queue",
        Text("etl", r"[A-Za-z0-9_][A-Za-z0-9._@-]{0,63}", "the name of a queue"),
        None,
        "The queue of the job (`docs/queues.md`). Unset: the first queue that names the job's user or one of their "
        "groups, or else the queue `default`.",
    )
    TASK_MEMORY = option(
        "job.task.memory",
        MemorySize("2 gb", minimum=1 << 20),
        None,
        "Memory that each task of the job takes, as it counts for the limits `memory-mb` of `queues.file`; rounded up "
        "to whole MB. It reserves no memory and limits none: `taskmanager.task.cgroup.memory` does. Unset: what "
        "`each-task` of that file says.",
    )
    TASK_CPUS = option(
        "job.task.cpus",
        Number(0.001, 1024.0, "1.5"),
        None,
        "Processors that each task of the job takes, as they count for the limits `cpus` of `queues.file`. It reserves "
        "and limits none: `taskmanager.task.cgroup.cpus` does. Unset: what `each-task` of that file says.",
    )
    SLOT_REQUEST_TIMEOUT = option(
        "slot.request.timeout",
        Duration("5 min"),
        "5 min",
        "Time for which a job waits for requested slots before it fails. With `queues.file` it ends only requests that "
        "wait while the cluster has no slot at all.",
    )
    SLOT_IDLE_TIMEOUT = option(
        "slot.idle.timeout",
        Duration("50 s"),
        "50 s",
        "Time for which a job keeps an unused slot.",
    )
    CANCELLATION_TIMEOUT = option(
        "task.cancellation.timeout",
        Duration("30 s"),
        "30 s",
        "Time after which the process of a cancelled task is killed if it has not ended (Flink's default is 180 s).",
    )
    SPARK_DRIVER = option(
        "task.spark-driver",
        Choice(SparkDriverChoice),
        "auto",
        "Spark driver of a script. `shared`: the driver of its TaskExecutor, together with the other tasks there. "
        "`own`: a new driver, which takes some seconds and additional `spark.driver.memory`, and stops afterwards. "
        "`auto`: `own` if the script's text shows that it needs that (docs/isolation.md), or the job has settings that "
        "Spark reads only at its start (docs/scripts.md); otherwise `shared`. A script with jars always gets its own. "
        "A job may set this option for itself; `understudy job run --own-driver` does.",
    )
    LOGS_RETENTION = option(
        "job.logs.retention",
        Duration("7 d"),
        "7 d",
        "Time for which a TaskExecutor keeps the log files of a finished job. The cluster deletes its own copy with "
        "the job (`jobstore.expiration-time`).",
    )
    LOGS_MAX_SIZE = option(
        "job.logs.max-size",
        MemorySize("1 mb", minimum=4096, maximum=128 << 20),
        "4 mb",
        "Size to keep of each log of a finished task; of a longer log the head and the tail are kept.",
    )


class RestartStrategyOptions:
    """Reaction to the failure of a task.

    Flink restarts a job only if checkpointing is on. Here, by default, a task whose process, Spark driver or
    TaskExecutor was lost is restarted up to three times. So is one whose Python process Spark gave up because it had
    not started within 10 s. An exception of the job's own code fails the job at once, because the same code would fail
    again on the same data. A strategy that is set, for the cluster or by the job itself, applies to both cases.
    """

    TYPE = option(
        "restart-strategy.type",
        Choice(RestartStrategyType),
        "fixed-delay",
        "`none`: the job fails. `fixed-delay`: a limited number of restarts, each after the same delay. "
        "`failure-rate`: restarts until failures are too frequent. `exponential-delay`: restarts after growing delays. "
        "Unset: `fixed-delay`, and `exponential-delay` once a streaming query that runs until it is stopped has "
        "committed a batch; but a failure of the job's own code fails the job.",
        fallback_keys=("restart-strategy",),
    )
    FIXED_DELAY_ATTEMPTS = option(
        "restart-strategy.fixed-delay.attempts",
        Integer(0, example="3"),
        "3",
        "Number of restarts before the job fails (Flink's default is 1).",
    )
    FIXED_DELAY_DELAY = option(
        "restart-strategy.fixed-delay.delay",
        Duration("1 s"),
        "1 s",
        "Delay before a restart.",
    )
    FAILURE_RATE_MAX_FAILURES = option(
        "restart-strategy.failure-rate.max-failures-per-interval",
        Integer(1, example="3"),
        "1",
        "The job fails when more failures than this occur within the interval.",
    )
    FAILURE_RATE_INTERVAL = option(
        "restart-strategy.failure-rate.failure-rate-interval",
        Duration("1 min", minimum=0.001),
        "1 min",
        "Interval in which failures are counted.",
    )
    FAILURE_RATE_DELAY = option(
        "restart-strategy.failure-rate.delay",
        Duration("1 s"),
        "1 s",
        "Delay before a restart.",
    )
    EXPONENTIAL_INITIAL_BACKOFF = option(
        "restart-strategy.exponential-delay.initial-backoff",
        Duration("1 s", minimum=0.001),
        "1 s",
        "First delay.",
    )
    EXPONENTIAL_MAX_BACKOFF = option(
        "restart-strategy.exponential-delay.max-backoff",
        Duration("1 min", minimum=0.001),
        "1 min",
        "Longest delay.",
    )
    EXPONENTIAL_MULTIPLIER = option(
        "restart-strategy.exponential-delay.backoff-multiplier",
        Number(1.0, 100.0, "1.5"),
        "1.5",
        "Factor by which each delay is longer than the one before.",
    )
    EXPONENTIAL_RESET_THRESHOLD = option(
        "restart-strategy.exponential-delay.reset-backoff-threshold",
        Duration("1 h", minimum=0.001),
        "1 h",
        "Time without a failure after which a job starts again with the first delay.",
    )
    EXPONENTIAL_JITTER = option(
        "restart-strategy.exponential-delay.jitter-factor",
        Number(0.0, 1.0, "0.1"),
        "0.1",
        "Largest fraction of a delay by which it is randomly longer or shorter.",
    )


class JobStoreType(Enum):
    """Store of finished jobs."""

    FILE = "File"
    MEMORY = "Memory"


class JobStoreOptions:
    """Finished jobs that can still be listed."""

    TYPE = option(
        "jobstore.type",
        Choice(JobStoreType),
        "File",
        "Store of finished jobs. `File`: the next Dispatcher finds them again. `Memory`: they are lost with the "
        "Dispatcher (as Flink's files are, too).",
    )
    CACHE_SIZE = option(
        "jobstore.cache-size",
        MemorySize("50 mb"),
        "50 mb",
        "Most space for finished jobs in their store. Beyond it the oldest are deleted first, but never the one that "
        "ended last (Flink limits its memory, not its files).",
    )
    MAX_CAPACITY = option(
        "jobstore.max-capacity",
        Integer(0, example="1000"),
        "1000",
        "Number of finished jobs to keep; beyond it the oldest are deleted first (Flink keeps all until they expire).",
    )
    EXPIRATION_TIME = option(
        "jobstore.expiration-time",
        Duration("1 h"),
        "1 h",
        "Time for which a finished job is kept.",
    )
    LOG_SIZE = option(
        "jobstore.log-size",
        MemorySize("256 mb"),
        "256 mb",
        "Most space for the JobMasters' logs of finished jobs on each machine. They are deleted with their jobs. "
        "Beyond this size the oldest are deleted first, but never those of the job that ended last.",
    )


class ClientOptions:
    """The command line and notebooks."""

    WORKING_DIR_MAX_SIZE = option(
        "client.working-dir.max-size",
        MemorySize("100 mb"),
        "100 mb",
        "Largest total size of the files of a directory that a job ships, with `understudy job run --working-dir` or "
        "`--py-files`. Files that its `.gitignore` files name do not count.",
    )

    TIMEOUT = option(
        "client.timeout",
        Duration("60 s", minimum=0.001),
        "60 s",
        "Time for which a command waits for the cluster's answer.",
    )
    URL = option(
        "client.url",
        Text("https://spark.example.org:8081"),
        None,
        "URL of the web endpoint by which clients reach the cluster, instead of its secret and its RPC ports; separate "
        "several URLs with commas. `http://` works only on loopback, or with `rest.allow-insecure`. Unset: the "
        "environment variable `UNDERSTUDY_URL`. Commands that start, stop or check processes of this machine ignore "
        "it.",
    )
    TOKEN_FILE = option(
        "client.token-file",
        FilePath("/home/me/.understudy/token"),
        None,
        "The file, of mode 0600, with the token for `client.url` (`rest.authentication.token-file` there). The "
        "environment variable `UNDERSTUDY_TOKEN`, which contains the token itself, takes precedence. Unset: the login "
        "that `understudy login` has stored for `client.url`, if there is one.",
    )
    LOGIN_DIR = computed_option(
        "client.login-dir",
        FilePath("/home/me/.config/understudy/logins"),
        _login_dir,
        "~/.config/understudy/logins",
        "The directory in which `understudy login` stores tokens: a file of mode 0600 for each `client.url`.",
    )
    CA_FILE = option(
        "client.ca-file",
        FilePath("/etc/understudy/ca.pem"),
        None,
        "The PEM file with the authorities that may sign the certificate of `client.url`. Unset: those of the system.",
    )
    HEARTBEAT_INTERVAL = option(
        "client.heartbeat.interval",
        Duration("30 s", minimum=0.001),
        "30 s",
        "Time between two heartbeats of an attached `understudy job run`.",
    )
    HEARTBEAT_TIMEOUT = option(
        "client.heartbeat.timeout",
        Duration("180 s", minimum=0.001),
        "180 s",
        "Time without a heartbeat of an attached `understudy job run` after which the cluster cancels the job. It does "
        "not apply to `understudy job run --detach`, nor after a second Ctrl-C.",
    )
