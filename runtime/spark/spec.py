"""Orders to a task process: plain data that may travel. Importable without pyspark."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from runtime.protocol.descriptor import JobInformation, TaskDeploymentDescriptor

SCHEDULER_POOL = "spark.scheduler.pool"
"""Setting of a session that names the pool of Spark's fair scheduler in which its queries run."""

STOP_ACTIVE_RUN = "spark.sql.streaming.stopActiveRunOnRestart"
"""Setting of a session: whether the start of a streaming query stops one of its id, in whichever session that runs."""


@dataclass(frozen=True, slots=True)
class ClassicEndpoint:
    """A Py4J server in the driver JVM that serves one task; made by `SparkDriver.open_classic`.

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
"""Spark Connect's user of all our sessions."""


@dataclass(frozen=True, slots=True)
class ConnectEndpoint:
    """A Spark Connect session that a task may open; its id is ours, so that a successor can take it over.

    Args:
        port: of the driver's Connect server, on the loopback address.
        token: the server's authentication token.
        session_id: a UUID.
        user_id: Connect's user.
        remote: connection string of an endpoint of somebody else's, in the place of port and token.
    """

    port: int
    token: str = field(repr=False)
    session_id: str
    user_id: str = CONNECT_USER
    remote: str = field(default="", repr=False)

    @property
    def url(self) -> str:
        """The connection string, with the token in it. (With host 127.0.0.1 the client would demand TLS.)"""
        base = self.remote or f"sc://localhost:{self.port}/;token={self.token}"
        separator = "" if base.endswith(";") else ";" if "/;" in base or base.endswith("/") else "/;"
        return f"{base}{separator}session_id={self.session_id};user_id={self.user_id}"


@dataclass(frozen=True, slots=True)
class ResourceLimits:
    """Limits of a task process; None for no limit.

    Args:
        memory_bytes: beyond what it starts with.
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
    """The beginning of a task's streaming queries.

    Args:
        directory: where the job keeps what is its own of them: checkpointLocations that its code does not name, and
            marks of what was restored; one directory for each task.
        driver_directory: the Spark driver's current directory, from which relative paths count.
        failure_grace_s: how long one that has failed may be left alone; see `runtime.spark.task.streaming`.
    """

    directory: str
    driver_directory: str
    failure_grace_s: float = 10.0


@dataclass(frozen=True, slots=True)
class JobPlace:
    """Where a job's code runs, other than in the attempt's own directory.

    Args:
        directory: current directory of its process, and of Spark's Python workers while they work for it.
        file: the job's file there, ``__file__``; it is the content that was submitted which runs.
        argv0: ``sys.argv[0]``.
        import_path: what comes first on ``sys.path``: the directory of the file.
        worker_path: what Spark's Python workers import from, too. Where there is any, the job has workers of its own:
            one that has imported another project's modules would use them.
        resolves_paths: whether relative paths that are given to Spark count from `directory`, and not from the Spark
            driver's default file system.
    """

    directory: str
    file: str
    argv0: str
    import_path: tuple[str, ...]
    worker_path: tuple[str, ...] = ()
    resolves_paths: bool = True


@dataclass(frozen=True, slots=True)
class TaskSpec:
    """One execution attempt of a task, and what its process needs to run it here.

    Args:
        descriptor: the job and the attempt. Without the job's files, which lie in `work_dir`.
        file: path of the script or of the module of vertex functions; keep the user's own file name.
        work_dir: the attempt's directory, where `stdout` and `stderr` are; the current directory of the process, unless
            it has a `place`.
        py_files: .py, .zip and .egg files and directories put on `sys.path`, of the Spark workers too.
        jars: for the session of a pipeline.
        classic: where to attach to; a script needs it.
        connect: the session to open, an isolated one where there are `py_files` or `jars`; a pipeline needs it.
        env: added to the process's environment.
        conf: Spark SQL settings of the task's session.
        progress_interval: seconds between two looks at Spark's stage and task counts.
        limits: what its process may take.
        streaming: what its streaming queries begin with; None: Spark alone looks after them.
        shipping_dir: where what is sent to executors on other machines is kept; empty where they see the files of this
            one.
        place: where the job's code runs; None: in `work_dir`.
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
        """Entries that `py_files` add to `sys.path`: a module's directory, an archive or a directory itself."""
        entries = [str(Path(path).parent) if path.endswith(".py") else path for path in self.py_files]
        return list(dict.fromkeys(entries))

    @property
    def directory(self) -> str:
        """Current directory of the job's code."""
        return self.work_dir if self.place is None else self.place.directory

    @property
    def shown_file(self) -> str:
        """The job's file as its code sees it."""
        return self.file if self.place is None else self.place.file

    @property
    def argv(self) -> list[str]:
        """``sys.argv`` of the job's code."""
        return [self.file if self.place is None else self.place.argv0, *self.descriptor.job.argv]

    @property
    def import_path(self) -> list[str]:
        """Entries that come first on the job's ``sys.path``: the directory of its file, then its py-files."""
        own = (str(Path(self.file).parent),) if self.place is None else self.place.import_path
        return [*own, *self.python_path]

    @property
    def has_own_workers(self) -> bool:
        """Whether Spark's Python workers of the job serve it alone."""
        return bool(self.py_files) or has_own_workers(self.descriptor.job, self.place)


def has_own_workers(job: JobInformation, place: JobPlace | None) -> bool:
    """Whether a job without libraries has Python workers that serve it alone: for its modules or its variables."""
    return bool(job.environment) or (place is not None and bool(place.worker_path))


@dataclass(frozen=True, slots=True)
class PreparedSpec:
    """Order to a process that is made ready before its task is known: one of the two ways into Spark."""

    classic: ClassicEndpoint | None = None
    connect: ConnectEndpoint | None = None


NEVER_HOLD = {
    "spark.driver.extraClassPath": "bring the jar with --jar FILE",
    "spark.driver.extraLibraryPath": "start the cluster with -D env.java.opts=-Djava.library.path=DIR",
    "spark.local.dir": "start the cluster with -D cluster.runtime-dir=DIR",
    "spark.driver.host": "set it for the cluster: its driver listens where its executors are",
    "spark.driver.bindAddress": "set it for the cluster: its driver listens where its executors are",
}
"""Settings that no driver of ours takes from a job, and what to do instead."""


def ignored_setting(key: str, value: str, *, is_alone: bool) -> str:
    """Return the line that tells a user that a setting does not hold, and how to get it.

    Args:
        key: of the setting.
        value: what was asked for; a secret is not shown.
        is_alone: whether the task has a driver of its own.
    """
    from conf.registry import masked  # which most tasks do not need

    shown = f"{key}={masked(key, value)}"
    if key in NEVER_HOLD:
        return f"the setting {shown} is ignored: a job's driver does not take it; {NEVER_HOLD[key]}"
    how = f"-D {shown}" if is_alone else f"--own-driver -D {shown}"
    return f"the setting {shown} is ignored: Spark takes it only at its start; to have it, submit the job with {how}"


ENVIRONMENT_FILE = "environment.json"
"""File of an attempt's directory with the job's variables, for Python workers of a Connect session; mode 0600."""

WORKER_VARIABLE = "UNDERSTUDY_TASK"
"""In the environment of the Python workers of a classic task with py-files: the task's name."""
