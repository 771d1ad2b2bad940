"""How the Dispatcher, the cluster's front desk, is asked (Flink's `DispatcherGateway`)."""

from __future__ import annotations

from actors.rpc.gateway import Ask, FencedRpcGateway
from blob.gateway import BlobAddress
from blob.offload import Inline, Offloaded
from runtime.gateways.messages import ResourceOverview, TaskLog, TaskManagerView
from runtime.ids import JobID
from runtime.jobmaster.archived_execution_graph import ArchivedExecutionGraph, JobDetails
from runtime.jobmaster.execution_state import JobStatus


class DispatcherGateway(FencedRpcGateway):
    """Fenced: every call names the leadership that it is meant for."""

    def submit_job(self, job_graph: Inline | Offloaded) -> Ask[JobID]:
        """Accept a job: the encoded `JobGraph`, as a blob when it is large. Idempotent by the graph's job id.

        The reply comes when the graph is persisted: from then on the job is not lost.

        Raises:
            JobGraphError: the graph is not valid.
            JobSubmissionError: it cannot be accepted at present.
        """
        raise NotImplementedError

    def list_jobs(self) -> Ask[list[JobDetails]]:
        """Running and finished jobs, the newest first."""
        raise NotImplementedError

    def request_job(self, job_id: JobID) -> Ask[ArchivedExecutionGraph]:
        """The job with its tasks; raises `JobNotFoundError`."""
        raise NotImplementedError

    def request_job_status(self, job_id: JobID) -> Ask[JobStatus]:
        """The job's state; raises `JobNotFoundError`."""
        raise NotImplementedError

    def cancel_job(self, job_id: JobID) -> Ask[None]:
        """Begin to cancel the job; raises `JobNotFoundError`, or `JobAlreadyTerminatedError` when it is over."""
        raise NotImplementedError

    def request_job_logs(self, job_id: JobID) -> Ask[list[TaskLog]]:
        """The logs of the job's task attempts, in the order in which these began; raises `JobNotFoundError`.

        What is kept of an attempt that is over, or else what its TaskExecutor has, as far as that answers.
        """
        raise NotImplementedError

    def get_blob_server(self) -> Ask[BlobAddress]:
        """Where blobs are put and fetched."""
        raise NotImplementedError

    def request_cluster_overview(self) -> Ask[ResourceOverview]:
        """Counts of task managers and slots."""
        raise NotImplementedError

    def request_task_managers(self) -> Ask[list[TaskManagerView]]:
        """The registered TaskExecutors."""
        raise NotImplementedError

    def job_reached_terminal_state(self, job: ArchivedExecutionGraph) -> Ask[None]:
        """From a JobMaster: its job is over. Idempotent; repeated until it is answered."""
        raise NotImplementedError
