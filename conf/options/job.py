"""Options of jobs: slots, cancellation, restarts, the job store, and the client that submits them."""

from __future__ import annotations

from enum import Enum

from conf.option import option
from conf.values import Choice, Duration, FilePath, Integer, MemorySize, Number, Text


class RestartStrategyType(Enum):
    """What to do with a job whose task failed."""

    NONE = "none"
    FIXED_DELAY = "fixed-delay"
    FAILURE_RATE = "failure-rate"
    EXPONENTIAL_DELAY = "exponential-delay"


class SparkDriverChoice(Enum):
    """Which Spark driver a script runs on."""

    AUTO = "auto"
    SHARED = "shared"
    OWN = "own"


class JobOptions:
    """Slots, tasks and logs of jobs."""

    JOB_MASTER_STARTS = option(
        "jobmanager.job-masters.concurrent-starts",
        Integer(1, 1000, example="4"),
        "4",
        "How many JobMasters, each of them a process, are started at once, however many jobs are recovered. Where it "
        "is more than 1, recovered jobs leave one to those that are submitted meanwhile.",
    )
    SLOT_REQUEST_TIMEOUT = option(
        "slot.request.timeout",
        Duration("5 min"),
        "5 min",
        "How long a job waits for the slots it asked for before it fails.",
    )
    SLOT_IDLE_TIMEOUT = option(
        "slot.idle.timeout",
        Duration("50 s"),
        "50 s",
        "How long a job keeps a slot that it does not use.",
    )
    CANCELLATION_TIMEOUT = option(
        "task.cancellation.timeout",
        Duration("30 s"),
        "30 s",
        "How long a cancelled task may take to end before its process is killed (Flink's default is 180 s).",
    )
    SPARK_DRIVER = option(
        "task.spark-driver",
        Choice(SparkDriverChoice),
        "auto",
        "Which Spark driver a script runs on. `shared`: its TaskExecutor's, with the other tasks there. `own`: one "
        "that is started for it, which takes some seconds and `spark.driver.memory` more, and ends with it. `auto`: "
        "its own where its text shows that it needs one (docs/isolation.md), or the job has settings that Spark takes "
        "only at its start (docs/scripts.md), else the shared one. A script with jars always gets its own. A job may "
        "set it for itself; `understudy job run --own-driver` does.",
    )
    LOGS_RETENTION = option(
        "job.logs.retention",
        Duration("7 d"),
        "7 d",
        "How long a TaskExecutor keeps the files of a finished job's logs; what the cluster keeps of them goes with "
        "the job (`jobstore.expiration-time`).",
    )
    LOGS_MAX_SIZE = option(
        "job.logs.max-size",
        MemorySize("1 mb", minimum=4096, maximum=128 << 20),
        "4 mb",
        "How much is kept of each log of a finished task; of a longer one the head and the tail are.",
    )


class RestartStrategyOptions:
    """What happens when a task fails. Flink restarts nothing unless checkpointing is on. Here, by default, a task whose
    process, Spark driver or TaskExecutor was lost is restarted up to three times; an exception of the job's own code
    fails the job at once, for the same code on the same data fails again. Once a strategy is set, for the cluster or
    by the job itself, it holds for both."""

    TYPE = option(
        "restart-strategy.type",
        Choice(RestartStrategyType),
        "fixed-delay",
        "`none`: the job fails. `fixed-delay`: a number of attempts, a pause before each. `failure-rate`: restarts as "
        "long as failures do not come too often. `exponential-delay`: restarts after pauses that grow.",
        deprecated_keys=("restart-strategy",),
    )
    FIXED_DELAY_ATTEMPTS = option(
        "restart-strategy.fixed-delay.attempts",
        Integer(0, example="3"),
        "3",
        "How often a job is restarted before it fails (Flink's default is 1).",
    )
    FIXED_DELAY_DELAY = option(
        "restart-strategy.fixed-delay.delay",
        Duration("1 s"),
        "1 s",
        "The pause before a restart.",
    )
    FAILURE_RATE_MAX_FAILURES = option(
        "restart-strategy.failure-rate.max-failures-per-interval",
        Integer(1, example="3"),
        "1",
        "The job fails when more failures than this come within the interval.",
    )
    FAILURE_RATE_INTERVAL = option(
        "restart-strategy.failure-rate.failure-rate-interval",
        Duration("1 min", minimum=0.001),
        "1 min",
        "The interval in which failures are counted.",
    )
    FAILURE_RATE_DELAY = option(
        "restart-strategy.failure-rate.delay",
        Duration("1 s"),
        "1 s",
        "The pause before a restart.",
    )
    EXPONENTIAL_INITIAL_BACKOFF = option(
        "restart-strategy.exponential-delay.initial-backoff",
        Duration("1 s", minimum=0.001),
        "1 s",
        "The first pause.",
    )
    EXPONENTIAL_MAX_BACKOFF = option(
        "restart-strategy.exponential-delay.max-backoff",
        Duration("1 min", minimum=0.001),
        "1 min",
        "The longest pause.",
    )
    EXPONENTIAL_MULTIPLIER = option(
        "restart-strategy.exponential-delay.backoff-multiplier",
        Number(1.0, 100.0, "1.5"),
        "1.5",
        "Each pause is this many times as long as the one before.",
    )
    EXPONENTIAL_RESET_THRESHOLD = option(
        "restart-strategy.exponential-delay.reset-backoff-threshold",
        Duration("1 h", minimum=0.001),
        "1 h",
        "A job that ran this long without a failure begins with the first pause again.",
    )
    EXPONENTIAL_JITTER = option(
        "restart-strategy.exponential-delay.jitter-factor",
        Number(0.0, 1.0, "0.1"),
        "0.1",
        "The part of a pause by which it is lengthened or shortened at random.",
    )


class JobStoreType(Enum):
    """Where finished jobs are kept."""

    FILE = "File"
    MEMORY = "Memory"


class JobStoreOptions:
    """The finished jobs that can still be listed."""

    TYPE = option(
        "jobstore.type",
        Choice(JobStoreType),
        "File",
        "Where finished jobs are kept: `File`, where the next Dispatcher finds them again, or `Memory`, which goes "
        "with the Dispatcher (Flink's files go with it, too).",
    )
    CACHE_SIZE = option(
        "jobstore.cache-size",
        MemorySize("50 mb"),
        "50 mb",
        "How much room finished jobs may take, where they are kept; beyond it the oldest go first, but not the one "
        "that ended last (Flink bounds its memory, not its files).",
    )
    MAX_CAPACITY = option(
        "jobstore.max-capacity",
        Integer(0, example="1000"),
        "1000",
        "How many finished jobs are kept; beyond it the oldest go first (Flink keeps all until they expire).",
    )
    EXPIRATION_TIME = option(
        "jobstore.expiration-time",
        Duration("1 h"),
        "1 h",
        "How long a finished job is kept.",
    )
    LOG_SIZE = option(
        "jobstore.log-size",
        MemorySize("256 mb"),
        "256 mb",
        "How much room the JobMasters' logs of finished jobs may take on each machine. They go with their jobs; beyond "
        "this size the oldest go first, but not those of the job that ended last.",
    )


class ClientOptions:
    """The command line and notebooks."""

    WORKING_DIR_MAX_SIZE = option(
        "client.working-dir.max-size",
        MemorySize("100 mb"),
        "100 mb",
        "How much the files of a directory that a job ships may have together: one of `understudy job run "
        "--working-dir` or `--py-files`. What its `.gitignore` files name is not counted.",
    )

    TIMEOUT = option(
        "client.timeout",
        Duration("60 s", minimum=0.001),
        "60 s",
        "How long a command waits for the cluster's answer.",
    )
    URL = option(
        "client.url",
        Text("https://spark.example.org:8081"),
        None,
        "The web endpoint that clients reach the cluster by, in place of its secret and its RPC ports; several with "
        "commas between them. `http://` only on loopback, or with `rest.allow-insecure`. The environment's "
        "`UNDERSTUDY_URL` where this is not set. Commands that start, stop or look after processes of this machine "
        "take no notice of it.",
    )
    TOKEN_FILE = option(
        "client.token-file",
        FilePath("/home/me/.understudy/token"),
        None,
        "The file, of mode 0600, with the token that `client.url` asks for (`rest.authentication.token-file` there). "
        "The token itself may be in the environment, as `UNDERSTUDY_TOKEN`, which comes first.",
    )
    CA_FILE = option(
        "client.ca-file",
        FilePath("/etc/understudy/ca.pem"),
        None,
        "The PEM file with the authorities that the certificate of `client.url` may be signed by; those of the system "
        "unless it is set.",
    )
    HEARTBEAT_INTERVAL = option(
        "client.heartbeat.interval",
        Duration("30 s", minimum=0.001),
        "30 s",
        "How often an attached `understudy job run` tells the cluster that it is there.",
    )
    HEARTBEAT_TIMEOUT = option(
        "client.heartbeat.timeout",
        Duration("180 s", minimum=0.001),
        "180 s",
        "How long the cluster hears nothing of an attached `understudy job run` before it cancels the job. It does not "
        "apply to `understudy job run --detach`, nor after a second Ctrl-C.",
    )
