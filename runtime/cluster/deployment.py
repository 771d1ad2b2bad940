"""Clusters that `job run` starts: for one job, or for one program with its jobs (Flink's `ApplicationDeployer`)."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from io import FileIO
from pathlib import Path

from actors.errors import ActorError
from conf.configuration import Configuration
from conf.options import (
    ClientOptions,
    ClusterOptions,
    DeploymentOptions,
    ExecutionTarget,
    JobManagerOptions,
    JobStoreOptions,
    JobStoreType,
    RestOptions,
)
from conf.registry import own_key
from runtime.application.program import ApplicationFiles
from runtime.application.state import ApplicationResult
from runtime.client import ClusterClient
from runtime.cluster.command_line import ExitStatus, Interrupts, await_or_cancel, status_of_end
from runtime.cluster.documents import Application, JobLine, SubmittedApplication
from runtime.cluster.logs import JobScreen, OutputPiece
from runtime.cluster.output import print_answer, print_document, print_error, say
from runtime.cluster.session import Say, start_cluster, stop_cluster, wait_until_stopped
from runtime.environment.directory import ClusterDirectory
from runtime.errors import ClusterAlreadyRunning, ClusterError, ClusterNotRunning
from runtime.ids import ApplicationID, JobID
from runtime.job_file import kind_of, ship_directory
from runtime.job_logs import CHUNK
from runtime.jobgraph.job_graph import ArtifactRole, JobKind
from runtime.jobgraph.working_directory import WorkingDirectory
from runtime.protocol.archived_execution_graph import ApplicationStatus, JobDetails
from runtime.protocol.errors import JobNotFoundError

POLL_S = 0.2

_KEEPS_ALL_JOBS = {
    JobStoreOptions.TYPE.key: JobStoreType.FILE.value,
    JobStoreOptions.MAX_CAPACITY.key: 1_000_000,
    JobStoreOptions.CACHE_SIZE.key: "1 tb",
    JobStoreOptions.EXPIRATION_TIME.key: "36500 d",
}
"""Settings that keep all ended jobs: after a failure, main() would run a forgotten job again.

The client of a forgotten job would get no result."""


def target_of(configuration: Configuration, target: str | None, masters: int) -> ExecutionTarget:
    """Return the target of a job: *target* of the command line, else ``execution.target``.

    Raises:
        ClusterError: the user requests several masters, but the job runs in a cluster that is already running.
    """
    wanted = configuration.get(DeploymentOptions.TARGET) if target is None else ExecutionTarget(target)
    if wanted is ExecutionTarget.SESSION and masters > 1:
        raise ClusterError(
            "--masters is for a cluster that is started for the job",
            "give it to `understudy start`, or run the job with --target per-job",
        )
    return wanted


def own_configuration(configuration: Configuration, name: str, target: ExecutionTarget) -> Configuration:
    """Return the configuration of a cluster for one application: with its own name, directory and ports.

    Args:
        configuration: the user's; options given with ``-D`` are kept.
        name: the cluster's id, unless ``-D`` gives one.
        target: its kind.
    """
    given = {own_key(key) for key in configuration.given_by("-D")}
    own = configuration.set(DeploymentOptions.TARGET, target)
    if ClusterOptions.ID.key not in given:
        own = own.set(ClusterOptions.ID, name)
    if ClusterOptions.RUNTIME_DIR.key not in given and own.is_set(ClusterOptions.RUNTIME_DIR):
        own = own.set(
            ClusterOptions.RUNTIME_DIR, own.get(ClusterOptions.RUNTIME_DIR).parent / own.get(ClusterOptions.ID)
        )
    for port in (JobManagerOptions.RPC_PORT, RestOptions.PORT):
        if port.key not in given:
            own = own.set(port, 0)
    if RestOptions.BIND_PORT.key not in given:
        own = own.set(RestOptions.BIND_PORT, None)
    return own.overlaid(_KEEPS_ALL_JOBS, "set by the program")


def reached_by(configuration: Configuration) -> str:
    """Return the option by which other commands reach such a cluster."""
    if configuration.is_set(ClusterOptions.RUNTIME_DIR):
        return f"-D {ClusterOptions.RUNTIME_DIR.key}={configuration.get(ClusterOptions.RUNTIME_DIR)}"
    return f"-D {ClusterOptions.ID.key}={configuration.get(ClusterOptions.ID)}"


@contextlib.contextmanager
def attached(configuration: Configuration) -> Iterator[ClusterDirectory]:
    """Claim the directory of a cluster that will be started: the cluster does not end before this client is done."""
    directory = ClusterDirectory(configuration.get(ClusterOptions.RUNTIME_DIR))
    if directory.is_running():
        raise ClusterAlreadyRunning(f"a cluster runs in {directory.root} already", "give this one another directory")
    directory.create()
    claim = directory.client_claim()
    if not claim.try_acquire():
        raise ClusterAlreadyRunning(f"another client starts a cluster in {directory.root}", "give it another directory")
    try:
        yield directory
    finally:
        claim.release()


@contextlib.contextmanager
def job_cluster(configuration: Configuration, job_id: JobID, masters: int, say: Say) -> Iterator[ClusterClient]:
    """Start a cluster for one job and provide a client of it.

    The cluster ends by itself once the job is over and this client has ended. If the job is over at the exit of this
    context, wait until nothing of the cluster is left.

    Args:
        configuration: the user's.
        job_id: of the job that will be submitted.
        masters: number of masters to start.
        say: called with each step.

    Raises:
        ClusterError, HaError, SparkError: the cluster cannot be started.
    """
    configuration = own_configuration(configuration, f"job-{job_id}", ExecutionTarget.PER_JOB)
    is_over = False
    try:
        with (
            attached(configuration) as directory,
            start_cluster(configuration, say, masters, ExecutionTarget.PER_JOB) as client,
        ):
            say(f"cluster {configuration.get(ClusterOptions.ID)!r} runs only this job; its logs are in {directory.log}")
            try:
                yield client
            finally:
                is_over = _is_over(client, job_id)
                if not is_over:
                    reached = reached_by(configuration)
                    say(
                        f"the cluster stops after its job; `understudy job info {reached} {job_id}` shows the job, "
                        f"`understudy stop {reached}` stops both"
                    )
    finally:
        if is_over:
            await_end(configuration, say)


def await_end(configuration: Configuration, say: Say) -> None:
    """Wait until nothing is left of a cluster that ends by itself; stop it if it does not."""
    directory = ClusterDirectory(configuration.get(ClusterOptions.RUNTIME_DIR))
    if not wait_until_stopped(directory, configuration.get(ClusterOptions.STOP_TIMEOUT)):
        with contextlib.suppress(ClusterNotRunning):
            stop_cluster(configuration, say)
    with directory.acquire():  # a cluster that was stopped keeps files that a next start would need
        directory.clean()
        directory.discard()


def _is_over(client: ClusterClient, job_id: JobID) -> bool:
    try:
        return client.status_of(job_id).is_globally_terminal
    except JobNotFoundError:
        return True  # the job was not accepted
    except ActorError:
        return False


# ---------------------------------------------------------------- applications


def run_application(
    configuration: Configuration,
    file: Path,
    argv: Sequence[str],
    name: str | None,
    application_id: JobID | None,
    libraries: Iterable[tuple[Path, ArtifactRole]],
    environment: Mapping[str, str],
    masters: int,
    detach: bool,
    as_json: bool,
    kind: JobKind | None = None,
    working_dir: Path | None = None,
) -> int:
    """Run a program in a cluster of its own; return the exit status of the command.

    Main()'s standard output and standard error appear on the same streams of this command while it runs. With JSON both
    appear on standard error.

    Args:
        configuration: the user's.
        file: has the program's main().
        argv: the program's arguments.
        name: of the application; None: the file's.
        application_id: None: a new one.
        libraries: files for the program and its jobs.
        environment: environment variables of the program and its jobs.
        masters: number of masters to start.
        detach: return once the application has started.
        as_json: print JSON.
        kind: kind of the file; None: as `kind_of` finds.
        working_dir: main() runs in a copy of it; None: in the current directory.

    Raises:
        JobFileError: the working directory cannot be packed.
        ClusterError, HaError, SparkError: the application cannot be started, or was stopped.
        OSError: a file cannot be read.
    """
    if (kind or kind_of(file)) is JobKind.PIPELINE:
        raise ClusterError(
            f"{file} describes one pipeline and has no main()", "use --target per-job, or submit it in a main()"
        )
    own_id = ApplicationID.random() if application_id is None else ApplicationID(application_id)
    name = name or file.stem
    configuration = own_configuration(configuration, f"application-{own_id}", ExecutionTarget.APPLICATION)
    is_over = False
    try:
        with attached(configuration) as directory, tempfile.TemporaryDirectory(prefix="understudy-app-") as scratch:
            files = ApplicationFiles(directory)
            place, packed = WorkingDirectory.of_caller(file), None
            if working_dir is not None:
                max_bytes = configuration.get(ClientOptions.WORKING_DIR_MAX_SIZE)
                place, (packed, _) = ship_directory(working_dir, file, Path(scratch), max_bytes)
            files.deploy(own_id, name, file, argv, libraries, environment, place, packed)
            with start_cluster(configuration, say, masters, ExecutionTarget.APPLICATION) as client:
                say(f"application {own_id} ({name}) runs in its own cluster")
                page = client.web_page()
                if page:
                    say(f"web page: {page}")
                say(
                    f"`understudy job list {reached_by(configuration)}` shows its jobs; its logs are in {directory.log}"
                )
                if detach:
                    print_answer(SubmittedApplication(own_id, page), own_id, as_json)
                    return ExitStatus.DONE
                known: dict[JobID, str] = {}
                with Interrupts() as interrupts:
                    kept = f"main() continues, and {files.stdout.with_suffix('.*')} have its output"
                    screen = JobScreen(stdout=sys.stderr if as_json else sys.stdout, kept=kept)
                    output = MainOutput(files, screen.write, interrupts.held)

                    def wait() -> ApplicationResult:
                        interrupts.release()
                        return _await_result(client, files, directory, known, output, screen)

                    result, interrupt = await_or_cancel("the application", wait, files.cancel)
                    screen.finish()
                is_over = True
                _print_result(own_id, result, client.list_jobs(), files, output, as_json)
    finally:
        if is_over:
            await_end(configuration, say)
    lost = ExitStatus.FAILED if screen.has_lost else ExitStatus.DONE
    return status_of_end(result.status.value, interrupt, result.exit_status) or lost


class MainOutput:
    """Shows what main() writes, while it runs; each run of main() has files of its own.

    Args:
        files: of the application.
        show: receives each piece.
        held: a context in which no signal interrupts: a piece is both shown and counted as shown, or neither.
    """

    def __init__(
        self,
        files: ApplicationFiles,
        show: Callable[[OutputPiece], None],
        held: Callable[[], AbstractContextManager[object]] = contextlib.nullcontext,
    ) -> None:
        self._show = show
        self._held = held
        self._readings = [_Reading("stdout", files.stdout), _Reading("stderr", files.stderr)]

    def poll(self) -> None:
        """Show the output since the last call. Raises OSError."""
        pieces = [True]
        while any(pieces):  # in turns, as they are written
            pieces = [self._read(reading) for reading in self._readings]

    def has_shown(self, text: str) -> bool:
        """Return whether *text* is in the last part of main()'s standard error."""
        return text.encode(errors="replace") in self._readings[1].tail

    def _read(self, reading: _Reading) -> bool:
        if reading.file is None:
            try:
                reading.file = reading.path.open("rb", buffering=0)
            except FileNotFoundError:  # main() has not begun
                return False
        with self._held():
            if data := reading.file.read(CHUNK):
                self._show(OutputPiece("main()", reading.run, reading.name, data))
                reading.tail = (reading.tail + data)[-CHUNK:]
        if not data and not reading.is_current():
            reading.file.close()
            reading.file, reading.run = None, reading.run + 1
            return True
        return bool(data)


@dataclass(slots=True)
class _Reading:
    """One of main()'s streams: the file of a run, open so that it differs from the file of a later run."""

    name: str
    path: Path
    file: FileIO | None = None
    run: int = 0
    tail: bytes = b""

    def is_current(self) -> bool:
        """Return whether no later run has replaced this file."""
        try:
            return self.file is None or os.path.samestat(self.path.stat(), os.fstat(self.file.fileno()))
        except FileNotFoundError:  # another run is about to make it
            return True


def _await_result(
    client: ClusterClient,
    files: ApplicationFiles,
    directory: ClusterDirectory,
    known: dict[JobID, str],
    output: MainOutput,
    screen: JobScreen,
) -> ApplicationResult:
    """Wait for an application's result; print each change of a job's state. *known* holds the last states."""
    while True:
        result = files.result()
        output.poll()
        try:
            for job in sorted(client.list_jobs(), key=lambda job: job.start_ms):
                if known.get(job.job_id) != job.status.value:
                    known[job.job_id] = job.status.value
                    screen.finish()
                    say(f"job {job.job_id} ({job.name}): {job.status.value}")
        except ActorError as error:
            if result is not None:
                raise
            if not directory.is_running():
                raise ClusterError(f"the application's cluster has ended: {error}", f"see {directory.log}") from error
        if result is not None:
            return result
        time.sleep(POLL_S)


def _print_result(
    application_id: ApplicationID,
    result: ApplicationResult,
    jobs: Sequence[JobDetails],
    files: ApplicationFiles,
    output: MainOutput,
    as_json: bool,
) -> None:
    if as_json:
        listed = tuple(map(JobLine.of, jobs))
        print_document(Application(application_id, result.status.value, result.error, result.traceback, listed))
        return
    say(f"application {application_id} is {result.status.value}")
    if result.status is not ApplicationStatus.SUCCEEDED:
        if result.traceback and not output.has_shown(result.traceback.rstrip()):
            say(result.traceback.rstrip())
        print_error(result.error, f"the output of main() is in {files.stdout.with_suffix('.*')}")
