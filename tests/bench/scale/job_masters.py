"""JobMasters that are elected, write their state, and report a finished job: no tasks, and all in one process."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from actors.errors import ActorError
from actors.receptionist import ReceptionistGateway
from actors.rpc.endpoint import RpcEndpoint
from actors.rpc.gateway import rpc, rpc_sync
from actors.rpc.service import RpcService
from runtime.ha.services import HighAvailabilityServices
from runtime.ids import ExecutionAttemptID, JobID
from runtime.jobgraph.codec import decode_job_graph
from runtime.jobgraph.job_graph import JobGraph, JobKind
from runtime.leaders import LeaderFollower
from runtime.leadership import LeaderEndpoint
from runtime.protocol.archived_execution_graph import (
    ArchivedExecutionGraph,
    AttemptInfo,
    JobDetails,
    TaskInfo,
    VertexInfo,
)
from runtime.protocol.descriptor import VertexProgress
from runtime.protocol.dispatcher import DispatcherGateway
from runtime.protocol.execution_state import ExecutionState, JobStatus
from runtime.protocol.job_master import JobMasterGateway
from runtime.protocol.leader import DISPATCHER, LeaderTerm, job_master
from runtime.protocol.master import MasterGateway
from tests.bench.scale.stubs import refuses_the_rest

STATE = b"s" * 1500
"""About as much as a JobMaster writes of a job of one task."""


def finished(graph: JobGraph) -> ArchivedExecutionGraph:
    """A job of one task that has just finished."""
    now_ms = time.time_ns() // 1_000_000
    ran = dict.fromkeys(("CREATED", "SCHEDULED", "DEPLOYING", "INITIALIZING", "RUNNING", "FINISHED"), now_ms)
    attempt = AttemptInfo(ExecutionAttemptID.random(), 0, ExecutionState.FINISHED, "tm-0", ran, None, 0)
    (vertex,) = graph.vertices
    return ArchivedExecutionGraph(
        graph.job_id,
        graph.name,
        graph.kind,
        JobStatus.FINISHED,
        dict.fromkeys(("INITIALIZING", "CREATED", "RUNNING", "FINISHED"), now_ms),
        (TaskInfo(vertex.id, vertex.name, (vertex.id,), (attempt,), ""),),
        (
            VertexInfo(
                vertex.id, vertex.name, vertex.role, vertex.id, ExecutionState.FINISHED, (), VertexProgress(vertex.id)
            ),
        ),
        None,
        (),
        0,
        "fixed delay",
    )


@refuses_the_rest
class NoOpJobMaster(LeaderEndpoint, JobMasterGateway):
    """What a JobMaster does for a job, without the job.

    Args:
        service: the RPC service of the process.
        job_id: the job.
        ha: not closed with it.
        receptionist: the system's directory.
        let_end: the job is over when it is set.
    """

    def __init__(
        self,
        service: RpcService,
        job_id: JobID,
        ha: HighAvailabilityServices,
        receptionist: ReceptionistGateway,
        let_end: asyncio.Event,
    ) -> None:
        super().__init__(service, job_master(job_id), ha.leader_election(job_master(job_id)), receptionist)
        self._job_id, self._ha, self._let_end = job_id, ha, let_end
        self._dispatcher = LeaderFollower(self, ha.leader_retrieval(DISPATCHER), DispatcherGateway)
        self._began_ms = time.time_ns() // 1_000_000

    async def lead(self, term: LeaderTerm) -> None:
        await self._ha.running_jobs_registry().set_running(self._job_id, term)
        store = self._ha.execution_store()
        await store.find(self._job_id)
        self._graph = decode_job_graph(await self._ha.job_graph_store().get(self._job_id))
        await store.put(self._job_id, STATE, term)
        await self._dispatcher.start()

    async def serve(self) -> None:
        self.spawn(self._end(self.term), "ending the job")

    async def on_revoked(self) -> None:
        await self._dispatcher.stop()

    async def _end(self, term: LeaderTerm) -> None:
        await self._let_end.wait()
        await self._ha.execution_store().put(self._job_id, STATE + b"e", term)
        while True:
            try:
                return await (await self._dispatcher.get()).job_reached_terminal_state(finished(self._graph))
            except ActorError as error:
                self.log.warning("the end of job %s is reported again: %s", self._job_id, error)
                await asyncio.sleep(1.0)

    @rpc_sync
    def request_job_details(self) -> JobDetails:
        return JobDetails(
            self._job_id, "job", JobKind.SCRIPT, JobStatus.RUNNING, self._began_ms, None, {"RUNNING": 1}, 1, ""
        )


@refuses_the_rest
class LightMaster(RpcEndpoint, MasterGateway):
    """Starts a `NoOpJobMaster` where a master would start a process."""

    def __init__(self, service: RpcService, ha: HighAvailabilityServices, receptionist: ReceptionistGateway) -> None:
        super().__init__(service, "master")
        self._ha, self._receptionist = ha, receptionist
        self._job_masters: dict[JobID, Any] = {}
        self.let_end = asyncio.Event()
        self.stopped = 0

    @property
    def leading(self) -> int:
        """How many JobMasters lead."""
        return sum(one.fencing_token is not None for one in self._job_masters.values())

    @rpc
    async def start_job_master(self, job_id: JobID) -> str:
        known = self._job_masters.get(job_id)
        if known is None:
            known = NoOpJobMaster(self.service, job_id, self._ha, self._receptionist, self.let_end)
            self._job_masters[job_id] = known
            await self.service.start_server(known)
        return str(known.address)

    @rpc
    async def stop_job_master(self, job_id: JobID) -> None:
        known = self._job_masters.pop(job_id, None)
        if known is not None:
            await self.service.stop_server(known)
            self.stopped += 1
