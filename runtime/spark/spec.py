"""Orders to a task process, as plain data that travels. Importable without pyspark."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from runtime.protocol.descriptor import JobInformation, TaskDeploymentDescriptor

SCHEDULER_POOL = "spark.scheduler.pool"
"""Setting of a session that names the pool of Spark's fair scheduler in which its queries run."""

STOP_ACTIVE_RUN = "spark.sql.streaming.stopActiveRunOnRestart"
"""Setting of a session: whether the start of a streaming query stops a query of the same id, in any session."""


@dataclass(frozen=True, slots=True)
class ClassicEndpoint:
    """A Py4J server in the driver JVM that serves one task; created by `LocalDriver.open_classic`.

    Args:
        name: the task's name in the JVM.
        port: on the loopback address.
        secret: Py4J's authentication token.
        tag: Spark job tag that every Spark job of the task carries.
        alone: whether the task has the driver to itself.
    """

    name: str
    port: int
    secret: str = field(repr=False)
    tag: str
    alone: bool = False


CONNECT_USER = "understudy"
"""Spark Connect's user name for all sessions of Understudy."""


@dataclass(frozen=True, slots=True)
class ConnectEndpoint:
    """A Spark Connect session that a task may open. Understudy chooses its id, so that a successor can take it over.

    Args:
        port: of the driver's Connect server, on the loopback address.
        token: the server's authentication token.
        session_id: a UUID.
        user_id: Connect's user.
        remote: connection string of an external endpoint, instead of port and token.
    """

    port: int
    token: str = field(repr=False)
    session_id: str
    user_id: str = CONNECT_USER
    remote: str = field(default="", repr=False)

    @property
    def url(self) -> str:
        """Return the connection string with the token. (With host 127.0.0.1 the client would demand TLS.)"""
        base = self.remote or f"sc://localhost:{self.port}/;token={self.token}"
        separator = "" if base.endswith(";") else ";" if "/;" in base or base.endswith("/") else "/;"
        return f"{base}{separator}session_id={self.session_id};user_id={self.user_id}"


@dataclass(frozen=True, slots=True)
class ResourceLimits:
    """Limits of a task process; None for no limit.

    Args:
        memory_bytes: bytes in addition to those at its start.
        cpu_s: CPU time in all, in seconds.
        group: the files by which it enters its control group.
    """

    memory_bytes: int | None = None
    cpu_s: int | None = None
    group: tuple[str, ...] = ()

    def __str__(self) -> str:
        named = [] if self.memory_bytes is None else [f"taskmanager.task.memory.limit ({self.memory_bytes} bytes)"]
        named += [] if self.cpu_s is None else [f"taskmanager.task.cpu-time.limit ({self.cpu_s} s)"]
        return " or ".join(named)


@dataclass(frozen=True, slots=True)
class StreamingSpec:
    """Settings for the streaming queries of a task.

    Args:
        directory: the task's directory for checkpointLocations that the job's code does not name, and for marks of
            restored state.
        driver_directory: the Spark driver's current directory, to which relative paths refer.
        failure_grace_s: seconds that the job's code has to handle a failed query; see `runtime.spark.task.streaming`.
        query_restarts: how often a script's failed query is started again alone.
        query_restart_delay_s: seconds before each of these starts.
    """

    directory: str
    driver_directory: str
    failure_grace_s: float = 10.0
    query_restarts: int = 0
    query_restart_delay_s: float = 1.0


@dataclass(frozen=True, slots=True)
class JobPlace:
    """Working directory and import path of a job's code that does not run in the attempt's own directory.

    Args:
        directory: current directory of its process, and of Spark's Python workers while they work for it.
        file: the job's file there, ``__file__``; the code that runs is the submitted content.
        argv0: ``sys.argv[0]``.
        import_path: first entries of ``sys.path``: the directory of the file.
        worker_path: entries for Spark's Python workers too. If there are any, the job has its own workers: a shared one
            may have imported another project's modules of the same name.
        resolves_paths: whether relative paths in calls to Spark refer to `directory`, and not to the Spark driver's
            default file system.
    """

    directory: str
    file: str
    argv0: str
    import_path: tuple[str, ...]
    worker_path: tuple[str, ...] = ()
    resolves_paths: bool = True


@dataclass(frozen=True, slots=True)
class TaskSpec:
    """One execution attempt of a task, with everything that its process needs to run it here.

    Args:
        descriptor: the job and the attempt, without the job's files, which are in `work_dir`.
        file: path of the script or of the module of vertex functions, with the user's own file name.
        work_dir: the attempt's directory with `stdout` and `stderr`. It is the current directory of the process, unless
            there is a `place`.
        py_files: .py, .zip and .egg files and directories for `sys.path`, also of the Spark workers.
        jars: for the session of a pipeline.
        classic: the server to attach to; a script needs it.
        connect: the session to open, an isolated one where there are `py_files` or `jars`; a pipeline needs it.
        env: added to the process's environment.
        conf: Spark SQL settings of the task's session.
        progress_interval: seconds between two reads of Spark's stage and task counts.
        limits: limits of its process.
        streaming: settings of its streaming queries; None if only Spark looks after them.
        shipping_dir: directory of the files that are sent to executors on other machines; empty where executors see
            the files of this machine.
        place: working directory and import path of the job's code. Default: `work_dir`.
    """

    descriptor: TaskDeploymentDescriptor
    file: str
    work_dir: str
    py_files: tuple[str, ...] = ()
    jars: tuple[str, ...] = ()
    classic: ClassicEndpoint | None = None
    connect: ConnectEndpoint | None = None
    env: dict[str, str] = field(default_factory=dict)
    conf: dict[str, str] = field(default_factory=dict)
    progress_interval: float = 0.3
    limits: ResourceLimits = ResourceLimits()
    streaming: StreamingSpec | None = None
    shipping_dir: str = ""
    place: JobPlace | None = None

    @property
    def python_path(self) -> list[str]:
        """Return the entries that `py_files` add to `sys.path`: directories, archives, and modules' directories."""
        entries = [str(Path(path).parent) if path.endswith(".py") else path for path in self.py_files]
        return list(dict.fromkeys(entries))

    @property
    def directory(self) -> str:
        """Return the current directory of the job's code."""
        return self.work_dir if self.place is None else self.place.directory

    @property
    def shown_file(self) -> str:
        """Return the path of the job's file that its code sees."""
        return self.file if self.place is None else self.place.file

    @property
    def argv(self) -> list[str]:
        """Return ``sys.argv`` of the job's code."""
        return [self.file if self.place is None else self.place.argv0, *self.descriptor.job.argv]

    @property
    def import_path(self) -> list[str]:
        """Return the first entries of the job's ``sys.path``: the directory of its file, then its py-files."""
        own = (str(Path(self.file).parent),) if self.place is None else self.place.import_path
        return [*own, *self.python_path]

    @property
    def has_own_workers(self) -> bool:
        """Return whether the job has Spark's Python workers for itself."""
        return bool(self.py_files) or has_own_workers(self.descriptor.job, self.place)


def has_own_workers(job: JobInformation, place: JobPlace | None) -> bool:
    """Return whether a job without libraries has Python workers for itself: because of its modules or its variables."""
    return bool(job.environment) or (place is not None and bool(place.worker_path))


@dataclass(frozen=True, slots=True)
class PreparedSpec:
    """Order to a process that is prepared before its task is known: the endpoint of Spark to connect to."""

    classic: ClassicEndpoint | None = None
    connect: ConnectEndpoint | None = None


NEVER_HOLD = {
    "spark.driver.extraClassPath": "bring the jar with --jar FILE",
    "spark.driver.extraLibraryPath": "start the cluster with -D env.java.opts=-Djava.library.path=DIR",
    "spark.local.dir": "start the cluster with -D cluster.runtime-dir=DIR",
    "spark.driver.host": "set it for the cluster: its driver listens where its executors are",
    "spark.driver.bindAddress": "set it for the cluster: its driver listens where its executors are",
}
"""Settings that no driver of a cluster takes from a job, and what to do instead."""


def ignored_setting(key: str, value: str, *, is_alone: bool) -> str:
    """Return the line that tells a user that a setting has no effect, and how to get it.

    Args:
        key: of the setting.
        value: the requested value; a secret is not shown.
        is_alone: whether the task has its own driver.
    """
    from conf.registry import masked  # imported here, since most tasks do not need it

    shown = f"{key}={masked(key, value)}"
    if key in NEVER_HOLD:
        return f"the setting {shown} is ignored: a job's driver does not take it; {NEVER_HOLD[key]}"
    how = f"-D {shown}" if is_alone else f"--own-driver -D {shown}"
    return f"the setting {shown} is ignored: Spark takes it only at its start; to have it, submit the job with {how}"


ENVIRONMENT_FILE = "environment.json"
"""File of an attempt's directory with the job's variables, for Python workers of a Connect session; mode 0600."""

WORKER_VARIABLE = "UNDERSTUDY_TASK"
"""Environment variable with the task's name, for the Python workers of a classic task with py-files."""
