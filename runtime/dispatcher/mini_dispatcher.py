"""The Dispatcher of a cluster for one job, which stops after this job (Flink's `MiniDispatcher`)."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from actors.errors import ActorError, WireError
from actors.rpc.gateway import rpc
from actors.rpc.service import RpcService
from blob.errors import BlobError
from blob.key import BlobKey
from blob.offload import MaybeOffloaded
from runtime.dispatcher import endpoint
from runtime.dispatcher.endpoint import Dispatcher
from runtime.environment.claims import Claim
from runtime.environment.context import ComponentContext
from runtime.ha.errors import HaError, HaUnreachableError
from runtime.ha.running_jobs import JobEntry, JobSchedulingStatus
from runtime.ids import JobID
from runtime.job_logs import TASK_LOGS, logs_owner, write_job_log
from runtime.jobgraph.codec import decode_job_graph
from runtime.protocol.archived_execution_graph import ApplicationStatus
from runtime.protocol.errors import JobNotReachableError, JobSubmissionError
from runtime.protocol.execution_state import JobStatus
from runtime.protocol.leader import LeaderTerm

CHECK_S = 0.25


@dataclass(frozen=True, slots=True)
class ClusterEnd:
    """End of a cluster: the status of its application, and the same in words."""

    status: ApplicationStatus
    diagnostics: str


def end_of_cluster(jobs: Mapping[str, JobEntry], is_attached: bool) -> ClusterEnd | None:
    """Decide whether a cluster of one job must end. Pure: a Dispatcher that takes over decides the same.

    Args:
        jobs: the registry's entries of the cluster's jobs.
        is_attached: whether the client that started the cluster still has to submit, or to read the result.

    Returns:
        the end; None while the cluster is needed.
    """
    if is_attached or any(entry.status is not JobSchedulingStatus.DONE or entry.dirty for entry in jobs.values()):
        return None
    for job_id, entry in jobs.items():
        status = JobStatus(str((entry.result or {})["status"]))
        return ClusterEnd(ApplicationStatus.of(status), f"job {job_id} is {status.value}")
    return ClusterEnd(ApplicationStatus.UNKNOWN, "the client that started the cluster ended without submitting a job")


class MiniDispatcher(Dispatcher):
    """Accepts one job, and shuts the cluster down once the job is over and no client waits for its result.

    The client holds a claim, a file lock, which becomes free when the client ends in any way. An attached client
    releases the claim when it has read result and logs, a detached one when it has submitted the job.

    Args:
        client: the claim.
        arguments: those of a `Dispatcher`.
        settings: those of a `Dispatcher`.
    """

    def __init__(self, *arguments: Any, client: Claim, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._client = client
        self._one_at_a_time = asyncio.Lock()

    async def serve(self) -> None:
        await super().serve()
        if self._term is not None:
            self.spawn(self._end_with_job(self._term), "ending the cluster with its job")

    @rpc
    async def submit_job(self, job_graph: MaybeOffloaded) -> JobID:
        job_id = decode_job_graph(await self._read(job_graph)).job_id
        async with self._one_at_a_time:
            try:
                others = {*self._jobs, *await self._ha.running_jobs_registry().entries()} - {job_id}
            except HaUnreachableError as error:
                raise JobNotReachableError(f"job {job_id} is not accepted yet: {error}") from error
            if others:
                raise JobSubmissionError(
                    f"job {job_id} is not accepted: this cluster runs job {min(others)} alone, and stops after it; "
                    "submit to a session cluster, or with --target per-job to a new cluster"
                )
            return await super().submit_job(job_graph)

    @rpc
    async def request_job_graph(self, job_id: JobID) -> bytes:
        raise JobSubmissionError(
            f"this cluster runs job {job_id} alone, and stops after it, so no other version can take its place; "
            f"`understudy job stop {job_id}`, and start the new version from its savepoint"
        )

    async def _end_with_job(self, term: LeaderTerm) -> None:
        while self._term == term:
            await asyncio.sleep(CHECK_S)
            if self._jobs or self._submitting or self._is_attached():
                continue
            try:
                end = end_of_cluster(await self._ha.running_jobs_registry().entries(), self._is_attached())
                if end is not None and self._term == term:
                    await self._keep_logs()
                    self.log.info("the cluster ends, %s: %s", end.status.value, end.diagnostics)
                    await self._shut_down(end.status, end.diagnostics)
                    return
            except (ActorError, HaError) as error:
                self.log.warning("the cluster cannot end yet: %s", error)

    def _is_attached(self) -> bool:
        """Return whether a client holds the claim; a free claim stays free for the next leading Dispatcher to test."""
        is_free = self._client.try_acquire()
        self._client.release()
        return not is_free

    async def _keep_logs(self) -> None:
        """Write the logs of the job's tasks next to the components' logs, where they outlive the BlobServer."""
        for details in self._archive.details():
            try:
                job = await self.run_blocking(self._archive.get, details.job_id)
            except (OSError, WireError) as error:  # else the cluster would not end
                self.log.error("the logs of job %s are lost with the cluster: %s", details.job_id, error)
                continue
            kept = [
                (task.name, attempt.number, log)
                for task in ([] if job is None else job.tasks)
                for attempt in task.attempts
                for log in attempt.logs
                if log.name in TASK_LOGS and log.blob_key
            ]
            for task, attempt, log in kept:
                try:
                    content = await self.run_blocking(
                        self._blobs.get_bytes, BlobKey.parse(log.blob_key), logs_owner(details.job_id)
                    )
                    write_job_log(self._log_dir, details.job_id, task, attempt, log.name, content)
                except (BlobError, OSError) as error:
                    self.log.error("the %s of task %r is lost with the cluster: %s", log.name, task, error)


async def create(service: RpcService, name: str, **arguments: Any) -> Dispatcher:
    """Create the Dispatcher in the actor's host; arguments as `runtime.dispatcher.endpoint.create`."""
    context = ComponentContext.read(arguments["runtime_dir"], arguments["system"])
    kind = functools.partial(MiniDispatcher, client=context.directory.client_claim())
    return await endpoint.create(service, name, kind=kind, **arguments)
