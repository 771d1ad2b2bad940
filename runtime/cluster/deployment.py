"""Clusters that `job run` starts for what it runs (Flink's `ClusterDescriptor.deployJobCluster`)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from actors.errors import ActorError
from conf.configuration import Configuration
from conf.options import (
    ClusterOptions,
    DeploymentOptions,
    ExecutionTarget,
    JobManagerOptions,
    JobStoreOptions,
    JobStoreType,
    RestOptions,
)
from runtime.client import ClusterClient
from runtime.cluster.cluster_entrypoint import entrypoint_of
from runtime.cluster.session import Say, start_cluster, stop_cluster, wait_until_stopped
from runtime.environment.directory import ClusterDirectory
from runtime.errors import ClusterAlreadyRunning, ClusterError, ClusterNotRunning
from runtime.ids import JobID
from runtime.protocol.errors import JobNotFoundError

_KEEPS_ALL_JOBS = {
    JobStoreOptions.TYPE.key: JobStoreType.FILE.value,
    JobStoreOptions.MAX_CAPACITY.key: 1_000_000,
    JobStoreOptions.CACHE_SIZE.key: "1 tb",
    JobStoreOptions.EXPIRATION_TIME.key: "36500 d",
}
"""A job that was forgotten before its cluster ends would be run again with main(), or its client be told nothing."""


def target_of(configuration: Configuration, target: str | None, masters: int) -> ExecutionTarget:
    """Where a job is to run: what the command line says, else ``execution.target``.

    Raises:
        ClusterError: standby masters are wanted for a cluster that runs.
    """
    wanted = configuration.get(DeploymentOptions.TARGET) if target is None else ExecutionTarget(target)
    if wanted is ExecutionTarget.SESSION and masters > 1:
        raise ClusterError(
            "--masters is for a cluster of the job's own", "give it to `start`, or run the job with --target per-job"
        )
    return wanted


def own_configuration(configuration: Configuration, name: str, target: ExecutionTarget) -> Configuration:
    """The configuration of a cluster for one application: with a name, a directory and ports of its own.

    Args:
        configuration: the user's; what was given with ``-D`` holds.
        name: the cluster's id, unless one was given.
        target: its kind.
    """
    given = configuration.given_by("-D")
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
    """The option with which other commands reach such a cluster."""
    if configuration.is_set(ClusterOptions.RUNTIME_DIR):
        return f"-D {ClusterOptions.RUNTIME_DIR.key}={configuration.get(ClusterOptions.RUNTIME_DIR)}"
    return f"-D {ClusterOptions.ID.key}={configuration.get(ClusterOptions.ID)}"


@contextlib.contextmanager
def attached(configuration: Configuration) -> Iterator[ClusterDirectory]:
    """The directory of a cluster that is to be started, claimed by this client: the cluster does not end before it."""
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
    """A client of a new cluster for one job.

    The cluster ends by itself when the job is over and this client gone; then this waits until nothing of it is left.

    Args:
        configuration: the user's.
        job_id: the job that will be submitted.
        masters: how many.
        say: told each step.

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
            say(
                f"cluster {configuration.get(ClusterOptions.ID)!r} runs this job alone; its logs are in {directory.log}"
            )
            try:
                yield client
            finally:
                is_over = _is_over(client, job_id)
                if not is_over:
                    reached = reached_by(configuration)
                    say(
                        f"the cluster ends with its job; `job info {reached} {job_id}` shows the job, "
                        f"`stop {reached}` ends both"
                    )
    finally:
        if is_over:
            await_end(configuration, say)


def await_end(configuration: Configuration, say: Say) -> None:
    """Wait until nothing is left of a cluster that ends by itself; one that does not is stopped."""
    directory = ClusterDirectory(configuration.get(ClusterOptions.RUNTIME_DIR))
    if not wait_until_stopped(directory, configuration.get(ClusterOptions.STOP_TIMEOUT)):
        with contextlib.suppress(ClusterNotRunning):
            stop_cluster(configuration, say)
    with directory.acquire():  # one that was stopped has kept what a further start would need
        entrypoint_of(configuration).clean_up(directory)


def _is_over(client: ClusterClient, job_id: JobID) -> bool:
    try:
        return client.status_of(job_id).is_globally_terminal
    except JobNotFoundError:
        return True  # it was not accepted
    except ActorError:
        return False
