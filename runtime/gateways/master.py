"""How the master process, the guardian of the cluster's processes, is asked."""

from __future__ import annotations

from actors.rpc.gateway import Ask, RpcGateway
from runtime.gateways.messages import ClusterStatus
from runtime.ids import JobID
from runtime.jobmaster.archived_execution_graph import ApplicationStatus


class MasterGateway(RpcGateway):
    """The guardian: JobMasters are its children, not the Dispatcher's, so that they outlive a Dispatcher."""

    def start_job_master(self, job_id: JobID) -> Ask[str]:
        """Start the JobMaster of a job, or find it running; returns its address. It is restarted when it dies."""
        raise NotImplementedError

    def stop_job_master(self, job_id: JobID) -> Ask[None]:
        """Stop the JobMaster of a job; no error when there is none."""
        raise NotImplementedError

    def stop_worker(self, name: str) -> Ask[bool]:
        """Stop a worker that this master looks after, until `start_worker`; returns whether it is stopped by it."""
        raise NotImplementedError

    def start_worker(self) -> Ask[str]:
        """Start one of the workers that were stopped; returns its name, empty when there is none."""
        raise NotImplementedError

    def request_status(self) -> Ask[ClusterStatus]:
        """The cluster's processes."""
        raise NotImplementedError

    def shut_down_cluster(self, status: ApplicationStatus = ApplicationStatus.UNKNOWN) -> Ask[None]:
        """Begin to stop the cluster; the reply comes before it is stopped. *status* is how its application ended."""
        raise NotImplementedError
