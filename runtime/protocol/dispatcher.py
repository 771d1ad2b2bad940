"""The gateway of the Dispatcher, which accepts jobs and answers for them (Flink's `DispatcherGateway`)."""

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
from runtime.protocol.messages import (
    ClusterOverview,
    FeatureLevelChange,
    MultipleJobsDetails,
    TaskLog,
    TaskManagerView,
)
from runtime.protocol.rescales import Rescale, VertexResourceRequirements
from runtime.protocol.streaming_query import OperatorBackPressureStats, QueryHistory
from runtime.users.identities import ApiToken, User


class DispatcherGateway(FencedRpcGateway):
    """Calls to the leading Dispatcher. Fenced: every call names the leadership that it is meant for."""

    @fenced_by(RECIPIENT)
    def submit_job(self, job_graph: Inline | Offloaded) -> Ask[JobID]:
        """Accept a job: the encoded `JobGraph`, as a blob when it is large. Idempotent by the graph's job id.

        The reply comes once the graph is persisted: from then on the job survives failures of the Dispatcher.

        Raises:
            JobGraphError: the graph is not valid.
            JobSubmissionError: it cannot be accepted at present.
        """
        raise NotImplementedError

    @fenced_by(RECIPIENT)
    def admit_upload(self, job_id: JobID, upload_id: str, size: int, owner: str, name: str = "") -> Ask[None]:
        """Check an upload of files for a job by the limits of its user before the first byte, and count it.

        Idempotent by *upload_id*; the last size counts. By HTTP it announces all files together, whatever id and owner
        the caller names.

        Args:
            job_id: the job, which will be submitted.
            upload_id: of one file; `runtime.queues.admission.ALL_FILES` announces all of them.
            size: bytes; 0 if nothing is uploaded after all.
            owner: the user. Without one nothing is checked.
            name: of the job, for the refusal; empty if it is not known.

        Raises:
            JobSubmissionError: it is over a limit (`SubmissionLimitError`, `QueueRejectedError`), another user uploads
                under this id (`JobIDRejectedError`), or the file of queues is missing or wrong.
        """
        raise NotImplementedError

    @fenced_by(RECIPIENT)
    def end_upload(self, job_id: JobID, owner: str) -> Ask[None]:
        """Delete what a user has uploaded for a job that is not submitted after all, and count it no more. Idempotent.

        It has no effect for a job that was accepted, for the upload of another user, or without a file of queues.

        Args:
            job_id: the job.
            owner: the user.
        """
        raise NotImplementedError

    @reads
    def list_jobs(self) -> Ask[list[JobID]]:
        """List running and finished jobs in no order, without asking any other component."""
        raise NotImplementedError

    @reads
    def request_multiple_job_details(self) -> Ask[MultipleJobsDetails]:
        """Return running and finished jobs in one line each, the newest first."""
        raise NotImplementedError

    @reads
    def request_job(self, job_id: JobID) -> Ask[ArchivedExecutionGraph]:
        """Return the job with its tasks; raises `JobNotFoundError`."""
        raise NotImplementedError

    @reads
    def request_job_graph(self, job_id: JobID) -> Ask[bytes]:
        """Return the graph of a job that is not over, encoded; it has the values of the job's environment.

        Raises:
            JobNotFoundError, JobAlreadyTerminatedError: there is no such job, or it is over.
            JobSubmissionError: the cluster runs this job alone, and takes no other one after it.
        """
        raise NotImplementedError

    @reads
    def request_operator_back_pressure_stats(
        self, job_id: JobID, vertex_id: JobVertexID
    ) -> Ask[OperatorBackPressureStats | None]:
        """Return whether the streaming queries of a task keep up; None where that is not known.

        Raises:
            JobNotFoundError: there is no such job.
            JobVertexNotFoundError: it has no such task.
        """
        raise NotImplementedError

    @reads
    def request_job_status(self, job_id: JobID) -> Ask[JobStatus]:
        """Return the job's state; raises `JobNotFoundError`."""
        raise NotImplementedError

    @reads
    def request_job_result(self, job_id: JobID) -> Ask[JobResult | None]:
        """Return the job's outcome. Waits some seconds for its end, then returns None: ask again.

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
        """Report that the client of an attached job is alive. Has no effect for any other job."""
        raise NotImplementedError

    @fenced_by(RECIPIENT)
    def detach_job(self, job_id: JobID) -> Ask[None]:
        """Detach the client of an attached job; the job keeps running without it. Idempotent.

        The reply comes once this is persisted, so the next leader knows it too. Has no effect for a job that is over.
        """
        raise NotImplementedError

    @fenced_by(RECIPIENT)
    def trigger_checkpoint(self, job_id: JobID, trigger_id: TriggerID) -> Ask[OperationStatus]:
        """Take a checkpoint of a job. Idempotent by trigger id: repeat the call, also after a failure, for its status.

        Raises:
            JobNotFoundError, JobAlreadyTerminatedError: there is no such job, or it is over.
            JobNotReachableError: its JobMaster does not answer at present; ask again.
        """
        raise NotImplementedError

    @fenced_by(RECIPIENT)
    def trigger_savepoint(
        self, job_id: JobID, trigger_id: TriggerID, target_directory: str, cancel_job: bool = False
    ) -> Ask[OperationStatus]:
        """Make a savepoint of a job in *target_directory*, empty for the cluster's; otherwise as `trigger_checkpoint`.

        With *cancel_job* the job's queries are stopped first, and the job is cancelled once the savepoint is complete.
        """
        raise NotImplementedError

    @fenced_by(RECIPIENT)
    def stop_with_savepoint(
        self, job_id: JobID, trigger_id: TriggerID, target_directory: str, drain: bool
    ) -> Ask[OperationStatus]:
        """Stop a job's queries, make a savepoint, and let the job finish; otherwise as `trigger_savepoint`.

        With *drain* the queries first process what their sources have.
        """
        raise NotImplementedError

    @fenced_by(RECIPIENT)
    def roll_back(self, job_id: JobID, trigger_id: TriggerID, target: str, new_query_id: bool) -> Ask[OperationStatus]:
        """Restart a job's tasks with the query state of one of its checkpoints or savepoints.

        The answer comes once the request is persisted; the tasks restart after it. Idempotent by trigger id, until
        another request rolls the job back.

        Args:
            job_id: the job.
            trigger_id: of the request.
            target: ``chk-<number>`` or the number of a checkpoint that is kept, or the directory of a savepoint.
            new_query_id: whether the queries get new ids, so that sinks that remember batches accept them again.

        Raises:
            JobNotFoundError, JobAlreadyTerminatedError: there is no such job, or it is over.
            JobNotReachableError: its JobMaster does not answer at present; ask again.
            CheckpointError: the job cannot be rolled back to the target, and keeps running as before.
        """
        raise NotImplementedError

    @fenced_by(RECIPIENT)
    def trigger_rescale(
        self, job_id: JobID, trigger_id: TriggerID, partitions: int | None, query: str, target_directory: str
    ) -> Ask[JobID]:
        """Submit a job that gives the state of a running job another number of partitions. Idempotent by trigger id.

        The new job has the owner and the queue of the other one, and does in a slot what `understudy job rescale` does.

        Args:
            job_id: the job.
            trigger_id: of the request.
            partitions: the new number; None for the one before the job's last rescale.
            query: name of the only query to rescale; empty for all with state.
            target_directory: where the savepoints are made; empty for the cluster's.

        Returns:
            the id of the new job. Its end is that of the request.

        Raises:
            JobNotFoundError, JobAlreadyTerminatedError: there is no such job, or it is over.
            CheckpointError: *partitions* is not a number of partitions, or a query is named for an undo.
            RescaleInProgressError: the job is being rescaled or upgraded already.
            JobSubmissionError: the new job cannot be accepted at present.
        """
        raise NotImplementedError

    @fenced_by(RECIPIENT)
    def report_rescale(self, job_id: JobID, rescale: Rescale) -> Ask[None]:
        """Record a rescale of a job in its history, or what is known of it since. Idempotent.

        The reporter holds the lock of the job (`runtime.checkpoint.names.change_lock`). The JobMaster sets the times.
        It records the success itself, together with the rollback of the same trigger id.

        Args:
            job_id: the job.
            rescale: the rescale; a first report of it begins it.

        Raises:
            RescaleInProgressError: a job of the cluster rescales the job on another request.
            JobNotFoundError, JobAlreadyTerminatedError: there is no such job, or it is over.
            JobNotReachableError: its JobMaster does not answer at present; report it again.
        """
        raise NotImplementedError

    @reads
    def request_job_resource_requirements(self, job_id: JobID) -> Ask[list[VertexResourceRequirements]]:
        """Return how many partitions the state of a running job's queries has and may have, for each of its tasks.

        Raises:
            JobNotFoundError, JobAlreadyTerminatedError: there is no such job, or it is over.
            JobNotReachableError: its JobMaster does not answer at present; ask again.
        """
        raise NotImplementedError

    @reads
    def request_rescale_status(self, job_id: JobID, trigger_id: TriggerID) -> Ask[OperationStatus]:
        """Return what became of a rescale; its path is the savepoint from which the job's tasks have restarted.

        Args:
            job_id: the job that is rescaled.
            trigger_id: of `trigger_rescale`.

        Raises:
            UnknownOperationError: no rescale was triggered under this id, or its job is not remembered any more.
            JobNotFoundError: the job is not remembered any more.
            JobNotReachableError: its JobMaster does not answer at present; ask again.
        """
        raise NotImplementedError

    @reads
    def get_triggered_savepoint_status(self, job_id: JobID, trigger_id: TriggerID) -> Ask[OperationStatus]:
        """Return the status of a checkpoint, savepoint or stop that was triggered under this id; a rollback has none.

        Raises:
            UnknownOperationError: the JobMaster that leads now does not know this id: trigger it again with the same.
        """
        raise NotImplementedError

    @fenced_by(RECIPIENT)
    def dispose_savepoint(self, path: str) -> Ask[bool]:
        """Remove a savepoint, and return whether there was one; raises `SavepointError` where *path* is none."""
        raise NotImplementedError

    @reads
    def request_checkpoint_statistics(self, job_id: JobID) -> Ask[CheckpointStatsSnapshot]:
        """Return the figures of a job's checkpoints, also of a job that is over; raises `JobNotFoundError`."""
        raise NotImplementedError

    @reads
    def request_query_histories(self, job_id: JobID) -> Ask[list[QueryHistory]]:
        """Return past figures of a job's streaming queries, also of a job that is over; raises `JobNotFoundError`.

        A JobMaster that has taken over knows only the batches since its takeover.
        """
        raise NotImplementedError

    @fenced_by(RECIPIENT)
    def request_job_logs(self, job_id: JobID) -> Ask[list[TaskLog]]:
        """Return the logs of the job's task attempts, in the order of their starts; raises `JobNotFoundError`.

        Logs of an attempt that is over are the kept ones. Others come from the TaskExecutor, if it answers.
        """
        raise NotImplementedError

    @reads
    def get_blob_server(self) -> Ask[BlobAddress]:
        """Return the address at which blobs are put and fetched."""
        raise NotImplementedError

    @reads
    def get_blob_server_port(self) -> Ask[int]:
        """Return only the port of `get_blob_server`."""
        raise NotImplementedError

    @reads
    def request_cluster_overview(self) -> Ask[ClusterOverview]:
        """Return counts of TaskExecutors, slots and jobs."""
        raise NotImplementedError

    @reads
    def request_task_managers(self) -> Ask[list[TaskManagerView]]:
        """Return the registered TaskExecutors."""
        raise NotImplementedError

    @reads
    def request_metric_query_service_addresses(self) -> Ask[list[str]]:
        """Return the addresses that serve the metrics of the control plane.

        These are the Dispatcher, its master's BlobServer, the ResourceManager, and each JobMaster. Components that
        cannot be found now are left out.
        """
        raise NotImplementedError

    @reads
    def request_task_manager_metric_query_service_addresses(self) -> Ask[list[TaskManagerMetricAddress]]:
        """Return the addresses that serve the metrics of the registered TaskExecutors."""
        raise NotImplementedError

    @reads
    def request_masters(self) -> Ask[list[str]]:
        """Return addresses of the actor systems of the cluster's living masters, at which all components are found."""
        raise NotImplementedError

    @fenced_by(RECIPIENT)
    def finalize_feature_level(self) -> Ask[FeatureLevelChange]:
        """Raise the cluster's feature level to the highest that all registered components support. Idempotent.

        From then on stored values are written in the formats of that level, and older releases refuse the cluster.

        Raises:
            FeatureLevelHeldError: a component supports no higher level than the present one, although others do; or a
                component does not answer. The message names it. Nothing was changed.
        """
        raise NotImplementedError

    @fenced_by(RECIPIENT)
    def add_user(self, user: User) -> Ask[bool]:
        """Add a user, or change the role of the user of that name; return whether anything was changed. Idempotent.

        Raises:
            IdentityRejectedError: the name has the wrong form, or there are too many users.
            IdentitiesUnreachableError: it is unknown whether the user was added; repeat the call.
        """
        raise NotImplementedError

    @fenced_by(RECIPIENT)
    def remove_user(self, name: str) -> Ask[bool]:
        """Remove a user with all tokens; return whether there was one. Idempotent; the user's jobs stay.

        Raises:
            IdentitiesUnreachableError: it is unknown whether all of it was removed; repeat the call.
        """
        raise NotImplementedError

    @reads
    def list_users(self) -> Ask[list[User]]:
        """Return the users, by name. Raises `IdentitiesUnreachableError`."""
        raise NotImplementedError

    @fenced_by(RECIPIENT)
    def add_token(self, token: ApiToken) -> Ask[bool]:
        """Add a token that the client has made (`make_token`); return whether it is new. Idempotent.

        Raises:
            IdentityRejectedError: there is no such user, the id is taken, or the user has too many tokens.
            IdentitiesUnreachableError: it is unknown whether the token was added; repeat the call.
        """
        raise NotImplementedError

    @fenced_by(RECIPIENT)
    def revoke_token(self, token_id: str) -> Ask[bool]:
        """Remove a token; return whether there was one. Idempotent. Raises as `remove_user`.

        Web endpoints stop serving it within `runtime.rest.authorization.MAX_AGE_S`.
        """
        raise NotImplementedError

    @reads
    def list_tokens(self, user: str) -> Ask[list[ApiToken]]:
        """Return the tokens of a user, or of all users if *user* is empty, without digests. Raises as `list_users`."""
        raise NotImplementedError

    @fenced_by(RECIPIENT)
    def shut_down_cluster(self) -> Ask[None]:
        """Begin to stop the cluster with all its masters; the reply comes before it is stopped. Idempotent."""
        raise NotImplementedError

    @fenced_by(JOB_MASTER)
    def job_reached_terminal_state(self, job: ArchivedExecutionGraph) -> Ask[None]:
        """Report that a job is over; called by its JobMaster, and repeated until it is answered. Idempotent."""
        raise NotImplementedError
