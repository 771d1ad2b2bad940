"""The gateway of the master process, which starts and watches the cluster's processes."""

from __future__ import annotations

from dataclasses import dataclass

from actors.rpc.gateway import Ask, RpcGateway, fenced_by, reads
from runtime.ids import JobID
from runtime.protocol.archived_execution_graph import ApplicationStatus
from runtime.protocol.leader import DISPATCHER, RESOURCE_MANAGER
from runtime.protocol.messages import ClusterStatus

MASTER = "/user/master"


@dataclass(frozen=True, slots=True)
class WorkerProcess:
    """A worker process of this machine: the name of its TaskExecutor, and its process id."""

    name: str
    pid: int


class MasterGateway(RpcGateway):
    """Calls to the master. JobMasters are its children, not the Dispatcher's, so that they outlive a Dispatcher."""

    @fenced_by(DISPATCHER)
    def start_job_master(self, job_id: JobID) -> Ask[str]:
        """Start the JobMaster of a job unless it runs, and return its address. The master restarts it when it dies."""
        raise NotImplementedError

    @fenced_by(DISPATCHER)
    def stop_job_master(self, job_id: JobID) -> Ask[None]:
        """Stop the JobMaster of a job; no error when there is none."""
        raise NotImplementedError

    @fenced_by(RESOURCE_MANAGER)
    def stop_worker(self, name: str) -> Ask[bool]:
        """Stop a worker if this master, or no living one, looks after it; returns whether the worker is stopped.

        A worker that `start` had started can be started again by `start_worker`.
        """
        raise NotImplementedError

    @fenced_by(RESOURCE_MANAGER)
    def start_worker(self) -> Ask[str]:
        """Start one of the stopped workers, and return its name; empty when there is none."""
        raise NotImplementedError

    @fenced_by(RESOURCE_MANAGER)
    def request_worker(self) -> Ask[WorkerProcess]:
        """Start one more worker, which is not restarted when it ends."""
        raise NotImplementedError

    @fenced_by(RESOURCE_MANAGER)
    def request_workers(self) -> Ask[list[WorkerProcess]]:
        """Return the living workers of `request_worker`, and adopt those whose master is dead."""
        raise NotImplementedError

    @fenced_by(DISPATCHER)
    def notify_feature_level(self, level: int) -> Ask[None]:
        """Report the feature level that the cluster stores now. Idempotent; a lower one has no effect."""
        raise NotImplementedError

    @reads
    def request_status(self) -> Ask[ClusterStatus]:
        """Return the status of the cluster and its processes."""
        raise NotImplementedError

    def shut_down_cluster(self, status: ApplicationStatus = ApplicationStatus.UNKNOWN) -> Ask[None]:
        """Begin to stop the cluster; the reply comes before it is stopped. *status* is its application's outcome."""
        raise NotImplementedError
