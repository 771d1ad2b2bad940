"""`EmbeddedCluster`: a cluster for one program that has its own Spark driver."""

from __future__ import annotations

import atexit
import os
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from actors.rpc.security import load_secret
from conf.configuration import Configuration
from conf.options import ClusterOptions, RestartStrategyOptions, RpcOptions, SecurityOptions
from conf.registry import by_own_key
from runtime.client import ClusterClient
from runtime.cluster.session import start_cluster
from runtime.embedded.access import ClusterAccess
from runtime.embedded.program import ProgramControl, same_process_socket
from runtime.environment.context import tls_config
from runtime.environment.directory import ClusterDirectory
from runtime.errors import ClusterError
from runtime.jobgraph.errors import JobGraphError
from runtime.jobgraph.job_graph import JobGraph
from runtime.jobgraph.restart_config import RestartStrategyConfig
from runtime.jobgraph.validation import check_name
from runtime.jobmaster.restart_strategy import RestartStrategy, default_restart_strategy
from runtime.notebook.cluster import Cluster
from runtime.notebook.job import Job
from runtime.protocol.archived_execution_graph import JobResult
from runtime.spark.embedding import OfferedDriver, ProgramQueries, python_of_workers
from runtime.spark.errors import DriverStartError
from runtime.spark.messages import Running
from runtime.spark.process import start_time
from runtime.spark.spec import TaskSpec
from runtime.taskexecutor.worker_files import ProgramInfo

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SETTINGS = {
    "cluster.id": "embedded",
    "jobmanager.rpc.port": "0",
    "rest.port": "0",
    "resourcemanager.driver": "standalone",
    "taskmanager.count": "1",
    "taskmanager.numberOfTaskSlots": "1",
    "taskmanager.task-pool.size": "0",
    "task.cancellation.timeout": "5s",
}
QUERY_RESTARTS = 3
POLL_S = 0.05
STOP_S = 90.0
PYTHON_S = 30.0

_MAIN = "# The program that embeds the cluster; it runs already.\n"


class EmbeddedClusterError(ClusterError):
    """The cluster cannot be embedded, or its job does not start."""


def _lack_of_workers(spark: Any) -> EmbeddedClusterError | None:
    """Return why functions in Spark's Python workers cannot reach the cluster; None if no obstacle was found.

    The workers run ``python3`` of the PATH unless ``PYSPARK_PYTHON`` names another one, whichever Python runs the
    program.
    """
    python = None if ".connect." in type(spark).__module__ else python_of_workers(spark)
    if python is None or Path(python).absolute() == Path(sys.executable).absolute():
        return None
    command = [python, "-c", f"import {ClusterAccess.__module__}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PYTHON_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        done = subprocess.CompletedProcess(command, 1, "", str(error))
    if done.returncode == 0:
        return None
    why = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
    return EmbeddedClusterError(
        f"Spark's Python workers run {python}, which cannot import {ClusterAccess.__module__} ({why}), so functions in "
        "them do not reach this cluster",
        f"set PYSPARK_PYTHON={sys.executable} before the session is made",
    )


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)  # noqa: T201


class EmbeddedCluster:
    """A cluster whose one job is this program; the constructor returns once it looks after the streaming queries.

    Args:
        spark: the program's classic session, which the program keeps.
        settings: options of the cluster by key, which override those of ``$UNDERSTUDY_CONF_DIR``. A directory in
            ``cluster.runtime-dir`` is kept. Default: a new directory, removed at the end.

    Attributes:
        cluster: a handle of the cluster, the same as in notebooks.
        job: a handle of the program as a job.

    Raises:
        EmbeddedClusterError: the session is one of Spark Connect, or its driver has a cluster already.
        ClusterError, ConfigurationError, HaError: the cluster cannot be started.
    """

    def __init__(self, spark: SparkSession, settings: Mapping[str, object] | None = None) -> None:
        self._spark = spark
        self._lock = threading.Lock()
        self._stopping = threading.RLock()
        self._stopped = self._has_ended = False
        self._attached = threading.Event()
        self._queries: ProgramQueries | None = None
        self._offer: OfferedDriver | None = None
        self._control: ProgramControl | None = None
        self._guard: subprocess.Popen[bytes] | None = None
        self._guard_pipe = -1
        self._secret: Any = None
        self._pid = os.getpid()
        self._client: ClusterClient | None = None
        self._configuration, self._keep = _configuration(settings or {})
        self._directory = ClusterDirectory(self._configuration.get(ClusterOptions.RUNTIME_DIR))
        self._workers_lack = _lack_of_workers(spark)
        if self._workers_lack is not None:
            _say(f"warning: {self._workers_lack}; remedy: {self._workers_lack.remedy}")
        try:
            self._start()
        except BaseException:
            self.stop()
            raise
        atexit.register(self.stop)

    def _start(self) -> None:
        self._directory.create()
        self._start_guard()
        worker = self._directory.taskmanager(0)
        (worker / "spark").mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            self._offer = OfferedDriver(self._spark, worker / "spark", self._directory.log / "program.log")
        except DriverStartError as error:
            raise EmbeddedClusterError(str(error), "see docs/embedding.md") from error
        path = same_process_socket(self._directory.socket_dir())
        self._control = ProgramControl(path, self._run, self._cancel)
        ProgramInfo(os.getpid(), str(path)).write(worker)
        self._client = start_cluster(self._configuration, lambda step: None)
        self.cluster = Cluster(self._client)
        self.job: Job[JobResult] = Job(self._client, self._submit(self._client))
        deadline = time.monotonic() + self._configuration.get(ClusterOptions.START_TIMEOUT)
        while not self._attached.wait(POLL_S):
            if self.job.status.is_globally_terminal or time.monotonic() > deadline:
                raise EmbeddedClusterError(
                    f"the program's job is {self.job.status.value}", f"see the logs in {self._directory.log}"
                )

    def _submit(self, client: ClusterClient) -> Any:
        name = str(self._spark.sparkContext.appName)
        try:
            check_name("job", name)
        except JobGraphError:
            name = "program"
        # The program survives the loss of its TaskExecutor, and the next one finds it again, any number of times.
        graph = JobGraph.for_script(
            name,
            restart_strategy=RestartStrategyConfig.fixed_delay(1_000_000, 1.0),
            created_ms=time.time_ns() // 1_000_000,
        )
        with tempfile.TemporaryDirectory(prefix="understudy-program-") as scratch:
            main = Path(scratch, "program.py")
            main.write_text(_MAIN, "utf-8")
            return client.submit(graph, main)

    # ------------------------------------------------------------------- queries

    def _run(self, spec: TaskSpec) -> None:
        """Install the hooks on the first attachment of a TaskExecutor, and report running queries to it."""
        control, offer = self._control, self._offer
        if control is None or offer is None or spec.streaming is None:
            return
        with self._lock:
            if self._queries is None and not self._stopped:
                self._queries = ProgramQueries(
                    spec.streaming,
                    spec.descriptor.attempt.restore,
                    control.tell,
                    control.acquire_lease,
                    self._new_policy,
                    offer.add,
                )
                self._queries.install()
                control.failed_queries = self._queries.failed
            if self._queries is not None:
                self._queries.pass_through(control.starts)
        control.tell(Running())
        control.tell_known()
        self._attached.set()

    def _cancel(self) -> None:
        """Stop the queries when the job is cancelled, or stopped with a savepoint; the program keeps running."""
        if self._queries is not None:
            self._queries.stopped_all()
        if self._offer is not None:
            self._offer.stop_queries()

    def _new_policy(self) -> RestartStrategy:
        if self._configuration.is_set(RestartStrategyOptions.TYPE):
            return RestartStrategy(default_restart_strategy(self._configuration))
        return RestartStrategy(RestartStrategyConfig.fixed_delay(QUERY_RESTARTS, 1.0))

    @property
    def directory(self) -> Path:
        """Return the cluster's runtime directory, by which `understudy -D cluster.runtime-dir=DIRECTORY` finds it."""
        return self._directory.root

    def checkpoint(self) -> Path:
        """Take a checkpoint of the program's streaming queries now; see `runtime.notebook.Job.checkpoint`."""
        return self.job.checkpoint()

    def savepoint(self, directory: str | Path | None = None) -> Path | str:
        """Make a savepoint of the program's streaming queries; see `runtime.notebook.Job.savepoint`."""
        return self.job.savepoint(directory)

    # ----------------------------------------------------------------- executors

    def access(self) -> ClusterAccess:
        """Return the access with which a function reaches actors and blobs from Spark's executors.

        Raises:
            EmbeddedClusterError: Spark's Python workers, of a local master, run a Python that lacks this package; or
                the cluster was stopped.
        """
        if self._stopped:
            raise EmbeddedClusterError("this embedded cluster was stopped", "create another EmbeddedCluster")
        if self._workers_lack is not None:
            raise self._workers_lack
        if self._secret is None:
            secret = load_secret(self._configuration.get(SecurityOptions.SECRET_FILE))
            self._secret = self._spark.sparkContext.broadcast(secret)
        masters = tuple(self.cluster.dispatcher.request_masters())
        frame_size = self._configuration.get(RpcOptions.FRAME_SIZE)
        return ClusterAccess(masters, self._secret, frame_size, tls_config(self._configuration))

    # ----------------------------------------------------------------------- end

    def stop(self) -> None:
        """Stop the cluster; Spark and the program's queries keep running without it. May be repeated.

        In a process that the program has forked it does nothing.
        """
        if os.getpid() != self._pid:
            return
        with self._stopping:
            if self._has_ended:
                return
            self._end()
            self._has_ended = True
        atexit.unregister(self.stop)

    def _end(self) -> None:
        """Do the steps of `stop`; after an interrupt (Ctrl-C) a repetition does those that are left."""
        with self._lock:
            self._stopped = True
            if self._queries is not None:
                self._queries.uninstall()
        if self._control is not None:
            self._control.close()  # before the cluster ends: its job finishes, so that nothing is cancelled
        if self._client is not None:
            self._client.close()
        if self._guard is not None:
            pipe, self._guard_pipe = self._guard_pipe, -1
            if pipe >= 0:
                os.close(pipe)
            self._await_guard(self._guard)
        if self._offer is not None:
            self._offer.withdraw()
        if self._secret is not None and self._spark.sparkContext._jsc is not None:
            secret, self._secret = self._secret, None
            secret.destroy()

    def _await_guard(self, guard: subprocess.Popen[bytes]) -> None:
        try:
            guard.wait(STOP_S)
        except subprocess.TimeoutExpired:
            _say(
                f"the embedded cluster in {self._directory.root} has not ended within {STOP_S:g} s: its guard, process "
                f"{guard.pid}, continues to end it"
            )

    def _start_guard(self) -> None:
        reading, self._guard_pipe = os.pipe()
        output = os.open(self._directory.log / "guard.out", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        started = start_time(os.getpid())
        arguments = [str(self._directory.root), str(os.getpid()), str(started), str(reading)]
        root = str(Path(__file__).resolve().parents[2])
        path = os.pathsep.join(dict.fromkeys([root, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]))
        try:
            self._guard = subprocess.Popen(
                [sys.executable, "-m", "runtime.embedded.guard", *arguments, "keep" if self._keep else "remove"],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=(reading,),
                cwd="/",
                start_new_session=True,  # a Ctrl-C on the program's terminal must not end it
                env={**os.environ, "PYTHONPATH": path},
            )
        finally:
            os.close(reading)
            os.close(output)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"<EmbeddedCluster in {self._directory.root}{' (stopped)' if self._stopped else ''}>"


def _configuration(settings: Mapping[str, object]) -> tuple[Configuration, bool]:
    """Return the cluster's configuration, and whether its directory is kept."""
    configuration = Configuration.load()
    given = by_own_key(settings)
    ours = {key: value for key, value in _SETTINGS.items() if key not in given}
    configuration = configuration.overlaid({**ours, **settings}, "settings")
    configuration.report_warnings(lambda text: warnings.warn(text, stacklevel=2))
    keep = ClusterOptions.RUNTIME_DIR.key in given
    if not keep:
        directory = tempfile.mkdtemp(prefix="understudy-embedded-")
        configuration = configuration.set(ClusterOptions.RUNTIME_DIR, Path(directory))
    return configuration, keep
