"""`job run --target application`: a cluster for one program (Flink's `ApplicationDeployer`)."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from actors.errors import ActorError
from actors.rpc.codec import to_plain
from conf.configuration import Configuration
from conf.options import ExecutionTarget
from runtime.application.program import ApplicationFiles
from runtime.application.state import ApplicationResult
from runtime.client import ClusterClient
from runtime.cluster.deployment import attached, await_end, own_configuration, reached_by
from runtime.cluster.render import print_error, print_json, print_line
from runtime.cluster.running import ExitStatus, job_id_of, waiting
from runtime.cluster.session import start_cluster
from runtime.environment.directory import ClusterDirectory
from runtime.errors import ClusterError
from runtime.ids import ApplicationID
from runtime.job_file import kind_of
from runtime.jobgraph.job_graph import ArtifactRole, JobKind
from runtime.protocol.archived_execution_graph import ApplicationStatus, JobDetails

POLL_S = 0.2


def run_application(
    configuration: Configuration,
    file: Path,
    argv: Sequence[str],
    name: str | None,
    application_id: str | None,
    libraries: Iterable[tuple[Path, ArtifactRole]],
    masters: int,
    detach: bool,
    as_json: bool,
) -> ExitStatus:
    """Run a program in a cluster of its own; arguments as of `job run`, whose ``--job-id`` is the application's.

    Raises:
        ClusterError, HaError, SparkError: it cannot be started, or was stopped.
        OSError: a file cannot be read.
    """
    if kind_of(file) is JobKind.PIPELINE:
        raise ClusterError(
            f"{file} describes one pipeline and has no main()", "run it with --target per-job, or submit it in a main()"
        )
    own_id = ApplicationID.random() if application_id is None else ApplicationID(job_id_of(application_id))
    configuration = own_configuration(configuration, f"application-{own_id}", ExecutionTarget.APPLICATION)
    result: ApplicationResult | None = None
    try:
        with attached(configuration) as directory:
            files = ApplicationFiles(directory)
            files.deploy(own_id, name or file.stem, file, argv, libraries)
            with start_cluster(configuration, _say, masters, ExecutionTarget.APPLICATION) as client:
                _say(f"application {own_id} ({name or file.stem}) runs in a cluster of its own")
                _say(f"`job list {reached_by(configuration)}` shows its jobs; its logs are in {directory.log}")
                if detach:
                    print_json({"application_id": own_id}) if as_json else print_line(own_id)
                    return ExitStatus.DONE
                result, interrupted = _await_or_cancel(client, files, directory)
                _show(own_id, result, client.list_jobs(), files, as_json)
    finally:
        if result is not None:
            await_end(configuration, _say)
    return exit_status_of(result.status, interrupted)


def exit_status_of(status: ApplicationStatus, interrupted: bool) -> ExitStatus:
    """Of a command that has waited for an application's end."""
    if interrupted and status is ApplicationStatus.CANCELED:
        return ExitStatus.INTERRUPTED
    return ExitStatus.DONE if status is ApplicationStatus.SUCCEEDED else ExitStatus.FAILED


def _say(text: str) -> None:
    print_line(text, sys.stderr)


def _await_or_cancel(
    client: ClusterClient, files: ApplicationFiles, directory: ClusterDirectory
) -> tuple[ApplicationResult, bool]:
    """Wait for the end; the first Ctrl-C cancels the application, the second leaves it to the cluster."""
    show = _shower()
    try:
        return _await_result(client, files, directory, show), False
    except KeyboardInterrupt:
        _say("cancelling the application; Ctrl-C again leaves it to the cluster")
        files.cancel()
    with waiting("", "the application is left to the cluster"):
        return _await_result(client, files, directory, show), True


def _await_result(
    client: ClusterClient,
    files: ApplicationFiles,
    directory: ClusterDirectory,
    show: Callable[[Iterable[JobDetails]], None],
) -> ApplicationResult:
    while (result := files.result()) is None:
        try:
            show(client.list_jobs())
        except ActorError as error:
            if not directory.is_running():
                raise ClusterError(f"the application's cluster has gone: {error}", f"see {directory.log}") from error
        time.sleep(POLL_S)
    show(client.list_jobs())
    return result


def _shower() -> Callable[[Iterable[JobDetails]], None]:
    """Says each change of a job's state."""
    known: dict[str, str] = {}

    def show(jobs: Iterable[JobDetails]) -> None:
        for job in sorted(jobs, key=lambda job: job.start_ms):
            if known.get(job.job_id) != job.status.value:
                known[job.job_id] = job.status.value
                _say(f"job {job.job_id} ({job.name}): {job.status.value}")

    return show


def _show(
    application_id: ApplicationID,
    result: ApplicationResult,
    jobs: Sequence[JobDetails],
    files: ApplicationFiles,
    as_json: bool,
) -> None:
    if as_json:
        print_json(
            {
                "application_id": application_id,
                "status": result.status.value,
                "error": result.error,
                "traceback": result.traceback,
                "jobs": to_plain(jobs),
            }
        )
        return
    if files.stdout.exists():  # main() may have been cancelled before it was run
        sys.stdout.write(files.stdout.read_text(errors="replace"))
        sys.stdout.flush()
    _say(f"application {application_id} is {result.status.value}")
    if result.status is not ApplicationStatus.SUCCEEDED:
        if result.traceback:
            _say(result.traceback.rstrip())
        print_error(result.error, f"what main() wrote is in {files.stdout.with_suffix('.*')}")
