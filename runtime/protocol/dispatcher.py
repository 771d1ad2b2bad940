"""How the Dispatcher, the cluster's front desk, is asked (Flink's `DispatcherGateway`)."""

from __future__ import annotations

from actors.rpc.gateway import RECIPIENT, Ask, FencedRpcGateway, fenced_by, reads
from blob.gateway import BlobAddress
from blob.offload import Inline, Offloaded
from runtime.ids import JobID, JobVertexID, TriggerID
from runtime.metrics.metric import TaskManagerMetricAddress
from runtime.protocol.archived_execution_graph import ArchivedExecutionGraph, JobResult
from runtime.protocol.checkpoint_statistics import CheckpointStatsSnapshot
from runtime.protocol.checkpoints import OperationStatus
from runtime.protocol.execution_state import JobStatus
from runtime.protocol.leader import JOB_MASTER
from runtime.protocol.messages import ClusterOverview, MultipleJobsDetails, TaskLog, TaskManagerView
from runtime.protocol.streaming_query import OperatorBackPressureStats, QueryHistory


class DispatcherGateway(FencedRpcGateway):
    """Fenced: every call names the leadership that it is meant for."""

    @fenced_by(RECIPIENT)
    def submit_job(self, job_graph: Inline | Offloaded) -> Ask[JobID]:
        """Accept a job: the encoded `JobGraph`, as a blob when it is large. Idempotent by the graph's job id.

        The reply comes when the graph is persisted: from then on the job is not lost.

        Raises:
            JobGraphError: the graph is not valid.
            JobSubmissionError: it cannot be accepted at present.
        """
        raise NotImplementedError

    @reads
    def list_jobs(self) -> Ask[list[JobID]]:
        """Running and finished jobs, in no order; nobody else is asked."""
        raise NotImplementedError

    @reads
    def request_multiple_job_details(self) -> Ask[MultipleJobsDetails]:
        """Running and finished jobs in one line each, the newest first."""
        raise NotImplementedError

    @reads
    def request_job(self, job_id: JobID) -> Ask[ArchivedExecutionGraph]:
        """The job with its tasks; raises `JobNotFoundError`."""
        raise NotImplementedError

    @reads
    def request_operator_back_pressure_stats(
        self, job_id: JobID, vertex_id: JobVertexID
    ) -> Ask[OperatorBackPressureStats | None]:
        """Whether the streaming queries of a task keep up; None where that is not known.

        Raises:
            JobNotFoundError: there is no such job.
            JobVertexNotFoundError: it has no such task.
        """
        raise NotImplementedError

    @reads
    def request_job_status(self, job_id: JobID) -> Ask[JobStatus]:
        """The job's state; raises `JobNotFoundError`."""
        raise NotImplementedError

    @reads
    def request_job_result(self, job_id: JobID) -> Ask[JobResult | None]:
        """How the job ended; waits for it for some seconds, and then answers None: ask again.

        Raises:
            JobNotFoundError: there is no such job (any more).
        """
        raise NotImplementedError

    @fenced_by(RECIPIENT)
    def cancel_job(self, job_id: JobID) -> Ask[None]:
        """Begin to cancel the job; raises `JobNotFoundError`, or `JobAlreadyTerminatedError` when it is over."""
        raise NotImplementedError

    @fenced_by(RECIPIENT)
    def report_job_client_heartbeat(self, job_id: JobID) -> Ask[None]:
        """From the client of an attached job: it is there. Of any other job it means nothing."""
        raise NotImplementedError

    @fenced_by(RECIPIENT)
    def detach_job(self, job_id: JobID) -> Ask[None]:
        """From the client of an attached job: it leaves, and the job goes on without it. Idempotent.

        The reply comes when that is persisted: the next leader knows it too. Of a job that is over it means nothing.
        """
        raise NotImplementedError

    @fenced_by(RECIPIENT)
    def trigger_checkpoint(self, job_id: JobID, trigger_id: TriggerID) -> Ask[OperationStatus]:
        """Take a checkpoint of a job. Idempotent by trigger id: ask again, after any failure too, to learn of its end.

        Raises:
            JobNotFoundError, JobAlreadyTerminatedError: there is no such job, or it is over.
            JobNotReachableError: its JobMaster does not answer at present; ask again.
        """
        raise NotImplementedError

    @fenced_by(RECIPIENT)
    def trigger_savepoint(
        self, job_id: JobID, trigger_id: TriggerID, target_directory: str, cancel_job: bool = False
    ) -> Ask[OperationStatus]:
        """Make a savepoint of a job in *target_directory*, empty for the cluster's; as `trigger_checkpoint`.

        With *cancel_job* its queries are stopped for it, and the job is cancelled when the savepoint is complete.
        """
        raise NotImplementedError

    @fenced_by(RECIPIENT)
    def stop_with_savepoint(
        self, job_id: JobID, trigger_id: TriggerID, target_directory: str, drain: bool
    ) -> Ask[OperationStatus]:
        """Stop a job's queries, make a savepoint, and let the job finish; as `trigger_savepoint`."""
        raise NotImplementedError

    @fenced_by(RECIPIENT)
    def roll_back(self, job_id: JobID, trigger_id: TriggerID, target: str, new_query_id: bool) -> Ask[OperationStatus]:
        """Restart a job's tasks from where its queries stood in one of its checkpoints or savepoints.

        The answer comes when that is written down; the tasks restart after it. Idempotent by trigger id, for as long as
        the job goes back nowhere else.

        Args:
            job_id: the job.
            trigger_id: of the request.
            target: ``chk-<number>`` or the number of a checkpoint that is kept, or the directory of a savepoint.
            new_query_id: whether the queries get new ids, so that sinks that remember batches take them again.

        Raises:
            JobNotFoundError, JobAlreadyTerminatedError: there is no such job, or it is over.
            JobNotReachableError: its JobMaster does not answer at present; ask again.
            CheckpointError: the job cannot go back there, and goes on as before.
        """
        raise NotImplementedError

    @reads
    def get_triggered_savepoint_status(self, job_id: JobID, trigger_id: TriggerID) -> Ask[OperationStatus]:
        """What became of one of the three above.

        Raises:
            UnknownOperationError: the JobMaster that leads now does not know of it: trigger it again with its id.
        """
        raise NotImplementedError

    @fenced_by(RECIPIENT)
    def dispose_savepoint(self, path: str) -> Ask[bool]:
        """Remove a savepoint, and say whether there was one; raises `SavepointError` where the directory is none."""
        raise NotImplementedError

    @reads
    def request_checkpoint_statistics(self, job_id: JobID) -> Ask[CheckpointStatsSnapshot]:
        """The figures of a job's checkpoints, of one that is over too; raises `JobNotFoundError`."""
        raise NotImplementedError

    @reads
    def request_query_histories(self, job_id: JobID) -> Ask[list[QueryHistory]]:
        """The past figures of a job's streaming queries, of one that is over too; raises `JobNotFoundError`.

        A JobMaster that has taken over has heard of what came since then.
        """
        raise NotImplementedError

    @fenced_by(RECIPIENT)
    def request_job_logs(self, job_id: JobID) -> Ask[list[TaskLog]]:
        """The logs of the job's task attempts, in the order in which these began; raises `JobNotFoundError`.

        What is kept of an attempt that is over, or else what its TaskExecutor has, as far as that answers.
        """
        raise NotImplementedError

    @reads
    def get_blob_server(self) -> Ask[BlobAddress]:
        """Where blobs are put and fetched."""
        raise NotImplementedError

    @reads
    def get_blob_server_port(self) -> Ask[int]:
        """The port of `get_blob_server` alone."""
        raise NotImplementedError

    @reads
    def request_cluster_overview(self) -> Ask[ClusterOverview]:
        """Counts of TaskExecutors, slots and jobs."""
        raise NotImplementedError

    @reads
    def request_task_managers(self) -> Ask[list[TaskManagerView]]:
        """The registered TaskExecutors."""
        raise NotImplementedError

    @reads
    def request_metric_query_service_addresses(self) -> Ask[list[str]]:
        """Where the metrics of the control plane are asked for: of the Dispatcher, its master's BlobServer, the
        ResourceManager, and each JobMaster; who is not to be found at present is left out.
        """
        raise NotImplementedError

    @reads
    def request_task_manager_metric_query_service_addresses(self) -> Ask[list[TaskManagerMetricAddress]]:
        """Where the metrics of the registered TaskExecutors are asked for."""
        raise NotImplementedError

    @reads
    def request_masters(self) -> Ask[list[str]]:
        """Addresses of the systems of the cluster's living masters: where all else is looked up."""
        raise NotImplementedError

    @fenced_by(RECIPIENT)
    def shut_down_cluster(self) -> Ask[None]:
        """Begin to stop the cluster, all its masters; the reply comes before it is stopped. Idempotent."""
        raise NotImplementedError

    @fenced_by(JOB_MASTER)
    def job_reached_terminal_state(self, job: ArchivedExecutionGraph) -> Ask[None]:
        """From a JobMaster: its job is over. Idempotent; repeated until it is answered."""
        raise NotImplementedError
