"""The kinds of cluster: what their masters do each in its own way (Flink's `ClusterEntrypoint` and its subclasses).

A session cluster lives until it is stopped. The others are of one application, and end with it: that of a per-job
cluster is its job, that of an application cluster the user's main() with all jobs that it executes. All else, high
availability too, is the same: any master, also one that joins later, finds the kind in the cluster's configuration.
"""

from __future__ import annotations

from conf.configuration import Configuration
from conf.options import DeploymentOptions, ExecutionTarget
from runtime.environment.directory import ClusterDirectory
from runtime.protocol.archived_execution_graph import ApplicationStatus

_EXIT_CODES = {ApplicationStatus.FAILED: 1, ApplicationStatus.UNKNOWN: 2}


class ClusterEntrypoint:
    """What one kind of cluster has of its own.

    Attributes:
        dispatcher: factory of its Dispatcher, as an actor's host takes it.
        bootstrap: module of a process that its masters keep running beside its components; empty for none.
    """

    dispatcher = "runtime.dispatcher.endpoint:create"
    bootstrap = ""

    def exit_code(self, status: ApplicationStatus) -> int:
        """The exit status of a master that was told to stop."""
        raise NotImplementedError

    def clean_up(self, directory: ClusterDirectory) -> None:
        """Remove what the ended cluster does not need again; called by its last master. Raises OSError."""
        raise NotImplementedError


class SessionClusterEntrypoint(ClusterEntrypoint):
    """Takes jobs until it is stopped; what lies in its directory is for the next start."""

    def exit_code(self, status: ApplicationStatus) -> int:
        return 0

    def clean_up(self, directory: ClusterDirectory) -> None:
        directory.clean()


class OwnClusterEntrypoint(ClusterEntrypoint):
    """Of one application, with which it ends."""

    def exit_code(self, status: ApplicationStatus) -> int:
        """0 SUCCEEDED or CANCELED, 1 FAILED, 2 UNKNOWN (Flink's 0, 1443 and 1445 do not fit into a byte)."""
        return _EXIT_CODES.get(status, 0)

    def clean_up(self, directory: ClusterDirectory) -> None:
        directory.clean()
        directory.discard()


class JobClusterEntrypoint(OwnClusterEntrypoint):
    """Of one job: its `MiniDispatcher` ends the cluster with the job."""

    dispatcher = "runtime.dispatcher.mini_dispatcher:create"


class ApplicationClusterEntrypoint(OwnClusterEntrypoint):
    """Of a program: its bootstrap runs the user's main(), and ends the cluster with that and its jobs."""

    bootstrap = "runtime.cluster.application_bootstrap"


def entrypoint_of(configuration: Configuration) -> ClusterEntrypoint:
    """The kind of cluster that a configuration describes (``execution.target``)."""
    kinds: dict[ExecutionTarget, type[ClusterEntrypoint]] = {
        ExecutionTarget.SESSION: SessionClusterEntrypoint,
        ExecutionTarget.PER_JOB: JobClusterEntrypoint,
        ExecutionTarget.APPLICATION: ApplicationClusterEntrypoint,
    }
    return kinds[configuration.get(DeploymentOptions.TARGET)]()
