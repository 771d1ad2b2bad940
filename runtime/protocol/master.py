"""How the master process, the guardian of the cluster's processes, is asked."""

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
    """A worker of this machine: its TaskExecutor's name, and its process."""

    name: str
    pid: int


class MasterGateway(RpcGateway):
    """The guardian: JobMasters are its children, not the Dispatcher's, so that they outlive a Dispatcher."""

    @fenced_by(DISPATCHER)
    def start_job_master(self, job_id: JobID) -> Ask[str]:
        """Start the JobMaster of a job, or find it running; returns its address. It is restarted when it dies."""
        raise NotImplementedError

    @fenced_by(DISPATCHER)
    def stop_job_master(self, job_id: JobID) -> Ask[None]:
        """Stop the JobMaster of a job; no error when there is none."""
        raise NotImplementedError

    @fenced_by(RESOURCE_MANAGER)
    def stop_worker(self, name: str) -> Ask[bool]:
        """Stop a worker that this master looks after, or nobody; returns whether it is stopped by it.

        One of those that `start` started waits for `start_worker` then.
        """
        raise NotImplementedError

    @fenced_by(RESOURCE_MANAGER)
    def start_worker(self) -> Ask[str]:
        """Start one of the workers that were stopped; returns its name, empty when there is none."""
        raise NotImplementedError

    @fenced_by(RESOURCE_MANAGER)
    def request_worker(self) -> Ask[WorkerProcess]:
        """Start one more worker, which is not started again when it ends."""
        raise NotImplementedError

    @fenced_by(RESOURCE_MANAGER)
    def request_workers(self) -> Ask[list[WorkerProcess]]:
        """The living ones of `request_worker`, with those whose master is gone: this one looks after them from now."""
        raise NotImplementedError

    @reads
    def request_status(self) -> Ask[ClusterStatus]:
        """The cluster's processes."""
        raise NotImplementedError

    def shut_down_cluster(self, status: ApplicationStatus = ApplicationStatus.UNKNOWN) -> Ask[None]:
        """Begin to stop the cluster; the reply comes before it is stopped. *status* is how its application ended."""
        raise NotImplementedError
